"""What the connections of the live load share: what is asked for, how far it is, and the keys that all may change."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql

from scripts.shop.schema import DATABASE

CONNECTIONS: Final = 4
LARGEST: Final = 40  # more row changes than any transaction makes


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


class SharedLoad:
    """One load, as all its connections see it."""

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
