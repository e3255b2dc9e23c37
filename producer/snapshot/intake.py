"""Taking in what was asked for: which tables a request means, and what of it cannot be had."""

from __future__ import annotations

import logging
from collections.abc import Callable

from shmstore import SourceError
from shmstore.clock import calendar_ms
from shmstore.home.snapshot_progress import ENTERED, SnapshotRequest
from shmstore.home.snapshots import new_id
from shmstore.patterns.linear_regex import PatternRefused
from shmstore.patterns.table_patterns import Patterns
from shmstore.producer.connection.server import SourceServer
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.errors import PatternError
from shmstore.producer.filters.part import Part
from shmstore.producer.filters.renaming import Renaming, TableName
from shmstore.producer.filters.table_filter import TableFilter, read_patterns
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.kept_progress import KeptProgress
from shmstore.producer.snapshot.tables import list_tables, may_select
from shmstore.producer.snapshot.watermarks import refusal
from shmstore.producer.stop import Stop

# Reasons of requests that may mean no table: for those that no copy has yet, and for one that a DDL changed or brought in, which may be
# dropped since, or not be read (what gh-ost and pt-online-schema-change rename a table to).
_MAY_BE_GONE = ("missing", "reread", ENTERED)


class Intake:
    """The requests of one store, on their way into its progress."""

    def __init__(
        self,
        settings: Settings,
        kept: KeptProgress,
        table_filter: Callable[[], TableFilter],
        renaming: Renaming,
        log: logging.Logger,
        stop: Stop,
    ) -> None:
        """`table_filter` returns the present one."""
        self._renaming = renaming
        self._settings, self._kept, self._filter, self._log, self._stop = settings, kept, table_filter, log, stop

    def want(self, session: ServerSession, server: SourceServer, reason: str) -> None:
        """Write down, before anything is put, that all tables are wanted. Raises `SourceError` where they cannot be had."""
        request = SnapshotRequest(new_id(), (), reason, calendar_ms())
        if problem := refusal(server) or self._choose(session, request)[1]:
            raise SourceError(f"no snapshot can be taken: {problem}")
        self._kept.start_over(request)

    def look(self, server: SourceServer) -> bool:
        """Take in what was asked for; return whether that was to cancel. What the server cannot answer now waits for the next look."""
        kept, cancelled = self._kept, False
        asked = kept.file.asked()
        known = {request.id for request in kept.now.requests} if asked else set()
        for path, request in asked:
            if request.cancel:
                kept.now.cancel()
                cancelled = True
            elif request.id not in known:
                try:
                    self._take(server, request)
                except SourceError as error:
                    self._log.warning("snapshot %s waits: %s", request.id, error)
                    break
            kept.save()
            kept.file.take_in(path)
        return cancelled

    def _take(self, server: SourceServer, request: SnapshotRequest) -> None:
        problem, tables = request.problem or refusal(server), list[tuple[str, str]]()
        try:
            Part.read(request.where, request.columns)
        except PatternError as error:
            problem = problem or str(error)
        if not problem:
            session = connect(self._settings, server.endpoint, self._stop)
            try:
                tables, problem = self._choose(session, request)
            except PatternRefused as error:
                problem = str(error)
            finally:
                session.close()
        if problem:
            self._log.error("snapshot %s: %s", request.id, problem)
        if tables or not problem:
            self._log.info("snapshot %s (%s): %d tables", request.id, request.reason, len(tables))
        targets = {name: ".".join(target) for name in tables if (target := self._renaming.target_of(*name)) is not None}
        self._kept.now.take(request._replace(problem=problem), tables, targets)

    def _choose(self, session: ServerSession, request: SnapshotRequest) -> tuple[list[tuple[str, str]], str]:
        """The tables that a request means, and what of it means none. It may name a table as the server does, or as readers do; of one that
        readers know by another name all are meant that have that name.
        """
        patterns = read_patterns(request.tables)
        seen = {name: self._renaming.target_of(*name) for name in list_tables(session, self._filter().passes)}

        def named(patterns: Patterns, name: TableName) -> bool:
            return any(patterns.match(".".join(one)) for one in (name, seen[name]) if one is not None)

        tables = [name for name in seen if not patterns or named(patterns, name)]
        missing = [each for each in patterns.wanted if not any(named(read_patterns(each), name) for name in tables)]
        chosen, targets = set(tables), {seen[name] for name in tables} - {None}
        tables = [name for name in seen if name in chosen or seen[name] in targets]
        if request.reason in _MAY_BE_GONE:
            return tables, ""
        if tables:
            return tables, f"no table matches {', '.join(missing)}" if missing else ""
        what = f"no table matches {', '.join(request.tables)}" if request.tables else "the filters let no table through"
        if may_select(session):
            return [], what if request.tables else ""  # a database may begin empty
        return [], f"{what}: the account sees no table; GRANT SELECT ON *.* TO it, or on the databases wanted"
