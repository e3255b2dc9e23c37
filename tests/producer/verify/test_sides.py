"""A source and its copy on a server are read alike: by the key, in the order of an index, in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmstore.encoding.codec import unpack_rows
from shmstore.event import Column, TableSchema
from shmstore.producer.connection import prepared
from shmstore.producer.verify import source_rows
from shmstore.producer.verify.result import VerifyProgress
from shmstore.producer.verify.server_copy import ServerCopy
from shmstore.producer.verify.source_rows import SourceRows
from tests.producer.running import Running, running
from tests.producer.snapping import fill
from tests.producer.verify.verifying import hurried, verified
from tests.servers.server import Server


@contextmanager
def copied(server: Server, database: str, state: Path) -> Iterator[tuple[Running, Any]]:
    """A table of 300 rows, its producer, and its copy, the table `copied` next to it, and a cursor."""
    fill(server, database, 300)
    with (
        running(server, include=(f"{database}.t",), state=str(state)) as run,
        server.connect(database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE TABLE copied LIKE t")
        cursor.execute("INSERT INTO copied SELECT * FROM t")
        yield run, cursor


def test_each_side_is_read_in_the_order_of_its_index(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source and copy on a server are asked alike: a range of the index that the rows stand in, nothing converted, nothing sorted."""
    hurried(monkeypatch)
    asked: list[str] = []
    ask = SourceRows._asked

    def noted(self: SourceRows, sql: str) -> Any:
        asked.append(sql)
        return ask(self, sql)

    monkeypatch.setattr(SourceRows, "_asked", noted)
    with copied(any_server, database, tmp_path) as (run, cursor):
        assert verified(run, lambda *_: ServerCopy(run.settings, database, "copied"), database).equal
        sides = [sorted(sql for sql in asked if f".`{name}`" in sql) for name in ("t", "copied")]
        assert len(sides[0]) > 2
        assert [sql.replace(".`copied`", ".`t`") for sql in sides[1]] == sides[0]
        for sql in asked:
            assert sql.startswith("SELECT `id`, `n`, `t` FROM ")
            form = "FORMAT=TRADITIONAL " if any_server.flavor == "mysql" else ""  # MySQL 9's own is a text
            cursor.execute(f"EXPLAIN {form}{sql}")
            columns = [column[0] for column in cursor.description]
            plan = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            assert [(each["key"], "filesort" in (each["Extra"] or "")) for each in plan] == [("PRIMARY", False)]


def test_a_filtered_table_is_read_in_parts_of_all_its_rows(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No SELECT goes through more of the table than a part, so that a server is never long silent where few rows pass; those are all compared."""
    hurried(monkeypatch)
    fill(any_server, database, 300)
    asked: list[str] = []
    ask = SourceRows._asked
    monkeypatch.setattr(SourceRows, "_asked", lambda self, sql: asked.append(sql) or ask(self, sql))
    options = {
        "include": (f"{database}.t",),
        "row_filter": (f"{database}.t: n = 20 AND id > 60 OR id = 300",),
        "state": str(tmp_path),
    }
    with (
        running(any_server, **options) as run,
        any_server.connect(database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE TABLE copied LIKE t")
        cursor.execute("INSERT INTO copied SELECT * FROM t WHERE n = 20 AND id > 60 OR id = 300")
        found = verified(run, lambda *_: ServerCopy(run.settings, database, "copied"), database)
        assert (found.equal, found.rows, found.copied) == (True, 3, 3)
        own = [sql for sql in asked if ".`t`" in sql]
        assert [sql.count("`id` <= ") for sql in own] == [1, 1, 1, 1, 1, 1, 0]
        assert own[-1].endswith("LIMIT 50")
        cursor.execute("UPDATE copied SET n = 21 WHERE id IN (117, 300)")
        cursor.execute("DELETE FROM copied WHERE id = 214")
        found = verified(run, lambda *_: ServerCopy(run.settings, database, "copied"), database)
        assert [each.key for each in found.samples] == [[117], [214], [300]]


@pytest.mark.parametrize("key", ["PRIMARY KEY (nr)", "PRIMARY KEY (id)", "PRIMARY KEY (id, nr)"])
def test_a_copy_with_a_key_of_its_own_is_asked_by_the_source_s(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """What differs is read by the source's key, not by reading all rows again, whichever key the copy has, and however it writes its columns' names."""
    fill(any_server, database, 400)
    with (
        running(any_server, include=(f"{database}.t",), state=str(tmp_path)) as run,
        any_server.connect(database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"CREATE TABLE copied (T VARCHAR(60), n INT, nr INT, Id INT, {key})")
        cursor.execute("INSERT INTO copied SELECT t, n, 1000 - id, id FROM t WHERE id <> 20")
        cursor.execute("UPDATE copied SET n = n + 1 WHERE id = 7")
        copy = ServerCopy(run.settings, database, "copied")
        pieces, read = SourceRows.pieces, list[SourceRows]()
        monkeypatch.setattr(SourceRows, "pieces", lambda self, *a, **named: read.append(self) or pieces(self, *a, **named))
        table = TableSchema(database, "t", (Column("id", "int"), Column("n", "int"), Column("t", "varchar")), (0,))
        with closing(copy):
            assert sorted(copy.rows_of(table, [[7], [20], [21], [999]])) == [[7, 8, "row 7"], [21, 21, "row 21"]]
        assert not read
        found = verified(run, lambda *_: ServerCopy(run.settings, database, "copied"), database)
        assert [(each.key, each.copy is None) for each in found.samples] == [([7], False), ([20], True)]


@pytest.mark.parametrize("taken", [1, 3, 6, 7])
def test_a_side_that_is_left_early_can_be_asked_again(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Closed in the middle of a SELECT, or at the end of one, the rows leave the connection free for the next question."""
    monkeypatch.setattr(source_rows, "PIECE_BYTES", 1)
    monkeypatch.setattr(prepared, "RECEIVE", 1 << 10)
    hurried(monkeypatch)
    with copied(any_server, database, tmp_path) as (run, _), closing(ServerCopy(run.settings, database, "copied")) as copy:
        table = TableSchema(database, "t", (Column("id", "int"), Column("n", "int"), Column("t", "varchar")), (0,))
        rows = copy.rows(table)
        before = [row for _ in range(taken) for row in unpack_rows(next(rows))]
        assert 0 < len(before) < 300
        rows.close()
        assert copy.rows_of(table, [[7]]) == [[7, 7, "row 7"]]
        assert sum(len(unpack_rows(some)) for some in copy.rows(table)) == 300


def test_a_copy_that_goes_while_it_is_read(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy on a server that is dropped meanwhile is reported as not compared."""
    hurried(monkeypatch)
    with copied(any_server, database, tmp_path) as (run, cursor):

        def meanwhile(progress: VerifyProgress) -> None:
            if progress.copied == 100:
                cursor.execute("DROP TABLE IF EXISTS copied")

        copies = lambda *_: ServerCopy(run.settings, database, "copied")  # noqa: E731
        assert "the copy cannot be read" in verified(run, copies, database, progress=meanwhile).problem
