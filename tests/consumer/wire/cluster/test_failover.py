"""Canal's cluster client over several servers, each with a producer and a store of its own, and a real ZooKeeper between them."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.consumer.wire.cluster.hosts import ClusterClient, Host, wait_for
from tests.producer.proxy import CuttingProxy
from tests.servers.server import Server
from tests.servers.zookeeper import Zookeeper, zookeeper

pytestmark = pytest.mark.server
_numbers = itertools.count(1)


class Cluster:
    """Two hosts, a proxy to ZooKeeper for each, a table that rows are put into, and a client."""

    def __init__(
        self, hosts: list[Host], proxies: list[CuttingProxy], client: ClusterClient, insert: Callable[[int], None]
    ) -> None:
        self.hosts, self.proxies, self.client, self.insert = hosts, proxies, client, insert
        self.rows = 0

    def put(self, count: int) -> None:
        """Insert the next rows, a transaction each."""
        for _ in range(count):
            self.insert(self.rows)
            self.rows += 1

    def all_acked(self, seconds: float = 60) -> None:
        wait_for(lambda: self.client.acked() == self.rows - 1, f"{self.rows} rows acked, not {self.client.acked() + 1}", seconds)

    def active(self) -> int:
        """The host that is active; fails where more than one takes itself for it."""
        found = [number for number, host in enumerate(self.hosts) if host.active]
        return found[0] if len(found) == 1 else -1

    def wait_for_active(self, *, other_than: int = -1) -> int:
        wait_for(lambda: self.active() not in (-1, other_than), "a server is active")
        return self.active()


@contextmanager
def cluster(server: Server, database: str, running: Zookeeper, folder: Path, size: int = 4) -> Iterator[Cluster]:
    number = next(_numbers)
    with ExitStack() as stack:
        connection = stack.enter_context(closing(server.connect(database=database)))
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(40))")
        connection.commit()
        proxies = [stack.enter_context(CuttingProxy(running.port, lambda: None)) for _ in range(2)]
        hosts = []
        for name, proxy in zip("ab", proxies, strict=True):
            host = Host(
                folder / name, f"cluster-{os.getpid()}-{number}-{name}", f"orders{number}-{os.getpid()}", server, database
            )
            hosts.append(host)
            stack.callback(host.close)
            host.produce()
            host.serve(f"127.0.0.1:{proxy.port}")
            wait_for(lambda: hosts[0].active, "the first server is active")

        def insert(row: int) -> None:
            cursor.execute("INSERT INTO t VALUES (%s, %s)", (row, f"row {row}"))
            connection.commit()

        client = ClusterClient(f"127.0.0.1:{running.port}", hosts[0].destination, rf"{database}\.t", size, folder)
        stack.callback(client.close)
        yield Cluster(hosts, proxies, client, insert)


def times(host: Host, words: str) -> list[str]:
    """When the server said something."""
    return re.findall(rf"^(\S+ \S+) INFO shmstore.serve: destination \S+ is {words} here", host.log("serve"), re.MULTILINE)


def test_failover(mariadb: Server, database: str, tmp_path: Path) -> None:
    """The active server is killed, then the next one cut off from ZooKeeper, then ZooKeeper restarted: each time one server is active, after
    the one before it had stopped; the client continues there at its cursor, nothing is left out, and all comes in order."""
    with zookeeper() as own, cluster(mariadb, database, own, tmp_path) as running:
        client, hosts, proxies = running.client, running.hosts, running.proxies
        running.put(30)
        running.all_acked()
        # killed
        assert running.active() == 0
        running.put(10)
        hosts[0].signal("serve", signal.SIGKILL)
        (hosts[0].folder / "serve.log").write_text("")
        running.put(20)
        assert running.wait_for_active() == 1
        running.all_acked()
        # cut off from ZooKeeper: no good-bye, nothing passes
        hosts[0].serve(f"127.0.0.1:{proxies[0].port}")
        running.put(10)
        proxies[1].stalled.set()
        running.put(10)
        assert running.wait_for_active(other_than=1) == 0
        assert times(hosts[1], "no longer active")[-1] < times(hosts[0], "active")[-1]
        running.put(10)
        running.all_acked()
        proxies[1].stalled.clear()
        # ZooKeeper restarted: meanwhile no client is served
        own.kill()
        wait_for(lambda: running.active() == -1, "nobody is active")
        running.put(10)
        own.start()
        running.put(10)
        running.wait_for_active()
        running.all_acked()
        # A cursor is written at each ack: again come a batch or so at each change, and what is acked to one that is cut off, and not yet aware.
        assert client.again() <= 60


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_faults(any_server: Server, database: str, tmp_path: Path, seed: int) -> None:
    """Rows come all the time, and faults of every kind: servers killed, stopped, paused, cut off for a moment or for long, ZooKeeper
    restarted. Nothing is left out, all comes in order, and the client acks the last row in the end."""
    rng = random.Random(seed)
    with zookeeper() as own, cluster(any_server, database, own, tmp_path, size=8) as running:
        hosts, proxies = running.hosts, running.proxies
        faults = ["kill", "stop", "pause", "cut", "hang up", "zookeeper", "producer"]
        for round in range(30):
            fault, host = faults[round % len(faults)], rng.randrange(2)
            print(f"round {round}: {fault} of {host}, {running.rows} rows, acked {running.client.acked()}")
            running.put(rng.randrange(1, 60))
            if fault in ("kill", "stop"):
                hosts[host].signal("serve", signal.SIGKILL if fault == "kill" else signal.SIGTERM)
                (hosts[host].folder / "serve.log").write_text("")
                running.put(rng.randrange(1, 60))
                time.sleep(rng.random() * 4)
                hosts[host].serve(f"127.0.0.1:{proxies[host].port}")
            elif fault == "pause":
                hosts[host].signal("serve", signal.SIGSTOP)
                running.put(rng.randrange(1, 60))
                time.sleep(rng.random() * 5)
                hosts[host].signal("serve", signal.SIGCONT)
            elif fault == "cut":
                proxies[host].stalled.set()
                running.put(rng.randrange(1, 60))
                time.sleep(rng.random() * 5)
                proxies[host].stalled.clear()
            elif fault == "hang up":
                proxies[host].hang_up()
            elif fault == "producer":  # the host's store lags while its server may be active
                hosts[host].signal("produce", signal.SIGKILL)
                running.put(rng.randrange(1, 60))
                time.sleep(rng.random() * 2)
                hosts[host].produce()
            else:
                own.kill()
                running.put(rng.randrange(1, 60))
                time.sleep(rng.random() * 3)
                own.start()
            running.put(rng.randrange(1, 60))
            if rng.random() < 0.5:
                running.all_acked(120)
        running.all_acked(120)
        print(f"{running.rows} rows, {running.client.again()} came again")
