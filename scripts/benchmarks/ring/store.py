"""The store compared with other ways to hand bytes from one process to another on one host.

One producer process, one reader process, events of 200 bytes. ``raw/N`` moves bytes as they are in batches of N,
``msgpack/N`` encodes and decodes a row event with MessagePack on both sides, ``latency`` sends 1,000 single events a second
to a waiting reader, ``latency/busy`` does so next to processes that keep every core busy, ``fan-out/N`` has N subscriptions on one ring.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgpack
import numpy as np

from scripts.benchmarks import measure
from scripts.benchmarks.peers import transports
from scripts.benchmarks.stores import new_store
from shmstore import EventStore

_FORK = multiprocessing.get_context("fork")
_TURNS = 10  # of each subject in a run of `latency/busy`
_BUSY = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""
_ROW = {
    "id": 123456789,
    "customer": 4711,
    "status": "shipped",
    "total": "1234.50",
    "note": "left with the neighbour, second floor, door on the left; ring twice, please",
    "created": 1_700_000_000_123_456,
    "updated": 1_700_000_100_654_321,
    "flags": 5,
    "x": b"0123456789",
}


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Run every case that is wanted for every subject; return the measurements."""
    taken: list[measure.Measurement] = []
    for batch in (n for n in (1, 100, 1000) if measure.wanted(f"raw/{n}")):
        events = size.of({1: 300_000, 100: 6_000_000, 1000: 30_000_000}[batch])
        for transport in _chosen(transports.ALL, size):
            if transport in transports.BATCHES and batch == 1:
                continue
            _add(taken, f"raw/{batch}", transport, batch, events, runs, coded=False)
    for batch in (n for n in (1, 100, 1000) if measure.wanted(f"msgpack/{n}")):
        events = size.of({1: 150_000, 100: 500_000, 1000: 500_000}[batch])
        others = (transports.Queue, transports.Pipe, transports.FasterFifo, transports.Zmq)
        for transport in _chosen((transports.Shmstore, *others), size):
            _add(taken, f"msgpack/{batch}", transport, batch, events, runs, coded=True)
        codec = [_codec_alone(batch, events) for _ in range(runs)]
        taken.append(measure.of("store", f"msgpack/{batch}", "shmstore codec alone", "throughput", "events/s", codec))
        both = [_codec_at_once(batch, events) for _ in range(runs)]
        taken.append(measure.of("store", f"msgpack/{batch}", "shmstore codec at once", "throughput", "events/s", both))
        for alone in taken[-2:]:
            measure.say(f"store {alone.case} {alone.subject}: {measure.number(alone.median)} events/s")
    waiting = (transports.Shmstore, transports.ShmstoreSpinning, transports.Pipe, transports.Queue, transports.FasterFifo)
    for transport in _chosen((*waiting, transports.Zmq, transports.Redis), size) if measure.wanted("latency") else ():
        _add_latency(taken, transport, runs, size.of(3000))
    if measure.wanted("latency/busy"):
        _add_busy_latency(taken, _chosen((transports.Shmstore, transports.Pipe), size), runs, size.of(3000, _TURNS))
    if measure.wanted("fan-out"):
        taken += _fan_out(runs, size.of(2_000_000, 10_000))
    return taken


def _chosen(all_: tuple[Any, ...], size: measure.Size) -> list[Any]:
    return [transport for transport in all_ if size.peers or transport.name.startswith("shmstore")]


