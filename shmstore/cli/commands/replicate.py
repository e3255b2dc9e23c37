"""`shmstore replicate` and `shmstore spark`: copies of a store's tables, without Spark and with it."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmstore.cli import log_lines, service
from shmstore.cli.command import Commands
from shmstore.cli.listening import counting
from shmstore.cli.log_lines import say
from shmstore.cli.options import add_log_lines, add_metrics_port, add_state, add_subscription
from shmstore.cli.signals import ended, on_signal
from shmstore.cli.values import valued
from shmstore.errors import SubscriptionInUse
from shmstore.patterns.table_patterns import FORMS as TABLE_FORMS
from shmstore.units import duration, size

if TYPE_CHECKING:
    from shmstore.consumer import Consumer
    from shmstore.consumer.copies.copied_tables import CopiedTables
    from shmstore.consumer.copies.copy_set import CopySet
    from shmstore.consumer.copies.copying import Copying
    from shmstore.consumer.copies.initial_rows import InitialRows
    from shmstore.consumer.copies.kinds import TargetOptions

PASSWORD = "SHMSTORE_COPY_PASSWORD"
_RETRY_SECONDS = 1.0


def add(commands: Commands) -> None:
    """Add the commands."""
    sub = commands.add(
        replicate,
        "replicate",
        "keep a copy of every table in DuckDB, Delta, Parquet or a database, without Spark",
        "  shmstore replicate orders --to duckdb:///copy.duckdb --snapshot\n"
        "  shmstore replicate orders --to delta:///lake --tables 'shop.*,!shop.log' --snapshot\n"
        "  shmstore replicate orders --to parquet:///lake/{database}/{table} --once",
        "It reads as a subscription: it delays no other reader, and the store keeps the events that are not copied yet. Rows and the "
        "mark of their batch are written together, so after a kill at any moment each change is in each copy once. A second instance "
        "waits until the first one ends.\n"
        "\n"
        "Copies follow DDLs. If only the server knows a DDL's result, a snapshot of that one table reads it again. A table that "
        "cannot be copied is set aside, which the log reports, while the other copies continue.",
        store=False,
    )
    sub.add_argument("store", metavar="STORE", help="name of the store, as `shmstore ls` shows it")
    sub.add_argument("--path", metavar="FILE", help="the store's file, if it is in a file instead of shared memory")
    add_state(sub)
    where = sub.add_argument_group("Where the copies are")
    where.add_argument(
        "--to",
        required=True,
        metavar="ADDRESS",
        help="duckdb:///FILE, ducklake:///FILE, delta:PATH or URL, parquet:PATH, postgresql://USER@HOST/DATABASE, mysql://USER@HOST:PORT, sqlite:///FILE, "
        "with {database} and {table} if you name them (for a database after #); other packages may bring other kinds",
    )
    where.add_argument(
        "--storage", action="append", default=[], metavar="NAME=VALUE", help="delta-rs storage option, for an object store"
    )
    where.add_argument(
        "--optimize", type=int, default=0, metavar="N", help="compact a Delta table's small files after each N commits"
    )
    where.add_argument("--password-file", metavar="FILE", help=f"file with the target's password; or set {PASSWORD}")
    what = sub.add_argument_group("What is copied")
    what.add_argument("--tables", default="*", metavar="PATTERNS", help=f"only these tables: {TABLE_FORMS} (default: all)")
    what.add_argument(
        "--key", action="append", default=[], metavar="DB.TABLE=COLUMN[,COLUMN]", help="key of a table that has no primary key"
    )
    what.add_argument("--snapshot", action="store_true", help="ask the producer for the rows of the tables that have no copy yet")
    what.add_argument("--history", action="store_true", help="keep every version of a row (SCD type 2)")
    what.add_argument(
        "--remove-dropped",
        action="store_true",
        help="remove the copy of a table that is dropped or renamed (default: keep it without rows); histories stay",
    )
    what.add_argument(
        "--zero-dates",
        choices=("fail", "null"),
        default="fail",
        help="zero and impossible dates: fail sets the copy aside, null writes NULL (default: fail)",
    )
    how = sub.add_argument_group("How it reads")
    add_subscription(how, "replicate")
    how.add_argument(
        "--batch", type=valued(size), default=64 << 20, metavar="BYTES", help="most encoded bytes of one batch (default: 64m)"
    )
    how.add_argument(
        "--interval", type=valued(duration), default=0.0, metavar="TIME", help="least time between two batches (default: none)"
    )
    how.add_argument(
        "--once",
        action="store_true",
        help="end when all events that are in the store now are copied, with --snapshot also the rows that it asks for",
    )
    how.add_argument("--dry-run", action="store_true", help="print what would be created, and copy nothing")
    add_metrics_port(how)
    add_log_lines(sub)
    commands.add(
        spark,
        "spark",
        "run a Spark program over a store, such as `replicate`: a copy of every table",
        "  shmstore spark replicate orders --tables 'shop.*' --target '/lake/{database}/{table}' --format delta",
        "`shmstore spark replicate --help` lists its options.",
        store=False,
    ).passes_on = True


def replicate(options: argparse.Namespace) -> int:
    """`shmstore replicate`."""
    from shmstore.consumer.copies.copied_tables import CopiedTables
    from shmstore.consumer.copies.copy_set import CopySet
    from shmstore.consumer.copies.copying import check_store
    from shmstore.consumer.copies.kinds import open_target
    from shmstore.patterns.table_patterns import Patterns

    log_lines.show(options)
    over = threading.Event()
    opened = open_target(options.to, _target_options(options, over))
    tables = Patterns.of_tables(options.tables)
    copied = CopiedTables(options.store, options.subscription, tables, options.zero_dates, path=options.path, state=options.state)
    check_store(copied)
    keys = {name: columns.split(",") for name, columns in _pairs(options.key, "--key").items()}
    copies = CopySet(
        copied, opened.target, opened.template, keys=keys, history=options.history, remove_dropped=options.remove_dropped
    )
    try:
        if options.dry_run:
            return _print_plan(copies)
        return _copy(options, copied, copies, opened.place, over)
    finally:
        copies.close()


def _copy(options: argparse.Namespace, copied: CopiedTables, copies: CopySet, place: str, over: threading.Event) -> int:
    from shmstore.consumer.copies.copying import Copying
    from shmstore.consumer.copies.initial_rows import InitialRows

    running: list[Copying] = []

    def stop() -> None:
        over.set()
        for one in running:
            one.stop()

    with on_signal(stop) as came:
        reader = _owned(options, over)
        if reader is None:
            return ended(came)
        with reader:
            copying = Copying(reader, copies, place, interval=options.interval)
            running.append(copying)
            if over.is_set():
                return ended(came)

            with counting(options, copying.counters):
                initial = None
                if options.snapshot:
                    initial = InitialRows(copied, copying.existing(), lambda: not over.is_set())
                    initial.start()
                say(f"copying {options.store} as {options.subscription!r} into {place}")
                service.notify("READY=1", f"STATUS=copying into {place}")
                copying.run(_end(reader, initial) if options.once else lambda: None)
            over.set()
    done = copying.counters
    if initial is not None and initial.failed:
        say("initial rows could not be asked for")
        return 1
    aside = f"; set aside or to be read again: {', '.join(copies.aside)}" if copies.aside else ""
    say(f"copied {done.rows:,} changed rows in {done.batches:,} batches{aside}")
    return ended(came)


def _owned(options: argparse.Namespace, over: threading.Event) -> Consumer | None:
    """The consumer, once no other process has the subscription; None where the command was stopped before."""
    from shmstore.consumer import Consumer
    from shmstore.consumer.copies.copying import IDLE_SECONDS

    said = False
    while not over.is_set():
        try:
            return Consumer(
                options.store,
                options.subscription,
                start=options.start,
                auto_ack=False,
                limit_bytes=options.batch,
                timeout=IDLE_SECONDS,
                path=options.path,
                state=options.state,
            )
        except SubscriptionInUse as error:
            if options.once:
                raise
            if not said:
                say(f"{error}; waiting until it ends")
                said = True
            over.wait(_RETRY_SECONDS)
    return None


def _end(reader: Consumer, initial: InitialRows | None) -> Callable[[], int | None]:
    """The event up to which --once copies: the last one at the start, or when the initial rows have come."""
    last = [reader.store.newest]

    def end() -> int | None:
        if initial is not None and not last[1:]:
            if not initial.finished and not initial.failed:
                return None
            last.append(reader.store.newest)
        return last[-1]

    return end


def _print_plan(copies: CopySet) -> int:
    from shmstore.units import printable

    for one in copies.planned():
        print(printable(one))
    return 0


def _target_options(options: argparse.Namespace, over: threading.Event) -> TargetOptions:
    import os
    from pathlib import Path

    from shmstore.consumer.copies.kinds import TargetOptions

    file = options.password_file
    password = Path(file).read_text().rstrip("\r\n") if file else os.environ.get(PASSWORD, "")
    return TargetOptions(_pairs(options.storage, "--storage"), options.optimize, password, over.is_set)


def _pairs(words: list[str], option: str) -> dict[str, str]:
    found = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name or not value:
            raise ValueError(f"{option} {word!r} is not NAME=VALUE")
        found[name] = value
    return found


def spark(options: argparse.Namespace) -> int:
    """`shmstore spark`: its own command line parses the rest, so that spark-submit has the same."""
    from shmstore.consumer.spark.__main__ import main as run_spark

    return run_spark(options.words if "words" in options else ["--help"], _server_tables)


def _server_tables(store: str, config: str) -> Any:
    from shmstore.producer import ServerTables, load_settings

    return ServerTables(load_settings(flags={"store": store}, config=config))
