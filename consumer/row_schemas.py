"""The columns of tables, as a store's rows say them: every rows event carries those that it was written with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from shmstore import PositionNotFound, StoreView
from shmstore.encoding.codec import split_stored
from shmstore.event import EntryType

READ_BYTES: Final = 4 << 20  # read at a time
LOOK: Final = 1 << 12  # events looked at at a time


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
    while first <= last:
        try:
            batch = store.peek(first, limit_events=last - first + 1, limit_bytes=READ_BYTES)
        except PositionNotFound:
            first = max(first + 1, store.oldest)
            continue
        if not batch:
            return
        payloads = list(batch.payloads())
        for i in np.flatnonzero(batch.slots["entry"] == EntryType.ROWS).tolist():
            schema = split_stored(payloads[i])[1]
            if schema is not None:
                yield bytes(schema)
        first = batch.last + 1
