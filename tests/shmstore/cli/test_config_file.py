"""One configuration file for every command: what its sections say stands before the command line, and what is wrong in it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmstore.cli.command_line import commands
from shmstore.cli.main import main

FILE = """
[producer]
user = "repl"

[source.orders]
host = "db1"
include = ["shop.*"]

[serve]
stores = ["orders", "crm=customers"]
listen = "0.0.0.0:11111"
tls-cert = "{cert}"
max_connections = 7

[metrics]
listen = "127.0.0.1:9105"

[web]
show_values = true

[log]
format = "json"
level = "debug"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "cert.pem").write_text("")
    path = tmp_path / "shmstore.toml"
    path.write_text(FILE.format(cert=tmp_path / "cert.pem"))
    return path


def parsed(*words: str) -> dict[str, Any]:
    return vars(commands().parser.parse_args(list(words)))


def test_a_section_stands_before_the_command_line(file: Path) -> None:
    """Every kind of option, and the positional ones; what the command line says wins, and other commands' sections say nothing."""
    serve = parsed("serve", "--config", str(file))
    assert (serve["stores"], serve["listen"], serve["max_connections"]) == (["orders", "crm=customers"], ("0.0.0.0", 11111), 7)
    assert (serve["tls_cert"], serve["log_format"], serve["log_level"]) == (str(file.parent / "cert.pem"), "json", "debug")
    own = parsed("serve", f"--config={file}", "--max-connections", "9", "--log-level", "error", "other")
    assert (own["stores"], own["listen"], own["max_connections"], own["log_level"]) == (["other"], ("0.0.0.0", 11111), 9, "error")
    assert parsed("metrics", "--config", str(file))["listen"] == ("127.0.0.1", 9105)
    assert parsed("web", "--config", str(file))["show_values"] is True
    assert parsed("web")["show_values"] is False
    produce = parsed("produce", "--config", str(file))
    assert (produce["log_format"], produce["user"]) == ("json", None)  # its own options are read with its variables


def test_run_reads_the_file_of_its_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does for its sources."""
    monkeypatch.chdir(file.parent)
    assert parsed("run", "--retry-first", "1")["log_format"] == "json"
    assert parsed("produce", "--retry-first", "1")["log_format"] == "text"


def test_nothing_wrong(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0."""
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: nothing is wrong\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[web]", "[wbe]", "[wbe] is unknown; did you mean web?"),
        ("listen =", "lisen =", "[serve] lisen is unknown; did you mean listen?"),
        ('level = "debug"', 'levle = "debug"', "[log] levle is unknown; did you mean level?"),
        ('"127.0.0.1:9105"', '"9105"', "[metrics] listen: 9105 is not HOST:PORT"),
        ("max_connections = 7", 'max_connections = "many"', "[serve] max-connections: many is not a number"),
        ('format = "json"', 'format = "jsno"', "'jsno' is unknown; choose from text, json; did you mean json?"),
        ("include =", "inculde =", "'inculde' in [source.orders] is unknown; did you mean include?"),
        ("cert.pem", "gone.pem", "gone.pem cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_is_named(file: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str) -> None:
    """Exit code 1 and a line with the section, the key and what is near."""
    file.write_text(file.read_text().replace(old, new, 1))
    assert main(["config", "check", str(file)]) == 1
    assert said in capsys.readouterr().out


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, of the check and of the command that names it."""
    (tmp_path / "broken.toml").write_text("[serve\n")
    for words in (["config", "check", str(tmp_path / "none.toml")], ["serve", "--config", str(tmp_path / "broken.toml")]):
        assert main(words) == 2
        assert "cannot be read" in capsys.readouterr().err
