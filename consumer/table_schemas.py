"""The columns of a store's tables: as its producer has defined them, else as its rows say, each of which carries those that it was written with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

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


class SchemaSince(NamedTuple):
    """A table's columns, and the event that they are known to hold from: what DDLs before it did is in them."""

    schema: TableSchema
    sequence: int


def next_in_rows(store: StoreView, table: str, first: int) -> SchemaSince | None:
    """Return the columns of a table in its oldest rows event from event `first` on, or None. Raises `PositionNotFound` where they are lost meanwhile."""
    seen = set[bytes]()
    last = store.newest
    for at in range(max(first, store.oldest), last + 1, LOOK):
        for sequence, schema in _of_events(store, at, min(last, at + LOOK - 1)):
            if schema not in seen:
                seen.add(schema)
                found = decode_schema(schema)
                if f"{found.database}.{found.table}" == table:
                    return SchemaSince(found, sequence)
    return None


def next_schema(store: StoreView, table: str, first: int) -> SchemaSince | None:
    """Return the columns of `table` (``database.table``) for a reader of the events from `first` on, or None.

    Those of its next row there; of rows that are still to come those that it is defined with; and those of older rows where it is not defined.
    """
    end = store.ack_point_until(store.newest)  # before what is defined there
    definition = defined(store).get(table)
    behind = definition is not None and first <= store.newest and _is_behind(store, first, definition)
    if not behind and (found := next_in_rows(store, table, first)) is not None:
        return found
    if definition is None:
        older = newest_in_rows(store, table, store.oldest)
        return None if older is None else SchemaSince(older, first)
    since = first + 1 if behind else first if end is None else max(first, end + 1)  # `first` may be the DDL that defines it
    return None if definition.schema is None else SchemaSince(definition.schema, since)


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
        for schema in dict.fromkeys(reversed([schema for _, schema in _of_events(store, begin, last)])):
            if schema not in seen:
                seen.add(schema)
                yield schema
        last = begin - 1


def _of_events(store: StoreView, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the encoded columns of each rows event."""
    for batch in store.read(first, last, gone=lambda *_: None):
        payloads = list(batch.payloads())
        for i in np.flatnonzero(batch.slots["entry"] == EntryType.ROWS).tolist():
            schema = stored_head(payloads[i])[1]
            if schema is not None:
                yield batch.first + i, bytes(schema)
