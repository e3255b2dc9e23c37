"""Links cut at random byte offsets: afterwards the store holds every row once."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from shmstore import EventStore
from tests.producer.proxy import CuttingProxy
from tests.producer.running import Follower, Mirror, running, select_table, wait_for, wait_for_position
from tests.servers.server import Server


def write_load(server: Server, database: str, rng: random.Random, stop: threading.Event, most: int) -> None:
    """Transactions of one row and of thousands, over two tables, some rolled back, until `stop`."""
    number = 0
    ids: list[int] = []
    with server.connect(autocommit=False, database=database) as connection, connection.cursor() as cursor:
        while not stop.is_set() and number < most:
            kept = list(ids)
            for _ in range(rng.choice((1, 1, 2, 3, 8))):
                what = rng.random()
                if what < 0.6 or not ids:
                    count = rng.choice((1, 1, 3, 40, 1500))
                    rows = [(number + i, rng.randrange(10**6), rng.randbytes(rng.randrange(60)).hex()) for i in range(count)]
                    cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
                    ids += [row[0] for row in rows]
                    number += count
                elif what < 0.85:
                    cursor.execute("UPDATE t SET a = a + 1 WHERE id >= %s LIMIT %s", (rng.choice(ids), rng.choice((1, 5, 800))))
                else:
                    gone = rng.sample(ids, min(len(ids), rng.choice((1, 3, 50))))
                    cursor.execute(f"DELETE FROM t WHERE id IN ({','.join(map(str, gone))})")
                    ids = [i for i in ids if i not in set(gone)]
            if rng.random() < 0.1:
                connection.rollback()
                ids = kept
            else:
                connection.commit()


def cut_run(server: Server, database: str, cuts: int, seed: int, **options: Any) -> None:
    rng = random.Random(seed)
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(200), KEY (a))")
    # a connection for questions takes some 2 KB, so that some cuts fall into the handshake, most into events
    with CuttingProxy(server.port, lambda: rng.choice((rng.randrange(200, 6_000), rng.randrange(4_000, 300_000)))) as proxy:
        options = {"port": proxy.port, "retry_first": 0.01, "retry_longest": 0.1, "tls": "disabled", **options}
        saved, proxy.budget = proxy.budget, lambda: None
        with running(server, **options) as run:
            follower = Follower(run.settings.store, Mirror(database))
            proxy.budget = saved
            proxy.hang_up()
            stop = threading.Event()
            writer = threading.Thread(target=write_load, args=(server, database, rng, stop, 10**9))
            writer.start()
            wait_for(lambda: proxy.cuts >= cuts or not run.alive or follower.error, f"{cuts} cuts (seed {seed})", 550)
            stop.set()
            writer.join()
            proxy.budget = lambda: None
            proxy.hang_up()
            if run.alive:
                with EventStore.attach(run.settings.store) as store:
                    wait_for_position(server, store)
            summary = run.stop()
            mirror = follower.finish()
            assert mirror.tables.get("t", {}) == select_table(server, database, "t")
            print(
                f"seed {seed}: {proxy.cuts} cuts, {summary}, {mirror.transactions} transactions, {mirror.parts} parts, {len(mirror.tables['t'])} rows"
            )
            assert summary.reconnects > 0
            assert mirror.parts > 0


@pytest.mark.server
@pytest.mark.timeout(120)
def test_no_row_is_lost_or_put_twice_over_cuts(any_server: Server, database: str, seed: int) -> None:
    """After 12 cuts at random bytes on each server, in handshakes, events and large transactions, the rows equal SELECT's."""
    cut_run(any_server, database, 12, seed, transaction_events=64, transaction_bytes=65536)


@pytest.mark.server
@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_row_is_lost_or_put_twice_over_200_cuts(any_server: Server, database: str, seed: int) -> None:
    """The same over 200 cuts on each server."""
    cut_run(any_server, database, 200, seed, transaction_events=64, transaction_bytes=65536)
