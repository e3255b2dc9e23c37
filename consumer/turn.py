"""Turn: a get that waits in a thread lets other calls of the same reader in between; and how an event loop waits for such a thread."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

_T = TypeVar("_T")
ASK: Final = 0.02  # seconds between two interrupts: one may come before the wait that it is for
PAUSE: Final = 0.001  # seconds until the getter looks whether the others are done
ENDING: Final = 5.0  # seconds that a thread has to end where nothing can wait for it in order


class Turn:
    """One call at a time, whatever thread it comes from: ``with turn:``. `interrupt` ends a wait, and may be called from any thread.

    The same thread may take it again (a signal's handler does).
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        self._wanted = 0

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        self._want(1)
        try:
            self._interrupt()
            while not self._lock.acquire(timeout=ASK):
                self._interrupt()
        finally:
            self._want(-1)

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def _want(self, more: int) -> None:
        with self._counting:
            self._wanted += more

    def let_others(self) -> None:
        """Within the turn, between two waits: let those in who ask for it."""
        while self._wanted:
            self._lock.release()
            time.sleep(PAUSE)
            self._lock.acquire()


async def in_thread(call: Callable[[], _T], end: Callable[[], None]) -> _T:
    """Return what `call` returns, or raise what it raises, run in a thread of its own, which has ended then.

    A cancellation calls `end`, which lets `call` return soon, waits for the thread, and drops what it returned.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    # Weak: the thread would keep the task, and so itself, where the task is dropped with its loop.
    waiting = weakref.ref(over)
    outcome: list[tuple[_T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))
        with suppress(RuntimeError):  # the loop was closed meanwhile: nothing waits
            loop.call_soon_threadsafe(_settle, waiting)

    thread = threading.Thread(target=run, name="shmstore-get", daemon=True)
    thread.start()
    cancelled: asyncio.CancelledError | None = None
    while not over.done():
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError as error:
            cancelled = error
            end()
        except GeneratorExit:  # the task was dropped with its loop
            end()
            thread.join(ENDING)
            raise
    thread.join()
    if cancelled is not None:
        raise cancelled
    value, failure = outcome[0]
    if failure is not None:
        raise failure
    return value  # type: ignore[return-value]


def _settle(waiting: weakref.ref[asyncio.Future[None]]) -> None:
    over = waiting()
    if over is not None and not over.done():
        over.set_result(None)
