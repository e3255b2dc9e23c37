"""The server's process: signals, and Prometheus' port."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable

from shmstore import ShmStoreError
from shmstore.consumer.access import is_loopback
from shmstore.consumer.http_server import PATIENCE
from shmstore.consumer.metrics import Endpoint
from shmstore.consumer.wire.server.server import Server
from shmstore.consumer.wire.server.settings import Settings

_log = logging.getLogger("shmstore.serve")


async def run(settings: Settings, stop: asyncio.Event | None = None) -> list[int]:
    """Serve until `stop` is set, or SIGTERM or SIGINT comes (in the main thread only); return the signals that came."""
    stop = stop or asyncio.Event()
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        stop.set()

    loop = asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
    server = Server(settings)
    await server.start()
    metrics = None
    try:
        if settings.metrics_port:
            metrics = _metrics(settings, server.metrics.exposition)
        if not settings.credentials.password_hash and not is_loopback(server.address[0]):
            _log.warning("whoever reaches %s:%s can read every store served: no password is set", *server.address)
        if settings.ready is not None:
            settings.ready(server.address)
        await stop.wait()
    finally:
        if metrics is not None:
            await asyncio.to_thread(metrics.close)
        await server.close()
    return came


def _metrics(settings: Settings, exposition: Callable[[], str]) -> Endpoint:
    """Answer every GET on the metrics port with the counters, read where they are written: in the server's event loop."""
    loop = asyncio.get_running_loop()

    async def read() -> str:
        return exposition()

    def answer(path: str) -> tuple[int, str]:
        return 200, asyncio.run_coroutine_threadsafe(read(), loop).result(PATIENCE)

    try:
        endpoint = Endpoint((settings.host, settings.metrics_port), answer)
    except OSError as error:
        raise ShmStoreError(f"cannot serve metrics on {settings.host}:{settings.metrics_port}: {error.strerror}") from error
    endpoint.start()
    return endpoint
