"""Packets of the client/server protocol, which are framed here alone; and raw events out of those after a dump command. No socket here.

A packet is length (3 bytes), number (1 byte), then its body; a body of 16 MiB and more goes over several packets, each full but the last.
After a dump command it is a status byte and one event: a 19-byte header, a body, and a CRC-32 where the binlog has them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from shmstore.errors import UnsupportedEvent
from shmstore.producer.binlog import events
from shmstore.producer.binlog.events import HEADER_SIZE, EventCode, RawEvent, format_checksum
from shmstore.producer.errors import ChecksumMismatch, LinkLost
from shmstore.producer.native_code import COMPILED, compiled

FULL_PACKET = 0xFFFFFF
KEPT = HEADER_SIZE + 64  # bytes of an event that is passed over which are handed out
_NAMED = 5 + HEADER_SIZE + 8  # bytes of the first packet that name the table of a rows event
LeavesOut = Callable[[int, bytes], bool]
_FORMAT = int(EventCode.FORMAT)  # an enum's member costs more to look up than the rest of a comparison
_tuple: Final = tuple.__new__
_SUMMED = 0x2144DF1C  # the CRC-32 of any bytes with theirs behind them
_HEADER = struct.Struct("<IBIIIH")
_HEAD = struct.Struct("<I")  # of a packet: its length, and its number in the fourth byte


class ServerRefused(Exception):
    """The server sent an error packet: (code, text)."""

    @classmethod
    def read(cls, body: bytes) -> ServerRefused:
        """Return what the body of an error packet says."""
        text = body[9:] if body[3:4] == b"#" else body[3:]
        return cls(int.from_bytes(body[1:3], "little"), text.decode("utf-8", "replace"))


def framed(body: bytes) -> bytes:
    """Return a command, of less than 16 MiB, as the packet that it is sent in."""
    return _HEAD.pack(len(body)) + body


def whole(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the body that begins with the packet at ``data[at]``, and where its last packet ends; None while that has not come."""
    parts = []
    while len(data) - at >= 4:
        size = _HEAD.unpack_from(data, at)[0] & FULL_PACKET
        at += 4 + size
        if at > len(data):
            break
        parts.append(data[at - size : at])
        if size < FULL_PACKET:
            return parts[0] if len(parts) == 1 else b"".join(parts), at
    return None


def missing(data: bytes) -> int:
    """Return how many bytes the packet lacks that `data` begins with; 0 where not even its length has come."""
    return 4 + (_HEAD.unpack_from(data)[0] & FULL_PACKET) - len(data) if len(data) >= 4 else 0


