"""The command line as a whole: every command, in the order of `shmstore --help`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import shmstore
from shmstore.cli.command import Command, Commands

# The modules of `commands`, and the commands of each.
MODULES = {
    "init": ("init",),
    "config": ("config",),
    "producing": ("produce", "run", "doctor"),
    "control": ("reload", "pause", "resume", "audit"),
    "snapshot": ("snapshot",),
    "verify": ("verify",),
    "tail": ("tail",),
    "queue": ("queue",),
    "replicate": ("replicate", "spark"),
    "serve": ("serve",),
    "stores": ("ls", "stat", "check", "create", "backup", "rm"),
    "subscriptions": ("subscribe", "seek", "unsubscribe"),
    "log": ("log",),
    "metrics": ("metrics",),
    "live": ("top", "web"),
}


class _Version(argparse.Action):
    """Prints the version, and whether compiled code runs: where it does not, what that costs and what to do."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print it; end the program."""
        from shmstore.native import pure_python

        print(f"shmstore {shmstore.__version__} ({pure_python() or 'compiled'})")
        parser.exit()


def commands(words: Sequence[str] = ()) -> Commands:
    """Return every command; what their `parser` parses has the function that is to `run`.

    Where the first of `words` is a command, only those of its module: the others need not be imported to run it.
    """
    top = Command(
        prog="shmstore",
        description="MySQL and MariaDB changes in a shared-memory ring with a log on disk, for many independent readers.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version, and whether compiled code runs, and exit")
    found = Commands(top)
    for module in [name for name, has in MODULES.items() if words and words[0] in has] or MODULES:
        import_module(f"shmstore.cli.commands.{module}").add(found)
    return found
