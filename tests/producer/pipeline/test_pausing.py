"""A producer that is paused reads nothing and has no link, also after restarts, and continues without a loss."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EventStore, StoreNotFound, StoreView, producer
from shmstore.consumer.live import actions
from shmstore.consumer.live.actions import Named
from shmstore.consumer.monitoring.health import problems
from shmstore.home import audit
from tests.producer.merging import Mirrors, caught_up, create, running_group, write
from tests.producer.running import Follower, Mirror, Running, execute, remove, running, select_table, store_name, wait_for
from tests.producer.running import wait_for_position as reached
from tests.servers.server import Server
from tests.shmstore.commands import run as command

pytestmark = pytest.mark.server

WAIT = 60.0


def links(server: Server) -> int:
    """Replicas that read the server's binlog now."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
        return int(cursor.fetchone()[0])


@pytest.fixture
def started(mariadb: Server, database: str) -> Iterator[Running]:
    execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with running(mariadb, include=[f"{database}.t"], transaction_events=8) as run:
        yield run


def test_a_paused_producer_reads_nothing(any_server: Server, database: str) -> None:
    """It leaves the server, the store says since when, and what was written meanwhile comes once it is resumed: each row once."""
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with running(any_server, include=[f"{database}.t"]) as run, EventStore.attach(run.settings.store) as store:
        named = Named(run.settings.store, by="test")
        execute(any_server, database, "INSERT INTO t VALUES (1, 1)")
        reached(any_server, store, put=True)
        before = links(any_server)
        said = actions.pause(named, wait=WAIT)
        assert "is paused at" in said, said
        wait_for(lambda: links(any_server) < before, "the server to see the link end")
        newest, stat = store.newest, store.stat()
        assert stat.stream.paused_ms
        assert not stat.stream.connected
        assert problems([stat]) == []
        (link,) = [found for found in producer.check_running(run.settings) if found.check == "link"]
        assert (link.state, "paused since" in link.found, link.fix) == ("warn", True, f"shmstore resume {named.store}")
        execute(any_server, database, *(f"INSERT INTO t VALUES ({i}, 0)" for i in range(2, 30)))
        wait_for(lambda: store.stat().heartbeat_ms > stat.heartbeat_ms, "a sign of life")
        assert store.newest == newest
        assert actions.resume(named, wait=WAIT) == "the producer is resumed"
        mirror = Mirror(database)
        follower = Follower(named.store, mirror)
        reached(any_server, store, put=True)
        follower.finish()
        assert mirror.tables["t"] == select_table(any_server, database, "t")
        assert actions.resume(named) == "the producer was not paused"
        assert [(line.by, line.action, line.outcome) for line in audit.lines(store.home)][:2] == [
            ("test", "pause", "done"),
            ("test", "resume", "done"),
        ]


def test_a_restart_stays_paused(mariadb: Server, database: str, started: Running, caplog: pytest.LogCaptureFixture) -> None:
    """It says so in its first line, is the store's producer, has no link, and reads when it is resumed."""
    named = Named(started.settings.store, by="test")
    actions.pause(named, wait=WAIT)
    started.stop()
    assert actions.pause(named) == "no producer runs; the next one is paused from its start on"
    execute(mariadb, database, "INSERT INTO t VALUES (1, 1)")
    before = links(mariadb)
    caplog.clear()
    again = Running(started.settings)
    try:
        with EventStore.attach(named.store) as store:
            wait_for(lambda: any(record.name == "producer" for record in caplog.records), "a line of the log")
            first = next(record for record in caplog.records if record.name == "producer")
            assert "paused since" in first.getMessage()
            assert "by test" in first.getMessage()
            wait_for(lambda: store.stat().stream.paused_ms, "the pause")
            assert links(mariadb) <= before  # fewer where the server has only now seen the end of the first one's
            assert store.latest_event is None
            actions.resume(named, wait=WAIT)
            reached(mariadb, store, put=True)
    finally:
        again.stop()


def test_a_snapshot_continues_behind_a_pause(mariadb: Server, database: str) -> None:
    """One that is under way stops with the producer; all rows are there in the end."""
    execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    execute(mariadb, database, "INSERT INTO t VALUES " + ",".join(f"({i}, {i})" for i in range(3000)))
    with running(mariadb, include=[f"{database}.t"], snapshot="initial", snapshot_chunk=50) as run:
        named = Named(run.settings.store)
        with EventStore.attach(named.store) as store:
            actions.pause(named, wait=WAIT)
            execute(mariadb, database, "UPDATE t SET v = -1 WHERE id % 3 = 0")
            actions.resume(named, wait=WAIT)
            wait_for(lambda: (found := producer.snapshot_status(named.store)) is not None and not found.open, "the snapshot")
            reached(mariadb, store, put=True)
            copy: dict[int, tuple[int, ...]] = {}
            with store.subscribe("r") as reader:
                while batch := reader.get(timeout=0):
                    copy.update({row.after[0]: row.after for event in batch for row in event.rows if row.after is not None})
                    reader.ack(batch)
            assert {(key,): row for key, row in copy.items()} == select_table(mariadb, database, "t")


