"""The whole producer on real servers: what the log holds becomes events, once, whole, in order."""

from __future__ import annotations

import dataclasses
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from shmstore import EntryType, Event, EventStore, EventType, producer
from shmstore.producer.pipeline import sink
from shmstore.producer.pipeline.replicator import Replicator
from shmstore.producer.pipeline.sink import opened
from tests.producer.running import (
    Follower,
    Mirror,
    Running,
    events_of,
    execute,
    remove,
    running,
    select_table,
    shape,
    store_name,
    wait_for,
    wait_for_position,
)
from tests.servers.server import Server

pytestmark = pytest.mark.server


def test_transactions_come_whole_and_in_order(any_server: Server, database: str) -> None:
    """BEGIN, rows and END of a transaction share its name and count up; rolled back work is not there; a DDL stands alone."""
    with running(any_server) as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, b VARCHAR(9))")
        execute(any_server, database, "INSERT INTO t VALUES (1, 'x'), (2, NULL)")
        execute(
            any_server,
            database,
            "UPDATE t SET b = 'y' WHERE id = 2",
            "SAVEPOINT s",
            "DELETE FROM t",
            "ROLLBACK TO s",
            "INSERT INTO t VALUES (3, 'z')",
            "COMMIT",
            "DELETE FROM t",
            "ROLLBACK",
            "TRUNCATE t",
            autocommit=False,
        )
        events = events_of(run, any_server)
        summary = run.stop()
    assert shape(events) == ["DDL", "BEGIN", "INSERT", "END", "BEGIN", "UPDATE", "INSERT", "END", "DDL"]
    assert [event.order for event in events] == [0, 0, 1, 2, 0, 1, 2, 3, 0]
    assert len({event.transaction for event in events}) == 4
    assert [(r.before, r.after) for e in events for r in e.rows] == [
        (None, (1, "x")),
        (None, (2, None)),
        ((2, None), (2, "y")),
        (None, (3, "z")),
    ]
    assert [event.type for event in events if event.entry is EntryType.DDL] == [EventType.CREATE, EventType.TRUNCATE]
    assert {event.props["table"] for event in events if event.entry is EntryType.DDL} == {"t"}
    ends = [event for event in events if event.ends_transaction]
    assert all(event.position.gtids for event in ends)
    assert not any(event.position.gtids for event in events if not event.ends_transaction)
    assert [event.props["rows"] for event in events if event.entry is EntryType.END] == ["2", "2"]
    assert all(event.server_id == 1 and event.length > 0 for event in events)
    offsets = [event.position.order for event in events]
    assert offsets == sorted(offsets)
    assert (summary.transactions, summary.events, summary.rows) == (4, 9, 4)


def test_slots_say_what_the_events_say(any_server: Server, database: str) -> None:
    """The slot records that came with the payloads equal those that the codec makes of the decoded events."""
    from shmstore.encoding.codec import slot_of

    with running(any_server) as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", "DELETE FROM t")
        events_of(run, any_server)
        with EventStore.attach(run.settings.store) as store:
            batch = store.peek(store.oldest)
            for event, slot, payload in zip(batch, batch.slots.tolist(), batch.payloads(), strict=True):
                assert slot == slot_of(event, len(payload))


def test_a_stopped_producer_goes_on_where_it_was(any_server: Server, database: str) -> None:
    """What was logged while no producer ran comes when one runs again: nothing twice, nothing missing, acked or not."""
    with running(any_server) as run:
        follower = Follower(run.settings.store, Mirror(database))
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 1)")
        for i in range(3):
            events_of(run, any_server)
            run.stop()
            execute(any_server, database, f"INSERT INTO t VALUES ({i + 10}, 0)", "UPDATE t SET a = a + 1")
            run = Running(run.settings)
            with EventStore.attach(run.settings.store) as store:
                wait_for_position(any_server, store)
        run.stop()
        mirror = follower.finish()
        assert mirror.tables["t"] == select_table(any_server, database, "t")
        remove(run.settings.store)


def test_nothing_is_missed_when_nothing_was_put(any_server: Server, database: str) -> None:
    """A producer that started at the current position and was stopped before any event continues from that position."""
    with running(any_server) as run:
        run.stop()
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
        run = Running(run.settings)
        wait_for(lambda: len(events_of(run, any_server)) > 0, "the DDL")
        run.stop()
        remove(run.settings.store)


