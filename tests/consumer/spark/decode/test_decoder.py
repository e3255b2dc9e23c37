"""Encoded events -> RecordBatches: every MySQL type, both payloads, what is refused."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from shmstore import ABSENT, Column, EntryType, Event, EventStore, EventType, Row, TableSchema
from shmstore.consumer.remote.events import RemoteEvents
from shmstore.consumer.spark.decode import conversion
from shmstore.consumer.spark.decode.decoder import Decoder, SchemaChanged
from shmstore.consumer.spark.decode.schema import typed_schema
from shmstore.consumer.spark.decode.table_scan import TableScan
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.partition import rows_of
from shmstore.encoding import arrow
from shmstore.encoding.arrow import PartialImage, ZeroDate
from shmstore.encoding.codec import encode
from tests.consumer.spark.events import ORDERS, Binlog, order_row

# column, a value, Spark's type, the value that Arrow returns, the value in JSON
MATRIX: list[tuple[Column, Any, str, Any, Any]] = [
    (Column("c", "tinyint"), -128, "tinyint", -128, -128),
    (Column("c", "tinyint", unsigned=True), 255, "smallint", 255, 255),
    (Column("c", "smallint"), -32768, "smallint", -32768, -32768),
    (Column("c", "smallint", unsigned=True), 65535, "int", 65535, 65535),
    (Column("c", "mediumint", unsigned=True), 2**24 - 1, "int", 2**24 - 1, 2**24 - 1),
    (Column("c", "int"), -(2**31), "int", -(2**31), -(2**31)),
    (Column("c", "int", unsigned=True), 2**32 - 1, "bigint", 2**32 - 1, 2**32 - 1),
    (Column("c", "bigint"), -(2**63), "bigint", -(2**63), -(2**63)),
    (Column("c", "bigint", unsigned=True), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1), 2**64 - 1),
    (Column("c", "year"), 2155, "int", 2155, 2155),
    (Column("c", "bit", size=1), 1, "bigint", 1, 1),
    (Column("c", "bit", size=64), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1), 2**64 - 1),
    (Column("c", "decimal", size=10, scale=2), Decimal("-99999999.99"), "decimal(10,2)", Decimal("-99999999.99"), "-99999999.99"),
    (
        Column("c", "decimal", size=38, scale=10),
        Decimal("1." + "0" * 9 + "1"),
        "decimal(38,10)",
        Decimal("1." + "0" * 9 + "1"),
        "1.0000000001",
    ),
    (Column("c", "decimal", size=65, scale=0), Decimal("9" * 65), "string", "9" * 65, "9" * 65),
    (Column("c", "float"), 0.1, "float", pytest.approx(0.1, rel=1e-7), 0.1),
    (Column("c", "double"), 1.7976931348623157e308, "double", 1.7976931348623157e308, 1.7976931348623157e308),
    (Column("c", "date"), date(9999, 12, 31), "date", date(9999, 12, 31), "9999-12-31"),
    (Column("c", "date"), date(1000, 1, 1), "date", date(1000, 1, 1), "1000-01-01"),
    (
        Column("c", "datetime", scale=6),
        datetime(1000, 1, 1, 0, 0, 0, 1),
        "timestamp_ntz",
        datetime(1000, 1, 1, 0, 0, 0, 1),
        "1000-01-01 00:00:00.000001",
    ),
    (
        Column("c", "datetime"),
        datetime(9999, 12, 31, 23, 59, 59),
        "timestamp_ntz",
        datetime(9999, 12, 31, 23, 59, 59),
        "9999-12-31 23:59:59",
    ),
    (
        Column("c", "timestamp", scale=3),
        datetime(2038, 1, 19, 3, 14, 7, 999000, UTC),
        "timestamp",
        datetime(2038, 1, 19, 3, 14, 7, 999000, UTC),
        "2038-01-19T03:14:07.999Z",
    ),
    (
        Column("c", "time", scale=1),
        -timedelta(hours=838, minutes=59, seconds=58, milliseconds=500),
        "interval day to second",
        -timedelta(hours=838, minutes=59, seconds=58, milliseconds=500),
        "-838:59:58.5",
    ),
    (Column("c", "char"), "ä😀", "string", "ä😀", "ä😀"),
    (Column("c", "enum", members=("a", "b")), "b", "string", "b", "b"),
    (Column("c", "set", members=("a", "b")), "a,b", "string", "a,b", "a,b"),
    (Column("c", "json"), '{"a": [1, null]}', "string", '{"a": [1, null]}', '{"a": [1, null]}'),
    (
        Column("c", "uuid"),
        "123e4567-e89b-12d3-a456-426655440000",
        "string",
        "123e4567-e89b-12d3-a456-426655440000",
        "123e4567-e89b-12d3-a456-426655440000",
    ),
    (Column("c", "binary", size=3), b"\x00\xff\x00", "binary", b"\x00\xff\x00", "AP8A"),
    (Column("c", "longblob"), b"", "binary", b"", ""),
    (Column("c", "geometry"), b"\x01", "binary", b"\x01", "AQ=="),
    (Column("c", "varchar"), "", "string", "", ""),
]


@pytest.fixture(autouse=True, params=["compiled", "pure"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to read rows."""
    if request.param == "pure":
        monkeypatch.setattr(arrow, "COMPILED", False)
    elif not arrow.COMPILED:
        pytest.skip("no compiled columns here")


