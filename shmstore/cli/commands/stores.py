"""`shmstore ls`, `stat`, `check`, `create`, `backup` and `rm`: stores of this host."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shmstore.cli.command import Commands
from shmstore.cli.log_lines import say
from shmstore.cli.named_store import home_of, look
from shmstore.cli.options import add_state
from shmstore.cli.values import mode, seconds, valued
from shmstore.clock import calendar_ms
from shmstore.errors import StoreError, StoreNotFound
from shmstore.units import duration, printable, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmstore import StoreStat
    from shmstore.consumer.live.figures import ShownStore
    from shmstore.store.remembered import RememberedStore


SHOWN = 10.0  # seconds after which `backup` says again how far it is


def add(commands: Commands) -> None:
    """Add the commands."""
    sub = commands.add(
        ls,
        "ls",
        "list the stores of this host",
        "  shmstore ls",
        "A store that is in its home and not in memory, as after a reboot, is listed as remembered. The first process that attaches "
        "restores it: its producer, a reader, `shmstore stat`.",
        store=False,
    )
    sub.add_argument("--json", action="store_true", help="print one JSON document per store")
    add_state(sub)
    sub = commands.add(
        stat,
        "stat",
        "show a store's cursors, free space, log, producer and readers",
        "  shmstore stat orders --watch 1",
        "For the log it shows the size and its limit, the last event written and on disk, and the reader for which it keeps the "
        "most. With --watch, after two minutes, it also shows when the log will be full at the present rate; then --lag decides.",
    )
    sub.add_argument("--json", action="store_true", help="print JSON instead of text")
    sub.add_argument("--watch", type=seconds, metavar="SECONDS", help="repeat every SECONDS, with rates and a forecast")
    sub.add_argument(
        "--hung-after",
        type=seconds,
        metavar="SECONDS",
        help="for a liveness probe: print nothing; exit code 1 if the producer runs and has been silent for this long, else 0 (also if no "
        "producer runs, or the store is not in memory)",
    )
    commands.add(check, "check", "look for damage in a store; exit code 1 if there is any", "  shmstore check orders")
    sub = commands.add(
        create, "create", "create an empty store", "  shmstore create orders --capacity 65536 --lag evict --evict-after 60"
    )
    create_flags(sub)
    sub = commands.add(
        backup,
        "backup",
        "copy a store's home while it is in use",
        "  shmstore backup orders /backup/2026-01-31",
        "Producer and readers may run. The copy in FOLDER/STORE has the log, the readers' acks, and the tables' definitions and snapshots, as a power "
        "cut at that moment would have left them. It gets its name when it is complete. Then the command reads all of it: exit code 1 if there is "
        "damage. To restore it, stop producer and readers, remove the store with `shmstore rm STORE --log`, and put the copy where its home was.",
    )
    sub.add_argument("folder", metavar="FOLDER", help="where to put it, on another disk if possible; FOLDER/STORE must not exist")
    sub = commands.add(
        rm,
        "rm",
        "remove a store that no process uses",
        "  shmstore rm orders --log",
        "Without --log only the memory of a store with a log is removed. Its home remains, and the next process that attaches "
        "restores the store with its events, sequences and readers.",
    )
    sub.add_argument("--log", action="store_true", help="remove its home, too: the log and the readers' acks")
    sub.add_argument("--force", action="store_true", help="remove it even if a producer or reader uses it: they get StoreClosed")
    sub.add_argument(
        "--forget",
        action="store_true",
        help="for a store without a log: remove the readers' checkpoints, too, so that they begin like new readers in the next store",
    )


def create_flags(sub: argparse.ArgumentParser) -> None:
    """Add the options of `create`."""
    memory = sub.add_argument_group("Size")
    memory.add_argument(
        "--capacity", type=int, default=16384, metavar="N", help="most events in the ring, a power of two (default: 16384)"
    )
    memory.add_argument(
        "--memory-unit", type=int, default=1024, metavar="BYTES", help="bytes of memory for each of these events (default: 1024)"
    )
    memory.add_argument(
        "--batch-mode",
        choices=("memsize", "itemsize"),
        default="memsize",
        help="what limits the ring: events and bytes (memsize, the default), or events only (itemsize)",
    )
    log = sub.add_argument_group("Log")
    log.add_argument(
        "--log",
        choices=("on", "off"),
        default="on",
        help="keep the events on disk, too: slow readers read them there, and after a reboot the store is restored (on, the default); or "
        "keep only the ring (off)",
    )
    log.add_argument(
        "--log-keep",
        type=valued(duration),
        default="24h",
        metavar="TIME",
        help="how long the log keeps events that every reader has acked: 90m, 24h, 7d (default: 24h)",
    )
    log.add_argument(
        "--log-size",
        type=valued(size),
        default="10g",
        metavar="BYTES",
        help="most bytes of the log, such as 500m or 10g; when they are used up, acked events are removed earlier, and --lag decides "
        "about the rest (default: 10g)",
    )
    readers = sub.add_argument_group("Readers")
    readers.add_argument(
        "--lag",
        choices=("block", "evict"),
        default="block",
        help="when the log (without one: the ring) is full because a reader is far behind: the producer waits (block, the default), or "
        "the reader is marked lost (evict)",
    )
    readers.add_argument(
        "--evict-after",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="with --lag evict: how long the producer waits before it marks a reader lost (default: 30)",
    )
    readers.add_argument("--ddl-isolation", action="store_true", help="readers get each DDL in a separate batch")
    files = sub.add_argument_group("Access and safety")
    files.add_argument("--permissions", type=mode, default=0o600, metavar="MODE", help="file mode of the memory (default: 0600)")
    files.add_argument(
        "--group", help="group that owns the store: with --permissions 0660 its members may use it, with 0640 only look"
    )
    files.add_argument(
        "--checksum",
        action=argparse.BooleanOptionalAction,
        help="keep a checksum of each event (default: only if the store is kept in a file)",
    )


def ls(options: argparse.Namespace) -> int:
    """`shmstore ls`. A store that cannot be read is listed with the reason; one that is in its home alone is left there."""
    from shmstore import StoreView
    from shmstore.cli import text_report
    from shmstore.home.home import Home
    from shmstore.store.remembered import describe_home, remembered

    lines = [] if options.json else [text_report.HEAD]
    in_memory = StoreView.names()
    homes = [name for name in remembered(options.state) if name not in in_memory]
    others = 0  # stores that another user owns, and this one may not read
    for name in (*in_memory, *homes):
        found: StoreStat | RememberedStore
        try:
            if name in in_memory:
                with StoreView.attach(name, restore=False) as store:
                    found = store.stat()
            else:
                found = describe_home(Home.of(name, options.state))
        except StoreNotFound:
            continue  # removed since it was listed
        except StoreError as error:
            if name in in_memory and not StoreView.is_own(name):
                others += 1
                continue
            lines.append(
                json.dumps({"name": name, "error": str(error)}) if options.json else f"{name:<24} {printable(str(error))}"
            )
        else:
            lines.append(json.dumps(text_report.document(found)) if options.json else text_report.line(found))
    print(*lines, sep="\n")
    if others:
        say(f"{others:,} more in memory {'is' if others == 1 else 'are'} not yours to read: their owner or root can list them")
    return 0


def stat(options: argparse.Namespace) -> int:
    """`shmstore stat`."""
    from shmstore.cli import text_report

    if options.hung_after is not None:
        return 1 if _hung(options) else 0
    live = _watching() if options.watch else None
    with look(options) as store:
        while True:
            now = store.stat()
            if options.json:
                print(json.dumps(text_report.document(now)), flush=True)
            else:
                clear = "\x1b[H\x1b[2J" if options.watch and sys.stdout.isatty() else ""
                print(clear + text_report.page(now, live and live(now)), flush=True)
            if not options.watch:
                return 0
            time.sleep(options.watch)


def _hung(options: argparse.Namespace) -> bool:
    """Whether the store's producer runs and gives no sign of life."""
    from shmstore import StoreView

    try:
        with StoreView.attach(options.store, path=options.path, restore=False) as store:
            found = store.stat()
    except StoreNotFound:
        return False  # a producer that has not made its store yet is starting
    return found.producer_alive and calendar_ms() - (found.heartbeat_ms or found.created_ms) > 1000 * options.hung_after


