"""Several sources in one run: one that fails is tried again alone, and the others continue."""

from __future__ import annotations

import dataclasses
import logging
import threading
from pathlib import Path

import pytest

from shmstore import EventStore, PositionNotFound, SourceError, producer
from tests.producer.merging import RunningGroup, create, reads, settings_of
from tests.producer.running import execute, remove, store_name, wait_for
from tests.servers.server import Server

pytestmark = pytest.mark.server


def rows(store: str) -> set[tuple[str, int]]:
    """Database and first column of each row in a store."""
    with EventStore.attach(store) as attached:
        return {(event.database, row.after[0]) for event in attached.peek(attached.oldest) for row in event.rows}


def test_a_source_of_a_group_that_cannot_be_read_joins_when_it_can(
    mariadb: Server, mysql: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The other is read meanwhile, and the log names the one that is tried again; what it brings later comes, too."""
    two = {"g1": mariadb, "g2": mysql}
    for name, server in two.items():
        create(server, name)
    execute(mysql, "", "DROP USER IF EXISTS late")
    good, late = settings_of(two, store_name())
    late = dataclasses.replace(late, user="late", password="x")
    run = RunningGroup([good, late])
    try:
        wait_for(lambda: not run.alive or reads(run.store), "the other to be read")
        execute(mariadb, "g1", "INSERT INTO t VALUES (1, 0, '')")
        wait_for(lambda: not run.alive or rows(run.store) == {("g1", 1)}, "its row")
        wait_for(lambda: any("source 'g2'" in line and "tried again in" in line for line in caplog.messages), "a line in the log")
        with EventStore.attach(run.store) as store:
            assert not store.stat().stream.connected
        execute(
            mysql, "", "CREATE USER late IDENTIFIED BY 'x'", "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO late"
        )
        with EventStore.attach(run.store) as store:
            wait_for(lambda: not run.alive or store.stat().stream.connected, "it to be read")
        execute(mysql, "g2", "INSERT INTO t VALUES (2, 0, '')")
        execute(mariadb, "g1", "INSERT INTO t VALUES (3, 0, '')")
        wait_for(lambda: not run.alive or rows(run.store) == {("g1", 1), ("g2", 2), ("g1", 3)}, "rows of both")
        run.stop()
    finally:
        run._stop.set()
        run._thread.join(60)
        remove(run.store)
        execute(mysql, "", "DROP USER IF EXISTS late")


def test_a_bad_position_ends_nobody_elses_run(mariadb: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two stores the one whose start does not exist is tried again all the while; the other is read, and the end tells of the first."""
    create(mariadb, "g1")
    names = store_name(), store_name()
    common = {"port": mariadb.port, "retry_first": 0.05, "retry_longest": 0.1, "state": str(tmp_path)}
    settings = [
        producer.Settings(**{"store": names[0], "name": "bad", "start": "nowhere.000001:4", **common}),  # type: ignore[arg-type]
        producer.Settings(**{"store": names[1], "name": "good", **common}),  # type: ignore[arg-type]
    ]
    stop = threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            producer.run_all(settings, stop)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    with caplog.at_level(logging.INFO):
        thread.start()
        try:
            wait_for(lambda: not thread.is_alive() or reads(names[1]), "the good one to be read")
            wait_for(lambda: sum("bad (store" in line for line in caplog.messages) >= 3, "three attempts of the bad one")
            execute(mariadb, "g1", "INSERT INTO t VALUES (1, 0, '')")
            wait_for(lambda: not thread.is_alive() or rows(names[1]) == {("g1", 1)}, "the row")
        finally:
            stop.set()
            thread.join(60)
            for name in names:
                remove(name, str(tmp_path))
    assert isinstance(raised[0], PositionNotFound)
    assert str(raised[0]).startswith(f"bad (store {names[0]!r}): ")
    assert names[0] not in EventStore.names()  # it was of no use


def test_where_no_source_was_ever_read_the_run_ends(tmp_path: Path) -> None:
    """A user is waiting to hear why."""
    settings = [producer.Settings(store=store_name(), name=name, port=1, state=str(tmp_path)) for name in ("a", "b")]
    with pytest.raises(producer.ServerUnreachable, match=r"^[ab] \(store '.*'\): "):
        producer.run_all(settings, lambda: False)
    grouped = [producer.Settings(store=settings[0].store, name=name, port=1, state=str(tmp_path)) for name in ("a", "b")]
    with pytest.raises(producer.ServerUnreachable, match=r"^source '[ab]': "):
        producer.run_all(grouped, lambda: False)
    assert not {each.store for each in settings} & set(EventStore.names())  # they were of no use


def test_options_that_nobody_can_wait_for_end_one_source_alone(mariadb: Server, tmp_path: Path) -> None:
    """A mistake in the options is not tried again; it is raised when the others have ended, which continue."""
    create(mariadb, "g1")
    names = store_name(), store_name()
    settings = [
        producer.Settings(store=names[0], name="files", binlog=str(tmp_path / "missing"), state=str(tmp_path)),
        producer.Settings(store=names[1], name="good", port=mariadb.port, state=str(tmp_path)),
    ]
    seen = threading.Event()

    def stop() -> bool:
        if not seen.is_set() and reads(names[1]):
            seen.set()
        return seen.is_set()

    try:
        with pytest.raises(SourceError, match=r"^files "):
            producer.run_all(settings, stop)
        assert seen.is_set()
    finally:
        for name in names:
            remove(name, str(tmp_path))
