"""The servers that the tests of queues share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from tests.certificates import self_signed
from tests.servers.kafka import Broker, kafka
from tests.servers.nats import NatsServer, nats_server
from tests.servers.ports import free_port
from tests.servers.pulsar import PulsarServer, pulsar_server
from tests.servers.rabbitmq import RabbitServer, rabbit_server
from tests.servers.redis import RedisServer, redis_server
from tests.servers.rocketmq import RocketServer, rocket_server


@pytest.fixture
def log_store(store_name: str, state: Path) -> Iterator[EventStore]:
    """A store with a log."""
    with EventStore.create(store_name, capacity=1024) as made:
        yield made


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


@pytest.fixture(scope="session")
def nats_there() -> Iterator[NatsServer]:
    """One that the session shares."""
    with nats_server() as server:
        yield server


@pytest.fixture(scope="session")
def pulsar_there() -> Iterator[PulsarServer]:
    """One that the session shares; it takes messages of a MiB, and its topics have three partitions."""
    with pulsar_server() as server:
        yield server


@pytest.fixture(scope="session")
def rabbit_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """One that the session shares; it takes messages of a MiB, and has a second port for TLS."""
    certificate, key = self_signed(tmp_path_factory.mktemp("rabbit"))
    port = free_port()
    tls = (f"listeners.ssl.1 = 127.0.0.1:{port}", f"ssl_options.certfile = {certificate}", f"ssl_options.keyfile = {key}")
    with rabbit_server("max_message_size = 1048576", *tls) as server:
        server.tls_port, server.certificate = port, certificate
        yield server


@pytest.fixture(scope="session")
def rocket_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketServer]:
    """One that the session shares; it wants a login, and takes TLS too."""
    certificate, key = self_signed(tmp_path_factory.mktemp("rocket"))
    with rocket_server(("admin", "let-me-in"), (str(certificate), str(key))) as server:
        yield server
