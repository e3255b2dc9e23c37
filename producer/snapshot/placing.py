"""Rows of a chunk -> READ events in the transaction buffer: without those that the stream brought newer, after the column filters."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Protocol

from shmstore import EventStore, EventType
from shmstore.encoding.codec import Packed, pack, unpack_rows
from shmstore.home.snapshot_progress import SnapshotRequest
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.snapshot.chunks import Chunk
from shmstore.producer.snapshot.read_events import ReadEvents
from shmstore.producer.snapshot.shape import Shape
from shmstore.producer.transactions.decoder import EventDecoder

#: The body of an event without rows, as `codec.encode` writes it: with a list of none the batch that it is in could not be read in compiled code.
NO_ROWS: Final[list[Any]] = [None, None, None, None]


class RowSource(Protocol):
    """Rows that came: from the server just now, or set aside before."""

    size: int  # bytes on the way

    def __len__(self) -> int: ...

    def array(self, first: int, count: int) -> bytes:
        """Return `count` rows from `first` on, fewer at the end, as one MessagePack array."""


class Placing:
    """Writes between the transactions of `decoder`."""

    def __init__(self, store: EventStore, decoder: EventDecoder) -> None:
        self._store, self._decoder = store, decoder
        self._read_events = ReadEvents(decoder.state, decoder.buffer, store.limit_bytes)

    def begin(self, server_id: int) -> None:
        """A stream begins, of a server with this id."""
        self._read_events = ReadEvents(self._decoder.state, self._decoder.buffer, self._store.limit_bytes, server_id)
        last = self._store.latest_event
        if last is not None and last.type is EventType.READ and not last.ends_transaction:
            self._read_events.close(last)  # a former producer died there; its rows are read again

    def put_chunk(self, chunk: Chunk, request: SnapshotRequest, part: str = "") -> int:
        """Write the rows of `chunk` that the stream brought nothing newer of; return how many. `part` as in `put`."""
        rows, shape = chunk.rows, chunk.table.shape
        if rows is not None and len(rows) and (keys := chunk.table.window.keys(chunk.segment)):
            rows.rows.leave_out(self._as_selected(shape, rows, keys) if shape.hashed else keys, shape.key_indexes)
        return self.put(chunk, request, rows, part)

    def put(self, chunk: Chunk, request: SnapshotRequest, rows: RowSource | None, part: str) -> int:
        """Write `rows`, which are of the table of `chunk`; return how many.

        The first event of a table, and the last, say so (`part`), even where they have no rows.
        """
        shape = chunk.table.shape
        count = 0 if rows is None else len(rows)
        if count or part:
            props = {"snapshot": request.id, "snapshot_reason": request.reason}
            if shape.partial:
                props["snapshot_partial"] = shape.partial
            size = 0 if rows is None else rows.size
            some = partial(self._body, shape, rows)
            self._read_events.put(self._store.latest_event, shape.seen_as, shape.schema, count, some, size, props, part)
        return count

    def put_end(self, target: tuple[str, str], schema: bytes, request: SnapshotRequest) -> None:
        """Write that all rows of `target` have come, where the last of its tables has none."""
        props = {"snapshot": request.id, "snapshot_reason": request.reason}
        self._read_events.put(self._store.latest_event, target, schema, 0, lambda *_: NO_ROWS, 0, props, "last")

    def _as_selected(self, shape: Shape, rows: SelectRows, keys: list[set[bytes]]) -> list[set[bytes]]:
        """Those of `keys`, which hold hashes as the stream does, that `rows` have, with the values that the server has."""
        found = set()
        for row in unpack_rows(Packed(rows.array(0, len(rows)))):
            own = [(row[i], i in shape.hashed) for i in shape.key_indexes]
            as_put = b"".join([pack(self._decoder.filter.digest(value) if hashed else value) for value, hashed in own])
            if any(as_put in one for one in keys):
                found.add(b"".join([pack(value) for value, _ in own]))
        return [found]

    def _body(self, shape: Shape, rows: RowSource | None, first: int, count: int) -> list[Any]:
        """The body of an event with some of the rows, after the column filters."""
        if rows is None or not count:
            return NO_ROWS
        body = [None, None, shape.present, Packed(rows.array(first, count))]
        return self._decoder.filter.apply(shape.plan, body, len(shape.selected.table.schema.columns))
