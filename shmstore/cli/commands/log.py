"""`shmstore log verify`, `trim` and `export`: what an operator does with a store's log."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from shmstore.cli.command import Commands
from shmstore.cli.log_lines import say
from shmstore.cli.named_store import attach, home_of, look
from shmstore.cli.options import add_form
from shmstore.cli.signals import on_signal
from shmstore.cli.values import place, sequence
from shmstore.patterns.table_patterns import FORMS as TABLE_FORMS
from shmstore.start_position import FORMS
from shmstore.units import printable


def add(commands: Commands) -> None:
    """Add the commands."""
    tools = commands.group(
        "log",
        "verify, trim or export a store's log",
        "examples:\n  shmstore log verify orders\n"
        "  shmstore log trim orders --before 2026-01-31T12:00:00Z\n  shmstore log export orders orders.jsonl",
        "The store may be in use, or only in its home. Daily use needs none of these commands: retention (--log-keep, --log-size of "
        "create and produce) removes old events, and every read checks the events.",
    )
    tools.add(
        verify,
        "verify",
        "read a log from end to end and look for damage; exit code 1 if there is any",
        "  shmstore log verify orders",
        "It only reads, and does not restore a store that is only in its home. Each finding names the file, the lost events, and "
        "what to do. A reader never gets damaged events: it gets an error, and `shmstore seek` moves it past them. With --state it "
        "reads the home in that folder, such as a home from a backup, even if the store is in memory.",
    )
    sub = tools.add(
        trim,
        "trim",
        "remove the oldest files of a log before retention does",
        "  shmstore log trim orders --before latest\n  shmstore log trim orders --before 2026-01-31T12:00:00Z",
        "It removes only whole files whose events every reader has acked, and never the newest file. It prints which events it "
        "removed, and which reader needs the rest. Producer and readers may run.",
    )
    sub.add_argument("--before", type=place, required=True, metavar="WHERE", help=f"remove the events before this place: {FORMS}")
    sub = tools.add(
        export,
        "export",
        "write a part of a log into a file, as `shmstore tail` prints it",
        "  shmstore log export orders orders.jsonl\n"
        "  shmstore log export orders --from 2026-01-31T12:00:00Z --to 4711 --format debezium - | gzip > orders.gz",
        "One JSON document for each line, oldest first, in the formats of `shmstore tail`. It delays no reader, and ends at the "
        "event that was the newest when it began. The file gets its name when it is complete.",
    )
    sub.add_argument("file", metavar="FILE", help="the file to write, replaced if it exists; - for stdout")
    sub.add_argument(
        "--from",
        dest="start",
        type=place,
        default="earliest",
        metavar="WHERE",
        help=f"the first event: {FORMS} (default: earliest)",
    )
    sub.add_argument("--to", dest="last", type=sequence, metavar="SEQUENCE", help="the last event (default: the newest)")
    sub.add_argument("--tables", metavar="PATTERNS", help=f"only these tables: {TABLE_FORMS}")
    add_form(sub)


def verify(options: argparse.Namespace) -> int:
    """`shmstore log verify`. Reads the files alone: nothing is restored, cut or changed."""
    from shmstore import StoreNotFound, StoreView
    from shmstore.cli.text_report import in_log
    from shmstore.home import identity, kinds
    from shmstore.home.home import Home
    from shmstore.log import check
    from shmstore.ring.cursors import LOGGED
    from shmstore.store.remembered import describe_home

    where, logged = home_of(options), None
    with suppress(StoreNotFound), StoreView.attach(options.store, path=options.path, restore=False) as store:
        logged = store.segment.words[LOGGED]  # what a producer writes behind that is not there yet
    if options.state and os.path.realpath(asked := Home.of(options.store, options.state)) != os.path.realpath(where):
        where, logged = asked, None  # a copy of the home, as from a backup, while the store itself is in memory
    findings = [*check.verify(where.log, identity.read(where).epoch, logged), *kinds.problems(where)]
    if findings:
        print(*map(printable, findings), sep="\n")
        return 1
    print(f"{options.store}: no damage found in the log: {in_log(describe_home(where))}")
    return 0


def trim(options: argparse.Namespace) -> int:
    """`shmstore log trim`."""
    from shmstore.units import quantity

    with attach(options) as store:
        done = store.trim(options.before)
        oldest = store.oldest
    if done.files:
        what = f"events {done.first:,} to {done.last:,}, {quantity(done.bytes)} in {done.files:,} files"
        print(f"{options.store}: removed {what}; the oldest event is {oldest:,} now")
    else:
        print(
            f"{options.store}: removed nothing: no whole file of the log is before that and acked by all; the oldest event is {oldest:,}"
        )
    if done.needed_by is not None:
        reader, acked = done.needed_by
        say(
            f"subscription {reader!r} still needs what follows event {acked:,}: let it continue, or move it with "
            f"`shmstore seek {options.store} {reader} latest`"
        )
    return 0


def export(options: argparse.Namespace) -> int:
    """`shmstore log export`. A file gets its name when it is whole."""
    from shmstore.atomic_file import replace
    from shmstore.consumer.formats.formatter import Formatter
    from shmstore.consumer.tail import Peek, tables
    from shmstore.consumer.tail import tail as write

    chosen = None if options.tables is None else tables(options.tables)
    with look(options) as store:
        more = {"schemas": options.schemas, "transactions": options.transactions, "gtids": options.gtids}
        formatter = Formatter(options.format, name=store.name, **more)
        first = store.find(options.start)
        last = store.newest if options.last is None else options.last
        if not first - 1 <= last <= store.newest:
            raise ValueError(f"--to is {last}: give a sequence from {first} to {store.newest}, the newest event")

        def copy(out: BinaryIO) -> None:
            with Peek(store, first, last) as reader, on_signal(reader.stop) as came:
                write(reader, out, formatter=formatter, chosen=chosen)
            if came:
                raise KeyboardInterrupt

        def copy_to(path: Path) -> None:
            try:
                with path.open("wb") as out:
                    copy(out)
            except KeyboardInterrupt:
                path.unlink(missing_ok=True)
                raise

        if options.file == "-":
            copy(sys.stdout.buffer)
            return 0
        path = Path(options.file)
        if path.exists() and not path.is_file():  # a pipe, or /dev/stdout that leads to one
            with path.open("wb") as out:
                copy(out)
        else:
            replace(Path(os.path.realpath(path)), copy_to, "export", "choose another file")
    what = f"events {first:,} to {last:,} are" if first <= last else "no events are"
    say(f"{options.store}: {what} in {options.file}")
    return 0
