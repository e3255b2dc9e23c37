"""`shmstore verify`: copies against their source."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from shmstore.cli.command import Commands
from shmstore.cli.log_lines import say
from shmstore.cli.signals import ended, on_signal
from shmstore.patterns.table_patterns import FORMS as TABLE_FORMS
from shmstore.patterns.table_patterns import Patterns
from shmstore.units import duration, printable

if TYPE_CHECKING:
    from shmstore import Position
    from shmstore.consumer.copies.reading.address import CopyAddress
    from shmstore.producer import Settings
    from shmstore.producer.verify import ReadableCopy, TableResult, VerifyProgress

SHOWN = 20  # rows that differ, of each table
EVERY = 10.0  # seconds between two lines of progress; on a terminal one line is kept
QUICK = 0.25
CUT = 60


def add(commands: Commands) -> None:
    """Add the command."""
    commands.add(
        verify,
        "verify",
        "prove that copies of tables equal their source, while both change",
        "  SHMSTORE_PASSWORD=... shmstore verify --host db1 --store orders --copy 'delta:/lake/{database}/{table}'",
        "It takes the options of produce, which name the source and the store. It takes no lock, and writes nothing to the server. "
        "It reads both sides once, and compares rows again whose keys changed meanwhile according to the store's events. After "
        "Ctrl-C or a kill, the same command continues where it was.\n"
        "Exit codes: 0 equal, 1 something differs or could not be compared, 2 an error, with what to do.",
        store=False,
        fill=flags,
    )


def flags(parser: argparse.ArgumentParser) -> None:
    """Add the options: its own, and those of the store's producer, which name the source."""
    from shmstore import producer
    from shmstore.consumer.copies.reading.address import FORMS

    group = parser.add_argument_group("Copies")
    group.add_argument("--copy", required=True, metavar="WHERE", help=f"where the copies are: {FORMS}")
    secret = group.add_mutually_exclusive_group()
    secret.add_argument(
        "--copy-password-file",
        metavar="FILE",
        help="file with the password of the copies' database (or set SHMSTORE_COPY_PASSWORD)",
    )
    secret.add_argument(
        "--copy-password-command",
        metavar="CMD",
        help="shell command that prints this password, such as a token; run for each connection, like --password-command",
    )
    group.add_argument("--tables", metavar="PATTERNS", help=f"only these tables: {TABLE_FORMS}")
    fed = group.add_mutually_exclusive_group()
    fed.add_argument(
        "--subscription",
        metavar="NAME",
        help="the subscription that feeds the copies (default: the store's only one)",
    )
    fed.add_argument(
        "--at-rest", action="store_true", help="nothing feeds the copies any more, and they have all events of the store"
    )
    group.add_argument(
        "--zero-dates",
        choices=("error", "null"),
        default="error",
        help="null: the copies have NULL for zero dates (replicate's zeroDates)",
    )
    group.add_argument(
        "--repair",
        action="store_true",
        help="ask the producer for new rows of the tables that differ; replicate replaces the copies' rows with them",
    )
    group.add_argument(
        "--patience",
        type=duration,
        default=60.0,
        metavar="TIME",
        help="how long to wait for a producer or copy that makes no progress (default: 60s)",
    )
    group.add_argument(
        "--max-load",
        type=int,
        default=25,
        metavar="N",
        help="wait while more statements than this run on the server (default: 25; 0: never wait)",
    )
    group.add_argument("--json", action="store_true", help="print a JSON document for each table")
    producer.add_flags(parser)


