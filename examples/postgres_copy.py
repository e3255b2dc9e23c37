"""A table's rows in PostgreSQL, each change applied exactly once: ``python examples/postgres_copy.py STORE 'host=db dbname=lake user=lake'``.

STORE is a store's name, or the URL of one on another host (grpc://HOST:8815/orders).

The rows of a batch and its last sequence are committed together, and the batch is acked afterwards. A process that dies between the two
knows by the sequence what was committed, and reads on behind it. A batch is committed once the store's log has it on disk, so that no
power cut gives its sequences to other events. When a store without a log is created again, what was committed since the subscription's
last checkpoint (about a second) comes again; rows are written by key, so the table ends up the same.
"""

import sys
from collections.abc import Mapping
from typing import Any

import psycopg

from shmstore import Batch, Consumer

TABLES = """
CREATE TABLE IF NOT EXISTS progress (reader text PRIMARY KEY, epoch text NOT NULL, sequence bigint NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, customer_id bigint, total numeric(14, 4), placed timestamp(6), status text);
"""
PUT = """
INSERT INTO orders VALUES (%(id)s, %(customer_id)s, %(total)s, %(placed)s, %(status)s)
ON CONFLICT (id) DO UPDATE SET (customer_id, total, placed, status) = (excluded.customer_id, excluded.total, excluded.placed, excluded.status)
"""
PROGRESS = """
INSERT INTO progress VALUES (%s, %s, %s)
ON CONFLICT (reader) DO UPDATE SET (epoch, sequence) = (excluded.epoch, excluded.sequence)
"""


def committed(database: psycopg.Connection[Any], reader: str, epoch: int) -> int:
    """Return the last sequence that was committed of this life of the store; -1 for none."""
    row = database.execute("SELECT sequence FROM progress WHERE reader = %s AND epoch = %s", [reader, str(epoch)]).fetchone()
    return -1 if row is None else int(row[0])


def newest(batch: Batch) -> dict[int, Mapping[str, Any] | None]:
    """Return the last state of each order that the batch changed: its columns, or None where it was deleted."""
    states: dict[int, Mapping[str, Any] | None] = {}
    for event in batch:
        if event.table is None or (event.table.database, event.table.table) != ("shop", "orders"):
            continue
        for before, after in event.records():
            if before is not None:
                states[before["id"]] = None  # an update may have changed the key
            if after is not None:
                states[after["id"]] = after
    return states


def commit(database: psycopg.Connection[Any], reader: str, epoch: int, batch: Batch) -> None:
    """Commit a batch's rows and its last sequence, both or neither."""
    states = newest(batch)
    with database.transaction(), database.cursor() as cursor:
        cursor.executemany("DELETE FROM orders WHERE id = %s", [(key,) for key, row in states.items() if row is None])
        cursor.executemany(PUT, [row for row in states.values() if row is not None])
        cursor.execute(PROGRESS, [reader, str(epoch), batch.last])


def run(store: str, conninfo: str, *, reader: str = "postgres", timeout: float | None = None) -> int:
    """Commit batches as they come; end when none came for `timeout` seconds. Returns how many were committed."""
    count = 0
    with psycopg.connect(conninfo, autocommit=True) as database, Consumer(store, reader, timeout=timeout) as consumer:
        database.execute(TABLES)
        epoch = consumer.store.epoch
        consumer.resume(epoch, committed(database, reader, epoch))
        for batch in consumer:
            consumer.sync(batch)  # or a power cut could take this batch back
            commit(database, reader, epoch, batch)
            count += 1
    return count


if __name__ == "__main__":
    run(*sys.argv[1:3])
