"""`shmstore reload`: what the producer of a store is asked to do while it runs."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from shmstore.cli.command import Commands
from shmstore.cli.log_lines import say
from shmstore.cli.named_store import look
from shmstore.cli.values import seconds
from shmstore.units import printable

if TYPE_CHECKING:
    from shmstore.home.control import ControlAnswer, ControlFiles

LOOK = 0.1  # seconds between two looks for an answer


def add(commands: Commands) -> None:
    """Add the command."""
    sub = commands.add(
        reload,
        "reload",
        "let the producer of a store read its configuration file again",
        "  shmstore reload orders",
        "The filters of the file (include, exclude, row_filter, operations, ghost_tables, column_include, column_exclude, column_mask, "
        "column_hash) and new_tables are in force from the end of a transaction on. It prints from which position on that is; the event of "
        "the change, of which readers learn it, is in the log. Where the file has an error, or changes what needs a restart, nothing of it "
        "is taken, for any store of that process, and the exit code is 1. SIGHUP to the producer does the same, and says it in its log.",
    )
    sub.add_argument(
        "--wait", type=seconds, default=30.0, metavar="SECONDS", help="how long to wait for the producer's answer (default: 30)"
    )


def reload(options: argparse.Namespace) -> int:
    """`shmstore reload`."""
    from shmstore.home.control import RELOAD, ControlFiles

    with look(options) as store:
        if not store.stat().producer_alive:
            raise ValueError(f"no producer of store {options.store!r} runs: the next one reads its file when it starts")
        files = ControlFiles(store.home)
        asked = files.ask(RELOAD)
        answer = _wait(files, asked, options.wait)
    if answer is None:
        say(
            f"store {options.store!r}: no answer in {options.wait:g} s: filters change between two transactions, when there is free space; the "
            "producer's log says when they have"
        )
        return 1
    print(printable(f"{options.store}: {answer.text}"), file=sys.stdout if answer.done else sys.stderr)
    return 0 if answer.done else 1


def _wait(files: ControlFiles, asked: str, limit: float) -> ControlAnswer | None:
    until = time.monotonic() + limit
    while True:
        answer = next((one for one in files.answers() if one.id == asked), None)
        if answer is not None or time.monotonic() >= until:
            return answer
        time.sleep(LOOK)
