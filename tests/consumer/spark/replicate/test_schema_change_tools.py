"""Copies of a table that gh-ost or pt-online-schema-change alters under load."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from shmstore.cli.commands.snapshot import page
from shmstore.home.snapshots import snapshot_status
from tests.consumer.spark.replicate.test_random_alter import lake
from tests.producer.snapping import Load, fill
from tests.servers.schema_change import gh_ost_statements, pt_online_schema_change
from tests.servers.server import Server


@pytest.mark.server
@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        pytest.param("mariadb", pt_online_schema_change, id="mariadb-pt-online-schema-change"),
        pytest.param("mysql", gh_ost_statements, id="mysql-gh-ost"),
        pytest.param("mysql", pt_online_schema_change, id="mysql-pt-online-schema-change", marks=pytest.mark.long),
        pytest.param("mariadb", gh_ost_statements, id="mariadb-gh-ost", marks=pytest.mark.long),
    ],
)
def test_copies_stay_equal(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, seed: int, tool: Callable[[Server, str, str, str], None]
) -> None:
    """The copy has the columns and rows that SELECT shows behind the change, there is none of a ghost table; nothing is set
    aside, and no snapshot is reported as failed."""
    server: Server = request.getfixturevalue(kind)
    with lake(server, kind, f"tools_{kind}", tmp_path, random.Random(seed), ["parquet"], {}, None) as made:
        database, replication = made.author.database, made.followers[0].replication
        made.followers[0].restarts = 0.0
        fill(server, database, 2_000)
        made.author.tables.append("t")
        made.settle()
        load = Load(server, database, seed, 2_000, pause=0.002, moves=False)
        try:
            tool(server, database, "t", "ADD COLUMN extra INT NOT NULL DEFAULT 5, MODIFY n VARCHAR(20)")
        finally:
            load.stop()
        made.author.run("INSERT INTO t (id, n, t) VALUES (9999, 1, 'behind')")
        made.settle()
        made.compare(f"seed {seed}")
        assert not replication.aside
        assert {table for (_, _, table), copy in replication._copies.items() if copy._target.exists} == {"t"}
        progress = snapshot_status(made.run.settings.store, state=made.run.settings.state)
        assert progress is not None
        assert not progress.failed, page(progress)
