"""apply_changes on a real Spark: a stream of one's own becomes a table, whatever is killed in between. What a batch does is tested without Spark."""

from __future__ import annotations

import json
import random
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from shmstore import EventStore
from shmstore.consumer.copies.applied_changes import DELETED, SEQUENCE, AppliedChanges
from shmstore.consumer.spark import apply_changes, changes
from shmstore.consumer.spark.decode.arrow_frame import whole
from shmstore.consumer.spark.replicate.apply_changes import with_moved_keys
from tests.consumer.spark.events import Binlog
from tests.consumer.spark.queries import NO_WORKER, started
from tests.docs.pages import blocks, page_of
from tests.docs.shop import ORDERS, order_row

pytestmark = pytest.mark.spark


@pytest.fixture
def binlog() -> Binlog:
    """An empty binlog of the shop's orders."""
    return Binlog(ORDERS)


def run(start: Any) -> None:
    """Run a query to the end of what there is. Raises what ended it."""

    def once() -> None:
        query = start()
        query.awaitTermination(200)
        if query.exception() is not None and NO_WORKER in str(query.exception()):
            raise query.exception()
        assert not query.isActive

    started(once)


@pytest.mark.every_spark
def test_a_table_with_an_empty_chunk_is_whole(spark: Any) -> None:
    """As where a merge has rows to write and to update, and none to delete. Spark ends at an empty chunk."""
    chunks = [pa.table({"n": pa.array(some, pa.int64())}) for some in ([], [1, 2], [], [3], [])]
    assert sorted(row.n for row in spark.createDataFrame(whole(pa.concat_tables(chunks))).collect()) == [1, 2, 3]
    assert spark.createDataFrame(whole(chunks[0])).count() == 0


@pytest.mark.every_spark
def test_a_stream_of_ones_own(
    spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders over a limit, masked: rows that come under it go, a changed key leaves no row behind; a query that ends between write and commit
    writes nothing twice when it is started again.
    """
    target, checkpoint = str(tmp_path / "large"), str(tmp_path / "checkpoint")

    def start() -> Any:
        orders = changes(spark, store_name, "shop.orders", startingOffsets="earliest")
        masked = orders.withColumn("after", orders.after.withField("note", orders.after.status).dropFields("placed", "season"))
        return apply_changes(
            masked,
            target=target,
            keys="id",
            deletes="op = 'd' OR after.total < 0.5",
            checkpoint=checkpoint,
            trigger={"availableNow": True},
        )

    def rows() -> dict[int, tuple[Any, ...]]:
        found = DeltaTable(target).to_pyarrow_table().select(["id", "total", "note"]).to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {int(row["id"]): (row["total"], row["note"]) for row in found}

    def cents(number: int, status: str = "new") -> tuple[Decimal, str]:
        return Decimal(number).scaleb(-2).quantize(Decimal("0.0001")), status

    store.put(binlog.insert(*[order_row(n) for n in (10, 60, 70, 80)]))
    store.put(binlog.update((order_row(60), order_row(61, status="paid"))))
    store.put(binlog.delete(order_row(70)))
    apply, writes = AppliedChanges.apply, list[int]()

    def killed(self: AppliedChanges, found: pa.Table, query: str, batch: int) -> int:
        writes.append(apply(self, found, query, batch))
        if len(writes) == 1:
            raise RuntimeError("the process ended between write and commit")
        return writes[-1]

    monkeypatch.setattr(AppliedChanges, "apply", killed)
    with pytest.raises(Exception, match="the process ended between write and commit"):
        run(start)
    version = DeltaTable(target).version()
    assert rows() == {61: cents(61, "paid"), 80: cents(80)}
    run(start)
    assert len(writes) > 1
    assert DeltaTable(target).version() == version
    small = (*order_row(80)[:5], Decimal("0.1000"), *order_row(80)[6:])
    store.put([*binlog.update((order_row(80), small)), *binlog.insert(order_row(90))])
    run(start)
    assert rows() == {61: cents(61, "paid"), 90: cents(90)}


def test_any_frame_in_any_order(spark: Any, tmp_path: Path, seed: int) -> None:
    """A stream of files, joined with a table, whose changes come in any order and again: all versions of each row, in SQLite, over restarts."""
    choose, folder = random.Random(seed), tmp_path / "in"
    folder.mkdir()
    names = spark.createDataFrame([(0, "zero"), (1, "one")], "id INT, name STRING")
    events = [(choose.randint(0, 3), at, choose.random() < 0.3) for at in choose.sample(range(100), 40)]
    for number in range(4):
        some = events[number * 10 :][:10] + choose.sample(events[: number * 10 + 10], 3)
        choose.shuffle(some)
        lines = [json.dumps({"id": key, "at": at, "gone": gone, "value": f"v{at}"}) for key, at, gone in some]
        (folder / f"{number}.json").write_text("\n".join(lines))
        if number % 2:  # two files a run, each a micro-batch

            def start() -> Any:
                stream = spark.readStream.schema("id INT, at BIGINT, gone BOOLEAN, value STRING").option("maxFilesPerTrigger", 1)
                joined = stream.json(str(folder)).join(names, "id", "left")
                return apply_changes(
                    joined,
                    target=f"sqlite:{tmp_path}/copies.db#rows",
                    keys=["id"],
                    sequence_by="at",
                    deletes="gone",
                    history=True,
                    columns=["value", "name"],
                    checkpoint=str(tmp_path / "checkpoint"),
                    trigger={"availableNow": True},
                )

            run(start)
    wanted = set()
    for key in range(4):
        of_key = sorted((at, gone) for one, at, gone in events if one == key)
        ends: list[int | None] = [*[at for at, _ in of_key[1:]], None]
        wanted |= {
            (key, f"v{at}", {0: "zero", 1: "one"}.get(key), at, end, int(end is None))
            for (at, gone), end in zip(of_key, ends, strict=True)
            if not gone
        }
    with sqlite3.connect(tmp_path / "copies.db") as connection:
        found = connection.execute("SELECT id, value, name, _valid_from, _valid_to, _current FROM rows").fetchall()
    connection.close()
    assert set(found) == wanted
    assert len(found) == len(wanted)


def test_a_change_without_a_key_ends_the_query(spark: Any, tmp_path: Path) -> None:
    """Its first line says which column, how many rows and what to do."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.json").write_text('{"id": 1, "at": 1}\n{"at": 2}')
    stream = spark.readStream.schema("id INT, at BIGINT").json(str(tmp_path / "in"))
    given = {"keys": "id", "sequence_by": "at", "deletes": None, "trigger": {"availableNow": True}}
    with pytest.raises(
        Exception, match=r"key column id is NULL in 1 of 2 rows, the first of which has the sequence 2: leave such rows out"
    ):
        run(lambda: apply_changes(stream, target=str(tmp_path / "out"), **given))


