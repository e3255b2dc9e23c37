"""`shmstore config check`: mistakes in a configuration file."""

from __future__ import annotations

import argparse

from shmstore.cli import config_file
from shmstore.cli.command import Commands
from shmstore.units import printable


def add(commands: Commands) -> None:
    """Add the command."""
    sub = commands.group("config", "check a configuration file", "example:\n  shmstore config check").add(
        check,
        "check",
        "check a configuration file and list what is wrong",
        "  shmstore config check /etc/shmstore/shop.toml",
        "One file serves every command: [producer] and [source.NAME] for produce, run, doctor and verify, [serve], [metrics], [web] "
        "and [top] for these commands, [log] for the log lines (format, level). It finds unknown sections and keys, values that are "
        "not allowed, and files that cannot be read. It does not connect to a server; `shmstore doctor --config FILE` does.\n"
        "Exit codes: 0 nothing is wrong, 1 something is wrong, 2 the file cannot be read.",
        store=False,
    )
    sub.add_argument(
        "file", nargs="?", default=config_file.CONFIG, metavar="FILE", help=f"the file (default: {config_file.CONFIG})"
    )


def check(options: argparse.Namespace) -> int:
    """`shmstore config check`."""
    from shmstore.cli.command_line import commands  # all of them: each reads its own section

    found = config_file.problems(options.file, commands().by_name)
    print("\n".join(printable(f"{options.file}: {each}") for each in found) or f"{options.file}: nothing is wrong")
    return 1 if found else 0
