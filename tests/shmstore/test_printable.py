"""shmstore/units.py, and where names that others choose are printed: in log lines, on stderr, in pages."""

from __future__ import annotations

import argparse
import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore.cli import log_lines
from shmstore.cli.commands import snapshot
from shmstore.cli.log_lines import JsonLines
from shmstore.home.snapshot_progress import Progress, SnapshotRequest, Task
from shmstore.units import TextLines, lines_of, printable

HOSTILE = "t\n2026-01-01 ERROR producer: forged\x1b[2J\x9b2J\u202e\u2028\r\x00"
names = st.text(st.characters(exclude_categories=()), max_size=40) | st.just(HOSTILE)


@given(names)
def test_nothing_but_what_prints_is_left(name: str) -> None:
    """Whatever a name holds, it is one line without a control character; a name that prints stays as it is."""
    shown = printable(name)
    assert shown.isprintable()
    assert (shown == name) == name.isprintable()
    assert lines_of(f"{name}\nb").split("\n")[-1] == "b"


@given(names)
def test_a_log_line_is_one_line(name: str) -> None:
    """As text and as JSON, in the message and in an error's traceback."""
    record = logging.LogRecord("producer", logging.WARNING, "", 0, "table %s is left out", (name,), None)
    assert TextLines().format(record).isprintable()
    line = JsonLines().format(record)
    assert line.isprintable()
    assert json.loads(line)["message"] == f"table {name} is left out"
    try:
        raise ValueError(name)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    record.exc_text = None
    assert all(each.isprintable() for each in TextLines().format(record).split("\n"))


def test_the_page_of_a_snapshot() -> None:
    """A table's name is in one line of it, and in one column."""
    tasks = [Task("1", "shop", HOSTILE, problem=HOSTILE), Task("1", "shop", "u")]
    lines = snapshot.page(Progress(requests=[SnapshotRequest("1", problem=HOSTILE)], tasks=tasks)).split("\n")
    assert all(line.isprintable() for line in lines)
    assert [line.find("waiting") for line in lines[2:4]] == [lines[1].find("STATE")] * 2


def test_what_a_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    """`say` prints one line, and so does a producer's log."""
    log_lines.say(f"no table {HOSTILE}")
    assert capsys.readouterr().err.removesuffix("\n").isprintable()
    log = logging.getLogger()
    before, level = log.handlers[:], log.level
    log.handlers[:] = []
    try:
        log_lines.show(argparse.Namespace(log_format="text", log_level="info"))
        log.handlers[0].stream = out = io.StringIO()  # type: ignore[attr-defined]
        logging.getLogger("producer").warning("table %s is left out", HOSTILE)
    finally:
        log.handlers[:] = before
        log.setLevel(level)
    assert out.getvalue().removesuffix("\n").isprintable()
