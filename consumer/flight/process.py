"""The server's process: the file limit, signals, start-up warnings."""

from __future__ import annotations

import logging
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from shmstore.consumer.flight.server import FlightServer
from shmstore.consumer.flight.settings import FlightSettings
from shmstore.consumer.serving.access import is_loopback
from shmstore.consumer.serving.capacity import Capacity

# The system may give a signal that comes while another is handled to any thread, and that ends no wait of the main one: it looks itself.
AWAKE_SECONDS: Final = 0.5

_log = logging.getLogger("shmstore.serve")


@contextmanager
def serving(settings: FlightSettings) -> Iterator[FlightServer]:
    """Serve while the block runs."""
    capacity = Capacity.of_process(settings.max_connections)
    if capacity.connections < settings.max_connections:
        _log.warning(
            "takes %s connections, not %s: it may have %s files open; raise the hard limit (ulimit -Hn, LimitNOFILE=)",
            *(capacity.connections, settings.max_connections, capacity.files),
        )
    server = FlightServer(replace(settings, max_connections=capacity.connections))
    try:
        if not settings.password and not is_loopback(settings.host):
            _log.warning("every client that reaches %s:%s can read every store served: no password is set", *server.address)
        if settings.password and not settings.tls_cert and not is_loopback(settings.host):
            _log.warning("passwords and events travel in clear to %s:%s: set a certificate", *server.address)
        if settings.expose is not None:
            settings.expose(server.exposition)
        if settings.ready is not None:
            settings.ready(server.address)
        yield server
    finally:
        server.close()


def run(settings: FlightSettings) -> list[int]:
    """Serve until SIGTERM, SIGINT or SIGHUP comes; return the signals that came."""
    came: queue.SimpleQueue[int] = queue.SimpleQueue()  # an Event may not be set where its own wait was interrupted

    def end(number: int, _: object) -> None:
        came.put(number)

    ending = [
        number for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, end) for number in ending}
    try:
        with serving(settings):
            while True:
                with suppress(queue.Empty):
                    return [came.get(timeout=AWAKE_SECONDS)]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
