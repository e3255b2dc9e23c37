"""client_filters = replace: a client of canal's protocol decides what is read, as with Canal; at the end of a transaction, and across restarts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore import EntryType, EventStore
from shmstore.consumer.wire import CanalSettings
from shmstore.home.home import Home
from shmstore.home.reader_state import filters_kept, keep_filter
from shmstore.producer.pipeline.client_filters import ClientFilters
from shmstore.producer.settings import Settings
from tests.consumer.wire.harness import RawClient, ServerThread, ids
from tests.producer.running import Running, events_of, execute, running, wait_for, wait_for_position
from tests.servers.server import Server


def joined(home: Home, **options: Any) -> tuple[str, ...]:
    return ClientFilters(home, logging.getLogger(), on=True).joined(Settings(store="s", **options)).include


def test_which_tables(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those of include, and of every client; each pattern once; all where there is no include. What cannot be read is named, and nothing of it
    is read."""
    home = Home(tmp_path / "s")
    assert joined(home, include=("a.*",)) == ("a.*",)
    keep_filter(home, "canal-1", ["b\\.t", "c\\..*"])
    keep_filter(home, "canal-2", ["b\\.t", "d\\.(x|y{1,2}),?"])
    assert joined(home, include=("a.*",)) == (
        "a.*",
        "regex:b\\.t",
        "regex:c\\..*",
    )  # what our grammar reads as two is not guessed
    assert "canal-2" in caplog.text
    assert joined(home) == ()
    matches = Settings(store="s", include=joined(home, include=("a.*",)), exclude=("c.no",)).table_filter().passes
    assert [matches(*name) for name in (("a", "x"), ("B", "T"), ("b", "tt"), ("c", "yes"), ("c", "no"))] == [
        True,
        True,
        False,
        True,
        False,
    ]
    keep_filter(home, "canal-1", [])
    keep_filter(home, "canal-2", ["x" * 20000])
    keep_filter(home, "canal-3", ["y" * 20000])
    assert joined(home, include=("a.*",)) == ("a.*",)
    assert "too long together" in caplog.text
    assert ClientFilters(home, logging.getLogger(), on=False).joined(Settings(store="s", include=("a.*",))).include == ("a.*",)


@pytest.fixture
def narrow(mariadb: Server, database: str) -> Iterator[Running]:
    execute(mariadb, database, *(f"CREATE TABLE {table} (id INT PRIMARY KEY)" for table in "abc"))
    include, exclude = (f"{database}.a",), (f"{database}.c",)
    with running(mariadb, include=include, exclude=exclude, client_filters="replace", new_tables="snapshot") as run:
        yield run


@pytest.mark.server
def test_a_client_has_tables_read(mariadb: Server, database: str, narrow: Running) -> None:
    """The tables that its filter names, but for those left out, come in while the producer runs, with the rows that are there; a restart reads them
    from its start on; they leave with the client."""
    name = narrow.settings.store
    execute(mariadb, database, "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)", "INSERT INTO c VALUES (1)")
    serving = ServerThread(CanalSettings(port=0, stores=(f"example={name}",)))
    try:
        with EventStore.attach(name) as store:
            wait_for_position(mariadb, store, put=True)
            client = RawClient(serving.port, "example")
            assert client.subscribe(f"{database}\\.(b|c)").error_code == 0
            assert list(filters_kept(store.home).values()) == [[f"{database}\\.(b|c)"]]
            wait_for(lambda: changes(narrow, mariadb) == [(f"{database}.b", "")], "the filter")
            execute(mariadb, database, "INSERT INTO b VALUES (2)", "INSERT INTO c VALUES (2)", "INSERT INTO a VALUES (2)")
            found = list[int]()
            while not {1, 2}.issubset(found):  # a row that was there is read, too, in its own time
                answer = client.get(100, timeout=200, unit=2)
                found += ids(answer)
                if answer.batch_id > 0:
                    client.ack(answer.batch_id)
            assert set(found) == {1, 2}
            narrow.stop()
            execute(mariadb, database, "INSERT INTO b VALUES (3)")
            again = Running(narrow.settings)
            try:
                wait_for(lambda: not again.alive or store.stat().stream.connected, "the producer to read again")
                wait_for_position(mariadb, store, put=True)
                assert len(changes(narrow, mariadb)) == 1  # it was in force
                client.unsubscribe()
                wait_for(lambda: changes(narrow, mariadb) == [(f"{database}.b", ""), ("", f"{database}.b")], "the filter to go")
                assert filters_kept(store.home) == {}
                execute(mariadb, database, "INSERT INTO b VALUES (4)")
                rows = {
                    (event.table.table, row.after[0])
                    for event in events_of(again, mariadb)
                    if event.table
                    for row in event.rows
                    if row.after
                }
            finally:
                again.stop()
            client.close()
    finally:
        serving.stop()
    assert rows == {("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3)}


def changes(run: Running, server: Server) -> list[tuple[str, str]]:
    """The tables that came in and left, of each change."""
    found = [event.props for event in events_of(run, server) if event.entry is EntryType.HEARTBEAT]
    return [(props.get("tables_in", ""), props.get("tables_out", "")) for props in found]
