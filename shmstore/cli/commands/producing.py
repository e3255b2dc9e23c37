"""`shmstore produce`, `run` and `doctor`: from a server into stores."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from typing import TYPE_CHECKING

from shmstore.cli import log_lines, service
from shmstore.cli.command import Commands
from shmstore.cli.config_file import CONFIG
from shmstore.cli.log_lines import say
from shmstore.cli.options import add_log_lines
from shmstore.cli.signals import ended, on_signal
from shmstore.units import printable

if TYPE_CHECKING:
    from shmstore.producer import Settings, Summary


def add(commands: Commands) -> None:
    """Add the commands."""
    commands.add(
        produce,
        "produce",
        "read a server's binlog into a store, until SIGTERM or Ctrl-C",
        "  SHMSTORE_PASSWORD=... shmstore produce --host db1 --user repl --store orders --include 'shop.*'",
        "After a restart it continues after the last transaction in the store. It opens a lost connection again.\n"
        "Each option is also an environment variable (--read-timeout: SHMSTORE_READ_TIMEOUT) and a key of the TOML file, under "
        "[producer] or [source.NAME] (read_timeout = 60). A flag wins over a variable, a variable over the file. Secrets have no "
        "flags, because a process list shows flags.\n"
        "With --config, SIGHUP and `shmstore reload` read the file again: filters change at the end of a transaction. Without "
        "--config SIGHUP ends it, as SIGTERM does.\n"
        "Exit codes: 0 ended by SIGTERM, 130 by Ctrl-C, 2 an error, with what to do.",
        store=False,
        fill=service_flags,
    )
    commands.add(
        run,
        "run",
        "produce from every source of a configuration file (shmstore.toml)",
        "  shmstore run --config shmstore.toml",
        "Options given here apply to every source; --source NAME runs only that source. Sources of the same store run as one "
        "producer. A source that fails is tried again while the others continue. If it still fails at the end, or no source can be "
        "read at all, the exit code is 2. SIGHUP, and `shmstore reload STORE`, read the file again: filters change at the end of a "
        "transaction.",
        store=False,
        fill=service_flags,
    )
    sub = commands.add(
        doctor,
        "doctor",
        "check a server and an account before use, and print the SQL that fixes what is wrong",
        "  SHMSTORE_PASSWORD=... shmstore doctor --host db1 --user repl\n  shmstore doctor --config shmstore.toml",
        "It takes the options of produce and checks what they need; with a configuration file, for every source. With --store it "
        "also checks that the server still has the binlog that the store needs next.\n"
        "With --running STORE it also checks that the producer of that store runs and still reads this server, and shows what would "
        "stop it next.\n"
        "Exit codes: 0 nothing to fix (perhaps warnings), 1 something must be fixed, 2 the server cannot be asked.",
        store=False,
        fill=producer_flags,
    )
    sub.add_argument("--running", metavar="STORE", help="check the running producer of this store, and its server")


def producer_flags(parser: argparse.ArgumentParser) -> None:
    """Add the producer's own options."""
    from shmstore import producer

    producer.add_flags(parser)


def service_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options of a producer that runs."""
    producer_flags(parser)
    add_log_lines(parser)


def _show_log_lines(options: argparse.Namespace) -> None:
    """Begin the log of a producer; say first where it will be slower than it could be."""
    from shmstore.native import pure_python

    log_lines.show(options)
    if slow := pure_python():
        say(slow, logging.WARNING)


def produce(options: argparse.Namespace) -> int:
    """`shmstore produce`."""
    from shmstore import producer

    def load() -> Settings:
        return producer.load_settings(flags=vars(options), config=options.config, source=options.source)

    settings = load()
    _show_log_lines(options)
    stop = threading.Event()
    reloads = producer.Reloads([settings], (lambda: [load()]) if options.config else None)
    on_hang_up = reloads.hang_up if options.config else None
    watching = service.watched({settings.store: settings.store_path}, stop.is_set)
    with on_signal(stop.set, on_hang_up) as came, watching as stops:
        summary = producer.run(settings, stops, reloads=reloads)
    say(f"{settings.store}: {line_of_summary(summary)}")
    return ended(came)


def run(options: argparse.Namespace) -> int:
    """`shmstore run`: every source of a configuration."""
    from shmstore import producer

    if options.config is None and not os.path.exists(CONFIG):
        raise ValueError(f"there is no {CONFIG} in this folder: give --config FILE, with a [source.NAME] for each source")

    def load() -> list[Settings]:
        return producer.load_all(flags=vars(options), config=options.config or CONFIG, source=options.source)

    settings = load()
    _show_log_lines(options)
    stop = threading.Event()
    reloads = producer.Reloads(settings, load)
    watching = service.watched({each.store: each.store_path for each in settings}, stop.is_set)
    with on_signal(stop.set, reloads.hang_up) as came, watching as stops:
        summaries = producer.run_all(settings, stops, reloads=reloads)
    stores = [each.store for each in settings]
    for each, summary in zip(settings, summaries, strict=True):
        name = f"{each.store} from {each.name}" if stores.count(each.store) > 1 else each.store
        say(f"{name}: {line_of_summary(summary)}")
    return ended(came)


def line_of_summary(made: Summary) -> str:
    """Return a producer's summary as one line."""
    at = f", up to {made.position.file}:{made.position.offset}" if made.position else ""
    return f"put {made.rows} rows in {made.events} events of {made.transactions} transactions ({made.bytes} bytes){at}"


def doctor(options: argparse.Namespace) -> int:
    """`shmstore doctor`."""
    from shmstore import producer

    flags = vars(options)
    if options.running:
        flags["store"] = options.running if options.config is None else None
    elif options.config is None and "SHMSTORE_STORE" not in os.environ:
        flags["store"] = options.store or "doctor"  # nothing is stored; the name only goes into the server id
    asked = {"flags": flags, "config": options.config}
    every = producer.load_all(**asked) if options.source is None else [producer.load_settings(**asked)]
    if options.running and not (every := [each for each in every if each.store == options.running]):
        raise ValueError(f"{options.config} has no source with store {options.running!r}")
    failed = False
    for settings in every:
        if len(every) > 1:
            print(f"{settings.name}:", flush=True)
        running = producer.check_running(settings) if options.running else []
        for finding in [*running, *producer.check_server(settings)]:
            print(
                printable(
                    f"{finding.state:4}  {finding.check}: {finding.found}" + f", wanted {finding.wanted}" * bool(finding.wanted)
                )
            )
            if finding.fix:
                print(printable(f"      fix: {finding.fix}"))
            failed = failed or finding.state == "fail"
    return 1 if failed else 0
