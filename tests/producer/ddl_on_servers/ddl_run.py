"""Runs random DDL on a server, follows its binlog, and compares the followed tables with information_schema's, many statements at once."""

from __future__ import annotations

import random
import struct
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pymysql

from shmstore.event import Position
from shmstore.producer.binlog import events
from shmstore.producer.binlog.statement_text import without_mariadb
from shmstore.producer.schema.history import SchemaHistory
from shmstore.sql.catalog import Catalog, Unreadable
from shmstore.sql.table_change import Table
from tests.producer.ddl_on_servers.ddl_grammar import Grammar
from tests.producer.ddl_on_servers.ddl_words import CLIENTS, DATABASES, MODES, Mode
from tests.producer.decoding import QUERY, run
from tests.producer.schema.test_history import query_of
from tests.servers.server import Server

# What may be unknown: what servers garble, what the log does not say, and what comes of a table that is unknown.
ALLOWED = (
    "garble",
    "width of what it was",
    "is no text",
    "no text",
    "not known",
    "CREATE TABLE ... SELECT",
    "a temporary one",
    "two places",
    "of an unknown schema",
    "may be about a temporary",
    "LIKE a temporary",
    "my_row_id in",
    "which an index may have",
    "primary key's name",
)
FAST = ("--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--skip-innodb-doublewrite", "--max-binlog-size=1G")


class Tail:
    """The statements that a server adds to its binlog, read from the file."""

    def __init__(self, server: Server, connection: Any) -> None:
        word = "BINARY LOG" if server.flavor == "mysql" else "MASTER"
        ((file, position, *_),) = run(connection, f"SHOW {word} STATUS")
        self._file = (Path(server.directory) / "data" / file).open("rb")
        self._at = int(position)
        self._mariadb = server.flavor == "mariadb"

    def read(self) -> list[events.QueryEvent]:
        found = []
        self._file.seek(self._at)
        data = self._file.read()
        at = 0
        while at + 19 <= len(data):
            size, flags = struct.unpack_from("<I", data, at + 9)[0], struct.unpack_from("<H", data, at + 17)[0]
            if at + size > len(data):
                break
            if data[at + 4] == QUERY:
                query = events.query(data[at + 19 : at + size - 4], flags)
                found.append(query if self._mariadb else query._replace(sql=without_mariadb(query.sql, query.session.mode)))
            at += size
        self._at += at
        return found


