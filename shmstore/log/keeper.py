"""Keeper: the process that appends to a log. It recovers the files, lets an appender copy the ring into them, syncs, and lets go of the oldest.

Plan. Two threads in the producer's process. One lives in `Appender.run`, without the interpreter's lock: it copies what is put into the
current set of files, says in the segment how far it is, and goes over to the next set on its own. The other one, here, does what may
take long: it puts on disk what was appended, seals the set that is full, prepares the next one, and removes sets that retention does not
want any more. The ring is what lies between the two and the producer: where the disk is slow, or full, or where a reader holds the
log at its bound, the ring fills, and the producer waits and says why.

Order. A set is prepared only after the set before the current one is on disk whole, so that recovery has two sets to look at. `synced`
is published only after fdatasync of what was appended before `logged` was read. `log_first` is raised, under the table's lock, before
a set's files are removed: a reader there either has them mapped or finds that they are kept no longer.

Who changes the files. The log's lock is held from before the recovery until no thread of this is left that could touch a file (`_drop`):
recovery, the two threads here, the restoring of a store and the removal of a log exclude one another, in one process as between several.
Without it there is only trim, which removes whole sets, the oldest first and never the newest that is on disk, and recovery looks again
where one vanishes under it.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from shmstore.atomic_file import give_to_owner
from shmstore.clock import calendar_ms
from shmstore.errors import StoreCorrupt, StoreError, refused
from shmstore.home.append_lock import AppendLock
from shmstore.home.home import Home
from shmstore.log import format as files_format
from shmstore.log.appender import DAMAGED, OVERSIZED_NEXT, Appends, appender_of
from shmstore.log.files import LogFiles, SetStat, remove_sets
from shmstore.log.mark import mark_bytes, open_mark
from shmstore.log.recovery import Tail, recover
from shmstore.memory.layout import StoreFlag, StoreState, header_word, subscription_word
from shmstore.memory.segment import Segment
from shmstore.memory.semaphores import Condition
from shmstore.ring import overflow
from shmstore.ring.cursors import FLOOR, LOG_FIRST, LOGGED, PUT, SYNC_WANTED, SYNCED

FLUSHING: Final = 10.0  # seconds that the end of a producer gives the log to write what was put
PATIENCE: Final = 5.0  # seconds for another process to finish with the log
SYNC_SECONDS: Final = 0.5  # that an event may be appended and not yet on disk, while no process asks
LOOK_SECONDS: Final = 0.1  # between two looks at what is to be done, while something is
IDLE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 1.0  # after the disk refused
AGAIN: Final = 60.0  # seconds between two lines in the log about the same
LOG_ERROR: Final = header_word("log_error")
LOG_SIZE: Final = header_word("log_size")
LOG_KEEP_MS: Final = header_word("log_keep_ms")
LOG_BYTES: Final = header_word("log_bytes")
LOG_OLDEST_MS: Final = header_word("log_oldest_ms")
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what ends on its own, when there is space
AT_BOUND: Final = -1  # of log_error: a reader holds what would have to go

_log = logging.getLogger("shmstore")


class Subscriptions(Protocol):
    """Who reads the log: a `SubscriptionTable`."""

    def let_go(self, last: int, *, evict: bool) -> list[str] | None:
        """Let the log lose what is up to `last`; None where a process needs it, the names of those who were evicted otherwise."""

    def settle(self, synced: int) -> None:
        """Make durable what those whose readers are gone have acked up to `synced`. Raises `StoreError`."""


class Files(NamedTuple):
    """Descriptors of a set."""

    events: int
    slots: int
    blocks: int

    def close(self) -> None:
        """Close all three."""
        for fd in self:
            os.close(fd)


class Keeper:
    """Appends to the log of one store, from `start` to `close`. Make it while owning the producer role, or none at all.

    `putting` is held by a put that has seen that the store is there and has not moved the cursor yet.
    """

    def __init__(self, segment: Segment, subscriptions: Subscriptions, putting: AbstractContextManager[object]) -> None:
        self._putting = putting
        self._segment, self._subscriptions = segment, subscriptions
        self._words = segment.words
        home = Home(segment.home, mode=segment.mode, gid=segment.gid, epoch=segment.epoch)
        self._folder = home.log
        size = self._words[LOG_SIZE]
        self._file_bytes, self._file_slots = files_format.file_bytes(size), files_format.file_slots(size)
        self._condition = Condition(segment.views.fixed, header_word("keeper"))
        self._awake = Condition(segment.views.fixed, subscription_word(0, "woken"))  # the appender sleeps on it
        self._freed = Condition(segment.views.fixed, header_word("freed"))
        self._lock = AppendLock.take(home, PATIENCE)
        self._appender: Appends
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._closing = False  # what the ring has is put on disk whatever the log's size: an orderly end loses nothing
        self._fd = self._mark = -1  # of the folder, and of the mark in it
        self._current: Files | None = None
        self._next: Files | None = None
        self._retired: tuple[tuple[int, int, int], int, int, int] | None = None  # full, and not on disk yet
        self._failed = 0  # errno of a sync that failed: what the disk has is unknown from then on
        self._bound_since = 0.0
        self._warned: dict[str, float] = {}
        self._named: Files | None = None  # whose names are on disk
        self._aged = self._synced_at = 0.0
        try:
            tail = recover(self._folder, segment.epoch, segment.views.first)
            self.tail = tail
            report_cut(segment.name, tail)
            words = (
                segment.words
            )  # not through `self`: a keeper that no process holds ends at once, not when cycles are collected
            self.files = LogFiles(self._folder, segment.epoch, lambda: words[LOGGED])
        except BaseException:
            self._lock.release()
            raise

    def check(self) -> None:
        """Raise `StoreCorrupt` where events are neither in the log nor in the ring, and nothing can be appended behind them."""
        if self.tail.last < self._words[FLOOR]:
            raise StoreCorrupt(
                f"the log in {self._folder} ends at event {self.tail.last}, and the ring of store {self._segment.name!r} begins at "
                f"{self._words[FLOOR] + 1}: files of the log are missing; put them back, or begin again with `shmstore rm --log {self._segment.name}`"
            )

    def start(self) -> None:
        """Append from now on. Raises `StoreError` where the first files cannot be made, and where threads are none."""
        _refuse_greenlets(self._segment.name)
        words, tail = self._words, self.tail
        words[LOGGED] = words[subscription_word(0, "get")] = tail.last
        words[SYNCED] = min(words[SYNCED], tail.last)
        words[LOG_FIRST] = max(words[LOG_FIRST], min(self.files.oldest, tail.last + 1))
        words[LOG_ERROR] = 0
        try:
            self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._mark = open_mark(self._folder)
            sizes = self._file_bytes, self._file_slots
            self._appender = appender_of(self._segment.views, self._fd, self._segment.epoch, *sizes)
            first = tail.last + 1 if tail.first is None else tail.first
            name = files_format.set_name(first)
            if tail.first is None:
                self._current = self._made(
                    name, files_format.header_bytes(self._segment.epoch, first, tail.end, tail.rows, calendar_ms())
                )
            else:
                self._current = self._opened(name, tail.at)
            self._appender.set_current(self._current, first, tail.last + 1 - first, tail.at, tail.blocks)
            self._sync_folder()  # else a crash of the host could keep the name of the next set, and lose that of this one
            self._prepare()
        except OSError as error:
            self._drop()
            raise refused(
                f"the log in {self._folder} cannot be written", error, "make space there, or let this user write there"
            ) from error
        except BaseException:
            self._drop()
            raise
        self._note()
        this = weakref.ref(self)
        for name, run, rest in (
            ("log-append", _appending, self._stopping.wait),
            ("log-keep", _keeping, self._condition.wait),
        ):
            thread = threading.Thread(target=run, args=(this, self._stopping, rest), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    # ---------------------------------------------------------------- end

    def close(self, timeout: float) -> None:
        """Append and sync what is left, for `timeout` seconds at most, and end. Idempotent."""
        if self._threads and not self._stopping.is_set():
            self._put_all_on_disk(timeout, self._condition.notify)
            if self._words[SYNCED] < self._words[PUT]:
                code = max(0, self._words[LOG_ERROR])
                _log.warning(
                    "the log of store %r has events up to %d on disk, and %d were put: the others are in shared memory alone%s. They are lost "
                    "when the host stops before a producer of the store, or a reader that closes, puts them on disk",
                    *(self._segment.name, self._words[SYNCED], self._words[PUT], f" ({os.strerror(code)})" if code else ""),
                )
        self._end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(PATIENCE)
        self._drop()

    def _put_all_on_disk(self, timeout: float, sync: Callable[[], object]) -> None:
        """Have what was put appended, and on disk: `sync` lets the keeping thread look, or is what that one does itself.

        At its bound the log takes it all the same, at most a ring more: there is no other place that outlives a reboot. Acks of it are made
        durable, too, where their readers have closed.
        """
        words, until = self._words, time.monotonic() + timeout
        self._closing = True
        while words[SYNCED] < words[PUT] and time.monotonic() < until:  # nothing is synced that is not appended
            words[SYNC_WANTED] = max(words[SYNC_WANTED], words[PUT])
            self._awake.notify()
            sync()
            time.sleep(0.001)
        self._settle()

    def _end(self) -> None:
        self._stopping.set()
        if self._threads:
            self._appender.stop()
            self._condition.notify()

    def is_wanted(self) -> bool:
        """False where the store is not there any more: another process may want to append to its home then."""
        return self._segment.look()

    def finish(self) -> None:
        """End, from within the keeping thread. What was put before the memory was taken away is appended and on disk then."""
        if self._words[header_word("state")] == StoreState.UNLINKED:
            with self._putting:
                pass  # a later caller sees the state; an earlier one has put
            self._put_all_on_disk(PATIENCE, self.keep)
        self._end()
        self._threads[0].join(PATIENCE)
        self._drop()

    def abandon(self) -> None:
        """In a forked child: the parent appends."""
        self._threads = []
        self._drop()

    def _drop(self) -> None:
        """Give up the files and the lock, unless a thread is still in a call that the disk does not answer: its descriptors must not become
        another file's, nor may it change a file once another process has the lock. It does this itself then, at its end (`__del__`)."""
        if any(thread.is_alive() and thread is not threading.current_thread() for thread in self._threads):
            return
        self._release()

    def _release(self) -> None:
        for files in {
            self._current,
            self._next,
            self._retired and Files(*self._retired[0]),
        }:  # one that is retired may be current, too
            if files is not None:
                files.close()
        self._current = self._next = self._retired = None
        for fd in (self._fd, self._mark):
            if fd >= 0:
                os.close(fd)
        self._fd = self._mark = -1
        self._lock.release()

    def __del__(self) -> None:
        if hasattr(self, "_stopping"):
            self._end()
            self._release()  # no thread is in here: each holds this while it is

    # ---------------------------------------------------------------- what the appender cannot do

    def append(self) -> float:
        """Run the appender until something is to be done that it cannot do, and do it; return the seconds to wait then."""
        code, file = self._appender.run(IDLE_SECONDS), ""
        if code == OVERSIZED_NEXT:
            before = self._words[LOGGED]
            try:
                payload, unlogged = overflow.read(self._segment, before + 1), self._segment.unlogged
                self._segment.unlogged = None  # before it is logged: from then on it may be that of the next one
                code = self._appender.append_oversized(payload)
                if self._words[LOGGED] == before:
                    self._segment.unlogged = unlogged
                overflow.free(self._segment, before)
            except OSError as error:
                code, file = error.errno or errno.EIO, os.fsdecode(error.filename or "")
        if code == DAMAGED:
            code = errno.EBADMSG
        if code > 0 and code != errno.ECANCELED:
            self._refuse(code, file)
            return RETRY_SECONDS
        if self._failed:
            return RETRY_SECONDS
        if self._words[LOG_ERROR] > 0:
            self._words[LOG_ERROR] = 0
            _log.info("the log of store %r is written again", self._segment.name)
        return 0.0

    def _refuse(self, code: int, file: str = "") -> None:
        self._words[LOG_ERROR] = code
        self._freed.notify()  # the producer says so, too
        self._warn(
            "refused",
            f"the log in {self._folder} cannot be written: {os.strerror(code)}{file and ': ' + file}; {fix_of(code)}. The producer of "
            f"store {self._segment.name!r} waits",
        )

    def _warn(self, what: str, text: str) -> None:
        now = time.monotonic()
        if now - self._warned.get(what, -AGAIN) >= AGAIN:
            self._warned[what] = now
            _log.warning("%s", text)

    # ---------------------------------------------------------------- what may take long

    def keep(self) -> float:
        """Do what is to be done now; return the seconds until the next look."""
        if self._failed:
            self._refuse(self._failed)
            return RETRY_SECONDS
        try:
            logged = self._words[LOGGED]  # before the look at what was retired: it is in that set, or in the one after it
            self._seal()
            if self._next is None:
                if not self._make_space():
                    self._sync(logged)
                    return LOOK_SECONDS
                self._prepare()
            self._sync(logged)
            self._age()
        except OSError as error:
            self._refuse(error.errno or errno.EIO)
            return RETRY_SECONDS
        return LOOK_SECONDS if self._words[SYNCED] < self._words[LOGGED] else IDLE_SECONDS

    def _seal(self) -> None:
        """Put the set that is full on disk, cut to what is used. The appender is in the one after it already."""
        retired = self._retired = self._retired or self._appender.retired()
        if retired is None:
            return
        files, _, count, at = retired
        os.ftruncate(files[0], at)
        os.ftruncate(files[1], files_format.slots_size(count))
        self._put_on_disk(files)
        self._sync_folder()
        Files(*files).close()
        self._retired = None
        self._current, self._next = self._next, None

    def _put_on_disk(self, files: tuple[int, int, int]) -> None:
        """Sync three files. After an error of the device the kernel may take what it could not write for written (fsync(2)): nothing is
        appended any more then, and recovery reads what exists. Raises OSError."""
        try:
            if not os.fstat(files[0]).st_nlink:  # a process removed the files under us: what is written there is on no disk
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            for fd in files:
                os.fdatasync(fd)
        except OSError as error:
            if error.errno not in NO_SPACE:
                self._failed = error.errno or errno.EIO
                self._appender.stop()
            raise

    def _sync_folder(self) -> None:
        os.fsync(self._fd)

    def _prepare(self) -> None:
        """Make the next set's files, under the name that no process reads."""
        self._next = self._made(files_format.NEXT)
        self._appender.set_next(self._next)

    def _made(self, name: str, header: bytes = b"") -> Files:
        """Make the files of a set, sparse; .events last, which makes it one."""
        made: dict[str, int] = {}
        try:
            for kind in files_format.ENDINGS:
                path = self._folder / f"{name}{kind}"
                with suppress(FileNotFoundError):
                    os.unlink(path)
                made[kind] = fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                give_to_owner(fd, self._folder)
                if self._segment.mode != 0o600:
                    os.fchown(fd, -1, self._segment.gid)
                    os.fchmod(fd, self._segment.mode)
                if kind == files_format.SLOTS:
                    os.ftruncate(fd, files_format.slots_size(self._file_slots))
                    os.pwrite(fd, header, 0)
                elif kind == files_format.EVENTS:
                    os.ftruncate(fd, self._file_bytes)
        except BaseException:
            for fd in made.values():
                os.close(fd)
            raise
        return Files(*(made[kind] for kind in _KINDS))

    def _opened(self, name: str, at: int) -> Files:
        """Open the set that is to be gone on with, as long again as a set may grow."""
        fds: list[int] = []
        try:
            fds.extend(os.open(self._folder / f"{name}{kind}", os.O_RDWR | os.O_CLOEXEC) for kind in _KINDS)
            os.ftruncate(fds[0], max(self._file_bytes, at))
            os.ftruncate(fds[1], files_format.slots_size(self._file_slots))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return Files(*fds)

    def _sync(self, logged: int) -> None:
        """Put on disk what was appended up to `logged`, where it is time to, or a process asks; then say so."""
        words, now = self._words, time.monotonic()
        if logged <= words[SYNCED] or (words[SYNC_WANTED] <= words[SYNCED] and now - self._synced_at < SYNC_SECONDS):
            return
        assert self._current is not None
        self._put_on_disk(self._current)
        if self._named != self._current:
            self._sync_folder()
            self._named = self._current
        words[SYNCED] = logged  # only now: all of it is on disk
        self._settle()
        with suppress(OSError):  # an older mark says less, and nothing wrong
            os.pwrite(self._mark, mark_bytes(self._segment.epoch, logged), 0)
        self._synced_at = now

    def _settle(self) -> None:
        """Make acks durable that waited for the disk and have no reader any more."""
        try:
            self._subscriptions.settle(self._words[SYNCED])
        except StoreError as error:
            self._warn("settle", str(error))

    # ---------------------------------------------------------------- retention

    def _make_space(self) -> bool:
        """Remove the oldest sets until another one fits into the log's size; False where a reader needs what would have to go."""
        if self._closing:
            return True
        sets = self._note()
        used = sum(each.bytes for each in sets)
        evicts = bool(self._segment.flags & StoreFlag.EVICT)
        spared = self._newest(sets)
        size = self._words[LOG_SIZE]  # may be changed at any time
        while used + self._file_bytes > size and len(sets) > spared:
            oldest = sets.pop(0)
            now = time.monotonic()
            since = self._bound_since or now
            evicted = self._subscriptions.let_go(oldest.last, evict=evicts and now - since >= self._segment.evict_after)
            if evicted is None:
                self._bound_since = since
                self._words[LOG_ERROR] = AT_BOUND
                return False
            remove_sets(self._folder, [oldest.first])
            used -= oldest.bytes
            for name in evicted:
                _log.warning(
                    "store %r: subscription %r was evicted: it held the log at its bound of %d bytes for %g s. To read again, move it with "
                    "`shmstore seek %s %s earliest`, or forget it with `shmstore unsubscribe %s %s`",
                    *(self._segment.name, name, size, self._segment.evict_after),
                    *(self._segment.name, name, self._segment.name, name),
                )
        self._bound_since = 0.0
        if self._words[LOG_ERROR] == AT_BOUND:
            self._words[LOG_ERROR] = 0
        return True

    def _age(self) -> None:
        """Remove the sets that were last written longer ago than the log keeps them, as far as all subscriptions have acked them."""
        now, keep = time.monotonic(), self._words[LOG_KEEP_MS] / 1000
        if now - self._aged < min(10.0, max(keep / 10, 1.0)):
            return
        self._aged = now
        sets = self._note()
        spared = self._newest(sets)
        while len(sets) > spared and _written(sets[0].path) < time.time() - keep:
            if self._subscriptions.let_go(sets[0].last, evict=False) is None:
                break
            remove_sets(self._folder, [sets.pop(0).first])

    def _newest(self, sets: list[SetStat]) -> int:
        """How many sets stay in any case: so many that one of them is on disk, by which recovery knows where the log was."""
        return 1 if sets and self._words[SYNCED] >= sets[-1].first else 2

    def _note(self) -> list[SetStat]:
        """Say how large the log is and how old; return its sets, the oldest first."""
        sets = self.files.sets()
        self._words[LOG_OLDEST_MS] = sets[0].first_ms if sets else 0
        self._words[LOG_BYTES] = sum(each.bytes for each in sets)
        return sets


