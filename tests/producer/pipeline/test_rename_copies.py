"""Copies of a table that is made of shards: equal to the shards' UNION ALL, while their DDLs come one by one and the producer is killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from shmstore import EntryType
from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.encoding.codec import encode
from tests.producer.running import events_of, execute, remove, running, store_name, wait_for
from tests.producer.snapping import killable
from tests.servers.server import Server

pytestmark = pytest.mark.server

SHARDS = (1, 2, 3)
# What every shard gets in turn, and what it takes back: with and without values for the rows that are there.
MIGRATIONS = (
    "ADD COLUMN a INT",
    "ADD COLUMN b INT NOT NULL DEFAULT 7",
    "DROP COLUMN a",
    "MODIFY v VARCHAR(200)",
    "ADD COLUMN c VARCHAR(9) DEFAULT 'x', ADD INDEX (b)",
    "CHANGE b bb BIGINT NOT NULL",
    "DROP COLUMN c",
)

Row = dict[str, Any]


def union(server: Server, database: str) -> list[Row]:
    """The rows of all shards, with where each is from."""
    found: list[Row] = []
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        for number in SHARDS:
            cursor.execute(f"SELECT * FROM orders_{number}")
            names = [column[0] for column in cursor.description]
            found += [{**dict(zip(names, row, strict=True)), "shard": f"{database}.orders_{number}"} for row in cursor.fetchall()]
    return sorted(found, key=lambda row: (row["shard"], row["id"]))


def copied(kind: str, path: Path, database: str) -> list[Row]:
    """The rows of a copy; none where it is not there yet, or the process that writes a DuckDB file has it open."""
    if kind == "sqlite":
        opened, table = partial(sqlite3.connect, f"file:{path}?mode=ro", uri=True), "orders"
    else:
        opened, table = partial(duckdb.connect, str(path), read_only=True), f"{database}.orders"
    with suppress(sqlite3.OperationalError, duckdb.IOException, duckdb.CatalogException), closing(opened()) as connection:
        cursor = connection.execute(f"SELECT * FROM {table} ORDER BY shard, id")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return []


@contextmanager
def replicating(store: str, state: Path, to: str) -> Iterator[None]:
    words = ["replicate", store, "--subscription", "copies", "--to", to, "--state", str(state)]
    with subprocess.Popen([sys.executable, "-m", "shmstore", *words]) as process:
        try:
            yield
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)


def step(choose: random.Random, run: Callable[[str], object], done: dict[int, int]) -> None:
    """One statement on one shard; `done` counts the migrations that each has."""
    number = choose.choice(SHARDS)
    table, kind, key = f"orders_{number}", choose.random(), choose.randint(1, 40)
    if kind < 0.08 and done[number] < len(MIGRATIONS) and done[number] <= min(done.values()):
        run(f"ALTER TABLE {table} {MIGRATIONS[done[number]]}")
        done[number] += 1
    elif kind < 0.09:
        run(f"TRUNCATE TABLE {table}")
    elif kind < 0.3:
        run(f"DELETE FROM {table} WHERE id = {key}")
    else:
        more = ", bb = 3" if done[number] >= 6 else ""
        values = f"id = {key}, v = 'v{choose.randint(1, 999)}'{more}"
        run(f"INSERT INTO {table} SET {values} ON DUPLICATE KEY UPDATE v = CONCAT(v, 'u')")


def follow(server: Server, database: str, folder: Path, seed: int, steps: int, kills: int, kind: str = "sqlite") -> None:
    """Change shards at random while they are copied; kill the producer so often; compare at the end."""
    choose, store, state, path = random.Random(seed), store_name(), folder / "state", folder / f"copies.{kind}"
    print("seed", seed)
    execute(server, database, *[f"CREATE TABLE orders_{n} (id INT PRIMARY KEY, v VARCHAR(100))" for n in SHARDS])
    execute(server, database, *[f"INSERT INTO orders_{n} VALUES (1, 'first'), (2, NULL)" for n in SHARDS])
    done = dict.fromkeys(SHARDS, 0)
    words = ["--rename", rf"{database}\.orders_\d+ -> {database}.orders", "--rename-origin", "shard", "--snapshot", "initial"]
    words += ["--include", f"{database}.*", "--retry-longest", "0.2"]
    places = sorted(choose.sample(range(steps), kills))
    with killable(server, store, state, *words) as first, ExitStack() as others:
        others.callback(remove, store, str(state))
        process = first
        wait_for(lambda: (state / store / "tables.jsonl").exists(), "the producer")
        with (
            replicating(store, state, f"{kind}:///{path}"),
            server.connect(database=database) as connection,
            connection.cursor() as cursor,
        ):
            for at in range(steps):
                step(choose, cursor.execute, done)
                if at in places:
                    process.kill()
                    process.wait()
                    process = subprocess.Popen(process.args)
                    others.callback(process.kill)
            for number in SHARDS:
                for migration in MIGRATIONS[done[number] :]:
                    cursor.execute(f"ALTER TABLE orders_{number} {migration}")
            wanted = union(server, database)
            deadline, found = time.monotonic() + 120, list[Row]()
            while process.poll() is None and found != wanted and time.monotonic() < deadline:
                found = copied(kind, path, database) or found  # none: it is being written
                time.sleep(0.2)
            assert process.poll() is None, "the producer ended"
            assert found == wanted


def test_a_copy_follows_shards(mariadb: Server, database: str, tmp_path: Path) -> None:
    follow(mariadb, database, tmp_path, seed=3, steps=30, kills=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
@pytest.mark.parametrize(
    "seed", [random.SystemRandom().randrange(1 << 20) for _ in range(int(os.environ.get("SHMSTORE_TEST_SEEDS", "5")))]
)
def test_a_copy_follows_shards_at_random(any_server: Server, database: str, tmp_path: Path, seed: int, kind: str) -> None:
    follow(any_server, database, tmp_path, seed, steps=400, kills=10, kind=kind)


def test_canal_clients_see_the_target(mariadb: Server, database: str) -> None:
    """Rows and statements have the target's name; what is to be read again they do not see."""
    execute(mariadb, database, "CREATE TABLE orders_1 (id INT PRIMARY KEY)", "CREATE TABLE orders_2 (id INT PRIMARY KEY)")
    with running(mariadb, include=(f"{database}.*",), rename=(rf"{database}\.orders_\d -> {database}.orders",)) as run:
        statements = (
            "INSERT INTO orders_1 VALUES (1)",
            "ALTER TABLE orders_2 ADD n INT",
            "TRUNCATE orders_1",
            "INSERT INTO orders_2 VALUES (2, 3)",
        )
        execute(mariadb, database, *statements)
        encoder, seen = Encoder(Values.CANAL), list[bytes]()
        for event in events_of(run, mariadb):
            if (entry := encoder.encode(encode(event))) is not None:
                seen.append(entry)
                assert event.entry is not EntryType.HEARTBEAT
    sent = b"".join(seen)
    assert f"ALTER TABLE `{database}`.`orders` ADD n INT".encode() in sent
    assert sent.count(b"orders") == 4, "the statement, and the table of three events"
    assert b"orders_1" not in sent
    assert b"TRUNCATE" not in sent
