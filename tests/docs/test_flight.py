"""The programs of the page on Arrow Flight, run against a server as the page starts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.consumer.flight import FlightSettings
from shmstore.consumer.flight.process import serving
from tests.consumer.spark.events import Binlog
from tests.docs.pages import Block, blocks, page_of
from tests.docs.shop import order

SNIPPETS = blocks(page_of("flight"), language="python")
SAID = ("INSERT 12.50\n", "orders shop.orders\n", "12.50", "rows up to event 2\n")


@pytest.fixture
def port(store: EventStore, binlog: Binlog) -> Iterator[int]:
    store.put(binlog.insert(order(1, "12.50"), order(2, "7.25")))
    with serving(FlightSettings(port=0, stores=(f"orders={store.name}",), user="audit", password="secret")) as server:
        yield server.port


@pytest.mark.parametrize(("block", "said"), list(zip(SNIPPETS, SAID, strict=True)), ids=str)
def test_a_program_of_the_page(block: Block, said: str, port: int, store: EventStore, tmp_path: Path) -> None:
    """It runs as it stands, with the host put in, and prints what it says; a subscription has acked what it was given."""
    program = block.text.replace("grpc://HOST:8815/orders", f"grpc://audit:secret@127.0.0.1:{port}/orders")
    program = program.replace("HOST:8815", f"127.0.0.1:{port}").replace('"timeout": 5', '"timeout": 0.5')
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert all(stat.lag_events == 0 for stat in store.subscriptions())
