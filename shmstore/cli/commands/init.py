"""`shmstore init`: a configuration file to begin with, by asking the server."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shmstore.cli.command import Commands
from shmstore.cli.config_file import CONFIG
from shmstore.cli.error_text import line_of
from shmstore.cli.log_lines import say
from shmstore.cli.questions import ask, ask_secretly
from shmstore.cli.values import toml
from shmstore.units import printable

if TYPE_CHECKING:
    from shmstore.producer import Finding, Settings

_OWN = ("host", "port", "user", "store", "include", "name", "password", "password_file", "password_command", "hash_key")


def add(commands: Commands) -> None:
    """Add the command."""
    commands.add(
        init,
        "init",
        "write a first configuration file, by asking the server",
        "  shmstore init\n  SHMSTORE_PASSWORD=... shmstore init --host db1 --user repl --include 'shop.*'\n"
        "  shmstore init --from-canal /opt/canal/conf",
        "It takes the options of produce, checks the server as doctor does, and writes the options into a file with comments: what "
        "the account sees, what else can be set, and what must be fixed first. It writes no password. In a terminal, without options "
        "of produce, it asks for server, account, password (not shown), tables and the store's name. Ctrl-C leaves no file.\n"
        "With --from-canal it asks no server: each of Canal's destinations becomes a folder with a configuration file and files with "
        "its passwords, and its clients' cursors (meta.dat, or ZooKeeper) become subscriptions. A report shows what became of every "
        "property.\n"
        "Exit codes: 0 written, 1 written, and something must be fixed on the server, 2 an error, with what to do.",
        store=False,
        fill=flags,
    )


def flags(parser: argparse.ArgumentParser) -> None:
    """Add the options: its own, and the producer's, which are written into the file."""
    from shmstore import producer

    group = parser.add_argument_group("The file")
    group.add_argument(
        "--output",
        metavar="FILE",
        help=f"the file to write; - for stdout (default: {CONFIG}); with --from-canal a folder (default: the current one)",
    )
    group.add_argument("--from-canal", metavar="CONF_DIR", help="convert Canal's folder conf, instead of asking a server")
    producer.add_flags(parser)


def init(options: argparse.Namespace) -> int:
    """`shmstore init`."""
    from shmstore import producer

    given = {option.name: getattr(options, option.name, None) for option in dataclasses.fields(producer.Settings)}
    if options.from_canal is not None:
        return _from_canal(options.from_canal, options.output or ".", given)
    options.output = options.output or CONFIG
    path = Path(options.output)
    if options.output != "-" and path.exists():
        raise ValueError(f"{path} exists already: name another file with --output, or remove it")
    if sys.stdin is not None and sys.stdin.isatty() and not any(value is not None for value in given.values()):
        settings, findings, tables = _asked()
    else:
        settings = producer.load_settings(flags={**given, "store": options.store or "shop"})
        findings, tables = producer.check_server(settings), producer.tables_of(settings)
        if not options.store:
            settings = dataclasses.replace(settings, store=_likely(settings, tables))
    text = _text(settings, given, findings, tables)
    if options.output == "-":
        print(text, end="")
    else:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "w", encoding="utf-8") as file:
            file.write(text)
    for finding in findings:
        if finding.state != "ok":
            print(
                printable(f"{finding.state:4}  {finding.check}: {finding.found}"),
                printable(f"      fix: {finding.fix}"),
                sep="\n",
                file=sys.stderr,
            )
    if options.output != "-":
        say(f"wrote {path}; next: `shmstore config check {path}`, then `shmstore run --config {path}`")
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def _from_canal(folder: str, out: str, given: dict[str, Any]) -> int:
    """Write what Canal's configuration becomes, and make its clients' subscriptions."""
    from shmstore.cli.canal import cursors, files

    if out == "-":
        raise ValueError("--from-canal writes several files: name a folder with --output")
    every = files.conversions(folder, Path(out), given)
    found = [cursors.of_destination(made) for made in every]
    for made, clients in zip(every, found, strict=True):
        if any(client.cursor is not None for client in clients):
            made.begins_before()
    paths = files.write(every)
    for made, clients in zip(every, found, strict=True):
        print(files.report(made))
        print(printable(cursors.take(made.store, clients, state=given["state"])))
    for path in paths:
        say(f"wrote {path}; next: `shmstore config check {path}`, then `shmstore run --config {path}`")
    return 0


