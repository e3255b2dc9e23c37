"""A condition on the columns of one table: tried on rows, or written as SQL; both are made of the same tree and the same literals.

Plan. The type of a column decides what its values are compared as (`_Comparable`): what makes a stored value a key, what makes a literal a key
and an SQL literal, and what replaces the column in SQL, so that the server compares the same.

    integers, DECIMAL, YEAR, BIT    exactly, as numbers; a YEAR is the number that it shows
    FLOAT, DOUBLE                   as doubles; so 1.1 is no FLOAT, as on the servers
    CHAR, VARCHAR, TEXT             exactly, by the characters' numbers: case, accents and spaces at the end count
    ENUM, SET                       as the text that they show; they have no order
    BINARY, VARBINARY, BLOB         by their bytes
    DATE, DATETIME, TIMESTAMP       in time; a zero or impossible date by its digits; a TIMESTAMP's literals are UTC
    TIME                            as a span of time
    others                          IS NULL only
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from shmstore.errors import UnsupportedEvent, did_you_mean
from shmstore.event import Column, TableSchema
from shmstore.producer.filters.condition_tree import Both, Either, Literal, Node, Not
from shmstore.sql.names import index_of

RowTest = Callable[[Sequence[Any]], bool | None]

_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXT: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_EPOCH: Final = datetime(1970, 1, 1)
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
_CLOCK: Final = re.compile(r"(-?)(\d{1,3}):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition on a table. `test`: of a row's values in stored form, whether it is true, false, or unknown (None)."""

    test: RowTest
    columns: frozenset[int]  # that it looks at
    node: Node
    kinds: dict[str, tuple[int, _Comparable]]

    def sql(self, column: Callable[[int], str]) -> str:
        """The condition as SQL; `column` gives what replaces one: its quoted name, or an expression for its bytes."""
        return self._sql(self.node, column)

    def _sql(self, node: Node, column: Callable[[int], str]) -> str:
        if isinstance(node, Not):
            return f"(NOT {self._sql(node.of, column)})"
        if isinstance(node, Both | Either):
            return (
                "(" + (" AND " if isinstance(node, Both) else " OR ").join([self._sql(part, column) for part in node.parts]) + ")"
            )
        i, kind = self.kinds[node.column]
        name = column(i)
        if node.sign == "IS NULL":
            return f"({name} IS NULL)"
        if node.sign == "LIKE":
            return f"({_like_sql(name, str(node.literals[0]))})"
        left, texts = kind.sql.format(name), [kind.literal(literal)[1] for literal in node.literals]
        if node.sign == "IN":
            return f"({left} IN ({', '.join(texts)}))"
        if node.sign == "BETWEEN":
            return f"({left} BETWEEN {texts[0]} AND {texts[1]})"
        return f"({left} {node.sign} {texts[0]})"


class _Comparable(NamedTuple):
    """What a column's values are compared as."""

    key: Callable[[Any], Any]  # of a stored value
    literal: Callable[[Literal], tuple[Any, str]]  # its key, and it as SQL; ValueError says what belongs there
    sql: str = "{}"  # what replaces the column
    ordered: bool = True
    like: bool = False


def bind(node: Node, schema: TableSchema, what: str = "row filter") -> Bound:
    """Return the condition on a table. Raises `UnsupportedEvent`, which calls it `what`, where it does not fit its columns."""
    kinds: dict[str, tuple[int, _Comparable]] = {}
    try:
        test = _test(node, schema, kinds)
    except ValueError as error:
        raise UnsupportedEvent(
            f"the {what} does not fit table {schema.database}.{schema.table} as it is here: {error}"
        ) from error
    return Bound(test, frozenset(i for i, _ in kinds.values()), node, kinds)


# ---------------------------------------------------------------- trying rows


