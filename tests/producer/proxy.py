"""A TCP proxy that cuts connections after so many bytes from the server, wherever in an event that falls."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable


class CuttingProxy:
    """Listens on a free port of 127.0.0.1 and forwards to `port`. `budget()` gives the bytes that each connection may carry
    from the server before it is cut, None for any number."""

    def __init__(self, port: int, budget: Callable[[], int | None]) -> None:
        self.target, self.budget = port, budget
        self.cuts = self.connections = 0
        self.stalled = threading.Event()  # while set, connections stay open and nothing passes
        self.away = threading.Event()  # while set, a new connection ends at once
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._closing = False
        self._live: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.away.is_set():
                client.close()
                continue
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        left = self.budget()
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        self._live |= {client, server}
        selector = selectors.DefaultSelector()
        selector.register(client, selectors.EVENT_READ)
        selector.register(server, selectors.EVENT_READ)
        with contextlib.suppress(OSError, ValueError):
            while not self._closing:
                if self.stalled.is_set():
                    time.sleep(0.05)
                    continue
                for key, _ in selector.select(0.2):
                    chunk = key.fileobj.recv(65536 if left is None else max(1, min(65536, left)))  # type: ignore[union-attr]
                    if not chunk:
                        raise OSError
                    if key.fileobj is client:
                        server.sendall(chunk)
                        continue
                    client.sendall(chunk)
                    if left is not None:
                        left -= len(chunk)
                        if left <= 0:
                            self.cuts += 1
                            if self.cuts % 2:  # half of them without a good-bye
                                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                            raise OSError
        for one in (client, server):
            self._live.discard(one)
            one.close()

    def hang_up(self) -> None:
        """Cut everything that is open."""
        for one in list(self._live):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening, cut everything."""
        self._closing = True
        self._listener.close()
        self.hang_up()
        self._thread.join(2)

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
