"""The type at the beginning of a column definition, in all the words that MySQL and MariaDB have for it.

Types keep information_schema's names. What depends on the character set, which is known later, is left to `columns.settled`.
"""

from __future__ import annotations

from typing import NamedTuple

from shmstore.sql.charsets import stored_text
from shmstore.sql.session import Dialect
from shmstore.sql.tokens import Token, Tokens, literal

__all__ = ["GEOMETRY", "TEXT", "Type", "read_type"]

_SYNONYMS = {
    "BOOL": "tinyint",
    "BOOLEAN": "tinyint",
    "INT1": "tinyint",
    "INT2": "smallint",
    "INT3": "mediumint",
    "MIDDLEINT": "mediumint",
    "INT4": "int",
    "INTEGER": "int",
    "INT8": "bigint",
    "DEC": "decimal",
    "NUMERIC": "decimal",
    "FIXED": "decimal",
    "FLOAT4": "float",
    "FLOAT8": "double",
    "CHARACTER": "char",
    "NCHAR": "char",
    "NVARCHAR": "varchar",
    "VARCHARACTER": "varchar",
    "GEOMCOLLECTION": "geometrycollection",
}
# Of MariaDB's sql_mode=ORACLE.
_ORACLE = {"VARCHAR2": "varchar", "CLOB": "longtext", "RAW": "varbinary", "BLOB": "longblob", "DATE": "datetime"}
TEXT = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"))
GEOMETRY = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection")
_KNOWN = (
    TEXT
    | frozenset(GEOMETRY)
    | frozenset(("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit"))
)
_KNOWN |= frozenset(
    ("date", "time", "datetime", "timestamp", "year", "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
)
_KNOWN |= frozenset(("json", "vector", "uuid", "inet4", "inet6", "xmltype"))
_NATIONAL = "utf8mb3"
# Schemas that MariaDB's types have, with the type that is DATETIME there.
_SCHEMAS = {"MARIADB_SCHEMA": "", "ORACLE_SCHEMA": "DATE", "MAXDB_SCHEMA": "TIMESTAMP"}


class Type(NamedTuple):
    """A type as written. `charset` is empty where nothing of the type's name says it."""

    name: str
    charset: str = ""
    unsigned: bool = False
    length: int | None = None  # of text and bytes, where it is given
    scale: int = 0
    written: str = ""  # the name and its arguments
    members: tuple[str | bytes, ...] = ()
    serial: bool = False
    literals: str = ""  # character set of the connection, in whose bytes a column of CHARACTER SET binary keeps its members


def read_type(tokens: Tokens, dialect: Dialect) -> Type:
    """Read a type down to its arguments. Raises ValueError for a word that is no type of these servers."""
    as_datetime = ""
    if dialect.mariadb and tokens.peek(1) == ".":
        schema = tokens.take().text.upper()
        tokens.accept(".")
        if schema not in _SCHEMAS or (dialect.oracle and tokens.peek() in _ORACLE and tokens.peek() != "DATE"):
            raise ValueError("a type of an unknown schema")
        as_datetime = _SCHEMAS[schema]
        dialect = dialect._replace(session=dialect.session._replace(sql_mode=0))
    ahead = tokens.rest()
    name, charset, unsigned, serial = _name(tokens, dialect)
    if name == "longblob" and tokens.peek() == "(":  # of sql_mode=ORACLE, where it has a length
        name = "blob"
    name = "datetime" if as_datetime == name.upper() else name
    written = " ".join([token.text for token in ahead[: len(ahead) - len(tokens.rest())]])
    if name not in _KNOWN:
        raise ValueError(f"{written!r} is no type that this version knows")
    found = Type(name, charset, unsigned, written=written, serial=serial)
    if tokens.peek() == "(":
        found = _with_arguments(found, tokens.parenthesized(), dialect)
    elif written.upper() == "NUMBER":
        found = found._replace(name="double")
    if found.name == "json" and dialect.mariadb:
        found = found._replace(name="longtext", charset="utf8mb4")
    return found


def _name(tokens: Tokens, dialect: Dialect) -> tuple[str, str, bool, bool]:
    """(type, character set that the type's name brings, UNSIGNED, SERIAL)."""
    word = tokens.take().upper
    if not word.isidentifier():
        raise ValueError(f"{word or 'something quoted'!r} where a type belongs")
    charset = ""
    if word == "NATIONAL":
        charset, word = _NATIONAL, tokens.take().upper
    elif word in ("NCHAR", "NVARCHAR"):
        charset = _NATIONAL
    if word == "SERIAL":
        return "bigint", "", True, True
    if word == "REAL":
        return ("float" if dialect.real_as_float else "double"), "", False, False
    if word == "DOUBLE":
        tokens.accept("PRECISION")
    if word == "NUMBER" and dialect.oracle:
        return "decimal", "", False, False
    if word == "LONG":
        if tokens.accept("VARBINARY"):
            return "mediumblob", "", False, False
        _ = (
            tokens.accept_one("VARCHAR", "VARCHARACTER")
            or tokens.accept("CHAR", "VARYING")
            or tokens.accept("CHARACTER", "VARYING")
        )
        return "mediumtext", charset, False, False
    if word in ("CHAR", "CHARACTER", "NCHAR") and tokens.accept_one("VARYING", "VARCHAR", "VARCHARACTER"):
        return "varchar", charset, False, False
    if word == "TIMESTAMP" and dialect.maxdb:
        return "datetime", "", False, False
    if dialect.oracle and word in _ORACLE:
        return _ORACLE[word], charset, False, False
    return _SYNONYMS.get(word, word.lower()), charset, False, False


def _with_arguments(found: Type, arguments: list[list[Token]], dialect: Dialect) -> Type:
    name, written = found.name, found.written
    if name in ("enum", "set"):
        found = found._replace(members=tuple([_member(part, dialect) for part in arguments]), literals=dialect.session.literals)
    elif name in ("datetime", "timestamp", "time"):
        found = found._replace(scale=int(arguments[0][0].text))
    elif name == "decimal" and len(arguments) > 1:
        found = found._replace(scale=int(arguments[1][0].text))
    elif name == "float" and found.written.upper() != "REAL" and len(arguments) == 1 and int(arguments[0][0].text) > 24:
        found, written = found._replace(name="double"), "double"
    elif name in ("char", "varchar", "text", "binary", "varbinary", "blob"):
        length = int(arguments[0][0].text)
        found = found._replace(length=None if dialect.mariadb and not length else length)
    written += f"({','.join([''.join(map(_written, part)) for part in arguments])})"
    return found._replace(written=written)


def _written(token: Token) -> str:
    return "'" + token.text.replace("'", "''") + "'" if token.kind == "string" else token.text


def _member(part: list[Token], dialect: Dialect) -> str | bytes:
    if len(part) != 1:
        raise ValueError("a member of ENUM or SET that is no literal")
    member = literal(part[0])
    charset = dialect.session.literals
    if isinstance(member, bytes) or not charset:
        return member
    client = dialect.session.client
    if not member.isascii() and "binary" in (client, charset) and not {client, charset} <= {"binary", "utf8mb4", "utf8mb3"}:
        raise ValueError("a member of ENUM or SET in bytes of another character set than UTF-8")  # that the client sent
    if charset == "binary":
        return member.encode()
    return stored_text(member, charset)
