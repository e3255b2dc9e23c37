"""Canal's own server (`CanalServer.java`), in a JVM of its own, from its jars on Maven Central: what `shmstore serve` is compared with."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.maven import jars
from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port
from tests.servers.server import Server

__all__ = ["DESTINATION", "VERSION", "CanalServer", "canal_from_files", "canal_server", "flat_messages"]

VERSION = "1.1.7"  # the newest whose server is there
DESTINATION = "canal"
_SOURCE = Path(__file__).with_name("CanalServer.java")
_QUIET = (
    '<configuration><appender name="E" class="ch.qos.logback.core.ConsoleAppender"><target>System.err</target><encoder>'
    '<pattern>%level %logger{0} %msg%n%ex{8}</pattern></encoder></appender><root level="WARN"><appender-ref ref="E"/></root>'
    "</configuration>"
)


class CanalServer:
    """A running one: `port` serves the destination `DESTINATION`, `pid` is the JVM's, `log` what it wrote of errors."""

    def __init__(self, process: subprocess.Popen[str], port: int, folder: Path) -> None:
        self.pid, self.port = process.pid, port
        self._folder = folder

    def log(self) -> str:
        """The errors that it logged."""
        return (self._folder / "log").read_text(errors="replace")


@contextmanager
def canal_server(
    server: Server, file: str, offset: int, time_ms: int, *, zone: str = "UTC", zookeeper: str = ""
) -> Iterator[CanalServer]:
    """Canal's server for the changes of `server` from a place in its binlog on; `time_ms`: not after what comes there.

    `zone`: the JVM's time zone, in which it prints TIMESTAMPs. `zookeeper`: where it keeps its clients'
    cursors. Raises `ServerUnavailable` where it cannot be had.
    """
    folder = _jars()
    _allow(server)
    with tempfile.TemporaryDirectory(prefix="shmstore-canal-") as work:
        _compile(f"{folder}/*", _SOURCE, work)
        (Path(work) / "logback.xml").write_text(_QUIET)
        port = free_port()
        command = ["java", "-Xmx2g", f"-Duser.timezone={zone}", "-cp", f"{work}:{folder}/*", "CanalServer"]
        with (Path(work) / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, str(server.port), str(port), file, str(offset), str(time_ms), *([zookeeper] if zookeeper else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        running = CanalServer(process, port, Path(work))
        yield from _until_closed(process, running)


@contextmanager
def canal_from_files(server: Server, folder: Path) -> Iterator[CanalServer]:
    """Canal's server with the configuration folder `folder`, whose destination is `example`: its port, and meta.dat in that folder.

    Raises `ServerUnavailable` where it cannot be had.
    """
    jars_ = _jars()
    _allow(server)
    port = free_port()
    with (folder / "canal.properties").open("a") as file:  # what comes last counts
        file.write(f"\ncanal.port = {port}\ncanal.metrics.pull.port = {free_port()}\ncanal.file.data.dir = {folder}\n")
    for path in (folder / "spring").glob("*.xml"):  # of a newer Canal than the jars, which do not know some of its properties
        kept = [line for line in path.read_text().splitlines() if "multiStreamEnable" not in line]
        path.write_text(re.sub(r'<property name="sslInfo">.*?</bean>\s*</property>', "", "\n".join(kept), flags=re.DOTALL))
    with tempfile.TemporaryDirectory(prefix="shmstore-canal-") as work:
        _compile(f"{jars_}/*", _SOURCE.with_name("CanalFromFiles.java"), work)
        (Path(work) / "logback.xml").write_text(_QUIET)
        command = ["java", "-Xmx1g", "-Duser.timezone=UTC", "-cp", f"{work}:{folder}:{jars_}/*", "CanalFromFiles", "example"]
        with (Path(work) / "log").open("w") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        running = CanalServer(process, port, Path(work))
        yield from _until_closed(process, running)


def _until_closed(process: subprocess.Popen[str], running: CanalServer) -> Iterator[CanalServer]:
    """Yield a server once it says that it is ready, and end it."""
    assert process.stdin
    assert process.stdout
    try:
        while (line := process.stdout.readline()) != "ready\n":
            if not line:
                raise ServerUnavailable(f"Canal's server did not start: {running.log()[-1000:]}")
        yield running
    finally:
        process.stdin.close()  # it ends by that, also when the test is killed
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def flat_messages(entries: list[bytes]) -> list[dict[str, Any]]:
    """The flat messages that Canal makes of entries; begin and end have none."""
    folder = _jars()
    with tempfile.TemporaryDirectory(prefix="shmstore-canal-") as work:
        _compile(f"{folder}/*", _SOURCE.with_name("CanalMessages.java"), work)
        (Path(work) / "logback.xml").write_text(_QUIET)
        command = ["java", "-Xmx1g", "-cp", f"{work}:{folder}/*", "CanalMessages"]
        done = subprocess.run(command, input=_framed(entries), capture_output=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def to_kafka(server: Server, file: str, offset: int, brokers: str, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """Canal's server in its MQ mode, from a place of `server`'s binlog into a topic; it prints ``rows N`` as it goes."""
    program = _SOURCE.parents[2] / "scripts" / "benchmarks" / "peers" / "CanalToKafka.java"
    _allow(server)
    with tempfile.TemporaryDirectory(prefix="shmstore-canal-") as work:
        path = f"{work}:{_jars()}/*:{_kafka_jars()}/*"
        _compile(path, program, work)
        (Path(work) / "logback.xml").write_text(_QUIET)
        words = [str(server.port), str(free_port()), file, str(offset), "1000", brokers, topic]
        with (Path(work) / "log").open("w") as log:
            process = subprocess.Popen(
                ["java", "-Xmx1g", "-cp", path, "CanalToKafka", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def sent_to_kafka(entries: list[bytes], configurations: list[tuple[str, ...]]) -> list[list[tuple[str, int, bytes]]]:
    """What Canal's own Kafka producer sends of entries, under each configuration of ``CanalQueue.java``: (topic, partition, value)."""
    with tempfile.TemporaryDirectory(prefix="shmstore-canal-") as work:
        path = f"{work}:{_jars()}/*:{_kafka_jars()}/*"
        _compile(path, _SOURCE.with_name("CanalQueue.java"), work)
        (Path(work) / "logback.xml").write_text(_QUIET)
        named = Path(work) / "configurations"
        named.write_text("".join("\t".join(words) + "\n" for words in configurations))
        done = subprocess.run(
            ["java", "-Xmx1g", "-cp", path, "CanalQueue", str(named)],
            input=_framed(entries),
            capture_output=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
    found: list[list[tuple[str, int, bytes]]] = [[] for _ in configurations]
    for line in done.stdout.decode().splitlines():
        number, topic, partition, value = line.split("\t")
        found[int(number)].append((topic, int(partition), base64.b64decode(value)))
    return found


def _allow(server: Server) -> None:
    """Make Canal's user: its driver takes no empty password."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("CREATE USER IF NOT EXISTS canal@'127.0.0.1' IDENTIFIED BY 'canal'")
        cursor.execute("GRANT ALL ON *.* TO canal@'127.0.0.1'")


def _jars() -> Path:
    if shutil.which("javac") is None:
        raise ServerUnavailable("Canal's programs need javac, which is not on the PATH: install it (openjdk-17-jdk-headless)")
    return jars(f"canal-{VERSION}", f"com.alibaba.otter:canal.server:{VERSION}", f"com.alibaba.otter:canal.client:{VERSION}")


def _kafka_jars() -> Path:
    return jars(f"canal-kafka-{VERSION}", f"com.alibaba.otter:connector.kafka:{VERSION}")


def _framed(entries: list[bytes]) -> bytes:
    """Entries as ``CanalEntries.java`` reads them."""
    return b"".join(struct.pack(">i", len(entry)) + entry for entry in entries)


def _compile(path: str, source: Path, to: str) -> None:
    """Compile a program, and those of this folder that it names."""
    words = ["javac", "-nowarn", "-implicit:class", "-sourcepath", _SOURCE.parent, "-cp", path, "-d", to, source]
    subprocess.run(words, check=True, capture_output=True)
