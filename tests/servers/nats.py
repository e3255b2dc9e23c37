"""A NATS server with JetStream on 127.0.0.1, from the PATH or the system's package archive."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.daemon import Daemon
from tests.servers.packages import unpacked


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
