"""Shards that are one table to readers: their rows, their DDLs, and what is refused, from real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmstore import EntryType, Event, EventStore, SchemaUnknown, UnsupportedEvent, producer
from tests.producer.running import events_of, execute, running, wait_for_position
from tests.producer.snapping import copied
from tests.servers.server import Server

pytestmark = pytest.mark.server

COLUMNS = "(id INT PRIMARY KEY, v VARCHAR(20))"


def rule(database: str) -> tuple[str, ...]:
    return (rf"{database}\.orders_(\d+) -> {database}.orders",)


def shards(server: Server, database: str, *numbers: int, columns: str = COLUMNS) -> None:
    execute(server, database, *[f"CREATE TABLE orders_{number} {columns}" for number in numbers])


def seen(events: list[Event]) -> list[Any]:
    """What readers see: rows with the columns' names, statements, and tables whose rows have to be read again."""
    found: list[Any] = []
    for event in events:
        if event.table is not None:
            for row in event.rows:
                found.append((event.table.table, dict(zip(event.table.names, row.after or row.before or (), strict=True))))
        elif event.entry is EntryType.DDL:
            found.append((event.type.name, event.props["table"], event.sql))
        elif event.entry is EntryType.HEARTBEAT:
            found.append(("reread", event.props["tables_changed"], event.props["statement"]))
    return found


def test_rows_come_under_the_target(any_server: Server, database: str) -> None:
    """Rows of all shards have the target's name and no other; filters know the server's names."""
    shards(any_server, database, 1, 2, 3)
    execute(any_server, database, "CREATE TABLE other (id INT PRIMARY KEY)")
    options = {"rename": rule(database), "exclude": (f"{database}.orders_3",), "row_filter": (f"{database}.orders_2: id < 10",)}
    with running(any_server, include=(f"{database}.*",), **options) as run:
        execute(
            any_server,
            database,
            *("INSERT INTO orders_1 VALUES (1, 'a'), (2, 'b')", "INSERT INTO orders_2 VALUES (3, 'c'), (30, 'no')"),
            *("INSERT INTO orders_3 VALUES (4, 'no')", "INSERT INTO other VALUES (5)", "DELETE FROM orders_1 WHERE id = 2"),
        )
        events = events_of(run, any_server)
    rows = [event for event in events if event.table is not None]
    assert seen(rows) == [
        *[("orders", {"id": id_, "v": v}) for id_, v in ((1, "a"), (2, "b"), (3, "c"))],
        *(("other", {"id": 5}), ("orders", {"id": 2, "v": "b"})),
    ]
    assert {event.table.database for event in rows if event.table is not None} == {database}


def test_the_origin_is_a_part_of_the_key(any_server: Server, database: str) -> None:
    """Rows with the same key in two shards are two rows, each with the table that it is from."""
    shards(any_server, database, 1, 2)
    with running(any_server, rename=rule(database), rename_origin="src") as run:
        execute(any_server, database, "INSERT INTO orders_1 VALUES (1, 'a')", "INSERT INTO orders_2 VALUES (1, 'b')")
        execute(any_server, database, "UPDATE orders_2 SET v = 'c'")
        rows = [event for event in events_of(run, any_server) if event.table is not None]
    assert seen(rows) == [
        ("orders", {"id": 1, "v": "a", "src": f"{database}.orders_1"}),
        ("orders", {"id": 1, "v": "b", "src": f"{database}.orders_2"}),
        ("orders", {"id": 1, "v": "c", "src": f"{database}.orders_2"}),
    ]
    assert all(event.table is not None and event.table.primary_key == (0, 2) for event in rows)
    update = rows[-1].rows[0]
    assert update.before == (1, "b", f"{database}.orders_2")


def test_a_ddl_that_each_shard_gets_is_put_once(any_server: Server, database: str) -> None:
    """The first shard's is the target's. Until the second one has it too its rows come as the target is, and then nothing need be read again."""
    shards(any_server, database, 1, 2)
    with running(any_server, include=(f"{database}.*",), rename=rule(database)) as run:
        execute(
            any_server,
            database,
            "INSERT INTO orders_2 VALUES (1, 'a')",
            "ALTER TABLE orders_1 ADD COLUMN n INT",
            "INSERT INTO orders_1 VALUES (2, 'b', 5)",
            "INSERT INTO orders_2 VALUES (3, 'c')",
            f"ALTER TABLE {database}.`orders_2` ADD COLUMN n INT",
            "INSERT INTO orders_2 VALUES (4, 'd', 6)",
            "ALTER TABLE orders_1 DROP COLUMN v",
            "INSERT INTO orders_2 VALUES (5, 'e', 7)",
            "ALTER TABLE orders_2 DROP COLUMN v",
            "CREATE TABLE orders_3 (id INT PRIMARY KEY, n INT)",
            "INSERT INTO orders_3 VALUES (6, 8)",
        )
        events = events_of(run, any_server)
    assert seen(events) == [
        ("orders", {"id": 1, "v": "a"}),
        ("ALTER", "orders", f"ALTER TABLE `{database}`.`orders` ADD COLUMN n INT"),
        ("orders", {"id": 2, "v": "b", "n": 5}),
        ("orders", {"id": 3, "v": "c", "n": None}),
        ("orders", {"id": 4, "v": "d", "n": 6}),
        ("ALTER", "orders", f"ALTER TABLE `{database}`.`orders` DROP COLUMN v"),
        ("orders", {"id": 5, "n": 7}),
        ("orders", {"id": 6, "n": 8}),
    ]


