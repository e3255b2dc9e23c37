"""Events over TCP, for executors on other hosts than the store's.

The process that owns the query's subscription listens. A client that knows the query's key, which is sent in the partitions, may
request a range of events. Both ends prove that they know the key (HMAC, `multiprocessing.connection`) without sending it, no
pickle is read from the network, and nothing but this query's store is served. Events are sent in clear, as Spark's own blocks
are without `spark.network.crypto.enabled`: where the network is not trusted, use transport=inline with that setting.

After the authentication the socket is used directly: a request is the first and the last event, 8 bytes each; a reply is chunks,
each a header (first event, bytes of slots, of ends, of payloads; 8 bytes each) and its content. A header whose first event is -1
ends the reply; after one of -2 the payloads are the text of an error.

A client has a short time to authenticate itself, and a shorter one while all threads are busy. A shortage (open files, threads)
costs a connection, never the server.
"""

from __future__ import annotations

import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any, Final

import numpy as np

from shmstore import PositionNotFound, ShmStoreError
from shmstore.consumer.spark.source.chunk import KEY_BYTES, Address, Chunk
from shmstore.memory.layout import SLOT

_log = logging.getLogger("shmstore.spark")
MOST: Final = 64  # connections served at once, a thread each; others wait until one of them ends
LOGIN_SECONDS: Final = 10.0  # to authenticate
LOGIN_SECONDS_BUSY: Final = 2.0  # the same while others wait for a thread
REQUEST_SECONDS: Final = 60.0  # from there to the request
STALLED_SECONDS: Final = 600.0  # in which a client reads nothing of its reply
PAUSE: Final = 0.2  # seconds until the next attempt to accept a connection after a failure
_LENGTH = struct.Struct("!i")  # before each message of the authentication
_REQUEST = struct.Struct("<qq")
_HEADER = struct.Struct("<qqqq")
_END, _ERROR = -1, -2


class EventServer:
    """Serves ranges of one store's events, a thread a connection, until `close`. `read` gives the chunks of a range."""

    def __init__(self, read: Callable[[int, int], Iterator[Chunk]], host: str | None = None) -> None:
        self._read = read
        self._lock = threading.Lock()
        host = host or own_address()
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.address = Address(host, self._listener.getsockname()[1], secrets.token_bytes(KEY_BYTES))
        self._closed = threading.Event()
        self._free = threading.Semaphore(MOST)
        self._unproven: dict[socket.socket, float] = {}  # not authenticated yet, since when
        self._thread = threading.Thread(target=self._accept, name="shmstore-events", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                try:
                    client, _ = self._listener.accept()
                except OSError as error:
                    self._refused(error)
                    continue
                if self._has_thread():
                    self._begin(client)
                else:
                    client.close()

    def _has_thread(self) -> bool:
        """Wait until a connection may have a thread; False if the server is closed meanwhile."""
        while not self._closed.is_set():
            if self._free.acquire(timeout=PAUSE):
                return True
            for unproven, since in self._unproven.copy().items():
                if time.monotonic() - since > LOGIN_SECONDS_BUSY:
                    with suppress(OSError):
                        unproven.shutdown(socket.SHUT_RDWR)  # its thread sees the end
        return False

    def _begin(self, client: socket.socket) -> None:
        self._unproven[client] = time.monotonic()
        try:
            threading.Thread(target=self._serve, args=(client,), name="shmstore-events-reader", daemon=True).start()
        except RuntimeError as error:
            self._end(client)
            self._refused(error)

    def _refused(self, error: Exception) -> None:
        if not self._closed.is_set():
            _log.warning("cannot serve a connection: %s; trying again (see the limits of this process: ulimit -a)", error)
            self._closed.wait(PAUSE)

    def _serve(self, client: socket.socket) -> None:
        try:
            with suppress(EOFError, OSError, AuthenticationError):
                login: Any = _Login(client)
                deliver_challenge(login, self.address.key)
                answer_challenge(login, self.address.key)
                self._unproven.pop(client, None)
                self._reply(client)
        finally:
            self._end(client)

    def _end(self, client: socket.socket) -> None:
        self._unproven.pop(client, None)
        client.close()
        self._free.release()

    def _reply(self, client: socket.socket) -> None:
        try:
            client.settimeout(REQUEST_SECONDS)
            chunks = self._read(*_REQUEST.unpack(_receive(client, _REQUEST.size)))
            client.settimeout(None)  # it would hold for a whole chunk: a slow client is not one that has stopped
            client.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(int(STALLED_SECONDS * 1e6), 1_000_000))
            )
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                with self._lock:  # a store object serves one thread at a time
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                slots, ends = chunk.slots.tobytes(), chunk.ends.tobytes()
                client.sendall(b"".join((_HEADER.pack(chunk.first, len(slots), len(ends), len(chunk.raw)), slots, ends)))
                client.sendall(chunk.raw)
            client.sendall(_HEADER.pack(_END, 0, 0, 0))
        except (ShmStoreError, ValueError) as error:
            text = str(error).encode()
            client.sendall(_HEADER.pack(_ERROR, 0, 0, len(text)) + text)

    def close(self) -> None:
        """Stop listening; replies that have begun continue. Idempotent."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts on it; closing it would not
        self._thread.join(1)


class _Login:
    """A socket as the authentication of `multiprocessing.connection` uses it: short messages, all within `LOGIN_SECONDS`."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._until = time.monotonic() + LOGIN_SECONDS

    def _wait(self) -> socket.socket:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._client.settimeout(left)
        return self._client

    def send_bytes(self, message: bytes) -> None:
        """Send a message."""
        self._wait().sendall(_LENGTH.pack(len(message)) + message)

    def recv_bytes(self, most: int) -> bytes:
        """Return the next message. Raises `OSError` for one of more than `most` bytes, and when the time is over."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if not 0 <= length <= most:
            raise OSError(f"a message of {length} bytes where at most {most} are expected")
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            got = self._wait().recv(size - len(found))
            if not got:
                raise EOFError
            found += got
        return found


def fetch(address: Address, first: int, last: int) -> Iterator[Chunk]:
    """Yield the events `first` to `last` from the query's server. Raises `PositionNotFound` with its error, and OSError."""
    with Client((address.host, address.port), authkey=address.key) as connection, _socket_of(connection) as client:
        client.sendall(_REQUEST.pack(first, last))
        while True:
            begin, slots, ends, size = _HEADER.unpack(_receive(client, _HEADER.size))
            if begin == _END:
                return
            if begin == _ERROR:
                raise PositionNotFound(bytes(_receive(client, size)).decode(errors="replace"))
            parts = np.frombuffer(_receive(client, slots), SLOT), np.frombuffer(_receive(client, ends), np.int64)
            yield Chunk(begin, _receive(client, size), parts[1], parts[0])


def _socket_of(connection: Connection) -> socket.socket:
    """The socket of an authenticated connection: unlike the connection it can fill memory that exists already."""
    client = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def _receive(client: socket.socket, size: int) -> memoryview:
    """Return the next `size` bytes. Raises ConnectionError where there are fewer."""
    found = np.empty(size, np.uint8).data
    at = 0
    while at < size:
        got = client.recv_into(found[at:], flags=socket.MSG_WAITALL)
        if not got:
            raise ConnectionResetError("the query's process closed the connection in the middle of a reply")
        at += got
    return found


def own_address() -> str:
    """Return the address at which other hosts reach this one; 127.0.0.1 where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent: the kernel chooses the route's address
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
