"""What commands tell systemd, and the form of their log lines."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from configparser import RawConfigParser
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.cli import log_lines
from shmstore.cli.command_line import commands
from shmstore.cli.commands import metrics, producing, queue, serve
from shmstore.cli.service import PassProgress
from tests.producer.running import remove, store_name
from tests.servers.server import Server

ROOT = Path(__file__).resolve().parents[3]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


class Systemd:
    """The end of $NOTIFY_SOCKET that systemd has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0.2)

    def hear(self, wanted: str, process: subprocess.Popen[str], seconds: float = 60) -> str:
        """The next line that begins with `wanted`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                lines = self._socket.recv(4096).decode().splitlines()
            except TimeoutError:
                assert process.poll() is None, process.communicate()
                continue
            self.heard += lines
            for line in lines:
                if line.startswith(wanted):
                    return line
        raise AssertionError(f"no {wanted} came; heard {self.heard}")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    found = Systemd(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(found.path))
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    return found


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shmstore", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )


@pytest.mark.server
def test_a_producer_is_ready_when_its_source_is_read(mariadb: Server, systemd: Systemd) -> None:
    """READY comes with the link, not with the process; then STATUS and WATCHDOG, STOPPING at the end. Its log lines are JSON if asked."""
    name = store_name()
    process = started("produce", "--port", str(mariadb.port), "--store", name, "--log-format", "json")
    try:
        systemd.hear("READY=1", process)
        with EventStore.attach(name) as store:
            assert store.stat().stream.connected
        assert systemd.hear("STATUS=", process).startswith(f"STATUS={name}: reading up to ")
        systemd.hear("WATCHDOG=1", process)
        process.send_signal(signal.SIGTERM)
        systemd.hear("STOPPING=1", process)
        out, log = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "")
        lines = [json.loads(line) for line in log.splitlines()]
        assert [line["logger"] for line in lines][-1] == "shmstore"
        assert lines[-1]["message"].startswith(f"{name}: put ")
        assert any(line["logger"] == "producer" and line["level"] == "info" for line in lines)
    finally:
        process.kill()
        process.communicate()
        systemd.close()
        remove(name)


def test_a_server_is_ready_when_it_listens(systemd: Systemd) -> None:
    """And its event loop keeps running."""
    process = started("serve", "--listen", "127.0.0.1:0")
    try:
        systemd.hear("READY=1", process)
        for _ in range(3):
            systemd.hear("WATCHDOG=1", process, 10)
    finally:
        process.terminate()
        process.communicate(timeout=60)
        systemd.close()


def test_a_thread_that_stands_still_is_noticed() -> None:
    """One that has ended is not."""
    progress, over, asked = PassProgress(lambda: False), threading.Event(), threading.Event()

    def stand() -> None:
        progress.stop()
        asked.set()
        over.wait()

    ended = threading.Thread(target=progress.stop)
    ended.start()
    ended.join()
    thread = threading.Thread(target=stand)
    thread.start()
    asked.wait()
    assert not progress.stalled(10)
    time.sleep(0.05)
    assert progress.stalled(0.02)
    over.set()
    thread.join()
    assert not progress.stalled(0.02)


def test_a_json_line_holds_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a record, whatever is in it."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(log_lines.JsonLines())
    log = logging.Logger("a.b")
    log.addHandler(handler)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it is %s", "ö")
    (line,) = out.getvalue().splitlines()
    value = json.loads(line)
    assert (value["level"], value["logger"], value["message"]) == ("error", "a.b", "it is ö")
    assert "ValueError: two" in value["error"]
    assert time.strptime(value["time"][:19], "%Y-%m-%dT%H:%M:%S")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_run_commands_that_there_are(unit: Path, tmp_path: Path) -> None:
    """Each unit's command line is one that this shmstore takes, and a Type=notify service is one that notifies."""
    file = RawConfigParser(strict=False, delimiters=("=",))
    file.optionxform = str  # type: ignore[method-assign,assignment]
    file.read_string(unit.read_text())
    (tmp_path / "shop.toml").write_text(
        '[serve]\nstores = ["orders"]\nlisten = "127.0.0.1:0"\n[queue]\nstore = "orders"\nbrokers = "kafka:9092"\n'
    )
    command = file["Service"]["ExecStart"].replace("/etc/shmstore", str(tmp_path))
    program, *words = shlex.split(command.replace("%i", "shop"))
    assert os.path.basename(program) == "shmstore"
    options = commands().parser.parse_args(words)
    assert options.run in (producing.run, queue.queue, serve.serve, metrics.metrics)
    assert file["Service"]["Type"] == "notify"


def test_there_are_units() -> None:
    """Or the test before would say nothing."""
    assert len(UNITS) == 4
