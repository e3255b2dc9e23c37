"""The Python side of the compiled stream (`producer/native/fast_path.pxi`), where that is there.

The compiled side handles the usual events of a transaction by itself. The state of the stream belongs to `EventDecoder` and
`EventWriter`; it is lent out while a run of events is handled (`enter`) and given back before an event is surfaced, when a
part of a transaction is cut, and at the end of the run (`leave`). So each event finds the state as if all before it had been
handled in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmstore import ShmStoreError
from shmstore.encoding.codec import pack
from shmstore.producer.binlog import events
from shmstore.producer.binlog.compression import cut_events, payload_pieces
from shmstore.producer.binlog.events import HEADER_SIZE, EventCode, RawEvent
from shmstore.producer.binlog.rows import RowsDecoder
from shmstore.producer.errors import LinkLost
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.native_code import compiled
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.writer import NO_PROPS

if TYPE_CHECKING:
    from shmstore.producer.transactions.decoder import EventDecoder


class FastPath:
    """One decoder's compiled stream."""

    def __init__(self, decoder: EventDecoder) -> None:
        self._decoder = decoder
        self._stream = compiled.FastPath(self, decoder.writer.buffer)
        self.forget_tables = self._stream.forget_tables
        self.run = self._stream.run

    # ------------------------------------------------------------ called by the compiled side

    def enter(self) -> tuple[Any, ...]:
        """Lend the state out."""
        decoder = self._decoder
        writer = decoder.writer
        source, prefix, last = _next_number(decoder.executed)
        usual = writer.tail is None and decoder.row_props is NO_PROPS and not decoder.xa
        return (
            usual,
            decoder.open,
            writer.file.encode(),
            writer.file_number,
            writer.offset,
            -1 if writer.begun is None else writer.begun,
            writer.order,
            writer.transaction.encode(),
            bool(decoder.gtid_name),
            writer.gtids.encode(),
            decoder.event_count,
            decoder.row_count,
            decoder.executed is not None,
            source,
            prefix,
            last,
        )

    def leave(
        self,
        is_open: bool,
        offset: int,
        begun: int,
        order: int,
        transaction: bytes,
        named: bool,
        gtids: bytes,
        event_count: int,
        row_count: int,
        source: bytes | None,
        first_new: int,
        last: int,
    ) -> None:
        """Take the state back. The GTIDs `first_new` (0: none) to `last` of `source` were committed meanwhile."""
        decoder = self._decoder
        writer = decoder.writer
        writer.transaction = transaction.decode()
        decoder.open, decoder.gtid_name = is_open, writer.transaction if named else ""  # what has a GTID is called by it
        decoder.event_count, decoder.row_count = event_count, row_count
        writer.offset, writer.order = offset, order
        writer.begun = None if begun < 0 else begun
        writer.gtids = writer.before = gtids.decode()  # the compiled side leaves a transaction open only before its commit
        if not is_open:
            decoder.marks.clear()
        if first_new and source is not None and decoder.executed is not None:
            decoder.executed.add_run(source.decode(), first_new, last)

    def surface(self, code: int, timestamp: int, server: int, length: int, end: int, flags: int, body: bytes) -> Any:
        """Handle an event in Python; return what the compiled side may know of it next time, or None."""
        decoder = self._decoder
        decoder.feed(RawEvent(code, timestamp, server, length, end, flags, body))
        if code == EventCode.TABLE_MAP:
            return decoder.known_table(body)
        if code == EventCode.QUERY and decoder.open and decoder.writer.order == 0 and body.endswith(b"\0BEGIN"):
            return events.query(body).microsecond
        return None

    def cut(self) -> None:
        """End a part of the open transaction."""
        self._decoder.writer.cut()

    def plan(self, table: Any, code: int, bits: bytes) -> tuple[Any, ...] | None:
        """Return (event type, programs and columns present of the images) for rows events; None where Python decodes them."""
        made = self._decoder.rows_decoder.compiled_rows(table, code, bits)
        if made is None or made.type not in self._decoder.filter.row_types:
            return None
        before, after = made.programs
        return int(made.type), before, after, pack(made.before), pack(made.after)


def known_table(rows_decoder: RowsDecoder, table_filter: Any, body: bytes) -> tuple[Any, ...] | None:
    """Return what the compiled side may know of a table map just seen: (map, passes, plain, columns, header's end, schema)."""
    if rows_decoder.follows_schemas:
        return None  # what it means may change with each DDL
    table = rows_decoder.table_of(body)
    passes = table_filter.passes(table.database, table.table)
    if not passes:
        return table, False, False, 0, b"", b""
    try:
        plain = table_filter.plan(table.schema, table.schema_blob).blob is None
    except ShmStoreError:
        return None  # not decodable: Python says so when rows come
    head = pack(table.database) + pack("") + pack({})
    return table, True, plain, len(table.layout.fields), head, pack(table.schema_blob)


def feed_payload(decoder: EventDecoder, raw: RawEvent) -> None:
    """Feed the events in a MySQL TRANSACTION_PAYLOAD event. However many they are, only so many are held as one put takes.

    Raises what `EventDecoder.feed` raises; `LinkLost` when told to stop meanwhile.
    """
    buffer = decoder.writer.buffer
    runs = not isinstance(buffer, TransactionBuffer)
    for piece in payload_pieces(raw.body):
        if runs:
            run: Any = compiled.inner_run(piece, raw.length, raw.end)
            decoder.feed(run)
        else:
            for event in cut_events(piece):
                timestamp, code, server = int.from_bytes(event[:4], "little"), event[4], int.from_bytes(event[5:9], "little")
                decoder.feed(RawEvent(code, timestamp, server, raw.length, raw.end, 0, event[HEADER_SIZE:]))
        if decoder.drain is not None and buffer.full and not decoder.drain():
            raise LinkLost("told to stop inside a compressed transaction")


def _next_number(executed: ExecutedSet | None) -> tuple[bytes | None, bytes, int]:
    """(source, text up to the number, last number) of a set that the next transaction of its one source just counts up."""
    single = executed.single() if executed is not None else None
    if single is None:
        return None, b"", 0
    source, prefix, last = single
    return source.encode(), prefix.encode(), last
