"""Events as messages: topic, key, value, partition and headers of each row.

    format     key                                     value                        topic
    json       {"id": 1}, the primary key              a document for each row      STORE.DATABASE.TABLE
    debezium   {"id": 1}, with schemas its own         the envelope                 STORE.DATABASE.TABLE
    maxwell    {"database":,"table":,"pk.id": 1}       a document for each row      STORE
    canal      none, as Canal's; a key on request      one for each rows event      STORE, or as `CanalRouting` says

All messages of a key are in one partition, in the order of the binlog. So an update that changes the key is a delete of the old one, in its
partition, and an insert of the new one in that of the new one. Behind a delete comes a tombstone, where asked for: a compacted topic
then forgets the key. Rows of a table without a primary key have no key, and go into one partition for each table.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shmstore import Row
from shmstore.consumer.formats import debezium
from shmstore.consumer.formats.canal_values import Values, renderings
from shmstore.consumer.formats.context import STATEMENTS, stored_values
from shmstore.consumer.formats.formatter import Formatter
from shmstore.consumer.formats.json_text import dump
from shmstore.consumer.formats.key_change import filled, key_changes
from shmstore.consumer.queues.canal_routing import CanalRouting
from shmstore.consumer.queues.queue import Message
from shmstore.consumer.queues.row_plans import MessagePlan, message_plan
from shmstore.consumer.table_choice import TableChoice, tables_of
from shmstore.encoding.codec import decode, decode_schema
from shmstore.errors import install
from shmstore.event import ABSENT, Event, EventType, TableSchema

try:
    from shmstore.consumer.queues.native import rows as compiled
except ImportError:  # built without a compiler
    compiled = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from shmstore.consumer.queues.canal_packets import CanalPackets

#: True where compiled code makes the messages of the usual events; SHMSTORE_PURE=1 in the environment keeps it from that.
COMPILED: bool = compiled is not None and os.environ.get("SHMSTORE_PURE", "") in ("", "0")

ORDERS: Final = ("key", "table", "transaction")
UNLIMITED: Final = 1 << 62
LONGEST_TOPIC: Final = 249  # characters, Kafka's rule
_NOT_IN_TOPICS: Final = re.compile(r"[^A-Za-z0-9._-]")  # Kafka's rule too, and the narrowest
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]|_(?=u[0-9a-f]{4})")  # what `_escaped` writes in another way
_PARTS: Final = re.compile(r"(\{(?:store|database|table)\})")
_FIELDS: Final = ("store", "database", "table")


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """How messages are made. `topic` and `ddl_topic` are templates with {store}, {database} and {table}; an empty `ddl_topic` leaves DDLs out.

    `order`: what stays in order beyond each key: "table" puts each table into one partition, "transaction" everything into partition 0.
    `tombstones` follow deletes; None: with json and debezium. `keys` gives Canal's messages keys too, and then each row is one. `ddl_partition` is
    the partition of DDLs, -1 a copy in each. Without `flat` Canal's messages are its protobuf
    (``canal.mq.flatMessage``). `tables` are patterns as those of ``shmstore tail``.
    """

    store: str
    format: str = "json"
    topic: str | None = None
    ddl_topic: str | None = None
    ddl_partition: int = 0
    order: str = "key"
    tombstones: bool | None = None
    keys: bool | None = None
    schemas: bool = False
    transactions: bool = False
    gtids: bool = False
    flat: bool = True
    headers: bool = True
    tables: str | None = None
    routing: CanalRouting | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order {self.order!r} is unknown; orders are {', '.join(ORDERS)}")
        for template in (self.topic, self.ddl_topic):
            unknown = [name for name in re.findall(r"\{([^}]*)\}", template or "") if name not in _FIELDS]
            if unknown:
                raise ValueError(f"topic {template!r} has {{{unknown[0]}}}: names are {{store}}, {{database}} and {{table}}")
        if self.routing is not None and self.order != "key":
            raise ValueError("Canal's routing says where each row goes: leave out order, or the routing")
        if self.transactions and self.format != "debezium":
            raise ValueError(f"format {self.format} has no transaction metadata: that is debezium's")
        if not self.flat and (self.format != "canal" or self.keys):
            raise ValueError("messages that are not flat are Canal's protobuf: they need format canal, without keys")


class Made(NamedTuple):
    """Messages, the sequence behind their events, the bytes of their values, and the last event as it is encoded; None where none was left."""

    messages: list[Message]
    behind: int
    size: int
    last: bytes | memoryview | None


def size_of(messages: Sequence[Message]) -> int:
    """Bytes of the values."""
    return sum([len(message.value or b"") for message in messages])


class Messages:
    """Makes messages of a store's events, which come in order. `partitions` returns how many a topic has."""

    def __init__(self, options: MessageOptions, partitions: Callable[[str], int]) -> None:
        self._options = options
        self._partitions = partitions
        self._choice = None if options.tables is None else TableChoice(options.tables)
        how = {"schemas": options.schemas, "transactions": options.transactions, "gtids": options.gtids}
        self._formatter = Formatter(options.format, name=options.store, **how)
        self._keyed = options.format != "canal" if options.keys is None else options.keys
        self._tombstones = options.format in ("json", "debezium") if options.tombstones is None else options.tombstones
        by_table = "{store}.{database}.{table}"
        self._packets = None if options.flat else _canal_packets(options.gtids)
        self._topic = options.topic or (by_table if options.format in ("json", "debezium") else "{store}")
        self._ddl_topic = options.ddl_topic
        if self._ddl_topic is None:
            self._ddl_topic = self._topic if options.format == "canal" else "{store}"
        self._named = lru_cache(maxsize=4096)(self._name)
        self._tables_partition = lru_cache(maxsize=4096)(self._hash_of_table)
        self._native = self._compiled() if COMPILED else None

    def of_payloads(
        self, payloads: Iterator[bytes | memoryview], sequence: int, messages: int = UNLIMITED, size: int = UNLIMITED
    ) -> Made:
        """Make the messages of the next events of `payloads`, which are encoded, the first as number `sequence`: until there are so many, or their values
        have so many bytes, or no event is left. Raises `StoreCorrupt` where one is none."""
        found: list[Message] = []
        bytes_, last = 0, None
        while len(found) < messages and bytes_ < size:
            payload: bytes | memoryview | None
            if self._native is None:
                payload = next(payloads, None)
                sequence += payload is not None
                unsaid = None if payload is None else True
            else:
                thread, now = self._formatter.thread, time.time_ns()
                sequence, payload, unsaid, more, thread = self._native.messages(
                    found, payloads, sequence, thread, now, messages, size - bytes_
                )
                self._formatter.begin(thread)
                bytes_ += more
            if payload is not None:
                last = payload
                if unsaid:
                    first = len(found)
                    with stored_values(sequence - 1):
                        found += self.of_event(decode(payload, sequence - 1))
                    bytes_ += size_of(found[first:])
            if unsaid is None:
                break
        return Made(found, sequence, bytes_, last)

    def of_event(self, event: Event) -> Iterator[Message]:
        """Yield the messages of the next event."""
        wanted = self._choice is None or self._choice.has(event)
        if event.table is None:
            yield from self._of_others(event, wanted)
        elif self._options.format == "canal" and not self._keyed:
            if wanted:
                yield from self._of_canal(event)
        else:
            yield from self._of_rows(event, event.table, wanted)

    # ---------------------------------------------------------------- rows

    def _of_rows(self, event: Event, table: TableSchema, wanted: bool) -> Iterator[Message]:
        """A message for each row, and what follows it."""
        topic, headers = self._named(self._topic, table.database, table.table), self._headers(event)
        form, sequence, by_key = self._options.format, event.sequence, self._options.order == "key"
        # Debezium's documents split an update of the key themselves.
        names = [table.columns[i].name for i in table.primary_key] if self._keyed else []
        parts = _split(event, one_row=form == "canal") if self._keyed and wanted and form != "debezium" else iter(((0, event),))
        for first, part in parts:
            for number, document in enumerate(self._formatter.documents(part, sequence, wanted=wanted), first):
                if self._options.transactions and _is_metadata(document):
                    yield self._metadata(document, event)
                    continue
                row, deleted, values = self._looked_at(document, number, part)
                key = self._key(table, names, values) if names else None
                partition = None if by_key and key is not None else self._partition(topic, table, key)
                yield Message(topic, key, dump(document), partition, sequence, row, headers)
                if deleted and self._tombstones and key is not None:
                    yield Message(topic, key, None, partition, sequence, row, headers)

    def _looked_at(self, document: dict[str, Any], number: int, event: Event) -> tuple[int, bool, Mapping[str, Any]]:
        """A document's row, whether that was deleted, and its values by name, of which the key's are the newest."""
        form = self._options.format
        if form == "debezium":
            payload = document["payload"] if self._options.schemas else document
            return payload["source"]["row"], payload["op"] == "d", (payload["before"] or {}) | (payload["after"] or {})
        if form == "json":
            document["row"] = number  # its own, where an event was split
            return number, document["op"] == "delete", document["pk"]
        deleted = event.type is EventType.DELETE
        if form == "maxwell":
            return number, deleted, dict(zip(document["primary_key_columns"], document["primary_key"], strict=True))
        return number, deleted, _texts(event)

    def _key(self, table: TableSchema, names: Sequence[str], values: Mapping[str, Any]) -> bytes | None:
        """The key as the format has it; None where the image lacks a part of it."""
        key: Mapping[str, Any] = values if self._options.format == "json" else {name: values.get(name) for name in names}
        if None in key.values():
            return None
        if self._options.format == "maxwell":
            key = {"database": table.database, "table": table.table} | {f"pk.{name}": value for name, value in key.items()}
        elif self._options.schemas:
            key = {"schema": debezium.key_schema(self._options.store, table), "payload": key}
        return dump(key)

    def _partition(self, topic: str, table: TableSchema, key: bytes | None) -> int | None:
        order = self._options.order
        if order == "transaction":
            return 0
        if order == "table" or key is None:
            return self._tables_partition(topic, table.database, table.table)
        return None

    def _hash_of_table(self, topic: str, database: str, table: str) -> int:
        return zlib.crc32(f"{database}.{table}".encode()) % max(1, self._partitions(topic))

    # ---------------------------------------------------------------- rows, compiled

    def _compiled(self) -> compiled.RowMessages | None:
        """What makes the messages of rows without an object for each value, for most options."""
        options = self._options
        if not options.flat or options.transactions or self._keyed == (options.format == "canal"):
            return None
        return compiled.RowMessages(
            self._plan,
            Message,
            options.format,
            dump(options.store),
            gtids=options.gtids,
            headers=options.headers,
            tombstones=self._tombstones,
            real=dump,
        )

    def _plan(self, blob: bytes) -> MessagePlan | None:
        """What is to be made of a table's rows; None where `of_event` must say it."""
        table, options = decode_schema(blob), self._options
        owner, name, routing = table.database, table.table, options.routing
        topic, keyed, unkeyed = self._named(self._topic, owner, name), None, None
        unwanted = self._choice is not None and not self._choice.has_table(f"{owner}.{name}")
        if unwanted:
            pass
        elif options.format != "canal":
            if not table.primary_key:
                unkeyed = self._partition(topic, table, None)
            elif options.order != "key":
                keyed = self._partition(topic, table, b"")
        elif routing is None:
            unkeyed = 0
        elif routing.hashes_rows(owner, name):
            return None
        else:
            topic = routing.topic_of(owner, name)
            unkeyed = routing.partition_of(topic, owner, name, {}, ())
        return message_plan(
            table,
            options.format,
            options.store,
            schemas=options.schemas,
            topic=topic,
            keyed=keyed,
            unkeyed=unkeyed,
            unwanted=unwanted,
        )

    # ---------------------------------------------------------------- as Canal

    def _of_canal(self, event: Event) -> Iterator[Message]:
        """One message for each rows event and partition."""
        headers = self._headers(event)
        documents = list(self._formatter.documents(event, event.sequence))
        entries = [b""] * len(documents) if self._packets is None else self._packets.entries(event)
        for document, entry in zip(documents, entries, strict=True):
            topic, parts = self._canal_parts(document)
            for partition, numbers in parts:
                if self._packets is not None:
                    value = self._packets.packet(event, entry, numbers if self._hashed(document) else None)
                elif len(parts) > 1:
                    value = dump(document | {of: [document[of][i] for i in numbers] for of in ("data", "old") if document[of]})
                else:
                    value = dump(document)
                yield Message(topic, None, value, partition, event.sequence, numbers[0], headers)

    def _hashed(self, document: Mapping[str, Any]) -> bool:
        """Whether Canal looks at each row to find its partition; then it takes a message with several rows apart."""
        routing = self._options.routing
        return routing is not None and bool(document["data"]) and routing.hashes_rows(document["database"], document["table"])

    def _canal_parts(self, document: Mapping[str, Any]) -> tuple[str, Sequence[tuple[int, Sequence[int]]]]:
        """The topic of one of Canal's messages, and by partition the numbers of its rows that go there."""
        routing, owner, name = self._options.routing, document["database"], document["table"]
        if routing is None:
            return self._named(self._topic, owner, name), ((0, (0,)),)
        topic = routing.topic_of(owner, name)
        if not document["data"]:
            return topic, ((routing.partition_of_statements, (0,)),)
        parts: dict[int, list[int]] = {}
        for number, row in enumerate(document["data"]):
            parts.setdefault(routing.partition_of(topic, owner, name, row, document["pkNames"] or ()), []).append(number)
        return topic, sorted(parts.items())

    # ---------------------------------------------------------------- what is no row

    def _of_others(self, event: Event, wanted: bool) -> Iterator[Message]:
        """Of a DDL, a statement, or the end of a transaction."""
        options = self._options
        for document in self._formatter.documents(event, event.sequence, wanted=wanted and event.entry in STATEMENTS):
            if _is_metadata(document):
                yield self._metadata(document, event)
                continue
            if not self._ddl_topic:
                continue
            database, _, table = (tables_of(event) or [event.database])[0].partition(".")
            value = dump(document) if self._packets is None else self._packets.packet(event)
            if options.routing is not None:
                topic = options.routing.topic_of(document["database"], document["table"])
                at: Sequence[int] = (options.routing.partition_of_statements,)
            else:
                topic = self._named(self._ddl_topic, database, table)
                at = range(self._partitions(topic)) if options.ddl_partition < 0 else (options.ddl_partition,)
            for partition in at:
                yield Message(topic, None, value, partition, event.sequence, 0, self._headers(event))

    def _metadata(self, document: Mapping[str, Any], event: Event) -> Message:
        """Debezium's message of a transaction that begins or ends."""
        payload = document["payload"] if self._options.schemas else document
        key: Any = {"id": payload["id"]}
        if self._options.schemas:
            key = {"schema": debezium.TRANSACTION_KEY_SCHEMA, "payload": key}
        topic = self._named("{store}.transaction", "", "")
        return Message(topic, dump(key), dump(document), 0, event.sequence, 0, self._headers(event))

    def _name(self, template: str, database: str, table: str) -> str:
        """The topic that a template names: two tables have one only where the template says so."""
        values = {"store": _plain(self._options.store), "database": _escaped(database), "table": _escaped(table)}
        parts = [values[part[1:-1]] if part[:1] == "{" else _plain(part) for part in _PARTS.split(template)]
        name = "".join(parts).strip(".")
        if len(name) > LONGEST_TOPIC:
            name = f"{name[: LONGEST_TOPIC - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        return name or values["store"]  # a statement without a table has an empty {table}

    def _headers(self, event: Event) -> Sequence[tuple[str, bytes]]:
        """Where the message comes from."""
        if not self._options.headers:
            return ()
        position = event.position
        found = [
            ("shmstore.position", f"{position.file}:{position.offset}".encode()),
            ("shmstore.sequence", str(event.sequence).encode()),
        ]
        if event.transaction:
            found.append(("shmstore.transaction", event.transaction.encode()))
        return found


