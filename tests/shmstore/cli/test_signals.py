"""SIGHUP, which a terminal sends that is closed: commands that serve end in order, and continue where it is ignored."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from shmstore import EventStore

SERVING = {"serve": "--listen", "serve by Flight": "--flight", "metrics": "--listen", "web": "--listen"}


def started(*command: str) -> subprocess.Popen[str]:
    """The command, once it listens."""
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stderr is not None
    assert "listening" in process.stderr.readline()
    return process


@pytest.mark.parametrize("command", SERVING)
def test_a_command_that_serves_ends_in_order(store_name: str, command: str) -> None:
    """With exit code 0, and without an error."""
    with EventStore.create(store_name, capacity=64, log=False):
        process = started(sys.executable, "-m", "shmstore", command.split()[0], store_name, SERVING[command], "127.0.0.1:0")
        process.send_signal(signal.SIGHUP)
        out, log = process.communicate(timeout=60)
    assert (process.returncode, out, "Error" in log) == (0, "", False), log


@pytest.mark.parametrize("command", SERVING)
def test_where_it_is_ignored_it_stays_so(store_name: str, command: str) -> None:
    """As nohup does: the command serves until SIGTERM comes."""
    with EventStore.create(store_name, capacity=64, log=False):
        process = started(
            "nohup", sys.executable, "-m", "shmstore", command.split()[0], store_name, SERVING[command], "127.0.0.1:0"
        )
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
