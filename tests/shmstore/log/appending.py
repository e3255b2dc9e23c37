"""A plain writer of log files, step by step as the appender and the keeper do it, on a folder or on a disk that can lose its power.

`Appending` is handed a disk: `Folder` writes files; `Recorded` keeps them in memory with what was synced, and `crashed` gives one of the
states that a crash of the host could leave.
"""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from shmstore.log import format as log_format
from shmstore.log import mark
from shmstore.log.format import BLOCK, BLOCKS, EVENTS, NEXT, RECORD, SLOTS
from shmstore.log.recovery import Tail
from shmstore.memory.layout import SLOT


class Item(NamedTuple):
    """An event to append."""

    payload: bytes
    rows: int = 1
    flags: int = 0
    time: int = 0
    file: int = 0
    offset: int = 0
    entry: int = 0
    type: int = 0
    charged: int | None = None  # bytes it counts for, where it is oversized


class Disk(Protocol):
    """What a writer does to a folder. A file is known by a number while it is open."""

    def create(self, name: str) -> int: ...
    def open(self, name: str) -> int: ...
    def write(self, file: int, offset: int, content: bytes) -> None: ...
    def truncate(self, file: int, size: int) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def sync(self, file: int) -> None: ...
    def sync_names(self) -> None: ...
    def close(self, file: int) -> None: ...


