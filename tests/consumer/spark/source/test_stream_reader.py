"""The streaming source on a real Spark: what a query gets, when events are acked, and where it continues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore, EventType, Row
from shmstore.consumer.spark import register
from shmstore.consumer.spark.source import stream_reader
from shmstore.consumer.spark.spark_version import has_read_limits
from shmstore.encoding.codec import encode
from tests.consumer.spark.events import Binlog, order_row
from tests.consumer.spark.queries import Query, put_slowly

pytestmark = pytest.mark.spark
Make = Callable[..., Query]


@pytest.fixture
def make(spark: Any, store_name: str, tmp_path: Path) -> Iterator[Make]:
    """Makes queries on the test's store; they are stopped at its end."""
    made: list[Query] = []

    def query(checkpoint: str = "checkpoint", **options: str) -> Query:
        made.append(Query(spark, store_name, tmp_path / checkpoint, **options))
        return made[-1]

    yield query
    for one in made:
        one.stop()


def keys(rows: list[Any]) -> list[str]:
    return [row.pk for row in rows]


def expected(*numbers: int) -> list[str]:
    return [f'{{"id":{number}}}' for number in numbers]


def test_a_ring_far_smaller_than_the_backlog_flows(make: Make, store_name: str, binlog: Binlog) -> None:
    """Every row comes once, in order, in whole transactions, though the ring must be freed many times to let them through."""
    with EventStore.create(store_name, capacity=16, log=False) as store:
        query = make().start()
        transactions = [binlog.insert(order_row(2 * n), order_row(2 * n + 1)) for n in range(40)]
        thread = put_slowly(store, transactions)
        rows = query.await_rows(80)
        thread.join(30)
        assert keys(rows) == expected(*range(80))
        assert len({row.seq for row in rows}) == 80
        for batch in query.batches.values():
            assert all(sum(row.transaction == other.transaction for other in batch) == 2 for row in batch)
        query.await_that(lambda: store.subscriptions()[0].lag_events == 0)


def test_a_transaction_larger_than_the_ring_flows(make: Make, store_name: str, binlog: Binlog) -> None:
    """A transaction that the ring cannot hold is cut, not waited for forever."""
    with EventStore.create(store_name, capacity=16, log=False) as store:
        query = make().start()
        events = binlog.transaction(*[(EventType.INSERT, (Row(None, order_row(n)),)) for n in range(60)])
        thread = put_slowly(store, [events[n : n + 6] for n in range(0, len(events), 6)])
        assert keys(query.await_rows(60)) == expected(*range(60))
        thread.join(30)


@pytest.mark.every_spark
def test_a_restarted_query_goes_on_after_its_last_batch(make: Make, store: EventStore, binlog: Binlog) -> None:
    """What was committed does not come again, what came meanwhile does; the first query's process gave the subscription up."""
    store.put(binlog.insert(order_row(1), order_row(2)))
    query = make().start()
    query.await_rows(2)
    query.await_that(lambda: store.subscriptions()[0].lag_events == 0)  # Spark has logged the batch
    query.stop()
    query.await_that(lambda: not store.subscriptions()[0].alive)
    assert store.subscriptions()[0].owner_pid == 0, "its process died and did not say so"
    store.put(binlog.insert(order_row(3)))
    query.start()
    assert keys(query.await_rows(3)) == expected(1, 2, 3)
    assert query.runs == sorted(set(query.runs)), "a batch was run twice"


@pytest.mark.every_spark
def test_a_failed_batch_comes_again_the_same(make: Make, store: EventStore, binlog: Binlog) -> None:
    """A batch whose sink failed is replayed with the same rows, though more has come, and its events were not freed."""
    store.put(binlog.insert(order_row(1), order_row(2)))
    query = make().start()
    query.await_rows(2)
    query.fail_at = 1
    store.put(binlog.update((order_row(1), order_row(1, status="paid"))))
    assert "the sink failed" in query.await_error()
    first = query.batches[1]
    store.put(binlog.insert(order_row(3)))
    query.start().await_rows(4)
    assert query.runs.count(1) == 2
    assert query.batches[1] == first
    assert keys(query.rows) == expected(1, 2, 1, 3)


