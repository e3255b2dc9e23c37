"""What a store is created with, checked; kept in its header for all who attach."""

from __future__ import annotations

from typing import Final, NamedTuple

from shmstore.memory.layout import HOME_BYTES, MAX_ARENA, MAX_CAPACITY, MAX_SEQUENCE, BatchMode, StoreFlag

DEFAULT_CAPACITY: Final = 16384
DEFAULT_MEMORY_UNIT: Final = 1024
DEFAULT_LOG_SIZE: Final = 10 << 30  # bytes
DEFAULT_LOG_KEEP: Final = 24 * 3600.0  # seconds
LEAST_LOG_SIZE: Final = 16 << 20


class CreateOptions(NamedTuple):
    """The header's unchanging part. `limit` is bytes in flight, `evict_after` seconds, `first` the first sequence. `home` is empty
    where the store has no log; `log_size` is bytes, `log_keep` seconds."""

    capacity: int
    memory_unit: int
    limit: int
    batch_mode: BatchMode
    flags: StoreFlag
    evict_after: float
    first: int
    home: str = ""
    log_size: int = 0
    log_keep: float = 0.0


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
    home: str = "",
    log_size: int = DEFAULT_LOG_SIZE,
    log_keep: float = DEFAULT_LOG_KEEP,
) -> CreateOptions:
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
    if home and not LEAST_LOG_SIZE <= log_size <= MAX_SEQUENCE:
        raise ValueError(f"log_size is {log_size}: give bytes from {LEAST_LOG_SIZE} (16 MiB) up, or no log")
    if home and not 0 <= log_keep < 1e12:
        raise ValueError(f"log_keep is {log_keep}: give seconds from 0 up")
    if len(home.encode()) > HOME_BYTES:
        raise ValueError(f"the home {home!r} has {len(home.encode())} bytes: name a folder with at most {HOME_BYTES}")
    flags = StoreFlag(0)
    chosen = (
        *((ddl_isolation, StoreFlag.DDL_ISOLATION), (lag == "evict", StoreFlag.EVICT), (checksum, StoreFlag.CHECKSUM)),
        (bool(home), StoreFlag.LOG),
    )
    for wanted, flag in chosen:
        flags |= flag if wanted else StoreFlag(0)
    return CreateOptions(
        *(capacity, memory_unit, capacity * memory_unit, BatchMode(batch_mode), flags, float(evict_after), first_sequence),
        *(home, log_size if home else 0, float(log_keep) if home else 0.0),
    )
