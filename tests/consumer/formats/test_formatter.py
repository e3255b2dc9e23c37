"""Events as lines of JSON: one event in, documents out, in the documented shapes."""

import base64
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from shmstore.column_type import column_type
from shmstore.consumer.formats.canal_values import Sql, Values, java_number, rendering, renderings
from shmstore.consumer.formats.ddl_target import ddl_target
from shmstore.consumer.formats.formatter import FORMATS, Formatter, format_event
from shmstore.encoding.codec import decode_stored, encode
from shmstore.event import ABSENT, Column, EntryType, Event, EventType, Position, Row, TableSchema

TABLE = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", unsigned=True, nullable=False),
        Column("name", "varchar", size=80, charset="utf8mb4"),
        Column("price", "decimal", size=30, scale=10),
        Column("ratio", "double"),
        Column("day", "date"),
        Column("at", "datetime", scale=3),
        Column("exact_at", "datetime", scale=6),
        Column("stamp", "timestamp", nullable=False),
        Column("took", "time", scale=2),
        Column("kind", "enum", members=("small", "big"), charset="utf8mb4"),
        Column("tags", "set", members=("a", "b", "c"), charset="utf8mb4"),
        Column("bits", "bit", size=10),
        Column("flag", "bit", size=1),
        Column("blob", "blob"),
        Column("doc", "json"),
        Column("year", "year"),
    ),
    (0,),
)
ONE = (
    2**64 - 1,
    'na"ïve\n',
    Decimal("12345678901234567890.0123456789"),
    1.5,
    date(2024, 2, 29),
    datetime(2024, 2, 29, 1, 2, 3, 456000),
    datetime(2024, 2, 29, 1, 2, 3, 456789),
    datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
    -timedelta(hours=100, milliseconds=250),
    "big",
    "a,c",
    513,
    1,
    b"\x00\xff",
    '{"a": [1, 2.50]}',
    2024,
)
NULLS = (7,) + (None,) * 6 + ("0000-00-00 00:00:00",) + (None,) * 8
HERE = Position("binlog.000012", 900)


def rows(type_: EventType, *images: Row, table: TableSchema = TABLE, **more: object) -> Event:
    return Event(
        EntryType.ROWS,
        type_,
        HERE,
        1700000000123,
        server_id=5,
        length=100,
        transaction="0-5-77",
        table=table,
        rows=images,
        **more,  # type: ignore[arg-type]
    )


def ddl(type_: EventType, sql: str) -> Event:
    return Event(EntryType.DDL, type_, HERE, 1700000000000, length=50, transaction="binlog.000012:850", database="shop", sql=sql)


def documents(event: Event, format_: str, **more: object) -> list[dict]:
    return [json.loads(line) for line in format_event(event, format_, **more)]  # type: ignore[arg-type]


def lines_of(events: list[Event], format_: str, **more: object) -> list[dict]:
    formatter = Formatter(format_, **more)  # type: ignore[arg-type]
    return [json.loads(line) for event in events for line in formatter.lines(event)]


BEGIN = Event(EntryType.BEGIN, EventType.NONE, HERE, 1700000000000, length=60, transaction="0-5-77", props={"thread_id": "7"})
END = BEGIN._replace(entry=EntryType.END, props={})


def changed(values: tuple, **columns: object) -> tuple:
    return tuple(columns.get(column.name, value) for column, value in zip(TABLE.columns, values, strict=True))


@pytest.mark.parametrize("format_", FORMATS)
def test_one_line(format_: str) -> None:
    """Every document is one line of JSON, whatever the values hold."""
    lines = list(format_event(rows(EventType.INSERT, Row(None, ONE), Row(None, NULLS)), format_))
    assert len(lines) == (1 if format_ == "canal" else 2)
    for line in lines:
        assert "\n" not in line
        json.loads(line)


@pytest.mark.parametrize("format_", FORMATS)
def test_absent_left_out(format_: str) -> None:
    """A column that is not in the row image appears nowhere; it is not a null."""
    values = changed(ONE, price=ABSENT)
    assert all('"price"' not in line for line in format_event(rows(EventType.INSERT, Row(None, values)), format_))


