"""A Kafka broker for the tests of queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.kafka import Broker, kafka


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Broker]:
    """One that the session shares."""
    with kafka() as broker:
        yield broker
