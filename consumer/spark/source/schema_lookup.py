"""The columns of a table, as a typed query is planned with them."""

from __future__ import annotations

import difflib
import time
from contextlib import suppress

from shmstore import EventStore, PositionNotFound, SchemaUnknown, StoreError
from shmstore.consumer.row_schemas import schemas
from shmstore.consumer.spark.options import Options
from shmstore.consumer.spark.source.subscription_owner import attach
from shmstore.encoding.codec import decode_schema, split_stored
from shmstore.event import TableSchema
from shmstore.home.definitions import Definition, DefinitionsFile, definition_of, position_in, sources_of

_LOOK_SECONDS = 0.5


def find_table(options: Options) -> TableSchema:
    """Return the columns that the one table that `options` names has in the rows that the query will read.

    Those of its newest rows in the store, as far as the query has them before it. Where it has none, all its rows are still to come:
    then those that it has where the store ends, as the producer wrote them down. Rows behind another DDL have others, which is
    `schemaChanges`' matter. A table that is not known yet is waited for as long as `tableTimeout` says.
    Raises `SchemaUnknown` where the table is not known then.
    """
    database, table = options.tables.one.split(".", 1)
    deadline = time.monotonic() + options.table_timeout
    while True:
        with attach(options, 0.0) as store:
            found = _look(store, options, database, table)
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                raise SchemaUnknown(
                    f"store {options.store!r} knows no table {database}.{table}: its producer has not seen one of that name, and the store has no "
                    "row of it. Create it first, or wait for it with tableTimeout=SECONDS, or read with payload=json"
                    + _what_is_there(store, options, f"{database}.{table}")
                )
        time.sleep(_LOOK_SECONDS)


def _look(store: EventStore, options: Options, database: str, table: str) -> TableSchema | None:
    defined = _definition(store, options, database, table)
    first = _first_to_read(store, options)
    if defined is not None and defined.schema is not None and first <= store.newest and _stands_behind(store, first, defined):
        return defined.schema  # so have all rows from there on: no need to look for one
    rows = newest_schema(store, database, table, first)
    if rows is not None:
        return rows
    return defined.schema if defined is not None else newest_schema(store, database, table, store.oldest)


def _first_to_read(store: EventStore, options: Options) -> int:
    """The first event that the query reads, about: a query goes on behind what its subscription acked, a new one begins where it is told."""
    for each in store.stat().subscriptions:
        if each.name == options.subscription:
            return max(each.ack.sequence + 1, store.oldest)
    start = options.start
    with suppress(PositionNotFound, StoreError, ValueError):
        if start.kind not in ("committed", "offset"):
            return store.find(start.place)
    return store.oldest


def _definition(store: EventStore, options: Options, database: str, table: str) -> Definition | None:
    """How the table is defined where the store ends; of several sources the first that has such a table."""
    end = store.last_ack_point()
    for source in sources_of(store.home):
        file = DefinitionsFile(store.home, source)
        with suppress(StoreError):  # not ours to read: rows may say it, or else the error does
            found = definition_of(file, database, table, position_in(end, source))
            if found is not None and found.schema is not None:
                return found
    return None


def _stands_behind(store: EventStore, first: int, defined: Definition) -> bool:
    """Whether event `first` comes behind what gave the table its definition; False where that is unknown: in a store of several sources."""
    for payload in store.peek(first, limit_events=1).payloads():
        position = split_stored(payload)[0].position
        return bool(position.file) and not position.of_group and defined.reached_by(position)
    return False


def _what_is_there(store: EventStore, options: Options, name: str) -> str:
    """The tables that are known, and the reader that keeps the store from having rows of more."""
    known = {f"{schema.database}.{schema.table}" for schema in map(decode_schema, schemas(store, store.oldest, store.newest))}
    for source in sources_of(store.home):
        last = {one.name: one for one in DefinitionsFile(store.home, source).read()}
        known |= {".".join(one.name) for one in last.values() if one.schema is not None}
    names = sorted(known)
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


def newest_schema(store: EventStore, database: str, table: str, first: int) -> TableSchema | None:
    """Return the columns of a table in its newest rows event from event `first` on, or None."""
    for found in map(decode_schema, schemas(store, first, store.newest)):
        if (found.database, found.table) == (database, table):
            return found
    return None
