"""The bytes of the log, drawn once. Pure: no file is opened here.

In ``HOME/log/`` a set of three files keeps each run of events. It is named by the sequence of its first event, 20 digits; the set that
is prepared and not yet used is called ``next``. All numbers are little-endian, and every check is the crc32 of `zlib`.

    N.events    the payloads, back to back. Sparse: as long as the set may grow, until it is sealed and cut to what is used
    N.slots     HEADER, then a RECORD for each event: its slot as in the ring, and where it ends. Sparse in the same way
    N.blocks    a BLOCK for each group of events that was appended at once: what it covers, and the checks of that. As long as it is

Event s of set N has record s - N. Its payload is events[at : at + size], so that at + size is the next one's `at`.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shmstore.memory.layout import SLOT, SlotFlag

MAGIC: Final = b"SHMSLOTS"
VERSION: Final = 1

EVENTS: Final = ".events"
SLOTS: Final = ".slots"
BLOCKS: Final = ".blocks"
ENDINGS: Final = (BLOCKS, SLOTS, EVENTS)  # in the order in which they get their names; the last one makes the set complete
NEXT: Final = "next"
LOCK_FILE: Final = "lock"

HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<i8"),
        ("epoch", "<i8"),  # of the store
        ("first", "<i8"),  # sequence of the first event, as in the name
        ("end", "<i8"),  # the ring's `ends` before it
        ("rows", "<i8"),  # the ring's `rows` before it
        ("created_ms", "<i8"),
        ("check", "<u4"),  # of the bytes before it
        ("reserved", "<u4"),
    ]
)
RECORD: Final = np.dtype(
    [
        ("slot", SLOT),  # as in the ring
        ("end", "<i8"),  # the ring's `ends`: cumulative, an oversized event is charged the ring's limit
        ("rows", "<i8"),  # the ring's `rows`: cumulative
        ("at", "<i8"),  # offset of the payload in .events
    ]
)
BLOCK: Final = np.dtype(
    [
        ("first", "<i8"),  # sequence
        ("count", "<i8"),  # events
        ("at", "<i8"),  # offset in .events
        ("size", "<i8"),  # bytes in .events
        ("appended_ms", "<i8"),
        ("events_check", "<u4"),  # of those bytes
        ("slots_check", "<u4"),  # of those RECORDs
        ("newest_ms", "<i8"),  # the latest event time among them; 0 where that is not known
        ("reserved", "V4"),
        ("check", "<u4"),  # of the bytes before it
    ]
)
HEADER_CHECKED: Final = 56  # bytes before `check`
BLOCK_CHECKED: Final = 60
assert (HEADER.itemsize, RECORD.itemsize, BLOCK.itemsize) == (64, 64, 64), "records of the log have 64 bytes"
assert HEADER.fields["check"][1] == HEADER_CHECKED, "a header's check follows what it covers"  # type: ignore[index]
assert BLOCK.fields["check"][1] == BLOCK_CHECKED, "a block's check follows what it covers"  # type: ignore[index]

GROUP_BYTES: Final = 1 << 20  # of payload in a block: large writes cost less; a larger event has a block of its own

# ---------------------------------------------------------------- sizes

_LEAST_FILE: Final = 1 << 20
_MOST_FILE: Final = 64 << 20
_UNIT: Final = 64 << 10


def file_bytes(log_size: int) -> int:
    """Return FILE_BYTES, the payload bytes of a set, in a log of `log_size` bytes. A set whose first event is larger has that one alone."""
    return max(_LEAST_FILE, min(_MOST_FILE, log_size // 16 // _UNIT * _UNIT))


def file_slots(log_size: int) -> int:
    """Return FILE_SLOTS, the events of a set, in a log of `log_size` bytes."""
    return file_bytes(log_size) // RECORD.itemsize


def slots_size(events: int) -> int:
    """Return the bytes of a .slots file with `events` events."""
    return HEADER.itemsize + events * RECORD.itemsize


# ---------------------------------------------------------------- names

_NAME: Final = re.compile(r"(\d{20}|next)(\.events|\.slots|\.blocks)")


def store_of(folder: Path) -> str:
    """Return the name of the store whose log is in `folder`: that of its home, which the folder is in."""
    return folder.parent.name


def set_name(first: int) -> str:
    """Return the name of the set whose first event is `first`, without an ending."""
    return f"{first:020d}"


def parse_name(name: str) -> tuple[int | None, str] | None:
    """Return (first, ending) of a file's name, with None as the first of ``next``; None where it is no file of a set."""
    found = _NAME.fullmatch(name)
    if not found or not name.isascii():
        return None
    return (None if found[1] == NEXT else int(found[1])), found[2]


# ---------------------------------------------------------------- header and blocks


