"""The sources on a store with a log, on a real Spark: behind the ring, over reboots, and never beyond what is on disk."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore, EventType, PositionNotFound, Row
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source import batch_planner, source
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.lag import lag_of
from shmstore.consumer.spark.source.partition import SharedPartition
from shmstore.consumer.spark.source.source import BatchReader
from shmstore.consumer.spark.source.stream_reader import StreamReader
from shmstore.consumer.spark.spark_version import has_read_limits
from shmstore.store.stats import log_trouble
from tests.consumer.spark.events import ORDERS, Binlog, order_row
from tests.consumer.spark.queries import Query, put_slowly

Make = Callable[..., Query]


@pytest.fixture
def home(request: pytest.FixtureRequest, state: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where homes are: with a real Spark where its processes look for them, or else in the test's own folder."""
    return str(state)


@pytest.fixture
def store(store_name: str, home: str) -> Iterator[EventStore]:
    """A store with a log, its ring far smaller than what is put."""
    with EventStore.create(store_name, capacity=16, state=home) as made:
        yield made
    EventStore.unlink(store_name, log=True, state=home)


@pytest.fixture
def make(spark: Any, store_name: str, tmp_path: Path, home: str) -> Iterator[Make]:
    """Makes queries on the test's store; they are stopped at its end."""
    made: list[Query] = []

    def query(checkpoint: str = "checkpoint", **options: str) -> Query:
        made.append(Query(spark, store_name, tmp_path / checkpoint, **{"stateDirectory": home, **options}))
        return made[-1]

    yield query
    for one in made:
        one.stop()


@pytest.fixture
def reader(store: EventStore, home: str) -> Iterator[Callable[..., StreamReader]]:
    """The reader that Spark would run, without one."""
    made: list[StreamReader] = []

    def read(**options: str) -> StreamReader:
        made.append(StreamReader(Decoder(SourceOptions.parse({"store": store.name, "stateDirectory": home, **options}))))
        return made[-1]

    yield read
    for one in made:
        one.stop()


def put(store: EventStore, binlog: Binlog, numbers: range) -> None:
    for number in numbers:
        store.put(binlog.insert(order_row(number)), timeout=30)


def reboot(store: EventStore) -> None:
    """Everything that a reboot takes."""
    store.close()
    os.unlink(store.segment.where)


def keys(rows: list[Any]) -> list[str]:
    return [row.pk for row in rows]


def expected(*numbers: int) -> list[str]:
    return [f'{{"id":{number}}}' for number in numbers]


def planned(reader: StreamReader, start: dict[str, Any], limit: BatchLimit) -> list[int]:
    """Where the micro-batches from `start` on end."""
    ends = []
    while (end := reader.plan(start, limit)) != start:
        ends.append(end["seq"])
        start = end
    return ends


