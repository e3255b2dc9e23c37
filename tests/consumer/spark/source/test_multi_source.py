"""A store of several sources as a source of Spark queries: each row once, each source in its order, whatever order they have."""

from __future__ import annotations

import json
import os
import pickle
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shmstore import Event, EventStore, PositionNotFound, Row
from shmstore.consumer.copies.change_reduction import CannotFollow
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.replicate.replicate import Replication
from shmstore.consumer.spark.source import batch_planner, multi_source
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.foreach import each_batch
from shmstore.consumer.spark.source.multi_source import is_group
from shmstore.consumer.spark.source.source import BatchReader
from shmstore.consumer.spark.source.stream_reader import StreamReader
from shmstore.sources import pack_sources
from tests.consumer.spark.events import ORDERS
from tests.consumer.spark.sources import FILES, Group, Transaction, keys, merged, transactions


def reader(store: str, **options: str) -> StreamReader:
    parsed = SourceOptions.parse({"store": store, "tables": "shop.orders", "partitions": "3", "partitionBytes": "64", **options})
    return StreamReader(Decoder(parsed, ORDERS if parsed.payload == "typed" else None))


def rows(made: Any, partitions: list[Any]) -> list[dict[str, Any]]:
    return [row for one in partitions for batch in made.read(one) for row in batch.to_pylist()]


def put(store: EventStore, group: Group, order: list[Transaction]) -> None:
    for one in order:
        for part in group.puts(one):
            store.put(part, timeout=0)


def taken(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["source"]["name"], row["pk"]["id"]) for row in found]


def by_source(found: list[tuple[str, int]]) -> dict[str, list[int]]:
    return {source: [key for name, key in found if name == source] for source in FILES}


def wanted(given: dict[str, list[Transaction]]) -> dict[str, list[int]]:
    return {source: [key for one in some for _, key in keys(one)] for source, some in given.items()}


@pytest.fixture
def recreate(store_name: str) -> Iterator[Any]:
    """Re-creates the store, empty but for where its sources begin."""
    made: list[EventStore] = []

    def create(capacity: int, at: dict[str, int] | None = None) -> tuple[EventStore, Group]:
        if made:
            made.pop().close()
            EventStore.unlink(store_name)
        made.append(EventStore.create(store_name, capacity=capacity, log=False))
        group = Group(at)
        made[-1].put(group.start())
        return made[-1], group

    yield create
    made.pop().close()


@pytest.mark.parametrize(("payload", "transport"), [("typed", "shm"), ("json", "inline"), ("typed", "network")])
def test_rows_say_where_they_come_from(payload: str, transport: str, store_name: str, recreate: Any) -> None:
    """`source.name` is the server, also of rows whose own event does not say it, and of a snapshot's; `seq` begins with it, is unique,
    and sorts as the rows of one source came."""
    store, group = recreate(256)
    order = [Transaction("b", 1, ((1, 2),)), Transaction("a", 1, ((1,), (2, 1))), Transaction("c d", 1, ((1,),))]
    order += [Transaction("a", 1, ((2,),), read=True), Transaction("c d", 1, ((3,),), read=True), Transaction("a", 2, ((1,),))]
    put(store, group, order)
    made = reader(store_name, payload=payload, transport=transport, transportHost="127.0.0.1")
    start = made.initialOffset()
    planned = made.partitions(start, made.plan(start, BatchLimit()))
    assert len(planned) == 3
    found = rows(made, pickle.loads(pickle.dumps(planned)))
    names = [(row["source"]["name"], row["pk"]["id"] if payload == "typed" else json.loads(row["pk"])["id"]) for row in found]
    assert names == [key for one in order for key in keys(one)]
    assert len({row["seq"] for row in found}) == len(found)
    for source in FILES:
        seqs = [row["seq"] for row in found if row["source"]["name"] == source]
        assert seqs == sorted(seqs)
        assert all(seq.startswith(f"{source}/0000000") for seq in seqs)
    batch = BatchReader(made._decoder)
    assert rows(batch, batch.partitions()) == found
    made.stop()


def test_a_planned_batch_waits_for_all_its_sources(store_name: str, recreate: Any) -> None:
    """Made again, the store has one source's part of a micro-batch and much more of it: the other's is waited for, then asked for."""
    store, group = recreate(64)
    order = [Transaction("a", 1, ((1,),)), Transaction("b", 1, ((1,),))]
    put(store, group, order)
    made = reader(store_name)
    start = made.initialOffset()
    end = made.plan(start, BatchLimit())
    made.stop()
    store, group = recreate(64)
    put(store, group, [order[0], *(Transaction("a", number, ((1,),)) for number in range(2, 9))])
    made = reader(store_name, storeTimeout="0.1")
    with pytest.raises(
        PositionNotFound, match=r"has not reached a=.*raise storeTimeout, or make the store larger, if it is full"
    ):
        made.partitions(start, end)
    put(store, group, order[1:])
    assert taken(rows(made, made.partitions(start, end))) == [key for one in order for key in keys(one)]
    made.stop()


