"""Column definitions in SQL text -> `Column`, as far as a TABLE_MAP event leaves it open: name, sign, character set, members.

Types keep information_schema's names. Sizes are not followed: every TABLE_MAP says them. `Column.definition` is the type as
written, in the form that Canal's parser (Druid) gives it: the name, the arguments, ``unsigned`` and ``zerofill``.
"""

from __future__ import annotations

from typing import NamedTuple

from shmstore.column_type import defined
from shmstore.errors import UnsupportedEvent
from shmstore.event import Column
from shmstore.producer.values.charsets import member_text, stored_text
from shmstore.sql_tokens import Token, Tokens, literal, scan

__all__ = ["ColumnDefinition", "charset_of_collation", "column_of_type", "define_column", "is_text", "settled", "with_definition"]

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
    "NUMBER": "decimal",
    "FLOAT4": "float",
    "FLOAT8": "double",
    "REAL": "double",
    "CHARACTER": "char",
    "NCHAR": "char",
    "NVARCHAR": "varchar",
    "VARCHARACTER": "varchar",
    "VARCHAR2": "varchar",
    "CLOB": "longtext",
    "RAW": "varbinary",
    "GEOMCOLLECTION": "geometrycollection",
}
_TEXT = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"}
_NATIONAL = "utf8mb3"
GEOMETRY = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection")


class ColumnDefinition(NamedTuple):
    """A column as a definition gives it. `charset` of `column` is empty where the table's default applies.

    `members` are those of an ENUM or SET as written: what bytes mean is known when the character set is (`settled`).
    """

    column: Column
    primary: bool  # PRIMARY KEY among its attributes
    place: str | None  # None: at the end, "": first, else the name of the column before it
    ends_period: bool = False  # AS ROW END: the end of a system-versioned row's period
    members: tuple[str | bytes, ...] = ()


def is_text(column: Column) -> bool:
    """Whether the column has a character set."""
    return column.type in _TEXT


def charset_of_collation(collation: str) -> str:
    """Return the character set in a collation's name, empty where the name has none (MariaDB's uca1400_ai_ci)."""
    first = collation.lower().partition("_")[0]
    return "" if first.startswith("uca") or first == "default" else _standard(first)


def _standard(charset: str) -> str:
    charset = charset.lower()
    return "utf8mb3" if charset == "utf8" else charset


def column_of_type(name: str, column_type: str, charset: str = "") -> Column:
    """Return the column that information_schema's COLUMN_TYPE and CHARACTER_SET_NAME describe. Raises ValueError where it cannot be read."""
    definition = define_column(name, Tokens(scan(column_type)), mariadb=False)
    if definition.members:  # MySQL names no character set where it is binary
        return settled(definition, _standard(charset) or "binary")
    return definition.column._replace(charset=_standard(charset))


def define_column(name: str, tokens: Tokens, *, mariadb: bool) -> ColumnDefinition:
    """Read a column definition behind its name. Raises ValueError where it cannot be read."""
    ahead = tokens.rest()
    type_, charset, unsigned = _type(tokens)
    written = " ".join([token.text for token in ahead[: len(ahead) - len(tokens.rest())]])
    members: tuple[str | bytes, ...] = ()
    scale = 0
    if tokens.peek() == "(":
        arguments = tokens.parenthesized()
        if type_ == "float" and len(arguments) == 1 and int(arguments[0][0].text) > 24:
            written = "double"
        written += f"({','.join([''.join(map(_written, part)) for part in arguments])})"
        if type_ in ("enum", "set"):
            members = tuple([_member(part) for part in arguments])
        elif type_ in ("datetime", "timestamp", "time"):
            scale = int(arguments[0][0].text)
        elif type_ == "float" and len(arguments) == 1 and int(arguments[0][0].text) > 24:
            type_ = "double"
        elif type_ == "decimal" and len(arguments) > 1:
            scale = int(arguments[1][0].text)
    if type_ == "json" and mariadb:
        type_, charset = "longtext", "utf8mb4"
    column = Column(name, type_, unsigned, True, 0, scale, charset, (), written)
    return _attributes(column, tokens)._replace(members=members)


def _written(token: Token) -> str:
    return "'" + token.text.replace("'", "''") + "'" if token.kind == "string" else token.text


def with_definition(column: Column, known: Column | None) -> Column:
    """Return the column as the log has it with the type as `known`, of the table's definition, has it: unless that is another type."""
    if known is None or known.unsigned != column.unsigned:
        return column
    if known.type != column.type and not (column.type == "geometry" and known.type in GEOMETRY):
        return column
    return defined(column, known.definition) if known.definition else column


def _member(part: list[Token]) -> str | bytes:
    if len(part) != 1:
        raise ValueError("a member of ENUM or SET that is no literal")
    return literal(part[0])


