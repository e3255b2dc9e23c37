"""A large table whose copy executors merge, on a cluster of two workers, one of which sees no store: updates over the whole table, executors and drivers
that are killed, and in the end the copy equals SELECT. The driver's memory does not grow with the table.

`SHMSTORE_TEST_ROWS` is how many rows the table has (default 1,000,000); `SHMSTORE_TEST_KILLS` how often a driver and how often an executor is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from tests.consumer.spark.cluster import ROOT, cluster
from tests.consumer.spark.replicate.iceberg_cases import DELTA, DELTA_SETTINGS
from tests.consumer.spark.test_endtoend import Chain
from tests.consumer.spark.test_versions import OLDEST
from tests.consumer.spark.versions import environment
from tests.producer.running import execute
from tests.servers.maven import jars
from tests.servers.server import Server, start_server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.long, pytest.mark.timeout(4 * 3600)]
ROWS = int(os.environ.get("SHMSTORE_TEST_ROWS", "1000000"))
KILLS = int(os.environ.get("SHMSTORE_TEST_KILLS", "3"))
AT_ONCE = 1_000_000  # rows of one INSERT
BUCKET = 1 << 16  # rows whose sums are compared
PAUSE = max(1.0, ROWS / 1_000_000)  # seconds between two rounds of changes: a merge takes as much longer
SERVER = [f"--innodb-buffer-pool-size={max(512, ROWS >> 14)}M", "--innodb-log-file-size=1G", "--innodb-flush-log-at-trx-commit=0"]
PATIENCE = 1800.0  # seconds without a commit
TABLE = "CREATE TABLE big (id BIGINT PRIMARY KEY, customer INT, amount DECIMAL(12,2), status VARCHAR(40))"


def _fill(server: Server, database: str) -> None:
    """Rows that no binlog has: the executors read them from the server."""
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(TABLE)
        cursor.execute("SET SESSION sql_log_bin = 0, unique_checks = 0, foreign_key_checks = 0")
        for first in range(1, ROWS + 1, AT_ONCE):
            last = min(ROWS, first + AT_ONCE - 1)
            cursor.execute(
                f"INSERT INTO big SELECT seq, seq % 1000, seq % 100000 / 100, CONCAT('new ', seq % 7) FROM seq_{first}_to_{last}"
            )


class Load(threading.Thread):
    """Random changes over the whole table, until stopped: `rows` so far."""

    def __init__(self, server: Server, database: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self._database, self._choose = server, database, random.Random(seed)
        self.rows = 0
        self.error: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            with self._server.connect(database=self._database) as connection, connection.cursor() as cursor:
                cursor.execute("CREATE TEMPORARY TABLE chosen (id BIGINT PRIMARY KEY)")
                while not self.stopping.wait(PAUSE):
                    count = self._choose.choice([ROWS // 1000, ROWS // 100])
                    cursor.execute("DELETE FROM chosen")
                    cursor.execute(
                        f"INSERT IGNORE INTO chosen SELECT FLOOR(1 + RAND({self._choose.randrange(1 << 30)}) * {ROWS * 1.1}) FROM seq_1_to_{count}"
                    )
                    for sql in (
                        "UPDATE big JOIN chosen USING (id) SET amount = amount + 0.01, status = CONCAT('changed ', big.id % 11) WHERE id % 3 > 0",
                        "DELETE big FROM big JOIN chosen USING (id) WHERE id % 30 = 0",
                        "INSERT IGNORE INTO big SELECT id, 7, -1.5, NULL FROM chosen WHERE id % 30 = 3",
                        f"UPDATE big JOIN chosen USING (id) SET big.id = big.id + {2 * ROWS} WHERE big.id % 3000 = 6",
                    ):
                        cursor.execute(sql)
                        self.rows += cursor.rowcount
        except BaseException as error:
            self.error = error


def _sums(server: Server, database: str) -> dict[int, tuple[int, int]]:
    """Of each bucket of ids how many rows there are, and the sum of what is hashed of each."""
    cells = "CONCAT_WS('|', id, customer, amount, IFNULL(status, '~'))"
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id DIV {BUCKET}, COUNT(*), SUM(CAST(CONV(LEFT(MD5({cells}), 14), 16, 10) AS DECIMAL(20))) FROM big GROUP BY 1"
        )
        return {int(bucket): (int(count), int(total)) for bucket, count, total in cursor.fetchall()}


def _copied(path: Path) -> dict[int, tuple[int, int]]:
    cells = "concat_ws('|', id, customer, amount, coalesce(status, '~'))"
    with duckdb.connect(config={"memory_limit": "3GB", "threads": 2}) as connection:
        rows = connection.execute(
            f"SELECT id // {BUCKET}, count(*), sum(('0x' || left(md5({cells}), 14))::BIGINT) FROM read_parquet(?) GROUP BY 1",
            [DeltaTable(path).file_uris()],
        ).fetchall()
    return {int(bucket): (int(count), int(total)) for bucket, count, total in rows}


def _memory(pids: list[int]) -> int:
    """The largest resident size of any of the processes until now, MiB."""
    found = [0]
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        found += [int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")]
    return max(found)


def _kill_executor(folder: Path, choose: random.Random) -> str:
    """Kill one of the cluster's executors, which its workers have started in `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            here = process.name.isdigit() and os.readlink(process / "cwd").startswith(f"{folder}/")
            if here and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    if not found:
        return "no executor"
    pid = choose.choice(found)
    os.kill(pid, signal.SIGKILL)
    return str(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="a private /dev/shm needs root")
