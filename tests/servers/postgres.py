"""A real PostgreSQL for the tests of copies kept in one: `with start_postgres() as server: ...`

As private as `tests.servers.server`: a free port of 127.0.0.1, a temporary folder, its end with that of the process that started
it. It is the one on this machine, else unpacked from the package archive. PostgreSQL refuses to run as root: then it runs as
a user without rights, with the capability to read what root may.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.servers.packages import ServerUnavailable, unpacked
from tests.servers.ports import free_port
from tests.servers.server import GUARD, START_SECONDS

NOBODY = 65534


@dataclass
class Postgres:
    """One running server; the user is `user`, the database ``postgres``."""

    directory: Path
    port: int
    pid: int
    programs: tuple[Path, dict[str, str]]
    user: str = "copies"
    password: str = "s3cret of copies"

    @property
    def url(self) -> str:
        """As a target names it, without the password."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"

    def query(self, sql: str, *, user: str | None = None) -> list[list[str | None]]:
        """Run SQL through psql; return the rows as text, NULL as None."""
        folder, environment = self.programs
        arguments = [str(folder / "psql"), "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-F", "\x1f", "-R", "\x1e"]
        arguments += ["-P", "null=\x1d", "-h", "127.0.0.1", "-p", str(self.port), "-U", user or self.user, "-d", "postgres"]
        environment = {**os.environ, **environment, "PGPASSWORD": self.password, "PGTZ": "UTC"}
        done = subprocess.run([*arguments, "-c", sql], capture_output=True, env=environment)
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        text = done.stdout.decode().rstrip("\n")  # decoded here: else a carriage return would come as another character
        rows = text.split("\x1e") if text else []
        return [[None if cell == "\x1d" else cell for cell in row.split("\x1f")] for row in rows]


def _programs() -> tuple[Path, dict[str, str]]:
    """The folder of PostgreSQL's programs, and what their environment needs."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists() and (folder / "psql").exists():
            return folder, {}
    found = shutil.which("initdb")
    if found and (Path(found).resolve().parent / "postgres").exists():
        return Path(found).resolve().parent, {}
    root = unpacked("postgresql")
    folder = next(iter(sorted(root.glob("usr/lib/postgresql/*/bin"), reverse=True)), None)
    if folder is None:
        raise ServerUnavailable(f"{root} holds no PostgreSQL; remove {root.parent} to fetch it again")
    libraries = [str(path) for part in ("lib", "usr/lib") for path in sorted(root.glob(f"{part}/*-linux-*"))]
    return folder, {"LD_LIBRARY_PATH": ":".join(libraries)}


def _unprivileged() -> list[str]:
    """The words before a command that must not run as root."""
    if os.geteuid():
        return []
    if not shutil.which("setpriv"):
        raise ServerUnavailable("PostgreSQL does not run as root, and there is no setpriv (util-linux) to run it as nobody")
    capabilities = [f"--{kind}-caps=+dac_override" for kind in ("inh", "ambient")]
    # access(2) asks with the real user, and forgets the capabilities of a user that is not root, unless asked not to
    fixed = "--securebits=+no_setuid_fixup"
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", fixed, *capabilities]


@contextmanager
def start_postgres() -> Iterator[Postgres]:
    """Run a server in a temporary folder. Raises ServerUnavailable with its log."""
    programs = _programs()
    folder, extra = programs
    place = Path(tempfile.mkdtemp(prefix="shmstore-postgres-"))
    guard = None
    try:
        server = Postgres(place, free_port(), 0, programs)
        (place / "password").write_text(server.password)
        if not os.geteuid():
            for path in (place, place / "password"):
                os.chown(path, NOBODY, NOBODY)
        environment = {**os.environ, **extra, "LC_ALL": "C"}
        arguments = ["-D", str(place / "data"), "-U", server.user, "-A", "scram-sha-256", f"--pwfile={place}/password"]
        arguments += ["--no-sync", "-E", "UTF8", "--locale=C"]
        made = subprocess.run(
            [*_unprivileged(), str(folder / "initdb"), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=place,
        )
        if made.returncode:
            raise ServerUnavailable(f"PostgreSQL's initdb failed: {made.stdout[-1000:]}{made.stderr[-2000:]}")
        options = {"listen_addresses": "127.0.0.1", "port": server.port, "unix_socket_directories": "", "fsync": "off"}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = [*_unprivileged(), str(folder / "postgres"), "-D", str(place / "data"), *words]
        me = os.pidfd_open(os.getpid())
        try:
            with (place / "output").open("ab") as output:
                guard = subprocess.Popen(
                    [sys.executable, "-S", "-E", str(GUARD), str(me), str(place), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    pass_fds=[me],
                    cwd=place,
                    start_new_session=True,
                    env=environment,
                )
        finally:
            os.close(me)
        assert guard.stdout
        server.pid = int(guard.stdout.readline() or 0)
        until = time.monotonic() + START_SECONDS
        while True:
            with suppress(RuntimeError):
                server.query("SELECT 1")
                break
            if guard.poll() is not None or time.monotonic() > until:
                raise ServerUnavailable(f"PostgreSQL did not start: {(place / 'output').read_text()[-3000:]}")
            time.sleep(0.05)
        yield server
    finally:
        if guard is not None:
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGQUIT)
            with suppress(subprocess.TimeoutExpired):
                guard.wait(20)
            if guard.poll() is None:
                os.kill(server.pid, signal.SIGKILL)
                guard.wait()
            assert guard.stdout
            guard.stdout.close()
        shutil.rmtree(place, ignore_errors=True)
