"""The home of a store whose log claims many gigabytes: real sets of files, sparse where payloads would be.

Each set has 15 transactions of 16 events of 256 KiB of zeros, of which no byte is on disk, and of the event that ends it.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shmstore import EventStore, Position
from shmstore.encoding import codec
from shmstore.event import EntryType, Event, EventType
from shmstore.home.home import Home
from shmstore.log.format import BLOCK, BLOCK_CHECKED, BLOCKS, EVENTS, RECORD, SLOTS, header_bytes, set_name
from shmstore.memory.layout import SLOT

TRANSACTIONS, ROWS = 15, 16  # in a set, in a transaction
PER_SET = TRANSACTIONS * (ROWS + 1)
_LARGE = 256 << 10
_BEGUN_MS = 1_700_000_000_000
_UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


class Fake(NamedTuple):
    """What was made."""

    home: Path
    sets: int

    @property
    def transactions(self) -> int:
        """How many."""
        return self.sets * TRANSACTIONS

    def last_of(self, index: int) -> int:
        """Sequence of the last event of a transaction, by its index from 0; -1 for the one before the first."""
        return (index + 1) * (ROWS + 1) - 1

    def time_of(self, index: int) -> int:
        """Time of all its events, in ms since 1970."""
        return _BEGUN_MS + index * 4_000

    def position_of(self, index: int) -> Position:
        """Where it ends."""
        return Position(f"binlog.{index // 1000 + 1:06d}", (index % 1000 + 1) * 10_000_000, f"{_UUID}:1-{index + 1}")


def make(name: str, state: Path, sets: int) -> Fake:
    """Make the home of the store `name` in the state directory `state`, with a log of so many sets of files of 60 MiB."""
    with EventStore.create(name, state=state, log_size=1 << 40, log_keep=1e9) as store:
        epoch, made = store.epoch, Fake(Path(store.segment.home), sets)
    EventStore.unlink(name)
    folder = Home(made.home).log
    crc_of_large, end = zlib.crc32(bytes(_LARGE)), 0
    for index in range(sets):
        end = _make_set(folder, made, index, epoch, end, crc_of_large)
    return made


def _make_set(folder: Path, made: Fake, index: int, epoch: int, end: int, crc_of_large: int) -> int:
    """Make the files of one set, which begins at the ring's total `end`; return the total behind it."""
    first = index * PER_SET
    stem, places = folder / set_name(first), range(index * TRANSACTIONS, (index + 1) * TRANSACTIONS)
    ends = [Event(EntryType.END, EventType.NONE, made.position_of(i), made.time_of(i)) for i in places]
    payloads = [codec.encode(event) for event in ends]
    records = np.zeros(PER_SET, RECORD)
    slots = np.zeros(PER_SET, SLOT)
    of_transaction = slots.reshape(TRANSACTIONS, ROWS + 1)
    of_transaction[:, :] = codec.encode_batch(ends)[1][:, None]
    rows = of_transaction[:, :ROWS]
    rows["size"], rows["entry"], rows["type"], rows["flags"], rows["rows"] = _LARGE, EntryType.ROWS, EventType.INSERT, 0, 1
    rows["offset"] -= 1
    sizes = slots["size"].astype(np.int64)
    records["slot"], records["end"], records["at"] = slots, end + np.cumsum(sizes), np.cumsum(sizes) - sizes
    rows_before = index * int(slots["rows"].sum())
    records["rows"] = rows_before + np.cumsum(slots["rows"])
    blocks = np.zeros(PER_SET, BLOCK)
    blocks["first"], blocks["count"], blocks["at"], blocks["size"] = first + np.arange(PER_SET), 1, records["at"], sizes
    blocks["appended_ms"] = blocks["newest_ms"] = slots["time"]
    blocks["events_check"] = crc_of_large
    blocks["events_check"][ROWS :: ROWS + 1] = [zlib.crc32(payload) for payload in payloads]
    blocks["slots_check"] = [zlib.crc32(record.tobytes()) for record in records]
    blocks["check"] = [zlib.crc32(block.tobytes()[:BLOCK_CHECKED]) for block in blocks]
    stem.with_suffix(BLOCKS).write_bytes(blocks.tobytes())
    stem.with_suffix(SLOTS).write_bytes(header_bytes(epoch, first, end, rows_before, made.time_of(places[0])) + records.tobytes())
    with stem.with_suffix(EVENTS).open("wb") as file:
        os.ftruncate(file.fileno(), int(sizes.sum()))
        for payload, at in zip(payloads, records["at"][ROWS :: ROWS + 1], strict=True):
            os.pwrite(file.fileno(), payload, int(at))
    return int(records["end"][-1])
