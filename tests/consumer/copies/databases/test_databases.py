"""Copies in PostgreSQL, MariaDB, MySQL and SQLite: real servers, through their own Python drivers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmstore import Column, Event, EventType, TableSchema
from shmstore.consumer.copies.change_reduction import Alter, CannotFollow, CopyDiffers, Merge, Step
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy import Copy
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.databases.database import Database, DatabaseError
from shmstore.consumer.copies.databases.table import DatabaseTable
from shmstore.consumer.copies.databases.target import database_target
from shmstore.consumer.copies.ddl import Change
from shmstore.encoding.codec import encode
from shmstore.patterns.table_patterns import Patterns
from tests.consumer.copies.databases.changes import batches
from tests.consumer.copies.databases.servers import KINDS, PASSWORD, Copies, copies, text
from tests.consumer.spark.events import ORDERS, Binlog, order_row

pytestmark = [pytest.mark.server]


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    kind = request.param
    server = request.getfixturevalue(kind) if kind in ("mariadb", "mysql") else None
    with copies(kind, server, "shop", tmp_path_factory.mktemp(kind)) as made:
        yield made


@pytest.fixture(autouse=True)
def own_state(state: Path) -> None:
    """Which copies are aside is kept in the test's own folder."""


@pytest.fixture
def binlog() -> Binlog:
    """An empty binlog."""
    return Binlog()


@pytest.fixture(autouse=True)
def empty(target: Copies) -> Iterator[None]:
    """Each test begins without copies and without marks."""
    yield
    target.clear()


def replication(target: Copies, **named: Any) -> CopySet:
    """The copies, as a new process has them."""
    return CopySet(CopiedTables("none", "replicate", Patterns.parse("*")), target.connect(), target.template, **named)


def apply(copy: CopySet, batch: int, *transactions: list[Event], query: str = "q") -> None:
    copy.apply([encode(event) for events in transactions for event in events], query, batch)


def texts(rows: Any) -> list[tuple[str, ...]]:
    return sorted(tuple(map(text, row)) for row in rows)


def kills(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    """Do `act` again and again, which dies at its first statement, then at its second, until it gets through; yield after each death."""
    real = Database.execute
    for statements in range(100):
        left = statements

        def execute(self: Database, sql: str) -> int:
            nonlocal left
            if left == 0:
                raise DatabaseError("the driver was killed here")
            left -= 1
            return real(self, sql)

        with monkeypatch.context() as patch:
            patch.setattr(Database, "execute", execute)
            try:
                act()
            except DatabaseError:
                pass
            else:
                return
        yield


def _broken(copy: Copy, step: Step, at: Mapping[str, int], follow: Any = Copy._follow) -> None:
    if copy._name == "shop.z_broken":
        raise ConnectionError("the server is gone")
    follow(copy, step, at)


def test_random_changes_in_random_batches_equal_a_model(
    target: Copies, binlog: Binlog, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the changes, however they are cut into batches, failed and replayed, the copy equals the source."""
    choose, copy = random.Random(seed), replication(target)
    for batch, (transactions, rows) in enumerate(batches(binlog, seed, 15)):
        if choose.random() < 0.3:
            broken = binlog.insert(order_row(1), table=ORDERS._replace(table="z_broken"))
            with monkeypatch.context() as patch:
                patch.setattr(Copy, "_follow", _broken)
                with pytest.raises(ConnectionError):
                    apply(copy, batch, *transactions, broken)  # nothing of it may be there
        apply(copy, batch, *transactions)
        if choose.random() < 0.3:
            copy = replication(target)  # the driver was killed after the sink, before Spark's commit log
            apply(copy, batch, *transactions)
        if rows:
            assert target.select("orders") == texts(rows), f"seed {seed}, batch {batch}"


LOG = TableSchema("shop", "log", (Column("n", "int"), Column("t", "varchar", size=20)), (0,))


def test_a_batch_is_one_transaction_over_all_tables(target: Copies, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stops a batch in one table leaves the others as they were; a replayed batch changes nothing."""
    copy = replication(target)
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert((1, "a"), table=LOG))
    second = [*binlog.insert(order_row(2)), *binlog.insert((2, "b"), table=LOG)]
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseTable, "_merge", _lost_connection)
        with pytest.raises(DatabaseError, match="connection"):
            apply(copy, 1, second)
    assert target.select("orders", "id") == [("1",)]
    apply(copy, 1, second)
    apply(replication(target), 0, binlog.delete(order_row(1)))
    assert target.select("orders", "id") == [("1",), ("2",)]
    assert target.select("log") == [("1", "a"), ("2", "b")]
    apply(copy, 0, binlog.delete(order_row(1)), query="another")
    assert target.select("orders", "id") == [("2",)]