@pytest.mark.parametrize("number", range(12))
def test_each_row_once_whatever_order_it_comes_in(number: int, seed: int, store_name: str, recreate: Any) -> None:
    """The store is lost again and again, and comes back in another order, from any place before; each time a batch that was planned
    before is read again: it is the same rows, and in the end each row came in one batch, each source's in their order."""
    rng = random.Random(seed)
    given = transactions(rng, 60, large=5)
    store, group = recreate(1024)
    put(store, group, merged(rng, {source: some[: len(some) // 3] for source, some in given.items()}))
    made = reader(store_name, failOnDataLoss="true", storeTimeout="5")
    offset = made.initialOffset()
    came: list[tuple[str, int]] = []
    for round_ in range(1, 5):
        for _ in range(rng.randrange(1, 6)):
            limit = BatchLimit(rng.randrange(1, 40)) if rng.random() < 0.8 else BatchLimit()
            end = made.plan(offset, limit)
            assert json.loads(json.dumps(end)) == end
            if end == offset:
                break
            first = taken(rows(made, made.partitions(offset, end)))
            again = first
            if rng.random() < 0.4:  # the store is lost before Spark has logged the batch
                made.stop()
                begins = {source: rng.randrange(number + 1) for source, number in _last(given, came).items()}
                needed = _last(given, came + first)
                store, group = recreate(1024, begins)
                put(
                    store,
                    group,
                    merged(rng, _between(given, begins, {s: rng.randrange(n, len(given[s]) + 1) for s, n in needed.items()})),
                )
                made = reader(store_name, failOnDataLoss="true", storeTimeout="5")
                again = taken(rows(made, made.partitions(offset, end)))
            assert by_source(again) == by_source(first)
            came += first
            offset = end
        put(
            store,
            group,
            merged(rng, _between(given, group.at, {source: len(some) * round_ // 4 for source, some in given.items()})),
        )
    while (end := made.plan(offset, BatchLimit(25))) != offset:
        came += taken(rows(made, made.partitions(offset, end)))
        offset = end
    assert by_source(came) == wanted(given)
    assert (offset["sources"], "ahead" in offset) == (pack_sources(group.sources), False), "nothing is left to remember"
    made.stop()


def _last(given: dict[str, list[Transaction]], came: list[tuple[str, int]]) -> dict[str, int]:
    """The last transaction of each source that came."""
    have = set(came)
    return {source: max([one.number for one in some if keys(one)[0] in have], default=0) for source, some in given.items()}


def _between(given: dict[str, list[Transaction]], first: dict[str, int], last: dict[str, int]) -> dict[str, list[Transaction]]:
    return {source: [one for one in some if first[source] < one.number <= last[source]] for source, some in given.items()}


def test_a_transaction_larger_than_the_ring_flows(store_name: str, recreate: Any) -> None:
    """It is cut where a part of it ends; after a kill there, and in a re-created store, exactly the rest comes."""
    store, group = recreate(32)
    large = Transaction("b", 1, tuple((1,) * 9 for _ in range(8)))
    first = Transaction("a", 1, ((1,),))
    put(store, group, [first])
    parts = group.puts(large)
    made = reader(store_name)
    offset, came, cuts = made.initialOffset(), [], []
    while True:
        while parts and store.capacity - (store.newest + 1 - store.oldest) >= len(parts[0]):
            store.put(parts.pop(0), timeout=0)
        end = made.plan(offset, BatchLimit())
        if end == offset and not parts:
            break
        came += taken(rows(made, made.partitions(offset, end)))
        cuts.append(end)
        offset = end
    assert came == [*keys(first), *keys(large)]
    within = next(one for one in cuts if one.get("inside"))
    made.stop()
    store, group = recreate(1024, {"a": 0, "b": 0, "c d": 0})
    put(store, group, [large, first, Transaction("a", 2, ((1,),))])
    made = reader(store_name, subscription="other")  # the first one's has passed this place
    rest = taken(rows(made, made.partitions(within, made.plan(within, BatchLimit()))))
    at = came.index(rest[0])
    assert rest[:-1] == came[at:]
    assert 1 < at < len(came) - 1
    assert rest[-1][0] == "a"
    made.stop()


def test_a_large_transaction_does_not_hide_the_others(store_name: str, recreate: Any) -> None:
    """Where it has filled the ring, and nothing is left of a transaction's end, the store is still known to have several sources."""
    store, group = recreate(16)
    assert is_group(store) is True
    with store.subscribe("r", start="latest") as other, EventStore.create(f"{store_name}-one", capacity=16, log=False) as one:
        for part in group.puts(Transaction("b", 1, tuple((1,) * 7 for _ in range(6)))):
            store.put(part, timeout=0)
            assert is_group(store) is True
            other.ack(other.get(timeout=0))
            assert is_group(store) is True
        assert is_group(one) is None
        one.put([Group().start()[0]])
        assert is_group(one) is None
        EventStore.unlink(one.name)


def test_within_a_transaction_no_place_is_made_durable(store_name: str, recreate: Any, state: Path) -> None:
    """A query that begins at the newest event, a part of a transaction, has no place that a producer could begin at: none is written."""
    store, group = recreate(256)
    parts = group.puts(Transaction("b", 1, ((1,), (2,))))
    store.put(parts[0])
    store.subscribe("other").close()  # what the query has acked stays readable
    made = reader(store_name, startingOffsets="latest")
    start = made.initialOffset()
    assert (start["seq"], "sources" in start) == (store.newest, False)
    store.put(parts[1])
    end = made.plan(start, BatchLimit())
    assert len(rows(made, made.partitions(start, end))) == 2
    assert end["sources"] == pack_sources(group.sources)
    assert not list(state.rglob("*.json"))
    made.stop()


def test_what_is_lost_is_named(store_name: str, recreate: Any) -> None:
    """A store that begins after what a query has of any one source stops it, and says where it was."""
    store, group = recreate(256)
    put(store, group, [Transaction("a", 1, ((1,),)), Transaction("b", 1, ((1,),))])
    made = reader(store_name)
    start = made.initialOffset()
    end = made.plan(start, BatchLimit())
    made.stop()
    store, group = recreate(256, {"a": 1, "b": 2, "c d": 0})
    put(store, group, [Transaction("a", 2, ((1,),))])
    made = reader(store_name)
    with pytest.raises(PositionNotFound, match=r"no longer has the events after a=x\.000009:1999/0-1-1;b=.*take a snapshot"):
        made.plan(end, BatchLimit())
    made.stop()
    made = reader(store_name, failOnDataLoss="false")
    found = taken(rows(made, made.partitions(end, made.plan(end, BatchLimit()))))
    assert found == keys(Transaction("a", 2, ((1,),)))
    made.stop()


def test_copies_are_kept_apart(store_name: str, recreate: Any, tmp_path: Path) -> None:
    """Tables of one name on several servers have copies of their own; a target that could not tell them apart is refused."""
    store, group = recreate(256)
    order = [Transaction("b", 1, ((1, 2),)), Transaction("a", 1, ((1,),)), Transaction("b", 2, ((1,),))]
    put(store, group, order)
    options = SourceOptions.parse({"store": store_name, "payload": "raw", "includeDdl": "true"})
    made = reader(store_name, payload="raw", includeDdl="true", tables="*")
    start = made.initialOffset()
    raw = rows(made, made.partitions(start, made.plan(start, BatchLimit())))
    made.stop()
    assert [row["source"] for row in raw] == ["b", "b", "a", "b"]
    given = {name: [row["payload"] for row in raw if row["source"] == name] for name in "ab"}
    with pytest.raises(CannotFollow, match=r"the store has several sources.* give target a \{source\}"):
        Replication(options, f"{tmp_path}/{{database}}/{{table}}", "parquet").apply_each(given, "q", 0)
    with pytest.raises(CannotFollow, match=r"the store has one source: leave \{source\} out"):
        Replication(options, f"{tmp_path}/{{source}}/{{table}}", "parquet").apply(given["a"], "q", 0)
    copies = Replication(options, f"{tmp_path}/{{source}}/{{database}}/{{table}}", "parquet", history=True)
    assert copies.apply_each(given, "q", 0) == 5
    for name in "ab":
        copy = pq.read_table(tmp_path / name / "shop" / "orders" / "part-00000.parquet").to_pylist()
        assert sorted((name, row["id"]) for row in copy) == sorted(key for one in order for key in keys(one) if key[0] == name)
        assert all(row["_seq"].startswith(f"{name}/") for row in copy)


def test_a_loop_names_them_too(store_name: str, recreate: Any) -> None:
    """What a driver's loop gets has the columns, and the order, that a query gets."""

    class Session:
        def createDataFrame(self, table: Any) -> Any:
            return table

    store, group = recreate(64)
    order = [Transaction("b", 1, ((1, 2),)), Transaction("a", 1, ((1,),))]
    put(store, group, order)
    found: list[dict[str, Any]] = []
    calls = each_batch(
        Session(),  # type: ignore[arg-type]
        lambda table, _: found.extend(table.to_pylist()),
        store=store_name,
        tables="shop.orders",
        limit_events=4,
        stop=lambda: len(found) == 4,
    )
    assert calls == 2
    assert taken(found) == [key for one in order for key in keys(one)]
    assert found[0]["seq"].startswith("b/")


def test_a_group_goes_on_behind_the_ring_and_over_a_reboot(store_name: str, seed: int, state: Path) -> None:
    """In a store with a log a micro-batch of several sources is not bounded by the ring, and sequences say where a query is."""
    given = transactions(random.Random(seed), 40)
    order = merged(random.Random(seed), given)
    group = Group()
    with EventStore.create(store_name, capacity=32) as store:
        store.put(group.start())
        for one in order:
            for part in group.puts(one):
                store.put(part, timeout=30)
        made = reader(store_name)
        offset, came = made.initialOffset(), []
        end = made.plan(offset, BatchLimit(20))
        came += taken(rows(made, made.partitions(offset, end)))
    os.unlink(store.segment.where)
    rest = made.plan(end, BatchLimit())
    assert rest["seq"] - end["seq"] > 32
    came += taken(rows(made, made.partitions(end, rest)))
    made.stop()
    assert by_source(came) == wanted(given)
    EventStore.unlink(store_name, log=True)


@pytest.mark.parametrize("number", range(4))
def test_a_part_that_is_larger_than_the_limits_ends_a_batch(
    number: int, seed: int, store_name: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut is at the last end of a transaction or a part within the limits, else at the first one after them; without one there is none."""
    rng = random.Random(seed)
    monkeypatch.setattr(multi_source, "_LOOK", rng.choice([1, 3, 4096]))
    group = Group()
    with EventStore.create(store_name, capacity=512, log=False) as store:
        ends = [store.put(group.start())]
        ends += [store.put(part) for one in merged(rng, transactions(rng, 12, large=2)) for part in group.puts(one)]
        for _ in range(60):
            base, last, most = rng.randrange(ends[-1]), rng.randrange(ends[-1] + 1), rng.randrange(1, 12)
            there = [end for end in ends if base < end <= last]
            expected = max((end for end in there if end <= base + most), default=min(there, default=base))
            found = multi_source.cut_after(store, base, most, last)
            assert found == expected, f"seed {seed}: {base=} {last=} {most=} {ends}"
        EventStore.unlink(store_name)


@pytest.mark.parametrize(
    "limit", [BatchLimit(3), BatchLimit(7), BatchLimit()], ids=["less than a part", "more than a part", "none"]
)
def test_a_transaction_larger_than_the_log_flows(
    limit: BatchLimit, store_name: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut where a part of it ends that is on disk, also where its own end is in the ring, for which the full log has no space."""
    monkeypatch.setattr(batch_planner, "_STALL", 0.1)
    monkeypatch.setattr(batch_planner, "_SYNC_SECONDS", 0.1)
    order = [Transaction("a", 1, ((1,),)), Transaction("b", 1, ((1,) * 5,) * 16), Transaction("a", 2, ((1,),))]
    group = Group()
    with EventStore.create(store_name, capacity=64, memory_unit=1 << 16, log_size=16 << 20, state=state) as store:
        store.put(group.start())
        made = reader(store_name, stateDirectory=str(state))
        producer = threading.Thread(
            target=lambda: [store.put(list(map(wide, part))) for one in order for part in group.puts(one)], daemon=True
        )
        producer.start()
        offset, came, cuts = made.initialOffset(), list[tuple[str, int]](), list[dict[str, Any]]()
        deadline = time.monotonic() + 120
        while len(came) < 82 and time.monotonic() < deadline:
            end = made.plan(offset, limit)
            if end != offset:
                came += taken(rows(made, made.partitions(offset, end)))
                cuts.append(end)
                offset = end
        assert came == [key for one in order for key in keys(one)]
        assert sum(bool(cut.get("inside")) for cut in cuts) >= 2
        producer.join(60)
        made.stop()
    EventStore.unlink(store_name, log=True, state=state)


def wide(event: Event) -> Event:
    """The event with rows of 400,000 bytes."""
    return event._replace(rows=tuple(Row(None, (*row.after[:-1], "x" * 400_000)) for row in event.rows if row.after is not None))
