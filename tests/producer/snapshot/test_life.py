"""Snapshots that are cut short, asked for, refused: nothing is lost, nothing starts over, and what cannot be done is reported."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import random
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shmstore import Checkpoint, CheckpointFile, Event, EventStore, EventType, Position, SourceError, StoreError, producer
from shmstore.cli.commands.snapshot import page
from shmstore.home.home import Home
from shmstore.home.snapshot_progress import Progress, SnapshotRequest, TableProgress
from shmstore.home.snapshots import ProgressFile
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot import runner
from shmstore.producer.snapshot.runner import Snapshot
from shmstore.producer.snapshot.whole_table import KeptRows
from shmstore.producer.transactions.buffer import new_buffer
from shmstore.producer.transactions.decoder import EventDecoder
from tests.producer.running import (
    Follower,
    Mirror,
    Running,
    events_of,
    execute,
    purge,
    remove,
    running,
    store_name,
    wait_for,
    wait_for_position,
)
from tests.producer.snapping import Copy, Load, copied, fill, fill_slowly_found, finished, killable, select, states
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server


def die_many_times(
    server: Server, database: str, state: Path, kills: int, rows: int, seed: int, connections: int = 1, where: str = ""
) -> None:
    """Kill the producer -9 `kills` times while it reads `rows` rows under load; a copy by key ends equal to SELECT. `where`: a row filter."""
    r, store, chunk = random.Random(seed), store_name(), 100
    fill(server, database, rows)
    load = Load(server, database, seed=seed, rows=rows + 500, pause=0.01)
    words = ["--include", f"{database}.*", "--snapshot", "initial", "--snapshot-chunk", str(chunk), "--capacity", "65536"]
    words += ["--snapshot-connections", str(connections)] + (["--row-filter", f"{database}.t: {where}"] if where else [])
    file = ProgressFile(Home.of(store, state))
    chunks = 0
    try:
        for _ in range(kills):
            with killable(server, store, state, *words) as process:
                until = chunks + r.randint(1, max(2, rows // chunk // kills))

                def far(until: int = until) -> bool:
                    progress = file.load()
                    return process.poll() is not None or (
                        progress is not None and (done(progress) >= until or bool(progress.tasks and not progress.open))
                    )

                wait_for(far, "the snapshot to continue")
                time.sleep(r.uniform(0, 0.05))
                assert process.poll() is None, "the producer ended by itself"
                process.send_signal(signal.SIGKILL)
            progress = file.load()
            assert progress is not None
            assert done(progress) >= chunks
            chunks = done(progress)
        load.stop()
        with killable(server, store, state, *words):
            wait_for(lambda: not (file.load() or Progress()).open, "the snapshot to end")
            with EventStore.attach(store) as attached:
                wait_for_position(server, attached)
                wait_for_position(server, attached, put=True)
                copy = Copy()
                copy.apply(list(attached.peek(attached.oldest)))
        assert copy.tables["t"] == select(server, database, "t", where=where or "TRUE")
        assert copy.chunks <= (rows + 500) // chunk + 1 + kills * 2 * connections  # those that were under way are read again
    finally:
        load._stop.set()
        remove(store)


def done(progress: Progress) -> int:
    return sum(task.progress.chunks for task in progress.tasks)


def test_a_filtered_snapshot_and_stream_survive_kill_9(any_server: Server, database: str, tmp_path: Path, seed: int) -> None:
    """With a row filter that the load moves rows into and out of, a copy of snapshot and stream ends equal to SELECT ... WHERE."""
    die_many_times(any_server, database, tmp_path, 2, 1500, seed, 4, "n BETWEEN 20 AND 60 OR t LIKE 'u_' OR NOT id < 1000")


@pytest.mark.parametrize("connections", [1, 4])
def test_a_snapshot_survives_kill_9_at_any_time(
    any_server: Server, database: str, tmp_path: Path, seed: int, connections: int
) -> None:
    """Five kills: at most the chunks under way are read again for each, and a reader that keeps rows by key ends equal to SELECT."""
    die_many_times(any_server, database, tmp_path, 5, 3000, seed, connections)


@pytest.mark.long
def test_a_snapshot_survives_forty_kills(any_server: Server, database: str, tmp_path: Path, seed: int) -> None:
    """The same forty times over a larger table."""
    die_many_times(any_server, database, tmp_path, 40, 40_000, seed, 3)


@pytest.mark.parametrize("keys", ["id INT PRIMARY KEY", "id INT"])
def test_the_end_is_said_and_its_connections_close(
    mariadb: Server, database: str, tmp_path: Path, keys: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the producer looks for requests between the last chunk and the next event of the stream."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("shmstore.producer.pipeline.replicator.SECOND", 0.0)
    execute(mariadb, database, f"CREATE TABLE t ({keys}, v INT)", "INSERT INTO t VALUES (1, 1)")
    count = "SELECT COUNT(*) FROM information_schema.processlist WHERE command = 'Sleep' AND info IS NULL"
    with running(mariadb, state=str(tmp_path), include=(f"{database}.*",), snapshot="initial"):
        wait_for(lambda: "all that was asked for is in the store" in caplog.text, "the end")
        with mariadb.connect() as connection, connection.cursor() as cursor:

            def idle() -> int:
                cursor.execute(count)
                return int(cursor.fetchone()[0])

            wait_for(lambda: idle() == 0, "the connections to close")


@pytest.fixture
def options(tmp_path: Path, database: str) -> dict[str, Any]:
    return {"state": str(tmp_path), "include": (f"{database}.*",), "capacity": 65536, "snapshot_chunk": 300}


def test_tables_are_asked_for_while_streaming_goes_on(
    any_server: Server, database: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Only the tables that a request names are read, each request from its beginning; one that names none gets an error."""
    for table in ("t", "other"):
        fill(any_server, database, 1000, table)
    with running(any_server, **options) as run:
        store, state = run.settings.store, run.settings.state
        execute(any_server, database, "INSERT INTO t VALUES (5000, 1, 'streamed')")
        producer.request_snapshot(store, f"{database}.t", state=state)
        copy = copied(run, any_server)
        assert copy.tables == {"t": select(any_server, database, "t")}
        assert states(run) == {"t": "done"}
        producer.request_snapshot(store, [f"{database}.o*", f"{database}.t"], state=state)
        wait_for(lambda: len(states(run)) == 2 and finished(run), "the second snapshot")
        copy = copied(run, any_server)
        assert copy.tables == {name: select(any_server, database, name) for name in ("t", "other")}
        assert copy.reads == 1001 + 2001
        producer.request_snapshot(store, f"{database}.none", state=state)
        wait_for(lambda: not producer.snapshot_waits(store, state=state), "the third to be taken up")
        wait_for(lambda: "no table matches" in caplog.text, "the log")
        progress = producer.snapshot_status(store, state=state)
        assert progress is not None
        assert progress.failed
        assert f"no table matches {database}.none" in page(progress)
        producer.request_snapshot(store, [f"{database}.none,{database}.t", f"{database}.nobody"], state=state)
        wait_for(lambda: not producer.snapshot_waits(store, state=state) and finished(run), "the fourth")
        progress = producer.snapshot_status(store, state=state)
        assert progress is not None
        assert (states(run), progress.failed) == ({"t": "done"}, True)
        assert f"no table matches {database}.none, {database}.nobody" in page(progress)


