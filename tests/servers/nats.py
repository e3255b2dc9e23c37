"""NATS servers with JetStream on 127.0.0.1, from the PATH or the system's package archive."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.daemon import Daemon
from tests.servers.packages import unpacked
from tests.servers.ports import free_port


@functools.cache
def nats_command() -> str:
    """The NATS server on the PATH, else the one unpacked from the system's package archive. Raises `ServerUnavailable`."""
    return shutil.which("nats-server") or str(unpacked("nats") / "usr/sbin/nats-server")  # Go: it needs only libc


class NatsServer(Daemon):
    """A server with its streams in `folder`. `settings` are lines of its configuration file."""

    name = "NATS"

    def __init__(self, folder: Path, *settings: str) -> None:
        super().__init__(folder)
        lines = [f"listen: 127.0.0.1:{self.port}", f'jetstream {{ store_dir: "{folder}/streams" }}', *settings]
        (folder / "nats.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        """The words that start it."""
        return [nats_command(), "--config", str(self.folder / "nats.conf")]


@contextmanager
def nats_server(*settings: str) -> Iterator[NatsServer]:
    """A server while the block runs."""
    with tempfile.TemporaryDirectory(prefix="shmstore-nats-") as folder, NatsServer(Path(folder), *settings) as server:
        yield server


@contextmanager
def nats_cluster(count: int = 3) -> Iterator[list[NatsServer]]:
    """Servers of one cluster while the block runs."""
    with tempfile.TemporaryDirectory(prefix="shmstore-nats-") as folder, ExitStack() as stack:
        ports = [free_port() for _ in range(count)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        servers = []
        for number, port in enumerate(ports):
            (own := Path(folder, str(number))).mkdir()
            cluster = f"cluster {{ name: shmstore, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
            servers.append(stack.enter_context(NatsServer(own, f"server_name: n{number}", cluster)))
        yield servers
