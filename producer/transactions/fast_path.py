"""What the compiled fast path (`producer/native/fast_path.pxi`) asks of Python, where it is built.

It handles the usual events of a transaction on its own, in the same state and buffer as the decoder, which it hands all others.
"""

from __future__ import annotations

from typing import Any, Protocol

from shmstore import EventType, ShmStoreError
from shmstore.encoding.codec import pack
from shmstore.producer.binlog import events
from shmstore.producer.binlog.events import EventCode, RawEvent
from shmstore.producer.binlog.rows import RowsDecoder
from shmstore.producer.filters.condition_steps import steps_of
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.native_code import compiled
from shmstore.producer.schema.merged import MergedTables
from shmstore.producer.transactions.writer import EventWriter

# What a row filter may make of an UPDATE.
ROW_TYPES = frozenset({EventType.INSERT, EventType.UPDATE, EventType.DELETE})


class FastPathOwner(Protocol):
    """The decoder that a fast path belongs to."""

    writer: EventWriter
    filter: TableFilter
    merged: MergedTables
    rows_decoder: RowsDecoder

    def feed_one(self, raw: RawEvent) -> None:
        """Handle an event in Python."""


class FastPath:
    """One decoder's fast path."""

    def __init__(self, decoder: FastPathOwner) -> None:
        self._decoder = decoder
        native = compiled.FastPath(self, decoder.writer.state, decoder.writer.buffer)
        self.forget_tables, self.run = native.forget_tables, native.run

    def inner(self, piece: bytes, outer: RawEvent) -> list[Any]:
        """The events of a piece of `outer`, a compressed transaction, as a run."""
        return [compiled.inner_run(piece, outer.length, outer.end)]

    # ------------------------------------------------------------ called by the compiled side

    def surface(self, code: int, timestamp: int, server: int, length: int, end: int, flags: int, body: bytes) -> Any:
        """Handle an event in Python; return what the compiled side may know of it next time, or None."""
        decoder = self._decoder
        decoder.feed_one(RawEvent(code, timestamp, server, length, end, flags, body))
        if code == EventCode.TABLE_MAP:
            return self._table(body)
        state = decoder.writer.state
        if code == EventCode.QUERY and state.open and state.order == 0 and body.endswith(b"\0BEGIN"):
            return events.query(body).microsecond
        return None

    def _table(self, body: bytes) -> tuple[Any, ...] | None:
        """Of a table map just seen: (map, passes the filter, nothing of it filtered, columns, MessagePack of header's end and schema, row filter)."""
        rows_decoder, table_filter, merged = self._decoder.rows_decoder, self._decoder.filter, self._decoder.merged
        table = rows_decoder.table_of(body)
        if not table_filter.passes(table.database, table.table):
            return table, False, False, 0, b"", b"", None
        condition = None
        try:
            plan = merged.plan(table_filter, table.schema, table.schema_blob)
            plain = not plan.changes_rows
            if plain and (bound := table_filter.condition(table.schema, table.schema_blob)) is not None:
                steps = steps_of(bound, table.schema) if table_filter.row_types == ROW_TYPES else None
                plain = steps is not None  # else Python tries it
                condition = None if steps is None else compiled.Condition(steps)
        except ShmStoreError:
            return None  # not decodable: Python says so when rows come
        head = pack(merged.seen_as(table.database, table.table)[0]) + pack("") + pack({}) + pack(None)
        return table, True, plain, len(table.layout.fields), head, pack(plan.blob or table.schema_blob), condition

    def plan(self, table: Any, code: int, bits: bytes) -> tuple[Any, ...] | None:
        """Return (event type, programs and columns present of the images) for rows events; None where Python decodes them."""
        made = self._decoder.rows_decoder.compiled_rows(table, code, bits)
        if made is None or made.type not in self._decoder.filter.row_types:
            return None
        before, after = made.programs
        return int(made.type), before, after, pack(made.before), pack(made.after)

    def cut(self) -> None:
        """End a part of the open transaction."""
        self._decoder.writer.cut()