def _asked() -> tuple[Settings, list[Finding], list[tuple[str, str]]]:
    """Ask for what a producer needs; what the environment says are the defaults. Raises KeyboardInterrupt."""
    from shmstore import SourceError, producer
    from shmstore.memory.segment import check_name

    print("Enter takes what stands in brackets, Ctrl-C ends without a file.", file=sys.stderr)
    settings = producer.load_settings(flags={"store": "shop"})
    knows = bool(settings.password or settings.password_file or settings.password_command)

    def at(host: str) -> Settings:
        return dataclasses.replace(settings, host=host)

    while True:
        where = ",".join(endpoint.where for endpoint in settings.endpoints())
        host = ask("Server, or several to fail over between", where, at)
        user = ask("Account", settings.user)
        settings = dataclasses.replace(at(host), user=user)
        if not knows:
            settings = dataclasses.replace(settings, password=ask_secretly("Password (not shown, and not written)"))
        try:
            findings, tables = producer.check_server(settings), producer.tables_of(settings)
            break
        except SourceError as error:
            print(printable(f"  {line_of(error)}"), file=sys.stderr)

    def chosen(patterns: str) -> Settings:
        made = dataclasses.replace(settings, include=tuple(each.strip() for each in patterns.split(",")))
        if tables and not any(made.table_filter().passes(*each) for each in tables):
            raise ValueError(f"no table of the account matches {patterns}")
        return made

    seen = settings.include or tuple(f"{database}.*" for database in sorted({database for database, _ in tables})) or ("*.*",)
    print(printable(f"The account sees {_databases(tables)}."), file=sys.stderr)
    settings = chosen(ask("Tables, by patterns separated by commas", ",".join(seen), chosen))
    store = ask("Name of the store", _likely(settings, tables), check_name)
    return dataclasses.replace(settings, store=store), findings, tables


def _likely(settings: Settings, tables: list[tuple[str, str]]) -> str:
    """A name for the store: that of the only database that is read."""
    databases = {database for database, table in tables if settings.table_filter().passes(database, table)}
    (only,) = databases if len(databases) == 1 else ("changes",)
    return only if only.isascii() and only.replace("-", "_").isidentifier() else "changes"


def _text(settings: Settings, given: dict[str, Any], findings: list[Finding], tables: list[tuple[str, str]]) -> str:
    include = list(settings.include) or [f"{database}.*" for database in sorted({database for database, _ in tables})]
    where = ",".join(endpoint.where for endpoint in settings.endpoints())
    more = {option.name: given.get(option.name) for option in dataclasses.fields(settings) if option.name not in _OWN}
    secret = next((name for name in ("password_command", "password_file") if getattr(settings, name)), "")
    password = f"{secret} = {toml(getattr(settings, secret))}" if secret else '# password_file = "/run/secrets/repl"'
    lines = [
        f"# {findings[0].found}. `shmstore run` reads this file; `shmstore config check` looks for mistakes in it.",
        "# Every option of `shmstore produce --help` is a key (--read-timeout: read_timeout). A flag wins over an environment",
        "# variable (SHMSTORE_READ_TIMEOUT), a variable over this file.",
        "",
        "[producer]  # for every source",
        f"user = {toml(settings.user)}",
        "# The password is SHMSTORE_PASSWORD in the environment, in a file, or printed by a command (password_command):",
        password,
        "",
        f"[source.{toml(settings.store)}]  # its store has this name, unless `store` says otherwise",
        f"host = {toml(where)}  # several to fail over between, separated by commas",
        f"include = {toml(include)}  # the account sees: {_databases(tables)}",
        *[f"{name} = {toml(value)}" for name, value in more.items() if value is not None],
        '# snapshot = "initial"  # begin with the rows that are there',
        '# log_size = "10g"  # what the store remembers at most',
        '# log_keep = "24h"  # and how long, where all readers have it',
        "",
        "# [metrics]  # `shmstore metrics --config`: figures for Prometheus",
        '# listen = "127.0.0.1:9105"',
        "# [web]  # `shmstore web --config`: a live page",
        '# listen = "127.0.0.1:9180"',
        "# [serve]  # `shmstore serve --config`: for readers on other hosts",
        f"# stores = {toml([settings.store])}",
        '# flight = "0.0.0.0:8815"',
        "# [log]  # the log lines of all of them",
        '# format = "json"',
        "",
    ]
    wrong = [finding for finding in findings if finding.state != "ok"]
    lines += ["# What `shmstore doctor` found when this was written:"] * bool(wrong)
    for finding in wrong:
        lines += [
            f"#   {finding.state}  {finding.check}: {finding.found}",
            *[f"#         {line}" for line in finding.fix.splitlines()],
        ]
    return "\n".join(lines).rstrip() + "\n"


def _databases(tables: list[tuple[str, str]]) -> str:
    seen = Counter(database for database, _ in tables)
    return ", ".join(f"{database} ({count} table{'s' * (count != 1)})" for database, count in sorted(seen.items())) or "none"
