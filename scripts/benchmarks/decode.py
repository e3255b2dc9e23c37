"""From the server's dump to encoded events, one core, beside mysql-replication and beside the dump itself.

Each subject reads the same binlog from the same real server over TCP. ``raw dump`` reads packets and looks at nothing but
their heads: what the server can send. ``shmstore`` ends with events encoded and slotted, ready for `put_encoded`;
``shmstore-pure`` is the same without the compiled decoder; ``mysql-replication`` ends with its rows as Python values.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from scripts.benchmarks import loads, measure
from tests.servers.server import start_server

_CHILD = """
import sys
from scripts.benchmarks import decode
print(*getattr(decode, sys.argv[1])(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5], int(sys.argv[6])))
"""


def measure_all(runs: int, quick: bool) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind in ("mariadb", "mysql"):
        with start_server(kind) as server:
            for case in loads.CASES:
                load = loads.write(server, case, 0.2 if quick else 1.0)
                for subject, function, pure in (
                    ("raw dump", "read_raw", "0"),
                    ("shmstore", "read_shmstore", "0"),
                    ("shmstore-pure", "read_shmstore", "1"),
                    ("mysql-replication", "read_library", "0"),
                ):
                    rates = [_child(function, server.port, load, pure) for _ in range(runs)]
                    taken.append(
                        measure.of(
                            "decode", f"{case}" if kind == "mariadb" else f"{case}/mysql", subject, "throughput", "rows/s", rates
                        )
                    )
                    measure.say(f"decode {kind} {case} {subject}: {measure.number(taken[-1].median)} rows/s")
    return taken


def _child(function: str, port: int, load: loads.Load, pure: str) -> float:
    """Run one reader in a process of its own; return rows/s."""
    arguments = [function, str(port), load.file, str(load.offset), load.end_file, str(load.end_offset)]
    environment = os.environ | {"SHMSTORE_PURE": pure}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    rows, seconds = done.stdout.split()
    if rows != "-1" and int(rows) != load.rows:
        raise RuntimeError(f"{function} read {rows} rows of {load.rows}")
    return load.rows / float(seconds)


# ---------------------------------------------------------------- the readers, each in a process of its own


def _link(port: int, file: str, offset: int) -> Any:
    from producer.binlog import BinlogReader, connect
    from producer.settings import Settings

    settings = Settings(store="bench", host="127.0.0.1", port=port, user="root")
    session = connect(settings, ("127.0.0.1", port))
    return BinlogReader(settings, session, file=file, offset=offset, gtids=None, server_id=77), settings


def read_raw(port: int, file: str, offset: int, end_file: str, end: int) -> tuple[int, float]:
    """Read packets, look at their heads only."""
    link, _ = _link(port, file, offset)
    socket = link._socket
    socket.settimeout(10)
    began, rest, current = time.perf_counter(), b"", file
    while True:
        data = rest + socket.recv(1 << 18)
        at, size = 0, len(data)
        while size - at >= 4:
            stop = at + 4 + (data[at] | data[at + 1] << 8 | data[at + 2] << 16)
            if stop > size:
                break
            if data[at + 9] == 4:
                current = end_file
            elif current == end_file and int.from_bytes(data[at + 18 : at + 22], "little") >= end:
                return -1, time.perf_counter() - began
            at = stop
        rest = data[at:]


def read_shmstore(port: int, file: str, offset: int, end_file: str, end: int) -> tuple[int, float]:
    """Read, decode, encode; what would be put is dropped."""
    from producer.decoder import EventDecoder
    from producer.stream import new_buffer
    from shmstore import Position

    link, settings = _link(port, file, offset)
    buffer = new_buffer(events=8192, size=8 << 20)
    decoder = EventDecoder(buffer, settings.table_filter())
    decoder.start(Position(file, offset), None)
    began, rows = time.perf_counter(), 0
    while True:
        for raw in link.read():
            decoder.feed(raw)
            if buffer.full:
                rows += _drop(buffer)
        rows += _drop(buffer)
        position = decoder.position
        if position.file == end_file and position.offset >= end:
            return rows, time.perf_counter() - began


def _drop(buffer: Any) -> int:
    rows = 0
    while (flush := buffer.take()) is not None:
        rows += flush.rows
    return rows


def read_library(port: int, file: str, offset: int, end_file: str, end: int) -> tuple[int, float]:
    """mysql-replication's own stream, every row as Python values."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": port, "user": "root", "passwd": ""},
        server_id=78,
        log_file=file,
        log_pos=offset,
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    began, rows = time.perf_counter(), 0
    for event in stream:
        rows += len(event.rows)
    seconds = time.perf_counter() - began
    stream.close()
    return rows, seconds
