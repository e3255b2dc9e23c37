"""The columns of a table, as a typed query is planned with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from consumer.spark.lease import attach
from consumer.spark.options import Options
from consumer.spark.spool import find_schema
from shmstore import EventStore, SchemaUnknown, state_directory
from shmstore.codec import decode_schema, decode_stored, encode_schema
from shmstore.event import EntryType, TableSchema


def find_table(options: Options) -> TableSchema:
    """Return the newest columns of the one table that `options` names.

    They come from the newest event of the table in the ring; where the ring has moved on, from what an earlier query saw,
    which is kept beside the checkpoints. Raises `SchemaUnknown` where the table was never seen.
    """
    database, table = options.tables[0].split(".")
    folder = Path(options.state_directory or state_directory()) / options.store / "tables"
    kept = folder / f"{database}.{table}.msgpack"
    if options.spool is not None:
        found = find_schema(options, database, table)
    else:
        with attach(options, 0.0) as store:
            found = newest_schema(store, database, table)
    if found is not None:
        blob = encode_schema(found)
        if not kept.exists() or kept.read_bytes() != blob:
            folder.mkdir(parents=True, exist_ok=True)
            fresh = kept.with_suffix(".new")
            fresh.write_bytes(blob)
            fresh.replace(kept)
        return found
    if kept.exists():
        return decode_schema(kept.read_bytes())
    raise SchemaUnknown(
        f"store {options.store!r} holds no row of {database}.{table}, so its columns are not known yet: start the query after its "
        "first change or with a snapshot, or read with payload=json"
    )


def newest_schema(store: EventStore, database: str, table: str) -> TableSchema | None:
    """Return the columns of a table in its newest rows event in the ring, or None."""
    last = store.newest
    while last >= store.oldest:
        first = max(store.oldest, last - 1023)
        batch = store.peek(first, limit_events=last - first + 1)
        payloads = list(batch.payloads())
        for i in np.flatnonzero(batch.slots["entry"] == EntryType.ROWS)[::-1].tolist():
            schema = decode_stored(payloads[i])[1]
            if schema is not None:
                found = decode_schema(schema)
                if (found.database, found.table) == (database, table):
                    return found
        last = first - 1
    return None
