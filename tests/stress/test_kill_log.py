"""Producer and readers of a store with a log killed with -9 at random instants, and the memory taken from under the dead, as a reboot does.

Promises held: every event's content is right, by its sequence; no event is in the log twice, none is missing; what was acked does not
come again, what was durably acked not even after a reboot; all else does; no process needs help.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from shmstore import CheckpointFile, EventStore, StoreNotFound
from shmstore.memory.locks import is_alive
from shmstore.ring.overflow import overflows
from tests.shmstore.samples import leftovers
from tests.stress.arena import payload
from tests.stress.test_kill import EVENTS_A_KILL, Arena

SETS = 40_000, 150  # bytes and events of a set of the log: a run goes through many
REBOOTS = 0.12  # of the kills are of all processes, with the memory


def lose_memory(name: str) -> None:
    """What a reboot does to a store."""
    for each in os.listdir("/dev/shm"):
        if each == f"shmstore.{name}" or each.startswith(f"shmstore.{name}@"):
            os.unlink(f"/dev/shm/{each}")


def run(tmp_path: Path, seed: int, *, kills: int, readers: int) -> None:
    rng = random.Random(seed)
    name = f"kill-log-{os.getpid()}"
    total = kills * EVENTS_A_KILL
    names = [f"r{i}" for i in range(readers)]
    errors = tmp_path / "errors"
    arena = Arena(errors)
    orders: dict[str, dict[str, object]] = {
        "producer": {"role": "produce", "name": name, "seed": seed, "total": total, "hurry": 0.0, "sets": SETS}
    }
    for i, who in enumerate(names):
        orders[who] = {
            "role": "consume", "name": name, "subscription": who, "seed": seed, "total": total, "log": str(tmp_path / who),
            "slow": (0.0, 0.002, 0.01)[i % 3], "durable": 0.05,
        }  # fmt: skip
    killed = reboots = 0
    try:
        with EventStore.create(name, capacity=64, memory_unit=512) as store:
            for who in names:
                store.subscribe(who).close()
        living = {who: arena.fork(**order) for who, order in orders.items()}
        until = time.monotonic() + 60 + kills
        while living:
            for who, (pid, started) in list(living.items()):
                if not is_alive(pid, started):
                    del living[who]
                    assert errors.read_bytes() == b"", errors.read_text()
                    if not finished(name, who, total):
                        living[who] = arena.fork(**orders[who])
            assert time.monotonic() < until, f"{sorted(living)} do not come to an end"
            time.sleep(rng.random() * 0.03)
            if killed >= kills or not living:
                continue
            if rng.random() < REBOOTS:
                killed, reboots = killed + len(living), reboots + 1
                for pid, started in living.values():
                    kill(pid, started)
                lose_memory(name)
                note_reboot(name, names, tmp_path, attach=rng.random() < 0.5)
                living = {who: arena.fork(**orders[who]) for who in rng.sample(sorted(orders), len(orders))}  # all at once
            else:
                pid, started = living[rng.choice(sorted(living))]
                kill(pid, started)
                killed += 1
        print(f"{killed} kills, {reboots} reboots, {total} events")
        assert killed >= kills * 0.9, f"the events ran out after {killed} kills: raise EVENTS_A_KILL"
        assert reboots
        assert errors.read_bytes() == b"", errors.read_text()
        with EventStore.attach(name) as store:
            assert store.newest == total - 1
            assert {stat.ack.sequence for stat in store.subscriptions()} == {total - 1}
            store.claim()
            store.sync()
            assert overflows(store.segment) == []
            assert [found for found in store.check() if "died" not in found] == []
            with store.subscribe("all") as everything:
                for sequence in range(total):
                    batch = everything.get(limit_events=1, timeout=5)
                    assert (batch.first, bytes(batch.raw)) == (sequence, payload(seed, sequence))
        for who in names:
            verify(tmp_path / who, total)
    finally:
        arena.close()
        with suppress(StoreNotFound):
            EventStore.unlink(name, log=True)
    assert leftovers(name) == []


def kill(pid: int, started: int) -> None:
    """kill -9, and wait until it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while is_alive(pid, started):
        time.sleep(0.001)


def finished(name: str, who: str, total: int) -> bool:
    with EventStore.attach(name) as store:
        if who == "producer":
            return store.newest >= total - 1
        return any(stat.name == who and stat.ack.sequence >= total - 1 for stat in store.subscriptions())


def note_reboot(name: str, names: list[str], folder: Path, *, attach: bool) -> None:
    """Write into the readers' notes where they continue: as the store says that was put together, or as the files say."""
    acks: dict[str, int] = {}
    for who in names:
        saved = CheckpointFile(None, name, who).load()
        assert saved is not None
        acks[who] = saved.sequence
    if attach:  # else the processes do it, all at once
        with EventStore.attach(name) as store:
            assert {stat.name: stat.ack.sequence for stat in store.subscriptions()} == acks
            assert all(ack <= store.newest for ack in acks.values())
    for who, ack in acks.items():
        with (folder / who).open("ab") as notes:
            notes.write(b"\nr %d\n" % ack)


def verify(log: Path, total: int) -> None:
    """From a reader's notes: all processed, in order; nothing noted as acked came again but for what a reboot says."""
    done = acked = durable = -1
    for line in log.read_bytes().split(b"\n"):
        match line.split():
            case [b"g", first, last]:
                assert int(first) > acked, f"event {first!r} came again after {acked} was acked"
                assert int(first) <= done + 1, f"events {done + 1} to {int(first) - 1} are missing"
                done = max(done, int(last))
            case [b"a", last]:
                acked = max(acked, int(last))
            case [b"d", last]:
                durable = int(last)
            case [b"r", ack]:
                assert durable <= int(ack) <= done, f"the reboot went back to {ack!r}, durable was {durable}, processed {done}"
                done = acked = int(ack)
    assert done == total - 1


def test_forty_kills_and_reboots(tmp_path, seed):
    """A producer and three readers are killed 40 times in mid-flow, some of that with the memory; every event is compared."""
    run(tmp_path, seed, kills=40, readers=3)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_thousand_kills_and_reboots(tmp_path, seed):
    """The same, 1,000 times."""
    run(tmp_path, seed, kills=1000, readers=3)
