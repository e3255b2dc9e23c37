"""producer/start/choose.py: a store that ends inside a transaction, whatever its last event is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmstore import EntryType, Event, EventStore
from shmstore.producer.transactions import buffer
from tests.producer.running import Mirror, Running, execute, remove, running, shape, wait_for_position
from tests.servers.server import Server

pytestmark = pytest.mark.server


class Killed(Exception):
    """The producer ends here, as if it were killed."""


@pytest.fixture(params=["compiled", "python"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with compiled code and without."""
    if request.param == "python":
        monkeypatch.setattr(buffer, "COMPILED", False)


def kills(server: Server, database: str, write: Callable[[int], None], most: int, **handlers: Any) -> Iterator[list[Event]]:
    """What the store holds in the end of the one transaction that `write` makes, where the producer dies behind its first put,
    in the next round behind its second, and so on."""
    number, killed = 0, True
    while killed:
        number, puts, killed = number + 1, 0, False

        def after(events: list[Event], number: int = number) -> None:
            nonlocal puts, killed
            puts += 1
            if puts == number:
                killed = True
                raise Killed

        options = {"include": (f"{database}.*",), "transaction_events": most}
        with running(server, after=after, **handlers, **options) as run, EventStore.attach(run.settings.store) as store:
            write(number)
            arrived = arrives(run, server, store)
            try:
                run.stop() if arrived else run.wait()
            except Killed:  # it may have been behind its last put
                again = Running(run.settings, **handlers)
                wait_for_position(server, store, put=True)
                again.stop()
            else:
                assert arrived, "it ended without a word"
            yield list(store.peek(store.oldest))
            remove(run.settings.store)


def arrives(run: Running, server: Server, store: EventStore) -> bool:
    """Whether the producer puts all that is logged before it dies."""
    while run.alive:
        try:
            wait_for_position(server, store, 0.05, put=True)
        except AssertionError:
            continue
        return run.alive
    return False


def ids(events: list[Event], database: str) -> list[int]:
    """The ids of the rows of one transaction, which must be whole and in order."""
    mirror = Mirror(database)
    mirror.apply(events)
    assert mirror.transactions == 1
    assert events[-1].entry is EntryType.END
    return [row.after[0] for event in events for row in event.rows]


@pytest.mark.usefixtures("code")
def test_a_part_that_ends_with_any_event(any_server: Server, database: str) -> None:
    """A producer that dies behind BEGIN, behind a DDL inside of a transaction or behind rows puts what follows, and nothing twice."""
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")

    def write(number: int) -> None:
        execute(any_server, database, f"CREATE TABLE u{number} (id INT PRIMARY KEY) SELECT id FROM t")

    made = list(kills(any_server, database, write, 1))
    assert len(made) == 5
    for events in made:
        assert shape(events) == ["BEGIN", "DDL", "INSERT", "END"]
        assert ids(events, database) == [1, 2]


@pytest.mark.usefixtures("code")
def test_a_handler_that_drops_the_last_event_of_a_part(any_server: Server, database: str) -> None:
    """What a handler leaves out is left out after a restart too, and what it lets through is put once, wherever the producer dies."""
    dropped = {0, 2, 3, 4, 6}

    def before(events: list[Event]) -> list[Event]:
        return [event for event in events if not dropped & {row.after[0] for row in event.rows}]

    def write(number: int) -> None:
        execute(any_server, database, *[f"INSERT INTO t{number} VALUES ({i})" for i in range(8)], "COMMIT", autocommit=False)

    execute(any_server, database, *[f"CREATE TABLE t{i} (id INT PRIMARY KEY)" for i in range(1, 8)])
    made = list(kills(any_server, database, write, 2, before=before))
    assert len(made) > 3
    for events in made:
        assert ids(events, database) == [1, 5, 7]


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("log", "other"),
    [
        ("on", {"exclude": ("{}.a",)}),
        ("on", {"column_exclude": ("{}.a.n",)}),
        ("off", {"row_filter": ("{}.a: id > 1",)}),
    ],
)
def test_other_options_inside_a_transaction(any_server: Server, database: str, log: str, other: dict[str, tuple[str]]) -> None:
    """A producer that is restarted inside a transaction, with filters that would have stored other events, reads it to its end with those that it
    had, whether the readers have acked what is stored or not; the next one passes the new filters."""
    execute(any_server, database, "CREATE TABLE a (id INT PRIMARY KEY, n INT)", "CREATE TABLE b (id INT PRIMARY KEY)")
    puts = 0

    def after(events: list[Event]) -> None:
        nonlocal puts
        puts += 1
        if puts == 3:
            raise Killed

    with (
        running(any_server, after=after, include=(f"{database}.*",), transaction_events=2, log=log) as run,
        EventStore.attach(run.settings.store) as store,
    ):
        with store.subscribe("r") as reader:
            both = [f"INSERT INTO {table} VALUES ({values})" for table, values in (("a", "1, 2"), ("b", "1"))]
            again = [f"INSERT INTO {table} VALUES ({values})" for table, values in (("a", "2, 3"), ("b", "2"))]
            execute(any_server, database, *both, *again, "INSERT INTO b VALUES (3), (4)", "COMMIT", autocommit=False)
            with pytest.raises(Killed):
                run.wait()
            stored = list(store.peek(store.oldest))
            assert shape(stored) == ["BEGIN", *["INSERT"] * 5]
            if log == "off":
                reader.get(timeout=0)
                reader.ack(store.newest)
        made = Running(dataclasses.replace(run.settings, **{name: (words[0].format(database),) for name, words in other.items()}))
        wait_for_position(any_server, store, put=True)
        more = list(store.peek(stored[-1].sequence + 1))
        assert shape(more)[0] == "END"
        assert more[0].props["rows"] == "6"
        execute(any_server, database, "INSERT INTO a VALUES (1000, 1)", "INSERT INTO a VALUES (0, 7)")
        wait_for_position(any_server, store, put=True)
        after_ = [record for event in store.peek(more[-1].sequence + 1) for _, record in event.records()]
        passed = {"exclude": [], "column_exclude": [{"id": 1000}, {"id": 0}], "row_filter": [{"id": 1000, "n": 1}]}
        assert after_ == passed[next(iter(other))]
        made.stop()
