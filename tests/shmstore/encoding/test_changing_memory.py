"""Events in memory that another process writes to while they are read: what msgpack gets does not change, as it reads a length twice."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from shmstore import EventType
from shmstore.encoding import codec
from tests.shmstore.tables import NARROW, rows_event

PAYLOAD = rows_event(0, EventType.INSERT, None, [[1, "a"], [2, "b"]], NARROW)


@pytest.fixture(name="memory")
def _memory(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """An event that is written over as soon as msgpack is asked."""
    codec.decode_schema(codec.encode_schema(NARROW))  # is known: msgpack is asked for rows alone
    memory = bytearray(PAYLOAD)
    unpackb = msgpack.unpackb

    def overtaken(data: Any, **options: Any) -> Any:
        memory[:] = b"\xc0" * len(memory)
        return unpackb(data, **options)

    monkeypatch.setattr(codec.msgpack, "unpackb", overtaken)
    return memory


def test_of_bodies(memory: bytearray) -> None:
    """In stored form, as Arrow's reference reads them."""
    assert codec.decode_stored(memoryview(memory))[2] == [None, None, None, [[1, "a"], [2, "b"]]]
    assert memory != PAYLOAD


def test_of_packed_rows(memory: bytearray) -> None:
    """Of a body that was left as it is."""
    packed = codec.split_stored(memoryview(memory))[2]
    assert codec.unpack_rows(packed) == [None, None, None, [[1, "a"], [2, "b"]]]
    assert memory != PAYLOAD


def test_of_events(memory: bytearray, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reference decodes them."""
    monkeypatch.setattr(codec, "COMPILED", False)
    event = next(codec.decode_each([memoryview(memory)], [5]))
    assert [row.after for row in event.rows] == [(1, "a"), (2, "b")]
    assert memory != PAYLOAD


def test_of_arrow(memory: bytearray) -> None:
    """What compiled code leaves to the reference."""
    np = pytest.importorskip("numpy")
    rows = pytest.importorskip("shmstore.encoding.arrow_rows")
    stored = rows.StoredEvents(memoryview(memory), np.array([len(memory)], np.int64))
    assert stored.stored(np.array([0]))[0][1] == [None, None, None, [[1, "a"], [2, "b"]]]
    assert memory != PAYLOAD
