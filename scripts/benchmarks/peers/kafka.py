"""Kafka as a peer: one broker of the newest kind (KRaft, no ZooKeeper) with its own producer and consumer, which measure themselves.

Its jars come from Maven Central through `mvn`, once, into the cache folder (`SHMSTORE_CACHE`). Each client is a JVM of its own; what
one costs that moves next to nothing is taken off its seconds of CPU.
"""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import time
from pathlib import Path

from tests.servers import maven
from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port

VERSION = "4.0.0"
_BROKER = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/log
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_TINY = 100  # events whose moving costs nothing beside the JVM's start


def jars() -> Path:
    """The folder of Kafka's jars, fetched the first time. Raises ImportError where they cannot be had."""
    try:
        return maven.jars(f"kafka-{VERSION}", f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")
    except ServerUnavailable as error:
        raise ImportError(str(error)) from error


class Broker:
    """A broker on 127.0.0.1 with its log in `folder`, from the start to `close`. Raises ImportError where it cannot be had."""

    def __init__(self, folder: Path, size: int) -> None:
        self._size = size
        self._java = ["java", "-Xmx1g", "-cp", f"{jars()}/*"]
        port, controller = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        settings = folder / "server.properties"
        settings.write_text(_BROKER.format(folder=folder, port=port, controller=controller))
        done = self._run("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", str(settings))
        if done.returncode:
            raise ImportError(f"Kafka does not start here: {done.stderr[-500:]}")
        self.process = subprocess.Popen(
            [*self._java, "kafka.Kafka", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while not self._answers(port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise ImportError("Kafka does not start here")
            time.sleep(0.1)
        self.produce("warm", 20_000)
        self._idle = {
            kind: min(act("warm", _TINY)[1] for _ in range(2)) for kind, act in (("p", self.produce), ("c", self.consume))
        }

    def produced(self, events: int) -> tuple[float, float]:
        """Produce into a new topic; return (seconds, the client's seconds of CPU)."""
        seconds, cpu = self.produce(f"t{events}", events)
        return seconds, max(0.0, cpu - self._idle["p"])

    def consumed(self, events: int) -> tuple[float, float]:
        """Consume what was produced; the same."""
        seconds, cpu = self.consume(f"t{events}", events)
        return seconds, max(0.0, cpu - self._idle["c"])

    def produce(self, topic: str, events: int) -> tuple[float, float]:
        """Send events with acks=1 in batches of 200 KB; return (seconds, seconds of CPU of the JVM)."""
        before = _cpu_of_children()
        options = ["--topic", topic, "--num-records", str(events), "--record-size", str(self._size), "--throughput", "-1"]
        properties = [f"bootstrap.servers={self.address}", "acks=1", "batch.size=200000", "linger.ms=5", "buffer.memory=67108864"]
        done = self._run("org.apache.kafka.tools.ProducerPerformance", *options, "--producer-props", *properties)
        rates = re.findall(r"([\d.]+) records/sec", done.stdout)
        if not rates:
            raise RuntimeError(f"Kafka's producer failed: {(done.stdout + done.stderr)[-500:]}")
        return events / float(rates[-1]), _cpu_of_children() - before

    def consume(self, topic: str, events: int) -> tuple[float, float]:
        """Fetch events from the topic's beginning; return (seconds of fetching, seconds of CPU of the JVM)."""
        before = _cpu_of_children()
        options = ["--bootstrap-server", self.address, "--topic", topic, "--messages", str(events), "--hide-header"]
        done = self._run("org.apache.kafka.tools.ConsumerPerformance", *options, "--timeout", "30000")
        told = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") >= 9]
        if not told or int(told[-1][4]) < events:
            raise RuntimeError(f"Kafka's consumer failed: {(done.stdout + done.stderr)[-500:]}")
        return int(told[-1][7]) / 1000, _cpu_of_children() - before

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._java, *command], capture_output=True, text=True, check=False)

    def _answers(self, port: int) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    def close(self) -> None:
        """End the broker."""
        self.process.kill()
        self.process.wait()


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
