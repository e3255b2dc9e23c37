"""The host's power goes while a producer writes its log and readers ack: emulated on copies of the home of a store that is in use.

A copy is what a disk may hold: all that was said to be on disk before the copy was made, and of what came later any part, torn at any
byte, names included. The store that is put together from it has every event up to there, right, nothing wrong behind them, and no
subscription ahead of them; and it continues.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from shmstore import CheckpointFile, EventStore, StoreNotFound, StoreView
from shmstore.home.home import Home
from shmstore.log import format as log_format
from shmstore.log.files import set_firsts
from shmstore.log.format import BLOCK, BLOCKS, EVENTS, NEXT, RECORD, SLOTS
from shmstore.log.mark import NAME as MARK
from tests.shmstore.samples import leftovers
from tests.stress.arena import payload
from tests.stress.test_kill import Arena
from tests.stress.test_kill_log import kill, lose_memory

SETS = 40_000, 150  # bytes and events of a set of the log
CUTS_A_STORE = 25
FOREVER = 10**9  # events


def copied(home: Path, name: str, target: Path) -> int:
    """Copy the home of a store in use; return up to where its log was on disk before. The acks first: none is ahead of what is reported then."""
    (target / "log").mkdir(parents=True)
    for file in home.glob("*.json"):
        shutil.copyfile(file, target / file.name)
    with suppress(FileNotFoundError):  # before anything is reported as synced
        shutil.copyfile(Home(home).log / MARK, target / "log" / MARK)
    with StoreView.attach(name) as store:
        log = store.stat().log
    assert log is not None
    for file in sorted({*Home(home).log.iterdir()} - {Home(home).log / MARK}):
        with suppress(FileNotFoundError):  # prepared, and named just now: its events came later
            shutil.copyfile(file, target / "log" / file.name)
    return log.synced


def keeps(folder: Path, first: int, last: int) -> dict[str, int]:
    """How much of the files of a set holds its events up to `last`."""
    if last < first:
        return dict.fromkeys((EVENTS, SLOTS, BLOCKS), 0)
    stem = folder / log_format.set_name(first)
    count = last - first + 1
    record = np.frombuffer(stem.with_suffix(SLOTS).read_bytes()[log_format.slots_size(count - 1) :], RECORD, 1)[0]
    content = stem.with_suffix(BLOCKS).read_bytes()
    blocks = np.frombuffer(content, BLOCK, len(content) // BLOCK.itemsize)
    whole = int((blocks["first"] + blocks["count"] - 1 <= last).sum())
    return {
        EVENTS: int(record["at"]) + int(record["slot"]["size"]),
        SLOTS: log_format.slots_size(count),
        BLOCKS: whole * BLOCK.itemsize,
    }


def cut(folder: Path, synced: int, rng: random.Random) -> list[str]:
    """Let the last two sets lose what was not on disk, or any of it; return what was done."""
    firsts = set_firsts(folder)
    done = []
    for which, first in enumerate(firsts[-2:], max(0, len(firsts) - 2)):
        newest = which == len(firsts) - 1
        last = synced if newest else min(synced, firsts[which + 1] - 1)
        for ending, keep in keeps(folder, first, last).items():
            path = (folder / log_format.set_name(first)).with_suffix(ending)
            if path.exists():
                done.append(f"{path.name} kept {keep} of {path.stat().st_size}: {torn(path, keep, rng)}")
    if firsts and firsts[-1] > synced and rng.random() < 0.5:  # nothing says that its names are on disk
        name = log_format.set_name(firsts[-1])
        endings = rng.sample(log_format.ENDINGS, rng.choice((1, 2, 3)))
        undone = rng.random() < 0.5
        for ending in endings:
            path = folder / f"{name}{ending}"
            if undone and path.exists():
                path.rename(folder / f"{NEXT}{ending}")
            else:
                path.unlink(missing_ok=True)
        done.append(f"{name}{endings} {'named as before' if undone else 'gone'}")
    return done


def torn(path: Path, keep: int, rng: random.Random) -> str:
    """Lose any of what lies behind the first `keep` bytes; return how."""
    size = path.stat().st_size
    if size <= keep:
        return "whole"
    low = rng.randrange(keep, size)
    high = rng.randrange(low, size) + 1
    how = rng.choice(("whole", "shorter", "shorter", "zeros", "to the end zeros", "others"))
    with path.open("r+b") as file:
        match how:
            case "shorter":
                file.truncate(low)
            case "to the end zeros":
                file.truncate(low)
                file.truncate(size)
            case "zeros" | "others":
                file.seek(low)
                file.write(bytes(high - low) if how == "zeros" else rng.randbytes(high - low))
    return f"{how} {low}..{high}"


class Written:
    """The payloads, made once."""

    def __init__(self, seed: int) -> None:
        self.seed, self.payloads = seed, list[bytes]()

    def at(self, sequence: int) -> bytes:
        while len(self.payloads) <= sequence:
            self.payloads.append(payload(self.seed, len(self.payloads)))
        return self.payloads[sequence]


def sound(name: str, state: Path, synced: int, written: Written) -> int:
    """Put the copy together, compare it event by event, and continue in it; return its last event."""
    with EventStore.attach(name, state=state) as store:
        newest = store.newest
        assert newest >= synced, f"events up to {synced} were on disk, those up to {newest} are there"
        assert (store.oldest, store.check()) == (0, [])
        for stat in store.subscriptions():
            saved = CheckpointFile(state, name, stat.name).load()
            assert saved is not None
            assert stat.ack.sequence == saved.sequence <= synced, f"{stat.name} is ahead of the disk"
        assert store.put(written.at(newest + 1)) == newest + 1
        store.sync()
        with store.subscribe("all") as reader:
            sequence = 0
            while batch := reader.get(timeout=0):
                assert batch.first == sequence
                for seen in batch.payloads():
                    assert bytes(seen) == written.at(sequence), f"event {sequence} of {newest}"
                    sequence += 1
                reader.ack(batch)
            assert sequence == newest + 2
        return newest


def run(tmp_path: Path, seed: int, *, cuts: int) -> None:
    rng = random.Random(seed)
    arena = Arena(tmp_path / "errors")
    written = Written(seed)
    lost = events = 0
    try:
        for turn in range(cuts // CUTS_A_STORE):
            name = f"power-{os.getpid()}-{turn}"
            EventStore.create(name, capacity=256, memory_unit=512).close()
            common = {"name": name, "seed": seed, "total": FOREVER}
            living = [arena.fork(role="produce", **common, hurry=rng.choice((0.01, 0.05)), sets=SETS)]
            living += [
                arena.fork(
                    role="consume", **common, subscription=f"r{i}", log=str(tmp_path / f"r{i}"), slow=0.01, durable=0.3 * i
                )
                for i in range(2)
            ]
            try:
                for k in range(CUTS_A_STORE):
                    time.sleep(rng.random() * 0.1)
                    copy, state = f"{name}-{k}", tmp_path / f"state{k}"
                    synced = copied(Home.of(name).path, name, Home.of(copy, state).path)
                    done = cut(Home.of(copy, state).log, synced, rng)
                    try:
                        newest = sound(copy, state, synced, written)
                        lost += newest == synced
                        events += newest + 1
                    except BaseException:
                        print(f"cut {k} of store {turn}, on disk up to {synced}", *done, sep="\n")
                        raise
                    finally:
                        with suppress(StoreNotFound):
                            EventStore.unlink(copy, log=True, state=state)
                    shutil.rmtree(state, ignore_errors=True)
                    assert (tmp_path / "errors").read_bytes() == b"", (tmp_path / "errors").read_text()
            finally:
                for pid, started in living:
                    kill(pid, started)
                lose_memory(name)
                with suppress(StoreNotFound):
                    EventStore.unlink(name, log=True)
            assert leftovers(name) == []
    finally:
        arena.close()
    print(f"{cuts} cuts, {events} events compared, {lost} times all was lost that was not known to be on disk")
    assert events


def test_fifty_power_cuts(tmp_path, seed):
    """After 50 emulated cuts of the power while a producer writes, all that was on disk is there, and nothing is wrong."""
    run(tmp_path, seed, cuts=50)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_thousand_power_cuts(tmp_path, seed):
    """The same, 1,000 times."""
    run(tmp_path, seed, cuts=1000)
