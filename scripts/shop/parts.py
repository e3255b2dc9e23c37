"""The demo's parts: the server, the producer, the readers, the load; where they live, how they start and how they end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from scripts.shop.options import Options
from scripts.shop.processes import Child, python_module, session_members
from scripts.shop.schema import DATABASE, create_statements
from shmstore import EventStore, StoreNotFound
from tests.servers.server import ServerUnavailable, start_server

_ROOT: Final = Path(__file__).resolve().parents[2]
_SHM: Final = Path("/dev/shm")


class DemoFailed(Exception):
    """A part of the demo failed; the text says which and why."""


class Parts:
    """One run's folder, store and processes. `children` are those that run now, or have ended on their own."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.store_name = f"shop-{os.getpid()}"
        self.folder = Path(tempfile.mkdtemp(prefix="shmstore-demo-"))
        self.children: dict[str, Child] = {}
        self.server: Any = None
        self.load: dict[str, Any] = {"rows": 0}
        self._ended: list[Child] = []  # killed and started again
        self.environment = os.environ | {
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore::FutureWarning",
            "SHMSTORE_STATE": str(self.folder / "state"),
            "SHMSTORE_PASSWORD": "",
            "TMPDIR": str(self.folder / "tmp"),
        }
        (self.folder / "tmp").mkdir()

    # ---------------------------------------------------------------- what runs where

    @property
    def sqlite_file(self) -> Path:
        """Where the reader `sqlite` keeps its tables."""
        return self.folder / "sqlite" / "shop.db"

    @property
    def tail_file(self) -> Path:
        """Where `shmstore tail` writes."""
        return self.folder / "tail" / "changes.jsonl"

    def delta_folder(self, reader: str) -> Path:
        """Where the reader `spark` or `replicate` keeps its tables."""
        return self.folder / reader / "tables"

    def source(self, command: str) -> list[str]:
        """Return a command that gets the source and the store."""
        where = ["--host", self.server.host, "--port", str(self.server.port), "--user", self.server.user]
        return [console(), command, *where, "--store", self.store_name, "--include", f"{DATABASE}.*"]

    def command(self, name: str) -> list[str]:
        """Return the command of the producer or of a reader."""
        if name == "producer":
            return [*self.source("produce"), "--start", "earliest", "--capacity", str(self.options.capacity)]
        if name == "tail":
            return [console(), "tail", self.store_name, "--format", "json", "--subscription", "tail"]
        if name == "sqlite":
            return python_module("scripts.shop.sqlite_reader", self.store_name, str(self.sqlite_file))
        more = ["replicate"] if name == "replicate" else []
        return python_module("scripts.shop.spark_reader", self.store_name, str(self.folder / name), *more)

    def start(self, name: str) -> None:
        """Start the producer or a reader, as a user would."""
        command = self.command(name)
        (self.folder / name).mkdir(exist_ok=True)
        if name == "tail":
            with self.tail_file.open("ab") as file:
                child = self._child(name, command, stdout=file.fileno())
        else:
            child = self._child(name, command)
        shown = ["shmstore", *command[1:]] if command[0] == console() else ["python", *command[2:]]
        say(f"{'producer ' if name == 'producer' else 'reader   '} pid {child.pid}: {' '.join(shown)}")

    def _child(self, name: str, command: list[str], *, stdout: int | None = None) -> Child:
        child = Child(name, command, log=self.folder / f"{name}.log", stdout=stdout, environment=self.environment)
        self.children[name] = child
        return child

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

    def begin_load(self) -> None:
        """Create the shop and start the load; its counts arrive in `self.load`."""
        connection = self.server.connect()
        for statement in create_statements():
            connection.cursor().execute(statement)
        connection.close()
        server = {"host": self.server.host, "port": self.server.port, "user": self.server.user, "password": self.server.password}
        what = {"server": server, "rows": self.options.rows, "rate": self.options.rate, "seed": self.options.seed}
        child = self._child("load", python_module("scripts.shop.load", json.dumps(what)), stdout=subprocess.PIPE)
        threading.Thread(target=self._count, args=(child,), daemon=True).start()

    def _count(self, child: Child) -> None:
        assert child.process.stdout is not None
        for line in child.process.stdout:
            self.load = json.loads(line)

    def restart(self, name: str) -> None:
        """Kill -9 the producer or a reader, with all that it started, and start it again."""
        child = self.children[name]
        child.kill()
        self._ended.append(child)
        if name == "tail":
            with self.tail_file.open("ab") as file:
                file.write(b"\n")  # the last line may be torn
        self.start(name)

    # ---------------------------------------------------------------- the end

    def end(self) -> list[str]:
        """Stop every child, all at once; return what did not end in order."""
        running = [child for child in self.children.values() if child.running]
        for child in running:
            child.terminate()
        for child in self.children.values():
            child.stop()
        return [
            f"{child.name} ended with exit code {child.returncode} after SIGTERM; the end of its log:\n{child.tail()}"
            for child in running
            if child.returncode != 0
        ]

    def leave(self, *, keep: bool) -> list[str]:
        """Remove what the demo made; return what is left all the same."""
        left = [
            f"process {pid} of {child.name}"
            for child in (*self._ended, *self.children.values())
            for pid in session_members(child.pid)
        ]
        if keep:
            return left
        with suppress(StoreNotFound):
            EventStore.unlink(self.store_name)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():
            left.append(f"folder {self.folder}")
        left += [f"shared memory {entry}" for entry in _SHM.iterdir() if self.store_name in entry.name]
        return left

    def how_to_watch(self) -> str:
        """Return what shows the load live, in another terminal or a browser."""
        state = f"SHMSTORE_STATE={self.folder}/state"
        return f"watch     {state} {console()} top {self.store_name}   (or web {self.store_name}, in a browser)\n"

    def how_to_look(self) -> str:
        """Return what can be tried while all is running."""
        shmstore = f"SHMSTORE_STATE={self.folder}/state {console()}"
        show = f"from deltalake import DeltaTable; print(DeltaTable('{self.delta_folder('spark')}/orders').to_pandas())"
        looks = {
            "server": f"mysql --no-defaults -h 127.0.0.1 -P {self.server.port} -u root {DATABASE}",
            "ring": f"{shmstore} stat {self.store_name} --watch 1",
            "live": f"{shmstore} web {self.store_name}",
            "events": f"{shmstore} tail {self.store_name} --peek --from latest",
            "sqlite": f"sqlite3 {self.sqlite_file} 'SELECT id, name, credit FROM customers LIMIT 3'",
            "spark": f'{sys.executable} -c "{show}"',
            "tail": f"tail -f {self.tail_file}",
            "logs": f"tail {self.folder}/*.log",
        }
        present = {"server", "ring", "live", "events", "logs", *self.options.readers}
        lines = [f"  {name:8} {command}" for name, command in looks.items() if name in present]
        head = "\neverything is still running; try, in another terminal (what is changed on the server reaches every reader):"
        return "\n".join([head, *lines, "Ctrl-C stops it."])


def console() -> str:
    """Return the path of the `shmstore` command next to this interpreter."""
    return str(Path(sys.executable).parent / "shmstore")


def say(text: str) -> None:
    """Print, at once."""
    print(text, flush=True)
