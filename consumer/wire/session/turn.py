"""Whose turn it is with a session that several connections share."""

from __future__ import annotations

import asyncio

from shmstore.consumer.wire.session.session import Session


class SharedSession:
    """A session, and who waits for it."""

    __slots__ = ("lock", "session", "waiters")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.session: Session | None = None
        self.waiters = 0


class Turn:
    """Having a session to oneself: ``async with``. A GET that waits steps aside for others."""

    __slots__ = ("_held", "_shared")

    def __init__(self, shared: SharedSession) -> None:
        self._shared = shared
        self._held = False

    async def __aenter__(self) -> Turn:
        shared = self._shared
        shared.waiters += 1
        try:
            if shared.lock.locked() and shared.session is not None:
                shared.session.interrupt()
            self._held = await shared.lock.acquire()
        finally:
            shared.waiters -= 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._held:
            self._shared.lock.release()

    async def step_aside(self, patience: float | None) -> bool:
        """Let those that wait have their turn; False where it did not come back within `patience` seconds."""
        shared = self._shared
        if shared.waiters:
            shared.lock.release()
            self._held = False
            try:
                async with asyncio.timeout(patience):
                    self._held = await shared.lock.acquire()
            except TimeoutError:
                return False
        return True
