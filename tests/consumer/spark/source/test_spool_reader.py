"""A spool as a source: the same rows as from the ring, and a query that goes from one to the other with its checkpoint."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore, PositionNotFound
from shmstore.consumer.spark.source.source import ShmStoreSource
from shmstore.consumer.spool import Spool, pieces
from tests.consumer.spark.events import Binlog, order_row
from tests.consumer.spark.queries import Query

pytestmark = pytest.mark.spark


def rows_of(query: Query) -> list[tuple[Any, ...]]:
    return [(row.seq, row.op, row.pk, row.after, row.source.offset) for row in query.rows]


@pytest.mark.parametrize("payload", ["typed", "json", "raw"])
def test_the_same_rows_as_from_the_ring(
    spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path, payload: str
) -> None:
    """`spark.read` of a store and of its spool give the same rows, whatever the payload."""
    folder = tmp_path / "spool"
    store.subscribe("holder")
    spool = Spool(store, folder)
    for n in range(20):
        store.put(binlog.insert(*[order_row(10 * n + i) for i in range(1 + n % 3)]))
        if n % 4 == 0:
            spool.step(0)
    store.put(binlog.delete(order_row(10)))
    spool.step(0)
    spool.close()
    source = spark.read.format("shmstore").option("store", store_name).option("tables", "shop.orders").option("payload", payload)
    live, spooled = source.load(), source.option("spool", str(folder)).load()
    assert spooled.schema == live.schema
    order = "sequence" if payload == "raw" else "seq"
    assert len(pieces(folder)) > 4
    assert spooled.toArrow().sort_by(order).to_pylist() == live.toArrow().sort_by(order).to_pylist()


def test_ring_to_spool_to_ring(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """One checkpoint, now over the ring, now over the spool, again over the ring: each row once, in the binlog's order."""
    folder = tmp_path / "spool"
    spool = Spool(store, folder)
    query = Query(spark, store_name, tmp_path / "c", tables="shop.orders")
    wanted = []

    def put(count: int) -> None:
        for _ in range(count):
            wanted.append(len(wanted))
            store.put(binlog.insert(order_row(wanted[-1])), timeout=0)

    put(5)
    query.start(once=True)
    query.stop()
    put(5)
    spool.step(0)
    store.unsubscribe("spark")  # the ring is the spool's business from now on
    for _ in range(5):
        put(200)  # far more than the ring holds
        spool.step(0)
    query.start(once=True, spool=str(folder), maxRowsPerTrigger="150")
    query.stop()
    assert len(query.batches) > 5
    spool.close()  # from its ack on the ring keeps everything
    put(5)
    query.start(once=True)
    query.stop()
    assert [row.after.id for row in query.rows] == wanted
    assert [row.seq for row in query.rows] == sorted({row.seq for row in query.rows})


def test_a_failed_batch_comes_again_and_files_go(
    spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path, seed: int
) -> None:
    """A batch whose sink failed is read again, the same rows; files are removed when all queries have logged their batches."""
    choose, folder = random.Random(seed), tmp_path / "spool"
    spool = Spool(store, folder)
    for n in range(30):
        store.put(binlog.insert(*[order_row(100 * n + i) for i in range(choose.randrange(1, 5))]))
        spool.step(0)
    count = len(pieces(folder))
    query = Query(spark, store_name, tmp_path / "c", tables="shop.orders", spool=str(folder), maxRowsPerTrigger="10")
    other = Query(spark, store_name, tmp_path / "d", tables="shop.orders", spool=str(folder), subscription="other")
    other.start(once=True)
    other.stop()
    query.fail_at = 2
    with pytest.raises(Exception, match="the sink failed"):
        query.start(once=True)
    query.stop()
    before = list(query.batches[2])
    assert 0 < spool.clean() < count
    query.start(once=True)
    query.stop()
    assert query.batches[2] == before
    assert rows_of(query) == rows_of(other)
    for each in (query, other):
        each.start(once=True)  # Spark commits a batch when it builds the next
        each.stop()
    spool.clean()
    assert len(pieces(folder)) == 1
    spool.close()


