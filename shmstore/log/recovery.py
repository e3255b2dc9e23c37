"""The end of a log after a crash: what was being written is cut off, the rest is made to last.

A set is cut to what is used and put on disk before the set after the next one gets its name. So all sets but the last two are whole, and
the last two are checked block by block: the first that does not hold ends the log. What is known to be on disk is never cut, as nothing
is counted so before its three files and their names are.

A crash within a recovery leaves what the next one makes the same of.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore.atomic_file import sync
from shmstore.errors import StoreCorrupt, refused
from shmstore.log import format as log_format
from shmstore.log.files import set_firsts
from shmstore.log.format import BLOCK, BLOCKS, EVENTS, HEADER, RECORD, SLOTS
from shmstore.log.log_set import verify_blocks

UNSEALED: Final = 2  # sets at the end that may not be on disk


class Tail(NamedTuple):
    """Where a log ends: its last event, the ring's `ends` and `rows` there, and the set to go on in, None where a new one is to be begun.

    That set has `events` events, with `at` bytes, in `blocks` blocks. `cut` says, a sentence
    each, what was taken away.
    """

    last: int
    end: int
    rows: int
    first: int | None = None
    events: int = 0
    at: int = 0
    blocks: int = 0
    cut: tuple[str, ...] = ()


def recover(folder: str | os.PathLike[str], epoch: int, first: int = 0) -> Tail:
    """Cut the log in `folder` to its sound beginning and put that on disk; `first` is the store's first sequence. Call it under the log's lock.

    A log without events gives a tail without a set, whose `last` is the sequence before the first to come. Raises `StoreCorrupt` where the
    files are of another store or version: nothing is changed then; `StoreError` where the disk refuses.
    """
    folder = Path(folder)
    try:
        while True:
            firsts = set_firsts(folder)
            try:
                return _recovered(folder, epoch, first)
            except (
                FileNotFoundError
            ):  # a trim, which needs no lock, removes the oldest sets meanwhile; it leaves one that is on disk
                if set_firsts(folder) == firsts:
                    raise
    except OSError as error:
        raise refused(f"the log in {folder} cannot be recovered", error, "let this user read and write there") from error


def _recovered(folder: Path, epoch: int, first: int) -> Tail:
    endings: dict[int | None, set[str]] = {}
    for name in os.listdir(folder):
        parsed = log_format.parse_name(name)
        if parsed is not None:
            endings.setdefault(parsed[0], set()).add(parsed[1])
    firsts = sorted(each for each, there in endings.items() if each is not None and EVENTS in there)
    _refuse_others(folder, firsts[-UNSEALED:], epoch)
    for each, there in endings.items():
        if each is None or EVENTS not in there:  # prepared and not used, or removed up to here
            _remove(folder, log_format.NEXT if each is None else log_format.set_name(each))
    trusted, checked = firsts[:-UNSEALED], firsts[-UNSEALED:]
    found: list[Tail] = []
    for each in checked:
        before = found[-1] if found else None
        end = _examined(folder, each, before) if before is None or before.last + 1 == each else None
        if end is None:
            os.stat(folder / f"{log_format.set_name(each)}{EVENTS}")  # raises where it was removed since the folder was listed
            break
        found.append(end)
    if found:
        tail = found[-1]
    elif trusted:
        tail = _described(folder, trusted[-1], checked[0] - 1)
    else:
        tail = _begun(folder, checked[0]) if checked else Tail(first - 1, 0, 0)
    cut = [f"events from {each} on were not written whole" for each in checked[len(found) :]]
    for each in reversed(checked[len(found) :]):
        _remove(folder, log_format.set_name(each))
    for end in found or ([tail] if tail.first is not None else []):
        cut += _cut(folder, end)
    sync(folder)
    return tail._replace(cut=tuple(cut))


def _refuse_others(folder: Path, firsts: list[int], epoch: int) -> None:
    for first in firsts:
        path = folder / f"{log_format.set_name(first)}{SLOTS}"
        raw = _header(path)
        fault = "" if log_format.header_torn(raw) else log_format.header_fault(raw, epoch, first)
        if fault:
            raise StoreCorrupt(f"{path} cannot be used: {fault}; give the store a home of its own, or put back what was here")


def _header(path: Path) -> bytes:
    with suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(HEADER.itemsize)
    return b""


def _begun(folder: Path, first: int) -> Tail:
    """Where the only set of a log was begun, and holds nothing."""
    raw = _header(folder / f"{log_format.set_name(first)}{SLOTS}")
    if log_format.header_torn(raw):
        return Tail(first - 1, 0, 0)
    header = np.frombuffer(raw, HEADER)[0]
    return Tail(first - 1, int(header["end"]), int(header["rows"]))


def _examined(folder: Path, first: int, before: Tail | None) -> Tail | None:
    """The end of the sound beginning of a set; None where it has none, or does not go on from `before`."""
    stem = folder / log_format.set_name(first)
    if not all(stem.with_suffix(ending).exists() for ending in log_format.ENDINGS):
        return None
    raw = _header(stem.with_suffix(SLOTS))
    if log_format.header_torn(raw):
        return None
    header = np.frombuffer(raw, HEADER)[0]
    end, rows = int(header["end"]), int(header["rows"])
    if before is not None and (before.end, before.rows) != (end, rows):
        return None
    events, slots, blocks_file = (_bytes_of(stem.with_suffix(ending)) for ending in (EVENTS, SLOTS, BLOCKS))
    record_bytes = slots[HEADER.itemsize :]
    records = np.frombuffer(record_bytes, RECORD, len(record_bytes) // RECORD.itemsize)
    blocks = np.frombuffer(blocks_file, BLOCK, len(blocks_file) // BLOCK.itemsize)
    count = _following(blocks, first, len(events), len(records))
    if count:
        bad = verify_blocks(events, record_bytes, blocks_file, 0, count - 1, first)
        count = count if bad < 0 else bad
    count = _consistent(blocks[:count], records, first, end, rows)
    if not count:
        return None
    last, block = int(blocks["first"][count - 1] + blocks["count"][count - 1]) - 1, blocks[count - 1]
    record = records[last - first]
    at = int(block["at"]) + int(block["size"])
    return Tail(last, int(record["end"]), int(record["rows"]), first, last - first + 1, at, count)


def _following(blocks: NDArray[np.void], first: int, size: int, slots: int) -> int:
    """How many blocks from the first on begin where the one before ends, and end within the files."""
    if not len(blocks):
        return 0
    firsts, counts, ats, sizes = (blocks[field] for field in ("first", "count", "at", "size"))
    with np.errstate(over="ignore"):
        right = (counts > 0) & (sizes > 0) & (counts <= slots) & (sizes <= size)
        right &= (firsts >= first) & (firsts + counts <= first + slots) & (ats >= 0) & (ats + sizes <= size)
        right[0] &= int(firsts[0]) == first and int(ats[0]) == 0
        right[1:] &= (firsts[1:] == firsts[:-1] + counts[:-1]) & (ats[1:] == ats[:-1] + sizes[:-1])
    return len(blocks) if right.all() else int(np.argmin(right))


def _consistent(blocks: NDArray[np.void], records: NDArray[np.void], first: int, end: int, rows: int) -> int:
    """How many of `blocks`, whose checks hold, have records that follow from each other."""
    if not len(blocks):
        return 0
    behind = blocks["first"] + blocks["count"] - first
    mine = records[: int(behind[-1])]
    bad = log_format.first_fault(mine, 0, end, rows)
    count = len(blocks) if bad < 0 else int(np.searchsorted(behind, bad, side="right"))
    last = mine[behind[:count] - 1]
    right = last["at"] + last["slot"]["size"] == blocks["at"][:count] + blocks["size"][:count]
    return count if right.all() else int(np.argmin(right))


def _described(folder: Path, first: int, last: int) -> Tail:
    """The end of a whole set, which is at event `last`."""
    stem, count = folder / log_format.set_name(first), last - first + 1
    with stem.with_suffix(SLOTS).open("rb") as file:
        raw = os.pread(file.fileno(), RECORD.itemsize, log_format.slots_size(count - 1))
    blocks = stem.with_suffix(BLOCKS).stat().st_size // BLOCK.itemsize
    if len(raw) < RECORD.itemsize:
        raise StoreCorrupt(
            f"{stem}{SLOTS} is damaged: it has no event {last}; `shmstore log verify {folder.parent.name}` tells more"
        )
    record = np.frombuffer(raw, RECORD)[0]
    return Tail(
        last, int(record["end"]), int(record["rows"]), first, count, int(record["at"]) + int(record["slot"]["size"]), blocks
    )


def _bytes_of(path: Path) -> memoryview:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")


def _cut(folder: Path, end: Tail) -> list[str]:
    """Cut the files of a set at `end`, and put them on disk; say so where there were blocks behind it."""
    stem, found = folder / log_format.set_name(end.first or 0), []
    for ending, size in ((BLOCKS, end.blocks * BLOCK.itemsize), (SLOTS, log_format.slots_size(end.events)), (EVENTS, end.at)):
        path = stem.with_suffix(ending)
        with path.open("r+b") as file:
            if ending == BLOCKS and os.fstat(file.fileno()).st_size > size:
                found.append(f"{path} had blocks behind event {end.last} that were not written whole")
            os.ftruncate(file.fileno(), size)
            os.fsync(file.fileno())
    return found


def _remove(folder: Path, name: str) -> None:
    for ending in (EVENTS, SLOTS, BLOCKS):  # without events it is no set
        (folder / f"{name}{ending}").unlink(missing_ok=True)
