"""Runs random DDL on a server, follows its binlog, and compares the followed tables with information_schema's, many statements at once.

Some tables get rows then. Their table maps must fit the tables as they are followed, and their rows be those that SELECT shows.
"""

from __future__ import annotations

import random
import struct
from collections import Counter, deque
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pymysql

from shmstore.errors import SchemaUnknown, SourceError, UnsupportedEvent
from shmstore.event import Column, Position
from shmstore.producer.binlog import events
from shmstore.producer.binlog.rows import ROWS_EVENTS, RowsDecoder
from shmstore.producer.binlog.statement_text import without_mariadb
from shmstore.producer.schema.history import SchemaHistory
from shmstore.sql.catalog import Catalog, Unreadable
from shmstore.sql.table_change import Table
from tests.producer.ddl_on_servers.ddl_scenes import Scenes
from tests.producer.ddl_on_servers.ddl_words import CLIENTS, DATABASES, MODES, Mode
from tests.producer.decoding import QUERY, TABLE_MAP, run, stored
from tests.producer.schema.test_history import query_of
from tests.servers.server import Server

__all__ = ["RandomDdl", "ServerGone", "options"]

# What may be unknown: what servers garble, what the log does not say, and what comes of a table that is unknown.
ALLOWED = (
    "garble",
    "width of what it was",
    "is no text",
    "no text",
    "not known",
    "CREATE TABLE ... SELECT",
    "a temporary one",
    "in bytes of another character set",
    "of an unknown schema",
    "may be about a temporary",
    "LIKE a temporary",
    "my_row_id in",
    "which an index may have",
    "primary key's name",
    "in which sql_mode",
    "COLLATE of the table",
    "'\\x00' ",  # MariaDB writes expressions of defaults in UCS-2
    "the statement may have moved them",
)
_FAST = ["--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--skip-innodb-doublewrite", "--innodb-stats-persistent=OFF"]
_FAST += ["--max-binlog-size=1G"]  # a run reads one file
_NO_SYNC = {"mysql": ["--innodb-flush-method=nosync"], "mariadb": ["--debug-no-sync", "--sync-frm=0"]}
ER_DB_DROP_RMDIR = 1010
MOST = 8  # differences, after which a run ends


def options(kind: str) -> tuple[str, ...]:
    """Options of a server that runs many DDLs, syncs nothing, and logs as little of a table as it can."""
    metadata = "MINIMAL" if kind in ("mysql", "mariadb118") else "NO_LOG"
    return (*_FAST, *_NO_SYNC["mysql" if kind == "mysql" else "mariadb"], f"--binlog-row-metadata={metadata}")


class ServerGone(Exception):
    """A statement that ends the server: its fault, and the run's end."""


class Logged(NamedTuple):
    """An event of the binlog, and where it ends."""

    code: int
    flags: int
    body: bytes
    end: int


class Tail:
    """The events that a server adds to its binlog, read from the file."""

    def __init__(self, server: Server, connection: Any) -> None:
        word = "BINARY LOG" if server.flavor == "mysql" else "MASTER"
        ((self.file, position, *_),) = run(connection, f"SHOW {word} STATUS")
        self.folder = Path(server.directory) / "data"
        self._file = (self.folder / self.file).open("rb")
        self.at = int(position)

    def read(self) -> list[Logged]:
        found = []
        self._file.seek(self.at)
        data = self._file.read()
        at = 0
        while at + 19 <= len(data):
            size, flags = struct.unpack_from("<I", data, at + 9)[0], struct.unpack_from("<H", data, at + 17)[0]
            if at + size > len(data):
                break
            found.append(Logged(data[at + 4], flags, data[at + 19 : at + size - 4], self.at + at + size))
            at += size
        self.at += at
        return found

    def close(self) -> None:
        self._file.close()