class PacketSplitter:
    """Receive into `buffer`, say how much came with `took`, or `feed` it bytes; it returns the events that became whole.

    `leaves_out` says of an event, by its type and the first 8 bytes of its body, whether the rest is not wanted: asked of an event over
    several packets, once the events before it were handled, as they may have what tells. It is not held then: it is handed out with
    the beginning of its body, its size and checksum verified as of any other.
    """

    def __init__(self, sequence: int = 1, leaves_out: LeavesOut | None = None) -> None:
        self._sequence, self._leaves_out = sequence, leaves_out
        self._asked = False  # of the large event that `_parts` begins with
        self._passed: _PassedOver | None = None  # the event that is left out and not at its end yet
        self._parts: list[bytes] = []
        self._size = 0  # bytes in _parts
        self._need = 4  # bytes wanted before the next look: a large event is joined once, not at every chunk
        self._events = EventSplitter()
        self._buffer = bytearray()

    def buffer(self, size: int) -> memoryview:
        """Return memory for `size` bytes, to receive into."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]

    def took(self, size: int) -> list[RawEvent]:
        """Take the first `size` bytes of `buffer`. Returns and raises as `feed`."""
        return self.feed(bytes(memoryview(self._buffer)[:size]))

    def feed(self, chunk: bytes) -> list[RawEvent]:
        """Return the events that `chunk` completes. Raises `ServerRefused`, `LinkLost`, `UnsupportedEvent`."""
        events: list[RawEvent] = []
        if self._passed is not None:
            chunk = b"".join([*self._parts, chunk])
            self._parts, self._size = [], 0
            chunk = self._pass_over(chunk, events)
            if self._passed is not None:
                self._parts, self._size = [chunk], len(chunk)
                return events
        self._size += len(chunk)
        if self._size < self._need:
            self._parts.append(chunk)
            return events
        data = b"".join([*self._parts, chunk]) if self._parts else chunk
        view, at, end, sequence = memoryview(data), 0, len(data), self._sequence
        take = self._events.take
        self._need = 4
        while end - at >= 4:
            size = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            stop = at + 4 + size
            if stop > end:
                self._need = 4 + size
                if size == FULL_PACKET and self._leaves_out is not None and not self._asked:
                    if events or end - at < _NAMED:
                        self._need = _NAMED  # what comes before it is handled first
                    elif self._is_left_out(data[at:]):
                        rest = self._pass_over(data[at + 5 :], events)
                        self._need, self._parts, self._size = 4, [rest] if rest else [], len(rest)
                        return events
                break
            if data[at + 3] != sequence:
                raise LinkLost(f"packet {data[at + 3]} came where {sequence} was due")
            if size == FULL_PACKET:
                packets, need = self._long(data, at, end)
                if need:
                    self._need = need
                    break
                event = b"".join([data[a:b] for a, b in packets])
                self.check_status(event)
                events.append(take(memoryview(event), 1, len(event)))
                sequence = sequence + len(packets) & 255
                at = packets[-1][1]
                self._asked = False
                continue
            if size < 1 + HEADER_SIZE or data[at + 4]:
                self.check_status(data[at + 4 : stop])
            sequence = sequence + 1 & 255
            events.append(take(view, at + 5, stop))
            at = stop
        self._sequence = sequence
        rest = data[at:]
        self._parts, self._size = [rest] if rest else [], len(rest)
        return events

    def _is_left_out(self, data: bytes) -> bool:
        """Whether the event whose first packet `data` begins with is left out; it is begun to be passed over then."""
        self._asked = True
        code, size = data[9], int.from_bytes(data[14:18], "little")
        if data[3] != self._sequence or data[4] or self._events.checksum is None or size < FULL_PACKET - 1:
            return False
        if self._leaves_out is None or not self._leaves_out(code, data[5 + HEADER_SIZE : _NAMED]):
            return False
        self._passed = _PassedOver(size)
        self._sequence = self._sequence + 1 & 255
        return True

    def _pass_over(self, data: bytes, events: list[RawEvent]) -> bytes:
        """Look at what came of the event that is left out, and return what is left; at its end it is in `events`."""
        passed, at = self._passed, 0
        assert passed is not None
        while passed.left or passed.more:
            if passed.left:
                taken = min(passed.left, len(data) - at)
                passed.take(data[at : at + taken])
                at += taken
                if passed.left:
                    break
            elif len(data) - at < 4:
                break
            elif data[at + 3] != self._sequence:
                raise LinkLost(f"packet {data[at + 3]} came where {self._sequence} was due")
            else:
                passed.left = data[at] | data[at + 1] << 8 | data[at + 2] << 16
                passed.more = passed.left == FULL_PACKET
                self._sequence = self._sequence + 1 & 255
                at += 4
        if not passed.left and not passed.more:
            self._passed, self._asked, self._need = None, False, 4
            events.append(passed.event(summed=bool(self._events.checksum)))
        return data[at:]

    def _long(self, data: bytes, at: int, end: int) -> tuple[list[tuple[int, int]], int]:
        """Find the packets of one long event: ([(from, to) ...], 0), or ([], bytes needed from `at`)."""
        start, sequence = at, data[at + 3]
        packets: list[tuple[int, int]] = []
        while True:
            if end - at < 4:
                return [], at + 4 - start
            size = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            if at + 4 + size > end:
                return [], at + 4 + size - start
            if data[at + 3] != sequence + len(packets) & 255:
                raise LinkLost(f"packet {data[at + 3]} came where {sequence + len(packets) & 255} was due")
            packets.append((at + 4, at + 4 + size))
            at += 4 + size
            if size < FULL_PACKET:
                return packets, 0

    @staticmethod
    def check_status(packet: bytes) -> None:
        """Raise what a packet means that is not an event."""
        if packet[:1] == b"\xff" and len(packet) >= 3:
            raise ServerRefused.read(packet)
        if packet[:1] == b"\xfe":
            raise LinkLost("the server ended the stream; it is shutting down")
        if packet[:1] != b"\0" or len(packet) < 1 + HEADER_SIZE:
            raise LinkLost(f"a packet of {len(packet)} bytes is not an event")


class _PassedOver:
    """A large event that is left out: its beginning, and its checksum so far."""

    def __init__(self, size: int) -> None:
        self._size, self._came = size, 0  # bytes by its header; that came
        self.left, self.more = FULL_PACKET - 1, True  # bytes left of its packet; whether another follows
        self._kept, self._end, self._checksum = b"", b"", 0

    def take(self, data: bytes) -> None:
        """Look at more of the event's bytes."""
        summed = max(0, min(len(data), self._size - 4 - self._came))
        self._kept += data[: max(0, KEPT - len(self._kept))]
        self._checksum = zlib.crc32(memoryview(data)[:summed], self._checksum)
        self._end = (self._end + data[summed:])[:4]
        self._came += len(data)
        self.left -= len(data)

    def event(self, *, summed: bool) -> RawEvent:
        """Return it, with the beginning of its body. Raises `ChecksumMismatch`, `UnsupportedEvent`."""
        timestamp, code, server_id, size, end, flags = _HEADER.unpack_from(self._kept)
        if self._came != size:
            raise SlowSplitter.wrong_size(code, size, self._came)
        if summed and self._checksum != int.from_bytes(self._end, "little"):
            raise SlowSplitter.wrong_checksum(code, end)
        return RawEvent(code, timestamp, server_id, size, end, flags, self._kept[HEADER_SIZE:])


