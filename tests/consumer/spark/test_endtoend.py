"""A real MariaDB, a real producer process, a real Spark driver process, and kill -9 for all of them: the copies equal SELECT."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pymysql
import pymysql.cursors
import pytest
from deltalake import DeltaTable

from shmstore import EventStore, StoreNotFound
from tests.consumer.copies.databases.servers import copies
from tests.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server]

TABLES = {
    "orders": """CREATE TABLE orders (
        id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, customer INT, amount DECIMAL(12,2), placed DATETIME(3),
        seen TIMESTAMP(6) NULL, note VARCHAR(60), kind ENUM('web','shop','phone'), flags SET('a','b','c'), body JSON,
        raw VARBINARY(20), day DATE, took TIME(3), rate DOUBLE, ratio FLOAT, big BIGINT UNSIGNED, bits BIT(9))""",
    "items": "CREATE TABLE items (`order` BIGINT, line SMALLINT, n INT NOT NULL, PRIMARY KEY (`order`, line))",
}
SELECTS = {
    "orders": "SELECT id, customer, amount, placed, seen, note, kind, flags, body, raw, day, CAST(took AS CHAR) took, rate, "
    "CAST(ratio AS DOUBLE) ratio, big, bits + 0 bits{more} FROM orders",
    "items": "SELECT `order`, line, n FROM items",
}


class Load(threading.Thread):
    """Random transactions, until stopped; `done` transactions so far."""

    def __init__(self, server: Server, database: str, seed: int, pause: float) -> None:
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.server, self.database, self.pause = server, database, pause
        self.done = 0
        self.more = ""
        self.error: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            with self.server.connect(database=self.database, autocommit=False) as connection, connection.cursor() as cursor:
                cursor.execute("SET time_zone = '+00:00'")
                while not self.stopping.wait(self.pause):
                    for _ in range(self.random.randrange(1, 5)):
                        self.change(cursor)
                    connection.rollback() if self.random.random() < 0.1 else connection.commit()
                    self.done += 1
                    if self.done == 40:
                        cursor.execute(
                            "ALTER TABLE orders ADD COLUMN extra VARCHAR(9) NOT NULL DEFAULT 'none', ADD COLUMN score INT"
                        )
                        self.more = ", extra, score"
                    if self.done == 60:
                        cursor.execute("TRUNCATE TABLE items")
        except BaseException as error:
            self.error = error

    def change(self, cursor: Any) -> None:
        choose = self.random
        kind = choose.choice("iiiuuudkmx")
        if kind == "i":
            rows = [self.order() for _ in range(choose.choice([1, 1, 3, 40]))]
            cursor.executemany(
                "INSERT INTO orders (customer, amount, placed, seen, note, kind, flags, body, raw, day, took, rate, ratio, big, bits) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                rows,
            )
        elif kind == "u":
            cursor.execute(
                "UPDATE orders SET amount = amount + 1.01, note = CONCAT(LEFT(note, 9), 'ü') ORDER BY RAND(%s) LIMIT 3",
                (choose.randrange(99),),
            )
        elif kind == "d":
            cursor.execute("DELETE FROM orders ORDER BY RAND(%s) LIMIT 2", (choose.randrange(99),))
        elif kind == "k":
            cursor.execute("UPDATE orders SET id = id + 1000000 ORDER BY id DESC LIMIT 1")
        elif kind == "m":
            cursor.execute(
                "REPLACE INTO items VALUES (%s, %s, %s)", (choose.randrange(9), choose.randrange(4), choose.randrange(99))
            )
        else:
            cursor.execute("DELETE FROM items WHERE `order` = %s", (choose.randrange(9),))

    def order(self) -> tuple[Any, ...]:
        choose = self.random
        return (
            choose.choice([None, choose.randrange(1000)]),
            Decimal(choose.randrange(-(10**9), 10**9)) / 100,
            f"2026-0{choose.randrange(1, 9)}-11 12:13:14.{choose.randrange(1000):03d}",
            f"2026-0{choose.randrange(1, 9)}-11 12:13:14.{choose.randrange(10**6):06d}",
            choose.choice(["", "ä😀'\\\n", "x" * choose.randrange(60), None]),
            choose.choice(["web", "shop", "phone"]),
            choose.choice(["", "a", "b,c"]),
            '{"a": [1, "ö"]}',
            bytes(choose.randrange(256) for _ in range(choose.randrange(20))),
            f"{choose.randrange(1000, 9999)}-12-31",
            f"{choose.choice(['', '-'])}{choose.randrange(838):02d}:01:02.5",
            choose.random() * 10 ** choose.randrange(-9, 9),
            choose.choice([0.1, 3.4e38, -1.5]),
            choose.choice([0, 2**64 - 1]),
            choose.randrange(512),
        )


def parent(pid: int) -> int:
    """The process that started `pid`."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


