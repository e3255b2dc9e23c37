"""A producer's first start at places that others left: cursors as Canal's, inside of transactions, before the schema history."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmstore import EventStore, Position, PositionNotFound, producer
from shmstore.cli.named_store import subscribe_at
from tests.producer.running import end_of_log, execute, remove, running, store_name, wait_for_position
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server


def _events(server: Server) -> list[tuple[str, int, int, str]]:
    """(type, begin, end, text) of each event in the server's newest file."""
    file, _ = end_of_log(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}'")
        return [(str(row[2]), int(row[1]), int(row[4]), str(row[5])) for row in cursor.fetchall()]


def _read(store: str, name: str, state: str) -> list[int]:
    """The ids in the rows that a subscription has not acked."""
    with EventStore.attach(store, state=state) as attached:
        subscription = attached.subscribe(name)
        found = []
        while batch := subscription.get(timeout=0):
            found += [int(after["id"]) for event in batch for _, after in event.records()]
            subscription.ack(batch)
        subscription.close()
    return found


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_cursors_inside_of_transactions(flavor: str, tmp_path: Path) -> None:
    """Two clients at the starts of two commits, one at that of a DDL, before the store is there: each gets every row behind its own, once."""
    level = "NO_LOG" if flavor == "mariadb" else "MINIMAL"
    with start_server(flavor, options=[f"--binlog-row-metadata={level}"]) as server:
        execute(server, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, a VARCHAR(9))")
        execute(
            server,
            "d",
            *(f"INSERT INTO t VALUES ({i}, 'é')" for i in range(4)),
            "CREATE TABLE u (id INT)",
            "INSERT INTO t VALUES (4, '')",
        )
        file, _ = end_of_log(server)
        events = _events(server)
        commits = [begin for kind, begin, _, text in events if kind == "Xid" or text == "COMMIT"]
        (ddl,) = [begin for kind, begin, _, text in events if kind == "Query" and "CREATE TABLE u" in text]
        store, state = store_name(), str(tmp_path)
        places = {"canal-1": commits[1], "canal-2": commits[2], "canal-3": ddl}
        for name, offset in places.items():
            assert not subscribe_at(store, name, Position(file, offset), state=state)
        options = {"store": store, "state": state, "schema_history": "now"}
        with running(server, **options):
            with EventStore.attach(store, state=state) as attached:
                wait_for_position(server, attached, put=True)
                assert {stat.name for stat in attached.subscriptions()} == set(places)
            assert _read(store, "canal-1", state) == [2, 3, 4]
            assert _read(store, "canal-2", state) == [3, 4]
            assert _read(store, "canal-3", state) == [4]
            execute(server, "d", "BEGIN", "INSERT INTO t VALUES (5, '')", "INSERT INTO t VALUES (6, '')", "COMMIT")
            with EventStore.attach(store, state=state) as attached:
                wait_for_position(server, attached, put=True)
            assert _read(store, "canal-2", state) == [5, 6]
            remove(store, state)
        _, second = [begin for kind, begin, _, _ in _events(server) if kind.startswith("Write_rows")][-2:]
        with pytest.raises(
            PositionNotFound, match=f"{file}:{second} is between the changes of a transaction: start at its beginning"
        ):
            producer.run(
                producer.Settings(**options | {"store": store_name(), "port": server.port, "start": f"{file}:{second}"}),
                lambda: False,
            )
