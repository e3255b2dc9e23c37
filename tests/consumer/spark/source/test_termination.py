"""SIGTERM, by which Spark ends the process of a stream's source, at any moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shmstore import EventStore

TERMINATED = """
import os, signal, sys, time
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.event_server import EventServer
from shmstore.consumer.spark.source.subscription_owner import SubscriptionOwner

def close(server, close=EventServer.close):
    with server._over._cond:  # as within Event.set
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
    close(server)
EventServer.close = close
owner = SubscriptionOwner(SourceOptions.parse({"store": sys.argv[1], "subscription": "copy", "tables": "*.*"}))
owner.subscribe(None)
owner.serve()
if sys.argv[2] == "terminated":
    os.kill(os.getpid(), signal.SIGTERM)
owner.close()
"""


@pytest.mark.parametrize(("how", "code"), [("stopped", 0), ("terminated", -15)])
def test_a_termination_while_it_closes_does_not_hold_it_up(store_name: str, how: str, code: int) -> None:
    """In the midst of what it does with a lock: the process ends all the same, and the subscription is free."""
    with EventStore.create(store_name, capacity=16) as store:
        words = [sys.executable, "-c", TERMINATED, store_name, how]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == code, done.stderr
        store.subscribe("copy").close()
