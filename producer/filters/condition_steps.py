"""A condition as the steps that compiled code tries on rows (`producer/native/condition.pxi`); what it does not know stays with Python.

Every comparison becomes ranges that the value has to be in, made of the keys of `condition`: of integers, and of DECIMALs and times as
integers, what is smaller than a number with a fraction is a range of integers all the same. So there is one kind of check for each form
that a stored value has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from shmstore.event import TableSchema
from shmstore.producer.filters.condition import Bound, like_parts
from shmstore.producer.filters.condition_tree import Both, Comparison, Either, Node, Not

__all__ = ["Step", "steps_of"]

Step = tuple[str, int, int, bool, Sequence[Any]]  # the check, its column or how many parts, a DECIMAL's scale, negated, ranges

_SIGNED = (-(2**63), 2**63 - 1)
_UNSIGNED = (0, 2**64 - 1)
_DIGITS = 18  # of a DECIMAL, that a 64-bit integer holds
_ONE = b"\xff"  # _ of a LIKE's pattern: no byte of UTF-8
_EPOCH = datetime(1970, 1, 1)


class _Unknown(Exception):
    """Compiled code does not know this comparison."""


def steps_of(condition: Bound, schema: TableSchema) -> list[Step] | None:
    """Return the steps of a condition on a table; None where Python has to try it."""
    try:
        return list(_steps(condition.node, condition, schema))
    except _Unknown:
        return None


def _steps(node: Node, condition: Bound, schema: TableSchema) -> Iterator[Step]:
    if isinstance(node, Not):
        yield from _steps(node.of, condition, schema)
        yield "not", 1, 0, False, ()
    elif isinstance(node, Both | Either):
        for part in node.parts:
            yield from _steps(part, condition, schema)
        yield "and" if isinstance(node, Both) else "or", len(node.parts), 0, False, ()
    else:
        yield _check(node, condition, schema)


def _check(node: Comparison, condition: Bound, schema: TableSchema) -> Step:
    i, kind = condition.kinds[node.column]
    column = schema.columns[i]
    if node.sign == "IS NULL":
        return "null", i, 0, False, ()
    if node.sign == "LIKE":
        return "like", i, 0, False, _pieces(str(node.literals[0]))
    keys = [kind.literal(literal)[0] for literal in node.literals]
    negated, sign = node.sign == "<>", "=" if node.sign == "<>" else node.sign
    if column.type in ("float", "double"):
        return "single" if column.type == "float" else "double", i, 0, negated, _ranges(sign, keys, _double)
    if column.type in ("char", "varchar", "enum", "set") or column.type.endswith("text"):
        return "text", i, 0, negated, _ranges(sign, [key.encode("utf-8", "surrogatepass") for key in keys], _text)
    if column.type.endswith(("binary", "blob")):
        return "bytes", i, 0, negated, _ranges(sign, keys, _text)
    scale = 0
    if column.type == "decimal":
        scale = column.scale
        if not 0 < column.size <= _DIGITS:
            raise _Unknown
    elif column.type == "date":
        keys = [(date.fromisoformat(key) - _EPOCH.date()).days for key in keys]
    elif column.type in ("datetime", "timestamp"):
        keys = [(datetime.fromisoformat(key) - _EPOCH) // timedelta(microseconds=1) for key in keys]
    if any(isinstance(key, Decimal) and not -100 < key.adjusted() < 100 for key in keys):
        raise _Unknown  # no column has such a value; as an integer it could be of any length
    keys = [Fraction(key) * 10**scale for key in keys]
    unsigned = column.type in ("year", "bit") or (column.unsigned and column.type != "decimal")
    bounds = _UNSIGNED if unsigned else _SIGNED
    found = [
        (max(low, bounds[0]), min(high, bounds[1])) for low, high in _ranges(sign, keys, lambda *parts: _integer(bounds, *parts))
    ]
    name = "decimal" if column.type == "decimal" else "unsigned" if unsigned else "signed"
    return name, i, scale, negated, [(low, high) for low, high in found if low <= high]


def _pieces(pattern: str) -> list[bytes]:
    """What is before, between and behind the % of a LIKE's pattern, as UTF-8; between two % there is something."""
    pieces = [bytearray()]
    for char, wild in like_parts(pattern):
        if not (wild and char == "%"):
            pieces[-1] += _ONE if wild else char.encode("utf-8", "surrogatepass")
        elif len(pieces) == 1 or pieces[-1]:
            pieces.append(bytearray())
    return [bytes(piece) for piece in pieces]


def _ranges(sign: str, keys: list[Any], make: Callable[..., Any]) -> list[Any]:
    """The ranges of values that are `sign` the keys; `make`: of (low, low_open, high, high_open), None where there is no end."""
    first = keys[0]
    if sign == "IN" or sign == "=":
        return [make(key, False, key, False) for key in keys]
    if sign == "BETWEEN":
        return [make(first, False, keys[1], False)]
    return [make(None, False, first, sign == "<") if sign in ("<", "<=") else make(first, sign == ">", None, False)]


def _text(
    low: bytes | None, low_open: bool, high: bytes | None, high_open: bool
) -> tuple[bytes | None, bool, bytes | None, bool]:
    return low, low_open, high, high_open


def _double(low: float | None, low_open: bool, high: float | None, high_open: bool) -> tuple[float, float]:
    first = -math.inf if low is None else math.nextafter(low, math.inf) if low_open else low
    last = math.inf if high is None else math.nextafter(high, -math.inf) if high_open else high
    return first, last


def _integer(
    bounds: tuple[int, int], low: Fraction | None, low_open: bool, high: Fraction | None, high_open: bool
) -> tuple[int, int]:
    first = bounds[0] if low is None else math.floor(low) + 1 if low_open else math.ceil(low)
    last = bounds[1] if high is None else math.ceil(high) - 1 if high_open else math.floor(high)
    return first, last
