"""The columns of a table, as a typed query is planned with them."""

from __future__ import annotations

import difflib
import time
from contextlib import suppress

from shmstore import EventStore, PositionNotFound, SchemaUnknown, StoreError
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.subscription_owner import attach
from shmstore.consumer.table_schemas import defined, find_schema, schemas
from shmstore.encoding.codec import decode_schema
from shmstore.event import TableSchema

_LOOK_SECONDS = 0.5


def find_table(options: SourceOptions) -> TableSchema:
    """Return the columns that the one table that `options` names has in the rows that the query will read.

    Those of its newest rows in the store, as far as the query has them before it. Where it has none, all its rows are still to come:
    then those that it has where the store ends, as the producer wrote them down. Rows behind another DDL have others, which is
    `schemaChanges`' matter. A table that is not known yet is waited for as long as `tableTimeout` says.
    Raises `SchemaUnknown` where the table is not known then.
    """
    table = options.tables.one
    deadline = time.monotonic() + options.table_timeout
    while True:
        with attach(options) as store:
            found = find_schema(store, table, _first_to_read(store, options))
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                raise SchemaUnknown(
                    f"store {options.store!r} knows no table {table}: its producer has not seen one of that name, and the store has no "
                    "row of it. Create it first, or wait for it with tableTimeout=SECONDS, or read with payload=json"
                    + _what_is_there(store, table)
                )
        time.sleep(_LOOK_SECONDS)


def _first_to_read(store: EventStore, options: SourceOptions) -> int:
    """The first event that the query reads, about: a query goes on behind what its subscription acked, a new one begins where it is told."""
    for each in store.stat().subscriptions:
        if each.name == options.subscription:
            return max(each.ack.sequence + 1, store.oldest)
    start = options.start
    with suppress(PositionNotFound, StoreError, ValueError):
        if start.kind not in ("committed", "offset"):
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
    """The message if nothing new comes because a reader other than `but` does not read on; empty if there is none."""
    stat = store.stat()
    if stat.space_wanted is None or stat.slowest is None or stat.slowest.name == but:
        return ""
    return f". Its ring is full, and the producer waits: {stat.holdup}"