PROCESS = """
    import signal, sys, threading, logging
    from shmstore import producer
    logging.basicConfig(level="INFO")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    producer.run(producer.Settings(store=sys.argv[1], port=int(sys.argv[2]), transaction_events=8, capacity=64, log="off"), stop)
"""


def start_process(store: str, port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROCESS), store, str(port)])


def test_a_producer_killed_inside_a_transaction_completes_it(any_server: Server, database: str) -> None:
    """kill -9 while parts of one large transaction are in the store: the next producer puts the rest of it, no event twice."""
    store = store_name()
    process = start_process(store, any_server.port)
    try:
        wait_for(lambda: store in EventStore.names(), "the store")
        with EventStore.attach(store) as attached:
            wait_for(lambda: attached.stat().heartbeat_ms, "the producer")
            reader = attached.subscribe("slow")
            execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, b VARCHAR(4000))")
            with any_server.connect(database=database, autocommit=False) as connection, connection.cursor() as cursor:
                for i in range(600):
                    cursor.execute("INSERT INTO t VALUES (%s, %s)", (i, "x" * 3000))
                connection.commit()
            mirror = Mirror(database)
            kills = 0
            while not mirror.transactions:
                batch = reader.get(timeout=60, limit_events=40)
                assert batch, "the producer went silent"
                mirror.apply(list(batch))
                reader.ack(batch)
                inside = attached.latest_event is not None and not attached.latest_event.ends_transaction
                if inside and kills < 4:
                    process.kill()
                    process.wait()
                    kills += 1
                    process = start_process(store, any_server.port)
            assert kills == 4
            assert mirror.parts > 10
            assert mirror.tables["t"] == select_table(any_server, database, "t")
            reader.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        remove(store)