def _watching() -> Callable[[StoreStat], ShownStore]:
    """A function that adds rates and trends to the figures it is given one after the other."""
    from shmstore.consumer.live.model import Model, Reading

    model = Model()
    return lambda stat: model.take(Reading(time.monotonic(), calendar_ms(), (stat,))).stores[0]


def check(options: argparse.Namespace) -> int:
    """`shmstore check`."""
    with look(options) as store:
        findings = store.check()
    print(*map(printable, findings or [f"{options.store}: no damage found"]), sep="\n")
    return 1 if findings else 0


def create(options: argparse.Namespace) -> int:
    """`shmstore create`."""
    from shmstore import BatchMode, EventStore

    with EventStore.create(
        options.store,
        capacity=options.capacity,
        memory_unit=options.memory_unit,
        batch_mode=BatchMode[options.batch_mode.upper()],
        ddl_isolation=options.ddl_isolation,
        lag=options.lag,
        evict_after=options.evict_after,
        mode=options.permissions,
        group=options.group,
        path=options.path,
        checksum=options.checksum,
        log=options.log == "on",
        log_keep=options.log_keep,
        log_size=options.log_size,
        state=options.state,
    ):
        return 0


def backup(options: argparse.Namespace) -> int:
    """`shmstore backup`. It says every `SHOWN` seconds how far it is."""
    from shmstore.cli.text_report import in_log
    from shmstore.log.backup import back_up
    from shmstore.store.remembered import describe_home
    from shmstore.units import quantity

    home, bytes_copied, shown = home_of(options), 0, time.monotonic()

    def copied(count: int) -> None:
        nonlocal bytes_copied, shown
        bytes_copied += count
        if time.monotonic() - shown >= SHOWN:
            shown = time.monotonic()
            say(f"{options.store}: {quantity(bytes_copied)} of {quantity(describe_home(home).bytes)}")

    made = back_up(home, Path(options.folder), copied)
    if made.problems:
        print(*map(printable, made.problems), sep="\n")
        return 1
    what = "readers' places and tables' definitions; the store has no log"
    if made.home.has_log:
        what = in_log(describe_home(made.home))
    print(f"{options.store}: the copy is in {made.home.path}: {what}")
    return 0