def decode(events: list[Event], table: TableSchema | None = None, **options: str) -> list[pa.RecordBatch]:
    parsed = SourceOptions.parse({"store": "s", **({"tables": f"{table.database}.{table.table}"} if table else {}), **options})
    decoder = pickle.loads(pickle.dumps(Decoder(parsed, table)))  # as it goes to the executors
    payloads = [encode(event) for event in events]
    batches = list(decoder.batches(b"".join(payloads), np.cumsum([len(payload) for payload in payloads])))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == decoder.schema
    return batches


def rows(events: list[Event], table: TableSchema | None = None, **options: str) -> list[dict[str, Any]]:
    return [row for batch in decode(events, table, **options) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("column", "value", "spark", "arrow", "text"), MATRIX, ids=lambda value: value.type if isinstance(value, Column) else ""
)
def test_every_type(column: Column, value: Any, spark: str, arrow: Any, text: Any, binlog: Binlog) -> None:
    """Each MySQL type has the Spark type that holds all its values exactly, and its edges and NULL arrive as they are."""
    table = TableSchema("d", "t", (Column("id", "int"), column), (0,))
    events = binlog.insert((1, value), (2, None), table=table)
    after = typed_schema(table)["after"].dataType
    assert isinstance(after, StructType)
    assert after["c"].dataType.simpleString() == spark
    assert [row["after"]["c"] for row in rows(events, table)] == [arrow, None]
    assert [json.loads(row["after"])["c"] for row in rows(events)] == [text, None]


def test_images_and_keys(binlog: Binlog) -> None:
    """Insert, update and delete have the images that the binlog has; pk is the key after the change, or before a delete."""
    events = [*binlog.insert(order_row(1)), *binlog.update((order_row(1), order_row(2))), *binlog.delete(order_row(2))]
    for table in (None, ORDERS):
        found = rows(events, table)
        assert [row["op"] for row in found] == ["c", "u", "d"]
        assert [row["before"] is None for row in found] == [True, False, False]
        assert [row["after"] is None for row in found] == [False, False, True]
        keys = [row["pk"] if table else json.loads(row["pk"]) for row in found]
        assert keys == [{"id": 1}, {"id": 2}, {"id": 2}]
        assert [row["transaction"] for row in found] == ["0-1-1", "0-1-2", "0-1-3"]


def test_seq_sorts_as_the_binlog(binlog: Binlog) -> None:
    """seq is unique, sorts as text in binlog order across files and rows, and is the same when decoded again."""
    events = [event for n in range(30) for event in binlog.insert(*[order_row(n * 20 + i) for i in range(20)])]
    later = [event._replace(position=event.position._replace(file="binlog.000002")) for event in Binlog().insert(order_row(0))]
    found = [row["seq"] for row in rows([*events, *later])]
    assert len(set(found)) == 601
    assert found == sorted(found)
    assert found == [row["seq"] for row in rows([*events, *later], ORDERS)]


