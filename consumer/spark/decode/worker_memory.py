"""How the Python processes that decode treat memory: what is loaded out of the cycle collector's sight, freed memory kept for the next piece."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from functools import cache

KEPT_BYTES = 64 << 20  # a piece's payloads and columns many times over
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_MAPPED_BYTES = 32 << 20  # the largest that glibc takes


@cache
def settle() -> None:
    """Prepare one of Spark's Python workers, once in a process.

    What is loaded by now goes out of the cycle collector's sight: the workers run all of it after each task, 9 ms over the modules of
    Spark, Arrow and NumPy, as long as a small task itself.

    Up to `KEPT_BYTES` of freed memory stay with the process: glibc gave them back after each piece, and had each page zeroed for the next
    one, a tenth of a worker's time. Another C library continues as it does.
    """
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
