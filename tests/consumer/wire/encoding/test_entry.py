"""shmstore.consumer.wire.encoding.entry: stored events to Canal's Entry. The protobuf package is the reference."""

import hashlib
import random
import string
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from shmstore.column_type import column_type, logged_type
from shmstore.consumer.formats.canal_values import Values, renderings
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.consumer.wire.protocol import messages as m
from shmstore.encoding.codec import bare_schema, encode, encode_schema, pack
from shmstore.errors import StoreCorrupt
from shmstore.event import ABSENT, Column, EntryType, Event, EventType, Position, Row, TableSchema

GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23"
COLUMNS = (
    Column("id", "bigint", unsigned=True, nullable=False),
    Column("näme", "varchar", size=80, charset="utf8mb4"),
    Column("price", "decimal", size=30, scale=10),
    Column("f", "float"),
    Column("d", "double"),
    Column("day", "date"),
    Column("at", "datetime", scale=3),
    Column("stamp", "timestamp", scale=6),
    Column("took", "time", scale=2),
    Column("kind", "enum", members=("small", "big"), charset="utf8mb4"),
    Column("tags", "set", members=("a", "b", "c"), charset="utf8mb4"),
    Column("bits", "bit", size=64),
    Column("blob", "blob"),
    Column("doc", "json"),
    Column("year", "year"),
    Column("tiny", "tinyint", unsigned=True),
    Column("note", "text", charset="utf8mb4"),
    Column("point", "geometry"),
    Column("fixed", "binary", size=6),
    Column("json", "longtext", charset="utf8mb4", definition="JSON"),
    Column("flag", "tinyint", unsigned=True, definition="tinyint(1) unsigned zerofill"),
)


