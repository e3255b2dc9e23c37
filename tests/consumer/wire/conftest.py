"""Fixtures: stores, servers over them, clients of every kind; all of it is gone afterwards."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.consumer.wire import CanalSettings
from tests.consumer.wire.harness import PackagedClient, RawClient, ServerThread

_numbers = itertools.count(1)


@pytest.fixture
def new_store() -> Iterator[Callable[..., EventStore]]:
    """Make stores of names of their own; they are removed afterwards."""
    made: list[EventStore] = []

    def make(**options: Any) -> EventStore:
        store = EventStore.create(f"wire-{os.getpid()}-{next(_numbers)}", **options, log=False)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()
        EventStore.unlink(store.name)


@pytest.fixture
def store(new_store: Callable[..., EventStore]) -> EventStore:
    return new_store()


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., ServerThread]]:
    """Start servers on free ports, with the test's own state directory."""
    made: list[ServerThread] = []

    def make(**options: Any) -> ServerThread:
        server = ServerThread(CanalSettings(**{"port": 0, "state": tmp_path / "state"} | options))
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def server(new_server: Callable[..., ServerThread]) -> ServerThread:
    return new_server()


@pytest.fixture
def connect(server: ServerThread, store: EventStore) -> Iterator[Callable[..., RawClient]]:
    """Connect plain clients to the server, by default subscribed to the store."""
    made: list[RawClient] = []

    def make(
        client_id: int | str = 1001, *, subscribe: bool = True, filter: str = "", port: int | None = None, **options: Any
    ) -> RawClient:
        client = RawClient(port or server.port, store.name, client_id, **options)
        made.append(client)
        if subscribe:
            assert client.subscribe(filter).error_code == 0
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def packaged() -> Iterator[Callable[[str], PackagedClient]]:
    made: list[PackagedClient] = []

    def make(package: str) -> PackagedClient:
        made.append(PackagedClient(package))
        return made[-1]

    yield make
    for client in made:
        client.close()
