"""The demo itself: starts the parts, watches them, compares, and leaves nothing behind.

Plan. The order matters twice. The readers subscribe before the shop exists, so that everything, its CREATE TABLEs too, goes
through the ring. And the end is known, not guessed: the load commits exactly as many row changes as asked for, the producer
is done when the ring's put cursor has counted them, a reader is done when it has acked the newest event.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

from scripts.shop import compare
from scripts.shop.canonical import Table
from scripts.shop.monitor import Monitor
from scripts.shop.options import Options
from scripts.shop.parts import DemoFailed, Parts, console, say
from scripts.shop.replay import Replay
from shmstore import EventStore, LayoutMismatch, StoreError, StoreNotFound

_START_SECONDS: Final = 120.0  # for a part to get ready; Spark takes ten on a small machine


NEXT: Final = """
what to try next
  scripts/demo --kill 5                     kill -9 parts in mid-load: nothing is lost, nothing comes twice
  scripts/demo --keep                       leave all running, and change rows yourself
  scripts/servers mariadb --shop            a server with the same tables, for docs/tutorial.md: a copy and a live page in 15 minutes
  shmstore doctor --host HOST --user USER   ask whether your own server can be read
"""


class Stopped(BaseException):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Demo:
    """One run, from the first part started to the last value compared."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.parts = Parts(options)
        self._position: tuple[str, int] | None = None
        self._random = random.Random(options.seed)
        # A part is killed when so many row changes are in the ring; the next to come stands last.
        shares = sorted((self._random.uniform(0.05, 0.9) for _ in range(options.kill)), reverse=True)
        self._kills = [int(share * options.rows) for share in shares]

    # ---------------------------------------------------------------- the chain

    def begin(self, stack: ExitStack) -> EventStore:
        """Start server, producer and readers; return the store when all readers have subscribed."""
        self.parts.begin_server(stack)
        self.parts.start("producer")
        stores: list[EventStore] = []

        def attached() -> bool:
            try:
                stores.append(EventStore.attach(self.parts.store_name))
            except (StoreNotFound, LayoutMismatch):  # not there, or not ready
                return False
            return True

        self.wait("the producer to make the store", attached)
        store = stack.enter_context(stores[0])
        for name in self.options.readers:
            self.parts.start(name)
        wanted = set(self.options.readers)
        self.wait("the readers to subscribe", lambda: wanted <= {stat.name for stat in store.subscriptions()})
        return store

    def check_children(self) -> None:
        """Raise `DemoFailed` when a part has ended that should not have."""
        for child in self.parts.children.values():
            if not child.running and not (child.name == "load" and child.returncode == 0):
                raise DemoFailed(f"{child.name} ended with exit code {child.returncode}; the end of its log:\n{child.tail()}")
        if not self.parts.server.pid:
            raise DemoFailed("the server has ended")

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`, while every part lives."""
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            self.check_children()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {child.name}\n{child.tail(8)}" for child in self.parts.children.values())
                raise DemoFailed(f"waited {_START_SECONDS:.0f} s for {what}\n{logs}")
            time.sleep(0.05)

    def watch(self, monitor: Monitor) -> None:
        """Show progress until the load is done, all of it is in the ring, and every reader has acked it."""
        load = self.parts.children["load"]
        while True:
            committed = int(self.parts.load["rows"])
            monitor.look(committed)
            self.check_children()
            loaded = not load.running and committed >= self.options.rows and not self._kills
            if loaded and self.all_put(monitor.store) and monitor.caught_up():
                monitor.look(committed)
                monitor.show(last=True)
                return
            monitor.show()
            if self._kills and monitor.store.put_cursor.rows >= self._kills[-1]:
                self._kills.pop()
                victim = self._random.choice(("producer", *self.options.readers))
                monitor.say(f"kill -9   {victim}, pid {self.parts.children[victim].pid}")
                self.parts.restart(victim)
            if time.monotonic() - monitor.moved > self.options.patience:
                raise DemoFailed(self.stalled(monitor.store))
            time.sleep(0.1)

    def all_put(self, store: EventStore) -> bool:
        """True when the ring has counted every row change, and the end of the server's last transaction has come."""
        rows = store.put_cursor.rows
        if rows > self.options.rows:
            raise DemoFailed(f"the server committed {self.options.rows:,} row changes and {rows:,} came into the ring")
        if rows < self.options.rows:
            return False
        end = store.last_ack_point()
        return end is not None and (end.file, end.offset) == self.server_position()

    def server_position(self) -> tuple[str, int]:
        """Return file and offset of the end of the server's binlog. The load is over: it stays there."""
        if self._position is None:
            statement = "SHOW BINARY LOG STATUS" if self.parts.server.flavor == "mysql" else "SHOW MASTER STATUS"
            with self.parts.server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(statement)
                file, offset, *_ = cursor.fetchone()
            self._position = (file, int(offset))
        return self._position

    def stalled(self, store: EventStore) -> str:
        """Say who waits for whom."""
        put = store.put_cursor
        lines = [
            f"nothing has moved for {self.options.patience:.0f} s: the load committed {self.parts.load['rows']:,} of "
            f"{self.options.rows:,} row changes, the ring has {put.rows:,} of them in {put.sequence + 1:,} events"
        ]
        for stat in store.subscriptions():
            got, acked = stat.get.sequence + 1, stat.ack.sequence + 1
            lines.append(f"  {stat.name}: {stat.state}, got {got:,}, acked {acked:,}, {stat.lag_rows:,} rows behind")
        return "\n".join([*lines, *(f"--- {child.name}\n{child.tail(8)}" for child in self.parts.children.values())])

    # ---------------------------------------------------------------- the proof

    def verify(self) -> bool:
        """Let `shmstore verify` compare each copy that it can read; return True when it finds all equal."""
        copies = {"sqlite": f"sqlite:{self.parts.sqlite_file}"}
        copies |= {name: f"delta:{self.parts.delta_folder(name)}/{{table}}" for name in ("spark", "replicate")}
        equal = True
        for name in self.options.readers:
            if name in copies:
                words = [*self.parts.source("verify")[1:], "--subscription", name, "--copy", copies[name]]
                say(f"\nshmstore {' '.join(words)}")
                done = subprocess.run([console(), *words], env=self.parts.environment, stdout=subprocess.PIPE, text=True)
                say(done.stdout.rstrip())
                equal = equal and done.returncode == 0
        return equal

    def compare(self) -> bool:
        """Print row counts and checksums, by a plain SELECT and code of the demo's own; return True when every reader holds what the server holds."""
        began = time.monotonic()
        connection = self.parts.server.connect()
        layouts = compare.layouts(connection)
        server = compare.of_server(connection, layouts)
        connection.close()
        places: dict[str, dict[str, Table]] = {}
        for name in self.options.readers:
            if name == "sqlite":
                places["sqlite"] = compare.of_sqlite(self.parts.sqlite_file, layouts)
            elif name in ("spark", "replicate"):
                places[f"{name} (Delta)"] = compare.of_delta(self.parts.delta_folder(name), layouts)
            else:
                with self.parts.tail_file.open("rb") as lines:
                    replay = Replay(layouts, redelivered=self.options.kill > 0).read(lines)
                if replay.rows != self.options.rows:
                    say(f"\nthe tail's file tells {replay.rows:,} row changes, the server committed {self.options.rows:,}")
                    return False
                places["tail (replay)"] = compare.of_rows(replay.tables, layouts)
        say("\n" + compare.render(layouts, server, places))
        found = compare.differences(server, places)
        for difference in found:
            where = f"{difference.table}.{difference.column}" if difference.column else difference.table
            say(f"DIFFERENT  {difference.place}: {where} is {difference.found}, the server has {difference.expected}")
        columns = sum(len(layout.columns) for layout in layouts.values())
        types = len({data_type for layout in layouts.values() for _, data_type in layout.columns})
        if not found:
            rows = sum(table.rows for table in server.values())
            say(
                f"identical: {len(layouts)} tables, {rows:,} rows, {columns} columns of {types} types, in {len(places) + 1} "
                f"places; compared in {time.monotonic() - began:.1f} s"
            )
        return not found


@contextmanager
def signals_raise() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Stopped` inside the block; afterwards they are ignored while the rest is put away."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


