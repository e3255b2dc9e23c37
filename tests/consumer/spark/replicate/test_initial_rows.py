"""`replicate(snapshot=True)`: a real server, producer and query; copies begin with the rows that were there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from shmstore import EventStore
from shmstore.consumer.spark.replicate.replicate import replicate
from shmstore.home.snapshots import snapshot_status
from tests.consumer.spark.events import Binlog, order_row
from tests.producer.running import execute, running, wait_for
from tests.servers.server import Server

pytestmark = pytest.mark.spark


def ids(folder: Path, database: str, table: str) -> set[int] | None:
    path = str(folder / database / table)
    return set(DeltaTable(path).to_pyarrow_table().column("id").to_pylist()) if DeltaTable.is_deltatable(path) else None


@pytest.mark.server
def test_copies_begin_with_the_rows_that_are_there(
    mariadb: Server, database: str, spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All tables, empty ones too, are asked for once the query reads, and the log says how far that is; later only those without a copy."""
    caplog.set_level(logging.INFO, "shmstore")
    for table in ("full", "bare", "t,wo x"):
        execute(mariadb, database, f"CREATE TABLE `{table}` (id INT PRIMARY KEY, t TEXT)")
    execute(mariadb, database, "INSERT INTO full SELECT seq, 'x' FROM seq_1_to_5000", "INSERT INTO `t,wo x` VALUES (7, 'y')")
    with running(mariadb, include=(f"{database}.*",), snapshot_chunk=1000) as run:
        settings = run.settings
        wait_for(lambda: settings.store in EventStore.names(), "the store")

        def query() -> Any:
            given = {
                "store": settings.store,
                "tables": f"{database}.*,!{database}.out",
                "target": f"{tmp_path}/lake/{{database}}/{{table}}",
            }
            return replicate(spark, **given, options={"storeTimeout": "5"}, snapshot=True)

        def copied(table: str, wanted: set[int]) -> None:
            wait_for(lambda: started.exception() is not None or ids(tmp_path / "lake", database, table) == wanted, table)
            assert started.exception() is None

        started = query()
        try:
            copied("full", set(range(1, 5001)))
            copied("bare", set())
            copied("t,wo x", {7})
            wait_for(lambda: "initial rows: 3 tables, 5,001 rows in the store: done" in caplog.text, "the log")
        finally:
            started.stop()
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")  # so that the stream has nothing of it
            cursor.execute("CREATE TABLE late (id INT PRIMARY KEY)")
            cursor.execute("CREATE TABLE `out` (id INT PRIMARY KEY)")
            cursor.execute("INSERT INTO late VALUES (1), (2)")
        caplog.clear()
        started = query()
        try:
            copied("late", {1, 2})
            progress = snapshot_status(settings.store)
            assert progress is not None
            assert {task.table for task in progress.tasks if task.request == progress.requests[-1].id} == {"late"}
        finally:
            started.stop()
        started = query()
        try:
            wait_for(lambda: "initial rows: 0 tables" in caplog.text, "the log")
        finally:
            started.stop()


def test_a_store_without_snapshots(spark: Any, store: EventStore, store_name: str, tmp_path: Path, binlog: Binlog) -> None:
    """What cannot work is an error before a query runs: several sources, an object store whose folders cannot be listed."""
    store.put(binlog.insert(order_row(1)))
    with pytest.raises(ValueError, match="cannot be listed: an object store lists the folders of one folder"):
        replicate(spark, store=store_name, target="s3://lake/{database}/{table}", snapshot=True, checkpoint=str(tmp_path))
