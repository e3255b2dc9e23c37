"""A Redis server on 127.0.0.1, from the PATH or the system's package archive."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.packages import ServerUnavailable, unpacked
from tests.servers.ports import free_port
from tests.servers.process import START_SECONDS


@functools.cache
def redis_command() -> tuple[str, ...]:
    """The command of the Redis server on the PATH, else of one unpacked from the system's package archive. Raises `ServerUnavailable`."""
    program = shutil.which("redis-server")
    if program is not None:
        return (program,)
    root = unpacked("redis")
    loader = next(iter(sorted(root.glob("**/lib/*-linux-*/ld-linux*.so.*"))), None)
    server = root / "usr/bin/redis-check-rdb"  # one program with several names; redis-server is a link to it
    if loader is None or not server.exists():
        raise ServerUnavailable(f"{root} holds no redis-server with its dynamic loader: remove {root.parent} to fetch it again")
    libraries = ":".join(str(root / part / loader.parent.name) for part in ("lib", "usr/lib"))
    return (str(loader), "--library-path", libraries, "--argv0", "redis-server", str(server))


class RedisServer:
    """A server with an append-only file in `folder`, from `start` to `stop`, and again. `options` are words of its command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self._options = folder, options
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        own = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", "", "--appendonly", "yes"]
        log = self.folder / "redis.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen([*redis_command(), *own, *self._options], stdout=out, stderr=subprocess.STDOUT)
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise ServerUnavailable(f"Redis does not start here: {log.read_text()[-1000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Let it answer nothing."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End `pause`."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A server while the block runs."""
    with tempfile.TemporaryDirectory(prefix="shmstore-redis-") as folder:
        server = RedisServer(Path(folder), *options)
        try:
            server.start()
            yield server
        finally:
            server.stop()
