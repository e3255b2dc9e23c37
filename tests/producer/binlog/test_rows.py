"""Rows events of real servers: images, compressed forms, table ids, and what cannot be decoded."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from shmstore.encoding import codec
from shmstore.errors import SchemaUnknown, UnsupportedEvent
from shmstore.event import ABSENT, EventType
from shmstore.producer.binlog.rows import ROWS_EVENTS, RowsDecoder
from tests.producer.decoding import TABLE_MAP, Log, database_of, plain, reference, run
from tests.servers.server import Server, start_server

COLUMNS = "id int primary key, n int, v varchar(40), t text, b blob"


@pytest.fixture
def table(any_server: Server) -> Iterator[tuple[Any, Log]]:
    """An empty table t on each server: (connection, log)."""
    with database_of(any_server, "rows_test") as (connection, log):
        run(connection, f"CREATE TABLE t ({COLUMNS})")
        log.skip()
        yield connection, log


# ---------------------------------------------------------------- row images

CHANGES = (
    "INSERT INTO t (id, n, v, t, b) VALUES (1, 10, 'a', 'text', 'blob')",
    "INSERT INTO t (id, v) VALUES (2, 'only')",
    "UPDATE t SET v = 'new' WHERE id = 1",
    "UPDATE t SET t = NULL, n = n + 1 WHERE id = 1",
    "DELETE FROM t WHERE id = 1",
)
X = ABSENT
IMAGES = {
    "full": [
        (None, (1, 10, "a", "text", b"blob")),
        (None, (2, None, "only", None, None)),
        ((1, 10, "a", "text", b"blob"), (1, 10, "new", "text", b"blob")),
        ((1, 10, "new", "text", b"blob"), (1, 11, "new", None, b"blob")),
        ((1, 11, "new", None, b"blob"), None),
    ],
    "minimal": [
        (None, (1, 10, "a", "text", b"blob")),
        (None, (2, X, "only", X, X)),
        ((1, X, X, X, X), (X, X, "new", X, X)),
        ((1, X, X, X, X), (X, 11, X, None, X)),
        ((1, X, X, X, X), None),
    ],
    "noblob": [
        (None, (1, 10, "a", "text", b"blob")),
        (None, (2, None, "only", X, X)),
        ((1, 10, "a", X, X), (1, 10, "new", X, X)),
        ((1, 10, "new", X, X), (1, 11, "new", None, X)),
        ((1, 11, "new", X, X), None),
    ],
}


@pytest.mark.server
@pytest.mark.parametrize("image", list(IMAGES))
def test_row_images_tell_null_from_absent(table: tuple[Any, Log], image: str) -> None:
    """FULL, MINIMAL and NOBLOB: a column that the image lacks is ABSENT, never None."""
    connection, log = table
    run(connection, f"SET SESSION binlog_row_image = {image}", *CHANGES)
    events = log.seen()
    assert [event.type.name for event in events] == ["INSERT", "INSERT", "UPDATE", "UPDATE", "DELETE"]
    found = [tuple(row) for event in events for row in event.rows]
    assert found == IMAGES[image]


@pytest.mark.server
def test_full_nodup_images_are_whole() -> None:
    """MariaDB's FULL_NODUP leaves out of the image after what did not change: it is taken from the one before, so that rows are whole."""
    with start_server("mariadb118") as server, database_of(server, "nodup") as (connection, log):
        for key in ("PRIMARY KEY", "NOT NULL UNIQUE"):
            run(connection, f"CREATE OR REPLACE TABLE t (id INT {key}, n INT, v VARCHAR(40), t TEXT, b BLOB)")
            log.skip()
            run(connection, "SET SESSION binlog_row_image = FULL_NODUP", *CHANGES, "UPDATE t SET id = 3, n = NULL")
            found = [tuple(row) for event in log.seen() for row in event.rows]
            assert found == [*IMAGES["full"], ((2, None, "only", None, None), (3, None, "only", None, None))]


@pytest.mark.server
def test_event_types_are_those_of_the_server(table: tuple[Any, Log], any_server: Server) -> None:
    """MySQL writes version 2 rows events, MariaDB version 1: both are read."""
    connection, log = table
    run(connection, *CHANGES)
    kinds = {event.event_type for event in log.seen()}
    assert kinds == ({23, 24, 25} if any_server.flavor == "mariadb" else {30, 31, 32})


