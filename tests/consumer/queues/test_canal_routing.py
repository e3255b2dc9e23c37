"""consumer/queues/canal_routing.py and Canal's messages, compared with what Canal's own Kafka producer sends of the same entries."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.queues.canal_routing import CanalRouting, java_hash
from shmstore.consumer.queues.messages import MessageOptions, Messages
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.consumer.wire.protocol import messages
from shmstore.encoding.codec import decode, encode
from shmstore.event import Column, EntryType, Event, EventType, Position, Row, TableSchema
from tests.servers.canal import sent_to_kafka

DYNAMIC = (
    "",
    ".*",
    ".*\\..*",
    "shop\\..*,crm",
    "shop",
    "shop.Orders",
    "one:shop\\.o.*;two:crm\\..*",
    "three:crm",
    "a.b:.*\\.orders",
    "x:nothing\\..*",
)
HASHES = (
    "",
    ".*\\..*",
    ".*\\..*:$pk$",
    ".*\\..*:name",
    "shop.orders:id^name;crm\\..*",
    "shop.Orders:$pk$,.*\\..*:absent",
    "none.such:id",
)
COUNTS = ("", "shop_orders:5", ".*:4", "one:3,two:7", "shop:2;crm.*:6")


def event(chance: random.Random, number: int) -> Event:
    """Rows or a DDL of one of some tables."""
    database, table = chance.choice(["shop", "crm", "Büro"]), chance.choice(["orders", "Orders", "log", "a_b"])
    at = Position("binlog.000001", 1000 + 100 * number)
    if chance.random() < 0.15:
        sql = f"ALTER TABLE `{table}` ADD c{number} INT"
        return Event(EntryType.DDL, EventType.ALTER, at, 5000, length=50, database=database, sql=sql, props={"table": table})
    columns = (Column("id", "bigint", nullable=False), Column("name", "varchar", size=40, charset="utf8mb4"), Column("n", "int"))
    schema = TableSchema(database, table, columns, chance.choice([(), (0,), (1, 0)]))
    kind = chance.choice([EventType.INSERT, EventType.UPDATE, EventType.DELETE])

    def image() -> tuple[Any, ...]:
        text = "".join(chance.choices("abcXYZ äß€\U0001f600", k=chance.randint(0, 6)))
        return (chance.randint(-(2**40), 2**40), text, chance.choice([None, 3]))

    rows = []
    for _ in range(chance.randint(1, 5)):
        before, after = image(), image()
        rows.append({EventType.INSERT: Row(None, after), EventType.DELETE: Row(before, None)}.get(kind, Row(before, after)))
    return Event(EntryType.ROWS, kind, at, 5000, length=50, transaction="t", table=schema, rows=tuple(rows))


def test_as_canals_own_producer(seed: int) -> None:
    """Topic, partition and message, flat or protobuf, of each of 150 events under 60 configurations, in order; protobuf byte for byte."""
    chance = random.Random(seed)
    events = [decode(encode(event(chance, number)), number) for number in range(150)]
    configurations = []
    for _ in range(60):
        words = (
            chance.choice(["true", "false"]),
            "ex.ample",
            chance.choice(DYNAMIC),
            str(chance.choice([0, 2])),
            str(chance.choice([1, 3, 8])),
        )
        configurations.append((*words, chance.choice(COUNTS), chance.choice(HASHES), chance.choice(["true", "false"])))
    encoder = Encoder(Values.CANAL, gtids=False)
    entries = [_bare(encoder.encode(encode(each))) for each in events]
    for words, wanted in zip(configurations, sent_to_kafka(entries, configurations), strict=True):
        flat, topic, dynamic, partition, number, counts, hashes, database = words
        routing = CanalRouting(topic, dynamic, int(partition), int(number), counts, hashes, database == "true")
        maker = Messages(MessageOptions("s", "canal", routing=routing, flat=flat == "true"), lambda topic: 8)
        found = [message for each in events for message in maker.of_event(each)]
        assert [(each.topic, each.partition) for each in found] == [(topic, partition) for topic, partition, _ in wanted], words
        for ours, (_, _, value) in zip(found, wanted, strict=True):
            if flat == "true":
                assert _text(ours.value or b"") == _text(value)
            else:
                assert ours.value == value, words


def _bare(entry: bytes | None) -> bytes:
    """The entry without the tag and length that it has in a list."""
    assert entry is not None
    at = 1
    while entry[at] & 0x80:
        at += 1
    return entry[at + 1 :]


def _text(value: bytes) -> str:
    """The message as it stands there, but for when it was made.

    Of the old values only what the row changed: Canal also has those that an earlier row of the event changed.
    """
    document = json.loads(value)
    old = document["old"] and [
        {name: text for name, text in was.items() if row[name] != text}
        for was, row in zip(document["old"], document["data"], strict=True)
    ]
    return json.dumps(document | {"ts": 0, "old": old}, ensure_ascii=False)


@given(st.text())
def test_java_hash(text: str) -> None:
    """As the definition says: s[0]*31^(n-1) + ... + s[n-1] over UTF-16 units, in 32 bits."""
    units = [
        int.from_bytes(text.encode("utf-16-be", "surrogatepass")[i : i + 2], "big")
        for i in range(0, 2 * len(text.encode("utf-16-be", "surrogatepass")) // 2, 2)
    ]
    value = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units)) % 2**32
    assert java_hash(text) == (value - 2**32 if value >= 2**31 else value)


@pytest.mark.parametrize(
    "options",
    [{"dynamic_topic": "a(b"}, {"partition_hash": "[:x"}, {"partitions_num": 0}, {"dynamic_topic_partition_num": "topic"}],
)
def test_what_cannot_be_read(options: dict[str, Any]) -> None:
    """An error says which of the options it is."""
    with pytest.raises(ValueError, match=r"expression|partitionsNum|dynamicTopicPartitionNum"):
        CanalRouting("t", **options)


def test_protobuf_of_what_has_several_entries(seed: int) -> None:
    """The statement that comes with its rows is a message of its own, as it is with flat messages; BEGIN and END are none."""
    made = event(random.Random(seed), 1)
    while made.table is None:
        made = event(random.Random(seed := seed + 1), 1)
    made = made._replace(props={"rows_query": "INSERT 1", "rows_query_at": "900:40", "rows_query_table": "orders"})
    flat, packed = (Messages(MessageOptions("s", "canal", flat=flat), lambda topic: 1) for flat in (True, False))
    kinds = [json.loads(message.value or b"")["type"] for message in flat.of_event(made)]
    packets = [messages.Packet.FromString(message.value) for message in packed.of_event(made)]
    entries = [
        messages.Entry.FromString(each) for packet in packets for each in messages.Messages.FromString(packet.body).messages
    ]
    assert [EventType(entry.header.eventType).name for entry in entries] == kinds == ["QUERY", made.type.name]
    for kind in (EntryType.BEGIN, EntryType.END):
        assert list(packed.of_event(Event(kind, EventType.NONE, made.position, 5000, transaction="t"))) == []


@pytest.mark.parametrize("options", [{"format": "json"}, {"format": "canal", "keys": True}])
def test_what_cannot_be_protobuf(options: dict[str, Any]) -> None:
    """Another format, and keys of rows."""
    with pytest.raises(ValueError, match="protobuf"):
        MessageOptions("s", flat=False, **options)
