"""SIGTERM, by which Spark ends the process of a stream's source, at any moment."""

from __future__ import annotations

import signal
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


@pytest.mark.parametrize("how", ["closing", "terminated"])
def test_a_termination_ends_it(store_name: str, how: str) -> None:
    """Also in the midst of what it does with a lock: the process ends, the subscription is free, and its owner is not called dead."""
    with EventStore.create(store_name, capacity=16) as store:
        words = [sys.executable, "-c", TERMINATED, store_name, how]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == -signal.SIGTERM, done.stderr
        (stat,) = store.stat().subscriptions
        assert (stat.alive, stat.owner_pid) == (False, 0)
        store.subscribe("copy").close()
