"""consumer/formats/debezium.py: what Debezium's MySQL connector 3.6 was seen to write of the same binlog."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shmstore.consumer.formats.formatter import Formatter
from shmstore.event import Column, EntryType, Event, EventType, Position, Row, TableSchema

HERE = Position("binlog.000001", 900)
BEGIN = Event(EntryType.BEGIN, EventType.NONE, HERE, 5000, length=60, transaction="0-5-77", props={"thread_id": "7"})
END = BEGIN._replace(entry=EntryType.END, props={})
WKB = struct.pack("<BIdd", 1, 1, 2.0, 1.0)


def table(*columns: Column, name: str = "t") -> TableSchema:
    return TableSchema("inv", name, (Column("id", "int", nullable=False), *columns), (0,))


def change(of: TableSchema, *images: Row, type_: EventType = EventType.INSERT) -> Event:
    return BEGIN._replace(entry=EntryType.ROWS, type=type_, table=of, rows=images, props={})


def converted(events: list[Event], **options: Any) -> list[dict[str, Any]]:
    formatter = Formatter("debezium", **options)
    return [json.loads(line) for event in events for line in formatter.lines(event)]


@pytest.mark.parametrize(
    ("column", "value", "shown", "schema"),
    [
        (Column("c", "tinyint", unsigned=True), 255, 255, {"type": "int16"}),
        (Column("c", "smallint"), -3, -3, {"type": "int16"}),
        (Column("c", "smallint", unsigned=True), 65535, 65535, {"type": "int32"}),
        (Column("c", "mediumint", unsigned=True), 1, 1, {"type": "int32"}),
        (Column("c", "int", unsigned=True), 2**32 - 1, 2**32 - 1, {"type": "int64"}),
        (Column("c", "bigint", unsigned=True), 2**64 - 1, 2**64 - 1, {"type": "int64"}),
        (Column("c", "float"), 0.5, 0.5, {"type": "float"}),
        (Column("c", "double"), 2.5, 2.5, {"type": "double"}),
        (Column("c", "decimal", size=5), "12345", "12345", {"type": "string"}),
        (Column("c", "bit", size=1), 1, True, {"type": "boolean"}),
        (
            Column("c", "bit", size=10),
            513,
            "AQI=",
            {"type": "bytes", "name": "io.debezium.data.Bits", "version": 1, "parameters": {"length": "10"}},
        ),
        (Column("c", "varchar", size=20), "naïve", "naïve", {"type": "string"}),
        (Column("c", "binary", size=4), b"ab\0\0", "YWIAAA==", {"type": "bytes"}),
        (Column("c", "blob"), b"\0\xff", "AP8=", {"type": "bytes"}),
        (
            Column("c", "enum", members=("small", "big", "it's")),
            "it's",
            "it's",
            {"type": "string", "name": "io.debezium.data.Enum", "version": 1, "parameters": {"allowed": "small,big,it's"}},
        ),
        (
            Column("c", "set", members=("a", "b", "c")),
            "a,c",
            "a,c",
            {"type": "string", "name": "io.debezium.data.EnumSet", "version": 1, "parameters": {"allowed": "a,b,c"}},
        ),
        (Column("c", "json"), '{"a":1}', '{"a":1}', {"type": "string", "name": "io.debezium.data.Json", "version": 1}),
        (Column("c", "year"), 2024, 2024, {"type": "int32", "name": "io.debezium.time.Year", "version": 1}),
        (
            Column("c", "geometry"),
            b"\0\0\0\0" + WKB,
            {"wkb": "AQEAAAAAAAAAAAAAQAAAAAAAAPA/", "srid": None},
            {
                "type": "struct",
                "fields": [
                    {"type": "bytes", "optional": False, "field": "wkb"},
                    {"type": "int32", "optional": True, "field": "srid"},
                ],
                "name": "io.debezium.data.geometry.Geometry",
                "version": 1,
                "doc": "Geometry",
            },
        ),
        (
            Column("c", "point"),
            struct.pack("<I", 4326) + WKB,
            {"x": 2.0, "y": 1.0, "wkb": "AQEAAAAAAAAAAAAAQAAAAAAAAPA/", "srid": 4326},
            {
                "type": "struct",
                "fields": [
                    {"type": "double", "optional": False, "field": "x"},
                    {"type": "double", "optional": False, "field": "y"},
                    {"type": "bytes", "optional": True, "field": "wkb"},
                    {"type": "int32", "optional": True, "field": "srid"},
                ],
                "name": "io.debezium.data.geometry.Point",
                "version": 1,
                "doc": "Geometry (POINT)",
            },
        ),
        (
            Column("c", "vector", size=2),
            struct.pack("<2f", 1, 2.5),
            [1.0, 2.5],
            {
                "type": "array",
                "items": {"type": "float", "optional": False},
                "name": "io.debezium.data.FloatVector",
                "version": 1,
            },
        ),
    ],
)
def test_types(column: Column, value: Any, shown: Any, schema: dict[str, Any]) -> None:
    """Each type has the value and the schema that Debezium gives it; a column that may be NULL is optional."""
    (document,) = converted([change(table(column), Row(None, (1, value)))], schemas=True, name="srv")
    assert document["payload"]["after"] == {"id": 1, "c": shown}
    before, after = document["schema"]["fields"][:2]
    assert after["fields"] == before["fields"]
    assert after["fields"] == [
        {"type": "int32", "optional": False, "field": "id"},
        {"optional": True, "field": "c", **schema},
    ]
    assert (before["name"], before["optional"], before["field"]) == ("srv.inv.t.Value", True, "before")


def test_times() -> None:
    """Of times the schema says the unit that the column's precision brings; TIMESTAMP is text with the column's digits."""
    at = datetime(2024, 2, 29, 1, 2, 3, 456700)
    columns = [Column("d", "datetime"), Column("d3", "datetime", scale=3), Column("d6", "datetime", scale=6)]
    columns += [
        Column("z", "timestamp"),
        Column("z3", "timestamp", scale=3),
        Column("z6", "timestamp", scale=6),
        Column("t", "time"),
    ]
    columns.append(Column("day", "date"))
    zoned = at.replace(tzinfo=UTC)
    values = (1, at.replace(microsecond=0), at.replace(microsecond=456000), at)
    values += (zoned.replace(microsecond=0), zoned.replace(microsecond=100000), zoned, -timedelta(seconds=1), at.date())
    (document,) = converted([change(table(*columns), Row(None, values))], schemas=True)
    assert list(document["payload"]["after"].values())[1:] == [
        1709168523000,
        1709168523456,
        1709168523456700,
        "2024-02-29T01:02:03Z",
        "2024-02-29T01:02:03.100Z",
        "2024-02-29T01:02:03.456700Z",
        -1_000_000,
        19782,
    ]
    fields = document["schema"]["fields"][1]["fields"][1:]
    stamp, micro, zone = "io.debezium.time.Timestamp", "io.debezium.time.MicroTimestamp", "io.debezium.time.ZonedTimestamp"
    names = [stamp, stamp, micro, zone, zone, zone, "io.debezium.time.MicroTime", "io.debezium.time.Date"]
    assert [field["name"] for field in fields] == names
    assert [field["type"] for field in fields] == ["int64"] * 3 + ["string"] * 3 + ["int64", "int32"]


def test_the_envelope_and_its_schema_have_the_same_fields() -> None:
    """What a payload holds is what its schema lists, in its order, inside source and transaction too; so of every kind of document."""
    ddl = BEGIN._replace(entry=EntryType.DDL, type=EventType.ALTER, database="inv", sql="ALTER TABLE t ADD x INT", props={})
    truncate = ddl._replace(type=EventType.TRUNCATE, sql="TRUNCATE t")
    events = [BEGIN, change(table(), Row(None, (1,))), END, ddl, truncate]
    documents = converted(events, schemas=True, transactions=True)
    assert len(documents) == 5

    def same(schema: dict[str, Any], value: Any) -> None:
        if schema["type"] == "struct" and value is not None:
            assert [field["field"] for field in schema["fields"]] == list(value)
            for field in schema["fields"]:
                same(field, value[field["field"]])
        elif schema["type"] == "array":
            for item in value or ():
                same(schema["items"], item)
        else:
            assert value is not None or schema["optional"] or schema["type"] == "struct"

    for document in documents:
        same(document["schema"], document["payload"])
    names = [document["schema"]["name"] for document in documents]
    assert names[1] == names[4] == "shmstore.inv.t.Envelope"
    assert documents[1]["schema"]["version"] == 2
    assert names[3] == "io.debezium.connector.mysql.SchemaChangeValue"


def test_transaction_metadata() -> None:
    """BEGIN comes before the first row, END counts by table; a row has its number in both; nothing of transactions without rows."""
    moved = change(table(), Row((1,), (2,)), type_=EventType.UPDATE)
    events = [BEGIN, END, BEGIN, change(table(), Row(None, (1,))), moved, change(table(name="u"), Row(None, (1,))), END]
    begin, first, second, third, fourth, end = converted(events, transactions=True)
    assert begin == {"status": "BEGIN", "id": "0-5-77", "event_count": None, "data_collections": None, "ts_ms": 5000}
    orders = [document["transaction"] for document in (first, second, third, fourth)]
    assert [(one["id"], one["total_order"], one["data_collection_order"]) for one in orders] == [
        ("0-5-77", 1, 1),
        ("0-5-77", 2, 2),
        ("0-5-77", 3, 3),
        ("0-5-77", 4, 1),
    ]
    assert [document["op"] for document in (first, second, third, fourth)] == ["c", "d", "c", "c"]
    counts = [{"data_collection": "inv.t", "event_count": 3}, {"data_collection": "inv.u", "event_count": 1}]
    assert end == {"status": "END", "id": "0-5-77", "event_count": 4, "data_collections": counts, "ts_ms": 5000}


def test_a_transaction_whose_end_was_missed() -> None:
    """Where the ring moved on over the end of a transaction, the next one is counted from its own beginning."""
    row = change(table(), Row(None, (1,)))
    lines = converted([BEGIN, row, BEGIN, row], transactions=True)
    assert [line["transaction"]["total_order"] for line in lines if "op" in line] == [1, 1]


def test_transaction_metadata_of_chosen_tables() -> None:
    """What is not wanted is not counted, and still ends the transaction; without GTIDs a place names it."""
    formatter = Formatter("debezium", transactions=True)
    begin = BEGIN._replace(transaction="binlog.000001:840")
    events = [
        (begin, False),
        (change(table(), Row(None, (1,))), False),
        (change(table(name="u"), Row(None, (1,))), True),
        (END, False),
    ]
    lines = [json.loads(line) for event, wanted in events for line in formatter.lines(event, wanted=wanted)]
    assert [line.get("status", line.get("op")) for line in lines] == ["BEGIN", "c", "END"]
    assert {line.get("id") or line["transaction"]["id"] for line in lines} == {"file=binlog.000001,pos=840"}
    assert lines[2]["event_count"] == 1


def test_dropped_tables() -> None:
    """Of dropped tables each is a document that says so; a dropped database, and other statements, are one without changes."""
    drop = BEGIN._replace(
        entry=EntryType.DDL, type=EventType.ERASE, database="inv", sql="DROP TABLE `l`,`u` /* generated by server */"
    )
    drop = drop._replace(props={"table": "l", "tables": "inv.l,inv.u"})
    shown = [(line["ddl"], line["tableChanges"]) for line in converted([drop])]
    assert shown == [
        ("DROP TABLE `inv`.`l`", [{"type": "DROP", "id": '"inv"."l"', "table": None}]),
        ("DROP TABLE `inv`.`u`", [{"type": "DROP", "id": '"inv"."u"', "table": None}]),
    ]
    (one,) = converted([drop._replace(sql="drop table l", props={"table": "l"})])
    assert (one["ddl"], one["tableChanges"][0]["id"]) == ("drop table l", '"inv"."l"')
    for sql in ("DROP DATABASE inv", "ALTER TABLE l ADD x INT"):
        (line,) = converted([drop._replace(sql=sql, props={})])
        assert (line["ddl"], line["tableChanges"]) == (sql, [])


def test_the_thread_of_a_transaction() -> None:
    """A row has the thread that began its transaction, as long as that continues."""
    row = change(table(), Row(None, (1,)))
    assert [line["source"]["thread"] for line in converted([row, BEGIN, row, END, row])] == [None, 7, None]


def test_options_of_other_formats() -> None:
    """Schemas and transactions are refused where the format has none."""
    with pytest.raises(ValueError, match="debezium's"):
        Formatter("maxwell", schemas=True)
