"""The live load: several connections that insert, update, delete, roll back and alter, at a rate, for a number of row changes.

Runs as a process of its own (``python -m scripts.shop.load '{"port": ...}'``) and writes one JSON line of counts to stdout every
quarter second. Row changes are counted as the server counts them (changed rows of committed statements), and the load stops at
exactly the number asked for, so that the rows in the ring can be compared with it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql

from scripts.shop.schema import DATABASE, LIVE_DDL
from scripts.shop.worker import CONNECTIONS, LARGEST, Worker

_REPORT: Final = 0.25  # seconds between two lines of counts


@dataclass
class Totals:
    """What all connections have done; written under `lock`."""

    rows: int = 0
    commits: int = 0
    rollbacks: int = 0
    statements: int = 0
    deadlocks: int = 0
    ddls: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def line(self, seconds: float) -> str:
        """Return the counts as one JSON line."""
        with self.lock:
            counts = {name: getattr(self, name) for name in ("rows", "commits", "rollbacks", "statements", "deadlocks", "ddls")}
            return json.dumps({**counts, "kinds": dict(self.by_kind), "seconds": round(seconds, 3)})


class Load:
    """The whole load: workers, their common totals, and the DDLs between them."""

    def __init__(self, server: dict[str, Any], *, rows: int, rate: float, seed: int) -> None:
        self.server = server
        self.target = rows
        self.rate = rate
        self.seed = seed
        self.totals = Totals()
        self.ddl_done = 0
        self.popular: list[int] = []  # keys of customers whom every connection changes
        self.stopped = threading.Event()
        self.failures: list[BaseException] = []

    def connect(self) -> pymysql.connections.Connection[Any]:
        """Return a connection of the shop, time zone UTC, no autocommit."""
        return pymysql.connect(
            **self.server,
            database=DATABASE,
            charset="utf8mb4",
            autocommit=False,
            init_command="SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = 5, sql_mode = 'STRICT_ALL_TABLES'",
        )

    @property
    def nearly_done(self) -> bool:
        """True when the transactions still open could go beyond the target, or after a failure."""
        return self.stopped.is_set() or self.totals.rows >= self.target - CONNECTIONS * LARGEST

    def run(self) -> None:
        """Run the load to its end. Raises what a connection raised."""
        began = time.monotonic()
        workers = [Worker(self, number) for number in range(CONNECTIONS)]
        threads = [threading.Thread(target=self._guarded, args=(worker.work,), daemon=True) for worker in workers]
        threads.append(threading.Thread(target=self._guarded, args=(self._alter,), daemon=True))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._report(began)
            threads[0].join(_REPORT) if threads[0].is_alive() else time.sleep(_REPORT)
        if not self.stopped.is_set():
            workers[0].finish(self.target - self.totals.rows)
        self._report(began)
        if self.failures:
            raise self.failures[0]

    def _alter(self) -> None:
        """Run each DDL when its part of the load is done, while the workers go on."""
        connection = self.connect()
        for share, sql in LIVE_DDL:
            while self.totals.rows < share * (self.target - CONNECTIONS * LARGEST):
                if self.stopped.wait(0.02):
                    return
            connection.cursor().execute(sql)
            self.ddl_done += 1
            with self.totals.lock:
                self.totals.ddls += 1

    def _guarded(self, function: Any) -> None:
        try:
            function()
        except BaseException as error:
            self.failures.append(error)
            self.stopped.set()

    def _report(self, began: float) -> None:
        print(self.totals.line(time.monotonic() - began), flush=True)


def main() -> None:
    """Run the load that the JSON argument describes."""
    options = json.loads(sys.argv[1])
    load = Load(options["server"], rows=options["rows"], rate=options["rate"], seed=options["seed"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    load.run()


if __name__ == "__main__":
    main()
