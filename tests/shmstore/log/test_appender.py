"""The appender, compiled and in Python: what it leaves on disk, byte for byte, whatever the disk and the other thread do."""

from __future__ import annotations

import errno
import os
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shmstore.memory.mapping
from shmstore import StoreCorrupt
from shmstore.log import appender as module
from shmstore.log import format
from shmstore.log.appender import DAMAGED, OVERSIZED_NEXT, Appends, appender_of
from shmstore.log.recovery import recover
from shmstore.memory import segment as segments
from shmstore.memory.create_options import checked
from shmstore.memory.layout import DISARMED, SLOT, BatchMode, SlotFlag
from shmstore.memory.ordering import hot
from shmstore.memory.segment import Segment
from shmstore.memory.semaphores import Condition
from shmstore.ring.cursors import ACK_WANTED, ARMED, FLOOR, LOGGED, LOITERING, PUT, SYNC_WANTED, WANTED_OF, armed_readers
from shmstore.ring.wakeups import Wakeups
from shmstore.ring.writer import writer_of

EPOCH = 77
_numbers = count(1)
COMPILED = shmstore.memory.mapping.COMPILED


class Log:
    """A ring whose store has a log, and its appender on real files. `keep` is what the keeper does."""

    def __init__(self, segment: Segment, folder: Path, file_bytes: int = 1 << 20, file_slots: int = 1 << 14) -> None:
        self.segment, self.views, self.words = segment, segment.views, segment.views.words
        self.writer: Any = writer_of(self.views)
        self.writer.may_put = True
        self.path, self.folder = folder, os.open(folder, os.O_RDONLY)
        self.files: set[int] = {self.folder}
        self.appender: Appends = appender_of(self.views, self.folder, EPOCH, file_bytes, file_slots)
        self.payloads: list[bytes] = []
        self.slots: list[np.void] = []
        self.retired: list[tuple[int, int, int]] = []
        files = self.made(format.set_name(0))
        os.pwrite(files[1], format.header_bytes(EPOCH, 0, 0, 0, 0), 0)
        self.appender.set_current(files, 0, 0, 0, 0)

    def made(self, name: str) -> tuple[int, int, int]:
        events, slots, blocks = (
            os.open(self.path / f"{name}{ending}", os.O_CREAT | os.O_EXCL | os.O_RDWR)
            for ending in (format.EVENTS, format.SLOTS, format.BLOCKS)
        )
        self.files |= {events, slots, blocks}
        return events, slots, blocks

    def opened(self, first: int) -> tuple[int, int, int]:
        name = format.set_name(first)
        events, slots, blocks = (os.open(self.path / f"{name}{kind}", os.O_RDWR) for kind in (".events", ".slots", ".blocks"))
        self.files |= {events, slots, blocks}
        return events, slots, blocks

    def keep(self) -> None:
        """Collect what is full, and prepare the next set."""
        old = self.appender.retired()
        if old is not None:
            for fd in old[0]:
                if fd in self.files:  # not those of a test's own
                    self.files.remove(fd)
                    os.close(fd)
            self.retired.append(old[1:])
        if not self.appender.prepared_set:
            self.appender.set_next(self.made(format.NEXT))

    def put(self, *payloads: bytes, flags: int = 0) -> bool:
        slots = np.zeros(len(payloads), SLOT)
        slots["size"], slots["rows"], slots["time"] = [len(payload) for payload in payloads], 2, len(self.payloads)
        slots["flags"] = flags
        sizes = slots["size"].astype(np.int64)
        oversized = len(payloads[0]) > self.views.limit
        if oversized:
            sizes[0] = self.views.limit
            slots["flags"] |= np.uint16(SlotFlag.OVERSIZED)
        if not self.writer.fits(len(slots), int(sizes.sum())):
            self.writer.refresh(len(slots), int(sizes.sum()))
        done: bool = self.writer.put_encoded(b"" if oversized else b"".join(payloads), slots, sizes)
        if done:
            self.payloads += payloads
            self.slots += list(slots)
        return done

    def append(self, seconds: float = 0) -> int:
        """Run the appender until nothing waits, with a keeper that is always there."""
        while True:
            self.keep()
            result = self.appender.run(seconds)
            if result == OVERSIZED_NEXT:
                self.keep()
                result = self.appender.append_oversized(self.payloads[self.words[LOGGED] + 1])
                if result == 0:
                    continue
            return result

    def check(self) -> None:
        """The files hold exactly what was put up to LOGGED, in sets, groups and records that fit each other."""
        firsts = sorted(int(name.stem) for name in self.path.glob("0*.events"))
        sequence, end, rows = 0, 0, 0
        for k, first in enumerate(firsts):
            name = str(self.path / format.set_name(first))
            events, slots, blocks = (Path(name + ending).read_bytes() for ending in (".events", ".slots", ".blocks"))
            assert format.header_fault(slots, EPOCH, first) == ""
            header = np.frombuffer(slots, format.HEADER, 1)[0]
            assert (first, header["end"], header["rows"]) == (sequence, end, rows)
            found = np.frombuffer(blocks, format.BLOCK, len(blocks) // 64)
            total = int(found["count"].sum())
            records = np.frombuffer(slots[64 : 64 + 64 * total], format.RECORD)
            assert format.first_fault(records, 0, end, rows) == -1
            assert np.all(found["first"] == first + np.cumsum(found["count"]) - found["count"])
            assert np.all(found["at"] == np.cumsum(found["size"]) - found["size"])
            views = memoryview(events), memoryview(slots)[64:], memoryview(blocks)
            if total:
                assert format.verify_blocks(*views, 0, len(found) - 1) == -1
            assert np.all((found["size"] <= format.GROUP_BYTES) | (found["count"] == 1))
            for record in records:
                at = int(record["at"])
                payload = events[at : at + int(record["slot"]["size"])]
                assert payload == self.payloads[sequence], sequence
                assert record["slot"] == self.slots[sequence]
                sequence += 1
            end, rows = (int(records[-1]["end"]), int(records[-1]["rows"])) if total else (end, rows)
            if k < len(self.retired):
                assert self.retired[k] == (first, total, sum(len(p) for p in self.payloads[first:sequence]))
        assert sequence - 1 == self.words[LOGGED]


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.skipif(not COMPILED, reason="no compiled hot path here")), False])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Log]]:
    monkeypatch.setattr(shmstore.memory.mapping, "COMPILED", request.param)
    segments_, logs = [], []

    def make(capacity: int = 64, unit: int = 1024, **options: Any) -> Log:
        name = f"appender-{os.getpid()}-{next(_numbers)}"
        chosen = checked(
            capacity=capacity, memory_unit=unit, batch_mode=BatchMode.MEMSIZE, ddl_isolation=False, lag="block", evict_after=1,
            checksum=False, first_sequence=0, home=str(tmp_path),
        )  # fmt: skip
        segment = segments.create(name, chosen, path=None, mode=0o600, group=None)
        assert (segment.views.native is not None) is request.param
        segments_.append((name, segment))
        folder = tmp_path / name
        folder.mkdir()
        logs.append(Log(segment, folder, **options))
        return logs[-1]

    yield make
    for log in logs:
        log.appender.stop()
        for fd in log.files:
            os.close(fd)
    for name, segment in segments_:
        segment.close()
        segments.unlink(name, path=None, force=True)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_put_is_in_the_files(made, seed):
    """Random puts, groups and sets: the files have every event, whole and once, with all that the ring said of it."""
    pick = random.Random(seed)
    log = made(file_bytes=1 << 16, file_slots=100)
    for _ in range(300):
        payloads = [pick.randbytes(pick.choice([1, 3, 40, 500, 3000])) for _ in range(pick.randint(1, 9))]
        if pick.random() < 0.02:
            payloads = [pick.randbytes(pick.choice([70_000, 200_000]))]
        while not log.put(*payloads, flags=pick.choice([0, 1, 2])):
            assert log.append() == 0
            assert log.words[LOGGED] == log.words[PUT]
        if pick.random() < 0.5:
            assert log.append() == 0
    assert log.append() == 0
    log.check()
    assert len(log.retired) > 5


