"""The decoder on damaged and strange streams: a right answer or an error that names the place, never anything else."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EntryType, Event, Position, SourceError, UnsupportedEvent
from shmstore.encoding.codec import decode
from shmstore.producer.binlog.events import EventCode, RawEvent
from shmstore.producer.binlog.files import BinlogFiles
from shmstore.producer.errors import TransactionBroken
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.gtid import GtidSet
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.decoder import EventDecoder
from shmstore.producer.transactions.state import HalfTransaction
from shmstore.sql.tokens import SqlMode
from tests.producer.running import execute
from tests.servers.server import Server, start_server

UUID = "00000000-0000-4000-8000-000000000001"


def raw(code: int, body: bytes, end: int, *, flags: int = 0, length: int = 50) -> RawEvent:
    return RawEvent(code, 1_700_000_000, 7, length, end, flags, body)


def gtid(number: int, end: int) -> RawEvent:
    return raw(EventCode.GTID, b"\0" + bytes.fromhex(UUID.replace("-", "")) + struct.pack("<q", number), end)


def query(sql: str, end: int, database: str = "d", mode: int | None = None) -> RawEvent:
    status = b"" if mode is None else b"\0" + bytes(4) + b"\x01" + struct.pack("<Q", mode)
    body = struct.pack("<IIBHH", 3, 0, len(database), 0, len(status)) + status + database.encode() + b"\0" + sql.encode()
    return raw(EventCode.QUERY, body, end)


def xid(end: int) -> RawEvent:
    return raw(EventCode.XID, struct.pack("<Q", 99), end)


def decoder_of(**options: object) -> tuple[EventDecoder, TransactionBuffer]:
    buffer = TransactionBuffer(events=1000, size=1 << 20, empty_events=1)
    return EventDecoder(buffer, TableFilter(), **options), buffer


def taken(buffer: TransactionBuffer) -> list[Event]:
    found = []
    while (flush := buffer.take()) is not None:
        at = 0
        for size in flush.slots["size"].tolist():
            found.append(decode(flush.blob[at : at + size]))
            at += size
    return found


def start(decoder: EventDecoder, tail: HalfTransaction | None = None) -> None:
    decoder.start(Position("binlog.000001", 100), GtidSet(f"{UUID}:1-4"), tail)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        (None, None),
        (0xFFFFFFFF & ~SqlMode(*[True] * len(SqlMode._fields)).bits, None),
        (0x4, "ANSI_QUOTES"),
        (0x100000, "NO_BACKSLASH_ESCAPES"),
        (0x100004, "ANSI_QUOTES,NO_BACKSLASH_ESCAPES"),
    ],
)
def test_a_ddl_says_its_mode(mode: int | None, wanted: str | None) -> None:
    """Where a session's sql_mode changes how its text is read, the event says so; else there is no such property."""
    decoder, buffer = decoder_of()
    start(decoder)
    for event in (gtid(5, 150), query('RENAME TABLE "a" TO `b`', 350, mode=mode)):
        decoder.feed(event)
    (ddl,) = taken(buffer)
    assert (ddl.props.get("sql_mode"), ddl.props["table"], ddl.props["to_table"]) == (wanted, "a", "d.b")


def test_the_executed_set_advances_at_commit() -> None:
    """A GTID counts when its transaction has ended; a DDL is an end; END and DDL carry the set, BEGIN does not."""
    decoder, buffer = decoder_of()
    start(decoder)
    for event in (gtid(5, 150), query("BEGIN", 200)):
        decoder.feed(event)
        assert decoder.position.gtids == f"{UUID}:1-4"
    decoder.feed(xid(250))
    assert decoder.position == Position("binlog.000001", 250, f"{UUID}:1-5")
    for event in (gtid(6, 300), query("CREATE TABLE t (a INT)", 350)):
        decoder.feed(event)
    events = taken(buffer)
    assert [(event.entry, event.position.gtids) for event in events] == [
        (EntryType.BEGIN, ""),
        (EntryType.END, f"{UUID}:1-5"),
        (EntryType.DDL, f"{UUID}:1-6"),
    ]
    assert [event.transaction for event in events] == [f"{UUID}:5", f"{UUID}:5", f"{UUID}:6"]


