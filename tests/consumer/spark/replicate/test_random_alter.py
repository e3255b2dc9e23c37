"""Random ALTERs on real servers, under load and with kills: in the end each copy has the columns and rows that SELECT shows."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from shmstore import EventStore
from shmstore.cli.commands.snapshot import page
from shmstore.consumer.copies import copy as copies_
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.replicate.replicate import Replication
from shmstore.home.snapshots import request_snapshot, snapshot_status, snapshot_waits
from tests.consumer.copies.databases.servers import Copies, copies
from tests.consumer.copies.lakes import FORMATS, LocalCopies, read
from tests.consumer.copies.random_alters import Author
from tests.consumer.spark.comparison import texts
from tests.producer.running import running, wait_for_position
from tests.servers.server import Server


def _has_nul(rows: list[tuple[str, ...]]) -> bool:
    return any("\0" in cell for row in rows for cell in row)


class Killed(Exception):
    """The driver was killed here."""


class Follower:
    """Copies in one format, brought up to date by a query that is killed now and then."""

    def __init__(self, run: Any, folder: Path, format: str, choose: random.Random, target: Copies | None, spark: Any) -> None:
        self.run, self.folder, self.format, self.choose, self.copies, self.spark = run, folder, format, choose, target, spark
        self.restarts = 0.1
        self.replication = self.start()

    def start(self) -> CopySet:
        options = SourceOptions.parse(
            {
                "store": self.run.settings.store,
                "stateDirectory": self.run.settings.state,
                "zeroDates": "null",
                "subscription": f"copies_{self.format}",
            }
        )
        if self.copies is not None:
            return Replication(options, self.copies.address, password=self.copies.password)
        if self.format == "iceberg":
            return Replication(options, "lake.{database}.{table}", "iceberg", session=self.spark)
        return LocalCopies(
            self.folder / self.format,
            self.format,
            store=self.run.settings.store,
            subscription=f"copies_{self.format}",
            zero_dates="null",
            state=self.run.settings.state,
        )

    def apply(self, payloads: list[bytes], batch: int) -> None:
        while True:
            try:
                self.replication.apply(payloads, "q", batch)
            except Killed:
                self.replication.close()
                self.replication = self.start()
                continue
            if self.choose.random() >= self.restarts:
                return
            self.replication.close()
            self.replication = self.start()  # killed before Spark's commit log

    def exists(self, table: str) -> bool:
        """Whether there is a copy."""
        return any(name == table and copy._target.exists for (_, _, name), copy in self.replication._copies.items())

    def held(self, database: str, table: str) -> pa.Table:
        """A copy's rows."""
        if isinstance(self.replication, LocalCopies):
            self.replication.close()  # a lake's file is of one connection
            return read(self.replication, self.format, table, database)
        path = self.replication.path(database, table)
        self.spark.catalog.refreshTable(path)
        return self.spark.table(path).toArrow()

    def read(self, database: str, table: str, types: dict[str, str]) -> tuple[set[str], list[tuple[str, ...]]]:
        if self.copies is not None:
            names, rows = self.copies.held(table, types)
        else:
            held = self.held(database, table)
            names = sorted(held.column_names)
            rows = list(zip(*[held.column(name).to_pylist() for name in names], strict=True))
        return set(names), texts(names, types, rows)


