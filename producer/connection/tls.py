"""TLS apart from the socket: received are large pieces, however small the records in them are.

`ssl.SSLSocket` lets OpenSSL read the socket itself, and it does so twice for a record of 16 kB at most: its head, then the rest.
Here OpenSSL works in memory, and the socket is read and written by its own calls, with its own timeouts.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
PIECE = 1 << 18  # bytes to receive at once: no more is held that was not decrypted yet


class TlsContext:
    """An `ssl.SSLContext` for PyMySQL, which asks it for nothing but this."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def wrap_socket(self, plain: socket.socket, server_hostname: str) -> TlsSocket:
        """Shake hands on `plain`. Raises `ssl.SSLError` and other OSErrors."""
        return TlsSocket(plain, self._context, server_hostname)


class TlsSocket(io.RawIOBase):
    """What is used here of a socket; each call may take as long as the timeout of `plain`."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, server_hostname: str) -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: Any = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self._buffer = memoryview(bytearray(PIECE))
        self._until_done(self._tls.do_handshake)

    def _until_done(self, act: Callable[[], T]) -> T:
        """Return what `act` does, as soon as what it needs has come."""
        seconds = self._plain.gettimeout()
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                if until is not None and time.monotonic() > until:
                    raise TimeoutError("timed out") from None
            finally:
                if self._outgoing.pending and not self._incoming.eof:  # a part of the handshake, an alert, data
                    self._plain.sendall(self._outgoing.read())
            if size := self._plain.recv_into(self._buffer):
                self._incoming.write(self._buffer[:size])
            else:
                self._incoming.write_eof()

    def readinto(self, buffer: Any) -> int:
        """Receive what has come, as far as it fits into `buffer`; wait for something. 0: the other side has closed the link."""
        return self._until_done(lambda: self._decrypted(memoryview(buffer)))

    def _decrypted(self, buffer: memoryview) -> int:
        size = 0
        try:
            while size < len(buffer) and (came := self._tls.read(len(buffer), buffer[size:])):  # a record at a time
                size += came
        except ssl.SSLWantReadError:
            if not size:
                raise
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass  # with a farewell, or without one
        return size

    def recv_into(self, buffer: Any) -> int:
        """As `readinto`."""
        return self.readinto(buffer)

    def recv(self, size: int) -> bytes:
        """As `readinto`, into bytes of their own."""
        return self.read(size) or b""

    def sendall(self, data: bytes) -> None:
        """Send all of `data`."""
        self._until_done(lambda: self._tls.write(data))

    def fileno(self) -> int:
        """The socket's. What it tells is only of what was not received yet: a caller that waits for it reads until a buffer is not filled."""
        return self._plain.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """Let each call from now on take `seconds` at most."""
        self._plain.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As `socket.socket.setsockopt`."""
        self._plain.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        """As `socket.socket.shutdown`."""
        self._plain.shutdown(how)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a buffered reader; `mode` is rb."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def close(self) -> None:
        """Close the socket, without a farewell."""
        self._plain.close()
        super().close()