def table_id(schema: bytes) -> int:
    """The number of a table's definition: the first 48 bits of its stored schema's BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(schema, digest_size=6).digest(), "big")


def reference(event: Event, values: Values) -> bytes:
    """The entry as the protobuf package builds it, field by field; with GTIDs."""
    canal = values is Values.CANAL
    position, table = event.position, event.table
    header = m.Header(
        version=1, logfileName=position.file, logfileOffset=position.offset - event.length, serverId=event.server_id
    )
    header.serverenCode = "UTF-8"
    header.executeTime = event.time_ms // 1000 * 1000
    header.sourceType = 2
    header.eventLength = event.length
    header.gtid = position.gtids
    if event.transaction and not event.transaction.startswith(position.file + ":"):
        header.props.add(key="curtGtid", value=event.transaction)
        for name in ("curtGtidSn", "curtGtidLct"):
            if name in event.props:
                header.props.add(key=name, value=event.props[name])
    entry = m.Entry(header=header)
    if event.entry is EntryType.BEGIN:
        entry.entryType = 1
        stored = m.TransactionBegin(threadId=int(event.props.get("thread_id", 0)))
    elif event.entry is EntryType.END:
        entry.entryType = 3
        stored = m.TransactionEnd(transactionId=event.props.get("xid", "0"))
    else:
        kind = EventType.INSERT if event.type is EventType.READ else event.type
        entry.entryType = 2
        entry.header.eventType = kind
        stored = m.RowChange(eventType=kind)
        if event.entry is EntryType.DDL or event.sql:
            if "xa" not in event.props:
                if event.type is not EventType.QUERY and (event.type is not EventType.INSERT or canal):
                    stored.isDdl = event.type is not EventType.INSERT
                stored.sql = event.sql
                stored.ddlSchemaName = event.props.get("default_database", "" if canal else event.database)
                entry.header.schemaName, entry.header.tableName = event.database, event.props["table"]
        elif table is not None:
            stored.isDdl = False
            stored.tableId = table_id(bare_schema(encode_schema(table)))
            entry.header.schemaName, entry.header.tableName = table.database, table.table
            if event.rows:
                entry.header.props.add(key="rowsCount", value=str(len(event.rows)))
            if event.type is EventType.READ:
                entry.header.props.add(key="snapshot", value="true")
            for row in event.rows:
                stored.rowDatas.append(_row(table, row, values))
    xa = {EventType.NONE: "XA END", EventType.XACOMMIT: "XA COMMIT", EventType.XAROLLBACK: "XA ROLLBACK"}.get(event.type, "")
    if "xa" in event.props:
        stored.props.add(key="XA_TYPE", value=xa)
        stored.props.add(key="XA_XID", value=" " * canal + event.props["xa_xid"])
        if canal and event.entry is EntryType.DDL:
            stored.sql = event.sql
    entry.storeValue = stored.SerializeToString()
    return m.Messages(messages=[entry.SerializeToString()]).SerializeToString()


def _row(table: TableSchema, row: Row, values: Values) -> Any:
    data, before = m.RowData(), {}
    canal = values is Values.CANAL
    key = () if canal and table.unique_key else table.primary_key
    for side, image in ((data.beforeColumns, row.before), (data.afterColumns, row.after)):
        for i, value in enumerate(image or ()):
            if value is ABSENT:
                continue
            column, shown = table.columns[i], renderings(table, values)[i]
            text = None if value is None else shown.text(value)
            added = side.add(index=i, sqlType=shown.type_of(value), name=column.name, isKey=i in key)
            added.isNull = value is None
            added.value = text or ""
            added.mysqlType = column_type(column) if canal else logged_type(column)
            if side is data.beforeColumns:
                before[i] = text
            else:
                added.updated = i not in before or before[i] != text
    return data


def random_value(rng: random.Random, column: Column) -> Any:
    text = "".join(rng.choices(string.printable + "äß日本😀", k=rng.choice([0, 1, 3, 50, 127, 128, 300])))
    choices = {
        "bigint": lambda: rng.choice([0, 1, 2**63 - 1, 2**63, 2**64 - 1, rng.getrandbits(64)]),
        "varchar": lambda: text,
        "text": lambda: text * rng.choice([1, 1, 200]),
        "decimal": lambda: Decimal(rng.randint(-(10**18), 10**18)).scaleb(-10),
        "float": lambda: rng.choice([0.0, 1.5, -1e-5, 1e20, rng.random()]),
        "double": lambda: rng.choice([0.0, 1e-300, 1e7, rng.uniform(-1e9, 1e9)]),
        "date": lambda: rng.choice(["0000-00-00", "2024-02-31", date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]),
        "datetime": lambda: rng.choice(
            ["0000-00-00 00:00:00.000", datetime(1969, 7, 20, 20, 17, 40, 123000), datetime(9999, 12, 31)]
        ),
        "timestamp": lambda: rng.choice(
            ["0000-00-00 00:00:00.000000", datetime(2024, 2, 29, 1, 2, 3, rng.randrange(10**6), tzinfo=UTC)]
        ),
        "time": lambda: timedelta(microseconds=rng.randint(-3020399, 3020399) * 10**6 + rng.randrange(100) * 10**4),
        "enum": lambda: rng.choice(["small", "big", ""]),
        "set": lambda: rng.choice(["", "a", "b,c", "a,b,c"]),
        "bit": lambda: rng.getrandbits(64),
        "blob": lambda: rng.randbytes(rng.choice([0, 1, 200])),
        "geometry": lambda: rng.randbytes(25),
        "json": lambda: rng.choice(['{"ä": [1, null]}', '{"a\\b": 1.0, "é": [10000000000.0, "x\\\\b"]}']),
        "binary": lambda: rng.choice([b"", b"ab\0\0", b"\xff\0a\0\0\0"]),
        "longtext": lambda: rng.choice(["{}", '{"ä": 1e10}', "日本"]),
        "year": lambda: rng.choice([0, 1901, 2155]),
        "tinyint": lambda: rng.randrange(256),
    }
    return choices[column.type]() if rng.random() > 0.1 else None


def random_event(rng: random.Random) -> Event:
    columns = tuple(rng.sample(COLUMNS, rng.randint(1, len(COLUMNS))))
    table = TableSchema(
        "shöp",
        rng.choice(["orders", "t" * 200]),
        columns,
        tuple(rng.sample(range(len(columns)), min(2, len(columns)))),
        rng.random() < 0.3,
    )
    kind = rng.choice([EventType.INSERT, EventType.UPDATE, EventType.DELETE, EventType.READ])
    absent = [
        set(rng.sample(range(len(columns)), rng.randrange(len(columns)))) if rng.random() < 0.3 else set() for _ in range(2)
    ]

    def image(side: int) -> tuple[Any, ...]:
        return tuple(ABSENT if i in absent[side] else random_value(rng, column) for i, column in enumerate(columns))

    rows = []
    for _ in range(rng.choice([1, 1, 2, 30])):
        before, after = image(0), image(1)
        if rng.random() < 0.5:
            after = tuple(
                b if a is not ABSENT and b is not ABSENT and rng.random() < 0.7 else a for a, b in zip(after, before, strict=True)
            )
        rows.append(
            Row(before if kind in (EventType.UPDATE, EventType.DELETE) else None, None if kind is EventType.DELETE else after)
        )
    return Event(
        EntryType.ROWS,
        kind,
        Position("binlog.000012", rng.choice([200, 2**31, 2**40])),
        rng.choice([0, 1700000000123]),
        server_id=rng.choice([0, 5, 2**32 - 1]),
        length=rng.choice([0, 120]),
        transaction=rng.choice(["", GTID, "0-5-77", "binlog.000012:4"]),
        table=table,
        rows=tuple(rows),
        props={"curtGtidSn": "8", "curtGtidLct": "7"} if rng.random() < 0.5 else {},
    )


@pytest.mark.parametrize("values", list(Values))
def test_rows_as_protobuf_builds_them(values: Values, seed: int) -> None:
    """Any rows event gives byte for byte what the protobuf package builds of the same fields."""
    rng = random.Random(seed)
    encoder = Encoder(values, gtids=True)
    for _ in range(400):
        event = random_event(rng)
        encoded = encoder.encode(encode(event))
        assert encoded is not None
        assert encoded == reference(event, values)


@pytest.mark.parametrize(
    "event",
    [
        Event(EntryType.BEGIN, EventType.NONE, Position("b.000001", 400), 1700000000999, 1, 40, GTID, props={"thread_id": "12"}),
        Event(
            EntryType.END, EventType.NONE, Position("b.000001", 400), 0, 1, 40, props={"xa": "prepare", "xa_xid": "X'61',X'',1"}
        ),
        Event(
            EntryType.DDL,
            EventType.XACOMMIT,
            Position("b.000001", 400),
            0,
            props={"xa": "commit", "xa_xid": "x"},
            sql="XA COMMIT 'x'",
        ),
        Event(EntryType.DDL, EventType.XAROLLBACK, Position("b.000001", 400), 0, props={"xa": "rollback", "xa_xid": "x"}),
        Event(EntryType.DDL, EventType.QUERY, Position("b.000001", 400), 0, database="d", sql="GRANT ...", props={"table": ""}),
        Event(
            EntryType.ROWS,
            EventType.INSERT,
            Position("b.000001", 420),
            0,
            database="d",
            sql="INSERT INTO t VALUES (1)",
            props={"table": "t"},
        ),
        Event(
            EntryType.END,
            EventType.NONE,
            Position("b.000001", 431, f"{GTID[:-2]}1-23"),
            1700000000999,
            1,
            31,
            GTID,
            props={"xid": "977"},
        ),
        Event(EntryType.END, EventType.NONE, Position("b.000001", 431), 1700000000999, 1, 31, "0-1-5"),
        Event(
            EntryType.DDL,
            EventType.ALTER,
            Position("b.000001", 600),
            1700000001000,
            1,
            80,
            database="shop",
            sql="ALTER TABLE t ADD ü int",
            props={"table": "t", "default_database": "other"},
        ),
    ],
)
@pytest.mark.parametrize("values", list(Values))
def test_other_entries_as_protobuf_builds_them(values: Values, event: Event) -> None:
    """Begin, end, DDL and a change logged as a statement give byte for byte what the protobuf package builds; an end without XID has transactionId 0."""
    encoded = Encoder(values, gtids=True).encode(encode(event))
    if values is Values.CANAL and event.type is EventType.QUERY:
        assert encoded is None  # Canal sends nothing about accounts and the like
    else:
        assert encoded is not None
        assert encoded == reference(event, values)


def test_explicit_fields() -> None:
    """Fields that clients read through a oneof are on the wire even where they hold a default."""
    table = TableSchema("s", "t", (Column("id", "int"),), (0,))
    event = Event(EntryType.ROWS, EventType.INSERT, Position("b.1", 9), 0, table=table, rows=(Row(None, (5,)),))
    encoded = Encoder(Values.CANAL).encode(encode(event))
    assert encoded is not None
    entry = m.Entry.FromString(m.Messages.FromString(encoded).messages[0])
    change = m.RowChange.FromString(entry.storeValue)
    column = change.rowDatas[0].afterColumns[0]
    assert entry.HasField("entryType")
    assert all(entry.header.HasField(name) for name in ("version", "sourceType", "eventType"))
    assert all(change.HasField(name) for name in ("eventType", "isDdl"))
    assert column.HasField("isNull")
    assert (column.sqlType, column.value, column.isKey, column.updated, column.mysqlType) == (4, "5", True, True, "int")


def test_table_id() -> None:
    """tableId has 48 bits, is the same in every server and run, and is another one once the table is altered."""
    table = TableSchema("s", "t", (Column("id", "int"),), (0,))
    found = []
    for version in (table, table, table._replace(columns=(*table.columns, Column("x", "int"))), table._replace(table="u")):
        values = tuple(range(len(version.columns)))
        event = Event(EntryType.ROWS, EventType.INSERT, Position("b.1", 9), 0, table=version, rows=(Row(None, values),))
        encoded = Encoder(Values.CANAL).encode(encode(event))
        assert encoded is not None
        entry = m.Entry.FromString(m.Messages.FromString(encoded).messages[0])
        found.append(m.RowChange.FromString(entry.storeValue).tableId)
    assert all(0 < number < 1 << 48 for number in found)
    assert found[0] == found[1] == 35184846432354
    assert len(set(found)) == 3


def test_filtered_and_dropped() -> None:
    """A refused table and a heartbeat give nothing; a DDL without a table passes every filter."""
    table = TableSchema("s", "t", (Column("id", "int"),))
    here = Position("b.1", 9)
    encoder = Encoder(Values.CANAL)
    rows = encode(Event(EntryType.ROWS, EventType.INSERT, here, 0, table=table, rows=(Row(None, (5,)),)))
    asked: list[str] = []
    assert encoder.encode(rows, lambda name: bool(asked.append(name))) is None
    assert encoder.encode(encode(Event(EntryType.HEARTBEAT, EventType.MHEARTBEAT, here, 0))) is None
    drop = encode(Event(EntryType.DDL, EventType.ERASE, here, 0, database="s", sql="drop table x.u"))
    assert encoder.encode(drop, lambda name: bool(asked.append(name))) is None
    create = encode(Event(EntryType.DDL, EventType.CREATE, here, 0, database="s", sql="create database s"))
    assert encoder.encode(create, lambda name: False) is not None
    assert asked == ["s.t", "x.u"]


@pytest.mark.parametrize(
    "damage", ["bytes", "header", "body", "member", "type", "entry", "file", "time", "server", "transaction", "gtids"]
)
def test_damaged_payload(damage: str) -> None:
    """Bytes that are no event raise StoreCorrupt; nothing is made up."""
    schema = encode_schema(TableSchema("s", "t", (Column("id", "int"), Column("e", "enum", members=("a",))), (0,)))
    header = [2, 1, "b.1", 9, 0, 0, 1, "", 0, 0, "", 0, "", "", {}]
    row: list[Any] = [1, "a"]
    if damage == "header":
        header.pop()
    elif damage == "body":
        row = [1]
    elif damage == "member":
        row = [1, "b"]
    elif damage == "type":
        header[3] = "nine"
    elif damage in ("file", "time", "server", "transaction", "gtids"):
        place = {"file": 2, "time": 5, "server": 6, "transaction": 7, "gtids": 10}[damage]
        header[place] = b"x" if damage in ("time", "server") else 7
    elif damage == "entry":
        schema = b"\xc1"
    payload = b"\xc1" if damage == "bytes" else pack((2, header, None, schema, [None, None, None, [row]]))
    encoder = Encoder(Values.CANAL, gtids=True)
    for _ in range(2):  # nothing of it is remembered
        with pytest.raises(StoreCorrupt):
            encoder.encode(payload)


def canal_entries(event: Event, **options: Any) -> list[Any]:
    """The entries of an event with Canal's values, parsed."""
    encoded = Encoder(Values.CANAL, **options).encode(encode(event))
    return [m.Entry.FromString(data) for data in m.Messages.FromString(encoded or b"").messages]


