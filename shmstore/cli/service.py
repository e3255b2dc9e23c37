"""What a command that runs as a service tells systemd: that it is ready, how it goes, and that it still makes progress.

The protocol is that of sd_notify(3): datagrams of VARIABLE=VALUE lines to the socket in $NOTIFY_SOCKET. Without it nothing is sent.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from shmstore.errors import ShmStoreError

PERIOD = 1.0  # seconds between two looks


def notify(*lines: str) -> None:
    """Send `lines` to systemd, if it listens. A service is not ended by a socket that is gone."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.connect("\0" + path[1:] if path.startswith("@") else path)
        out.send("\n".join(lines).encode())


def _watchdog() -> float:
    """Seconds after which systemd takes a service that says nothing for one that stands still; 0: it does not."""
    return int(os.environ.get("WATCHDOG_USEC") or 0) / 1e6


class PassProgress:
    """Whether the threads that ask `stop` continue asking: each does, again and again, as long as it makes progress."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._asked: dict[int, float] = {}

    def stop(self) -> bool:
        """Whether to stop; noted for the calling thread."""
        self._asked[threading.get_ident()] = time.monotonic()
        return self._stop()

    def stalled(self, seconds: float) -> bool:
        """Whether a living thread has not asked for so many seconds."""
        living, now = {thread.ident for thread in threading.enumerate()}, time.monotonic()
        return any(ident in living and now - at > seconds for ident, at in list(self._asked.items()))


@contextmanager
def watched(stores: Mapping[str, str], stop: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Tell systemd, while the block runs, of a producer of `stores`, each with its file or ''; yields the `stop` that it is to ask.

    READY when one of them is read, STATUS each second, WATCHDOG as long as every thread of the producer makes progress.
    """
    progress, over = PassProgress(stop), threading.Event()
    limit = _watchdog()

    def work() -> None:
        ready = False
        while not over.wait(min(PERIOD, limit / 4) if limit else PERIOD):
            reading, status = _status(stores)
            lines = [f"STATUS={status}"]
            if reading and not ready:
                ready = True
                lines.append("READY=1")
            if limit and not progress.stalled(limit / 2):
                lines.append("WATCHDOG=1")
            notify(*lines)

    thread = threading.Thread(target=work, name="service", daemon=True)
    if os.environ.get("NOTIFY_SOCKET"):
        thread.start()
    try:
        yield progress.stop
    finally:
        over.set()
        notify("STOPPING=1")


def listening(address: tuple[str, int]) -> None:
    """Tell systemd that a server listens, and from then on that its event loop, which calls this, keeps running."""
    notify("READY=1", f"STATUS=listening on {address[0]}:{address[1]}")
    if limit := _watchdog():
        import asyncio

        loop = asyncio.get_running_loop()

        def beat() -> None:
            notify("WATCHDOG=1")
            loop.call_later(limit / 4, beat)

        beat()


def _status(stores: Mapping[str, str]) -> tuple[bool, str]:
    """Whether any store's source is read, or paused, and one line on all of them."""
    from shmstore import StoreView  # numpy may be missing

    reading, parts = False, []
    for name, path in stores.items():
        try:
            with StoreView.attach(name, path=path or None, restore=False) as store:
                stat = store.stat()
        except ShmStoreError:
            parts.append(f"{name}: not there yet")
            continue
        if stat.stream.connected:
            reading = True
            position = f" up to {stat.source_position.file}:{stat.source_position.offset}" if stat.source_position else ""
            parts.append(f"{name}: reading{position}, {stat.stream.behind_ms / 1000:.1f} s behind")
        elif stat.stream.paused_ms:
            reading = True  # all that it is asked to do
            parts.append(f"{name}: paused")
        else:
            parts.append(f"{name}: no link to the source")
    return reading, "; ".join(parts)
