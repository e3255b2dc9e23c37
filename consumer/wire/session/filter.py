"""Table filters as Canal's clients write them: comma-separated regular expressions on ``schema.table``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from shmstore.errors import ProtocolError
from shmstore.patterns.linear_regex import Name, PatternRefused, compile_pattern

MOST_CHARACTERS: Final = 32768
_EVERYTHING: Final = frozenset((r".*\..*", ".*", ".+", r".+\..+"))

Wanted = Callable[[str], bool]


class FilterRefused(ProtocolError):
    """A filter that is not understood, or takes too long."""


def patterns(text: str) -> Iterator[str]:
    """Yield the expressions of a filter. A comma within brackets of any kind belongs to its expression."""
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth <= 0:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()


def expressions(text: str) -> list[str]:
    """Return the expressions that a filter has; none of one that is empty. For `keep_filter`."""
    return [pattern for pattern in patterns(text) if pattern]


def _compiled(pattern: str) -> Callable[[Name], bool]:
    try:
        return compile_pattern(pattern)
    except PatternRefused as error:
        raise FilterRefused(str(error)) from error


@lru_cache(maxsize=64)
def compile_filter(text: str) -> Wanted | None:
    """Return whether a ``schema.table`` is wanted, as a function; None where all are.

    Each expression must match the whole name, in any case of letters. An empty filter wants everything. A name is matched
    once: the function keeps what it found, for all clients of the same filter. It raises `FilterRefused` where a name takes
    too long. Raises `FilterRefused` where an expression is none, or the filter is longer than `MOST_CHARACTERS`.
    """
    if len(text) > MOST_CHARACTERS:
        raise FilterRefused(f"the filter has {len(text)} characters; allowed are {MOST_CHARACTERS}")
    chosen = expressions(text)
    if not chosen or any(pattern in _EVERYTHING for pattern in chosen):
        return None
    compiled = list(map(_compiled, chosen))

    @lru_cache(maxsize=16384)
    def wanted(name: str) -> bool:
        matched = Name(name)
        try:
            return any(matches(matched) for matches in compiled)
        except PatternRefused as error:
            raise FilterRefused(str(error)) from error

    return wanted
