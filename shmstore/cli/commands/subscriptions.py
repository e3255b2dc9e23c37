"""`shmstore subscribe`, `seek` and `unsubscribe`: where a reader begins, where it continues, and that it is forgotten."""

from __future__ import annotations

import argparse
from pathlib import Path

from shmstore.cli.command import Commands
from shmstore.cli.named_store import named, subscribe_at
from shmstore.cli.values import place
from shmstore.start_position import FORMS
from shmstore.units import printable


def add(commands: Commands) -> None:
    """Add the commands."""
    sub = commands.add(
        subscribe,
        "subscribe",
        "create a subscription before its reader starts, so that the store keeps events for it",
        "  shmstore subscribe orders audit\n"
        "  shmstore subscribe orders canal-1001 --from binlog.000003:1520 --filter 'shop\\..*'\n"
        "  shmstore subscribe orders --canal-meta /opt/canal/conf/example/meta.dat",
        "The store need not exist yet: its producer will begin at the lowest FILE:OFFSET or GTID set of its subscriptions. The Canal "
        "client with id 1001 is the subscription canal-1001. With --canal-meta every client in Canal's meta.dat continues at its "
        "cursor, with its filter, even if it has a subscription already: stop Canal first.",
    )
    sub.add_argument("name", nargs="?", metavar="NAME", help="name of the subscription")
    sub.add_argument(
        "--from", dest="start", type=place, metavar="WHERE", help=f"the first event that it gets: {FORMS} (default: latest)"
    )
    sub.add_argument(
        "--filter", default="", metavar="REGEXES", help="for a Canal client: the tables that it reads, in Canal's form"
    )
    sub.add_argument("--canal-meta", metavar="FILE", help="create subscriptions for the clients in Canal's meta.dat")
    sub = commands.add(
        seek,
        "seek",
        "move a stopped reader: forward to skip events, or back to read them again",
        "  shmstore seek orders audit latest\n"
        "  shmstore seek orders audit 2026-01-31T12:00:00Z\n"
        "  shmstore seek orders audit binlog.000003:1520",
        "The store must have a log; a reader can go back as far as the log reaches. A reader that was evicted can continue after a "
        "seek. Skipped events count as acked.",
    )
    sub.add_argument("name", metavar="SUBSCRIPTION", help="name of the subscription, as `shmstore stat` shows it")
    sub.add_argument("where", type=place, metavar="WHERE", help=f"the first event that it gets next: {FORMS}")
    sub = commands.add(
        unsubscribe,
        "unsubscribe",
        "forget a subscription and its acks, so that no events are kept for it any more",
        "  shmstore unsubscribe orders audit",
        "In a store without a log, a producer that waits for this reader continues. To skip a reader's unread events and keep the "
        "reader, see `shmstore seek`.",
    )
    sub.add_argument("name", metavar="NAME", help="name of the subscription, as `shmstore stat` shows it")


def subscribe(options: argparse.Namespace) -> int:
    """`shmstore subscribe`."""
    if bool(options.name) == bool(options.canal_meta):
        raise ValueError("name the subscription, or give --canal-meta FILE for every client in it")
    if options.canal_meta:
        from shmstore.cli.canal import cursors

        if options.start is not None or options.filter:
            raise ValueError("--canal-meta says where each client begins and its filter: leave out --from and --filter")
        clients = cursors.in_file(Path(options.canal_meta))
        print(printable(cursors.take(options.store, clients, path=options.path, state=options.state)))
        return 0
    if options.filter:
        from shmstore.consumer.wire.session.filter import compile_filter

        if not options.name.startswith("canal-"):
            raise ValueError(
                f"--filter is of clients of canal's protocol, named canal-ID, and the subscription is {options.name!r}"
            )
        compile_filter(options.filter)
    start = "latest" if options.start is None else options.start
    there = subscribe_at(options.store, options.name, start, filter=options.filter, path=options.path, state=options.state)
    print(
        printable(
            f"{options.name} is subscribed" + ("" if there else f"; the producer of {options.store} begins there, or earlier")
        )
    )
    return 0


def seek(options: argparse.Namespace) -> int:
    """`shmstore seek`."""
    from shmstore.consumer.live import actions

    print(printable(actions.seek(named(options), options.name, options.where)))
    return 0


def unsubscribe(options: argparse.Namespace) -> int:
    """`shmstore unsubscribe`."""
    from shmstore.consumer.live import actions

    actions.unsubscribe(named(options), options.name)
    return 0