def test_tables_are_filtered(binlog: Binlog) -> None:
    """Patterns choose tables; a name is not a prefix."""
    other = TableSchema("shop", "orders2", (Column("id", "int"),), (0,))
    events = [*binlog.insert(order_row(1)), *binlog.insert((5,), table=other)]
    assert [row["table"] for row in rows(events, tables="shop.orders", payload="json")] == ["orders"]
    assert [row["table"] for row in rows(events, tables="shop.ord*")] == ["orders", "orders2"]
    assert rows(events, tables="sho.*") == []


def test_partial_images(binlog: Binlog) -> None:
    """Columns that the image lacks are left out of JSON and refused in typed rows; neither becomes NULL in silence."""
    minimal = Row((1, *[ABSENT] * 5), (*[ABSENT] * 5, "paid"))
    events = binlog.transaction((EventType.UPDATE, (minimal,)))
    (row,) = rows(events)
    assert (json.loads(row["before"]), json.loads(row["after"]), json.loads(row["pk"])) == (
        {"id": 1},
        {"status": "paid"},
        {"id": 1},
    )
    with pytest.raises(PartialImage, match="binlog_row_image=FULL"):
        rows(events, ORDERS)


def test_columns_of_a_snapshot_that_was_asked_for_some(binlog: Binlog) -> None:
    """JSON has those columns; typed rows, which could not say which they have, are only those of other events."""
    some = (1, *[ABSENT] * 4, "paid")
    events = [*binlog.insert(order_row(2)), *binlog.read("", some, partial="columns"), *binlog.read("", order_row(3))]
    assert [json.loads(row["after"]).keys() for row in rows(events)][1] == {"id", "status"}
    assert [(row["op"], row["after"]["id"]) for row in rows(events, ORDERS)] == [("c", 2), ("r", 3)]


def test_the_first_and_the_last_event_of_a_snapshot_may_have_no_rows(binlog: Binlog) -> None:
    """They yield none, in each form of the payload."""
    events = [*binlog.read("first"), *binlog.insert(order_row(1)), *binlog.read("last"), *binlog.read("whole")]
    for table, options in ((None, {}), (ORDERS, {}), (None, {"payload": "variant"})):
        assert [row["op"] for row in rows(events, table, **options)] == ["c"]


def test_zero_dates(binlog: Binlog) -> None:
    """A zero date is text in JSON, an error that names the option in typed rows, and NULL when that is asked for."""
    table = TableSchema("d", "t", (Column("id", "int"), Column("day", "date"), Column("at", "datetime")), (0,))
    events = binlog.insert((1, "0000-00-00", "2026-02-31 00:00:00"), table=table)
    assert json.loads(rows(events)[0]["after"]) == {"id": 1, "day": "0000-00-00", "at": "2026-02-31 00:00:00"}
    with pytest.raises(ZeroDate, match="zeroDates=null"):
        rows(events, table)
    assert rows(events, table, zeroDates="null")[0]["after"] == {"id": 1, "day": None, "at": None}


def test_a_changed_table_stops_a_typed_query_or_is_followed(binlog: Binlog) -> None:
    """Other columns than planned are an error that names them and the fix; with schemaChanges=follow rules apply."""
    wider = ORDERS._replace(columns=(*ORDERS.columns, Column("note", "varchar")))
    old, new = binlog.insert(order_row(1)), binlog.insert((*order_row(2), "n"), table=wider)
    with pytest.raises(SchemaChanged, match=r"note is new.*schemaChanges=follow"):
        rows([*old, *new], ORDERS)
    assert [sorted(row["after"]) for row in rows([*old, *new], ORDERS, schemaChanges="follow")] == [sorted(ORDERS.names)] * 2
    assert [row["after"]["note"] for row in rows([*old, *new], wider, schemaChanges="follow")] == [None, "n"]


