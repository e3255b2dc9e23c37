"""Find events in the log: by time, by position, by GTID set, and the ack point before one.

Positions and GTID sets only grow along the log, so they are found by bisection; a look at one event maps its set and checks its block.
Damage does not hide from a reader: where what is looked for may be in a damaged block, the sequence given is the first one of that
block, so that reading from there says what is lost.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shmstore import gtids as gtid_sets
from shmstore.encoding import codec
from shmstore.errors import PositionNotFound, StoreCorrupt
from shmstore.event import EventType
from shmstore.log import format as log_format
from shmstore.log.files import LogFiles
from shmstore.log.format import RECORD, SLOTS
from shmstore.memory.layout import SlotFlag

_ACK_POINT: Final = int(SlotFlag.ACK_POINT)
_READ: Final = int(EventType.READ)
_CHUNK: Final = 1 << 16  # events looked at in one go
_WITHOUT_GTIDS: Final = 64  # ack points in a row that have none, before they count as older than any GTID set
Test = Callable[[NDArray[np.void]], NDArray[np.bool_]]  # of slots

# ---------------------------------------------------------------- ack points


def ack_point_until(files: LogFiles, sequence: int) -> int | None:
    """Return the last ack point at or before `sequence`; None where there is none, or damage or raw bytes hide it."""
    try:
        found, _ = _last_where(files, sequence, ends_unit, over_damage=False)
        return found if found is not None and _is_ack_point(files.record_at(found)["slot"]) else None
    except PositionNotFound:
        return None  # what there was is not kept any more


def ends_unit(slots: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which events are ack points, or bytes that no producer of ours put (no entry, no type): these are in no transaction."""
    ends: NDArray[np.bool_] = ((slots["flags"] & _ACK_POINT) != 0) | ((slots["entry"] == 0) & (slots["type"] == 0))
    return ends


