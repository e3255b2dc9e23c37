"""MySQL and MariaDB, through PyMySQL: rows come in INSERTs of many rows each. Types are those of the source.

Text is compared byte by byte, trailing blanks included, as keys demand. Changed keys go into a temporary table, rows with these keys are deleted,
and rows that exist now are inserted: unlike ON DUPLICATE KEY UPDATE and REPLACE this never touches a row of another key where a copy has
further unique indexes. LOAD DATA LOCAL of 100,000 rows took about as long as the INSERTs on a
busy machine (medians of three: 87,000 and 71,000 rows/s), and MySQL refuses it by default.

A DDL commits what was done before it. Each change of columns, and a copy's new rows, can be done again, so that a replay repairs a crash
between any two lines; the lock of a copy is the session's, so that it outlasts such a commit.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from shmstore.certificate import load_certificate
from shmstore.column_type import bytes_of_character
from shmstore.consumer.copies.change_reduction import CURRENT, OURS, SEQ, VALID_TO, CopyRefuses
from shmstore.consumer.copies.database_url import ServerUrl
from shmstore.consumer.copies.databases.dialect import Refusal, Reshaping, Statements, TablePlace, TableShape
from shmstore.consumer.copies.databases.standard_sql import StagingSql
from shmstore.consumer.copies.databases.text_values import around, hexadecimal, joined, known_column, plain, replaced
from shmstore.encoding.arrow import BINARY_TYPES
from shmstore.event import Column

_CONNECT_SECONDS = 10
_STATEMENT_BYTES = 1 << 19  # of a statement with many rows
_NAME_CHARACTERS = 64
_BLANKS = tuple(" \t\n\v\f\r")  # that end no name
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint")
_SHORT = 255
_WIDE_TABLE = 60  # columns from which VARCHAR(255) may pass MySQL's 65,535 bytes a row
_KEY_CHARACTERS = 768
_VARCHAR = re.compile(r"varchar\((\d+)\)", re.IGNORECASE)
_ESCAPES = (("\\", "\\\\"), ("'", "''"))
_OF_VALUES = {1263, 1264, 1265, 1292, 1366, 1367, 1406, 1411, 1416, 1425, 1441, 1690, 3140, 3156, 4025}
_OF_ALL = {
    1021,
    1026,
    1030,
    1037,
    1038,
    1040,
    1041,
    1042,
    1043,
    1044,
    1045,
    1046,
    1053,
    1077,
    1079,
    1105,
    1114,
    1129,
    1130,
    1135,
    1152,
    1153,
}
_OF_ALL |= {
    *range(1154, 1162),
    1180,
    1184,
    1189,
    1190,
    1203,
    1205,
    1206,
    1213,
    1223,
    1226,
    1227,
    1290,
    1317,
    1358,
    1613,
    1614,
    1785,
    1792,
}
_OF_ALL |= {1836, 1873, 1927, 3024, 3032, 3100, 3101, 3168, 3572, 3950, 4031}
_DUPLICATE = 1062


class MySql(StagingSql):
    """A MySQL or MariaDB server, as `url` names it."""

    kind = "mysql"
    errors: tuple[type[Exception], ...] = (pymysql.MySQLError, OSError, RuntimeError)
    ddl_commits, schemas = True, True
    moment_type, flag_type = "DATETIME(6)", "BOOLEAN"

    def __init__(self, url: ServerUrl) -> None:
        self._url, self.password = url, url.password
        self._mariadb = False
        self._packet = 1 << 20

    # ---------------------------------------------------------------- the driver

    def open(self, password: str) -> Any:
        """`SqlDialect.open`."""
        url = self._url
        return pymysql.connect(
            host=url.host,
            port=url.port or 3306,
            user=url.user or None,
            password=password or url.password,
            database=url.database or None,
            charset="utf8mb4",
            autocommit=False,
            connect_timeout=_CONNECT_SECONDS,
            program_name="shmstore",
            **_tls(url),
        )

    def alive(self, connection: Any) -> bool:
        """`SqlDialect.alive`."""
        try:
            connection.ping(reconnect=False)
        except self.errors:
            return False
        return True

    def prepare(self, database: Statements) -> None:
        """UTC, and literals read in one way whatever the server's settings are."""
        ((version, packet),) = database.query("SELECT VERSION(), @@max_allowed_packet")
        self._mariadb, self._packet = "mariadb" in str(version).lower(), int(packet)
        database.execute("SET SESSION time_zone = '+00:00'")
        database.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'")
        database.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        database.execute("COMMIT")

    def begin(self, database: Statements) -> bool:
        """The server begins it with the first statement."""
        return True

    def commit(self, connection: Any) -> None:
        """`SqlDialect.commit`."""
        connection.commit()

    def run(self, connection: Any, sql: str) -> Sequence[Sequence[Any]]:
        """`SqlDialect.run`."""
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchall())

    def message(self, error: Exception) -> str:
        """`SqlDialect.message`."""
        return str(error.args[1] if len(error.args) > 1 else error)

    def refusal(self, error: Exception) -> Refusal:
        """By the server's number; an error without one is of the connection."""
        number = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else 0
        if not isinstance(number, int) or number in _OF_ALL or number < 1000 or 2000 <= number < 3000:
            return Refusal.ALL
        if number == _DUPLICATE:
            return Refusal.UNIQUE
        return Refusal.VALUES if number in _OF_VALUES else Refusal.TABLE

    def lock(self, database: Statements, name: str) -> bool:
        """A lock of the session."""
        return bool(database.query(f"SELECT GET_LOCK({_lock(name)}, 0)")[0][0])

    def unlock(self, database: Statements, names: Sequence[str]) -> None:
        """`SqlDialect.unlock`."""
        database.execute(f"DO {', '.join(f'RELEASE_LOCK({_lock(name)})' for name in names)}")

    # ---------------------------------------------------------------- text

    def quote(self, name: str) -> str:
        """`SqlDialect.quote`."""
        return "`" + name.replace("`", "``") + "`"

    def text(self, value: str) -> str:
        """The session's settings make backslashes mean what is assumed here."""
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"

    def literal(self, array: pa.Array) -> str:
        """`SqlDialect.literal`."""
        value = _literals(array)[0].as_py()
        return "NULL" if value is None else str(value)

    def type_of(self, column: Column, *, key: bool, columns: int) -> str:
        """`SqlDialect.type_of`."""
        kind = column.type
        if kind == "bool":
            return self.flag_type
        if kind in _INTEGERS:
            return kind.upper() + (" UNSIGNED" if column.unsigned else "")
        if kind == "bit":
            return f"BIT({max(1, column.size)})"
        if kind == "decimal":
            return f"DECIMAL({column.size},{column.scale})" + (" UNSIGNED" if column.unsigned else "")
        if kind in ("float", "double", "date", "year"):
            return kind.upper()
        if kind in ("datetime", "timestamp", "time"):
            return f"{kind.upper()}({column.scale})" + (" NULL" if kind == "timestamp" and not key else "")
        if kind in ("binary", "varbinary") and 0 < column.size <= (3072 if key else _SHORT):
            return f"{kind.upper()}({column.size})"
        if kind in BINARY_TYPES:
            return "VARBINARY(767)" if key else "LONGBLOB"
        if kind == "json" and not self._mariadb:
            return "JSON"
        characters = column.size // bytes_of_character(column.charset)
        if key:
            return f"VARCHAR({min(_KEY_CHARACTERS, characters or _SHORT)})"
        short = kind in ("char", "varchar") and 0 < characters <= _SHORT and columns <= _WIDE_TABLE
        return f"VARCHAR({characters})" if short else "LONGTEXT"

    def too_narrow(self, shape: TableShape, rows: pa.Table) -> Mapping[str, str]:
        """Of VARCHARs: MariaDB takes more characters into a VARCHAR(30) COMPRESSED than 30, as many as fit the bytes of 30, also in strict mode."""
        wider: dict[str, str] = {}
        for field in rows.schema:
            length = _VARCHAR.fullmatch(shape.columns.get(field.name, ""))
            if length is None or field.name in shape.keys or not pa.types.is_string(field.type):
                continue
            if (pc.max(pc.utf8_length(rows.column(field.name))).as_py() or 0) > int(length[1]):
                wider[field.name] = "LONGTEXT"
        return wider

    def known(self, name: str, type_: str) -> Column | None:
        """`SqlDialect.known`."""
        return known_column(name, type_)

    def check_names(self, columns: Sequence[str], table: str = "") -> None:
        """Tried with each character on MySQL 9 and MariaDB 10.11. Raises `CopyRefuses`."""
        for name in (table, *columns):
            if len(name) > _NAME_CHARACTERS or name.endswith(_BLANKS) or any(not 0 < ord(char) <= 0xFFFF for char in name):
                raise CopyRefuses(
                    f"{name!r} cannot be a name in MySQL, where one has {_NAME_CHARACTERS} characters at most, up to U+FFFF, and no blank at its end: "
                    "leave the table out"
                )

    # ---------------------------------------------------------------- tables

    def own_schema(self, database: Statements) -> str:
        """`SqlDialect.own_schema`."""
        return str(database.query("SELECT DATABASE()")[0][0] or "")

    def create_schema(self, database: Statements, name: str) -> None:
        """`SqlDialect.create_schema`."""
        if not database.query(f"SELECT 1 FROM information_schema.schemata WHERE schema_name = {self.text(name)}"):
            database.execute(f"CREATE DATABASE IF NOT EXISTS {self.quote(name)}")

    def shape(self, database: Statements, place: TablePlace) -> TableShape | None:
        """`SqlDialect.shape`."""
        where = f"table_schema = {self.text(place.schema)} AND table_name = {self.text(place.name)}"
        columns = database.query(
            f"SELECT column_name, column_type FROM information_schema.columns WHERE {where} ORDER BY ordinal_position"
        )
        if not columns:
            return None
        keys = database.query(
            f"SELECT column_name FROM information_schema.statistics WHERE {where} AND index_name = 'PRIMARY' ORDER BY seq_in_index"
        )
        return TableShape(
            {name: _word(type_) for name, type_ in columns}, tuple([row[0] for row in keys]), "PRIMARY" if keys else ""
        )

    def create(self, database: Statements, place: TablePlace, shape: TableShape) -> None:
        """`SqlDialect.create`."""
        parts = [f"{self.quote(name)} {type_}" for name, type_ in shape.columns.items()]
        parts.append(f"PRIMARY KEY ({self.names(shape.keys)})")
        collation = "utf8mb4_nopad_bin" if self._mariadb else "utf8mb4_0900_bin"
        options = f"CHARACTER SET utf8mb4 COLLATE {collation}"
        database.execute(f"CREATE TABLE IF NOT EXISTS {self.table(place)} ({', '.join(parts)}) {options}")

    def add(self, database: Statements, place: TablePlace, name: str, type_: str, default: str) -> None:
        """MySQL gives long text no default but in brackets."""
        given = f" DEFAULT ({default})" if default else ""
        database.execute(f"ALTER TABLE {self.table(place)} ADD COLUMN {self.quote(name)} {type_}{given}")

    def reshape(self, database: Statements, place: TablePlace, shape: TableShape, change: Reshaping) -> None:
        """One statement."""
        quote = self.quote
        parts = ["DROP PRIMARY KEY"] if change.keys is not None and shape.constraint else []
        parts += [f"DROP COLUMN {quote(name)}" for name in change.drop]
        parts += [f"ADD COLUMN {quote(name)} {type_}" for name, type_ in change.add.items()]
        parts += [f"MODIFY COLUMN {quote(name)} {type_}" for name, type_ in change.modify.items()]
        if change.keys is not None:
            parts.append(f"ADD PRIMARY KEY ({self.names(change.keys)})")
        database.execute(f"ALTER TABLE {self.table(place)} {', '.join(parts)}")

    def empty(self, database: Statements, place: TablePlace, *, at_once: bool) -> None:
        """TRUNCATE commits."""
        database.execute(f"{'TRUNCATE TABLE' if at_once else 'DELETE FROM'} {self.table(place)}")

    # ---------------------------------------------------------------- rows

    def merge(self, database: Statements, place: TablePlace, keys: Sequence[str], deletes: pa.Table, upserts: pa.Table) -> None:
        """`SqlDialect.merge`."""
        table = self.table(place)
        keyed = pa.concat_tables([deletes.select(list(keys)), upserts.select(list(keys))])
        with self.staged(database, place, keyed) as stage:
            # by its whole name: with an alias MySQL asks for a database of the connection
            database.execute(f"DELETE {table} FROM {table} JOIN {stage} s ON {self.same(keys, table)}")
        self._insert(database, table, upserts)

    def update(self, database: Statements, place: TablePlace, keys: Sequence[str], rows: pa.Table) -> None:
        """`SqlDialect.update`."""
        new = ", ".join(f"t.{self.quote(name)} = s.{self.quote(name)}" for name in rows.column_names if name not in keys)
        with self.staged(database, place, rows) as stage:
            database.execute(f"UPDATE {self.table(place)} t JOIN {stage} s ON {self.same(keys)} SET {new}")

    def end_versions(self, database: Statements, place: TablePlace, keys: Sequence[str], ends: pa.Table) -> None:
        """`SqlDialect.end_versions`."""
        over = f"{self.same(keys)} AND t.{CURRENT} AND t.{SEQ} < s.{SEQ}"
        set_ = f"t.{VALID_TO} = s.{VALID_TO}, t.{CURRENT} = FALSE"
        with self.staged(database, place, ends) as stage:
            database.execute(f"UPDATE {self.table(place)} t JOIN {stage} s ON {over} SET {set_}")

    @contextmanager
    def staged(self, database: Statements, place: TablePlace, rows: pa.Table) -> Iterator[str]:
        """`StagingSql.staged`."""
        stage = f"{self.quote(place.schema)}.{OURS}stage"
        database.execute(f"DROP TEMPORARY TABLE IF EXISTS {stage}")  # that is left of rows that were refused
        names = self.names(rows.column_names)
        database.execute(f"CREATE TEMPORARY TABLE {stage} AS SELECT {names} FROM {self.table(place)} WHERE 1 = 0")
        self._insert(database, stage, rows)
        yield stage
        database.execute(f"DROP TEMPORARY TABLE {stage}")

    def _insert(self, database: Statements, table: str, rows: pa.Table) -> None:
        """INSERTs of some hundred kilobytes. Raises `CopyRefuses` for a row that the server takes no statement of."""
        sql = f"INSERT INTO {table} ({self.names(rows.column_names)}) VALUES "
        head = sql.encode()
        for text, ends in joined(rows, _literals, between=",", null="NULL", before="(", after="),"):
            first = 0
            while first < len(ends) - 1:
                after = int(np.searchsorted(ends, ends[first] + _STATEMENT_BYTES, "right")) - 1
                last = min(max(after, first + 1), len(ends) - 1)
                statement = head + bytes(text[ends[first] : ends[last] - 1])  # without the last comma
                if len(statement) >= self._packet:
                    raise CopyRefuses(
                        f"a row has {len(statement):,} bytes as a statement, and the server's max_allowed_packet is {self._packet:,}: "
                        "set it higher there"
                    )
                with database.driver(sql) as connection:
                    connection.query(statement)
                first = last