def test_a_large_backlog_is_appended_in_groups(made):
    """More than a group takes is in several blocks, of `GROUP_BYTES` or 4096 events at most."""
    log = made(capacity=16384, unit=512, file_bytes=64 << 20, file_slots=1 << 20)
    for _ in range(160):
        assert log.put(*[b"x" * 512] * 100)
    assert log.append() == 0
    log.check()
    blocks = np.frombuffer((log.path / "00000000000000000000.blocks").read_bytes(), format.BLOCK)
    assert blocks["count"].tolist() == [2048] * 7 + [1664]
    for _ in range(160):
        assert log.put(*[b"xyz"] * 100)
    assert log.append() == 0
    log.check()
    blocks = np.frombuffer((log.path / "00000000000000000000.blocks").read_bytes(), format.BLOCK)
    assert blocks["count"].tolist()[8:] == [4096, 4096, 4096, 3712]


def test_an_event_larger_than_a_group_has_a_block_of_its_own(made):
    """So has one that is larger than a whole set: it begins one."""
    log = made(capacity=1024, unit=1024, file_bytes=1 << 19)
    for size in (100, 300_000, 100, 600_000, 100):
        assert log.put(b"." * size)
        assert log.append() == 0
    log.keep()
    log.check()
    assert [kept[1] for kept in log.retired] == [3, 1]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_full_disk_moves_nothing(made, which):
    """ENOSPC on any of the three files is answered with its number; nothing counts, and once there is space all is appended."""
    log = made()
    assert log.put(b"before")
    assert log.append() == 0
    good = tuple(os.open(log.path / f"{format.set_name(0)}{ending}", os.O_RDWR) for ending in (".events", ".slots", ".blocks"))
    full = os.open("/dev/full", os.O_RDWR)
    bad = tuple(full if k == which else fd for k, fd in enumerate(good))
    log.appender.set_current(bad, 0, 1, 6, 1)
    assert log.put(b"one", b"two")
    for _ in range(3):
        assert log.append() == errno.ENOSPC
        assert log.words[LOGGED] == 0
    log.appender.set_current(good, 0, 1, 6, 1)
    assert log.append() == 0
    log.check()
    for fd in (*good, full):
        os.close(fd)


