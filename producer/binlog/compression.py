"""Compressed events and columns: MariaDB's events 165 to 171 and COMPRESSED columns (zlib), MySQL's type 40 (zstd).

A compressed length is never believed before it was checked against what its bytes could hold at most, so that a damaged
event cannot ask for memory it does not need.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from shmstore.errors import UnsupportedEvent, install
from shmstore.producer.values.varint import packed

__all__ = ["cut_events", "payload_events", "payload_pieces", "uncompress", "uncompress_column", "uncompress_query"]

_LARGEST = 1 << 30  # max_allowed_packet's own bound: no event or value is larger
_ZLIB_RATIO = 1032  # what deflate reaches at the very best
_HEADER = 19
_PIECE = 1 << 18
_LARGE = 1 << 20


def uncompress(data: bytes | memoryview) -> bytes | memoryview:
    """Return what MariaDB's binlog compressed (log_bin_compress): rows of events 166 to 171, text of 165.

    First byte: 0x80, algorithm in bits 4 to 6 (0 is zlib), in bits 0 to 2 how many bytes of length follow, highest first.
    Large data is a view of what it was uncompressed into, piece by piece. Raises ValueError or zlib.error where it is not so.
    """
    head = data[0]
    width = head & 0x07
    if not head & 0x80 or head & 0x70 or not 1 <= width <= 4:
        raise ValueError(f"compression header byte {head:#04x}; 0x81 to 0x84 (zlib) can be read")
    size = int.from_bytes(data[1 : 1 + width], "big")
    if size <= _LARGE:
        return _inflate(data[1 + width :], size, zlib.MAX_WBITS)
    return _inflate_large(memoryview(data)[1 + width :], size, zlib.MAX_WBITS)


def uncompress_column(value: bytes) -> bytes:
    """Return the value of a MariaDB COMPRESSED column (VARCHAR ... COMPRESSED, TEXT COMPRESSED ...).

    First byte: 0 for a value stored as it is, else 0x80 (zlib) + 8 where the zlib header is left out + how many bytes of
    length follow, highest first. Raises ValueError or zlib.error.
    """
    if not value:
        return b""
    head = value[0]
    if head == 0:
        return value[1:]
    width = head & 0x07
    if head & 0xF0 != 0x80 or not 1 <= width <= 4:
        raise ValueError(f"column compression byte {head:#04x} is unknown")
    size = int.from_bytes(value[1 : 1 + width], "big")
    return _inflate(value[1 + width :], size, -zlib.MAX_WBITS if head & 0x08 else zlib.MAX_WBITS)


def _inflate(data: bytes | memoryview, size: int, window: int) -> bytes:
    _require_plausible(data, size)
    stream = zlib.decompressobj(window)
    plain = stream.decompress(data, size + 1)
    if len(plain) != size or not stream.eof:
        raise ValueError(f"compressed data of {size} bytes gave {len(plain)}")
    return plain


def _require_plausible(data: bytes | memoryview, size: int) -> None:
    if size > _LARGEST or size > len(data) * _ZLIB_RATIO + 64:
        raise ValueError(f"{len(data)} compressed bytes cannot hold the {size} that they announce")


def _inflate_large(data: memoryview, size: int, window: int) -> memoryview:
    """As `_inflate`, straight into memory of the announced size: zlib itself holds its pieces, and then all of them joined, too."""
    _require_plausible(data, size)
    stream, plain, at = zlib.decompressobj(window), bytearray(size), 0
    for piece in _pieces(stream, data):
        if at + len(piece) > size:
            raise ValueError(f"compressed data of {size} bytes gave more")
        plain[at : at + len(piece)] = piece
        at += len(piece)
    if at != size or not stream.eof:
        raise ValueError(f"compressed data of {size} bytes gave {at}")
    return memoryview(plain)


def _pieces(stream: Any, data: memoryview) -> Iterator[bytes]:
    for i in range(0, len(data), _PIECE):
        rest: bytes | memoryview = data[i : i + _PIECE]
        while rest and not stream.eof:
            yield stream.decompress(rest, _PIECE)
            rest = stream.unconsumed_tail
    while piece := stream.decompress(b"", _PIECE):  # what it has taken in and not given yet
        yield piece


def uncompress_query(body: bytes) -> bytes:
    """Return the body of the QUERY event (type 2) that a MariaDB QUERY_COMPRESSED event (165) contains.

    Only the statement behind thread id, times, status variables and database is compressed. Raises `UnsupportedEvent`.
    """
    try:
        database, variables = body[8], int.from_bytes(body[11:13], "little")
        text = 13 + variables + database + 1
        return b"".join((body[:text], uncompress(body[text:])))
    except (IndexError, ValueError, zlib.error) as error:
        raise UnsupportedEvent(
            f"QUERY_COMPRESSED event (type 165) of {len(body)} bytes cannot be read: {error}; "
            "check the binlog with mariadb-binlog --verify-binlog-checksum, or SET GLOBAL log_bin_compress=OFF"
        ) from error


def payload_pieces(body: bytes | memoryview) -> Iterator[bytes]:
    """Yield the events in a MySQL TRANSACTION_PAYLOAD event (40), in order, some whole ones at a time, back to back.

    They are uncompressed as they are asked for: no more of them is held than a piece and what is left of the last one.
    Needs the zstandard package unless the payload is stored uncompressed. Raises `UnsupportedEvent`, perhaps after some pieces.
    """
    held, before = bytearray(), 0  # of the uncompressed events, and how much came before that
    try:
        size, pieces = _payload(body)
        for piece in pieces:
            held += piece
            at = 0
            while len(held) - at >= _HEADER:
                length = int.from_bytes(held[at + 9 : at + 13], "little")
                if length < _HEADER or before + at + length > size:
                    raise ValueError(f"an inner event of {length} bytes at {before + at} of {size}")
                if at + length > len(held):
                    break
                at += length
            if at:
                yield bytes(memoryview(held)[:at])
                del held[:at]
                before += at
        if held:
            raise ValueError(f"an inner event that begins at {before} of {size} is cut off")
    except (IndexError, ValueError) as error:
        raise UnsupportedEvent(
            f"TRANSACTION_PAYLOAD event (type 40) of {len(body)} bytes cannot be read: {error}; "
            "check the binlog with mysqlbinlog --verify-binlog-checksum, or SET GLOBAL binlog_transaction_compression=OFF"
        ) from error


def cut_events(piece: bytes) -> Iterator[bytes]:
    """Yield each event of a piece."""
    at = 0
    while at < len(piece):
        length = int.from_bytes(piece[at + 9 : at + 13], "little")
        yield piece[at : at + length]
        at += length


def payload_events(body: bytes | memoryview) -> Iterator[tuple[bytes, bytes]]:
    """Yield (19-byte header, body without checksum) of each event in a payload. Raises as `payload_pieces`."""
    for piece in payload_pieces(body):
        for event in cut_events(piece):
            yield event[:_HEADER], event[_HEADER:]


def _payload(body: bytes | memoryview) -> tuple[int, Iterator[bytes | memoryview]]:
    """Read the fields (type, length, value as packed integers; 0 ends them): (bytes uncompressed, their pieces)."""
    fields = {1: len(body), 2: 255, 3: 0}  # 1 payload size, 2 compression (0 zstd, 255 none), 3 size uncompressed
    at = 0
    while True:
        kind, at = packed(body, at)
        if kind == 0:
            break
        width, at = packed(body, at)
        if kind in fields:
            fields[kind], _ = packed(body, at)
        at += width
    data = body[at : at + fields[1]]
    if len(data) != fields[1]:
        raise ValueError(f"a payload of {fields[1]} bytes, {len(data)} are there")
    if fields[2] == 255:
        return len(data), (data[i : i + _PIECE] for i in range(0, len(data), _PIECE))
    if fields[2] != 0:
        raise ValueError(f"compression type {fields[2]} is unknown (0 is zstd)")
    return fields[3], _zstd(data, fields[3])


def _zstd(data: bytes | memoryview, size: int) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise ValueError(f"zstandard is not installed: {install('mysql')}") from error
    if size > 1 << 32:
        raise ValueError(f"{size} bytes uncompressed are more than an event can hold")
    total = 0
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(data, read_across_frames=True) as stream:
            while piece := stream.read(_PIECE):
                total += len(piece)
                if total > size:
                    break
                yield piece
    except (zstandard.ZstdError, MemoryError) as error:
        raise ValueError(f"zstd: {error}") from error
    if total != size:
        raise ValueError(f"{total} bytes uncompressed, {size} announced")
