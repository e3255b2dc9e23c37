"""An event of one's own is checked when it is put: whoever reads it could only say that it is damaged."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from shmstore import ABSENT, Column, EntryType, Event, EventStore, EventType, Position, Row, TableSchema
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