class Folder:
    """A real folder; nothing is synced. Its files are closed when no object holds it any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: set[int] = set()
        weakref.finalize(self, _close_all, self._open)
        path.mkdir(parents=True, exist_ok=True)

    def create(self, name: str) -> int:
        return self._opened(name, os.O_CREAT | os.O_TRUNC)

    def open(self, name: str) -> int:
        return self._opened(name, 0)

    def _opened(self, name: str, flags: int) -> int:
        file = os.open(self.path / name, os.O_RDWR | flags)
        self._open.add(file)
        return file

    def write(self, file: int, offset: int, content: bytes) -> None:
        os.pwrite(file, content, offset)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path / old, self.path / new)

    def sync(self, file: int) -> None: ...

    def sync_names(self) -> None: ...

    def close(self, file: int) -> None:
        self._open.discard(file)
        os.close(file)


def _close_all(files: set[int]) -> None:
    for file in files:
        os.close(file)


@dataclass
class _Inode:
    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, bytes), or (size, None) of a truncation


class Recorded:
    """A folder in memory: what is on its disk for sure, and what was done since."""

    def __init__(self) -> None:
        self.inodes: list[_Inode] = []
        self.names: dict[str, int] = {}
        self.synced_names: dict[str, int] = {}
        self.pending_names: list[tuple[str | None, str, int]] = []  # (old, new, inode)

    def create(self, name: str) -> int:
        self.inodes.append(_Inode())
        self.names[name] = len(self.inodes) - 1
        self.pending_names.append((None, name, self.names[name]))
        return self.names[name]

    def open(self, name: str) -> int:
        return self.names[name]

    def write(self, file: int, offset: int, content: bytes) -> None:
        self.inodes[file].pending.append((offset, content))

    def truncate(self, file: int, size: int) -> None:
        self.inodes[file].pending.append((size, None))

    def rename(self, old: str, new: str) -> None:
        self.names[new] = self.names.pop(old)
        self.pending_names.append((old, new, self.names[new]))

    def sync(self, file: int) -> None:
        inode = self.inodes[file]
        for change in inode.pending:
            inode.synced = _changed(inode.synced, *change)
        inode.pending.clear()

    def sync_names(self) -> None:
        self.synced_names = dict(self.names)
        self.pending_names.clear()

    def close(self, file: int) -> None: ...

    def crashed(self, random_: random.Random, path: Path) -> None:
        """Write a state that a crash may leave to `path`: of what was not synced, any part, torn at any byte, in any order."""
        path.mkdir()
        names = dict(self.synced_names)
        eager = random_.choice((0.0, 0.5, 0.9, 1.0))
        for old, new, inode in self.pending_names:
            if random_.random() < eager:
                if old is not None and names.get(old) == inode:
                    del names[old]
                names[new] = inode
        share = random_.choice((0.0, 0.3, 0.9, 1.0))
        for name, number in names.items():
            inode = self.inodes[number]
            content = inode.synced
            changes = [change for change in inode.pending if random_.random() < share]
            if random_.random() < 0.5:
                random_.shuffle(changes)
            for offset, part in changes:
                if part is not None and random_.random() < 0.2:
                    low, high = sorted(random_.randrange(len(part) + 1) for _ in range(2))
                    offset, part = offset + low, part[low:high]
                content = _changed(content, offset, part)
            (path / name).write_bytes(content)


def _changed(content: bytes, at: int, part: bytes | None) -> bytes:
    if part is None:
        return content[:at].ljust(at, b"\0")
    return content[:at].ljust(at, b"\0") + part + content[at + len(part) :]


@dataclass
class _Files:
    first: int
    blocks: int
    slots: int
    events: int
    count: int = 0
    at: int = 0
    block_count: int = 0


class Appending:
    """What the appender and the keeper do to a disk. `logged` is the last event written, `synced` the last one that was reported on disk."""

    def __init__(self, disk: Disk, epoch: int, file_bytes: int, file_slots: int, tail: Tail | None = None) -> None:
        self.disk, self.epoch, self.file_bytes, self.file_slots = disk, epoch, file_bytes, file_slots
        tail = tail or Tail(-1, 0, 0)
        self.logged = self.synced = tail.last
        self.end, self.rows = tail.end, tail.rows
        self.current: _Files | None = None
        self.retired: _Files | None = None
        self.next: _Files | None = None
        if tail.first is not None:
            files = [disk.open(log_format.set_name(tail.first) + ending) for ending in log_format.ENDINGS]
            self.current = _Files(tail.first, *files, tail.events, tail.at, tail.blocks)
            disk.truncate(self.current.slots, log_format.slots_size(file_slots))
            disk.truncate(self.current.events, max(file_bytes, tail.at))
        self.mark: int | None = None
        self.prepare()

    def prepare(self) -> None:
        """The keeper: seal what is full, then make the next set."""
        disk, retired = self.disk, self.retired
        if retired is not None:
            disk.truncate(retired.slots, log_format.slots_size(retired.count))
            disk.truncate(retired.events, retired.at)
            for file in (retired.events, retired.slots, retired.blocks):
                disk.sync(file)
                disk.close(file)
            self.retired = None
        if self.next is None:
            disk.sync_names()  # also where none was retired: else the set after this one could get its name, and this one lose it
            blocks, slots, events = (disk.create(NEXT + ending) for ending in log_format.ENDINGS)
            disk.truncate(slots, log_format.slots_size(self.file_slots))
            disk.truncate(events, self.file_bytes)
            self.next = _Files(-1, blocks, slots, events)

    def sync(self) -> None:
        """The keeper: what is written by now is on disk."""
        logged = self.logged
        for files in (self.retired, self.current):
            for file in (files.events, files.slots, files.blocks) if files is not None else ():
                self.disk.sync(file)
        self.disk.sync_names()
        self.synced = logged
        if self.mark is None:
            self.mark = self.disk.create(mark.NAME)
        self.disk.write(self.mark, 0, mark.mark_bytes(self.epoch, logged))

    def append(self, group: Sequence[Item]) -> None:
        """The appender: write a group of events, at most to the end of the current set, then the others."""
        group = list(group)
        while group:
            if self.current is None or self._full(self.current, group[0]):
                self._roll()
            files = self.current
            assert files is not None
            taken, at = 0, files.at
            while taken < len(group) and files.count + taken < self.file_slots:
                if at + len(group[taken].payload) > self.file_bytes and files.count + taken:
                    break
                at += len(group[taken].payload)
                taken += 1
            self._write(files, group[:taken])
            del group[:taken]

    def _full(self, files: _Files, item: Item) -> bool:
        return files.count >= self.file_slots or (files.count > 0 and files.at + len(item.payload) > self.file_bytes)

    def _roll(self) -> None:
        if self.next is None or self.retired is not None:
            self.prepare()
        new, disk = self.next, self.disk
        assert new is not None
        new.first = self.logged + 1
        disk.write(new.slots, 0, log_format.header_bytes(self.epoch, new.first, self.end, self.rows, 1))
        for ending in (BLOCKS, SLOTS, EVENTS):
            disk.rename(NEXT + ending, log_format.set_name(new.first) + ending)
        self.retired, self.current, self.next = self.current, new, None

    def _write(self, files: _Files, group: list[Item]) -> None:
        records = np.zeros(len(group), RECORD)
        at = files.at
        for i, item in enumerate(group):
            slot = np.zeros((), SLOT)
            slot["time"], slot["offset"], slot["file"], slot["size"] = item.time, item.offset, item.file, len(item.payload)
            slot["rows"], slot["flags"], slot["entry"], slot["type"] = item.rows, item.flags, item.entry, item.type
            self.end += len(item.payload) if item.charged is None else item.charged
            self.rows += item.rows
            records[i] = slot, self.end, self.rows, at
            at += len(item.payload)
        payload = b"".join(item.payload for item in group)
        first = self.logged + 1
        self.disk.write(files.events, files.at, payload)
        self.disk.write(files.slots, log_format.slots_size(files.count), records.tobytes())
        block = log_format.block_bytes(first, files.at, payload, records.tobytes(), 1)
        self.disk.write(files.blocks, files.block_count * BLOCK.itemsize, block)
        files.count, files.at, files.block_count = files.count + len(group), at, files.block_count + 1
        self.logged += len(group)