def _lost_connection(table: DatabaseTable, step: Merge, merge: Any = DatabaseTable._merge) -> None:
    merge(table, step)
    if table._name == "shop.log":
        raise DatabaseError("the connection was lost")


def test_a_table_that_the_database_refuses(target: Copies, binlog: Binlog, caplog: pytest.LogCaptureFixture) -> None:
    """It alone is set aside, as it was, and the log says what the database said; the others of the batch continue. Its rows are read again when
    that is put right."""
    copy = replication(target)
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert((1, "a"), table=LOG))
    log = target.name("log")
    target.query(f"DROP TABLE {log}")
    target.query(f"CREATE TABLE {log} (n INT PRIMARY KEY, t VARCHAR(20) NOT NULL, foreign_to_us INT NOT NULL)")
    target.query(f"INSERT INTO {log} VALUES (7, 'theirs', 8)")
    apply(copy, 1, binlog.insert(order_row(2)), binlog.insert((2, "b"), table=LOG), binlog.insert(order_row(3)))
    assert target.select("log") == [("7", "theirs", "8")]
    assert target.select("orders", "id") == [("1",), ("2",), ("3",)]
    assert copy.aside == ["shop.log"]
    assert "the copy of shop.log is set aside, and the others continue" in caplog.text
    assert "foreign_to_us" in caplog.text
    apply(replication(target), 2, binlog.read("whole", (1, "a"), (2, "b"), table=LOG))
    assert target.select("log", "n, t") == [("1", "a"), ("2", "b")]


def test_values_that_are_none_of_the_columns(target: Copies, binlog: Binlog) -> None:
    """The copy is set aside and its rows asked for, without a change to it; the other tables of the batch continue."""
    rows = TableSchema("shop", "log", (Column("n", "int"), Column("u", "uuid"), Column("s", "varchar", size=9)), (0,))
    raw = rows._replace(columns=(rows.columns[0], Column("u", "varbinary", size=16), rows.columns[2]))
    copy = replication(target)
    uuid = "123e4567-e89b-12d3-a456-426655440000"
    apply(copy, 0, binlog.insert((1, uuid, "a"), (2, None, "b"), table=rows))
    apply(copy, 1, binlog.insert((1, b"\x91\xff", "c"), table=raw), binlog.insert(order_row(1)))
    assert copy.aside == ["shop.log"]
    assert target.select("log") == texts([(1, uuid, "a"), (2, None, "b")])
    assert target.select("orders", "id") == [("1",)]
    apply(copy, 2, binlog.insert((3, uuid, "d"), table=rows), binlog.insert(order_row(2)))
    assert len(target.select("log")) == 2
    assert len(target.select("orders")) == 2


