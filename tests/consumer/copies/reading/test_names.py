"""shmstore.consumer.copies.reading.names: a copy may write a column's name in another case, as the servers take names; a column that it lacks is named."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shmstore import Column, TableSchema
from shmstore.consumer.copies.reading.arrow_copies import parquet
from shmstore.consumer.copies.reading.called import CalledCopy
from shmstore.consumer.copies.reading.databases import postgresql, sqlite
from shmstore.errors import CopyUnreadable
from tests.servers.postgres import Postgres, start_postgres

NAMES = ("Id", "Straße", "ΣΑΣ", "note %s", 'odd"name')
TABLE = TableSchema("shop", "t", tuple(Column(name, "int") for name in NAMES), (0,))
ROWS = [(1, 2, 3, 4, 5), (2, 3, 4, 5, 6)]
Make = Callable[[list[str], list[tuple[int, ...]]], Any]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with start_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql", "parquet", "called"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a copy that has columns of these names, in this order, with these rows."""

    def quoted(names: list[str]) -> str:
        return ", ".join('"' + name.replace('"', '""') + '" int' for name in names)

    def in_sqlite(names: list[str], rows: list[tuple[int, ...]]) -> Any:
        with closing(sqlite3.connect(tmp_path / "copy.db")) as connection, connection:
            connection.execute(f"CREATE TABLE t ({quoted(names)})")
            connection.executemany(f"INSERT INTO t VALUES ({','.join('?' * len(names))})", rows)
        return sqlite(str(tmp_path / "copy.db"), "t")

    def in_postgresql(names: list[str], rows: list[tuple[int, ...]]) -> Any:
        server: Postgres = request.getfixturevalue("postgres")
        url = f"postgresql://{server.user}@127.0.0.1:{server.port}/postgres"
        with psycopg.connect(url, password=server.password, autocommit=True) as connection:
            connection.execute(b"DROP TABLE IF EXISTS t")
            connection.execute(f"CREATE TABLE t ({quoted(names)})".encode())
            for row in rows:
                connection.execute(f"INSERT INTO t VALUES ({','.join(map(str, row))})".encode())
        return postgresql(url, "t", server.password)

    def in_parquet(names: list[str], rows: list[tuple[int, ...]]) -> Any:
        pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), tmp_path / "t.parquet")
        return parquet(str(tmp_path / "t.parquet"))

    def in_a_function(names: list[str], rows: list[tuple[int, ...]]) -> Any:
        return CalledCopy(lambda table: [dict(zip(names, row, strict=True)) for row in rows])

    made = {"sqlite": in_sqlite, "postgresql": in_postgresql, "parquet": in_parquet, "called": in_a_function}
    return made[request.param]


@pytest.mark.parametrize("number", range(4))
def test_letters_in_another_case(make: Make, number: int, seed: int) -> None:
    """Each letter in either case, columns in any order: the same rows, also by their keys."""
    choose = random.Random(seed)
    names = [
        "".join(choose.choice([letter.lower()[:1], letter.upper()[:1]]) if letter != "ß" else letter for letter in name)
        for name in NAMES
    ]
    order = choose.sample(range(len(names)), len(names))
    with closing(make([names[i] for i in order], [tuple(row[i] for i in order) for row in ROWS])) as copy:
        assert sorted(tuple(row) for rows in copy.rows(TABLE) for row in rows) == ROWS, f"seed {seed}: {names}"
        assert [tuple(row) for row in copy.rows_of(TABLE, [(2,), (9,)])] == ROWS[1:]


@pytest.mark.parametrize("lacking", range(len(NAMES)))
def test_a_column_that_a_copy_lacks_is_named(make: Make, lacking: int) -> None:
    """Whatever a database makes of a name that it does not know: SQLite takes it for a text."""
    names = [f"{name}x" if i == lacking else name for i, name in enumerate(NAMES)]
    with closing(make(names, ROWS)) as copy:
        for read in (lambda: list(copy.rows(TABLE)), lambda: copy.rows_of(TABLE, [(1,)])):
            with pytest.raises(CopyUnreadable) as caught:
                read()
            assert f"has no column {NAMES[lacking]}: it has " in str(caught.value)