def test_unknown_format() -> None:
    """An unknown format is refused and the known ones are named."""
    with pytest.raises(ValueError, match="canal, debezium, maxwell"):
        list(format_event(rows(EventType.INSERT), "avro"))


@pytest.mark.parametrize("format_", ["canal", "debezium", "maxwell"])
def test_no_place_for_transactions(format_: str) -> None:
    """BEGIN, END and heartbeats give nothing where the shape has no document for them; json says them."""
    for entry in (EntryType.BEGIN, EntryType.END, EntryType.HEARTBEAT):
        event = Event(entry, EventType.NONE, HERE, 1700000000000, props={"xid": "9"})
        assert documents(event, format_) == []
        assert documents(event, "json")[0]["op"] == entry.name.lower()


def test_json() -> None:
    """Our own shape: typed values, both images, the key, the place in the binlog and the sequence."""
    before = changed(ONE, name="old")
    (document,) = documents(rows(EventType.UPDATE, Row(before, ONE)), "json", sequence=42)
    assert document["op"] == "update"
    assert document["ts_ms"] == 1700000000123
    assert (document["database"], document["table"]) == ("shop", "orders")
    assert document["before"] | {"name": ONE[1]} == document["after"]
    assert document["after"] == {
        "id": 2**64 - 1,
        "name": 'na"ïve\n',
        "price": "12345678901234567890.0123456789",
        "ratio": 1.5,
        "day": "2024-02-29",
        "at": "2024-02-29 01:02:03.456",
        "exact_at": "2024-02-29 01:02:03.456789",
        "stamp": "2024-02-29T01:02:03Z",
        "took": "-100:00:00.25",
        "kind": "big",
        "tags": "a,c",
        "bits": 513,
        "flag": 1,
        "blob": "AP8=",
        "doc": '{"a": [1, 2.50]}',
        "year": 2024,
    }
    assert document["pk"] == {"id": 2**64 - 1}
    assert document["position"] == {"file": "binlog.000012", "offset": 900}
    assert (document["transaction"], document["server_id"], document["seq"], document["row"]) == ("0-5-77", 5, 42, 0)
    (read,) = documents(rows(EventType.READ, Row(None, NULLS)), "json")
    assert (read["op"], read["before"], read["after"]["stamp"]) == ("read", None, "0000-00-00 00:00:00")
    (alter,) = documents(ddl(EventType.ALTER, "ALTER TABLE `or``ders` ADD x int"), "json")
    assert (alter["op"], alter["table"], alter["type"]) == ("ddl", "or`ders", "alter")


def test_canal_fields() -> None:
    """The flat message has the fields of Canal's FlatMessage, no more and no fewer, with values as text."""
    before = changed(ONE, name="old", blob=None)
    (message,) = documents(rows(EventType.UPDATE, Row(before, ONE), Row(NULLS, changed(NULLS, year=1999))), "canal", sequence=9)
    assert sorted(message) == sorted(
        ["data", "database", "es", "gtid", "id", "isDdl", "mysqlType", "old", "pkNames", "sql", "sqlType", "table", "ts", "type"]
    )
    assert (message["database"], message["table"], message["type"], message["isDdl"]) == ("shop", "orders", "UPDATE", False)
    assert (message["es"], message["id"], message["sql"], message["gtid"]) == (1700000000000, 9, "", "")
    assert message["pkNames"] == ["id"]
    first = message["data"][0]
    assert all(value is None or isinstance(value, str) for row in message["data"] for value in row.values())
    assert (first["id"], first["kind"], first["tags"], first["bits"]) == (str(2**64 - 1), "2", "5", "513")
    assert (first["price"], first["took"], first["blob"]) == ("12345678901234567890.0123456789", "-100:00:00.25", "\x00\xff")
    assert message["old"] == [{"name": "old", "blob": None}, {"year": None}]
    assert message["sqlType"]["id"] == Sql.BIGINT  # the last row's
    assert message["sqlType"]["name"] == Sql.VARCHAR
    assert message["mysqlType"]["name"] == "varchar(20)"
    assert message["mysqlType"]["tags"] == "set('a','b','c')"


