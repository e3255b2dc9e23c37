"""`shmstore log verify`, `trim` and `export`: what an operator does with a store's log."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from shmstore.cli.log_lines import say
from shmstore.cli.named_store import attach, home_of, look
from shmstore.cli.signals import on_signal


def verify(options: argparse.Namespace) -> int:
    """`shmstore log verify`. Reads the files alone: nothing is put together again, cut or changed."""
    from shmstore import StoreNotFound, StoreView
    from shmstore.cli.remembered import describe_home
    from shmstore.log import check, home
    from shmstore.ring.cursors import LOGGED
    from shmstore.units import quantity

    where, logged = home_of(options), None
    with suppress(StoreNotFound), StoreView.attach(options.store, path=options.path, restore=False) as store:
        logged = store.segment.words[LOGGED]  # what a producer writes behind that is not there yet
    findings = check.verify(home.log_folder(where), home.read(where).epoch, logged)
    if findings:
        print(*findings, sep="\n")
        return 1
    found = describe_home(where.name, where.parent)
    held = f"{found.newest - found.oldest + 1:,} events, {quantity(found.bytes)} in {found.files:,} files"
    print(f"{options.store}: no damage found in the log: {held}")
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
            f"subscription {reader!r} still needs what follows event {acked:,}: let it read on, or move it with "
            f"`shmstore seek {options.store} {reader} latest`"
        )
    return 0


def export(options: argparse.Namespace) -> int:
    """`shmstore log export`. A file gets its name when it is whole."""
    from shmstore.atomic_file import replace
    from shmstore.consumer.formats.formatter import Formatter
    from shmstore.consumer.tail import Range, tables
    from shmstore.consumer.tail import tail as write

    chosen = None if options.tables is None else tables(options.tables)
    with look(options) as store:
        formatter = Formatter(options.format, name=store.name, schemas=options.schemas, transactions=options.transactions)
        first = store.find(options.start)
        last = store.newest if options.last is None else options.last
        if not first - 1 <= last <= store.newest:
            raise ValueError(f"--to is {last}: give a sequence from {first} to {store.newest}, the newest event")

        def copy(out: BinaryIO) -> None:
            with Range(store, first, last) as reader, on_signal(reader.stop) as came:
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
    say(f"{options.store}: events {first:,} to {last:,} are in {options.file}")
    return 0
