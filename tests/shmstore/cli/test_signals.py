"""SIGHUP, which a terminal sends that is closed: commands that serve end in order, and continue where it is ignored."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from shmstore import EventStore

SERVING = {"serve": "--listen", "serve by Flight": "--flight", "metrics": "--listen", "web": "--listen"}


ENDS_AT_ITS_WORD = """
import os, signal, sys
from shmstore.cli.main import main

class Ending:
    def __init__(self, log):
        self.log = log
    def write(self, text):
        written = self.log.write(text)
        if "listening" in text:
            os.kill(os.getpid(), signal.SIGHUP)
        return written
    def __getattr__(self, name):
        return getattr(self.log, name)

sys.stderr = Ending(sys.stderr)
sys.exit(main(sys.argv[1:]))
"""


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
def test_a_signal_at_the_moment_of_the_ready_line_ends_it_in_order(store_name: str, command: str) -> None:
    """A command handles signals before it says that it is ready."""
    with EventStore.create(store_name, capacity=64, log=False):
        ended = subprocess.run(
            [sys.executable, "-c", ENDS_AT_ITS_WORD, command.split()[0], store_name, SERVING[command], "127.0.0.1:0"],
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
    assert (ended.returncode, ended.stdout, "Error" in ended.stderr) == (0, "", False), ended.stderr


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