@pytest.mark.server
def test_many_rows_and_events_of_one_statement_keep_order(table: tuple[Any, Log]) -> None:
    """A statement of 5,000 rows comes in several events, rows in the order they were written."""
    connection, log = table
    values = ", ".join(f"({i}, {i * 3 if i % 7 else 'NULL'}, 'v{i}', NULL, repeat('b', {i % 50}))" for i in range(5000))
    run(connection, f"INSERT INTO t VALUES {values}", "UPDATE t SET n = -id", "DELETE FROM t")
    events = log.seen()
    assert len(events) > 10
    inserted = [row.after for event in events if event.type is EventType.INSERT for row in event.rows]
    assert inserted == [(i, i * 3 if i % 7 else None, f"v{i}", None, b"b" * (i % 50)) for i in range(5000)]
    updated = [row for event in events if event.type is EventType.UPDATE for row in event.rows]
    assert [(row.before[1], row.after[1]) for row in updated] == [(i * 3 if i % 7 else None, -i) for i in range(5000)]
    deleted = [row.before[:2] for event in events if event.type is EventType.DELETE for row in event.rows]
    assert deleted == [(i, -i) for i in range(5000)]


@pytest.mark.server
def test_a_table_that_changes_between_events_is_read_as_it_was(table: tuple[Any, Log]) -> None:
    """Metadata travels with the event: rows from before an ALTER keep the old columns, names, types and key."""
    connection, log = table
    run(
        connection,
        "INSERT INTO t (id, n) VALUES (1, 1)",
        "ALTER TABLE t DROP COLUMN b, CHANGE n m bigint unsigned, ADD COLUMN e enum('x','y') FIRST, DROP PRIMARY KEY, ADD PRIMARY KEY (m, id)",
        "INSERT INTO t (id, m, e) VALUES (2, 18446744073709551615, 'y')",
        "RENAME TABLE t TO `ünï cödé`",
        "INSERT INTO `ünï cödé` (id, m) VALUES (3, 1)",
    )
    first, second, third = log.seen()
    assert first.schema.names == ("id", "n", "v", "t", "b")
    assert second.schema.names == ("e", "id", "m", "v", "t")
    assert second.schema.primary_key == (2, 1)
    assert second.rows[0].after == ("y", 2, 2**64 - 1, None, None)
    assert third.schema.table == "ünï cödé"


@pytest.mark.server
def test_primary_keys_with_prefix_and_without(table: tuple[Any, Log]) -> None:
    """Key columns come in key order, with or without prefix lengths; a table without key has none."""
    connection, log = table
    run(
        connection,
        "CREATE TABLE p (a varchar(99), b int, c varchar(99), primary key (c(10), a(5)))",
        "CREATE TABLE q (a int)",
        "INSERT INTO p VALUES ('a', 1, 'c')",
        "INSERT INTO q VALUES (1)",
    )
    first, second = log.seen()
    assert first.schema.primary_key == (2, 0)
    assert second.schema.primary_key == ()


@pytest.mark.server
def test_binlog_without_checksums(any_server: Server) -> None:
    """binlog_checksum=NONE: the last bytes of an event are data (the primary key survives)."""
    with database_of(any_server, "unchecked") as (connection, log):
        run(connection, "SET GLOBAL binlog_checksum = NONE", f"CREATE TABLE t ({COLUMNS})")
        try:
            log.skip()
            run(connection, *CHANGES)
            events = log.seen()
            assert events[0].schema.primary_key == (0,)
            assert [tuple(row) for event in events for row in event.rows] == IMAGES["full"]
        finally:
            run(connection, "SET GLOBAL binlog_checksum = CRC32")


# ---------------------------------------------------------------- the decoder's memory


@pytest.mark.server
def test_table_maps_are_parsed_once_and_forgotten_on_clear(table: tuple[Any, Log]) -> None:
    """The same TABLE_MAP bytes give the same object; after clear() a rows event needs its TABLE_MAP again."""
    connection, log = table
    run(connection, *CHANGES)
    events = log.events()
    maps = [body for type_, body in events if type_ == TABLE_MAP]
    decoder = reference()
    first = decoder.table_map(maps[0])
    assert all(decoder.table_map(body) is first for body in maps)
    other_id = (int.from_bytes(maps[0][:6], "little") + 1).to_bytes(6, "little") + maps[0][6:]
    assert decoder.table_map(other_id).layout is first.layout  # compiled once for both ids
    rows = next((type_, body) for type_, body in events if type_ in ROWS_EVENTS)
    assert decoder.table_of(rows[1]) is first
    assert decoder.rows(*rows).count == 1
    decoder.clear()
    with pytest.raises(UnsupportedEvent, match="TABLE_MAP was not seen"):
        decoder.rows(*rows)
    assert decoder.table_map(maps[0]) is first


