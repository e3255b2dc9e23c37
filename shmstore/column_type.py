"""A column's type as SQL has it: ``varchar(20)``, ``int unsigned``, ``enum('a','b')``."""

from __future__ import annotations

import re
from typing import Final

from shmstore.event import Column

_CHARACTER_BYTES: Final = {
    **dict.fromkeys(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"), 4),
    **dict.fromkeys(("utf8", "utf8mb3", "ujis", "eucjpms"), 3),
    **dict.fromkeys(("ucs2", "gbk", "gb2312", "big5", "sjis", "cp932", "euckr"), 2),
}


def bytes_of_character(charset: str) -> int:
    """Return how many bytes a character of the set takes at most, as the server counts the length of a column."""
    return _CHARACTER_BYTES.get(charset, 1)


def column_type(column: Column) -> str:
    """Return the type as the table's definition has it; where none was known, as MySQL 8 would show it: without display widths."""
    return column.definition or logged_type(column)


def defined(column: Column, definition: str) -> Column:
    """Return the column with the type as its definition has it, which is not kept where it says no more than the log."""
    column = column._replace(definition="")
    return column if definition == logged_type(column) else column._replace(definition=definition)


def logged_type(column: Column) -> str:
    """Return the type by what the binlog says, as MySQL 8 shows it.

    The binlog gives the length of text columns in bytes; it is divided by the character set's widest character.
    """
    kind = column.type
    if kind in ("char", "varchar"):
        return f"{kind}({column.size // bytes_of_character(column.charset)})"
    if kind in ("binary", "varbinary", "bit", "vector"):
        return f"{kind}({column.size})" if column.size else kind
    if kind == "decimal":
        return f"decimal({column.size},{column.scale})" + (" unsigned" if column.unsigned else "")
    if kind in ("enum", "set"):
        return f"{kind}({','.join([_quoted(member) for member in column.members])})"
    if kind in ("time", "datetime", "timestamp"):
        return f"{kind}({column.scale})" if column.scale else kind
    return kind + (" unsigned" if column.unsigned else "")


def _quoted(member: str) -> str:
    return "'" + member.replace("'", "''") + "'"


_SIZED: Final = {"decimal": 10, "bit": 1, "char": 1, "binary": 1, "varchar": 0, "varbinary": 0}
_ARGUMENTS = re.compile(r"\(\s*(\d+)")


def sized(column: Column) -> Column:
    """Return a column that is known by its definition alone with the size that its rows will say."""
    if column.type not in _SIZED or not column.definition:
        return column
    match = _ARGUMENTS.search(column.definition)
    size = int(match[1]) if match else _SIZED[column.type]
    column = column._replace(size=size * bytes_of_character(column.charset))
    return defined(column, column.definition)
