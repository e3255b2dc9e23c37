"""Snapshots on real servers: what a reader has that keeps rows by key is what SELECT shows."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmstore import EntryType, Event, EventStore, EventType, producer
from shmstore.encoding.arrow import COMPILED, Events
from shmstore.encoding.arrow_rows import index_events
from shmstore.encoding.codec import Header
from shmstore.producer.connection.backoff import Backoff
from shmstore.producer.connection.dump import BinlogReader
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.errors import LinkLost
from shmstore.producer.snapshot import runner
from shmstore.producer.snapshot.changed_keys import Window
from shmstore.producer.snapshot.chunks import Chunk, EndAsked
from shmstore.producer.snapshot.connections import ReadConnections
from shmstore.producer.snapshot.runner import ATTEMPTS, Snapshot
from tests.producer.running import Running, end_of_log, events_of, execute, running, wait_for, wait_for_position
from tests.producer.snapping import Copy, Load, copied, fill, finished, lately, select, states
from tests.servers.server import Server

pytestmark = pytest.mark.server


@pytest.fixture
def options(tmp_path: Path, database: str) -> dict[str, Any]:
    return {
        "state": str(tmp_path),
        "include": (f"{database}.*",),
        "capacity": 65536,
        "snapshot": "initial",
        "snapshot_chunk": 500,
        "transaction_bytes": 64 << 10,
    }


def test_a_reader_may_begin_at_the_first_event_of_a_table(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """It keeps the changes behind that event, and the rows: at the end it has what one has that read everything."""
    fill(any_server, database, 3000)
    load = Load(any_server, database, seed=5, rows=3100)
    try:
        with running(any_server, **{**options, "snapshot": "never"}) as run:
            for number in range(3):
                producer.request_snapshot(run.settings.store, f"{database}.t", state=run.settings.state, id=f"0000000{number}")
                wait_for(lambda: finished(run), "the snapshot")
            load.stop()
            with EventStore.attach(run.settings.store) as store:
                batches = list(store.read(store.oldest, store.newest))
                assert all(isinstance(index_events(batch.raw, batch.ends), Events) for batch in batches) == COMPILED
            events = events_of(run, any_server)
    finally:
        load._stop.set()
    for number in range(3):
        found = [i for i, event in enumerate(events) if event.props.get("snapshot") == f"0000000{number}"]
        begins = max(i for i in found if events[i].props.get("snapshot_part") == "first")
        (ends,) = [i for i in found if events[i].props.get("snapshot_part") == "last"]
        assert begins < min(i for i in found if events[i].rows)
        assert ends == max(i for i in found if events[i].table)
        copy = Copy()
        copy.apply(events[begins - 1 :])
        assert copy.tables["t"] == select(any_server, database, "t"), number


def test_rows_of_a_server_at_rest_wait_for_no_heartbeat(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """A stream that begins by GTID has read nothing that says where the binlog ends: that it has all transactions is enough."""
    fill(any_server, database, 1200)
    patient = {**options, "heartbeat": 600.0, "read_timeout": 1200.0}
    with running(any_server, **patient) as run:
        wait_for(lambda: finished(run), "the snapshot")
        execute(any_server, database, "UPDATE t SET n = n + 1 WHERE id < 700")
        events = events_of(run, any_server)
    copy = Copy()
    copy.apply(events)
    assert copy.tables["t"] == select(any_server, database, "t")


@pytest.mark.parametrize("misses", [3, pytest.param(-1, marks=pytest.mark.long)], ids=["runs", "singly"])
def test_an_initial_snapshot_under_load_ends_equal_to_select(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, misses: int
) -> None:
    """Inserts, updates, deletes, key changes, rollbacks and a DDL continue while the table is read, chunk by chunk.

    Also where the stream is fed event by event, as it is when its transactions' ends are not met by chance.
    """
    monkeypatch.setattr("shmstore.producer.snapshot.runner.MISSES", misses)
    fill(any_server, database, 12_000)
    load = Load(any_server, database, seed=11, rows=13_000)
    try:
        with running(any_server, **options) as run:
            wait_for(lambda: finished(run) or load.count > 150, "some load")
            execute(any_server, database, "ALTER TABLE t ADD COLUMN more int DEFAULT 7")
            wait_for(lambda: finished(run), "the snapshot")
            load.stop()
            copy = copied(run, any_server)
    finally:
        load._stop.set()
    assert copy.tables["t"] == select(any_server, database, "t")
    assert copy.chunks > 20
    assert copy.reads > 9000


COUNTS = (0, 1, 6, 7, 8, 14, 15)


def test_a_snapshot_ends_at_each_edge_of_a_chunk(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Tables of 0, 1, n-1, n, n+1 and 2n rows come whole and once; the table's last chunk is the one that is not full."""
    for count in COUNTS:
        fill(any_server, database, count, f"t{count}")
    with running(any_server, **{**options, "snapshot_chunk": 7}) as run:
        copy = copied(run, any_server)
        progress = producer.snapshot_status(run.settings.store, state=run.settings.state)
    for count in COUNTS:
        assert copy.tables.get(f"t{count}", {}) == select(any_server, database, f"t{count}")
    assert copy.reads == sum(COUNTS)
    assert {task.table: (task.progress.rows, task.progress.chunks) for task in progress.tasks} == {
        f"t{count}": (count, count // 7 + 1) for count in COUNTS
    }


KEYS = {
    "composite": ("a int, b varchar(9), c int unsigned, primary key (b, a, c)", "{i} % 3, concat('k', {i} % 4), {i}"),
    "folding": ("a varchar(40) primary key, b int", "concat(if({i} % 2, 'ABC', 'abc'), ' ', {i}), {i}"),
    "latin": ("a varchar(40) character set latin1 primary key, b int", "concat(if({i} % 2, 'É', 'e'), {i}), {i}"),
    "gbk": ("a varchar(40) character set gbk primary key, b int", "concat(if({i} % 2, '世', '界'), {i}), {i}"),
    "accents": ("a varchar(40) collate utf8mb4_unicode_ci primary key, b int", "concat(if({i} % 2, 'zß', 'Zo'), {i}, '😀'), {i}"),
    "negative": ("a int primary key, b int", "{i} - 20, {i}"),
    "big": ("a bigint unsigned primary key, b int", "18446744073709551615 - {i}, {i}"),
    "bytes": ("a varbinary(20) primary key, b int", "unhex(concat('ff00', hex({i} * 7), '00')), {i}"),
    "fixed": ("a binary(4) primary key, b int", "unhex(hex({i} * 3)), {i}"),
    "decimals": ("a decimal(20,9) primary key, b int", "({i} - 20) / 7, {i}"),
    "floats": ("a float primary key, b int", "({i} - 20) / 7, {i}"),
    "doubles": ("a double primary key, b int", "({i} - 20) / 7, {i}"),
    "days": ("a date primary key, b int", "date '2024-02-20' + interval {i} day, {i}"),
    "moments": ("a datetime(6) primary key, b int", "timestamp '2024-02-20 23:59:59.5' + interval {i} * 333333 microsecond, {i}"),
    "stamps": (
        "a timestamp(3) primary key default '2024-01-01', b int",
        "timestamp '2024-02-20 23:59:59.5' + interval {i} second, {i}",
    ),
    "clocks": ("a time(3) primary key, b int", "sec_to_time({i} * 100.25 - 2000), {i}"),
    "years": ("a year primary key, b int", "2000 + {i}, {i}"),
    "bits": ("a bit(40) primary key, b int", "{i} * 999999, {i}"),
    "members": ("a enum('z','y','x','w','v','u','t','s'), b int, primary key (b, a)", "{i} % 8 + 1, {i} % 5"),
    "sets": ("a set('z','y','x','w','v','u') primary key, b int", "{i} - 1, {i}"),
    "unique_only": ("b int, a varchar(20) not null, unique key one (a)", "{i}, concat('k', {i})"),
    "nulls": ("b int, a int, unique key one (a)", "{i}, nullif({i}, 3)"),
    "keyless": ("a int, b varchar(9)", "{i} % 4, 'same'"),
}


def test_any_key_leads_through_the_whole_table_once(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Composite, text under folding collations, other charsets, bytes, numbers, dates, members; a unique one; none at all."""
    names = list(KEYS)
    for name in names:
        columns, values = KEYS[name]
        rows = ", ".join(f"({values.format(i=i)})" for i in range(1, 25))
        execute(any_server, database, f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} VALUES {rows}")
    with running(any_server, **{**options, "snapshot_chunk": 7}) as run:
        wait_for(lambda: finished(run), "the snapshot")
        events = [event for event in events_of(run, any_server) if event.type is EventType.READ and event.table]
        assert states(run) == dict.fromkeys(names, "done")
    for name in names:
        read = [row.after for event in events if event.table.table == name for row in event.rows]
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {name}")
            assert (name, len(read)) == (name, cursor.fetchone()[0])
        assert len(set(read)) == len(read) or name == "keyless"


@pytest.mark.parametrize("window", [True, False], ids=["window", "no window"])
def test_rows_that_the_stream_changed_meanwhile_are_left_out(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, window: bool
) -> None:
    """A row updated, deleted or moved after the read and before the put stays as the stream brought it; without the window it goes back."""
    fill(any_server, database, 20)
    changes = ("UPDATE t SET n = 555 WHERE id = 3", "DELETE FROM t WHERE id = 4", "UPDATE t SET id = 30 WHERE id = 5")
    lately(monkeypatch, any_server, lambda: execute(any_server, database, *changes))
    if not window:
        monkeypatch.setattr("shmstore.producer.snapshot.changed_keys.Window._event", lambda self, payload: None)
    with running(any_server, **options) as run:
        copy = copied(run, any_server)
    assert (copy.tables["t"] == select(any_server, database, "t")) is window
    assert copy.reads == (17 if window else 20)


MEANWHILE = {
    "moved": (
        "UPDATE t SET id = 3 WHERE id = 72",  # from the last chunk into the first one, and the other way round
        "UPDATE t SET id = 79 WHERE id = 4",
        "UPDATE t SET id = id + 1 WHERE id BETWEEN 18 AND 42 ORDER BY id DESC",
        "DELETE FROM t WHERE id = 60",
        "INSERT INTO t VALUES (61, 1, 'new'), (20, 2, 'again')",
        "UPDATE t SET n = 555 WHERE id IN (2, 43, 61, 80)",
    ),
    "altered": ("UPDATE t SET n = 7 WHERE id = 2", "ALTER TABLE t ADD COLUMN more int DEFAULT 7", "DELETE FROM t WHERE id = 80"),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_rows_change_while_several_chunks_are_under_way(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Four chunks are read, then rows change within and between them, and only then the first is put: the copy is as SELECT shows it.

    The changes come over a connection of their own while the snapshot runs: an ALTER waits for the reads under way, and these end.
    """
    fill(any_server, database, 80)
    execute(any_server, database, "DELETE FROM t WHERE id % 2")
    place, reached = Snapshot._place, list[tuple[str, int]]()
    changing = threading.Thread(target=execute, args=(any_server, database, *MEANWHILE[meanwhile]), daemon=True)

    def late(self: Snapshot, chunk: Chunk) -> None:
        if changing.ident is None:
            chunks = chunk.table.chunks
            if len(chunks) < 4 or not all(one.whole for one in list(chunks)[:4]):
                return
            changing.start()
        if changing.is_alive():
            return
        if not reached:
            reached.append(end_of_log(any_server))
        if (self._decoder.position.file, self._decoder.position.offset) >= reached[0]:
            place(self, chunk)

    monkeypatch.setattr(Snapshot, "_place", late)
    with running(any_server, **{**options, "snapshot_chunk": 10, "snapshot_connections": 4}) as run:
        copy = copied(run, any_server)
    assert reached
    assert copy.tables["t"] == select(any_server, database, "t")


def test_a_chunk_that_is_cut_goes_on_before_the_next(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that turn out larger than memory is spent on: what is left of a chunk is put in line behind it, and all come once, in order."""
    monkeypatch.setattr("shmstore.producer.snapshot.runner.MOST_BYTES", 300_000)
    execute(any_server, database, "CREATE TABLE t (id int primary key, b mediumblob)")
    values = ", ".join(f"({i}, repeat('x', {9000 if i > 40 else 10}))" for i in range(240))
    execute(any_server, database, f"INSERT INTO t VALUES {values}")
    with running(any_server, **{**options, "snapshot_chunk": 100, "snapshot_connections": 3}) as run:
        events = [event for event in events_of_snapshot(run, any_server) if event.type is EventType.READ and event.table]
        progress = producer.snapshot_status(run.settings.store, state=run.settings.state)
    assert [row.after[0] for event in events for row in event.rows] == list(range(240))
    assert progress.tasks[0].progress.chunks > 3


def test_a_commit_concerns_the_chunks_begun_behind_its_prepare() -> None:
    """Of an XA transaction: those begun before have its keys; those begun behind it may show rows from before, and are read again."""
    window = Window(("d", "t"), ("id",))

    def header(entry: EntryType, type_: EventType) -> Header:
        return Header(int(entry), int(type_), "b.1", 4, 0, 0, 1, "", 0, 0, "", 0, "", "", {"xa_xid": "x"})

    def note(entry: EntryType, type_: EventType) -> None:
        window._two_phase(header(entry, type_))

    early = window.open()
    note(EntryType.END, EventType.XACOMMIT)  # the prepare: its rows end here
    late = window.open()
    assert (window.broken(early), window.broken(late)) == ("", "")
    note(EntryType.ROWS, EventType.XACOMMIT)
    after = window.open()
    assert (window.broken(early), window.broken(after)) == ("", "")
    assert "XA" in window.broken(late)
    window.forget_before(after)
    note(EntryType.ROWS, EventType.XACOMMIT)
    assert "XA" in window.broken(after)


def test_a_ddl_or_a_truncate_meanwhile_makes_the_chunk_be_read_again(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns come and go, the table is emptied: no row of before is put behind it."""
    fill(any_server, database, 20)
    lately(
        monkeypatch,
        any_server,
        lambda: execute(any_server, database, "ALTER TABLE t ADD COLUMN more int DEFAULT 7"),
        lambda: execute(any_server, database, "ALTER TABLE t DROP COLUMN n"),
        lambda: execute(any_server, database, "TRUNCATE TABLE t", "INSERT INTO t (id) VALUES (1)"),
    )
    with running(any_server, **options) as run:
        events = [event for event in events_of_snapshot(run, any_server) if event.type is EventType.READ and event.table]
    assert [(event.table.names, [row.after for row in event.rows]) for event in events if event.table and event.rows] == [
        (("id", "t", "more"), [(1, None, 7)])
    ]


def test_lost_links_and_disturbed_chunks_are_counted_apart(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that is disturbed once does not fail its table, however often the snapshot's own link was lost before."""
    fill(any_server, database, 20)
    connected, losses = ReadConnections._connected, iter(range(ATTEMPTS + 1))

    def lost_at_first(self: ReadConnections) -> ServerSession:
        if next(losses, None) is not None:
            raise LinkLost("the link broke")
        return connected(self)

    monkeypatch.setattr(ReadConnections, "_connected", lost_at_first)
    lately(monkeypatch, any_server, lambda: execute(any_server, database, "ALTER TABLE t ADD COLUMN more int DEFAULT 7"))
    with running(any_server, **options, retry_first=0.0) as run:
        assert copied(run, any_server).tables["t"] == select(any_server, database, "t")
        assert states(run) == {"t": "done"}


def test_a_lost_link_takes_only_its_own_chunk_along(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three connections one breaks while each reads: its chunk is read again over another one, and the two others are read once."""
    fill(any_server, database, 40)
    take, select_, lost, begun = SelectRows.take, Snapshot._select, list[ServerSession](), list[tuple[Any, Any]]()

    def selected(self: Snapshot, session: ServerSession, chunk: Chunk) -> SelectRows:
        begun.append((chunk.after, chunk.until))
        return select_(self, session, chunk)

    def broken(self: SelectRows) -> bool:
        if len(begun) < 3 and self._shown == 3:
            return False  # until three are under way
        if not lost and self._shown == 3:
            lost.append(self._session)
        if lost and self._session is lost[0]:
            self._session.close()
            raise LinkLost("the link broke")
        return take(self)

    monkeypatch.setattr(Snapshot, "_select", selected)
    monkeypatch.setattr(SelectRows, "take", broken)
    with running(any_server, **{**options, "snapshot_chunk": 10, "snapshot_connections": 3}, retry_first=0.0) as run:
        copy = copied(run, any_server)
    assert lost
    assert sorted(Counter(begun).values()) == [1, 1, 1, 1, 2]  # the last is behind the fourth, and has no rows
    assert (copy.tables["t"], copy.reads) == (select(any_server, database, "t"), 40)


def test_a_new_link_of_the_stream_ends_the_wait_for_one_of_the_snapshot(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long was to be waited before the next connection of its own was of the former link."""
    fill(any_server, database, 20)
    connected, taken, lost = ReadConnections._connected, BinlogReader.read, list[str]()

    def lost_at_first(self: ReadConnections) -> ServerSession:
        if not lost:
            lost.append("snapshot")
            raise LinkLost("the link broke")
        return connected(self)

    def read(self: BinlogReader) -> Any:
        if lost == ["snapshot"]:
            lost.append("stream")
            raise LinkLost("the link broke")
        return taken(self)

    monkeypatch.setattr(ReadConnections, "_connected", lost_at_first)
    monkeypatch.setattr(BinlogReader, "read", read)
    monkeypatch.setattr(Backoff, "failed", lambda self: 0.0 if len(lost) == 2 else 600.0)
    with running(any_server, **options) as run:
        assert copied(run, any_server).tables["t"] == select(any_server, database, "t")


def test_where_a_chunk_ends_is_not_waited_for(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the server thinks about it the stream continues; a server that never answers is asked again over another link."""
    fill(any_server, database, 40)
    take, silent = EndAsked.take, [True]

    def slow(self: EndAsked) -> bool:
        return not silent and take(self)

    monkeypatch.setattr(EndAsked, "take", slow)
    chosen = {**options, "snapshot_chunk": 10, "snapshot_connections": 2}
    with running(any_server, **chosen) as run, EventStore.attach(run.settings.store) as store:
        execute(any_server, database, "INSERT INTO t VALUES (1000, 1, 'meanwhile')")
        wait_for_position(any_server, store, put=True)
        assert not any(event.type is EventType.READ for event in store.peek(store.oldest))
        silent.clear()
        assert copied(run, any_server).tables["t"] == select(any_server, database, "t")
    rows_take, late = SelectRows.take, [True]
    monkeypatch.setattr(EndAsked, "take", take)
    monkeypatch.setattr(EndAsked, "overdue", property(lambda self: bool(late)))
    monkeypatch.setattr(SelectRows, "take", lambda self: not (late and self._shown == 1) and rows_take(self))
    with running(any_server, **chosen, retry_first=0.0) as run:
        wait_for(lambda: "did not say in" in caplog.text, "the loss")
        late.clear()
        assert copied(run, any_server).tables["t"] == select(any_server, database, "t")


@pytest.mark.parametrize("ending", ["stop", "loss"])
def test_no_read_stays_open_when_the_stream_ends(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A consistent read makes the server keep old rows: it ends with the stream, stopped or lost, not at the next link."""
    fill(any_server, database, 20)
    sessions, begun = list[ServerSession](), list[Any]()

    def recorded(*arguments: Any, **more: Any) -> ServerSession:
        sessions.append(connect(*arguments, **more))
        return sessions[-1]

    def read(self: BinlogReader) -> Any:
        if begun and ending == "loss":
            raise LinkLost("the link broke")
        return taken(self)

    taken = BinlogReader.read
    monkeypatch.setattr(BinlogReader, "read", read)
    monkeypatch.setattr("shmstore.producer.snapshot.connections.connect", recorded)
    monkeypatch.setattr(Snapshot, "_place", lambda self, chunk: begun.append(chunk))
    with (
        running(any_server, **options, retry_first=600.0, retry_longest=600.0) as run,
        EventStore.attach(run.settings.store) as store,
    ):
        wait_for(lambda: begun, "a chunk")
        if ending == "stop":
            run.stop()
        else:
            wait_for(lambda: not store.stat().stream.connected, "the loss")
            wait_for(lambda: not any(session._connection.open for session in sessions), "the reads to end")
        assert sessions
        assert not any(session._connection.open for session in sessions)


@contextmanager
def prepared_update(server: Server, database: str, options: dict[str, Any]) -> Iterator[tuple[Running, Any]]:
    """A producer that has read XA transaction 'x', which sets n of row 3 to 777 and is prepared; and the cursor to end it with."""
    fill(server, database, 20)
    with (
        server.connect(database=database) as other,
        other.cursor() as cursor,
        running(server, **{**options, "snapshot": "never"}) as run,
    ):
        for statement in ("XA START 'x'", "UPDATE t SET n = 777 WHERE id = 3", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(statement)
        with EventStore.attach(run.settings.store) as store:
            wait_for_position(server, store)
        yield run, cursor


@pytest.mark.long
def test_a_commit_of_an_xa_transaction_meanwhile_makes_the_chunk_be_read_again(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows came when it was prepared, and the read did not show them: an account that may not see what is prepared waits for none."""
    monkeypatch.setattr(runner, "prepared", lambda session: set())
    with prepared_update(any_server, database, options) as (run, cursor):
        lately(monkeypatch, any_server, lambda: cursor.execute("XA COMMIT 'x'"))
        producer.request_snapshot(run.settings.store, "*.t", state=run.settings.state)
        events = events_of_snapshot(run, any_server)
    read = [row.after for event in events if event.type is EventType.READ for row in event.rows]
    assert [row[1] for row in read if row and row[0] == 3] == [777]


def test_rows_of_an_xa_transaction_that_stays_prepared_do_not_go_back(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream brought them at XA PREPARE, and a read would show older ones: no chunk is read before that transaction has ended, and the log
    says why."""
    monkeypatch.setattr(runner, "PATIENCE", 0.2)
    with prepared_update(any_server, database, options) as (run, cursor):
        producer.request_snapshot(run.settings.store, "*.t", state=run.settings.state)
        wait_for(lambda: "1 prepared XA transactions" in caplog.text, "the line that says what it waits for")
        assert not finished(run)
        cursor.execute("XA COMMIT 'x'")
        events = events_of_snapshot(run, any_server)
    rows = [(event.type, row.after[1]) for event in events for row in event.rows if row.after and row.after[0] == 3]
    assert rows == [(EventType.UPDATE, 777), (EventType.READ, 777)]


def events_of_snapshot(run: Running, server: Server) -> list[Event]:
    wait_for(lambda: finished(run), "the snapshot")
    return events_of(run, server)


def test_hidden_keys_and_columns_are_read_as_they_are_logged(mysql: Server, database: str, options: dict[str, Any]) -> None:
    """MySQL's generated invisible key and invisible columns are in the stream, so they are in a snapshot."""
    with mysql.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_generate_invisible_primary_key = ON")
        cursor.execute("CREATE TABLE t (a int, b int invisible, c int as (a + 1), index f ((a * 2)))")
        cursor.execute("INSERT INTO t (a, b) VALUES (1, 2), (3, 4), (5, 6)")
    with running(mysql, **{**options, "snapshot_chunk": 2}) as run:
        wait_for(lambda: finished(run), "the snapshot")
        execute(mysql, database, "UPDATE t SET a = a")
        execute(mysql, database, "UPDATE t SET b = 9")
        events = [event for event in events_of(run, mysql) if event.table]
    rows = [row.after for event in events if event.type is EventType.READ for row in event.rows]
    assert rows == [(1, 1, 2, 2), (2, 3, 4, 4), (3, 5, 6, 6)]
    assert {event.table for event in events} == {events[-1].table}


def test_history_rows_of_versioned_tables_are_rows_too(mariadb: Server, database: str, options: dict[str, Any]) -> None:
    """System versioning: what was deleted or changed is in the table still, with its period; the stream brings such rows, too."""
    execute(mariadb, database, "CREATE TABLE t (id int primary key, n int) WITH SYSTEM VERSIONING")
    execute(
        mariadb,
        database,
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)",
        "UPDATE t SET n = 9 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
    )
    with running(mariadb, **{**options, "snapshot_chunk": 2}) as run:
        wait_for(lambda: finished(run), "the snapshot")
        execute(mariadb, database, "UPDATE t SET n = 10 WHERE id = 1")
        events = [event for event in events_of(run, mariadb) if event.table]
    rows = [row.after for event in events if event.type is EventType.READ for row in event.rows]
    assert sorted(row[:2] for row in rows) == [(1, 1), (2, 2), (2, 9), (3, 3)]
    assert {event.table for event in events} == {events[-1].table}


@pytest.mark.long
def test_a_table_without_a_key_is_read_whole_under_load(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Its rows come once each, at a place where all of them are as the server has them; what changes behind it comes as a change."""
    execute(any_server, database, "CREATE TABLE plain (a int, b varchar(20))")
    values = ",".join(f"({i % 50}, 'row {i}')" for i in range(5000))
    execute(any_server, database, f"INSERT INTO plain VALUES {values}")
    fill(any_server, database, 300)
    load = Load(any_server, database, seed=3, rows=300, pause=0.002)
    try:
        with running(any_server, **options) as run:
            execute(any_server, database, *[f"UPDATE plain SET a = a + 1 WHERE b = 'row {i}'" for i in range(0, 5000, 250)])
            wait_for(lambda: finished(run), "the snapshot")
            execute(any_server, database, "DELETE FROM plain WHERE b = 'row 7'", "INSERT INTO plain VALUES (1, 'late')")
            load.stop()
            events = events_of(run, any_server)
    finally:
        load._stop.set()
    have: Counter[tuple[Any, ...]] = Counter()
    seen = False
    for event in events:
        if event.table is None or event.table.table != "plain":
            continue
        seen = seen or (event.type is EventType.READ and bool(event.rows))  # one without rows says that reading begins
        for before, after in event.rows if seen else ():
            have.update([after] if after is not None else [])
            have.subtract([before] if before is not None else [])
    with any_server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM plain")
        assert +have == Counter(cursor.fetchall())
