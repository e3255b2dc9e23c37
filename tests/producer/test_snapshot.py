"""Snapshots on real servers: what a reader has that keeps rows by key is what SELECT shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import producer
from shmstore import EventType
from tests.producer.running import events_of, execute, running, wait_for
from tests.producer.snapping import Load, copied, fill, finished, select, states
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


def test_an_initial_snapshot_under_load_ends_equal_to_select(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Inserts, updates, deletes, key changes, rollbacks and a DDL go on while the table is read, chunk by chunk."""
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
    assert {task.table: (task.place.rows, task.place.chunks) for task in progress.tasks} == {
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
        rows = ", ".join(f"({values.format(i=i)})" for i in range(1, 41))
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
