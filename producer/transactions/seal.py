"""A checksum of what the store has of a transaction, so that a restarted producer replays the same events and no others.

It goes into the props of the last event of a put that ends inside a transaction: ``checksum``, two numbers of eight hex digits:
of the options that decide what an event holds, and of the events themselves. Headers are left out, but for what the event
does: another server of the same transaction has other offsets. The writer leaves space for it at the header's end, which is
filled in there.
"""

from __future__ import annotations

import zlib

import numpy as np

import shmstore
from shmstore import SlotFlag
from shmstore.encoding.codec import encode_head, split_stored
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.settings import Settings
from shmstore.producer.transactions.buffer import Flush
from shmstore.producer.transactions.state import HalfTransaction
from shmstore.producer.transactions.writer import UNSEALED, fold

_OPTIONS = (
    "include",
    "exclude",
    "column_include",
    "column_exclude",
    "column_mask",
    "column_hash",
    "hash_key",
    "operations",
    "row_filter",
    "ghost_tables",
)
_VERSION = 2  # raised when what the checksum is of changes: one of another version is not compared


def options_of(settings: Settings) -> str:
    """Return a checksum, eight hex digits, of the options that decide what an event holds."""
    options = repr((shmstore.__version__, _VERSION, settings.statements, *(getattr(settings, name) for name in _OPTIONS)))
    return f"{zlib.crc32(options.encode()):08x}"


class Seal:
    """Seals what one source puts."""

    def __init__(self, settings: Settings) -> None:
        self._options = options_of(settings)
        self._checksum: int | None = 0  # of the transaction that is open; None: of its beginning it is not known

    def begin(self, tail: HalfTransaction | None) -> HalfTransaction | None:
        """The next event put follows `tail`. Return it without its checksum where that was made with other options."""
        self._checksum = 0
        if tail is None:
            return None
        if not tail.checksum.startswith(self._options) or len(tail.checksum) != 16:
            self._checksum = None
            return tail._replace(checksum="")
        self._checksum = int(tail.checksum[8:], 16)
        return tail

    def close(self, flush: Flush) -> None:
        """Write the checksum into the last event of `flush`, where that is inside a transaction and has a place for it."""
        if flush.whole:
            self._checksum = 0
            return
        slots = flush.slots
        points = np.flatnonzero(slots["flags"] & int(SlotFlag.ACK_POINT))
        if len(points):
            self._checksum = 0
        if self._checksum is None:
            return
        first = int(points[-1]) + 1 if len(points) else 0
        sizes, view = slots["size"], flush.blob
        at = int(sizes[:first].sum())
        while first < len(slots):
            if COMPILED:
                taken, self._checksum = compiled.fold_events(view[at:], sizes[first:], slots["type"][first:], self._checksum)
                at += int(sizes[first : first + taken].sum())
                first += taken
            if first < len(slots):
                end = at + int(sizes[first])
                header, schema, body = split_stored(view[at:end])
                self._checksum = fold(self._checksum, header.order, header.type, header.database, header.sql, schema, body.data)
                at, first = end, first + 1
        last = view[at - int(sizes[-1]) :]
        header = split_stored(last)[0]
        if header.props.get("checksum") == UNSEALED:
            end = len(encode_head(header))  # the place is what the header ends with
            last[end - len(UNSEALED) : end] = f"{self._options}{self._checksum:08x}".encode()
