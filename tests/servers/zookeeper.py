"""A ZooKeeper of its own, from its jars on Maven Central: started, stopped and started again on its port and its data."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.maven import jars
from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port

VERSION = "3.9.3"
_JARS = (  # the last two it needs, and does not name
    f"org.apache.zookeeper:zookeeper:{VERSION}",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)
_CONFIG = """tickTime={tick}
minSessionTimeout={tick}
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
"""
_QUIET = '<configuration><root level="OFF"/></configuration>'


_TLS = """serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={port}
secureClientPortAddress=127.0.0.1
ssl.keyStore.location={pem}
ssl.trustStore.location={pem}
ssl.clientAuth=need
"""


class Zookeeper:
    """One that runs: `port`. Its times are short: a tick is 200 ms, a session lives a second at least.

    `pem`: a certificate and its key; it then takes TLS at `secure_port`, from who shows the same certificate."""

    def __init__(self, folder: Path, pem: Path | None = None) -> None:
        self._folder = folder
        self.port, self.secure_port = free_port(), free_port()
        tls = _TLS.format(port=self.secure_port, pem=pem) if pem else ""
        (folder / "zoo.cfg").write_text(_CONFIG.format(folder=folder, port=self.port, tick=200) + tls)
        (folder / "logback.xml").write_text(_QUIET)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        path = f"{self._folder}:{jars(f'zookeeper-{VERSION}', *_JARS)}/*"
        command = [
            "java",
            "-Xmx128m",
            "-cp",
            path,
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(self._folder / "zoo.cfg"),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ServerUnavailable("ZooKeeper does not start here")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket() as tried:
            tried.settimeout(1)
            try:
                tried.connect(("127.0.0.1", self.port))
                tried.sendall(b"srvr")
                return b"Mode" in tried.recv(1 << 16)
            except OSError:
                return False

    def kill(self) -> None:
        """End it at once; its data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def zookeeper(pem: Path | None = None) -> Iterator[Zookeeper]:
    """A ZooKeeper that runs. Raises `ServerUnavailable` where it cannot be had."""
    with tempfile.TemporaryDirectory(prefix="shmstore-zookeeper-") as folder:
        server = Zookeeper(Path(folder), pem)
        try:
            server.start()
            yield server
        finally:
            server.kill()
