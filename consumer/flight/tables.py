"""The tables of a store, and their rows as Arrow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from shmstore import SchemaUnknown, StoreError, StoreView, TableSchema
from shmstore.consumer.remote import events
from shmstore.consumer.row_schemas import READ_BYTES, schemas
from shmstore.encoding.codec import decode_schema
from shmstore.home.definitions import DefinitionsFile, definitions_in, position_in, sources_of


class Tables:
    """The tables of one store, each with its newest columns: as its producer has defined them, and otherwise as their rows say.

    Rows are looked at only for what is not defined: in a store that is fed by something else, and of tables that are no more. All events are
    looked at once, the newest first; then only what came since.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = 0
        self._newest = -1  # up to where it was looked
        self._columns: dict[str, TableSchema] = {}

    def columns(self, store: StoreView) -> dict[str, TableSchema]:
        """The tables, by name (``database.table``)."""
        return _defined(store) or self._of_rows(store)

    def column(self, store: StoreView, table: str) -> TableSchema:
        """The newest columns of one table. Raises `SchemaUnknown`."""
        defined = _defined(store)
        if table in defined:
            return defined[table]
        known = self._of_rows(store)
        if table not in known:
            names = ", ".join(sorted({**known, **defined})[:5]) or "none yet"
            raise SchemaUnknown(f"store {store.name!r} has no row of {table}, so its columns are not known; it knows {names}")
        return known[table]

    def _of_rows(self, store: StoreView) -> dict[str, TableSchema]:
        with self._lock:
            if store.epoch != self._epoch:
                self._epoch, self._newest, self._columns = store.epoch, -1, {}
            newest = store.newest
            found: dict[str, TableSchema] = {}
            for schema in map(decode_schema, schemas(store, self._newest + 1, newest)):
                found.setdefault(f"{schema.database}.{schema.table}", schema)
            self._newest = newest
            self._columns = {**self._columns, **found}
            return self._columns


def _defined(store: StoreView) -> dict[str, TableSchema]:
    """The tables as the store's producer defined them; of several sources the first that has such a table."""
    found: dict[str, TableSchema] = {}
    end = store.last_ack_point()
    home = store.home
    for source in sources_of(home):
        with suppress(StoreError):  # not ours to read: then rows say it
            for (database, table), one in definitions_in(DefinitionsFile(home, source), position_in(end, source)).items():
                if one.schema is not None:
                    found.setdefault(f"{database}.{table}", one.schema)
    return found


def read_events(store: StoreView, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield events `first` to `last` as they are. Raises `PositionNotFound`."""
    while first <= last:
        batch = store.peek(first, limit_events=last - first + 1, limit_bytes=READ_BYTES)
        if not batch:
            return
        yield from events.pack(events.Events.of(batch))
        first = batch.last + 1


def read_rows(store: StoreView, first: int, last: int, table: TableSchema, options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `table` in events `first` to `last`. Raises `PositionNotFound`, and as `Batch.to_arrow`."""
    while first <= last:
        batch = store.peek(first, limit_events=last - first + 1, limit_bytes=READ_BYTES)
        if not batch:
            return
        yield from batch.to_arrow(table, **options).to_batches()
        first = batch.last + 1