def test_a_damaged_request_is_refused_alone(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """A request that cannot be read, or whose pattern cannot, is reported and is out of the way of those before and behind it."""
    for table in ("t", "u"):
        fill(any_server, database, 20, table)
    store = store_name()
    file = ProgressFile(Home.of(store, options["state"]))
    producer.request_snapshot(store, f"{database}.t", state=options["state"])
    file.ask(SnapshotRequest("pattern", (f"{database}.[",), "asked", 5))
    for name, text in (("cut", '{"shmstore_snapshot": 1, "id": "c'), ("foreign", '{"shmstore_snapshot": 9}')):
        (file.home.path / f"snapshot-{name}.request").write_text(text)
    producer.request_snapshot(store, f"{database}.u", state=options["state"])
    assert producer.snapshot_waits(store, state=options["state"]) == 5
    with running(any_server, store=store, **options) as run:
        copy = copied(run, any_server)
        assert states(run) == {"t": "done", "u": "done"}
        assert copy.tables == {table: select(any_server, database, table) for table in ("t", "u")}
        progress = producer.snapshot_status(store, state=options["state"])
        assert progress is not None
        for name in ("pattern", "cut", "foreign"):
            assert f"request {name}: its file snapshot-{name}.request cannot be read" in page(progress)


@pytest.mark.long
def test_cancel_leaves_out_what_is_not_read_yet(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """What is in the store stays; the stream continues, and a later request begins at the beginning."""
    fill(any_server, database, 20_000)
    with running(any_server, **{**options, "snapshot": "initial", "snapshot_chunk": 20}) as run:
        store, state = run.settings.store, run.settings.state
        wait_for(
            lambda: any(task.progress.chunks for task in (producer.snapshot_status(store, state=state) or Progress()).tasks),
            "rows",
        )
        producer.cancel_snapshot(store, state=state)
        wait_for(lambda: states(run) == {"t": "cancelled"}, "the end")
        execute(any_server, database, "UPDATE t SET n = 0 WHERE id = 2000")
        partial = Copy()
        partial.apply(events_of(run, any_server))
        assert 0 < partial.reads < 20_000
        producer.request_snapshot(store, "*.t", state=state)
        wait_for(lambda: states(run) == {"t": "done"}, "all of it")
        assert copied(run, any_server).tables["t"] == select(any_server, database, "t")


def test_masks_filters_and_hidden_keys_are_those_of_the_stream(
    any_server: Server, database: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Rows look as the stream shows them: masked, hashed, without some columns; a table whose key is masked is refused."""
    for table in ("t", "u"):
        execute(any_server, database, f"CREATE TABLE {table} (id int primary key, a varchar(9), b varchar(9), c int)")
        execute(any_server, database, f"INSERT INTO {table} VALUES (1, 'secret', 'hash', 3), (2, NULL, NULL, NULL)")
    columns = {"column_mask": ("*.t.a", "*.u.id"), "column_hash": ("*.t.b",), "column_exclude": ("*.t.c",)}
    with running(any_server, **{**options, **columns, "snapshot": "initial"}) as run:
        wait_for(lambda: finished(run), "the snapshot")
        execute(any_server, database, "UPDATE t SET c = c + 1", "UPDATE t SET id = id + 10 ORDER BY id DESC")
        events = [event for event in events_of(run, any_server) if event.table and event.table.table == "t"]
        read = next(event for event in events if event.type is EventType.READ and event.rows)
        updated = [event for event in events if event.type is EventType.UPDATE]
        assert states(run) == {"t": "done", "u": "failed"}
    assert {event.table for event in events} == {read.table}
    hashed = hashlib.sha256(b"hash").hexdigest()
    assert [row.after for row in read.rows] == [(1, "***", hashed), (2, None, None)]
    assert [row.before for event in updated for row in event.rows][-2:] == [(2, None, None), (1, "***", hashed)]
    assert "its key needs column id, which column filters take out or mask" in caplog.text


@pytest.mark.long
def test_rows_larger_than_the_arena_come_whole(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """A row over several packets of the protocol, larger than the ring, among small ones."""
    execute(any_server, database, "CREATE TABLE t (id int primary key, b longblob)", "INSERT INTO t VALUES (1, 'x'), (3, NULL)")
    execute(any_server, database, "SET GLOBAL max_allowed_packet = 1 << 26")
    execute(any_server, database, "INSERT INTO t VALUES (2, repeat('0123456789abcdef', 1100000))")
    small = {"capacity": 1024, "memory_unit": 1024, "snapshot": "initial"}
    with running(any_server, **{**options, **small}) as run:
        follower = Follower(run.settings.store, Kept())  # type: ignore[arg-type]
        wait_for(lambda: finished(run), "the snapshot")
        events = follower.finish().events  # type: ignore[attr-defined]
    rows = [row.after for event in events if event.type is EventType.READ for row in event.rows]
    assert [(id_, len(b or b"")) for id_, b in rows] == [(1, 1), (2, 17_600_000), (3, 0)]
    assert rows[1][1] == b"0123456789abcdef" * 1_100_000
    Copy().apply(events)


class Kept:
    """A reader that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def apply(self, events: list[Event]) -> None:
        self.events += events


def test_a_purged_start_is_repaired_by_a_snapshot(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """on_purged = snapshot: the present rows are read again, and a reader from before continues without an error, in a store without a log."""
    options = {**options, "log": "off"}
    with start_server(any_server.flavor) as server:
        execute(server, "", f"CREATE DATABASE {database}")
        fill(server, database, 500)
        store = store_name()
        with running(server, store=store, **{**options, "start": "latest"}):
            execute(server, database, "UPDATE t SET n = 1 WHERE id < 10")
            with EventStore.attach(store) as attached, attached.subscribe("a") as reader:
                copy = Copy()
                wait_for_position(server, attached, put=True)
                batch = reader.get(timeout=10)
                copy.apply(list(batch))
                reader.ack(batch)
                position = attached.last_ack_point()
        assert position is not None
        CheckpointFile(options["state"], store, "a").save(Checkpoint(position, 1, 1))
        execute(server, database, "UPDATE t SET n = 2 WHERE id < 20", "INSERT INTO t VALUES (900, 1, 'lost')", "FLUSH LOGS")
        purge(server)
        with pytest.raises(Exception, match="no longer has"), running(server, store=store, **options):
            pass
        with running(server, store=store, **{**options, "on_purged": "snapshot"}) as run:
            wait_for(lambda: finished(run), "the snapshot")
            execute(server, database, "UPDATE t SET n = 3 WHERE id = 900")
            with (
                EventStore.attach(store) as attached,
                attached.subscribe("a", checkpoint=CheckpointFile(options["state"], store, "a")) as reader,
            ):
                wait_for_position(server, attached, put=True)
                got = list(reader.get(timeout=10))
            copy = Copy()
            copy.apply(got)
            reasons = {event.props.get("snapshot_reason") for event in got if event.type is EventType.READ}
        assert copy.tables["t"] == select(server, database, "t")
        assert reasons == {"purged"}


def test_a_missing_privilege_is_named(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Without SELECT no table is seen: an initial snapshot does not begin, a request fails with the GRANT, and streaming continues."""
    fill(any_server, database, 10)
    account = f"'snap{random.randrange(1 << 30)}'@'%'"
    word = "BINLOG MONITOR" if any_server.flavor == "mariadb" else "REPLICATION CLIENT"
    execute(any_server, "", f"CREATE USER {account} IDENTIFIED BY 'x'", f"GRANT REPLICATION SLAVE, {word} ON *.* TO {account}")
    try:
        options |= {"user": account.split("'")[1], "password": "x"}
        with pytest.raises(SourceError, match="GRANT SELECT ON"), running(any_server, **options, snapshot="initial"):
            pass
        asked = producer.Settings(store="s", host=any_server.host, port=any_server.port, **options, snapshot="initial")
        (finding,) = [one for one in producer.check_server(asked) if one.check == "snapshots"]
        assert (finding.state, finding.fix[:19]) == ("fail", "GRANT SELECT ON *.*")
        with running(any_server, **options) as run:
            producer.request_snapshot(run.settings.store, f"{database}.*", state=run.settings.state)
            wait_for(
                lambda: (producer.snapshot_status(run.settings.store, state=run.settings.state) or Progress()).failed, "an answer"
            )
            progress = producer.snapshot_status(run.settings.store, state=run.settings.state)
            assert progress is not None
            assert "GRANT SELECT ON" in page(progress)
            assert run.alive
    finally:
        execute(any_server, "", f"DROP USER {account}")


def test_fewer_connections_do_where_the_server_gives_no_more(
    any_server: Server,
    database: str,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An account may have three connections, of which the stream takes one; six are wanted: it is read over what there is."""
    fill(any_server, database, 5000)
    take = SelectRows.take
    busy = lambda self: self._shown == 3 and "no other can be opened" not in caplog.text  # noqa: E731
    monkeypatch.setattr(SelectRows, "take", lambda self: not busy(self) and take(self))  # so that more connections are wanted
    account = f"'few{random.randrange(1 << 30)}'@'%'"
    word = "BINLOG MONITOR" if any_server.flavor == "mariadb" else "REPLICATION CLIENT"
    execute(any_server, "", f"CREATE USER {account} IDENTIFIED BY 'x'")
    execute(any_server, "", f"GRANT SELECT, REPLICATION SLAVE, {word} ON *.* TO {account}")
    execute(any_server, "", f"ALTER USER {account} WITH MAX_USER_CONNECTIONS 3")
    try:
        options |= {"user": account.split("'")[1], "password": "x", "snapshot_connections": 6}
        with caplog.at_level(logging.INFO), running(any_server, **options, snapshot="initial") as run:
            assert copied(run, any_server).tables["t"] == select(any_server, database, "t")
            assert states(run) == {"t": "done"}
        assert "no other can be opened" in caplog.text
    finally:
        execute(any_server, "", f"DROP USER {account}")


def test_a_table_without_a_key_shows_how_far_it_is(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are counted while it is read; a producer that continues in the middle reads and counts from its beginning."""
    monkeypatch.setattr(runner, "SLICE", 1e-4)  # the first rows fit into the ring, and are shown, however fast they are read
    monkeypatch.setattr(runner, "SHOWN", 0.0)
    execute(any_server, database, "CREATE TABLE t (v INT)", f"INSERT INTO t VALUES {','.join(['(1)'] * 1000)}")
    execute(any_server, database, *["INSERT INTO t SELECT * FROM t"] * 6)
    with running(any_server, **{**options, "capacity": 64, "log": "off"}, snapshot="initial") as run:  # it is to be full
        store = run.settings.store

        def task() -> Any:
            progress = producer.snapshot_status(store, state=options["state"])
            return progress.tasks[0] if progress is not None and progress.tasks else None

        wait_for(
            lambda: task() and task().progress.state == "reading" and task().progress.rows, "rows of what does not fit the ring"
        )
        run.stop()
        second = Running(run.settings)
        try:
            follower = Follower(store, Mirror("nobody's"))
            wait_for(lambda: task().progress.state == "done", "the rest")
            assert task().progress.rows == 64_000
            follower.finish()
        finally:
            second.stop()


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class LateRows(SelectRows):
    """Rows of a busy server: none have come when they are first looked for, then so many bytes at once."""

    most = 1 << 20
    _asked = False

    def step(self, seconds: float) -> bool:
        asked, self._asked = self._asked, True
        return asked and self.fill(self.most, 60)


@pytest.mark.parametrize(("disk", "compiled_code"), [("free", True), ("free", False), ("full", True)])
def test_a_full_ring_holds_no_lock_of_a_table_without_a_key(
    any_server: Server,
    database: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    disk: str,
    compiled_code: bool,
) -> None:
    """Its read ends while nothing can be put, so that a DDL need not wait for readers; then all rows come once, the DDL behind them.

    Where the disk has no space for them either, the server waits, and no row is lost.
    """
    monkeypatch.setattr(runner, "SelectRows", partial(LateRows, compiled_code=compiled_code))
    if disk == "full":
        monkeypatch.setattr(KeptRows, "add", no_space)
    rows, wide = ",".join(f"({i}, REPEAT('x', 1000))" for i in range(1000)), "CREATE TABLE t (id INT, v VARCHAR(2000))"
    execute(any_server, database, wide, f"INSERT INTO t VALUES {rows}", *["INSERT INTO t SELECT * FROM t"] * 4)
    with running(any_server, **{**options, "capacity": 64, "log": "off"}, snapshot="initial") as run:
        store = run.settings.store

        def task() -> Any:
            progress = producer.snapshot_status(store, state=options["state"])
            return progress.tasks[0] if progress is not None and progress.tasks else None

        wait_for(
            lambda: task() and task().progress.state == "reading" and task().progress.rows, "rows of what does not fit the ring"
        )
        change = "ALTER TABLE t ADD COLUMN more INT"
        if disk == "free":
            execute(any_server, database, "SET SESSION lock_wait_timeout = 20", change)
        else:
            wait_for(lambda: "cannot be kept in" in caplog.text, "the disk's refusal")
        ids, after = Counter[int](), list[str]()
        with EventStore.attach(store) as attached, attached.subscribe("late") as reader:
            wanted = 16_000
            until = time.monotonic() + 60
            while (sum(ids.values()) < wanted or (disk == "free" and not after)) and time.monotonic() < until:
                batch = reader.get(timeout=0.2)
                for event in batch:
                    assert not (after and event.type is EventType.READ)
                    ids.update(row.after[0] for row in event.rows or () if row.after is not None)
                    after += [event.sql] if event.sql == change else []
                if batch:
                    reader.ack(batch)
            wait_for(lambda: task().progress.state == "done", "the end")
        assert ids == Counter(dict.fromkeys(range(1000), 16))
        assert task().progress.rows == wanted


class RowsAtOnce(LateRows):
    """Rows of a quick server: all of them have come at the second look."""

    most = 1 << 30


def test_rows_that_all_came_are_shown_while_the_ring_is_full(
    mariadb: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the read of the table has ended, and nothing more comes that could be written down."""
    monkeypatch.setattr(runner, "SelectRows", RowsAtOnce)
    rows = ",".join(f"({i}, REPEAT('x', 1000))" for i in range(1000))
    execute(mariadb, database, "CREATE TABLE t (id INT, v VARCHAR(2000))", f"INSERT INTO t VALUES {rows}")
    with running(mariadb, **{**options, "capacity": 64, "log": "off"}, snapshot="initial") as run:

        def progress() -> Any:
            found = producer.snapshot_status(run.settings.store, state=options["state"])
            return found.tasks[0].progress if found is not None and found.tasks else None

        wait_for(lambda: progress() and progress().rows, "rows that wait for a reader")
        assert (progress().state, progress().rows) == ("reading", 1000)


@pytest.mark.parametrize("condition", ["id = 20", "id > 20"], ids=["one row", "none"])
def test_a_table_without_a_key_of_which_few_rows_pass(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    """The server sends nothing while it looks for a row that passes: the snapshot waits for it, and does not begin again."""
    fill_slowly_found(any_server, database, monkeypatch)
    asked: list[str] = []
    select_ = Snapshot._select
    monkeypatch.setattr(Snapshot, "_select", lambda self, *rest: asked.append("") or select_(self, *rest))
    given = {"row_filter": (f"{database}.t: {condition}",), "read_timeout": 1.0, "heartbeat": 0.3, "snapshot": "initial"}
    with running(any_server, **options, **given) as run:
        wait_for(lambda: finished(run), "the snapshot")
        assert states(run) == {"t": "done"}
        assert len(copied(run, any_server).tables.get("t", {})) == (condition == "id = 20")
    assert len(asked) == 1


@pytest.mark.parametrize("keys", ["id INT PRIMARY KEY", "id INT"])
def test_one_table_that_may_not_be_read(any_server: Server, database: str, options: dict[str, Any], keys: str) -> None:
    """A table without SELECT fails once, with the GRANT, also where it has no key and the stream waits; those behind it are read."""
    fill(any_server, database, 10, "z")
    account = f"'snap{random.randrange(1 << 30)}'@'%'"
    word = "BINLOG MONITOR" if any_server.flavor == "mariadb" else "REPLICATION CLIENT"
    execute(any_server, database, f"CREATE TABLE a ({keys}, v INT)", "INSERT INTO a VALUES (1, 1)")
    execute(
        any_server,
        database,
        f"CREATE USER {account} IDENTIFIED BY 'x'",
        f"GRANT REPLICATION SLAVE, {word} ON *.* TO {account}",
        f"GRANT INSERT ON {database}.a TO {account}",
        f"GRANT SELECT ON {database}.z TO {account}",
    )
    try:
        options |= {"user": account.split("'")[1], "password": "x"}
        with running(any_server, **options, snapshot="initial") as run:
            wait_for(lambda: finished(run), "the snapshot")
            assert states(run) == {"a": "failed", "z": "done"}
    finally:
        execute(any_server, "", f"DROP USER {account}")


def test_mysql_without_gtids_is_refused(tmp_path: Path) -> None:
    """Nothing there says which transactions a read shows: the error names gtid_mode."""
    with start_server("mysql", ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]) as server:
        execute(server, "", "CREATE DATABASE d")
        with (
            pytest.raises(Exception, match=r"gtid_mode = OFF.*set gtid_mode = ON"),
            running(server, state=str(tmp_path), snapshot="initial"),
        ):
            pass


# ---------------------------------------------------------------- progress


def test_progress_is_kept_whole_and_refused_when_damaged(tmp_path: Path) -> None:
    """What was saved is read back; a damaged or foreign file is an error that names it and what to do."""
    file = ProgressFile(Home.of("s", tmp_path))
    assert file.load() is None
    progress = Progress(7)
    progress.take(SnapshotRequest("r", ("a.*",), "asked", 5), [("a", "t"), ("a", "u")])
    progress.tasks[0].progress = TableProgress("reading", ("1", "x'00'"), 10, 2)
    progress.mark(99, progress.tasks[0], -1)
    file.save(progress)
    assert file.load() == progress
    for text in ("{", "[]", json.dumps({"shmstore_snapshot": 2}), json.dumps({"shmstore_snapshot": 1, "tasks": 5})):
        file.path.write_text(text)
        with pytest.raises(StoreError, match=r"snapshot.progress cannot be read .*remove it and ask for the snapshot again"):
            file.load()


def test_a_lost_store_takes_progress_back_to_what_was_acked() -> None:
    """Chunks that not every reader had acked are read again; what all had acked is not; without readers only what is open."""
    progress = Progress(7)
    progress.take(SnapshotRequest("r"), [("a", "t"), ("a", "u")])
    t, u = progress.tasks
    for i in range(1, 5):
        t.progress = TableProgress("reading" if i < 4 else "done", (str(i),), i, i)
        progress.mark(10 * i, t, acked=15)
    u.progress = TableProgress("reading", ("9",), 9, 9)
    progress.mark(50, u, acked=15)
    assert t.safe.key == ("1",)
    progress.rewind(25)
    assert (t.progress.key, t.progress.state, u.progress) == (("2",), "reading", TableProgress())
    assert progress.open
    t.progress, u.progress = TableProgress("done", ("4",), 4, 4), TableProgress("reading", ("9",), 9, 9)
    progress.rewind(None)
    assert (t.progress.state, u.progress) == ("done", TableProgress())


def test_chunks_that_a_power_cut_took_back_are_read_again(tmp_path: Path) -> None:
    """Of a store with a log that lost its end, those chunks are read again that it has not, and the file says so before anything is put."""
    name = store_name()
    settings = Settings(store=name, state=str(tmp_path))
    file = ProgressFile(Home.of(name, tmp_path))
    with EventStore.create(name, state=tmp_path) as store:
        store.put([b"x"] * 30)  # events 0 to 29
        progress = Progress(store.epoch)
        progress.take(SnapshotRequest("r"), [("a", "t")])
        (t,) = progress.tasks
        for i in range(1, 5):
            t.progress = TableProgress("reading" if i < 4 else "done", (str(i),), i, i)
            progress.mark(10 * i, t, acked=15)
        file.save(progress)
        decoder = EventDecoder(new_buffer(events=10, size=10_000), settings.table_filter())
        log = logging.getLogger("producer")
        found = Snapshot(settings, store, decoder, log, lambda: False).progress
        assert (found.tasks[0].progress.key, found.tasks[0].progress.state, found.open) == (("2",), "reading", True)
        assert file.load() == found
        store.put([b"x"] * 30)
        assert Snapshot(settings, store, decoder, log, lambda: False).progress == found
    EventStore.unlink(name, log=True, state=tmp_path)


def test_a_new_store_waits_until_its_readers_are_reached(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Rows are put behind every reader's checkpoint: before it they would be older than what that reader has."""
    fill(any_server, database, 50)
    store = store_name()
    with running(any_server, store=store, **options), EventStore.attach(store) as attached:
        places: list[Position] = []
        for n in (1, 2):
            execute(any_server, database, f"UPDATE t SET n = {n}")
            wait_for_position(any_server, attached)
            wait_for_position(any_server, attached, put=True)
            position = attached.last_ack_point()
            assert position is not None
            places.append(position)
    for name, position in zip(("slow", "fast"), places, strict=True):
        CheckpointFile(options["state"], store, name).save(Checkpoint(position, 1, 1))
    producer.request_snapshot(store, "*.t", state=options["state"])
    with running(any_server, store=store, **options) as run:
        copied(run, any_server)
        with EventStore.attach(store) as attached:
            first = next(event for event in attached.peek(attached.oldest) if event.type is EventType.READ)
            assert first.position.order >= places[1].order
            with attached.subscribe("fast", checkpoint=CheckpointFile(options["state"], store, "fast")) as reader:
                copy = Copy()
                copy.apply(list(reader.get(timeout=10)))
    assert copy.tables["t"] == select(any_server, database, "t")