def test_offsets_are_found_by_position(store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """An offset of another life of the store goes on behind its place in the binlog; one before the first file names the gap."""
    store.subscribe("holder")
    spool = Spool(store, tmp_path / "spool")
    for n in range(4):
        store.put([*binlog.insert(order_row(2 * n)), *binlog.insert(order_row(2 * n + 1))])
        spool.step(0)
    spool.close()
    source = ShmStoreSource({"store": store_name, "tables": "shop.orders", "spool": str(tmp_path / "spool")})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    for done in range(1, 8):
        middle = {**start, "epoch": 5, "seq": 99, "offset": 4 + 300 * done, "gtids": f"0-1-{done}"}
        assert reader.latestOffset(middle, reader.getDefaultReadLimit()) == end
        rows = [row for part in reader.partitions(middle, end) for batch in reader.read(part) for row in batch.to_pylist()]
        assert [row["after"]["id"] for row in rows] == list(range(done, 8))
    later = {**end, "epoch": 5, "offset": end["offset"] + 1}
    assert reader.latestOffset(later, reader.getDefaultReadLimit()) == later  # the spool has not come to it yet
    pieces(tmp_path / "spool")[0].path.unlink()
    with pytest.raises(PositionNotFound, match="no longer has the events after"):
        reader.latestOffset({**start, "epoch": 5}, reader.getDefaultReadLimit())
    reader.stop()


@pytest.mark.parametrize("cuts", [(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_a_snapshot_comes_after_its_place(
    store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    """A query that stands where a snapshot of another life read finds all its rows, however they lie in the files, and then the changes.

    Put are a transaction (0), two chunks of rows where it ends (1, 2) and a transaction (3); a file ends behind those in `cuts`.
    """
    store.subscribe("holder")
    spool = Spool(store, tmp_path / "spool")
    for number in range(4):
        store.put(binlog.snapshot(order_row(number)) if number in (1, 2) else binlog.insert(order_row(number)))
        if number == 0:
            at = binlog.offset
        if number in cuts:
            spool.step(0)
    (tmp_path / "spool").mkdir(exist_ok=True)
    source = ShmStoreSource({"store": store_name, "tables": "shop.orders", "payload": "json", "spool": str(tmp_path / "spool")})
    reader = source.streamReader(source.schema())
    start = {
        "version": 1,
        "store": store_name,
        "epoch": 5,
        "seq": 99,
        "file": "binlog.000001",
        "offset": at,
        "gtids": "",
        "row": 0,
    }

    def ids() -> list[int]:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        found = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
        return [json.loads(row["after"])["id"] for row in found]

    if cuts:
        assert ids() == [1, 2][: max(cuts)]  # before more has come
    spool.step(0)
    spool.close()
    assert ids() == [1, 2, 3]
    reader.stop()


def test_errors(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """No folder, and a spool that begins after the query's place: said, with what to do."""
    frame = spark.read.format("shmstore").option("store", store_name).option("spool", str(tmp_path / "none"))
    with pytest.raises(Exception, match="shmstore spool"):
        frame.load().count()
    store.subscribe("holder")
    query = Query(spark, store_name, tmp_path / "c", tables="shop.orders")
    store.put(binlog.insert(order_row(1)))
    query.start(once=True)
    query.stop()
    for n in range(2, 5):
        store.put(binlog.insert(order_row(n)))
    spool = Spool(store, tmp_path / "spool")
    spool.step(0)
    store.put(binlog.insert(order_row(5)))
    spool.step(0)
    spool.close()
    pieces(tmp_path / "spool")[0].path.unlink()
    with pytest.raises(Exception, match="no longer has the events after"):
        query.start(once=True, spool=str(tmp_path / "spool"))
    assert "no longer has the events after" in query.await_error()
