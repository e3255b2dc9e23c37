"""Several servers into one store: every row once, transactions whole, in the order of event times, whatever is killed."""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import Checkpoint, CheckpointFile, EntryType, EventStore, PositionNotFound, producer
from shmstore.producer.pipeline import sink
from tests.producer.merging import (
    Mirrors,
    Producer,
    caught_up,
    config_text,
    create,
    reads,
    running_group,
    settings_of,
    write,
)
from tests.producer.proxy import CuttingProxy
from tests.producer.running import Follower, Running, execute, remove, select_table, store_name, wait_for
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def second_mariadb() -> Iterator[Server]:
    """A MariaDB with a GTID domain of its own."""
    with start_server("mariadb", options=["--server-id=7", "--gtid-domain-id=7"]) as server:
        yield server


@pytest.fixture(scope="module")
def second_mysql() -> Iterator[Server]:
    """Another MySQL."""
    with start_server("mysql", options=["--server-id=8"]) as server:
        yield server


@pytest.fixture
def two(mariadb: Server, mysql: Server) -> dict[str, Server]:
    """One of each, with a database that has the source's name."""
    servers = {"g1": mariadb, "g2": mysql}
    for name, server in servers.items():
        create(server, name)
    return servers


def kill_run(servers: dict[str, Server], tmp_path: Path, kills: int, transactions: int, seed: int) -> None:
    """Random load on all, the producer killed again and again, in large transactions too."""
    rng = random.Random(seed)
    for name, server in servers.items():
        create(server, name)
    store = store_name()
    settings = settings_of(servers, store)
    config = tmp_path / "shmstore.toml"
    config.write_text(config_text(settings, transaction_events=16, transaction_bytes=16384, capacity=1024, state=str(tmp_path)))
    made = Producer(config)
    made.start()
    try:
        wait_for(lambda: reads(store) or not made.alive, "the group to read")
        assert made.alive, made.log
        mirrors = Mirrors(list(servers))
        follower = Follower(store, mirrors)  # type: ignore[arg-type]
        threads = [
            threading.Thread(target=write, args=(server, name, random.Random(rng.random()), transactions))
            for name, server in servers.items()
        ]
        for thread in threads:
            thread.start()
        halves = 0
        for _ in range(kills):
            time.sleep(rng.uniform(0.0, 0.4))
            assert made.alive, made.log
            made.end()
            with EventStore.attach(store) as attached:
                last, beat = attached.latest_event, attached.stat().heartbeat_ms
                halves += last is not None and not last.ends_transaction
                made.start()
                wait_for(lambda: attached.stat().heartbeat_ms > beat or not made.alive, "the group to read again")  # noqa: B023
        for thread in threads:
            thread.join()
        wait_for(lambda: not made.alive or follower.error or caught_up(list(servers.values()), store), "all to be put")
        assert made.alive, made.log
        assert made.end(signal.SIGTERM) == 0, made.log
        follower.finish()
        for name, server in servers.items():
            assert mirrors.rows(name) == select_table(server, name, "t")
        assert {event.props["source"] for event in mirrors.ends} == set(servers)
        print(f"{kills} kills, {halves} in half a transaction, {len(mirrors.ends)} transactions, {mirrors.parts} parts")
        assert mirrors.parts > 0
    finally:
        if made.alive:
            made.end()
        remove(store)


def test_killed_again_and_again(two: dict[str, Server], tmp_path: Path, seed: int) -> None:
    """A MariaDB and a MySQL into one store, kill -9 of the producer: every row of both is in it once, each transaction whole."""
    kill_run(two, tmp_path, 3, 100, seed)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("pair", ["mariadb", "mysql", "both"])
def test_killed_thirty_times(
    pair: str, mariadb: Server, mysql: Server, second_mariadb: Server, second_mysql: Server, tmp_path: Path, seed: int
) -> None:
    """The same with two MariaDBs, two MySQLs, and all four."""
    servers = {"mariadb": [mariadb, second_mariadb], "mysql": [mysql, second_mysql]}
    chosen = servers[pair] if pair != "both" else [*servers["mariadb"], *servers["mysql"]]
    kill_run({f"k{i}": server for i, server in enumerate(chosen)}, tmp_path, 30, 1500, seed)


