"""What a run has put and met, and how its stream goes now: for its summary, for `shmstore stat` and for metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from shmstore import Position, StreamStat
from shmstore.clock import as_calendar_ms, boot_ms, calendar_ms

NOTICED = 0.1  # seconds that a put may take without having waited


class Summary(NamedTuple):
    """What a run has put and met."""

    transactions: int = 0  # transaction ends and DDLs
    events: int = 0
    rows: int = 0
    bytes: int = 0
    reconnects: int = 0
    skipped: int = 0  # events that could not be decoded, with on_error = skip
    blocked_seconds: float = 0.0  # waiting for free space in the ring
    position: Position | None = None  # how far the source was read
    account_statements: int = 0  # left out: they carry secrets


class Statistics:
    """The figures of one stream."""

    def __init__(self) -> None:
        self.transactions = self.events = self.rows = self.bytes = self.reconnects = 0
        self.connected = False
        self._heard = self._put_at = self._behind_ms = 0  # by the clock of the host, the first two
        self._blocked = 0.0
        self._pending = 0  # event time of what waits to be put
        self._began = 0.0
        self._source_booted: int | None = None  # when this host was started, by the source's calendar

    def set_clock(self, source_ms: int) -> None:
        """The source's calendar shows that now. How far behind it is goes by that one, whatever this host's is set to."""
        self._source_booted = source_ms - boot_ms()

    def _now(self) -> int:
        return calendar_ms() if self._source_booted is None else boot_ms() + self._source_booted

    def hear(self) -> None:
        """The source said something."""
        self._heard = boot_ms()

    def calm(self) -> None:
        """The source said that there is nothing more."""
        self._behind_ms = 0

    def begin(self, newest_ms: int) -> None:
        """A put begins, of events up to that time."""
        self._pending, self._began = newest_ms, time.monotonic()

    def waited(self) -> bool:
        """The put is over, or was given up; return whether it took a time that a reader may notice."""
        took = time.monotonic() - self._began
        self._pending = 0
        if took > NOTICED:
            self._blocked += took
        return took > NOTICED

    def put(self, *, transactions: int, events: int, rows: int, size: int, newest_ms: int) -> None:
        """Count what was put."""
        self.transactions += transactions
        self.events += events
        self.rows += rows
        self.bytes += size
        self._put_at = boot_ms()
        self._behind_ms = max(0, self._now() - newest_ms)

    def summary(self, skipped: int, position: Position | None, account_statements: int) -> Summary:
        """Return the counts so far."""
        put = (self.transactions, self.events, self.rows, self.bytes)
        return Summary(*put, self.reconnects, skipped, self._blocked, position, account_statements)

    def stat(self, skipped: int = 0) -> StreamStat:
        """Return how it goes."""
        behind, blocked = self._behind_ms, self._blocked
        if self._pending:
            behind = max(behind, self._now() - self._pending)
            blocked += time.monotonic() - self._began
        return StreamStat(
            connected=self.connected,
            heard_ms=as_calendar_ms(self._heard),
            put_ms=as_calendar_ms(self._put_at),
            behind_ms=behind,
            blocked_ms=int(blocked * 1000),
            reconnects=self.reconnects,
            transactions=self.transactions,
            skipped=skipped,
        )


def combined(streams: Iterable[StreamStat], own: StreamStat) -> StreamStat:
    """Return how several streams go that one producer puts, whose own figures are `own`."""
    if not (all_ := list(streams)):
        return own
    return StreamStat(
        connected=all(one.connected for one in all_),
        heard_ms=min(one.heard_ms for one in all_),
        put_ms=own.put_ms,
        behind_ms=max(own.behind_ms, *(one.behind_ms for one in all_)),
        blocked_ms=own.blocked_ms,
        reconnects=sum(one.reconnects for one in all_),
        transactions=sum(one.transactions for one in all_),
        skipped=sum(one.skipped for one in all_),
        filtered_events=sum(one.filtered_events for one in all_),
        filtered_rows=sum(one.filtered_rows for one in all_),
        purge_ms=min((one.purge_ms for one in all_ if one.purge_ms), default=0),
        paused_ms=min(one.paused_ms for one in all_),  # all are paused by the same file, each at the end of a transaction
    )
