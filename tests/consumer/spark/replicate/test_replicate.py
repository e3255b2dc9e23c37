"""Copies of tables: what `Replication` makes of events, without a Spark in between."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from shmstore import ABSENT, Column, EntryType, Event, EventType, Row, TableSchema
from shmstore.consumer.spark.options import Options
from shmstore.consumer.spark.replicate import delta, parquet
from shmstore.consumer.spark.replicate.change_reduction import CannotFollow
from shmstore.consumer.spark.replicate.replicate import Replication
from shmstore.encoding.codec import encode
from tests.consumer.spark.events import ORDERS, Binlog, order_row

FORMATS = ["parquet", "delta"]


def replication(tmp_path: Path, format: str, **named: Any) -> Replication:
    return Replication(Options.parse({"store": "none"}), str(tmp_path / "lake/{database}/{table}"), format, **named)


def apply(copy: Replication, batch: int, *transactions: list[Event], query: str = "q") -> None:
    copy.apply([encode(event) for events in transactions for event in events], query, batch)


def read(copy: Replication, format: str, table: str = "orders") -> pa.Table:
    path = copy.path("shop", table)
    return DeltaTable(path).to_pyarrow_table() if format == "delta" else pq.read_table(path)


def rows(copy: Replication, format: str, table: str = "orders") -> dict[Any, tuple[Any, ...]]:
    found = [tuple(row.values()) for row in read(copy, format, table).to_pylist()]
    assert len({row[0] for row in found}) == len(found), "a key is there twice"
    return {row[0]: row for row in found}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["../../up", ".", "..", "a/b", "_x", "odd na-me.ü%2F", "{table}", "*?[a]"])
def test_a_name_stays_in_the_target(tmp_path: Path, binlog: Binlog, format: str, name: str) -> None:
    """Whatever a table and its database are called, a copy has a folder of its own beside the others, and is found when the database goes."""
    copy = replication(tmp_path, format)
    odd = ORDERS._replace(database=name, table=name)
    apply(copy, 0, binlog.insert(order_row(1), table=odd), binlog.insert(order_row(2)))
    folder = Path(copy.path(name, name))
    assert folder.parent.parent == tmp_path / "lake"
    assert {path.name for path in tmp_path.iterdir()} == {"lake"}
    assert len(list((tmp_path / "lake").iterdir())) == 2
    assert folder.is_dir()
    copy = replication(tmp_path, format)
    apply(copy, 1, binlog.ddl(f"DROP DATABASE `{name}`", EventType.ERASE, database=name))
    found = DeltaTable(folder).to_pyarrow_table() if format == "delta" else pq.read_table(folder)
    assert len(found) == 0
    assert len(rows(copy, format)) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_random_changes_in_random_batches_equal_a_model(tmp_path: Path, binlog: Binlog, format: str, seed: int) -> None:
    """Whatever the changes and however they are cut into batches, runs and replays, the copy equals the source."""
    choose = random.Random(seed)
    model: dict[int, tuple[Any, ...]] = {}
    copy = replication(tmp_path, format)
    for batch in range(12):
        transactions = []
        for _ in range(choose.randrange(1, 6)):
            kind = choose.choice("iiiuudkt" if choose.random() < 0.9 else "t")
            free = [key for key in range(60) if key not in model]
            if kind == "i":
                fresh = [order_row(key, status=choose.choice(["a", "b", None])) for key in choose.sample(free, min(4, len(free)))]
                transactions.append(binlog.insert(*fresh))
                model.update({row[0]: row for row in fresh})
            elif kind in "ukd" and model:
                old = model.pop(choose.choice(list(model)))
                if kind == "d":
                    transactions.append(binlog.delete(old))
                else:
                    key = choose.choice(free) if kind == "k" and free else old[0]
                    model[key] = order_row(key, status=choose.choice("xyz"))
                    transactions.append(binlog.update((old, model[key])))
            elif kind == "t":
                transactions.append(binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE))
                model.clear()
        apply(copy, batch, *transactions)
        if choose.random() < 0.3:
            copy = replication(tmp_path, format)  # the driver was killed after the sink, before Spark's commit log
            apply(copy, batch, *transactions)
        if model:
            assert rows(copy, format) == model, f"seed {seed}, batch {batch}"


@pytest.mark.parametrize("format", FORMATS)
def test_a_replayed_batch_changes_nothing(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """A batch that Spark runs again is recognised by query and number, even when later ones are in."""
    copy = replication(tmp_path, format)
    first, second = binlog.insert(order_row(1)), binlog.delete(order_row(1))
    apply(copy, 0, first)
    apply(copy, 1, second)
    apply(replication(tmp_path, format), 0, first)
    assert rows(copy, format) == {}
    apply(replication(tmp_path, format), 0, first, query="another")
    assert set(rows(copy, format)) == {1}


@pytest.mark.parametrize("format", FORMATS)
def test_columns_follow_ddl(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """ADD COLUMN gives old rows the default, DROP, RENAME and MODIFY are done to the copy, with no row event needed."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)))
    ddl = (
        "ALTER TABLE orders ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none', ADD price DECIMAL(8,3) DEFAULT 1.5, ADD due DATE DEFAULT '2026-02-03', "
        "ADD KEY k (note), ADD at DATETIME(3), DROP COLUMN customer, CHANGE status state VARCHAR(80), MODIFY amount DECIMAL(20,4)"
    )
    apply(copy, 1, binlog.ddl(ddl))
    found = read(copy, format).sort_by("id").to_pylist()[0]
    assert found == {
        "id": 1,
        "amount": Decimal("0.0100"),
        "placed": datetime(2026, 1, 1, 0, 0, 1),
        "seen": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
        "state": "new",
        "note": "none",
        "price": Decimal("1.500"),
        "due": datetime(2026, 2, 3).date(),
        "at": None,
    }
    kept = {column.name: column for column in ORDERS.columns}
    after = TableSchema(
        "shop",
        "orders",
        (
            kept["id"],
            kept["amount"]._replace(size=20, scale=4),
            kept["placed"],
            kept["seen"],
            kept["status"]._replace(name="state"),
            Column("note", "varchar"),
            Column("price", "decimal", size=8, scale=3),
            Column("due", "date"),
            Column("at", "datetime", scale=3),
        ),
        (0,),
    )
    row = (
        3,
        Decimal("2.5000"),
        datetime(2026, 1, 1),
        datetime(2026, 1, 1, tzinfo=UTC),
        "x",
        "n",
        None,
        None,
        datetime(2026, 1, 2),
    )
    apply(copy, 2, binlog.insert(row, table=after))
    assert read(copy, format).num_rows == 3
    assert [r["at"] for r in read(copy, format).to_pylist() if r["id"] == 3] == [datetime(2026, 1, 2)]


