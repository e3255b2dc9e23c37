"""A real standalone cluster of Spark: master and two workers in processes of their own, the second with a /dev/shm of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
PRIVATE = "mount --make-rprivate / && mount -t tmpfs tmpfs /dev/shm && exec "


@contextmanager
def cluster(folder: Path, python: str, memory: str = "700m") -> Iterator[str]:
    """The URL of a cluster with two workers of one core and so much memory, of the pyspark that `python` has; the second sees no store."""
    found = [python, "-c", "import os, pyspark; print(os.path.dirname(pyspark.__file__))"]
    home = subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()
    program, port = f"{home}/bin/spark-class", free_port()
    url = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": home,
        "PYSPARK_PYTHON": python,
        "PYTHONPATH": str(ROOT),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> None:
        with open(folder / f"{name}.log", "wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True))

    def worker(name: str) -> list[str]:
        place = f"--host 127.0.0.1 --webui-port 0 --cores 1 --memory {memory} --work-dir {folder}/{name}"
        return [program, "org.apache.spark.deploy.worker.Worker", *place.split(), url]

    try:
        start("master", program, *f"org.apache.spark.deploy.master.Master --host 127.0.0.1 --port {port} --webui-port 0".split())
        start("near", *worker("near"))
        start("far", "unshare", "-m", "sh", "-c", PRIVATE + " ".join(worker("far")))
        until = time.monotonic() + 240
        while (folder / "master.log").read_text(errors="replace").count("Registering worker") < 2:
            assert time.monotonic() < until, "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
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