@pytest.mark.parametrize("missing", [".blocks", ".slots", ".events"])
def test_a_set_that_cannot_be_named_is_tried_again(made, missing):
    """Where a rename fails, the next try continues with it; the event is in the new set, once."""
    log = made(file_slots=2)
    assert log.put(b"a", b"b", b"c")
    log.keep()
    (log.path / f"next{missing}").rename(log.path / "aside")
    assert log.appender.run(0) == errno.ENOENT
    assert log.words[LOGGED] == 1
    assert log.appender.run(0) == errno.ENOENT
    (log.path / "aside").rename(log.path / f"next{missing}")
    assert log.append() == 0
    log.check()


def test_appending_goes_on_where_it_was(made):
    """A second appender continues in the middle of a set; where the ring lacks what comes next, it says so."""
    log = made()
    assert log.put(*[b"abc"] * 5)
    assert log.append() == 0
    files = tuple(os.open(log.path / f"{format.set_name(0)}{ending}", os.O_RDWR) for ending in (".events", ".slots", ".blocks"))
    log.appender = appender_of(log.views, log.folder, EPOCH, 1 << 20, 1 << 14)
    for name in log.path.glob("next.*"):
        name.unlink()
    log.appender.set_current(files, 0, 5, 15, 1)
    assert log.put(b"more")
    assert log.append() == 0
    log.check()
    for _ in range(3):
        assert log.put(*[b"x"] * 40)
        assert log.append() == 0
    assert log.words[FLOOR] > 5
    with pytest.raises(StoreCorrupt, match="the log ends at event 5"):
        log.appender.set_current(files, 0, 6, 19, 2)
    log.check()


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("step", range(24))
def test_a_kill_at_any_step_loses_nothing(made, monkeypatch, step):
    """Killed before any write or rename, whole or in its middle: recovery finds all that LOGGED published, and the log continues from there."""
    log = made(file_slots=3)
    if log.views.native is not None:
        pytest.skip("compiled code goes the same steps: tests/interleavings/test_compiled_order.py")
    left = iter(range(step + 1))
    write, rename = module._write, os.rename

    def dying(do: Any, *arguments: Any, torn: int = 0, **to: Any) -> None:
        if next(left, None) is None:
            if torn:
                write(arguments[0], memoryview(arguments[1])[:torn], arguments[2])
            raise Killed
        do(*arguments, **to)

    monkeypatch.setattr(module, "_write", lambda fd, raw, at: dying(write, fd, raw, at, torn=(7 * step) % memoryview(raw).nbytes))
    monkeypatch.setattr(os, "rename", lambda old, new, **to: dying(rename, old, new, **to))
    with suppress(Killed):
        for number in range(1, 9):
            assert log.put(*[b"%d" % number * number] * (number % 3 + 1))
            assert log.append() == 0
    monkeypatch.undo()
    logged = log.words[LOGGED]
    tail = recover(log.path, EPOCH, 0)
    assert logged <= tail.last <= log.words[PUT]
    first = tail.last + 1 if tail.first is None else tail.first
    if tail.first is None:
        files = log.made(format.set_name(first))
        os.pwrite(files[1], format.header_bytes(EPOCH, first, tail.end, tail.rows, 0), 0)
    else:
        files = log.opened(first)
    log.appender = appender_of(log.views, log.folder, EPOCH, 1 << 20, 3)
    log.appender.set_current(files, first, tail.last + 1 - first, tail.at, tail.blocks)
    assert log.put(b"behind it")
    assert log.append() == 0
    log.retired = []
    log.check()
    assert log.words[LOGGED] == log.words[PUT]


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v.slots["size"].__setitem__(slice(1, None), 2**31),
        lambda v: v.slots["size"].__setitem__(slice(1, None), 0),
        lambda v: v.ends_array.__setitem__(slice(None), -(2**63)),
        lambda v: v.ends_array.__setitem__(slice(None), 2**63 - 1),
        lambda v: v.words.__setitem__(PUT, 1000),
        lambda v: v.words.__setitem__(PUT, -5),
        lambda v: v.words.__setitem__(PUT, 2**63 - 1),
        lambda v: v.slots["flags"].__setitem__(slice(None), 4),
    ],
)
def test_a_damaged_ring_is_not_appended(made, damage):
    """Whatever is in the segment, no event that contradicts itself is written, and nothing outside of it is read."""
    log = made()
    assert log.put(b"good")
    assert log.append() == 0
    assert log.put(b"bad", b"worse")
    damage(log.views)
    log.keep()
    result = log.appender.run(0)
    assert result in (DAMAGED, OVERSIZED_NEXT)
    if result == OVERSIZED_NEXT:
        assert log.appender.append_oversized(b"not this") == DAMAGED
    assert log.words[LOGGED] == 0