def header_bytes(epoch: int, first: int, end: int, rows: int, created_ms: int) -> bytes:
    """Return the HEADER of a set whose first event is `first`; `end` and `rows` are the ring's before it."""
    header = np.zeros((), HEADER)
    header["magic"], header["version"], header["epoch"], header["first"] = MAGIC, VERSION, epoch, first
    header["end"], header["rows"], header["created_ms"] = end, rows, created_ms
    header["check"] = zlib.crc32(header.tobytes()[:HEADER_CHECKED])
    return header.tobytes()


def header_fault(raw: bytes, epoch: int, first: int) -> str:
    """Return what is wrong with the HEADER of the set named `first` in a log of `epoch`; nothing where it is right."""
    if len(raw) < HEADER.itemsize:
        return f"its header has {len(raw)} of {HEADER.itemsize} bytes"
    header = np.frombuffer(raw, HEADER, 1)[0]
    if header["magic"] != MAGIC:
        return "it does not begin as the slots of a log do"
    if header["check"] != zlib.crc32(raw[:HEADER_CHECKED]):
        return "its header is damaged"
    if header["version"] != VERSION:
        return f"its format version is {header['version']}, this shmstore reads {VERSION}"
    if header["epoch"] != epoch:
        return f"it belongs to epoch {header['epoch']}, the log to {epoch}"
    if header["first"] != first:
        return f"its first event is {header['first']}, by its name {first}"
    return ""


def header_torn(raw: bytes) -> bool:
    """True where the HEADER was never written whole, so that nothing can be said of what it is of."""
    return len(raw) < HEADER.itemsize or zlib.crc32(raw[:HEADER_CHECKED]) != int.from_bytes(
        raw[HEADER_CHECKED : HEADER_CHECKED + 4], "little"
    )


def block_bytes(first: int, at: int, events: bytes | memoryview, records: bytes | memoryview, appended_ms: int) -> bytes:
    """Return the BLOCK of a group: `events` are its payloads, to be at `at` in .events, and `records` its RECORDs."""
    block = np.zeros((), BLOCK)
    block["first"], block["count"] = first, memoryview(records).nbytes // RECORD.itemsize
    block["at"], block["size"], block["appended_ms"] = at, memoryview(events).nbytes, appended_ms
    block["events_check"], block["slots_check"] = zlib.crc32(events), zlib.crc32(records)
    block["newest_ms"] = np.frombuffer(records, RECORD)["slot"]["time"].max()
    block["check"] = zlib.crc32(block.tobytes()[:BLOCK_CHECKED])
    return block.tobytes()


def block_sound(raw: bytes | memoryview) -> bool:
    """True where the bytes of one BLOCK have the check that they say; that of what it covers is `verify_blocks`' matter."""
    return zlib.crc32(raw[:BLOCK_CHECKED]) == int.from_bytes(raw[BLOCK_CHECKED : BLOCK.itemsize], "little")


def verify_blocks(
    events: memoryview, records: memoryview, blocks: memoryview, first_block: int, last_block: int, start: int | None = None
) -> int:
    """Return the index of the first damaged block of `first_block` to `last_block` (included), or -1.

    The buffers are those of one set from their start, `records` without the header; a block that reaches outside of them is damaged.
    `start` is the set's first sequence, None: that of its first block. This is the reference of `hot.verify_blocks`.
    """
    found = np.frombuffer(blocks, BLOCK, last_block + 1)
    if start is None:
        start = int(found["first"][0])
    for i in range(first_block, last_block + 1):
        first, count, at, size, _, events_check, slots_check, *_ = found[i].item()
        low, high = (first - start) * RECORD.itemsize, (first - start + count) * RECORD.itemsize
        if not (0 <= low <= high <= len(records) and 0 <= at <= at + size <= len(events)):
            return i
        if not block_sound(blocks[i * BLOCK.itemsize : (i + 1) * BLOCK.itemsize]):
            return i
        if zlib.crc32(records[low:high]) != slots_check or zlib.crc32(events[at : at + size]) != events_check:
            return i
    return -1


def first_fault(records: NDArray[np.void], at: int, end: int, rows: int) -> int:
    """Return the index of the first RECORD that contradicts itself, those before it, or the `at`, `end` and `rows` before all; or -1."""
    sizes, flags = records["slot"]["size"].astype(np.int64), records["slot"]["flags"]
    charged = np.diff(records["end"], prepend=end)
    oversized = (flags & int(SlotFlag.OVERSIZED)) != 0  # charged the ring's limit
    wrong = (sizes < 1) | (records["at"] != at + np.cumsum(sizes) - sizes)
    wrong |= np.where(oversized, charged < 0, charged != sizes)
    wrong |= np.diff(records["rows"], prepend=rows) != records["slot"]["rows"]
    return int(np.argmax(wrong)) if wrong.any() else -1
