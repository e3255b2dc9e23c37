"""Filters that change while the producer runs: at the end of a transaction, all of the file or nothing, and known of each position."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore import EntryType, Event, EventStore, EventType, StoreNotFound, StoreView, producer
from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.encoding.codec import encode
from shmstore.home.control import RELOAD, ControlAnswer, ControlFiles
from shmstore.home.home import Home
from tests.producer.merging import RunningGroup, caught_up, reads, settings_of
from tests.producer.running import Running, events_of, execute, remove, running, store_name, wait_for, wait_for_position
from tests.servers.server import Server
from tests.shmstore.commands import COMMAND
from tests.shmstore.commands import run as command

pytestmark = pytest.mark.server


class Configured:
    """A producer with a configuration file that a test rewrites."""

    def __init__(self, server: Server, folder: Path, **options: Any) -> None:
        self.server, self.path = server, folder / "shmstore.toml"
        self.base = {"store": store_name(), "host": server.host, "port": server.port, "user": server.user, **options}
        self.write()
        self.run = self.start()

    def write(self, text: str = "", **options: Any) -> None:
        options = {**self.base, **options}
        self.path.write_text(
            text or "[producer]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        )

    def load(self) -> producer.Settings:
        return producer.load_settings(config=self.path, environ={})

    def start(self) -> Running:
        settings = self.load()
        run = Running(settings, reloads=producer.Reloads([settings], lambda: [self.load()]))
        wait_for(lambda: not run.alive or self._reads(), "the producer to read")
        return run

    def _reads(self) -> bool:
        try:
            with StoreView.attach(self.base["store"]) as store:
                return store.stat().producer_alive and store.stat().stream.connected
        except StoreNotFound:
            return False

    def reload(self) -> ControlAnswer:
        return reload(self.base["store"])

    def events(self) -> list[Event]:
        return events_of(self.run, self.server)


def reload(store: str) -> ControlAnswer:
    """Ask for it, and return the answer."""
    files = ControlFiles(Home.of(store))
    asked = files.ask(RELOAD)
    found: list[ControlAnswer] = []

    def answered() -> bool:
        found.extend(one for one in files.answers() if one.id == asked)
        return bool(found)

    wait_for(answered, "an answer")
    return found[0]


@pytest.fixture
def configured(mariadb: Server, database: str, tmp_path: Path) -> Iterator[Configured]:
    execute(mariadb, database, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY, v INT)")
    made = Configured(mariadb, tmp_path, include=[f"{database}.a"])
    try:
        yield made
    finally:
        made.run._stop.set()
        made.run._thread.join(30)
        remove(made.base["store"])


def rows(events: list[Event]) -> list[tuple[str, Any]]:
    """(table, row) of each row, and the changes of filters."""
    found: list[tuple[str, Any]] = []
    for event in events:
        if event.entry is EntryType.HEARTBEAT:
            found.append(("filters", event.props))
        found += [(event.table.table, row.after) for row in event.rows if event.table is not None]
    return found


def test_a_filter_changes_between_two_transactions(configured: Configured, database: str) -> None:
    """What the file lets in is read from the position on that the answer names, and the event of the change is in the log there."""
    execute(configured.server, database, "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1, 1)")
    with EventStore.attach(configured.base["store"]) as store:
        wait_for_position(configured.server, store)
    configured.write(include=[f"{database}.b"], column_mask=[f"{database}.b.v"])
    answer = configured.reload()
    assert answer.done, answer
    execute(configured.server, database, "INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (2, 2)")
    found = rows(configured.events())
    changed = {
        "filters_changed": "include,column_mask",
        "tables_in": f"{database}.b",
        "tables_out": f"{database}.a",
    }
    assert found == [("a", (1,)), ("filters", changed), ("b", (2, "***"))]
    event = next(event for event in configured.events() if event.entry is EntryType.HEARTBEAT)
    assert event.ends_transaction
    assert event.position.gtids
    assert f"{event.position.file}:{event.position.offset}" in answer.text


def test_all_or_nothing(configured: Configured, database: str) -> None:
    """A file with an error, or with a change that needs a restart, changes nothing, and the answer names what is wrong."""
    for text, wrong in [
        ("nonsense", "cannot be read"),
        ("", "port needs a restart"),
        ("", "row filter"),
    ]:
        options: dict[str, Any] = {"port": 1} if "port" in wrong else {"row_filter": [f"{database}.b: nothing = 1"]}
        configured.write(text, include=[f"{database}.b"], **options)
        answer = configured.reload()
        assert not answer.done
        assert wrong in answer.text
        assert "nothing was changed" in answer.text
    configured.write()
    assert configured.reload().text == "nothing changed for this store"
    execute(configured.server, database, "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1, 1)")
    assert rows(configured.events()) == [("a", (1,))]


def test_a_start_is_a_change_too(configured: Configured, database: str) -> None:
    """Options that differ when the producer starts again are in force from where the store ended, which its log says."""
    execute(configured.server, database, "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1, 1)")
    with EventStore.attach(configured.base["store"]) as store:
        wait_for_position(configured.server, store)
    configured.run.stop()
    execute(configured.server, database, "INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (2, 2)")
    configured.write(include=[f"{database}.b"])
    configured.run = configured.start()
    changed = {"filters_changed": "include", "tables_in": f"{database}.b", "tables_out": f"{database}.a"}
    found = rows(configured.events())
    assert [one for one in found if one != ("b", (1, 1))] == [("a", (1,)), ("filters", changed), ("b", (2, 2))]


def test_a_transaction_is_read_with_the_filters_of_its_beginning(any_server: Server, database: str, tmp_path: Path) -> None:
    """A producer that ended inside a transaction reads it to its end as it began, and takes the new filters behind it."""
    execute(any_server, database, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    made = Configured(any_server, tmp_path, include=[f"{database}.a"], transaction_events=2, capacity=16, log="off")
    try:
        changes = [f"INSERT INTO {table} VALUES ({i})" for i in range(20) for table in "ab"]
        execute(any_server, database, *changes, "COMMIT", autocommit=False)
        with EventStore.attach(made.base["store"]) as store:
            wait_for(lambda: store.newest >= 15, "a full ring")
            made.run.stop()
            last = store.latest_event
            assert last is not None
            assert last.cut is not None, "the store ends inside the transaction"
            made.write(include=[f"{database}.b"])
            subscription = store.subscribe("r", start="earliest")
            made.run = made.start()
            found: list[Event] = []

            def ended() -> bool:
                if (batch := subscription.get(timeout=0.1)) is not None:
                    found.extend(batch)
                    subscription.ack(batch)
                return any(event.entry is EntryType.HEARTBEAT for event in found)

            wait_for(ended, "the change")
            subscription.close()
        assert [name for name, _ in rows(found)] == ["a"] * 20 + ["filters"]
    finally:
        made.run._stop.set()
        made.run._thread.join(30)
        remove(made.base["store"])


def reads_of(events: list[Event]) -> list[tuple[str, Any]]:
    """(table, row) of each row that a snapshot brought."""
    return sorted(
        (event.table.table, row.after) for event in events if event.type is EventType.READ and event.table for row in event.rows
    )


def snapshot_done(store: str) -> bool:
    found = producer.snapshot_status(store)
    return found is not None and bool(found.tasks) and not found.open and not producer.snapshot_waits(store)


def test_tables_that_come_in_are_read(configured: Configured, database: str) -> None:
    """With new_tables = snapshot the rows of a table that a changed filter lets in come first; of one whose rows differ, all again."""
    execute(configured.server, database, "INSERT INTO a VALUES (1), (2)", "INSERT INTO b VALUES (1, 1), (2, 2)")
    configured.write(include=[f"{database}.*"], row_filter=[f"{database}.a: id > 1"], new_tables="snapshot")
    assert configured.reload().done
    wait_for(lambda: snapshot_done(configured.base["store"]), "the snapshot")
    execute(configured.server, database, "INSERT INTO b VALUES (3, 3)")
    events = configured.events()
    assert reads_of(events) == [("a", (2,)), ("b", (1, 1)), ("b", (2, 2))]
    change = next(i for i, event in enumerate(events) if event.entry is EntryType.HEARTBEAT)
    assert events[change].props["tables_in"] == f"{database}.b"
    assert events[change].props["tables_changed"] == f"{database}.a"
    assert all(i > change for i, event in enumerate(events) if event.type is EventType.READ)
    assert rows(events)[-1] == ("b", (3, 3))


def test_a_table_that_is_renamed_into_the_filter_is_read(mariadb: Server, database: str, tmp_path: Path) -> None:
    """Its rows were never streamed under the name that it had."""
    execute(mariadb, database, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE staged (id INT PRIMARY KEY)")
    made = Configured(mariadb, tmp_path, include=[f"{database}.a"], new_tables="snapshot")
    try:
        execute(mariadb, database, "INSERT INTO staged VALUES (7), (8)", "RENAME TABLE a TO aside, staged TO a")
        wait_for(lambda: snapshot_done(made.base["store"]), "the snapshot")
        execute(mariadb, database, "INSERT INTO a VALUES (9)")
        events = made.events()
        assert reads_of(events) == [("a", (7,)), ("a", (8,))]
        assert rows(events)[-1] == ("a", (9,))
    finally:
        made.run._stop.set()
        made.run._thread.join(30)
        remove(made.base["store"])


def test_the_command(configured: Configured, database: str) -> None:
    """It prints from where on the filters are in force; where nothing was changed, or none runs, it says why and fails."""
    store = configured.base["store"]
    configured.write(include=[f"{database}.b"])
    done = subprocess.run([*COMMAND, "reload", store], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 table comes in; 1 table leaves" in done.stdout
    configured.write(include=[f"{database}.b"], user="other")
    done = subprocess.run([*COMMAND, "reload", store], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "user needs a restart" in done.stderr
    configured.run.stop()
    assert "no producer of store" in command("reload", store, code=2)


def test_without_a_file_a_reload_is_refused(mariadb: Server, database: str) -> None:
    """It names what is missing."""
    with running(mariadb) as run:
        files = ControlFiles(Home.of(run.settings.store))
        files.ask(RELOAD)
        wait_for(files.answers, "an answer")
        (answer,) = files.answers()
    assert not answer.done
    assert "no configuration file" in answer.text
    assert not files.asked()


def test_canal_clients_do_not_see_a_change(configured: Configured, database: str) -> None:
    """Its event is no entry of Canal's, compiled or not."""
    configured.write(include=[f"{database}.b"])
    assert configured.reload().done
    (event,) = [event for event in configured.events() if event.entry is EntryType.HEARTBEAT]
    for values in Values:
        assert Encoder(values).encode(encode(event)) is None
        assert Encoder(values).encode_pure(encode(event)) is None


