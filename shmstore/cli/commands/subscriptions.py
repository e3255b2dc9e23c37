"""`shmstore seek` and `unsubscribe`: where a reader goes on, and that it is forgotten."""

from __future__ import annotations

import argparse

from shmstore.cli.command import Commands
from shmstore.cli.named_store import attach
from shmstore.cli.values import place
from shmstore.sources import place_text
from shmstore.start_position import FORMS
from shmstore.units import printable


def add(commands: Commands) -> None:
    """Add the commands."""
    sub = commands.add(
        seek,
        "seek",
        "move a reader that is stopped: forward past what it need not see, or back to read again",
        "  shmstore seek orders audit latest\n"
        "  shmstore seek orders audit 2026-01-31T12:00:00Z\n"
        "  shmstore seek orders audit binlog.000003:1520",
        "The store must have a log; a reader can go back as far as that reaches. One that was evicted may read again then. Events "
        "that it passes over count as acked.",
    )
    sub.add_argument("name", metavar="SUBSCRIPTION", help="name of the subscription, as `shmstore stat` shows it")
    sub.add_argument("where", type=place, metavar="WHERE", help=f"the first event that it gets next: {FORMS}")
    sub = commands.add(
        unsubscribe,
        "unsubscribe",
        "forget a subscription and what it has acked, so that nothing is kept for it any more",
        "  shmstore unsubscribe orders audit",
        "In a store without a log it also ends the producer's waiting for that reader. To let a reader leave out what it has not "
        "read, and go on, see `shmstore seek`.",
    )
    sub.add_argument("name", metavar="NAME", help="name of the subscription, as `shmstore stat` shows it")


def seek(options: argparse.Namespace) -> int:
    """`shmstore seek`."""
    with attach(options) as store:
        acked = store.seek(options.name, options.where)
        waits = store.newest - acked
        text = "everything put so far is behind it" if waits <= 0 else f"{waits:,} events wait for it"
        at = store.peek(acked + 1, limit_events=1) if waits > 0 else None
        where = f", {place_text(at.position_of(acked + 1))}" if at and at.slots["entry"][0] else ""
    print(printable(f"{options.name} goes on at event {acked + 1}{where}: {text}"))
    return 0


def unsubscribe(options: argparse.Namespace) -> int:
    """`shmstore unsubscribe`."""
    from shmstore.consumer.live import actions

    actions.unsubscribe(options.store, options.name, path=options.path, state=options.state)
    return 0