def test_a_statement_is_never_lost(binlog: Binlog) -> None:
    """DML that the binlog holds as a statement has no rows: it comes as a row of its own, whatever the options."""
    (event,) = binlog.ddl("UPDATE orders SET status = 'x'")
    statement = event._replace(entry=EntryType.ROWS, type=EventType.QUERY)
    for table in (None, ORDERS):
        assert [(row["op"], row["ddl"]) for row in rows([statement], table)] == [("statement", "UPDATE orders SET status = 'x'")]


def test_a_column_that_is_spelled_in_another_way_is_the_same(binlog: Binlog) -> None:
    """MODIFY COLA BIGINT of a column colA: the older rows have their values, and the query continues without a word."""
    old = TableSchema("shop", "orders", (Column("id", "int"), Column("colA", "int"), Column("Ölig", "int")), (0,))
    new = TableSchema("shop", "orders", (Column("ID", "int"), Column("COLA", "int"), Column("öLIG", "int")), (0,))
    events = [*binlog.insert((1, 5, 6), table=old), *binlog.insert((2, 7, 8), table=new)]
    wanted = [{"ID": 1, "COLA": 5, "öLIG": 6}, {"ID": 2, "COLA": 7, "öLIG": 8}]
    assert [row["after"] for row in rows(events, new)] == wanted
    wider = new._replace(columns=(new.columns[0], Column("COLA", "bigint"), new.columns[2]))
    assert [row["after"] for row in rows(events, wider, schemaChanges="follow")] == wanted


