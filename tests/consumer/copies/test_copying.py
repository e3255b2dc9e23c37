"""`shmstore replicate`: each change is in each copy once, whatever moment the process is killed at, and however batches are cut."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shmstore import Column, Consumer, Event, EventStore, EventType, TableSchema
from shmstore.cli.main import main
from shmstore.consumer.copies import copying as copying_module
from shmstore.consumer.copies.change_reduction import CannotFollow
from shmstore.consumer.copies.copy import Copy
from shmstore.consumer.copies.copying import Copying
from shmstore.home.definitions import Definition, DefinitionsFile
from shmstore.home.home import Home
from shmstore.home.reader_state import kept_batch
from tests.consumer.copies.lakes import DUCKDB, FORMATS, LocalCopies, apply, exists, replication, rows
from tests.consumer.spark.events import ORDERS, Binlog, order_row
from tests.consumer.spark.sources import Group, Transaction
from tests.producer.running import wait_for

KILLS = int(os.environ.get("SHMSTORE_TEST_KILLS", "20"))


class Story:
    """Random transactions and DDLs, and the rows that they leave."""

    def __init__(self, binlog: Binlog, choose: random.Random) -> None:
        self.binlog, self.choose, self.table = binlog, choose, ORDERS
        self.model: dict[int, tuple[Any, ...]] = {}

    def row(self, key: int) -> tuple[Any, ...]:
        notes = tuple([self.choose.choice(["a", None]) for _ in self.table.columns[len(ORDERS.columns) :]])
        return (*order_row(key, status=self.choose.choice(["a", "b", None])), *notes)

    def step(self) -> list[Event]:
        """One transaction or DDL."""
        choose, model, table = self.choose, self.model, self.table
        free = [key for key in range(60) if key not in model]
        kind = choose.choice("iiiuuuuddkk" if choose.random() < 0.93 else "ta")
        if kind == "t":
            model.clear()
            return self.binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE)
        if kind == "a" and len(table.columns) < 12:
            name = f"note{len(table.columns)}"
            self.table = table._replace(columns=(*table.columns, Column(name, "varchar", size=9, charset="utf8mb4")))
            self.model = {key: (*row, "x") for key, row in model.items()}
            return self.binlog.ddl(f"ALTER TABLE orders ADD {name} VARCHAR(9) DEFAULT 'x'")
        if kind in "ukd" and model:
            old = model.pop(choose.choice(list(model)))
            if kind == "d":
                return self.binlog.delete(old, table=table)
            key = choose.choice(free) if kind == "k" and free else old[0]
            model[key] = self.row(key)
            return self.binlog.update((old, model[key]), table=table)
        fresh = [self.row(key) for key in choose.sample(free, min(4, len(free)))]
        model.update({row[0]: row for row in fresh})
        return self.binlog.insert(*fresh, table=table) if fresh else self.step()


@pytest.fixture
def logged(store_name: str) -> Iterator[EventStore]:
    """A store with a log."""
    with EventStore.create(store_name, capacity=1024) as made:
        yield made


def to(folder: Path, format: str) -> str:
    return {
        "duckdb": f"duckdb:///{folder}/lake.duckdb",
        "ducklake": f"ducklake:///{folder}/lake.duckdb",
        "delta": f"delta://{folder}/lake",
        "parquet": f"parquet://{folder}/lake",
    }[format]


class Killed(Exception):
    """The process was killed here."""


@contextmanager
def killing(choose: random.Random, share: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some steps are the last thing that a process does, or the first that it does not do; the same holds for acks."""
    with monkeypatch.context() as patch:
        for of, name in ((Copy, "_do"), (Consumer, "ack"), (Consumer, "seek"), (Consumer, "sync")):
            real = getattr(of, name)

            def do(*given: Any, real: Any = real) -> None:
                if choose.random() < share:
                    raise Killed
                real(*given)
                if choose.random() < share:
                    raise Killed

            patch.setattr(of, name, do)
        yield