def test_columns_follow_ddl_and_replays_of_a_cut_batch(target: Copies, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD with a plain default, DROP, RENAME, MODIFY; a crash after any statement is made good by the replay."""
    wider = ORDERS._replace(
        columns=(
            *(c._replace(name="state") if c.name == "status" else c for c in ORDERS.columns if c.name != "customer"),
            Column("flag", "tinyint"),
            Column("note", "varchar", size=400),
            Column("due", "date"),
        )
    )
    ddl = (
        "alter table shop.orders add flag tinyint not null default 9, drop customer, change status state varchar(300), "
        "modify amount decimal(20,2), add note varchar(100) default 'its', add due date"
    )
    new = (3, Decimal("2.5000"), *order_row(3)[3:5], "s", 5, "n", None)
    batch = [
        *binlog.insert(order_row(1), order_row(2)),
        *binlog.ddl(ddl),
        *binlog.insert(new, table=wider),
        *binlog.delete(order_row(2))[:1],
    ]
    crashes = sum(1 for _ in kills(monkeypatch, lambda: apply(replication(target), 7, batch)))
    assert crashes > 5
    old = [(n, Decimal(n).scaleb(-2).quantize(Decimal("0.01")), *order_row(n)[3:5], "new", 9, "its", None) for n in (1, 2)]
    assert target.select("orders", "id, amount, placed, seen, state, flag, note, due") == texts([*old, new])


def test_keys_are_compared_byte_by_byte(target: Copies, binlog: Binlog) -> None:
    """Keys that a collation would call equal are two rows, and a key that changes its case is one."""
    words = TableSchema("shop", "words", (Column("w", "varchar", size=40, charset="utf8mb4"), Column("n", "int")), (0,))
    copy = replication(target)
    apply(copy, 0, binlog.insert(("a", 1), ("A", 2), ("a ", 3), ("ä", 4), table=words))
    apply(copy, 1, binlog.update((("A", 2), ("Z", 2)), table=words), binlog.update((("ä", 4), ("A", 4)), table=words))
    assert target.select("words") == texts([("a", 1), ("a ", 3), ("Z", 2), ("A", 4)])


def test_a_key_of_two_columns_and_swapped_unique_values(target: Copies, binlog: Binlog) -> None:
    """A composite key; two rows that swap a value which another index keeps unique."""
    items = TableSchema("shop", "items", (Column("order", "int"), Column("line", "smallint"), Column("n", "int")), (0, 1))
    copy = replication(target)
    apply(copy, 0, binlog.insert((1, 1, 10), (1, 2, 20), (2, 1, 30), table=items))
    target.query(f"CREATE UNIQUE INDEX u ON {target.name('items')} (n)")
    apply(copy, 1, binlog.update(((1, 1, 10), (1, 1, 20)), ((1, 2, 20), (1, 2, 10)), table=items))
    apply(copy, 2, binlog.delete((1, 1, 20), table=items), binlog.update(((2, 1, 30), (1, 1, 31)), table=items))
    assert target.select("items") == texts([(1, 2, 10), (1, 1, 31)])


@pytest.mark.parametrize("history", [False, True])
def test_a_change_of_the_primary_key_is_followed(target: Copies, binlog: Binlog, history: bool) -> None:
    """In mid-stream, in one batch with rows of both keys: the copy gets the new key, and rows are distinguished by it alone."""
    columns = (Column("id", "int", nullable=False), Column("word", "varchar", size=400, charset="utf8mb4"), Column("n", "int"))
    old = TableSchema("shop", "words", columns, (0,))
    new = old._replace(primary_key=(1, 2))
    copy = replication(target, history=history)
    apply(copy, 0, binlog.insert((1, "a", 1), (2, "b", 2), (3, "c", 3), table=old))
    batch = [
        binlog.update(((1, "a", 1), (1, "A", 1)), table=old),
        binlog.delete((3, "c", 3), table=old),
        binlog.ddl("alter table words drop primary key, modify id int null, add primary key (word, n)"),
        binlog.insert((1, "a", 1), (None, "d", 4), table=new),
        binlog.update(((2, "b", 2), (2, "B", 2)), table=new),
        binlog.delete((1, "A", 1), table=new),
    ]
    apply(copy, 1, *batch)
    apply(replication(target, history=history), 1, *batch)
    apply(copy, 2, binlog.update(((None, "d", 4), (9, "d", 4)), table=new))
    current = "words WHERE _current" if history else "words"
    assert target.select(current, "id, word, n") == texts([(1, "a", 1), (2, "B", 2), (9, "d", 4)])
    assert target.keys("words") == {"word", "n", *(["_seq"] if history else [])}


def test_a_new_primary_key_that_the_copy_cannot_take(target: Copies, binlog: Binlog) -> None:
    """A row of the copy that is not the source's: it is set aside, the others continue, and what is read again has the new key."""
    pair = TableSchema("shop", "pairs", (Column("id", "int"), Column("n", "int", nullable=False)), (0,))
    copy = replication(target)
    apply(copy, 0, binlog.insert((1, 10), (2, 20), table=pair))
    target.query(f"INSERT INTO {target.name('pairs')} VALUES (3, 20)")
    new = pair._replace(primary_key=(1,))
    apply(copy, 1, binlog.insert((4, 40), table=new), binlog.insert(order_row(1)))
    assert target.select("pairs") == texts([(1, 10), (2, 20), (3, 20)])
    assert target.select("orders", "id") == [("1",)]
    assert copy.aside == ["shop.pairs"]
    apply(copy, 2, binlog.read("whole", (1, 10), (2, 20), (4, 40), table=new))
    apply(copy, 3, binlog.update(((4, 40), (5, 40)), table=new))
    assert target.select("pairs") == texts([(1, 10), (2, 20), (5, 40)])


def test_rows_that_are_read_again(target: Copies, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """They take the place of the copy's, with their columns and key, whichever statement the driver was killed at; grants and indexes stay."""
    new = ORDERS._replace(
        columns=(
            *(c._replace(type="varchar", size=80) if c.name == "placed" else c for c in ORDERS.columns if c.name != "customer"),
            Column("made", "int", nullable=False),
        ),
        primary_key=(0, 5),
    )
    copy = replication(target)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)))
    if target.kind in WHOLE:
        target.query(f"CREATE INDEX mine ON {target.name('orders')} (status)")
    batches = [
        binlog.ddl("alter table orders drop customer, modify placed varchar(80), add made int not null default (7)"),
        [*binlog.read("first", *[_changed(n) for n in (1, 2)], table=new), *binlog.delete(_changed(2), table=new)],
        [*binlog.read("last", table=new), *binlog.insert(_changed(3), table=new)],
    ]
    crashes = 0
    for number, batch in enumerate(batches, 1):
        for _ in kills(monkeypatch, lambda batch=batch, number=number: apply(replication(target), number, batch)):
            crashes += 1
            if target.kind in WHOLE or number < 3:
                assert target.select("orders", "id") == [("1",), ("2",)]
    assert crashes > 15
    assert target.select("orders", "id, amount, placed, seen, status, made") == texts([_changed(1), _changed(3)])
    assert target.keys("orders") == {"id", "made"}
    assert {table for table in target.tables() if "next" in table} == set()
    if target.kind == "postgresql":
        assert target.query("SELECT count(*) FROM pg_indexes WHERE indexname = 'mine'")[0][0] == "1"
    if target.kind == "sqlite":
        assert target.query("SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name = 'mine'") == [(1,)]


