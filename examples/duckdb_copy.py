"""Every change of a table in a DuckDB file, and the table as it is now: ``python examples/duckdb_copy.py STORE FILE``.

The rows of a batch and its last sequence are written in one transaction. A batch that was written but not acked, because the process
died in between, is known by that sequence: reading continues after it. A batch is written once the store's log has it on disk, so that
no power cut gives its sequences to other events.
"""

import sys

import duckdb
import pyarrow as pa

from shmstore import Batch, Consumer

TABLES = """
CREATE TABLE IF NOT EXISTS progress (epoch VARCHAR, sequence BIGINT);
CREATE TABLE IF NOT EXISTS changes (
    first BIGINT, number BIGINT, op VARCHAR, ts_ms BIGINT, old_id BIGINT, id BIGINT, customer_id BIGINT, total DECIMAL(14, 4)
);
CREATE VIEW IF NOT EXISTS orders AS
SELECT id, customer_id, total FROM (
    SELECT * FROM (
        SELECT first, number, 0 AS part, old_id AS id, NULL AS customer_id, NULL AS total FROM changes WHERE old_id IS NOT NULL
        UNION ALL
        SELECT first, number, 1 AS part, id, customer_id, total FROM changes WHERE id IS NOT NULL
    ) QUALIFY row_number() OVER (PARTITION BY id ORDER BY first DESC, number DESC, part DESC) = 1
) WHERE part = 1;
"""


def open_file(path: str) -> duckdb.DuckDBPyConnection:
    """Open the file; make its tables where they are missing."""
    database = duckdb.connect(path)
    database.execute(TABLES)
    return database


def written(database: duckdb.DuckDBPyConnection, epoch: int) -> int:
    """Return the last sequence that the file holds of this life of the store; -1 for none."""
    row = database.execute("SELECT max(sequence) FROM progress WHERE epoch = ?", [str(epoch)]).fetchone()
    return -1 if row is None or row[0] is None else int(row[0])


def write(database: duckdb.DuckDBPyConnection, epoch: int, batch: Batch) -> None:
    """Write a batch and its last sequence, both or neither."""
    rows = batch.to_arrow("shop.orders")
    database.begin()
    try:
        if rows.num_rows:
            rows = rows.append_column("number", pa.array(range(rows.num_rows), pa.int64()))
            database.register("batch_rows", rows)
            columns = "op, ts_ms, before.id, after.id, after.customer_id, after.total"
            database.execute(f"INSERT INTO changes SELECT ?, number, {columns} FROM batch_rows", [batch.first])
            database.unregister("batch_rows")
        database.execute("DELETE FROM progress")
        database.execute("INSERT INTO progress VALUES (?, ?)", [str(epoch), batch.last])
        database.commit()
    except BaseException:
        database.rollback()
        raise


def run(store: str, path: str, *, timeout: float | None = None) -> None:
    """Write batches as they come; end when none came for `timeout` seconds."""
    with open_file(path) as database, Consumer(store, "duckdb", timeout=timeout) as consumer:
        epoch = consumer.store.epoch
        consumer.resume(epoch, written(database, epoch))
        for batch in consumer:
            consumer.sync(batch)  # or a power cut could take this batch back
            write(database, epoch, batch)


if __name__ == "__main__":
    run(*sys.argv[1:3])
