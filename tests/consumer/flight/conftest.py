"""A server, a client of it, and a store with a log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import flight

from shmstore import (
    EventStore,
)
from shmstore.consumer.flight import FlightSettings
from shmstore.consumer.flight.process import serving
from shmstore.consumer.flight.server import FlightServer


@pytest.fixture
def server() -> Iterator[FlightServer]:
    with serving(FlightSettings(port=0)) as made:
        yield made


@pytest.fixture
def client(server: FlightServer) -> flight.FlightClient:
    return flight.FlightClient(f"grpc://127.0.0.1:{server.port}")


@pytest.fixture
def log_store(store_name: str, state: Path) -> Iterator[EventStore]:
    with EventStore.create(store_name, capacity=64) as made:
        yield made
