"""What the tests of a cluster are made of: hosts, each with a producer, a store and a server of its own, and Canal's cluster client."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shmstore import EventStore, StoreNotFound
from shmstore.home import kinds
from shmstore.home.home import Home
from tests.servers.maven import jars
from tests.servers.server import Server

VERSION = "1.1.8"
_SOURCE = Path(__file__).with_name("ClusterClient.java")
_ROOT = Path(__file__).resolve().parents[4]


def wait_for(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait until `holds`, or fail with `what`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


class Host:
    """One host: its state folder, its store, its producer, its server. `destination` is what all of them call the store."""

    def __init__(self, folder: Path, store: str, destination: str, server: Server, database: str) -> None:
        self.folder, self.store, self.destination = folder, store, destination
        self.folder.mkdir()
        self._environment = os.environ | {"SHMSTORE_STATE": str(folder)}
        self._server, self._database = server, database
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""

    def produce(self, start: str = "latest") -> None:
        """Start the producer, and wait until it reads."""
        source = ["--host", self._server.host, "--port", str(self._server.port), "--user", self._server.user]
        self._start("produce", [*source, "--store", self.store, "--include", f"{self._database}.*", "--start", start])
        wait_for(self._reads, f"the producer of {self.store} reads")

    def _reads(self) -> bool:
        with suppress(StoreNotFound), EventStore.attach(self.store, state=self.folder) as store:
            return bool(store.stat().heartbeat_ms)
        return False

    def serve(self, zookeeper: str, *options: str) -> None:
        """Start the server, and wait until it listens."""
        words = [f"{self.destination}={self.store}", "--listen", "127.0.0.1:0", "--zookeeper", zookeeper]
        process = self._start("serve", [*words, "--zookeeper-timeout", "2", *options])
        wait_for(lambda: "listening" in self.log("serve") or process.poll() is not None, f"the server of {self.store} listens")
        found = re.findall(r"listening on (\S+)", self.log("serve"))
        assert found, self.log("serve")
        self.address = found[-1]

    def _start(self, command: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "shmstore", command, *words], stdout=log, stderr=log, env=self._environment, cwd=_ROOT
            )
        self._processes[command] = process
        return process

    def log(self, command: str) -> str:
        return (self.folder / f"{command}.log").read_text(errors="replace")

    @property
    def active(self) -> bool:
        """True where the server last said that it is."""
        found = re.findall(r"destination \S+ is (active|no longer active)", self.log("serve"))
        return bool(found) and found[-1] == "active"

    def signal(self, command: str, number: int) -> None:
        process = self._processes[command]
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(30)
            del self._processes[command]

    def close(self) -> None:
        """End what runs, remove the store."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with suppress(StoreNotFound):
            EventStore.unlink(self.store, force=True)
        home = Home.of(self.store, self.folder)
        if (epoch := home.epoch_there()) is not None:
            kinds.remove_log(home, epoch)


class ClusterClient:
    """Canal's `ClusterCanalConnector` in a JVM: the rows of what it got and acked, in order."""

    def __init__(self, zookeeper: str, destination: str, filter: str, size: int, folder: Path) -> None:
        path = client_path(folder)
        self._log = (folder / "client.log").open("ab")
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-cp", path, "ClusterClient", zookeeper, destination, filter, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def batches(self) -> list[list[int]]:
        """The rows of each batch that it was given."""
        return [[int(number) for number in line.split()[2:]] for line in list(self.lines) if line.startswith("batch ")]

    def acked(self) -> int:
        """The last row acked, having checked that none was left out and all came in order; -1 before the first."""
        held: list[int] = []
        last = -1
        for line in list(self.lines):
            word, *rest = line.split()
            if word == "batch":
                held = [int(number) for number in rest[1:]]
                if held:
                    assert held == list(range(held[0], held[-1] + 1)), f"out of order: {line}"
                    assert held[0] <= last + 1, f"rows {last + 1} to {held[0] - 1} were left out: {line}"
            elif word == "ack" and held:
                last = max(last, held[-1])
        return last

    def again(self) -> int:
        """How many rows came again though they had been acked."""
        last, count, held = -1, 0, [0]
        for line in list(self.lines):
            word, *rest = line.split()
            if word == "batch":
                held = [int(number) for number in rest[1:]]
                count += sum(number <= last for number in held)
            elif word == "ack" and held:
                last = max(last, held[-1])
        return count

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(20)
        self._process.stdout.close()
        self._log.close()


def client_path(folder: Path) -> str:
    """The class path of `ClusterClient.java`, compiled into `folder`."""
    names = ("client", "protocol", "common")  # the client does not name the other two
    found = jars(f"canal-cluster-client-{VERSION}", *(f"com.alibaba.otter:canal.{name}:{VERSION}" for name in names))
    if not (folder / "ClusterClient.class").exists():
        subprocess.run(["javac", "-nowarn", "-cp", f"{found}/*", "-d", folder, _SOURCE], check=True, capture_output=True)
        (folder / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
    return f"{folder}:{found}/*"


@contextmanager
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shmstore-cluster-") as folder:
        yield Path(folder)