def _lock(name: str) -> str:
    """The lock of a copy: of at most 64 characters, and of the whole server."""
    return f"'shmstore:{hashlib.sha256(name.encode()).hexdigest()[:40]}'"


def _word(type_: Any) -> str:
    """MySQL gives what information_schema says as bytes in some places."""
    return type_.decode() if isinstance(type_, bytes) else str(type_)


def _tls(url: ServerUrl) -> dict[str, Any]:
    """PyMySQL's arguments. Raises `pymysql.MySQLError` where a file cannot be used."""
    if url.tls == "disabled":
        return {"ssl_disabled": True}
    authorities, certificate, key = (url.options.get(name, "") for name in ("tls_ca", "tls_cert", "tls_key"))
    if url.tls == "preferred" and not authorities and not certificate:
        return {}
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the certificates that MySQL makes for itself do not pass it
        context.check_hostname = url.tls == "verify-identity"
        verify = url.tls in ("verify-ca", "verify-identity") or bool(authorities)
        context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
        if certificate:
            load_certificate(context, certificate, key)
    except (OSError, ValueError) as error:
        raise pymysql.OperationalError(2026, f"tls_ca, tls_cert or tls_key cannot be used: {error}") from error
    return {"ssl": context}


def _literals(array: pa.Array) -> pa.Array:
    """Values as literals. Moments and floating point numbers are text, which each column reads exactly; a BIT column reads numbers alone so."""
    kind = array.type
    if pa.types.is_float32(kind):
        array = array.cast(
            pa.float64()
        )  # all its digits: the shortest text of the largest FLOAT is a number above it, which the server refuses
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        return plain(array)
    if pa.types.is_binary(kind):
        return around("x'", hexadecimal(array), "'")
    return around("'", replaced(array, _ESCAPES) if pa.types.is_string(kind) else plain(array), "'")
