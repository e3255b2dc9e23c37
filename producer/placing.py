"""Rows of a snapshot as events: whole transactions of READ events at the place that the stream has reached."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from producer.writer import EventWriter
from shmstore import EntryType, Event, EventType, SlotFlag
from shmstore.codec import encode_stored

EVENT_BYTES = 64 << 10  # of rows, as the server sent them, in one event


class Placing:
    """Writes rows into the transaction buffer, which must hold no open transaction."""

    def __init__(self, writer: EventWriter, server_id: int = 0) -> None:
        self._writer, self._server_id = writer, server_id
        self._order = self._begun = self._events = self._rows = 0
        self._open = False
        self._props: dict[str, str] = {}

    def put(
        self,
        last: Event | None,
        table: tuple[str, str],
        schema: bytes,
        rows: Sequence[Any],
        size: int,
        props: dict[str, str],
    ) -> None:
        """Write `rows`, which took `size` bytes on the way, behind `last`, the newest event of the store.

        However many transactions it takes, each is whole, and no larger than the buffer keeps together.
        """
        writer, self._props = self._writer, props
        same = last is not None and (last.position.file, last.position.offset) == (writer.file, writer.offset)
        self._order = last.order + 1 if last is not None and same else 0
        most = max(1, len(rows) * EVENT_BYTES // max(1, size))
        for at in range(0, len(rows), most):
            part = rows[at : at + most]
            payload = self._payload(EntryType.ROWS, self._order + (not self._open), schema, [None, None, None, part], table[0])
            if self._open and writer.buffer.overflows(len(payload)):
                self._end()
                payload = self._payload(EntryType.ROWS, self._order + 1, schema, [None, None, None, part], table[0])
            if not self._open:
                self._begin()
            self._add(payload, EntryType.ROWS, len(part))
            self._events += 1
            self._rows += len(part)
        if self._open:
            self._end()

    def _begin(self) -> None:
        self._open, self._begun, self._events, self._rows = True, self._order, 0, 0
        self._add(self._payload(EntryType.BEGIN, self._order, None, None), EntryType.BEGIN)

    def _end(self) -> None:
        props = {**self._props, "events": str(self._events), "rows": str(self._rows)}
        self._add(self._payload(EntryType.END, self._order, None, None, props=props, gtids=self._writer.gtids), EntryType.END)
        self._writer.buffer.end(int(SlotFlag.TRANSACTION_END))
        self._open = False

    def _payload(
        self,
        entry: EntryType,
        order: int,
        schema: bytes | None,
        body: list[Any] | None,
        database: str = "",
        *,
        props: dict[str, str] | None = None,
        gtids: str = "",
    ) -> bytes:
        writer = self._writer
        begun = self._begun if self._open else self._order
        transaction = f"{writer.file}:{writer.offset}:{begun}"
        self._now = time.time_ns() // 1_000_000
        place = [writer.file, writer.offset, 0, self._now, self._server_id, transaction, order, 0, gtids, 0]
        header = [int(entry), int(EventType.READ), *place, database, "", self._props if props is None else props]
        return encode_stored(header, schema, body)

    def _add(self, payload: bytes, entry: EntryType, rows: int = 0) -> None:
        writer = self._writer
        kind = int(entry) | int(EventType.READ) << 8
        writer.buffer.add(payload, (self._now, writer.offset, writer.file_number, rows, kind))
        self._order += 1
