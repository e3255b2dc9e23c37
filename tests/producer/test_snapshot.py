"""Snapshots on real servers: what a reader has that keeps rows by key is what SELECT shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import producer
from shmstore import EventType
from tests.producer.running import events_of, execute, running, wait_for
from tests.producer.snapping import Load, copied, fill, finished, select, states
from tests.servers.server import Server

pytestmark = pytest.mark.server


@pytest.fixture
def options(tmp_path: Path, database: str) -> dict[str, Any]:
    return {
        "state": str(tmp_path),
        "include": (f"{database}.*",),
        "capacity": 65536,
        "snapshot": "initial",
        "snapshot_chunk": 500,
        "transaction_bytes": 64 << 10,
    }


def test_an_initial_snapshot_under_load_ends_equal_to_select(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Inserts, updates, deletes, key changes, rollbacks and a DDL go on while the table is read, chunk by chunk."""
    fill(any_server, database, 12_000)
    load = Load(any_server, database, seed=11, rows=13_000)
    try:
        with running(any_server, **options) as run:
            wait_for(lambda: finished(run) or load.count > 150, "some load")
            execute(any_server, database, "ALTER TABLE t ADD COLUMN more int DEFAULT 7")
            wait_for(lambda: finished(run), "the snapshot")
            load.stop()
            copy = copied(run, any_server)
    finally:
        load._stop.set()
    assert copy.tables["t"] == select(any_server, database, "t")
    assert copy.chunks > 20
    assert copy.reads > 9000