WHOLE = ("postgresql", "sqlite")  # whose DDLs are part of a transaction


def _changed(n: int) -> tuple[Any, ...]:
    row = order_row(n)
    return (row[0], row[2], str(row[3]), row[4], row[5], n)


def test_a_table_that_is_made_again_has_its_new_types(target: Copies, binlog: Binlog) -> None:
    """DROP and CREATE with the same names and other types: the copy gets them with the first row."""
    copy = replication(target)
    old = TableSchema("shop", "t", (Column("id", "int"), Column("v", "int")), (0,))
    new = TableSchema("shop", "t", (Column("id", "bigint", unsigned=True), Column("v", "varchar", size=200)), (0,))
    apply(copy, 0, binlog.insert((1, 2), table=old))
    apply(copy, 1, binlog.ddl("drop table t", EventType.ERASE))
    apply(replication(target), 2, binlog.ddl("create table t (id bigint)"), binlog.insert((2**64 - 1, "a"), table=new))
    assert target.select("t") == texts([(2**64 - 1, "a")])


def test_what_a_database_cannot_hold(target: Copies, binlog: Binlog, caplog: pytest.LogCaptureFixture) -> None:
    """Text with U+0000, and names that PostgreSQL would cut: there the table is set aside with the reason, and the others continue. The other
    databases hold them."""
    long = TableSchema("shop", "long", (Column("id", "int"), Column("ü" * 40, "int")), (0,))
    copy = replication(target)
    apply(copy, 0, binlog.insert(order_row(1)))
    second = [binlog.insert(order_row(2, status="a\0b")), binlog.insert((1, 1), table=long), binlog.insert((1, 2), table=PAIR)]
    apply(copy, 1, *second)
    assert target.select("pair") == [("1", "2")]
    if target.kind == "postgresql":
        assert copy.aside == ["shop.long", "shop.orders"]
        assert target.select("orders", "id") == [("1",)]
        assert "U+0000" in caplog.text
        assert "has 80 bytes, and PostgreSQL's names have at most 63" in caplog.text
    else:
        assert copy.aside == []
        assert target.query(f"SELECT status FROM {target.name('orders')} WHERE id = 2") == [("a\0b",)]
        assert target.select("long") == [("1", "1")]


