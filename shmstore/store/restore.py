"""A store restored from its home: its last events in the ring, its subscriptions where they durably stood.

The process that attaches first does it, under the lock of the process that appends to the log, in a segment that no process can see until it is whole. The
epoch is the old one, so that sequences mean what they meant. What was put and is not in the log has to be put again: the producer
continues after the log's last whole transaction, and no durable ack stands behind what is on disk.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore.clock import calendar_ms
from shmstore.errors import PositionNotFound, ProducerInUse, StoreCorrupt, StoreError, StoreExists, StoreNotFound
from shmstore.home import append_lock, identity, pauses
from shmstore.home.acks import NOWHERE, Checkpoint, acks_of
from shmstore.home.append_lock import AppendLock
from shmstore.home.home import PRIVATE, Home
from shmstore.home.identity import Identity
from shmstore.log.files import LogFiles, slots_of
from shmstore.log.format import RECORD
from shmstore.memory import layout, segment
from shmstore.memory.create_options import CreateOptions, checked
from shmstore.memory.layout import (
    DISARMED,
    LOCK_PRODUCER,
    LOCK_SUBSCRIPTION,
    SLOT,
    SlotFlag,
    StoreFlag,
    SubscriptionState,
    header_word,
)
from shmstore.memory.locks import Ownership
from shmstore.memory.mapping import Views
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import FLOOR, LOGGED, PUT
from shmstore.store.content import totals

if TYPE_CHECKING:
    from shmstore.log.recovery import Tail

PATIENCE = 5.0  # seconds for another process to finish with the log

_log = logging.getLogger("shmstore")


class Recent(NamedTuple):
    """The last events of a log, for a ring: the payloads of those after `floor`, and the slots of as many before them as a ring is to
    have, those after `known`; `end` and `rows` are the ring's totals there."""

    floor: int
    known: int
    end: int
    rows: int
    slots: NDArray[np.void]
    ends: NDArray[np.int64]
    row_sums: NDArray[np.int64]
    blob: bytes


