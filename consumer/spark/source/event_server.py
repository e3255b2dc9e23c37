"""Events over TCP, for executors on other hosts than the store's.

The process that owns the query's subscription listens; whoever knows the query's key, which travels in the partitions, may
ask for a range of events. Both ends prove that they know it (HMAC, `multiprocessing.connection`), the key itself never
travels here, no pickle is read from the wire, and nothing but this query's store is served. What travels is as open to listeners as Spark's own blocks are
without `spark.network.crypto.enabled`: between hosts that do not trust their network, use transport=inline with it.

After the proof the socket is used as it is: a question is the first and the last event, 8 bytes each; an answer is chunks, each
a head (first event, bytes of slots, of ends, of payloads; 8 bytes each) and what it says. A head whose first is -1 ends the
answer; with one of -2 the payloads are an error's text.

Whoever has not proved that it knows the key is a stranger: it has a short time for that, and a shorter one where all threads
are busy. What the system refuses for the moment (open files, threads) costs a connection, never the server.
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
MOST: Final = 64  # connections served at once, a thread each; more wait for the first of them to end
PROOF: Final = 10.0  # seconds to prove that one knows the key
HURRY: Final = 2.0  # the same where others wait for a thread
QUESTION: Final = 60.0  # seconds from there to the question
STALLED: Final = 600.0  # seconds in which a reader takes nothing of its answer
PAUSE: Final = 0.2  # seconds until a connection is accepted again where the system refused
_LENGTH = struct.Struct("!i")  # before each message of the proof
_QUESTION = struct.Struct("<qq")
_HEAD = struct.Struct("<qqqq")
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
        self._strangers: dict[socket.socket, float] = {}  # since when
        self._thread = threading.Thread(target=self._accept, name="shmstore-events", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                try:
                    peer, _ = self._listener.accept()
                except OSError as error:
                    self._refused(error)
                    continue
                if self._has_thread():
                    self._begin(peer)
                else:
                    peer.close()

    def _has_thread(self) -> bool:
        """Wait until a connection may have a thread; False where the server is closed meanwhile."""
        while not self._closed.is_set():
            if self._free.acquire(timeout=PAUSE):
                return True
            for stranger, since in self._strangers.copy().items():
                if time.monotonic() - since > HURRY:
                    with suppress(OSError):
                        stranger.shutdown(socket.SHUT_RDWR)  # its thread sees the end
        return False

    def _begin(self, peer: socket.socket) -> None:
        self._strangers[peer] = time.monotonic()
        try:
            threading.Thread(target=self._serve, args=(peer,), name="shmstore-events-reader", daemon=True).start()
        except RuntimeError as error:
            self._end(peer)
            self._refused(error)

    def _refused(self, error: Exception) -> None:
        if not self._closed.is_set():
            _log.warning("cannot serve a connection: %s; trying again (see the limits of this process: ulimit -a)", error)
            self._closed.wait(PAUSE)

    def _serve(self, peer: socket.socket) -> None:
        try:
            with suppress(EOFError, OSError, AuthenticationError):
                proof: Any = _Proof(peer)
                deliver_challenge(proof, self.address.key)
                answer_challenge(proof, self.address.key)
                self._strangers.pop(peer, None)
                self._answer(peer)
        finally:
            self._end(peer)

    def _end(self, peer: socket.socket) -> None:
        self._strangers.pop(peer, None)
        peer.close()
        self._free.release()

    def _answer(self, peer: socket.socket) -> None:
        try:
            peer.settimeout(QUESTION)
            chunks = self._read(*_QUESTION.unpack(_receive(peer, _QUESTION.size)))
            peer.settimeout(None)  # that would be the time for a whole chunk: a slow reader is none that stands still
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(int(STALLED * 1e6), 1_000_000)))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        """Stop listening; answers that were begun go on. Idempotent."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts on it; closing it would not
        self._thread.join(1)


class _Proof:
    """A socket as `multiprocessing.connection` proves a key over it: short messages, all of them within `PROOF` seconds."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._until = time.monotonic() + PROOF

    def _wait(self) -> socket.socket:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._peer.settimeout(left)
        return self._peer

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
    """The socket of a connection whose ends know each other: it fills memory that is there."""
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
