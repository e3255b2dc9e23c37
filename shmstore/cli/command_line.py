"""The command line as a whole: every command, in the order of `shmstore --help`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import shmstore
from shmstore.cli.command import Command, Commands

# The modules of `commands`, and the commands of each.
MODULES = {
    "init": ("init",),
    "config": ("config",),
    "producing": ("produce", "run", "doctor"),
    "snapshot": ("snapshot",),
    "verify": ("verify",),
    "tail": ("tail",),
    "queue": ("queue",),
    "serve": ("serve",),
    "spark": ("spark",),
    "stores": ("ls", "stat", "check", "create", "rm"),
    "subscriptions": ("seek", "unsubscribe"),
    "log": ("log",),
    "metrics": ("metrics",),
    "live": ("top", "web"),
}


def commands(words: Sequence[str] = ()) -> Commands:
    """Return every command; what their `parser` parses has the function that is to `run`.

    Where the first of `words` is a command, only those of its module: the others need not be imported to run it.
    """
    top = Command(
        prog="shmstore",
        description="MySQL and MariaDB changes in a shared-memory ring with a log on disk, for many independent readers.",
    )
    top.add_argument("--version", action="version", version=f"shmstore {shmstore.__version__}")
    found = Commands(top)
    for module in [name for name, has in MODULES.items() if words and words[0] in has] or MODULES:
        import_module(f"shmstore.cli.commands.{module}").add(found)
    return found
