"""consumer/queues/messages.py: keys, partitions, tombstones, and updates that change the key."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shmstore.consumer.formats.formatter import FORMATS
from shmstore.consumer.queues.messages import MessageOptions, Messages
from shmstore.consumer.queues.queue import Message
from shmstore.event import ABSENT, Column, EntryType, Event, EventType, Position, Row, TableSchema

COLUMNS = (Column("id", "bigint", nullable=False), Column("part", "varchar", nullable=False), Column("note", "varchar"))
KEYED = TableSchema("shop", "orders", COLUMNS, (0, 1))
BARE = TableSchema("shop", "log", COLUMNS)


def rows(kind: EventType, *images: Any, table: TableSchema = KEYED, number: int = 0) -> Event:
    made = {EventType.INSERT: lambda image: Row(None, image), EventType.DELETE: lambda image: Row(image, None)}
    make = made.get(kind, lambda pair: Row(*pair))
    at = Position("binlog.000001", 100 * number + 50)
    event = Event(EntryType.ROWS, kind, at, 1000, length=20, transaction="t", table=table, rows=tuple(map(make, images)))
    event.__dict__["sequence"] = number
    return event


def made(*events: Event, **options: Any) -> list[Message]:
    messages = Messages(MessageOptions("store", **options), lambda topic: 4)
    return [message for event in events for message in messages.of_event(event)]


def ops(messages: list[Message], format: str) -> list[str]:
    """What each message does: +, -, ~ for an update, 0 for a tombstone."""
    found = []
    for message in messages:
        if message.value is None:
            found.append("0")
            continue
        document = json.loads(message.value)
        kind = document.get("op") or document.get("type")
        found.append({"insert": "+", "c": "+", "INSERT": "+", "delete": "-", "d": "-", "DELETE": "-"}.get(kind, "~"))
    return found


@pytest.mark.parametrize(
    ("format", "key", "topic"),
    [
        ("json", {"id": 1, "part": "a"}, "store.shop.orders"),
        ("debezium", {"id": 1, "part": "a"}, "store.shop.orders"),
        ("maxwell", {"database": "shop", "table": "orders", "pk.id": 1, "pk.part": "a"}, "store"),
        ("canal", {"id": "1", "part": "a"}, "store"),
    ],
)
def test_the_key_of_each_format(format: str, key: dict[str, Any], topic: str) -> None:
    """The key is the primary key as the format writes it, equal for every change of the row; a tombstone behind a delete has it, too."""
    events = [
        rows(EventType.INSERT, (1, "a", "x")),
        rows(EventType.UPDATE, ((1, "a", "x"), (1, "a", "y"))),
        rows(EventType.UPDATE, ((1, "a", ABSENT), (ABSENT, ABSENT, "z"))),
        rows(EventType.DELETE, (1, "a", "z")),
    ]
    messages = made(*events, format=format, keys=True, tombstones=True)
    assert ops(messages, format) == ["+", "~", "~", "-", "0"]
    assert {message.key for message in messages} == {json.dumps(key, separators=(",", ":")).encode()}
    assert {message.topic for message in messages} == {topic}
    assert {message.partition for message in messages} == {None}


@pytest.mark.parametrize("format", FORMATS)
def test_an_update_that_changes_the_key(format: str) -> None:
    """It is a delete of the old key and an insert of the new one, and does not change the order of the rows around it."""
    pairs = [
        ((1, "a", "x"), (1, "a", "y")),
        ((2, "a", "x"), (9, "a", "x")),
        ((3, "a", ABSENT), (7, ABSENT, "q")),
        ((4, "a", "x"), (4, "a", "z")),
    ]
    messages = made(rows(EventType.UPDATE, *pairs), format=format, keys=True, tombstones=True)
    assert ops(messages, format) == ["~", "-", "0", "+", "-", "0", "+", "~"]
    keys = [json.loads(message.key or b"") for message in messages]
    name = "pk.id" if format == "maxwell" else "id"
    assert [str(key[name]) for key in keys] == ["1", "2", "2", "9", "3", "3", "7", "4"]
    assert [message.row for message in messages] == [0, 1, 1, 1, 2, 2, 2, 3]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.sampled_from(FORMATS)
)
def test_what_a_compacted_topic_holds(pairs: list[tuple[int, int, bool]], format: str) -> None:
    """The last message of each key, in order, is the table: whatever updates moved keys to and fro."""
    table: dict[int, str] = {}
    events = []
    for number, (key, other, delete) in enumerate(pairs):
        if key not in table:
            events.append(rows(EventType.INSERT, (key, "p", str(number)), number=number))
            table[key] = str(number)
        elif delete:
            events.append(rows(EventType.DELETE, (key, "p", table.pop(key)), number=number))
        elif other == key or other not in table:
            before = table.pop(key)
            events.append(rows(EventType.UPDATE, ((key, "p", before), (other, "p", str(number))), number=number))
            table[other] = str(number)
    compacted: dict[bytes, bytes | None] = {}
    for message in made(*events, format=format, keys=True, tombstones=True):
        compacted[message.key or b""] = message.value
    left = {json.loads(key)["pk.id" if format == "maxwell" else "id"] for key, value in compacted.items() if value is not None}
    assert {int(key) for key in left} == set(table)


def test_rows_without_a_primary_key() -> None:
    """They have no key, and all of a table are in one partition."""
    messages = made(rows(EventType.INSERT, (1, "a", "x"), (2, "b", "y"), table=BARE))
    assert {message.key for message in messages} == {None}
    assert len({message.partition for message in messages}) == 1
    assert messages[0].partition in range(4)


@pytest.mark.parametrize(("order", "partitions"), [("table", 1), ("transaction", 1), ("key", 1)])
def test_orders(order: str, partitions: int) -> None:
    """table: one partition for each; transaction: partition 0; key: the queue chooses."""
    found = {message.partition for message in made(rows(EventType.INSERT, (1, "a", "x"), (2, "a", "x")), order=order)}
    assert len(found) == partitions
    assert (found == {None}) == (order == "key")
    assert order != "transaction" or found == {0}


def test_ddl() -> None:
    """In its topic, in a partition or in each; left out where no topic is named."""
    event = Event(
        EntryType.DDL,
        EventType.ALTER,
        Position("b.1", 9),
        5,
        database="shop",
        sql="ALTER TABLE orders ADD x INT",
        props={"table": "orders"},
    )
    assert [(each.topic, each.partition, each.key) for each in made(event)] == [("store", 0, None)]
    into = made(event, ddl_topic="{store}.{database}.{table}", ddl_partition=-1)
    assert [(each.topic, each.partition) for each in into] == [("store.shop.orders", i) for i in range(4)]
    assert made(event, ddl_topic="") == []


def test_debeziums_transactions() -> None:
    """BEGIN and END go to a topic of their own, keyed by the transaction, and rows carry their number in it."""
    begin = Event(EntryType.BEGIN, EventType.NONE, Position("b.1", 9), 5, transaction="t")
    end = Event(EntryType.END, EventType.NONE, Position("b.1", 99), 5, transaction="t")
    for schemas in (False, True):
        messages = made(
            begin,
            rows(EventType.INSERT, (1, "a", "x"), (2, "a", "x")),
            end,
            format="debezium",
            transactions=True,
            schemas=schemas,
        )
        assert [each.topic for each in messages] == [
            "store.transaction",
            "store.shop.orders",
            "store.shop.orders",
            "store.transaction",
        ]
        values = [json.loads(each.value or b"") for each in messages]
        keys = [json.loads(each.key or b"") for each in messages]
        if schemas:
            assert all(set(each) == {"schema", "payload"} for each in values + keys)
            values, keys = [each["payload"] for each in values], [each["payload"] for each in keys]
        assert [each.get("status") for each in values] == ["BEGIN", None, None, "END"]
        assert [each["transaction"]["total_order"] for each in values[1:3]] == [1, 2]
        assert keys[0] == keys[3] == {"id": "t"}


def topic_of(database: str, table: str, **options: Any) -> str:
    (message,) = made(rows(EventType.INSERT, (1, "a", "x"), table=KEYED._replace(database=database, table=table)), **options)
    return message.topic


def test_names_that_no_topic_can_have() -> None:
    """A character that Kafka refuses becomes its number, and a name is no longer than it takes. What is plain stays."""
    assert topic_of("shop_1", "a-b_under") == "store.shop_1.a-b_under"
    assert topic_of("süd west", "订单") == "store.s_u00fcd_u0020west._u8ba2_u5355"
    assert topic_of("s", "😀.") == "store.s._ud83d_ude00_u002e"
    assert len(topic_of("d", "o" * 300)) == 249
    assert topic_of("d", "x", topic="my topic {table}") == "my_topic_x"
    assert topic_of("{table}", "x") == "store._u007btable_u007d.x"


@settings(max_examples=300)
@given(*[st.text(st.sampled_from("a_.u0 üé订😀{}"), min_size=1, max_size=8)] * 4)
@example("a b", "t", "a_b", "t")
@example("a", "b.c", "a.b", "c")
@example("a b", "t", "a_u0020b", "t")
@example("a" * 200, "b" * 80, "a" * 200, "b" * 79 + "c")
def test_two_tables_have_two_topics(database: str, table: str, other_database: str, other_table: str) -> None:
    """Whatever their names are; and each is a name that Kafka takes."""
    topic, other = topic_of(database, table), topic_of(other_database, other_table)
    assert (topic == other) == ((database, table) == (other_database, other_table))
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic)


def test_a_statement_without_a_table() -> None:
    """Where its template comes out empty it is in the topic that statements have else."""
    event = Event(EntryType.DDL, EventType.CREATE, Position("b.1", 9), 5, database="shop", sql="CREATE DATABASE shop")
    assert {each.topic for each in made(event, ddl_topic="{table}")} == {"store"}
    assert {each.topic for each in made(event, ddl_topic="..{table}")} == {"store"}
    assert {each.topic for each in made(event, format="canal", topic="{table}")} == {"store"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "row"}, "orders are key, table, transaction"),
        ({"topic": "{schema}.x"}, "names are {store}, {database} and {table}"),
        ({"transactions": True}, "debezium"),
        ({"format": "avro"}, "formats are"),
        ({"tables": "orders"}, "DATABASE.TABLE"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], says: str) -> None:
    """Each is refused with what there is."""
    with pytest.raises(ValueError, match=says):
        Messages(MessageOptions("store", **options), lambda topic: 1)