def verify(options: argparse.Namespace) -> int:
    """`shmstore verify`."""
    from shmstore import producer
    from shmstore.consumer.copies.reading.address import parse
    from shmstore.producer.stop import Stopped
    from shmstore.producer.verify.verification import Verification

    address = parse(options.copy)
    settings = producer.load_settings(flags=vars(options), config=options.config, source=options.source)
    patterns = Patterns.parse(options.tables or ())
    feeds = None if options.at_rest else options.subscription or _only_subscription(settings)
    secret = _secret(options)
    found: list[TableResult] = []
    stop, shown = threading.Event(), _Shown()
    with on_signal(stop.set) as came:
        try:
            with Verification(
                settings,
                lambda database, table: _open(address.of(database, table), settings, secret),
                subscription=feeds,
                patience=options.patience,
                zero_dates=options.zero_dates,
                max_load=options.max_load,
                progress=shown,
                stop=stop.is_set,
                place=options.copy,
            ) as verification:
                tables = [each for each in verification.tables() if not patterns or patterns.match(".".join(each))]
                if not tables:
                    raise ValueError(
                        f"no table matches {options.tables}" if options.tables else "the server shows no table to this account"
                    )
                for database, table in tables:
                    one = verification.verify(database, table)
                    shown.clear()
                    found.append(one)
                    print(_document(one) if options.json else "\n".join(map(printable, _lines(one))), flush=True)
        except (KeyboardInterrupt, Stopped):
            shown.clear()
            say("stopped; the same command continues where it was")
            return ended(came) or 130
    odd = [each for each in found if not each.equal]
    if odd and options.repair:
        names = [f"{each.table.database}.{each.table.table}" for each in odd]
        request = producer.request_snapshot(settings.store, names, state=settings.state or None, reason="repair")
        say(
            f"asked for new rows of {', '.join(names)} (snapshot {request}): `shmstore snapshot {settings.store} --watch` shows them coming"
        )
    if not options.json:
        print(printable(_end(found)))
    return 1 if odd else 0


class _Secret(NamedTuple):
    """How the copies' database is logged in to: a password, or the command that prints it."""

    password: str = ""
    command: str = ""


def _secret(options: argparse.Namespace) -> _Secret:
    if options.copy_password_command:
        return _Secret(command=options.copy_password_command)
    file = options.copy_password_file
    return _Secret(Path(file).read_text().rstrip("\r\n") if file else os.environ.get("SHMSTORE_COPY_PASSWORD", ""))


def _only_subscription(settings: Settings) -> str:
    from shmstore import StoreView

    with StoreView.attach(settings.store, path=settings.store_path or None, state=settings.state or None) as view:
        names = [each.name for each in view.subscriptions()]
    if len(names) == 1:
        return names[0]
    there = f"the store has {', '.join(names)}" if names else "the store has none"
    raise ValueError(f"say which subscription feeds the copies (--subscription; {there}), or that none does any more (--at-rest)")


def _open(address: CopyAddress, settings: Settings, secret: _Secret) -> ReadableCopy:
    if address.kind in ("delta", "parquet", "iceberg"):
        from shmstore.consumer.copies.reading import arrow_copies

        if address.kind == "iceberg":
            return arrow_copies.iceberg(address.place, address.name)
        return arrow_copies.delta(address.place) if address.kind == "delta" else arrow_copies.parquet(address.place)
    if address.kind in ("duckdb", "ducklake"):
        from shmstore.consumer.copies.reading.duckdb_file import duckdb_file

        return duckdb_file(address.place, address.name, lake=address.kind == "ducklake")
    if address.kind in ("sqlite", "postgresql"):
        from shmstore.consumer.copies.reading import databases

        if address.kind == "sqlite":
            return databases.sqlite(address.place, address.name)
        return databases.postgresql(address.place, address.name, _of_postgresql(address.place, secret))
    from shmstore.consumer.copies.database_url import server_url
    from shmstore.producer.verify.server_copy import ServerCopy

    url = server_url(address.place)
    tls: dict[str, Any] = dict(url.options)
    host = f"[{url.host}]" if ":" in url.host else url.host
    there = dataclasses.replace(
        settings,
        host=f"{host}:{url.port}" if url.port else host,
        user=url.user or settings.user,
        password=secret.password or url.password,
        password_file="",
        password_command=secret.command,
        **tls,
    )
    database, _, table = address.name.partition(".")
    return ServerCopy(there, database, table)


def _of_postgresql(url: str, secret: _Secret) -> str:
    """The password for a PostgreSQL server: its command, too, knows which server it is for."""
    if not secret.command:
        return secret.password
    from shmstore.producer.connection.password import printed
    from shmstore.producer.settings import ServerAddress

    server = urlsplit(url)
    try:
        port = server.port or 5432
    except ValueError as error:
        raise ValueError(f"--copy-password-command is for one server, and {url!r} does not name one: {error}") from error
    return printed(secret.command, ServerAddress(server.hostname or "localhost", port), unquote(server.username or ""))


# ---------------------------------------------------------------- what is printed


