"""Mutated segments: bits flipped, words replaced, sectors lost, files cut off. Each is refused or read, never worse.

The work is done in child processes, so that a crash is seen as one; a child that hangs is killed by its own alarm.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shmstore import CheckpointFile, EventStore, Position, ShmStoreError
from shmstore.memory.layout import HEADER, SUBSCRIPTION
from tests.shmstore.samples import begin, ddl, end, leftovers, position, rows

WORDS = (-1, 0, 1, 2, 7, 8, 9, 63, 64, 65, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), -(2**31))


def originals(folder: Path) -> list[tuple[str, Path, dict[str, Any]]]:
    """Stores in files, of every kind: (name, path, layout facts)."""
    found = []
    for kind, options in {
        "plain": {"checksum": False},
        "checked": {},
        "evicting": {"lag": "evict", "evict_after": 0.0, "ddl_isolation": True, "checksum": False},
        "far": {"first_sequence": 2**53 - 3, "checksum": False},
    }.items():
        name, path = f"mutant-{kind}-{os.getpid()}", folder / kind
        with EventStore.create(name, path=path, capacity=16, memory_unit=128, **options, log=False) as store:
            store.claim(start=position(-1))
            store.heartbeat("mysql://here", position(3))
            with store.subscribe("one") as one, store.subscribe("two") as two:
                for i in range(40):
                    store.put([begin(3 * i)._replace(props={}), rows(3 * i + 1), (ddl if i % 4 == 0 else end)(3 * i + 2)])
                    for reader in (one, two):
                        while batch := reader.get(timeout=0):
                            reader.ack(batch)
                store.put([begin(120), rows(121, count=2), end(122)])
                one.ack(one.get(limit_events=2, timeout=0))
            found.append((name, path, {"sizes": store.segment.sizes, "put": store.newest, "end": store.put_cursor.bytes}))
    return found


def mutate(rng: random.Random, data: bytearray, facts: dict[str, Any]) -> str:
    """Change `data` in place, where it hurts; return what was done."""
    sizes, put = facts["sizes"], facts["put"]
    slot_count = sizes.slot_count
    spots = [
        lambda: rng.randrange(HEADER.itemsize),
        lambda: HEADER.itemsize + rng.randrange(3 * SUBSCRIPTION.itemsize),
        lambda: sizes.ends + ((put - rng.randrange(8)) % slot_count) * 8 + rng.randrange(8),
        lambda: sizes.rows + ((put - rng.randrange(8)) % slot_count) * 8 + rng.randrange(8),
        lambda: sizes.slots + ((put - rng.randrange(8)) % slot_count) * 40 + rng.randrange(40),
        lambda: sizes.arena + (facts["end"] - 1 - rng.randrange(600)) % sizes.arena_size,
        lambda: rng.randrange(len(data)),
    ]
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        spot = rng.choice(spots)() % len(data)
        how = rng.choice(("bit", "bit", "word", "word", "byte", "sector", "cut", "longer", "copy"))
        if how in ("cut", "longer") and rng.random() < 0.8:
            how = "word"
        if how == "bit":
            data[spot] ^= 1 << rng.randrange(8)
        elif how == "byte":
            data[spot] = rng.choice((0, 0xFF, rng.randrange(256)))
        elif how == "word":
            spot &= ~7
            value = rng.choice((*WORDS, rng.randrange(-(2**63), 2**63), put + rng.randrange(-40, 40)))
            struct.pack_into("<q", data, spot, value) if spot + 8 <= len(data) else None
        elif how == "sector":
            spot &= ~511
            data[spot : spot + 512] = bytes(len(data[spot : spot + 512]))
        elif how == "copy":
            spot, other = spot & ~511, rng.randrange(len(data)) & ~511
            piece = data[other : other + 512]
            data[spot : spot + len(piece)] = piece
        elif how == "cut":
            del data[spot:]
        else:
            data += bytes(rng.choice((1, 4096)))
        done.append(f"{how}@{spot}")
        if not data:
            break
    return " ".join(done)


def use(name: str, path: Path, folder: Path) -> str:
    """Attach and use everything; a ShmStoreError ends only the part that raised it."""
    refused: list[str] = []
    try:
        store = EventStore.attach(name, path=path)
    except ShmStoreError:
        return "refused"
    with store:

        def read(batch: Any) -> None:
            for payload in batch.payloads():
                assert len(payload) <= 2 * 4096 or batch.oversized
            _ = batch.slots, batch.ends, batch.rows, batch.ack_point, batch.position, batch.events

        def subscribe(who: str) -> None:
            with store.subscribe(who, checkpoint=CheckpointFile(folder, name, who), checkpoint_interval=0) as reader:
                for _ in range(40):
                    if not (batch := reader.get(limit_events=3, timeout=0)):
                        break
                    with suppress(ShmStoreError):
                        read(batch)
                    reader.ack(batch)
                reader.rollback()

        for part in (
            store.check,
            store.stat,
            lambda: read(store.peek(store.oldest)),
            lambda: store.peek(store.newest, limit_bytes=10),
            lambda: store.find(position(121)),
            lambda: store.find(Position("", 0, "u:1-9")),
            lambda: (store.first_position, store.latest_position, store.last_ack_point()),
            *(lambda who=who: subscribe(who) for who in ("one", "two", "three")),
            lambda: store.put([b"x" * 50, b"y"], timeout=0),
            lambda: store.put(rows(130), timeout=0),
            lambda: store.put(b"z" * 5000, timeout=0),
            *(lambda who=who: subscribe(who) for who in ("one", "four")),
            *(lambda who=who: store.unsubscribe(who) for who in ("one", "two", "three", "four")),
            store.clear,
            lambda: store.put(b"w", timeout=0),
            store.check,
        ):
            try:
                part()
            except ShmStoreError as error:
                refused.append(type(error).__name__)
    return f"used, {len(refused)} refused: {' '.join(refused)}"


def work(originals_: list[tuple[str, Path, dict[str, Any]]], folder: Path, seed: int, numbers: range, out: int) -> None:
    """Try the mutations of `numbers`; say each before it is tried."""
    for number in numbers:
        rng = random.Random(seed * 1_000_003 + number)
        name, path, facts = rng.choice(originals_)
        data = bytearray(path.read_bytes())
        done = mutate(rng, data, facts)
        mutant = folder / f"mutant-{numbers.start}"
        mutant.write_bytes(data)
        os.write(out, f"{number} {name} {done}\n".encode())
        signal.alarm(30)
        try:
            result = use(name, mutant, folder)
            os.write(out, f"  {result}\n".encode())
        except Exception as error:
            os.write(out, f"  WRONG {type(error).__name__}: {error}\n".encode())
            if os.environ.get("SHMSTORE_TRACE"):
                raise
        signal.alarm(0)
        with suppress(ShmStoreError):
            EventStore.unlink(name, path=mutant)
        mutant.unlink(missing_ok=True)
        for entry in folder.glob(f"mutant-{numbers.start}@*"):
            entry.unlink()


def run(tmp_path: Path, count: int, seed: int) -> None:
    kept = originals(tmp_path)
    reports: list[str] = []
    step = 250
    try:
        for first in range(0, count, step):
            log = tmp_path / f"log{first}"
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    work(kept, tmp_path, seed, range(first, min(first + step, count)), out)
                    code = 0
                finally:
                    os._exit(code)
            os.close(out)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            lines = log.read_text().splitlines()
            reports += lines
            assert code == 0, f"a child ended with {code} after: {lines[-1]}"
    finally:
        for name, path, _ in kept:
            with suppress(ShmStoreError):
                EventStore.unlink(name, path=path)
            for entry in leftovers(name):
                os.unlink(f"/dev/shm/{entry}")
    wrong = [f"{reports[i - 1]}: {line}" for i, line in enumerate(reports) if "WRONG" in line]
    assert not wrong, "\n".join(wrong[:20])
    results = [line for line in reports if line.startswith("  ")]
    refused = sum(line.strip() == "refused" for line in results)
    print(
        f"{len(results)} mutants, {refused} refused at once, {sum(' 0 refused' in line for line in results)} read without a word"
    )
    assert len(results) == count
    assert 0.02 < refused / count < 0.9  # else the mutations are too tame, or nothing but the header is looked at


def test_the_originals_are_sound(tmp_path):
    """Without a mutation everything works, so that what the mutants show is theirs."""
    kept = originals(tmp_path)
    for name, path, _ in kept:
        copy = shutil.copy(path, tmp_path / "copy")
        refused = use(name, copy, tmp_path).split()[3:]
        # There is no such GTID set, and no free space for the event larger than the ring.
        assert set(refused) <= {"PositionNotFound", "StoreFull"}
        assert len(refused) <= 3
        EventStore.unlink(name, path=copy)
        EventStore.unlink(name, path=path)
        for entry in leftovers(name):
            os.unlink(f"/dev/shm/{entry}")


def test_eight_hundred_mutants(tmp_path, seed):
    """Each of 800 mutated segments is refused with a ShmStoreError or read; none crashes, hangs or raises anything else."""
    run(tmp_path, 800, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_mutants(tmp_path, seed):
    """The same for 10,000."""
    run(tmp_path, 10_000, seed)
