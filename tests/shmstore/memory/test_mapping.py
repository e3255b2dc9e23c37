"""Mappings: whose memory goes when."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shmstore import EventStore

LOOKS_LATE = """
import atexit, sys, threading

def late():  # handlers run in reverse order: after all that shmstore and the standard library have registered
    before = looks[0]
    while looks[0] < before + 1000 and thread.is_alive():
        pass
    print(store.newest, thread.is_alive(), flush=True)

atexit.register(late)
from shmstore import EventStore
store = EventStore.attach(sys.argv[1])
reader = EventStore.attach(sys.argv[1]).subscribe("a")
reader.spin = 0.001
looks, begun = [0], threading.Event()

def read():
    while True:
        looks[0] += 1
        reader.get(timeout=0.0001)
        begun.set()

thread = threading.Thread(target=read, daemon=True)
thread.start()
begun.wait()
"""


@pytest.mark.parametrize("pure", ["0", "1"])
def test_a_thread_that_reads_while_the_process_exits(make, name: str, pure: str):
    """Nothing unmaps the memory, or closes what reads it, under a daemon thread: the process exits in order."""
    make().put(b"x")
    environment = {**os.environ, "SHMSTORE_PURE": pure}
    process = subprocess.run(
        [sys.executable, "-c", LOOKS_LATE, name], env=environment, timeout=120, capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "0 True\n", "")
    EventStore.unlink(name)
