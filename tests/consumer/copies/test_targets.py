"""The contract of targets: what each kind makes of events, in copies that are read again."""

from __future__ import annotations

import logging
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from shmstore import ABSENT, Column, EntryType, Event, EventType, Row, TableSchema
from shmstore.consumer.copies.targets import delta, parquet
from shmstore.home.home import Home
from shmstore.home.reader_state import copies_aside
from shmstore.home.snapshots import ProgressFile
from tests.consumer.copies.lakes import FORMATS, apply, exists, hidden, read, replication, rows
from tests.consumer.spark.events import ORDERS, Binlog, order_row


@pytest.fixture(autouse=True)
def _home(caplog: pytest.LogCaptureFixture, state: Path) -> None:
    """A home of the test's own, which says what is aside; routine is logged."""
    caplog.set_level(logging.INFO, "shmstore")


@pytest.mark.parametrize("format", ["parquet", "delta"])
@pytest.mark.parametrize(
    "name",
    [
        "../../up",
        ".",
        "..",
        "a/b",
        "_x",
        "odd na-me.ü%2F",
        "{table}",
        "*?[a]",
        "a\\b",
        "\\",
        "new\nline",
        "q'\"",
        "#:<>&;?",
        "^|",
        "\x7f",
    ],
)
def test_a_name_stays_in_the_target(tmp_path: Path, binlog: Binlog, format: str, name: str) -> None:
    """Whatever a table and its database are called, a copy has a folder of its own next to the others, and is found when the database goes."""
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
    """A batch that Spark runs again is recognized by query and number, even when later ones are in."""
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
        "ALTER TABLE orders ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none', ADD price DECIMAL(8,3), ADD due DATE, ADD n INT DEFAULT -5, "
        "ADD KEY k (note), ADD at DATETIME(3), DROP COLUMN customer, CHANGE status state VARCHAR(80), MODIFY amount DECIMAL(20,2), COMMENT 'x'"
    )
    apply(copy, 1, binlog.ddl(ddl))
    found = read(copy, format).sort_by("id").to_pylist()[0]
    assert found == {
        "id": 1,
        "amount": Decimal("0.01"),
        "placed": datetime(2026, 1, 1, 0, 0, 1),
        "seen": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
        "state": "new",
        "note": "none",
        "price": None,
        "due": None,
        "n": -5,
        "at": None,
    }
    assert not copy.aside
    kept = {column.name: column for column in ORDERS.columns}
    after = TableSchema(
        "shop",
        "orders",
        (
            kept["id"],
            kept["amount"]._replace(size=20),
            kept["placed"],
            kept["seen"],
            kept["status"]._replace(name="state"),
            Column("note", "varchar"),
            Column("price", "decimal", size=8, scale=3),
            Column("due", "date"),
            Column("n", "int"),
            Column("at", "datetime", scale=3),
        ),
        (0,),
    )
    row = (
        3,
        Decimal("2.50"),
        datetime(2026, 1, 1),
        datetime(2026, 1, 1, tzinfo=UTC),
        "x",
        "n",
        None,
        None,
        1,
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


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "sql",
    [
        "alter table orders add made datetime default now()",
        "alter table orders rename column status to customer, rename column customer to status",
        "alter table orders truncate partition p0",
        "alter table ORDERS modify status varchar(3)",
        "rename table orders to old, fresh to orders",
    ],
)
def test_what_only_the_server_knows_is_read_again(
    tmp_path: Path, binlog: Binlog, format: str, sql: str, caplog: pytest.LogCaptureFixture, state: Path
) -> None:
    """The copy stays as it was and says so, the others continue; what a snapshot brings takes its place, with the changes in between."""
    other = ORDERS._replace(table="other")
    new = ORDERS._replace(columns=(*ORDERS.columns, Column("made", "int")))
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)), binlog.insert(order_row(1), table=other))
    second = [
        binlog.insert(order_row(3)),
        binlog.ddl(sql),
        binlog.delete((*order_row(1), 1), table=new),
        binlog.insert(order_row(2), table=other),
    ]
    apply(copy, 1, *second)
    assert set(rows(copy, format)) == {1, 2, 3}
    assert set(rows(copy, format, "other")) == {1, 2}
    assert "shop.orders" in copy.aside
    assert "re-reading shop.orders: the DDL at binlog.000001:" in caplog.text
    assert "set aside" not in caplog.text
    (asked,) = [one for _, one in ProgressFile(Home.of("none")).asked() if one.tables == (r"regex:shop\.orders",)]
    assert asked.reason == "reread"
    assert copies_aside(Home.of("none")) == {"spark": copy.aside}
    copy = replication(tmp_path, format)  # the same batch again, by another driver: the same request
    assert "since an earlier run (set aside, or to be read again): shop.orders" in caplog.text
    apply(copy, 1, *second)
    assert asked.id in [one.id for _, one in ProgressFile(Home.of("none")).asked()]
    apply(copy, 2, binlog.read("first", (*order_row(2), 2), table=new), binlog.insert((*order_row(9), 9), table=new))
    apply(copy, 3, binlog.update(((*order_row(2), 2), (*order_row(8), 8)), table=new))
    apply(copy, 4, binlog.read("last", (*order_row(7), 7), table=new, snapshot="00000002"))  # another's
    assert set(rows(copy, format)) == {1, 2, 3}
    apply(copy, 5, binlog.read("", (*order_row(5), 5), table=new), binlog.insert((*order_row(6), 6), table=new))
    last = [binlog.read("last", table=new), binlog.delete((*order_row(5), 5), table=new)]
    apply(copy, 6, *last)
    wanted = {key: (*order_row(key), key) for key in (6, 7, 8, 9)}
    assert rows(copy, format) == wanted
    assert not [name for name in copy.aside if name.endswith(".orders")]
    assert "the rows of shop.orders were read again" in caplog.text
    copy = replication(tmp_path, format)
    apply(copy, 6, *last)
    apply(copy, 7, binlog.insert((*order_row(4), 4), table=new))
    assert rows(copy, format) == wanted | {4: (*order_row(4), 4)}
    assert not hidden(copy)