class RandomDdl:
    """One run of statements. `differences` says where a followed table was another than the server's, with what led to it."""

    def __init__(self, server: Server, seed: int, *, mode: frozenset[str] = frozenset(), any_case: bool = False) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.server = server
        self.mariadb = server.flavor == "mariadb"
        self.forced = mode
        self.connection = server.connect()
        run(self.connection, *[f"DROP DATABASE IF EXISTS `{name}`" for name in DATABASES])
        run(self.connection, *[f"CREATE DATABASE `{name}` CHARACTER SET {charset}" for name, charset in DATABASES.items()])
        self.reader = server.connect()
        run(self.reader, "SET SESSION sql_mode = '', time_zone = '+00:00', foreign_key_checks = 0")
        self.tail = Tail(server, self.connection)
        self.history = self._snapshot()
        self.decoder = RowsDecoder(schemas=self.history)
        self.decoder.mariadb = self.mariadb
        newest = self.mariadb and tuple(map(int, server.version.split("-")[0].split(".")[:2])) >= (11, 7)
        self.grammar = Scenes(self.rng, self.mariadb, newest, self.history._catalog, any_case=any_case)
        self.taken = self.tried = self.rows = 0
        self.reasons: Counter[str] = Counter()
        self.recent: deque[str] = deque(maxlen=1000)
        self.differences: list[str] = []
        self.errors: Counter[int] = Counter()
        self.unlogged = 0  # tables that a refused statement changed all the same

    @property
    def catalog(self) -> Catalog:
        return self.history._catalog

    def close(self) -> None:
        run(self.connection, *[f"DROP DATABASE IF EXISTS `{name}`" for name in DATABASES])
        self.connection.close()
        self.reader.close()
        self.tail.close()

    def _snapshot(self) -> SchemaHistory:
        history = SchemaHistory()
        history.snapshot(query_of(self.reader), Position(self.tail.file, self.tail.at))
        return history

    def run(self, count: int, batch: int = 40) -> None:
        """Have the server take `count` statements, and compare after each `batch` of them. Raises AssertionError with the differences."""
        while self.taken < count and len(self.differences) < MOST:
            until = min(self.taken + batch, count)
            self._settings()
            while self.taken < until:
                if self.rng.random() < 0.1:
                    self._settings()
                self._statement()
                assert self.tried < 60 * count + 2000, "the server takes too little of this to tell anything"
            self._compare()
            self._write()
        assert not self.differences, "\n\n".join(self.differences)

    # ------------------------------------------------------------ statements

    def _execute(self, sql: str, connection: Any = None) -> bool:
        codec_name = CLIENTS[self.grammar.mode.client][0] if connection in (None, self.connection) else "utf-8"
        try:
            (connection or self.connection).query(sql.encode(codec_name, "replace"))
        except pymysql.MySQLError as error:
            self.errors[error.args[0]] += 1
            if error.args[0] == ER_DB_DROP_RMDIR:
                self._drop_databases()
            if not self.connection.open:
                self._reconnect(sql)
            return False
        return True

    def _drop_databases(self) -> None:
        """Begin with new ones. A server left files of tables behind, and has lost the database's options with them, which it does not log."""
        run(self.connection, "FLUSH LOCAL TABLES")  # or MariaDB 10.5 never ends DROP DATABASE, of a partition that it has open
        for folder in [self.tail.folder / name for name in ("d1", "d2", "d@002d3")]:
            for path in folder.glob("*") if folder.exists() else ():
                path.unlink(missing_ok=True)
        run(self.connection, *[f"DROP DATABASE IF EXISTS `{name}`" for name in DATABASES])
        run(self.connection, *[f"CREATE DATABASE `{name}` CHARACTER SET {charset}" for name, charset in DATABASES.items()])

    def _reconnect(self, sql: str) -> None:
        """Begin another session, where the server ended this one. Raises ServerGone where the server is gone."""
        try:
            self.connection = self.server.connect()
        except pymysql.MySQLError as error:
            raise ServerGone(f"seed {self.seed}: the server is gone after {sql!r}") from error
        self._settings()

    def _settings(self) -> None:
        """Other settings for the session, of those that come with the statement in the log."""
        rng = self.rng
        names = frozenset(rng.sample(MODES, rng.choice([0, 0, 1, 2]))) | self.forced
        if self.mariadb and rng.random() < 0.2:
            names |= {rng.choice(["ORACLE", "MSSQL", "MAXDB", "POSTGRESQL", "DB2", "NO_KEY_OPTIONS", "IGNORE_BAD_TABLE_OPTIONS"])}
        mode = Mode(names, rng.choice(sorted(CLIENTS)), rng.random() < 0.7)
        settings = {
            "sql_mode": f"'{','.join(sorted(names))}'",
            "explicit_defaults_for_timestamp": int(mode.explicit),
            "character_set_server": rng.choice(["latin1", "utf8mb4", "koi8r"]),
            "collation_connection": rng.choice(["utf8mb4_bin", "latin1_bin", "ascii_bin", self.grammar.collation(mode.client)]),
            "foreign_key_checks": 0,
        }
        if self.mariadb:
            settings |= {"system_versioning_alter_history": "KEEP", "default_storage_engine": rng.choice(["MyISAM", "InnoDB"])}
        else:
            settings["sql_generate_invisible_primary_key"] = rng.randint(0, 1)
        self.grammar.mode = Mode()
        sql = f"SET NAMES {mode.client}, " + ", ".join([f"SESSION {name} = {value}" for name, value in settings.items()])
        assert self._execute(sql) or self._execute(sql), sql  # once more where the server ended the session
        if self.mariadb:  # refused while the session has temporary tables
            self._execute(f"SET SESSION binlog_format = {rng.choice(['ROW', 'MIXED'])}")
        self.grammar.mode = mode
        database = rng.choice(sorted(DATABASES))
        if self._execute(f"USE `{database}`"):
            self.grammar.database = database

    def _statement(self) -> None:
        sql = self.grammar.statement()
        before = self.grammar.before(sql)
        self.tried += 1
        if self.mariadb and any("RENAME TABLE" in part for part in (*before, sql)):
            # of a temporary table it is logged as if it were of the other one: replicas go wrong, too
            names = ["`{}`.`{}`".format(*name.split(".")) for name in self.grammar.tables()]
            self._execute(f"DROP TEMPORARY TABLE IF EXISTS {', '.join(names)}")
        if not all(self._execute(part) for part in before):
            return  # where PREPARE has no text, a statement that was prepared in another mode stays
        # Sessions note a database's character set when they choose it, so that another one's change of it passes them by.
        aside = not self.mariadb and " DATABASE" in sql and self.rng.random() < 0.3
        files = self._files()
        taken = self._execute(sql, self.reader if aside else self.connection)
        self.taken += taken
        try:
            self._follow()
        except SourceError as error:
            self._differs(sql, str(error))
        if not taken:
            self._pass_over_unlogged({name for name, there in self._files().items() if files.get(name, there) != there})
        for name, now in [*self.catalog.tables.items()]:
            if isinstance(now, Unreadable):
                self._drop(name)

    def _files(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The files of a MariaDB's definitions, by database and table."""
        found = {}
        for database in DATABASES if self.mariadb else ():
            for path in (self.tail.folder / database.replace("-", "@002d")).glob("*.frm"):
                with suppress(FileNotFoundError):
                    found[database, path.stem] = (path.stat().st_ino, path.stat().st_mtime_ns)
        return found

    def _pass_over_unlogged(self, names: set[tuple[str, str]]) -> None:
        """A MariaDB may refuse an ALTER which has changed the table, as where only the new name is not possible: it logs nothing then."""
        fresh = self._snapshot()._catalog if names else self.catalog
        for name in names:
            if _essence(fresh, name) != _essence(self.catalog, name):
                self.unlogged += 1
                self._drop(name)

    def _drop(self, name: tuple[str, str]) -> None:
        self._execute("DROP VIEW IF EXISTS `{}`.`{}`".format(*name))
        self._execute("DROP TABLE IF EXISTS `{}`.`{}`".format(*name))
        self._follow()

    # ------------------------------------------------------------ the log

    def _follow(self) -> list[tuple[Any, ...]]:
        """Take in what the log has; returns the rows in it, with their tables: (database, table, columns, values)."""
        rows = []
        for code, flags, body, end in self.tail.read():
            if code == QUERY:
                self._follow_query(events.query(body, flags), end)
            elif code == TABLE_MAP:
                self.decoder.table_map(body)
            elif code in ROWS_EVENTS:
                try:
                    decoded = self.decoder.rows(code, body)
                except UnsupportedEvent as error:
                    if "no column is present" in str(error):  # MariaDB, of a table whose columns are all generated
                        continue
                    raise
                except SchemaUnknown:
                    table = self.decoder.table_of(body)
                    if isinstance(self.catalog.find(table.database, table.table), Unreadable):
                        continue  # which is what it is for
                    raise
                event = stored(decoded)
                assert event.table is not None
                rows += [(event.table.database, event.table.table, event.table.columns, row.after) for row in event.rows]
        return rows

    def _follow_query(self, query: events.QueryEvent, end: int) -> None:
        if not self.mariadb:
            query = query._replace(sql=without_mariadb(query.sql, query.session.mode))
        count = len(self.history._records)
        self.history.follow(Position(self.tail.file, end), query.database, query.sql, query.session)
        change = self.history._records[-1].change if len(self.history._records) > count else {}
        self.recent.append(
            f"[{query.database}] {query.sql!r} {query.session[:5]} {query.error_code} -> {sorted(map('.'.join, change))}"
        )
        for now in change.values():
            if isinstance(now, Unreadable):
                reason = next((reason for reason in ALLOWED if reason in now.reason), "")
                self.reasons[reason or "other"] += 1
                if not reason:
                    self.differences.append(f"seed {self.seed}: {now.reason}")

    # ------------------------------------------------------------ comparing

    def _compare(self) -> None:
        self._follow()
        fresh = self._snapshot()._catalog
        for name in DATABASES:
            if self.catalog.charset_of(name) not in ("", fresh.charset_of(name)):  # empty: not known
                self._differs(name, "charset")
                self._execute(f"DROP DATABASE IF EXISTS `{name}`")
                self._follow()
                continue
            for key in {*self.catalog.tables_of(name), *fresh.tables_of(name)}:
                got, wanted = _essence(self.catalog, key), _essence(fresh, key)
                if isinstance(got, Unreadable):
                    continue
                if got is not None and wanted is not None and not got[2]:  # its character set is not known
                    got, wanted = got[:2] + got[3:], wanted[:2] + wanted[3:]
                if got != wanted:
                    self._differs(".".join(key), _difference(got, wanted))
                    self._drop(key)
                    self.history.define_as(Position(self.tail.file, self.tail.at), key, None)  # type: ignore[arg-type]

    def _differs(self, what: str, difference: str) -> None:
        table = what.rpartition(".")[2]
        about = [line for line in self.recent if repr(what) in line.rpartition(" -> ")[2] or table in line]
        begin = max((i for i, line in enumerate(about) if "CREATE" in line.upper()[:60] and repr(what) in line), default=0)
        self.differences.append(f"seed {self.seed}: {what}: {difference}\n" + "\n".join(about[max(0, begin - 2) :][-25:]))

    # ------------------------------------------------------------ rows

    def _write(self) -> None:
        """Put rows into some tables, read them from the log, and compare them with what SELECT shows."""
        own = [(name, table) for name, table in self.catalog.tables.items() if isinstance(table, Table) and name[0] in DATABASES]
        for name, table in self.rng.sample(sorted(own), min(4, len(own))):
            shown = list(table.shown)
            if shown[0].name == "next_not_cached_value":
                continue
            self._insert(name, shown)
            try:
                logged = self._follow()
            except SourceError as error:
                self._differs(".".join(name), str(error))
                self._drop(name)
                continue
            self._look(name, shown, [row for row in logged if row[:2] == name])
            if self.rng.random() < 0.8:
                with suppress(pymysql.MySQLError):  # of foreign keys
                    run(self.reader, "DELETE FROM `{}`.`{}`".format(*name))
                try:
                    self._follow()
                except SourceError as error:
                    self._differs(".".join(name), str(error))

    def _insert(self, name: tuple[str, str], shown: list[Column]) -> None:
        target = "`{}`.`{}`".format(*name)
        columns = ", ".join(["`" + column.name.replace("`", "``") + "`" for column in shown])
        values = "NULL 1 '7' 'm1' 'ü' '2020-02-03 04:05:06' 0xFF -3 DEFAULT DEFAULT".replace("03 04", "03_04").split()
        row = lambda: ", ".join([self.rng.choice(values).replace("_", " ") for _ in shown])  # noqa: E731
        for sql in (
            f"INSERT IGNORE INTO {target} ({columns}) VALUES ({row()}), ({row()})",
            f"INSERT IGNORE INTO {target} () VALUES ()",
        ):
            try:
                run(self.reader, sql)
            except pymysql.MySQLError:
                continue
            return

    def _look(self, name: tuple[str, str], shown: list[Column], logged: list[tuple[Any, ...]]) -> None:
        columns = ", ".join(["`" + column.name.replace("`", "``") + "`" for column in shown])
        try:
            there = run(self.reader, "SELECT {} FROM `{}`.`{}`".format(columns, *name)) if logged else []
        except pymysql.MySQLError:
            return
        selected = Counter(repr([_plain(value, column) for value, column in zip(row, shown, strict=True)]) for row in there)
        for _, _, own, values in logged:
            self.rows += 1
            by_name = {
                column.name: _plain(value, column) for value, column in zip(values, own, strict=False)
            }  # and hashes behind
            row = repr([by_name[column.name] for column in shown])
            if not selected[row]:
                self._differs(".".join(name), f"row {row} is none of {sorted(selected)}")
            selected[row] -= 1


def _plain(value: Any, column: Column) -> Any:
    """A value of the log, or one of SELECT, in what both have in common."""
    if column.type in ("float", "json") or value is None:
        return value is None
    if column.type == "bit":
        return int.from_bytes(value, "big") if isinstance(value, bytes) else value
    if column.type in ("enum", "set"):
        return value.decode() if isinstance(value, bytes) else value
    if column.type == "vector" and isinstance(value, str):  # PyMySQL reads the type as ASCII
        return value.encode()
    if isinstance(value, datetime):
        value = value.replace(tzinfo=None)
    if column.type in ("date", "datetime", "timestamp", "time", "decimal", "uuid", "inet4", "inet6"):
        return str(value).rstrip("0").removesuffix(".") if "." in str(value) else str(value)
    return value


def _essence(catalog: Catalog, key: tuple[str, str]) -> Any:
    table = catalog.tables.get(key)
    if not isinstance(table, Table):
        return table
    if table.columns[0].name == "next_not_cached_value":  # a sequence, whose character set says nothing
        table = table._replace(charset="")
    implicit = sorted({*table.columns} - {*table.shown}, key=lambda column: column.name, reverse=True)  # rows show their places
    columns = [(c.name, c.type, c.unsigned, c.charset, c.members, c.scale, c.nullable) for c in (*table.shown, *implicit)]
    periods = table.period_begin, table.period_end, table.period, table.overlapless
    return columns, table.key, table.charset, table.generated_key, table.versioned, periods


def _difference(got: Any, wanted: Any) -> str:
    if None in (got, wanted) or len(got) != len(wanted):
        return f"followed {got}, server {wanted}"
    lines = [f"column {i}: followed {a}, server {b}" for i, (a, b) in enumerate(zip(got[0], wanted[0], strict=False)) if a != b]
    if [a[0] for a in got[0]] != [b[0] for b in wanted[0]]:
        lines.append(f"names: followed {[a[0] for a in got[0]]}, server {[b[0] for b in wanted[0]]}")
    lines += [f"followed {a}, server {b}" for a, b in zip(got[1:], wanted[1:], strict=True) if a != b]
    return "; ".join(lines[:6])
