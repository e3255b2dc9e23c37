"""A store of several sources is no source of a Spark query, nor of a spool: both order rows by file and offset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from consumer.spark.offset import Offset
from consumer.spool import Spool, pieces
from shmstore import EntryType, Event, EventStore, EventType, Position, ShmStoreError, StoreError

PLACES = "a=x.000001:4/0-1-1;b=y.000001:4/1-2-1"


def test_a_query_refuses_it() -> None:
    """Files and offsets of different servers have no order, so there is no seq; said in one line, with what to do."""
    with pytest.raises(StoreError, match=r"store 's' holds several sources.* give each source a store of its own") as caught:
        Offset.at("s", 1, 1, Position("x.000001", 4, PLACES))
    assert "\n" not in str(caught.value)
    assert Offset.at("s", 1, 1, Position("x.000001", 4, "0-1-1")).offset == 4


def test_a_spool_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the store was made anew it could not tell what it has; so it writes nothing, and acks nothing."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    name = f"spool-several-{os.getpid()}"
    begin = Event(EntryType.BEGIN, EventType.NONE, Position("x.000001", 90), 1, transaction="0-1-2")
    try:
        with EventStore.create(name, capacity=16) as store:
            spool = Spool(store, tmp_path / "spool")
            store.put([begin, begin._replace(entry=EntryType.END, position=Position("x.000001", 120, PLACES), order=1)])
            with pytest.raises(ShmStoreError, match=r"holds several sources.* a spool keeps one source"):
                spool.step(0)
            assert store.subscriptions()[0].lag_events == 2
            spool.close()
        assert pieces(tmp_path / "spool") == []
    finally:
        EventStore.unlink(name)
