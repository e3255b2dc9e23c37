"""JSON that was stored, in files that other users of a store can write: whatever it is, it is read at once, or refused as what it is not.

A FIFO does not block its reader. Brackets without end, and numbers that no field holds, are `ValueError` like every other damage, so
that each reader has one case to handle and no file ends a process that could do without it.
"""

from __future__ import annotations

import json
import os
import stat
from math import isfinite
from typing import Any, Final

_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 64) - 1


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file. Raises OSError, and `ValueError` for what is not a regular file."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read()


def open_regular(path: str, flags: int) -> int:
    """Open a file, as the `opener` of `open`. Raises OSError, and `ValueError` for what is not a regular file, which it does not wait for."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("it is not a regular file")
    return fd


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the value in a file. Raises OSError, and `ValueError` for what is not JSON in a regular file."""
    return parse_json(read_bytes(path))


def parse_json(text: bytes) -> Any:
    """Return the value that JSON text has: its numbers are finite, and fit 64 bits where they are whole. Raises `ValueError`."""
    try:
        return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _whole(text: str) -> int:
    value = int(text)
    if not _LEAST <= value <= _MOST:
        raise ValueError(f"the number {text[:40]} does not fit 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:40]} is not a number")
    return value
