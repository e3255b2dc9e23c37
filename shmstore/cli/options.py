"""Options that several commands have."""

from __future__ import annotations

import argparse
from typing import Any

from shmstore.arguments import Parser
from shmstore.cli.log_lines import LEVELS
from shmstore.cli.values import place, port

STATE = "(default: $SHMSTORE_STATE, or ~/.local/state/shmstore)"
FORMATS = ("json", "canal", "debezium", "maxwell")


def add_store(sub: Parser) -> None:
    """Add the store that a command is about."""
    sub.add_argument("store", metavar="STORE", help="name of the store, as `shmstore ls` shows it")
    sub.add_argument("--path", metavar="FILE", help="the store's file, if it is in a file instead of shared memory")
    add_state(sub)


def add_state(sub: argparse.ArgumentParser) -> None:
    """Add where the homes are."""
    sub.add_argument("--state", metavar="DIR", help=f"folder of stores' homes {STATE}")


def add_stores(sub: Parser) -> None:
    """Add the stores that a command shows."""
    sub.add_argument("stores", nargs="*", metavar="STORE", help="the stores (default: every store of this host)")


def add_show_values(group: Any) -> None:
    """Add whether values are seen."""
    group.add_argument("--show-values", action="store_true", help="show the values of columns, and statements (default: masked)")


def add_form(sub: Parser) -> None:
    """Add how events are printed."""
    form = sub.add_argument_group("How to print it")
    form.add_argument("--format", choices=FORMATS, default="json", help="form of the documents (default: json)")
    form.add_argument("--schemas", action="store_true", help="debezium: add the schema to each document")
    form.add_argument("--transactions", action="store_true", help="debezium: add transaction metadata")
    form.add_argument("--gtids", action="store_true", help="canal: add the executed GTID set, as Canal does with gtidon")


def add_subscription(group: Any, name: str) -> None:
    """Add the subscription that a command reads as, called `name` by default, and where a new one begins."""
    group.add_argument("--subscription", default=name, metavar="NAME", help=f"read as this subscription (default: {name})")
    where = "where a new subscription begins, as in `tail`"
    group.add_argument("--from", dest="start", type=place, default="earliest", metavar="WHERE", help=where)


def add_metrics_port(group: Any) -> None:
    """Add where a command's counters are served (`listening.counting`)."""
    where = "serve counters at /metrics on this port, for this host only (default: none)"
    group.add_argument("--metrics-port", type=port, default=0, metavar="PORT", help=where)


def add_log_lines(sub: argparse.ArgumentParser) -> None:
    """Add the options of `cli.log_lines`."""
    lines = sub.add_argument_group("Log lines, on stderr")
    lines.add_argument("--log-format", choices=("text", "json"), default="text", help="form of the lines (default: text)")
    lines.add_argument("--log-level", choices=LEVELS, default="info", help="lowest level that is written (default: info)")
