"""shmstore/cli/parser.py: values of options, and that the README speaks of a command line that exists."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shmstore import Position
from shmstore.cli.main import COMMANDS, FILLS, SERVED
from shmstore.cli.parser import FORMATS, address, mode, parser, place, seconds, whole
from shmstore.consumer.wire import Settings

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
    """Every `shmstore ...` line of the README's console blocks is accepted by the command line."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    assert len(lines) >= 4
    for line in lines:
        words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=.*", word)]
        assert words[0] == "shmstore"
        assert parser(COMMANDS, FILLS).parse_args(words[1:]).run is COMMANDS[words[1]]
    named = set(re.findall(r"`shmstore ([a-z]+)", README.read_text(encoding="utf-8")))
    assert named <= COMMANDS.keys()


def test_serve_knows_every_setting() -> None:
    """The server's settings all have an option, with the same default; the help of the numbers says which."""
    options = parser(COMMANDS, FILLS).parse_args(["serve"])
    for field in dataclasses.fields(Settings):
        if field.name in SERVED:
            default = None if field.name == "state" else field.default
            assert getattr(options, field.name) == default, field.name
    known = {"host", "port", "stores", "password", "password_hash", "ready"}
    assert {field.name for field in dataclasses.fields(Settings)} == known | set(SERVED)


def test_tail_says_what_its_formats_leave_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of `tail` has a paragraph on each format, and says what a shape lacks beside the tool that it is of."""
    with pytest.raises(SystemExit):
        parser(COMMANDS, FILLS).parse_args(["tail", "--help"])
    told = capsys.readouterr().out.partition("formats:")[2]
    assert re.findall(r"^  (\w+) ", told, re.MULTILINE) == list(FORMATS)
    assert "tableChanges says of dropped tables only" in told
    assert "without def and old" in told
