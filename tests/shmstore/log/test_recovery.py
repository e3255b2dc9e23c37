"""What is left of a log after a crash at any moment: all that was synced, nothing wrong, no hole."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from shmstore import StoreCorrupt
from shmstore.log import format as log_format
from shmstore.log import mark, recovery
from shmstore.log.files import LogFiles, remove_sets, set_firsts
from shmstore.log.format import BLOCK, BLOCKS, EVENTS, RECORD, SLOTS
from shmstore.log.recovery import Tail, recover
from shmstore.memory.layout import SlotFlag
from tests.shmstore.log.appending import Appending, Folder, Item, Recorded

EPOCH = 77


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recovery's own syncs cost more than all the rest of these tests."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def some(random_: random.Random, count: int) -> list[Item]:
    """Random events, some of them oversized."""
    found = []
    for _ in range(count):
        size = random_.choice((1, 7, 30, 100, 100, 100, 900))
        oversized = size == 900 and random_.random() < 0.5
        flags = int(SlotFlag.OVERSIZED) if oversized else 0
        found.append(
            Item(
                random_.randbytes(size), random_.randrange(4), flags, random_.randrange(1000), charged=500 if oversized else None
            )
        )
    return found


def content(folder: Path, tail: Tail) -> list[bytes]:
    """All payloads of a recovered log."""
    files = LogFiles(folder, EPOCH, lambda: tail.last)
    found: list[bytes] = []
    first = files.oldest
    while first <= tail.last:
        part = files.read(first, tail.last)
        starts = [0, *part.ends.tolist()]
        found += [bytes(part.raw[low:high]) for low, high in pairwise(starts)]
        first = part.last + 1
    return found


def run(random_: random.Random, writer: Appending, model: list[Item], steps: int) -> None:
    """Let appender and keeper take random steps."""
    for _ in range(steps):
        step = random_.random()
        if step < 0.6:
            group = some(random_, random_.choice((1, 1, 2, 5, 12)))
            model += group
            writer.append(group)
        elif step < 0.75:
            writer.sync()
        else:
            writer.prepare()


@pytest.mark.parametrize("part", range(10))
def test_power_cuts(part: int, seed: int, tmp_path: Path) -> None:
    """After any of 100 crashes of the host, in which unsynced writes and names are lost, torn or mixed up: what was synced is there."""
    for case in range(100):
        chosen = seed * 1000 + case
        random_ = random.Random(chosen)
        disk, model = Recorded(), list[Item]()
        writer = Appending(disk, EPOCH, 1000, random_.choice((6, 40)))
        run(random_, writer, model, random_.randrange(1, 40))
        folder = tmp_path / f"{case}"
        disk.crashed(random_, folder)
        try:
            check_recovered(random_, folder, writer, model)
        except BaseException:
            print(f"case {chosen}")
            raise


def check_recovered(random_: random.Random, folder: Path, writer: Appending, model: list[Item]) -> None:
    synced = writer.synced
    tail = recover(folder, EPOCH)
    assert synced <= tail.last < len(model)
    assert content(folder, tail) == [item.payload for item in model[: tail.last + 1]]
    if tail.last >= 0:
        left = model[: tail.last + 1]
        charged = sum(len(item.payload) if item.charged is None else item.charged for item in left)
        assert (tail.end, tail.rows) == (charged, sum(item.rows for item in left))
        assert LogFiles(folder, EPOCH, lambda: tail.last).oldest == 0
    assert tail.damaged == ()
    names = sorted({*os.listdir(folder)} - {mark.NAME})
    assert not any(name.startswith("next") for name in names)
    assert len(names) % 3 == 0
    assert recover(folder, EPOCH)._replace(cut=()) == tail._replace(cut=())  # a second time, it finds nothing to do
    assert sorted({*os.listdir(folder)} - {mark.NAME}) == names
    more = model[: tail.last + 1]
    again = Appending(Folder(folder), EPOCH, 1000, writer.file_slots, tail)
    run(random_, again, more, 8)
    assert content(folder, tail._replace(last=again.logged)) == [item.payload for item in more]


def used(folder: Path, first: int, last: int) -> list[tuple[Path, int, int, int, int]]:
    """The blocks of a set up to event `last`: for each, and each file, (file, from byte, to byte, first event, last event)."""
    stem = folder / log_format.set_name(first)
    blocks = np.frombuffer(stem.with_suffix(BLOCKS).read_bytes(), BLOCK)
    found = []
    for i, block in enumerate(blocks):
        start, count, at, size = (int(block[name]) for name in ("first", "count", "at", "size"))
        if start + count - 1 <= last:
            low = log_format.slots_size(start - first)
            ends = (BLOCKS, i * 64, i * 64 + 64), (SLOTS, low, low + count * RECORD.itemsize), (EVENTS, at, at + size)
            found += [(stem.with_suffix(ending), low, high, start, start + count - 1) for ending, low, high in ends]
    return found


@pytest.mark.parametrize("marked", [True, False], ids=["with its mark", "without"])
@pytest.mark.parametrize("part", range(4))
def test_bit_rot_of_what_was_on_disk(part: int, marked: bool, seed: int, tmp_path: Path) -> None:
    """A damaged byte of the last two sets takes its block and no other event, or, where nothing sound follows, ends the log; both are said.

    Where the mark is lost, as in a log that an earlier version wrote, the log ends before the damage.
    """
    for case in range(25):
        random_ = random.Random(seed * 1000 + case)
        folder, model = tmp_path / f"{case}", list[Item]()
        writer = Appending(Folder(folder), EPOCH, 1000, random_.choice((6, 40)))
        run(random_, writer, model, random_.randrange(2, 25))
        model += (one := some(random_, 1))
        writer.append(one)
        writer.sync()
        synced = writer.synced
        for _ in range(random_.randrange(3)):  # not synced
            model += (group := some(random_, 1))
            writer.append(group)
        rotten = [each for set_ in set_firsts(folder)[-2:] for each in used(folder, set_, synced)]
        if not rotten:  # what came after the sync filled them
            continue
        path, low, high, first, last = random_.choice(rotten)
        at, flip = random_.randrange(low, high), 1 << random_.randrange(8)
        content_ = bytearray(path.read_bytes())
        content_[at] ^= flip
        path.write_bytes(content_)
        (folder / log_format.LOCK_FILE).touch()
        if not marked:
            (folder / mark.NAME).unlink()
        tail = recover(folder, EPOCH)
        print(f"case {seed * 1000 + case}: {path.name} {at} ^ {flip}, events {first} to {last}, synced {synced}: {tail}")
        readable, lost = sound(folder, tail)
        assert all(payload == model[sequence].payload for sequence, payload in readable.items())
        if not marked:
            assert (tail.last, lost, tail.damaged) == (first - 1, set(), ())
            continue
        assert tail.damaged
        if tail.last > last:
            assert tail.last >= synced
            assert lost == set(range(first, last + 1))
            assert f"events {first} to {last} were on disk" in tail.damaged[0]
        else:
            assert (tail.last, lost) == (first - 1, set())
            assert f"events {first} to {synced}, with which it ended, were on disk" in tail.damaged[0]
        assert recover(folder, EPOCH)._replace(cut=()) == tail._replace(cut=(), damaged=tail.damaged if lost else ())
        again = Appending(Folder(folder), EPOCH, 1000, writer.file_slots, tail)
        more = model[: tail.last + 1]
        run(random_, again, more, 6)
        readable, still = sound(folder, tail._replace(last=again.logged))
        assert still == lost
        assert readable == {i: item.payload for i, item in enumerate(more) if i not in lost}


def sound(folder: Path, tail: Tail) -> tuple[dict[int, bytes], set[int]]:
    """What can be read of a log by sequence, and the events that are said to be damaged."""
    files, found, lost = LogFiles(folder, EPOCH, lambda: tail.last), dict[int, bytes](), set[int]()
    for sequence in range(tail.last + 1):
        try:
            found[sequence] = bytes(files.read(sequence, sequence).raw)
        except StoreCorrupt:
            lost.add(sequence)
    return found, lost


@pytest.mark.parametrize("part", range(5))
def test_a_kill_leaves_the_page_cache(part: int, seed: int, tmp_path: Path) -> None:
    """After a kill between any two writes nothing that was written whole is lost, even if its group was not yet published."""
    for case in range(20):
        random_ = random.Random(seed * 1000 + case)
        folder, model = tmp_path / f"{case}", list[Item]()
        writer = Appending(Killed(folder, random_.randrange(9, 120)), EPOCH, 1000, 6)
        with suppress(Killed.Kill):
            run(random_, writer, model, 60)
        tail = recover(folder, EPOCH)
        assert writer.logged <= tail.last
        assert content(folder, tail) == [item.payload for item in model[: tail.last + 1]]


class Killed(Folder):
    """A folder whose writer is killed at one of its steps."""

    class Kill(Exception):
        """Instead of a signal."""

    def __init__(self, path: Path, steps: int) -> None:
        super().__init__(path)
        self.steps = steps

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise self.Kill

    def create(self, name: str) -> int:
        self._step()
        return super().create(name)

    def write(self, file: int, offset: int, content: bytes) -> None:
        self._step()
        super().write(file, offset, content)

    def truncate(self, file: int, size: int) -> None:
        self._step()
        super().truncate(file, size)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)


def test_an_empty_log(tmp_path: Path) -> None:
    """A log without events begins at the store's first one; a set that was only begun says where its bytes and rows continue."""
    tmp_path.joinpath("lock").touch()
    assert recover(tmp_path, EPOCH, 500) == Tail(499, 0, 0)
    for ending in log_format.ENDINGS:
        (tmp_path / (log_format.set_name(900) + ending)).write_bytes(b"")
    (tmp_path / (log_format.set_name(900) + ".slots")).write_bytes(log_format.header_bytes(EPOCH, 900, 12345, 67, 1))
    tail = recover(tmp_path, EPOCH, 500)
    assert (tail.last, tail.end, tail.rows, tail.first) == (899, 12345, 67, None)
    assert not tail.cut  # it had no event
    assert os.listdir(tmp_path) == ["lock"]