def test_stops_while_the_ring_is_full(
    any_server: Server, database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that waits for free space says who holds it up, ends within seconds on request, and what it had read comes after
    the next start."""
    monkeypatch.setattr(sink, "PATIENCE", 0.1)
    with running(any_server, capacity=16, transaction_events=4, log="off") as run:
        with EventStore.attach(run.settings.store) as store:
            store.subscribe("idle").close()
            execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, a INT)")
            execute(any_server, database, *[f"INSERT INTO t VALUES ({i}, 0)" for i in range(20)])
            wait_for(lambda: store.stat().space_wanted is not None, "a full ring")
            wait_for(lambda: "subscription 'idle' (no process reads it) has acked nothing" in caplog.text, "a line in the log")
        began = time.monotonic()
        summary = run.stop()
        assert time.monotonic() - began < 10
        assert summary.events < 61
        follower = Follower(run.settings.store, Mirror(database), "idle")
        run = Running(run.settings)
        with EventStore.attach(run.settings.store) as store:
            wait_for_position(any_server, store, put=True)
        run.stop()
        assert follower.finish().tables["t"] == select_table(any_server, database, "t")
        remove(run.settings.store)


def test_a_stop_inside_a_compressed_transaction_is_orderly(
    mysql: Server, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer that is asked to stop while one event of the log is half put counts no reconnect, and does not say that it tries again."""
    with running(mysql, capacity=16, transaction_events=4, log="off") as run, EventStore.attach(run.settings.store) as store:
        store.subscribe("idle").close()
        execute(mysql, database, "CREATE TABLE t (id INT PRIMARY KEY)")
        inserts = [f"INSERT INTO t VALUES ({i})" for i in range(100)]
        execute(mysql, database, "SET SESSION binlog_transaction_compression = ON", *inserts, "COMMIT", autocommit=False)
        wait_for(lambda: store.stat().space_wanted is not None, "a full ring")
        assert run.stop().reconnects == 0
    assert "trying again" not in caplog.text


class Clock:
    """Time that continues when a thread sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("to_connect", "stood", "attempts"), [(60.0, 0.0, [1, 2, 3]), (0.0, 60.0, [1, 1, 1])])
def test_only_the_time_that_a_link_stood_calms_the_retries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, to_connect: float, stood: float, attempts: list[int]
) -> None:
    """Each lost link is followed by a longer pause, however long it took to connect; after one that stood it begins with the first."""
    clock, said = Clock(), "the link broke"

    class Lost:
        def read(self) -> None:
            clock.sleep(stood)
            raise producer.LinkLost(said)

        def close(self) -> None:
            pass

    def connect(self: Replicator) -> Lost:
        clock.sleep(to_connect)
        return Lost()

    def tries() -> list[int]:
        return [record.args[-1] for record in caplog.records if said in record.getMessage()]  # type: ignore[index,misc]

    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("shmstore.producer.pipeline.replicator.time", clock)
    monkeypatch.setattr(Replicator, "_connect", connect)
    settings = producer.Settings(store=store_name(), retry_first=0.2)
    with EventStore.create(settings.store, capacity=16, log=False) as store:
        try:
            Replicator(settings, store, lambda: len(tries()) >= 3).run()
        finally:
            remove(settings.store)
    assert tries() == attempts


def test_handlers_see_every_put(any_server: Server, database: str) -> None:
    """`before` may replace the events of a put, `after` sees what was put."""
    seen: list[Event] = []

    def before(events: list[Event]) -> list[Event]:
        return [event for event in events if event.entry is not EntryType.DDL]

    with running(any_server, before=before, after=lambda events: seen.extend(events)) as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        events = events_of(run, any_server)
        run.stop()
    assert shape(events) == ["BEGIN", "INSERT", "END"]
    assert seen == events


def test_empty_transactions_are_thinned(any_server: Server, database: str) -> None:
    """Of transactions that a filter leaves empty one in so many passes, and after the traffic stops the last one does."""
    with running(any_server, include=(f"{database}.wanted",), empty_events=10, empty_seconds=1.5) as run:
        began = time.monotonic()
        execute(any_server, database, "CREATE TABLE other (id INT PRIMARY KEY)")
        execute(any_server, database, *[f"INSERT INTO other VALUES ({i})" for i in range(25)])
        passed = len(events_of(run, any_server)) // 2
        assert 2 <= passed <= 3 + (time.monotonic() - began) / 1.5
        with EventStore.attach(run.settings.store) as store:
            wait_for_position(any_server, store, put=True)
            assert shape(list(store.peek(store.oldest))) == ["BEGIN", "END"] * (store.newest // 2 + 1)
            assert store.newest // 2 + 1 - passed <= 1
            assert store.latest_event.position.gtids == run.stop().position.gtids
        remove(run.settings.store)


def test_a_second_producer_is_refused(any_server: Server) -> None:
    """A store has one producer; the second gets an error, and the first continues."""
    from shmstore import ProducerInUse

    with running(any_server) as run:
        with pytest.raises(ProducerInUse):
            producer.run(run.settings, lambda: False)
        time.sleep(0.1)
        assert run.alive


def test_a_refused_producer_changes_no_file(any_server: Server, database: str, tmp_path: Path) -> None:
    """What a producer keeps on disk it writes as the store's one producer: a second one, which is refused, leaves all as it was."""
    from shmstore import ProducerInUse

    with running(any_server, state=str(tmp_path), schema_history="off", log="off") as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
        events_of(run, any_server)
        kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(ProducerInUse):
            producer.run(dataclasses.replace(run.settings, schema_history="on"), lambda: False)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept
        run.stop()


@pytest.mark.parametrize("meanwhile", ["nothing", "claimed", "removed"])
def test_a_store_that_was_made_in_vain(meanwhile: str) -> None:
    """A store that a producer made for itself ends with it when it could put nothing, unless another had claimed it by then; what
    is raised is what the producer ended with."""
    settings = producer.Settings(store=store_name(), capacity=16)

    def end_in_vain() -> None:
        with opened(settings):
            if meanwhile == "claimed":
                other.append(EventStore.attach(settings.store))
                other[0].claim()
            elif meanwhile == "removed":
                remove(settings.store)
            raise producer.ServerUnreachable("nobody is there")

    other: list[EventStore] = []
    try:
        with pytest.raises(producer.ServerUnreachable):
            end_in_vain()
        assert (settings.store in EventStore.names()) is (meanwhile == "claimed")
    finally:
        for store in other:
            store.close()
        remove(settings.store)


def test_the_sizes_of_a_store_that_is_there(caplog: pytest.LogCaptureFixture) -> None:
    """The log's limits hold at once, the ring's size as soon as no process uses it; what is not asked for stays, and who is refused changes nothing."""
    name = store_name()
    sizes = producer.Settings(store=name, capacity=32, memory_unit=64, log_size="20m", log_keep="1h")
    try:
        with EventStore.create(name, capacity=16, log_size=1 << 30) as store, store.subscribe("r") as reader:
            store.put([b"one", b"two"])
            with opened(sizes) as refused:
                assert refused.stat().log.size == 1 << 30
            reader.ack(reader.get())
        with EventStore.attach(name) as store, store.subscribe("r"), opened(sizes) as waiting:
            assert (waiting.capacity, waiting.stat().log.size, waiting.stat().log.keep_ms) == (16, 20 << 20, 3_600_000)
            assert "keeps its 16 events and 16384 bytes while a process reads it: stop its readers" in caplog.text
        with opened(producer.Settings(store=name)) as store:
            assert store.capacity == 16
        EventStore.attach(name).resize(capacity=16, memory_unit=1024)
        with opened(dataclasses.replace(sizes, log_size="", log_keep="0")) as store:
            assert (store.capacity, store.limit_bytes, store.newest) == (32, 32 * 64, 1)
            assert (store.stat().log.size, store.stat().log.keep_ms) == (20 << 20, 0)
            assert {each.name: each.ack.sequence for each in store.subscriptions()} == {"r": 1}
    finally:
        remove(name)


def test_rows_larger_than_the_ring(any_server: Server, database: str) -> None:
    """A row that is larger than the whole ring passes, alone, in its place in the transaction."""
    with running(any_server, capacity=64, memory_unit=64, transaction_bytes=2048, log="off") as run:
        follower = Follower(run.settings.store, Mirror(database))
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB)")
        inserts = [f"INSERT INTO t VALUES ({i}, REPEAT('{i}', {size}))" for i, size in enumerate((10, 9000, 10, 300_000, 5))]
        execute(any_server, database, *inserts, "COMMIT", "INSERT INTO t VALUES (9, '')", "COMMIT", autocommit=False)
        with EventStore.attach(run.settings.store) as store:
            wait_for_position(any_server, store, put=True)
        run.stop()
        mirror = follower.finish()
        assert mirror.tables["t"] == select_table(any_server, database, "t")
        assert mirror.parts >= 3
        remove(run.settings.store)


