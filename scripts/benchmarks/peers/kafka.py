"""Kafka as a peer: one broker of the newest kind (KRaft, no ZooKeeper) with its own producer and consumer, which measure themselves.

Each client is a JVM of its own; what
one costs that moves next to nothing is taken off its seconds of CPU.
"""

from __future__ import annotations

import re
import resource
import subprocess
from pathlib import Path

from tests.servers import kafka
from tests.servers.packages import ServerUnavailable

_TINY = 100  # events whose moving costs nothing compared with the JVM's start


class Broker:
    """A broker on 127.0.0.1 with its log in `folder`, from the start to `close`. Raises ImportError where it cannot be had."""

    def __init__(self, folder: Path, size: int) -> None:
        self._size = size
        try:
            self._broker = kafka.Broker(folder, java=("-Xmx1g",), options={"num.partitions": "1"})
            self._broker.start()
        except ServerUnavailable as error:
            raise ImportError(str(error)) from error
        self.produce("warm", 20_000)
        self._idle = {
            kind: min(act("warm", _TINY)[1] for _ in range(2)) for kind, act in (("p", self.produce), ("c", self.consume))
        }

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self._broker.process is not None, "it runs until `close`"
        return self._broker.process.pid

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
        properties = [
            f"bootstrap.servers={self._broker.address}",
            "acks=1",
            "batch.size=200000",
            "linger.ms=5",
            "buffer.memory=67108864",
        ]
        done = self._run("org.apache.kafka.tools.ProducerPerformance", *options, "--producer-props", *properties)
        rates = re.findall(r"([\d.]+) records/sec", done.stdout)
        if not rates:
            raise RuntimeError(f"Kafka's producer failed: {(done.stdout + done.stderr)[-500:]}")
        return events / float(rates[-1]), _cpu_of_children() - before

    def consume(self, topic: str, events: int) -> tuple[float, float]:
        """Fetch events from the topic's beginning; return (seconds of fetching, seconds of CPU of the JVM)."""
        before = _cpu_of_children()
        options = ["--bootstrap-server", self._broker.address, "--topic", topic, "--messages", str(events), "--hide-header"]
        done = self._run("org.apache.kafka.tools.ConsumerPerformance", *options, "--timeout", "30000")
        told = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") >= 9]
        if not told or int(told[-1][4]) < events:
            raise RuntimeError(f"Kafka's consumer failed: {(done.stdout + done.stderr)[-500:]}")
        return int(told[-1][7]) / 1000, _cpu_of_children() - before

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return self._broker.run(*command)

    def close(self) -> None:
        """End the broker."""
        self._broker.stop()


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