def test_canal_of_images_that_lack_columns() -> None:
    """With MINIMAL and its like a message has what the images have: key and types of what is in `data`, `old` of what is in both."""
    none = (ABSENT,) * len(ONE)
    index = {column.name: i for i, column in enumerate(TABLE.columns)}
    key = tuple(value if i == index["id"] else ABSENT for i, value in enumerate(ONE))
    name = tuple(value if i == index["name"] else ABSENT for i, value in enumerate(ONE))
    (minimal,) = documents(rows(EventType.UPDATE, Row(key, name)), "canal")
    assert (minimal["data"], minimal["old"], minimal["pkNames"]) == ([{"name": ONE[index["name"]]}], [{}], None)
    assert list(minimal["sqlType"]) == list(minimal["mysqlType"]) == ["name"]
    (whole,) = documents(rows(EventType.UPDATE, Row(changed(ONE, name="old"), name)), "canal")
    assert whole["old"] == [{"name": "old"}]
    (empty,) = documents(rows(EventType.UPDATE, Row(key, none)), "canal")
    assert (empty["data"], empty["old"], empty["sqlType"], empty["mysqlType"]) == (None, [{}], None, None)


@pytest.mark.parametrize("kind", [EventType.XACOMMIT, EventType.XAROLLBACK])
def test_canal_ends_prepared_transactions(kind: EventType) -> None:
    """What became of a prepared transaction is a document, or rows that were rolled back would stay."""
    event = ddl(kind, f"{kind.name[:2]} {kind.name[2:]} 'x'")._replace(props={"xa": "commit", "xa_xid": "x"})
    (document,) = documents(event, "canal")
    assert (document["type"], document["sql"], document["isDdl"], document["table"]) == (kind.name, event.sql, False, "")


def test_canal_has_gtids_where_asked() -> None:
    """The executed set, as with Canal's gtidon."""
    event = rows(EventType.INSERT, Row(None, ONE))
    (line,) = Formatter("canal", gtids=True).lines(event._replace(position=event.position._replace(gtids="0-5-77")))
    assert json.loads(line)["gtid"] == "0-5-77"
    with pytest.raises(ValueError, match="GTIDs"):
        Formatter("json", gtids=True)


def test_canal_kinds() -> None:
    """A delete's data is the deleted row, an insert has no old, a snapshot row is an INSERT, DDL has the statement only."""
    (delete,) = documents(rows(EventType.DELETE, Row(ONE, None)), "canal")
    assert (delete["type"], delete["data"][0]["name"], delete["old"]) == ("DELETE", ONE[1], None)
    (read,) = documents(rows(EventType.READ, Row(None, ONE)), "canal")
    assert (read["type"], read["old"]) == ("INSERT", None)
    (create,) = documents(ddl(EventType.CREATE, "create table x.y (id int)"), "canal")
    assert (create["isDdl"], create["database"], create["table"], create["data"]) == (True, "x", "y", None)
    assert create["gtid"] == ""


def test_debezium_envelope() -> None:
    """An update has the documented envelope: before, after, source with its fields, op, ts_ms, transaction."""
    before = changed(ONE, name="old")
    event = rows(EventType.UPDATE, Row(before, ONE), props={"rows_query": "update orders"})
    (document,) = lines_of([BEGIN, event], "debezium", name="srv")
    assert sorted(document) == ["after", "before", "op", "source", "transaction", "ts_ms", "ts_ns", "ts_us"]
    assert document["ts_ms"] == document["ts_us"] // 1000 == document["ts_ns"] // 1_000_000
    assert document["op"] == "u"
    assert document["source"] == {
        "version": "shmstore",
        "connector": "mysql",
        "name": "srv",
        "ts_ms": 1700000000123,
        "snapshot": "false",
        "db": "shop",
        "sequence": None,
        "ts_us": 1700000000123_000,
        "ts_ns": 1700000000123_000_000,
        "table": "orders",
        "server_id": 5,
        "gtid": "0-5-77",
        "file": "binlog.000012",
        "pos": 800,
        "row": 0,
        "thread": 7,
        "query": "update orders",
    }
    after = document["after"]
    assert (after["day"], after["at"], after["exact_at"]) == (19782, 1709168523456, 1709168523456789)
    assert (after["stamp"], after["took"], after["flag"]) == ("2024-02-29T01:02:03Z", -360000250000, True)
    assert (base64.b64decode(after["bits"]), base64.b64decode(after["blob"])) == (b"\x01\x02", b"\x00\xff")
    assert (after["price"], after["tags"], after["kind"]) == ("12345678901234567890.0123456789", "a,c", "big")