def _canal_packets(gtids: bool) -> CanalPackets:
    try:
        from shmstore.consumer.queues.canal_packets import CanalPackets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"Canal's protobuf needs protobuf: {install('server')}", name=error.name) from error
    return CanalPackets(gtids)


def _plain(text: str) -> str:
    return _NOT_IN_TOPICS.sub("_", text)


def _escaped(name: str) -> str:
    """A database's or table's name in a topic: other names stay other. Each UTF-16 unit that no topic can have, and a dot, is ``_u`` and four digits."""

    def units(found: re.Match[str]) -> str:
        pairs = found[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join([f"_u{pairs[i : i + 4]}" for i in range(0, len(pairs), 4)])

    return _NOT_IN_NAMES.sub(units, name)


def _texts(event: Event) -> dict[str, str]:
    """The key's values of an event of one row as Canal's text."""
    table, row = event.table, event.rows[0]
    assert table is not None
    shown = renderings(table, Values.CANAL)
    found = {}
    for i in table.primary_key:
        value = next((image[i] for image in (row.after, row.before) if image is not None and image[i] is not ABSENT), None)
        if value is not None:
            found[table.columns[i].name] = shown[i].text(value)
    return found


def _is_metadata(document: Mapping[str, Any]) -> bool:
    payload = document.get("payload", document)
    return "status" in payload and "data_collections" in payload


def _split(event: Event, one_row: bool = False) -> Iterator[tuple[int, Event]]:
    """Yield (number of its first row, part) in order: an update that changes the key as a delete and an insert, with `one_row` every row."""
    table = event.table
    assert table is not None
    updates = event.type is EventType.UPDATE
    changed = [updates and key_changes(row, table.primary_key) for row in event.rows]
    if not one_row and not any(changed):
        yield 0, event
        return
    first = 0  # of the rows that are not yielded yet
    for number, (row, other) in enumerate(zip(event.rows, changed, strict=True)):
        if first < number and (other or one_row):
            yield first, event._replace(rows=event.rows[first:number])
            first = number
        if other:
            before, after = filled(row)
            yield number, event._replace(type=EventType.DELETE, rows=(Row(before, None),))
            yield number, event._replace(type=EventType.INSERT, rows=(Row(None, after),))
            first = number + 1
    if first < len(event.rows):
        yield first, event._replace(rows=event.rows[first:])
