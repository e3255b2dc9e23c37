"""`shmstore snapshot`: the rows that are there, among the changes."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from shmstore.cli.command import Commands
from shmstore.cli.log_lines import say
from shmstore.cli.named_store import home_of, look, named
from shmstore.clock import calendar_ms
from shmstore.patterns.table_patterns import FORMS as TABLE_FORMS
from shmstore.units import printable

if TYPE_CHECKING:
    from shmstore.home.snapshot_progress import Progress, Task

TAKES_UP = 4.0  # seconds that a producer may take to see a request


def add(commands: Commands) -> None:
    """Add the command."""
    sub = commands.add(
        snapshot,
        "snapshot",
        "ask a store's producer for the rows of tables, read while streaming continues",
        "  shmstore snapshot orders --tables 'shop.*,crm.users' --watch\n"
        "  shmstore snapshot orders --tables shop.orders --where \"created > '2026-01-01'\" --columns id,total",
        "The store's producer begins within about a second; if none runs, the next one does. The rows arrive among the changes as "
        "READ events (op is read in tail's json, r in Spark, Arrow and Debezium's form), each as the server has it at that position. "
        "A reader replaces the row with the same key. A restarted producer continues the snapshot. Rows deleted before the first "
        "change in the store are not reported. `shmstore produce --snapshot initial` begins a new store with the rows of all tables. "
        "With --where or --columns each table needs the named columns, and copies (replicate) ignore these rows.",
    )
    sub.add_argument(
        "--tables",
        action="append",
        metavar="PATTERNS",
        help=f"tables to read, among those that pass the producer's filters: {TABLE_FORMS}",
    )
    sub.add_argument("--where", metavar="CONDITION", help="only rows for which this is true, in the language of row filters")
    sub.add_argument("--columns", metavar="NAMES", help="only these columns, and those of the key; comma separated")
    sub.add_argument("--status", action="store_true", help="show the progress (the default without --tables)")
    sub.add_argument(
        "--watch", action="store_true", help="show the progress each second until the end; exit code 1 if a table failed"
    )
    sub.add_argument("--cancel", action="store_true", help="leave out the tables that have not been read yet")


def snapshot(options: argparse.Namespace) -> int:
    """`shmstore snapshot`."""
    from shmstore import producer
    from shmstore.consumer.live.actions import audited, check_single_source

    if options.tables is None and (options.where is not None or options.columns is not None):
        raise ValueError("--where and --columns say what part of tables is wanted: name these with --tables")
    home = home_of(options)
    asks, produced, state = options.cancel or options.tables is not None, False, home.state
    if asks or not producer.snapshot_status(options.store, state=state):
        with look(options) as store:  # a request to a store that does not exist would wait forever
            check_single_source(store)
            produced = store.stat().producer_alive
        if asks and not produced:
            say(f"no producer is running on store {options.store!r}: the next one will do this")
    if options.cancel:
        with audited(home, named(options), "snapshot", "cancelled"):
            producer.cancel_snapshot(options.store, state=state)
    elif options.tables is not None:
        chosen = {"where": options.where, "columns": options.columns}
        with audited(home, named(options), "snapshot", ", ".join(options.tables)):
            print(producer.request_snapshot(options.store, options.tables, state=state, **chosen))
    if asks and not (options.status or options.watch):
        if not options.cancel:
            say(f"asked for the rows of {', '.join(options.tables)}; watch them: `shmstore snapshot {options.store} --watch`")
        return 0
    patience = time.monotonic() + TAKES_UP
    while True:
        found = producer.snapshot_status(options.store, state=state)
        waits = producer.snapshot_waits(options.store, state=state)
        clear = "\x1b[H\x1b[2J" if options.watch and sys.stdout.isatty() else ""
        print(clear + page(found or producer.Progress(), waits), flush=True)
        if not options.watch or (not waits and not (found and found.open)):
            return 1 if found and found.failed else 0
        if waits and produced and time.monotonic() > patience:
            patience = float("inf")
            say(
                "the producer has not seen this request: is its state in another folder (--state, SHMSTORE_STATE, another user's)?"
            )
        time.sleep(1)


def page(progress: Progress, waits: int = 0) -> str:
    """Return how far snapshots are, as text: a line for each table, with rates and what is left."""
    lines = [f"{waits} requests wait for the producer" if waits > 1 else "1 request waits for the producer"] * bool(waits)
    lines += [printable(f"request {request.id}: {request.problem}") for request in progress.requests if request.problem]
    if not progress.tasks:
        return "\n".join(lines or ["no snapshot was asked for"])
    table: list[tuple[str, ...]] = [("TABLE", "STATE", "ROWS", "OF ABOUT", "ROWS/S", "LEFT", "")]
    table += [tuple(map(printable, _line(task))) for task in progress.tasks]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if i in (0, 1, 6) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    done = sum(not task.open for task in progress.tasks)
    rows = sum(task.progress.rows for task in progress.tasks)
    return "\n".join([*lines, f"{done} of {len(progress.tasks)} tables, {rows:,} rows"])


def _line(task: Task) -> tuple[str, ...]:
    """A table's line."""
    progress, now = task.progress, calendar_ms()
    rate, seconds = task.rate(now), task.left(now)
    left = "" if seconds is None else f"{seconds:,.0f} s"
    about = f"{task.estimate:,}" if task.open and task.estimate else ""
    name = f"{task.database}.{task.table}"
    return name, progress.state, f"{progress.rows:,}", about, f"{rate:,.0f}" if rate else "", left, task.problem
