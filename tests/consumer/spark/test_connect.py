"""Spark Connect: a server and a client without a JVM, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from shmstore import EventStore
from tests.consumer.spark.events import Binlog, order_row

pytestmark = [pytest.mark.spark, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[3]


def test_a_session_of_spark_connect(store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path) -> None:
    """Streams, batch reads and copies work; what needs the driver's JVM is refused at once, and leaves no subscription behind."""
    store.put([*binlog.insert(order_row(1), order_row(2)), *binlog.delete(order_row(2)), *binlog.insert(order_row(3))])
    store.subscribe("holder")  # acks nothing
    command = [sys.executable, str(Path(__file__).with_name("connect_client.py")), store_name, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    environment |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with open(tmp_path / "log", "wb") as log:
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True)
        try:
            output, _ = client.communicate(timeout=240)
        finally:
            os.killpg(client.pid, signal.SIGKILL)  # the server is of its group
    found = json.loads(output)
    log_text = (tmp_path / "log").read_text(errors="replace")[-4000:]
    assert set(found) == {"stream", "batch", "iceberg"}, log_text
    assert sorted(filter(None, found["stream"])) == [1, 2, 3], log_text  # a deleted row has no `after`
    assert found["batch"] == 4
    assert "driver's JVM" in found["iceberg"]
    with closing(sqlite3.connect(tmp_path / "copies.db")) as file:
        assert file.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(1,), (3,)]
    copy = DeltaTable(str(tmp_path / "shop" / "orders"))
    assert sorted(copy.to_pyarrow_table().column("id").to_pylist()) == [1, 3]
    query = json.loads((tmp_path / "_checkpoint" / "metadata").read_text())["id"]
    assert copy.transaction_version(query) is not None, "the copy does not know its query"
    assert sorted(one.name for one in store.subscriptions()) == ["database", "holder", "replicate", "stream"]
