"""PostgreSQL, through psycopg: rows come by COPY into a temporary table, and from there by INSERT ... ON CONFLICT.

MySQL source                     PostgreSQL
integers, YEAR                   smallint, integer, bigint
BIGINT UNSIGNED, BIT(64)         numeric(20)
BIT(n)                           bigint
DECIMAL(p, s), FLOAT, DOUBLE     numeric(p, s), real, double precision
DATE, DATETIME, TIMESTAMP        date, timestamp, timestamp with time zone
TIME (negative, beyond 24 h)     interval
JSON                             json (jsonb refuses \\u0000)
BINARY, BLOB, GEOMETRY, VECTOR   bytea
CHAR, VARCHAR, TEXT, ENUM, SET   text
UUID                             uuid

A further unique index of a copy, such as a user makes, may meet two rows that swap a value: then the rows with the batch's keys are deleted
before the new ones come, which is right in any order of changes, and slower.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from shmstore.consumer.copies.change_reduction import CURRENT, OURS, SEQ, VALID_TO, CopyRefuses
from shmstore.consumer.copies.databases.dialect import Refusal, Reshaping, Statements, TablePlace, TableShape
from shmstore.consumer.copies.databases.standard_sql import StagingSql
from shmstore.consumer.copies.databases.text_values import around, hexadecimal, joined, known_column, plain, replaced
from shmstore.consumer.copies.target import TargetFailed
from shmstore.encoding.arrow import BINARY_TYPES
from shmstore.event import Column

_STAGE = f"pg_temp.{OURS}stage"
_NAME_BYTES = 63
_INTEGERS = {
    "tinyint": ("smallint", "smallint"),
    "smallint": ("smallint", "integer"),
    "mediumint": ("integer", "integer"),
    "year": ("smallint", "smallint"),
    "int": ("integer", "bigint"),
    "integer": ("integer", "bigint"),
    "bigint": ("bigint", "numeric(20)"),
}
_OTHERS = {"bool": "boolean", "float": "real", "double": "double precision", "date": "date", "json": "json", "uuid": "uuid"}
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_OF_ALL = ("08", "25", "40", "53", "55", "57", "58", "F0", "XX")  # SQLSTATE's classes: connection, server, a lost transaction


class PostgreSql(StagingSql):
    """A database of a PostgreSQL server, as `url` names it with libpq's parameters (``?sslmode=verify-full&sslrootcert=FILE``)."""

    kind = "postgresql"
    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    password = ""
    ddl_commits, schemas = False, True
    moment_type, flag_type = "timestamp with time zone", "boolean"

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self.password = str(psycopg.conninfo.conninfo_to_dict(url).get("password") or "")
        except psycopg.Error as error:
            raise ValueError(f"the URL of the database cannot be read: {self.message(error)}") from None

    # ---------------------------------------------------------------- the driver

    def open(self, password: str) -> Any:
        """`SqlDialect.open`."""
        given: dict[str, Any] = {"password": password} if password else {}
        connection = psycopg.connect(self._url, client_encoding="UTF8", application_name="shmstore", **given)
        connection.prepare_threshold = None  # statements hold values; and poolers of connections know no prepared ones
        return connection

    def alive(self, connection: Any) -> bool:
        """`SqlDialect.alive`."""
        try:
            connection.execute("SELECT 1")
            connection.rollback()
        except psycopg.Error:
            return False
        return True

    def prepare(self, database: Statements) -> None:
        """UTC, and literals read in one way whatever the server's settings are. Raises `TargetFailed` for a database that cannot hold all text."""
        for sql in ("SET TIME ZONE 'UTC'", "SET standard_conforming_strings = on", "SET intervalstyle = 'postgres'"):
            database.execute(sql)
        database.execute("SET datestyle = 'ISO, YMD'")
        database.execute("SET bytea_output = 'hex'")
        ((name, encoding),) = database.query("SELECT current_database(), current_setting('server_encoding')")
        if encoding != "UTF8":
            raise TargetFailed(
                f"database {name} has the encoding {encoding}, which cannot hold all text: make one for the copies by "
                "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            )
        database.execute("COMMIT")

    def begin(self, database: Statements) -> bool:
        """The driver begins it with the first statement."""
        return True

    def commit(self, connection: Any) -> None:
        """`SqlDialect.commit`."""
        connection.commit()

    def run(self, connection: Any, sql: str) -> Sequence[Sequence[Any]]:
        """`SqlDialect.run`."""
        cursor = connection.execute(sql.encode())
        rows: Sequence[Sequence[Any]] = cursor.fetchall() if cursor.description is not None else ()
        return rows

    def message(self, error: Exception) -> str:
        """`SqlDialect.message`."""
        primary = getattr(getattr(error, "diag", None), "message_primary", None)
        return str(primary or (str(error).strip().splitlines() or [type(error).__name__])[0])

    def refusal(self, error: Exception) -> Refusal:
        """By the SQLSTATE; an error without one is of the connection."""
        state = getattr(error, "sqlstate", None) or "08"
        if state.startswith("22") or state == "42804":
            return Refusal.VALUES
        if state == "23505":
            return Refusal.UNIQUE
        return Refusal.ALL if state.startswith(_OF_ALL) else Refusal.TABLE

    def lock(self, database: Statements, name: str) -> bool:
        """An advisory lock, which ends with the transaction."""
        number = int.from_bytes(hashlib.sha256(f"shmstore\0{name}".encode()).digest()[:8], "big", signed=True)
        return bool(database.query(f"SELECT pg_try_advisory_xact_lock({number})")[0][0])

    def unlock(self, database: Statements, names: Sequence[str]) -> None:
        """The commit did."""

    # ---------------------------------------------------------------- text

    def literal(self, array: pa.Array) -> str:
        """`SqlDialect.literal`."""
        value = _copied(array, escape=False)[0].as_py()
        return "NULL" if value is None else self.text(value)

    def type_of(self, column: Column, *, key: bool, columns: int) -> str:
        """`SqlDialect.type_of`."""
        kind = column.type
        if kind in _INTEGERS:
            return _INTEGERS[kind][column.unsigned]
        if kind == "bit":
            return "bigint" if column.size < 64 else "numeric(20)"
        if kind == "decimal":
            return f"numeric({column.size},{column.scale})"
        if kind in ("datetime", "timestamp"):
            return f"timestamp({column.scale})" + (" with time zone" if kind == "timestamp" else "")
        if kind == "time":
            return f"interval({column.scale})"
        return "bytea" if kind in BINARY_TYPES else _OTHERS.get(kind, "text")

    def known(self, name: str, type_: str) -> Column | None:
        """`SqlDialect.known`."""
        return known_column(name, type_)

    def check_names(self, columns: Sequence[str], table: str = "") -> None:
        """PostgreSQL would cut names silently. Raises `CopyRefuses`."""
        for name in (table, *columns):
            if len(name.encode()) > _NAME_BYTES:
                raise CopyRefuses(
                    f"{name!r} has {len(name.encode())} bytes, and PostgreSQL's names have at most {_NAME_BYTES}: rename it, filter the column "
                    "out in the producer, or leave the table out"
                )
            if "\0" in name:
                raise CopyRefuses(f"{name!r} has the character U+0000, which PostgreSQL's names cannot hold")

    # ---------------------------------------------------------------- tables

    def own_schema(self, database: Statements) -> str:
        """`SqlDialect.own_schema`."""
        return str(database.query("SELECT current_schema()")[0][0] or "")

    def create_schema(self, database: Statements, name: str) -> None:
        """Looked for first: an account without the right to make one may write to one that exists."""
        if not database.query(f"SELECT 1 FROM pg_namespace WHERE nspname = {self.text(name)}"):
            database.execute(f"CREATE SCHEMA IF NOT EXISTS {self.quote(name)}")

    def shape(self, database: Statements, place: TablePlace) -> TableShape | None:
        """`SqlDialect.shape`."""
        ((oid,),) = database.query(f"SELECT to_regclass({self.text(self.table(place))})::oid")
        if oid is None:
            return None
        columns = database.query(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        keys = database.query(
            "SELECT a.attname, c.conname FROM pg_constraint c JOIN LATERAL unnest(c.conkey) WITH ORDINALITY k(number, place) ON true "
            "JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number "
            f"WHERE c.conrelid = {oid} AND c.contype = 'p' ORDER BY k.place"
        )
        return TableShape(dict(columns), tuple([row[0] for row in keys]), keys[0][1] if keys else "")

    def create(self, database: Statements, place: TablePlace, shape: TableShape) -> None:
        """`SqlDialect.create`."""
        parts = [f"{self.quote(name)} {type_}" for name, type_ in shape.columns.items()]
        parts.append(f"PRIMARY KEY ({self.names(shape.keys)})")
        database.execute(f"CREATE TABLE IF NOT EXISTS {self.table(place)} ({', '.join(parts)})")

    def reshape(self, database: Statements, place: TablePlace, shape: TableShape, change: Reshaping) -> None:
        """One statement."""
        quote, parts = self.quote, list[str]()
        if change.keys is not None and shape.constraint:
            parts.append(f"DROP CONSTRAINT {quote(shape.constraint)}")
            left = [name for name in shape.keys if name not in change.keys and name not in change.drop]
            parts += [f"ALTER COLUMN {quote(name)} DROP NOT NULL" for name in left]
        parts += [f"DROP COLUMN {quote(name)}" for name in change.drop]
        parts += [f"ADD COLUMN {quote(name)} {type_}" for name, type_ in change.add.items()]
        parts += [f"ALTER COLUMN {quote(name)} TYPE {type_}" for name, type_ in change.modify.items()]
        if change.keys is not None:
            parts.append(f"ADD PRIMARY KEY ({self.names(change.keys)})")
        database.execute(f"ALTER TABLE {self.table(place)} {', '.join(parts)}")

    def empty(self, database: Statements, place: TablePlace, *, at_once: bool) -> None:
        """`SqlDialect.empty`."""
        database.execute(f"TRUNCATE TABLE {self.table(place)}")

    # ---------------------------------------------------------------- rows

    def merge(self, database: Statements, place: TablePlace, keys: Sequence[str], deletes: pa.Table, upserts: pa.Table) -> None:
        """`SqlDialect.merge`."""
        table = self.table(place)
        if len(deletes):
            with self.staged(database, place, deletes):
                self._delete(database, table, keys)
        if len(upserts):
            with self.staged(database, place, upserts):
                self._put(database, table, keys, upserts.column_names)

    def _put(self, database: Statements, table: str, keys: Sequence[str], names: Sequence[str]) -> None:
        into = f"INSERT INTO {table} ({self.names(names)}) SELECT {self.names(names)} FROM {_STAGE}"
        new = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in names if name not in keys)
        try:
            with database.all_or_nothing():
                what = f"DO UPDATE SET {new}" if new else "DO NOTHING"
                database.execute(f"{into} ON CONFLICT ({self.names(keys)}) {what}")
        except TargetFailed as error:
            if getattr(error, "refusal", None) is not Refusal.UNIQUE:
                raise
            self._delete(database, table, keys)
            database.execute(into)

    def update(self, database: Statements, place: TablePlace, keys: Sequence[str], rows: pa.Table) -> None:
        """`SqlDialect.update`."""
        table = self.table(place)
        new = ", ".join(f"{self.quote(name)} = s.{self.quote(name)}" for name in rows.column_names if name not in keys)
        with self.staged(database, place, rows):
            database.execute(f"UPDATE {table} t SET {new} FROM {_STAGE} s WHERE {self.same(keys)}")

    def end_versions(self, database: Statements, place: TablePlace, keys: Sequence[str], ends: pa.Table) -> None:
        """`SqlDialect.end_versions`."""
        table = self.table(place)
        over = f"{self.same(keys)} AND t.{CURRENT} AND t.{SEQ} < s.{SEQ}"
        with self.staged(database, place, ends):
            database.execute(f"UPDATE {table} t SET {VALID_TO} = s.{VALID_TO}, {CURRENT} = FALSE FROM {_STAGE} s WHERE {over}")

    @contextmanager
    def staged(self, database: Statements, place: TablePlace, rows: pa.Table) -> Iterator[str]:
        """`StagingSql.staged`. Where the block raises, what undoes its work drops the table."""
        names = self.names(rows.column_names)
        database.execute(f"CREATE TEMPORARY TABLE {OURS}stage AS SELECT {names} FROM {self.table(place)} WHERE false")
        sql = f"COPY {_STAGE} ({names}) FROM STDIN"
        with database.driver(sql) as connection, connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for text, _ in joined(rows, _copied, between="\t", null="\\N", after="\n"):
                copy.write(text)
        yield _STAGE
        database.execute(f"DROP TABLE {_STAGE}")

    def _delete(self, database: Statements, table: str, keys: Sequence[str]) -> None:
        database.execute(f"DELETE FROM {table} t USING {_STAGE} s WHERE {self.same(keys)}")


def _copied(array: pa.Array, *, escape: bool = True) -> pa.Array:
    """The values of a column in COPY's text format. Raises `CopyRefuses`."""
    if pa.types.is_binary(array.type):
        return around("\\\\x" if escape else "\\x", hexadecimal(array))
    if not pa.types.is_string(array.type):
        return plain(array)
    if pc.any(pc.match_substring(array, "\0")).as_py():
        wrong = next(value for value in array.to_pylist() if value is not None and "\0" in value)
        raise CopyRefuses(f"text {wrong[:40]!r} has the character U+0000, which PostgreSQL's text cannot hold")
    return replaced(array, _ESCAPES) if escape else array