def test_the_files_of_another_store_stay(tmp_path: Path) -> None:
    """Sets of another epoch are refused, and nothing in their folder is changed."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 6)
    writer.append([Item(b"a")] * 20)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StoreCorrupt, match="epoch 77"):
        recover(tmp_path, EPOCH + 1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_whole_sets_before_the_last_two_are_trusted(tmp_path: Path) -> None:
    """Where the last two sets hold nothing, the log ends with the set before them, and continues in it."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 6)
    writer.append([Item(b"abc", rows=2)] * 20)
    writer.prepare()
    for first in (12, 18):
        (tmp_path / (log_format.set_name(first) + ".blocks")).write_bytes(bytes(64))
    tail = recover(tmp_path, EPOCH)
    assert tail._replace(cut=()) == Tail(11, 36, 24, 6, 6, 18, 1)
    assert len(tail.cut) == 2
    assert content(tmp_path, tail) == [b"abc"] * 12


@pytest.mark.parametrize("when", ["before", "after"])
def test_sets_that_a_trim_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Trim needs no lock: whenever it takes the oldest sets away, recovery keeps all of the others."""
    examined = recovery._examined

    def trimming(folder: Path, first: int, before: Tail | None, synced: int) -> object:
        if when == "before" and first == 12:
            remove_sets(tmp_path, [0, 6, 12])
        found = examined(folder, first, before, synced)
        if when == "after" and first == 18:
            remove_sets(tmp_path, [0, 6, 12])
        return found

    monkeypatch.setattr(recovery, "_examined", trimming)
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 6)
    writer.append([Item(b"%d" % i) for i in range(20)])
    tail = recover(tmp_path, EPOCH)
    assert (tail.first, tail.last, tail.cut) == (18, 19, ())
    assert content(tmp_path, tail) == [b"18", b"19"]


def test_records_that_contradict_each_other_end_the_log(tmp_path: Path) -> None:
    """A group whose checks hold and whose counts are wrong is not taken over."""
    writer = Appending(Folder(tmp_path), EPOCH, 100_000, 1000)
    for i in range(5):
        if i == 3:
            writer.rows += 1
        writer.append([Item(b"abc")] * 4)
    assert recover(tmp_path, EPOCH).last == 11


def test_a_refusing_disk_is_reported(tmp_path: Path) -> None:
    """A folder that is not there is an error of the store, which says where."""
    with pytest.raises(Exception, match="missing"):
        recover(tmp_path / "missing", EPOCH)


def test_the_recovered_numbers_are_plain(tmp_path: Path) -> None:
    """A tail holds ints, for headers and words."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 6)
    writer.append([Item(b"a")] * 20)
    assert all(type(value) is int for value in recover(tmp_path, EPOCH)[:-2])
    assert recovery.UNSEALED == 2
    assert np.dtype(np.int64).itemsize == 8
