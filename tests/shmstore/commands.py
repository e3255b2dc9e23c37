"""What the tests of the `shmstore` command share: running it in a process of its own, and events to put."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.event import Column, EntryType, Event, EventType, Position, Row, TableSchema

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "shmstore"]
_numbers = itertools.count(1)
_started: list[subprocess.Popen[str]] = []


def insert(number: int, table: str = "orders") -> Event:
    schema = TableSchema("shop", table, (Column("id", "bigint", nullable=False), Column("note", "varchar")), (0,))
    rows = (Row(None, (number, f"nöte {number}")),)
    return Event(
        EntryType.ROWS, EventType.INSERT, Position("binlog.000001", 100 * (number + 1)), 1000 * number, table=schema, rows=rows
    )


def end(number: int) -> Event:
    return Event(EntryType.END, EventType.NONE, Position("binlog.000001", 100 * (number + 1), f"0-1-{number}"), 1000 * number)


def left(name: str) -> list[str]:
    return [entry for entry in os.listdir("/dev/shm") if name in entry]


def run(*words: str, code: int = 0) -> str:
    """Run the command, want its exit code, return what it wrote: stdout, or stderr where an error was wanted."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, encoding="utf-8")
    assert done.returncode == code, f"exit code {done.returncode}, wanted {code}\n{done.stdout}{done.stderr}"
    if code == 2:
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, f"more than one line:\n{done.stderr}"
        return done.stderr
    assert done.stderr == ""
    return done.stdout


def ran(*words: str) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it wrote on stdout and stderr."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, encoding="utf-8")
    return done.returncode, done.stdout, done.stderr


def alone(code: str, *words: str) -> None:
    """Run Python code in a process of its own, where no other test's threads and garbage change what it counts."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr


def started(*words: str) -> subprocess.Popen[str]:
    """Start the command. What still runs at the end of the test is killed."""
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    _started.append(process)
    return process


def kill_started() -> None:
    """Kill what a test that failed has left running."""
    while _started:
        if (process := _started.pop()).poll() is None:
            process.kill()
            process.communicate()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ids(output: str) -> list[int]:
    return [json.loads(line)["after"]["id"] for line in output.splitlines()]


# ---------------------------------------------------------------- fixtures, for the test files that import them


@pytest.fixture(name="state", autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own; commands run in the checkout."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("SHMSTORE_DEBUG", raising=False)
    monkeypatch.chdir(ROOT)
    return tmp_path / "state"


@pytest.fixture(name="name")
def free_name() -> Iterator[str]:
    """A free store name; nothing of it is left in shared memory when the test is over."""
    chosen = f"cli{os.getpid()}_{next(_numbers)}"
    yield chosen
    if chosen in EventStore.names():
        EventStore.unlink(chosen, log=True)
    assert left(chosen) == []


@pytest.fixture(name="store")
def small_store(name: str) -> Iterator[EventStore]:
    """A store of 64 events."""
    with EventStore.create(name, capacity=64, log=False) as made:
        yield made
