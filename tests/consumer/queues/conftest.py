"""The servers that the tests of queues share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.kafka import Broker, kafka
from tests.servers.redis import RedisServer, redis_server


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Broker]:
    """One that the session shares."""
    with kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_there() -> Iterator[RedisServer]:
    """One that the session shares; it takes values of a MiB."""
    with redis_server("--proto-max-bulk-len", "1mb") as server:
        yield server