class _Shown:
    """Prints how far it is: a line that is kept on a terminal, else one now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = self._last = time.monotonic()
        self._doing: tuple[Any, str] = (None, "")

    def __call__(self, progress: VerifyProgress) -> None:
        now, doing = time.monotonic(), (progress.table.table, progress.doing)
        if doing != self._doing:
            self._doing, self._began = doing, now
        if now - self._last < (QUICK if self._terminal else EVERY):
            return
        self._last = now
        line = f"{progress.table.database}.{progress.table.table}: {progress.doing}"
        if read := progress.rows + progress.copied:
            rate = read / max(now - self._began, 0.001)
            line += f", {progress.rows:,} rows of the source and {progress.copied:,} of the copy, {rate:,.0f} a second"
            if (left := 2 * progress.estimate - read) > 0:
                line += f", about {left / rate:,.0f} s left"
        if self._terminal:
            print(f"\r\x1b[K{printable(line)}", end="", file=sys.stderr, flush=True)
        else:
            say(line)

    def clear(self) -> None:
        """Take the kept line away."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _lines(found: TableResult) -> list[str]:
    name = f"{found.table.database}.{found.table.table}"
    if found.problem:
        return [f"{name}: NOT COMPARED: {found.problem}"]
    meanwhile = f"; {found.changed:,} keys changed meanwhile" if found.changed else ""
    meanwhile += f", {found.again:,} rows were compared again" if found.again else ""
    rate = f"{found.rows / max(found.seconds, 0.001):,.0f} rows/s"
    if found.equal:
        return [f"{name}: equal, {found.rows:,} rows at {_place(found.until)}{meanwhile}; {found.seconds:.1f} s, {rate}"]
    lines = [
        f"{name}: DIFFERENT, {found.differences:,} rows of {found.rows:,} in the source and {found.copied:,} in the copy{meanwhile}"
    ]
    lines += [f"  {_difference(found, number)}" for number in range(min(SHOWN, len(found.samples)))]
    if found.differences > SHOWN:
        lines.append(f"  and {found.differences - min(SHOWN, len(found.samples)):,} more")
    return lines


def _difference(found: TableResult, number: int) -> str:
    one, columns = found.samples[number], found.table.columns
    names = [columns[i].name for i in found.table.primary_key]
    key = ", ".join(f"{name}={_text(value)}" for name, value in zip(names, one.key, strict=True))
    if one.copy is None or one.source is None:
        return f"{key}: {'not in the copy' if one.copy is None else 'not in the source'}"
    pairs = [
        f"{column.name} is {_text(copied)}, in the source {_text(value)}"
        for column, value, copied in zip(columns, one.source, one.copy, strict=True)
        if value != copied
    ]
    return f"{key}: {'; '.join(pairs) or 'more than one row in the copy'}"


def _text(value: Any) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= CUT else text[: CUT - 3] + "..."


def _place(position: Position | None) -> str:
    if position is None:
        return "the store's beginning"
    return f"GTID {position.gtids}" if position.gtids else f"{position.file}:{position.offset}"


def _end(found: Sequence[TableResult]) -> str:
    odd = [each for each in found if not each.equal]
    tables = f"{len(found)} tables" if len(found) != 1 else "1 table"
    if not odd:
        return f"equal at {_place(found[0].until)}: {tables}, {sum(each.rows for each in found):,} rows"
    return f"DIFFERENT: {len(odd)} of {tables}"


def _document(found: TableResult) -> str:
    def place(position: Position | None) -> Any:
        return None if position is None else {"file": position.file, "offset": position.offset, "gtids": position.gtids}

    def row(values: Any) -> Any:
        return None if values is None else dict(zip(found.table.names, map(_plain, values), strict=True))

    names = [found.table.names[i] for i in found.table.primary_key]
    samples = [
        {"key": dict(zip(names, map(_plain, each.key), strict=True)), "source": row(each.source), "copy": row(each.copy)}
        for each in found.samples
    ]
    document = {
        "table": f"{found.table.database}.{found.table.table}",
        "equal": found.equal,
        "problem": found.problem or None,
        **{name: getattr(found, name) for name in ("rows", "copied", "changed", "again", "differences")},
        "since": place(found.since),
        "until": place(found.until),
        "seconds": round(found.seconds, 3),
        "samples": samples,
    }
    return json.dumps(document, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
