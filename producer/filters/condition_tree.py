"""What a condition says, before it is known which table it is about."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

Literal = Decimal | str | bytes


class Comparison(NamedTuple):
    """A column and what it is compared with. `sign`: = <> < <= > >= IN, BETWEEN, LIKE, or IS NULL, which has no literals."""

    column: str
    sign: str
    literals: tuple[Literal, ...]


class Not(NamedTuple):
    """NOT `of`."""

    of: Node


class Both(NamedTuple):
    """All of `parts`: AND."""

    parts: tuple[Node, ...]


class Either(NamedTuple):
    """One of `parts`: OR."""

    parts: tuple[Node, ...]


Node = Comparison | Not | Both | Either