@pytest.mark.parametrize("format", FORMATS)
def test_kills_between_all_lines_and_other_cuts(
    tmp_path: Path, binlog: Binlog, logged: EventStore, format: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that was begun is applied again with its own events, however they are cut by the next process; then the copy equals the source."""
    choose = random.Random(seed)
    story, killed = Story(binlog, choose), 0
    for _ in range(6):
        for _ in range(choose.randrange(4, 14)):
            logged.put(story.step())
        end = logged.newest
        with killing(choose, 0.12, monkeypatch):
            while True:
                reader = Consumer(logged.name, "replicate", auto_ack=False, limit_events=choose.randrange(1, 40), timeout=0)
                copies = replication(tmp_path, format, store=logged.name, subscription="replicate")
                try:
                    Copying(reader, copies, "here").run(partial(int, end))
                    break
                except Killed:
                    killed += 1
                finally:
                    copies.close()
                    reader.close()
        copies = replication(tmp_path, format, store=logged.name, subscription="replicate")
        found = rows(copies, format) if exists(copies) else {}  # rows that are emptied in their batch create no copy
        assert found == story.model, f"seed {seed}, after {killed} kills"
    assert killed > 0


def started(store: str, folder: Path, format: str, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shmstore", "replicate", store, "--to", to(folder, format), *more]
    return subprocess.Popen(command, stderr=(folder / "log").open("ab"))


def killed_again_and_again(logged: EventStore, binlog: Binlog, folder: Path, format: str, seed: int, kills: int) -> None:
    """Kill -9 at random moments while changes come; in the end the copy equals the source."""
    choose = random.Random(seed)
    story = Story(binlog, choose)
    copies = replication(folder, format, store=logged.name, subscription="replicate")
    home = Home.of(logged.name)
    for _ in range(kills):
        began = kept_batch(home, "replicate")
        process = started(logged.name, folder, format, "--batch", str(choose.randrange(1000, 20_000)))
        try:
            wait_for(lambda began=began: kept_batch(home, "replicate") != began or not logged.put(story.step()), "a batch")  # type: ignore[misc]
            until = time.monotonic() + choose.random() * 0.3
            while time.monotonic() < until:
                logged.put(story.step())
            assert process.poll() is None, (folder / "log").read_text()
        finally:
            process.kill()
            process.wait()
    for _ in range(20):
        logged.put(story.step())
    assert started(logged.name, folder, format, "--once").wait(120) == 0, (folder / "log").read_text()
    assert rows(copies, format) == story.model, f"seed {seed}"
    assert "aside" not in (folder / "log").read_text()


@pytest.mark.parametrize("format", FORMATS[-1:])
def test_kill_9(tmp_path: Path, binlog: Binlog, logged: EventStore, format: str, seed: int) -> None:
    """Each change is in the copy once: a transaction of DuckDB has the rows and the marks."""
    killed_again_and_again(logged, binlog, tmp_path, format, seed, 2)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("format", FORMATS)
def test_many_kills(tmp_path: Path, binlog: Binlog, logged: EventStore, format: str, seed: int) -> None:
    """The same, `SHMSTORE_TEST_KILLS` times (default 20), into each kind of target."""
    killed_again_and_again(logged, binlog, tmp_path, format, seed, KILLS)


def test_the_command_ends_in_order_and_lets_the_file_go(tmp_path: Path, binlog: Binlog, logged: EventStore) -> None:
    """While nothing comes others may read the DuckDB file; SIGTERM ends it with exit code 0, a second process then continues."""
    process = started(logged.name, tmp_path, "duckdb")
    try:
        logged.put(binlog.insert(order_row(1)))
        copies = replication(tmp_path, "duckdb")
        log = tmp_path / "log"
        wait_for(lambda: _read(copies) == {1}, "the copy")
        second = started(logged.name, tmp_path, "duckdb")
        try:
            wait_for(lambda: "waiting until it ends" in log.read_text(), "the second process to wait")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            logged.put(binlog.insert(order_row(2)))
            wait_for(lambda: _read(copies) == {1, 2}, "the second process to take over")
            second.send_signal(signal.SIGINT)
            assert second.wait(60) == 130
        finally:
            second.kill()
            second.wait()
    finally:
        process.kill()
        process.wait()
    assert "copied 1 changed rows in 1 batches" in log.read_text()


def _read(copies: LocalCopies) -> set[int] | None:
    """The keys of the copy; None where it is not there yet, or not to be opened now."""
    import duckdb

    try:
        return set(rows(copies, "duckdb"))
    except duckdb.Error:
        return None


def test_another_process_has_the_file(tmp_path: Path, binlog: Binlog, logged: EventStore) -> None:
    """It is waited for, and the log reports it once."""
    logged.put(binlog.insert(order_row(1)))
    code = (
        f"import duckdb, time; c = duckdb.connect({str(tmp_path / 'lake.duckdb')!r}); print('open', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"open\n"
    process = started(logged.name, tmp_path, "duckdb", "--once")
    try:
        wait_for(lambda: "trying again until it succeeds" in (tmp_path / "log").read_text(), "the log")
        holder.kill()
        holder.wait()
        assert process.wait(60) == 0
    finally:
        for each in (holder, process):
            each.kill()
            each.wait()
    assert (tmp_path / "log").read_text().count("trying again until it succeeds") == 1
    assert set(rows(replication(tmp_path, "duckdb"), "duckdb")) == {1}


@pytest.mark.parametrize("format", [format for format in FORMATS if format in DUCKDB])
def test_a_target_that_is_closed_has_let_its_file_go(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """Another process may write to it, and the next batch finds what that did."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)))
    code = (
        "import duckdb, sys; from shmstore.consumer.copies.reading.duckdb_file import attach_lake; lake = sys.argv[1] == 'ducklake'; "
        "c = duckdb.connect() if lake else duckdb.connect(sys.argv[2]); lake and attach_lake(c, sys.argv[2]); "
        "c.execute('DELETE FROM shop.orders WHERE id = 1'); c.close()"
    )
    subprocess.run([sys.executable, "-c", code, format, str(tmp_path / "lake.duckdb")], check=True)
    apply(copy, 1, binlog.insert(order_row(3)))
    assert set(rows(copy, format)) == {2, 3}


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
@pytest.mark.parametrize("ends", [True, False])
def test_a_wait_for_another_writer_ends(tmp_path: Path, binlog: Binlog, logged: EventStore, mode: str, ends: bool) -> None:
    """Where another process holds the database, at the first start, too, in any mode of it: SIGTERM ends the command, and the end of the other one the wait."""
    logged.put(Story(binlog, random.Random(1)).step())
    with closing(sqlite3.connect(tmp_path / "copy.db", isolation_level=None)) as connection, (tmp_path / "log").open("w+") as log:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE theirs (n INT)")
        connection.execute("BEGIN IMMEDIATE")
        words = ["-m", "shmstore", "replicate", logged.name, "--to", f"sqlite:///{tmp_path}/copy.db", "--once"]
        process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log)
        try:
            waits = ("this one waits for it", "database is locked; trying again until it succeeds")
            wait_for(lambda: any(word in (tmp_path / "log").read_text() for word in waits), "the wait for the database", 120)
            if ends:
                connection.execute("COMMIT")
            else:
                process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
            assert bool(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'orders'").fetchone()) == ends
        finally:
            process.kill()
            process.wait()


def test_a_subscription_keeps_copies_in_one_place(
    tmp_path: Path, binlog: Binlog, logged: EventStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that it has acked would be missing in another one."""
    logged.put(binlog.insert(order_row(1)))
    assert main(["replicate", logged.name, "--to", to(tmp_path, "duckdb"), "--once"]) == 0
    assert main(["replicate", logged.name, "--to", to(tmp_path, "delta"), "--once"]) == 2
    assert f"subscription 'replicate' keeps copies in duckdb:{tmp_path}/lake.duckdb" in capsys.readouterr().err
    assert main(["replicate", logged.name, "--to", to(tmp_path, "delta"), "--once", "--subscription", "other"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "duckdb"), "does not say where the copies go: give KIND:PLACE, with delta, parquet, duckdb"),
        (("--to", "dukdb:///x"), "there is no target 'dukdb'"),
        (("--to", "duckdb:///x", "--storage", "A=b"), "--to duckdb: has no use for storage"),
        (("--to", "parquet:s3://x"), "Parquet copies are files of this host"),
        (("--to", "duckdb:///no/such/folder/x"), "duckdb:////PATH is a path that begins with a slash"),
        (("--to", "sqlite:///no/such/folder/x"), "sqlite:////PATH is a path that begins with a slash"),
        (("--to", "sqlite://x"), "sqlite:///FILE is a file in the current folder"),
        (("--to", "delta:x", "--key", "shop.orders"), "--key 'shop.orders' is not NAME=VALUE"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path,
    binlog: Binlog,
    logged: EventStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    """Exit code 2, and what to do."""
    monkeypatch.chdir(tmp_path)
    logged.put(binlog.insert(order_row(1)))
    assert main(["replicate", logged.name, *words, "--once"]) == 2
    assert said in capsys.readouterr().err


def test_several_sources_are_refused(tmp_path: Path, store_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By a line that names what does it, at the start, and where it shows only while the command runs; nothing is copied."""
    group = Group()
    with EventStore.create(store_name, capacity=64) as store:
        for event in group.start():
            store.put([event])
        for part in group.puts(Transaction("a", 1, ((1,),))):
            store.put(part)
        assert main(["replicate", store_name, "--to", to(tmp_path, "duckdb"), "--once"]) == 2
        assert "has several sources" in (said := capsys.readouterr().err)
        assert "`shmstore spark replicate`" in said
        with Consumer(store_name, "replicate", auto_ack=False, timeout=0) as reader:
            copies = replication(tmp_path, "parquet", store=store_name, subscription="replicate")
            with pytest.raises(CannotFollow, match="has several sources"):
                Copying(reader, copies, "here").run(lambda: store.newest)
    assert {path.name for path in tmp_path.iterdir()} <= {"state"}


def test_a_store_of_another_host_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its home is there: with it, what is in the copies."""
    assert main(["replicate", "grpc://db1:7070/orders", "--to", to(tmp_path, "duckdb"), "--once"]) == 2
    assert (
        "copies are kept by a process on the store's host: give a store's name, not 'grpc://db1:7070/orders'"
        in capsys.readouterr().err
    )


def test_into_a_database(tmp_path: Path, binlog: Binlog, logged: EventStore, seed: int) -> None:
    """The databases' targets are named by their URLs; the copy has the rows, and a replay changes nothing."""
    story = Story(binlog, random.Random(seed))
    for _ in range(30):
        logged.put(story.step())
    for _ in range(2):
        assert main(["replicate", logged.name, "--to", f"sqlite:///{tmp_path}/copy.db", "--once"]) == 0
    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection:
        assert {key for (key,) in connection.execute("SELECT id FROM orders")} == set(story.model)


def test_the_dry_run_creates_nothing(
    tmp_path: Path, binlog: Binlog, logged: EventStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the copy of each table that is known, with its columns and its key, or why there would be none."""
    keyless = TableSchema("shop", "log", (Column("n", "int"),), ())
    DefinitionsFile(logged.home).replace(
        [Definition("binlog.000001", 4, table.database, table.table, table) for table in (ORDERS, keyless)]
    )
    words = ["replicate", logged.name, "--to", to(tmp_path, "delta"), "--dry-run"]
    assert main(words) == 0
    assert not (tmp_path / "lake").exists()
    found = capsys.readouterr().out
    assert f"shop.orders: would create {tmp_path}/lake/shop/orders (id int64, customer" in found
    assert "shop.log: no copy: it has no primary key; give --key 'shop.log=COLUMN'" in found
    logged.put(binlog.insert(order_row(1)))
    assert main([*words[:-1], "--once"]) == 0
    assert main(words) == 0
    assert "shop.orders: the copy" in capsys.readouterr().out


def test_counters(tmp_path: Path, binlog: Binlog, logged: EventStore) -> None:
    """What was copied, and how far, as Prometheus reads it."""
    logged.put(binlog.insert(order_row(1), order_row(2)))
    with Consumer(logged.name, "replicate", auto_ack=False, timeout=0) as reader:
        copying = Copying(reader, replication(tmp_path, "parquet", store=logged.name, subscription="replicate"), "here")
        copying.run(lambda: logged.newest)
    text = copying.counters.exposition(logged.name, "replicate")
    assert f'shmstore_replicate_rows_total{{store="{logged.name}",subscription="replicate"}} 2' in text
    assert f'shmstore_replicate_sequence{{store="{logged.name}",subscription="replicate"}} {logged.newest}' in text


@pytest.mark.parametrize(("rows", "copied"), [(80, 80), (130, 130), (160, 160), (240, 190), (280, 280), (320, 320)])
def test_a_batch_of_rows_ends_where_duckdb_does_not_write_them_again(
    tmp_path: Path, binlog: Binlog, store_name: str, monkeypatch: pytest.MonkeyPatch, rows: int, copied: int
) -> None:
    """That is where its last group of rows is more than half full, or one of four. What is left comes with the next batch."""
    monkeypatch.setattr(copying_module, "GROUP", 100)
    loads = [event for key in range(0, rows, 10) for event in binlog.read("", *map(order_row, range(key, key + 10)))]
    with EventStore.create(store_name) as made, Consumer(store_name, "replicate", auto_ack=False, timeout=0) as reader:
        copying = Copying(reader, replication(tmp_path, "duckdb", store=store_name, subscription="replicate"), "here")
        made.put(loads)
        copying._take(next(iter(reader)))
        assert copying.counters.rows == copied
        made.put(binlog.insert(order_row(rows)))
        copying.run(lambda: made.newest)
        assert copying.counters.rows == rows + 1


def test_rows_of_a_snapshot_are_committed_many_at_a_time(
    tmp_path: Path, binlog: Binlog, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they come one event after the other, the next batch waits for them; where none comes, nothing is waited for."""
    loads = [binlog.read("" if key else "first", *map(order_row, range(key, key + 2_000))) for key in range(0, 20_000, 2_000)]
    monkeypatch.setattr(copying_module, "MANY_ROWS", 2_000)
    monkeypatch.setattr(copying_module, "FILL_SECONDS", 600.0)
    with EventStore.create(store_name) as made, Consumer(store_name, "replicate", auto_ack=False, timeout=0) as reader:
        copying = Copying(reader, replication(tmp_path, "duckdb", store=store_name, subscription="replicate"), "here")
        real = copying._stopped.wait

        def wait(seconds: float | None = None) -> bool:
            if seconds == copying_module._FILL_STEP and loads:
                made.put(loads.pop(0))
            return real(0)

        monkeypatch.setattr(copying._stopped, "wait", wait)
        made.put(loads.pop(0))
        copying.run(lambda: None if loads else made.newest)
    assert copying.counters.rows == 20_000
    assert copying.counters.batches == 2
