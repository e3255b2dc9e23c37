"""RabbitMQ servers on 127.0.0.1, unpacked from the system's package archive together with its Erlang."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    """A server with its queues in `folder`. `names` is the port of Erlang's mapper of names, and `settings` are lines of rabbitmq.conf."""

    name = "RabbitMQ"

    def __init__(self, folder: Path, names: int, *settings: str) -> None:
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
        self._names, self._distribution = names, free_port()  # the port that the mapper names has a fixed number by default
        self.node = f"shmstore{self.port}@localhost"
        (folder / ".erlang.cookie").write_text("shmstore")  # what servers of a cluster know each other by
        (folder / ".erlang.cookie").chmod(0o600)
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
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        }

    def keeps(self, queue: str) -> bool:
        """Whether a quorum queue that was just made would outlive the server: it is in an index that is written now and then, and is never led without."""
        indexes = self.folder.glob("data/*/quorum/*/names.dets")
        return any(queue.encode() in index.read_bytes() for index in indexes)

    def answers(self) -> bool:
        """Whether it takes a connection: it listens before it does."""
        try:
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port)).close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True


@contextmanager
def rabbit_server(*settings: str) -> Iterator[RabbitServer]:
    """A server while the block runs."""
    with (
        tempfile.TemporaryDirectory(prefix="shmstore-rabbit-") as folder,
        _names() as names,
        RabbitServer(Path(folder), names, *settings) as server,
    ):
        yield server


@contextmanager
def rabbit_cluster(count: int = 3) -> Iterator[list[RabbitServer]]:
    """Servers of one cluster while the block runs."""
    with tempfile.TemporaryDirectory(prefix="shmstore-rabbit-") as folder, _names() as names, ExitStack() as stack:
        servers = []
        for number in range(count):
            (own := Path(folder, str(number))).mkdir()
            servers.append(RabbitServer(own, names))
        nodes = [f"cluster_formation.classic_config.nodes.{number} = {each.node}" for number, each in enumerate(servers, 1)]
        for server in servers:
            with (server.folder / "rabbitmq.conf").open("a") as file:
                file.write("\n".join(["cluster_formation.peer_discovery_backend = classic_config", *nodes, ""]))
            stack.enter_context(server)
        yield servers


@contextmanager
def _names() -> Iterator[int]:
    """The port of Erlang's mapper of names while the block runs. A server would start one as a daemon, on a port that servers of two tests share."""
    [program] = unpacked("rabbitmq").glob("usr/lib/erlang/erts-*/bin/epmd")
    port = free_port()
    mapper = subprocess.Popen([program, "-port", str(port)], env=os.environ | {"ERL_EPMD_ADDRESS": "127.0.0.1"})
    try:
        yield port
    finally:
        mapper.kill()
        mapper.wait()
