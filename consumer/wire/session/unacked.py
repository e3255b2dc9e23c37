"""What a client holds un-acked, kept across restarts of the server.

The cursors of a subscription live in the store's segment; the batches that a canal client was given, with their ids, do
not. One small file a client holds them, in two records that are written in turn, each with its number and checksum:
a server killed while it writes leaves the older record whole.

Order, and what a crash in between leaves:

    give     get moves, record, answer      a batch that no client has seen: given again under a new id
    ack      ack moves, record              a batch acked already: `batches_after` leaves it out
    rollback get moves, record              a batch that is given again: the same

The file is not synced to disk: it outlives a killed server and an orderly reboot. A power cut may take the end of the store's log with it,
and what comes then has those sequences again: so after a reboot no batch counts as given, and its events are given again, under new ids;
and the sequence where a client that unsubscribed continues is one that was on disk.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Final, NamedTuple

from shmstore.errors import StoreError
from shmstore.home.home import Home
from shmstore.home.reader_state import batches_path, opened

_HEAD: Final = struct.Struct("<4sIQQqqqII")  # magic, crc of the rest, number, boot, epoch, next id, resume, batches, filter bytes
_BATCH: Final = struct.Struct("<qq")
_MAGIC: Final = b"SWL2"
_RECORD_BYTES: Final = (
    1 << 18
)  # room for `MOST_BATCHES` and the longest filter that `compile_filter` takes, of four bytes a letter
MOST_BATCHES: Final = 4096
#: Values of `Record.resume` that are no sequence: of a client that has not unsubscribed, and of one that had acked nothing.
STAYED: Final = -1
NOTHING_ACKED: Final = -2


class Given(NamedTuple):
    """A batch a client was given and has not acked: its id, and its last sequence."""

    id: int
    last: int


def boot_id() -> int:
    """What is different after each start of the host."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return int(file.read().replace("-", ""), 16) >> 64


class Record(NamedTuple):
    """A client's state. Sequences count inside `epoch`; `resume` is the sequence acked when the client unsubscribed, which then held `batches`;
    `boot` is the `boot_id` under which the batches were given."""

    epoch: int = 0
    next_id: int = 1
    resume: int = STAYED
    batches: tuple[Given, ...] = ()
    filter: str = ""
    boot: int = 0

    def batches_after(self, epoch: int, ack: int, newest: int, boot: int) -> tuple[Given, ...]:
        """The batches that are still out in a store of `epoch` whose subscription has acked `ack`."""
        of_here = epoch == self.epoch and boot == self.boot
        return tuple(batch for batch in self.batches if ack < batch.last <= newest) if of_here else ()


class RecordFile:
    """The file of one client."""

    def __init__(self, home: Home, subscription: str) -> None:
        self._home, self.path = home, batches_path(home, subscription)
        if home.epoch is None:
            home.make()
        with opened(home, self.path) as fd:
            #: Rises with each write, no matter who writes.
            self.number, self.record = self._load(fd)

    def _load(self, fd: int) -> tuple[int, Record]:
        found: list[tuple[int, Record]] = [(0, Record())]
        for half in (0, 1):
            data = os.pread(fd, _RECORD_BYTES, half * _RECORD_BYTES)
            if len(data) < _HEAD.size:
                continue
            magic, crc, number, boot, epoch, next_id, resume, count, filter_bytes = _HEAD.unpack_from(data)
            end = _HEAD.size + count * _BATCH.size + filter_bytes
            if magic != _MAGIC or end > len(data) or zlib.crc32(data[8:end]) != crc:
                continue
            batches = tuple(Given(*_BATCH.unpack_from(data, _HEAD.size + i * _BATCH.size)) for i in range(count))
            filter = data[end - filter_bytes : end].decode("utf-8", "replace")
            found.append((number, Record(epoch, next_id, resume, batches, filter, boot)))
        return max(found, key=lambda candidate: candidate[0])

    def write(self, record: Record) -> None:
        """Keep `record` in place of the one before. Raises `StoreError` where the disk refuses, `ValueError` where the record is too long for its half."""
        number = self.number + 1
        text = record.filter.encode("utf-8", "replace")
        counts = len(record.batches), len(text)
        rest = _HEAD.pack(_MAGIC, 0, number, record.boot, record.epoch, record.next_id, record.resume, *counts)[8:]
        rest += b"".join([_BATCH.pack(*batch) for batch in record.batches]) + text
        # The other half than last time: the last record stays whole until this one is.
        data = _MAGIC + zlib.crc32(rest).to_bytes(4, "little") + rest
        if len(data) > _RECORD_BYTES:  # it would run into the other half, which has to stay whole
            raise ValueError(
                f"a record of {counts[0]} batches and a filter of {counts[1]} bytes has {len(data)} bytes; a half of {self.path} has {_RECORD_BYTES}"
            )
        with opened(self._home, self.path) as fd:
            written = os.pwrite(fd, data, (number & 1) * _RECORD_BYTES)
        if written < len(data):
            raise StoreError(f"{self.path} cannot be written: the disk is full")
        self.number, self.record = number, record
