"""The server as a process runs it: until it is stopped, with start-up warnings, and with its counters for other threads."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from shmstore.consumer.serving.access import is_loopback
from shmstore.consumer.serving.http_server import PATIENCE
from shmstore.consumer.wire.server.server import CanalServer
from shmstore.consumer.wire.server.settings import CanalSettings

_log = logging.getLogger("shmstore.serve")


class CanalProcess:
    """A server in an event loop of its own: `run` serves until `stop`, which any thread may call, also before."""

    def __init__(self, settings: CanalSettings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._stopped = False

    def stop(self) -> None:
        """End `run`."""
        self._stopped = True  # before the look at the loop, as `_serve` looks after it has set that
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._over.set)

    def run(self) -> None:
        """Serve. Raises OSError where the address or the certificate cannot be had."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        settings = self._settings
        loop = self._loop = asyncio.get_running_loop()
        server = CanalServer(settings)
        await server.start()
        try:
            if settings.expose is not None:
                settings.expose(lambda: self._exposition(loop, server))
            if not settings.credentials.password_hash and not is_loopback(server.address[0]):
                _log.warning("every client that reaches %s:%s can read every store served: no password is set", *server.address)
            if settings.ready is not None:
                settings.ready(server.address)
            if not self._stopped:
                await self._over.wait()
        finally:
            await server.close()

    def _exposition(self, loop: asyncio.AbstractEventLoop, server: CanalServer) -> str:
        """The counters, read where they are written: in the event loop. For other threads."""

        async def read() -> str:
            return server.metrics.exposition()

        return asyncio.run_coroutine_threadsafe(read(), loop).result(PATIENCE)