def test_a_recreated_store_is_found_by_position(make: Make, store_name: str, binlog: Binlog) -> None:
    """After the store was removed and recreated from an older position, the query continues at its place: no gap, no repeat."""
    transactions = [binlog.insert(order_row(n)) for n in range(6)]
    with EventStore.create(store_name, capacity=1024, log=False) as store:
        store.put([event for events in transactions[:4] for event in events])
        query = make().start()
        query.await_rows(4)
        query.await_that(lambda: store.subscriptions()[0].lag_events == 0)
        query.stop()
    EventStore.unlink(store_name)
    with EventStore.create(store_name, capacity=1024, log=False) as store:
        store.put([event for events in transactions[2:] for event in events])
        query.start()
        assert keys(query.await_rows(6)) == expected(*range(6))


def test_a_store_recreated_under_a_running_query(make: Make, store_name: str, binlog: Binlog) -> None:
    """A query outlives its store: it finds the new one, waits until the producer is back at its place, and continues."""
    transactions = [binlog.insert(order_row(n)) for n in range(8)]
    with EventStore.create(store_name, capacity=16, log=False) as store:
        query = make().start()
        put_slowly(store, transactions[:5]).join(30)
        query.await_rows(5)
    EventStore.unlink(store_name)
    with EventStore.create(store_name, capacity=16, log=False) as store:
        thread = put_slowly(store, transactions)  # more than the ring holds, the first five seen before
        assert keys(query.await_rows(8)) == expected(*range(8))
        thread.join(30)


def test_a_gap_before_the_first_commit_is_seen(make: Make, store_name: str, binlog: Binlog) -> None:
    """When the store is lost before batch 0 was committed, its successor must reach back to where the query began."""
    transactions = [binlog.insert(order_row(n)) for n in range(4)]
    with EventStore.create(store_name, capacity=1024, log=False) as store:
        store.put([event for events in transactions[:2] for event in events])
        query = make()
        query.fail_at = 0
        assert "the sink failed" in query.start().await_error()
    EventStore.unlink(store_name)
    with EventStore.create(store_name, capacity=1024, log=False) as store:
        store.put([event for events in transactions[1:] for event in events])
        assert "binlog.000001:4 " in query.start().await_error()
    EventStore.unlink(store_name)
    with EventStore.create(store_name, capacity=1024, log=False) as store:
        store.claim(start=transactions[0][0].position._replace(offset=4))
        store.put([event for events in transactions for event in events])
        query.start()
        assert keys(query.await_rows(4)) == expected(0, 1, 2, 3)


def test_a_gap_stops_the_query_and_is_named(make: Make, store_name: str, binlog: Binlog) -> None:
    """Events that are lost between two offsets are an error that says from where; failOnDataLoss=false continues behind them."""
    transactions = [binlog.insert(order_row(n)) for n in range(6)]
    with EventStore.create(store_name, capacity=1024, log=False) as store:
        store.put(transactions[0])
        query = make().start()
        query.await_rows(1)
        query.await_that(lambda: store.subscriptions()[0].lag_events == 0)
        query.stop()
    EventStore.unlink(store_name)
    with EventStore.create(store_name, capacity=1024, log=False) as store:
        store.put([event for events in transactions[3:] for event in events])
        error = query.start().await_error()
        assert "binlog.000001:304" in error
        assert "failOnDataLoss" in error
        query.start(failOnDataLoss="false")
        assert keys(query.await_rows(4)) == expected(0, 3, 4, 5)


def test_an_evicted_query_says_so_or_goes_on(make: Make, store_name: str, binlog: Binlog) -> None:
    """A query that a store with lag=evict let go fails and says it; with failOnDataLoss=false it continues at the oldest event."""
    with EventStore.create(store_name, capacity=16, lag="evict", evict_after=0.1, log=False) as store:
        store.put(binlog.insert(order_row(0)))
        query = make().start()
        query.await_rows(1)
        query.await_that(lambda: store.subscriptions()[0].lag_events == 0)
        query.stop()
        for n in range(1, 9):
            store.put(binlog.insert(order_row(n)), timeout=30)
        assert "evicted" in query.start().await_error()
        query.start(failOnDataLoss="false")
        query.await_that(lambda: bool(query.rows) and query.rows[-1].pk == '{"id":8}')
        assert keys(query.rows[1:]) == expected(*range(10 - len(query.rows), 9)), "behind the gap nothing is missing"


