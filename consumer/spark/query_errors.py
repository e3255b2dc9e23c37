"""What a query's error says in one line, cause and fix: it is in the first line of Spark's message, and last where the error ends a program, after Spark's
plan and offsets."""

from __future__ import annotations

import re
import sys
from types import TracebackType

from pyspark.errors import StreamingQueryException

from shmstore.units import printable


def cause(error: BaseException) -> str:
    """What an error in Spark's message says that was raised in Python: the last one, at the end of a traceback or of the first line."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = ours(lines) or [
        found[1] for found in (re.match(r"[A-Z]\w*(?:Error|Exception): (.*)", line) for line in lines) if found
    ]
    return named[-1] if named else lines[0] if lines else repr(error)


def ours(lines: list[str]) -> list[str]:
    """What the errors of this package say in these lines of a message."""
    found = [re.search(r"(?:^|: )(?:shmstore|consumer)\.[\w.]+: (.*)", line) for line in lines]
    return [each[1] for each in found if each]


class BatchFailed(Exception):
    """Says in one line why a function that Spark called failed. It is never raised."""


def shown_first(error: BaseException) -> None:
    """Make the cause of an error that a function raises which Spark called, as in `foreachBatch`, the first line of what Spark gets of it.

    py4j sends the text that Python prints of an error. That begins with what the error was raised from, and an error that was never raised has no stack.
    """
    first, seen = error, {id(error)}
    while (before := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) and id(before) not in seen:
        first = before
        seen.add(id(first))
    if isinstance(first, BatchFailed):
        return
    first.__cause__ = BatchFailed(f"{type(error).__name__}: {cause(error)}")


def shown_last() -> None:
    """From now on an error of a query that ends this program has its cause as its last line, too."""
    before = sys.excepthook
    if getattr(before, "shows_cause", False):
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, StreamingQueryException) and (found := ours([line.strip() for line in str(error).splitlines()])):
            error.add_note(printable(f"shmstore: {found[-1]}"))
        before(kind, error, trace)

    show.shows_cause = True  # type: ignore[attr-defined]
    sys.excepthook = show