def test_in_the_order_of_event_times(two: dict[str, Server]) -> None:
    """While both are read, transactions come in the order of their seconds; an idle source says that it has nothing, and does
    not hold the other up for `merge_wait`."""
    with running_group(two, merge_wait=90.0, heartbeat=0.2) as run:
        mirrors = Mirrors(list(two))
        follower = Follower(run.store, mirrors)  # type: ignore[arg-type]
        for i in range(40):
            name = ("g1", "g2")[i % 3 == 0]
            execute(two[name], name, f"INSERT INTO t VALUES ({i}, 0, '')")
            time.sleep(0.2)  # eight seconds in all, and rows of both in each
        wait_for(lambda: caught_up(list(two.values()), run.store) or follower.error, "both")
        execute(two["g1"], "g1", "INSERT INTO t VALUES (99, 0, '')")
        wait_for(
            lambda: len(mirrors.rows("g1")) + len(mirrors.rows("g2")) == 41 or follower.error, "a row while the other is idle", 45
        )
        run.stop()
        follower.finish()
    seconds = [event.time_ms // 1000 for event in mirrors.ends]
    assert seconds == sorted(seconds)
    changes = [a.props["source"] != b.props["source"] for a, b in zip(mirrors.ends, mirrors.ends[1:], strict=False)]
    assert sum(changes) > 5, "they alternate"
    for name, server in two.items():
        assert mirrors.rows(name) == select_table(server, name, "t")


@pytest.mark.long
def test_a_source_that_says_nothing(two: dict[str, Server]) -> None:
    """Behind a link that stalls, a source holds the others up for `merge_wait` only, and stat says so; what it missed comes late,
    and once."""
    with CuttingProxy(two["g2"].port, lambda: None) as proxy, running_group(two, ports={"g2": proxy.port}, tls="disabled") as run:
        mirrors = Mirrors(list(two))
        follower = Follower(run.store, mirrors)  # type: ignore[arg-type]
        proxy.stalled.set()
        time.sleep(0.5)  # until it lets nothing more pass
        execute(two["g2"], "g2", "INSERT INTO t VALUES (1, 0, '')")
        for i in range(20):
            execute(two["g1"], "g1", f"INSERT INTO t VALUES ({i}, 0, '')")
        wait_for(lambda: len(mirrors.rows("g1")) == 20 or follower.error, "the rows of the other")
        assert mirrors.rows("g2") == {}
        with EventStore.attach(run.store) as store:
            wait_for(lambda: store.source == "g1, g2 (no link)", "stat to say who is away")
            proxy.stalled.clear()
            wait_for(lambda: len(mirrors.rows("g2")) == 1 or follower.error, "what came late")
            wait_for(lambda: store.source == "g1, g2", "stat to say that it is back")
        run.stop()
        follower.finish()
    for name, server in two.items():
        assert mirrors.rows(name) == select_table(server, name, "t")


def test_a_source_that_floods(two: dict[str, Server]) -> None:
    """While one brings all it can, each transaction of the other comes through before the flood is over."""
    with running_group(two, transaction_events=64, capacity=1024) as run:
        mirrors = Mirrors(list(two))
        follower = Follower(run.store, mirrors)  # type: ignore[arg-type]
        stop = threading.Event()

        def flood() -> None:
            with two["g1"].connect(database="g1", autocommit=False) as connection, connection.cursor() as cursor:
                number = 0
                while not stop.is_set():
                    cursor.executemany("INSERT INTO t VALUES (%s, 1, 'xxxxxxxx')", [(number + i,) for i in range(50)])
                    connection.commit()
                    number += 50

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            for i in range(4):
                execute(two["g2"], "g2", f"INSERT INTO t VALUES ({i}, 0, '')")
                wait_for(lambda: len(mirrors.rows("g2")) == i + 1 or follower.error, "a row beside the flood")  # noqa: B023
        finally:
            stop.set()
            thread.join()
        wait_for(lambda: caught_up(list(two.values()), run.store) or follower.error, "the flood")
        run.stop()
        follower.finish()
    for name, server in two.items():
        assert mirrors.rows(name) == select_table(server, name, "t")


def test_a_full_ring_is_told(two: dict[str, Server], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a reader holds all sources up, the log and `stat` say which, and the group ends all the same on request."""
    monkeypatch.setattr(sink, "PATIENCE", 0.1)
    with running_group(two, transaction_events=4, capacity=16, log="off") as run, EventStore.attach(run.store) as store:
        store.subscribe("idle").close()
        execute(two["g1"], "g1", "CREATE TABLE held (id INT)", *[f"INSERT INTO held VALUES ({i})" for i in range(20)])
        wait_for(lambda: store.stat().space_wanted is not None, "a full ring")
        wait_for(lambda: "subscription 'idle' (no process reads it) has acked" in caplog.text, "a line in the log")
        run.stop()


def test_a_source_that_waits_for_space_has_a_link(two: dict[str, Server]) -> None:
    """While the ring is full no source is read; their silence is the group's own, and `stat` does not say that a link is missing."""
    with (
        running_group(two, transaction_events=4, capacity=16, merge_wait=1.0, log="off") as run,
        EventStore.attach(run.store) as store,
    ):
        store.subscribe("idle").close()
        execute(two["g1"], "g1", "CREATE TABLE held (id INT)", *[f"INSERT INTO held VALUES ({i})" for i in range(40)])
        wait_for(lambda: store.stat().space_wanted is not None, "a full ring")
        full, seen = store.stat().heartbeat_ms, set[str]()

        def long_enough() -> bool:
            seen.add(store.source)
            return store.stat().heartbeat_ms > full + 6000

        wait_for(long_enough, "heartbeats of the group")
        assert seen == {"g1, g2"}
        run.stop()


def test_sources_come_and_go_and_the_store_is_lost(two: dict[str, Server], second_mariadb: Server, tmp_path: Path) -> None:
    """A source that is new begins where its options say, the others where they were; one alone continues in the group's store;
    and when the store is gone, each continues from the readers' checkpoints."""
    create(second_mariadb, "g3")
    three = {**two, "g3": second_mariadb}
    store, state = store_name(), str(tmp_path)
    mirrors = Mirrors(list(three))

    def read(servers: dict[str, Server], *rows: str) -> None:
        with running_group(servers, store=store, state=state) as run:
            reader = EventStore.attach(store)
            file = CheckpointFile(tmp_path, store, "reader")
            with reader, reader.subscribe("reader", checkpoint=file, checkpoint_interval=0) as subscription:
                for name in rows:
                    count = len(select_table(three[name], name, "t"))
                    execute(three[name], name, f"INSERT INTO t VALUES ({count}, 0, '')")
                wait_for(lambda: caught_up(list(servers.values()), store), "all to be put")
                while batch := subscription.get(timeout=0):
                    mirrors.apply(list(batch))
                    subscription.ack(batch)
            run.stop()

    read(two, "g1", "g2")  # each time the store is gone afterwards
    for name, server in two.items():
        execute(server, name, "INSERT INTO t VALUES (50, 0, '')")
    read(three, "g3")
    read(three, "g1", "g2", "g3")
    read({"g1": two["g1"]}, "g1")
    execute(two["g2"], "g2", "INSERT INTO t VALUES (60, 0, '')")
    read(three)
    for name, server in three.items():
        assert mirrors.rows(name) == select_table(server, name, "t")
        assert len(mirrors.rows(name)) >= 2


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (("mariadb", "mariadb"), "'g[12]' and 'g[12]' both have gtid_domain_id = 0.*SET GLOBAL gtid_domain_id"),
        (("mysql", "mysql"), "'g[12]' and 'g[12]' both bring transactions of server .*replicate each other, or are one"),
    ],
)
def test_sources_that_cannot_be_told_apart(kinds: tuple[str, str], says: str, mariadb: Server, mysql: Server) -> None:
    """Two MariaDBs with one GTID domain are refused at once, two sources that bring the same transactions when they do."""
    servers = {f"g{i}": {"mariadb": mariadb, "mysql": mysql}[kind] for i, kind in enumerate(kinds, 1)}
    create(servers["g1"], "g1")
    settings = settings_of(servers, store_name())
    until = time.monotonic() + 60
    began = threading.Event()

    def stop() -> bool:
        if reads(settings[0].store) and not began.is_set():
            began.set()
            execute(servers["g1"], "g1", "INSERT INTO t VALUES (1, 0, '')")
        return time.monotonic() > until

    try:
        with pytest.raises(producer.SettingsError) as caught:
            producer.run_all(settings, stop)
    finally:
        remove(settings[0].store)
    assert re.search(says, str(caught.value))
    assert "\n" not in str(caught.value)


