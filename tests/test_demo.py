"""scripts/demo as a whole: on real servers, with identical tables, and leaving nothing behind whatever happens."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.shop import demo as shop_demo
from scripts.shop.options import Options, parse
from scripts.shop.processes import Child, session_members

ROOT = Path(__file__).resolve().parent.parent


def shop_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "scripts.shop", *words]


def left_behind(pid: int) -> list[str]:
    """What a demo of this pid has left: shared memory, folders."""
    return [str(path) for path in Path("/dev/shm").iterdir() if f"shop-{pid}" in path.name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The demo's temporary folders go here."""
    path = Path(tempfile.mkdtemp(prefix="d-", dir="/tmp"))  # short: a server's socket lies below it
    monkeypatch.setenv("TMPDIR", str(path))
    yield path
    assert list(path.iterdir()) == [], "the demo left files behind"
    path.rmdir()


@pytest.mark.parametrize(
    "words", [["--rows", "5"], ["--rows", "x"], ["--capacity", "1000"], ["--readers", "kafka"], ["--rate", "-1"], ["--fast"]]
)
def test_wrong_options_are_one_line_and_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started, and the line names the option."""
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.server
@pytest.mark.spark
def test_short_demo_ends_with_identical_tables(folder: Path) -> None:
    """A real server, the real producer, three readers: all tables identical, exit code 0, nothing left behind."""
    demo = subprocess.Popen(
        [str(ROOT / "scripts" / "demo"), "--rows", "600", "--rate", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output, _ = demo.communicate(timeout=280)
    assert demo.returncode == 0, output
    assert "identical: 4 tables" in output
    assert "in 4 places" in output
    assert "nothing left behind" in output
    assert re.search(r"^watch .* top shop-\d+ .*web shop-\d+", output, re.MULTILINE)  # named while it runs
    assert "what to try next\n  scripts/demo --kill 5" in output
    assert left_behind(demo.pid) == []
    assert session_members(demo.pid) == []


@pytest.mark.server
def test_parts_killed_in_mid_load_lose_nothing(folder: Path) -> None:
    """Producer and readers are killed with -9 and started again: every row change counted once, all tables identical."""
    words = shop_command("--rows", "4000", "--rate", "1500", "--readers", "sqlite,tail", "--kill", "4", "--seed", "3")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert done.stdout.partition("what to try next")[0].count("kill -9") == 4
    assert "identical: 4 tables" in done.stdout


@pytest.mark.server
@pytest.mark.parametrize(
    ("sabotage", "reported"),
    [
        ("UPDATE orders SET note = 'changed' WHERE id = (SELECT max(id) FROM orders)", "DIFFERENT  sqlite: orders.note"),
        ("DELETE FROM payments WHERE id = (SELECT max(id) FROM payments)", "DIFFERENT  sqlite: payments is"),
    ],
    ids=["one value", "one row"],
)
def test_one_wrong_value_or_row_makes_the_demo_fail(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sabotage: str, reported: str
) -> None:
    """With one value of one reader changed behind its back, or one row removed, the exit code is 1 and the place is named."""
    honest = shop_demo.compare.of_sqlite

    def after_sabotage(path: Path, layouts: Any) -> Any:
        with sqlite3.connect(path) as connection:
            assert connection.execute(sabotage).rowcount == 1
        connection.close()
        return honest(path, layouts)

    monkeypatch.setattr(shop_demo.compare, "of_sqlite", after_sabotage)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        code = shop_demo.run(Options(300, 0.0, "mariadb", ("sqlite", "tail"), 1024, 1, 60.0, False))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert code == 1
    assert reported in capsys.readouterr().out


@pytest.mark.server
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_mid_load_stops_everything(folder: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM while the load runs: every process ends, segment and folder are removed."""
    demo = subprocess.Popen(shop_command("--rows", "100000", "--rate", "500", "--readers", "sqlite,tail"), cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)  # fmt: skip
    pids = wait_for_load(demo)
    os.kill(demo.pid, number)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == code, output
    assert "nothing left behind" in output
    assert left_behind(demo.pid) == []
    assert [pid for pid in pids if session_members(pid)] == []


@pytest.mark.server
@pytest.mark.parametrize("part", ["producer", "sqlite", "tail"])
def test_a_part_that_dies_ends_the_demo(folder: Path, part: str) -> None:
    """With one part killed in mid-load the exit code is 1, the part is named, and nothing is left behind."""
    demo = subprocess.Popen(shop_command("--rows", "100000", "--rate", "500", "--readers", "sqlite,tail"), cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)  # fmt: skip
    _, producer, sqlite, tail = wait_for_load(demo)
    os.kill({"producer": producer, "sqlite": sqlite, "tail": tail}[part], signal.SIGKILL)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 1, output
    assert f"FAILED: {part} ended with exit code -9" in output
    assert "nothing left behind" in output
    assert left_behind(demo.pid) == []


def wait_for_load(demo: subprocess.Popen[str]) -> list[int]:
    """Read the demo's output until its load runs; return the pids it has printed: server, producer, readers."""
    pids, lines = [], []
    assert demo.stdout is not None
    for line in demo.stdout:
        lines.append(line)
        if " pid " in line:
            pids.append(int(line.partition(" pid ")[2].partition(":")[0]))
        if "  load " in line and "put" in line:
            return pids
    raise AssertionError(f"the demo ended with {demo.wait()} before its load ran:\n{''.join(lines)}")


def test_child_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A child that ignores SIGTERM, and a grandchild in a process group of its own, are killed all the same."""
    script = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )
    child = Child("stubborn", [sys.executable, "-c", script], log=tmp_path / "log")
    deadline = time.monotonic() + 30
    while "ready" not in child.tail() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(session_members(child.pid)) == 2
    assert child.stop(timeout=0.2) == -signal.SIGKILL
    assert session_members(child.pid) == []
