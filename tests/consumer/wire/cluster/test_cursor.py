"""shmstore.consumer.wire.cluster.cursor: a client's place as Canal keeps it in ZooKeeper."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore import EventStore, ProtocolError
from shmstore.consumer.wire.cluster.cursor import ClusterCursor, cursor_before, cursor_behind
from tests.consumer.wire.cluster.hosts import client_path
from tests.consumer.wire.cluster.transactions import put

pytestmark = pytest.mark.usefixtures("state")
numbers = st.integers(0, 2**62)
text = st.text(st.characters(codec="utf-8"), max_size=30)


@pytest.fixture
def store(store_name: str, state: object) -> Iterator[EventStore]:
    with EventStore.create(store_name, capacity=64) as made:
        yield made
    EventStore.unlink(store_name, log=True)


@given(st.builds(ClusterCursor, text, numbers, text, text, numbers, text, numbers, numbers, numbers, st.integers(-1, 2**62)))
def test_what_is_written_is_read(cursor: ClusterCursor) -> None:
    """Our cursor comes back as it was."""
    assert ClusterCursor.decode(cursor.encode()) == cursor


def test_canal_reads_it(tmp_path: Path) -> None:
    """Canal's own reader takes our cursor for the place where the last transaction's end begins."""
    cursor = ClusterCursor(
        "binlog.000003", 900, "0-1-7", "", 850, "mariadb://127.0.0.1:3307/server_id=1", 5, 1700000000000, 77, 12
    )
    command = ["java", "-cp", client_path(tmp_path), "ClusterClient", "parse"]
    done = subprocess.run(command, input=cursor.encode(), capture_output=True, check=True)
    assert done.stdout.decode().split() == ["127.0.0.1:3307", "binlog.000003:850", "0-1-7", "1700000000000", "5"]


def test_canals_is_read() -> None:
    """What Canal's server wrote is a place, without a sequence of any store."""
    wrote = (
        '{"@type":"com.alibaba.otter.canal.protocol.position.LogPosition","identity":{"slaveId":-1,"sourceAddress":{"address":'
        '"localhost","port":3306}},"postion":{"included":false,"journalName":"mysql-bin.000001","position":2394,"serverId":1,'
        '"timestamp":1468470000000}}'
    )
    cursor = ClusterCursor.decode(wrote.encode())
    assert (cursor.file, cursor.offset, cursor.gtids, cursor.source) == ("mysql-bin.000001", 2394, "", "//localhost:3306/")
    assert (cursor.epoch, cursor.sequence) == (0, -1)


@pytest.mark.parametrize(
    "damaged", [b"", b"[]", b"nothing", b"{}", b'{"postion":7}', b'{"postion":{"journalName":"x"}}', b"\xff"]
)
def test_what_is_none_is_refused(damaged: bytes) -> None:
    """Other bytes are an error that says what to do."""
    with pytest.raises(ProtocolError, match="remove its node"):
        ClusterCursor.decode(damaged)


def test_of_a_store(store: EventStore) -> None:
    """Behind an ack stands the end of the last whole transaction, before the first event of all the start of its own."""
    assert cursor_behind(store, -1) is None
    assert cursor_before(store, 0) is None
    put(store, range(1, 4))
    first = cursor_before(store, 0)
    assert first is not None
    assert (first.file, first.offset, first.gtids, first.transaction) == ("binlog.000001", 1000, "", "0-1-1")
    for sequence, number in ((2, 1), (3, 1), (4, 1), (5, 2), (8, 3)):
        cursor = cursor_behind(store, sequence)
        assert cursor is not None
        assert cursor == cursor_before(store, sequence + 1)
        assert (cursor.offset, cursor.start, cursor.gtids) == (1000 * number + 300, 1000 * number + 200, f"0-1-{number}")
        assert (cursor.epoch, cursor.sequence, cursor.time_ms) == (store.epoch, sequence, 1000 * number)
    assert json.loads(first.encode())["postion"]["position"] == 1000