@contextmanager
def killing(choose: random.Random, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some commits are the last thing that a driver does, or the first that it does not do any more."""
    real = copies_.Copy._do

    def do(self: Any, step: Any, query: str, version: int) -> None:
        if choose.random() < 0.03:
            raise Killed
        real(self, step, query, version)
        if choose.random() < 0.03:
            raise Killed

    monkeypatch.setattr(copies_.Copy, "_do", do)
    yield
    monkeypatch.undo()


class Lake:
    """A producer's store, and copies of its tables in several formats."""

    def __init__(self, run: Any, store: EventStore, server: Server, author: Author, followers: list[Follower]) -> None:
        self.run, self.store, self.server, self.author, self.followers = run, store, server, author, followers
        self.subscription, self.batch = store.subscribe("copies"), 0

    def follow(self, limit: int) -> bool:
        """Apply a micro-batch; False where there is none."""
        found = self.subscription.get(limit_events=limit, timeout=0)
        self.subscription.rollback()
        if not found:
            return False
        last = found.ack_point
        if last is None:
            return limit < 10_000 and self.follow(10_000)
        payloads = [bytes(payload) for payload in found.payloads()][: last - found.first + 1]
        for follower in self.followers:
            follower.apply(payloads, self.batch)
        self.subscription.get(limit_events=last - found.first + 1, timeout=0)
        self.subscription.ack(last)
        self.batch += 1
        return True

    def settle(self) -> None:
        """Follow until all that the server logged, and every snapshot, is in the copies."""
        deadline = time.monotonic() + 120
        wait_for_position(
            self.server, self.store, put=True
        )  # once: copies on the same server make its log longer, and nothing of that is put
        while True:
            while self.follow(10_000):
                pass
            settings = self.run.settings
            progress = snapshot_status(settings.store, state=settings.state)
            waits = snapshot_waits(settings.store, state=settings.state)
            if not waits and not (progress is not None and progress.open) and not self.follow(10_000):
                return
            assert self.run.alive, self.run.wait()
            assert time.monotonic() < deadline, progress and page(progress, waits)
            time.sleep(0.05)

    def put_right(self) -> None:
        """As the log says of copies in PostgreSQL: once the text that it cannot hold is gone, have the rows read again."""
        for follower in self.followers:
            aside = [name.partition(".")[2] for name in follower.replication.aside if follower.format == "postgresql"]
            tables = [table for table in aside if table in self.author.tables and not _has_nul(self.author.rows(table)[1])]
            if tables:
                settings = self.run.settings
                request_snapshot(settings.store, [f"{self.author.database}.{table}" for table in tables], state=settings.state)
                self.settle()

    def compare(self, said: str) -> None:
        """Every copy has the columns and rows that SELECT shows."""
        author = self.author
        self.put_right()
        for follower in self.followers:
            for table in author.tables:
                wanted, types = author.rows(table), author.types_of(table)
                name = f"{author.database}.{table}"
                if follower.format == "postgresql" and _has_nul(wanted[1]):
                    continue  # which it cannot hold
                assert name not in follower.replication.aside, f"{said}, {follower.format}: {table} is aside"
                if wanted[1] or follower.exists(table):
                    story = "\n".join(sql for sql in author.log if not sql.startswith(("SET", "REPLACE", "DELETE", "UPDATE")))
                    found = follower.read(author.database, table, types)
                    assert found[1] == wanted[1], f"{said}, {follower.format}, {table}:\n{story}"
                    assert not wanted[1] or found[0] == wanted[0], f"{said}, {follower.format}, {table}:\n{story}"


@contextmanager
def lake(
    server: Server,
    kind: str,
    database: str,
    tmp_path: Path,
    choose: random.Random,
    formats: list[str],
    targets: Mapping[str, Copies],
    spark: Any,
) -> Iterator[Lake]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    author = Author(server, database, choose, kind)
    options = {"state": str(tmp_path / "state"), "include": (f"{database}.*",), "snapshot_chunk": 7}
    try:
        with running(server, **options) as run, EventStore.attach(run.settings.store) as store:
            followers = [Follower(run, tmp_path, format, choose, targets.get(format), spark) for format in formats]
            made = Lake(run, store, server, author, followers)
            yield made
            made.subscription.close()
    finally:
        author.connection.close()
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {database}")


def check(
    server: Server, kind: str, database: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, formats: list[str], alters: int,
    targets: Mapping[str, Copies] = MappingProxyType({}), spark: Any = None,
) -> None:  # fmt: skip
    """So many random DDLs."""
    choose = random.Random(seed)
    with lake(server, kind, database, tmp_path, choose, formats, targets, spark) as made, killing(choose, monkeypatch):
        author, rested = made.author, 0
        for number in range(6):
            author.create(f"t{number}")
            author.change(f"t{number}")
        while author.altered < alters:
            table = choose.choice(author.tables)
            if choose.random() < 0.6:
                author.change(table)
            if choose.random() < 0.5:
                made.follow(10_000)
            author.alter(table)
            if choose.random() < 0.5:
                author.change(choose.choice(author.tables))
            for _ in range(choose.randrange(3)):
                made.follow(choose.randint(1, 40))
            if author.altered >= rested + 6:
                rested = author.altered
                made.settle()
                made.compare(f"seed {seed}, after {rested}")
                for each in author.tables:
                    author.change(each)
        made.settle()
        made.compare(f"seed {seed}")


STRICT, LAX = "STRICT_TRANS_TABLES", ""
TWO = "a INT, b INT"
FORMS = [
    # the table before, rows, sql_mode, what is done to it
    (TWO, "(1, 10, 20), (2, 30, NULL)", STRICT, "RENAME COLUMN a TO b, RENAME COLUMN b TO a"),
    (TWO, "(1, 10, 20), (2, 30, NULL)", STRICT, "CHANGE a b INT, CHANGE b a INT"),
    (TWO, "(1, 10, 20), (2, 30, NULL)", STRICT, "RENAME COLUMN b TO a, DROP COLUMN a"),
    (TWO, "(1, 10, 20), (2, 30, NULL)", STRICT, "ADD COLUMN a VARCHAR(9) DEFAULT 'x', DROP COLUMN a"),
    (TWO, "(1, 10, 20), (2, 30, NULL)", STRICT, "RENAME COLUMN a TO c, ADD COLUMN a INT"),
    (TWO, "(1, 10, 20), (2, 30, NULL)", STRICT, "DROP a, CHANGE b c BIGINT, ADD d INT NOT NULL DEFAULT 7, ADD e VARCHAR(9) DEFAULT 'x', COMMENT='y'"),
    (TWO, "(1, 10, 20), (2, 30, NULL)", LAX, "MODIFY b BIGINT NOT NULL"),
    (TWO, "(1, 10, 20), (2, -30, 7)", LAX, "MODIFY a TINYINT UNSIGNED"),
    (TWO, "(1, 10, 20), (2, -30, 7)", LAX, "MODIFY a INT UNSIGNED"),
    (TWO, "(1, 10, 20), (2, 30, 7)", LAX, "DROP PRIMARY KEY, ADD PRIMARY KEY (b)"),
    (TWO, "(1, 10, 20), (2, 30, NULL)", LAX, "DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)"),
    (TWO, "(1, 10, 20), (2, 30, NULL)", STRICT, "MODIFY id BIGINT UNSIGNED"),
    (TWO, "(0, 10, 20), (2, 30, NULL)", STRICT, "MODIFY id INT AUTO_INCREMENT"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c INT CHECK (c IS NOT NULL OR TRUE)"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c INT NOT NULL DEFAULT '12'"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c BINARY(4) DEFAULT 'ab'"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c CHAR(4) DEFAULT 'a '"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c CHAR(4) NOT NULL"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c SET('x','y') DEFAULT 'y,x'"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c ENUM('x','y') NOT NULL"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c TIME DEFAULT '1:2:3'"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c BIT(4) DEFAULT b'101'"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c DECIMAL(9,3) DEFAULT 1.5"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c DATETIME DEFAULT CURRENT_TIMESTAMP"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c TIMESTAMP NULL"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c INT AS (a + b) STORED"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN (c INT NOT NULL DEFAULT -5, d TEXT), ADD INDEX (c)"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c BOOL DEFAULT TRUE FIRST"),
    (TWO, "(1, 10, 20)", STRICT, "ADD INDEX (a), ADD UNIQUE (b), COMMENT='DROP a', ENGINE=InnoDB, ALTER a SET DEFAULT 5"),
    ("a DATETIME(6)", "(1, '2026-02-03 04:05:06.789'), (2, NULL)", STRICT, "MODIFY a DATETIME"),
    ("a DATETIME(6)", "(1, '2026-02-03 04:05:06.789')", STRICT, "MODIFY a DATETIME(6) NOT NULL"),
    ("a DATETIME", "(1, '2026-02-03 04:05:06')", STRICT, "MODIFY a VARCHAR(40)"),
    ("a DATETIME", "(1, '2026-02-03 04:05:06')", STRICT, "MODIFY a TIMESTAMP NULL"),
    ("a TIMESTAMP NULL", "(1, '2026-02-03 04:05:06')", STRICT, "MODIFY a DATETIME"),
    ("a DOUBLE", "(1, 1.005), (2, 1e9)", STRICT, "MODIFY a DECIMAL(20,2)"),
    ("a FLOAT", "(1, 1.1), (2, 3e30)", STRICT, "MODIFY a DOUBLE"),
    ("a DECIMAL(9,4)", "(1, 1.2345)", LAX, "MODIFY a DECIMAL(9,2)"),
    ("a DECIMAL(9,2)", "(1, 1.23)", STRICT, "MODIFY a DECIMAL(12,2)"),
    ("a VARBINARY(9)", "(1, x'6162')", STRICT, "MODIFY a VARCHAR(9)"),
    ("a BINARY(3)", "(1, x'6162')", STRICT, "MODIFY a BINARY(6)"),
    ("a VARBINARY(3)", "(1, x'6162')", STRICT, "MODIFY a VARBINARY(60)"),
    ("a ENUM('x','y')", "(1, 'y')", STRICT, "MODIFY a INT"),
    ("a ENUM('x','y')", "(1, 'y')", STRICT, "MODIFY a ENUM('y','x')"),
    ("a ENUM('x','y')", "(1, 'y')", STRICT, "MODIFY a ENUM('x','y','z')"),
    ("a SET('x','y')", "(1, 'y,x')", STRICT, "MODIFY a SET('y','x')"),
    ("a VARCHAR(9)", "(1, 'ü€'), (2, '12')", STRICT, "MODIFY a VARCHAR(80)"),
    ("a VARCHAR(9)", "(1, 'ü€')", LAX, "MODIFY a VARCHAR(80) CHARACTER SET latin1"),
    ("a VARCHAR(9) CHARACTER SET utf8mb4", "(1, 'ü€')", LAX, "MODIFY a VARCHAR(80)"),
    ("a VARCHAR(9)", "(1, 'ü€')", LAX, "CONVERT TO CHARACTER SET latin1"),
    ("a VARCHAR(9)", "(1, 'abcdef')", LAX, "MODIFY a VARCHAR(3)"),
    ("a VARCHAR(9)", "(1, 'a  ')", STRICT, "MODIFY a CHAR(9)"),
    ("a CHAR(9)", "(1, 'a')", STRICT, "MODIFY a CHAR(20)"),
    ("a VARCHAR(9)", "(1, '12')", STRICT, "MODIFY a INT"),
    ("a TEXT", "(1, 'ü')", STRICT, "MODIFY a LONGTEXT"),
    ("a BLOB", "(1, 'x')", STRICT, "MODIFY a LONGBLOB"),
    ("a TIME(3)", "(1, '10:11:12.345')", STRICT, "MODIFY a TIME"),
    ("a TIME", "(1, '10:11:12')", STRICT, "MODIFY a TIME(3)"),
    ("a YEAR", "(1, 2026)", STRICT, "MODIFY a INT"),
    ("a BIT(8)", "(1, 200)", STRICT, "MODIFY a BIT(16)"),
    ("a DATE", "(1, '2026-02-03')", STRICT, "MODIFY a DATETIME(3)"),
    ("a INT, b INT AS (a + 1) STORED", "(1, 5, DEFAULT)", STRICT, "MODIFY a BIGINT"),
    ("a INT", "(1, 5), (2, 6)", STRICT, "PARTITION BY HASH (id) PARTITIONS 3"),
]  # fmt: skip
ONLY_MARIADB = [
    (TWO, "(1, 10, 20)", STRICT, "WAIT 5"),
    (TWO, "(1, 10, 20)", STRICT, "WAIT 5 DROP a"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c UUID DEFAULT '123e4567-e89b-12d3-a456-426655440000'"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN c INET6 DEFAULT '::1'"),
    (TWO, "(1, 10, 20)", STRICT, "ADD COLUMN IF NOT EXISTS a BIGINT, DROP COLUMN IF EXISTS x"),
    (TWO, "(1, 10, 20), (2, 10, 30)", STRICT, "IGNORE"),
]


@pytest.mark.server
@pytest.mark.parametrize("rows_between", [False, pytest.param(True, marks=pytest.mark.long)], ids=["bare", "rows"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_each_form_of_alter(request: pytest.FixtureRequest, kind: str, tmp_path: Path, rows_between: bool) -> None:
    """A table for each form, whose rows the copies have when its ALTER comes, with or without changes behind it in the same batch."""
    server, forms = request.getfixturevalue(kind), FORMS + ONLY_MARIADB * (kind == "mariadb")
    formats = FORMATS if rows_between else {"mariadb": ["parquet", "duckdb"], "mysql": ["delta"]}[kind]
    with lake(server, kind, f"forms_{kind}", tmp_path, random.Random(1), formats, {}, None) as made:
        author = made.author
        for follower in made.followers:
            follower.restarts = 0.0
        author.run(f"SET SESSION sql_mode = '{STRICT},NO_AUTO_VALUE_ON_ZERO'")
        for number, (columns, rows, _, _) in enumerate(forms):
            charset = "latin1" if "utf8mb4" in columns else "utf8mb4"
            assert author.run(f"CREATE TABLE t{number} (id INT PRIMARY KEY, {columns}) CHARSET {charset}")
            assert author.run(f"INSERT INTO t{number} VALUES {rows}"), rows
            author.tables.append(f"t{number}")
        for name in ("x", "y", "gone", "again"):
            assert author.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, a VARCHAR(9) DEFAULT '{name}')")
            assert author.run(f"INSERT INTO {name} (id) VALUES (1), (2)")
            author.tables.append(name)
        made.settle()
        author.run("SET SESSION time_zone = '+05:30'")
        for number, (_, _, mode, alter) in enumerate(forms):
            author.run(f"SET SESSION sql_mode = '{mode}'")
            sql = f"ALTER TABLE t{number} {alter}"
            assert author.run(sql if alter != "IGNORE" else f"ALTER IGNORE TABLE t{number} ADD UNIQUE (a)"), sql
            if rows_between and not author.run(f"UPDATE t{number} SET id = id + 100 ORDER BY id LIMIT 1"):
                author.run(f"DELETE FROM t{number} LIMIT 1")
        author.run("RENAME TABLE x TO old, y TO x, old TO y")
        author.run("RENAME TABLE gone TO there")
        author.tables[author.tables.index("gone")] = "there"
        author.run("DROP TABLE again")
        author.run("CREATE TABLE again (id BIGINT UNSIGNED PRIMARY KEY, a INT)")
        author.run("INSERT INTO again VALUES (18446744073709551615, 5)")
        made.settle()
        made.compare("each form")


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_copies_equal_select_after_random_alters(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a DDL does to rows, columns and keys, also with more changes before, between and behind, and with kills."""
    check(request.getfixturevalue(kind), kind, f"alters_{kind}", tmp_path, seed, monkeypatch, FORMATS, 12)


@pytest.mark.server
def test_copies_in_databases_equal_select_after_random_alters(
    mariadb: Server, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in databases."""
    kinds = ["postgresql", "sqlite"]
    with databases(kinds, mariadb, tmp_path) as targets:
        check(mariadb, "mariadb", "alters_databases", tmp_path, seed, monkeypatch, kinds, 12, targets)


@contextmanager
def databases(kinds: Sequence[str], server: Server, folder: Path) -> Iterator[dict[str, Copies]]:
    """Targets of these kinds; that of the server's own is on it."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(copies(kind, server, "lake", folder)) for kind in kinds}


@pytest.mark.server
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_hundreds_of_random_alters_also_in_databases(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, for long, and in databases as well: 60 DDLs a round, `SHMSTORE_TEST_ALTERS` in all (default 600)."""
    server = request.getfixturevalue(kind)
    for number in range(int(os.environ.get("SHMSTORE_TEST_ALTERS", "600")) // 60):
        folder = tmp_path / str(number)
        folder.mkdir()
        with databases(["postgresql", "sqlite", kind], server, folder) as targets:
            formats = [*FORMATS, *targets]
            check(server, kind, f"alters_{kind}_{number}", folder, seed + number, monkeypatch, formats, 60, targets)
