"""Whether a server still has what is to be read next: a position is reported before it is purged, and a binlog that was reset is noticed."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time

from shmstore import Position, ShmStoreError, SourceError, StoreView
from shmstore.home.acks import checkpoints_in
from shmstore.producer.connection.managed import AURORA, AZURE, RDS
from shmstore.producer.connection.server import SourceServer, binlog_files, log_end, read_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.errors import LinkLost
from shmstore.producer.positions.scan import file_begins
from shmstore.producer.settings import ServerAddress, Settings
from shmstore.producer.start.resume import lowest
from shmstore.producer.stop import Stopped

EVERY = 30.0  # seconds between two looks: what is found has to be noticed within a minute
SHORT_HOURS = 24.0  # a server that keeps its files for less leaves no night to fix anything
SURE = 5.0  # seconds of heartbeats behind the server's end: a server may say where it writes before it sends that
AGAIN = 3600.0  # seconds between two warnings
PATIENCE = 5.0  # seconds that a look waits for an answer: a stop may have to wait for it, too


def kept_seconds(session: ServerSession, server: SourceServer) -> float | None:
    """Return for how long the server keeps a file that it no longer writes; infinite: until a process purges it. None: it does not say.

    Amazon's services purge by a setting of their own, whatever the variable says; Azure takes 0 for none at all.
    """
    if server.service in (RDS, AURORA):
        try:
            rows = session.query("SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'")
        except SourceError:  # the account may not read it
            return None
        return float(rows[0][0]) * 3600 if rows and rows[0][0] is not None else 0.0
    have = session.variables(["binlog_expire_logs_seconds", "expire_logs_days"])
    seconds = float(have.get("binlog_expire_logs_seconds") or 0) or float(have.get("expire_logs_days") or 0) * 86400
    return seconds or (0.0 if server.service is AZURE else math.inf)


def file_after(file: str, names: list[str]) -> str | None:
    """Return the file after `file` among a server's `names`; None where it is the newest, or none of them."""
    after = names.index(file) + 1 if file in names else 0
    return names[after] if 0 < after < len(names) else None


class Retention:
    """Looks now and then, in a thread and on a connection of its own, when the server may purge what a store needs next.

    That is what comes after the position that the producer has read, and after the lowest checkpoint of the store's readers: they
    continue there when the shared memory is lost.
    """

    def __init__(self, settings: Settings, log: logging.Logger) -> None:
        limits = {name: min(PATIENCE, getattr(settings, name)) for name in ("connect_timeout", "read_timeout")}
        self._settings, self._log = dataclasses.replace(settings, **limits), log
        self._server: SourceServer | None = None
        self._next, self._warned = 0.0, float("-inf")
        self._closed = False
        self._thread: threading.Thread | None = None
        self._begins: tuple[ServerAddress | None, str, float] = (None, "", 0.0)  # of which server's file, and when
        self.purge_ms = 0  # as `StreamStat` has it
        # Each with its server: a look at the one before may still be under way.
        self._end: tuple[SourceServer, Position, float] | None = None  # where it wrote at the last look, and when that was
        self._reset: tuple[SourceServer, str] | None = None  # what shows that its binlog is not the one that the stream reads
        self._still: tuple[Position, float] | None = None  # where the stream has sent all, and since when it says so

    def use(self, server: SourceServer) -> None:
        """Look at `server` from now on, and soon."""
        self._server, self._next = server, 0.0
        self._end, self._still, self._reset = None, None, None

    def heartbeat(self, position: Position) -> None:
        """The stream says that it has sent all, up to `position`. Raises `LinkLost` where the server has written more, or less: a stream of
        a binlog that was reset has heartbeats forever, and nothing else."""
        server, known, reset = self._server, self._end, self._reset
        if reset is not None and reset[0] is server:
            raise LinkLost(reset[1])
        now = time.monotonic()
        if self._still is None or self._still[0] != position:  # one that passes over what is not asked for moves on
            self._still = position, now
            return
        if known is None or known[0] is not server:
            return
        _, end, asked = known
        if position.order < end.order and now - max(asked, self._still[1]) > SURE:
            raise LinkLost(
                f"{server.endpoint.where} has written up to {end.file}:{end.offset}, and its stream, at {position.file}:{position.offset}, says that "
                "it has sent all: its binlog was reset, or is another server's"
            )

    def look(self, position: Position | None) -> None:
        """Look, if it is time to. `position`: how far the source was read. Returns at once."""
        now = time.monotonic()
        if self._closed or self._server is None or position is None or now < self._next:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._next = now + EVERY
        self._thread = threading.Thread(target=self._look, args=(self._server, position), name="producer-retention", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more, and wait for a look that is under way: its connection must not outlive the interpreter's OpenSSL. Idempotent."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(3 * PATIENCE)  # a server that answers slowly, again and again, is left to itself

    def _look(self, server: SourceServer, position: Position) -> None:
        try:
            given = self._settings
            saved = checkpoints_in(StoreView.home_of(given.store, path=given.store_path or None, state=given.state or None))
            needed = {f"checkpoint of {name!r}": one.position for name, one in saved.items()}
            needed = {"producer": position} | {who: one for who, one in needed.items() if not one.of_group}
            session = connect(self._settings, server.endpoint, lambda: self._closed)
            try:
                self._look_at_end(server, position, session)
                self._update(server, needed, session)
            finally:
                session.close()
        except Stopped:
            return
        except ShmStoreError as error:
            self._log.debug("how long the binlog is kept is unknown: %s", error)

    def _look_at_end(self, server: SourceServer, position: Position, session: ServerSession) -> None:
        """Note where the server writes, after it was read up to `position`, for what the stream says next."""
        now = read_server(session)
        if not position.file or now.identity != server.identity:
            return  # the stream has not said where it is; or the address leads to another server by now, and the stream is still the old one's
        end = log_end(session, server)
        if end.order < position.order:
            self._reset = (
                server,
                f"{server.endpoint.where} writes at {end.file}:{end.offset}, and was read up to {position.file}:{position.offset} before: its binlog was "
                "reset (RESET BINARY LOGS AND GTIDS, RESET MASTER)",
            )
        self._end = server, end, time.monotonic()

    def _update(self, server: SourceServer, needed: dict[str, Position], session: ServerSession) -> None:
        kept = kept_seconds(session, server)
        names = [name for name, _ in binlog_files(session)]
        oldest = lowest(one for one in needed.values() if one.file in names)
        after = file_after(oldest.file, names) if oldest is not None else None
        if oldest is None or after is None or kept is None or math.isinf(kept):
            self.purge_ms = 0
            return
        if self._begins[:2] != (server.endpoint, after):
            self._begins = (server.endpoint, after, file_begins(session, after))
        purge = self._begins[2] + kept
        self.purge_ms = int(purge * 1000)
        left = purge - time.time()
        if left < min(SHORT_HOURS * 1800, kept / 2) and time.monotonic() - self._warned >= AGAIN:
            self._warned = time.monotonic()
            who = ", ".join(sorted(name for name, one in needed.items() if one == oldest))
            self._log.warning(
                "%s may purge %s %s; what comes after %s:%d is needed (%s): let the producer continue, or %s",
                server.endpoint.where,
                oldest.file,
                f"in {left / 3600:.1f} hours" if left > 0 else "at any moment",
                oldest.file,
                oldest.offset,
                who,
                server.to_keep(168),
            )
