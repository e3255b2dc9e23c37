"""Compressed events: MariaDB's log_bin_compress, MySQL's transaction payloads, and damaged ones."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import pytest
import zstandard

from shmstore.errors import UnsupportedEvent
from shmstore.producer.binlog.compression import payload_events, uncompress, uncompress_column, uncompress_query
from shmstore.producer.binlog.rows import ROWS_EVENTS
from tests.producer.decoding import PAYLOAD, QUERY_COMPRESSED, TABLE_MAP, Log, database_of, plain, reference, run
from tests.servers.server import Server


def work(connection: Any) -> None:
    """The same changes, whatever the log's form: bulk and single rows, a text of 100 kB."""
    values = ", ".join(f"({i}, repeat('world{i}', 20), {i})" for i in range(1, 500))
    run(
        connection,
        f"INSERT INTO t VALUES {values}",
        "UPDATE t SET n = n + 1",
        "INSERT INTO t VALUES (1000, repeat('x', 100000), NULL)",
        "DELETE FROM t WHERE id % 2",
    )


def rows_of(log: Log) -> list[tuple[Any, ...]]:
    return [(event.type, *row) for event in log.seen() for row in event.rows]


@pytest.mark.server
def test_mariadb_compressed_events_equal_plain_ones(mariadb: Server) -> None:
    """log_bin_compress=ON: the same rows and statements come out of events 165 to 168 as of plain ones."""
    with database_of(mariadb, "pressed") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, v longtext, n int)")
        log.skip()
        work(connection)
        plain = rows_of(log)
        run(connection, "TRUNCATE t", "SET GLOBAL log_bin_compress_min_len = 10", "SET GLOBAL log_bin_compress = ON")
        try:
            log.skip()
            work(connection)
            start = log.position
            pressed = rows_of(log)
            log.position = start
            kinds = {type_ for type_, _ in log.events()}
            assert {166, 167, 168} <= kinds
            assert not kinds & {23, 24, 25}
            assert pressed == plain
            run(connection, "ALTER TABLE t ADD COLUMN `größe` int DEFAULT 7 COMMENT 'a statement that is long enough'")
            start = log.position
            (query,) = (q for q in log.queries() if b"ALTER" in q)
            log.position = start
            assert any(type_ == QUERY_COMPRESSED for type_, _ in log.events())
            assert "ADD COLUMN `größe` int" in query.decode()
        finally:
            run(connection, "SET GLOBAL log_bin_compress = OFF")


@pytest.mark.server
def test_mysql_compressed_transactions_equal_plain_ones(mysql: Server) -> None:
    """binlog_transaction_compression=ON: the same rows come out of transaction payloads."""
    with database_of(mysql, "pressed") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, v longtext, n int)")
        log.skip()
        work(connection)
        plain = rows_of(log)
        run(connection, "TRUNCATE t", "SET SESSION binlog_transaction_compression = ON")
        log.skip()
        work(connection)
        start = log.position
        assert rows_of(log) == plain
        log.position = start
        assert sum(type_ == PAYLOAD for type_, _ in log.events()) == 4


def test_version_2_forms_of_mariadb_compressed_rows() -> None:
    """Types 169 to 171 differ from 166 to 168 by the extra data alone (no server here writes them)."""
    names = b"\x01\x01\x00" + b"\x04\x02\x01a"
    map_ = b"\x01\0\0\0\0\0\x01\0\x01d\0\x01t\0\x01\x03\0\0" + names
    row = b"\0\x05\0\0\0"
    squeezed = b"\x81" + bytes([len(row)]) + zlib.compress(row)
    head = b"\x01\0\0\0\0\0\x01\0"
    decoder = reference()
    decoder.table_map(map_)
    for v1, v2 in ((166, 169), (168, 171)):
        first = decoder.rows(v1, head + b"\x01\x01" + squeezed)
        second = decoder.rows(v2, head + b"\x05\0\0\x01\x02" + b"\x01\x01" + squeezed)
        assert plain(first.body) == plain(second.body)
        assert [[5]] in plain(first.body)
    both = b"\x81" + bytes([2 * len(row)]) + zlib.compress(row * 2)
    one, two = decoder.rows(167, head + b"\x01\x01\x01" + both), decoder.rows(170, head + b"\x02\0\x01\x01\x01" + both)
    assert plain(one.body) == plain(two.body)


# ---------------------------------------------------------------- payloads made by hand


def event(type_: int, body: bytes) -> bytes:
    return b"\0\0\0\0" + bytes([type_]) + b"\x01\0\0\0" + (19 + len(body)).to_bytes(4, "little") + bytes(6) + body


