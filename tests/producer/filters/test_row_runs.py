"""Row filters in the stream: what becomes of each row, and that a restart inside an event that was split loses and repeats nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmstore import EntryType, Event, EventType, Position, StoreView, UnsupportedEvent
from shmstore.encoding.codec import decode, decode_stored
from shmstore.producer.binlog.packets import PacketSplitter, new_splitter
from shmstore.producer.errors import SettingsError
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.gtid import parse
from shmstore.producer.native_code import COMPILED
from shmstore.producer.settings import Settings
from shmstore.producer.transactions.buffer import new_buffer
from shmstore.producer.transactions.decoder import EventDecoder
from shmstore.producer.transactions.replay import Replay
from shmstore.producer.transactions.state import HalfTransaction
from tests.producer.native.test_compiled import _events, _stream
from tests.producer.running import Running, _reads, end_of_log, events_of, execute, remove, running, store_name, wait_for
from tests.servers.server import Server

pytestmark = pytest.mark.server


def _rows(events: list[Event]) -> list[tuple[str, int, list[tuple[int, ...]]]]:
    """(type, first row, n of each row before and after) of the rows events."""
    return [
        (event.type.name, event.position.row, [tuple(image[1] for image in row if image is not None) for row in event.rows])
        for event in events
        if event.table is not None and event.table.table == "t"
    ]


def test_each_row_is_what_it_is_to_the_filter(any_server: Server, database: str) -> None:
    """Rows outside are dropped, rows that enter are inserted, rows that leave are deleted with their image before, in the order of the
    event's rows; a transaction of which nothing is left does not come. The column that decides may itself be left out."""
    execute(
        any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, n INT, c VARCHAR(9))", "CREATE TABLE u (id INT PRIMARY KEY)"
    )
    with running(
        any_server,
        row_filter=(f"{database}.t: n > 10 AND c = 'DE'",),
        column_exclude=(f"{database}.t.c",),
        empty_events=10**6,
        empty_seconds=1e6,
    ) as run:
        execute(
            any_server,
            database,
            "INSERT INTO t VALUES (1, 5, 'DE'), (2, 15, 'DE'), (3, 25, 'de'), (4, 20, 'DE'), (5, 30, 'DE'), (6, NULL, 'DE')",
            "UPDATE t SET n = 35 - n WHERE n IS NOT NULL ORDER BY id",  # 30 20 10 15 5
            "UPDATE t SET n = 1 WHERE id = 3",  # never was in it
            "DELETE FROM t ORDER BY id",
            "INSERT INTO u VALUES (7)",
        )
        events = events_of(run, any_server)
        with StoreView.attach(run.settings.store) as view:
            wait_for(lambda: view.stat().stream.filtered_rows >= 8, "the producer's next sign of life")
            left_out = view.stat().stream
    # 3 of 6 inserted, 1 of 5 updated, the one of an event of which nothing was left, and 3 of 6 deleted
    assert (left_out.filtered_rows, left_out.filtered_events) == (3 + 1 + 1 + 3, 1)
    assert _rows(events) == [
        ("INSERT", 1, [(15,), (20,), (30,)]),
        ("INSERT", 0, [(30,)]),
        ("UPDATE", 1, [(15, 20), (20, 15)]),
        ("DELETE", 4, [(30,)]),
        ("DELETE", 0, [(30,), (20,), (15,)]),
    ]
    assert [event.entry for event in events].count(EntryType.BEGIN) == 4
    assert all(event.table.names == ("id", "n") for event in events if event.table is not None and event.table.table == "t")
    ends = [event for event in events if event.entry is EntryType.END]
    assert [(end.props["events"], end.props["rows"]) for end in ends] == [("1", "3"), ("3", "4"), ("1", "3"), ("1", "1")]


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.skipif(not COMPILED, reason="no compiled code here"))]
)
def test_a_restart_inside_a_split_event(any_server: Server, database: str, compiled: bool) -> None:
    """Wherever a part ends inside the events that one binlog event became, a decoder that continues behind it gives the rest, no more."""
    with any_server.connect(database=database) as connection, connection.cursor() as cursor:
        mysql = any_server.flavor == "mysql"
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
        cursor.execute("INSERT INTO t VALUES " + ",".join(f"({i}, {(5, 30, 20)[i % 3]})" for i in range(60)))
        cursor.execute("SHOW BINARY LOG STATUS" if mysql else "SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
        cursor.execute("SELECT @@gtid_executed" if mysql else "SELECT @@gtid_binlog_pos")
        executed = cursor.fetchone()[0]
        cursor.execute("UPDATE t SET n = 35 - n ORDER BY id")
        data = (Path(any_server.directory) / "data" / file).read_bytes()
    stream = _stream(_events(data, offset))

    def decoded(tail: HalfTransaction | None) -> list[list[Any]]:
        """The events of each put, from the transaction's beginning on."""
        splitter: Any = new_splitter() if compiled else PacketSplitter()
        buffer = new_buffer(compiled_code=compiled, events=7, size=4 << 20)
        decoder = EventDecoder(buffer, TableFilter(row_filter=[f"{database}.t: n > 10"]))
        decoder.start(Position(file, offset), parse(executed) if executed else None, tail)
        for event in splitter.feed(stream):
            decoder.feed(event)
        found = []
        while (flush := buffer.take()) is not None:
            ends = np.cumsum(flush.slots["size"]).tolist()
            found.append(
                [bytes(flush.blob[end - size : end]) for end, size in zip(ends, flush.slots["size"].tolist(), strict=True)]
            )
        return found

    whole = decoded(None)
    assert len(whole) > 8
    types = [decode(payload).type for put in whole for payload in put]
    assert types.count(EventType.INSERT) == types.count(EventType.DELETE) == types.count(EventType.UPDATE) == 20
    for i in range(len(whole) - 1):
        stored = [memoryview(payload) for put in whole[: i + 1] for payload in put]
        last = decode_stored(stored[-1])[0]
        tail = HalfTransaction.of(last, Replay(stored, last.transaction))
        assert decoded(tail) == whole[i + 1 :]


def test_images_that_are_not_whole_are_refused(any_server: Server, database: str) -> None:
    """A filter cannot be right with columns missing: the producer stops, and names the server's variable; so do its options."""
    with pytest.raises(SettingsError, match=r"row filter needs whole rows.*binlog_row_image = FULL"):
        Settings(store="s", row_image="any", row_filter=("a.b: c = 1",))
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, n INT, c INT)", "INSERT INTO t VALUES (1, 1, 1)")
    with running(any_server, row_filter=(f"{database}.t: n > 0",)) as run:
        execute(any_server, database, "SET SESSION binlog_row_image = MINIMAL", "UPDATE t SET c = 2")
        with pytest.raises(UnsupportedEvent, match=rf"rows of {database}\.t, which has a row filter.*binlog_row_image = FULL"):
            run.wait(60)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_filter_that_no_longer_fits_stops_the_producer(any_server: Server, database: str, at_once: bool) -> None:
    """A DDL that leaves the filter's column alone changes nothing; one that takes it away stops the producer at the next row, and with a
    filter that fits it continues there: also where the producer reads all of it `at_once`."""
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, n INT)")
    store, texts = store_name(), (f"{database}.t: n > 0", f"{database}.t: m > 0")
    start = "{}:{}".format(*end_of_log(any_server))

    def change() -> None:
        execute(any_server, database, "ALTER TABLE t MODIFY n BIGINT, ADD c INT", "INSERT INTO t VALUES (1, 0, 1), (2, 2, 2)")
        execute(any_server, database, "ALTER TABLE t CHANGE n m BIGINT", "INSERT INTO t VALUES (3, 0, 3), (4, 4, 4)")

    try:
        if at_once:
            change()
        run = Running(
            Settings(
                store=store,
                host=any_server.host,
                port=any_server.port,
                user=any_server.user,
                row_filter=texts[:1],
                start=start,
            )
        )
        if not at_once:
            wait_for(lambda: not run.alive or _reads(store), "the producer to read")
            change()
        with pytest.raises(
            UnsupportedEvent, match=rf"does not fit table {database}\.t as it is here: it has no column 'n'.*it has id, m, c"
        ):
            run.wait(60)
        run = Running(
            Settings(store=store, host=any_server.host, port=any_server.port, user=any_server.user, row_filter=texts[1:])
        )
        try:
            events = events_of(run, any_server)
        finally:
            run.stop()
        assert [event.rows[0].after for event in events if event.table is not None] == [(2, 2, 2), (4, 4, 4)]
    finally:
        remove(store)
