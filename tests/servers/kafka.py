"""Kafka brokers of the newest kind (KRaft: no ZooKeeper) on 127.0.0.1. Their jars come from Maven Central through `mvn`, once, into the cache folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.servers import maven
from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port
from tests.servers.process import START_SECONDS

VERSION = "4.4.0"
SOON = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # a start takes half the CPU; what is measured does without
_PROPERTIES = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners={protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={protocol}://127.0.0.1:{port}
inter.broker.listener.name={protocol}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
log.dirs={folder}/log
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""


def jars() -> Path:
    """The folder of Kafka's jars, fetched the first time. Raises `ServerUnavailable` where they cannot be had."""
    return maven.jars(f"kafka-{VERSION}", f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")


class Broker:
    """A broker with its log in `folder`, from `start` to `stop`, and again. `options` are more of its properties.

    `controllers` are the ports on which the cluster's brokers speak among themselves, and `node` is the number of this one, from 1.
    """

    def __init__(
        self,
        folder: Path,
        protocol: str = "PLAINTEXT",
        options: Mapping[str, str] | None = None,
        scram: str = "",
        java: Sequence[str] = SOON,
        node: int = 1,
        controllers: Sequence[int] = (),
    ) -> None:
        self.folder, self._java = folder, ["java", "-Xmx512m", *java, "-cp", f"{jars()}/*"]
        controllers = controllers or (free_port(),)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._settings = folder / "server.properties"
        text = _PROPERTIES.format(
            folder=folder,
            port=self.port,
            protocol=protocol,
            node=node,
            controller=controllers[node - 1],
            voters=",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1)),
        )
        for name in options or {}:
            text = re.sub(rf"(?m)^{re.escape(name)}=.*\n", "", text)
        more = "".join(f"{name}={value}\n" for name, value in (options or {}).items())
        self._settings.write_text(text + more)
        words = ["--add-scram", scram] if scram else []
        done = self.run("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", str(self._settings), *words)
        if done.returncode:
            raise ServerUnavailable(f"Kafka does not start here: {(done.stdout + done.stderr)[-500:]}")
        self.process: subprocess.Popen[bytes] | None = None
        self.login: dict[str, str] = {}  # what a client needs to log in

    def start(self) -> None:
        """Start it, and wait until it answers: it listens last."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start it. One of several answers only when others of them run."""
        with (self.folder / "broker.log").open("ab") as out:
            self.process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._settings)], stdout=out, stderr=subprocess.STDOUT
            )

    def wait(self) -> None:
        """Wait until it answers."""
        assert self.process is not None
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            ended = self.process.poll()
            if ended is not None or time.monotonic() > until:
                self.stop()
                why = f"no answer in {START_SECONDS:.0f} s" if ended is None else f"it ended with {ended}"
                said = (self.folder / "broker.log").read_text()[-1000:]
                raise ServerUnavailable(f"Kafka does not start here, {why}: {said}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, kill: bool = True) -> None:
        """End it, by SIGKILL or in order."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Let it answer nothing: it is cut off."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End `pause`."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def run(
        self, *command: str, timeout: float = 120, stdin: IO[str] | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's own programs by the name of its class."""
        words, environment = [*self._java, *command], os.environ | more
        return subprocess.run(words, stdin=stdin, capture_output=True, text=True, check=False, timeout=timeout, env=environment)


@contextmanager
def kafka(
    protocol: str = "PLAINTEXT", options: Mapping[str, str] | None = None, scram: str = "", java: Sequence[str] = SOON
) -> Iterator[Broker]:
    """A broker while the block runs. `java` are the options of its Java."""
    with tempfile.TemporaryDirectory(prefix="shmstore-kafka-") as folder:
        broker = Broker(Path(folder), protocol, options, scram, java)
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()


@contextmanager
def kafka_cluster(count: int = 3, options: Mapping[str, str] | None = None) -> Iterator[list[Broker]]:
    """Brokers that keep each message on all of them, and take one when two of three have it, while the block runs."""
    safe, majority = str(count), str(count // 2 + 1)
    kept = {
        "default.replication.factor": safe,
        "min.insync.replicas": majority,
        "offsets.topic.replication.factor": safe,
        "transaction.state.log.replication.factor": safe,
        "transaction.state.log.min.isr": majority,
    }
    with tempfile.TemporaryDirectory(prefix="shmstore-kafka-") as folder:
        controllers = [free_port() for _ in range(count)]
        brokers = []
        for node in range(1, count + 1):
            (own := Path(folder, str(node))).mkdir()
            brokers.append(Broker(own, options={**kept, **(options or {})}, node=node, controllers=controllers))
        try:
            for broker in brokers:
                broker.begin()
            for broker in brokers:
                broker.wait()
            yield brokers
        finally:
            for broker in brokers:
                broker.stop()
