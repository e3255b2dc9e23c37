"""The command line as a whole: every command, in the order of `shmstore --help`."""

from __future__ import annotations

from importlib.metadata import version

from shmstore.cli.command import Command, Commands
from shmstore.cli.commands import (
    config,
    init,
    live,
    log,
    metrics,
    producing,
    queue,
    serve,
    snapshot,
    spark,
    stores,
    subscriptions,
    tail,
    verify,
)

MODULES = (init, config, producing, snapshot, verify, tail, queue, serve, spark, stores, subscriptions, log, metrics, live)


def commands() -> Commands:
    """Return every command; what their `parser` parses has the function that is to `run`."""
    top = Command(
        prog="shmstore",
        description="MySQL and MariaDB changes in a shared-memory ring with a log on disk, for many independent readers.",
    )
    top.add_argument("--version", action="version", version=f"shmstore {version('shmstore')}")
    found = Commands(top)
    for module in MODULES:
        module.add(found)
    return found