def test_every_name_that_a_column_can_have_on_the_source(target: Copies, binlog: Binlog) -> None:
    """MySQL and MariaDB take each character up to U+FFFF but U+0000, and no blank at the end. (psql separates fields by U+001D to U+001F here.)"""
    odd = [
        chr(number) for number in (*range(1, 0x1D), *range(0x20, 0x80), 0xA0, 0x2028, 0xD7FF, 0xFFFF) if not chr(number).isalnum()
    ]
    names = [f"{char}n{number}{char}{'e' * char.isspace()}" for number, char in enumerate(odd)] + ["sqlite_n"]
    table = TableSchema("shop", "odd", (Column("id", "int"), *(Column(name, "int") for name in names[1:])), (0,))
    copy = replication(target)
    apply(copy, 0, binlog.insert((0, *range(1, len(names))), table=table))
    apply(copy, 1, binlog.ddl(f"ALTER TABLE odd ADD `{names[0]}` INT DEFAULT 0"))
    assert not copy.aside
    types = dict.fromkeys(["id", *names], "int")
    held, rows = target.held("odd", types)
    assert sorted(held) == sorted(types)
    assert {name: int(value) for name, value in zip(held, rows[0], strict=True)} == {
        "id": 0,
        **{name: number for number, name in enumerate(names)},
    }


def test_the_extremes_of_floating_point_numbers(target: Copies, binlog: Binlog) -> None:
    """Each is the same value in the copy; the shortest text of the largest FLOAT would be a number above it."""
    singles = [
        3.4028234663852886e38,
        -3.4028234663852886e38,
        1.401298464324817e-45,
        1.1754943508222875e-38,
        0.10000000149011612,
        -0.0,
    ]
    doubles = [1.7976931348623157e308, -1.7976931348623157e308, 2.2250738585072014e-308, 0.1, 1e23, -0.0]
    table = TableSchema("shop", "numbers", (Column("id", "int"), Column("f", "float"), Column("d", "double")), (0,))
    copy = replication(target)
    apply(copy, 0, binlog.insert(*zip(range(6), singles, doubles, strict=True), table=table))
    assert not copy.aside
    _, rows = target.held("numbers", {"f": "float"})
    found = sorted((int(row[2]), float(row[1]), float(row[0])) for row in rows)  # of d, f, id
    assert [np.float32(row[1]) for row in found] == [np.float32(value) for value in singles]
    assert [row[2] for row in found] == doubles


PAIR = TableSchema("shop", "pair", (Column("id", "int"), Column("n", "int")), (0,))


def test_history_keeps_every_version(target: Copies, binlog: Binlog) -> None:
    """SCD type 2: each version once, replays included; TRUNCATE ends what is current."""
    versions = [
        [binlog.insert(order_row(1), order_row(2), order_row(3))],
        [
            binlog.update((order_row(1), order_row(1, status="paid"))),
            binlog.update((order_row(1, status="paid"), order_row(1, status="sent"))),
        ],
        [binlog.delete(order_row(2)), binlog.insert(order_row(2, status="again")), binlog.update((order_row(3), order_row(4)))],
    ]
    copy = replication(target, history=True)
    for number, batch in enumerate(versions):
        apply(copy, number, *batch)
        apply(replication(target, history=True), number, *batch)
    ended = "CASE WHEN _valid_to IS NULL THEN 0 ELSE 1 END"
    assert target.select("orders", f"id, status, _current, {ended}") == sorted(
        [
            ("1", "new", "0", "1"),
            ("1", "paid", "0", "1"),
            ("1", "sent", "1", "0"),
            ("2", "new", "0", "1"),
            ("2", "again", "1", "0"),
            ("3", "new", "0", "1"),
            ("4", "new", "1", "0"),
        ]
    )
    orders = target.name("orders")
    joined = f"{orders} a JOIN {orders} b ON a.id = b.id AND a._valid_to = b._valid_from"
    assert target.query(f"SELECT count(*) FROM {joined} WHERE a.id = 1 AND a._seq < b._seq")[0][0] in (2, "2")
    apply(copy, 3, binlog.ddl("truncate orders", EventType.TRUNCATE))
    assert {row[0] for row in target.select("orders", "_current")} == {"0"}
    with pytest.raises(CannotFollow, match="history=True"):
        apply(replication(target), 4, binlog.insert(order_row(9)))


