"""What the tests at a real ZooKeeper share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.servers.zookeeper import Zookeeper


@pytest.fixture
def plain_client(server: Zookeeper) -> Iterator[Any]:
    """A client of ZooKeeper's without TLS and without a login, as Canal's are. `server` is the test file's."""
    client = KazooClient(f"127.0.0.1:{server.port}")
    client.start()
    yield client
    client.stop()
    client.close()