@pytest.mark.long
def test_paused_at_random_under_load(mariadb: Server, database: str, started: Running, seed: int) -> None:
    """In large transactions, too: each row once, and the store never ends inside one while it is paused."""
    rng, named = random.Random(seed), Named(started.settings.store)
    mirror = Mirror(database)
    follower = Follower(named.store, mirror)
    with EventStore.attach(named.store) as store:
        for number in range(3):
            execute(mariadb, database, "INSERT INTO t VALUES " + ",".join(f"({number * 1000 + i}, 0)" for i in range(1000)))
            while rng.random() < 0.7:
                execute(mariadb, database, f"UPDATE t SET v = v + 1 WHERE id % 97 = {rng.randrange(97)}")
            actions.pause(named, wait=WAIT)
            last = store.latest_event
            assert last is None or last.ends_transaction
            actions.resume(named, wait=WAIT)
        reached(mariadb, store, put=True)
    follower.finish()
    assert mirror.tables["t"] == select_table(mariadb, database, "t")


def test_several_sources_are_paused_together(mariadb: Server, mysql: Server) -> None:
    """And continue together: every row of both is there once."""
    two = {"g1": mariadb, "g2": mysql}
    for name, server in two.items():
        create(server, name)
    with running_group(two) as run:
        store = run.settings[0].store
        mirrors = Mirrors(list(two))
        follower = Follower(store, mirrors)  # type: ignore[arg-type]
        for number, (name, server) in enumerate(two.items()):
            write(server, name, random.Random(number), 20)
        named = Named(store)
        assert "is paused" in actions.pause(named, wait=WAIT)
        for number, (name, server) in enumerate(two.items()):
            write(server, name, random.Random(10 + number), 20)
        with StoreView.attach(store) as view:
            assert view.stat().stream.paused_ms
        actions.resume(named, wait=WAIT)
        wait_for(lambda: caught_up(list(two.values()), store), "all to be put")
        follower.finish()
        for name, server in two.items():
            assert mirrors.rows(name) == select_table(server, name, "t")


def test_the_commands(mariadb: Server, database: str, tmp_path: Path) -> None:
    """pause and resume, of the producer and of a reader; each in the audit log, with what was refused; a missing store is an error."""
    with running(mariadb, include=[f"{database}.t"]) as run:
        store = run.settings.store
        with EventStore.attach(store) as attached:
            attached.subscribe("audit").close()
            assert command("pause", store).startswith(f"{store}: the producer is paused")
            assert "paused     since" in command("stat", store)
            assert "audit is paused: its reader gets no events; the log keeps its events" in command(
                "pause", store, "--subscription", "audit"
            )
            assert attached.stat().subscriptions[0].presence == "paused"
            command("pause", store, "--subscription", "other", code=2)
            assert command("resume", store, "--subscription", "audit") == f"{store}: audit is resumed\n"
            assert command("resume", store) == f"{store}: the producer is resumed\n"
            command("seek", store, "audit", "latest")
            command("unsubscribe", store, "audit")
            lines = [line.partition("  ")[2].partition("  ")[2] for line in command("audit", store).splitlines()]
        done = ["pause producer", "pause audit", "resume audit", "resume producer", "seek audit to latest", "unsubscribe audit"]
        assert [line for line in lines if line.endswith("done")] == [f"{each}: done" for each in done]
        assert [line for line in lines if line.startswith("pause other: store")]
    command("pause", "no-such-store", code=2)


def test_a_store_that_is_paused_before_it_was_read(mariadb: Server, database: str) -> None:
    """Its producer stays, reads nothing, and ends in order; a store that holds nothing then goes, and its pause with it."""
    name = store_name()
    settings = producer.Settings(store=name, host=mariadb.host, port=mariadb.port, user=mariadb.user, include=(f"{database}.t",))
    try:
        with EventStore.create(name, log_size=16 << 20):
            assert actions.pause(Named(name)) == "no producer runs; the next one is paused from its start on"
            run = Running(settings)
            with EventStore.attach(name) as store:
                wait_for(lambda: store.stat().stream.paused_ms, "the pause")
            assert run.stop().transactions == 0
    finally:
        remove(name)
    with pytest.raises(StoreNotFound):
        StoreView.attach(name)
