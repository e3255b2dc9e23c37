"""One file for every command: what `--config` names, besides the producer's own sections.

A section `[serve]`, `[metrics]`, `[web]` or `[top]` has that command's options as keys, `[log]` those of the log lines of every command that has
them. They are put in front of what the command line says, and read as if they stood there: so there is one reading of each
option, and the command line wins. `[producer]` and `[source.NAME]` are read by `shmstore.producer.settings`, where variables stand between.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from shmstore.arguments import LOG, SECTIONS
from shmstore.errors import did_you_mean

CONFIG = "shmstore.toml"  # what `run` reads without --config


def read(path: str) -> dict[str, Any]:
    """Return the sections of a file. Raises ValueError."""
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"config {path!r} cannot be read: {error}") from error


def add_flag(parser: argparse.ArgumentParser, section: str) -> None:
    """Add ``--config FILE`` to a command that has a section of its own."""
    group = parser.add_argument_group("Configuration file")
    group.add_argument("--config", metavar="FILE", help=f"TOML file whose [{section}] holds these options; the command line wins")


def words_of(parser: argparse.ArgumentParser, command: str, words: Sequence[str]) -> list[str]:
    """Return what the file that `words` name says for this command, as words of its command line. Raises ValueError."""
    path = _named(words)
    if path is None and command == "run" and os.path.exists(CONFIG):
        path = CONFIG
    if path is None or "--config" not in parser._option_string_actions:
        return []
    if command not in SECTIONS and not os.access(path, os.R_OK):
        return []  # the producer's settings say so, where it is wanted
    sections = read(path)
    found = []
    if "--log-format" in parser._option_string_actions and LOG in sections:
        found += _words(parser, path, LOG, {f"log-{key}": value for key, value in _table(path, LOG, sections[LOG]).items()})
    if command in SECTIONS and command in sections:
        found += _words(parser, path, command, _table(path, command, sections[command]))
    return found


def _named(words: Sequence[str]) -> str | None:
    for number, word in enumerate(words):
        if word == "--config" and number + 1 < len(words):
            return words[number + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
    return None


def _table(path: str, section: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"config {path!r}: write the options of {section} under [{section}]")
    return value


def _words(parser: argparse.ArgumentParser, path: str, section: str, table: dict[str, Any]) -> list[str]:
    known = {flag.removeprefix("--"): action for flag, action in parser._option_string_actions.items() if flag.startswith("--")}
    named = {action.dest: action for action in parser._actions if not action.option_strings}
    found: list[str] = []
    for key, value in table.items():
        if key in named:
            several = [str(each) for each in value] if isinstance(value, list) else [str(value)]
            parser.set_defaults(**{key: several if named[key].nargs == "*" else several[0]})
            continue
        name = key.replace("_", "-")
        if name not in known or name in ("config", "help"):
            shown = key.removeprefix("log-") if section == LOG else key
            likely = [flag.replace("-", "_").removeprefix("log_" if section == LOG else "") for flag in known]
            raise ValueError(f"config {path!r}: [{section}] {shown} is unknown{did_you_mean(shown, [*likely, *named])}")
        if isinstance(value, bool):
            if value:
                found.append(f"--{name}")
            elif f"no-{name}" in known:
                found.append(f"--no-{name}")
            continue
        for each in value if isinstance(value, list) else [value]:
            found += [f"--{name}={each}"]
    return found


# ---------------------------------------------------------------- shmstore config check


class _Wrong(Exception):
    """What a parser says of words."""


def problems(path: str, commands: Mapping[str, argparse.ArgumentParser], *, files: bool = True) -> list[str]:
    """Return what is wrong in a file, a line each: `commands` are the parsers by name; `files`: whether those that it names must be there.

    Raises ValueError where it cannot be read.
    """
    sections = read(path)
    known = ("producer", "source", LOG, *SECTIONS)
    found = [f"[{name}] is unknown{did_you_mean(name, known)}" for name in sections if name not in known]
    if "producer" in sections or "source" in sections:
        found += _of_producer(path)
    for name in [name for name in SECTIONS if name in sections] or ["run"] * (LOG in sections):
        try:
            words = ["--config", path]
            parser = commands[name]
            parser.error = _refuse  # type: ignore[method-assign]
            parser.parse_args(words)
        except (ValueError, _Wrong) as error:
            said = str(error).removeprefix(f"config {path!r}: ").removeprefix("argument --")
            found.append(said if said.startswith("[") else f"[{name}] {said}")
    for where, table in _tables(sections) if files else ():
        found += [
            f"[{where}] {key}: {why}"
            for key, file in table.items()
            if isinstance(file, str) and file and key.replace("-", "_").endswith(("_file", "tls_cert", "tls_key", "tls_ca"))
            if (why := _unreadable(file))
        ]
    return found


def _refuse(message: str) -> Any:
    raise _Wrong(message)


def _of_producer(path: str) -> list[str]:
    from shmstore import producer

    try:
        producer.load_all(config=path)
        return []
    except ValueError as error:
        return [str(error).removeprefix("config: ")]


def _tables(sections: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    flat = [(name, table) for name, table in sections.items() if name != "source" and isinstance(table, dict)]
    sources = sections.get("source", {})
    return flat + [(f"source.{name}", table) for name, table in sources.items() if isinstance(table, dict)]


def _unreadable(file: str) -> str:
    try:
        os.close(os.open(file, os.O_RDONLY))
        return ""
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
