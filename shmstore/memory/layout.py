"""The bytes of a segment, drawn once. Every offset and size below is derived; nothing is typed twice.

    +----------------------+ 0
    | header               |  what never changes, then one cache line for each word that some process writes
    +----------------------+ HEADER.itemsize
    | subscription table   |  SUBSCRIPTIONS entries of one record; entry 0 keeps the events while no process subscribes, or is the log's
    +----------------------+ page boundary (FIXED_SIZE)
    | ends   int64[P]      |  bytes put so far, this event included: where its payload ends in the arena
    | rows   int64[P]      |  rows put so far, this event included
    | slots  SLOT[P]       |  one record an event: enough to get, ack, seek and isolate DDL without decoding a payload
    | arena  uint8[A]      |  the payloads, back to back
    +----------------------+

The last four are rings, and each is mapped twice back to back, so that a run of events is one slice, never two: no
padding, no wrap handling, and a limit that binds to the byte. For that, each is a whole number of pages.

P is at least twice the capacity. Events in flight never exceed the capacity, so the slot of the event at a cursor is
never overwritten while the cursor stands there: a cursor is one 8-byte sequence, and its bytes, rows and time are read
from that slot. All four move together because only one of them is stored.
"""

from __future__ import annotations

import mmap
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

import numpy as np

MAGIC: Final = b"SHMSTORE"
VERSION: Final = 6
PAGE: Final = mmap.PAGESIZE
LINE: Final = 64

SUBSCRIPTIONS: Final = 64
NAME_BYTES: Final = 64
SOURCE_BYTES: Final = 256
HOME_BYTES: Final = 1024
DISARMED: Final = 2**63 - 1
MAX_SEQUENCE: Final = 2**63 - 1 - 2**32
MAX_CAPACITY: Final = 2**26
MAX_ARENA: Final = 2**42
MAX_PAYLOAD: Final = 2**32 - 1  # bytes of one event: what a slot can say
ABSURD: Final = 2**40  # events that no store can have in flight, and none can pass while two words are read


SINCE_EVER: Final = (
    "version",
    "epoch",
    "capacity",
    "memory_unit",
    "limit",
)  # fields that every version has had where HEADER has them


class BatchMode(IntEnum):
    """What limits the store, as in Canal: events only, or events and bytes."""

    ITEMSIZE = 1
    MEMSIZE = 2


class StoreFlag(IntFlag):
    """Options of a store, fixed at creation. With LOG, entry 0 of the subscription table is the log's: its ack is the last event that is
    written there, and what the ring may give up follows that one alone."""

    DDL_ISOLATION = 1
    EVICT = 2
    CHECKSUM = 4
    LOG = 8


class SlotFlag(IntFlag):
    """What a slot says of its event. ACK_POINT is where a durable checkpoint may stand."""

    TRANSACTION_END = 1
    DDL = 2
    OVERSIZED = 4
    ACK_POINT = 3


class StoreState(IntEnum):
    """Life of a segment. REMOVED tells those still attached that a process removed the store, UNLINKED that the file is not there any more,
    by whatever hand: a store with a log is restored then."""

    LIVE = 1
    REMOVED = 2
    UNLINKED = 3


class SubscriptionState(IntEnum):
    """Life of an entry in the subscription table; written last when an entry is filled, first when it is freed.

    The odd ones hold events back. JOINING lasts only while a process in `SubscriptionTable.take` holds the lock: the process that
    finds it with the lock held has found what a killed process left, and frees it.
    """

    FREE = 0
    ACTIVE = 1
    LOST = 2
    JOINING = 3


SLOT: Final = np.dtype(
    [
        ("time", "<i8"),  # event time, ms since 1970 UTC
        ("offset", "<i8"),  # end of the event in its binlog file
        ("file", "<u4"),  # number of the binlog file
        ("size", "<u4"),  # bytes of the payload; in the arena, unless OVERSIZED
        ("rows", "<u4"),
        ("check", "<u4"),  # crc32 of the payload, where the store has CHECKSUM
        ("flags", "<u2"),  # SlotFlag
        ("entry", "u1"),  # EntryType
        ("type", "u1"),  # EventType
        ("reserved", "<u4"),
    ]
)


STREAM_FIELDS: Final = (  # those of `stat.StreamStat`
    *("connected", "heard_ms", "put_ms", "behind_ms", "blocked_ms", "reconnects", "transactions", "skipped"),
    *("snapshot_tables", "snapshot_open", "snapshot_rows", "purge_ms", "filtered_events", "filtered_rows", "paused_ms"),
)


