"""A tiny store on the scheduler's memory: the real ring, table, space and subscriptions, on words that hand over control."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import shmstore.store.stats
import shmstore.store.subscription_table
from shmstore import BatchMode, EventStore, Subscription
from shmstore.memory.layout import (
    DISARMED,
    LOCK_SUBSCRIPTION,
    SLOT,
    SUBSCRIPTIONS,
    StoreFlag,
    StoreState,
    SubscriptionState,
    header_word,
    sizes,
    subscription_word,
)
from shmstore.memory.locks import Ownership
from shmstore.memory.mapping import Views
from shmstore.ring.cursors import ACK_OF, ACK_WANTED, ARMED, ENTRIES, FLOOR, GET_OF, OVERSIZED, PUT, STATE_OF, WANTED_OF
from shmstore.ring.writer import Writer
from tests.interleavings.process import Memory

CONDITIONS = {header_word("freed"): "freed", header_word("lock"): "lock"} | {
    subscription_word(entry, "woken"): f"/stage.{entry}" for entry in range(SUBSCRIPTIONS)
}
PLAIN_STORES: frozenset[int] = frozenset()  # words that are stored, or loaded, without an order
PLAIN_LOADS: frozenset[int] = frozenset()


#: Modules whose fences, locks and semaphores the stand-ins take the place of.
OWN_FENCES = {f"shmstore.memory.{name}" for name in ("ordering", "locks", "semaphores", "deadline")}


class Words:
    """One row of words: an int64 each, at `kind` and its number in the ring."""

    def __init__(self, memory: Memory, kind: str, ring: int) -> None:
        self.memory, self.kind, self.ring = memory, kind, ring
        self.ordered = kind == "word"  # those are stored with release and loaded with acquire

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            found = np.array([self[k] for k in range(i.start, i.stop)], np.int64).view(Run)
            found.words, found.start = self, i.start
            return found
        return self.memory.load((self.kind, int(i) % self.ring), acquire=self.ordered and i not in PLAIN_LOADS)

    def __setitem__(self, i: int, value: int) -> None:
        self.memory.store((self.kind, int(i) % self.ring), int(value), release=self.ordered and i not in PLAIN_STORES)


class Run(np.ndarray):
    """Words loaded by one slice; what numpy computes into it is stored, word by word."""

    words: Words
    start: int

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        result = getattr(ufunc, method)(*(np.asarray(each) if isinstance(each, Run) else each for each in inputs), **options)
        for run in out:
            for k, value in enumerate(result.tolist()):
                run.words[run.start + k] = value
        return result


class Bytes:
    """The arena: each byte is stored and loaded alone, so that a payload can be seen half written."""

    def __init__(self, memory: Memory, size: int) -> None:
        self.memory, self.size = memory, size

    def __getitem__(self, s: slice) -> bytes:
        return bytes(self.memory.load(("arena", i % self.size)) for i in range(s.start, s.stop))

    def __setitem__(self, s: slice, value: bytes) -> None:
        for i, byte in zip(range(s.start, s.stop), value, strict=True):
            self.memory.store(("arena", i % self.size), byte)


class Records:
    """The slot records as they are written: 40 bytes each, of which nothing here depends."""

    def __setitem__(self, s: slice, value: bytes) -> None:
        assert s.stop - s.start == len(value)
        assert len(value) % SLOT.itemsize == 0


class Semaphore:
    """Replaces a Condition: waits without a time-out, so that a lost wake-up is forever; several notices before a wait are one."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.memory, self.name = memory, name
        self.one_waits = name != "lock"  # of several, another may take the notice meanwhile

    def wait(self, timeout: float) -> None:
        self.memory.wait(self.name)
        while self.one_waits and self.memory.value(self.name):
            self.memory.wait(self.name)

    def notify(self) -> None:
        self.memory.post(self.name)

    @property
    def notified(self) -> bool:
        return self.memory.value(self.name) > 0


class TableLock:
    """Replaces the table's Lock: excludes, and is free again when its holder is killed."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        Memory.current.lock("table")

    def __exit__(self, *exc: object) -> None:
        Memory.current.unlock("table")

    def close(self) -> None:
        pass


class Role:
    """Replaces an Ownership: its holder is a side, and it is free again when that side is killed."""

    def __init__(self, fd: int, byte: int, *, held: bool = False) -> None:
        self.byte, self.held = byte, held

    def acquire(self) -> bool:
        self.held = self.held or Memory.current.try_lock(("role", self.byte))
        return self.held

    def release(self) -> None:
        if self.held:
            self.held = False
            Memory.current.unlock(("role", self.byte))

    def taken(self) -> bool:
        return self.held or Memory.current.taken(("role", self.byte))

    noted = Ownership.noted


class Clock:
    """Replaces the module time: no time passes."""

    CLOCK_BOOTTIME = 7

    @staticmethod
    def time_ns() -> int:
        return 0

    @staticmethod
    def clock_gettime_ns(clock: int) -> int:
        return 0

    @staticmethod
    def monotonic() -> float:
        return 0.0

    perf_counter = monotonic


class System:
    """Replaces the module os where it is asked for the process's number."""

    @staticmethod
    def getpid() -> int:
        side = Memory.current.side
        return pid_of(side.name) if side else 1