def settled(definition: ColumnDefinition, default: str, *, convert: str = "") -> Column:
    """Return the column as the server stores it: with its character set, `default` where it names none, and its members.

    `convert`: of CONVERT TO, which all text takes. Raises ValueError for members that are no text: of CHARACTER SET binary,
    bytes that are not UTF-8.
    """
    column = definition.column
    if not is_text(column):
        return column._replace(charset="")
    charset = column.charset or default
    if charset == "binary":
        column = column._replace(type=_BINARY_TYPES.get(column.type, column.type), charset="")
        return column._replace(members=tuple([_text(member, charset) for member in definition.members]))
    charset = convert or charset
    if charset == "binary":
        return settled(definition._replace(column=column._replace(charset=charset)), charset)
    members = tuple([_text(member, charset).rstrip(" ") for member in definition.members])
    return column._replace(charset=charset, members=members)


def _text(member: str | bytes, charset: str) -> str:
    try:
        return stored_text(member, charset) if isinstance(member, str) else member_text(member, charset)
    except UnsupportedEvent as error:
        raise ValueError(str(error).partition(": ")[0]) from error


def _type(tokens: Tokens) -> tuple[str, str, bool]:
    """(type, character set that the type's name brings, UNSIGNED)."""
    word = tokens.take().upper
    if not word.isidentifier():
        raise ValueError(f"{word or 'something quoted'!r} where a type belongs")
    charset = ""
    if word == "NATIONAL":
        charset, word = _NATIONAL, tokens.take().upper
    elif word in ("NCHAR", "NVARCHAR"):
        charset = _NATIONAL
    if word == "SERIAL":
        return "bigint", "", True
    if word == "DOUBLE":
        tokens.accept("PRECISION")
    if word == "LONG":
        if tokens.accept("VARBINARY"):
            return "mediumblob", "", False
        _ = tokens.accept("VARCHAR") or tokens.accept("CHAR", "VARYING") or tokens.accept("CHARACTER", "VARYING")
        return "mediumtext", charset, False
    if word in ("CHAR", "CHARACTER", "NCHAR"):
        if tokens.accept("VARYING") or tokens.accept("VARCHAR") or tokens.accept("VARCHARACTER"):
            return "varchar", charset, False
        if tokens.accept("BYTE"):
            return "binary", "", False
    return _SYNONYMS.get(word, word.lower()), charset, False


_BINARY_TYPES = {"char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob", "mediumtext": "mediumblob"}
_BINARY_TYPES["longtext"] = "longblob"


def _attributes(column: Column, tokens: Tokens) -> ColumnDefinition:
    """Read what stands behind the type, down to FIRST or AFTER."""
    primary, place, ends_period = False, None, False
    while tokens.left:
        if tokens.peek() == "(":
            tokens.skip_parentheses()
            continue
        if tokens.accept("CHARACTER", "SET") or tokens.accept("CHARSET") or tokens.accept("CHAR", "SET"):
            column = column._replace(charset=_standard(tokens.name()))
        elif tokens.accept("COLLATE"):
            column = column._replace(charset=column.charset or charset_of_collation(tokens.name()))
        elif tokens.accept("DEFAULT") or tokens.accept("COMMENT"):
            tokens.accept("-")
            if tokens.left and tokens.peek() != "(":
                tokens.take()
        elif tokens.accept("CONSTRAINT"):
            if tokens.peek() != "CHECK":
                tokens.name()
        elif tokens.accept("ON", "DELETE", "SET") or tokens.accept("ON", "UPDATE", "SET"):
            tokens.take()
        elif tokens.accept("REFERENCES"):
            tokens.table_name("")
        elif tokens.accept("AS", "ROW", "END"):
            ends_period = True
        elif tokens.accept("FIRST"):
            place = ""
        elif tokens.accept("AFTER"):
            place = tokens.name()
        elif tokens.accept("PRIMARY"):
            primary = True
            tokens.accept("KEY")
        elif tokens.accept("UNIQUE"):
            tokens.accept("KEY")
        elif tokens.accept("KEY"):
            primary = True
        else:
            column = _flag(column, tokens.take().upper)
    return ColumnDefinition(column, primary, place, ends_period)


def _flag(column: Column, word: str) -> Column:
    if word in ("UNSIGNED", "ZEROFILL"):
        more = (" unsigned" if not column.unsigned else "") + (" zerofill" if word == "ZEROFILL" else "")
        return column._replace(unsigned=True, definition=column.definition + more)
    if word == "ASCII":
        return column._replace(charset="latin1")
    if word == "UNICODE":
        return column._replace(charset="ucs2")
    if word == "BYTE":
        return column._replace(charset="binary")
    return column
