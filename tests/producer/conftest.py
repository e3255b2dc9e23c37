"""What the tests of the producer share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer says where it is, and looks for requests, ten times a second, not once: the tests wait for both."""
    monkeypatch.setattr("shmstore.producer.pipeline.replicator.SECOND", 0.1)
