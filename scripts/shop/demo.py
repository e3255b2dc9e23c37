"""The demo itself: starts the parts, watches them, compares, and leaves nothing behind.

Plan. The order matters twice. The readers subscribe before the shop exists, so that everything, its CREATE TABLEs too, goes
through the ring. And the end is known, not guessed: the load commits exactly as many row changes as asked for, the producer
is done when the ring's put cursor has counted them, a reader is done when it has acked the newest event.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from scripts.shop import compare
from scripts.shop.canonical import Table
from scripts.shop.monitor import Monitor
from scripts.shop.options import Options
from scripts.shop.processes import Child, python_module, session_members
from scripts.shop.replay import Replay
from scripts.shop.schema import DATABASE, create_statements
from shmstore import EventStore, StoreError, StoreNotFound
from tests.servers.server import ServerUnavailable, start_server

_ROOT: Final = Path(__file__).resolve().parents[2]
_START_SECONDS: Final = 120.0  # for a part to get ready; Spark takes ten on a small machine
_SHM: Final = Path("/dev/shm")


class DemoFailed(Exception):
    """A part of the demo failed; the text says which and why."""


class Stopped(BaseException):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Demo:
    """One run: its folder, its store, its children."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.store_name = f"shop-{os.getpid()}"
        self.folder = Path(tempfile.mkdtemp(prefix="shmstore-demo-"))
        self.children: list[Child] = []
        self.server: Any = None
        self.load: dict[str, Any] = {"rows": 0}
        self._position: tuple[str, int] | None = None
        self.environment = os.environ | {
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore::FutureWarning",
            "SHMSTORE_STATE": str(self.folder / "state"),
            "SHMSTORE_PASSWORD": "",
            "TMPDIR": str(self.folder / "tmp"),
        }
        (self.folder / "tmp").mkdir()

    # ---------------------------------------------------------------- the parts

    def begin_server(self, stack: ExitStack) -> None:
        """Start the private server."""
        say(f"server    starting a private {self.options.server} (the first time its packages are fetched, which takes a while)")
        directory = self.folder / "server"
        directory.mkdir()
        try:
            self.server = stack.enter_context(start_server(self.options.server, directory=directory))
        except ServerUnavailable as error:
            raise DemoFailed(f"no {self.options.server} server could be had: {error}") from error
        say(f"server    {self.server.version} on 127.0.0.1:{self.server.port}, pid {self.server.pid}")

    def begin_producer(self) -> EventStore:
        """Start `shmstore produce` as a user would, and attach to the store it makes."""
        command = [console(), "produce", "--host", self.server.host, "--port", str(self.server.port), "--user", self.server.user,
                   "--store", self.store_name, "--include", f"{DATABASE}.*", "--start", "earliest",
                   "--capacity", str(self.options.capacity)]  # fmt: skip
        child = self.start("producer", command)
        self.wait("the producer to make the store", lambda: self.store_name in EventStore.names())
        say(f"producer  pid {child.pid}: {' '.join(['shmstore', *command[1:]])}")
        return EventStore.attach(self.store_name)

    def begin_readers(self, store: EventStore) -> None:
        """Start the readers; return when all have subscribed."""
        for name in self.options.readers:
            (self.folder / name).mkdir()
        commands = {
            "sqlite": python_module("scripts.shop.sqlite_reader", self.store_name, str(self.folder / "sqlite" / "shop.db")),
            "spark": python_module("scripts.shop.spark_reader", self.store_name, str(self.folder / "spark")),
            "replicate": python_module("scripts.shop.spark_reader", self.store_name, str(self.folder / "replicate"), "replicate"),
            "tail": [console(), "tail", self.store_name, "--format", "json", "--subscription", "tail"],
        }
        for name in self.options.readers:
            if name == "tail":
                with (self.folder / "tail" / "changes.jsonl").open("wb") as file:
                    child = self.start(name, commands[name], stdout=file.fileno())
            else:
                child = self.start(name, commands[name])
            shown = ["shmstore", *commands[name][1:]] if name == "tail" else ["python", *commands[name][2:]]
            say(f"reader    pid {child.pid}: {' '.join(shown)}")
        wanted = set(self.options.readers)
        self.wait("the readers to subscribe", lambda: wanted <= {stat.name for stat in store.subscriptions()})

    def begin_load(self) -> Child:
        """Create the shop and start the load; its counts arrive in `self.load`."""
        connection = self.server.connect()
        for statement in create_statements():
            connection.cursor().execute(statement)
        connection.close()
        server = {"host": self.server.host, "port": self.server.port, "user": self.server.user, "password": self.server.password}
        what = {"server": server, "rows": self.options.rows, "rate": self.options.rate, "seed": self.options.seed}
        child = self.start("load", python_module("scripts.shop.load", json.dumps(what)), stdout=subprocess.PIPE)
        threading.Thread(target=self._count, args=(child,), daemon=True).start()
        return child

    def _count(self, child: Child) -> None:
        assert child.process.stdout is not None
        for line in child.process.stdout:
            self.load = json.loads(line)

    def start(self, name: str, command: list[str], *, stdout: int | None = None) -> Child:
        """Start one child."""
        child = Child(name, command, log=self.folder / f"{name}.log", stdout=stdout, environment=self.environment)
        self.children.append(child)
        return child

    # ---------------------------------------------------------------- waiting

    def check_children(self) -> None:
        """Raise `DemoFailed` when a part has ended that should not have."""
        for child in self.children:
            if not child.running and not (child.name == "load" and child.returncode == 0):
                raise DemoFailed(f"{child.name} ended with exit code {child.returncode}; the end of its log:\n{child.tail()}")
        if not self.server.pid:
            raise DemoFailed("the server has ended")

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`, while every part lives."""
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            self.check_children()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {child.name}\n{child.tail(8)}" for child in self.children)
                raise DemoFailed(f"waited {_START_SECONDS:.0f} s for {what}\n{logs}")
            time.sleep(0.05)

    def watch(self, monitor: Monitor, load: Child) -> None:
        """Show progress until the load is done, all of it is in the ring, and every reader has acked it."""
        while True:
            monitor.look(int(self.load["rows"]))
            self.check_children()
            if (
                not load.running
                and self.load["rows"] >= self.options.rows
                and self.all_put(monitor.store)
                and monitor.caught_up()
            ):
                monitor.look(int(self.load["rows"]))
                monitor.show(last=True)
                return
            monitor.show()
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
            statement = "SHOW BINARY LOG STATUS" if self.server.flavor == "mysql" else "SHOW MASTER STATUS"
            with self.server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(statement)
                file, offset, *_ = cursor.fetchone()
            self._position = (file, int(offset))
        return self._position

    def stalled(self, store: EventStore) -> str:
        """Say who waits for whom."""
        put = store.put_cursor
        lines = [
            f"nothing has moved for {self.options.patience:.0f} s: the load committed {self.load['rows']:,} of "
            f"{self.options.rows:,} row changes, the ring has {put.rows:,} of them in {put.sequence + 1:,} events"
        ]
        for stat in store.subscriptions():
            got, acked = stat.get.sequence + 1, stat.ack.sequence + 1
            lines.append(f"  {stat.name}: {stat.state}, got {got:,}, acked {acked:,}, {stat.lag_rows:,} rows behind")
        return "\n".join([*lines, *(f"--- {child.name}\n{child.tail(8)}" for child in self.children)])

    # ---------------------------------------------------------------- the proof

    def compare(self) -> bool:
        """Print the comparison; return True when every reader holds what the server holds."""
        began = time.monotonic()
        connection = self.server.connect()
        layouts = compare.layouts(connection)
        server = compare.of_server(connection, layouts)
        connection.close()
        places: dict[str, dict[str, Table]] = {}
        for name in self.options.readers:
            if name == "sqlite":
                places["sqlite"] = compare.of_sqlite(self.folder / "sqlite" / "shop.db", layouts)
            elif name in ("spark", "replicate"):
                places[f"{name} (Delta)"] = compare.of_delta(self.folder / name / "tables", layouts)
            else:
                with (self.folder / "tail" / "changes.jsonl").open("rb") as lines:
                    replay = Replay(layouts).read(lines)
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

    # ---------------------------------------------------------------- the end

    def end_children(self) -> list[str]:
        """Stop every child, all at once; return what did not end in order."""
        running = [child for child in self.children if child.running]
        for child in running:
            child.terminate()
        for child in self.children:
            child.stop()
        return [
            f"{child.name} ended with exit code {child.returncode} after SIGTERM; the end of its log:\n{child.tail()}"
            for child in running
            if child.returncode != 0
        ]

    def leave(self, *, keep: bool) -> list[str]:
        """Remove what the demo made; return what is left all the same."""
        left = [f"process {pid} of {child.name}" for child in self.children for pid in session_members(child.pid)]
        if keep:
            return left
        with suppress(StoreNotFound):
            EventStore.unlink(self.store_name)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():
            left.append(f"folder {self.folder}")
        left += [f"shared memory {entry}" for entry in _SHM.iterdir() if self.store_name in entry.name]
        return left

    def how_to_look(self) -> str:
        """Return what can be tried while all is running."""
        shmstore = f"SHMSTORE_STATE={self.folder}/state {console()}"
        show = f"from deltalake import DeltaTable; print(DeltaTable('{self.folder}/spark/tables/orders').to_pandas())"
        looks = {
            "server": f"mysql --no-defaults -h 127.0.0.1 -P {self.server.port} -u root {DATABASE}",
            "ring": f"{shmstore} stat {self.store_name} --watch 1",
            "events": f"{shmstore} tail {self.store_name} --peek --from latest",
            "sqlite": f"sqlite3 {self.folder}/sqlite/shop.db 'SELECT id, name, credit FROM customers LIMIT 3'",
            "spark": f'{sys.executable} -c "{show}"',
            "tail": f"tail -f {self.folder}/tail/changes.jsonl",
            "logs": f"tail {self.folder}/*.log",
        }
        present = {"server", "ring", "events", "logs", *self.options.readers}
        lines = [f"  {name:8} {command}" for name, command in looks.items() if name in present]
        head = "\neverything is still running; try, in another terminal (what is changed on the server reaches every reader):"
        return "\n".join([head, *lines, "Ctrl-C stops it."])


def console() -> str:
    """Return the path of the `shmstore` command beside this interpreter."""
    return str(Path(sys.executable).parent / "shmstore")


def say(text: str) -> None:
    """Print, at once."""
    print(text, flush=True)


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
    code, kept, troubles = 1, False, list[str]()
    with ExitStack() as stack:
        try:
            with signals_raise():
                code = _run(demo, stack)
                if options.keep:
                    kept = True
                    say(demo.how_to_look())
                    signal.pause()
        except Stopped as stopped:
            code = code if kept else 128 + stopped.number
            say(f"\nstopping ({stopped})")
        except (DemoFailed, StoreError) as error:
            say(f"\nFAILED: {error}")
        except Exception:
            say(f"\nFAILED by a bug:\n{traceback.format_exc()}")
        finally:
            troubles = demo.end_children()
            if code:  # an interrupted part may end by the signal itself
                troubles = []
    keep = options.keep and demo.server is not None
    left = demo.leave(keep=keep)
    for trouble in troubles + [f"left behind: {what}" for what in left]:
        say(f"FAILED: {trouble}")
        code = code or 1
    took = f"{time.monotonic() - began:.0f} s in all, exit code {code}"
    if keep:
        say(f"kept: {demo.folder} and the store; remove them with: rm -r {demo.folder}; {console()} rm {demo.store_name}\n{took}")
    else:
        say(f"all stopped, {'this was left behind' if left else 'nothing left behind'}; {took}")
    return code


def _run(demo: Demo, stack: ExitStack) -> int:
    options = demo.options
    pace = f"{options.rate:,.0f} a second" if options.rate else "full speed"
    say(f"demo      {options.rows:,} row changes at {pace}, seed {options.seed}, in {demo.folder}")
    demo.begin_server(stack)
    store = stack.enter_context(demo.begin_producer())
    demo.begin_readers(store)
    monitor = Monitor(store, list(options.readers), target=options.rows)
    load = demo.begin_load()
    demo.watch(monitor, load)
    load_, kinds = demo.load, demo.load["kinds"]
    changes = ", ".join(f"{kinds.get(kind, 0):,} {kind}s" for kind in ("insert", "update", "delete"))
    say(
        f"\nload      {changes} in {load_['commits']:,} transactions of {load_['statements']:,} statements; "
        f"{load_['rollbacks']:,} rolled back ({load_['deadlocks']} by deadlock), {load_['ddls']} DDLs\n"
    )
    say(monitor.rates())
    return 0 if demo.compare() else 1
