"""What each customer has ordered, in PostgreSQL, each change counted exactly once: ``python examples/postgres_totals.py STORE 'host=db dbname=lake'``.

STORE is a store's name, or the URL of one on another host (grpc://HOST:8815/orders).

A total is added to, so a change that came a second time would be counted twice. The totals of a batch and its last sequence are committed together, and
the batch is acked afterwards. A process that dies between the two knows by the sequence what was committed, and continues after it. A batch is
committed once the store's log has it on disk, so that no power cut gives its sequences to other events.
"""

import sys
from collections import defaultdict
from decimal import Decimal
from typing import Any

import psycopg

from shmstore import Batch, Consumer

TABLES = """
CREATE TABLE IF NOT EXISTS progress (reader text PRIMARY KEY, epoch text NOT NULL, sequence bigint NOT NULL);
CREATE TABLE IF NOT EXISTS totals (customer bigint PRIMARY KEY, orders bigint NOT NULL, total numeric NOT NULL);
"""
ADD = """
INSERT INTO totals VALUES (%s, %s, %s)
ON CONFLICT (customer) DO UPDATE SET orders = totals.orders + excluded.orders, total = totals.total + excluded.total
"""
PROGRESS = """
INSERT INTO progress VALUES (%s, %s, %s)
ON CONFLICT (reader) DO UPDATE SET (epoch, sequence) = (excluded.epoch, excluded.sequence)
"""


def committed(database: psycopg.Connection[Any], reader: str, epoch: int) -> int:
    """Return the last sequence that was committed of this life of the store; -1 for none."""
    row = database.execute("SELECT sequence FROM progress WHERE reader = %s AND epoch = %s", [reader, str(epoch)]).fetchone()
    return -1 if row is None else int(row[0])


def added(batch: Batch) -> dict[int, tuple[int, Decimal]]:
    """Return what a batch adds to each customer's orders and their total."""
    sums: dict[int, list[Any]] = defaultdict(lambda: [0, Decimal(0)])
    for event in batch:
        if event.table is None or (event.table.database, event.table.table) != ("shop", "orders"):
            continue
        for before, after in event.records():
            for row, sign in ((before, -1), (after, 1)):
                if row is not None:
                    sums[row["customer_id"]][0] += sign
                    sums[row["customer_id"]][1] += sign * row["total"]
    return {customer: (orders, total) for customer, (orders, total) in sums.items()}


def commit(database: psycopg.Connection[Any], reader: str, epoch: int, batch: Batch) -> None:
    """Commit a batch's totals and its last sequence, both or neither."""
    with database.transaction(), database.cursor() as cursor:
        cursor.executemany(ADD, [(customer, *sums) for customer, sums in added(batch).items()])
        cursor.execute(PROGRESS, [reader, str(epoch), batch.last])


def run(store: str, conninfo: str, *, reader: str = "totals", timeout: float | None = None) -> int:
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
