"""Encodes events into a transaction buffer: the header of each, the numbered parts, what a restart needs to know.

`order` counts the events of a transaction as the binlog has them, before any filter, so that it does not depend on
options: by it a restarted producer knows which events of a half-put transaction are in the store. For that, the last
event of every part but the last carries where the transaction began, in its props: ``resume``. It is the last event of a
put, too, because two parts never fit into one, and has a place for a checksum of all events of the transaction so far, which
`seal` fills in: what is passed over must be the same.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from shmstore import EntryType, EventType, Position, SlotFlag
from shmstore.encoding.codec import Header, encode_stored, pack, split_stored
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.errors import TransactionBroken
from shmstore.producer.transactions.buffer import TransactionBuffer

NO_PROPS: dict[str, str] = {}
UNSEALED = "?" * 16  # in the place of a checksum
_WRAP = 1 << 32


def fold(checksum: int, order: int, type_: int, database: str, sql: str, schema: bytes | None, body: bytes | memoryview) -> int:
    """Return `checksum` with one more event in it. Not in it is what another server of the same transaction has otherwise."""
    checksum = zlib.crc32(f"{order} {type_} {database} {sql} ".encode(), checksum)
    return zlib.crc32(body, zlib.crc32(schema or b"", checksum))


class Tail(NamedTuple):
    """The last event of a store, where it stands inside a transaction."""

    transaction: str
    order: int
    part: int
    source: str = ""  # whose transaction it is, in a store of several
    checksum: str = ""  # of the transaction's events up to this one, as `seal` writes it; empty: not known

    @classmethod
    def of(cls, header: Header) -> Tail:
        """Return the tail that an event is, by its header in stored form."""
        props = header.props
        return cls(header.transaction, header.order, header.part, props.get("source", ""), props.get("checksum", ""))


class EventWriter:
    """Where the stream stands, and the transaction being written."""

    __slots__ = ("before", "begun", "buffer", "file", "file_number", "gtids", "offset", "order", "passed", "tail", "transaction")

    def __init__(self, buffer: TransactionBuffer) -> None:
        self.buffer = buffer
        self.file, self.offset, self.file_number = "", 0, 0
        self.gtids = ""  # the executed set as text, as of the last commit
        self.tail: Tail | None = None  # where the store ends inside the transaction that is read again
        self.forget()

    def forget(self) -> None:
        """The transaction is over, or never was."""
        self.transaction = ""
        self.begun: int | None = None  # offset where its first event begins; None: there is no transaction
        self.order = 0
        self.passed = 0  # checksum of the events that the store has already
        self.before = self.gtids

    def move(self, file: str, offset: int) -> None:
        """Go to another place."""
        if file != self.file:
            self.file, self.file_number = file, Position(file, 0).file_number
        self.offset = offset

    def advance(self, end: int) -> None:
        """Go on to the end of an event. Its log_pos has 32 bits, a file can be longer: wraps are counted."""
        place = self.offset & ~(_WRAP - 1) | end
        self.offset = place if place >= self.offset else place + _WRAP

    def name(self, gtid: str, length: int) -> None:
        """A transaction begins, with an event of `length` bytes that ends here."""
        self.begun = self.offset - length
        self.transaction = gtid or f"{self.file}:{self.begun}"
        self.before = self.gtids

    @property
    def part_is_out(self) -> bool:
        """Whether a part of the open transaction has left the buffer, now or in an earlier life."""
        return self.buffer.part > 0 or (self.tail is not None and self.tail.transaction == self.transaction)

    def write(
        self,
        raw: RawEvent,
        entry: EntryType,
        type_: EventType = EventType.NONE,
        *,
        schema: bytes | None = None,
        body: list[Any] | None = None,
        rows: int = 0,
        database: str = "",
        sql: str = "",
        props: dict[str, str] = NO_PROPS,
        gtids: str = "",
        microsecond: int = 0,
    ) -> None:
        """Add an event that ends here to the open transaction, unless the store has it already."""
        buffer = self.buffer
        if self.tail is not None:
            if self.order <= self.tail.order:
                self._pass_over(self.tail, entry, fold(self.passed, self.order, int(type_), database, sql, schema, pack(body)))
                return
            self._compare(self.tail)
            buffer.part = max(buffer.part, self.tail.part + 1)
        time_ms = raw.timestamp * 1000 + microsecond // 1000
        header = Header(
            int(entry),
            int(type_),
            self.file,
            self.offset,
            raw.length,
            time_ms,
            raw.server_id,
            self.transaction,
            self.order,
            buffer.part,
            gtids,
            0,
            database,
            sql,
            props,
        )
        payload = encode_stored(header, schema, body)
        if buffer.overflows(len(payload)):
            self.cut()
            payload = encode_stored(header._replace(part=buffer.part), schema, body)
        buffer.add(payload, (time_ms, self.offset, self.file_number, rows, int(entry) | int(type_) << 8))

    def _pass_over(self, tail: Tail, entry: EntryType, checksum: int) -> None:
        if entry is EntryType.END:
            raise self._differs(tail, f"it ends with event {self.order}")
        self.passed = checksum

    def _compare(self, tail: Tail) -> None:
        """The first event that the store does not have: those before it must be what the store has."""
        if tail.checksum and int(tail.checksum[8:], 16) != self.passed:
            raise self._differs(tail, "its events up to there are others")
        self.tail = tail._replace(checksum="")

    def _differs(self, tail: Tail, how: str) -> TransactionBroken:
        return TransactionBroken(
            f"the store ends inside transaction {tail.transaction}, behind its event {tail.order}, but on this server {how}: a replica "
            "may group rows otherwise (binlog_row_event_max_size, binlog_row_image); let the producer read from the server it had, or "
            "start anew with a new store"
        )

    def cut(self) -> None:
        """End a part: its last event says where the transaction began."""
        header, schema, body = split_stored(self.buffer.last)
        resume = f"{self.file}:{self.begun} {self.before}".rstrip()
        props = {**header.props, "resume": resume, "checksum": UNSEALED}
        self.buffer.replace_last(encode_stored(header._replace(props=props), schema, body))
        self.buffer.cut()

    def end(self, flag: SlotFlag, *, empty: bool = False) -> None:
        """The last event written ends the transaction; one that is `empty` may be left out."""
        self.buffer.end(flag, empty=empty and self.tail is None and self.buffer.part == 0)
        self.tail = None
        self.forget()

    def discard(self) -> None:
        """Forget the open transaction, of which nothing was put."""
        self.buffer.discard()
        self.forget()