def test_what_does_not_fit_is_an_error_before_the_query(spark: Any, tmp_path: Path) -> None:
    """One line each."""
    stream = spark.readStream.schema("id INT, at BIGINT, flag BOOLEAN").json(str(tmp_path))
    folder = str(tmp_path / "out")
    for given, text in (
        ({"target": "/lake/{table}"}, "has a placeholder"),
        ({"target": "sqlite:/x.db"}, "need checkpoint="),
        ({"target": "sqlite:/x.db", "checkpoint": "/c"}, "names no table: give it behind #, as sqlite:/x.db#table"),
        ({"keys": ["nr"]}, "no column nr to use as a key: it has id, flag"),
        ({"columns": ["total"]}, "no column total: it has id, flag"),
        ({"deletes": "op = 'd'"}, "deletes=\"op = 'd'\" a condition over the frame's columns id, at, flag: .UNRESOLVED_COLUMN"),
        ({"deletes": "at"}, "deletes='at' a condition over the frame's columns id, at, flag: .DATATYPE_MISMATCH"),
        ({"format": "csv"}, "format 'csv' is unknown"),
    ):
        with pytest.raises(ValueError, match=text) as caught:
            apply_changes(stream, **{"target": folder, "keys": "id", "sequence_by": "at", "deletes": "flag", **given})
        assert "\n" not in str(caught.value)


def test_a_changed_key_deletes_the_old_one() -> None:
    """Only where a row was there before, and had another key."""
    rows = pa.table(
        {
            "a": pa.array([1, 2, 3, None], pa.int32()),
            "b": pa.array(["x", "y", "z", "w"]),
            "n": pa.array([1, 2, 3, 4]),
            SEQUENCE: pa.array([10, 11, 12, 13]),
            DELETED: pa.array([False, False, False, False]),
            "_shmstore_before_a": pa.array([1, 1, None, 4], pa.int32()),
            "_shmstore_before_b": pa.array(["x", "y", None, "w"]),
        }
    )
    found = with_moved_keys(rows, ["a", "b"]).to_pylist()[4:]
    assert [tuple(row.values()) for row in found] == [(1, "y", None, 11, True), (4, "w", None, 13, True)]


def test_the_page(
    spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's program does what it says."""
    program = blocks(page_of("spark-apply"), language="python")[0].text
    store.subscribe("holder")  # acks nothing
    store.put(binlog.insert(*[order_row(n) for n in range(5)]))
    store.put([*binlog.delete(order_row(3)), *binlog.update((order_row(4), order_row(4, status="paid")))])
    text = program.replace('"orders", "shop.orders"', f'{store_name!r}, "shop.orders"').replace("/lake", str(tmp_path))
    assert text.count(str(tmp_path)) == 1
    text = text.replace(".awaitTermination()", ".awaitTermination(100)").replace(
        'keys="id"', 'keys="id", trigger={"availableNow": True}'
    )
    name = spark.conf.get("spark.app.name")
    try:
        started(lambda: exec(compile(text, "spark-apply", "exec"), {}))
    finally:
        spark.conf.set("spark.app.name", name)  # which the program gave to this session, as others use it
    found = {int(row["id"]): row["status"] for row in DeltaTable(tmp_path / "paid").to_pyarrow_table().to_pylist()}
    assert found == {4: "paid"}