def payload(data: bytes, kind: int = 0, size: int | None = None, plain: int = 0) -> bytes:
    def field(tag: int, value: int) -> bytes:
        return bytes([tag, 9, 254]) + value.to_bytes(8, "little")

    return field(2, kind) + field(3, plain) + field(1, len(data) if size is None else size) + b"\0" + data


INNER = event(2, b"abc") + event(16, bytes(8))


@pytest.mark.parametrize("streaming", [False, True])
def test_payload_gives_its_events_in_order(streaming: bool) -> None:
    """A payload is a run of whole events without checksums; frames may lack their size."""
    if streaming:
        compressor = zstandard.ZstdCompressor().compressobj()
        data = compressor.compress(INNER) + compressor.flush()
    else:
        data = zstandard.compress(INNER)
    found = list(payload_events(payload(data, plain=len(INNER))))
    assert [(header[4], body) for header, body in found] == [(2, b"abc"), (16, bytes(8))]
    assert all(len(header) == 19 for header, _ in found)


def test_payload_stored_plain() -> None:
    """Compression type 255 is none."""
    assert [body for _, body in payload_events(payload(INNER, kind=255))] == [b"abc", bytes(8)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02",
        payload(b"not zstd", plain=5),
        payload(zstandard.compress(INNER), plain=len(INNER) - 1),
        payload(zstandard.compress(INNER), plain=len(INNER) + 1),
        payload(zstandard.compress(INNER), plain=1 << 40),
        payload(zstandard.compress(INNER)[:-4], plain=len(INNER)),
        payload(zstandard.compress(INNER), size=10_000, plain=len(INNER)),
        payload(INNER, kind=7),
        payload(INNER[:-1], kind=255),
        payload(event(2, b"x")[:9] + bytes(30), kind=255),  # an inner event of no length
    ],
)
def test_damaged_payloads_are_refused(body: bytes) -> None:
    """Every damaged payload is UnsupportedEvent, and names its type."""
    with pytest.raises(UnsupportedEvent, match="type 40"):
        list(payload_events(body))


def test_a_payload_bomb_takes_no_memory_it_does_not_announce() -> None:
    """Data that grows past the announced size stops there: 256 MiB of zeros in 25 kB are not unpacked."""
    compressor = zstandard.ZstdCompressor(level=19).compressobj()
    bomb = payload(b"".join([compressor.compress(bytes(1 << 20)) for _ in range(256)]) + compressor.flush(), plain=100)
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedEvent, match="announced"):
            list(payload_events(bomb))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- zlib forms


def test_uncompress_reads_all_widths_of_length() -> None:
    """The length may take 1 to 4 bytes."""
    for width in (1, 2, 3, 4):
        assert uncompress(bytes([0x80 | width]) + (200).to_bytes(width, "big") + zlib.compress(b"y" * 200)) == b"y" * 200


@pytest.mark.parametrize(
    "data", [b"\x80\x05", b"\x05abc", b"\x91\x05abc", b"\x81", b"\x81\x05" + zlib.compress(b"123456"), b"\x81\x03xyz"]
)
def test_damaged_compressed_bytes_raise_plain_errors(data: bytes) -> None:
    """What `rows` turns into UnsupportedEvent: ValueError or zlib.error, for events and for columns."""
    with pytest.raises((ValueError, zlib.error)):
        uncompress(data)
    with pytest.raises((ValueError, zlib.error)):
        uncompress_column(data)


def test_columns_stored_as_they_are() -> None:
    """An empty value has no header; a short one is stored behind a zero."""
    assert uncompress_column(b"") == b""
    assert uncompress_column(b"\0abc") == b"abc"


@pytest.mark.parametrize("body", [b"", b"\0" * 12, bytes(8) + b"\x03" + bytes(4) + b"abc\0" + b"\x81\x05x"])
def test_damaged_compressed_statements_are_refused(body: bytes) -> None:
    """A QUERY_COMPRESSED event that cannot be read is UnsupportedEvent."""
    with pytest.raises(UnsupportedEvent, match="type 165"):
        uncompress_query(body)


def test_every_rows_event_type_is_listed() -> None:
    """ROWS_EVENTS holds what rows() takes, so that no rows event passes by undecoded."""
    assert {23, 24, 25, 30, 31, 32, 39, 166, 167, 168, 169, 170, 171} == ROWS_EVENTS
    assert TABLE_MAP not in ROWS_EVENTS
