"""Readers find in the store's home how tables are defined before their first row, exactly as their rows then are."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from shmstore import EntryType, EventStore, Position, StoreError, TableSchema, producer
from shmstore.column_type import sized
from shmstore.encoding.arrow import fit
from shmstore.event import Column
from shmstore.home.definitions import Definition, DefinitionsFile, definitions_in, position_in, sources_of
from shmstore.home.home import Home
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.schema.published import PublishedTables
from shmstore.sql.columns import column_of_type
from shmstore.sql.table_change import Table
from tests.consumer.copies.random_alters import ONLY, TYPES
from tests.producer.merging import create, running_group
from tests.producer.running import Running, events_of, execute, remove, running, store_name, wait_for, wait_for_position
from tests.producer.schema.test_definitions import LESS, metadata
from tests.servers.server import Server, start_server

FORMS = [
    "FLOAT(7,3)",
    "BIT",
    "BIT(64)",
    "DECIMAL",
    "DECIMAL(40,3)",
    "NUMERIC(9)",
    "SERIAL",
    "BOOLEAN",
    "DOUBLE PRECISION",
    "POINT",
    "CHAR",
    "BINARY",
]


def defined(run: Running, database: str, table: str, source: str = "") -> TableSchema | None:
    """What a reader finds that comes now."""
    settings = run.settings
    with EventStore.attach(settings.store) as store:
        end = position_in(store.last_ack_point(), source)
    found = definitions_in(DefinitionsFile(Home.of(settings.store, settings.state or None), source), end).get((database, table))
    return None if found is None else found.schema


def same(found: TableSchema | None, rows: TableSchema) -> None:
    """A query that is planned with `found` reads the rows of `rows` as they are."""
    assert found is not None, rows
    fits = fit(rows, found)
    assert (fits.added, fits.missing, fits.changed) == ([], [], [])
    assert found.names == rows.names
    assert [found.columns[i].name for i in found.primary_key] == [rows.columns[i].name for i in rows.primary_key]
    for have, want in zip(found.columns, rows.columns, strict=True):
        if want.type not in ("geometry", "point", "year", "float", "double"):
            assert (have.type, have.size, have.scale, have.members) == (want.type, want.size, want.scale, want.members), (
                have,
                want,
            )


@pytest.mark.server
@pytest.mark.parametrize("amount", ["full", "less"])
def test_every_type_before_its_first_row(any_server: Server, database: str, amount: str, seed: int) -> None:
    """Of tables that were there, that are created while it runs, altered, renamed: each time, before a row comes, and after a restart."""
    choose, kind = random.Random(seed), any_server.flavor
    types = [*TYPES, *ONLY[kind], *FORMS]
    if any_server.version.startswith("10.5."):
        types = [each for each in types if each not in ("UUID", "INET4")]  # from 10.7 and 10.10 on
    columns = ", ".join(f"c{i} {type_}" for i, type_ in enumerate(types) if type_ != "SERIAL")
    with metadata(any_server, "FULL" if amount == "full" else LESS[kind]):
        execute(any_server, database, f"CREATE TABLE before_it (id SERIAL PRIMARY KEY, {columns})")
        with running(any_server, include=(f"{database}.*",)) as run:
            ddls = [
                f"CREATE TABLE meanwhile (id INTEGER, part VARCHAR(9), {columns}, PRIMARY KEY (part, id))",
                "ALTER TABLE before_it ADD first_of_all DECIMAL(7,1) UNSIGNED FIRST, DROP c3, CHANGE c4 other BIT(60)",
                "RENAME TABLE before_it TO renamed",
            ]
            for sql in ["SELECT 1", *ddls]:
                execute(any_server, database, sql)
                with EventStore.attach(run.settings.store) as store:
                    wait_for_position(any_server, store)
                for table in ("before_it", "meanwhile", "renamed"):
                    found = defined(run, database, table)
                    there = [name for (name,) in query(any_server, f"SHOW TABLES IN {database} LIKE '{table}'")]
                    assert (found is not None) == bool(there), (sql, table)
            early = {table: defined(run, database, table) for table in ("renamed", "meanwhile")}
            picked = choose.choice(["restarted", "as it was"])
            if picked == "restarted":
                run.stop()
                run = Running(run.settings)
            execute(
                any_server, database, "INSERT INTO renamed (id) VALUES (1)", "INSERT INTO meanwhile (id, part) VALUES (1, 'x')"
            )
            rows = {event.table.table: event.table for event in events_of(run, any_server) if event.table is not None}
            for table, found in early.items():
                same(found, rows[table])
                same(defined(run, database, table), rows[table])
            run.stop()


def query(server: Server, sql: str) -> list[tuple[str, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


@pytest.mark.server
def test_a_restart_far_behind(mysql: Server, database: str) -> None:
    """Where the binlog names the columns nothing else is kept: a producer that continues behind DDLs begins with what it wrote down."""
    execute(mysql, database, "CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    with running(mysql, include=(f"{database}.*",)) as run:
        assert defined(run, database, "t") is not None
        run.stop()
        execute(mysql, database, "ALTER TABLE t ADD b DECIMAL(9,2)", "CREATE TABLE u (id INT PRIMARY KEY)")
        again = Running(run.settings)
        with EventStore.attach(run.settings.store) as store:
            wait_for_position(mysql, store)
        lines = DefinitionsFile(Home.of(run.settings.store)).read()
        again.stop()
    known = [(one.table, one.schema and one.schema.names) for one in lines if one.database == database]
    assert known == [("t", ("id", "a")), ("t", ("id", "a", "b")), ("u", ("id",))]
    assert [one.offset for one in lines if one.table == "t"] == sorted(one.offset for one in lines if one.table == "t")


@pytest.mark.server
def test_what_the_filter_makes_of_columns(mysql: Server, database: str) -> None:
    """Left out, masked and hashed as in the rows; tables that do not pass are not there."""
    execute(mysql, database, "CREATE TABLE t (id INT PRIMARY KEY, secret INT, n INT, m DATE)", "CREATE TABLE hidden (id INT)")
    options = {
        "include": (f"{database}.*",), "exclude": (f"{database}.hidden",), "column_exclude": (f"{database}.t.secret",),
        "column_mask": (f"{database}.t.n",), "column_hash": (f"{database}.t.m",),
    }  # fmt: skip
    with running(mysql, **options) as run:
        found = defined(run, database, "t")
        assert defined(run, database, "hidden") is None
        execute(mysql, database, "INSERT INTO t VALUES (1, 2, 3, '2026-01-02')")
        (rows,) = [event.table for event in events_of(run, mysql) if event.entry is EntryType.ROWS]
    assert rows is not None
    same(found, rows)
    assert found is not None
    assert found.names == ("id", "n", "m")


@pytest.mark.server
def test_sources_of_one_store(mariadb: Server, mysql: Server, tmp_path: Path) -> None:
    """Each has a file of its own, in the folder of its name."""
    servers = {"g1": mariadb, "g2": mysql}
    for name, server in servers.items():
        create(server, name)
    with running_group(servers, state=str(tmp_path)) as run:
        store = run.settings[0].store
        wait_for(lambda: sources_of(Home.of(store, tmp_path)) == ["g1", "g2"], "both files")
        for name, server in servers.items():
            execute(server, name, "CREATE TABLE fresh (id INT PRIMARY KEY, d DECIMAL(7,3))")
        for name in servers:
            file = DefinitionsFile(Home.of(store, tmp_path), name)
            wait_for(lambda file=file, name=name: definitions_in(file, None).get((name, "fresh")), f"the table of {name}")


@pytest.mark.server
def test_binlog_files_tell_of_what_they_create(tmp_path: Path) -> None:
    """A table that was created in a file and has no row yet; also after a restart behind its CREATE."""
    with start_server("mysql") as server:
        execute(server, "", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v DECIMAL(8,2))")
        files = tmp_path / "files"
        shutil.copytree(
            server.directory / "data", files, ignore=lambda _, names: [n for n in names if "bin" not in n or "log" not in n]
        )
        settings = producer.Settings(store=store_name(), binlog=str(files), state=str(tmp_path / "state"))
        file = DefinitionsFile(Home.of(settings.store, settings.state))
        try:
            for _ in range(2):
                Running(settings).wait()
                found = definitions_in(file, None).get(("d", "t"))
                assert found is not None
                assert found.schema is not None
                assert [(column.type, column.size, column.scale) for column in found.schema.columns][1] == ("decimal", 8, 2)
        finally:
            remove(settings.store, settings.state)


# ---------------------------------------------------------------- the file


def definition(offset: int, name: str, table: str = "t") -> Definition:
    return Definition("b.000001", offset, "d", table, TableSchema("d", table, (Column(name, "int"),), (0,)))


def test_a_reader_takes_what_the_store_has_reached(tmp_path: Path) -> None:
    """The last definition up to the store's end; the first where that is before all; none of a table that was dropped."""
    file = DefinitionsFile(Home.of("s", tmp_path))
    assert file.read() == []
    file.replace([definition(10, "a")])
    file.append([definition(20, "b"), Definition("b.000001", 30, "d", "t", None)])

    def at(offset: int) -> object:
        found = definitions_in(file, Position("b.000001", offset)).get(("d", "t"))
        assert found is not None
        return found.schema and found.schema.names

    assert [at(offset) for offset in (5, 10, 19, 20, 30)] == [("a",), ("a",), ("a",), ("b",), None]
    assert definitions_in(file, None).get(("d", "u")) is None


