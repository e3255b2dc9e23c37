"""The log behind the ring: what it costs the producer, how fast the past is read, and logs of other projects on the same disk.

``append`` is the log's own CPU for each byte that it writes (payloads, records and blocks), compared with pwrite of as many bytes in
pieces as large as the log writes at once, synced as often. ``put/N`` and ``put_encoded/N`` are what a producer puts with a log
and without (``shmstore ring alone``); ``shmstore appender apart``, for comparison only, has the log written by a process of its own. ``catch-up``
reads from the log's beginning, out of the page cache, compared with reading the same events in a ring, and ``catch-up/raw`` with a
plain read of the log's files. ``readers/N`` is a producer next to N readers at N places of the log. ``open`` and ``find``
are a home of as many sets of files as N says: 1,600 are 100 GB.
``produce`` and ``consume`` go to Kafka, Redis and SQLite, too. ``memory`` is that of a reader far behind, and of one that keeps
up.

All of it is in a new folder of ``TMPDIR``, /var/tmp where that is not set: the disk that is measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from scripts.benchmarks import measure
from scripts.benchmarks.peers import logs
from scripts.benchmarks.peers.logs import EVENT, apart, cpu
from scripts.benchmarks.producer import memory
from scripts.benchmarks.ring import fake_log
from scripts.benchmarks.ring import store as ring_bench
from scripts.benchmarks.stores import new_store
from shmstore import SLOT, EventStore, Position, StoreNotFound
from shmstore.log.format import BLOCKS, EVENTS, GROUP_BYTES, RECORD
from shmstore.log.keeper import Keeper
from shmstore.memory.ordering import hot

_RING = {"capacity": 65536, "memory_unit": 256}  # 16 MiB
_READERS = 16
_READER = """
import sys
from shmstore import EventStore
name, state, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
with EventStore.attach(name, state=state) as store:
    reader = store.subscribe("reader", start="earliest")
    print("ready", flush=True)
    while left > 0:
        batch = reader.get(limit_events=1000, timeout=60)
        bytes(batch.raw)
        left -= len(batch)
        reader.ack(batch)
