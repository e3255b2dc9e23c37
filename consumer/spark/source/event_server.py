"""Events by Arrow Flight, for executors on other hosts than the store's.

The process that owns the query's subscription listens. Every client that knows the query's token, which is sent in the partitions, may request a range of
events; nothing but this query's store is served. With a certificate (`transportTlsCert`) they travel by TLS, and the partitions carry the
certificate, which is all that executors trust; without one they travel in clear, as Spark's own blocks do without
`spark.network.crypto.enabled`.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa

from shmstore import ProtocolError
from shmstore.consumer.flight.endpoint import Caller, FlightEndpoint, Reply, certificate
from shmstore.consumer.remote import events
from shmstore.consumer.remote.address import StoreAddress
from shmstore.consumer.remote.link import Link, RemoteLost
from shmstore.consumer.remote.protocol import Request
from shmstore.consumer.serving.access import Login
from shmstore.consumer.serving.audit import Audit

PATIENCE = 120.0  # seconds that an executor waits for the next part of its events


class EventServer(FlightEndpoint):
    """Serves ranges of one store's events until `close`. `read` gives the chunks of a range; it is called by one thread at a time."""

    def __init__(
        self,
        read: Callable[[int, int], Iterator[events.RemoteEvents]],
        host: str | None = None,
        tls: tuple[str, str] | None = None,
    ) -> None:
        self._read = read
        self._reading = threading.Lock()
        token, host = secrets.token_urlsafe(32), host or own_address()
        pair = certificate(*tls) if tls else None
        super().__init__(host, 0, Login("", token), Audit(), tls=pair)
        self.executors_address = StoreAddress(
            host, self.port, tls is not None, "", password=token, roots=pair.chain if pair else None
        )

    def answer(self, ticket: Request, caller: Caller) -> Reply:
        """Events `first` to `last`."""
        return events.SCHEMA, self._chunks(int(ticket["first"]), int(ticket["last"]))

    def _chunks(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        with self._reading:
            chunks = self._read(first, last)
        while True:
            with self._reading:  # a store object serves one thread at a time
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield from events.pack(chunk)

    def act(self, action: str, request: Request, caller: Caller) -> Request:
        """There is nothing to do here but to read."""
        raise ProtocolError(f"there is no action {action[:64]!r}")


def fetch(address: StoreAddress, first: int, last: int) -> Iterator[events.RemoteEvents]:
    """Yield the events `first` to `last` from the query's server. Raises its error, and `StoreUnreachable`."""
    link = Link(address)
    try:
        for batch in link.stream({"first": first, "last": last}, PATIENCE):
            yield events.unpack(batch)
    except RemoteLost as error:
        raise link.unreachable(error) from error
    finally:
        link.close()


def own_address() -> str:
    """Return the address at which other hosts reach this one; 127.0.0.1 where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent: the kernel chooses the route's address
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