def pid_of(name: str) -> int:
    """The process number of a side."""
    return int.from_bytes(name.encode(), "big")


class Stage:
    """A store of `capacity` events of `size` bytes each, and who subscribes to it. Everything here happens before the scenario."""

    def closed(self) -> Stage:
        """Itself: what is closed here has no memory to give back."""
        return self

    def __init__(self, memory: Memory, *, capacity: int = 2, size: int = 2, readers: int = 1, evict: bool = False) -> None:
        self.memory = memory
        limit, slot_count = size * capacity, 2 * capacity
        words = Words(memory, "word", 10**9)
        ends, rows = Words(memory, "ends", slot_count), Words(memory, "rows", slot_count)
        self.slots = np.zeros(2 * slot_count, SLOT)
        self.views = Views(
            words,
            memoryview(b""),
            ends,
            rows,
            self.slots,
            Bytes(memory, limit),
            ends,
            rows,
            Records(),
            slot_count,
            capacity,
            limit,
            limit,
            0,
            0,
        )  # type: ignore[arg-type]
        self.words, self.name, self.path = words, "stage", None
        self.where = self.overflow_prefix = "stage"
        self.flags = StoreFlag.EVICT if evict else StoreFlag(0)
        self.batch_mode, self.memory_unit, self.evict_after, self.epoch = BatchMode.MEMSIZE, 2, 0.0, 1
        self.fd, self.mode, self.gid = -1, 0o600, -1
        self.created_ms, self.sizes = 0, sizes(512, 4096)
        self.home, self.log, self.linked = "", None, True
        self.look = lambda: not self.removed
        for entry in range(1, readers + 1):
            self.write_text("name", f"s{entry}", entry)
        for word in (PUT, FLOOR, OVERSIZED):
            words[word] = -1
        words[ACK_WANTED], words[header_word("state")] = DISARMED, StoreState.LIVE
        words[ENTRIES] = readers + 1
        for entry in range(SUBSCRIPTIONS):
            words[WANTED_OF[entry]] = DISARMED
            words[GET_OF[entry]] = words[ACK_OF[entry]] = -1
            words[STATE_OF[entry]] = SubscriptionState.ACTIVE if 0 < entry <= readers or entry == readers == 0 else 0
        self.producer = EventStore(self)  # type: ignore[arg-type]
        self.producer._writer = Writer(self.views)

    @property
    def removed(self) -> bool:
        return bool(self.words[header_word("state")] != StoreState.LIVE)

    def read_text(self, field: str, entry: int | None = None) -> str:
        return self.memory.load(("text", field, entry)) or ""

    def write_text(self, field: str, text: str, entry: int | None = None) -> None:
        self.memory.store(("text", field, entry), text)

    def attach(self) -> EventStore:
        return EventStore(self)  # type: ignore[arg-type]

    def reader(self, entry: int, owner: str = "") -> Subscription:
        """The subscription at `entry`, owned by the side `owner`."""
        role = Role(-1, LOCK_SUBSCRIPTION + entry, held=bool(owner))
        if owner:
            self.memory.cells["lock", ("role", role.byte)] = owner
        condition = Semaphore(self.memory, f"/stage.{entry}")
        return Subscription(self.attach(), f"s{entry}", entry, role, condition, None, 1.0)  # type: ignore[arg-type]

    def arm(self, entry: int, *, wanted: int) -> None:
        """Let the reader at `entry` sleep already, until `wanted` is put."""
        self.words[WANTED_OF[entry]], self.words[ARMED] = wanted, 1

    def close(self) -> None:
        pass

    def put(self, *payloads: bytes) -> None:
        """Put before the scenario begins."""
        for payload in payloads:
            self.producer.put(payload, timeout=0)


def read(batch: Any) -> tuple[bytes, ...]:
    """The payloads of a batch, loaded now."""
    return tuple(bytes(payload) for payload in batch.payloads())


@contextmanager
def staged(
    patch: pytest.MonkeyPatch, *, asymmetric: bool = True, plain_stores: Iterable[int] = (), plain_loads: Iterable[int] = ()
) -> Iterator[None]:
    """Let the store's modules, wherever they use them, have the scheduler's fences, locks, roles and semaphores, and no clock."""
    stand_ins = {
        "fence": lambda: Memory.current.fence(),
        "heavy_fence": lambda: Memory.current.heavy_fence() if asymmetric else Memory.current.fence(),
        "ASYMMETRIC": asymmetric,
        "Lock": TableLock,
        "Condition": lambda fixed, word: Semaphore(Memory.current, CONDITIONS[word]),
        "Ownership": Role,
        "start_time": lambda pid: 1,
        "SPINS": 0,
        "entries": lambda directory: [],
        "time": Clock,
    }
    with patch.context() as patched:
        patched.setattr(sys.modules[__name__], "PLAIN_STORES", frozenset(plain_stores))
        patched.setattr(sys.modules[__name__], "PLAIN_LOADS", frozenset(plain_loads))
        for module in [m for n, m in sys.modules.items() if n.startswith("shmstore.") and n not in OWN_FENCES]:
            for name, stand_in in stand_ins.items():
                if hasattr(module, name):
                    patched.setattr(module, name, stand_in)
        for module in (shmstore.store.subscription_table, shmstore.store.stats):
            patched.setattr(module, "os", System)
        yield
