"""A real MariaDB or MySQL for one test, demo or developer: `with start_server("mariadb") as server: ...`

Private in every way: a free port of 127.0.0.1, a temporary folder, a process session of its own, root without a password, row
binlog with full images and full metadata. It cannot outlive the process that started it (see `guard`), not even by kill -9.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql

from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port
from tests.servers.programs import BINLOG, Program, find_program

__all__ = ["Server", "ServerUnavailable", "start_server"]

START_SECONDS = 120.0
STOP_SECONDS = 60.0
GUARD = Path(__file__).with_name("guard.py")


class Server:
    """One running server. `stop`, `kill` and `restart` keep its folder and port; leaving `start_server` removes the folder."""

    host = "127.0.0.1"
    user = "root"
    password = ""

    def __init__(self, program: Program, directory: Path, options: Sequence[str], port: int, temporary: bool) -> None:
        self.flavor = program.flavor  # "mariadb" | "mysql"
        self.directory = directory  # data in data/, the log in error.log
        self.port = port
        self.pid = 0  # 0: not running
        self.version = ""  # as SELECT VERSION() gives it
        self.options = list(options)
        self._program = program
        self._temporary = temporary
        self._chosen_port = port
        self._guard: subprocess.Popen[str] | None = None

    def connect(self, **arguments: Any) -> pymysql.Connection[Any]:
        """Connect as root through PyMySQL (utf8mb4, autocommit); keyword arguments go to `pymysql.connect`.

        Without TLS, unless they say with whose account: PyMySQL would load the system's certificates for each connection (40 ms of CPU).
        """
        settings = {"host": self.host, "port": self.port, "user": self.user, "password": self.password, "charset": "utf8mb4"}
        if "user" not in arguments:
            settings["ssl_disabled"] = True
        return pymysql.connect(**{**settings, "autocommit": True, "connect_timeout": 10, **arguments})

    def start(self) -> None:
        """Start the stopped server and wait until it answers. A port taken by another process meanwhile is tried again."""
        if self._guard:
            raise RuntimeError(f"the server runs already, pid {self.pid}")
        for attempt in (1, 2, 3):
            if self.version == "" and not self._chosen_port:
                self.port = free_port()
            try:
                self._start_once()
                return
            except ServerUnavailable as error:
                if attempt == 3 or self._chosen_port or "ddress already in use" not in str(error):
                    raise

    def stop(self) -> None:
        """Shut down in order (SIGTERM, by pid), as a restarted production server would; killed after a minute."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill -9."""
        self._end(signal.SIGKILL)

    def restart(self, options: Sequence[str] | None = None) -> None:
        """Stop in order and start on the same folder and port; `options` replaces those given at first."""
        self.stop()
        if options is not None:
            self.options = list(options)
        self.start()

    @property
    def running(self) -> bool:
        """Whether the server's process is there."""
        return self._guard is not None and self._guard.poll() is None

    def log(self) -> str:
        """What the server wrote into its error log."""
        path = self.directory / "error.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _command(self) -> list[str]:
        place = self.directory
        own = [
            f"--socket={self._socket()}",
            f"--pid-file={place}/pid",
            f"--log-error={place}/error.log",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            "--server-id=1",
            "--character-set-server=utf8mb4",
        ]
        return [*self._program.arguments(place / "data"), *own, *BINLOG[self.flavor], *self.options]

    def _socket(self) -> str:
        # A socket's path must fit into 107 bytes; a relative one is taken from the data directory.
        path = str(self.directory / "socket")
        return path if len(path) < 100 else "socket"

    def _start_once(self) -> None:
        me = os.pidfd_open(os.getpid())
        written = len(self.log())
        try:
            folder = str(self.directory) if self._temporary else ""
            with (self.directory / "output").open("ab") as output:
                self._guard = subprocess.Popen(
                    [sys.executable, "-S", "-E", str(GUARD), str(me), folder, *self._command()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    pass_fds=[me],
                    cwd=self.directory,
                    start_new_session=True,  # a time-out or Ctrl-C that ends the test's process group leaves the server to us
                )
        finally:
            os.close(me)
        assert self._guard.stdout
        self.pid = int(self._guard.stdout.readline() or 0)
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._answers():
                if self._guard.poll() is not None or time.monotonic() > deadline:
                    ended = f"exit code {self._guard.returncode}" if self._guard.returncode is not None else "no answer in time"
                    output = (self.directory / "output").read_text(errors="replace")[-1000:]
                    said = self.log()[written:][-4000:]
                    raise ServerUnavailable(
                        f"{self.flavor} {self._program.version} did not start ({ended}); its log:\n{output}{said}"
                    )
                time.sleep(0.02)
        except BaseException:
            self.kill()
            raise

    def _answers(self) -> bool:
        # Only this server writes this pid file: some other server that took the port cannot be mistaken for it.
        pid_file = self.directory / "pid"
        if not pid_file.exists() or pid_file.read_text().strip() != str(self.pid):
            return False
        try:
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT VERSION()")
                self.version = cursor.fetchone()[0]
        except pymysql.MySQLError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        if not self._guard:
            return
        with suppress(ProcessLookupError):
            # The guard reaps the server and leaves at once, so while the guard runs the pid is the server's.
            if self.pid and self._guard.poll() is None:
                os.kill(self.pid, number)
        try:
            self._guard.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self._guard.wait()
        assert self._guard.stdout
        self._guard.stdout.close()
        self._guard, self.pid = None, 0
        (self.directory / "pid").unlink(missing_ok=True)


@contextmanager
def start_server(kind: str, options: Sequence[str] = (), directory: Path | str | None = None, port: int = 0) -> Iterator[Server]:
    """Run a server: kind `mariadb` (the release's own), `mysql`, or another of `tests.servers.developer.KINDS`; `options` come last and so win.

    `directory`: kept at the end and used again the next time; None: a temporary folder, removed. `port` 0: a free one.
    Raises ServerUnavailable with the server's log, or with what to do where no server can be had.
    """
    program = find_program(kind)
    if directory is None:
        place = Path(tempfile.mkdtemp(prefix=f"shmstore-{kind}-"))
    else:
        place = Path(directory).resolve()
        place.mkdir(parents=True, exist_ok=True)
    server = Server(program, place, options, port, temporary=directory is None)
    if port:
        server.port = port
    try:
        if not (place / "data").exists():
            program.new_datadir(place / "data")
        server.start()
        yield server
    finally:
        # A folder that goes away needs no orderly shutdown, which takes MySQL 12 s while a replica is attached.
        if directory is None:
            server.kill()
            shutil.rmtree(place, ignore_errors=True)
        else:
            server.stop()
