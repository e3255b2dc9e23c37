"""The argument parser of every command: errors are one line that suggests the nearest right word, help is never too wide to read."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from shmstore.errors import did_you_mean

WIDTH = 100  # columns of help at most
OPTIONS_AT = 30  # where the texts of options begin
SECTIONS = ("serve", "metrics", "web", "top", "queue")  # of the configuration file: one for each of these commands
LOG = "log"  # another, for the log lines of all commands


class HelpFormatter(argparse.HelpFormatter):
    """Help whose usage line names only what must be given, and whose indented lines (examples) stay as they are."""

    def __init__(self, prog: str) -> None:
        import shutil  # which loads what compresses files: for help alone

        super().__init__(prog, max_help_position=OPTIONS_AT, width=min(WIDTH, shutil.get_terminal_size().columns) - 2)

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: str | None = None) -> None:
        """Add the usage line: `[options]` for all that may be left out."""
        given = list(actions)
        needed = [action for action in given if action.required or not action.option_strings]
        if len(needed) < len(given):
            needed.insert(0, argparse.Action([], "options", metavar="[options]"))
        super().add_usage(usage, needed, [], prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (line if line.startswith(" ") else textwrap.fill(line, width - len(indent)) for line in text.splitlines())
        return textwrap.indent("\n".join(lines), indent)


class Parser(argparse.ArgumentParser):
    """ArgumentParser whose errors are one line, with "did you mean" for commands, options and values."""

    def __init__(self, **options: Any) -> None:
        # without abbreviations, or a new option would change what an old script means
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an unknown option is an error here, which can list the known ones."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            like = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{like}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            text = f"{value!r} is unknown; choose from {', '.join(known)}{did_you_mean(str(value), known)}"
            raise argparse.ArgumentError(action, text)

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and one line that says where help is."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")
