"""A driver whose JVM is killed ends, also where nothing on its sockets says so."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shmstore import EventStore
from tests.consumer.spark.events import Binlog, order_row
from tests.producer.running import wait_for

pytestmark = pytest.mark.spark
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


@pytest.mark.parametrize(
    ("sent", "held"),
    [
        pytest.param(signal.SIGKILL, False, id="killed"),
        pytest.param(signal.SIGKILL, True, id="killed and its sockets held", marks=pytest.mark.every_spark),
        pytest.param(signal.SIGTERM, False, id="ended"),
        pytest.param(signal.SIGHUP, False, id="hung up", marks=pytest.mark.long),
    ],
)
def test_a_driver_ends_with_its_jvm(
    store: EventStore, store_name: str, tmp_path: Path, binlog: Binlog, sent: signal.Signals, held: bool
) -> None:
    """With exit code 1 and one line at its end that says why, whether its sockets are closed or another process holds them."""
    with driving(store, store_name, tmp_path, binlog) as (driver, jvm):
        kept = sockets(jvm) if held else []
        try:
            os.kill(jvm, sent)
            assert driver.wait(30) == 1
        finally:
            for each in kept:
                os.close(each)
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert f"shmstore: Spark's JVM has ended (signal {sent:d}): the same command continues" in last


@pytest.mark.parametrize(
    ("first", "number"),
    [
        pytest.param("driver", signal.SIGTERM, id="driver first, ended"),
        pytest.param("jvm", signal.SIGHUP, id="jvm first, hung up", marks=pytest.mark.every_spark),
        pytest.param("driver", signal.SIGHUP, id="driver first, hung up", marks=pytest.mark.long),
        pytest.param("jvm", signal.SIGTERM, id="jvm first, ended", marks=pytest.mark.long),
    ],
)
def test_a_service_that_is_ended_ends_well(
    store: EventStore, store_name: str, tmp_path: Path, binlog: Binlog, first: str, number: signal.Signals
) -> None:
    """A service manager sends SIGTERM to all processes, a terminal that is closed SIGHUP, the one before the other: no error."""
    with driving(store, store_name, tmp_path, binlog) as (driver, jvm):
        for pid in (driver.pid, jvm) if first == "driver" else (jvm, driver.pid):
            os.kill(pid, number)
        assert driver.wait(30) == 0
    assert "has ended" not in (tmp_path / "log").read_text()


@contextmanager
def driving(store: EventStore, name: str, folder: Path, binlog: Binlog) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A driver whose query runs, and its JVM."""
    store.put(binlog.insert(order_row(1)))
    command = ["replicate", name, "--target", f"{folder}/lake/{{table}}", "--master", "local[1]"]
    program = ["env", "--default-signal=HUP", sys.executable, "-m", "shmstore.consumer.spark"]  # under nohup the tests ignore it
    with (folder / "log").open("wb") as log:
        driver = subprocess.Popen([*program, *command], stdout=log, stderr=log)
    try:
        wait_for(lambda: driver.poll() is not None or any(each.alive for each in store.subscriptions()), "the query", seconds=120)
        (jvm,) = children(driver.pid)
        yield driver, jvm
    finally:
        driver.kill()
        driver.wait()