@pytest.mark.server
def test_a_reused_table_id_means_the_newer_table(table: tuple[Any, Log]) -> None:
    """Ids start again after a server restart: the map that came last counts."""
    connection, log = table
    run(connection, "CREATE TABLE u (x int)", "INSERT INTO t (id) VALUES (1)", "INSERT INTO u VALUES (77)")
    events = log.events()
    maps = [body for type_, body in events if type_ == TABLE_MAP]
    rows = [(type_, body) for type_, body in events if type_ in ROWS_EVENTS]
    decoder = reference()
    decoder.table_map(maps[0])
    decoder.table_map(maps[0][:6] + maps[1][6:])  # table u under the id of t
    decoded = decoder.rows(rows[1][0], maps[0][:6] + rows[1][1][6:])
    assert decoded.table.table == "u"
    assert plain(decoded.body)[3] == [[77]]


def test_an_event_that_only_ends_a_statement_has_no_rows() -> None:
    """The server's dummy event (table id 0xffffff) decodes to nothing, without a TABLE_MAP."""
    decoded = reference().rows(30, b"\xff\xff\xff\0\0\0" + b"\x01\0" + b"\x02\0" + b"\0")
    assert decoded.count == 0
    assert decoded.body == [None, None, None, None]


# ---------------------------------------------------------------- errors


