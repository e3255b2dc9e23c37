"""The connections that a snapshot's chunks are read over: opened when one has something to read, as many as the server has free."""

from __future__ import annotations

import logging
import time
from collections.abc import Container

from shmstore import SourceError
from shmstore.producer.connection.server import SourceServer
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.watermarks import free_connections, prepare
from shmstore.producer.stop import Stop

CONNECTIONS = 4  # at most, where nothing was said


class ReadConnections:
    """Those to one server at a time."""

    def __init__(self, settings: Settings, log: logging.Logger, stop: Stop) -> None:
        self._settings, self._log, self._stop = settings, log, stop
        self._sessions: list[ServerSession] = []
        self._server: SourceServer | None = None
        self._most = 0  # how many there may be; 0: the server was not asked yet
        self._retry = 0.0  # when another one may be opened
        self.using: ServerSession | None = None  # the one that is waited for: where a link is lost, it is this one's

    def begin(self, server: SourceServer) -> None:
        """Read from `server` from now on; those that are open were closed before."""
        self._server, self._most, self._retry = server, 0, 0.0

    @property
    def most(self) -> int:
        """How many there may be, one at least."""
        return max(1, self._most)

    @property
    def alone(self) -> bool:
        """Whether there is to be one only."""
        return self._most == 1

    def idle(self, busy: Container[ServerSession | None]) -> ServerSession | None:
        """Return one that is not among `busy`, perhaps a new one; None where all are. Raises `SourceError` where not even one can be opened."""
        idle = next((session for session in self._sessions if session not in busy), None)
        if idle is None and len(self._sessions) < self.most and time.monotonic() >= self._retry:
            self.using = None
            try:
                idle = self._connected()
            except SourceError as error:
                if not self._sessions:
                    raise
                self._most = len(self._sessions)
                self._log.info("snapshot: reading over %d connections: no other can be opened: %s", self._most, error)
        self.using = idle
        return idle

    def _connected(self) -> ServerSession:
        assert self._server is not None
        session = connect(self._settings, self._server.endpoint, self._stop)
        try:
            prepare(session)
            if not self._most:
                self._most = self._settings.snapshot_connections or max(1, min(CONNECTIONS, free_connections(session) // 10))
        except SourceError:
            session.close()
            raise
        self._sessions.append(session)
        return session

    def lose(self, wait: float) -> ServerSession | None:
        """The one that is waited for broke, or none comes about, and no other is opened for so many seconds; return the one that is closed."""
        session, self.using = self.using, None
        self._retry = time.monotonic() + wait
        if session not in self._sessions:
            return None
        assert session is not None
        self.hang_up(session)
        return session

    def hang_up(self, session: ServerSession) -> None:
        """Close one, whatever it reads."""
        session.close()
        self._sessions.remove(session)

    def close(self) -> None:
        """Close all."""
        for session in self._sessions[:]:
            self.hang_up(session)

    def __bool__(self) -> bool:
        return bool(self._sessions)
