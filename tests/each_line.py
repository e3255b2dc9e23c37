"""Something that happens before one of the lines of code that runs: a test has it happen before each of them in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Line = tuple[str, int]


@contextmanager
def traced(places: tuple[str, ...], lines: list[Line], at: int | None, happen: Callable[[], None]) -> Iterator[None]:
    """Note the lines that this thread runs of the files whose paths begin with one of `places`, each once; before the line that is number `at` of
    them, call `happen`."""
    seen: set[Line] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(places):
            return None
        line = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line not in seen:
            seen.add(line)
            lines.append(line)
            if len(lines) - 1 == at:
                happen()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
