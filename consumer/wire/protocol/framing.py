"""Frames: a 4-byte big-endian signed length, then that many bytes of one packet."""

from __future__ import annotations

import struct

from shmstore.errors import ProtocolError

_LENGTH = struct.Struct(">i")


def frame(packet: bytes) -> bytes:
    """Return `packet` with its length before it: one buffer for one send."""
    return _LENGTH.pack(len(packet)) + packet


class FrameReader:
    """Cuts a stream of bytes into packets, however it arrives. Holds at most one frame of `limit` bytes and one chunk."""

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take what the socket gave."""
        self._buffer += chunk

    def next(self) -> bytes | None:
        """Return the next whole packet, or None while it is not there.

        Raises `ProtocolError` where the length is negative or above the limit: the stream has no next frame then.
        """
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        if not 0 <= length <= self._limit:
            raise ProtocolError(
                f"a frame claims {length} bytes; allowed are 0 to {self._limit}: this is no canal client, or raise max_frame"
            )
        if len(buffer) < 4 + length:
            return None
        packet = bytes(buffer[4 : 4 + length])
        del buffer[: 4 + length]
        return packet

    @property
    def buffered(self) -> int:
        """Bytes taken and not yet returned."""
        return len(self._buffer)
