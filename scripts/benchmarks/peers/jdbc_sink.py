"""Debezium's JDBC sink as a peer: Kafka Connect in one JVM, from a topic that holds the changes into a PostgreSQL table that exists.

A message is a row in JSON with its schema, which needs no registry. Rows are upserted, 5,000 at a time, of each key the last one
(``use.reduction.buffer``), by statements of many rows (``reWriteBatchedInserts``). Timed from the first rows that are committed to the last, so that
starting the JVM does not count.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

from tests.servers import kafka, maven
from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres

VERSION = "3.5.0.Final"  # the newest that Maven Central has whole: 3.6.0.Final needs a hibernate-agroal that is not there
PATIENCE = 300.0
_TOPIC = "orders"
_DECIMAL = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2", "connect.decimal.precision": "12"}}
_KEY = {"type": "int64", "optional": False, "field": "id"}
_FIELDS: list[dict[str, Any]] = [
    _KEY,
    {"type": "int64", "optional": True, "field": "customer"},
    {"type": "bytes", "optional": True, "field": "amount", "version": 1, **_DECIMAL},
    {"type": "int64", "optional": True, "field": "placed", "name": "io.debezium.time.Timestamp", "version": 1},
    {"type": "string", "optional": True, "field": "status"},
]
_WORKER = """bootstrap.servers={broker}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
offset.storage.file.filename={folder}/offsets
listeners=http://127.0.0.1:{port}
plugin.discovery=service_load
"""
_SINK = """name={name}
connector.class=io.debezium.connector.jdbc.JdbcSinkConnector
tasks.max=1
topics={topic}
connection.url=jdbc:postgresql://127.0.0.1:{port}/postgres?reWriteBatchedInserts=true
connection.username={user}
connection.password={password}
insert.mode=upsert
primary.key.mode=record_key
schema.evolution=none
collection.name.format=shop.orders
use.reduction.buffer=true
batch.size=5000
consumer.override.max.poll.records=5000
consumer.override.fetch.max.bytes=104857600
consumer.override.max.partition.fetch.bytes=20971520
"""


class JdbcSink:
    """A topic with the rows, and the connector, started again for each `rate`."""

    def __init__(self, broker: kafka.Broker, folder: Path) -> None:
        self._broker, self._folder, self._runs = broker, folder, 0

    def rate(self, server: Postgres, keys: int, fresh: int) -> float:
        """Return how many rows a second come, where ``shop.orders`` has keys below `keys`, and `fresh` of the topic's rows have others."""
        self._runs += 1
        worker, sink = self._folder / "worker.properties", self._folder / "sink.properties"
        worker.write_text(_WORKER.format(broker=self._broker.address, folder=self._folder, port=free_port()))
        name, login = f"sink{self._runs}", {"port": server.port, "user": server.user, "password": server.password}
        sink.write_text(_SINK.format(name=name, topic=_TOPIC, **login))
        command = ["java", "-Xmx1g", "-cp", f"{_jars()}/*", "org.apache.kafka.connect.cli.ConnectStandalone"]
        with (self._folder / "connect.log").open("wb") as log:
            process = subprocess.Popen([*command, str(worker), str(sink)], stdout=log, stderr=log)
        try:
            with psycopg.connect(server.url, password=server.password, autocommit=True) as connection:
                return _timed(connection, process, keys, fresh)
        finally:
            process.kill()
            process.wait()


def _timed(connection: psycopg.Connection[Any], process: subprocess.Popen[bytes], keys: int, fresh: int) -> float:
    first, began, until = 0, 0.0, time.perf_counter() + PATIENCE
    while process.poll() is None and time.perf_counter() < until:
        row = connection.execute("SELECT count(*) FROM shop.orders WHERE id >= %s", (keys,)).fetchone()
        assert row is not None
        if row[0] and not began:
            first, began = row[0], time.perf_counter()
        if row[0] >= fresh:
            return float(row[0] - first) / (time.perf_counter() - began)
        time.sleep(0.05)
    raise RuntimeError(f"Debezium's sink: not all of {fresh} rows came; it ended with {process.poll()}")


@contextmanager
def jdbc_sink(rows: Iterable[tuple[Any, ...]]) -> Iterator[JdbcSink]:
    """A sink whose topic has these rows. Raises ImportError where it cannot be had."""
    try:
        _jars()
        with kafka.kafka(java=("-Xmx1g",), options={"num.partitions": "1"}) as broker, tempfile.TemporaryDirectory() as folder:
            _fill(broker, Path(folder, "messages"), rows)
            yield JdbcSink(broker, Path(folder))
    except ServerUnavailable as error:
        raise ImportError(str(error)) from error


def _jars() -> Path:
    connect = [f"org.apache.kafka:connect-{part}:{kafka.VERSION}" for part in ("runtime", "json")]
    return maven.jars(
        f"debezium-jdbc-{VERSION}-connect-{kafka.VERSION}", f"io.debezium:debezium-connector-jdbc:{VERSION}", *connect
    )


def _fill(broker: kafka.Broker, file: Path, rows: Iterable[tuple[Any, ...]]) -> None:
    with file.open("w") as out:
        for id_, customer, amount, placed, status in rows:
            values = (id_, customer, float(amount), round((placed - datetime(1970, 1, 1)).total_seconds() * 1000), status)
            value = dict(zip([field["field"] for field in _FIELDS], values, strict=True))
            out.write(f"{_message([_KEY], {'id': id_})}\t{_message(_FIELDS, value)}\n")
    words = ["--bootstrap-server", broker.address, "--topic", _TOPIC, "--property", "parse.key=true"]
    with file.open() as text:
        done = broker.run("org.apache.kafka.tools.ConsoleProducer", *words, "--property", "key.separator=\t", stdin=text)
    if done.returncode:
        raise RuntimeError(f"Kafka's producer failed: {(done.stdout + done.stderr)[-500:]}")


def _message(fields: list[dict[str, Any]], values: dict[str, Any]) -> str:
    return json.dumps({"schema": {"type": "struct", "optional": False, "fields": fields}, "payload": values})
