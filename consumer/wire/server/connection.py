"""One socket of the server: bytes in and out, with no word of what they mean; and whose it is."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from shmstore.consumer.wire.protocol.connection_state import Client
from shmstore.consumer.wire.session.turn import SharedSession

_log = logging.getLogger("shmstore.serve")

# A client that sends ahead of the answers is read no further than this.
READ_AHEAD: Final = 1 << 16


class ConnectionHost(Protocol):
    """What a socket asks of the server."""

    def connected(self, socket: ClientSocket) -> bytes | None:
        """Take a connection in and return None, or else what it is sent before it is closed."""

    def disconnected(self, socket: ClientSocket) -> None:
        """Forget a connection."""

    async def converse(self, socket: ClientSocket) -> None:
        """Serve a connection until it ends."""


class Interruptible(Protocol):
    """Something in a wait that can be ended."""

    def interrupt(self) -> None:
        """End the wait."""


class ClientSocket(asyncio.Protocol):
    """One socket: what came, what may go, and whether it is still there."""

    def __init__(self, server: ConnectionHost) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._chunks = bytearray()
        self._counted = 0
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.lost = False
        self.task: asyncio.Task[None] | None = None
        #: The session whose wait this connection's GET is in; it ends when the client goes.
        self.interrupts: Interruptible | None = None
        #: Where the client is.
        self.address = ""
        #: The clients whose subscriptions were made through this connection, and the sessions that it has used.
        self.new_clients: set[Client] = set()
        self.sessions: set[SharedSession] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the conversation."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host = transport.get_extra_info("peername")
        self.address = str(host[0]) if host else "an unknown address"
        last = self._server.connected(self)
        if last is not None:
            self.lost = True
            transport.write(last)
            transport.close()
            return
        transport.set_write_buffer_limits(high=0)  # drained means: the kernel has it
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._server.converse(self)
        except TimeoutError:
            self.abort()  # it does not read: what is in the buffer will never leave
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception:
            _log.exception("a connection failed")
        finally:
            if self._transport is not None:
                self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Keep what came; stop reading where the client is ahead of the server."""
        self._chunks += data
        self._counted += len(data)
        if len(self._chunks) > READ_AHEAD and self._transport is not None:
            self._transport.pause_reading()
        self._readable.set()

    def eof_received(self) -> bool:
        """The client has closed its side: so does the server."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End what the connection was doing."""
        self.lost = True
        self._readable.set()
        self._writable.set()
        if self.interrupts is not None:
            self.interrupts.interrupt()
        self._server.disconnected(self)

    def pause_writing(self) -> None:
        """The client reads slower than the server writes."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """All is out."""
        self._writable.set()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        """Send in one piece."""
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    async def drained(self, patience: float) -> None:
        """Wait until all is sent. Raises `TimeoutError` where the client does not read for `patience` seconds."""
        if not self._writable.is_set():
            async with asyncio.timeout(patience):
                await self._writable.wait()

    async def readable(self, patience: float) -> bool:
        """Wait for bytes; False where none came in `patience` seconds, or the connection is gone."""
        if not self._chunks and not self.lost:
            self._readable.clear()
            try:
                async with asyncio.timeout(patience):
                    await self._readable.wait()
            except TimeoutError:
                return False
        return bool(self._chunks) or not self.lost

    @property
    def pending(self) -> bool:
        """True where bytes have come that no client has taken."""
        return bool(self._chunks)

    def take(self) -> bytes:
        """What came since the last call."""
        data = bytes(self._chunks)
        if data:
            self._chunks.clear()
            if self._transport is not None and not self.lost:
                self._transport.resume_reading()
        return data

    def counted(self) -> int:
        """Bytes received since the last call."""
        count, self._counted = self._counted, 0
        return count
