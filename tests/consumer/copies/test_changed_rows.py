"""What becomes of each key, by columns and numbers, is what a dict of rows, filled one by one, says."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.consumer.copies.change_reduction import CURRENT, SEQ, VALID_FROM, VALID_TO, Merge, Reread, Step, Versions, collect
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.encoding import arrow
from shmstore.encoding.codec import encode
from shmstore.encoding.row_order import seq_prefix, seq_suffix
from shmstore.patterns.table_patterns import Patterns

Change = tuple[EventType, list[tuple[Any, Any]]]
#: Columns that can be keys, and few values of each, so that keys meet again.
KEYS = {
    Column("i", "int"): st.integers(-1, 2),
    Column("u", "bigint", unsigned=True): st.sampled_from([0, 1, 2**64 - 1]),
    Column("t", "varchar", size=20, charset="utf8mb4"): st.sampled_from(["", "a", "A", "é", "b" * 40]),
    Column("b", "varbinary", size=20): st.sampled_from([b"", b"\0", b"\xff", b"aa"]),
    Column("f", "double"): st.sampled_from([0.0, -0.0, 1.5]),
    Column("c", "time", scale=2): st.sampled_from([timedelta(0), timedelta(hours=-30), timedelta(microseconds=10_000)]),
}
OTHER = Column("value", "int")


def events_of(table: TableSchema, changes: Iterable[Change]) -> list[bytes]:
    found = []
    for number, (type_, rows) in enumerate(changes):
        images = tuple([Row(*images) for images in rows])
        place = Position("mysql-bin.000007", 100 * (number + 1))
        event = Event(EntryType.ROWS, type_, place, number, 1, 10, "0-1-1", number, database="shop", table=table, rows=images)
        found.append(encode(event))
    return found


def steps_of(payloads: Iterable[bytes], *, history: bool = False, zero_dates: str = "fail") -> list[Step | None]:
    copied = CopiedTables("none", "test", Patterns.of_tables("*"), zero_dates)
    (changes,) = collect(payloads, copied, {}, history, lambda database: []).values()
    return changes.finish()


def shown(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as a copy has it."""
    return tuple([_clock(value) if isinstance(value, timedelta) else value for value in row])


def _clock(value: timedelta) -> str:
    micros = abs(value) // timedelta(microseconds=1)
    return f"{'-' * (value < timedelta(0))}{micros // 3_600_000_000:02}:00:00.{micros % 1_000_000 // 10_000:02}"