def _is_ack_point(slots: NDArray[np.void]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (slots["flags"] & _ACK_POINT) != 0
    return found


def _last_where(files: LogFiles, sequence: int, test: Test, *, over_damage: bool) -> tuple[int | None, int]:
    """Return the last event at or before `sequence` that passes `test`, and the first event of what was looked at.

    None where there is none. Damage is passed over, or ends the search: then the second number is the first event that is lost.
    """
    oldest, at, most = files.oldest, sequence, 64
    while at >= oldest:
        found, _ = files.set_of(at, at)
        first = max(found.first, oldest, at - most + 1)
        start, lost = first, None
        while start <= at and (damage := found.damage(start, at)) is not None:
            start, lost = damage.last + 1, damage
        passing = np.flatnonzero(test(found.records(start, at)["slot"])) if start <= at else np.empty(0, np.intp)
        if len(passing):
            return start + int(passing[-1]), start
        if lost is not None and not over_damage:
            return None, lost.first
        at, most = (first if lost is None else lost.first) - 1, min(most * 4, _CHUNK)
    return None, oldest


# ---------------------------------------------------------------- time


def first_at_time(files: LogFiles, moment_ms: int) -> int:
    """Return the first event of the first transaction that ends at `moment_ms` (since 1970 UTC) or later; the next sequence where none does.

    Event times may jump back: a statement is older than the end of the transaction before it, and clocks are set. The sets of files are
    bisected by the time of their last event, then the one found and the one before it are read event by event. So what is given is the
    first such transaction, unless clocks jumped back over more than a whole set: then it is one that is at `moment_ms` or later, or the next
    sequence, and there may be others before it.
    """
    logged = files.logged()
    firsts = [first for first in files.refresh() if first <= logged]
    if not firsts:
        return logged + 1
    lasts = [*(first - 1 for first in firsts[1:]), logged]
    i = bisect_left(range(len(firsts)), moment_ms, key=lambda k: _time_of(files, firsts[k], lasts[k]))
    begin, end = firsts[max(0, i - 1)], lasts[min(i, len(firsts) - 1)]
    lost: int | None = None  # the damage just before
    for first, records in _runs(files, begin, end):
        if records is None:
            lost = first if lost is None else lost
            continue
        later = np.flatnonzero(records["slot"]["time"] >= moment_ms)
        if len(later):
            if not later[0] and lost is not None:
                return lost
            point, start = _last_where(files, first + int(later[0]) - 1, ends_unit, over_damage=False)
            return start if point is None else point + 1
        lost = None
    return logged + 1 if lost is None else lost


def _time_of(files: LogFiles, first: int, last: int) -> int:
    """Time of event `last` of the set `first`, unchecked: it only says where to look."""
    path = files.folder / f"{log_format.set_name(first)}{SLOTS}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0  # removed since, so it was old
    try:
        raw = os.pread(fd, RECORD.itemsize, log_format.slots_size(last - first))
    finally:
        os.close(fd)
    return int(np.frombuffer(raw, RECORD)[0]["slot"]["time"]) if len(raw) == RECORD.itemsize else 0


def _runs(files: LogFiles, first: int, last: int) -> Iterator[tuple[int, NDArray[np.void] | None]]:
    """Yield the records of events `first` to `last` in pieces, each with its first sequence; None for a piece that is lost."""
    while first <= last:
        found, end = files.set_of(first, min(last, first + _CHUNK - 1))
        damage = found.damage(first, end)
        if damage is None:
            yield first, found.records(first, end)
            first = end + 1
        elif damage.first > first:
            yield first, found.records(first, damage.first - 1)
            first = damage.first
        else:
            yield first, None
            first = damage.last + 1


# ---------------------------------------------------------------- position


def after_position(files: LogFiles, file_number: int, offset: int) -> int:
    """Return the first event after a place in the binlog; the next sequence where that is the last event.

    Rows of a snapshot that stand at that very place come after it. Raises `PositionNotFound` where all that is kept comes after it, so
    that more may have been there, and where nothing is kept.
    """

    def later(sequence: int) -> bool:
        slot = _slot_until(files, sequence, oldest)
        if slot is None:
            return False
        here = (int(slot["file"]), int(slot["offset"]))
        return here > (file_number, offset) or (here == (file_number, offset) and int(slot["type"]) == _READ)

    oldest, logged = files.oldest, files.logged()
    if oldest > logged:
        raise PositionNotFound(f"the log of store {_store(files)!r} is empty, so no position can be found in it")
    first = oldest + bisect_left(range(oldest, logged + 1), True, key=later)
    if first == oldest:
        raise PositionNotFound(
            f"offset {offset} of binlog file {file_number} is older than what the log of store {_store(files)!r} keeps: events after it are "
            "gone; give a later position"
        )
    return _lost_before(files, first)


def _slot_until(files: LogFiles, sequence: int, oldest: int) -> np.void | None:
    """The slot of an event, or of the last one before it that is not damaged; None where there is none."""
    while sequence >= oldest:
        found, _ = files.set_of(sequence, sequence)
        damage = found.damage(sequence, sequence)
        if damage is None:
            slot: np.void = found.records(sequence, sequence)["slot"][0]
            return slot
        sequence = damage.first - 1
    return None


def _lost_before(files: LogFiles, sequence: int) -> int:
    """The first event of the damage that ends just before `sequence`; `sequence` where there is none."""
    found, _ = files.set_of(sequence - 1, sequence - 1)
    damage = found.damage(sequence - 1, sequence - 1)
    return sequence if damage is None else damage.first


def _store(files: LogFiles) -> str:
    return files.folder.parent.name


# ---------------------------------------------------------------- GTID sets


def after_gtids(files: LogFiles, gtids: str) -> int:
    """Return what follows the transaction that ends at the GTID set `gtids`; the next sequence where that is the last event.

    Rows of a snapshot that stand there come after it. Raises `PositionNotFound` where no transaction that is kept ends there.
    """
    wanted, oldest, logged = gtid_sets.parse(gtids) if _readable(gtids) else {}, files.oldest, files.logged()
    known: dict[int, str] = {}

    def at(sequence: int) -> tuple[int | None, str]:
        """The last ack point at or before an event that has GTIDs, and these."""
        point: int | None = sequence
        for _ in range(_WITHOUT_GTIDS):
            point = (
                _last_where(files, point, _is_ack_point, over_damage=True)[0] if point is not None and point >= oldest else None
            )
            if point is None:
                break
            if point not in known:
                known[point] = _gtids_of(files, point)
            if known[point]:
                return point, known[point]
            point -= 1
        return None, ""

    def reached(sequence: int) -> bool:
        here = at(sequence)[1]
        return bool(here) and gtid_sets.covers(gtid_sets.parse(here), wanted)

    def exceeded(sequence: int) -> bool:
        here = at(sequence)[1]
        return bool(here) and not gtid_sets.covers(wanted, gtid_sets.parse(here))

    if "=" in gtids and not wanted:
        return _after_text(files, gtids, oldest, logged)
    everything = range(oldest, logged + 1)
    first = oldest + bisect_left(everything, True, key=reached) if wanted else logged + 1
    here = at(first)[1] if first <= logged else ""
    if not here or (here != gtids and ("=" in gtids or "=" in here or gtid_sets.parse(here) != wanted)):
        raise _no_transaction(files, gtids)
    behind = oldest + bisect_left(everything, True, first - oldest, key=exceeded)
    point, _ = _last_where(files, behind - 1, _is_stream_point, over_damage=True)
    if point is None or point < first:  # rows of a snapshot alone stand there
        point, start = _last_where(files, first - 1, _is_ack_point, over_damage=False) if first > oldest else (None, oldest)
        return start if point is None else point + 1
    return point + 1


def _after_text(files: LogFiles, gtids: str, oldest: int, logged: int) -> int:
    """As `after_gtids` for several sources without GTIDs, whose places cannot be compared: one after the other, the newest first."""
    snapshot = False  # whether rows of a snapshot stand at the place: they come after it
    point, _ = _last_where(files, logged, _is_ack_point, over_damage=True)
    while point is not None:
        content = files.read(point, point)
        here, read = _gtids_of(files, point) == gtids, int(content.slots["type"][0]) == _READ
        if (here and not read) or (snapshot and not here):
            return point + 1
        snapshot = here
        point, _ = _last_where(files, point - 1, _is_ack_point, over_damage=True)
    if snapshot:
        return oldest
    raise _no_transaction(files, gtids)


def _is_stream_point(slots: NDArray[np.void]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = _is_ack_point(slots) & (slots["type"] != _READ)
    return found


def _readable(gtids: str) -> bool:
    return "=" in gtids or gtid_sets.well_formed(gtids)


def _gtids_of(files: LogFiles, sequence: int) -> str:
    content = files.read(sequence, sequence)
    try:
        return codec.decode_stored(content.raw)[0].position.gtids
    except StoreCorrupt:
        return ""  # bytes of somebody else's


def _no_transaction(files: LogFiles, gtids: str) -> PositionNotFound:
    if not _readable(gtids):
        return PositionNotFound(
            f"{gtids!r} is no GTID set: write UUID:1-4711 as MySQL does, or 0-1-4711 as MariaDB does, several with commas between"
        )
    return PositionNotFound(
        f"no transaction kept in the log of store {_store(files)!r} ends at GTID set {gtids!r}: give the position of one that was read "
        "from it, or a sequence"
    )
