"""Rows of logs without names, read with the columns of their time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore.errors import SchemaUnknown, UnsupportedEvent
from shmstore.event import Position
from shmstore.producer.schema.history import SchemaHistory
from tests.producer.decoding import Log, database_of, logged, reference, run
from tests.producer.schema.test_history import query_of
from tests.servers.server import Server


def feed(history: SchemaHistory, connection: Any, log: Log, sql: str) -> None:
    """Run a DDL and follow it at the place where it stands in the log."""
    run(connection, "SET SESSION sql_mode = ''", sql)
    file, offset = log._place()
    assert history.follow(Position(file, offset), "old_log", sql)


MODES = {"mysql": "SET GLOBAL binlog_row_metadata = MINIMAL", "mariadb": "SET GLOBAL binlog_row_metadata = NO_LOG"}
TABLE = (
    "CREATE TABLE t (id int unsigned primary key, b bigint unsigned, e enum('x','ü') character set latin1, s set('p','q'), "
    "v varchar(20) character set gbk, w varbinary(5), x text, y blob, z year, d decimal(8,2) unsigned)"
)
ROW = "INSERT INTO t (id, b, e, s, v, w, x, y, z, d) VALUES (4294967295, 18446744073709551615, 'ü', 'p,q', '世', x'ff00', 'ü', x'80', 2024, 1.5)"


@pytest.mark.server
def test_rows_without_metadata_are_those_of_full_metadata(any_server: Server) -> None:
    """MINIMAL on MySQL, NO_LOG on MariaDB: with a history the rows and the schema are the same as with FULL."""
    with database_of(any_server, "bare") as (connection, log):
        run(connection, TABLE)
        log.skip()
        run(connection, ROW)
        (full,) = log.seen()
        run(connection, "DELETE FROM t", MODES[any_server.flavor])
        try:
            history = SchemaHistory()
            history.snapshot(query_of(connection), Position(*log._place()))
            log.decoder = reference(history)
            log.skip()
            run(connection, ROW)
            (bare,) = log.seen()
            assert logged(bare.schema) == full.schema
            assert bare._replace(schema=full.schema) == full
            widths = {"mariadb": ["int(10) unsigned", "bigint(20) unsigned"], "mysql": ["", ""]}
            assert [column.definition for column in bare.schema.columns][:2] == widths[any_server.flavor]
            log.decoder = reference()
            run(connection, "UPDATE t SET z = 1999")
            with pytest.raises(SchemaUnknown, match="binlog_row_metadata=FULL"):
                log.seen()
        finally:
            run(connection, "SET GLOBAL binlog_row_metadata = FULL")


HIDING = [
    ("h1 (a int, b text, c blob, z bigint, UNIQUE (b), UNIQUE (c))", "(1, 'b', 'c', 2)", (1, "b", b"c", 2)),
    ("h2 (a int, b varchar(4000), c int, UNIQUE (b), UNIQUE (c))", "(1, 'b', 2)", (1, "b", 2)),
    ("h3 (a int, b text, UNIQUE (b), z bigint) WITH SYSTEM VERSIONING", "(1, 'b', 2)", (1, "b", 2)),
    (
        "h4 (a int, b text, s timestamp(6) GENERATED ALWAYS AS ROW START, e timestamp(6) GENERATED ALWAYS AS ROW END, z bigint, "
        "UNIQUE (b), PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
        "(1, 'b', DEFAULT, DEFAULT, 2)",
        (1, "b", 2),
    ),
]


@pytest.mark.server
@pytest.mark.parametrize("altered", [False, True])
def test_columns_that_mariadb_hides(mariadb: Server, altered: bool) -> None:
    """NO_LOG: hashes of long UNIQUE keys stand behind all columns and are not shown; with a period, behind that, after an ALTER too."""
    with database_of(mariadb, "hiding") as (connection, log):
        try:
            run(connection, MODES["mariadb"], "SET SESSION system_versioning_alter_history = KEEP")
            history = SchemaHistory()
            history.snapshot(query_of(connection), Position(*log._place()))
            log.decoder = reference(history)
            log.decoder.mariadb = True
            for table, values, wanted in HIDING:
                name = table.split()[0]
                for sql in [f"CREATE TABLE {table}", *([f"ALTER TABLE {name} ADD y bigint FIRST"] if altered else [])]:
                    run(connection, sql)
                    history.follow(Position(*log._place()), "hiding", sql)
                log.skip()
                run(connection, f"INSERT INTO {name} VALUES {'(3, ' + values[1:] if altered else values}")
                (seen,) = log.seen()
                row = dict(zip(seen.schema.names, seen.rows[0].after or (), strict=True))
                assert [row.pop(own, None) is not None for own in ("row_start", "row_end", "s", "e")].count(True) in (0, 2)
                assert tuple(row.values()) == ((3, *wanted) if altered else wanted)
        finally:
            run(connection, "SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.server
@pytest.mark.parametrize("columns", ["(z BIGINT, b SERIAL)", "b SERIAL"])
def test_the_unique_key_of_a_serial_that_is_left_out(mariadb: Server, columns: str) -> None:
    """NO_LOG: IF NOT EXISTS leaves out the column, and its UNIQUE is one over the long column of that name, with a hidden hash."""
    with database_of(mariadb, "serials") as (connection, log):
        try:
            run(connection, MODES["mariadb"])
            history = SchemaHistory()
            history.snapshot(query_of(connection), Position(*log._place()))
            log.decoder = reference(history)
            log.decoder.mariadb = True
            for sql in ("CREATE TABLE t (a int, b text)", f"ALTER TABLE t ADD COLUMN IF NOT EXISTS {columns}"):
                run(connection, sql)
                history.follow(Position(*log._place()), "serials", sql)
            log.skip()
            run(connection, "INSERT INTO t (a, b) VALUES (1, 'x')")
            assert [event.rows[0].after[:2] for event in log.seen() if event.rows[0].after] == [(1, "x")]
        finally:
            run(connection, "SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.server
def test_a_bigint_that_the_history_missed_stops_mysql(mysql: Server) -> None:
    """MINIMAL: one column more than is known is an error that names commands, never a hidden one with names moved along."""
    with database_of(mysql, "missed") as (connection, log):
        try:
            run(connection, MODES["mysql"], "CREATE TABLE t (a bigint, KEY ((a + 1)))")
            history = SchemaHistory()
            history.snapshot(query_of(connection), Position(*log._place()))
            log.decoder = reference(history)
            log.decoder.mariadb = False
            log.skip()
            run(connection, "INSERT INTO t VALUES (1)")  # the hidden column of a functional key is not in the log
            assert [event.rows[0].after for event in log.seen()] == [(1,)]
            run(connection, "ALTER TABLE t ADD b bigint FIRST", "INSERT INTO t VALUES (2, 3)")
            with pytest.raises(
                SchemaUnknown, match=r"the event has 2 columns .*, the table as it is followed 1 .*--exclude.*shmstore produce"
            ):
                log.seen()
        finally:
            run(connection, "SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.server
def test_members_of_an_enum_that_are_bytes(any_server: Server) -> None:
    """With CHARACTER SET binary they are taken for UTF-8. What is no text concerns its own table alone, and the error names commands."""
    with database_of(any_server, "bytes") as (connection, log):
        run(connection, "CREATE TABLE t (e enum('ü', 'x ') CHARACTER SET binary, s set(0xc3bc, 'y') CHARACTER SET binary)")
        run(connection, "CREATE TABLE u (e enum(0xfc, 'y') CHARACTER SET binary)", "SET SESSION sql_mode = ''")
        log.skip()
        run(connection, "INSERT INTO t VALUES (1, 3)")
        (seen,) = log.seen()
        assert [column.members for column in seen.schema.columns] == [("ü", "x "), ("ü", "y")]
        assert seen.rows[0].after == ("ü", "ü,y")
        run(connection, "INSERT INTO u VALUES (2)")
        with pytest.raises(UnsupportedEvent, match=r"table bytes\.u: .*X'fc'.*--exclude.*shmstore produce"):
            log.seen()


@pytest.mark.server
def test_an_old_log_is_read_with_the_columns_of_its_time(any_server: Server, tmp_path: Path) -> None:
    """Events before, between and after ALTERs, read again from the start by a new process with the file of the first."""
    path = tmp_path / "history"
    with database_of(any_server, "old_log") as (connection, log):
        try:
            run(connection, MODES[any_server.flavor], "CREATE TABLE t (id int, a bigint unsigned, b enum('x','y'))")
            log.skip()
            start = Position(log.file, log.position)
            history = SchemaHistory(path)
            history.snapshot(query_of(connection), start)
            run(connection, "INSERT INTO t VALUES (1, 18446744073709551615, 'x')")
            feed(history, connection, log, "ALTER TABLE t CHANGE a renamed bigint, MODIFY b enum('y','x','z')")
            run(connection, "INSERT INTO t VALUES (2, -1, 'z')")
            feed(history, connection, log, "ALTER TABLE t ADD first_one varchar(9) FIRST, DROP renamed, RENAME TO u")
            run(connection, "INSERT INTO u VALUES ('new', 3, 'y')")
            feed(history, connection, log, "DROP TABLE u")
            end = log._place()
            for again in (history, SchemaHistory(path)):
                again.seek(start)
                log.file, log.position = start.file, start.offset
                log.decoder = reference(again)
                records = iter(again._records[1:])
                found = []
                for event in read_slowly(log, again, records):
                    found.append((event.schema.table, event.schema.names, event.rows[0].after))
                assert found == [
                    ("t", ("id", "a", "b"), (1, 2**64 - 1, "x")),
                    ("t", ("id", "renamed", "b"), (2, -1, "z")),
                    ("u", ("first_one", "id", "b"), ("new", 3, "y")),
                ]
            assert again.find("old_log", "u") is None
            again.seek(Position(*end))
            assert again.find("old_log", "t") is None
            with pytest.raises(SchemaUnknown, match="begins at"):
                again.seek(Position(start.file, start.offset - 1))
            with pytest.raises(SchemaUnknown, match="another server"):
                again.seek(Position("mysql-bin.000001", 4))
        finally:
            run(connection, "SET GLOBAL binlog_row_metadata = FULL")


def read_slowly(log: Log, history: SchemaHistory, records: Iterator[Any]) -> Iterator[Any]:
    """Read the log from log.position on as the producer does: each DDL is followed where it stands."""
    data = (Path(log.server.directory) / "data" / log.file).read_bytes()
    at = log.position
    for record in [*records, None]:
        until = record.position.offset if record else len(data)
        log.position, place = at, log._place
        log._place = lambda until=until: (log.file, until)  # type: ignore[method-assign]
        piece = list(log_events(data, at, until))
        yield from decode(log, piece)
        log._place = place  # type: ignore[method-assign]
        at = until
        if record:
            assert history.follow(record.position, "old_log", record.sql)


def log_events(data: bytes, start: int, end: int) -> list[tuple[int, bytes]]:
    from tests.producer.decoding import raw_events

    checksum_of_file = data[:200]
    assert checksum_of_file[:4] == b"\xfebin"
    return list(raw_events(data[:end], start))


def decode(log: Log, events: list[tuple[int, bytes]]) -> Iterator[Any]:
    log.events = lambda: events  # type: ignore[method-assign]
    try:
        yield from log.seen()
    finally:
        del log.events