def table_map(names: bytes = b"\x01a", types: bytes = b"\x03", meta: bytes = b"", tags: bytes = b"\x01\x01\x00") -> bytes:
    """A TABLE_MAP of database d, table t, table id 1."""
    head = b"\x01\0\0\0\0\0" + b"\x01\0" + b"\x01d\0" + b"\x01t\0" + bytes([len(types)]) + types
    optional = tags + (bytes([4, len(names)]) + names if names else b"")
    return head + bytes([len(meta)]) + meta + bytes((len(types) + 7) // 8) + optional


def rows(values: bytes, columns: int = 1, present: bytes = b"\x01") -> bytes:
    return b"\x01\0\0\0\0\0" + b"\x01\0" + b"\x02\0" + bytes([columns]) + present + values


def test_handmade_event_decodes() -> None:
    """The bytes of the next tests are right where nothing is damaged."""
    decoder = reference()
    assert decoder.table_map(table_map()).schema.names == ("a",)
    assert plain(decoder.rows(30, rows(b"\0" + struct.pack("<i", -5) + b"\x01")).body) == [None, None, None, [[-5], [None]]]


@pytest.mark.parametrize(
    ("event_type", "body", "match"),
    [
        (30, rows(b"\0\x01\x02"), "cannot be decoded"),
        (30, rows(b"\0\x01\x02\x03\x04\0"), "cannot be decoded"),
        (30, rows(b"", columns=2), "2 columns, its TABLE_MAP has 1"),
        (30, rows(b"\0\x01\x02\x03\x04", present=b""), "cannot be decoded"),
        (30, b"\x01\0\0\0\0\0\x01\0\x02\0\x01", "cut off"),
        (30, rows(b"", present=b"\0"), "no column is present"),
        (31, rows(b"\0\x01\x02\x03\x04"), "cannot be decoded"),
        (30, b"\x01\0", "cannot be decoded|TABLE_MAP was not seen"),
        (30, b"", "TABLE_MAP was not seen"),
        (169, rows(b"\x7fgarbage"), "compression header"),
        (169, rows(b"\x81\x05" + zlib.compress(b"\0\x01\x02\x03\x04")[:-3]), "cannot be decoded"),
        (169, rows(b"\x84\xff\xff\xff\xff" + zlib.compress(b"x")), "cannot hold"),
        (99, rows(b""), "event type 99"),
        (39, rows(b"\0\x01\x02\x03\x04\x07", present=b"\x01\x01"), "row value options"),
    ],
)
def test_damaged_rows_name_event_and_table(event_type: int, body: bytes, match: str) -> None:
    """Whatever is wrong with an event, the error is UnsupportedEvent and says which event and table; compiled or not."""
    for decoder in (reference(), RowsDecoder()):
        decoder.table_map(table_map())
        with pytest.raises(UnsupportedEvent, match=match) as error:
            decoder.rows(event_type, body)
        assert "d.t" in str(error.value) or "table id" in str(error.value) or "event type 99" in str(error.value)


@pytest.mark.parametrize("tail", [b"\x05ab", b"\x03ab", b"\xff"])
def test_text_that_runs_past_the_event_is_refused(tail: bytes) -> None:
    """A length that points behind the end is damage, not a shorter text."""
    decoder = reference()
    decoder.table_map(table_map(b"\x02id\x01v", b"\x03\x0f", struct.pack("<H", 255), b"\x01\x01\x00\x02\x01\x3f"))
    whole = b"\0" + struct.pack("<i", 1) + b"\x02ab"
    assert decoder.rows(30, rows(whole * 2, columns=2, present=b"\x03")).body[3] == [(1, b"ab")] * 2
    with pytest.raises(UnsupportedEvent, match="past the end"):
        decoder.rows(30, rows(whole + b"\0" + struct.pack("<i", 2) + tail, columns=2, present=b"\x03"))


def test_a_bad_value_names_its_column() -> None:
    """Text that is not of the column's character set is refused, with the column's name, not replaced."""
    decoder = reference()
    decoder.table_map(table_map(b"\x02id\x05na\\me", b"\x03\x0f", struct.pack("<H", 100), b"\x01\x01\x00\x02\x01\x2d"))
    body = rows(b"\0" + struct.pack("<i", 1) + b"\x02\xc3\x28", columns=2, present=b"\x03")
    with pytest.raises(UnsupportedEvent, match=r"column 'na\\\\me' of table d.t cannot be decoded: 'utf-8' codec") as raised:
        decoder.rows(30, body)
    assert str(raised.value).count("table d.t") == 1
    assert "mysqlbinlog" not in str(raised.value), "the binlog is sound"


def test_a_table_without_names_is_an_error_only_when_it_is_wanted() -> None:
    """Metadata MINIMAL without a history: the map is taken in, schema and rows raise SchemaUnknown with what to do."""
    decoder = reference()
    map_ = decoder.table_map(table_map(names=b""))
    assert (map_.database, map_.table) == ("d", "t")
    with pytest.raises(SchemaUnknown, match="binlog_row_metadata=FULL"):
        _ = map_.schema
    with pytest.raises(SchemaUnknown, match=r"table d\.t"):
        _ = map_.schema_blob
    with pytest.raises(SchemaUnknown):
        decoder.rows(30, rows(b"\0\x01\x02\x03\x04"))


def test_an_unknown_type_is_an_error_only_when_it_is_wanted() -> None:
    """A type byte of a future server stops only who asks for the table."""
    decoder = reference()
    map_ = decoder.table_map(table_map(types=b"\xa7"))
    assert map_.table == "t"
    with pytest.raises(UnsupportedEvent, match="type byte 167"):
        decoder.rows(30, rows(b"\0\x01\x02\x03\x04"))


@pytest.mark.server
def test_rows_go_through_the_codec_unchanged(table: tuple[Any, Log]) -> None:
    """The body is what encode_stored takes and decode_stored returns."""
    connection, log = table
    run(connection, *CHANGES)
    decoder = reference()
    for type_, body in log.events():
        if type_ == TABLE_MAP:
            decoder.table_map(body)
        elif type_ in ROWS_EVENTS:
            decoded = decoder.rows(type_, body)
            header = codec.Header(2, int(decoded.type), "", 0, 0, 0, 0, "", 0, 0, "", 0, "", "", {})
            payload = codec.encode_stored(header, decoded.table.schema_blob, decoded.body)
            _, blob, stored = codec.decode_stored(payload)
            assert blob == decoded.table.schema_blob
            assert codec.decode_schema(blob) == decoded.table.schema
            assert stored == plain(decoded.body)


def test_sets_of_columns_without_number_keep_no_decoders_without_number() -> None:
    """MINIMAL images of a table of 12 columns: 4,095 sets of columns are all decoded, and few of their functions kept."""
    names = b"".join(b"\x02c" + bytes([97 + i]) for i in range(12))
    body = b"\x01\0\0\0\0\0\x01\0\x01d\0\x01t\0\x0c" + b"\x01" * 12 + b"\0\0\0" + b"\x01\x02\0\0" + bytes([4, len(names)]) + names
    decoder = reference()
    table = decoder.table_map(body)
    for bits in range(1, 4096):
        present = [i for i in range(12) if bits >> i & 1]
        nulls = bytes((len(present) + 7) // 8)
        decoded = decoder.rows(30, rows(nulls + bytes(present), columns=12, present=struct.pack("<H", bits)))
        assert decoded.body == [None, None, None if len(present) == 12 else present, [tuple(present)]]
    assert len(table.layout.decoders) <= 256