@pytest.mark.parametrize("format", FORMATS)
def test_ddl_and_rows_of_one_batch_keep_their_order(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """Rows before an ALTER get the default, rows after it their own value, when all come in one batch."""
    wider = ORDERS._replace(columns=(*ORDERS.columns, Column("flag", "tinyint")))
    copy = replication(tmp_path, format)
    batch = (
        binlog.insert(order_row(1), order_row(2)),
        binlog.ddl("alter table shop.orders add flag tinyint not null default 9"),
        binlog.update(((*order_row(2), 9), (*order_row(2), 5)), table=wider),
        binlog.insert((*order_row(3), 6), table=wider),
    )
    apply(copy, 0, *batch)
    assert {key: row[-1] for key, row in rows(copy, format).items()} == {1: 9, 2: 5, 3: 6}


@pytest.mark.parametrize(
    "sql",
    [
        "alter table orders add made datetime default now()",
        "rename table orders to old",
        "alter table orders truncate partition p0",
    ],
)
def test_what_cannot_be_followed_stops_with_the_fix(tmp_path: Path, binlog: Binlog, sql: str) -> None:
    """A DDL whose effect on rows only the server knows raises, names its place and the fix, and changes nothing."""
    copy = replication(tmp_path, "parquet")
    apply(copy, 0, binlog.insert(order_row(1)))
    with pytest.raises(CannotFollow, match=r"binlog\.000001:\d+.*snapshot"):
        apply(copy, 1, binlog.insert(order_row(2)), binlog.ddl(sql))
    assert set(rows(copy, "parquet")) == {1}


def test_a_table_without_a_key_needs_one_named(tmp_path: Path, binlog: Binlog) -> None:
    """No primary key: refused with the fix; with keys= it works."""
    log = TableSchema("shop", "log", (Column("n", "int"), Column("text", "varchar")))
    events = binlog.insert((1, "a"), (2, "b"), table=log)
    with pytest.raises(CannotFollow, match="keys="):
        apply(replication(tmp_path, "parquet"), 0, events)
    copy = replication(tmp_path, "parquet", keys={"shop.log": ["n"]})
    apply(copy, 0, events, binlog.update(((1, "a"), (1, "c")), table=log))
    assert rows(copy, "parquet", "log") == {1: (1, "c"), 2: (2, "b")}


@pytest.mark.parametrize("format", FORMATS)
def test_a_key_of_two_columns(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """Deletes and key changes of a composite key touch that one row."""
    items = TableSchema("shop", "items", (Column("order", "int"), Column("line", "smallint"), Column("n", "int")), (0, 1))
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert((1, 1, 10), (1, 2, 20), (2, 1, 30), table=items))
    apply(copy, 1, binlog.delete((1, 1, 10), table=items), binlog.update(((2, 1, 30), (1, 1, 31)), table=items))
    found = {tuple(row.values()) for row in read(copy, format, "items").to_pylist()}
    assert found == {(1, 2, 20), (1, 1, 31)}


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_change_of_the_primary_key_is_followed(tmp_path: Path, binlog: Binlog, format: str, history: bool) -> None:
    """In mid-stream, in one batch with rows of both keys, replayed: from then on rows are distinguished by the new key alone."""
    old = TableSchema("shop", "words", (Column("id", "int"), Column("word", "varchar", size=40), Column("n", "int")), (0,))
    new = old._replace(primary_key=(1, 2))
    copy = replication(tmp_path, format, history=history)
    apply(copy, 0, binlog.insert((1, "a", 1), (2, "b", 2), (3, "c", 3), table=old))
    batch = [
        binlog.update(((1, "a", 1), (1, "A", 1)), table=old),
        binlog.delete((3, "c", 3), table=old),
        binlog.ddl("alter table words drop primary key, add primary key (word, n)"),
        binlog.insert((1, "a", 1), (4, "d", 4), table=new),
        binlog.update(((2, "b", 2), (2, "B", 2)), table=new),
        binlog.delete((1, "A", 1), table=new),
    ]
    apply(copy, 1, *batch)
    apply(replication(tmp_path, format, history=history), 1, *batch)
    apply(copy, 2, binlog.update(((4, "d", 4), (9, "d", 4)), table=new))
    found = [row for row in read(copy, format, "words").to_pylist() if row.get("_current", True)]
    assert sorted((row["id"], row["word"], row["n"]) for row in found) == [(1, "a", 1), (2, "B", 2), (9, "d", 4)]


@pytest.mark.parametrize("format", FORMATS)
def test_history_keeps_every_version(tmp_path: Path, binlog: Binlog, format: str, versions: list[list[list[Event]]]) -> None:
    """SCD type 2: each version once, from its change to the next one of its key; replays and TRUNCATE included."""
    copy = replication(tmp_path, format, history=True)
    for number, batch in enumerate(versions):
        apply(copy, number, *batch)
        apply(replication(tmp_path, format, history=True), number, *batch)
    found = sorted(
        (r["id"], r["_seq"], r["status"], r["_current"], r["_valid_to"] is None) for r in read(copy, format).to_pylist()
    )
    assert [(key, status, current, open_) for key, _, status, current, open_ in found] == [
        (1, "new", False, False),
        (1, "paid", False, False),
        (1, "sent", True, True),
        (2, "new", False, False),
        (2, "again", True, True),
        (3, "new", False, False),
        (4, "new", True, True),
    ]
    versions = sorted((r for r in read(copy, format).to_pylist() if r["id"] == 1), key=lambda r: r["_seq"])
    assert [v["_valid_to"] for v in versions[:-1]] == [v["_valid_from"] for v in versions[1:]]
    apply(copy, 3, binlog.ddl("truncate orders", EventType.TRUNCATE))
    assert not any(r["_current"] for r in read(copy, format).to_pylist())


def test_a_dropped_table_is_empty(tmp_path: Path, binlog: Binlog) -> None:
    """DROP TABLE and DROP DATABASE empty the copies, so that a table of the same name begins again."""
    copy = replication(tmp_path, "parquet")
    apply(copy, 0, binlog.insert(order_row(1)))
    apply(copy, 1, binlog.ddl("DROP TABLE `orders` /* generated by server */", EventType.ERASE), binlog.insert(order_row(2)))
    assert set(rows(copy, "parquet")) == {2}
    apply(replication(tmp_path, "parquet"), 2, binlog.ddl("drop database shop", EventType.QUERY))
    assert rows(copy, "parquet") == {}


@pytest.mark.parametrize(
    ("entry", "type_", "says"),
    [(EntryType.ROWS, EventType.QUERY, "binlog_format=ROW"), (EntryType.DDL, EventType.XAROLLBACK, "XA transaction")],
)
def test_changes_that_are_not_in_rows_stop_the_copy(
    tmp_path: Path, binlog: Binlog, entry: EntryType, type_: EventType, says: str
) -> None:
    """A statement without rows, and the rollback of an XA transaction whose rows came before, cannot be followed: said, not skipped."""
    (event,) = binlog.ddl("UPDATE orders SET status = 'x'")
    with pytest.raises(CannotFollow, match=says):
        apply(replication(tmp_path, "parquet"), 0, [event._replace(entry=entry, type=type_)])


def test_a_partial_row_image_is_refused(tmp_path: Path, binlog: Binlog) -> None:
    """With binlog_row_image=MINIMAL a copy would lose values: refused, with the fix."""
    minimal = (1, *[ABSENT] * (len(ORDERS.columns) - 1))
    with pytest.raises(ValueError, match="binlog_row_image=FULL"):
        apply(replication(tmp_path, "parquet"), 0, binlog.transaction((EventType.UPDATE, (Row(minimal, order_row(1)),))))


def test_a_parquet_copy_is_not_held_in_memory(tmp_path: Path, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch over a copy of many row groups holds some of them at a time; the groups stay within their size."""
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 17)
    blobs = TableSchema("shop", "blobs", (Column("id", "int"), Column("b", "blob")), (0,))
    choose = random.Random(1)
    kept = {key: choose.randbytes(1000) for key in range(6000)}
    copy = replication(tmp_path, "parquet")
    for batch in range(6):
        keys = range(1000 * batch, 1000 * batch + 1000)
        apply(copy, batch, binlog.insert(*[(key, kept[key]) for key in keys], table=blobs))
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        apply(copy, 6, binlog.update(((3, kept[3]), (3, b"new")), table=blobs), binlog.delete((5000, kept[5000]), table=blobs))
    finally:
        pa.set_memory_pool(before)
    file = pq.ParquetFile(Path(copy.path("shop", "blobs")) / parquet.FILE)
    assert pool.max_memory() < 6_000_000 / 4
    assert file.num_row_groups > 20
    del kept[5000]
    assert {row["id"]: row["b"] for row in file.read().to_pylist()} == {**kept, 3: b"new"}


@pytest.mark.parametrize(
    ("sql", "last"),
    [
        ("truncate table blobs", None),
        ("alter table blobs add note varchar(9)", None),
        ("alter table blobs modify b longblob", None),
        ("alter table blobs add note varchar(9) not null default 'x'", "x"),
        ("alter table blobs modify n bigint", None),
        ("alter table blobs drop n", None),
    ],
)
def test_a_delta_copy_is_not_held_in_memory(
    tmp_path: Path, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, sql: str, last: str | None
) -> None:
    """TRUNCATE and ALTER hold some rows of a copy at a time, and rewrite its files only where old rows change."""
    monkeypatch.setattr(delta, "PART_BYTES", 1 << 15)
    blobs = TableSchema("shop", "blobs", (Column("id", "int"), Column("b", "blob"), Column("n", "int")), (0,))
    choose = random.Random(1)
    kept = {key: choose.randbytes(1000) for key in range(12000)}
    copy = replication(tmp_path, "delta")
    for batch in range(12):
        keys = range(1000 * batch, 1000 * batch + 1000)
        apply(copy, batch, binlog.insert(*[(key, kept[key], -key) for key in keys], table=blobs))
    files = set(DeltaTable(copy.path("shop", "blobs")).file_uris())
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        apply(copy, 12, binlog.ddl(sql, EventType.TRUNCATE if sql.startswith("truncate") else EventType.ALTER))
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 12_000_000 / 3
    if sql.startswith("truncate"):
        assert len(read(copy, "delta", "blobs")) == 0
        return
    rewritten = "drop" in sql or "bigint" in sql or "default" in sql
    assert (set(DeltaTable(copy.path("shop", "blobs")).file_uris()) == files) == (not rewritten)
    found = read(copy, "delta", "blobs").to_pylist()
    assert {row["id"]: row["b"] for row in found} == kept
    assert all(row.get("n", -row["id"]) == -row["id"] for row in found)
    assert {row.get("note") for row in found} == {last}


def test_a_delta_copy_that_a_type_does_not_fit_stays_as_it_was(tmp_path: Path, binlog: Binlog) -> None:
    """Where a value deep in the copy does not fit a column's new type the query stops with what to do, and nothing is written."""
    copy = replication(tmp_path, "delta")
    words = TableSchema("shop", "words", (Column("id", "int"), Column("word", "varchar", size=40)), (0,))
    apply(copy, 0, binlog.insert(*[(key, str(key)) for key in range(100)], table=words))
    apply(copy, 1, binlog.insert((100, "no number"), table=words))
    version = DeltaTable(copy.path("shop", "words")).version()
    with pytest.raises(CannotFollow, match=r"column word of shop\.words .* do not fit"):
        apply(copy, 2, binlog.ddl("alter table words modify word int"))
    assert DeltaTable(copy.path("shop", "words")).version() == version
    assert len(rows(copy, "delta", "words")) == 101


def test_an_empty_delta_copy_is_emptied_with_a_mark(tmp_path: Path, binlog: Binlog) -> None:
    """TRUNCATE of a copy without rows is remembered as any other step: the batch is known to be done."""
    copy = replication(tmp_path, "delta")
    apply(copy, 0, binlog.insert(order_row(1)), binlog.delete(order_row(1)))
    apply(copy, 1, binlog.ddl("truncate table orders", EventType.TRUNCATE))
    apply(copy, 2, binlog.ddl("truncate table orders", EventType.TRUNCATE))
    assert delta.DeltaTarget(copy.path("shop", "orders"), "shop.orders").done("q", 2)
