"""The examples and the first programs of the Spark page do what they say, on a real Spark, and a query's lag is reported."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.functions import expr

from shmstore import Column, EventStore, TableSchema
from shmstore.consumer.spark import Lag, LagListener, changes, each_batch
from shmstore.consumer.spark.options import OptionError
from tests.consumer.spark.events import Binlog
from tests.consumer.spark.queries import Query, started
from tests.docs.pages import ROOT, blocks, page_of
from tests.docs.shop import ORDERS, order_row

pytestmark = pytest.mark.spark
CUSTOMERS = TableSchema("shop", "customers", (Column("id", "int", unsigned=True), Column("name", "varchar")), (0,))


@pytest.fixture
def binlog() -> Binlog:
    """An empty binlog of the shop's orders."""
    return Binlog(ORDERS)


def example(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_replicate_and_enrich(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """The lake holds the shop as it is, and new orders find their customers in it."""
    store.subscribe("holder")  # acks nothing
    store.put([*binlog.insert((7, "Ann"), (8, "Bob"), table=CUSTOMERS), *binlog.insert(order_row(1), order_row(2, customer=8))])
    store.put(binlog.update(((7, "Ann"), (7, "Anna")), table=CUSTOMERS))
    lake, out = str(tmp_path / "lake"), str(tmp_path / "out")
    started(lambda: example("replicate").run(spark, store_name, lake, once=True))
    assert sorted(DeltaTable(f"{lake}/shop/customers").to_pyarrow_table().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 7, "name": "Anna"},
        {"id": 8, "name": "Bob"},
    ]
    started(lambda: example("enrich").enrich(spark, store_name, lake, out, once=True).awaitTermination(60))
    rows = {row["order"]: (row["name"], row["total"]) for row in pq.read_table(out).to_pylist()}
    assert rows == {1: ("Anna", Decimal("0.01")), 2: ("Bob", Decimal("0.02"))}


def test_revenue(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """Each window comes once, when the watermark is behind it, with the sum of its orders."""
    minutes = [0, 1, 12, 40, 41]
    store.put(binlog.insert(*[order_row(60 * minute) for minute in minutes]))
    windows: list[Any] = []

    def run() -> None:
        frame = example("revenue").revenue(spark, store_name)
        query = frame.writeStream.outputMode("append").foreachBatch(lambda batch, _: windows.extend(batch.collect()))
        running = query.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="0 seconds").start()
        until = time.monotonic() + 60
        while len(windows) < 2 and time.monotonic() < until and running.exception() is None:
            time.sleep(0.1)
        running.stop()
        if running.exception() is not None:
            raise running.exception()

    started(run)
    assert sorted((row["window"].start.minute, row.orders, row.revenue) for row in windows) == [
        (0, 2, Decimal("0.60")),
        (10, 1, Decimal("7.20")),
    ]


@pytest.mark.every_spark
def test_documents(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """Rows of several tables as VARIANT: fields by path, with their types; NULL where there is none."""
    inserted = [*binlog.insert((7, "Ann"), table=CUSTOMERS), *binlog.insert(order_row(1), order_row(2))]
    store.put([*inserted, *binlog.delete(order_row(2))])
    rows: list[Any] = []

    def run() -> None:
        frame = example("documents").changes(spark, store_name, subscription="documents")
        writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        writer.start().awaitTermination(60)

    started(run)
    assert [tuple(row)[1:] for row in sorted(rows)] == [
        ("shop.customers", "c", 7, None),
        ("shop.orders", "c", 1, Decimal("0.01")),
        ("shop.orders", "c", 2, Decimal("0.02")),
        ("shop.orders", "d", 2, None),
    ]


def test_history(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """A table is what it was at any moment."""
    first, second = binlog.insert(order_row(1)), binlog.update((order_row(1), order_row(1, status="paid")))
    store.put([*first, *second])
    module = example("history")
    module.keep(spark, store_name, str(tmp_path), once=True)
    moments = [datetime.fromtimestamp(events[1].time_ms / 1000, UTC) for events in (first, second)]
    states = [
        module.as_of(str(tmp_path), "orders", moment).column("status").to_pylist()
        for moment in (moments[0] - timedelta(seconds=1), *moments)
    ]
    assert states == [[], ["new"], ["paid"]]


def test_lag_is_reported(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """After each micro-batch the listener hears how many events, bytes and seconds are left."""
    store.subscribe("holder")  # acks nothing: the listener may hear of a batch when the next one is done
    heard: list[Lag] = []
    listener = LagListener(heard.append)
    spark.streams.addListener(listener)
    try:
        for n in range(4):
            store.put(binlog.insert(order_row(n)))
        query = Query(spark, store_name, tmp_path / "c", maxRowsPerTrigger="1").start()
        until = time.monotonic() + 30
        while len(heard) < 4 and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
        query.stop()
    assert [lag.events for lag in heard[:4]] == [9, 6, 3, 0]
    assert [lag.size > 0 for lag in heard[:4]] == [True, True, True, False]
    assert heard[0].seconds == pytest.approx(0.8)  # events are 100 ms apart
    assert heard[3] == Lag(heard[0].query, store_name, 0, 0, 0.0)


def test_the_driver_loop_acks_what_was_done(spark: Any, store: EventStore, store_name: str, binlog: Binlog) -> None:
    """`each_batch` gives the columns of the source; a batch whose function raised comes again, one that is done does not."""
    store.put([*binlog.insert(order_row(1)), *binlog.insert(order_row(2))])
    got: list[Any] = []

    def take(frame: Any, last: int) -> None:
        got.extend(frame.select("op", "after.id", "seq").collect())
        if len(got) == 2:
            raise RuntimeError("the first time")

    with pytest.raises(RuntimeError, match="the first time"):
        each_batch(spark, take, store=store_name, tables="shop.orders")
    assert each_batch(spark, take, store=store_name, tables="shop.orders", stop=lambda: len(got) >= 4) == 1
    assert [row.id for row in got] == [1, 2, 1, 2]
    assert store.subscriptions()[0].lag_events == 0


def page_program(start: str, **values: str) -> str:
    """The block of the Spark page that begins so, with other values in the place of its own."""
    (text,) = (
        block.text
        for block in blocks(page_of("spark"), page_of("spark-copies"), language="python")
        if block.text.startswith(start)
    )
    for old, new in values.items():
        assert old in text
        text = text.replace(old, new)
    return text


def test_the_first_query_of_the_page(store: EventStore, store_name: str, binlog: Binlog, state: Path, tmp_path: Path) -> None:
    """The program that the Spark page begins with, saved as a file and run, prints the changes of one table."""
    store.put([*binlog.insert(order_row(1), order_row(2)), *binlog.delete(order_row(2))])
    program = tmp_path / "totals.py"
    program.write_text(page_program("from pyspark.sql import", **{'"orders"': repr(store_name)}))
    environment = {**os.environ, "SHMSTORE_STATE": str(state), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True
    ) as run:
        timer = threading.Timer(300, run.kill)
        timer.start()
        found: list[list[str]] = []
        try:
            assert run.stdout is not None
            for line in run.stdout:
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                if cells[0] in ("c", "d"):
                    found.append(cells[:3])
                if len(found) == 3:
                    break
        finally:
            timer.cancel()
            os.killpg(run.pid, signal.SIGKILL)
    assert sorted(found) == [["c", "NULL", "0.0100"], ["c", "NULL", "0.0200"], ["d", "0.0200", "NULL"]]


def test_tables_of_the_page_as_views(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """Several tables at once are frames by name and temporary views, and are read and joined in one query without a word of subscriptions."""
    store.subscribe("holder")  # acks nothing
    store.put([*binlog.insert((7, "Ann"), (8, "Bob"), table=CUSTOMERS), *binlog.insert(order_row(1), order_row(2, customer=8))])
    frames = changes(spark, store_name, ["shop.*", "!shop.log"], views=True, maxRowsPerTrigger=100_000)
    assert sorted(frames) == ["shop.customers", "shop.orders"]
    assert frames["shop.orders"].schema["pk"].dataType.simpleString() == "struct<id:decimal(20,0)>"
    joined = spark.sql("SELECT o.after.id, c.after.name FROM orders o JOIN customers c ON o.after.customer_id = c.after.id")
    query = started(lambda: joined.writeStream.format("memory").queryName("joined").start())
    try:
        query.processAllAvailable()
        assert sorted(map(tuple, spark.table("joined").collect())) == [(1, "Ann"), (2, "Bob")]
        _, *names = sorted(one.name for one in store.subscriptions())
        assert names == ["shmstore_tests-shop.customers-" + names[0][-8:], "shmstore_tests-shop.orders-" + names[1][-8:]]
    finally:
        query.stop()
    one, other = (
        spark.readStream.format("shmstore").option("store", store_name).option("tables", "shop.orders").load() for _ in range(2)
    )
    two = one.select("seq", "op").union(other.selectExpr("seq", "'x'"))
    found: list[Any] = []
    for number in (2, 3):  # a table that one query reads twice, and again from its checkpoint
        writer = two.writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
        query = started(writer.option("checkpointLocation", str(tmp_path)).start)
        try:
            query.processAllAvailable()
            assert len({tuple(row) for row in found}) == len(found) == 2 * number
        finally:
            query.stop()
        store.put(binlog.insert(order_row(number + 1)))
    with pytest.raises(OptionError, match=r"is not one table: give a list for several, as changes\(spark, '.*', \['shop.\*'\]\)"):
        changes(spark, store_name, "shop.*")
    with pytest.raises(OptionError, match=r"knows no table that crm.\* matches; it knows shop.customers, shop.orders$"):
        changes(spark, store_name, ["crm.*"])


def test_a_frame_joined_with_itself(spark: Any, store: EventStore, store_name: str, binlog: Binlog) -> None:
    """One query reads the table twice, without a word of subscriptions, and has the pairs of all that it reads in whatever micro-batch."""
    store.put(binlog.insert(order_row(1), order_row(2, customer=8)))
    orders = changes(spark, store_name, "shop.orders", startingOffsets="earliest")
    one, other = orders.alias("one"), orders.alias("other")
    same = expr("one.after.customer_id = other.after.customer_id AND one.after.id < other.after.id")
    pairs = one.join(other, same).select("one.after.id", "other.after.id")
    query = started(lambda: pairs.toDF("one", "other").writeStream.format("memory").queryName("pairs").start())
    try:
        query.processAllAvailable()
        store.put(binlog.insert(order_row(3), order_row(4, customer=8), order_row(5, customer=9)))
        query.processAllAvailable()
        assert sorted(map(tuple, spark.table("pairs").collect())) == [(1, 3), (2, 4)]
        assert len(store.subscriptions()) == 2
    finally:
        query.stop()


@pytest.mark.every_spark
def test_the_copies_of_the_page(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """`replicate`, as the Spark page calls it, keeps a Delta copy of every table."""
    store.put([*binlog.insert(order_row(1), order_row(2)), *binlog.delete(order_row(2))])
    program = page_program(
        "from shmstore.spark import replicate", **{'"orders"': repr(store_name), "/lake": str(tmp_path / "lake")}
    )
    exec(compile(program, "spark.md", "exec"), {"spark": spark})
    (query,) = spark.streams.active
    try:
        query.processAllAvailable()
        copy = DeltaTable(str(tmp_path / "lake/shop/orders")).to_pyarrow_table()
        assert copy.column("id").to_pylist() == [1]
    finally:
        query.stop()
