"""A real standalone cluster, master and workers in processes of their own, one worker with a /dev/shm of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from shmstore import EventStore
from tests.consumer.spark.events import Binlog, order_row
from tests.servers.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[3]
SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
PRIVATE = "mount --make-rprivate / && mount -t tmpfs tmpfs /dev/shm && exec "


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster with two workers of one core; the second sees no store."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, command: list[str]) -> None:
        with open(tmp_path / f"{name}.log", "wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True))

    def worker(name: str) -> list[str]:
        place = f"--host 127.0.0.1 --webui-port 0 --cores 1 --memory 700m --work-dir {tmp_path}/{name}"
        return [SPARK_CLASS, "org.apache.spark.deploy.worker.Worker", *place.split(), url]

    try:
        start(
            "master",
            [
                SPARK_CLASS,
                "org.apache.spark.deploy.master.Master",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--webui-port",
                "0",
            ],
        )
        start("near", worker("near"))
        start("far", ["unshare", "-m", "sh", "-c", PRIVATE + " ".join(worker("far"))])
        until = time.monotonic() + 60
        while (tmp_path / "master.log").read_text(errors="replace").count("Registering worker") < 2:
            assert time.monotonic() < until, "\n".join(
                path.read_text(errors="replace")[-2000:] for path in tmp_path.glob("*.log")
            )
            time.sleep(0.1)
        yield url
    finally:
        for process in reversed(started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # a worker ends its executors
        for process in reversed(started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="a private /dev/shm needs root")
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
        timeout=200,
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
