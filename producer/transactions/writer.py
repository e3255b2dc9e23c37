"""Encodes events into a transaction buffer: the header of each, the numbered parts, what a restart needs to know.

`order` counts the events of a transaction as the binlog has them, before any filter, so that it does not depend on
options: by it a restarted producer knows which events of a half-put transaction are in the store. For that, the last
event of every part but the last says where the transaction began (`Cut`). It is put with its part, all or nothing, so whenever a
producer is killed the store ends with a transaction's end, or with an event that says where to read from. It is the last event
of its put: two parts never fit into one. What is read again up to it must be what the store has (`Replay`).
"""

from __future__ import annotations

from typing import Any, Final

from shmstore import EntryType, EventType, SlotFlag
from shmstore.encoding.codec import Header, encode_head, pack, stored_head, stored_parts
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.errors import TransactionBroken
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.replay import Replayed
from shmstore.producer.transactions.state import NO_PROPS, HalfTransaction, TransactionState

_tuple: Final = tuple.__new__


class EventWriter:
    """Writes the events of one stream; `state` says where it stands."""

    __slots__ = ("buffer", "state")

    def __init__(self, buffer: TransactionBuffer, state: TransactionState) -> None:
        self.buffer, self.state = buffer, state

    @property
    def part_is_out(self) -> bool:
        """Whether a part of the open transaction has left the buffer, now or in an earlier life."""
        state = self.state
        return self.buffer.part > 0 or (state.tail is not None and state.tail.transaction == state.transaction)

    def write(
        self,
        raw: RawEvent,
        entry: EntryType,
        type_: EventType = EventType.NONE,
        *,
        schema: bytes | None = None,
        body: list[Any] | None = None,
        rows: int = 0,
        row: int = 0,
        database: str = "",
        sql: str = "",
        props: dict[str, str] = NO_PROPS,
        gtids: str = "",
        microsecond: int = 0,
    ) -> None:
        """Add an event that ends here to the open transaction, unless the store has it already.

        `row`: which of the binlog event's rows is its first.
        """
        buffer, state = self.buffer, self.state
        if state.tail is not None:
            place = state.order, row
            if place <= (state.tail.order, state.tail.row):
                self._replay(state.tail, entry, Replayed(place, int(type_), database, sql, schema, pack(body)))
                return
            self._require_same(state.tail)
            buffer.part = max(buffer.part, state.tail.part + 1)
        time_ms = raw.timestamp * 1000 + microsecond // 1000
        fields = (
            int(entry),
            int(type_),
            state.file,
            state.offset,
            raw.length,
            time_ms,
            raw.server_id,
            state.transaction,
            state.order,
            buffer.part,
            gtids,
            row,
            database,
            sql,
            props,
            None,
        )
        header = _tuple(Header, fields)  # as Header(*fields), in less than half of its time
        parts = stored_parts(header, schema, body)
        if buffer.overflows(sum(map(len, parts))):
            self.cut()
            parts = stored_parts(header._replace(part=buffer.part), schema, body)
        buffer.add(parts, (time_ms, state.offset, state.file_number, rows, int(entry) | int(type_) << 8))

    def _replay(self, tail: HalfTransaction, entry: EntryType, event: Replayed) -> None:
        if entry is EntryType.END:
            raise self._differs(tail, f"it ends with event {self.state.order}")
        if tail.replay is not None and not tail.replay.has(event):
            self.state.differing += 1  # counted: a ROLLBACK TO may take it back

    def _require_same(self, tail: HalfTransaction) -> None:
        """The first event that the store does not have: those before it must be what the store has."""
        if self.state.differing or not (tail.replay is None or tail.replay.over):
            raise self._differs(tail, "its events up to there are others")
        self.state.tail = tail._replace(replay=None)

    def _differs(self, tail: HalfTransaction, how: str) -> TransactionBroken:
        return TransactionBroken(
            f"the store ends inside transaction {tail.transaction}, behind its event {tail.order}, but on this server {how}: a replica "
            "may group rows otherwise (binlog_row_event_max_size, binlog_row_image), and other options may leave out what the store has; let the "
            "producer read from the server that it had, with the options that it had, until this transaction is whole, or start again with a new "
            "store"
        )

    def cut(self) -> None:
        """End a part: its last event says where the transaction began."""
        state, header = self.state, stored_head(self.buffer.last)[0]
        resume = [{"": [state.file, state.begun, state.gtids]}, header.order, header.row]
        self.buffer.replace_head(len(encode_head(header)), encode_head(header._replace(resume=resume)))  # the rows may be large
        self.buffer.cut()

    def end(self, flag: SlotFlag, *, empty: bool = False) -> None:
        """The last event written ends the transaction; one that is `empty` may be left out."""
        state = self.state
        self.buffer.end(flag, empty=empty and state.tail is None and self.buffer.part == 0)
        state.tail = None
        state.over()
