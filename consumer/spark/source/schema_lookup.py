"""The columns of a table, as a typed query is planned with them."""

from __future__ import annotations

import difflib
import time
from contextlib import suppress
from typing import NamedTuple

from shmstore import CheckpointFile, EventStore, PositionNotFound, SchemaUnknown, StoreError
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.offset import Offset
from shmstore.consumer.spark.source.subscription_owner import attach
from shmstore.consumer.spark.spark_version import has_read_limits
from shmstore.consumer.table_schemas import defined, next_schema, schemas
from shmstore.encoding.codec import decode_schema
from shmstore.event import TableSchema
from shmstore.home.reader_state import planned_end

_LOOK_SECONDS = 0.5


class FoundTable(NamedTuple):
    """A table's columns, and the epoch and the number of the event that they hold from."""

    schema: TableSchema
    since: tuple[int, int]


def find_table(options: SourceOptions) -> FoundTable:
    """Return the columns that the one table that `options` names has in the row that the query reads next.

    Where no row of it is in the store that the query has not read, all are still to come: then those that it has where the store ends, as the
    producer wrote them down. Rows behind a DDL have others, which is `schemaChanges`' matter. A table that is not known yet is waited for
    as long as `tableTimeout` says.
    Raises `SchemaUnknown` where the table is not known then.
    """
    table = options.tables.one
    deadline = time.monotonic() + options.table_timeout
    while True:
        with attach(options) as store:
            found = next_schema(store, table, _first_to_read(store, options))
            if found is not None:
                return FoundTable(found.schema, (store.epoch, found.sequence))
            if time.monotonic() >= deadline:
                raise SchemaUnknown(
                    f"store {options.store!r} knows no table {table}: its producer has not seen one of that name, and the store has no "
                    "row of it. Create it first, or wait for it with tableTimeout=SECONDS, or read with payload=json"
                    + _what_is_there(store, table)
                )
        time.sleep(_LOOK_SECONDS)


def _first_to_read(store: EventStore, options: SourceOptions) -> int:
    """The first event that the query reads: a query continues behind what its subscription acked, a new one begins where its option says.

    Spark before 4.2 does not say that the last micro-batch of a run is done; one that ended in front of a DDL is taken to be. Where that is wrong, the
    query says so at its first micro-batch, and is planned from its ack when it is started again.
    """
    name, start = options.subscription, options.start
    for each in store.stat().subscriptions:
        if each.name == name:
            planned = -1 if has_read_limits() else planned_end(store.home, name, store.epoch)
            return max(each.ack.sequence + 1, planned + 1, store.oldest)
    with suppress(PositionNotFound, StoreError, ValueError):
        saved = CheckpointFile.of(store.home, name).load()
        if saved is not None:
            return saved.sequence + 1 if saved.epoch == store.epoch else store.find(saved.position)
        if start.kind == "offset":
            offset = Offset.of(start.value)
            return offset.seq + 1 if offset.epoch == store.epoch else store.oldest
        if start.kind != "committed":
            return store.find(start.place)
    return store.oldest


def _what_is_there(store: EventStore, name: str) -> str:
    """The tables that are known, and the reader that keeps the store from having rows of more."""
    known = {f"{schema.database}.{schema.table}" for schema in map(decode_schema, schemas(store, store.oldest, store.newest))}
    names = sorted(known | defined(store).keys())
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    text = f". It knows {', '.join(names[:5])}{more}" if names else ". It knows no table"
    if close:
        text += f"; did you mean {close[0]}?"
    return text + holdup_of(store)


def holdup_of(store: EventStore, but: str = "") -> str:
    """The message if nothing new comes because a reader other than `but` makes no progress; empty if there is none."""
    stat = store.stat()
    if stat.space_wanted is None or stat.slowest is None or stat.slowest.name == but:
        return ""
    return f". Its ring is full, and the producer waits: {stat.holdup}"
