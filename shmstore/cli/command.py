"""A command of the command line, and what a module of `commands` adds it to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from shmstore.arguments import SECTIONS, Parser
from shmstore.cli import config_file
from shmstore.cli.options import add_store

Run = Callable[[argparse.Namespace], int]
Fill = Callable[[argparse.ArgumentParser], None]


class Command(Parser):
    """A command's parser. Its options may come from a package that is imported only then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fill: Fill | None = None
        self.passes_on = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the options that are not there yet, then parse; or keep the words for another parser."""
        if self.passes_on and args and args[0] not in ("-h", "--help"):
            return argparse.Namespace(**self._defaults, words=list(args)), []
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        if args:
            args = [*config_file.words_of(self, self.prog.rpartition(" ")[2], args), *args]
        return super().parse_known_args(args, namespace)


class Commands:
    """The commands of one level: `shmstore COMMAND`, or `shmstore log COMMAND`. `by_name` has the parser of each by its words."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser
        self.by_name: dict[str, Command] = {}
        self._level = ""
        self._parsers = parser.add_subparsers(
            prog=parser.prog, title="commands", metavar="COMMAND", required=True, parser_class=Command
        )

    def add(
        self, run: Run, name: str, does: str, example: str, notes: str = "", *, fill: Fill | None = None, store: bool = True
    ) -> Command:
        """Add a command that calls `run`. `fill` adds options that come from a package that is imported only when they are needed."""
        sub = self._add(name, does, f"example:\n{example}", notes)
        self.by_name[self._level + name] = sub
        sub.set_defaults(run=run)
        sub.fill = fill
        if store:
            add_store(sub)
        if name in SECTIONS:
            config_file.add_flag(sub, name)
        return sub

    def group(self, name: str, does: str, examples: str, notes: str = "") -> Commands:
        """Add a command that has commands of its own."""
        level = Commands(self._add(name, does, examples, notes))
        level.by_name, level._level = self.by_name, f"{name} "
        return level

    def _add(self, name: str, does: str, examples: str, notes: str) -> Command:
        description = f"{does[0].upper()}{does[1:]}.\n\n{examples}"
        return self._parsers.add_parser(name, help=does, description=description, epilog=notes)
