"""Where a micro-batch of a query of some tables ends: in front of other columns, after so many rows of its own, and not where there are none."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from shmstore import Column, EventStore, EventType, TableSchema
from shmstore.consumer.spark.decode.decoder import Decoder, SchemaChanged
from shmstore.consumer.spark.options import SourceOptions, Start
from shmstore.consumer.spark.source import batch_planner
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.call_order import CallOrderReader
from shmstore.consumer.spark.source.foreach import each_batch
from shmstore.consumer.spark.source.schema_lookup import find_table
from shmstore.consumer.spark.source.source import BatchReader
from shmstore.consumer.spark.source.stream_reader import StreamReader
from tests.consumer.spark.events import ORDERS, Binlog, order_row

OTHERS = ORDERS._replace(table="others")
WIDER = ORDERS._replace(columns=(*ORDERS.columns, Column("note", "varchar", size=9)))


def table(*columns: str, key: int = 0, name: str = "orders") -> TableSchema:
    """A table of columns ``name:type``, INT where there is no type."""
    made = [Column(one.partition(":")[0], one.partition(":")[2] or "int") for one in columns]
    return TableSchema("shop", name, tuple(made), (key,))


@pytest.fixture
def store(store_name: str) -> Iterator[EventStore]:
    """A store with a log, which keeps what a query has acked."""
    with EventStore.create(store_name, log_size=16 << 20) as made:
        yield made


class Run:
    """A query, as Spark 4.2 and later call its reader."""

    def __init__(self, store: str, reader: type[StreamReader] = StreamReader, **options: str) -> None:
        given = {"store": store, "tables": "shop.orders", **options}
        parsed = SourceOptions.parse(given)
        self.reader = reader(Decoder(parsed, *(find_table(parsed) if parsed.payload == "typed" else ())))
        self.at = self.reader.initialOffset()

    def batch(self, rows: int | None = None, size: int | None = None) -> list[Any]:
        """The next micro-batch's rows: of each its image, and its key where it has none."""
        end = self.reader.plan(self.at, BatchLimit(rows, size))
        return self.rows(end)

    def rows(self, end: dict[str, Any]) -> list[Any]:
        found = []
        for partition in self.reader.partitions(self.at, end):
            for batch in self.reader.read(partition):
                found += [row["after"] or row["pk"] for row in batch.to_pylist()]
        self.at = end
        return found

    def stop(self) -> None:
        self.reader.commit(self.at)
        self.reader.stop()


def test_a_batch_ends_in_front_of_other_columns(store: EventStore, binlog: Binlog) -> None:
    """Rows of both sides are in the log: each run has one side, with its own columns, and the error says where the other one begins."""
    store.put([*binlog.insert(order_row(1)), *binlog.insert(order_row(2))])
    store.put([*binlog.ddl("ALTER TABLE orders ADD note VARCHAR(9)"), *binlog.insert((*order_row(3), "a"), table=WIDER)])
    store.put(binlog.insert((*order_row(4), "b"), table=WIDER))
    run = Run(store.name)
    assert [row["id"] for row in run.batch()] == [1, 2]
    with pytest.raises(
        SchemaChanged, match=r"^shop.orders has other columns from binlog.000001:\d+ on .*note is new.*Load the frame again"
    ):
        run.batch()
    run.reader.stop()
    again = Run(store.name)
    assert [(row["id"], row["note"]) for row in again.batch()] == [(3, "a"), (4, "b")]
    assert again.batch() == []
    again.stop()


def test_a_run_up_to_the_end_ends_in_front_of_other_columns(store: EventStore, binlog: Binlog) -> None:
    """Trigger.AvailableNow: the first run has what is before the DDL and ends without an error, the second one has the rest."""
    store.put(binlog.insert(*map(order_row, range(10))))
    store.put([*binlog.ddl("ALTER TABLE orders ADD note VARCHAR(9)")])
    store.put(binlog.insert(*[(*order_row(n), "x") for n in range(10, 20)], table=WIDER))
    found = []
    for count in (10, 20):
        run = Run(store.name)
        run.reader._freeze(Start("latest"))
        while rows := run.batch():
            found += rows
        run.reader.stop()  # without a commit
        assert len(found) == count
    assert [row["id"] for row in found] == list(range(20))


