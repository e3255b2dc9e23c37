"""A RabbitMQ server on 127.0.0.1, unpacked from the system's package archive together with its Erlang."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika

from tests.servers.daemon import Daemon
from tests.servers.packages import ServerUnavailable, unpacked
from tests.servers.ports import free_port

_ERL = """#!/bin/sh
export ROOTDIR={root}/usr/lib/erlang BINDIR={bin} EMU=beam PROGNAME=erl LD_LIBRARY_PATH={libraries}
exec {bin}/erlexec "$@"
"""


class RabbitServer(Daemon):
    """A server with its queues in `folder`. `settings` are lines of rabbitmq.conf."""

    name = "RabbitMQ"

    def __init__(self, folder: Path, *settings: str) -> None:
        super().__init__(folder)
        self.tls_port, self.certificate = 0, ""  # where it has a port for TLS
        root = unpacked("rabbitmq")
        self._program = next(iter(root.glob("usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server")), None)
        bins = next(iter(root.glob("usr/lib/erlang/erts-*/bin")), None)
        if self._program is None or bins is None:
            raise ServerUnavailable(f"{root} holds no RabbitMQ with its Erlang: remove {root.parent} to fetch it again")
        libraries = ":".join(str(path) for part in ("lib", "usr/lib") for path in root.glob(f"{part}/*-linux-*"))
        erl = folder / "erl"  # Erlang's own names the folder of an installation
        erl.write_text(_ERL.format(root=root, bin=bins, libraries=libraries))
        erl.chmod(0o755)
        # Erlang's mapper of names, and the port that it names, have fixed ones by default: servers of two tests would meet.
        self._epmd, self._names, self._distribution = bins / "epmd", free_port(), free_port()
        self._mapper: subprocess.Popen[bytes] | None = None
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self.port}", *settings]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        """The words that start it."""
        return [str(self._program), "-noinput"]

    def environment(self) -> dict[str, str]:
        """What its scripts read: all in its folder."""
        folder = self.folder
        return os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_MAX_PORTS": "4096",
            "RABBITMQ_ALLOW_INPUT": "1",  # the server is the process itself, without a shell before it
            "RABBITMQ_HOME": str(Path(str(self._program)).parents[1]),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_NODENAME": f"shmstore{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        }

    def start(self) -> None:
        """Start it, and the mapper of names that Erlang wants, which would else stay as a daemon."""
        own = {"ERL_EPMD_ADDRESS": "127.0.0.1"}
        self._mapper = subprocess.Popen([self._epmd, "-port", str(self._names)], env=os.environ | own)
        super().start()

    def answers(self) -> bool:
        """Whether it takes a connection: it listens before it does."""
        try:
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port)).close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True

    def stop(self) -> None:
        """Kill both."""
        super().stop()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None


@contextmanager
def rabbit_server(*settings: str) -> Iterator[RabbitServer]:
    """A server while the block runs."""
    with tempfile.TemporaryDirectory(prefix="shmstore-rabbit-") as folder, RabbitServer(Path(folder), *settings) as server:
        yield server
