"""Memory of the producer and of readers, besides the segment, while what is large passes through.

Transactions of 10^6 rows, rows of 8 MB, both of them compressed by the server, too (MariaDB's log_bin_compress, MySQL's
binlog_transaction_compression). A store of the default size, the producer, and at once a reader that counts, one that makes
Arrow and `shmstore tail`, each in a process of its own. ``resident`` is the peak of RssAnon + RssFile in
/proc/PID/status, read every few milliseconds: all of the process's memory but the shared segment (RssShmem).
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benchmarks import loads, measure
from scripts.benchmarks.producer import growth
from scripts.benchmarks.stores import new_store
from shmstore import EventStore
from tests.servers.server import Server, start_server

CASES = ("rows", "large rows", "rows/compressed", "large rows/compressed")
BOUND_MB = 150
OWN, ALL = ("RssAnon:",), ("RssAnon:", "RssFile:")  # in /proc/PID/status; RssFile is mostly the libraries' code

_PRODUCER = """
import sys
from shmstore import producer
producer.run(producer.Settings(store=sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]), user="root", start=sys.argv[3]), lambda: False)
"""
_READER = """
import sys
from shmstore import EventStore
name, kind, rows, seen = sys.argv[1], sys.argv[2], int(sys.argv[3]), 0
with EventStore.attach(name) as store:
    subscription = store.subscribe(kind)
    while seen < rows:
        batch = subscription.get(timeout=300)
        if not batch:
            sys.exit(f"{seen} of {rows} rows came")
        if kind == "arrow":
            batch.to_arrow()
        seen += batch.rows
        subscription.ack(batch)
"""


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind in size.kinds:
        cases = [case for case in size.some(CASES) if measure.wanted(f"{case}/{kind}")]
        if not cases:
            continue
        with start_server(kind, ["--max-allowed-packet=1G"]) as server:
            growth._numbers(server, 6 if size.peers else 3)
            for case in cases:
                load = write(server, case, size.of(1_000_000), size.of(12))
                peaks = [peak_of_all(server.port, load) for _ in range(min(runs, 2) if size.scale == 1 else 1)]
                for subject in peaks[0]:
                    name = "shmstore" if subject == "producer" else f"shmstore {subject}"
                    values = [peak[subject] for peak in peaks]
                    taken.append(measure.of("memory", f"{case}/{kind}", name, "resident", "MB", values))
                    measure.say(f"memory {case}/{kind} {subject}: {measure.number(taken[-1].median)} MB")
    return taken


def write(server: Server, case: str, rows: int, large: int) -> loads.Load:
    """Write one transaction: `rows` rows of some 100 bytes, or `large` rows of 8 MB."""
    compressed = case.endswith("/compressed")
    with server.connect() as connection, connection.cursor() as cursor:
        if server.flavor == "mariadb":
            cursor.execute(f"SET GLOBAL log_bin_compress = {int(compressed)}")
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        if server.flavor == "mysql":
            cursor.execute(f"SET SESSION binlog_transaction_compression = {int(compressed)}")
        cursor.execute("USE bench")
        cursor.execute("DROP TABLE IF EXISTS memory")
        cursor.execute("CREATE TABLE memory (id INT PRIMARY KEY AUTO_INCREMENT, k INT, c VARCHAR(100), b LONGBLOB)")
        cursor.execute("FLUSH BINARY LOGS")
        file, offset = loads._place(cursor)
        if case.startswith("large"):
            for i in range(large):
                cursor.execute("INSERT INTO memory (k, b) VALUES (%s, REPEAT(SHA2(%s, 512), 65536))", (i, i))
        else:
            cursor.execute(
                "INSERT INTO memory (k, c) SELECT n, CONCAT(SHA2(n, 256), LEFT(SHA2(n + 1, 256), 32)) FROM numbers WHERE n < %s",
                (rows,),
            )
        connection.commit()
        end_file, end_offset = loads._place(cursor)
    return loads.Load(case, large if case.startswith("large") else rows, file, offset, end_file, end_offset)


def peak_of_all(
    port: int, load: loads.Load, readers: tuple[str, ...] = ("count", "arrow", "tail"), counted: tuple[str, ...] = ALL
) -> dict[str, float]:
    """Send a load through a store; return each process's peak in MB."""
    with new_store("memory", log=False) as store:
        name = store.name
        for reader in readers:
            store.subscribe(reader).close()
        tail = [sys.executable, "-m", "shmstore", "tail", name, "--subscription", "tail"]
        commands = {"producer": [sys.executable, "-c", _PRODUCER, name, str(port), f"{load.file}:{load.offset}"]} | {
            reader: tail if reader == "tail" else [sys.executable, "-c", _READER, name, reader, str(load.rows)]
            for reader in readers
        }
        with _watched(commands, counted) as (processes, peaks):
            for reader in readers:
                # tail has no end: it is done when it has acked all that the others have seen
                while processes[reader].poll() is None and not (reader == "tail" and _acked(store, reader)):
                    if processes["producer"].poll() is not None:
                        raise RuntimeError(f"the producer ended: {_said(processes['producer'])}")
                    time.sleep(0.05)
                if processes[reader].poll():
                    raise RuntimeError(f"{reader} failed: {_said(processes[reader])}")
        return peaks


def _acked(store: EventStore, name: str) -> bool:
    return any(one.name == name and one.ack.sequence >= store.newest for one in store.subscriptions())


def _said(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr
    return process.stderr.read().decode(errors="replace")[-1000:]


@contextmanager
def _watched(
    commands: dict[str, list[str]], counted: tuple[str, ...]
) -> Iterator[tuple[dict[str, subprocess.Popen[bytes]], dict[str, float]]]:
    """Run the commands and note their peaks until the block ends, which ends them."""
    peaks = dict.fromkeys(commands, 0.0)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.003):
            for who, process in list(processes.items()):
                peaks[who] = max(peaks[who], resident(process.pid, counted))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for who, command in commands.items():
            processes[who] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        yield processes, peaks
    finally:
        over.set()
        watcher.join()
        for process in processes.values():
            process.kill()
            process.wait()


def resident(pid: int, counted: tuple[str, ...] = ALL) -> float:
    """MB of memory of a process that are not shared memory; 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(counted)) / 1024
