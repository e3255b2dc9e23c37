"""The end of a log after a crash: what was being written is cut off, the rest is made to last.

A set is cut to what is used and put on disk before the set after the next one gets its name. So all sets but the last two are whole, and
the last two are checked block by block: the first that does not hold ends the log. What is on disk is never cut so, as nothing is counted
as that before its three files and their names are. Where the mark (`mark.py`) says that a block was on disk, it is damaged instead: what
follows it is kept, and readers hear what is lost; where nothing that holds follows it, the log ends before it, which is reported, too.

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
from shmstore.log.log_set import opened, verify_blocks
from shmstore.log.mark import read_mark, set_mark
from shmstore.memory.layout import SlotFlag

UNSEALED: Final = 2  # sets at the end that may not be on disk


class Tail(NamedTuple):
    """Where a log ends: its last event, the ring's `ends` and `rows` there, and the set to continue in, None where a new one is to be begun.

    That set has space for `events` events, with `at` bytes, in `blocks` blocks. `cut` says, a sentence each, what was being written and is
    taken away; `damaged` what was on disk and cannot be read.
    """

    last: int
    end: int
    rows: int
    first: int | None = None
    events: int = 0
    at: int = 0
    blocks: int = 0
    cut: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def recover(folder: str | os.PathLike[str], epoch: int, first: int = 0) -> Tail:
    """Cut the log in `folder` behind what is sound and put that on disk; `first` is the store's first sequence. Call it under the log's lock.

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
    mark = read_mark(folder, epoch)
    synced = first - 1 if mark is None else mark
    trusted, checked = firsts[:-UNSEALED], firsts[-UNSEALED:]
    found: list[Tail] = []
    left: dict[
        int, int
    ] = {}  # sets that were on disk whole and are damaged at their end, as the next one's name tells: from which event on
    lost: list[tuple[int, int]] = []
    for each, following in zip(checked, [*checked[1:], synced + 2], strict=False):
        before = found[-1] if found and not left else None
        end = None
        if before is None or before.last + 1 == each:
            end, holes = _examined(folder, each, before, synced)
            lost += holes
        behind = each if end is None else end.last + 1
        if behind < following <= synced + 1:
            left[each] = behind
        if end is not None:
            found.append(end)
        elif each not in left:
            os.stat(folder / f"{log_format.set_name(each)}{EVENTS}")  # raises where it was removed since the folder was listed
            break
    if found:
        tail = found[-1]
    elif trusted:
        tail = _described(folder, trusted[-1], checked[0] - 1)
    else:
        tail = _begun(folder, checked[0]) if checked else Tail(first - 1, 0, 0)
    goes_on = tail.first is not None and bool(checked) and tail.first == checked[-1]
    stay = {end.first for end in found} | (
        left.keys() if goes_on else set()
    )  # else the log ends in the one that is left, or before it
    cut = [
        f"events from {each} on were not written whole" for each in checked if each not in stay and not _is_empty(folder, each)
    ]
    for each in reversed(checked):
        if each not in stay:
            _remove(folder, log_format.set_name(each))
    for end in found or ([tail] if tail.first is not None else []):
        if not (end.first in left and goes_on):
            cut += _cut(folder, end)
    if goes_on:
        lost += [(behind, checked[-1] - 1) for behind in left.values()]
    damaged = [f"events {low} to {high} were on disk and cannot be read; what follows them is kept" for low, high in lost]
    sync(folder)
    if tail.last < synced:
        damaged.append(
            f"events {tail.last + 1} to {synced}, with which it ended, were on disk and cannot be read: they are cut off, and a producer "
            "reads them again where its server still has them"
        )
        set_mark(folder, epoch, tail.last)  # before anything is appended that is not on disk yet
    return tail._replace(cut=tuple(cut), damaged=tuple(damaged))


def _refuse_others(folder: Path, firsts: list[int], epoch: int) -> None:
    for first in firsts:
        path = folder / f"{log_format.set_name(first)}{SLOTS}"
        raw = _header(path)
        fault = "" if log_format.header_torn(raw) else log_format.header_fault(raw, epoch, first)
        if fault:
            raise StoreCorrupt(f"{path} cannot be used: {fault}; give the store a home of its own, or put back what was here")


def _header(path: Path) -> bytes:
    with suppress(FileNotFoundError), open(path, "rb", opener=opened) as file:
        return file.read(HEADER.itemsize)
    return b""


def _is_empty(folder: Path, first: int) -> bool:
    """True where nothing was written into a set: it was prepared, and the log ended in order before it."""
    stem = folder / log_format.set_name(first)
    try:
        return not os.stat(stem.with_suffix(BLOCKS)).st_size and not os.stat(stem.with_suffix(EVENTS)).st_blocks
    except FileNotFoundError:
        return False


def _begun(folder: Path, first: int) -> Tail:
    """Where the only set of a log was begun, and holds nothing."""
    raw = _header(folder / f"{log_format.set_name(first)}{SLOTS}")
    if log_format.header_torn(raw):
        return Tail(first - 1, 0, 0)
    header = np.frombuffer(raw, HEADER)[0]
    return Tail(first - 1, int(header["end"]), int(header["rows"]))


