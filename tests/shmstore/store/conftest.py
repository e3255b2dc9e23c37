"""What the tests of the store share."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import pytest

import shmstore.memory.mapping
from shmstore import EventStore, StoreNotFound

COMPILED = shmstore.memory.mapping.COMPILED
_numbers = itertools.count()


@pytest.fixture(params=["compiled", "python"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name for a store; the test runs with and without the compiled hot path."""
    if request.param == "python":
        monkeypatch.setattr(shmstore.memory.mapping, "COMPILED", False)
    elif not COMPILED:
        pytest.skip("no compiled hot path here")
    name = f"kept-{os.getpid()}-{next(_numbers)}"
    yield name
    with contextlib.suppress(StoreNotFound):
        EventStore.unlink(name, log=True)