def test_stores_of_one_and_of_several(two: dict[str, Server], tmp_path: Path) -> None:
    """A group does not continue where one source was, nor one source where a group was, in a store or from a checkpoint."""
    store = store_name()
    with running_group(two, store=store, state=str(tmp_path), log="off") as run:
        execute(two["g1"], "g1", "INSERT INTO t VALUES (1, 0, '')")
        wait_for(lambda: caught_up(list(two.values()), store), "both")
        run.stop()
        with EventStore.attach(store) as attached:
            place = attached.last_ack_point()
            assert place is not None
            entries = [event.entry for event in attached.peek(attached.oldest)]
            assert entries[:2] == [EntryType.BEGIN, EntryType.END], "where each began comes first"
        single = producer.Settings(store=store, port=two["g1"].port, state=str(tmp_path), log="off")
        with pytest.raises(producer.SettingsError, match="of several sources: run them together"):
            producer.run(single, lambda: False)
    CheckpointFile(tmp_path, store, "r").save(Checkpoint(place, 1, 1))
    with pytest.raises(producer.SettingsError, match="of several sources: run them together"):
        producer.run(single, lambda: False)
    CheckpointFile(tmp_path, store, "r").remove()
    alone = Running(single)
    wait_for(lambda: reads(store) or not alone.alive, "the one")
    execute(two["g1"], "g1", "INSERT INTO t VALUES (2, 0, '')")
    with EventStore.attach(store) as attached:
        wait_for(lambda: attached.latest_event is not None, "its row")
    alone.stop()
    try:
        with pytest.raises(PositionNotFound, match="it is from a store of one source"):
            producer.run_all(settings_of(two, store, state=str(tmp_path), log="off"), lambda: False)
    finally:
        remove(store)