def test_without_gtids_a_transaction_is_named_by_its_place() -> None:
    """The name is file and offset where its first event begins."""
    decoder, buffer = decoder_of()
    decoder.start(Position("binlog.000001", 100), None)
    for event in (raw(EventCode.ANONYMOUS_GTID, bytes(42), 150), query("BEGIN", 200), xid(250), query("BEGIN", 300), xid(350)):
        decoder.feed(event)
    assert [event.transaction for event in taken(buffer)] == ["binlog.000001:100"] * 2 + ["binlog.000001:250"] * 2


def test_an_unfinished_transaction_is_forgotten() -> None:
    """A server that died in mid-transaction begins a new file: what it did not commit is not put."""
    decoder, buffer = decoder_of()
    start(decoder)
    for event in (
        gtid(5, 150),
        query("BEGIN", 200),
        raw(EventCode.ROTATE, struct.pack("<Q", 4) + b"binlog.000002", 0, flags=0x20),
    ):
        decoder.feed(event)
    assert not decoder.in_transaction
    for event in (gtid(5, 150), query("BEGIN", 200), xid(250)):
        decoder.feed(event)
    events = taken(buffer)
    assert [event.position.file for event in events] == ["binlog.000002"] * 2
    assert decoder.position.gtids == f"{UUID}:1-5"


def test_another_transaction_than_the_tails_is_refused() -> None:
    """The store ends inside one transaction and the server continues with another: nothing can be right then."""
    decoder, _ = decoder_of(skip_errors=True)
    start(decoder, HalfTransaction(f"{UUID}:5", 3, 0))
    with pytest.raises(TransactionBroken, match=rf"binlog\.000001:150: .*inside transaction {UUID}:5.*{UUID}:6"):
        decoder.feed(gtid(6, 150))


def test_events_out_of_place_are_refused() -> None:
    """Rows and commits outside of a transaction mean a start position inside one; skipping errors does not skip that."""
    for event in (xid(150), raw(30, bytes(20), 150)):
        decoder, _ = decoder_of(skip_errors=True)
        start(decoder)
        with pytest.raises(TransactionBroken, match="start position is not at the end of one"):
            decoder.feed(event)


def test_gtids_that_no_such_server_writes() -> None:
    """A number that no transaction has, and the GTID of another kind of server, are refused with the place."""
    for number in (0, -5):
        decoder, _ = decoder_of()
        start(decoder)
        with pytest.raises(UnsupportedEvent, match=rf"binlog\.000001:150: .*transaction number {number}"):
            decoder.feed(gtid(number, 150))
    decoder, _ = decoder_of()
    start(decoder)
    decoder.feed(raw(EventCode.MARIADB_GTID, struct.pack("<QIB", 9, 0, 0), 150))
    with pytest.raises(UnsupportedEvent, match=rf"binlog\.000001:200: GTID 0-7-9 behind {UUID}:1-4"):
        decoder.feed(xid(200))


def test_heartbeats_move_the_position() -> None:
    """A heartbeat says how far the server has read, between transactions; within one it says nothing."""
    decoder, _ = decoder_of()
    start(decoder)
    decoder.feed(raw(EventCode.HEARTBEAT, b"binlog.000001", 900))
    assert decoder.position == Position("binlog.000001", 900, f"{UUID}:1-4")
    decoder.feed(gtid(5, 950))
    decoder.feed(raw(EventCode.HEARTBEAT, b"binlog.000001", 2000))
    assert decoder.position.offset == 950
    for event in (query("BEGIN", 1000), xid(1050), raw(EventCode.HEARTBEAT, b"binlog.000002", 200)):
        decoder.feed(event)
    assert decoder.position == Position("binlog.000002", 200, f"{UUID}:1-5")


