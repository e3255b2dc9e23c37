"""`shmstore reload`, `pause`, `resume` and `audit`: what a store is asked to do while it runs, and what it was asked."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from shmstore.cli.command import Commands
from shmstore.cli.log_lines import say
from shmstore.cli.named_store import home_of, named
from shmstore.cli.values import seconds
from shmstore.units import moment, printable

if TYPE_CHECKING:
    from collections.abc import Callable


def add(commands: Commands) -> None:
    """Add the commands."""
    sub = commands.add(
        reload,
        "reload",
        "let the producer of a store read its configuration file again",
        "  shmstore reload orders",
        "The new filters (include, exclude, row_filter, operations, ghost_tables, column_include, column_exclude, column_mask, "
        "column_hash) and new_tables are in force from the end of a transaction on. The command prints that position, and the store "
        "gets an event about the change. If the file has an error, or changes an option that needs a restart, then nothing changes, "
        "for any store of that producer process, and the exit code is 1. SIGHUP does the same; the answer is then in the producer's "
        "log.",
    )
    _add_wait(sub, "for the producer's answer")
    sub = commands.add(
        pause,
        "pause",
        "stop the producer of a store, or one of its readers, until it is resumed",
        "  shmstore pause orders\n  shmstore pause orders --subscription audit",
        "The producer pauses at the end of a transaction and closes its link to the server. The server must keep the binlog from "
        "there on. The producer still owns the store, and readers continue. A pause is a file in the store's home and outlives "
        "restarts: a producer that is started while it is paused reports that in its first line. The reader of a paused subscription "
        "waits, as if no event came, and its unacked events are kept. In a store without a log it therefore holds up the producer "
        "when the ring is full, or is evicted.",
    )
    _add_subscription(sub)
    _add_wait(sub, "until the producer is paused")
    sub = commands.add(
        resume,
        "resume",
        "let a paused producer, or the reader of a paused subscription, continue",
        "  shmstore resume orders\n  shmstore resume orders --subscription audit",
        "Both continue where they were paused. If the server has removed the binlog meanwhile, the producer stops with an error.",
    )
    _add_subscription(sub)
    _add_wait(sub, "until the producer reads again")
    commands.add(
        audit,
        "audit",
        "list the actions on a store: pause, resume, seek, unsubscribe, snapshot and reload",
        "  shmstore audit orders",
        "One line for each action of the command line, `shmstore top` and `shmstore web`, the oldest first: when, by whom, what, and "
        "done or the reason why not.",
    )


def _add_wait(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--wait", type=seconds, default=30.0, metavar="SECONDS", help=f"how long to wait {what} (default: 30)")


def _add_subscription(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subscription", metavar="NAME", help="this subscription instead of the producer")


def reload(options: argparse.Namespace) -> int:
    """`shmstore reload`."""
    from shmstore.consumer.live import actions

    answer = actions.reload(named(options), options.wait)
    if answer is None:
        say(
            f"store {options.store!r}: no answer in {options.wait:g} s: filters change between two transactions, when there is free space and the "
            "producer is not paused; its log reports the change"
        )
        return 1
    print(printable(f"{options.store}: {answer.text}"), file=sys.stdout if answer.done else sys.stderr)
    return 0 if answer.done else 1


def pause(options: argparse.Namespace) -> int:
    """`shmstore pause`."""
    from shmstore.consumer.live import actions

    return _paused(options, actions.pause)


def resume(options: argparse.Namespace) -> int:
    """`shmstore resume`."""
    from shmstore.consumer.live import actions

    return _paused(options, actions.resume)


def _paused(options: argparse.Namespace, act: Callable[..., str]) -> int:
    done = act(named(options), options.subscription, wait=options.wait)
    print(printable(f"{options.store}: {done}"))
    return 0


def audit(options: argparse.Namespace) -> int:
    """`shmstore audit`."""
    from shmstore.home.audit import lines

    for line in lines(home_of(options)):
        print(printable(f"{moment(line.at_ms)}  {line.by}  {line.action} {line.what}: {line.outcome}"))
    return 0
