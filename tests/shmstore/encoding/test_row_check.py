"""An event of your own is checked when it is put: a reader could only say that it is damaged."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore import ABSENT, Column, EntryType, Event, EventStore, EventType, Position, Row, TableSchema
from shmstore.encoding import codec
from shmstore.encoding.codec import decode, encode
from tests.shmstore.samples import begin

TYPES = (
    "tinyint",
    "bigint",
    "bit",
    "double",
    "decimal",
    "date",
    "datetime",
    "timestamp",
    "time",
    "varchar",
    "json",
    "blob",
    "odd",
)
TABLE = TableSchema("shop", "all", tuple(Column(f"c_{kind}", kind, unsigned=kind == "tinyint") for kind in TYPES), (0,))
NOON = datetime(2026, 1, 31, 12)
GOOD = (255, -1, 7, 1.5, Decimal("1.50"), NOON.date(), NOON, NOON.replace(tzinfo=UTC), timedelta(1), "text", "{}", b"\0", "any")


def event(*rows: Row, table: TableSchema = TABLE, **fields: Any) -> Event:
    whole = Event(EntryType.ROWS, EventType.INSERT, Position("binlog.000001", 4), 0, table=table, rows=rows)
    return whole._replace(**fields)


def changed(kind: str, value: Any) -> tuple[Any, ...]:
    return tuple(value if each == kind else good for each, good in zip(TYPES, GOOD, strict=True))


def test_what_fits_comes_back() -> None:
    """Every type's own values, NULL, absent columns, zero dates, and True for 1."""
    zero = changed("date", "0000-00-00")
    rows = (Row(None, GOOD), Row(None, zero), Row(None, tuple([None] * len(TYPES))), Row(None, changed("bigint", True)))
    assert decode(encode(event(*rows))).rows == rows
    partial = (Row((ABSENT, *GOOD[1:]), GOOD),) * 2
    assert decode(encode(event(*partial, type=EventType.UPDATE))).rows == partial


@pytest.mark.parametrize(
    ("kind", "value", "error", "wanted"),
    [
        ("tinyint", -1, ValueError, "int from 0 to 255"),
        ("tinyint", "1", TypeError, "int from 0 to 255"),
        ("bigint", 2**64, ValueError, "int from"),
        ("double", "1.5", TypeError, "a float"),
        ("decimal", 1.5, TypeError, "decimal.Decimal"),
        ("decimal", Decimal("NaN"), ValueError, "finite"),
        ("date", NOON, ValueError, "a date"),
        ("datetime", date(2026, 1, 1), TypeError, "naive datetime"),
        ("datetime", NOON.replace(tzinfo=UTC), ValueError, "naive datetime"),
        ("timestamp", NOON, ValueError, "aware datetime"),
        ("time", "12:00", TypeError, "timedelta"),
        ("varchar", b"text", TypeError, "a str"),
        ("json", {}, TypeError, "a str"),
        ("blob", "text", TypeError, "bytes"),
    ],
)
def test_what_does_not_fit_is_refused(store_name: str, kind: str, value: Any, error: type[Exception], wanted: str) -> None:
    """put() names row, table, column, value, and what the column takes; nothing is stored, not even what came before."""
    with EventStore.create(store_name, log=False) as store:
        with pytest.raises(error, match=rf"row 1 of table shop\.all: column c_{kind} \({kind}\) cannot hold .*: give .*{wanted}"):
            store.put([begin(0), event(Row(None, GOOD), Row(None, changed(kind, value)))])
        assert store.newest == -1
        assert store.put(event(Row(None, GOOD))) == 0


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (event(Row(None, GOOD[:-1])), "row 0 of table shop.all has 12 values, the table has 13 columns"),
        (event(Row(None, (*GOOD, 1))), "has 14 values"),
        (event(Row(None, ())), "has 0 values"),
        (event(Row(None, GOOD), Row(GOOD, None)), "row 1 of table shop.all has other images"),
        (event(Row(None, GOOD), Row(None, (ABSENT, *GOOD[1:]))), "other columns in them, than row 0"),
        (event(Row(None, changed("odd", object()))), "this event cannot be stored"),
        (event(Row(None, changed("varchar", "\ud800"))), "this event cannot be stored"),
        (event(Row(None, GOOD), time_ms=1.5), "this event cannot be stored"),
        (event(Row(None, GOOD), props={"xid": 5}), "this event cannot be stored"),
        (event(Row(None, GOOD), sql=b"x"), "this event cannot be stored"),
        (event(Row(None, GOOD), position=None), "this event cannot be stored"),
        (event(Row(None, GOOD), entry=77), "its entry is 77"),
    ],
)
def test_other_events_that_could_not_be_read(bad: Event, says: str) -> None:
    """Rows that do not belong together, and fields of other types, are refused, too."""
    with pytest.raises((ValueError, TypeError), match=says):
        encode(bad)