def _test(node: Node, schema: TableSchema, kinds: dict[str, tuple[int, _Comparable]]) -> RowTest:
    if isinstance(node, Not):
        return partial(_not, _test(node.of, schema, kinds))
    if isinstance(node, Both | Either):
        parts = [_test(part, schema, kinds) for part in node.parts]
        return partial(_any, parts, not isinstance(node, Either))
    i = index_of(node.column, schema.names)
    if i is None:
        raise ValueError(
            f"it has no column {node.column!r}{did_you_mean(node.column, schema.names)}; it has {', '.join(schema.names)}"
        )
    column = schema.columns[i]
    kind = _kind(column)
    kinds[node.column] = i, kind if kind is not None else _Comparable(_same, _no_literal)
    if node.sign == "IS NULL":
        return lambda row: row[i] is None
    if kind is None:
        raise ValueError(f"column {column.name!r} is {column.type.upper()}, of which only IS NULL and IS NOT NULL can be asked")
    if node.sign == "LIKE":
        if not kind.like:
            raise ValueError(f"column {column.name!r} is {column.type.upper()}: LIKE is for text")
        fits = _like(str(node.literals[0]))
        return lambda row: None if row[i] is None else fits(_text(row[i]))
    if not kind.ordered and node.sign not in ("=", "<>", "IN"):
        raise ValueError(f"column {column.name!r} is {column.type.upper()}, which has no order: use = <> IN or LIKE")
    try:
        literals = [kind.literal(literal)[0] for literal in node.literals]
    except ValueError as error:
        raise ValueError(f"column {column.name!r} is {column.type.upper()}: {error}") from error
    holds, key = _relation(node.sign, literals), kind.key
    return lambda row: None if row[i] is None else holds(key(row[i]))


def _not(part: RowTest, row: Sequence[Any]) -> bool | None:
    found = part(row)
    return None if found is None else not found


def _any(parts: list[RowTest], all_: bool, row: Sequence[Any]) -> bool | None:
    """SQL's OR; with `all_` its AND: what decides, else unknown where one is."""
    unknown = False
    for part in parts:
        found = part(row)
        if found is None:
            unknown = True
        elif found is not all_:
            return found
    return None if unknown else all_


def _relation(sign: str, literals: list[Any]) -> Callable[[Any], bool]:
    first = literals[0]
    if sign == "IN":
        return frozenset(literals).__contains__
    if sign == "BETWEEN":
        last = literals[1]
        return lambda value: bool(first <= value <= last)
    relations: dict[str, Callable[[Any], bool]] = {
        "=": lambda value: bool(value == first),
        "<>": lambda value: bool(value != first),
        "<": lambda value: bool(value < first),
        "<=": lambda value: bool(value <= first),
        ">": lambda value: bool(value > first),
        ">=": lambda value: bool(value >= first),
    }
    return relations[sign]


# ---------------------------------------------------------------- kinds of column


def _kind(column: Column) -> _Comparable | None:
    type_ = column.type
    if type_ in _INTEGERS:
        return _Comparable(_same, _number)
    if type_ == "decimal":
        return _Comparable(Decimal, _number)
    if type_ in ("year", "bit"):
        return _Comparable(_same, _number, "({} + 0)")
    if type_ == "float":
        return _Comparable(_single, _double, "({} + 0e0)")
    if type_ == "double":
        return _Comparable(_same, _double)
    if type_ in ("enum", "set") or (type_ in _TEXT and column.charset):
        plain = type_ in _TEXT
        return _Comparable(_text, _string, "CAST(CONVERT({} USING utf8mb4) AS BINARY)", ordered=plain, like=True)
    if type_ in _BYTES:
        return _Comparable(_same, _bytes)
    if type_ == "date":
        return _Comparable(_day, _date)
    if type_ in ("datetime", "timestamp"):
        return _Comparable(_moment, _datetime)
    if type_ == "time":
        return _Comparable(_same, _time)
    return None


def _same(value: Any) -> Any:
    return value


def _no_literal(literal: Literal) -> tuple[Any, str]:
    raise ValueError("it cannot be compared")


def _number(literal: Literal) -> tuple[Decimal, str]:
    if not isinstance(literal, Decimal):
        raise ValueError("compare it with a number, without quotes")
    return literal, f"{literal:f}"


def _double(literal: Literal) -> tuple[float, str]:
    value = float(_number(literal)[0])
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{_number(literal)[1]} is larger than a DOUBLE can be")
    return value, f"{value:.17e}"