def test_debezium_ops() -> None:
    """c, r, d and t as documented; a changed key is a delete and a create; zero dates are null, or 1970 where NOT NULL."""
    assert [d["op"] for d in documents(rows(EventType.INSERT, Row(None, ONE)), "debezium")] == ["c"]
    (read,) = documents(rows(EventType.READ, Row(None, NULLS)), "debezium")
    assert (read["op"], read["source"]["snapshot"], read["after"]["stamp"]) == ("r", "true", "1970-01-01T00:00:00Z")
    (delete,) = documents(rows(EventType.DELETE, Row(ONE, None)), "debezium")
    assert (delete["op"], delete["after"], delete["before"]["year"]) == ("d", None, 2024)
    moved = documents(rows(EventType.UPDATE, Row(ONE, changed(ONE, id=8))), "debezium")
    assert [(d["op"], (d["before"] or d["after"])["id"]) for d in moved] == [("d", 2**64 - 1), ("c", 8)]
    (truncate,) = documents(ddl(EventType.TRUNCATE, "truncate orders"), "debezium")
    assert (truncate["op"], truncate["source"]["table"], truncate["source"]["gtid"]) == ("t", "orders", None)
    (alter,) = documents(ddl(EventType.ALTER, "ALTER TABLE orders ADD x int"), "debezium")
    assert sorted(alter) == ["databaseName", "ddl", "schemaName", "source", "tableChanges", "ts_ms"]


def test_maxwell_of_partial_images() -> None:
    """Under row image MINIMAL the key is in the image before alone: it is in the data and in primary_key, and old has what changed."""
    absent = Row(tuple([ABSENT] * len(ONE)), tuple([ABSENT] * len(ONE)))
    assert absent.before is not None
    key = TABLE.primary_key[0]
    other = next(i for i in range(len(ONE)) if i not in TABLE.primary_key)
    before, after = list(absent.before), list(absent.before)
    before[key], after[other] = ONE[key], ONE[other]
    (update,) = documents(rows(EventType.UPDATE, Row(tuple(before), tuple(after))), "maxwell")
    names = [TABLE.columns[i].name for i in (key, other)]
    assert update["primary_key_columns"] == [TABLE.columns[i].name for i in TABLE.primary_key]
    assert update["primary_key"] == [update["data"][names[0]]] != [None]
    assert set(update["data"]) == set(names)
    assert update["old"] == {}
    after[key] = ONE[key] + 1
    (update,) = documents(rows(EventType.UPDATE, Row(tuple(before), tuple(after))), "maxwell")
    assert (update["primary_key"], update["old"]) == ([ONE[key] + 1], {names[0]: ONE[key]})


def test_maxwell() -> None:
    """One document a row: type, ts in seconds, data, and in old only what changed; sets are arrays, blobs base64."""
    before = changed(ONE, name="old", ratio=None)
    (update,) = lines_of([BEGIN, rows(EventType.UPDATE, Row(before, ONE))], "maxwell")
    assert (update["type"], update["ts"], update["thread_id"]) == ("update", 1700000000, 7)
    assert (update["position"], update["gtid"], update["server_id"]) == ("binlog.000012:900", "0-5-77", 5)
    assert (update["primary_key"], update["primary_key_columns"]) == ([2**64 - 1], ["id"])
    assert update["old"] == {"name": "old", "ratio": None}
    data = update["data"]
    assert (data["tags"], data["blob"], data["doc"]) == (["a", "c"], "AP8=", {"a": [1, 2.5]})
    assert (data["at"], data["stamp"], data["took"]) == ("2024-02-29 01:02:03.456", "2024-02-29 01:02:03", "-100:00:00.25")
    assert data["price"] == "12345678901234567890.0123456789"  # a JSON number would lose digits
    small = changed(ONE, price=Decimal("2.5000000000"))
    (insert,) = documents(rows(EventType.INSERT, Row(None, small)), "maxwell")
    assert (insert["type"], insert["data"]["price"]) == ("insert", 2.5)
    assert "old" not in insert
    assert documents(rows(EventType.READ, Row(None, ONE)), "maxwell")[0]["type"] == "bootstrap-insert"
    assert documents(rows(EventType.DELETE, Row(ONE, None)), "maxwell")[0]["data"]["year"] == 2024