def _examined(folder: Path, first: int, before: Tail | None, synced: int) -> tuple[Tail | None, list[tuple[int, int]]]:
    """The end of a set, and the events before that which were on disk and are damaged, as (first, last).

    It ends before its first block that does not hold and was not on disk, or else behind its last one that holds. No end where none holds,
    or where it does not continue from `before`.
    """
    stem = folder / log_format.set_name(first)
    if not all(stem.with_suffix(ending).exists() for ending in log_format.ENDINGS):
        return None, []
    raw = _header(stem.with_suffix(SLOTS))
    if log_format.header_torn(raw):
        return None, []
    header = np.frombuffer(raw, HEADER)[0]
    end, rows = int(header["end"]), int(header["rows"])
    if before is not None and (before.end, before.rows) != (end, rows):
        return None, []
    events, slots, blocks_file = (_bytes_of(stem.with_suffix(ending)) for ending in (EVENTS, SLOTS, BLOCKS))
    record_bytes = slots[HEADER.itemsize :]
    records = np.frombuffer(record_bytes, RECORD, len(record_bytes) // RECORD.itemsize)
    blocks = np.frombuffer(blocks_file, BLOCK, len(blocks_file) // BLOCK.itemsize)
    count = _following(blocks, first, len(events), len(records))
    if count:
        bad = verify_blocks(events, record_bytes, blocks_file, 0, count - 1, first)
        count = count if bad < 0 else bad
    count = _consistent(blocks[:count], records, first, end, rows)

    def holds(i: int, behind: int, at: int) -> bool:
        block = blocks[i]
        start = int(block["first"])
        if verify_blocks(events, record_bytes, blocks_file, i, i, first) >= 0 or start < behind or int(block["at"]) < at:
            return False
        mine = records[start - first : _behind(block) - first]
        if start > behind:  # whatever was before it is lost
            return _follow(mine, int(block["at"]), *_before(mine[0]))
        known = records[behind - 1 - first] if behind > first else header
        return _follow(mine, at, int(known["end"]), int(known["rows"]))

    lost: list[tuple[int, int]] = []
    behind, at = (_behind(blocks[count - 1]), _end_of(blocks[count - 1])) if count else (first, 0)
    for i in range(count, len(blocks)):  # where one does not hold
        block = blocks[i]
        if not holds(i, behind, at):
            if behind > synced:
                break  # torn
            continue
        start = int(block["first"])
        if start > behind:
            if start - 1 > synced:
                break  # what is missing before it was not on disk
            lost.append((behind, start - 1))
        behind, at, count = _behind(block), _end_of(block), i + 1
    if behind == first:
        return None, []
    record = records[behind - 1 - first]
    return Tail(behind - 1, int(record["end"]), int(record["rows"]), first, behind - first, at, count), lost


def _behind(block: np.void) -> int:
    return int(block["first"]) + int(block["count"])


def _end_of(block: np.void) -> int:
    return int(block["at"]) + int(block["size"])


def _before(record: np.void) -> tuple[int, int]:
    """The ring's `ends` and `rows` before an event, as far as its record tells."""
    charged = 0 if record["slot"]["flags"] & int(SlotFlag.OVERSIZED) else int(record["slot"]["size"])
    return int(record["end"]) - charged, int(record["rows"]) - int(record["slot"]["rows"])


def _follow(records: NDArray[np.void], at: int, end: int, rows: int) -> bool:
    return log_format.first_fault(records, at, end, rows) < 0


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
    with open(stem.with_suffix(SLOTS), "rb", opener=opened) as file:
        raw = os.pread(file.fileno(), RECORD.itemsize, log_format.slots_size(count - 1))
    blocks = stem.with_suffix(BLOCKS).stat().st_size // BLOCK.itemsize
    if len(raw) < RECORD.itemsize:
        raise StoreCorrupt(
            f"{stem}{SLOTS} is damaged: it has no event {last}; `shmstore log verify {log_format.store_of(folder)}` shows more"
        )
    record = np.frombuffer(raw, RECORD)[0]
    return Tail(
        last, int(record["end"]), int(record["rows"]), first, count, int(record["at"]) + int(record["slot"]["size"]), blocks
    )


def _bytes_of(path: Path) -> memoryview:
    with open(path, "rb", opener=opened) as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")


def _cut(folder: Path, end: Tail) -> list[str]:
    """Cut the files of a set at `end`, and put them on disk; say so where there were blocks behind it."""
    stem, found = folder / log_format.set_name(end.first or 0), []
    for ending, size in ((BLOCKS, end.blocks * BLOCK.itemsize), (SLOTS, log_format.slots_size(end.events)), (EVENTS, end.at)):
        path = stem.with_suffix(ending)
        with open(path, "r+b", opener=opened) as file:
            if ending == BLOCKS and os.fstat(file.fileno()).st_size > size:
                found.append(f"{path} had blocks behind event {end.last} that were not written whole")
            os.ftruncate(file.fileno(), size)
            os.fsync(file.fileno())
    return found


def _remove(folder: Path, name: str) -> None:
    for ending in (EVENTS, SLOTS, BLOCKS):  # without events it is no set
        (folder / f"{name}{ending}").unlink(missing_ok=True)