@st.composite
def tables_and_changes(draw: Any) -> tuple[TableSchema, list[Change]]:
    """A table with a key of one to three columns, and changes of its rows as a server logs them."""
    chosen = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3, unique=True))
    table = TableSchema("shop", "orders", (OTHER, *chosen), tuple(range(1, len(chosen) + 1)))
    row = st.tuples(st.none() | st.integers(0, 3), *(KEYS[column] for column in chosen))
    changes: list[Change] = []
    for _ in range(draw(st.integers(1, 12))):
        type_ = draw(st.sampled_from([EventType.INSERT, EventType.UPDATE, EventType.DELETE]))
        before = st.none() if type_ == EventType.INSERT else row
        after = st.none() if type_ == EventType.DELETE else row
        changes.append((type_, draw(st.lists(st.tuples(before, after), min_size=1, max_size=4))))
    return table, changes


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "pure"])
def test_the_last_change_of_each_key(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every kind of key, also of several columns, and where an UPDATE changes it."""
    monkeypatch.setattr(arrow, "COMPILED", compiled and arrow.COMPILED)

    @settings(max_examples=60, deadline=None)
    @given(tables_and_changes())
    def check(given_: tuple[TableSchema, list[Change]]) -> None:
        table, changes = given_
        wanted: dict[tuple[Any, ...], tuple[Any, ...] | None] = {}
        for _, rows in changes:
            for before, after in rows:
                if before is not None:
                    wanted[before[1:]] = None
                if after is not None:
                    wanted[after[1:]] = after
        (step,) = steps_of(events_of(table, changes))
        assert isinstance(step, Merge)
        assert step.keys == table.names[1:]
        assert _sorted(step.upserts) == sorted(map(repr, (shown(row) for row in wanted.values() if row is not None)))
        assert _sorted(step.deletes) == sorted(map(repr, (shown(key) for key, row in _said(wanted, changes) if row is None)))

    check()


def _said(wanted: dict[Any, Any], changes: list[Change]) -> list[tuple[Any, Any]]:
    """The last changes, each under its key as the last image wrote it: of 0.0 and -0.0, the same key, a dict keeps the first."""
    last = {}
    for _, rows in changes:
        for images in rows:
            for image in images:
                if image is not None:
                    last[image[1:]] = image[1:]
    return [(last[key], row) for key, row in wanted.items()]


def _sorted(table: Any) -> list[str]:
    """Rows as text: -0.0 is not 0.0."""
    return sorted(repr(_plain(row.values())) for row in table.to_pylist())


def _plain(values: Iterable[Any]) -> tuple[Any, ...]:
    """A BIGINT UNSIGNED is a decimal in a copy."""
    return tuple([int(value) if isinstance(value, Decimal) else value for value in values])


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "pure"])
def test_every_version_of_each_key(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the moments between which each was current, and its place in the binlog."""
    monkeypatch.setattr(arrow, "COMPILED", compiled and arrow.COMPILED)

    @settings(max_examples=40, deadline=None)
    @given(tables_and_changes())
    def check(given_: tuple[TableSchema, list[Change]]) -> None:
        table, changes = given_
        first: dict[Any, tuple[int, str]] = {}
        open_: dict[Any, list[Any]] = {}
        versions: list[list[Any]] = []
        for time, (_, rows) in enumerate(changes):
            for number, (before, after) in enumerate(rows):
                seq = seq_prefix(7, 100 * (time + 1), time) + seq_suffix(number)
                for key in [image[1:] for image in (before, after) if image is not None]:
                    first.setdefault(key, (time, seq))
                    if key in open_:
                        open_.pop(key)[-2] = time
                if after is not None:
                    open_[after[1:]] = version = [*shown(after), time, None, seq]
                    versions.append(version)
        (step,) = steps_of(events_of(table, changes), history=True)
        assert isinstance(step, Versions)
        found = [
            [*_plain(row.values())[: len(table.columns)], _ms(row[VALID_FROM]), _ms(row[VALID_TO]), row[SEQ]]
            for row in step.versions.to_pylist()
        ]
        assert sorted(map(repr, found)) == sorted(map(repr, versions))
        assert step.versions[CURRENT].to_pylist() == [end is None for end in step.versions[VALID_TO].to_pylist()]
        ends = {_plain(row.values())[: len(step.keys)]: (_ms(row[VALID_TO]), row[SEQ]) for row in step.ends.to_pylist()}
        assert ends == {shown(key): end for key, end in first.items()}

    check()


def _ms(moment: Any) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


DATED = TableSchema("shop", "orders", (Column("id", "int"), Column("day", "date")), (0,))


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "pure"])
@pytest.mark.parametrize("overwritten", [True, False])
def test_a_date_that_does_not_exist_matters_where_its_row_is_written(
    compiled: bool, overwritten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that a later one replaces needs no place in a copy."""
    monkeypatch.setattr(arrow, "COMPILED", compiled and arrow.COMPILED)
    changes: list[Change] = [(EventType.INSERT, [(None, (1, None)), (None, (2, "0000-00-00")), (None, (3, None))])]
    if overwritten:
        changes.append((EventType.UPDATE, [((2, "0000-00-00"), (2, None))]))
    (step,) = steps_of(events_of(DATED, changes))
    if overwritten:
        assert isinstance(step, Merge)
        assert _sorted(step.upserts) == ["(1, None)", "(2, None)", "(3, None)"]
    else:
        assert isinstance(step, Reread)
        assert "day holds '0000-00-00'" in step.reason
    (step,) = steps_of(events_of(DATED, changes), zero_dates="null")
    assert isinstance(step, Merge)
    assert _sorted(step.upserts) == ["(1, None)", "(2, None)", "(3, None)"]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("zero_dates", ["fail", "null"])
def test_a_key_is_no_date_that_does_not_exist(history: bool, zero_dates: str) -> None:
    """As NULL it would be the key of other rows, too."""
    table = DATED._replace(primary_key=(1,))
    changes: list[Change] = [(EventType.DELETE, [((1, "2024-00-00"), None), ((2, "0000-00-00"), None)])]
    (step,) = steps_of(events_of(table, changes), history=history, zero_dates=zero_dates)
    assert isinstance(step, Reread)
    assert step.help
    assert "2024-00-00" in step.reason


def test_rows_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are the same as read at once."""
    changes: list[Change] = [
        (
            EventType.INSERT if number % 3 else EventType.DELETE,
            [((i % 40, None), None) if number % 3 == 0 else (None, (i % 40, None))],
        )
        for number, i in enumerate(range(0, 900, 7))
    ]
    payloads = events_of(DATED, changes)
    (whole,) = steps_of(payloads)
    for size in (1, 2, 10, len(changes)):
        monkeypatch.setattr("shmstore.consumer.copies.changed_rows.ROWS_PER_READ", size)
        (parts,) = steps_of(payloads)
        assert isinstance(parts, Merge)
        assert isinstance(whole, Merge)
        assert _sorted(parts.upserts) == _sorted(whole.upserts)
        assert _sorted(parts.deletes) == _sorted(whole.deletes)


def ddl(sql: str, type_: EventType) -> bytes:
    place = Position("mysql-bin.000007", 5)
    return encode(Event(EntryType.DDL, type_, place, 0, 1, 10, "0-1-1", 0, database="shop", sql=sql))


@pytest.mark.parametrize("history", [False, True])
def test_rows_that_a_truncate_deletes_are_not_written(history: bool) -> None:
    """Nor are those that no copy could have; of several TRUNCATEs one is done. The steps keep their numbers, and a history has them all."""
    rows = events_of(DATED, [(EventType.INSERT, [(None, (1, None))])])
    impossible = events_of(DATED, [(EventType.INSERT, [(None, (1, "2024-00-00"))])])
    truncate, drop = ddl("TRUNCATE orders", EventType.TRUNCATE), ddl("DROP TABLE orders", EventType.ERASE)
    alter = ddl("ALTER TABLE orders ADD n INT", EventType.ALTER)

    def kinds(*payloads: bytes) -> list[str | None]:
        return [step and type(step).__name__ for step in steps_of(payloads, history=history)]

    several = (*rows, truncate, truncate, *rows, truncate, *rows)
    if history:
        assert kinds(*several) == ["Versions", "Empty", "Empty", "Versions", "Empty", "Versions"]
        return
    assert kinds(*several) == [None, None, None, None, "Empty", "Merge"]
    assert kinds(*impossible, truncate) == [None, "Empty"]
    assert kinds(*rows, alter, *rows, truncate) == ["Merge", "Alter", None, "Empty"]
    assert kinds(*rows, drop, *rows, truncate) == [None, "Empty", None, "Empty"]  # the copy may go with its table
    assert kinds(truncate, *rows, drop) == [None, None, "Empty"]
