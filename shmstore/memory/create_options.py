"""What a store is created with, checked; kept in its header for all who attach."""

from __future__ import annotations

from typing import Final, NamedTuple

from shmstore.memory.layout import MAX_ARENA, MAX_CAPACITY, MAX_SEQUENCE, BatchMode, StoreFlag

DEFAULT_CAPACITY: Final = 16384
DEFAULT_MEMORY_UNIT: Final = 1024


class Options(NamedTuple):
    """The header's unchanging part. `limit` is bytes in flight, `evict_after` seconds, `first` the first sequence."""

    capacity: int
    memory_unit: int
    limit: int
    batch_mode: BatchMode
    flags: StoreFlag
    evict_after: float
    first: int


def checked(
    *,
    capacity: int,
    memory_unit: int,
    batch_mode: BatchMode,
    ddl_isolation: bool,
    lag: str,
    evict_after: float,
    checksum: bool,
    first_sequence: int,
) -> Options:
    """Return the options. Raises `ValueError` that says what is allowed."""
    if not 1 <= capacity <= MAX_CAPACITY or capacity & (capacity - 1):
        raise ValueError(f"capacity is {capacity}: give a power of two from 1 to {MAX_CAPACITY}")
    if not 1 <= memory_unit <= MAX_ARENA // capacity:
        raise ValueError(f"memory_unit is {memory_unit}: give 1 to {MAX_ARENA // capacity} bytes with a capacity of {capacity}")
    if lag not in ("block", "evict"):
        raise ValueError(f"lag is {lag!r}: give 'block' or 'evict'")
    if not 0 <= evict_after < float("inf"):
        raise ValueError(f"evict_after is {evict_after}: give seconds from 0 up")
    if not 0 <= first_sequence <= MAX_SEQUENCE - capacity:
        raise ValueError(f"first_sequence is {first_sequence}: give 0 to {MAX_SEQUENCE - capacity}")
    flags = StoreFlag(0)
    chosen = ((ddl_isolation, StoreFlag.DDL_ISOLATION), (lag == "evict", StoreFlag.EVICT), (checksum, StoreFlag.CHECKSUM))
    for wanted, flag in chosen:
        flags |= flag if wanted else StoreFlag(0)
    return Options(
        capacity, memory_unit, capacity * memory_unit, BatchMode(batch_mode), flags, float(evict_after), first_sequence
    )