def armed(log: Log, wish: int) -> None:
    """Wait until the appender has said that it waits for `wish`. It may still be about to look once more before it sleeps."""
    while log.words[WANTED_OF[0]] != wish or (wish != LOITERING and not log.words[ARMED]):
        pass


def wake(log: Log, wish: int, *, everyone: bool) -> None:
    """Wake the appender as who needs it does, after what it waits for, `wish`, has come. It is missed only where it has just seen that itself."""
    ready = armed_readers(log.views, everyone=everyone)
    assert ready == [0] or log.words[WANTED_OF[0]] != wish
    Wakeups(log.segment).notify(ready)


class Running(threading.Thread):
    """The appender in a thread of its own, without a net: none of its sleeps ends alone."""

    def __init__(self, log: Log, seconds: float = 30) -> None:
        super().__init__(daemon=True)
        self.log, self.seconds, self.answer = log, seconds, None
        self.start()

    def run(self) -> None:
        self.answer = self.log.appender.run(self.seconds)

    def ended(self) -> Any:
        self.join(20)
        assert not self.is_alive()
        return self.answer


def reached(log: Log, sequence: int) -> None:
    while log.words[LOGGED] < sequence:
        pass


def test_a_put_wakes_the_appender(made, monkeypatch):
    """It arms itself when nothing waits; a put wakes it, and what was put is appended; a stop ends it at once."""
    monkeypatch.setattr(module, "_SLEEP", 30)
    log = made()
    log.keep()
    running = Running(log)
    for k in range(20):
        armed(log, k)
        assert log.put(b"x")
        wake(log, k, everyone=False)
        reached(log, k)
    log.appender.stop()
    assert running.ended() == 0
    log.check()
    assert log.words[WANTED_OF[0]] == DISARMED