"""


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case that is wanted; return the measurements."""
    taken: list[measure.Measurement] = []
    folder = Path(tempfile.mkdtemp(prefix="shmstore-bench-log-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        for case in (_append, _puts, _catch_up, _many_readers, _opening, _peers, _memory):
            case(taken, folder, runs, size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return taken


def _note(taken: list[measure.Measurement], case: str, subject: str, metric: str, unit: str, values: list[float]) -> None:
    taken.append(measure.of("log", case, subject, metric, unit, values))
    measure.say(f"log {case} {subject} {metric}: {measure.number(taken[-1].median)} {unit}")


def _store(folder: Path, *, log: bool = True) -> AbstractContextManager[EventStore]:
    """A new store, with a ring that is smaller than the load."""
    return new_store("log", state=folder, log=log, **_RING)


def _encoded(count: int, payload: bytes = bytes(EVENT)) -> tuple[bytes, Any]:
    slots = np.zeros(count, SLOT)
    slots["size"], slots["rows"] = len(payload), 1
    return payload * count, slots


# ---------------------------------------------------------------- append


def _append(taken: list[measure.Measurement], folder: Path, runs: int, size: measure.Size) -> None:
    """CPU of the log, as what the producer's process needs more with it than without, and by the clocks of its two threads."""
    if not measure.wanted("append"):
        return
    events = size.of(5_000_000, 1000)
    whole, threads, plain = [], [], []
    apart(
        _cpu_of_pwrite, folder, events * (EVENT + RECORD.itemsize)
    )  # pages that a virtual machine has not had yet cost it a lot
    for _ in range(runs):
        on, of_threads, size = apart(_cpu_of_puts, folder, events, True)
        off = apart(_cpu_of_puts, folder, events, False)[0]
        whole.append((on - off) * 1e9 / size)
        threads.append(of_threads * 1e9 / size)
        plain.append(apart(_cpu_of_pwrite, folder, size) * 1e9 / size)
    _note(taken, "append", "shmstore", "cpu", "ns/byte", whole)
    _note(taken, "append", "shmstore", "threads", "ns/byte", threads)
    _note(taken, "append", "plain pwrite", "cpu", "ns/byte", plain)
    _note(taken, "append", "plain pwrite", "threads", "ns/byte", plain)


def _cpu_of_puts(folder: Path, events: int, log: bool) -> tuple[float, float, int]:
    """CPU of a process that puts and syncs: all of it, that of the log's threads, and the bytes that these wrote."""
    blob, slots = _encoded(1000)
    with _store(folder, log=log) as store:
        reader = None if log else store.subscribe("reader")

        def put(count: int) -> None:
            for _ in range(count // 1000):
                store.put_encoded(blob, slots)
                if reader is not None:
                    reader.ack(reader.get())
            store.sync()

        put(100_000)  # the first touch of the ring's memory is no cost of the log
        before, of_threads = cpu(), _cpu_of_threads()
        put(events)
        used, of_threads = cpu() - before, _cpu_of_threads() - of_threads
        blocks = sum(path.stat().st_size for path in Path(store.segment.home, "log").glob("*" + BLOCKS)) if log else 0
        return used, of_threads, events * (EVENT + RECORD.itemsize) + blocks


def _cpu_of_threads() -> float:
    """CPU of the log's threads in this process."""
    found = [thread.ident for thread in threading.enumerate() if thread.name.startswith("log-")]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in found if ident is not None)


def _cpu_of_pwrite(folder: Path, size: int) -> float:
    """CPU of writing `size` bytes out of as much memory as the ring has."""
    memory_ = memoryview(os.urandom(1 << 20) * 16)
    path = folder / "plain"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        before = cpu()
        with logs.synced(fd):
            for at in range(0, size, GROUP_BYTES):
                start = at % len(memory_)
                os.pwrite(fd, memory_[start : start + min(GROUP_BYTES, size - at)], at)
        return cpu() - before
    finally:
        os.close(fd)
        path.unlink()


# ---------------------------------------------------------------- put


def _puts(taken: list[measure.Measurement], folder: Path, runs: int, size: measure.Size) -> None:
    cases = (("put/1", 1, 2_000_000), ("put/100", 100, 5_000_000), ("put_encoded/1000", 1000, 5_000_000))
    for case, batch, events in cases:
        if not measure.wanted(case):
            continue
        costs: dict[str, list[tuple[float, float]]] = {"shmstore": [], "shmstore appender apart": [], "shmstore ring alone": []}
        for _ in range(runs):
            for subject, found in costs.items():
                found.append(apart(_put_cost, folder, case, batch, size.of(events, 10_000), subject))
        for subject, found in costs.items():
            _note(taken, case, subject, "throughput", "events/s", [rate for rate, _ in found])
            _note(taken, case, subject, "cpu", "ns/event", [used for _, used in found])


def _put_cost(folder: Path, case: str, batch: int, events: int, subject: str) -> tuple[float, float]:
    """Events/s that a producer puts, and its own thread's CPU in ns an event.

    One subscription jumps to the end now and then, which costs nothing and gives the space of a ring without a log away.
    """
    payload = bytes(EVENT)
    payloads, (blob, slots) = [payload] * batch, _encoded(batch)
    with _store(folder, log=subject != "shmstore ring alone") as store:
        over = _apart_appender(store, folder) if subject == "shmstore appender apart" else lambda: None
        try:
            put: Callable[[], object]
            if case.startswith("put_encoded"):
                put = lambda: store.put_encoded(blob, slots)  # noqa: E731
            else:
                put = (lambda: store.put(payload)) if batch == 1 else lambda: store.put(payloads)
            reader = store.subscribe("reader")
            rate = used = 0.0
            for count in (100_000, events):
                began, used = time.perf_counter(), time.thread_time()
                for _ in range(count // 10_000):
                    for _ in range(10_000 // batch):
                        put()
                    reader.ack(reader.get())
                rate, used = count / (time.perf_counter() - began), (time.thread_time() - used) * 1e9 / count
            return rate, used
        finally:
            over()


def _apart_appender(store: EventStore, folder: Path) -> Callable[[], None]:
    """Let a process of its own write the log; return what ends it."""
    ready, over = logs._FORK.Event(), logs._FORK.Event()

    def append() -> None:
        with EventStore.attach(store.name, state=folder) as attached:
            keeper = Keeper(attached.segment, attached._table, attached._putting)
            keeper.check()
            keeper.start()
            ready.set()
            over.wait()
            keeper.close(10.0)

    process = logs._FORK.Process(target=append)
    process.start()
    ready.wait()
    store._open_log = lambda: None  # type: ignore[method-assign]

    def end() -> None:
        over.set()
        process.join()

    return end


# ---------------------------------------------------------------- catch-up


def _catch_up(taken: list[measure.Measurement], folder: Path, runs: int, size: measure.Size) -> None:
    """Reading batches of 1000: `raw` makes bytes of each, `views` makes a view of each payload, `decode` decodes them."""
    events = size.of(2_000_000, 50_000)
    for kind in ("raw", "views", "decode"):
        if not measure.wanted(f"catch-up/{kind}"):
            continue
        rates: dict[str, list[float]] = {}
        for turn in range(runs):
            found = apart(_from_log, folder, events, kind, turn) | {
                "shmstore ring alone": apart(_from_ring, folder, events, kind)
            }
            for subject, rate in found.items():
                rates.setdefault(subject, []).append(rate)
        for subject, found in rates.items():
            _note(taken, f"catch-up/{kind}", subject, "throughput", "events/s", found)


def _payload() -> bytes:
    payload: bytes = msgpack.packb(ring_bench._ROW)
    return payload


def _reading(reader: Any, kind: str, count: int) -> float:
    """Read so many events; return the seconds."""
    decode = msgpack.unpackb
    left, began = count, time.perf_counter()
    while left > 0:
        batch = reader.get(limit_events=1000)
        if kind == "raw":
            bytes(batch.raw)
        elif kind == "views":
            for _ in batch.payloads():
                pass
        else:
            for payload in batch.payloads():
                decode(payload)
        left -= len(batch)
        reader.ack(batch)
    return time.perf_counter() - began


def _from_log(folder: Path, events: int, kind: str, turn: int) -> dict[str, float]:
    """Events/s of a reader that begins where the log does, while no process puts. Of whole batches also of plain reads of the same files, in turn."""
    encoded = _encoded(1000, _payload())
    with _store(folder) as store:
        for _ in range(events // 1000):
            store.put_encoded(*encoded)
        store.sync()
        files = sorted(Path(store.segment.home, "log").glob("[0-9]*" + EVENTS))
        size = events * len(_payload())
        subjects: dict[str, Callable[[], Any]] = {
            "shmstore": lambda: apart(_attached, store.name, folder, lambda reader: _reading(reader, kind, events))
        }
        if kind == "raw":  # they make neither views nor objects
            subjects["plain read"] = lambda: apart(_plainly, files, size, None)
            subjects["plain read, checked"] = lambda: apart(_plainly, files, size, hot.crc32 if hot else zlib.crc32)
        names = list(subjects)
        first = turn % len(names)
        return {name: events / float(subjects[name]()) for name in names[first:] + names[:first]}


def _plainly(files: list[Path], size: int, check: Callable[[Any], int] | None) -> float:
    """Read the `size` bytes of payloads that the log's files have, into one piece of memory, and check each piece; return the seconds."""
    piece, got = memoryview(bytearray(GROUP_BYTES)), 0
    began = time.perf_counter()
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while got < size and (count := file.readinto(piece)):
                got += count
                if check is not None:
                    check(piece[:count])
    seconds = time.perf_counter() - began
    if got < size:
        raise RuntimeError(f"the log's files have {got} bytes of payloads, not {size}")
    return seconds


def _attached(name: str, folder: Path, act: Callable[[Any], Any]) -> Any:
    with EventStore.attach(name, state=folder) as store:
        return act(store.subscribe("reader", start="earliest"))


def _from_ring(folder: Path, events: int, kind: str) -> float:
    """The same of a ring that is filled each time that it was read; filling it is not timed."""
    encoded, spent = _encoded(1000, _payload()), 0.0
    with _store(folder, log=False) as store:
        reader = store.subscribe("reader")
        for round_ in range(events // 50_000 + 1):
            for _ in range(50):
                store.put_encoded(*encoded)
            seconds = _reading(reader, kind, 50_000)
            spent += seconds if round_ else 0.0  # the first one touches the ring's memory
        return events / spent


# ---------------------------------------------------------------- readers


def _many_readers(taken: list[measure.Measurement], folder: Path, runs: int, size: measure.Size) -> None:
    """One process reads all the while: one subscription, or sixteen at places of their own, in turn. So the cores are as busy either way."""
    for case, batch, events in (("put/1", 1, 2_000_000), ("put/100", 100, 4_000_000)):
        rates: dict[int, list[float]] = {n: [] for n in (1, _READERS) if measure.wanted(f"readers/{n}/{case}")}
        for _ in range(runs):
            for count, found in rates.items():
                found.append(apart(_rate_beside, folder, count, batch, size.of(1_000_000, 1000), size.of(events, batch)))
        for count, found in rates.items():
            _note(taken, f"readers/{count}/{case}", "shmstore", "throughput", "events/s", found)


def _rate_beside(folder: Path, readers: int, batch: int, before: int, events: int) -> float:
    """Events/s put while readers read the log, of `before` events, again and again."""
    blob, slots = _encoded(1000)
    payload = bytes(EVENT)
    put_one: object = payload if batch == 1 else [payload] * batch
    with _store(folder) as store:
        for _ in range(before // 1000):
            store.put_encoded(blob, slots)
        store.sync()
        ready, over = logs._FORK.Event(), logs._FORK.Event()

        def read() -> None:
            with EventStore.attach(store.name, state=folder) as attached:
                all_ = [attached.subscribe(f"s{i}", start=before // _READERS * i) for i in range(readers)]
                ready.set()
                got = 0
                while not over.is_set():
                    for reader in all_:
                        batch = reader.get(limit_events=1000, timeout=0)
                        bytes(batch.raw)
                    got += 1000
                    if got >= before // 2:
                        for reader in all_:
                            reader.rollback()
                        got = 0

        process = logs._FORK.Process(target=read)
        process.start()
        try:
            ready.wait()
            began = time.perf_counter()
            for _ in range(events // batch):
                store.put(put_one)  # type: ignore[arg-type]
            return events / (time.perf_counter() - began)
        finally:
            over.set()
            process.join()


# ---------------------------------------------------------------- open, find


def _opening(taken: list[measure.Measurement], folder: Path, runs: int, size: measure.Size) -> None:
    for sets in size.some((100, 400, 1600)):
        if not (measure.wanted(f"open/{sets}") or measure.wanted(f"find/{sets}")):
            continue
        found: dict[tuple[str, str], list[float]] = {}
        name = f"bench-log-{os.getpid()}-{sets}"
        made = fake_log.make(name, folder, sets)
        try:
            for _ in range(runs):
                for key, seconds in apart(_opened, name, folder, made):
                    found.setdefault(key, []).append(seconds * 1000)
                EventStore.unlink(name)
        finally:
            with suppress(StoreNotFound):
                EventStore.unlink(name)
            shutil.rmtree(made.home, ignore_errors=True)
        for (kind, metric), values in found.items():
            _note(taken, f"{kind}/{sets}", "shmstore", metric, "ms", values)


def _opened(name: str, folder: Path, made: fake_log.Fake) -> list[tuple[tuple[str, str], float]]:
    """Put a store together again from its home, find in it, and become its producer; return the seconds of each."""
    found: list[tuple[tuple[str, str], float]] = []

    def take(kind: str, metric: str, act: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        result = act(*arguments)
        found.append(((kind, metric), time.perf_counter() - began))
        return result

    store = take("open", "attach", lambda: EventStore.attach(name, state=folder))
    with store:
        middle = made.transactions // 3
        starts = (
            ("time", datetime.fromtimestamp(made.time_of(middle) / 1000, UTC)),
            ("position", made.position_of(middle)),
            ("gtid", Position("", 0, made.position_of(middle).gtids)),
        )
        for metric, start in starts:
            sequence = take("find", metric, store.find, start)
            wanted = made.last_of(middle - 1) + 1 if metric == "time" else made.last_of(middle) + 1
            if sequence != wanted:
                raise RuntimeError(f"{start} was found at {sequence}, not {wanted}")
        reader = store.subscribe("reader", start="earliest")
        take("open", "first event", lambda: bytes(reader.get(limit_events=1).raw[:1]))
        reader.close()
        store.unsubscribe("reader")
        take("open", "claim", store.claim)
    return found


# ---------------------------------------------------------------- peers


def _peers(taken: list[measure.Measurement], folder: Path, runs: int, size: measure.Size) -> None:
    if not (measure.wanted("produce") or measure.wanted("consume")):
        return
    events = size.of(2_000_000, 1000)
    for subject in logs.ALL if size.peers else logs.ALL[:1]:
        found: dict[str, list[tuple[float, float]]] = {"produce": [], "consume": []}
        try:
            for _ in range(runs):
                for case, values in logs.moved(subject, folder, events).items():
                    found[case].append(values)
        except ImportError as error:
            measure.say(f"log {subject.name}: left out, {error}")
            continue
        for case, both in found.items():
            if measure.wanted(case):
                _note(taken, case, subject.name, "throughput", "events/s", [rate for rate, _ in both])
                _note(taken, case, subject.name, "cpu", "s/M events", [used for _, used in both])


# ---------------------------------------------------------------- memory


def _memory(taken: list[measure.Measurement], folder: Path, runs: int, size: measure.Size) -> None:
    """Peak of a reader that reads all of a log, and of one that keeps up with the producer; each is the reader's process alone."""
    if not measure.wanted("memory"):
        return
    events = size.of(4_000_000, 1000)
    for case, behind in (("memory/behind", True), ("memory/keeping up", False)):
        peaks = [_peaks(folder, events, behind) for _ in range(min(runs, 2))]
        _note(taken, case, "shmstore", "resident", "MB", [both[0] for both in peaks])
        _note(taken, case, "shmstore", "own", "MB", [both[1] for both in peaks])


def _peaks(folder: Path, events: int, behind: bool) -> list[float]:
    """Peak MB of the reader: with what of files is mapped, and without."""
    blob, slots = _encoded(1000)
    with _store(folder) as store:
        for _ in range(events // 1000 if behind else 0):
            store.put_encoded(blob, slots)
        peaks = [0.0, 0.0]
        command = [sys.executable, "-c", _READER, store.name, str(folder), str(events)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it has subscribed
            left = 0 if behind else events // 1000
            while process.poll() is None:
                for i, counted in enumerate((memory.ALL, memory.OWN)):
                    peaks[i] = max(peaks[i], memory.resident(process.pid, counted))
                for _ in range(min(left, 5)):
                    store.put_encoded(blob, slots)
                left -= 5
                time.sleep(0.002)
        if process.returncode:
            raise RuntimeError("the reader failed")
        return peaks
