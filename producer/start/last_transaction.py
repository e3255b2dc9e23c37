"""The last transaction that a store has of a source: what `same_history` looks for on the server.

It is what the store itself can show: the newest transaction end, or DDL outside of a transaction, that is not a snapshot's. What the
filters left out after it is not in the store, and need not be: a server that has this transaction has the history that led to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shmstore import EntryType, Event, EventStore, EventType, Position, PositionNotFound, SlotFlag, StoreCorrupt

_MOST = 1 << 16  # slots that are looked at in one go


class LastTransaction(NamedTuple):
    """`end` is its last event, `first` and `last` are the sequences of its events in `store`; `first` is None where its beginning is gone.

    `gtids`: what the source had executed with it, "" where that is unknown.
    """

    store: EventStore
    end: Event
    first: int | None
    last: int
    gtids: str

    def begins(self) -> Event | None:
        """Return its BEGIN, or the DDL that it is; None where that is gone."""
        return None if self.first is None else _event(self.store, self.first)

    def events(self, limit_bytes: int) -> list[Event] | None:
        """Return its events; None where some are gone, or they have more than `limit_bytes`."""
        if self.first is None or int(self.store.slots(self.first, self.last)["size"].sum(dtype=np.int64)) > limit_bytes:
            return None
        return [event for batch in self.store.read(self.first, self.last) for event in batch]


def last_transaction(store: EventStore, source: str = "", until: Position | None = None) -> LastTransaction | None:
    """Return what the store ends with, or of `source`, one of several, up to a place in its binlog; None where that was acked and is gone."""
    try:
        for sequence in _ends(store, store.newest, until):
            end = _event(store, sequence)
            if end is not None and end.props.get("source", "") == source:
                return _whole(store, sequence, end)
    except (PositionNotFound, StoreCorrupt):  # acked meanwhile, or events of other users of the ring
        pass
    return None


def _whole(store: EventStore, sequence: int, end: Event) -> LastTransaction:
    gtids = end.position.gtids
    if end.entry is EntryType.DDL:
        return LastTransaction(store, end, sequence, sequence, gtids)
    for slots, before in _back(store, sequence - 1):
        begins = np.flatnonzero(slots["entry"] == int(EntryType.BEGIN))
        if len(begins):
            first = before + int(begins[-1])
            begin = _event(store, first)
            known = begin is not None and begin.transaction == end.transaction
            return LastTransaction(store, end, first if known else None, sequence, gtids)
    return LastTransaction(store, end, None, sequence, gtids)


def _ends(store: EventStore, newest: int, until: Position | None = None) -> Iterator[int]:
    """Yield the sequences of transaction ends and DDLs, newest first; of one binlog file only those up to `until`, where that is given."""
    for slots, first in _back(store, newest):
        found = (slots["flags"] & int(SlotFlag.ACK_POINT) != 0) & (slots["type"] != int(EventType.READ))
        found &= slots["entry"] != int(EntryType.HEARTBEAT)  # a change of filters
        if until is not None:
            found &= (slots["file"] == until.file_number) & (slots["offset"] <= until.offset)
        yield from (first + int(i) for i in np.flatnonzero(found)[::-1])


def _back(store: EventStore, newest: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield (slots, sequence of the first of them), from `newest` to the oldest event that can be read; few at first."""
    most = 256
    while newest >= (oldest := store.oldest):
        first = max(oldest, newest - most + 1)
        yield store.slots(first, newest), first
        newest, most = first - 1, min(_MOST, most * 4)


def _event(store: EventStore, sequence: int) -> Event | None:
    return next(iter(store.peek(sequence, limit_events=1)), None)