@pytest.mark.skipif(not COMPILED, reason="no compiled hot path here")
def test_a_compiled_put_wakes_the_appender(made):
    """The compiled put wakes entry 0 as well; a wish to be woken for space only does not cost it anything."""
    log = made()
    if log.views.native is None:
        pytest.skip("the Python put alone wakes no process")
    log.keep()
    running = Running(log)
    for k in range(20):
        armed(log, k)
        assert log.writer.try_put(b"x") == k
        log.payloads.append(b"x")
        reached(log, k)
    log.appender.stop()
    running.ended()
    log.words[WANTED_OF[0]], log.words[ARMED] = LOITERING, 1
    log.writer.try_put(b"x")
    assert (log.words[WANTED_OF[0]], log.words[ARMED]) == (LOITERING, 0)


def test_who_finds_no_space_wakes_an_appender_that_waits_for_more(made, monkeypatch):
    """Little waits a moment for more, and a put does not end that; a producer without space does, and hears when there is some."""
    monkeypatch.setattr(module, "LOITER", 30)
    monkeypatch.setattr(module, "_LOITER_SLICE", 30)
    log = made()
    assert log.put(b"x")
    if log.views.native is not None:
        pytest.skip("how long compiled code waits is not to be changed")
    log.keep()
    running = Running(log)
    armed(log, LOITERING)
    assert armed_readers(log.views, everyone=False) == []
    log.words[ACK_WANTED] = 0
    wake(log, LOITERING, everyone=True)
    reached(log, 0)
    freed = Wakeups(log.segment).freed
    while not freed.notified:
        pass
    assert log.words[ACK_WANTED] == 0, "whose wish it is takes it back: here it could be the next one already"
    log.appender.stop()
    assert running.ended() == 0


def test_who_wants_the_disk_hears_of_it(made):
    """What is wanted on disk is not held back for more, and the keeper is woken once it is logged."""
    log = made()
    keeper = Condition(log.views.fixed, shmstore.memory.layout.header_word("keeper"))
    assert log.put(b"x")
    log.words[SYNC_WANTED] = 0
    log.keep()
    assert log.appender.run(0) == 0
    assert keeper.notified
    keeper.wait(0)
    assert log.put(b"x")
    assert log.appender.run(0) == 0
    assert not keeper.notified


def test_the_next_set_is_waited_for(made):
    """Without a prepared set, or with one not collected, the appender sleeps until the other thread has done its part."""
    log = made(file_slots=2)
    assert log.put(b"a", b"b", b"c", b"d", b"e", b"f", b"g")
    running = Running(log)
    keeper = Condition(log.views.fixed, shmstore.memory.layout.header_word("keeper"))
    for first in (2, 4, 6):
        while not keeper.notified:
            pass
        keeper.wait(0)
        assert log.words[LOGGED] == first - 1
        log.keep()
        reached(log, min(first + 1, 6))
    log.appender.stop()
    assert running.ended() == 0
    log.keep()
    log.check()


def test_a_stopped_appender_stays_stopped(made):
    """stop() ends every later call, too, and the thread that waits for a set."""
    log = made(file_slots=1)
    assert log.put(b"a", b"b")
    running = Running(log)
    reached(log, 0)
    log.appender.stop()
    assert running.ended() == 0
    assert log.appender.run(30) == 0
    assert log.words[LOGGED] == 0
    assert log.appender.append_oversized(b"b") == errno.ECANCELED


@pytest.mark.parametrize("seed", range(3))
def test_full_flow(made, seed):
    """A producer, the appender and a keeper at once: the ring wraps around many times, the files have everything."""
    pick = random.Random(seed)
    log = made(capacity=64, unit=64, file_slots=97, file_bytes=1 << 16)
    running, wakeups, over = Running(log), Wakeups(log.segment), threading.Event()

    def keep() -> None:
        keeper = Condition(log.views.fixed, shmstore.memory.layout.header_word("keeper"))
        while not over.is_set():
            keeper.wait(0.01)
            log.keep()

    other = threading.Thread(target=keep, daemon=True)
    other.start()
    for _ in range(500):
        payloads = [pick.randbytes(pick.randint(1, 90)) for _ in range(pick.randint(1, 20))]
        while not log.put(*payloads):
            log.words[ACK_WANTED] = log.writer.wanted_ack(len(payloads), sum(map(len, payloads)))
            wakeups.notify(armed_readers(log.views, everyone=True))
            wakeups.freed.wait(1)
        wakeups.notify(armed_readers(log.views, everyone=False))
    reached(log, log.words[PUT])
    log.appender.stop()
    assert running.ended() == 0
    over.set()
    other.join()
    log.keep()
    log.check()


