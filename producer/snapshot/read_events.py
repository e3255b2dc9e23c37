"""Rows of a snapshot as events: whole transactions of READ events at the position that the stream has reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from shmstore import EntryType, Event, EventType, SlotFlag
from shmstore.clock import calendar_ms
from shmstore.encoding.codec import Header, encode_stored
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.state import TransactionState

NONE: Final[Mapping[str, str]] = MappingProxyType({})
EVENT_BYTES = 64 << 10  # of rows, as the server sent them, in one event


class ReadEvents:
    """Writes rows into the transaction buffer, which must hold no open transaction.

    Each transaction is put all or nothing, but for an event that has to go alone: one larger than half of the store. A
    producer that dies behind such an event leaves a transaction open; `close` ends it.
    """

    def __init__(self, state: TransactionState, buffer: TransactionBuffer, limit: int, server_id: int = 0) -> None:
        """`limit`: the bytes that the store holds."""
        self._state, self._buffer, self._alone, self._server_id = state, buffer, limit // 2, server_id
        self._order = self._begun = self._events = self._rows = self._now = 0
        self._open = False
        self._at = ("", 0)  # where the stream stood at the last put
        self._props: dict[str, str] = {}

    def put(
        self,
        newest: Event | None,
        table: tuple[str, str],
        schema: bytes,
        count: int,
        bodies: Callable[[int, int], list[Any]],
        size: int,
        props: dict[str, str],
        part: str = "",
    ) -> None:
        """Write `count` rows, which took `size` bytes on the way, behind `newest`, the newest event of the store.

        `bodies(first, number)` gives the body of an event with some of them. `part`, first or last of a table, is the property
        ``snapshot_part`` of the last event, which may have no rows.
        """
        state, self._props = self._state, props
        same = newest is not None and (newest.position.file, newest.position.offset) == (state.file, state.offset)
        order = newest.order + 1 if newest is not None and same else 0
        if self._at == (state.file, state.offset):
            order = max(order, self._order)  # what was written before is not in the store yet
        self._at, self._order = (state.file, state.offset), order
        most = max(1, count * EVENT_BYTES // max(1, size))
        for at in range(0, count or 1, most):
            number = min(most, count - at)
            ends = part and at + most >= count
            self._event(table[0], schema, number, bodies(at, number), {"snapshot_part": part} if ends else {})
        if self._open:
            self._end()

    def close(self, last: Event) -> None:
        """End the transaction that `last`, the newest event of the store, stands in."""
        self._order, self._props = last.order + 1, last.props
        position = last.position
        header = Header(
            int(EntryType.END),
            int(EventType.READ),
            position.file,
            position.offset,
            length=0,
            time_ms=last.time_ms,
            server_id=last.server_id,
            transaction=last.transaction,
            order=self._order,
            part=last.part,
            gtids=position.gtids,
            row=0,
            database="",
            sql="",
            props={"snapshot": last.props["snapshot"]},
        )
        slot = (last.time_ms, position.offset, position.file_number, 0, int(EntryType.END) | int(EventType.READ) << 8)
        self._buffer.add([encode_stored(header, None, None)], slot)
        self._buffer.end(int(SlotFlag.TRANSACTION_END))

    def _event(self, database: str, schema: bytes, count: int, body: list[Any], more: dict[str, str]) -> None:
        buffer = self._buffer
        if not self._open:
            self._begin()
        payload = self._payload(EntryType.ROWS, schema, body, database, more)
        alone = len(payload) > self._alone
        if self._events and (alone or buffer.overflows(len(payload))):
            self._end()
            self._begin()
            payload = self._payload(EntryType.ROWS, schema, body, database, more)
        if alone:
            buffer.cut()
            payload = self._payload(EntryType.ROWS, schema, body, database, more)
        self._add(payload, EntryType.ROWS, count)
        self._events += 1
        self._rows += count
        if alone:
            buffer.cut()
            self._end()

    def _begin(self) -> None:
        self._open, self._begun, self._events, self._rows = True, self._order, 0, 0
        self._add(self._payload(EntryType.BEGIN), EntryType.BEGIN)

    def _end(self) -> None:
        self._props, props = {**self._props, "events": str(self._events), "rows": str(self._rows)}, self._props
        self._add(self._payload(EntryType.END), EntryType.END)
        self._buffer.end(int(SlotFlag.TRANSACTION_END))
        self._open, self._props = False, props

    def _payload(
        self,
        entry: EntryType,
        schema: bytes | None = None,
        body: list[Any] | None = None,
        database: str = "",
        more: Mapping[str, str] = NONE,
    ) -> bytes:
        state = self._state
        transaction = f"{state.file}:{state.offset}:{self._begun}"
        self._now = calendar_ms()
        header = Header(
            int(entry),
            int(EventType.READ),
            state.file,
            state.offset,
            length=0,
            time_ms=self._now,
            server_id=self._server_id,
            transaction=transaction,
            order=self._order,
            part=self._buffer.part,
            gtids=state.gtids,
            row=0,
            database=database,
            sql="",
            props={**self._props, **more},
        )
        return encode_stored(header, schema, body)

    def _add(self, payload: bytes, entry: EntryType, rows: int = 0) -> None:
        state = self._state
        kind = int(entry) | int(EventType.READ) << 8
        self._buffer.add([payload], (self._now, state.offset, state.file_number, rows, kind))
        self._order += 1