def test_limits(store: EventStore, binlog: Binlog, reader: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches are whole transactions within the limits, whatever the ring holds; a larger transaction comes whole."""
    monkeypatch.setattr(batch_planner, "_LOOK", 7)
    put(store, binlog, range(40))
    large = binlog.transaction(*[(EventType.INSERT, (Row(None, order_row(n)),)) for n in range(60)])
    for n in range(0, len(large), 8):
        store.put(large[n : n + 8], timeout=30)
    query = reader(subscription="a")
    start = query.initialOffset()
    assert planned(query, start, BatchLimit()) == [181], "a ring of 16 events bounds nothing"
    again = reader(subscription="b")
    assert planned(again, again.initialOffset(), BatchLimit(10)) == [29, 59, 89, 119, 181]
    size = int(store.slots(0, 2)["size"].sum())
    small = reader(subscription="c")
    ends = planned(small, small.initialOffset(), BatchLimit(size=size * 10))
    assert ends[-1] == 181
    assert all(
        int(store.slots(first + 1, last)["size"].sum()) <= size * 10
        for first, last in zip([-1, *ends[:-2]], ends[:-1], strict=True)
    )
    monkeypatch.setattr(batch_planner, "MOST_BYTES", size * 10)
    default = reader(subscription="d")
    assert planned(default, default.initialOffset(), BatchLimit()) == ends


def read(made: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The keys of the rows between two offsets."""
    return [row["pk"]["id"] for one in made.partitions(start, end) for batch in made.read(one) for row in batch.to_pylist()]


@pytest.mark.parametrize("limit", [BatchLimit(3), BatchLimit()], ids=["limit", "none"])
@pytest.mark.parametrize("size", [46, 70], ids=["its end in the ring", "its end nowhere yet"])
def test_a_transaction_larger_than_the_log_flows(
    limit: BatchLimit, size: int, store_name: str, binlog: Binlog, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut at an event that is on disk: the full log gets free space only by what the query acks. A query that holds nothing up cuts nothing."""
    monkeypatch.setattr(batch_planner, "_STALL", 0.1)
    monkeypatch.setattr(batch_planner, "_SYNC_SECONDS", 0.1)
    changes = [(EventType.INSERT, (Row(None, order_row(number, status="x" * 400_000)),)) for number in range(size)]
    with EventStore.create(store_name, capacity=64, memory_unit=1 << 16, log_size=16 << 20, state=home) as store:
        store.put(binlog.insert(order_row(99)))
        made = StreamReader(Decoder(SourceOptions.parse({"store": store_name, "stateDirectory": home}), ORDERS))
        events = binlog.transaction(*changes)
        with store.subscribe("behind", start="earliest") as behind:
            producer = threading.Thread(target=lambda: [store.put([event]) for event in events], daemon=True)
            producer.start()
            offset = made.initialOffset()
            offset, first = made.plan(offset, BatchLimit()), offset
            ids = read(made, first, offset)
            assert made.plan(offset, limit) == offset
            deadline = time.monotonic() + 30
            while not log_trouble(store.segment) and time.monotonic() < deadline:
                time.sleep(0.01)
            until = time.monotonic() + 1
            while time.monotonic() < until:
                assert made.plan(offset, limit) == offset, "another holds the log"
            behind.ack(behind.get(timeout=0))
        store.unsubscribe("behind")
        cuts, deadline = 0, time.monotonic() + 60
        while len(ids) < size + 1 and time.monotonic() < deadline:
            end = made.plan(offset, limit)
            if end != offset:
                ids += read(made, offset, end)
                offset, cuts = end, cuts + 1
        assert ids == [99, *range(size)]
        assert cuts >= 2
        producer.join(30)
        made.stop()
    EventStore.unlink(store_name, log=True, state=home)


def test_offsets_are_on_disk(
    store: EventStore, binlog: Binlog, reader: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch ends at the last transaction that is on disk, or there is none yet."""
    put(store, binlog, range(10))
    query = reader()
    start = query.initialOffset()
    on_disk = [1, 13]
    monkeypatch.setattr(EventStore, "sync", lambda *_: on_disk[0])
    assert query.plan(start, BatchLimit()) == start
    del on_disk[0]
    assert query.plan(start, BatchLimit())["seq"] == 11


def test_a_reader_whose_store_is_removed(store: EventStore, binlog: Binlog, reader: Callable[..., StreamReader]) -> None:
    """The process of a query continues over a store that is restored, at its sequences, also the server for other hosts."""
    put(store, binlog, range(30))
    query = reader(transport="network")
    first = query.plan(query.initialOffset(), BatchLimit(10))
    reboot(store)
    second = query.plan(first, BatchLimit(10))
    assert (second["epoch"], second["seq"]) == (first["epoch"], 59)
    query.commit(second)
    with EventStore.attach(store.name, state=Path(store.segment.home).parent) as again:
        put(again, binlog, range(30, 40))
        third = query.plan(second, BatchLimit())
        assert third["seq"] == 119
        rows = [pk for part in query.partitions(second, third) for batch in query.read(part) for pk in batch["pk"].to_pylist()]
        assert rows == expected(*range(20, 40))
        assert again.subscriptions()[0].ack.sequence == 59


def test_an_older_home_is_named(store: EventStore, binlog: Binlog, reader: Callable[..., StreamReader]) -> None:
    """An offset behind the end of the log is an error that says so; failOnDataLoss=false continues with what comes."""
    put(store, binlog, range(4))
    query = reader()
    start = query.initialOffset()
    ahead = {**query.plan(start, BatchLimit()), "seq": 20}
    with pytest.raises(PositionNotFound, match="ends at event 11"):
        query.plan(ahead, BatchLimit())
    query.stop()
    assert reader(failOnDataLoss="false").plan(ahead, BatchLimit()) == ahead


def test_batch_reads_of_a_large_log_are_ranges(
    store: EventStore, binlog: Binlog, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of more than travels well is planned as ranges that executors read themselves, each about as large; nothing is copied."""
    put(store, binlog, range(200))
    store.put(binlog.insert(order_row(999))[:-1])
    given = {"store": store.name, "stateDirectory": home, "partitions": "4", "partitionBytes": "1k"}
    monkeypatch.setattr(source, "INLINE_MOST", 10_000)
    planned = BatchReader(Decoder(SourceOptions.parse(given))).partitions()
    assert all(isinstance(part, SharedPartition) for part in planned)
    ranges = [(part.events.first, part.events.last) for part in planned]
    assert [first for first, _ in ranges] == [0, *(last + 1 for _, last in ranges[:-1])]
    assert ranges[-1][1] == 599
    sizes = [int(store.slots(*each)["size"].sum()) for each in ranges]
    assert len(sizes) >= 4
    assert max(sizes) - min(sizes) < 500
    decoder = Decoder(SourceOptions.parse(given))
    rows = [pk for part in planned for batch in BatchReader(decoder).read(part) for pk in batch["pk"].to_pylist()]
    assert rows == expected(*range(200))


EXECUTOR = """
import json, os, pickle, sys
from shmstore import StoreNotFound
with open(sys.argv[1], "rb") as file:
    reader, partition = pickle.load(file)
try:
    keys, error = [key for batch in reader.read(partition) for key in batch["pk"].to_pylist()], ""
except StoreNotFound as missing:
    keys, error = [], str(missing)
print(json.dumps({"keys": keys, "error": error, "memory": [name for name in os.listdir("/dev/shm") if name.startswith("shmstore.")]}))
"""
ELSEWHERE = 'mount --make-rprivate / && mount -t tmpfs tmpfs /dev/shm && exec "$@"'


def test_executors_put_together_what_is_theirs_alone(store: EventStore, binlog: Binlog, home: str, tmp_path: Path) -> None:
    """An executor that sees the home and not the memory makes no second store of it; one that sees the memory may."""
    put(store, binlog, range(20))
    reader = BatchReader(Decoder(SourceOptions.parse({"store": store.name, "stateDirectory": home, "transport": "shm"})))
    (partition,) = reader.partitions()
    given = tmp_path / "partition"
    given.write_bytes(pickle.dumps((reader, partition)))

    def executed(*words: str) -> dict[str, Any]:
        command = [*words, sys.executable, "-c", EXECUTOR, str(given)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[4])
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    if os.geteuid() == 0:  # a private /dev/shm needs root
        found = executed("unshare", "-m", "sh", "-c", ELSEWHERE, "sh")
        assert (found["keys"], found["memory"]) == ([], [])
        assert "transport=inline in a batch read" in found["error"]
    reboot(store)
    assert executed()["keys"] == expected(*range(20))


def test_lag_behind_the_ring(store: EventStore, binlog: Binlog, state: Path, home: str) -> None:
    """A query's lag counts what is in the log, in events, bytes and seconds."""
    put(store, binlog, range(100))
    done = {
        "version": 1,
        "store": store.name,
        "epoch": store.epoch,
        "seq": 2,
        "file": "binlog.000001",
        "offset": 304,
        "gtids": "",
        "row": 0,
    }
    lag = lag_of("q", done, {**done, "seq": 299})
    assert lag is not None
    assert (lag.events, lag.size) == (297, int(store.slots(3, 299)["size"].sum()))
    assert lag.seconds == pytest.approx(29.6, abs=0.2)


@pytest.mark.spark
def test_a_stopped_query_goes_on_after_reboots(make: Make, store: EventStore, binlog: Binlog, home: str) -> None:
    """A copy run from cron (AvailableNow) that was away over two reboots and far behind the ring: every row once, in order."""
    put(store, binlog, range(50))
    query = make(**{"maxRowsPerTrigger": "20"} if has_read_limits() else {}).start(once=True)
    assert keys(query.rows) == expected(*range(50))
    put(store, binlog, range(50, 120))
    reboot(store)
    with EventStore.attach(store.name, state=home) as again:
        put(again, binlog, range(120, 180))
        reboot(again)
    query.start(once=True)
    assert keys(query.rows) == expected(*range(180))
    assert query.runs == sorted(set(query.runs)), "a batch was run twice"


@pytest.mark.spark
def test_a_running_query_outlives_the_segment(make: Make, store: EventStore, binlog: Binlog, home: str) -> None:
    """A query whose store's memory is removed while it runs continues in the one that is restored."""
    query = make().start()
    put_slowly(store, [binlog.insert(order_row(n)) for n in range(50)]).join(30)
    query.await_rows(50)
    reboot(store)
    with EventStore.attach(store.name, state=home) as again:
        put(again, binlog, range(50, 100))
        assert keys(query.await_rows(100)) == expected(*range(100))


@pytest.mark.spark
def test_starting_offsets_in_the_log(make: Make, store: EventStore, binlog: Binlog) -> None:
    """A new subscription begins anywhere in the log, though others have acked it, and the ring has moved on."""
    transactions = [binlog.insert(order_row(n)) for n in range(60)]
    for events in transactions:
        store.put(events, timeout=30)
    end = transactions[9][-1]
    starts = {
        "earliest": 0,
        "committed": 0,
        "30": 10,
        f"{end.position.file}:{end.position.offset}": 10,
        end.position.gtids: 10,
        "2023-11-14T22:13:22.900+00:00": 9,
        "latest": 60,
    }
    for number, (start, first) in enumerate(starts.items()):
        query = make(f"c{number}", subscription=f"s{number}", startingOffsets=start).start(once=True)
        assert keys(query.rows) == expected(*range(first, 60)), start


@pytest.mark.spark
def test_batch_reads_of_a_log(spark: Any, store: EventStore, binlog: Binlog, home: str) -> None:
    """`spark.read` gives everything that the log keeps, from the plan and from executors that read it themselves."""
    put(store, binlog, range(100))
    read = spark.read.format("shmstore").option("store", store.name).option("stateDirectory", home)
    for transport in ("auto", "shm", "inline"):
        rows = read.option("transport", transport).option("partitionBytes", "1k").load().orderBy("seq").collect()
        assert keys(rows) == expected(*range(100)), transport
    assert store.subscriptions() == ()