def test_a_damaged_request_is_answered(tmp_path: Path) -> None:
    """A request that cannot be read says so, and is in no other request's way."""
    files = ControlFiles(Home(tmp_path / "s"))
    good = files.ask(RELOAD)
    (tmp_path / "s" / "control-x.request").write_text("{")
    bad, found = files.asked()
    assert (found.id, found.problem, bad.id) == (good, "", "x")
    assert "cannot be read" in bad.problem


def test_a_start_with_nothing_put_yet_is_a_change_too(configured: Configured, database: str) -> None:
    """Readers that attached to the store before learn of it."""
    configured.run.stop()
    configured.write(include=[f"{database}.b"])
    configured.run = configured.start()
    execute(configured.server, database, "INSERT INTO b VALUES (2, 2)")
    assert [name for name, _ in rows(configured.events())] == ["filters", "b"]


def test_filters_of_several_sources(mariadb: Server, mysql: Server) -> None:
    """Each source of a store takes its own filters at the end of one of its transactions; the event says which source's they are. A start with other
    filters is a change, too."""
    servers, store = {"g1": mariadb, "g2": mysql}, store_name()
    included = {"g1": ("g1.a",), "g2": ("g2.a",)}
    for name, server in servers.items():
        tables = [f"CREATE TABLE {name}.{table} (id INT PRIMARY KEY)" for table in "ab"]
        execute(server, "mysql", f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}", *tables)

    def load() -> list[producer.Settings]:
        return [dataclasses.replace(one, include=included[one.name]) for one in settings_of(servers, store)]

    def start() -> RunningGroup:
        run = RunningGroup(load(), producer.Reloads(load(), load))
        wait_for(lambda: not run.alive or reads(store), "the group to read")
        return run

    def insert(number: int, g1: str, g2: str) -> None:
        for name, tables in (("g1", g1), ("g2", g2)):  # what passes is the last
            execute(servers[name], name, *[f"INSERT INTO {table} VALUES ({number})" for table in tables])

    run = start()
    try:
        insert(1, "ba", "ba")
        wait_for(lambda: not run.alive or caught_up(list(servers.values()), store), "the first rows")
        included["g2"] = ("g2.b",)
        answer = reload(store)
        assert answer.done
        assert answer.text.startswith("g1: nothing changed; g2: in force from ")
        insert(2, "ba", "ab")
        wait_for(lambda: not run.alive or caught_up(list(servers.values()), store), "the second rows")
        run.stop()
        included["g1"] = ("g1.b",)
        run = start()
        insert(3, "ab", "ab")
        wait_for(lambda: not run.alive or caught_up(list(servers.values()), store), "the third rows")
        with EventStore.attach(store) as attached:
            events = list(attached.peek(attached.oldest))
    finally:
        run._stop.set()
        run._thread.join(60)
        remove(store)
    found: dict[str, list[Any]] = {"g1": [], "g2": []}
    for event in events:
        if event.entry is EntryType.HEARTBEAT:
            assert event.ends_transaction
            assert dict(event.position.sources).keys() == found.keys()
            found[event.props["filters_of"]].append((event.props["tables_in"], event.props["tables_out"]))
        found["g1" if event.table is None else event.table.database] += [
            (event.table.table, row.after) for row in event.rows if event.table
        ]
    assert found["g1"] == [("a", (1,)), ("a", (2,)), ("g1.b", "g1.a"), ("b", (3,))]
    assert found["g2"] == [("a", (1,)), ("g2.b", "g2.a"), ("b", (2,)), ("b", (3,))]
