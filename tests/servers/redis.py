"""A Redis server on 127.0.0.1, from the PATH or the system's package archive."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.daemon import Daemon
from tests.servers.packages import ServerUnavailable, unpacked


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


class RedisServer(Daemon):
    """A server with an append-only file in `folder`. `options` are words of its command line."""

    name = "Redis"

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self._options = options

    def command(self) -> list[str]:
        """The words that start it."""
        own = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", "", "--appendonly", "yes"]
        return [*redis_command(), *own, *self._options]


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A server while the block runs."""
    with tempfile.TemporaryDirectory(prefix="shmstore-redis-") as folder, RedisServer(Path(folder), *options) as server:
        yield server
