"""Events as Canal's MQ producers send them with ``flatMessage = false``: a Packet of Messages, which hold Entries.

They are Canal's own bytes (``CanalMessageSerializerUtil``), for consumers that read them with ``CanalMessageDeserializer``. Where rows are parted by
a hash, each row is an Entry of its own with the header of the whole, as in ``MQMessageUtils.messagePartition``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.consumer.wire.protocol.connection_state import varint
from shmstore.encoding.codec import encode
from shmstore.event import Event

_PACKET: Final = b"\x10\x01\x18\x07\x2a"  # version 1, type MESSAGES; then the body
_MESSAGE: Final = b"\x12"  # tag of an entry in Messages, which have no batch_id


class CanalPackets:
    """Makes them of events, one after the other. `gtids` as Canal's ``gtidon``."""

    def __init__(self, gtids: bool) -> None:
        self._encoder = Encoder(Values.CANAL, gtids=gtids)

    def entries(self, event: Event) -> list[bytes]:
        """Return the entries of an event, each with its tag and length as in Messages: one, none, or two where a statement comes with its rows."""
        found = self._encoder.encode(encode(event)) or b""
        parts = []
        while found:
            size, at = _read_varint(found, 1)
            parts.append(found[: at + size])
            found = found[at + size :]
        return parts

    def packet(self, event: Event, entry: bytes | None = None, rows: Sequence[int] | None = None) -> bytes:
        """Return a Packet with one of the event's entries, the last if none is given; with `rows`, an entry for each of these."""
        whole = self.entries(event)[-1] if entry is None else entry
        body = whole if rows is None else self._of_rows(event, whole, rows)
        return _PACKET + varint(len(body)) + body

    def _of_rows(self, event: Event, whole: bytes, rows: Sequence[int]) -> bytes:
        header, _ = _parted(whole)
        found = []
        for row in rows:
            _, change = _parted(self.entries(event._replace(rows=(event.rows[row],)))[-1])
            found.append(_MESSAGE + varint(len(header) + len(change)) + header + change)
        return b"".join(found)


def _parted(entry: bytes) -> tuple[bytes, bytes]:
    """The header of an entry, with its tag and length, and what follows it."""
    _, start = _read_varint(entry, 1)
    size, at = _read_varint(entry, start + 1)
    return entry[start : at + size], entry[at + size :]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
