"""The columns of a store's tables: as its producer has defined them, else as its rows say, each of which carries those that it was written with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from shmstore import StoreError, StoreView
from shmstore.encoding.codec import decode_schema, stored_head
from shmstore.event import EntryType, TableSchema
from shmstore.home.definitions import Definition, DefinitionsFile, definitions_in, position_in, sources_of

LOOK: Final = 1 << 12  # events looked at at a time


def defined(store: StoreView) -> dict[str, Definition]:
    """Return the tables as they are defined where the store ends, by name (``database.table``); of several sources the first that has such a table."""
    found: dict[str, Definition] = {}
    end, home = store.last_ack_point(), store.home
    for source in sources_of(home):
        with suppress(StoreError):  # not ours to read: then rows say it
            for (database, table), one in definitions_in(DefinitionsFile(home, source), position_in(end, source)).items():
                if one.schema is not None:
                    found.setdefault(f"{database}.{table}", one)
    return found


def newest_in_rows(store: StoreView, table: str, first: int) -> TableSchema | None:
    """Return the columns of a table in its newest rows event from event `first` on, or None."""
    for found in map(decode_schema, schemas(store, first, store.newest)):
        if f"{found.database}.{found.table}" == table:
            return found
    return None


def next_in_rows(store: StoreView, table: str, first: int) -> TableSchema | None:
    """Return the columns of a table in its oldest rows event from event `first` on, or None. Raises `PositionNotFound` where they are lost meanwhile."""
    last, seen = store.newest, set[bytes]()
    for at in range(max(first, store.oldest), last + 1, LOOK):
        for schema in _of_events(store, at, min(last, at + LOOK - 1)):
            if schema not in seen:
                seen.add(schema)
                found = decode_schema(schema)
                if f"{found.database}.{found.table}" == table:
                    return found
    return None


def find_schema(
    store: StoreView, table: str, first: int, rows: Callable[[StoreView, str, int], TableSchema | None] = newest_in_rows
) -> TableSchema | None:
    """Return the columns of `table` (``database.table``) for a reader of the events from `first` on, or None.

    Those of its rows there, which `rows` looks for, by default the newest; of rows that are still to come those that it is defined with; and those of
    older rows where it is not defined.
    """
    definition = defined(store).get(table)
    if definition is None:
        return rows(store, table, first) or newest_in_rows(store, table, store.oldest)
    if first <= store.newest and not _is_behind(store, first, definition):
        return rows(store, table, first) or definition.schema
    return definition.schema  # so have all rows from there on: no need to look for one


def _is_behind(store: StoreView, first: int, definition: Definition) -> bool:
    """Whether event `first` comes behind what gave the table its definition; False where that is unknown: in a store of several sources."""
    for payload in store.peek(first, limit_events=1).payloads():
        position = stored_head(payload)[0].position
        return bool(position.file) and not position.of_group and definition.reached_by(position)
    return False


def schemas(store: StoreView, first: int, last: int) -> Iterator[bytes]:
    """Yield the columns that events `first` to `last` have, encoded, each once, the newest first. What the log lets go of meanwhile is left out."""
    seen: set[bytes] = set()
    while last >= (oldest := max(first, store.oldest)):
        begin = max(oldest, last - LOOK + 1)
        for schema in dict.fromkeys(reversed(list(_of_events(store, begin, last)))):
            if schema not in seen:
                seen.add(schema)
                yield schema
        last = begin - 1


def _of_events(store: StoreView, first: int, last: int) -> Iterator[bytes]:
    for batch in store.read(first, last, gone=lambda *_: None):
        payloads = list(batch.payloads())
        for i in np.flatnonzero(batch.slots["entry"] == EntryType.ROWS).tolist():
            schema = stored_head(payloads[i])[1]
            if schema is not None:
                yield bytes(schema)
