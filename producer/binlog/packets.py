"""Bytes in, raw events out: packets of the client/server protocol after a dump command. No socket here.

A packet is length (3 bytes), number (1 byte), then a status byte and one event; an event of 16 MiB and more goes over
several packets, each full but the last. The event is a 19-byte header, a body, and a CRC-32 where the binlog has them.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from shmstore.errors import UnsupportedEvent
from shmstore.producer.binlog import events
from shmstore.producer.binlog.events import HEADER_SIZE, EventCode, RawEvent, format_checksum
from shmstore.producer.errors import ChecksumMismatch, LinkLost
from shmstore.producer.native_code import COMPILED, compiled

FULL_PACKET = 0xFFFFFF
_FORMAT = int(EventCode.FORMAT)  # an enum's member costs more to look up than the rest of a comparison
_HEADER = struct.Struct("<IBIIIH")


class ServerRefused(Exception):
    """The server sent an error packet: (code, text)."""


class PacketSplitter:
    """Receive into `buffer`, say how much came with `took`, or `feed` it bytes; it returns the events that became whole."""

    def __init__(self, sequence: int = 1) -> None:
        self._sequence = sequence
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
        self._size += len(chunk)
        if self._size < self._need:
            self._parts.append(chunk)
            return []
        data = b"".join([*self._parts, chunk]) if self._parts else chunk
        events: list[RawEvent] = []
        view, at, end, sequence = memoryview(data), 0, len(data), self._sequence
        take = self._events.take
        self._need = 4
        while end - at >= 4:
            size = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            stop = at + 4 + size
            if stop > end:
                self._need = 4 + size
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
            text = packet[9:] if packet[3:4] == b"#" else packet[3:]
            raise ServerRefused(int.from_bytes(packet[1:3], "little"), text.decode("utf-8", "replace"))
        if packet[:1] == b"\xfe":
            raise LinkLost("the server ended the stream; it is shutting down")
        if packet[:1] != b"\0" or len(packet) < 1 + HEADER_SIZE:
            raise LinkLost(f"a packet of {len(packet)} bytes is no event")


class EventSplitter:
    """Cuts one event into header, body and checksum, and verifies the checksum. Knows of it from the FORMAT events."""

    def __init__(self, checksum: bool | None = None) -> None:
        self._checksum = checksum  # None until the first FORMAT event

    def take(self, data: memoryview, at: int, stop: int) -> RawEvent:
        """Return the event in ``data[at:stop]``. Raises `ChecksumMismatch`, `UnsupportedEvent`."""
        timestamp, code, server_id, size, end, flags = _HEADER.unpack_from(data, at)
        if size != stop - at:
            raise UnsupportedEvent(f"an event of type {code} says {size} bytes and has {stop - at}; is the binlog damaged?")
        last = stop
        if code == _FORMAT:
            self._checksum = format_checksum(bytes(data[at + HEADER_SIZE : stop]))
            last -= 4  # always has space for one
        elif self._checksum or (self._checksum is None and _sums_up(data, at, stop)):
            # before any FORMAT comes an artificial ROTATE: whether it has a checksum shows by its own bytes
            if not _sums_up(data, at, stop):
                raise ChecksumMismatch(f"the checksum of an event of type {code} that ends at {end} is wrong")
            last -= 4
        return RawEvent(code, timestamp, server_id, size, end, flags, bytes(data[at + HEADER_SIZE : last]))


def _sums_up(data: memoryview, at: int, stop: int) -> bool:
    return stop - at >= HEADER_SIZE + 4 and zlib.crc32(data[at : stop - 4]) == int.from_bytes(data[stop - 4 : stop], "little")


def new_splitter(sequence: int = 1) -> Any:
    """Return what cuts the server's bytes into events: `PacketSplitter`, compiled where that is there."""
    return compiled.Splitter(SlowSplitter(), sequence) if COMPILED else PacketSplitter(sequence)


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
