"""The programs of the README and of the first pages run as a reader would run them, whatever the file is called."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shmstore import EventStore
from tests.consumer.spark.events import Binlog
from tests.docs.pages import README, Block, blocks, page_of
from tests.docs.shop import order

NAMES = ("consumer.py", "producer.py", "shmstore_test.py")
SNIPPETS = [
    *blocks(README, language="python"),
    *blocks(page_of("install"), language="python"),
    next(block for block in blocks(page_of("events"), language="python") if "EntryType" in block.text),
]


@pytest.fixture
def orders(store: EventStore, binlog: Binlog) -> EventStore:
    """A store of the README's changes."""
    store.put(binlog.insert(order(1, "12.5000"), order(2, "7.2500", customer=2)))
    store.put(binlog.update((order(1, "12.5000"), order(1, "12.5000", status="paid"))))
    return store


def run(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", SNIPPETS, ids=str)
def test_a_snippet_runs_from_any_file(block: Block, name: str, orders: EventStore, tmp_path: Path) -> None:
    """A program saved as consumer.py or producer.py, with all of these in the current folder, runs and prints what the page says."""
    assert block.text.count('"orders"') == 1
    program = block.text.replace('"orders"', repr(orders.name))
    for other in NAMES:
        (tmp_path / other).write_text(program)
    said = run(tmp_path, name)
    if block.page == README:
        (wanted,) = (each.text for each in blocks(README, language="") if re.match(r"INSERT ", each.text))
        assert said == wanted
    else:
        assert "12.50" in said
    assert orders.subscriptions()[0].lag_events == 0
    assert run(tmp_path, name) == ""  # all was acked


def test_the_command_runs_next_to_such_files(tmp_path: Path) -> None:
    """The command line is not disturbed by files of these names in the current folder."""
    for name in NAMES:
        (tmp_path / name).write_text("raise SystemExit('imported by mistake')\n")
    assert run(tmp_path, "-m", "shmstore", "--version").startswith("shmstore ")
    assert "--include" in run(tmp_path, "-m", "shmstore", "produce", "--help")


@pytest.mark.usefixtures("state")
def test_the_queues_of_own_events_work(store_name: str, tmp_path: Path) -> None:
    """The programs of the page put and read between processes: bytes and events; a second run continues, and reads what is new alone."""
    programs = blocks(page_of("own-events"), language="python")
    for name, (_, _, _, text) in zip(("tasks_out", "tasks_in", "prices_out", "prices_in"), programs, strict=True):
        (tmp_path / f"{name}.py").write_text(text.replace('"tasks"', repr(store_name)).replace('("prices"', f"({store_name!r}"))
    for turn in range(2):
        assert run(tmp_path, "tasks_out.py") == ""
        assert run(tmp_path, "tasks_in.py") == "".join(f"{5 * turn + number} {number}\n" for number in range(5))
    said = subprocess.run([sys.executable, "-m", "shmstore", "tail", store_name, "--no-follow"], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (2, "")
    assert "not an event: 11 bytes at sequence 0 that a program put as they are" in said.stderr
    EventStore.unlink(store_name, log=True)
    assert run(tmp_path, "prices_out.py") == ""
    assert run(tmp_path, "prices_in.py") == "0 ADA 12.50\n1 GRC 7.25\n"
