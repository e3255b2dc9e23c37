"""How the C library hands memory out: freed buffers of a put's size are kept for the next one.

glibc maps memory for each larger block and unmaps it when it is freed, so every put of some megabytes had its pages faulted in
and zeroed again: a third of the producer's time in bulk.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 8 << 20  # bytes of the largest block that is kept; twice what a put holds by default
TRIMMED = 32 << 20  # free bytes at the heap's end from which on some are given back


def keep_freed_blocks() -> None:
    """Ask for it, once a process; another C library than glibc stays as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT)
        mallopt(_M_TRIM_THRESHOLD, TRIMMED)
