"""Rows and bytes of each table, counted out of the store itself by the one that asks for the figures: so the producer pays nothing for them.

Plan. What a slot says of an event (its kind, rows, size and time) is not split by table; the table is in the payload, and the process that reads
that needs no subscription. So the process that shows the figures follows its stores, like `tail` without one, in a thread, twice a second,
and behind the ring in the log. The counts are its own: they begin when it does, as a counter of Prometheus may, and rise from there on,
over a store that was restored or recreated, too.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from shmstore import Batch, PositionNotFound, ShmStoreError, StoreCorrupt, StoreView
from shmstore.consumer.table_choice import tables_of
from shmstore.encoding.codec import decode, decode_schema, stored_head
from shmstore.event import EntryType, EventType

SECONDS: Final = 0.5  # between two looks
MOST_DDLS: Final = 100  # looked at of those that were passed over at once, the newest
MOST_TABLES: Final = 2000  # of a store; what more there are count together, as a table without a name
_EVENTS: Final = 4096  # looked at at a time
_BYTES: Final = 8 << 20
_ROWS: Final = int(EntryType.ROWS)
_DDL: Final = int(EntryType.DDL)
_OPERATIONS: Final = {
    int(type_): type_.name.lower() for type_ in (EventType.INSERT, EventType.UPDATE, EventType.DELETE, EventType.READ)
}

_log = logging.getLogger("shmstore.metrics")


class TableCounts:
    """What was put into one store, by table. One thread counts; any may read."""

    def __init__(self, epoch: int, first: int) -> None:
        """Count from the sequence `first` on."""
        self._epoch, self._next = epoch, first
        #: (database, table, operation) -> rows; (database, table) -> bytes, and the time of the last event in milliseconds since 1970.
        self.rows: Counter[tuple[str, str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.last_ms: dict[tuple[str, str], int] = {}
        #: (database, table) -> the last DDL of it: its time in milliseconds since 1970, what it does, and the statement.
        self.ddls: dict[tuple[str, str], tuple[int, str, str]] = {}
        #: Events that were gone, or damaged, before they were counted.
        self.uncounted = 0

    def follow(self, store: StoreView, most: int | None = None) -> None:
        """Count all that is there by now. Raises `StoreError`.

        Where there are more than `most` events, the newest of them stand for all: what they count is raised in proportion.
        """
        if store.epoch != self._epoch:
            self._epoch, self._next = store.epoch, store.oldest
        self._next = min(self._next, store.newest + 1)  # restored, without what was in memory alone
        weight = 1.0
        if most is not None and (new := store.newest + 1 - self._next) > most:
            weight, first = new / most, self._next
            self._next += new - most
            self._note_ddls(store, first, self._next - 1)
        for batch in store.read(self._next, limit_events=_EVENTS, limit_bytes=_BYTES, gone=self._pass, damaged=self._pass):
            self._count(batch, weight)
            self._next = batch.last + 1

    def _pass(self, first: int, last: int) -> None:
        self.uncounted += last + 1 - first
        self._next = last + 1

    def _note_ddls(self, store: StoreView, first: int, last: int) -> None:
        """Take note of the DDLs among events whose rows are not counted one by one: their slots tell which those are."""
        with suppress(PositionNotFound, StoreCorrupt):
            kinds = store.slots(max(first, store.oldest), last)["entry"]
            for i in (kinds == _DDL).nonzero()[0][-MOST_DDLS:].tolist():
                for payload in store.peek(last + 1 - len(kinds) + i, limit_events=1).payloads():
                    self._note_ddl(payload)

    def _count(self, batch: Batch, weight: float = 1.0) -> None:
        slots: Any = batch.slots
        facts = zip(*(slots[field].tolist() for field in ("entry", "type", "rows", "size", "time")), strict=True)
        for (entry, type_, rows, size, time_ms), payload in zip(facts, batch.payloads(), strict=True):
            if entry == _DDL:
                self._note_ddl(payload)
            if entry != _ROWS:
                continue
            try:
                schema = stored_head(payload)[1]
                table = _name(schema) if schema is not None else None
            except StoreCorrupt:
                self.uncounted += 1
                continue
            if table is None:  # logged as a statement: no rows are known
                continue
            if table not in self.last_ms and len(self.last_ms) >= MOST_TABLES:
                table = "", ""
            self.rows[*table, _OPERATIONS.get(type_, "other")] += rows if weight == 1.0 else round(rows * weight)
            self.bytes[table] += size if weight == 1.0 else round(size * weight)
            self.last_ms[table] = time_ms

    def _note_ddl(self, payload: bytes | memoryview) -> None:
        try:
            event = decode(payload)
        except StoreCorrupt:
            self.uncounted += 1
            return
        for name in tables_of(event):
            database, _, table = name.partition(".")
            if table and ((database, table) in self.ddls or len(self.ddls) < MOST_TABLES):
                self.ddls[database, table] = event.time_ms, event.type.name.lower(), event.sql


@lru_cache(maxsize=8192)
def _name(schema: bytes) -> tuple[str, str]:
    table = decode_schema(schema)
    return table.database, table.table


class Counting:
    """Follows stores in a thread, from `start` to `close`. `names` gives those that are to be followed at a moment, `most` is how many events
    of a store are looked at each time: all, or so many that are a sample of all, so that looking slows no process down."""

    def __init__(self, names: Callable[[], Iterable[str]], most: int | None = None) -> None:
        self._names, self._most = names, most
        #: By store. Those that are there when the counting begins count from then on, those that come later from their first event.
        self.counts: dict[str, TableCounts] = {}
        self._stores: dict[str, StoreView] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tables", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._look(late=False)
        self._thread.start()

    def close(self) -> None:
        """End, and give up the stores."""
        self._ended.set()
        self._thread.join()
        for store in self._stores.values():
            store.close()

    def _run(self) -> None:
        while not self._ended.wait(SECONDS):
            try:
                self._look(late=True)
            except Exception:  # figures are no reason to end; the next look tries again
                _log.exception("tables could not be counted")

    def _look(self, *, late: bool) -> None:
        names = set(self._names())
        for name in self._stores.keys() - names:
            self._stores.pop(name).close()
        for name in names:
            try:
                self._follow(name, late=late)
            except ShmStoreError:  # missing, or removed just now: /metrics says so, and it may come back
                with suppress(KeyError):
                    self._stores.pop(name).close()

    def _follow(self, name: str, *, late: bool) -> None:
        store = self._stores.get(name)
        if store is None:
            store = self._stores[name] = StoreView.attach(name, restore=False)
        elif store.lost:
            store.close()
            store = self._stores[name] = store.attach_again(restore=False)
        counts = self.counts.get(name)
        if counts is None:
            counts = self.counts[name] = TableCounts(store.epoch, store.oldest if late else store.newest + 1)
        counts.follow(store, self._most)
