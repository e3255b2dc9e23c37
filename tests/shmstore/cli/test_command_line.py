"""shmstore/cli/command_line.py, values.py: values of options, and that the README speaks of a command line that exists."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shmstore import Position
from shmstore.cli.command_line import commands
from shmstore.cli.commands.serve import SERVED
from shmstore.cli.options import FORMATS
from shmstore.cli.values import address, mode, place, seconds, whole
from shmstore.consumer.wire import CanalSettings
from shmstore.errors import did_you_mean
from shmstore.producer.settings import GROUPS
from shmstore.producer.settings import Settings as Producing

README = Path(__file__).resolve().parents[3] / "README.md"


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (place, "earliest", "earliest"),
        (place, "latest", "latest"),
        (place, "4711", 4711),
        (place, "binlog.000003:1520", Position("binlog.000003", 1520)),
        (place, "with:colon.000003:4", Position("with:colon.000003", 4)),
        (place, "gtid:0-1-7,1-1-4", Position("", 0, "0-1-7,1-1-4")),
        (place, "0-1-7,1-1-4", Position("", 0, "0-1-7,1-1-4")),
        (place, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (address, "0.0.0.0:11111", ("0.0.0.0", 11111)),
        (address, "[::1]:0", ("::1", 0)),
        (mode, "0660", 0o660),
        (seconds, "0.5", 0.5),
        (whole, "3", 3),
    ],
)
def test_values(read: Callable[[str], Any], text: str, value: object) -> None:
    """Each kind of value is read as it is written in the help."""
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (place, ["", "gtid:", "time:x", ":4", "file:", "file:x", "-1", "binlog.000003:-4", "٤"]),
        (address, ["", "11111", ":11111", "host:", "host:x", "host:65536", "host:-1"]),
        (mode, ["rw", "9"]),
        (seconds, ["0", "-1", "inf", "nan", "x"]),
        (whole, ["0", "-1", "1.5", "x"]),
    ],
)
def test_bad_values(read: Callable[[str], Any], texts: list[str]) -> None:
    """What is no value of its kind is refused."""
    for text in texts:
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            read(text)


def test_readme_commands_parse() -> None:
    """Every `shmstore ...` line of the README's shell blocks is accepted by the command line."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("shmstore ")]
    assert len(lines) >= 4
    for line in lines:
        words = [word for word in shlex.split(line, comments=True) if not re.fullmatch(r"[A-Z_]+=.*", word)]
        assert words[0] == "shmstore"
        assert commands().parser.parse_args(words[1:]).run is commands().by_name[words[1]].get_default("run")
    named = set(re.findall(r"`shmstore ([a-z]+)", README.read_text(encoding="utf-8")))
    assert named <= commands().by_name.keys()


def test_serve_knows_every_setting() -> None:
    """The server's settings all have an option, with the same default; the help of the numbers says which."""
    options = commands().parser.parse_args(["serve"])
    for field in dataclasses.fields(CanalSettings):
        if field.name in SERVED:
            default = None if field.name == "state" else field.default
            assert getattr(options, field.name) == default, field.name
    known = {"host", "port", "stores", "password", "password_hash", "ready"}
    known |= {"idle_timeout", "zookeeper_login"}  # its default is another one for Flight; a secret comes from the environment
    known |= {"expose"}  # made of --metrics-port, and of who may ask
    assert {field.name for field in dataclasses.fields(CanalSettings)} == known | set(SERVED)


def test_tail_says_what_its_formats_leave_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of `tail` has a paragraph on each format, and says what a shape lacks compared with the tool that it comes from."""
    with pytest.raises(SystemExit):
        commands().parser.parse_args(["tail", "--help"])
    text = capsys.readouterr().out.partition("formats:")[2]
    assert re.findall(r"^  (\w+) ", text, re.MULTILINE) == list(FORMATS)
    assert "tableChanges has dropped tables only" in text
    assert "without def and old" in text


def help_of(*words: str) -> str:
    """What `words` with --help prints, in a terminal of 200 columns."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            commands().parser.parse_args([*words, "--help"])
    assert not ended.value.code
    return out.getvalue()


@pytest.mark.parametrize("name", sorted(commands().by_name))
def test_help_teaches(name: str) -> None:
    """Each command's help has a short usage line, an example that the command line accepts, and no line that is hard to read."""
    lines = help_of(*name.split()).splitlines()
    assert len(lines[0]) < 60
    example = lines[lines.index("example:") + 1]
    words = [word for word in shlex.split(example.partition("|")[0]) if not re.fullmatch(r"[A-Z_]+=.*|>.*|/.*prom", word)]
    assert words[: len(name.split()) + 1] == ["shmstore", *name.split()]
    commands().parser.parse_args(words[1:])
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize("name", ["produce", "run", "doctor"])
def test_options_of_a_producer_come_in_groups(name: str) -> None:
    """The five that matter first come first, each option is in one group, and a secret is named with its variable."""
    text = help_of(name)
    heads = re.findall(r"^([A-Z][^\n]*):$", text, re.MULTILINE)
    assert heads == [*GROUPS, "Configuration file", *["Log lines, on stderr"] * (name != "doctor")]
    first = text.partition(heads[0])[2].partition(heads[1])[0]
    assert re.findall(r"^  (--[a-z]+)", first, re.MULTILINE) == ["--host", "--user", "--store", "--include", "--snapshot"]
    for option in dataclasses.fields(Producing):
        flag = f"--{option.name.replace('_', '-')}" if option.metadata["flag"] else f"SHMSTORE_{option.name.upper()}:"
        assert len(re.findall(rf"^  {flag}[ ,\n]", text, re.MULTILINE)) == 1, flag


@pytest.mark.parametrize(
    ("word", "names", "said"),
    [
        ("tale", ["tail", "stat"], "; did you mean tail?"),
        ("memsize", ["MEMSIZE", "ITEMSIZE"], "; did you mean MEMSIZE?"),
        ("orders", ["tail", "stat"], ""),
        ("", ["tail"], ""),
    ],
)
def test_did_you_mean(word: str, names: list[str], said: str) -> None:
    """The nearest name is suggested, in any case of letters; nothing where none is near."""
    assert did_you_mean(word, names) == said
