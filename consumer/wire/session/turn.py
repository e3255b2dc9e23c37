"""Whose turn it is with a session that several connections share."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from shmstore.consumer.wire.session.session import ClientSession


class User(Protocol):
    """A connection, and the sessions that it has used."""

    sessions: set[SharedSession]


class SharedSession:
    """A session, who waits for it, and who has used it: `users` are the connections that are open still."""

    __slots__ = ("lock", "requests", "session", "used_at", "users", "waiters")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.session: ClientSession | None = None
        self.waiters = 0
        #: Requests under way, those included that wait for their turn.
        self.requests = 0
        self.used_at = time.monotonic()
        self.users: set[User] = set()

    def disconnected(self, user: User) -> None:
        """A connection has ended."""
        self.users.discard(user)
        self.used_at = time.monotonic()


class SessionTurn:
    """Having a session to oneself: ``async with``. A GET that waits steps aside for others. `user` is the connection that asks."""

    __slots__ = ("_held", "_shared")

    def __init__(self, shared: SharedSession, user: User | None = None) -> None:
        self._shared = shared
        self._held = False
        if user is not None:
            shared.users.add(user)
            user.sessions.add(shared)

    async def __aenter__(self) -> SessionTurn:
        shared = self._shared
        shared.requests += 1
        shared.waiters += 1
        try:
            if shared.lock.locked() and shared.session is not None:
                shared.session.interrupt()
            self._held = await shared.lock.acquire()
        except BaseException:
            shared.requests -= 1
            raise
        finally:
            shared.waiters -= 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        shared = self._shared
        shared.requests -= 1
        shared.used_at = time.monotonic()
        if self._held:
            shared.lock.release()

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
