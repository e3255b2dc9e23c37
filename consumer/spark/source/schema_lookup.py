"""The columns of a table, as a typed query is planned with them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shmstore import EventStore, SchemaUnknown, state_directory
from shmstore.atomic_file import replace
from shmstore.consumer.spark.options import Options
from shmstore.consumer.spark.source.subscription_owner import attach
from shmstore.encoding.codec import decode_schema, encode_schema, split_stored
from shmstore.event import EntryType, TableSchema


def find_table(options: Options) -> TableSchema:
    """Return the newest columns of the one table that `options` names.

    They come from the newest event of the table in the ring; if the ring holds none, from a file that an earlier query wrote
    next to the checkpoints. Raises `SchemaUnknown` where the table was never seen.
    """
    database, table = options.tables.one.split(".", 1)
    folder = Path(options.state_directory or state_directory()) / options.store / "tables"
    kept = folder / f"{database}.{table}.msgpack"
    with attach(options, 0.0) as store:
        found = newest_schema(store, database, table)
        there = "" if found is not None or kept.exists() else _what_is_there(store, f"{database}.{table}")
    if found is not None:
        blob = encode_schema(found)
        if not kept.exists() or kept.read_bytes() != blob:
            replace(kept, lambda at: at.write_bytes(blob), "columns of a table", "name another folder with stateDirectory")
        return found
    if kept.exists():
        return decode_schema(kept.read_bytes())
    raise SchemaUnknown(
        f"store {options.store!r} holds no row of {database}.{table}, so its columns are not known yet: start the query after its "
        f"first change or with a snapshot (`shmstore snapshot {options.store} --tables {database}.{table}`), or read with payload=json"
        f"{there}"
    )


def _what_is_there(store: EventStore, name: str) -> str:
    """The tables of which the store has rows, and the reader that keeps it from having more."""
    names = sorted({f"{schema.database}.{schema.table}" for schema in map(decode_schema, schemas(store))})
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    text = f". It holds rows of {', '.join(names[:5])}{more}" if names else ". It holds no rows"
    if close:
        text += f"; did you mean {close[0]}?"
    return text + holdup_of(store)


def holdup_of(store: EventStore, but: str = "") -> str:
    """The message if nothing new comes because a reader other than `but` does not read on; empty if there is none."""
    stat = store.stat()
    if stat.space_wanted is None or stat.slowest is None or stat.slowest.name == but:
        return ""
    return f". Its ring is full, and the producer waits: {stat.holdup}"


def newest_schema(store: EventStore, database: str, table: str) -> TableSchema | None:
    """Return the columns of a table in its newest rows event in the ring, or None."""
    for schema in schemas(store):
        found = decode_schema(schema)
        if (found.database, found.table) == (database, table):
            return found
    return None


def schemas(store: EventStore) -> Iterator[bytes]:
    """Yield the columns of the tables of which the ring has rows, encoded, newest first."""
    known: set[bytes] = set()
    last = store.newest
    while last >= store.oldest:
        first = max(store.oldest, last - 1023)
        batch = store.peek(first, limit_events=last - first + 1)
        payloads = list(batch.payloads())
        for i in np.flatnonzero(batch.slots["entry"] == EntryType.ROWS)[::-1].tolist():
            schema = split_stored(payloads[i])[1]
            if schema is not None and schema not in known:
                known.add(schema)
                yield schema
        last = first - 1
