"""shmstore/store/remembered.py: stores that are in their homes alone, looked at again and again without putting them together."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmstore import Consumer, EventStore
from shmstore.home.home import Home
from shmstore.store import remembered
from shmstore.store.remembered import Homes, describe_home
from tests.consumer.live.test_web import change, end


def test_homes_are_read_where_something_changed(store_name: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home is read once, and again after an ack, more events, or its removal; nothing is put together by looking."""
    read = list[str]()

    def counted(home: Home) -> remembered.RememberedStore:
        read.append(home.name)
        return describe_home(home)

    monkeypatch.setattr(remembered, "describe_home", counted)
    homes = Homes()

    def look() -> tuple[int, int, dict[str, int]]:
        for _ in range(3):
            (found,), unreadable = homes.look((), ())
            assert unreadable == {}
        return found.oldest, found.newest, found.acks

    with EventStore.create(store_name, log_size=16 << 20) as store:
        assert homes.look((), [store_name]) == ([], {})
        store.put([change(1), end(1)])
        store.subscribe("away").close()
        store.sync()
    EventStore.unlink(store_name)
    assert (look(), len(read)) == ((0, 1, {"away": -1}), 1)
    with Consumer(store_name, "audit", start="earliest", timeout=0) as audit:
        for _ in audit:
            pass
    with EventStore.attach(store_name) as store:
        store.put([change(2), end(2)])
        store.sync()
    EventStore.unlink(store_name)
    assert (look(), len(read)) == ((0, 3, {"audit": 1, "away": -1}), 2)
    assert store_name not in EventStore.names()
    (state / store_name / "log" / "store.json").write_text("{")
    found, unreadable = homes.look([store_name, "none-of-this-name"], ())
    assert (found, list(unreadable), "cannot be read" in unreadable[store_name]) == ([], [store_name], True)
    EventStore.unlink(store_name, log=True)
    assert homes.look((), ()) == ([], {})
