"""The server's process: signals, and its counters for other threads."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable

from shmstore.consumer.serving.access import is_loopback
from shmstore.consumer.serving.http_server import PATIENCE
from shmstore.consumer.wire.server.server import CanalServer
from shmstore.consumer.wire.server.settings import CanalSettings

_log = logging.getLogger("shmstore.serve")


async def run(settings: CanalSettings, stop: asyncio.Event | None = None) -> list[int]:
    """Serve until `stop` is set, or SIGTERM, SIGINT or SIGHUP comes (in the main thread only); return the signals that came."""
    stop = stop or asyncio.Event()
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        stop.set()

    loop = asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, end, number)
    server = CanalServer(settings)
    await server.start()
    try:
        if settings.expose is not None:
            settings.expose(_read_in(loop, server.metrics.exposition))
        if not settings.credentials.password_hash and not is_loopback(server.address[0]):
            _log.warning("every client that reaches %s:%s can read every store served: no password is set", *server.address)
        if settings.ready is not None:
            settings.ready(server.address)
        await stop.wait()
    finally:
        await server.close()
    return came


def _read_in(loop: asyncio.AbstractEventLoop, exposition: Callable[[], str]) -> Callable[[], str]:
    """Return what other threads read the counters with: where they are written, in the server's event loop."""

    async def read() -> str:
        return exposition()

    return lambda: asyncio.run_coroutine_threadsafe(read(), loop).result(PATIENCE)