def rm(options: argparse.Namespace) -> int:
    """`shmstore rm`. Of a store with a log the home stays, unless it is asked for."""
    from shmstore import EventStore
    from shmstore.cli import text_report
    from shmstore.home import kinds

    home = home_of(options)
    kept = home.has_log
    if options.forget and kept and not options.log:
        raise ValueError(
            f"store {options.store!r} has a log, which remembers its readers, in {home.path}: give --log instead of --forget to remove both"
        )
    if not options.force and (users := text_report.users_of(options.store, options.path)):
        in_use = f"store {options.store!r} is in use by {', '.join(users)}"
        raise ValueError(f"{in_use}: stop it first, or remove the store anyway with --force")
    try:
        EventStore.unlink(options.store, path=options.path, force=options.force, log=options.log, state=home.state)
    except StoreNotFound as error:
        if kept:
            raise StoreNotFound(
                f"store {options.store!r} is not in memory, only remembered in {home.path}: `shmstore rm {options.store} --log` removes that"
            ) from error
        if not (options.forget and kinds.remove(home)):  # that may have been all that was left of it
            raise
    else:
        if options.forget and not options.log:  # its readers are refused from here on
            kinds.remove(home)
    if kept and not options.log:
        say(
            f"{home.path} stays, and store {options.store!r} is restored when a process attaches to it; `shmstore rm {options.store} --log` removes it"
        )
    return 0
