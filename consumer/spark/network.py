"""Events over TCP, for executors on other hosts than the store's.

The process that owns the query's subscription listens; whoever knows the query's key, which travels in the partitions, may
ask for a range of events. Both ends prove that they know it (HMAC, `multiprocessing.connection`), the key itself never
travels here, no pickle is read from the wire, and nothing but this query's store is served. What travels is as open to listeners as Spark's own blocks are
without `spark.network.crypto.enabled`: between hosts that do not trust their network, use transport=inline with it.

After the proof the socket is used as it is: a question is the first and the last event, 8 bytes each; an answer is chunks, each
a head (first event, bytes of slots, of ends, of payloads; 8 bytes each) and what it says. A head whose first is -1 ends the
answer; with one of -2 the payloads are an error's text.
"""

from __future__ import annotations

import secrets
import socket
import struct
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
_QUESTION = struct.Struct("<qq")
_HEAD = struct.Struct("<qqqq")
_END, _ERROR = -1, -2


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
            with _socket_of(connection) as peer:
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        try:
            chunks = self._read(*_QUESTION.unpack(_receive(peer, _QUESTION.size)))
            while True:
                with self._lock:  # a store object serves one thread at a time
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                slots, ends = chunk.slots.tobytes(), chunk.ends.tobytes()
                peer.sendall(b"".join((_HEAD.pack(chunk.first, len(slots), len(ends), len(chunk.raw)), slots, ends)))
                peer.sendall(chunk.raw)
            peer.sendall(_HEAD.pack(_END, 0, 0, 0))
        except (ShmStoreError, ValueError) as error:
            text = str(error).encode()
            peer.sendall(_HEAD.pack(_ERROR, 0, 0, len(text)) + text)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._closed = True
        with suppress(OSError):  # closing a socket does not wake who accepts on it; a connection does
            socket.create_connection((self.address.host, self.address.port), timeout=1).close()
        self._thread.join(1)


def fetch(address: Address, first: int, last: int) -> Iterator[Chunk]:
    """Yield the events `first` to `last` from the query's server. Raises `PositionNotFound` with what it says, OSError."""
    with Client((address.host, address.port), authkey=address.key) as connection, _socket_of(connection) as peer:
        peer.sendall(_QUESTION.pack(first, last))
        while True:
            begin, slots, ends, size = _HEAD.unpack(_receive(peer, _HEAD.size))
            if begin == _END:
                return
            if begin == _ERROR:
                raise PositionNotFound(bytes(_receive(peer, size)).decode(errors="replace"))
            places = np.frombuffer(_receive(peer, slots), SLOT), np.frombuffer(_receive(peer, ends), np.int64)
            yield Chunk(begin, _receive(peer, size), places[1], places[0])


def _socket_of(connection: Connection) -> socket.socket:
    """The socket of a connection whose ends know each other: it fills memory that is there, and does not wait to send."""
    peer = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _receive(peer: socket.socket, size: int) -> memoryview:
    """Return the next `size` bytes. Raises ConnectionError where there are fewer."""
    found = np.empty(size, np.uint8).data
    at = 0
    while at < size:
        got = peer.recv_into(found[at:], flags=socket.MSG_WAITALL)
        if not got:
            raise ConnectionResetError("the query's process closed the connection in mid-answer")
        at += got
    return found


def own_address() -> str:
    """Return the address of this host that others reach; 127.0.0.1 where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent: the kernel chooses the route's address
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
