"""A Pulsar server (broker, bookie and metadata in one process) on 127.0.0.1. Its jars come from Maven Central through `mvn`, once, into the cache folder."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar

from tests.servers import maven
from tests.servers.daemon import Daemon
from tests.servers.kafka import SOON
from tests.servers.ports import free_port

VERSION = "4.2.4"
_OPENED = (  # packages of Java that Pulsar reaches into, as its own start script says
    *("sun.net", "java.lang", "java.nio", "jdk.internal.misc", "jdk.internal.platform"),
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
)
_SETTINGS = {
    "clusterName": "standalone",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "brokerDeduplicationEnabled": "true",
    "maxMessageSize": "1048576",
    "allowAutoTopicCreationType": "partitioned",
    "defaultNumPartitions": "3",
    "defaultRetentionTimeInMinutes": "-1",  # what no subscription waits for is read too
    "defaultRetentionSizeInMB": "-1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCacheSizeMB": "16",
    "loadBalancerEnabled": "false",
    "systemTopicEnabled": "false",
    "topicLevelPoliciesEnabled": "false",
    "journalSyncData": "false",
    "journalMaxSizeMB": "32",
    "journalPreAllocSizeMB": "1",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "8",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
    "allowLoopback": "true",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
    "diskUsageLwmThreshold": "0.97",
}
# What listens before its topics can be used: the namespace of users is made last.
_READY = "/admin/v2/namespaces/public/default"


def jars() -> Path:
    """The folder of Pulsar's jars, fetched the first time. Raises `ServerUnavailable` where they cannot be had."""
    return maven.jars(
        f"pulsar-{VERSION}", f"org.apache.pulsar:pulsar-broker:{VERSION}", versions="io.opentelemetry:opentelemetry-bom:1.62.0"
    )


class PulsarServer(Daemon):
    """A server with its messages in `folder`. `settings` are more of its configuration; `token` is what its superuser shows."""

    name = "Pulsar"

    def __init__(self, folder: Path, token: str = "", **settings: str) -> None:
        super().__init__(folder)
        self._token = token
        self._http, self._bookie = free_port(), free_port()
        self.admin = f"http://127.0.0.1:{self._http}"
        ports = {"brokerServicePort": str(self.port), "webServicePort": str(self._http)}
        lines = [f"{name}={value}" for name, value in (_SETTINGS | ports | settings).items()]
        (folder / "pulsar.conf").write_text("\n".join(lines) + "\n")
        (folder / "log4j2.xml").write_text(
            '<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>'
            '<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>'
        )

    def command(self) -> list[str]:
        """The words that start it."""
        opened = [each if "/" in each else f"java.base/{each}" for each in _OPENED]
        return [
            *("java", "-Xmx320m", "-XX:MaxDirectMemorySize=256m", *SOON),
            *(word for each in opened for word in ("--add-opens", f"{each}=ALL-UNNAMED")),
            *("-Dio.netty.tryReflectionSetAccessible=true", f"-Dlog4j.configurationFile={self.folder}/log4j2.xml"),
            *("-cp", f"{jars()}/*", "org.apache.pulsar.PulsarStandaloneStarter", "-nfw", "-nss"),
            *("-c", str(self.folder / "pulsar.conf"), "--bookkeeper-port", str(self._bookie)),
            *("--metadata-dir", str(self.folder / "metadata"), "--bookkeeper-dir", str(self.folder / "bookkeeper")),
        ]

    def answers(self) -> bool:
        """Whether it serves."""
        try:
            self.ask("GET", _READY)
        except OSError:
            return False
        return super().answers()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What its administration answers."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.admin}{path}", data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def client(self, **how: Any) -> Any:
        """A client of it, which says nothing."""
        log = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        login = {"authentication": pulsar.AuthenticationToken(self._token)} if self._token else {}
        return pulsar.Client(f"pulsar://{self.address}", logger=log, **login | how)


@contextmanager
def pulsar_server(token: str = "", **settings: str) -> Iterator[PulsarServer]:
    """A server while the block runs."""
    with (
        tempfile.TemporaryDirectory(prefix="shmstore-pulsar-") as folder,
        PulsarServer(Path(folder), token, **settings) as server,
    ):
        yield server
