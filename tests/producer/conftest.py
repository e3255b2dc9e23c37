"""What the tests of the producer share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from shmstore.producer.connection.session import ServerSession
from tests.producer.selecting import session_of
from tests.servers.server import Server


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer says where it is, and looks for requests, ten times a second, not once: the tests wait for both."""
    monkeypatch.setattr("shmstore.producer.pipeline.replicator.SECOND", 0.1)


@pytest.fixture
def session(any_server: Server) -> Iterator[ServerSession]:
    """A connection for questions."""
    with closing(session_of(any_server)) as session:
        yield session
