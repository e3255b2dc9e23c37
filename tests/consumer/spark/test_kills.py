"""Copies in every kind of target, kept by one driver that is killed again and again, or whose executors are: in the end each equals SELECT.

One of them is a stream of one's own, some columns of a table, kept by `apply_changes`. `SHMSTORE_TEST_TARGETS` names those to run (default: all).

`SHMSTORE_TEST_KILLS` is how often the driver is killed (default 5), its Python and its JVM by turns; an executor two times for five of these.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.consumer.spark.comparison import selected, texts, types_of
from tests.consumer.spark.replicate.iceberg_cases import DELTA, DELTA_SETTINGS, RUNTIME
from tests.consumer.spark.test_endtoend import TABLES, Chain, Load
from tests.consumer.spark.test_versions import OLDEST
from tests.consumer.spark.versions import environment
from tests.servers.maven import jars
from tests.servers.postgres import Postgres, start_postgres
from tests.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.long, pytest.mark.timeout(7200)]
DRIVER_KILLS = int(os.environ.get("SHMSTORE_TEST_KILLS", "5"))
KILLS = {"driver": DRIVER_KILLS, "executor": DRIVER_KILLS * 2 // 5}
PATIENCE = 180.0  # seconds without any change of a copy
APPLIED = ["id", "customer", "amount", "placed", "note", "kind", "flags", "body", "raw", "day", "rate", "big", "bits"]


class Targets:
    """Delta, Parquet and PostgreSQL, and where the Spark has what it needs Iceberg, and both merged by executors, all in one folder."""

    def __init__(self, folder: Path, postgres: Postgres, iceberg: bool, database: str) -> None:
        self.folder, self.postgres, self.database = folder, postgres, database
        names = ["delta", "parquet", "postgresql", "applied", *["iceberg", "delta-executors", "iceberg-executors"] * iceberg]
        self.names = [name for name in names if name in os.environ.get("SHMSTORE_TEST_TARGETS", ",".join(names)).split(",")]

    @property
    def settings(self) -> dict[str, str]:
        """What the session needs for them."""
        there = any("iceberg" in name or "executors" in name for name in self.names)
        found = [jars("spark-kills-iceberg", RUNTIME), jars("delta-spark-4.0-4.4.0-alone", *DELTA)] if there else []
        return {
            "spark.jars": ",".join(str(jar) for folder in found for jar in sorted(folder.glob("*.jar"))),
            **(DELTA_SETTINGS if there else {}),
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a new one starts in half the time
            "spark.ui.enabled": "false",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(self.folder / "iceberg"),
        }

    def given(self) -> dict[str, dict[str, Any]]:
        """What `replicate` is given of each."""
        found: dict[str, dict[str, Any]] = {
            "delta": {"target": f"{self.folder}/delta/{{database}}/{{table}}"},
            "parquet": {"format": "parquet", "target": f"{self.folder}/parquet/{{database}}/{{table}}"},
            "applied": {
                "target": f"{self.folder}/applied/orders",
                "table": f"{self.database}.orders",
                "keys": "id",
                "columns": APPLIED,
            },
            "postgresql": {"target": f"{self.postgres.url}#lake.{{table}}", "password": self.postgres.password},
            "iceberg": {"format": "iceberg", "target": "lake.{database}.{table}"},
            "delta-executors": {"target": f"{self.folder}/delta-executors/{{database}}/{{table}}", "merge": "executors"},
            "iceberg-executors": {"format": "iceberg", "target": "lake.executors_{database}.{table}", "merge": "executors"},
        }
        return {name: {**found[name], "checkpoint": f"{self.folder}/checkpoints/{name}"} for name in self.names}

    def read(self, name: str, database: str, table: str, types: dict[str, str]) -> tuple[set[str], list[tuple[str, ...]]]:
        """A copy's columns and rows. Raises whatever it does where it is not there."""
        if name == "applied":
            held = DeltaTable(self.folder / name / table).to_pyarrow_table().select(sorted(APPLIED))
            return set(APPLIED), texts(held.column_names, types, zip(*[one.to_pylist() for one in held.columns], strict=True))
        if name == "postgresql":
            about = f"SELECT column_name FROM information_schema.columns WHERE table_schema = 'lake' AND table_name = '{table}'"
            names = sorted(str(row[0]) for row in self.postgres.query(about))
            columns = ", ".join(f'"{name}"' for name in names)
            return set(names), texts(names, types, self.postgres.query(f"SELECT {columns} FROM lake.{table}"))
        folder = self.folder / (f"iceberg/executors_{database}" if name == "iceberg-executors" else f"{name}/{database}")
        held = _arrow(name.partition("-")[0], folder / table)
        names = sorted(held.column_names)
        return set(names), texts(names, types, zip(*[held.column(name).to_pylist() for name in names], strict=True))


