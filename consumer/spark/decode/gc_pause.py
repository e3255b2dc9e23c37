"""Python's cycle collector, out of the way of a decode."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def settle() -> None:
    """Take what is loaded by now out of the cycle collector's sight, once in a process.

    Spark's Python workers run the whole collector after each task: 9 ms over the modules of Spark, Arrow and NumPy, as long as a
    small task itself.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def no_collector() -> Iterator[None]:
    """Keep the cycle collector off. It walks a batch's lists again and again and finds nothing; decode is twice as fast without."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