@pytest.mark.parametrize("format", FORMATS)
def test_a_reread_that_another_ddl_overtakes(tmp_path: Path, binlog: Binlog, format: str, state: Path) -> None:
    """The rows of a snapshot that began before the last such DDL do not count; TRUNCATE makes the copy follow at once; an empty table is read, too."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1)))
    ddl = binlog.ddl("alter table orders convert to character set utf8mb4")
    apply(copy, 1, ddl, binlog.read("first", order_row(2)), binlog.ddl("alter table orders modify id bigint unsigned"))
    apply(copy, 2, binlog.read("last", order_row(3)))
    assert copy.aside == ["shop.orders"]
    assert set(rows(copy, format)) == {1}
    apply(copy, 3, binlog.read("whole", snapshot="00000002"))
    assert not copy.aside
    assert rows(copy, format) == {}
    apply(copy, 4, binlog.insert(order_row(4)), binlog.ddl("alter table orders modify id bigint unsigned"))
    narrow = ORDERS._replace(columns=ORDERS.columns[:2])
    apply(copy, 5, binlog.ddl("truncate orders", EventType.TRUNCATE), binlog.insert((5, 5), table=narrow))
    assert not copy.aside
    assert rows(copy, format) == {5: (5, 5)}


@pytest.mark.parametrize("format", FORMATS)
def test_a_snapshot_after_a_purge_replaces_a_copy(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """Rows that were deleted while no process could see it; any other snapshot only adds rows and puts them in place of older ones."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)))
    apply(copy, 1, binlog.read("whole", order_row(3)))
    assert set(rows(copy, format)) == {1, 2, 3}
    apply(copy, 2, binlog.read("first", order_row(2), reason="purged"), binlog.insert(order_row(5)))
    assert set(rows(copy, format)) == {1, 2, 3}
    apply(replication(tmp_path, format), 3, binlog.read("last", order_row(4), reason="purged"))
    assert set(rows(copy, format)) == {2, 4, 5}


@pytest.mark.parametrize("format", FORMATS)
def test_a_history_ends_where_only_the_server_knows(
    tmp_path: Path, binlog: Binlog, format: str, caplog: pytest.LogCaptureFixture, state: Path
) -> None:
    """What the old versions' values would be now is unknown: the copy is kept as it is, and the log says what to do."""
    copy = replication(tmp_path, format, history=True)
    apply(
        copy, 0, binlog.insert(order_row(1)), binlog.ddl("alter table orders modify seen datetime"), binlog.delete(order_row(1))
    )
    assert [row["_current"] for row in read(copy, format).to_pylist()] == [True]
    assert "its history ends there: move it away" in caplog.text
    assert not ProgressFile(Home.of("none")).asked()


