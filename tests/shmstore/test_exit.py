"""A program that ends while its daemon threads are in a store ends in order: no crash, no traceback, no process held up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shmstore import EventStore

BUSY = """
import sys, threading, time
from shmstore import EventStore
store = EventStore.attach({name!r})
def put():
    while True:
        store.put([b"x" * 100] * 10)
def read(name, seconds):
    with EventStore.attach({name!r}) as other, other.subscribe(name) as reader:
        while True:
            batch = reader.get(timeout=seconds)
            reader.ack(batch)
def look():
    while True:
        store.stat(), store.check()
for work, *arguments in ((put,), (read, "busy", 1), (look,)):
    threading.Thread(target=work, args=arguments, daemon=True).start()
while store.newest < 1000:
    time.sleep(0.001)
"""
WAITING = """
import threading, time
from shmstore import EventStore
store = EventStore.attach({name!r})
reader = store.subscribe("waits")
full = [threading.Thread(target=store.put, args=([b"x"] * 8,), daemon=True) for _ in range(3)]
waiting = threading.Thread(target=reader.get, daemon=True)
waiting.start()
time.sleep(0.05)
for each in full:
    each.start()
time.sleep(0.2)
"""


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("program", [BUSY, WAITING], ids=["busy", "waiting"])
@pytest.mark.parametrize("pure", ["", "1"])
def test_daemon_threads_at_exit(name: str, program: str, pure: str, log: bool) -> None:
    """Whatever its daemon threads do then, a program that ends has exit code 0 and says nothing; the store is whole, and its roles are free."""
    EventStore.create(name, capacity=8 if program == WAITING else 256, memory_unit=256, log=log).close()
    for _ in range(3):
        environment = {**os.environ, "SHMSTORE_PURE": pure}
        command = [sys.executable, "-c", program.format(name=name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        with EventStore.attach(name) as store:
            assert all("died without closing" in each for each in store.check())
            store.claim()
            for each in store.subscriptions():
                with store.subscribe(each.name) as reader:
                    while batch := reader.get(timeout=0):
                        reader.ack(batch)