def test_a_dropped_database_empties_its_copies(target: Copies, binlog: Binlog) -> None:
    """DROP DATABASE reaches copies that no event of the batch names."""
    copy = replication(target)
    apply(copy, 0, binlog.insert(order_row(1)))
    apply(replication(target), 1, binlog.ddl("drop database shop", EventType.QUERY))
    assert target.select("orders") == []


def test_a_process_that_is_behind_neither_creates_a_removed_copy_nor_removes_a_newer_one(target: Copies, binlog: Binlog) -> None:
    """It finds by the mark that the removed copy left that it is behind. What comes later begins the copy again."""
    first, second = (replication(target, remove_dropped=True) for _ in range(2))
    rows, drop = binlog.insert(order_row(2)), binlog.ddl("drop table orders", EventType.ERASE)
    apply(first, 0, binlog.insert(order_row(1)))
    apply(second, 1, rows)
    apply(second, 2, drop)
    assert "orders" not in target.tables()
    apply(first, 1, rows)
    assert "orders" not in target.tables()
    assert first.existing() == []
    apply(second, 3, binlog.insert(order_row(3)))
    apply(first, 2, drop)
    apply(first, 3, binlog.insert(order_row(3)))
    assert target.select("orders", "id") == [("3",)]
    assert len(first.existing()) == 1
    apply(second, 4, drop)
    apply(first, 0, rows, query="another")
    assert target.select("orders", "id") == [("2",)]