@pytest.mark.every_spark
def test_available_now_keeps_limits_and_stops(make: Make, store: EventStore, binlog: Binlog) -> None:
    """Trigger.AvailableNow reads the present events in batches of at most maxRowsPerTrigger, whole transactions, and ends; before Spark 4.2 it
    is one batch: up to the limit, or everything."""
    for n in range(6):
        store.put(binlog.insert(order_row(2 * n), order_row(2 * n + 1)))
    query = make(maxRowsPerTrigger="5").start(once=True)
    assert not query.running.isActive
    if has_read_limits():
        assert [len(query.batches[batch]) for batch in sorted(query.batches)] == [4, 4, 4]
    else:
        assert keys(query.rows) == expected(*range(4))
        del query._options["maxRowsPerTrigger"]
        query.start(once=True)
        assert len(query.runs) == 2
    store.put(binlog.insert(order_row(12)))
    query.start(once=True)
    assert keys(query.rows) == expected(*range(13))


@pytest.mark.every_spark
def test_a_stream_with_an_end_waits_there(make: Make, store: EventStore, binlog: Binlog) -> None:
    """With endingOffsets=latest a stream gets the events that are there when it starts, in batches within its limits, and nothing that comes later."""
    for n in range(4):
        store.put(binlog.insert(order_row(n)))
    query = make(maxRowsPerTrigger="1", endingOffsets="latest").start()
    query.await_rows(1)
    store.put(binlog.insert(order_row(4)))
    query.running.processAllAvailable()
    query.stop()
    assert keys(query.rows) == expected(*range(4))
    assert len(query.batches) == 4
    query.start(endingOffsets="latest")
    query.running.processAllAvailable()
    assert keys(query.rows) == expected(*range(5))