def _record(*lines: list[tuple[str, str]]) -> np.dtype:
    """A record in which each group of fields starts on a cache line of its own."""
    names, formats, offsets, at = [], [], [], 0
    for line in lines:
        for name, format_ in line:
            names.append(name)
            formats.append(format_)
            offsets.append(at)
            at += np.dtype(format_).itemsize
        at = -(-at // LINE) * LINE
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": at})


HEADER: Final = _record(
    [
        ("magic", "S8"),
        ("version", "<i8"),  # written last at creation
        ("epoch", "<i8"),  # random id of this life of the store; sequences compare only inside one
        ("capacity", "<i8"),  # events
        ("memory_unit", "<i8"),  # bytes
        ("limit", "<i8"),  # bytes in flight
        ("arena", "<i8"),  # bytes of the arena: `limit` rounded up to pages
        ("batch_mode", "<i8"),
        ("flags", "<i8"),  # StoreFlag
        ("evict_after", "<f8"),  # seconds a put waits before it evicts, with EVICT
        ("first", "<i8"),  # sequence of the first event of this epoch
        ("created_ms", "<i8"),
        ("creator_pid", "<i8"),
        ("creator_start", "<i8"),
    ],
    [("state", "<i8")],  # StoreState; written by the process that removes the store
    [
        ("entries", "<i8"),
        ("evictions", "<i8"),
    ],  # entries of the subscription table in use so far; readers let go; written under the lock
    [("put", "<i8")],  # last sequence put; written by the producer, last of all
    # last sequence the producer counts as free; and where in the arena, as `ends` count, the last put ends that was begun: 0, or written
    # before a byte of it is. Both by the producer.
    [("floor", "<i8"), ("reach", "<i8")],
    [("oversized", "<i8")],  # sequence of the last event put into a segment of its own; written by the producer before `put`
    [("armed", "<i8")],  # 1 while a reader may be waiting; set by readers, cleared by the producer
    # ack sequence the producer waits for, or DISARMED; set by the producer, cleared by readers; and what it sleeps on: see semaphores.Condition
    [("ack_wanted", "<i8"), ("freed", "<i8")],
    [
        ("producer_pid", "<i8"),
        ("producer_start", "<i8"),
        ("heartbeat_ms", "<i8"),
        ("source_offset", "<i8"),
    ],  # since boot: see clock
    [(f"stream_{field}", "<i8") for field in STREAM_FIELDS],  # written by the producer with its heartbeat, for people to read
    [("source", f"S{SOURCE_BYTES}"), ("source_file", f"S{SOURCE_BYTES}")],
    [("start_offset", "<i8"), ("start_file", f"S{SOURCE_BYTES}")],  # every event of this epoch after here is or was in the store
    [("lock", "<i8")],  # what those who want the table's lock sleep on
    [
        ("log_first", "<i8"),  # oldest event kept in the log; written by the keeper under the table's lock
        ("log_bytes", "<i8"),  # of its files; by the keeper
        ("log_oldest_ms", "<i8"),  # event time of the oldest event kept; by the keeper
        ("log_error", "<i8"),  # errno of the last append, 0 where it succeeded; by the keeper
    ],
    # last event known to be on disk, by the keeper; the one that a process wants there, by any process; and what the keeper sleeps on
    [("synced", "<i8"), ("sync_wanted", "<i8"), ("keeper", "<i8")],
    [("log_size", "<i8"), ("log_keep_ms", "<i8"), ("home", f"S{HOME_BYTES}")],  # of the log
)

SUBSCRIPTION: Final = _record(
    [("name", f"S{NAME_BYTES}")],
    [
        ("state", "<i8"),
        ("generation", "<i8"),
        ("owner_pid", "<i8"),
        ("owner_start", "<i8"),
        ("heartbeat_ms", "<i8"),
        ("created_ms", "<i8"),
        (
            "paused",
            "<i8",
        ),  # 1 while its reader is given nothing; written under the table's lock, what counts is in the home: see home.pauses
    ],
    [("get", "<i8"), ("ack", "<i8")],  # written by the owner alone
    [("wanted", "<i8"), ("woken", "<i8")],  # put sequence the reader waits for, or DISARMED; and what it sleeps on
)


def pages(size: int) -> int:
    """`size` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


FIXED_SIZE: Final = pages(HEADER.itemsize + SUBSCRIPTIONS * SUBSCRIPTION.itemsize)


class Sizes(NamedTuple):
    """Where each ring of a segment starts and how long it is, in bytes."""

    slot_count: int
    ends: int
    rows: int
    slots: int
    arena: int
    arena_size: int
    total: int


def sizes(capacity: int, limit: int) -> Sizes:
    """Return the layout of a store of `capacity` events and `limit` bytes in flight."""
    slot_count = max(2 * capacity, PAGE // 8)
    ends = FIXED_SIZE
    rows = ends + slot_count * 8
    slots = rows + slot_count * 8
    arena = slots + pages(slot_count * SLOT.itemsize)
    arena_size = pages(limit)
    return Sizes(slot_count, ends, rows, slots, arena, arena_size, arena + arena_size)


# ---------------------------------------------------------------- words: index of an int64 field in the fixed part


def header_word(field: str) -> int:
    """Index of a header field in the fixed part, seen as int64 words."""
    return int(HEADER.fields[field][1]) // 8  # type: ignore[index]


def subscription_word(entry: int, field: str) -> int:
    """Index of a field of a subscription entry in the fixed part, seen as int64 words."""
    return (HEADER.itemsize + entry * SUBSCRIPTION.itemsize + int(SUBSCRIPTION.fields[field][1])) // 8  # type: ignore[index]


# ---------------------------------------------------------------- bytes of the segment that stand for a role, for kernel locks

LOCK_TABLE: Final = 0
LOCK_PRODUCER: Final = 1
LOCK_SUBSCRIPTION: Final = 2  # + entry
