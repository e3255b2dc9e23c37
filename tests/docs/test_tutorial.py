"""The tutorial, run from its second chapter to its end on a real server: each command ends well and prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from tests.docs.pages import ROOT, Block, blocks, page_of
from tests.docs.python314 import new_environment
from tests.producer.running import store_name as new_store_name
from tests.servers.ports import free_port

pytestmark = pytest.mark.server

PAGE = page_of("tutorial")
SECONDS = 120
RUNS_ON = re.compile(r"scripts/servers|shmstore (produce|web)|python copy_orders\.py")
# What only looks is given again until the producer has brought what the page shows: a reader of the page types more slowly than that.
LOOKS = re.compile(r"shmstore (tail|stat)")
# A number, a version, a date, a size, or an id of hexadecimal digits; and how columns are spaced.
VARIES = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|\d[\d.,:]*(?:[-+~]\w[\w.+~-]*)?|\b[KMG]?i?B\b")


def plain(line: str) -> str:
    """A line without what differs from run to run."""
    return " ".join(VARIES.sub("0", line).split())


def unseen(shown: list[str], said: str) -> str | None:
    """The first shown line that was not printed where the page has it. A line of ... is any number of lines, ... at a line's end any text."""
    printed, at, anywhere = [plain(line) for line in said.splitlines()], 0, False
    for line in shown:
        if line == "...":
            anywhere = True
            continue
        start = plain(line.removesuffix("...")) if line.endswith("...") else None
        fits = [
            place
            for place in range(at, len(printed) if anywhere else min(at + 1, len(printed)))
            if (printed[place].startswith(start) if start is not None else printed[place] == plain(line))
        ]
        if not fits:
            return line
        at, anywhere = fits[0] + 1, False
    return None if anywhere or at == len(printed) else f"no more than that, and not: {printed[at]}"


def steps(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the lines that the page shows behind it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


class Terminals:
    """Runs commands in one folder; those that run on have a terminal of their own until the end."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.store, self.ports = new_store_name(), {"3310": free_port(), "9180": free_port()}
        self.running: list[subprocess.Popen[bytes]] = []
        for name in ("scripts", "tests"):
            (folder / name).symlink_to(ROOT / name)
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(programs.parent),
            "SHMSTORE_STATE": str(folder / "state"),
            "PYTHONUNBUFFERED": "1",
        }

    def own(self, text: str) -> str:
        """A command or program with the test's own store and ports."""
        text = re.sub(
            r'(?<=store )orders\b|(?<=(?:tail|stat) )orders\b|(?<=rm )orders\b|(?<=Consumer\(")orders\b', self.store, text
        )
        text = text.replace("--dir shop-server", f"--dir {self.folder}/shop-server")
        return re.sub("|".join(self.ports), lambda match: str(self.ports[match[0]]), text)

    def shown(self, text: str) -> str:
        """What was printed, with the page's store and ports."""
        for port, own in self.ports.items():
            text = text.replace(str(own), port)
        return text.replace(self.store, "orders")

    def run(self, command: str, shown: list[str]) -> None:
        if RUNS_ON.match(command):
            return self.start(command, shown)
        until = time.monotonic() + (SECONDS if LOOKS.match(command) else 0)
        while True:
            done = subprocess.run(
                ["bash", "-c", self.own(command)],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
            )
            said = self.shown(done.stdout)
            assert done.returncode == 0, f"$ {command}\n{said}"
            missed = unseen(shown, said) if shown or command.startswith("python ") else None
            if missed is None:
                return None
            assert time.monotonic() < until, f"$ {command}\n{said}\nthe page shows: {missed}"

    def start(self, command: str, shown: list[str]) -> None:
        path = self.folder / f"{len(self.running)}.log"
        words = shlex.split(self.own(command))
        with path.open("wb") as log:
            self.running.append(
                subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            )
        until = time.monotonic() + SECONDS
        while (missed := unseen([*shown, "..."], said := self.shown(path.read_text()))) is not None:
            assert self.running[-1].poll() is None, f"$ {command} ended\n{said}"
            assert time.monotonic() < until, f"$ {command}\n{said}\nthe page shows: {missed}"
            time.sleep(0.1)

    def end_all(self) -> None:
        """Ctrl-C in each terminal, the last one first."""
        while self.running:
            process = self.running.pop()
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SECONDS)
            finally:
                process.kill()


@pytest.fixture(params=["this Python", "Python 3.14"])
def terminals(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminals]:
    """Where the tutorial's packages are installed: as the tests have them, or from the wheel of Python 3.14, without a compiler."""
    programs = Path(sys.executable).parent if request.param == "this Python" else new_environment(tmp_path, "mysql", "arrow")
    made = Terminals(tmp_path, programs)
    yield made
    made.end_all()
    if made.store in EventStore.names():
        EventStore.unlink(made.store, force=True)


def test_the_tutorial(terminals: Terminals) -> None:
    """Each chapter after the installation, word for word but for store and ports; at the end nothing of the store is left."""
    commands = 0
    for block in blocks(PAGE):
        if title := re.search(r'title="([\w.]+)"', PAGE.read_text().splitlines()[block.line - 2]):
            (terminals.folder / title[1]).write_text(terminals.own(block.text))
            continue
        for command, shown in steps(block):
            if "venv" in command or command.startswith("pip "):
                continue  # the installation: tests/test_package.py
            if command.startswith("shmstore rm"):
                terminals.end_all()
            terminals.run(command, shown)
            commands += 1
    assert commands >= 14
    assert terminals.store not in EventStore.names()
    assert not (terminals.folder / "state" / terminals.store / "log").exists()


@pytest.mark.parametrize(
    ("shown", "said", "missed"),
    [
        (["a 1", "..."], "a 2\nb\n", None),
        (["a 1"], "a 2\nb\n", "no more than that, and not: b"),
        (["...", "b"], "a\nb\n", None),
        (["b"], "a\nb\n", "b"),
        (["in 58c3e7ee of 1.5 KiB..."], "in 00ab12ff of 7 B, and more\n", None),
        (["ok", "fail"], "ok\n", "fail"),
    ],
)
def test_what_is_compared(shown: list[str], said: str, missed: str | None) -> None:
    """Lines are compared in order and to the end; numbers, ids and sizes may differ."""
    assert unseen(shown, said) == missed
