"""A driver whose JVM is killed ends by itself, also where nothing on its sockets says so."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from shmstore import EventStore
from tests.consumer.spark.events import Binlog, order_row
from tests.producer.running import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.every_spark]
_PIDFD_GETFD = 438  # the system call's number, on every architecture


def sockets(pid: int) -> list[int]:
    """Copies of a process's sockets, as a process has that it has just started: they stay open when it ends."""
    process, found = os.pidfd_open(pid), []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.readlink(entry).startswith("socket:"):
                copied = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, int(entry.name), 0)
                assert copied >= 0, os.strerror(ctypes.get_errno())
                found.append(copied)
    os.close(process)
    return found


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("held", [False, True], ids=["closed", "held"])
def test_a_driver_ends_with_its_jvm(store: EventStore, store_name: str, tmp_path: Path, binlog: Binlog, held: bool) -> None:
    """With exit code 1 and one line at its end that says why, whether its sockets are closed or another process holds them."""
    store.put(binlog.insert(order_row(1)))
    command = ["replicate", store_name, "--target", f"{tmp_path}/lake/{{table}}", "--master", "local[1]"]
    kept: list[int] = []
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen([sys.executable, "-m", "shmstore.consumer.spark", *command], stdout=log, stderr=log)
    try:
        wait_for(lambda: driver.poll() is not None or any(each.alive for each in store.subscriptions()), "the query", seconds=120)
        (jvm,) = children(driver.pid)
        kept = sockets(jvm) if held else []
        os.kill(jvm, signal.SIGKILL)
        until = time.monotonic() + 30
        while driver.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert driver.poll() == 1, (tmp_path / "log").read_text()
        assert (
            "shmstore: Spark's JVM has ended (signal 9): the same command goes on"
            in (tmp_path / "log").read_text().splitlines()[-1]
        )
    finally:
        driver.kill()
        driver.wait()
        for each in kept:
            os.close(each)