class RandomDdl:
    """One run of `count` statements. Raises AssertionError with what led to a difference."""

    def __init__(self, server: Server, seed: int, *, mode: frozenset[str] = frozenset()) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.server = server
        self.mariadb = server.flavor == "mariadb"
        self.forced = mode
        self.connection = server.connect()
        run(self.connection, *[f"DROP DATABASE IF EXISTS `{name}`" for name in DATABASES])
        run(self.connection, *[f"CREATE DATABASE `{name}` CHARACTER SET {charset}" for name, charset in DATABASES.items()])
        self.reader = server.connect()
        self.tail = Tail(server, self.connection)
        self.catalog = self._snapshot()._catalog
        newest = self.mariadb and tuple(map(int, server.version.split("-")[0].split(".")[:2])) >= (11, 7)
        self.grammar = Grammar(self.rng, self.mariadb, newest, self.catalog)
        self.taken = self.tried = 0
        self.reasons: Counter[str] = Counter()
        self.recent: deque[str] = deque(maxlen=400)

    def close(self) -> None:
        run(self.connection, *[f"DROP DATABASE IF EXISTS `{name}`" for name in DATABASES])
        self.connection.close()
        self.reader.close()

    def _snapshot(self) -> SchemaHistory:
        history = SchemaHistory()
        history.snapshot(query_of(self.reader), Position("binlog.000001", 1))
        return history

    def run(self, count: int, batch: int = 100) -> None:
        while self.taken < count:
            self._settings()
            for _ in range(batch):
                if self.rng.random() < 0.1:
                    self._settings()
                self._statement()
                assert self.tried < 60 * count + 2000, "the server takes too little of this to tell anything"
            self._compare()

    def _execute(self, sql: str) -> bool:
        codec = CLIENTS[self.grammar.mode.client][0]
        try:
            self.connection.query(sql.encode(codec, "replace"))
        except pymysql.MySQLError as error:
            self.errors = error
            return False
        return True

    def _settings(self) -> None:
        """Other settings for the session, of those that come with the statement in the log."""
        rng = self.rng
        names = frozenset(rng.sample(MODES, rng.choice([0, 0, 1, 2]))) | self.forced
        if self.mariadb and rng.random() < 0.15:
            names |= {rng.choice(["ORACLE", "MSSQL", "MAXDB", "POSTGRESQL", "DB2", "NO_KEY_OPTIONS"])}
        mode = Mode(names, rng.choice(sorted(CLIENTS)), rng.random() < 0.7)
        self.grammar.mode = Mode()
        for sql in (
            f"SET NAMES {mode.client}",
            f"SET SESSION sql_mode = '{','.join(sorted(names))}'",
            f"SET SESSION explicit_defaults_for_timestamp = {int(mode.explicit)}",
            f"SET SESSION character_set_server = {rng.choice(['latin1', 'utf8mb4', 'koi8r'])}",
            f"SET SESSION collation_connection = {rng.choice(['utf8mb4_bin', 'latin1_bin', 'ascii_bin', mode.client + '_bin'])}",
            "SET SESSION foreign_key_checks = 0",
            "SET SESSION system_versioning_alter_history = KEEP"
            if self.mariadb
            else f"SET SESSION sql_generate_invisible_primary_key = {rng.randint(0, 1)}",
            f"SET SESSION default_storage_engine = {rng.choice(['MyISAM', 'InnoDB']) if self.mariadb else 'InnoDB'}",
            f"SET SESSION binlog_format = {rng.choice(['ROW', 'MIXED'])}" if self.mariadb else "DO 1",
        ):
            self._execute(sql)
        self.grammar.mode = mode
        database = rng.choice(sorted(DATABASES))
        if self._execute(f"USE `{database}`"):
            self.grammar.database = database

    def _statement(self) -> None:
        sql = self.grammar.statement()
        self.tried += 1
        if (
            self.mariadb and "RENAME TABLE" in sql
        ):  # of a temporary table it is logged as if it were of the other one: replicas go wrong, too
            for name in self.grammar.tables():
                self._execute("DROP TEMPORARY TABLE IF EXISTS `{}`.`{}`".format(*name.split(".")))
        taken = self._execute(sql)
        self.taken += taken
        for query in self.tail.read():
            change = self.catalog.read(query.sql, query.database, query.session)
            self.catalog.take(change)
            self.recent.append(
                f"[{query.database}] {query.sql!r} {query.session[:5]} {query.error_code} -> {sorted(map('.'.join, change))}"
            )
            for now in change.values():
                if isinstance(now, Unreadable):
                    reason = next((reason for reason in ALLOWED if reason in now.reason), "")
                    assert reason, f"seed {self.seed}: {now.reason}"
                    self.reasons[reason] += 1
        for name, now in [*self.catalog.tables.items()]:
            if isinstance(now, Unreadable):
                self._execute("DROP TABLE IF EXISTS `{}`.`{}`".format(*name))

    def _compare(self) -> None:
        for query in self.tail.read():
            self.catalog.take(self.catalog.read(query.sql, query.database, query.session))
        fresh = self._snapshot()._catalog
        for name in DATABASES:
            assert (self.catalog.charset_of(name) or "gone") == (fresh.charset_of(name) or "gone"), self._told(name, "charset")
            for key in {*self.catalog.tables_of(name), *fresh.tables_of(name)}:
                got, wanted = _essence(self.catalog, key), _essence(fresh, key)
                if isinstance(got, Unreadable):
                    continue
                if got is not None and wanted is not None and not got[2]:  # its character set is not known
                    got, wanted = got[:2] + got[3:], wanted[:2] + wanted[3:]
                assert got == wanted, self._told(".".join(key), _difference(got, wanted))

    def _told(self, what: str, difference: str) -> str:
        about = [line for line in self.recent if repr(what) in line.rpartition(" -> ")[2]][-3:]
        return f"seed {self.seed}: {what}: {difference}\n" + "\n".join(about)


def _essence(catalog: Catalog, key: tuple[str, str]) -> Any:
    table = catalog.tables.get(key)
    if not isinstance(table, Table):
        return table
    if table.columns[0].name == "next_not_cached_value":  # a sequence, whose character set says nothing
        table = table._replace(charset="")
    columns = [(c.name, c.type, c.unsigned, c.charset, c.members, c.scale, c.nullable) for c in table.columns]
    return columns, table.key, table.charset, table.generated_key, table.versioned, table.period_end


def _difference(got: Any, wanted: Any) -> str:
    if None in (got, wanted):
        return f"followed {got}, server {wanted}"
    lines = [f"column {i}: followed {a}, server {b}" for i, (a, b) in enumerate(zip(got[0], wanted[0], strict=False)) if a != b]
    if [a[0] for a in got[0]] != [b[0] for b in wanted[0]]:
        lines.append(f"names: followed {[a[0] for a in got[0]]}, server {[b[0] for b in wanted[0]]}")
    lines += [f"followed {a}, server {b}" for a, b in zip(got[1:], wanted[1:], strict=True) if a != b]
    return "; ".join(lines[:6])