@pytest.mark.parametrize("done", [True, False])
def test_a_run_of_spark_before_4_2(store: EventStore, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """It does not say that the run's one micro-batch is done: the next run is planned as if, and as it was where Spark runs it again."""
    for module in ("source.schema_lookup", "source.subscription_owner"):
        monkeypatch.setattr(f"shmstore.consumer.spark.{module}.has_read_limits", lambda: False)
    store.put(binlog.insert(order_row(1)))
    store.put([*binlog.ddl("ALTER TABLE orders ADD note VARCHAR(9)"), *binlog.insert((*order_row(2), "x"), table=WIDER)])
    first = Run(store.name, CallOrderReader)
    start, seen = first.at, first.reader.latestOffset()  # type: ignore[call-arg]
    assert [row["id"] for row in first.rows(seen)] == [1]
    first.reader.stop()
    second = Run(store.name, CallOrderReader)
    second.reader.partitions(seen, seen)
    if not done:
        second.at = start
        with pytest.raises(SchemaChanged, match=r"must be run again.*note is not there.*Load the frame again"):
            second.rows(seen)
        second.reader.stop()
        second = Run(store.name, CallOrderReader)
        second.reader.partitions(seen, seen)
        second.at = start
        assert [sorted(row) for row in second.rows(seen)] == [sorted(ORDERS.names)]
        with pytest.raises(SchemaChanged, match="Load the frame again"):
            second.reader.latestOffset()  # type: ignore[call-arg]
        second.reader.stop()
        second = Run(store.name, CallOrderReader)
        second.reader.partitions(seen, seen)
    second.at = seen
    assert [(row["id"], row["note"]) for row in second.rows(second.reader.latestOffset())] == [(2, "x")]  # type: ignore[call-arg]
    second.reader.stop()


@pytest.mark.parametrize("limit", [{}, *({"maxRowsPerTrigger": str(rows)} for rows in (1, 3, 7)), {"maxBytesPerTrigger": "500"}])
def test_runs_of_one_micro_batch_go_on_over_ddls(
    store: EventStore, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, seed: int, limit: dict[str, str]
) -> None:
    """Trigger.AvailableNow of Spark 4.0 and 4.1, again and again: no run fails, also where a transaction is larger than a micro-batch may be."""
    for module in ("source.subscription_owner", "source.schema_lookup"):
        monkeypatch.setattr(f"shmstore.consumer.spark.{module}.has_read_limits", lambda: False)
    choose, count, wide = random.Random(seed), 0, False
    for _ in range(16):
        if choose.random() < 0.5:
            store.put(binlog.ddl(f"ALTER TABLE orders {'DROP' if wide else 'ADD'} note{' VARCHAR(9)' * (not wide)}"))
            wide = not wide
        ids = range(count, count + choose.choice([1, 1, 2, 5, 12]))
        count = ids.stop
        rows = [order_row(number) + ("x",) * wide for number in ids]
        store.put(binlog.insert(*rows, table=WIDER if wide else ORDERS))
    found: list[int] = []
    seen = None
    while len(found) < count:
        run = Run(store.name, CallOrderReader, **limit)
        if seen is not None:
            run.at = seen
            run.reader.partitions(seen, seen)
        end = run.reader.latestOffset()  # type: ignore[call-arg]
        assert end != run.at
        found += [row["id"] for row in run.rows(end)]
        seen = end
        run.reader.stop()
    assert found == list(range(count))


FOLLOWED = [
    (["ALTER TABLE orders RENAME COLUMN a TO x"], table("id", "x", "b"), {"a": 1, "b": 2}),
    (["ALTER TABLE orders CHANGE a x BIGINT"], table("id", "x:bigint", "b"), {"a": 1, "b": 2}),
    (["ALTER TABLE shop.orders MODIFY A INT"], table("id", "A", "b"), {"a": 1, "b": 2}),
    (["ALTER TABLE orders RENAME COLUMN a TO b, RENAME COLUMN b TO a"], table("id", "b", "a"), {"a": 1, "b": 2}),
    (["ALTER TABLE orders CHANGE a b INT, CHANGE b a INT AFTER id"], table("id", "a", "b"), {"a": 2, "b": 1}),
    (["ALTER TABLE orders DROP a", "ALTER TABLE orders CHANGE b a INT"], table("id", "a"), {"a": None, "b": 1}),
    (["ALTER TABLE orders DROP a, ADD a INT"], table("id", "b", "a"), {"a": 2, "b": 1}),
    (["ALTER TABLE orders DROP COLUMN a, ADD KEY (b), ORDER BY b, id"], table("id", "b"), {"a": None, "b": 1}),
    (["ALTER TABLE orders RENAME COLUMN a TO x", "ALTER TABLE orders ADD a INT"], table("id", "x", "b", "a"), {"a": 1, "b": 2}),
    (
        ["RENAME TABLE orders TO t", "ALTER TABLE t CHANGE a x INT", "RENAME TABLE t TO orders"],
        table("id", "x", "b"),
        {"a": 1, "b": 2},
    ),
    (["RENAME TABLE orders TO t, others TO orders, t TO others"], table("id", "b", "a"), {"a": 2, "b": 1}),
    (
        ["ALTER TABLE orders RENAME COLUMN a TO x, RENAME TO gone", "CREATE TABLE orders (b INT)"],
        table("id", "a", "b"),
        {"a": 1, "b": 2},
    ),
    (
        [
            "CREATE TABLE _o_gho LIKE orders",
            "ALTER TABLE _o_gho CHANGE a x INT",
            "RENAME TABLE orders TO _o_del, _o_gho TO orders",
        ],
        table("id", "x", "b"),
        {"a": 1, "b": 2},
    ),
    (["DROP TABLE orders", "CREATE TABLE orders (...)"], table("id", "b:varchar", "a"), {"a": 2, "b": 1}),
    (["DROP DATABASE shop", "CREATE TABLE orders (...)"], table("id", "c"), {"a": None, "b": None}),
    (["ALTER TABLE orders RENAME COLUMN a TO x", "TRUNCATE orders"], table("id", "x", "b"), {"a": 1, "b": 2}),
    (["ALTER TABLE elsewhere.orders RENAME COLUMN a TO b, RENAME COLUMN b TO a"], table("id", "a", "b"), {"a": 1, "b": 2}),
]


@pytest.mark.parametrize(
    ("statements", "after", "wanted"), FOLLOWED, ids=lambda value: value[0] if isinstance(value, list) else ""
)
@pytest.mark.parametrize("parts", [1, 4])
def test_a_column_is_followed_by_what_it_is(
    store: EventStore, binlog: Binlog, statements: list[str], after: TableSchema, wanted: dict[str, int], parts: int
) -> None:
    """Through any DDL; in the micro-batch that holds it, and in one that begins behind it."""
    before = table("id", "a", "b")
    store.put(binlog.insert((0, 1, 2), table=before))
    for sql in statements:
        store.put(binlog.ddl(sql))
    values = ["1", "2", "3"] if any(column.type == "varchar" for column in after.columns) else [1, 2, 3]
    row = tuple(
        int(value) if column.type != "varchar" else str(value) for column, value in zip(after.columns, [9, *values], strict=False)
    )
    store.put([*binlog.insert(row, table=after), *binlog.insert(row, table=after)])
    options = {"schemaChanges": "follow", "partitions": str(parts), "partitionBytes": "1"}
    run = Run(store.name, **options)
    assert run.batch(rows=2) == [{"id": 0, "a": 1, "b": 2}, {"id": 9, **wanted}]
    assert run.batch() == [{"id": 9, **wanted}]
    run.stop()
    again = Run(store.name, **options, subscription="again")
    assert again.batch() == [{"id": 0, "a": 1, "b": 2}, {"id": 9, **wanted}, {"id": 9, **wanted}]
    again.stop()


SWAP = "ALTER TABLE orders RENAME COLUMN a TO b, RENAME COLUMN b TO a"


def test_what_ddls_did_before_the_planned_row_is_in_the_plan(store: EventStore, binlog: Binlog) -> None:
    """A query that is new, one that continues in front of the DDL, and a batch read: columns are named as in the row that they were planned with."""
    store.put(binlog.insert((1, 10, 20), table=table("id", "a", "b")))
    run = Run(store.name, schemaChanges="follow")
    assert run.batch() == [{"id": 1, "a": 10, "b": 20}]
    run.stop()
    first = store.newest + 1
    store.put([*binlog.ddl(SWAP), *binlog.insert((2, 10, 20), table=table("id", "b", "a"))])
    store.put([*binlog.ddl(SWAP), *binlog.insert((3, 10, 20), table=table("id", "a", "b"))])
    wanted = [{"id": 2, "b": 10, "a": 20}, {"id": 3, "b": 10, "a": 20}]
    run = Run(store.name, schemaChanges="follow")
    assert run.batch() == wanted
    run.stop()
    place = json.dumps({**run.at, "seq": first - 1})
    run = Run(store.name, schemaChanges="follow", subscription="new", startingOffsets=place)
    assert run.batch() == wanted
    run.stop()
    parsed = SourceOptions.parse(
        {
            "store": store.name,
            "tables": "shop.orders",
            "schemaChanges": "follow",
            "startingOffsets": place,
            "subscription": "read",
        }
    )
    reader = BatchReader(Decoder(parsed, *find_table(parsed)))
    assert [row["after"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()] == wanted


def test_columns_are_followed_into_a_store_that_is_re_created(store_name: str) -> None:
    """A query that runs has read over a DDL, which does not come again."""
    for found in ([1, 2], [3]):
        binlog = Binlog()
        with EventStore.create(store_name, log_size=16 << 20) as store:
            store.put(
                [*binlog.insert((1, 10, 20), table=table("id", "a", "b")), *binlog.ddl("ALTER TABLE orders RENAME COLUMN b TO c")]
            )
            store.put(binlog.insert((2, 10, 20), table=table("id", "a", "c")))
            if found == [3]:
                store.put(binlog.insert((3, 10, 20), table=table("id", "a", "c")))
            else:
                run = Run(store.name, schemaChanges="follow")
            assert run.batch() == [{"id": key, "a": 10, "b": 20} for key in found]
        EventStore.unlink(store_name, log=True)


@pytest.mark.parametrize(
    ("sql", "after", "again"),
    [
        (SWAP, ("id", "b", "a"), {"b": 10, "a": 20}),
        ("ALTER TABLE orders RENAME COLUMN b TO c", ("id", "a", "c"), {"a": 10, "c": 20}),
    ],
    ids=["swap", "rename"],
)
@pytest.mark.parametrize("first", [False, True], ids=["then", "before"])
def test_a_run_of_spark_before_4_2_follows_from_the_columns_of_the_run_before(
    store: EventStore,
    binlog: Binlog,
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
    after: tuple[str, ...],
    again: dict[str, int],
    first: bool,
) -> None:
    """It is planned with those of its first row, so that a DDL between the rows, in the first micro-batch or in the second, renames them. One that runs
    its micro-batch again has those of the rows: the run that died has acked what is before them.
    """
    for module in ("source.schema_lookup", "source.subscription_owner"):
        monkeypatch.setattr(f"shmstore.consumer.spark.{module}.has_read_limits", lambda: False)
    store.put(binlog.insert((1, 10, 20), table=table("id", "a", "b")))
    if first:
        store.put(binlog.ddl(sql))
    run = Run(store.name, CallOrderReader, schemaChanges="follow")
    seen = run.reader.latestOffset()  # type: ignore[call-arg]
    assert run.rows(seen) == [{"id": 1, "a": 10, "b": 20}]
    run.reader.stop()
    store.put([*([] if first else binlog.ddl(sql)), *binlog.insert((2, 10, 20), table=table(*after))])
    run = Run(store.name, CallOrderReader, schemaChanges="follow")
    run.reader.partitions(seen, seen)
    run.at = seen
    end = run.reader.latestOffset()  # type: ignore[call-arg]
    assert run.rows(end) == [{"id": 2, "a": 10, "b": 20}]
    run.reader.stop()
    run = Run(store.name, CallOrderReader, schemaChanges="follow")
    run.reader.partitions(end, end)
    run.at = seen
    assert run.rows(end) == [{"id": 2, **again}]
    run.reader.stop()


def test_a_statement_that_cannot_be_read_stops_a_query_that_follows(store: EventStore, binlog: Binlog) -> None:
    """Which column is which is not known then: the batch ends in front of the rows, and the next run begins with their columns."""
    store.put([*binlog.insert((0, 1), table=table("id", "a")), *binlog.ddl("ALTER TABLE orders RENAME COLUMN a")])
    store.put(binlog.insert((1, 2), table=table("id", "b")))
    run = Run(store.name, schemaChanges="follow")
    assert run.batch() == [{"id": 0, "a": 1}]
    with pytest.raises(SchemaChanged, match="a statement before it cannot be read: ALTER TABLE orders RENAME COLUMN a"):
        run.batch()
    run.reader.stop()
    again = Run(store.name, schemaChanges="follow")
    assert again.batch() == [{"id": 1, "b": 2}]
    again.stop()


def test_another_primary_key_is_another_plan(store: EventStore, binlog: Binlog) -> None:
    """`pk` has other columns then."""
    store.put([*binlog.insert((1, 2), table=table("id", "a")), *binlog.insert((1, 2), table=table("id", "a", key=1))])
    run = Run(store.name)
    assert len(run.batch()) == 1
    with pytest.raises(SchemaChanged, match=r"the primary key is \(a\) instead of \(id\)"):
        run.batch()
    run.reader.stop()


@pytest.mark.parametrize("log", [True, False])
def test_limits_count_the_rows_that_are_read(store_name: str, binlog: Binlog, log: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of other tables, however many are between; a transaction comes whole."""
    monkeypatch.setattr(batch_planner, "_WINDOW", 2000)  # several windows
    with EventStore.create(store_name, capacity=4096, log=log) as store:
        store.subscribe("holder")  # acks nothing
        for n in range(9):
            store.put(binlog.insert(order_row(n + 1)))
            for _ in range(5):
                store.put(binlog.insert(*map(order_row, range(4)), table=OTHERS))
        run = Run(store_name)
        assert [[row["id"] for row in run.batch(rows=4)] for _ in range(4)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9], []]
        run.stop()
        size = int(store.slots(1, 1)["size"][0])
        run = Run(store_name, startingOffsets="earliest", subscription="sized")
        assert [len(run.batch(size=3 * size + 60)) for _ in range(4)] == [3, 3, 3, 0]
        run.stop()
        store.put(binlog.transaction(*[(EventType.INSERT, binlog.insert(order_row(n))[1].rows) for n in range(7)]))
        run = Run(store_name)
        assert len(run.batch(rows=2)) == 7
        run.stop()


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("payload", ["typed", "json"])
def test_a_micro_batch_without_rows_is_not_run(
    store_name: str, binlog: Binlog, log: bool, payload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where the store would have to keep too much for the query, or for too long."""
    with EventStore.create(store_name, capacity=512, log=log) as store:
        store.put(binlog.insert(order_row(0)))
        run = Run(store_name, payload=payload)
        assert len(run.batch()) == 1
        start = run.at
        for _ in range(10):
            store.put(binlog.insert(order_row(1), table=OTHERS))
            assert run.batch() == []
            assert run.at == start
        store.put(binlog.insert(order_row(2)))
        assert len(run.batch()) == 1
        start = run.at
        for _ in range(30):
            store.put(binlog.insert(*map(order_row, range(4)), table=OTHERS))
        if log:
            assert run.batch() == []
            assert run.at == start
            monkeypatch.setattr(batch_planner, "_IDLE_SECONDS", 0.0)
            store.put(binlog.insert(order_row(1), table=OTHERS))
        else:
            for _ in range(14):  # more than a quarter of the ring
                store.put(binlog.insert(order_row(1), table=OTHERS))
        assert run.batch() == []
        assert run.at["seq"] > start["seq"]
        run.stop()


def test_a_limit_within_a_backlog_is_planned_the_same_however_it_is_cut(store: EventStore, binlog: Binlog, seed: int) -> None:
    """Random rows of three tables and column changes: all rows come once, in order, with their columns, whatever the limits."""
    choose = random.Random(seed)
    tables, wanted = [ORDERS, WIDER], []
    now = 0
    for n in range(150):
        if choose.random() < 0.08:
            now = 1 - now
            store.put(binlog.ddl("ALTER TABLE orders " + ("ADD note VARCHAR(9)" if now else "DROP note")))
        count = choose.randrange(1, 4)
        if choose.random() < 0.5:
            store.put(binlog.insert(*map(order_row, range(count)), table=OTHERS))
        else:
            rows = [(*order_row(1000 * n + i), *(["x"] if now else [])) for i in range(count)]
            store.put(binlog.insert(*rows, table=tables[now]))
            wanted += [(row[0], len(row)) for row in rows]
    for number in range(3):
        found: list[tuple[int, int]] = []
        for _ in range(200):
            run = Run(store.name, subscription=f"s{number}", startingOffsets="earliest")
            try:
                while rows := run.batch(rows=choose.choice([None, 1, 7, 50])):
                    found += [(row["id"], len(row)) for row in rows]
                run.stop()
                break
            except SchemaChanged:
                run.reader.stop()
        assert found == wanted
        run = Run(store.name, subscription=f"f{number}", startingOffsets="earliest", schemaChanges="follow")
        followed: list[int] = []
        while rows := run.batch(rows=choose.choice([None, 1, 7, 50])):
            followed += [row["id"] for row in rows]
            assert {len(row) for row in rows} == {wanted[0][1]}
        run.stop()
        assert followed == [key for key, _ in wanted]


def test_the_driver_loop_lives_through_a_ddl(store: EventStore, binlog: Binlog) -> None:
    """A batch with rows of both sides is two calls, each with the columns of its rows; the next batch has the new ones."""
    store.put([*binlog.insert(order_row(1)), *binlog.ddl("ALTER TABLE orders ADD note VARCHAR(9)")])
    store.put(binlog.insert((*order_row(2), "a"), table=WIDER))
    calls: list[list[dict[str, Any]]] = []

    class Session:
        """Takes the place of Spark's: a frame is the Arrow table."""

        def createDataFrame(self, table: Any) -> Any:
            return table

    def take(frame: Any, last: int) -> None:
        calls.append(frame.column("after").to_pylist())
        if len(calls) == 2:
            store.put(binlog.insert((*order_row(3), "b"), table=WIDER))

    spark: Any = Session()
    assert each_batch(spark, take, store=store.name, tables="shop.orders", stop=lambda: len(calls) == 3) == 3
    assert [[(row["id"], row.get("note")) for row in rows] for rows in calls] == [[(1, None)], [(2, "a")], [(3, "b")]]
    assert "note" not in calls[0][0]