def test_gtids_are_sent_where_they_are_asked_for() -> None:
    """As Canal without gtidon, entries have no GTID; exact values have them, unless that is turned off."""
    event = Event(EntryType.END, EventType.NONE, Position("b.1", 9, "0-1-7"), 0, transaction="0-1-7", props={"xid": "5"})
    for values, gtids, there in (
        (Values.CANAL, None, False),
        (Values.CANAL, True, True),
        (Values.EXACT, None, True),
        (Values.EXACT, False, False),
    ):
        encoded = Encoder(values, gtids=gtids).encode(encode(event))
        header = m.Entry.FromString(m.Messages.FromString(encoded).messages[0]).header
        assert (header.gtid, [pair.key for pair in header.props]) == (("0-1-7", ["curtGtid"]) if there else ("", []))


def test_a_begin_that_the_server_did_not_log_is_not_sent() -> None:
    """MariaDB logs no BEGIN, so Canal sends none; MySQL's has its thread, and that of a snapshot is ours."""
    here = Position("b.1", 9)
    assert canal_entries(Event(EntryType.BEGIN, EventType.NONE, here, 0)) == []
    assert len(canal_entries(Event(EntryType.BEGIN, EventType.NONE, here, 0, props={"thread_id": "3"}))) == 1
    assert len(canal_entries(Event(EntryType.BEGIN, EventType.READ, here, 0))) == 1


