"""A tiny store on the scheduler's memory: the real ring, table, room and subscriptions, on words that hand over control."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from shmstore import BatchMode, EventStore, Subscription
from shmstore.layout import DISARMED, SLOT, SUBSCRIPTIONS, StoreFlag, StoreState, SubscriptionState, header_word
from shmstore.ring import ACK_OF, FLOOR, GET_OF, OVERSIZED, PLACES, PUT, ROOM_WANTED, STATE_OF, WANTED_OF, Writer
from shmstore.segment import Views
from tests.interleavings.scheduler import Memory


class Words:
    """One row of words: an int64 each, at `kind` and its number in the ring."""

    def __init__(self, memory: Memory, kind: str, ring: int) -> None:
        self.memory, self.kind, self.ring = memory, kind, ring

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return np.array([self[k] for k in range(i.start, i.stop)], np.int64)
        return self.memory.load((self.kind, int(i) % self.ring))

    def __setitem__(self, i: int, value: int) -> None:
        self.memory.store((self.kind, int(i) % self.ring), int(value))


class Bytes:
    """The arena: each byte is stored and loaded by itself, so that a payload can be seen half written."""

    def __init__(self, memory: Memory, size: int) -> None:
        self.memory, self.size = memory, size

    def __getitem__(self, s: slice) -> bytes:
        return bytes(self.memory.load(("arena", i % self.size)) for i in range(s.start, s.stop))

    def __setitem__(self, s: slice, value: bytes) -> None:
        for i, byte in zip(range(s.start, s.stop), value, strict=True):
            self.memory.store(("arena", i % self.size), byte)


class Records:
    """The slot records as put_one writes them: 40 bytes at once, of which nothing here depends."""

    def __setitem__(self, s: slice, value: bytes) -> None:
        assert s.stop - s.start == len(value) == 40


class Semaphore:
    """Stands for a Condition: waits without a time-out, so that a lost wake-up is for ever."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.memory, self.name = memory, name

    def wait(self, timeout: float) -> None:
        self.memory.wait(self.name)

    def notify(self) -> None:
        self.memory.post(self.name)

    def close(self) -> None:
        pass


class TableLock:
    """Stands for the table's Lock; nobody dies here."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def __enter__(self) -> None:
        self.memory.lock("table")

    def __exit__(self, *exc: object) -> None:
        self.memory.unlock("table")

    def close(self) -> None:
        pass


class Role:
    """Stands for an Ownership that is free."""

    held = False

    def __init__(self, fd: int = -1, byte: int = 0) -> None:
        pass

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Stage:
    """A store of `capacity` events of `size` bytes each, and who subscribes to it. Everything here happens before the scenario."""

    def __init__(self, memory: Memory, *, capacity: int = 2, size: int = 2, readers: int = 1, evict: bool = False) -> None:
        self.memory = memory
        limit, places = size * capacity, 2 * capacity
        words = Words(memory, "word", 10**9)
        ends, self.slots = Words(memory, "ends", places), np.zeros(2 * places, SLOT)
        self.views = Views(
            words, ends, Words(memory, "rows", places), self.slots, Bytes(memory, limit), ends, np.zeros(2 * places, np.int64),
            Records(), places, capacity, limit, limit, 0, 0,
        )  # type: ignore[arg-type]  # fmt: skip
        self.words, self.name, self.path = words, "stage", None
        self.objects = self.beside = self.semaphores = "stage"
        self.flags = StoreFlag.EVICT if evict else StoreFlag(0)
        self.batch_mode, self.memory_unit, self.evict_after, self.epoch = BatchMode.MEMSIZE, 2, 0.0, 1
        self.fd, self.mode, self.gid = -1, 0o600, -1
        self.texts = {place: f"s{place}" for place in range(1, readers + 1)}
        for word in (PUT, FLOOR, OVERSIZED):
            words[word] = -1
        words[ROOM_WANTED], words[header_word("state")] = DISARMED, StoreState.LIVE
        words[PLACES] = readers + 1
        for place in range(SUBSCRIPTIONS):
            words[WANTED_OF[place]] = DISARMED
            words[GET_OF[place]] = words[ACK_OF[place]] = -1
            words[STATE_OF[place]] = SubscriptionState.ACTIVE if 0 < place <= readers or place == readers == 0 else 0
        self.producer = EventStore(self)  # type: ignore[arg-type]
        self.producer._writer = Writer(self.views)

    removed = False

    def read_text(self, field: str, place: int | None = None) -> str:
        return self.texts.get(place or -1, "")

    def write_text(self, field: str, text: str, place: int | None = None) -> None:
        self.texts[place or -1] = text

    def attach(self) -> EventStore:
        return EventStore(self)  # type: ignore[arg-type]

    def reader(self, place: int) -> Subscription:
        store = self.attach()
        return Subscription(store, f"s{place}", place, Role(), Semaphore(self.memory, f"/stage.{place}"), None, 1.0)  # type: ignore[arg-type]

    def put(self, *payloads: bytes) -> None:
        """Put before the scenario begins."""
        for payload in payloads:
            self.producer.put(payload, timeout=0)


def read(batch: Any) -> tuple[bytes, ...]:
    """The payloads of a batch, loaded now."""
    return tuple(bytes(payload) for payload in batch.payloads())


@contextmanager
def staged(patch: pytest.MonkeyPatch, memory_of: Callable[[], Memory], *, asymmetric: bool = True) -> Iterator[None]:
    """Let the store's modules, wherever they use them, have the scheduler's fences, locks, roles and semaphores."""
    stand_ins = {
        "fence": lambda: memory_of().fence(),
        "heavy_fence": (lambda: memory_of().heavy_fence()) if asymmetric else (lambda: memory_of().fence()),
        "ASYMMETRIC": asymmetric,
        "Lock": lambda *a: TableLock(memory_of()),
        "Condition": lambda name, *a: Semaphore(memory_of(), name),
        "Ownership": Role,
        "start_time": lambda pid: 1,
        "SPINS": 0,
    }
    with patch.context() as patched:
        for module in [m for n, m in sys.modules.items() if n.startswith("shmstore.") and n != "shmstore.sync"]:
            for name, stand_in in stand_ins.items():
                if hasattr(module, name):
                    patched.setattr(module, name, stand_in)
        yield