def _arrow(format: str, path: Path) -> pa.Table:
    if format == "delta":
        return DeltaTable(path).to_pyarrow_table()
    if format == "parquet":
        return pq.read_table(path / "part-00000.parquet")
    from pyiceberg.table import StaticTable

    newest = (path / "metadata/version-hint.text").read_text().strip()
    return StaticTable.from_metadata(str(path / f"metadata/v{newest}.metadata.json")).scan().to_arrow()


@contextmanager
def replicating(
    server: Server, database: str, store: str, folder: Path, version: str, master: str
) -> Iterator[tuple[Chain, Targets]]:
    """A producer and a driver with a query into each target."""
    with start_postgres() as postgres:
        targets = Targets(folder / "copies", postgres, version == OLDEST, database)
        python = environment(version, folder / "python") if version else sys.executable
        program = [python, str(Path(__file__).with_name("kill_driver.py")), master, store, f"{database}.*"]
        chain = Chain(server, database, store, folder, [*program, json.dumps(targets.settings), json.dumps(targets.given())])
        chain.queries = len(targets.names)
        chain.environment |= {"PYSPARK_PYTHON": python, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        chain.environment.pop("PYSPARK_SUBMIT_ARGS")
        try:
            yield chain, targets
        finally:
            chain.close()


@pytest.mark.parametrize("victim", list(KILLS))
@pytest.mark.parametrize("version", [OLDEST, ""], ids=["oldest", "newest"])
def test_every_copy_equals_select_after_kills(
    mariadb: Server, database: str, store_name: str, tmp_path: Path, seed: int, version: str, victim: str
) -> None:
    """Rows of all types, keys that change, an ALTER and a TRUNCATE: nothing is lost or repeated wherever a kill comes."""
    choose = random.Random(seed)
    master = "local[2,4]" if victim == "driver" else "local-cluster[1,2,512]"
    with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
        for sql in TABLES.values():
            cursor.execute(sql)
    with replicating(mariadb, database, store_name, tmp_path, version, master) as (chain, targets):
        load = Load(mariadb, database, seed, pause=0.3)
        load.start()
        try:
            for number in range(KILLS[victim]):
                chain.run_on(choose, seconds=(0, 4 if victim == "driver" else 8))
                what = ("driver", "jvm")[number % 2] if victim == "driver" else "executor"
                print(f"{time.strftime('%H:%M:%S')} kill {number + 1}:", chain.kill(what, choose), flush=True)
            while load.done < 100 and load.error is None:
                chain.supervise()
                time.sleep(0.1)
        finally:
            load.stopping.set()
            load.join(30)
        assert load.error is None
        _compare(mariadb, database, chain, targets)
        print(f"{KILLS[victim]} kills of {victim}, {load.done} transactions: {', '.join(targets.names)} equal SELECT", flush=True)


def _compare(server: Server, database: str, chain: Chain, targets: Targets) -> None:
    with server.connect(database=database) as connection:
        types = {table: types_of(connection, database, table) for table in TABLES}
        wanted = {table: selected(connection, database, table) for table in TABLES}
    columns, rows = sorted(types["orders"]), wanted["orders"][1]
    some = [columns.index(name) for name in sorted(APPLIED)]
    applied = (set(APPLIED), sorted(tuple(row[at] for at in some) for row in rows))
    aims = {(name, table): wanted[table] for name in targets.names if name != "applied" for table in TABLES}
    aims |= {(name, "orders"): applied for name in targets.names if name == "applied"}
    found: dict[tuple[str, str], Any] = {}
    until = time.monotonic() + PATIENCE
    while any(found.get(place) != aim for place, aim in aims.items()):
        chain.supervise()
        before = dict(found)
        for name, table in aims:
            try:
                found[name, table] = targets.read(name, database, table, types[table])
            except Exception as error:  # of as many kinds as there are targets: it is not there yet, or is being replaced
                found[name, table] = (str(error), [])
        if found != before:
            until = time.monotonic() + PATIENCE  # a busy machine takes its time
        if time.monotonic() > until:
            break
        time.sleep(0.5)
    for place, aim in aims.items():
        (columns, rows), name = found[place], ", ".join(place)
        missing, extra = sorted(set(aim[1]) - set(rows)), sorted(set(rows) - set(aim[1]))
        said = f"{name}: missing {len(missing)}, as {missing[:1]}; too many {len(extra)}, as {extra[:1]}"
        assert (columns, rows) == aim, f"{said}; columns {columns}\n{chain.log()}"
    assert wanted["orders"][1]