class Number(int):
    """As an int, of a class of its own."""


class Text(str):
    """As a str, of a class of its own."""


class Zone(tzinfo):
    """A zone that is UTC, and not `datetime.UTC`."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)


numbers = st.integers(-(2**70), 2**70) | st.sampled_from(
    [n + d for n in (0, 2**7, 2**8, 2**31, 2**32, 2**63, 2**64, -(2**63)) for d in (-1, 0, 1)]
)
decimals = st.decimals() | st.decimals(allow_nan=False, allow_infinity=False, places=3)
#: Values that some column takes, and some that none does.
anything = st.one_of(
    st.none(),
    st.just(ABSENT),
    st.booleans(),
    numbers,
    numbers.map(Number),
    st.floats(),
    decimals,
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(timezones=st.sampled_from([Zone(), timezone(timedelta(hours=2))])),
    st.timedeltas(),
    st.text(max_size=40),
    st.text(st.characters(), max_size=3).map(Text),
    st.just("\ud800"),
    st.binary(max_size=40),
    st.binary(max_size=3).map(bytearray),
    st.binary(max_size=3).map(memoryview),
    st.lists(st.integers(0, 3), max_size=2),
)
OWN = {
    "tinyint": st.integers(0, 255),
    "bigint": numbers,
    "bit": st.integers(0, 2**64 - 1),
    "double": st.floats(),
    "decimal": decimals,
    "date": st.dates(),
    "datetime": st.datetimes(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "time": st.timedeltas(),
    "varchar": st.text(max_size=300),
    "json": st.text(max_size=40),
    "blob": st.binary(max_size=300),
    "odd": st.text(max_size=3),
}


@st.composite
def some_event(draw: st.DrawFn) -> Event:
    """An event of a table of a few columns, and fields; at most one value of its rows, or one field, is from anywhere."""
    kinds = draw(st.lists(st.sampled_from(TYPES), max_size=5))
    table = TableSchema(
        "shop", "some", tuple(Column(f"c{i}", kind, unsigned=kind == "tinyint") for i, kind in enumerate(kinds)), ()
    )
    own = st.tuples(*(st.none() | OWN[kind] for kind in kinds))
    images = draw(
        st.sampled_from([(st.none(), own), (own, st.none()), (own, own), (st.none() | own, own), (st.none(), st.none())])
    )
    rows = [Row(*draw(st.tuples(*images))) for _ in range(draw(st.integers(0, 3)))]
    if absent := draw(st.sets(st.sampled_from(range(len(kinds) or 1)), max_size=2)):
        rows = [
            Row(*(image and tuple([ABSENT if i in absent else v for i, v in enumerate(image)]) for image in row)) for row in rows
        ]
    fields: dict[str, Any] = {}
    match draw(st.integers(0, 5)):
        case 0 if rows and kinds and rows[-1].after:
            values = list(rows[-1].after)
            values[draw(st.sampled_from(range(len(values))))] = draw(anything)
            rows[-1] = Row(rows[-1].before, tuple(values))
        case 1:
            name = draw(st.sampled_from(sorted(set(Event._fields) - {"rows"})))
            fields = {name: draw(anything)}
        case 2:
            fields = {"position": draw(st.tuples(*[st.text() | anything] * 5).map(Position._make))}
        case 3:
            fields = {
                "props": draw(
                    st.dictionaries(st.text(max_size=3) | anything.filter(_hashable), st.text() | anything, max_size=17)
                )
            }
        case 4:
            fields = {"table": None}
    return event(*rows, table=table)._replace(**fields)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def outcome_of(made: Event) -> tuple[str, Any]:
    try:
        return "bytes", encode(made)
    except Exception as error:  # and of which class
        return type(error).__name__, str(error)


@settings(max_examples=1000)
@given(made=some_event())
def test_compiled_code_and_the_reference_agree(made: Event) -> None:
    """On the bytes of an event that can be stored, and on why one cannot."""
    compiled = outcome_of(made)
    with mock.patch.object(codec, "COMPILED", False):
        assert outcome_of(made) == compiled
        if compiled[0] == "bytes":
            decode(compiled[1])
