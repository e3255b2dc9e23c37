"""Producer and readers killed with -9 at random instants, again and again, while events flow.

Promises held: every event's content is right; nothing is lost; nothing acked is given again; ack <= get <= put at every
moment; the living are never blocked by the dead; nothing is left in shared memory.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.memory.locks import is_alive, start_time
from shmstore.ring.overflow import overflows
from tests.shmstore.samples import leftovers

ROOT = Path(__file__).resolve().parents[2]
EVENTS_A_KILL = 60


class Arena:
    """The forking server, and what it forked."""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.stress.arena"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors.open("wb"), text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)},
        )  # fmt: skip

    def fork(self, **order: Any) -> tuple[int, int]:
        """Start a role; return (pid, start time), by which it is known to live."""
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        return pid, start_time(pid)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


def run(tmp_path: Path, seed: int, *, kills: int, readers: int) -> None:
    rng = random.Random(seed)
    name = f"kill-{os.getpid()}"
    total = kills * EVENTS_A_KILL
    arena = Arena(tmp_path / "errors")
    orders = {"producer": {"role": "produce", "name": name, "seed": seed, "total": total, "hurry": 0.0}}
    for i in range(readers):
        orders[f"r{i}"] = {
            "role": "consume", "name": name, "subscription": f"r{i}", "seed": seed, "total": total,
            "log": str(tmp_path / f"r{i}"), "slow": (0.0, 0.002, 0.0)[i % 3],
        }  # fmt: skip
    try:
        with EventStore.create(name, capacity=64, memory_unit=512, log=False) as store:
            for who in list(orders)[1:]:
                store.subscribe(who).close()  # so that nothing is put before all count
            living = {who: arena.fork(**order) for who, order in orders.items()}
            killed, moved, last = 0, time.monotonic(), None
            while living:
                watch(store)
                for who, (pid, started) in list(living.items()):
                    if not is_alive(pid, started):
                        del living[who]
                        if not finished(store, who, total):
                            assert (tmp_path / "errors").read_bytes() == b"", (tmp_path / "errors").read_text()
                            living[who] = arena.fork(**orders[who])
                progress = (store.newest, *(stat.ack.sequence for stat in store.subscriptions()))
                if progress != last:
                    moved, last = time.monotonic(), progress
                assert time.monotonic() - moved < 60, f"nobody moves: {progress}, living {living}, check {store.check()}"
                if killed < kills and living:
                    time.sleep(rng.random() * 0.02)
                    for who in rng.sample(sorted(living), rng.choice((1, 1, 1, 2))) if len(living) > 1 else sorted(living):
                        with suppress(ProcessLookupError):
                            os.kill(living[who][0], signal.SIGKILL)
                        killed += 1
                else:
                    time.sleep(0.01)
            print(f"{killed} kills, {total} events")
            assert killed >= kills * 0.9, f"the events ran out after {killed} kills: raise EVENTS_A_KILL"
            assert (tmp_path / "errors").read_bytes() == b"", (tmp_path / "errors").read_text()
            assert store.newest == total - 1
            assert {stat.ack.sequence for stat in store.subscriptions()} == {total - 1}
            assert [found for found in store.check() if "died" not in found and "next producer" not in found] == []
            store.claim()
            assert overflows(store.segment) == []
        for i in range(readers):
            verify(tmp_path / f"r{i}", total)
    finally:
        arena.close()
        EventStore.unlink(name)
    assert leftovers(name) == []


def finished(store: EventStore, who: str, total: int) -> bool:
    if who == "producer":
        return store.newest >= total - 1
    return any(stat.name == who and stat.ack.sequence >= total - 1 for stat in store.subscriptions())


def watch(store: EventStore) -> None:
    """ack <= get <= put, read in the order in which they can only have grown."""
    words = store.segment.words
    from shmstore.ring.cursors import ACK_OF, ENTRIES, GET_OF, PUT

    for entry in range(1, words[ENTRIES]):
        ack = words[ACK_OF[entry]]
        get_low = words[GET_OF[entry]]
        put = words[PUT]
        assert -1 <= ack <= put
        assert -1 <= get_low <= put


def verify(log: Path, total: int) -> None:
    """From a reader's notes: all processed, in order; nothing noted as acked was processed again."""
    done = -1  # all up to here was processed, seen from the notes
    acked = -1
    for line in log.read_bytes().split(b"\n"):
        parts = line.split()
        if len(parts) == 3 and parts[0] == b"g":
            first, last = int(parts[1]), int(parts[2])
            assert first > acked, f"event {first} came again after {acked} was acked"
            assert first <= done + 1, f"events {done + 1} to {first - 1} are missing"
            done = max(done, last)
        elif len(parts) == 2 and parts[0] == b"a":
            acked = max(acked, int(parts[1]))
    assert done == total - 1


def test_a_hundred_kills(tmp_path, seed):
    """A producer and three readers are killed 100 times in mid-flow; nothing is lost and nothing acked comes again."""
    run(tmp_path, seed, kills=100, readers=3)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_thousand_kills(tmp_path, seed):
    """The same, 1,200 times."""
    run(tmp_path, seed, kills=1200, readers=4)