def recent(files: LogFiles, tail: Tail, capacity: int, limit: int) -> Recent:
    """Return as many of the last events as fill half a ring; none of them oversized or damaged, and none before one that is.

    Of those before them only the records are read, which are few bytes: what it takes does not grow with the size of the events.
    """
    last = tail.last
    most = max(1, capacity // 2)
    first = files.sound_from(max(files.oldest, last + 1 - most - capacity), last, payloads=False)
    parts = [np.empty(0, RECORD)]
    sequence = first
    while sequence <= last:
        parts.append(files.records(sequence, last))
        sequence += len(parts[-1])
    records = np.concatenate(parts)
    slots = slots_of(records)
    sizes = slots["size"].astype(np.int64)
    plain = (slots["flags"] & int(SlotFlag.OVERSIZED)) == 0
    fits = np.cumsum(sizes[::-1][:most]) <= limit // 2
    short = np.flatnonzero(~(fits & plain[::-1][:most]))
    left = int(short[0]) if len(short) else min(most, len(records))  # how many fit, from the end
    floor = files.sound_from(last - left + 1, last) - 1
    known = max(first - 1, floor - capacity)
    records, slots = records[known + 1 - first :], slots[known + 1 - first :]
    ends, rows = records["end"].astype(np.int64), records["rows"].astype(np.int64)
    end, row_sum = tail.end, tail.rows
    if len(records):
        try:
            _, end, row_sum, _ = totals(files, known)
        except (PositionNotFound, StoreCorrupt):
            # It is damaged: what the first one tells, which may be charged more than its size.
            end, row_sum = int(ends[0]) - int(slots["size"][0]), int(rows[0]) - int(slots["rows"][0])
    return Recent(floor, known, end, row_sum, slots, ends, rows, b"".join(_payloads(files, floor + 1, last)))


def _payloads(files: LogFiles, first: int, last: int) -> Iterator[memoryview]:
    while first <= last:
        content = files.read(first, last)
        yield content.raw
        first = content.last + 1


def attached(
    name: str,
    *,
    path: str | os.PathLike[str] | None,
    state: str | os.PathLike[str] | None,
    read_only: bool = False,
    restore: bool = True,
) -> Segment:
    """Attach to a store; restore it first, where only its home is there, and `restore` says so. Raises as `EventStore.attach`."""
    try:
        found = segment.attach(name, path=path, read_only=read_only)
    except StoreNotFound as missing:
        home = Home.of(name, state)
        if not home.has_log:
            raise
        home.check_ours()
        path = path or identity.read(home).path  # the home knows where the memory of a store in a file is
        try:
            found = segment.attach(name, path=path, read_only=read_only)
        except StoreNotFound:
            if not restore:
                raise missing from None
            if read_only and not os.access(home.log, os.W_OK):
                raise StoreNotFound(
                    f"store {name!r} is not in memory, and this user may only look at its home, {home.path}: start its producer, or attach as a "
                    "user who may write there, to restore it"
                ) from None
            try:
                restored(name, home, path=None if path is None else os.path.abspath(path)).close()
                found = segment.attach(name, path=path, read_only=read_only)
            except StoreError:
                if home.has_log:
                    raise
                raise missing from None  # it was removed, log and all, meanwhile
    _refuse_impostor(found, Home.of(name, state))
    if restore and found.path is not None and found.home and _of_an_earlier_boot(found):
        found = _replaced(found, read_only=read_only)
    if found.home and not read_only:
        home_of(found).check_ours()
    return with_log(found)


def _refuse_impostor(found: Segment, home: Home) -> None:
    """Raise `StoreError` where another user's segment has the name of the store in `home`, and is not that store: what is put into it would
    not be in this home, and be read by that user."""
    if found.uid == os.geteuid():
        return
    try:
        known = identity.read(home)
    except StoreError:  # there is none, or not for this user to read
        return
    if known.epoch != found.epoch:
        uid, where = found.uid, found.where
        found.close()
        raise StoreError(
            f"store {found.name!r} in memory ({where}, of uid {uid}) is not the one of the home {home.path}: let uid {uid}, or root, remove it "
            f"(`shmstore rm {found.name}`), and attach again; or name the home of that one with SHMSTORE_STATE"
        )


def home_of(found: Segment, state: str | os.PathLike[str] | None = None) -> Home:
    """Return the home of an attached store: its own, of one with a log, else the one that its name has in the folder `state`."""
    if found.home:
        return Home(found.home, mode=found.mode, gid=found.gid, epoch=found.epoch)
    return Home.of(found.name, state, mode=found.mode, gid=found.gid)


def resized(
    found: Segment, *, capacity: int | None, memory_unit: int | None, log_size: int | None, log_keep: float | None
) -> bool:
    """As `EventStore.resize`."""
    name, words = found.name, found.words
    if not found.home:
        raise StoreError(
            f"store {name!r} has no log: it keeps the size that it was created with; `shmstore rm {name}`, and create it again"
        )
    home = home_of(found)
    old = identity.read(home).options
    wanted: dict[str, Any] = {"capacity": capacity, "memory_unit": memory_unit, "log_size": log_size, "log_keep": log_keep}
    new = checked(
        **{field: getattr(old, field) if value is None else value for field, value in wanted.items()},
        batch_mode=old.batch_mode,
        ddl_isolation=bool(old.flags & StoreFlag.DDL_ISOLATION),
        lag="evict" if old.flags & StoreFlag.EVICT else "block",
        evict_after=old.evict_after,
        checksum=bool(old.flags & StoreFlag.CHECKSUM),
        first_sequence=old.first,
        home=old.home,
    )
    if (new.capacity, new.limit) != (old.capacity, old.limit):
        segment.check_memory(found, layout.sizes(new.capacity, new.limit).total)
    if new != old:
        identity.resize(home, new)
    words[header_word("log_size")], words[header_word("log_keep_ms")] = new.log_size, round(new.log_keep * 1000)
    return (new.capacity, new.limit) == (found.views.capacity, found.views.limit)


def _of_an_earlier_boot(found: Segment) -> bool:
    """Whether a ring in a file was last written before the host started, and no process uses it. Its pages may be of any moment then, as a
    crash of the host leaves them; the log knows what was on disk."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    roles = [LOCK_PRODUCER, *(LOCK_SUBSCRIPTION + entry for entry in range(1, layout.SUBSCRIPTIONS))]
    return os.fstat(found.fd).st_mtime < booted and not any(Ownership(found.fd, role).taken() for role in roles)


def _replaced(found: Segment, *, read_only: bool) -> Segment:
    """Make the segment of a store with a log again, from its home, in place of one that cannot be relied on; let it be for who may only look."""
    name, path, home = found.name, found.path, home_of(found)
    try:
        with AppendLock.take(home, PATIENCE):
            if found.linked:  # else a process was faster
                segment.unlink(name, path=path, force=True)
    except StoreError:
        if read_only:
            return found
        found.close()
        raise
    found.close()
    restored(name, home, path=path).close()
    return segment.attach(name, path=path, read_only=read_only)


def made(
    name: str, options: CreateOptions, *, path: str | os.PathLike[str] | None, mode: int, group: str | int | None
) -> Segment:
    """Make a store, with its home where it has one. Raises as `EventStore.create`."""
    if not options.home:
        return segment.create(name, options, path=path, mode=mode, group=group)
    home = Home(options.home, mode=mode)
    remembered = StoreExists(
        f"store {name!r} is remembered in {home.path}: attach to it, which restores it, or remove it with `shmstore rm --log {name}`"
    )
    if home.has_log:
        raise remembered
    epoch = segment.new_epoch()
    with ExitStack() as held:

        def fill(fd: int, sizes: layout.Sizes) -> None:
            file = None if path is None else os.path.abspath(path)
            home.gid = gid = os.fstat(fd).st_gid
            home.check_ours(group=-1 if mode == PRIVATE else gid)
            append_lock.make(home)
            # Until the memory has its name: a process that finds the home meanwhile waits, and does not restore the store.
            held.enter_context(AppendLock.take(home, PATIENCE))
            if home.has_log:
                raise remembered
            held.push(undone)  # before the lock is free: from here on what an error leaves there is ours
            identity.write(home, Identity(name, epoch, options, mode, gid, calendar_ms(), file))

        def undone(error: type[BaseException] | None, *_: object) -> None:
            if error is not None:
                from shmstore.home import kinds

                kinds.remove_log(home, epoch)

        return with_log(segment.create(name, options, path=path, mode=mode, group=group, epoch=epoch, fill=fill))


def with_log(found: Segment) -> Segment:
    """Let a segment read the store's log, where it has one."""
    if found.home:
        words = found.words
        found.log = LogFiles(home_of(found).log, found.epoch, lambda: words[LOGGED])
    return found


def restored(name: str, home: Home, *, path: str | None = None) -> Segment:
    """Make the segment of a store from its home, and attach to it; to another's, where that one was faster.

    Raises `StoreNotFound` where no store lives in that home, `StoreExists`, and `StoreError` where the log cannot be read.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            identity.read(home)  # there is one, which can be read
            lock = AppendLock.take(home, 0.0)
        except ProducerInUse:  # its owner may have restored it meanwhile, and append to it permanently
            with suppress(StoreNotFound):
                return segment.attach(name, path=path)
            if time.monotonic() >= until:
                raise
            time.sleep(append_lock.SUSPENSION)
            continue
        with lock:
            try:
                return _restored(name, home, path)
            except StoreError:
                if lock.current or time.monotonic() >= until:
                    raise  # else it was removed under our hands, and there may be another in its place


def _restored(name: str, home: Home, path: str | None) -> Segment:
    """As `restored`, under the log's lock.

    Nothing in the home is written from before the acks are read until the segment is there: an owner whose memory was taken away may write its
    last ack before that, and is refused after, as its subscription is then that of the new segment.
    """
    from shmstore.home import kinds  # these here, and not above: most processes that attach never restore
    from shmstore.log.keeper import report_cut
    from shmstore.log.recovery import recover

    with suppress(StoreNotFound):
        return segment.attach(name, path=path)
    known = identity.read(home)
    tail = recover(home.log, known.epoch, known.options.first)
    report_cut(name, tail)
    files = LogFiles(home.log, known.epoch, lambda: tail.last)
    options = known.options._replace(home=os.fspath(home))
    events = recent(files, tail, options.capacity, options.limit)
    oldest = min(files.oldest, tail.last + 1)
    with home.locked():
        kinds.tidy(home)
        subscriptions = _at_their_acks(home, known.epoch, oldest, tail.last)

        def fill(fd: int, sizes: layout.Sizes) -> None:
            _fill_rings(fd, sizes, events)
            header = np.frombuffer(os.pread(fd, layout.HEADER.itemsize, 0), layout.HEADER).copy()
            header["put"], header["floor"], header["oversized"] = tail.last, events.floor, options.first - 1
            header["log_first"], header["synced"], header["sync_wanted"] = oldest, tail.last, tail.last
            header["created_ms"] = known.created_ms
            header["start_file"], header["start_offset"] = known.start_file.encode(), known.start_offset
            table = np.zeros(layout.SUBSCRIPTIONS, layout.SUBSCRIPTION)
            table["wanted"] = DISARMED
            table["get"] = table["ack"] = tail.last
            table["state"][0] = SubscriptionState.ACTIVE
            header["entries"] = _fill_table(table, subscriptions, home)
            os.pwrite(fd, header.tobytes() + table.tobytes(), 0)

        group = known.gid if known.mode != PRIVATE else None
        owner = os.stat(home.log).st_uid  # not root, where that was first
        made = segment.create(name, options, path=path, mode=known.mode, group=group, epoch=known.epoch, owner=owner, fill=fill)
    _log.info("store %r is restored from %s: events %d to %d", name, home.path, oldest, tail.last)
    return made


def _fill_rings(fd: int, sizes: layout.Sizes, events: Recent) -> None:
    count = sizes.slot_count
    # The slot before the first has the totals that the others continue from.
    for base, array, before in (
        (sizes.ends, events.ends, events.end),
        (sizes.rows, events.row_sums, events.rows),
    ):
        _write_ring(fd, base, 8 * count, 8 * (events.known % count), np.concatenate(([before], array)).astype("<i8").tobytes())
    if len(events.slots):
        _write_ring(fd, sizes.slots, SLOT.itemsize * count, SLOT.itemsize * ((events.known + 1) % count), events.slots.tobytes())
    if events.blob:
        start = int(events.ends[-1]) - len(events.blob)
        _write_ring(fd, sizes.arena, sizes.arena_size, start % sizes.arena_size, events.blob)


def _write_ring(fd: int, base: int, size: int, at: int, content: bytes) -> None:
    head = min(len(content), size - at)
    os.pwrite(fd, content[:head], base + at)
    if head < len(content):
        os.pwrite(fd, content[head:], base)


def _at_their_acks(home: Home, epoch: int, oldest: int, last: int) -> dict[str, Checkpoint]:
    """Return where each subscription begins again: at its durable ack. One whose ack cannot be read begins at the oldest event, so that nothing is
    lost to it; the others, and the producer, continue."""
    acks, found = acks_of(home), dict[str, Checkpoint]()
    for name, problem in acks.unreadable.items():
        if len(name) > layout.NAME_BYTES:
            continue  # no subscription's
        _log.error("%s. Subscription %r holds all that the log has until then; the others are not concerned", problem, name)
        found[name] = Checkpoint(NOWHERE, epoch, oldest - 1)
    for name, saved in acks.saved.items():
        if saved.epoch != epoch:
            continue  # of an earlier store of that name
        if saved.sequence > last:  # what was on disk is not there any more, which no crash does
            _log.warning(
                "the log of store %r ends at event %d, and subscription %r had acked up to %d: what was between is lost, to damage or an "
                "older copy; what comes next has these sequences again, so a reader that keeps sequences itself has to begin again",
                *(home.name, last, name, saved.sequence),
            )
        # Retention lets go of nothing that was not acked, so a durable ack before the oldest event is one that came later to the disk.
        found[name] = saved if saved.lost else saved._replace(sequence=min(max(saved.sequence, oldest - 1), last))
    return dict(sorted(found.items())[: layout.SUBSCRIPTIONS - 1])


def _fill_table(table: NDArray[np.void], subscriptions: dict[str, Checkpoint], home: Home) -> int:
    """Fill in the subscriptions; return how many entries are in use."""
    for entry, (name, saved) in enumerate(subscriptions.items(), 1):
        table["name"][entry] = name.encode()
        table["generation"][entry] = 1
        table["created_ms"][entry] = calendar_ms()
        table["get"][entry] = table["ack"][entry] = saved.sequence
        table["state"][entry] = SubscriptionState.LOST if saved.lost else SubscriptionState.ACTIVE
        table["paused"][entry] = pauses.kept(home, name) is not None
    return len(subscriptions) + 1


def catch_up(views: Views, files: LogFiles, tail: Tail) -> None:
    """Show in the ring what the log has beyond it. For the producer alone, before it puts.

    A producer whose segment was removed continued appending until it noticed, while a reader had restored the store.
    """
    words = views.words
    if tail.last <= words[PUT]:
        return
    events = recent(files, tail, views.capacity, views.limit)
    words[FLOOR] = events.floor  # before anything is overwritten: a reader behind it reads the log
    at = events.known & (views.slot_count - 1)
    views.ends[at], views.rows[at] = events.end, events.rows
    i = (events.known + 1) & (views.slot_count - 1)
    n = len(events.slots)
    views.ends_array[i : i + n] = events.ends
    views.rows_array[i : i + n] = events.row_sums
    views.slot_bytes[i * SLOT.itemsize : (i + n) * SLOT.itemsize] = events.slots.tobytes()
    at = (int(events.ends[-1]) - len(events.blob)) % views.arena_size
    views.arena[at : at + len(events.blob)] = events.blob
    words[PUT] = tail.last  # publish: everything above is whole