@pytest.mark.parametrize(
    ("type_", "sql", "kind", "database", "table"),
    [
        (EventType.CREATE, "create table if not exists `a b`.`c.d` (id int)", "table-create", "a b", "c.d"),
        (EventType.ALTER, "/* x */ ALTER  TABLE t ADD y int", "table-alter", "shop", "t"),
        (EventType.ERASE, "DROP TABLE IF EXISTS `t` /* generated by server */", "table-drop", "shop", "t"),
        (EventType.RENAME, "RENAME TABLE x.a TO x.b", "table-alter", "x", "a"),
        (EventType.CINDEX, "create unique index i on t (a)", "table-alter", "shop", "t"),
        (EventType.CREATE, "CREATE DATABASE shop", "database-create", "shop", None),
        (EventType.ERASE, "drop database shop", "database-drop", "shop", None),
    ],
)
def test_ddl_targets(type_: EventType, sql: str, kind: str, database: str, table: str | None) -> None:
    """A DDL names its database and table, quoted or not, and keeps its statement whole."""
    (document,) = documents(ddl(type_, sql), "maxwell")
    assert (document["type"], document["database"], document.get("table"), document["sql"]) == (kind, database, table, sql)
    assert ddl_target(sql, "shop", {}) == (database, table or "")


def test_ddl_target_from_the_producer() -> None:
    """What the producer says of a DDL's table goes before what is read from the statement."""
    event = ddl(EventType.ALTER, "ALTER TABLE x.y ADD z int")._replace(props={"table": "orders"})
    (document,) = documents(event, "canal")
    assert (document["database"], document["table"]) == ("shop", "orders")


@pytest.mark.parametrize("values", list(Values))
def test_stored_and_python_values_print_alike(values: Values) -> None:
    """A value prints the same from its stored form and as a Python value, for every type."""
    _, _, body = decode_stored(encode(rows(EventType.INSERT, Row(None, ONE))))
    assert body is not None
    for shown, stored, value in zip(renderings(TABLE, values), body[3][0], ONE, strict=True):
        assert shown.text(stored) == shown.text(value)


def test_canal_and_exact_differ() -> None:
    """Canal's quirks are there on request, and gone with exact."""
    canal, exact = renderings(TABLE, Values.CANAL), renderings(TABLE, Values.EXACT)
    index = {column.name: i for i, column in enumerate(TABLE.columns)}
    assert (canal[index["kind"]].text("big"), exact[index["kind"]].text("big")) == ("2", "big")
    assert (canal[index["tags"]].text("b,c"), exact[index["tags"]].text("b,c")) == ("6", "b,c")
    assert (canal[index["ratio"]].text(1e20), exact[index["ratio"]].text(1e20)) == ("1.0E20", "1e20")
    assert [canal[0].type_of(value) for value in (1, 2**63, None)] == [Sql.BIGINT, Sql.DECIMAL, Sql.BIGINT]
    assert [exact[0].type_of(value) for value in (1, 2**63, None)] == [Sql.DECIMAL] * 3


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (1.0, "1.0"), (-0.001, "-0.001"), (1e7, "1.0E7"), (1.25e-5, "1.25E-5"), (-123456789.0, "-1.23456789E8")],
)
def test_java_numbers(value: float, text: str) -> None:
    """Numbers print as Java's Double.toString does."""
    assert java_number(value) == text


