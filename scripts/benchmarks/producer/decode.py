"""From the server's dump to encoded events, one core, compared with mysql-replication and with the dump itself.

Each subject reads the same binlog from the same real server over TCP (MySQL: with TLS, which it offers and every client here
takes). ``raw dump`` reads packets and looks at nothing but their heads: what the server can send. ``shmstore`` ends with events
encoded and slotted, ready for `put_encoded`; ``shmstore-pure`` is the same without the compiled decoder;
``mysql-replication`` ends with its rows as Python values. ``throughput`` is by the clock; ``throughput/cpu`` is rows for each
second of the reader's own CPU: what one core could do if the server were not the limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from scripts.benchmarks import loads, measure
from tests.servers.server import start_server

SLOW_SECONDS = 15.0
Reader = Callable[
    [int, loads.Load], "tuple[int, float, float] | None"
]  # port, load -> rows, seconds, seconds of CPU; or it prints them
_CHILD = """
import importlib, json, sys
from scripts.benchmarks import loads
module, reader = sys.argv[1:3]
load, options = loads.Load(*json.loads(sys.argv[4])), json.loads(sys.argv[5])
print(*getattr(importlib.import_module(module), reader)(int(sys.argv[3]), load, **options))
"""


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind, port, load in written(size):
        name = load.case if kind == "mariadb" else f"{load.case}/mysql"
        for subject, reader, pure in (
            ("raw dump", read_raw, "0"),
            ("shmstore", read_shmstore, "0"),
            ("shmstore-pure", read_shmstore, "1"),
            ("mysql-replication", read_library, "0"),
        )[: None if size.peers else 3]:
            rates = several(runs, reader, port, load, pure)
            for metric, unit, values in zip(
                ("throughput", "throughput/cpu"), ("rows/s", "rows/CPU s"), zip(*rates, strict=True), strict=True
            ):
                taken.append(measure.of("decode", name, subject, metric, unit, values))
                measure.say(f"decode {name} {subject}: {measure.number(taken[-1].median)} {unit}")
    return taken


def written(size: measure.Size) -> Iterator[tuple[str, int, loads.Load]]:
    """Start each server of which a load is wanted, and write its loads one by one; yield the kind of server, its port and the load."""
    for kind in size.kinds:
        cases = [case for case in size.some(loads.CASES) if measure.wanted(f"{case}/{kind}")]
        if not cases:
            continue
        with start_server(kind) as server:
            for case in cases:
                yield kind, server.port, loads.write(server, case, size.scale)


def several(runs: int, reader: Reader, port: int, load: loads.Load, pure: str = "0", **options: Any) -> list[tuple[float, float]]:
    """`read` so many times; a subject that takes long, three times."""
    taken: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(taken) < runs and (len(taken) < 3 or time.monotonic() - began < SLOW_SECONDS):
        taken.append(read(reader, port, load, pure, **options))
    return taken


def read(reader: Reader, port: int, load: loads.Load, pure: str = "0", **options: Any) -> tuple[float, float]:
    """Run one reader, a function of a module, in a process of its own, with `options`; return rows/s and rows for each second of its CPU."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, reader.__module__, reader.__name__, str(port), json.dumps(load), json.dumps(options)],
        env=os.environ | {"SHMSTORE_PURE": pure},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    rows, seconds, cpu = done.stdout.split()[-3:]
    if int(rows) != load.rows:
        raise RuntimeError(f"{reader.__name__} read {rows} rows of {load.rows}")
    return load.rows / float(seconds), load.rows / float(cpu)


# ---------------------------------------------------------------- the readers, each in a process of its own


class _Clock:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """(seconds by the clock, seconds of CPU)."""
        return time.perf_counter() - self._wall, max(time.process_time() - self._cpu, 1e-9)


def _server_id() -> int:
    # each reader its own: a server that meets the id of the last one again waits until that one's dump has ended
    return 1000 + os.getpid()


def _link(port: int, file: str, offset: int, **options: Any) -> Any:
    from shmstore.producer.connection.dump import BinlogReader
    from shmstore.producer.connection.session import connect
    from shmstore.producer.settings import Settings

    settings = Settings(store="bench", host="127.0.0.1", port=port, user="root", **options)
    session = connect(settings, settings.endpoints()[0])
    return BinlogReader(settings, session, file=file, offset=offset, gtids=None, server_id=_server_id()), settings


def read_raw(port: int, load: loads.Load) -> tuple[int, float, float]:
    """Read packets, look at their heads only."""
    link, _ = _link(port, load.file, load.offset)
    socket, end = link._socket, load.end_offset
    socket.settimeout(10)
    clock, rest, current = _Clock(), b"", load.file
    while True:
        data = rest + socket.recv(1 << 18)
        at, size = 0, len(data)
        while size - at >= 4:
            stop = at + 4 + (data[at] | data[at + 1] << 8 | data[at + 2] << 16)
            if stop > size:
                break
            if data[at + 9] == 4:
                current = load.end_file
            elif current == load.end_file and int.from_bytes(data[at + 18 : at + 22], "little") >= end:
                return load.rows, *clock.read()
            at = stop
        rest = data[at:]


def read_shmstore(port: int, load: loads.Load, **options: Any) -> tuple[int, float, float]:
    """Read, decode, encode; what would be put is dropped. Rows that the producer's `options` leave out count, too."""
    from shmstore import Position
    from shmstore.producer.transactions.buffer import new_buffer
    from shmstore.producer.transactions.decoder import EventDecoder

    link, settings = _link(port, load.file, load.offset, **options)
    buffer = new_buffer(events=8192, size=8 << 20)
    decoder = EventDecoder(buffer, settings.table_filter())
    decoder.start(Position(load.file, load.offset), None)
    clock, rows = _Clock(), 0
    while True:
        for raw in link.read():
            decoder.feed(raw)
            if buffer.full:
                rows += _drop(buffer)
        rows += _drop(buffer)
        position = decoder.position
        if (position.file, position.offset) >= (load.end_file, load.end_offset):
            return rows + decoder.state.filtered_rows, *clock.read()


def _drop(buffer: Any) -> int:
    rows = 0
    while (flush := buffer.take()) is not None:
        rows += flush.rows
    return rows


def read_library(port: int, load: loads.Load) -> tuple[int, float, float]:
    """mysql-replication's own stream, every row as Python values."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": port, "user": "root", "passwd": ""},
        server_id=_server_id(),
        log_file=load.file,
        log_pos=load.offset,
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    clock, rows = _Clock(), 0
    for event in stream:
        rows += len(event.rows)
    taken = clock.read()
    stream.close()
    return rows, *taken