def test_a_large_table_equals_select_after_kills(tmp_path: Path, store_name: str, seed: int) -> None:
    """Random rows of the whole table in each merge, drivers and executors killed by turns."""
    choose, database = random.Random(seed), "big"
    python = environment(OLDEST, tmp_path / "python")
    spark_jars = ",".join(map(str, sorted(jars("delta-spark-4.0-4.4.0-alone", *DELTA).glob("*.jar"))))
    settings = {
        "spark.jars": spark_jars,
        **DELTA_SETTINGS,
        "spark.driver.memory": "700m",
        "spark.executor.memory": "1500m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.locality.wait": "0s",
        "spark.sql.shuffle.partitions": str(max(4, ROWS // 500_000)),
        "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "true",
    }
    copy = tmp_path / "lake" / database / "big"
    given = {"delta": {"target": f"{tmp_path}/lake/{{database}}/{{table}}", "merge": "executors", "checkpoint": f"{tmp_path}/checkpoint",
                       "trigger": {"processingTime": "5 seconds"}}}  # fmt: skip

    def said(text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, flush=True)

    with (
        start_server("mariadb", options=SERVER) as server,
        cluster(tmp_path, python, "1700m") as master,
    ):
        execute(server, "mysql", f"CREATE DATABASE {database}")
        _fill(server, database)
        said(f"{ROWS:,} rows are in the server")
        program = [python, str(Path(__file__).with_name("kill_driver.py")), master, store_name, f"{database}.*"]
        driver = [*program, json.dumps(settings), json.dumps(given), str(server.port)]
        chain = Chain(server, database, store_name, tmp_path, driver)
        chain.environment |= {"PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT)}
        chain.environment.pop("PYSPARK_SUBMIT_ARGS")
        load, most = Load(server, database, seed), {"python": 0, "jvm": 0}

        def version() -> int:
            return DeltaTable(copy).version() if DeltaTable.is_deltatable(str(copy)) else -1

        def watch(condition: Callable[[], bool]) -> None:
            """Until then start what does not run, and look at the driver's memory."""
            while not condition():
                chain.supervise()
                assert load.error is None
                if "driver" in chain.running:
                    most["python"] = max(most["python"], _memory([chain.running["driver"].pid]))
                    most["jvm"] = max(most["jvm"], _memory(chain.victims("jvm")))
                time.sleep(0.5)

        def commits_after(last: int) -> int:
            """Wait for the next commit; return its version."""
            until = time.monotonic() + PATIENCE
            watch(lambda: version() > last or time.monotonic() > until)
            assert version() > last, f"no commit after version {last}\n{chain.log()}"
            return version()

        try:
            commits_after(version())
            said("executors have read them into the copy")
            load.start()
            for number in range(2 * KILLS):
                commits_after(version())
                time.sleep(choose.uniform(0, 20))
                victim = ("executor", "driver", "executor", "jvm")[number % 4]
                killed = _kill_executor(tmp_path, choose) if victim == "executor" else chain.kill(victim, choose)
                said(f"version {version()}, {load.rows:,} changed rows; kill {number + 1}: {killed} of {victim}")
            commits_after(version())
            load.stopping.set()
            load.join(600)
            assert load.error is None
            wanted, seen = _sums(server, database), version()
            said(f"the server has {sum(count for count, _ in wanted.values()):,} rows after {load.rows:,} changed ones")
            while (found := _copied(copy)) != wanted:
                said(
                    f"{sum(wanted.get(bucket) != found.get(bucket) for bucket in {*wanted, *found})} sums differ at version {seen}"
                )
                seen = commits_after(seen)
            said(f"all {len(wanted)} sums equal SELECT at version {version()}")
            said(f"driver: Python {most['python']} MiB, JVM {most['jvm']} MiB at most")
        finally:
            load.stopping.set()
            chain.close()
