"""A typed query, and a copy, that are started before their table has a row, on a real server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from tests.producer.running import execute, running, wait_for_position
from tests.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.every_spark]


def test_a_typed_query_from_the_first_moment(mariadb: Server, database: str, spark: Any, state: Path, tmp_path: Path) -> None:
    """It has its columns before the first row, and waits for a table that does not exist yet."""
    execute(mariadb, database, "CREATE TABLE early (id INT PRIMARY KEY, amount DECIMAL(9,2), flag TINYINT(1), u UUID)")
    with running(mariadb, include=(f"{database}.*",), state=str(state)) as run:
        options = {"store": run.settings.store, "stateDirectory": str(state), "tableTimeout": "120"}
        columns: list[str] = []

        def wait_for_table() -> None:
            frame = spark.readStream.format("shmstore").options(**options, tables=f"{database}.late").load()
            columns.extend(field.simpleString() for field in frame.schema["after"].dataType)

        waiting = threading.Thread(target=wait_for_table, daemon=True)
        waiting.start()
        changes = spark.readStream.format("shmstore").options(**options, tables=f"{database}.early").load()
        rows = changes.selectExpr("after.*")
        assert [field.simpleString() for field in rows.schema] == [*("id:int", "amount:decimal(9,2)", "flag:tinyint", "u:string")]
        writer = rows.writeStream.format("memory").queryName("early").option("checkpointLocation", str(tmp_path / "early"))
        query = writer.start()
        execute(
            mariadb,
            database,
            "INSERT INTO early VALUES (1, 1.5, 1, '123e4567-e89b-12d3-a456-426655440000')",
            "CREATE TABLE late (id INT PRIMARY KEY, note VARCHAR(9))",
        )
        with EventStore.attach(run.settings.store) as store:
            wait_for_position(mariadb, store, put=True)
        query.processAllAvailable()
        query.stop()
        assert [tuple(map(str, row)) for row in spark.table("early").collect()] == [
            ("1", "1.50", "1", "123e4567-e89b-12d3-a456-426655440000")
        ]
        waiting.join(120)
        assert columns == ["id:int", "note:string"]
