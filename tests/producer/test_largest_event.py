"""What a large event costs, as a multiple of its size: in the producer, in readers, and where a filter leaves it out.

Peaks are VmHWM of /proc/PID/status less VmRSS before the event: private memory and pages mapped of what is shared, the event's own segment
included. Pages of the log that the kernel caches count where they are mapped, as in a reader that got the event from there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from tests.servers.server import Server, start_server

SIZE = 96  # MB of the event
SLACK = 8  # MB that a process takes for anything else meanwhile

PRODUCER = """
import sys
from shmstore import producer
name, port, exclude, rows = sys.argv[1:]
producer.run(
    producer.Settings(
        store=name, host="127.0.0.1", port=int(port), user="root", start="latest",
        exclude=[exclude] * bool(exclude), row_filter=[rows] * bool(rows),
    ),
    lambda: False,
)
"""
READER = """
import sys
from pathlib import Path
from shmstore import EventStore

def kib(field):
    return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0])

with EventStore.attach(sys.argv[1]) as store:
    subscription = store.subscribe(sys.argv[2])
    if sys.argv[2] == "arrow":
        import pyarrow
    before, rows = kib("VmRSS"), 0
    print("ready", flush=True)
    while not rows:
        batch = subscription.get(timeout=100)
        if sys.argv[2] == "arrow":
            rows = batch.rows
            table = batch.to_arrow() if rows else None
        elif sys.argv[2] == "values":
            rows = sum(len(event.rows) for event in batch)
        else:
            sum(sum(payload[::4096]) for payload in batch.payloads())  # a look at each page
            rows = batch.rows
        subscription.ack(batch)
    print((kib("VmHWM") - before) / 1024)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_server("mariadb", ["--max-allowed-packet=1G", "--binlog-row-metadata=MINIMAL"]) as running:
        with running.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE large")
            cursor.execute("CREATE TABLE large.big (id INT PRIMARY KEY AUTO_INCREMENT, b LONGBLOB)")
            cursor.execute("CREATE TABLE large.other (id INT PRIMARY KEY AUTO_INCREMENT)")
        yield running


def kib(pid: int, field: str) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split(f"{field}:")[1].split()[0])


def peaks(
    server: Server,
    name: str,
    statement: str,
    readers: tuple[str, ...] = (),
    *,
    pure: bool = False,
    exclude: str = "",
    rows: str = "",
) -> dict[str, float]:
    """Run `statement`, which logs one event of `SIZE` MB; return what it cost each process, in multiples of that beyond `SLACK`."""
    environment = {**os.environ, "SHMSTORE_PURE": str(int(pure))}
    found: dict[str, float] = {}
    with EventStore.create(name) as store, server.connect(database="large") as connection, connection.cursor() as cursor:
        arguments = [name, str(server.port), exclude, rows]
        processes = {"producer": subprocess.Popen([sys.executable, "-c", PRODUCER, *arguments], env=environment)}
        try:
            producer = processes["producer"]
            until = time.monotonic() + 60
            while store.start_position is None and store.latest_position is None:
                assert producer.poll() is None, "the producer ended"
                assert time.monotonic() < until, "the producer did not begin"
                time.sleep(0.05)
            wait_for(server, store, producer)
            for reader in readers:
                store.subscribe(reader, start="latest").close()  # behind the rows of `wait_for`
                command = [sys.executable, "-c", READER, name, reader]
                processes[reader] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
                assert processes[reader].stdout.readline() == "ready\n"  # type: ignore[union-attr]
            before = kib(producer.pid, "VmRSS")
            cursor.execute(statement)
            wait_for(server, store, producer)
            found["producer"] = (kib(producer.pid, "VmHWM") - before) / 1024
            for reader in readers:
                found[reader] = float(processes[reader].communicate(timeout=100)[0])
            assert exclude or store.stat().put.bytes > 0
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()
    EventStore.unlink(name, log=True)
    return {who: (size - SLACK) / SIZE for who, size in found.items()}


def wait_for(server: Server, store: EventStore, producer: subprocess.Popen[str]) -> None:
    """Wait until the producer has put all that was written until now, and the log has it."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO large.other VALUES ()")
        cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]  # type: ignore[index]
    until = time.monotonic() + 100
    while (at := store.latest_position) is None or (at.file, at.offset) < (file, offset):
        assert producer.poll() is None, "the producer ended"
        assert time.monotonic() < until, f"{at}, wanted {file}:{offset}"
        time.sleep(0.05)
    store.sync()


INSERT = f"INSERT INTO big (b) VALUES (REPEAT('x', {SIZE << 20}))"


@pytest.mark.timeout(200)
def test_an_insert(server: Server, store_name: str) -> None:
    """The bytes as they came and the encoded event, and of these one at a time from then on; a reader of bytes maps them."""
    found = peaks(server, store_name, INSERT, ("payloads", "values", "arrow"))
    assert found["producer"] < 2.1, found
    assert found["payloads"] < 1.1, found
    assert found["values"] < 2.1, found
    assert found["arrow"] < 2.6, found


@pytest.mark.timeout(200)
def test_an_update(server: Server, store_name: str) -> None:
    """An image before and one after, each written where it belongs."""
    with server.connect(database="large") as connection, connection.cursor() as cursor:
        cursor.execute("REPLACE INTO big VALUES (100, REPEAT('a', %s))", ((SIZE << 20) // 2,))
    assert peaks(server, store_name, f"UPDATE big SET b = REPEAT('b', {(SIZE << 20) // 2}) WHERE id = 100")["producer"] < 2.1


@pytest.mark.timeout(200)
@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_an_event_that_is_left_out(server: Server, store_name: str, pure: bool) -> None:
    """Its rows are never held: less than a packet of the protocol, whose 16 MB would be."""
    found = peaks(server, store_name, INSERT, pure=pure, exclude="large.big")
    assert found["producer"] * SIZE < 4, found


@pytest.mark.timeout(200)
def test_what_python_decodes(server: Server, store_name: str) -> None:
    """Compressed rows are uncompressed into one place; a row filter looks at the values; without compiled code all is slower and larger."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL log_bin_compress = 1")
    try:
        found = {"compressed": peaks(server, store_name, INSERT)["producer"]}
    finally:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL log_bin_compress = 0")
    found["row filter"] = peaks(server, store_name, INSERT, rows="large.big: id > 0")["producer"]
    pure = peaks(server, store_name, INSERT, ("payloads",), pure=True)
    found["pure"] = pure["producer"]
    assert found["compressed"] < 2.2, found
    assert found["row filter"] < 4.1, found
    assert found["pure"] < 5.2, found
    assert pure["payloads"] < 1.1, pure