def test_the_ring_keeps_half_of_itself_for_readers(made):
    """The floor moves lazily: to half of the capacity, half of the bytes, or as far as a put needs it, and never beyond the log."""
    log = made(capacity=16, unit=64)
    assert log.put(*[b"x"] * 16)
    assert not log.put(b"y")
    assert log.words[FLOOR] == -1
    assert log.append() == 0
    assert log.put(b"y")
    assert log.words[FLOOR] == 7  # half of 16 stays
    assert log.put(*[b"y"] * 7)
    assert log.words[FLOOR] == 7
    assert log.append() == 0
    assert log.put(*[b"y"] * 12)
    assert log.words[FLOOR] == 24 + 12 - 16 - 1  # what is needed
    assert log.append() == 0
    assert log.put(b"z" * 700)
    assert log.append() == 0
    assert log.put(b"z" * 600)
    assert log.words[FLOOR] == 36  # the bytes are what binds
    log.append()
    log.check()


@pytest.mark.skipif(not COMPILED, reason="no compiled hot path here")
@given(st.binary(max_size=300), st.integers(0, 63), st.integers(0, 2**32 - 1))
@settings(max_examples=300)
def test_the_checksum_is_zlibs(piece, at, before):
    """crc32 is zlib's for every content, length, alignment and beginning."""
    whole = bytes(at) + piece
    assert hot.crc32(memoryview(whole)[at:], before) == zlib.crc32(piece, before)


@pytest.mark.skipif(not COMPILED, reason="no compiled hot path here")
def test_the_checksum_of_every_length():
    """0 to 300 bytes at 64 alignments, and large ones."""
    whole = random.Random(1).randbytes(4 << 20)
    for size in range(301):
        for at in range(64):
            assert hot.crc32(memoryview(whole)[at : at + size]) == zlib.crc32(whole[at : at + size])
    for size in (4095, 65536, 262144, 1 << 20, (4 << 20) - 7):
        assert hot.crc32(memoryview(whole)[7 : 7 + size]) == zlib.crc32(whole[7 : 7 + size])


@pytest.mark.skipif(not COMPILED, reason="no compiled hot path here")
@pytest.mark.parametrize("seed", range(3))
def test_compiled_code_finds_the_damage_that_the_reference_finds(seed, tmp_path, monkeypatch):
    """Whatever byte is turned, both name the same block; a forged block never leads outside of the files."""
    pick = random.Random(seed)
    events, records, blocks = bytearray(), bytearray(), bytearray()
    first = sequence = 1000
    for _ in range(6):
        n, size = pick.randint(1, 9), pick.randint(1, 2000)
        piece, slots = pick.randbytes(size), pick.randbytes(64 * n)
        blocks += format.block_bytes(sequence, len(events), piece, slots, 5)
        events += piece
        records += slots
        sequence += n
    whole = [bytes(part) for part in (events, records, blocks)]
    assert hot.verify_blocks(*whole, 0, 5) == hot.verify_blocks(*whole, 2, 4, first) == -1
    for _ in range(300):
        parts = [bytearray(part) for part in whole]
        for _ in range(pick.choice([1, 1, 3])):
            part = pick.choice(parts)
            part[pick.randrange(len(part))] ^= 1 << pick.randrange(8)
        views = [memoryview(part) for part in parts]
        start = pick.choice([first, None])
        assert hot.verify_blocks(*parts, 0, 5, start) == format.verify_blocks(*views, 0, 5, start)
    for field in ("first", "count", "at", "size"):
        for value in (-(2**63), -1, 2**62, 2**63 - 1):
            forged = np.frombuffer(whole[2], format.BLOCK).copy()
            forged[field][3] = value
            forged["check"][3] = zlib.crc32(forged[3].tobytes()[:60])
            assert hot.verify_blocks(whole[0], whole[1], forged.tobytes(), 0, 5) == 3
    with pytest.raises(ValueError, match="blocks"), suppress(BufferError):
        hot.verify_blocks(*whole, 0, 6)