_KINDS: Final = (files_format.EVENTS, files_format.SLOTS, files_format.BLOCKS)


def _refuse_greenlets(store: str) -> None:
    """Raise `StoreError` where threads were replaced by greenlets: those of the log wait in calls that let no other greenlet run."""
    ways = (
        ("gevent.monkey", "threading", "monkey.patch_all(thread=False)"),
        ("eventlet.patcher", "thread", "monkey_patch(thread=False)"),
    )
    for module, asked, fix in ways:
        patcher = sys.modules.get(module)
        is_patched = getattr(patcher, "is_module_patched", None) or getattr(patcher, "is_monkey_patched", None)
        if is_patched is not None and is_patched(asked):
            name = module.partition(".")[0]
            raise StoreError(
                f"store {store!r} has a log, whose producer needs threads, and {name} has replaced them by greenlets: produce in a process of "
                f"its own, or call `{fix}`"
            )


def fix_of(code: int) -> str:
    """What to do where the disk refuses with that errno."""
    if code in NO_SPACE:
        return "make space there, and it is written again (`lsof +L1` shows removed files that processes still hold)"
    if code == errno.ENOENT:
        return "a process removed its files: stop the producer, then put them back, or begin again with `shmstore rm --log`"
    return "see what the kernel says of the device (`dmesg`), and start the producer again when it is well"


def report_cut(store: str, tail: Tail) -> None:
    """Log what recovery took away: after a kill or a crash of the host what was just being written, which was never acknowledged; and damage."""
    for text in tail.cut:
        _log.info("the log of store %r was cut at its end, event %d: %s", store, tail.last, text)
    for text in tail.damaged:
        _log.warning("the log of store %r is damaged: %s. `shmstore log verify %s` names the files", store, text, store)


def _written(path: Path) -> float:
    """When the last event of a set was appended, in seconds since 1970: of the clock here, not of the server's."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


# The threads hold no keeper while they wait: one that no process holds any more ends them.


def _appending(keeper: weakref.ref[Keeper], stopping: threading.Event, rest: Callable[[float], object]) -> None:
    while not stopping.is_set() and (this := keeper()) is not None:
        seconds = this.append()
        del this
        rest(seconds)


def _keeping(keeper: weakref.ref[Keeper], stopping: threading.Event, rest: Callable[[float], object]) -> None:
    while not stopping.is_set() and (this := keeper()) is not None:
        if not this.is_wanted():
            this.finish()
            return
        seconds = this.keep()
        del this
        rest(seconds)
