"""Events over TCP, for executors on other hosts than the store's.

The process that owns the query's subscription listens; whoever knows the query's key, which travels in the partitions, may
ask for a range of events. Both ends prove that they know it (HMAC, `multiprocessing.connection`), no pickle is read from
the wire, and nothing but this query's store is served. What travels is as open to listeners as Spark's own blocks are
without `spark.network.crypto.enabled`: between hosts that do not trust their network, use transport=inline with it.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import NamedTuple

import numpy as np

from shmstore import PositionNotFound, ShmStoreError
from shmstore.layout import SLOT

KEY_BYTES = 32


class Address(NamedTuple):
    """Where events are served, and the key that opens it."""

    host: str
    port: int
    key: bytes


class Chunk(NamedTuple):
    """Events out of a store: their payloads back to back, where each ends, and their slots."""

    first: int
    raw: memoryview | bytes
    ends: np.ndarray[tuple[int], np.dtype[np.int64]]
    slots: np.ndarray[tuple[int], np.dtype[np.void]]

    def payloads(self) -> Iterator[memoryview]:
        """Yield the payload of each event."""
        raw, start = memoryview(self.raw), 0
        for end in self.ends.tolist():
            yield raw[start:end]
            start = end


class EventServer:
    """Serves ranges of one store's events, a thread a connection, until `close`. `read` gives the chunks of a range."""

    def __init__(self, read: Callable[[int, int], Iterator[Chunk]], host: str | None = None) -> None:
        self._read = read
        self._lock = threading.Lock()
        host = host or own_address()
        self._listener = Listener((host, 0), backlog=64)
        self.address = Address(host, self._listener.address[1], secrets.token_bytes(KEY_BYTES))
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="shmstore-events", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    connection = self._listener.accept()
                except OSError:
                    return
                if self._closed:
                    connection.close()
                    return
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError, AuthenticationError):
            # here and not in accept(), where a stranger who says nothing would keep all others waiting
            deliver_challenge(connection, self.address.key)
            answer_challenge(connection, self.address.key)
            try:
                first, last = json.loads(connection.recv_bytes(1 << 10))
                with self._lock:  # a store object serves one thread at a time
                    for chunk in self._read(int(first), int(last)):
                        connection.send_bytes(chunk.first.to_bytes(8, "little"))
                        connection.send_bytes(chunk.slots.tobytes())
                        connection.send_bytes(chunk.ends.tobytes())
                        connection.send_bytes(chunk.raw if len(chunk.raw) else b"")
                connection.send_bytes(b"")
            except (ShmStoreError, ValueError, TypeError) as error:
                connection.send_bytes(b"error: " + str(error).encode())

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._closed = True
        with suppress(OSError):  # closing a socket does not wake who accepts on it; a connection does
            socket.create_connection((self.address.host, self.address.port), timeout=1).close()
        self._thread.join(1)


def fetch(address: Address, first: int, last: int) -> Iterator[Chunk]:
    """Yield the events `first` to `last` from the query's server. Raises `PositionNotFound` with what it says, OSError."""
    with Client((address.host, address.port), authkey=address.key) as connection:
        connection.send_bytes(json.dumps([first, last]).encode())
        while head := connection.recv_bytes():
            if len(head) != 8:
                raise PositionNotFound(head.decode(errors="replace").removeprefix("error: "))
            slots = np.frombuffer(connection.recv_bytes(), SLOT)
            ends = np.frombuffer(connection.recv_bytes(), np.int64)
            yield Chunk(int.from_bytes(head, "little"), connection.recv_bytes(), ends, slots)


def own_address() -> str:
    """Return the address of this host that others reach; 127.0.0.1 where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent: the kernel chooses the route's address
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