def _add(taken: list[measure.Measurement], case: str, transport: Any, batch: int, events: int, runs: int, *, coded: bool) -> None:
    if transport.name in ("redis", "multiprocessing.Queue", "faster-fifo many"):
        events = min(events // 8, 750_000)
    events = max(batch, events // batch * batch)
    rates, costs = [], []
    for _ in range(runs):
        try:
            rate, cpu = _throughput(transport, batch, events, coded)
        except ImportError as error:
            measure.say(f"store {case} {transport.name}: left out, {error}")
            return
        rates.append(rate)
        costs.append(cpu)
    label = transport.name
    taken.append(measure.of("store", case, label, "throughput", "events/s", rates))
    taken.append(measure.of("store", case, label, "cpu", "s/M events", costs))
    kind = " (opaque blob)" if transport.blob and batch > 1 else ""
    measure.say(
        f"store {case} {label}{kind}: {measure.number(taken[-2].median)} events/s, {taken[-2].median * transports.EVENT / 1e6:,.0f} MB/s"
    )


def _throughput(transport: Any, batch: int, events: int, coded: bool) -> tuple[float, float]:
    """Move `events` events between two processes; return (events/s as the reader saw it, CPU seconds per million).

    The clock starts when a tenth has come: until then both have their first faults of each page.
    """
    link = transport(batch)
    try:
        result = _FORK.SimpleQueue()
        go = _FORK.Event()
        payload = msgpack.packb(_ROW).ljust(transports.EVENT, b"\0") if not coded else msgpack.packb(_ROW)
        size = len(payload)

        def produce() -> None:
            send = link.sender()
            payloads = [payload] * batch
            blob = b"".join(payloads)
            encode = msgpack.packb
            rows = [_ROW] * batch
            go.wait()
            for _ in range(events // batch):
                if coded:
                    payloads = [encode(row) for row in rows]
                    if link.blob or batch == 1:  # who takes the payloads as they are need not pay for joining them
                        blob = payloads[0] if batch == 1 else b"".join(payloads)
                send(payloads, blob)
            result.put(("cpu", _cpu()))
            if hasattr(link, "process") or isinstance(link, transports.Zmq):
                time.sleep(0.5)  # let the last bytes leave

        def read() -> None:
            receive = link.receiver() if not coded else _decoding(link, batch, size)
            go.set()
            received, before, began = 0, 0, time.perf_counter()
            while received < events // 10:
                received += receive()
            if received < events:
                before, began = received, time.perf_counter()
            while received < events:
                received += receive()
            result.put(("rate", (received - before) / (time.perf_counter() - began)))
            result.put(("cpu", _cpu()))

        reader, producer = _FORK.Process(target=read), _FORK.Process(target=produce)
        reader.start()
        producer.start()
        answers = [result.get() for _ in range(3)]
        producer.join()
        reader.join()
        return next(value for kind, value in answers if kind == "rate"), sum(
            v for kind, v in answers if kind == "cpu"
        ) * 1e6 / events
    finally:
        link.close()


def _decoding(link: Any, batch: int, size: int) -> Callable[[], int]:
    """A receive that also decodes every event; an opaque blob is cut where the sizes say."""
    decode = msgpack.unpackb
    if isinstance(link, transports.Shmstore):
        subscription = EventStore.attach(link.store_name).subscribe("reader")

        def receive() -> int:
            got = subscription.get(limit_events=batch)
            for payload in got.payloads():
                decode(payload)
            subscription.ack(got)
            return len(got)

        return receive
    raw = {
        "multiprocessing.Queue": lambda: link.queue.get,
        "multiprocessing.Pipe": lambda: link.ends[0].recv_bytes,
        "faster-fifo": lambda: link.queue.get,
        "pyzmq": lambda: _bound(link),
    }[link.name]()

    def receive_blob() -> int:
        blob = memoryview(raw())
        for at in range(0, len(blob), size):
            decode(blob[at : at + size])
        return len(blob) // size

    return receive_blob


def _bound(link: transports.Zmq) -> Any:
    socket = link._socket("PULL")
    socket.bind(link.address)
    return socket.recv


def _codec_alone(batch: int, events: int) -> float:
    """Events/s of the slower of encode and decode, in one process, without any transport.

    The same objects go in and come out as with a transport: rows in lists of a batch become payloads, each of its own, which
    are decoded one by one; as many are held as a store holds.
    """
    encode, decode = msgpack.packb, msgpack.unpackb
    rows, held = [_ROW] * batch, 32768 // batch
    events = max(events, batch)
    spent = [0.0, 0.0]
    for done in range(0, events // batch, held):
        batches = min(held, events // batch - done)
        began = time.perf_counter()
        coded = [[encode(row) for row in rows] for _ in range(batches)]
        between = time.perf_counter()
        for payloads in coded:
            for payload in payloads:
                decode(payload)
        spent[0] += between - began
        spent[1] += time.perf_counter() - between
    return events // batch * batch / max(spent)


def _codec_at_once(batch: int, events: int) -> float:
    """Events/s of the slower of encode and decode, each in a process of its own at the same time, without any transport.

    What `_codec_alone` measures, on processors that are both at work, as with a transport. The decoded payloads were encoded
    by the process that decodes them.
    """
    encode, decode = msgpack.packb, msgpack.unpackb
    rows, held = [_ROW] * batch, max(1, 32768 // batch)
    over, begun, result = _FORK.RawValue("b", 0), _FORK.Event(), _FORK.SimpleQueue()

    def encoding() -> None:
        done, began = 0, time.perf_counter()
        while not over.value:
            coded = [[encode(row) for row in rows] for _ in range(held)]
            done += len(coded) * batch
            begun.set()
        result.put(done / (time.perf_counter() - began))

    coded = [[encode(row) for row in rows] for _ in range(held)]
    process = _FORK.Process(target=encoding)
    process.start()
    begun.wait()
    rounds, began = -(-events // (held * batch)), time.perf_counter()
    for _ in range(rounds):
        for payloads in coded:
            for payload in payloads:
                decode(payload)
    rate = rounds * held * batch / (time.perf_counter() - began)
    over.value = 1
    encoded = result.get()
    process.join()
    return float(min(rate, encoded))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _add_latency(taken: list[measure.Measurement], transport: Any, runs: int, events: int) -> None:
    points: list[dict[str, float]] = []
    for _ in range(runs):
        try:
            points.append(_points(_latencies(transport, events)))
        except ImportError as error:
            measure.say(f"store latency {transport.name}: left out, {error}")
            return
    _add_points(taken, "latency", transport, points)


def _add_busy_latency(taken: list[measure.Measurement], subjects: list[Any], runs: int, events: int) -> None:
    """The same while all cores are busy. The subjects take short turns under one load, so that what else happens meets them alike.

    A percentile is the median of the turns': in some of them the system leaves a process behind another for milliseconds, whatever it waits on.
    How often, `over 1 ms` says.
    """
    turns: dict[Any, list[Any]] = {transport: [] for transport in subjects}
    with _busy_cores():
        for turn in range(runs * _TURNS):
            for transport in subjects if turn % 2 else reversed(subjects):
                times = _latencies(transport, events // _TURNS)
                turns[transport].append(times[len(times) // 10 :])  # behind what the start of both processes costs
    for transport, times in turns.items():
        _add_points(taken, "latency/busy", transport, [_points(each) for each in times])
        shares = [
            100.0 * float(np.mean(np.concatenate(times[first : first + _TURNS]) > 1e6)) for first in range(0, len(times), _TURNS)
        ]
        taken.append(measure.of("store", "latency/busy", transport.name, "over 1 ms", "%", shares))
        measure.say(f"store latency/busy {transport.name}: {taken[-1].median:.2f} % over 1 ms")


@contextmanager
def _busy_cores() -> Iterator[None]:
    """A program for each core that does nothing but use it. It ends with this one, too."""
    with ExitStack() as ended:
        for _ in os.sched_getaffinity(0):
            program = subprocess.Popen([sys.executable, "-S", "-c", _BUSY, str(os.getpid())])
            ended.callback(program.wait)
            ended.callback(program.kill)
        yield


def _points(times: Any) -> dict[str, float]:
    """Percentiles in us of times in ns."""
    ordered = np.sort(times)
    return {
        name: float(ordered[int(len(ordered) * share)]) / 1000 for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }


def _add_points(taken: list[measure.Measurement], case: str, transport: Any, points: list[dict[str, float]]) -> None:
    for name in points[0]:
        taken.append(measure.of("store", case, transport.name, name, "us", [each[name] for each in points]))
    measure.say(f"store {case} {transport.name}: " + ", ".join(f"{m.metric} {m.median:.1f} us" for m in taken[-3:]))


def _latencies(transport: Any, events: int) -> Any:
    """One-way times in ns of single events sent each millisecond to a reader that waits."""
    link = transport(1)
    try:
        result, go = _FORK.SimpleQueue(), _FORK.Event()
        sent = _FORK.RawArray("q", events)

        def produce() -> None:
            send = link.sender()
            payload = bytes(transports.EVENT)
            go.wait()
            time.sleep(0.05)
            due = time.perf_counter_ns()
            for i in range(events):
                due += 1_000_000
                time.sleep(max(0, due - time.perf_counter_ns()) / 1e9)
                sent[i] = time.perf_counter_ns()
                send([payload], payload)
            time.sleep(0.2)

        def read() -> None:
            receive = link.receiver()
            go.set()
            got = np.zeros(events, np.int64)
            at = 0
            while at < events:
                n = receive()
                got[at : at + n] = time.perf_counter_ns()
                at += n
            result.put(got - np.frombuffer(sent, np.int64))

        reader, producer = _FORK.Process(target=read), _FORK.Process(target=produce)
        reader.start()
        producer.start()
        times = result.get()
        producer.join()
        reader.join()
        return times
    finally:
        link.close()


def _fan_out(runs: int, events: int) -> list[measure.Measurement]:
    """What the producer can put, in batches of 100, while N subscriptions exist that keep up by jumping to the end."""
    taken = []
    for subscriptions in (1, 2, 16):
        rates = [_fan_out_once(subscriptions, events) for _ in range(runs)]
        taken.append(measure.of("store", f"fan-out/{subscriptions}", "shmstore", "throughput", "events/s", rates))
        measure.say(f"store fan-out/{subscriptions}: {measure.number(taken[-1].median)} events/s put")
    return taken


def _fan_out_once(subscriptions: int, events: int) -> float:
    """The producer's own cost: puts are timed, reading in between is not, so that two cores can serve sixteen readers."""
    with new_store("fan", log=False) as store:
        readers = [store.subscribe(f"s{i}") for i in range(subscriptions)]
        payloads, spent = [bytes(transports.EVENT)] * 100, 0.0
        for _ in range(events // 10_000):
            began = time.perf_counter()
            for _ in range(100):
                store.put(payloads)
            spent += time.perf_counter() - began
            for reader in readers:
                reader.ack(reader.get())
        return events // 10_000 * 10_000 / spent