def test_a_prepared_transaction_ends_with_its_xa_end() -> None:
    """The end of a prepared transaction has the place of XA END, and the XID as the statement has it, space included."""
    props = {"xa": "prepare", "xa_xid": "X'61',X'',1", "xa_end": "900:85"}
    (entry,) = canal_entries(Event(EntryType.END, EventType.NONE, Position("b.1", 980), 0, length=80, props=props))
    assert (entry.header.logfileOffset, entry.header.eventLength) == (815, 85)
    end = m.TransactionEnd.FromString(entry.storeValue)
    assert [(pair.key, pair.value) for pair in end.props] == [("XA_TYPE", "XA END"), ("XA_XID", " X'61',X'',1")]
    begin = Event(EntryType.BEGIN, EventType.NONE, Position("b.1", 9), 0, props={"thread_id": "3", "xa": "start", "xa_xid": "x"})
    stored = m.TransactionBegin.FromString(canal_entries(begin)[0].storeValue)
    assert [(pair.key, pair.value) for pair in stored.props] == [("XA_TYPE", "XA START"), ("XA_XID", " x")]


def test_a_transaction_in_one_phase_ends_with_its_xa_end() -> None:
    """XA COMMIT ... ONE PHASE has an end at the place of its XA END, too; exactly it is a transaction like any other."""
    props = {"xa": "one phase", "xa_xid": "X'61',X'',1", "xa_end": "900:85"}
    event = Event(EntryType.END, EventType.NONE, Position("b.1", 980), 0, length=80, props=props)
    (entry,) = canal_entries(event)
    end = m.TransactionEnd.FromString(entry.storeValue)
    assert (entry.header.logfileOffset, [pair.value for pair in end.props]) == (815, ["XA END", " X'61',X'',1"])
    exact = m.Messages.FromString(Encoder(Values.EXACT).encode(encode(event))).messages[0]
    assert not m.TransactionEnd.FromString(m.Entry.FromString(exact).storeValue).props


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("column", "old", "new", "updated"),
    [
        (Column("c", "double"), 0.0, -0.0, True),
        (Column("c", "double"), 0.0, 0.0, False),
        (Column("c", "float"), 1e-45, 3e-45, True),
        (Column("c", "int"), 5, 6, True),
        (Column("c", "int"), None, 6, True),
        (Column("c", "int"), None, None, False),
        (Column("c", "binary", size=3), b"a\0\0", b"a\0\0", False),
        (Column("c", "json"), '{"a": 1.0}', '{"a": 1.00}', False),
        (Column("c", "json"), '{"a": 1.0}', '{"a": 1.5}', True),
        (Column("c", "json"), "[true]", "[false]", True),
    ],
)
def test_updated_is_what_prints_otherwise(column: Column, old: Any, new: Any, updated: bool, rows: int, pure: bool) -> None:
    """As with Canal a column is updated where its text is another one, not its value."""
    table = TableSchema("s", "t", (Column("id", "int"), column), (0,))
    changes = tuple(Row((i, old), (i, new)) for i in range(rows))
    event = Event(EntryType.ROWS, EventType.UPDATE, Position("b.1", 300), 0, length=40, table=table, rows=changes)
    encoder = Encoder(Values.CANAL)
    found = (encoder.encode_pure if pure else encoder.encode)(encode(event))
    assert found is not None
    entry = m.Entry.FromString(m.Messages.FromString(found).messages[0])
    for row in m.RowChange.FromString(entry.storeValue).rowDatas:
        assert [cell.updated for cell in row.afterColumns] == [False, updated]


def test_the_statement_comes_before_its_rows() -> None:
    """With its own place and the table that MySQL's event names; a filter that refuses the rows refuses it too."""
    table = TableSchema("s", "t", (Column("id", "int"),))
    props = {"rows_query": "INSERT INTO t VALUES (5)", "rows_query_at": "100:60", "rows_query_table": "t"}
    event = Event(
        EntryType.ROWS, EventType.INSERT, Position("b.1", 300), 0, length=40, table=table, rows=(Row(None, (5,)),), props=props
    )
    query, rows = canal_entries(event)
    assert (query.header.logfileOffset, query.header.eventLength, query.header.eventType) == (100, 60, EventType.QUERY)
    assert (query.header.schemaName, query.header.tableName) == ("", "t")
    change = m.RowChange.FromString(query.storeValue)
    assert (change.sql, change.eventType, change.HasField("isDdl")) == ("INSERT INTO t VALUES (5)", EventType.QUERY, False)
    assert (rows.header.logfileOffset, rows.header.eventType) == (260, EventType.INSERT)
    assert Encoder(Values.CANAL).encode(encode(event), lambda name: False) is None
    assert len(m.Messages.FromString(Encoder(Values.EXACT).encode(encode(event))).messages) == 1