def test_a_store_in_a_file(mariadb: Server, database: str, tmp_path: Path) -> None:
    """With store_path the store lives in a file, with checksums, and the producer continues in it."""
    settings = producer.Settings(store=store_name(), port=mariadb.port, store_path=str(tmp_path / "ring"))
    run = Running(settings)
    wait_for((tmp_path / "ring").exists, "the file")
    with EventStore.attach(settings.store, path=settings.store_path) as store:
        wait_for(lambda: store.stat().heartbeat_ms, "the producer to read")
    execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    run.stop()
    execute(mariadb, database, "INSERT INTO t VALUES (1)")
    run = Running(settings)
    with EventStore.attach(settings.store, path=settings.store_path) as store:
        wait_for_position(mariadb, store, put=True)
        assert shape(list(store.peek(store.oldest))) == ["DDL", "BEGIN", "INSERT", "END"]
        assert store.stat().checksum
    run.stop()
    EventStore.unlink(settings.store, path=settings.store_path)
    assert settings.store not in EventStore.names()


def test_several_sources(mariadb: Server, mysql: Server) -> None:
    """run_all replicates each source into its store until asked to stop."""
    names = [store_name(), store_name()]
    both = [producer.Settings(store=name, port=server.port) for name, server in zip(names, (mariadb, mysql), strict=True)]
    try:
        stores: list[EventStore] = []
        lock = threading.Lock()  # both threads ask

        def read() -> bool:
            with lock:
                return both_read()

        def both_read() -> bool:
            if len(stores) < 2 and all(name in EventStore.names() for name in names):
                stores.extend(EventStore.attach(name) for name in names)
            return len(stores) == 2 and all(store.stat().heartbeat_ms for store in stores)

        assert len(producer.run_all(both, read)) == 2
        for store in stores:
            store.close()
    finally:
        for name in names:
            remove(name)