def test_a_followed_column_has_each_value_that_the_plan_can_hold(
    binlog: Binlog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With schemaChanges=follow an INT lands in the BIGINT that was planned, and a BIGINT in an INT where it fits; else it is NULL, with one line."""
    monkeypatch.setattr(conversion, "_said", set())
    small, large = (TableSchema("d", "t", (Column("id", "int"), Column("n", type_)), (0,)) for type_ in ("int", "bigint"))
    assert rows(binlog.insert((1, 5), table=small), large, schemaChanges="follow")[0]["after"]["n"] == 5
    events = binlog.insert((1, 5), (2, 2**31), (3, None), (4, -(2**31)), (5, 2**40), table=large)
    found = [row["after"] and row["after"]["n"] for row in rows(events, small, schemaChanges="follow")]
    assert found == [5, None, None, -(2**31), None]
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("d.t: column n is now bigint, and the query was planned with int32, which cannot hold 2147483648")


CONVERTED: list[tuple[Column, Any, Column, Any]] = [
    (Column("n", "varchar"), "12", Column("n", "int"), 12),
    (Column("n", "varchar"), "1.5", Column("n", "int"), None),
    (Column("n", "varchar"), "abc", Column("n", "decimal", size=9, scale=2), None),
    (Column("n", "decimal", size=20, scale=4), Decimal("1.5000"), Column("n", "decimal", size=9, scale=2), Decimal("1.50")),
    (Column("n", "decimal", size=20, scale=4), Decimal("1.2345"), Column("n", "decimal", size=9, scale=2), None),
    (Column("n", "decimal", size=9, scale=2), Decimal("3.00"), Column("n", "int"), 3),
    (Column("n", "int"), 123456, Column("n", "decimal", size=5, scale=2), None),
    (Column("n", "double"), 0.1, Column("n", "float"), pytest.approx(0.1, rel=1e-7)),
    (Column("n", "double"), 1e300, Column("n", "float"), None),
    (Column("n", "double"), 0.1, Column("n", "decimal", size=5, scale=2), Decimal("0.10")),
    (Column("n", "bigint", unsigned=True), 2**64 - 1, Column("n", "bigint"), None),
    (Column("n", "bigint", unsigned=True), 7, Column("n", "tinyint"), 7),
    (Column("n", "int"), -7, Column("n", "varchar"), "-7"),
    (Column("n", "decimal", size=12, scale=10), Decimal("0.0000000001"), Column("n", "varchar"), "0.0000000001"),
    (Column("n", "datetime", scale=3), datetime(2026, 1, 2, 3, 4, 5, 678000), Column("n", "varchar"), "2026-01-02 03:04:05.678"),
    (Column("n", "varbinary"), b"\xff", Column("n", "varchar"), None),
    (Column("n", "varbinary"), "ä".encode(), Column("n", "varchar"), "ä"),
    (Column("n", "varchar"), "ä", Column("n", "varbinary"), "ä".encode()),
    (Column("n", "datetime"), datetime(2026, 1, 2), Column("n", "date"), date(2026, 1, 2)),
    (Column("n", "datetime"), datetime(2026, 1, 2, 3), Column("n", "date"), None),
    (Column("n", "date"), date(2026, 1, 2), Column("n", "datetime"), datetime(2026, 1, 2)),
    (Column("n", "timestamp"), datetime(2026, 1, 2, tzinfo=UTC), Column("n", "datetime"), None),
    (Column("n", "varchar"), "2026-01-02 03:04:05", Column("n", "datetime"), datetime(2026, 1, 2, 3, 4, 5)),
    (Column("n", "varchar"), "-10:11:12.5", Column("n", "time"), -timedelta(hours=10, minutes=11, seconds=12.5)),
]


@pytest.mark.parametrize(("was", "value", "planned", "wanted"), CONVERTED, ids=str)
def test_a_value_of_another_type(was: Column, value: Any, planned: Column, wanted: Any, binlog: Binlog) -> None:
    """A followed column's value is the same in the planned type, or NULL; before and after, and where a row has no image."""
    now, plan = (TableSchema("d", "t", (Column("id", "int"), column), (0,)) for column in (was, planned))
    events = [*binlog.insert((1, value), table=now), *binlog.update(((1, value), (1, None)), table=now)]
    found = rows([*events, *binlog.delete((1, value), table=now)], plan, schemaChanges="follow")
    assert [row["after"] and row["after"]["n"] for row in found] == [wanted, None, None]
    assert [row["before"] and row["before"]["n"] for row in found] == [None, wanted, wanted]
    assert found[2]["after"] is None
    assert [row["pk"] for row in found] == [{"id": 1}] * 3


def test_a_value_that_its_type_cannot_hold_is_named(binlog: Binlog) -> None:
    """A value beyond its column's type raises with the column's name; it is never cut."""
    table = TableSchema("d", "t", (Column("id", "tinyint"),))
    with pytest.raises(ValueError, match="column id"):
        rows(binlog.insert((1000,), table=table), table)


def test_many_rows_are_cut_into_batches(binlog: Binlog) -> None:
    """RecordBatches stay bounded, and no row is lost at a cut."""
    events = [event for n in range(60) for event in binlog.insert(*[order_row(n * 1000 + i) for i in range(1000)])]
    batches = decode(events, ORDERS)
    assert len(batches) > 1
    assert [key["id"] for batch in batches for key in batch.column("pk").to_pylist()] == list(range(60_000))


OTHER = ORDERS._replace(table="other")


def test_a_copy_gets_events_without_rows(store: EventStore, binlog: Binlog) -> None:
    """The end of a snapshot without rows, and a change of the producer's filters: they reach the query, and count, so that no micro-batch passes over them."""
    store.put(
        [*binlog.read("last", table=ORDERS), *binlog.filters(tables_out="shop.orders"), *binlog.insert(order_row(1), table=OTHER)]
    )
    options = SourceOptions.parse({"store": store.name, "tables": "shop.orders", "payload": "raw", "includeDdl": "true"})
    (batch,) = store.read(store.oldest, store.newest)
    decoder = Decoder(options)
    assert TableScan(decoder).look_at(batch.raw, batch.ends, batch.first).rows.tolist() == [0, 1, 0, 1, 0, 0, 0]
    (found,) = rows_of(RemoteEvents.of(batch), decoder, None)
    assert found.column("sequence").to_pylist() == [1, 3]