def _single(value: float) -> float:
    """A stored FLOAT, which has its shortest digits, as the server compares it: widened."""
    widened: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return widened


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogateescape")


def _string(literal: Literal) -> tuple[str, str]:
    if not isinstance(literal, str):
        raise ValueError("compare it with a string, in quotes")
    return literal, f"x'{literal.encode().hex()}'"


def _bytes(literal: Literal) -> tuple[bytes, str]:
    if isinstance(literal, Decimal):
        raise ValueError("compare it with bytes, as x'0AFF', or a string in quotes")
    raw = literal if isinstance(literal, bytes) else literal.encode()
    return raw, f"x'{raw.hex()}'"


def _day(value: int | str) -> str:
    return value if isinstance(value, str) else (_EPOCH + timedelta(value)).date().isoformat()


def _moment(value: int | str) -> str:
    """A stored DATETIME or TIMESTAMP as text of one length, which sorts as time does, impossible dates by their digits."""
    if isinstance(value, str):
        clock, _, fraction = value.partition(".")
        return f"{clock}.{fraction:0<6}"
    return (_EPOCH + timedelta(microseconds=value)).isoformat(" ", "microseconds")


def _date(literal: Literal) -> tuple[str, str]:
    found = _MOMENT.fullmatch(literal) if isinstance(literal, str) else None
    if found is None or found[2]:
        raise ValueError("compare it with a date in quotes, as '2026-01-31'")
    return date.fromisoformat(found[1]).isoformat(), f"DATE'{found[1]}'"


def _datetime(literal: Literal) -> tuple[str, str]:
    found = _MOMENT.fullmatch(literal) if isinstance(literal, str) else None
    if found is None:
        raise ValueError("compare it with a time in quotes, as '2026-01-31 10:00:00' or '2026-01-31' (of a TIMESTAMP: in UTC)")
    text = f"{found[1]} {found[2] or '00:00:00'}.{found[3] or '':0<6}"
    datetime.fromisoformat(text)
    return text, f"TIMESTAMP'{text}'"


def _time(literal: Literal) -> tuple[int, str]:
    found = _CLOCK.fullmatch(literal) if isinstance(literal, str) else None
    if found is None or int(found[2]) > 838:
        raise ValueError("compare it with a span in quotes, as '10:00:00' or '-100:30:00.5'")
    sign, hours, minutes, seconds, fraction = found.groups()
    value = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int(f"{fraction or '':0<6}")
    return (-value if sign else value), f"TIME'{found[0]}'"


# ---------------------------------------------------------------- LIKE


def like_parts(pattern: str) -> list[tuple[str, bool]]:
    """A pattern's characters; True: it is a wildcard. A backslash takes the meaning from what follows it."""
    parts: list[tuple[str, bool]] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append((pattern[at], False))
        else:
            parts.append((char, char in "%_"))
        at += 1
    return parts


def _like(pattern: str) -> Callable[[str], bool]:
    """Whether a text is LIKE `pattern`. What is between two ``%`` is found at its first place, and nothing is tried again: a condition may be
    another user's, and a text long."""
    pieces: list[list[str]] = [[]]
    for char, wild in like_parts(pattern):
        if wild and char == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if wild else re.escape(char))
    first, *rest = (re.compile("".join(piece), re.DOTALL) for piece in pieces)
    if not rest:
        return lambda text: first.fullmatch(text) is not None
    *between, last = rest
    tail = len(pieces[-1])

    def like(text: str) -> bool:
        found = first.match(text)
        for piece in between:
            if found is None:
                return False
            found = piece.search(text, found.end())
        return found is not None and found.end() <= len(text) - tail and last.match(text, len(text) - tail) is not None

    return like


def _like_sql(name: str, pattern: str) -> str:
    text = "".join([char if wild else f"|{char}" if char in "%_|" else char for char, wild in like_parts(pattern)])
    return (
        f"CONVERT({name} USING utf8mb4) COLLATE utf8mb4_bin LIKE CONVERT(x'{text.encode().hex()}' USING utf8mb4) "
        "COLLATE utf8mb4_bin ESCAPE '|'"
    )