def test_unknown_events() -> None:
    """An unknown event stops the stream, unless its writer marked it as ignorable; what a server lost stops it by name."""
    decoder, _ = decoder_of()
    start(decoder)
    decoder.feed(raw(250, b"?", 150, flags=0x80))
    with pytest.raises(UnsupportedEvent, match="event type 250 is not understood"):
        decoder.feed(raw(250, b"?", 150))
    with pytest.raises(UnsupportedEvent, match=r"INCIDENT.*the server lost events"):
        decoder.feed(raw(EventCode.INCIDENT, b"\1\0", 150))


# ---------------------------------------------------------------- damage


def corpus(server: Server) -> list[RawEvent]:
    """The events of a small mixed load, as the server's own file holds them."""
    setting = (
        "SET SESSION binlog_transaction_compression = ON" if server.flavor == "mysql" else "SET GLOBAL log_bin_compress = ON"
    )
    execute(
        server,
        "mysql",
        "CREATE DATABASE d",
        "USE d",
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b DECIMAL(9,2), c JSON, e ENUM('x','y'), f DATETIME(3), g BLOB)",
        """INSERT INTO t VALUES (1, 'ä', 1.5, '{"a": [1, 2.5, "z"]}', 'x', '2026-01-01 10:00:00.125', 'blob'), (2, NULL, NULL, NULL, NULL, NULL, NULL)""",
        "UPDATE t SET a = 'b', c = JSON_SET(c, '$.k', 1)",
        "XA START 'n'",
        "DELETE FROM t WHERE id = 2",
        "XA END 'n'",
        "XA PREPARE 'n'",
        "XA COMMIT 'n'",
        setting,
        "INSERT INTO t SELECT id + 10, REPEAT('a', 20), b, c, e, f, REPEAT('g', 400) FROM t",
        "ALTER TABLE t ADD COLUMN h INT COMMENT '" + "long " * 60 + "'",
        "FLUSH BINARY LOGS",
    )
    (file,) = sorted((server.directory / "data").glob("binlog.0*1"))
    return list(_raw_events(file))


def _raw_events(file: Path) -> Iterator[RawEvent]:
    source = BinlogFiles([file])
    while (events := source.read()) is not None:
        yield from events
    source.close()


def damage(body: bytes, rng: random.Random) -> bytes:
    out = bytearray(body)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        kind = rng.random()
        at = rng.randrange(len(out) + 1)
        if kind < 0.6 and out:
            out[at % len(out)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind < 0.75:
            del out[at:]
        elif kind < 0.9:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            del out[at : at + rng.randrange(1, 9)]
    return bytes(out)


def feed_damaged(server: Server, inputs: int, seed: int) -> None:
    good = corpus(server)
    rng = random.Random(seed)
    starts = (EventCode.GTID, EventCode.MARIADB_GTID)
    outcomes = {"read": 0, "refused": 0}
    decoder, buffer = decoder_of(pass_statements=True, rows_query=True)
    for number in range(inputs):
        victim = rng.randrange(2, len(good))
        decoder.start(Position("binlog.000001", 4), None)
        begin = max((i for i in range(victim + 1) if good[i].code in starts), default=2)
        try:
            for i in (0, 1, *range(max(begin, 2), min(victim + 4, len(good)))):
                decoder.feed(good[i]._replace(body=damage(good[i].body, rng)) if i == victim else good[i])
            taken(buffer)
            outcomes["read"] += 1
        except SourceError:
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(f"input {number}, event {victim} ({good[victim]}): {error!r}") from error
    print(outcomes)
    assert outcomes["refused"] > inputs // 20


@pytest.mark.server
@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_damaged_events(flavor: str, seed: int) -> None:
    """1,000 damaged events of each server: read or refused, never another exception, never a hang."""
    with start_server(flavor) as server:
        feed_damaged(server, 1000, seed)


@pytest.mark.server
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_50_000_damaged_events(flavor: str, seed: int) -> None:
    """The same with 50,000 of each."""
    with start_server(flavor) as server:
        feed_damaged(server, 50_000, seed)