def test_a_removal_that_was_killed_is_done_again(target: Copies, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each statement: also where the database commits one."""
    drop = binlog.ddl("drop table orders", EventType.ERASE)
    apply(replication(target), 0, binlog.insert(order_row(1)))
    for _ in kills(monkeypatch, lambda: apply(replication(target, remove_dropped=True), 1, drop)):
        assert "orders" not in target.tables() or target.select("orders", "id") == [("1",)]
    for number in (0, 1):
        apply(replication(target, remove_dropped=True), number, binlog.insert(order_row(1)))
        assert "orders" not in target.tables()


def test_errors_are_one_line_without_the_password(target: Copies, binlog: Binlog) -> None:
    """A wrong password, host, kind or right is reported in one line; the password is never in it."""
    wrong = "n0t-the-password"

    def run(url: str, password: str, template: str) -> None:
        copy = CopySet(CopiedTables("none", "r", Patterns.parse("*")), database_target(url, password), template)
        apply(copy, 0, binlog.insert(order_row(1)))

    def refused(url: str, password: str = "", template: str = "{database}.{table}") -> str:
        with pytest.raises((DatabaseError, ValueError)) as caught:
            run(url, password, template)
        shown = str(caught.value)
        assert "\n" not in shown
        assert wrong not in shown
        assert PASSWORD not in shown
        return shown

    assert "postgresql://" in refused(f"oracle:thin:me/{wrong}@x?password={wrong}".replace(f"/{wrong}", ""))
    assert "mariadb://" in refused(f"postgres://x:{wrong}@db")
    if target.kind == "sqlite":
        assert "the folder of /no/such/folder/file.db does not exist" in refused(
            "sqlite:/no/such/folder/file.db", template="{table}"
        )
        assert "names a schema" in refused(target.url)
        return
    bare = target.url.replace(f"{target.url.partition('//')[2].partition('@')[0]}@", "")
    port = target.url.partition("@")[2].partition("/")[0].partition(":")[2]
    assert f"cannot connect to {bare}" in refused(target.url, wrong)
    assert "cannot connect" in refused(target.url.replace("//copies", f"//copies:{wrong}"))
    assert "cannot connect" in refused(target.url.replace(port, "1"), wrong)
    assert "no_such" in refused(f"{target.url}?no_such={wrong}")
    if target.kind != "postgresql":
        assert "denied" in refused(target.url, target.password, "mysql.{table}").lower()
        assert "choose from" in refused(f"{target.url}?tls=perhaps")
        assert "port" in refused(f"mysql://me:{wrong}@db:x")


def test_a_password_is_asked_for_each_connection(target: Copies, binlog: Binlog) -> None:
    """As a file that is changed holds another one from then on."""
    asked = list[str]()

    def password() -> str:
        asked.append("")
        return target.password

    made = database_target(target.url, password)
    copy = CopySet(CopiedTables("none", "r", Patterns.parse("*")), made, target.template)
    apply(copy, 0, binlog.insert(order_row(1)))
    made.close()
    apply(copy, 1, binlog.insert(order_row(2)))
    made.close()
    assert len(asked) == 2
    assert target.select("orders", "id") == [("1",), ("2",)]


def test_a_column_whose_values_do_not_fit_its_new_type(target: Copies, binlog: Binlog) -> None:
    """A copy that holds other values than the server's column could: it is set aside to be read again, and the query continues."""
    copy = replication(target)
    table = TableSchema("shop", "t", (Column("id", "int"), Column("v", "varchar", size=200)), (0,))
    apply(copy, 0, binlog.insert((1, "long"), table=table))
    found = next(iter(copy._copies.values())).target
    column = Column("v", "int") if target.kind == "sqlite" else Column("v", "decimal", size=6, scale=2)
    made = target.made[-1].database
    with pytest.raises(CopyDiffers, match="cannot take its rows"), made.transaction():
        found.commit(Alter((Change("v", "v", column),)), {})
    assert target.select("t") == texts([(1, "long")])
    apply(copy, 1, binlog.insert((2, "more"), table=table))
    assert target.select("t") == texts([(1, "long"), (2, "more")])


@pytest.mark.parametrize("history", [False, True])
def test_text_that_is_longer_than_its_column(target: Copies, binlog: Binlog, seed: int, history: bool) -> None:
    """MariaDB's VARCHAR(n) COMPRESSED holds more characters than n, as many as fit the bytes of n: no copy is too narrow for them."""
    choose, sizes = random.Random(seed), {"utf8mb4": 4, "utf8mb3": 3, "ucs2": 2, "gbk": 2, "latin1": 1}
    lengths = {charset: choose.choice([1, 30, 63, 255]) for charset in sizes}
    columns = [Column(f"c_{charset}", "varchar", size=sizes[charset] * n, charset=charset) for charset, n in lengths.items()]
    table = TableSchema("shop", "packed", (Column("id", "int"), *columns), (0,))
    copy, model = replication(target, history=history), dict[int, tuple[Any, ...]]()
    for batch in range(3):
        for key in range(batch, batch + 2):
            widths = [column.size // choose.choice([1, sizes[column.charset]]) for column in columns]
            row = (key, *["x" * choose.randint(0, width) for width in widths])
            change = binlog.update((model[key], row), table=table) if key in model else binlog.insert(row, table=table)
            model[key] = row
            apply(copy, 3 * batch + key, change)
    assert copy.aside == []
    names = ", ".join(column.name for column in table.columns)
    current = " WHERE _current" if history else ""
    held = target.query(f"SELECT {names} FROM {target.name('packed')}{current}")
    assert texts(held) == texts(model.values()), f"seed {seed}"


def test_values_that_no_reading_makes_fit(
    target: Copies, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the type that a copy was created with cannot take its table's values, it is set aside for a person, and not read again forever."""
    dialect = type(target.connect().database.dialect)
    real = dialect.type_of

    def type_of(self: Any, column: Column, **named: Any) -> str:
        return "INTEGER" if column.name == "v" else real(self, column, **named)

    monkeypatch.setattr(dialect, "type_of", type_of)
    table = TableSchema("shop", "t", (Column("id", "int"), Column("v", "varchar", size=200)), (0,))
    copy = replication(target)
    apply(copy, 0, binlog.insert((1, "text"), table=table))
    assert copy.aside == ["shop.t"]
    assert "is set aside" in caplog.text