def test_a_table_without_a_key_needs_one_named(tmp_path: Path, binlog: Binlog, caplog: pytest.LogCaptureFixture) -> None:
    """No primary key: left out, with the fix, while the others continue; with keys= it works."""
    log = TableSchema("shop", "log", (Column("n", "int"), Column("text", "varchar")))
    events = binlog.insert((1, "a"), (2, "b"), table=log)
    without = replication(tmp_path, "parquet")
    apply(without, 0, events, binlog.insert(order_row(1)))
    assert "shop.log has no primary key" in caplog.text
    assert "keys=" in caplog.text
    assert set(rows(without, "parquet")) == {1}
    copy = replication(tmp_path, "parquet", keys={"shop.log": ["n"]})
    apply(copy, 1, binlog.update(((1, "a"), (1, "c")), table=log))
    assert copy.aside == ["shop.log"], "earlier rows are not in the copy, which begins with a snapshot"
    apply(copy, 2, binlog.read("whole", (1, "c"), (2, "b"), table=log))
    assert rows(copy, "parquet", "log") == {1: (1, "c"), 2: (2, "b")}
    assert not copy.aside
    fresh = replication(tmp_path / "fresh", "parquet", keys={"shop.log": ["n"]}, subscription="fresh")
    apply(fresh, 0, events, binlog.update(((1, "a"), (1, "c")), table=log))
    assert rows(fresh, "parquet", "log") == {1: (1, "c"), 2: (2, "b")}


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


PEOPLE = ORDERS._replace(table="people")


def xa(events: list[Event], xid: str) -> list[Event]:
    """The transaction as it is written at XA PREPARE."""
    return [*events[:-1], events[-1]._replace(props={"xa": "prepare", "xa_xid": xid})]


def rolled_back(binlog: Binlog, xid: str) -> list[Event]:
    return [
        event._replace(type=EventType.XAROLLBACK, props={"xa": "rollback", "xa_xid": xid})
        for event in binlog.ddl(f"XA ROLLBACK {xid}")
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_an_xa_transaction_that_is_rolled_back_after_its_prepare(
    tmp_path: Path, binlog: Binlog, format: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The copies of the tables that it touched are read again; of all, where what it touched was in an earlier batch. The query continues."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert(order_row(1), table=PEOPLE))
    apply(copy, 1, xa(binlog.insert(order_row(2)), "x"), rolled_back(binlog, "x"), binlog.insert(order_row(2), table=PEOPLE))
    assert copy.aside == ["shop.orders"]
    assert "written at its XA PREPARE" in caplog.text
    assert set(rows(copy, format, "people")) == {1, 2}
    apply(copy, 2, binlog.read("whole", order_row(1)))
    assert set(rows(copy, format)) == {1}
    apply(copy, 3, xa(binlog.insert(order_row(3)), "y"))
    copy = replication(tmp_path, format)
    apply(copy, 4, rolled_back(binlog, "y"))
    assert copy.aside == ["shop.orders", "shop.people"]


def test_a_statement_without_rows(tmp_path: Path, binlog: Binlog, caplog: pytest.LogCaptureFixture) -> None:
    """The copy of its table is read again; where it names none, all are."""
    copy = replication(tmp_path, "parquet")
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert(order_row(1), table=PEOPLE))
    (event,) = binlog.ddl("UPDATE people SET status = 'x'")
    statement = event._replace(entry=EntryType.ROWS, type=EventType.QUERY)
    apply(copy, 1, [statement._replace(props={"table": "people"})], binlog.insert(order_row(2)))
    assert copy.aside == ["shop.people"]
    assert "binlog_format=ROW" in caplog.text
    assert set(rows(copy, "parquet")) == {1, 2}
    apply(copy, 2, [statement])
    assert copy.aside == ["shop.orders", "shop.people"]


def test_a_ddl_that_cannot_be_read(tmp_path: Path, binlog: Binlog, caplog: pytest.LogCaptureFixture) -> None:
    """The copies whose names are in it are read again, and the others continue."""
    copy = replication(tmp_path, "parquet")
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert(order_row(1), table=PEOPLE))
    apply(copy, 1, binlog.ddl("ALTER TABLE"), binlog.ddl("RENAME TABLE People AS TO"), binlog.insert(order_row(2)))
    assert copy.aside == ["shop.people"]
    assert "cannot be read" in caplog.text
    assert set(rows(copy, "parquet")) == {1, 2}


def test_a_partial_row_image_sets_a_copy_aside(
    tmp_path: Path, binlog: Binlog, caplog: pytest.LogCaptureFixture, state: Path
) -> None:
    """With binlog_row_image=MINIMAL a copy would lose values: it takes none, says why, and asks for nothing before that is put right."""
    minimal = (1, *[ABSENT] * (len(ORDERS.columns) - 1))
    copy = replication(tmp_path, "parquet")
    apply(copy, 0, binlog.insert(order_row(1)), binlog.transaction((EventType.UPDATE, (Row(minimal, order_row(1, status="x")),))))
    apply(copy, 1, binlog.insert(order_row(2)))
    assert rows(copy, "parquet") == {1: order_row(1)}
    assert copy.aside == ["shop.orders"]
    assert "binlog_row_image=FULL" in caplog.text
    assert "shmstore snapshot none --tables 'shop.orders'" in caplog.text
    assert not ProgressFile(Home.of("none")).asked()
    apply(copy, 2, binlog.read("whole", order_row(1, status="x"), order_row(2)))
    assert set(rows(copy, "parquet")) == {1, 2}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("reason", ["asked", "repair"])
