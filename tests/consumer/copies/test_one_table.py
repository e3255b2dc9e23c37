"""What is wrong with one table concerns that one alone: the others have their copies, and nothing is lost without a word."""

from __future__ import annotations

import logging
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from shmstore import Column, EventType, TableSchema
from shmstore.consumer.copies import copy as copies_
from shmstore.consumer.copies.copy import Copy
from shmstore.consumer.copies.targets.folders import AT_ONCE
from tests.consumer.copies.lakes import DUCKDB, FORMATS, apply, as_verify_reads, exists, move_away, read, replication, rows
from tests.consumer.spark.events import ORDERS, Binlog, order_row

HELPERS = [
    "_valid_from",
    "_valid_to",
    "_current",
    "_seq",
    "_end",
    "_end_seq",
    "_number",
    "_shmstore_deleted",
    "_shmstore_number",
    "s",
    "t",
]


@pytest.fixture(autouse=True)
def _home(state: Path) -> None:
    """A home of the test's own: which tables are aside is kept there."""


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("fold", [str.lower, str.upper], ids=["lower", "upper"])
def test_columns_may_have_the_names_of_our_helpers(tmp_path: Path, binlog: Binlog, format: str, fold: Any, seed: int) -> None:
    """A copy without a history has them as any other: filled, changed, emptied, altered, read by `verify`, by one process after the other."""
    names = [fold(name) for name in HELPERS]
    table = TableSchema("shop", "orders", (Column("id", "int"), *(Column(name, "int") for name in names)), (0,))
    choose, wanted = random.Random(seed), dict[int, tuple[int, ...]]()
    for batch in range(6):
        copy = replication(tmp_path, format)
        row = (choose.randrange(3), *(choose.randrange(9) for _ in names))
        old = wanted.get(row[0])
        wanted[row[0]] = row
        other = (9, *row[1:])
        extra = [*binlog.insert(other, table=table), *binlog.delete(other, table=table)]
        apply(copy, batch, binlog.insert(row, table=table) if old is None else binlog.update((old, row), table=table), extra)
        assert rows(copy, format) == wanted, f"seed {seed}"
    assert not copy.aside
    found = as_verify_reads(copy).rows(table)
    assert sorted(row for piece in found for row in piece) == sorted(wanted.values())
    apply(
        replication(tmp_path, format),
        6,
        binlog.ddl("alter table orders drop column " + names[1]),
        binlog.ddl("truncate orders", EventType.TRUNCATE),
    )
    assert read(copy, format).num_rows == 0


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["_end", "_end_seq", "_number", "_shmstore_number", "_shmstore_deleted", "s", "t"])
def test_a_history_leaves_a_table_its_names(tmp_path: Path, binlog: Binlog, format: str, name: str) -> None:
    """All but its own four columns."""
    table = TableSchema("shop", "orders", (Column("id", "int"), Column(name, "int")), (0,))
    copy = replication(tmp_path, format, history=True)
    apply(copy, 0, binlog.insert((1, 5), (2, 6), table=table))
    apply(copy, 1, binlog.update(((1, 5), (1, 7)), table=table), binlog.delete((2, 6), table=table))
    found = [(row["id"], row[name], row["_current"]) for row in read(copy, format).to_pylist()]
    assert sorted(found) == [(1, 5, False), (1, 7, True), (2, 6, False)]