def test_two_queries_each_with_its_own_subscription(
    make: Make, store: EventStore, binlog: Binlog, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two queries read the same events; a second one on the same subscription is refused with the fix, in the first line and in the last."""
    store.subscribe("holder")  # acks nothing: the second query is to find what the first has read
    store.put(binlog.insert(order_row(1)))
    first = make("first", subscription="first").start()
    second = make("second", subscription="second", tables="shop.*").start()
    assert keys(first.await_rows(1)) == keys(second.await_rows(1)) == expected(1)
    third = make("third", subscription="first").start()
    assert "option subscription" in third.await_error().splitlines()[0]
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    for _ in range(2):
        register(spark)
    sys.excepthook(type(error := third.running.exception()), error, None)  # as where it ends a program
    *_, before, last = capsys.readouterr().err.splitlines()
    assert last.startswith("shmstore: ")
    assert "option subscription" in last
    assert "shmstore: " not in before
    assert first.running.isActive


def test_starting_offsets(make: Make, store: EventStore, binlog: Binlog) -> None:
    """A new subscription begins where startingOffsets says: latest, a binlog position, a GTID, a time, an offset's JSON."""
    transactions = [binlog.insert(order_row(n)) for n in range(4)]
    for events in transactions:
        store.put(events)
    store.subscribe("holder")  # acks nothing: what the first queries have read is kept for the next ones
    end = transactions[1][-1]
    starts = {
        "earliest": [0, 1, 2, 3],
        f"{end.position.file}:{end.position.offset}": [2, 3],
        end.position.gtids: [2, 3],
        f"gtid:{end.position.gtids}": [2, 3],
        "6": [2, 3],
        "2023-11-14T22:13:20.700+00:00": [2, 3],
        "latest": [],
    }
    for number, (start, wanted) in enumerate(starts.items()):
        query = make(f"c{number}", subscription=f"s{number}", startingOffsets=start).start(once=True)
        assert keys(query.rows) == expected(*wanted), start
    latest = make(f"c{len(starts) - 1}", subscription=f"s{len(starts) - 1}")
    store.put(binlog.insert(order_row(9)))
    assert keys(latest.start(once=True).rows) == expected(9)


def test_ddl_and_markers_come_when_asked_for(make: Make, store: EventStore, binlog: Binlog) -> None:
    """includeDdl and includeTransactionMarkers add rows of their own, in order; without them there are none."""
    store.subscribe("holder")  # acks nothing
    store.put(
        [*binlog.insert(order_row(1)), *binlog.ddl("truncate table orders"), *binlog.ddl("alter table shop.orders add x int")]
    )
    plain = make("plain", subscription="plain").start(once=True)
    assert [row.op for row in plain.rows] == ["c"]
    full = make("full", subscription="full", includeDdl="true", includeTransactionMarkers="true").start(once=True)
    assert [(row.op, row.table) for row in full.rows] == [
        ("begin", None),
        ("c", "orders"),
        ("end", None),
        ("t", "orders"),
        ("ddl", "orders"),
    ]
    assert full.rows[-1].ddl == "alter table shop.orders add x int"


@pytest.mark.every_spark
def test_batch_reads_take_nothing(spark: Any, store: EventStore, store_name: str, binlog: Binlog) -> None:
    """`spark.read` gives what the ring holds, as often as asked, in each payload, and leaves no subscription."""
    for n in range(3):
        store.put(binlog.insert(order_row(n)))
    store.put(binlog.insert(order_row(9))[:-1])  # its END has not come
    read = spark.read.format("shmstore").option("store", store_name)
    for _ in range(2):
        assert sorted(keys(read.load().collect())) == expected(0, 1, 2)
    assert read.option("payload", "raw").load().count() == 3
    typed = read.option("payload", "typed").option("tables", "shop.orders").load()
    assert sorted(row.after.id for row in typed.collect()) == [0, 1, 2]
    assert store.subscriptions() == ()


def test_inline_transport_and_many_partitions(make: Make, store: EventStore, binlog: Binlog) -> None:
    """Events in the partitions, and events from the segment in several partitions, are the same rows in the same order."""
    store.subscribe("holder")  # acks nothing
    for n in range(50):
        store.put(binlog.insert(order_row(n)))
    inline = make("inline", subscription="inline", transport="inline", partitionBytes="1k", partitions="3").start(once=True)
    shared = make("shared", subscription="shared", partitionBytes="1k", partitions="3").start(once=True)
    assert inline.rows == shared.rows
    assert keys(inline.rows) == expected(*range(50))


def test_raw_payload_is_what_was_put(make: Make, store: EventStore, spark: Any, store_name: str, binlog: Binlog) -> None:
    """payload=raw carries the encoded event, byte for byte."""
    events = binlog.insert(order_row(1), order_row(2))
    store.put(events)
    rows = (
        spark.read.format("shmstore")
        .option("store", store_name)
        .option("payload", "raw")
        .option("includeTransactionMarkers", "true")
        .load()
        .collect()
    )
    assert [bytes(row.payload) for row in rows] == [encode(event) for event in events]
    assert [(row.op, row.rows) for row in rows] == [("begin", 0), ("c", 2), ("end", 0)]


@pytest.mark.every_spark
def test_a_store_that_is_not_there_is_named(make: Make, store_name: str) -> None:
    """A query on an unknown store fails and names it."""
    assert store_name in make().start().await_error()


@pytest.mark.parametrize(
    ("command", "local"),
    [
        (b"java\0-cp\0x\0org.apache.spark.deploy.SparkSubmit\0--conf\0spark.master=local[2]\0pyspark-shell\0", True),
        (b"java\0org.apache.spark.deploy.SparkSubmit\0--master\0local\0program.py\0", True),
        (b"java\0org.apache.spark.deploy.SparkSubmit\0--conf\0spark.master=local-cluster[2,1,1024]\0x\0", False),
        (b"java\0org.apache.spark.deploy.SparkSubmit\0--master\0spark://local:7077\0program.py\0", False),
        (b"java\0org.apache.spark.deploy.SparkSubmit\0program.py\0", False),
    ],
)
def test_a_local_master_is_seen(command: bytes, local: bool) -> None:
    """With a local master no process on another host can need the events, and nothing listens for them."""
    assert (stream_reader._LOCAL.search(command) is not None) is local