def run(options: Options) -> int:
    """Run the demo; return its exit code."""
    began = time.monotonic()
    demo = Demo(options)
    parts = demo.parts
    code, kept, troubles = 1, False, list[str]()
    with ExitStack() as stack:
        try:
            with signals_raise():
                code = _run(demo, stack)
                if options.keep:
                    kept = True
                    say(parts.how_to_look())
                    signal.pause()
        except Stopped as stopped:
            code = code if kept else 128 + stopped.number
            say(f"\nstopping ({stopped})")
        except (DemoFailed, StoreError) as error:
            say(f"\nFAILED: {error}")
        except Exception:
            say(f"\nFAILED by a bug:\n{traceback.format_exc()}")
        finally:
            troubles = parts.end()
            if code:  # an interrupted part may end by the signal itself
                troubles = []
    keep = options.keep and parts.server is not None
    left = parts.leave(keep=keep)
    for trouble in troubles + [f"left behind: {what}" for what in left]:
        say(f"FAILED: {trouble}")
        code = code or 1
    took = f"{time.monotonic() - began:.0f} s in all, exit code {code}"
    if keep:
        say(
            f"kept: {parts.folder} and the store; remove them with: rm -r {parts.folder}; {console()} rm {parts.store_name}\n{took}"
        )
    else:
        if not code:
            say(NEXT)
        say(f"all stopped, {'this was left behind' if left else 'nothing left behind'}; {took}")
    return code


def _run(demo: Demo, stack: ExitStack) -> int:
    options, parts = demo.options, demo.parts
    pace = f"{options.rate:,.0f} a second" if options.rate else "full speed"
    say(f"demo      {options.rows:,} row changes at {pace}, seed {options.seed}, in {parts.folder}")
    store = demo.begin(stack)
    monitor = Monitor(store, list(options.readers), target=options.rows)
    say(parts.how_to_watch())
    parts.begin_load()
    demo.watch(monitor)
    load, kinds = parts.load, parts.load["kinds"]
    changes = ", ".join(f"{kinds.get(kind, 0):,} {kind}s" for kind in ("insert", "update", "delete"))
    say(
        f"\nload      {changes} in {load['commits']:,} transactions of {load['statements']:,} statements; "
        f"{load['rollbacks']:,} rolled back ({load['deadlocks']} by deadlock), {load['ddls']} DDLs\n"
    )
    say(monitor.rates())
    equal = demo.verify()
    return 0 if demo.compare() and equal else 1
