"""A MariaDB and a MySQL in one store, copied by `replicate`, kill -9 for all and the store lost: the copies equal SELECT."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from shmstore import EventStore
from tests.consumer.spark.test_endtoend import Chain
from tests.producer.merging import config_text, create, reads, settings_of, write
from tests.producer.running import select_table, wait_for
from tests.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1200)]


def test_copies_equal_select_after_kills(mariadb: Server, mysql: Server, store_name: str, tmp_path: Path, seed: int) -> None:
    """Both have a table of one name, large transactions too; producer, driver and workers are killed, and the store is lost and made
    again, its sources in another order: each server's copy equals its SELECT."""
    rng = random.Random(seed)
    servers, database = {"m": mariadb, "q": mysql}, f"g{os.getpid()}"
    for server in servers.values():
        create(server, database)
    config = tmp_path / "shmstore.toml"
    small = {"transaction_events": 64, "transaction_bytes": 65536, "capacity": 4096, "state": str(tmp_path / "state")}
    config.write_text(config_text(settings_of(servers, store_name), **small))
    chain = Chain(
        mariadb, database, store_name, tmp_path, f"--format delta --target {tmp_path}/lake/{{source}}/{{database}}/{{table}}"
    )
    chain.commands["producer"] = [sys.executable, "-m", "shmstore", "run", "--config", str(config)]
    copies = {name: tmp_path / "lake" / name / database / "t" for name in servers}
    over = threading.Event()
    loads = [
        threading.Thread(target=_load, args=(server, database, random.Random(rng.random()), over)) for server in servers.values()
    ]
    try:
        chain.supervise()
        wait_for(lambda: reads(store_name), "the group to read")
        for load in loads:
            load.start()
        while not all(map(_copy, copies.values())):  # the query's place is durable: from now on nothing may be lost
            chain.supervise()
            time.sleep(0.1)
        for number in range(24):
            chain.run_on(rng)
            victim = ("driver", "store", "producer", "worker")[number % 4]
            print("killed", chain.kill("producer" if victim == "store" else victim, rng), victim, flush=True)
            if victim == "store":
                chain.running["producer"].wait(30)
                EventStore.unlink(store_name)
        over.set()
        for load in loads:
            load.join(60)
        found: dict[str, object] = {}
        wanted = {name: select_table(server, database, "t") for name, server in servers.items()}
        until = time.monotonic() + 200
        while time.monotonic() < until and found != wanted:
            chain.supervise()
            before = found
            with suppress(OSError):
                found = {name: _copy(path) for name, path in copies.items()}
            if found != before:
                until = time.monotonic() + 200  # a busy machine takes its time
            time.sleep(0.3)
        for name in servers:
            assert found[name] == wanted[name], f"{name}\n{chain.log()}"
        assert all(wanted.values())
    finally:
        over.set()
        with suppress(KeyError, ProcessLookupError):
            chain.running["producer"].send_signal(signal.SIGKILL)
        chain.close()


def _load(server: Server, database: str, rng: random.Random, over: threading.Event) -> None:
    while not over.wait(0.2):
        write(server, database, rng, 3)


def _copy(path: Path) -> dict[tuple[object, ...], tuple[object, ...]]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(str(path)) else []
    return {(row["id"],): tuple(row.values()) for row in rows}
