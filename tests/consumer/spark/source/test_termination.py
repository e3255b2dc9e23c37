"""SIGTERM, by which Spark ends the process of a stream's source, at any moment, and twice: stopWorker sends one, stopDaemon another."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from shmstore import EventStore

TERMINATED = """
import os, signal, sys
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.subscription_owner import SubscriptionOwner

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)

def run(how, moment, sent):
    owner = SubscriptionOwner(SourceOptions.parse({"store": sys.argv[1], "subscription": "copy", "tables": "*.*"}))
    owner.subscribe(None)
    left = moment

    def trace(frame, event, arg):
        nonlocal left
        if "shmstore" not in frame.f_code.co_filename and "consumer" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = how == "terminated"
        left -= event in ("line", "opcode")
        if left == 0:
            os.write(sent, b"!")
            terminate()
        return trace

    sys.settrace(trace)
    if how == "terminated":
        terminate()
    owner.close()

moment, before, last = 1, "", False
while not last:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        run(sys.argv[2], moment, writing)
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    last = not os.read(reading, 1)
    os.close(reading)
    expected = 0 if last and sys.argv[2] == "closing" else signal.SIGTERM
    if status != expected:
        sys.exit(f"moment {moment}: status {status}")
    from shmstore import EventStore
    with EventStore.attach(sys.argv[1]) as store:
        (stat,) = store.subscriptions()
        if stat.alive or stat.owner_pid:
            sys.exit(f"moment {moment}: {stat}")
    moment += 1
print(moment)
"""
LOCKED = """
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
owner.close()
"""


def test_a_termination_with_a_lock_ends_it(store_name: str) -> None:
    """In the midst of what it does with a lock the process ends, the subscription is free, and its owner is not called dead."""
    with EventStore.create(store_name, capacity=16) as store:
        done = subprocess.run([sys.executable, "-c", LOCKED, store_name], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == -signal.SIGTERM, done.stderr
        (stat,) = store.stat().subscriptions
        assert (stat.alive, stat.owner_pid) == (False, 0)
        store.subscribe("copy").close()


@pytest.mark.parametrize("how", ["closing", "terminated"])
def test_a_termination_at_each_moment(store_name: str, how: str) -> None:
    """At each line of a close, and at each instruction of what another termination does."""
    with EventStore.create(store_name, capacity=16) as store:
        done = subprocess.run(
            [sys.executable, "-c", TERMINATED, store_name, how], capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 10, "nothing was traced"
        store.subscribe("copy").close()
