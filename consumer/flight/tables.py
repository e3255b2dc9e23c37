"""The tables of a store, and their rows as Arrow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from shmstore import SchemaUnknown, StoreView, TableSchema
from shmstore.consumer.remote import events
from shmstore.consumer.table_schemas import defined, schemas
from shmstore.encoding.codec import decode_schema


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
        return {name: one.schema for name, one in defined(store).items() if one.schema is not None} or self._of_rows(store)

    def column(self, store: StoreView, table: str) -> TableSchema:
        """The newest columns of one table. Raises `SchemaUnknown`."""
        definition = defined(store).get(table)
        found = self._of_rows(store).get(table) if definition is None else definition.schema
        if found is None:
            names = ", ".join(sorted({**self._of_rows(store), **defined(store)})[:5]) or "none yet"
            raise SchemaUnknown(f"store {store.name!r} has no row of {table}, so its columns are not known; it knows {names}")
        return found

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


def read_events(store: StoreView, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield events `first` to `last` as they are. Raises `PositionNotFound`."""
    for batch in store.read(first, last):
        yield from events.pack(events.RemoteEvents.of(batch))


def read_rows(store: StoreView, first: int, last: int, table: TableSchema, options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `table` in events `first` to `last`. Raises `PositionNotFound`, and as `Batch.to_arrow`."""
    for batch in store.read(first, last):
        yield from batch.to_arrow(table, **options).to_batches()
