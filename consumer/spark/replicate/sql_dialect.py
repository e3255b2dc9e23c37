"""What differs between the databases that hold copies: names, types, literals, and the few statements of their own.

MySQL source                     PostgreSQL                     MySQL, MariaDB
integers, YEAR                   smallint, integer, bigint      the same
BIGINT UNSIGNED, BIT(64)         numeric(20)                    the same
BIT(n)                           bigint                         the same
DECIMAL(p, s), FLOAT, DOUBLE     numeric(p, s), real, double    the same
DATE, DATETIME, TIMESTAMP        date, timestamp, timestamptz   the same
TIME (negative, beyond 24 h)     interval                       the same
JSON                             json (jsonb refuses \\u0000)    json; MariaDB: longtext
BINARY, VARBINARY                bytea                          the same
BLOB, GEOMETRY, VECTOR           bytea                          longblob
CHAR, VARCHAR, TEXT, ENUM, SET   text                           varchar up to 255, longtext; compared byte by byte

Values travel as text, never through java.sql types: no time zone of a JVM touches them, and one call carries thousands of rows. In MySQL
and MariaDB they are literals inside an INSERT, in PostgreSQL lines of a COPY, which takes them three to four times as fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shmstore.consumer.copies.change_reduction import CopyRefuses
from shmstore.encoding.arrow import BINARY_TYPES
from shmstore.event import Column

_WIDTHS = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "utf16": 4, "utf16le": 4, "utf32": 4, "ucs2": 2, "gbk": 2, "big5": 2, "sjis": 2}
_WIDTHS |= {"cp932": 2, "gb2312": 2, "euckr": 2, "gb18030": 4, "eucjpms": 3, "ujis": 3}
_SHORT = 255
_WIDE_TABLE = 60  # columns from which VARCHAR(255) may pass MySQL's 65,535 bytes a row
_KEY_CHARACTERS = 768
_POSTGRES = {
    "tinyint": ("smallint", "smallint"),
    "smallint": ("smallint", "integer"),
    "mediumint": ("integer", "integer"),
    "year": ("smallint", "smallint"),
    "int": ("integer", "bigint"),
    "integer": ("integer", "bigint"),
    "bigint": ("bigint", "numeric(20)"),
}
_POSTGRES_OTHERS = {"float": "real", "double": "double precision", "date": "date", "json": "json", "uuid": "uuid"}


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """One kind of database: ``postgresql``, ``mysql`` or ``mariadb``."""

    kind: str

    @property
    def postgres(self) -> bool:
        """True for PostgreSQL."""
        return self.kind == "postgresql"

    def quote(self, name: str) -> str:
        """Return `name` as an identifier."""
        return '"' + name.replace('"', '""') + '"' if self.postgres else "`" + name.replace("`", "``") + "`"

    def text(self, value: str) -> str:
        """Return `value` as a literal. The session's settings make backslashes mean what is assumed here."""
        value = value.replace("'", "''")
        return f"'{value}'" if self.postgres else "'" + value.replace("\\", "\\\\") + "'"

    # ---------------------------------------------------------------- session

    @property
    def settings(self) -> tuple[str, ...]:
        """Statements that a session begins with: UTC, and literals read in one way whatever the server's settings are."""
        if self.postgres:
            return ("SET TIME ZONE 'UTC'", "SET standard_conforming_strings = on", "SET intervalstyle = 'postgres'")
        return (
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )

    @property
    def current_schema(self) -> str:
        """The expression that gives the connection's own schema."""
        return "current_schema()" if self.postgres else "DATABASE()"

    def create_schema(self, name: str) -> str:
        """Return the statement that makes a schema (in MySQL: a database)."""
        return f"CREATE {'SCHEMA' if self.postgres else 'DATABASE'} IF NOT EXISTS {self.quote(name)}"

    @property
    def table_options(self) -> str:
        """What follows the columns of CREATE TABLE: text is compared byte by byte, trailing blanks included, as keys demand."""
        if self.postgres:
            return ""
        return f" CHARACTER SET utf8mb4 COLLATE {'utf8mb4_nopad_bin' if self.kind == 'mariadb' else 'utf8mb4_0900_bin'}"

    # ---------------------------------------------------------------- types

    def type_of(self, column: Column, *, key: bool, columns: int) -> str:
        """Return the type of the copy of `column`, in a table of so many `columns`."""
        kind = column.type
        if self.postgres:
            return self._postgres_type(column)
        if kind in _POSTGRES and kind != "year":
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
        if kind == "json" and self.kind == "mysql":
            return "JSON"
        characters = column.size // _WIDTHS.get(column.charset, 1)
        if key:
            return f"VARCHAR({min(_KEY_CHARACTERS, characters or _SHORT)})"
        short = kind in ("char", "varchar") and 0 < characters <= _SHORT and columns <= _WIDE_TABLE
        return f"VARCHAR({characters})" if short else "LONGTEXT"

    def _postgres_type(self, column: Column) -> str:
        kind = column.type
        if kind in _POSTGRES:
            return _POSTGRES[kind][column.unsigned]
        if kind == "bit":
            return "bigint" if column.size < 64 else "numeric(20)"
        if kind == "decimal":
            return f"numeric({column.size},{column.scale})"
        if kind in ("datetime", "timestamp"):
            return f"timestamp({column.scale})" + (" with time zone" if kind == "timestamp" else "")
        if kind == "time":
            return f"interval({column.scale})"
        return "bytea" if kind in BINARY_TYPES else _POSTGRES_OTHERS.get(kind, "text")

    @property
    def moment(self) -> str:
        """The type of a moment in UTC, in microseconds."""
        return "timestamp with time zone" if self.postgres else "DATETIME(6)"

    # ---------------------------------------------------------------- values

    def literals(self, array: pa.Array | pa.ChunkedArray) -> list[str]:
        """Return each value of a copy's column as a literal."""
        type_ = array.type
        if pa.types.is_integer(type_):
            return ["NULL" if value is None else value for value in array.cast(pa.string()).to_pylist()]
        if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
            naive = array.cast(pa.timestamp("us")) if pa.types.is_timestamp(type_) else array
            return ["NULL" if value is None else f"'{value}'" for value in naive.cast(pa.string()).to_pylist()]
        return [self._literal(value) for value in array.to_pylist()]

    def _literal(self, value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return f"'\\x{value.hex()}'" if self.postgres else f"x'{value.hex()}'"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        return repr(value) if isinstance(value, float) else format(value, "f")  # a decimal without an exponent is exact

    def rows(self, table: pa.Table) -> list[str]:
        """Return each row of `table` as `Database.insert` takes it: ``(literal,literal)``, of PostgreSQL a line of COPY's text format.

        Raises `CopyRefuses`.
        """
        if self.postgres:
            return ["\t".join(row) for row in zip(*map(_copied, table.columns), strict=True)]
        columns: Sequence[list[str]] = [self.literals(column) for column in table.columns]
        return [f"({','.join(row)})" for row in zip(*columns, strict=True)]


def column_of(name: str, type_: str) -> Column | None:
    """The source's column that holds every value of a copy's column of `type_`, as its database writes that, and no other; None where it is not known."""
    match = _KNOWN.fullmatch(type_)
    if match is None:
        return None
    kind, size, scale, unsigned = match.groups()
    kind = {"integer": "int", "numeric": "decimal"}.get(kind, kind)
    if kind != "decimal":
        return Column(name, kind, unsigned=unsigned is not None)
    return Column(name, kind, size=int(size), scale=int(scale)) if size and int(scale or 0) and not unsigned else None


_KNOWN = re.compile(
    r"(tinyint|smallint|mediumint|int|integer|bigint|date|numeric|decimal)(?:\((\d+)(?:,(\d+))?\))?( unsigned)?", re.IGNORECASE
)
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _copied(array: pa.ChunkedArray) -> list[str]:
    """The values of a column in COPY's text format."""
    type_ = array.type
    if pa.types.is_integer(type_) or pa.types.is_decimal(type_) or pa.types.is_date(type_):
        return ["\\N" if value is None else value for value in array.cast(pa.string()).to_pylist()]
    if pa.types.is_timestamp(type_):
        return ["\\N" if value is None else value for value in array.cast(pa.timestamp("us")).cast(pa.string()).to_pylist()]
    found = array.to_pylist()
    if pa.types.is_binary(type_):
        return ["\\N" if value is None else f"\\\\x{value.hex()}" for value in found]
    if not pa.types.is_string(type_):
        return ["\\N" if value is None else str(value) for value in found]
    if wrong := next((value for value in found if value is not None and "\0" in value), None):
        raise CopyRefuses(f"text {wrong[:40]!r} has the character U+0000, which PostgreSQL's text cannot hold")
    return ["\\N" if value is None else value.translate(_ESCAPES) for value in found]
