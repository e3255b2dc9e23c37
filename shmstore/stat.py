"""What can be seen of a store from outside, at one moment."""

from __future__ import annotations

from typing import NamedTuple

from shmstore.event import Position
from shmstore.ring import Cursor


class SubscriptionStat(NamedTuple):
    """One subscription. Lags count from its ack to the put cursor; `lag_ms` is event time, 0 when nothing waits."""

    name: str
    state: str
    get: Cursor
    ack: Cursor
    owner_pid: int
    alive: bool
    heartbeat_ms: int
    lag_events: int
    lag_bytes: int
    lag_rows: int
    lag_ms: int
    ack_point: int | None


class StoreStat(NamedTuple):
    """One store. Times are milliseconds since 1970 UTC; `free_events` and `free_bytes` are what the next put may take."""

    name: str
    path: str | None
    epoch: int
    created_ms: int
    capacity: int
    memory_unit: int
    limit_bytes: int
    batch_mode: str
    ddl_isolation: bool
    lag: str
    checksum: bool
    segment_bytes: int
    put: Cursor
    oldest: int
    newest: int
    free_events: int
    free_bytes: int
    producer_pid: int
    producer_alive: bool
    heartbeat_ms: int
    source: str
    source_position: Position | None
    subscriptions: tuple[SubscriptionStat, ...]
