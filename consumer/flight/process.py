"""The server as a process runs it: the file limit, start-up warnings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from shmstore.consumer.flight.server import FlightServer
from shmstore.consumer.flight.settings import FlightSettings
from shmstore.consumer.serving.access import is_loopback
from shmstore.consumer.serving.capacity import Capacity

_log = logging.getLogger("shmstore.serve")


@contextmanager
def serving(settings: FlightSettings) -> Iterator[FlightServer]:
    """Serve while the block runs. Raises `OSError` where the address or the certificate cannot be had."""
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