def test_a_crash_between_any_two_bytes(tmp_path: Path) -> None:
    """What it left of a line never counted, and what comes next begins with whole tables again."""
    file = DefinitionsFile(Home.of("s", tmp_path))
    file.replace([definition(10, "a")])
    whole = len(file.path.read_bytes())
    file.append([definition(20, "b")])
    data = file.path.read_bytes()
    for length in range(whole, len(data)):
        file.path.write_bytes(data[:length])
        assert file.read() == [definition(10, "a")]
    file.path.write_bytes(b"something else\n")
    with pytest.raises(StoreError, match="cannot be read"):
        file.read()


def test_what_is_unchanged_keeps_its_position(tmp_path: Path) -> None:
    """So that a reader knows that all rows since then have that definition, however often the producer was begun again."""
    file = DefinitionsFile(Home.of("s", tmp_path))
    published = PublishedTables(file, producer.Settings(store="s").table_filter())
    tables = {("d", name): Table((Column("a", "int"),), ("a",)) for name in ("t", "u")}
    for offset in (10, 50):
        history = SchemaHistory()
        history.begin(Position("b.000001", offset), tables)
        published.begin(history, Position("b.000001", offset), own=True)
        if offset == 10:
            published.follow(Position("b.000001", 20), "d", "ALTER TABLE u ADD b DECIMAL(9,1)", producer_mode())
            tables = dict(published.written(Position("b.000001", 40)))
    assert [(one.table, one.offset) for one in file.read()] == [("t", 10), ("u", 20)]


def producer_mode() -> object:
    from shmstore.sql.session import UNKNOWN

    return UNKNOWN


@pytest.mark.parametrize(
    ("text", "size", "scale"),
    [
        ("decimal(6,2)", 6, 2),
        ("decimal", 10, 0),
        ("bit", 1, 0),
        ("bit(64)", 64, 0),
        ("char", 4, 0),
        ("varchar(9)", 36, 0),
        ("varbinary(7)", 7, 0),
    ],
)
def test_sizes_by_the_definition(text: str, size: int, scale: int) -> None:
    """As the rows' TABLE_MAP says them: in bytes of the widest character, digits, bits."""
    found = sized(column_of_type("c", text, "utf8mb4" if "char" in text else ""))
    assert (found.size, found.scale) == (size, scale)