#: What the command lines of a driver's processes have in them.
PROCESSES = {"worker": b"-m\0pyspark", "jvm": b"SparkSubmit", "executor": b"CoarseGrainedExecutorBackend"}


class Chain:
    """The producer's and the driver's processes; whichever is dead is started again."""

    queries = 1  # that the driver runs

    def __init__(self, server: Server, database: str, store: str, folder: Path, driver: list[str]) -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            file, offset = cursor.fetchone()[:2]
        program = "import sys; from shmstore.cli.main import main; sys.exit(main())"
        producer = f"produce --store {store} --port {server.port} --start {file}:{offset} --include {database}.* --capacity 512"
        self.commands = {"producer": [sys.executable, "-c", program, *producer.split()], "driver": driver}
        self.folder, self.store = folder, store
        self.environment = {
            **os.environ,
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell",
            "SHMSTORE_STATE": str(folder / "state"),
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def supervise(self) -> None:
        """Start what does not run; the driver once there is a store."""
        for name, command in self.commands.items():
            process = self.running.get(name)
            if process is not None and process.poll() is None:
                continue
            if name == "driver" and self.store not in EventStore.names():
                continue
            with open(self.folder / f"{name}.log", "ab") as log:
                self.running[name] = subprocess.Popen(
                    command, stdout=log, stderr=log, env=self.environment, start_new_session=True
                )

    def run_on(self, choose: random.Random, seconds: tuple[float, float] = (2, 9)) -> None:
        """Let both run for some seconds; mostly until the queries read, however long the driver takes to start."""
        until, early = time.monotonic() + choose.uniform(*seconds), choose.random() < 0.2
        while time.monotonic() < until or not (self.reads() or (early and "driver" in self.running)):
            self.supervise()
            time.sleep(0.1)

    def reads(self) -> bool:
        """True while every query owns its subscription."""
        with suppress(StoreNotFound), EventStore.attach(self.store) as store:
            return sum(each.alive for each in store.subscriptions()) >= self.queries
        return False

    def descendants(self, what: bytes) -> list[int]:
        """The processes below the driver's that have this in their command lines."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, IndexError, ValueError):
                    parents[int(entry.name)] = parent(int(entry.name))
        driver = self.running["driver"].pid

        def belongs(pid: int) -> bool:
            while pid in parents:
                pid = parents[pid]
                if pid == driver:
                    return True
            return False

        found = []
        for pid in parents:
            with suppress(OSError):
                if belongs(pid) and what in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def victims(self, kind: str) -> list[int]:
        """The driver's processes of a kind; of executors those that have run a task."""
        found = self.descendants(PROCESSES[kind])
        if kind != "executor":
            return found
        parents = set()
        for pid in self.descendants(PROCESSES["worker"]):
            with suppress(OSError):  # it has ended
                parents.add(parent(pid))
        return [pid for pid in found if pid in parents]

    def kill(self, victim: str, choose: random.Random) -> str:
        """SIGKILL a process; return what was killed. Where a driver's Python does not end soon without its JVM, that is killed, too."""
        if victim in PROCESSES:
            until = time.monotonic() + 60
            while not (found := self.victims(victim)):
                if time.monotonic() > until or self.running["driver"].poll() is not None:
                    return f"no {victim}"
                time.sleep(0.05)
            pid = choose.choice(found)
        else:
            pid = self.running[victim].pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if victim == "jvm":
            try:
                self.running["driver"].wait(30)
            except subprocess.TimeoutExpired:  # as where Spark's Python waits for a JVM that was about to start
                self.running["driver"].kill()
                return f"{victim} {pid}, and its driver {self.running['driver'].pid}, which waited for it"
        return f"{victim} {pid}"

    def close(self) -> None:
        """End both, and all that belongs to them."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def log(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.glob("*.log"))
        )


def driver(store: str, database: str, target: str) -> list[str]:
    """The command that keeps copies of all tables of a database."""
    words = f"replicate {store} --tables {database}.* --master local[2,4] {target}"
    return [sys.executable, "-m", "shmstore.consumer.spark", *words.split()]


def copy(folder: Path, database: str, table: str, format: str = "delta") -> list[dict[str, Any]]:
    """A copy's rows; none while it is not there."""
    path = folder / "lake" / database / table
    if format == "delta":
        return DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(str(path)) else []
    file = path / "part-00000.parquet"
    return pq.read_table(file).to_pylist() if file.exists() else []


def selected(server: Server, database: str, table: str, more: str) -> list[dict[str, Any]]:
    with server.connect(database=database, cursorclass=pymysql.cursors.DictCursor) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(SELECTS[table].format(more=more))
        return list(cursor.fetchall())


def normal(rows: list[dict[str, Any]]) -> list[tuple[tuple[str, str], ...]]:
    """Rows in an order of their own, values as text that the same value always has."""

    def text(name: str, value: Any) -> str:
        if name == "ratio" and value is not None:
            return f"{value:.6e}"
        if isinstance(value, Decimal):
            return format(value.normalize(), "f")
        if name == "seen" and value is not None:
            value = value.replace(tzinfo=None)
        return str(value)

    return sorted(tuple(sorted((name, text(name, value)) for name, value in row.items())) for row in rows)


@pytest.fixture
def chain(mariadb: Server, database: str, store_name: str, tmp_path: Path) -> Iterator[Chain]:
    with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
        target = f"--target {tmp_path}/lake/{{database}}/{{table}}"
        made = Chain(mariadb, database, store_name, tmp_path, driver(store_name, database, target))
        for sql in TABLES.values():
            cursor.execute(sql)
    yield made
    made.close()


def run_with_kills(
    chain: Chain, server: Server, database: str, read: Callable[[str, str], list[dict[str, Any]]], kills: int, seed: int
) -> None:
    """Kill one process after the other under load; in the end what `read` gives of each table, and its SELECT, are equal."""
    choose = random.Random(seed)
    load = Load(server, database, seed, pause=0.05)
    load.start()
    chain.supervise()
    try:
        for number in range(kills):
            chain.run_on(choose)
            print("killed", chain.kill(["driver", "producer", "worker"][number % 3], choose), flush=True)
        while load.done < 100 and load.error is None:
            chain.supervise()
            time.sleep(0.1)
    finally:
        load.stopping.set()
        load.join(30)
    assert load.error is None
    compare(chain, server, database, read, load)
    assert load.done >= 100


def compare(chain: Chain, server: Server, database: str, read: Callable[[str, str], list[dict[str, Any]]], load: Load) -> None:
    """Now that nothing changes any more, what `read` gives of each table becomes its SELECT."""
    wanted = {table: normal(selected(server, database, table, load.more if table == "orders" else "")) for table in TABLES}
    until = time.monotonic() + 150
    found: dict[str, Any] = {}
    while time.monotonic() < until and found != wanted:
        chain.supervise()
        before = found
        with suppress(OSError):
            found = {table: normal(read(table, load.more if table == "orders" else "")) for table in TABLES}
        if found != before:
            until = time.monotonic() + 150  # a busy machine takes its time
        time.sleep(0.3)
    for table in TABLES:
        missing = sorted(set(wanted[table]) - set(found.get(table, [])))
        extra = sorted(set(found.get(table, [])) - set(wanted[table]))
        assert not missing, f"{table}: {len(missing)} rows missing or wrong, as {missing[:1]}; extra {extra[:1]}\n{chain.log()}"
        assert not extra, f"{table}: {len(extra)} rows too many, as {extra[:1]}\n{chain.log()}"
    assert found == wanted, "rows are there twice"
    assert wanted["orders"]


def test_delta_copies_equal_select_after_kills(chain: Chain, mariadb: Server, database: str, seed: int) -> None:
    """Producer, driver and workers are killed at random under load: in the end every copy in Delta equals SELECT."""
    run_with_kills(chain, mariadb, database, lambda table, _: copy(chain.folder, database, table), 5, seed)


def fill(server: Server, database: str) -> None:
    """Rows for each table, enough for several parts."""
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO orders (customer, amount, placed, seen, note, kind, flags, body, raw, day, took, rate, ratio, big, bits) "
            "SELECT seq, seq / 7, '2026-01-11 12:13:14.5', '2026-01-11 12:13:14.25', CONCAT('ü', seq), 'shop', 'b,c', '[1]', CHAR(seq % 256), "
            "'2026-02-03', '-10:11:12.5', seq / 3, 0.5, seq, seq % 512 FROM seq_1_to_45000"
        )
        cursor.execute("INSERT INTO items SELECT seq + 100, seq % 9, seq FROM seq_1_to_25000")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_copies_that_executors_begin_equal_select_after_kills(
    mariadb: Server, database: str, store_name: str, tmp_path: Path, seed: int, format: str
) -> None:
    """The driver or its JVM is killed while executors read a table's rows, between two tables, and when the query has begun."""
    choose, settings = random.Random(seed), tmp_path / "orders.toml"
    settings.write_text(f'[producer]\nport = {mariadb.port}\ninclude = ["{database}.*"]\n')
    with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
        for sql in TABLES.values():
            cursor.execute(sql)
    fill(mariadb, database)
    words = f"spark replicate {store_name} --tables {database}.* --master local[2,4] --format {format} --snapshot-from {settings}"
    target = f"--target {tmp_path}/lake/{{database}}/{{table}}"
    chain = Chain(mariadb, database, store_name, tmp_path, [])
    chain.commands["driver"] = [*chain.commands["producer"][:3], *words.split(), *target.split()]
    log = tmp_path / "driver.log"

    def reads_tables() -> int:
        return log.read_text(errors="replace").count("executors read") if log.exists() else 0

    load = Load(mariadb, database, seed, pause=0.2)
    load.start()
    with closing(chain):
        try:
            for number in range(6):
                begun = reads_tables()
                while not chain.reads() and (number > 3 or reads_tables() == begun):  # the last two while the query runs
                    chain.supervise()
                    time.sleep(0.02)
                time.sleep(choose.uniform(0, 2))
                print("killed", chain.kill(("driver", "jvm")[number % 2], choose), "queries read:", chain.reads(), flush=True)
                while chain.reads():  # its subscription is free a moment after it
                    time.sleep(0.02)
            while load.done < 100 and load.error is None:
                chain.supervise()
                time.sleep(0.1)
        finally:
            load.stopping.set()
            load.join(60)
        assert load.error is None
        compare(chain, mariadb, database, lambda table, _: copy(tmp_path, database, table, format), load)
        assert reads_tables() > len(TABLES), "no kill came while rows were read"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_copies_in_a_database_equal_select_after_kills(
    mariadb: Server, database: str, store_name: str, tmp_path: Path, seed: int
) -> None:
    """The same into another database of a server."""
    account = tmp_path / "password"
    with copies("mariadb", mariadb, f"{database}_copy", tmp_path) as target:
        account.write_text(target.password + "\n")
        words = f"--target {target.address} --password-file {account}"
        where = f"--checkpoint {tmp_path}/checkpoint"
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            chain = Chain(mariadb, database, store_name, tmp_path, driver(store_name, database, f"{words} {where}"))
            for sql in TABLES.values():
                cursor.execute(sql)
        try:
            run_with_kills(chain, mariadb, database, lambda table, more: written(mariadb, target.schema, table, more), 20, seed)
        finally:
            chain.close()


def written(server: Server, schema: str, table: str, more: str) -> list[dict[str, Any]]:
    """A copy's rows; none while it is not there."""
    try:
        return selected(server, schema, table, more)
    except pymysql.MySQLError:
        return []