def test_a_snapshot_of_a_part_is_not_taken_for_a_whole_one(tmp_path: Path, binlog: Binlog, format: str, reason: str) -> None:
    """No row is deleted, no value becomes NULL, nothing is set aside; a copy that waits for its rows continues waiting for all of them."""
    copy = replication(tmp_path, format)
    some = (1, *[ABSENT] * (len(ORDERS.columns) - 2), "y")
    parts = {"rows": order_row(1, status="y"), "columns": some, "rows,columns": some}
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert(order_row(2)))
    for batch, (partial, row) in enumerate(parts.items(), 1):
        apply(copy, batch, binlog.read("whole", row, reason=reason, partial=partial), binlog.insert(order_row(10 + batch)))
    assert rows(copy, format) == {key: order_row(key) for key in (1, 2, 11, 12, 13)}
    assert copy.aside == []
    apply(copy, 4, xa(binlog.insert(order_row(3)), "x"), rolled_back(binlog, "x"))
    for batch, (partial, row) in enumerate(parts.items(), 5):
        apply(copy, batch, binlog.read("whole", row, partial=partial))
    assert copy.aside == ["shop.orders"]
    apply(copy, 8, binlog.read("whole", order_row(1), order_row(2)))
    assert (set(rows(copy, format)), copy.aside) == ({1, 2}, [])
    empty = replication(tmp_path / "empty", format)
    apply(empty, 0, binlog.read("whole", order_row(1), partial="rows"))
    assert not exists(empty)


@pytest.mark.parametrize("format", FORMATS)
def test_a_key_that_is_no_date_sets_a_copy_aside(
    tmp_path: Path, binlog: Binlog, format: str, caplog: pytest.LogCaptureFixture
) -> None:
    """zeroDates=null makes NULL of it, which would be no key: then no delete would find its row."""
    days = TableSchema("shop", "days", (Column("day", "date", nullable=False), Column("n", "int")), (0,))
    copy = replication(tmp_path, format, zero_dates="null")
    apply(copy, 0, binlog.insert((date(2026, 1, 1), 1), table=days))
    apply(copy, 1, binlog.insert(("0000-00-00", 2), table=days))
    assert copy.aside == ["shop.days"]
    assert "a key of shop.days is no date" in caplog.text
    assert len(rows(copy, format, "days")) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_with_a_name_of_a_history(tmp_path: Path, binlog: Binlog, format: str, caplog: pytest.LogCaptureFixture) -> None:
    """A source's column _seq is a column like others in a copy, and in the way of a history."""
    odd = TableSchema("shop", "odd", (Column("id", "int"), Column("_seq", "int")), (0,))
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert((1, 2), table=odd))
    apply(copy, 1, binlog.update(((1, 2), (1, 3)), table=odd))
    assert rows(copy, format, "odd") == {1: (1, 3)}
    apply(replication(tmp_path / "history", format, history=True), 0, binlog.insert((1, 2), table=odd))
    assert "has a column _seq, which a history needs" in caplog.text


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


def test_an_empty_delta_copy_is_emptied_with_a_mark(tmp_path: Path, binlog: Binlog) -> None:
    """TRUNCATE of a copy without rows is remembered as any other step: the batch is known to be done."""
    copy = replication(tmp_path, "delta")
    apply(copy, 0, binlog.insert(order_row(1)), binlog.delete(order_row(1)))
    apply(copy, 1, binlog.ddl("truncate table orders", EventType.TRUNCATE))
    apply(copy, 2, binlog.ddl("truncate table orders", EventType.TRUNCATE))
    assert delta.DeltaLakeTable(copy.path("shop", "orders"), "shop.orders").mark("q") >> 16 == 2


def test_a_delta_copy_is_optimized_now_and_then(tmp_path: Path, binlog: Binlog) -> None:
    """After so many commits its files are one; what it holds, and what of the query is done, stays."""
    copy = replication(tmp_path, "delta", optimize=5)
    batches = [binlog.insert(order_row(n)) for n in range(11)]
    for number, batch in enumerate(batches):
        apply(copy, number, batch)
    assert len(DeltaTable(copy.path("shop", "orders")).file_uris()) <= 2
    apply(replication(tmp_path, "delta"), 10, binlog.delete(order_row(3)))
    assert set(rows(copy, "delta")) == set(range(11))