@pytest.mark.parametrize("format", FORMATS)
def test_a_history_says_where_a_column_takes_one_of_its_names(
    tmp_path: Path, binlog: Binlog, format: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by an ALTER: that table is set aside, with what to do, and keeps what it has; the others continue."""
    copy = replication(tmp_path, format, history=True)
    other = ORDERS._replace(table="other")
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert(order_row(1), table=other))
    apply(copy, 1, binlog.ddl("alter table orders rename column customer to _Current"), binlog.insert(order_row(2), table=other))
    assert copy.aside == ["shop.orders"]
    assert "has a column _current, which a history needs" in caplog.text
    assert read(copy, format).num_rows == 1
    assert read(copy, format, "other").num_rows == 2


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("history", [False, True])
def test_a_copy_that_is_older_than_the_mark_is_known_by_its_columns(
    tmp_path: Path, binlog: Binlog, format: str, history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it keeps a history."""
    with monkeypatch.context() as patch:
        patch.setattr(copies_, "_first", lambda target, marks, history: marks)
        apply(replication(tmp_path, format, history=history), 0, binlog.insert(order_row(1)))
    copy = replication(tmp_path, format, history=history)
    apply(copy, 1, binlog.update((order_row(1), order_row(1, status="x"))))
    assert read(copy, format).num_rows == 1 + history
    with pytest.raises(ValueError, match="keeps"):
        apply(replication(tmp_path, format, history=not history), 2, binlog.insert(order_row(3)))


@pytest.mark.parametrize(
    "error", [TypeError("odd"), KeyError("odd"), ValueError("odd"), NotImplementedError("odd"), ZeroDivisionError("odd")]
)
@pytest.mark.parametrize("begun", [False, True])
def test_an_error_of_one_table_sets_that_one_aside(
    tmp_path: Path,
    binlog: Binlog,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    begun: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever a library raises about its rows. A copy that had none before is not begun with those that come later."""
    copy, other = replication(tmp_path, "parquet"), ORDERS._replace(table="other")
    if begun:
        apply(copy, 0, binlog.insert(order_row(1)))
    real = Copy._follow

    def follow(self: Any, step: Any, at: Any) -> None:
        if self._name == "shop.orders":
            raise error
        real(self, step, at)

    with monkeypatch.context() as patch:
        patch.setattr(Copy, "_follow", follow)
        apply(copy, 1, binlog.insert(order_row(2)), binlog.insert(order_row(2), table=other))
    assert copy.aside == ["shop.orders"]
    assert f"{type(error).__name__}: " in caplog.text
    assert "shmstore snapshot none --tables 'shop.orders'" in caplog.text
    copy = replication(tmp_path, "parquet")
    apply(copy, 2, binlog.insert(order_row(3)), binlog.insert(order_row(3), table=other))
    assert copy.aside == ["shop.orders"]
    assert set(rows(copy, "parquet")) == ({1} if begun else set())
    assert set(rows(copy, "parquet", "other")) == {2, 3}
    apply(copy, 3, binlog.read("whole", order_row(1), order_row(2), order_row(3)))
    assert not copy.aside
    assert set(rows(copy, "parquet")) == {1, 2, 3}


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_more_steps_than_a_batch_can_have(
    tmp_path: Path, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, format: str, history: bool
) -> None:
    """The copy is read again, and no number of the next batch is taken; as many steps as there can be are done one by one."""
    monkeypatch.setattr(copies_, "_STEPS", 4)
    caplog.set_level(logging.INFO)
    other = ORDERS._replace(table="other")
    copy = replication(tmp_path, format, history=history)
    apply(copy, 0, binlog.insert(order_row(1)))
    ddl = binlog.ddl("ALTER TABLE orders ADD INDEX (status)")
    four = [part for key in range(2, 6) for part in (binlog.insert(order_row(key)), ddl)]
    apply(copy, 1, *four)
    assert not copy.aside
    assert set(rows(copy, format)) == {1, 2, 3, 4, 5}
    five = [part for key in range(6, 11) for part in (binlog.insert(order_row(key)), ddl)]
    for _ in range(2):  # as it comes, and again
        apply(copy, 2, *five, binlog.insert(order_row(1), table=other))
        assert "its batch has 5 steps, and can have 4" in caplog.text
        assert copy.aside == ["shop.orders"]
        assert set(rows(copy, format)) == {1, 2, 3, 4, 5}
        assert set(rows(copy, format, "other")) == {1}
        copy = replication(tmp_path, format, history=history)
    apply(copy, 3, binlog.insert(order_row(11)))
    assert set(rows(copy, format)) == {1, 2, 3, 4, 5}
    if not history:  # which ends where a change cannot be followed
        apply(copy, 4, binlog.read("whole", *map(order_row, range(1, 12))))
        apply(copy, 5, binlog.delete(order_row(1)))
        assert not copy.aside
        assert set(rows(copy, format)) == set(range(2, 12))


@pytest.mark.parametrize("format", FORMATS)
def test_a_large_table_does_not_hold_up_small_ones(
    tmp_path: Path, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Copies in folders are written at once, by a bounded number of threads; those on one connection one after the other, by the caller."""
    tables = [ORDERS._replace(table=name) for name in ("large", *(f"small{i}" for i in range(8)))]
    small, running, most, callers = threading.Event(), set[str](), list[int](), set[threading.Thread]()
    real = Copy._follow

    def follow(self: Any, step: Any, at: Any) -> None:
        callers.add(threading.current_thread())
        running.add(self._name)
        most.append(len(running))
        if self._name == "shop.large" and format not in DUCKDB:
            assert small.wait(60)
        real(self, step, at)
        running.remove(self._name)
        if self._name == "shop.small7":
            small.set()

    monkeypatch.setattr(Copy, "_follow", follow)
    apply(replication(tmp_path, format), 0, *(binlog.insert(order_row(1), table=table) for table in tables))
    assert 1 + (format not in DUCKDB) <= max(most) <= (1 if format in DUCKDB else AT_ONCE)
    assert (threading.current_thread() in callers) == (format in DUCKDB)
    assert all(set(rows(replication(tmp_path, format), format, table.table)) == {1} for table in tables)


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_an_error_waits_for_the_tables_that_are_being_written(
    tmp_path: Path, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """The batch is run again only after no thread writes any more, and each change is in each copy once."""
    tables = [ORDERS._replace(table=name) for name in "abcdef"]
    batch = [binlog.insert(order_row(1), order_row(2), table=table) for table in tables]
    real, raised, after = Copy._follow, threading.Event(), list[str]()

    def follow(self: Any, step: Any, at: Any) -> None:
        if self._name == "shop.a":
            raised.set()
            raise OSError(28, "No space left on device")
        assert raised.wait(60)
        real(self, step, at)
        after.append(self._name)

    copy = replication(tmp_path, format)
    with monkeypatch.context() as patch:
        patch.setattr(Copy, "_follow", follow)
        with pytest.raises(OSError, match="No space"):
            apply(copy, 0, *batch)
    done = list(after)
    assert not copy.aside
    apply(copy, 0, *batch)
    assert done == after
    assert all(set(rows(copy, format, table.table)) == {1, 2} for table in tables)
    versions = [DeltaTable(copy.path("shop", table.table)).version() for table in tables] if format == "delta" else [0]
    assert set(versions) == {0}


def test_what_is_not_of_one_table_ends_the_batch(tmp_path: Path, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, a server that is gone: nothing is set aside, and the batch is run again."""

    def full(self: Any, step: Any, at: Any) -> None:
        raise OSError(28, "No space left on device")

    copy = replication(tmp_path, "parquet")
    events = binlog.insert(order_row(1))
    with monkeypatch.context() as patch:
        patch.setattr(Copy, "_follow", full)
        with pytest.raises(OSError, match="No space"):
            apply(copy, 0, events)
    assert not copy.aside
    apply(copy, 0, events)
    assert set(rows(copy, "parquet")) == {1}


@pytest.mark.parametrize("format", FORMATS)
def test_an_impossible_date_sets_its_table_aside(
    tmp_path: Path, binlog: Binlog, format: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With zeroDates=fail, as it is by default: the rest continues, and the log says how to read it."""
    days = TableSchema("shop", "days", (Column("id", "int"), Column("day", "date")), (0,))
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert((1, "0000-00-00"), table=days), binlog.insert(order_row(1)))
    apply(copy, 1, binlog.insert((2, None), table=days))
    assert copy.aside == ["shop.days"]
    assert "zeroDates=null" in caplog.text
    assert set(rows(copy, format)) == {1}
    assert read(copy, format, "days").num_rows == 0


@pytest.mark.parametrize("format", FORMATS)
def test_a_history_that_was_moved_away_begins_again(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """As the log says where it ended: with the rows that come, while a copy without a history begins with a snapshot."""
    for history, wanted in ((True, {3}), (False, set[int]())):
        lake = tmp_path / str(history)
        copy = replication(lake, format, history=history)
        apply(
            copy,
            0,
            binlog.insert(order_row(1)),
            binlog.ddl("alter table orders modify seen datetime"),
            binlog.insert(order_row(2)),
        )
        assert copy.aside == ["shop.orders"]
        move_away(copy)
        copy = replication(lake, format, history=history)
        apply(copy, 1, binlog.insert(order_row(3)))
        there = exists(copy)
        assert ({row["id"] for row in read(copy, format).to_pylist()} if there else set()) == wanted


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("sql", ["drop table orders", "rename table orders to old", "drop database shop"])
def test_copies_of_dropped_tables_go_where_that_is_asked_for(
    tmp_path: Path, binlog: Binlog, format: str, sql: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise they stay, without rows, and the log says it once. A table of that name begins again; a replayed batch changes nothing."""
    caplog.set_level(logging.INFO, "shmstore")
    kept, going = replication(tmp_path / "kept", format), replication(tmp_path / "going", format, remove_dropped=True)
    ddl, insert = binlog.ddl(sql, EventType.ERASE), binlog.insert(order_row(1))
    again, last = binlog.insert(order_row(2)), binlog.ddl("truncate orders", EventType.TRUNCATE)
    for copy in (kept, going):
        apply(copy, 0, insert)
        apply(copy, 1, binlog.insert(order_row(5)), ddl)
    assert rows(kept, format) == {}
    assert "remove_dropped=True" in caplog.text
    assert not exists(going)
    apply(replication(tmp_path / "going", format, remove_dropped=True), 1, insert, ddl)
    assert not exists(going)
    apply(going, 2, again)
    assert set(rows(going, format)) == {2}
    apply(going, 3, last)
    assert rows(going, format) == {}
    history = replication(tmp_path / "history", format, history=True, remove_dropped=True)
    apply(history, 0, insert)
    apply(history, 1, ddl)
    assert [row["_current"] for row in read(history, format).to_pylist()] == [False]


def test_a_table_that_filters_leave_out_keeps_its_copy_or_loses_it(
    tmp_path: Path, binlog: Binlog, caplog: pytest.LogCaptureFixture
) -> None:
    """As it was asked for. What the filters let in, or of which other rows pass, only the server knows."""
    caplog.set_level(logging.INFO, "shmstore")
    kept = replication(tmp_path / "kept", "parquet")
    going = replication(tmp_path / "going", "parquet", remove_dropped=True)
    first, last, again = (
        binlog.insert(order_row(1)),
        binlog.insert(order_row(2)),
        binlog.insert(order_row(3)),
    )
    left = binlog.filters(tables_out="shop.orders,shop.other")
    for copy in (kept, going):
        apply(copy, 0, first)
        apply(copy, 1, last, left)
    assert set(rows(kept, "parquet")) == {1, 2}
    assert "stays as it was there; remove_dropped=True removes it" in caplog.text
    assert not Path(going.path("shop", "orders")).exists()
    apply(kept, 2, binlog.filters(tables_in="shop.orders"), again)
    assert kept.aside
    assert set(rows(kept, "parquet")) == {1, 2}