class EventSplitter:
    """Cuts one event into header, body and checksum, and verifies the checksum. Knows of it from the FORMAT events."""

    def __init__(self, checksum: bool | None = None) -> None:
        self.checksum = checksum  # whether the events have one; None until the first FORMAT event

    def take(self, data: memoryview, at: int, stop: int) -> RawEvent:
        """Return the event in ``data[at:stop]``. Raises `ChecksumMismatch`, `UnsupportedEvent`."""
        timestamp, code, server_id, size, end, flags = _HEADER.unpack_from(data, at)
        if size != stop - at:
            raise UnsupportedEvent(f"an event of type {code} says {size} bytes and has {stop - at}; is the binlog damaged?")
        last = stop
        if code == _FORMAT:
            self.checksum = format_checksum(bytes(data[at + HEADER_SIZE : stop]))
            last -= 4  # always has space for one
        elif self.checksum or (self.checksum is None and _sums_up(data, at, stop)):
            # before any FORMAT comes an artificial ROTATE: whether it has a checksum shows by its own bytes
            if not _sums_up(data, at, stop):
                raise ChecksumMismatch(f"the checksum of an event of type {code} that ends at {end} is wrong")
            last -= 4
        fields = code, timestamp, server_id, size, end, flags, bytes(data[at + HEADER_SIZE : last])
        return _tuple(RawEvent, fields)  # as RawEvent(*fields), in less than half of its time


def _sums_up(data: memoryview, at: int, stop: int) -> bool:
    return stop - at >= HEADER_SIZE + 4 and zlib.crc32(data[at:stop]) == _SUMMED


def singly(piece: Any) -> Iterable[RawEvent]:
    """The events of `piece`, of what a splitter returns: one event, or a compiled run of them."""
    return (piece,) if isinstance(piece, RawEvent) else piece.raw(RawEvent)


def new_splitter(sequence: int = 1, leaves_out: LeavesOut | None = None) -> Any:
    """Return what cuts the server's bytes into events: `PacketSplitter`, compiled where that is there."""
    return compiled.Splitter(SlowSplitter(), sequence, leaves_out) if COMPILED else PacketSplitter(sequence, leaves_out)


class SlowSplitter:
    """What the compiled splitter asks of Python: errors, and the FORMAT event's checksum."""

    check_status = staticmethod(PacketSplitter.check_status)
    format_checksum = staticmethod(events.format_checksum)

    @staticmethod
    def out_of_order(seen: int, due: int) -> Exception:
        """Return the error for a packet with the wrong number."""
        return LinkLost(f"packet {seen} came where {due} was due")

    @staticmethod
    def wrong_size(code: int, said: int, size: int) -> Exception:
        """Return the error for an event whose header gives another size."""
        return UnsupportedEvent(f"an event of type {code} says {said} bytes and has {size}; is the binlog damaged?")

    @staticmethod
    def wrong_checksum(code: int, end: int) -> Exception:
        """Return the error for an event with a wrong checksum."""
        return ChecksumMismatch(f"the checksum of an event of type {code} that ends at {end} is wrong")
