"""Whose turn it is with a session that several connections share."""

from __future__ import annotations

import asyncio

from shmstore.consumer.wire.session.session import Session


class Seat:
    """A session and its turns."""

    __slots__ = ("lock", "session", "waiters")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.session: Session | None = None
        self.waiters = 0


class Turn:
    """Having a session to oneself: ``async with``. A GET that waits steps aside for others."""

    __slots__ = ("_held", "_seat")

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._held = False

    async def __aenter__(self) -> Turn:
        seat = self._seat
        seat.waiters += 1
        try:
            if seat.lock.locked() and seat.session is not None:
                seat.session.interrupt()
            self._held = await seat.lock.acquire()
        finally:
            seat.waiters -= 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._held:
            self._seat.lock.release()

    async def step_aside(self, patience: float | None) -> bool:
        """Let those that wait have their turn; False where it did not come back within `patience` seconds."""
        seat = self._seat
        if seat.waiters:
            seat.lock.release()
            self._held = False
            try:
                async with asyncio.timeout(patience):
                    self._held = await seat.lock.acquire()
            except TimeoutError:
                return False
        return True
