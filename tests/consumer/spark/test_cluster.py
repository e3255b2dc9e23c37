"""A real standalone cluster, master and workers in processes of their own, one worker with a /dev/shm of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from tests.consumer.spark.cluster import ROOT, cluster
from tests.consumer.spark.events import Binlog, order_row
from tests.consumer.spark.test_endtoend import parent

pytestmark = [pytest.mark.spark, pytest.mark.long]
KILLS, ROWS = 6, 300


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster with two workers of one core; the second sees no store."""
    with cluster(tmp_path, sys.executable) as url:
        yield url


@pytest.mark.skipif(os.geteuid() != 0, reason="a private /dev/shm needs root")
@pytest.mark.timeout(900)
def test_executors_on_another_host_get_the_events(master: str, store: EventStore, store_name: str, binlog: Binlog) -> None:
    """An executor that cannot see the segment reads through transport auto, inline and network; with shm the error says so."""
    for n in range(60):
        store.put(binlog.insert(order_row(n)))
    store.subscribe("holder")  # acks nothing: every query reads the same events
    command = [
        sys.executable,
        str(Path(__file__).with_name("cluster_driver.py")),
        master,
        store_name,
        "auto",
        "inline",
        "network",
        "shm",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )
    found = {line["transport"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert set(found) == {"auto", "inline", "network", "shm"}, done.stderr[-3000:]
    for transport in ("auto", "inline", "network"):
        assert found[transport]["error"] == ""
        assert sorted(found[transport]["keys"]) == sorted(f'{{"id":{n}}}' for n in range(60)), transport
    assert len({namespace for transport in ("auto", "inline", "network") for namespace in found[transport]["ns"]}) == 2, (
        "one worker did nothing"
    )
    assert "transport=auto" in found["shm"]["error"]


@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="a private /dev/shm needs root")
@pytest.mark.parametrize("log", [False, True], ids=["memory", "log"])
def test_executors_that_are_killed_within_a_batch(
    master: str, state: Path, store_name: str, binlog: Binlog, tmp_path: Path, log: bool
) -> None:
    """Each micro-batch loses an executor that holds rows of it, by turns on the store's host and on another: every row comes once."""
    here = os.readlink("/proc/self/ns/mnt")
    folder = tmp_path / "query"
    folder.mkdir()
    hold, batches = folder / "hold", folder / "batches"
    command = [sys.executable, str(Path(__file__).with_name("cluster_kill_driver.py")), master, store_name, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with (
        EventStore.create(store_name, capacity=1 << 15, log=log) as store,
        open(tmp_path / "driver.log", "wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment) as driver,
    ):

        def wait(condition: Callable[[], Any], what: str) -> Any:
            until = time.monotonic() + 180
            while not (found := condition()):
                text = (tmp_path / "driver.log").read_text(errors="replace")[-6000:]
                assert driver.poll() is None, text
                assert time.monotonic() < until, f"{what}: {text}"
                time.sleep(0.05)
            return found

        def held(number: int, near: bool) -> int | None:
            for process in (folder / "held" / str(number)).glob("[0-9]*"):
                if (process.read_text() == here) == near and Path(f"/proc/{process.name}").exists():
                    return int(process.name)
            return None

        def keys() -> list[str]:
            return [key for batch in batches.glob("[0-9]*") for key in batch.read_text().splitlines()] if batches.exists() else []

        try:
            for number in range(KILLS):
                hold.write_text(str(number))
                for n in range(number * ROWS, (number + 1) * ROWS):
                    store.put(binlog.insert(order_row(n, status="x" * 20_000)), timeout=60)
                worker = wait(lambda: held(number, number % 2 == 0), f"no task of batch {number} waits on that host")  # noqa: B023
                executor = parent(parent(worker))  # behind Spark's daemon of Python processes
                assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
                os.kill(executor, signal.SIGKILL)
                hold.unlink()
                wait(lambda: len(keys()) >= (number + 1) * ROWS, f"batch {number} does not come to its end")  # noqa: B023
            driver.stdin.close()
            assert driver.wait(120) == 0, (tmp_path / "driver.log").read_text(errors="replace")[-3000:]
        finally:
            driver.kill()
            hold.unlink(missing_ok=True)
    assert sorted(keys()) == sorted(f'{{"id":{n}}}' for n in range(KILLS * ROWS))