@pytest.mark.parametrize("at_once", [False, True])
def test_what_readers_cannot_follow_they_read_again(any_server: Server, database: str, at_once: bool) -> None:
    """TRUNCATE, DROP and RENAME of a shard, and a DDL that gives values to rows which came before it, are seen as tables to be read again.

    With `at_once` the server runs them without a pause, so that it may have dropped a table by the time the producer asks for it.
    """
    shards(any_server, database, 1, 2, 3)
    with running(any_server, include=(f"{database}.*",), rename=rule(database)) as run:
        statements = (
            *("TRUNCATE TABLE orders_1", "ALTER TABLE orders_1 ADD COLUMN n INT NOT NULL DEFAULT 7"),
            *("ALTER TABLE orders_2 ADD COLUMN n INT NOT NULL DEFAULT 7", "INSERT INTO orders_3 VALUES (1, 'a')"),
            *("ALTER TABLE orders_3 ADD COLUMN n INT NOT NULL DEFAULT 7", "RENAME TABLE orders_2 TO gone", "DROP TABLE orders_3"),
        )
        for group in [statements] if at_once else [[one] for one in statements]:
            execute(any_server, database, *group)
            with EventStore.attach(run.settings.store) as attached:
                wait_for_position(any_server, attached)
        found = seen(events_of(run, any_server))
    target = f"{database}.orders"
    assert found[:4] == [
        ("reread", target, statements[0]),
        ("ALTER", "orders", f"ALTER TABLE `{database}`.`orders` ADD COLUMN n INT NOT NULL DEFAULT 7"),
        ("orders", {"id": 1, "v": "a", "n": None}),
        ("reread", target, statements[4]),
    ]
    # the RENAME brings in `gone`, a table of its own, so it is put
    assert found[4] == ("RENAME", "orders_2", statements[5])
    assert found[5][:2] == ("reread", target)
    assert len(found) == 6


def test_shards_that_differ_are_refused(any_server: Server, database: str) -> None:
    """At the start with both named; a new one by its first row."""
    shards(any_server, database, 1)
    shards(any_server, database, 2, columns="(id BIGINT PRIMARY KEY, v VARCHAR(20))")
    with (
        pytest.raises(
            SchemaUnknown, match=rf"{database}.orders_1 and {database}.orders_2 differ, .* id is int not null and bigint not null"
        ),
        running(any_server, rename=rule(database)),
    ):
        pass
    execute(any_server, database, "DROP TABLE orders_2")
    with running(any_server, include=(f"{database}.*",), rename=rule(database)) as run:
        shards(any_server, database, 2, columns="(id INT PRIMARY KEY, other INT)")
        execute(any_server, database, "INSERT INTO orders_1 VALUES (1, 'a')", "INSERT INTO orders_2 VALUES (1, 1)")
        with pytest.raises(
            UnsupportedEvent, match=rf"{database}.orders_2 differs from {database}.orders_1, .* other is int and not there"
        ):
            run.wait()


def test_a_target_that_is_a_table_is_refused(any_server: Server, database: str) -> None:
    shards(any_server, database, 1)
    execute(any_server, database, "CREATE TABLE orders (id INT PRIMARY KEY)")
    with pytest.raises(SchemaUnknown, match="the server has a table of that name"), running(any_server, rename=rule(database)):
        pass


def test_a_snapshot_is_one_of_the_target(any_server: Server, database: str, tmp_path: Path) -> None:
    """Of all shards together one event says that it begins and one that it ends, also where a shard has no rows."""
    shards(any_server, database, 1, 2, 3)
    execute(any_server, database, *[f"INSERT INTO orders_{n} VALUES (1, 'a'), (2, 'b')" for n in (1, 2)])
    options: dict[str, Any] = {"rename": rule(database), "rename_origin": "src", "snapshot": "initial", "state": str(tmp_path)}
    with running(any_server, include=(f"{database}.*",), **options) as run:
        copy = copied(run, any_server)
        parts = [event.props.get("snapshot_part") for event in events_of(run, any_server) if event.table is not None]
        assert copy.tables["orders"] == {
            (id_, f"{database}.orders_{n}"): (id_, v, f"{database}.orders_{n}") for n in (1, 2) for id_, v in ((1, "a"), (2, "b"))
        }
        assert [part for part in parts if part] == ["first", "last"]
        assert parts[0] == "first"
        assert parts[-1] == "last"
        # one shard asked for is the whole target, whichever name it is asked by
        for name in (f"{database}.orders_2", f"{database}.orders"):
            producer.request_snapshot(run.settings.store, name, state=str(tmp_path))
            copied(run, any_server)
            status = producer.snapshot_status(run.settings.store, state=str(tmp_path))
            assert status is not None
            assert [task.table for task in status.tasks] == ["orders_1", "orders_2", "orders_3"]
