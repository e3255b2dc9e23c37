"""`shmstore init`: the file that it writes is one that the commands understand."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest

from shmstore import producer
from shmstore.cli.main import main
from tests.servers.server import Server


def test_the_file_is_complete(any_server: Server, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds what was given and what the server said; the check finds nothing wrong, and a producer's settings come out of it."""
    with any_server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE a (id INT PRIMARY KEY)")
        cursor.execute("CREATE TABLE b (id INT PRIMARY KEY)")
    path = tmp_path / "shop.toml"
    where = [
        "--host",
        f"127.0.0.1:{any_server.port}",
        "--user",
        any_server.user,
        "--include",
        f"{database}.*",
        "--read-timeout",
        "77",
    ]
    assert main(["init", *where, "--output", str(path)]) in (0, 1)  # 1: something of this server has to be put right
    text = path.read_text()
    assert f"{database} (2 tables)" in text
    assert "password = " not in text.replace("# The password", "")
    assert oct(path.stat().st_mode & 0o777) == "0o640"
    capsys.readouterr()
    assert main(["config", "check", str(path)]) == 0, capsys.readouterr().out
    (settings,) = producer.load_all(config=path, environ={})
    assert (settings.store, settings.include, settings.read_timeout) == (database, (f"{database}.*",), 77.0)
    assert (settings.endpoints()[0].port, settings.user) == (any_server.port, any_server.user)
    assert main(["init", *where, "--output", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["init", *where, "--store", "orders", "--output", "-"]) in (0, 1)
    assert '[source."orders"]' in capsys.readouterr().out


def test_a_server_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2, and no file."""
    path = tmp_path / "shop.toml"
    assert main(["init", "--host", "127.0.0.1:1", "--output", str(path)]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert not path.exists()


# ---------------------------------------------------------------- questions


class Terminal:
    """`shmstore init` in a terminal of its own, as a person who reads its questions and types."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update(environment)
            os.execv(sys.executable, [sys.executable, "-m", "shmstore", "init", *words])
        self.shown = ""

    def until(self, text: str) -> str:
        """Read until `text` is shown; return what came before, since the last."""
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._terminal], [], [], 1)[0]:
                try:
                    self.shown += os.read(self._terminal, 4096).decode()
                except OSError:  # it has ended
                    raise AssertionError(f"{text!r} does not come: {self.shown}") from None
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def ended(self) -> int:
        """Its exit code."""
        while True:
            try:
                self.shown += os.read(self._terminal, 4096).decode()
            except OSError:
                break
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.server
def test_questions(mariadb: Server, tmp_path: Path) -> None:
    """At a terminal it asks, with defaults; a wrong answer is reported and asked again; the password is neither shown nor written."""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS asked")
        cursor.execute("CREATE TABLE IF NOT EXISTS asked.t (id INT PRIMARY KEY)")
        cursor.execute("CREATE USER IF NOT EXISTS asks@'%' IDENTIFIED BY 'geheim'")
        cursor.execute("GRANT ALL ON *.* TO asks@'%'")
    terminal = Terminal(tmp_path)
    terminal.until("[127.0.0.1:3306]: ")
    terminal.type("db1:no\n")
    assert "is not HOST[:PORT]" in terminal.until("[127.0.0.1:3306]: ")
    terminal.type(f"127.0.0.1:{mariadb.port}\n")
    terminal.until("Account [root]: ")
    terminal.type("asks\n")
    terminal.until("Password (not shown, and not written): ")
    terminal.type("wrong\n")
    assert "refused 'asks'" in terminal.until(f"[127.0.0.1:{mariadb.port}]: ")
    terminal.type("\n")
    terminal.until("Account [asks]: ")
    terminal.type("\n")
    terminal.until("not written): ")
    terminal.type("geheim\n")
    assert "asked (1 table)" in terminal.until("separated by commas [")
    terminal.until("]: ")
    terminal.type("nowhere.*\n")
    assert "no table of the account matches nowhere.*" in terminal.until("separated by commas [")
    terminal.until("]: ")
    terminal.type("asked.*\n")
    terminal.until("Name of the store [asked]: ")
    terminal.type("no/name\n")
    assert "is not allowed" in terminal.until("Name of the store [asked]: ")
    terminal.type("\n")
    assert "geheim" not in terminal.shown
    assert terminal.ended() in (0, 1)
    assert "wrote shmstore.toml" in terminal.shown
    text = (tmp_path / "shmstore.toml").read_text()
    assert "geheim" not in text
    (settings,) = producer.load_all(config=tmp_path / "shmstore.toml", environ={})
    assert (settings.store, settings.include, settings.user, settings.password) == ("asked", ("asked.*",), "asks", "")


@pytest.mark.parametrize("keys", ["\x03", "\x04"], ids=["ctrl-c", "ctrl-d"])
@pytest.mark.parametrize("asked", ["[127.0.0.1:3306]: ", "Account [root]: ", "not written): "])
def test_an_end_at_any_question_leaves_nothing(keys: str, asked: str, tmp_path: Path) -> None:
    """Ctrl-C and Ctrl-D end it with the exit code of Ctrl-C, without a file and without a traceback."""
    terminal = Terminal(tmp_path)
    for question in ("[127.0.0.1:3306]: ", "Account [root]: ", "not written): "):
        terminal.until(question)
        if question == asked:
            break
        terminal.type("\n")
    terminal.type(keys)
    assert terminal.ended() == 130
    assert "Traceback" not in terminal.shown
    assert list(tmp_path.iterdir()) == []


def test_options_skip_the_questions(tmp_path: Path) -> None:
    """With an option of the producer it asks nothing, also at a terminal."""
    terminal = Terminal(tmp_path, "--host", "127.0.0.1:1")
    assert terminal.ended() == 2
    assert "no connection to 127.0.0.1:1" in terminal.shown
    assert "brackets" not in terminal.shown