@pytest.mark.parametrize(
    ("scale", "value", "text"),
    [
        (3, "1000.000", "1000.0"),
        (3, "-0.500", "-0.500"),
        (10, "1.5000000000", "1.500000000"),
        (9, "1.000000000", "1.000000000"),
        (2, "0.00", "0.0"),
    ],
)
def test_decimals_as_canal_reads_them(scale: int, value: str, text: str) -> None:
    """Canal passes over the last group of digits where it is not whole and all zeros, as its own server does."""
    shown = rendering(Column("d", "decimal", size=20, scale=scale), Values.CANAL)
    assert (shown.text(value), shown.text(Decimal(value))) == (text, text)
    assert rendering(Column("d", "decimal", size=20, scale=scale), Values.EXACT).text(value) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{"a": 10000000000.0, "b": 1.5, "c": [1, 2.0, "é"]}', '{"a": 1.0E10, "b": 1.5, "c": [1, 2.0, "é"]}'),
        ('{"d": 0.0000001, "n": -0.0, "i": 18446744073709551615}', '{"d": 1.0E-7, "n": -0.0, "i": 18446744073709551615}'),
        (r'"x\\by\n\"q\b\f 1.0E7"', r'"x\\by\n\"q\u0008\u000c 1.0E7"'),
        ('"\x7f\x9f"', r'"\u007f\u009f"'),
        ("[1.50, 1e22]", "[1.50, 1.0E22]"),
    ],
)
def test_json_as_canal_prints_it(value: str, text: str) -> None:
    """Doubles as Java prints them and other escapes; a DECIMAL has its digits, and what stands in a text stays."""
    assert rendering(Column("j", "json"), Values.CANAL).text(value) == text
    assert rendering(Column("j", "json"), Values.EXACT).text(value) == value


def test_bytes_by_definition() -> None:
    """Canal takes a text column for bytes where its definition is more than the name, and strips zeros from BINARY."""
    json = Column("j", "longtext", charset="utf8mb4", definition="json")
    assert (rendering(json, Values.CANAL).text("é"), rendering(json, Values.CANAL).sql_type) == ("Ã©", Sql.BLOB)
    plain = json._replace(definition="LONGTEXT")
    assert (rendering(plain, Values.CANAL).text("é"), rendering(plain, Values.CANAL).sql_type) == ("é", Sql.CLOB)
    assert rendering(Column("b", "binary", size=5), Values.CANAL).text(b"a\0b\0\0") == "a\0b"
    assert rendering(Column("b", "binary", size=5), Values.EXACT).text(b"a\0b\0\0") == "a\0b\0\0"


def test_mysql_types() -> None:
    """Types read as MySQL shows them."""
    assert [column_type(column) for column in TABLE.columns] == [
        "bigint unsigned",
        "varchar(20)",
        "decimal(30,10)",
        "double",
        "date",
        "datetime(3)",
        "datetime(6)",
        "timestamp",
        "time(2)",
        "enum('small','big')",
        "set('a','b','c')",
        "bit(10)",
        "bit(1)",
        "blob",
        "json",
        "year",
    ]


@pytest.mark.parametrize("type_", [EventType.INSERT, EventType.QUERY])
def test_change_logged_as_a_statement(type_: EventType) -> None:
    """With `statements = pass` a change without rows is its statement, in json and canal; the others have no place for it."""
    event = Event(EntryType.ROWS, type_, HERE, 1700000000000, database="shop", sql="insert into orders values (1)")
    event = event._replace(props={"table": "orders"})
    (plain,) = documents(event, "json")
    assert (plain["op"], plain["type"], plain["database"], plain["table"]) == ("statement", type_.name.lower(), "shop", "orders")
    canal = documents(event, "canal")
    if type_ is EventType.QUERY:  # Canal sends those whose verb says what they change
        assert canal == []
        event = event._replace(props=event.props | {"change": "insert"})
        canal = documents(event, "canal")
    assert [(one["type"], one["isDdl"], one["sql"], one["data"]) for one in canal] == [("INSERT", False, event.sql, None)]
    assert documents(event, "debezium") == documents(event, "maxwell") == []
