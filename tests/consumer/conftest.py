"""A store as its readers reach it: by name on this host, or through Arrow Flight, as from another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

Reach = Callable[[str], str]


@pytest.fixture
def flight_server() -> Iterator[Reach]:
    """A server of this host's stores; gives the URL of a store."""
    from shmstore.consumer.flight import FlightSettings
    from shmstore.consumer.flight.process import serving

    with serving(FlightSettings(port=0, user="tester", password="s/e:c@r et", max_new_subscriptions=1000)) as server:
        yield lambda name: f"grpc://tester:s%2Fe%3Ac%40r%20et@127.0.0.1:{server.port}/{name}"


@pytest.fixture(params=["local", "flight"])
def reach(request: pytest.FixtureRequest) -> Reach:
    """What to give a `Consumer` for a store's name. The test runs once for each way."""
    if request.param == "local":
        return lambda name: name
    found: Reach = request.getfixturevalue("flight_server")
    return found
