"""Where a stream begins: where it was, else as configured; checked against the server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from shmstore import BinlogPurged, Checkpoint, Position, PositionNotFound
from shmstore.producer.connection.server import SourceServer, binlog_files
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import AnonymousTransactions, PrivilegeMissing, ServerBehind, SettingsError
from shmstore.producer.gtid import ExecutedSet, GtidSet, MariadbGtids
from shmstore.producer.positions.boundary import whole_transactions
from shmstore.producer.positions.gtid_position import current_position, gtid_at
from shmstore.producer.positions.scan import scan_to_offset, scan_to_time
from shmstore.producer.settings import Settings
from shmstore.producer.start.resume import Resume, StreamStart, lowest, require_one_source


def choose_start(
    settings: Settings,
    session: ServerSession,
    server: SourceServer,
    resume: Resume | None,
    log: logging.Logger,
    *,
    saved: Mapping[str, Checkpoint],
    latest: Position | None = None,
) -> StreamStart:
    """Return where to start on `server`: at `resume`, else at the lowest of the checkpoints `saved`, else as configured; `latest` is
    what start = latest means, by default now. Raises `BinlogPurged`, `PositionNotFound`, `SettingsError`.
    """
    position = None
    try:
        if resume is not None:
            position = resume.position
            require_one_source(settings.store, resume.position)
            return _at(settings, session, server, resume.position)._replace(tail=resume.tail)
        for checkpoint in saved.values():
            require_one_source(settings.store, checkpoint.position)
        position = lowest(checkpoint.position for checkpoint in saved.values())
        if position is not None:
            position = _whole(session, position)
            names = ", ".join(sorted(saved))
            log.info("start at the lowest checkpoint of %s", names)
            try:
                return _at(settings, session, server, position)
            except (PositionNotFound, ServerBehind) as error:
                hint = f"it is where readers ({names}) of an earlier store of this name were: shmstore rm {settings.store} --forget forgets them"
                raise type(error)(f"{error}; {hint}") from error
        return configured(settings, session, server, latest)
    except BinlogPurged as error:
        if settings.on_purged == "fail" or (resume is not None and resume.tail is not None):
            raise  # half a transaction in the store would stay half
        if settings.on_purged == "snapshot":
            log.error("%s; all tables are read again: what was deleted meanwhile stays in readers' copies", error)
            start = _latest(session, server, settings)
            return start._replace(lost=position or start.position)
        log.error("%s; continuing at %s: changes between are lost", error, settings.on_purged)
        return _latest(session, server, settings) if settings.on_purged == "latest" else _earliest(session)


def configured(settings: Settings, session: ServerSession, server: SourceServer, latest: Position | None = None) -> StreamStart:
    """Return the start that the option `start` names."""
    start = settings.beginning
    if isinstance(start, str):
        return _latest(session, server, settings, latest) if start == "latest" else _earliest(session)
    if isinstance(start, datetime):
        return _scanned(settings, server, *scan_to_time(session, server, start.timestamp()))
    if start.file:
        return _at(settings, session, server, _whole(session, start))
    try:
        executed = server.executed(start.gtids)
    except ValueError as error:
        raise SettingsError(f"start is {settings.start!r}: {error} (this is a {server.flavor} server)") from error
    if not server.gtids:
        raise SettingsError(f"start is {settings.start!r}, but the server has gtid_mode OFF: start from FILE:OFFSET")
    return _at(settings, session, server, Position("", 0, str(executed)))


def _whole(session: ServerSession, position: Position) -> Position:
    """As `whole_transactions`, of a place that no producer has written."""
    return whole_transactions(session, position) if position.file and not position.gtids else position


def _scanned(settings: Settings, server: SourceServer, position: Position, executed: ExecutedSet | None) -> StreamStart:
    return StreamStart(position, executed, by_gtid=server.mariadb and bool(executed) and settings.gtid == "auto")


def _latest(session: ServerSession, server: SourceServer, settings: Settings, position: Position | None = None) -> StreamStart:
    position = position or current_position(session, server)
    executed = server.executed(position.gtids) if server.gtids else None
    return StreamStart(position, executed, by_gtid=bool(executed) and settings.gtid == "auto")


def _earliest(session: ServerSession) -> StreamStart:
    files = binlog_files(session)
    return StreamStart(Position(files[0][0], 4), None)


def _at(settings: Settings, session: ServerSession, server: SourceServer, position: Position) -> StreamStart:
    """Return the start at `position`, after checking that the server still has everything after it."""
    if position.gtids and server.gtids and (settings.gtid == "auto" or not position.file):
        executed = _executed(server, position)
        _check_gtids(session, server, executed)
        if executed:
            return StreamStart(position, executed, by_gtid=True)
    if not position.file:
        raise PositionNotFound(
            f"GTID set {position.gtids!r} cannot be used with {server.endpoint.where}: its gtid_mode is OFF; start from FILE:OFFSET"
        )
    _check_file(session, server, position)
    if server.mariadb:
        gtids = position.gtids or gtid_at(session, position.file, position.offset)
        executed = MariadbGtids(gtids)
        return StreamStart(position._replace(gtids=gtids), executed, by_gtid=bool(executed) and settings.gtid == "auto")
    if server.gtids and not position.gtids:
        try:
            return StreamStart(*scan_to_offset(session, position))
        except AnonymousTransactions:  # before the position; the next file says what GTIDs there were
            return StreamStart(position, None)
    return StreamStart(position, GtidSet(position.gtids) if server.gtids else None)


def check_position(settings: Settings, session: ServerSession, server: SourceServer, position: Position) -> None:
    """Raise `SourceError` unless `server` has everything after `position`, by GTIDs where these can be followed."""
    if position.gtids and server.gtids and (settings.gtid == "auto" or not position.file):
        _check_gtids(session, server, _executed(server, position))
    elif position.file:
        _check_file(session, server, position)


def _executed(server: SourceServer, position: Position) -> ExecutedSet:
    try:
        return server.executed(position.gtids)
    except ValueError as error:
        raise PositionNotFound(
            f"{server.endpoint.where} is a {server.flavor} server and cannot continue after GTID set {position.gtids!r}: {error}"
        ) from error


def _check_gtids(session: ServerSession, server: SourceServer, executed: ExecutedSet) -> None:
    if not server.mariadb:
        now, purged = (GtidSet(str(value)) for value in session.query("SELECT @@global.gtid_executed, @@global.gtid_purged")[0])
        if ahead := executed - now:
            raise ServerBehind(
                f"{server.endpoint.where} has not executed {ahead}, which the start position has: it is another server, lags behind, or was reset; "
                "wait for it, or start again with a new store"
            )
        if lost := purged - executed:
            raise BinlogPurged(
                f"{server.endpoint.where} no longer has the binlog of transactions {lost}; start again with start = latest or earliest and a new "
                "store, or set on_purged"
            )
        return
    state = MariadbGtids(str(session.query("SELECT @@global.gtid_binlog_pos")[0][0] or ""))
    if not state.covers(executed):
        raise ServerBehind(
            f"{server.endpoint.where} is at GTID {str(state) or 'nothing'}, the start position is {executed}: it is another server, lags behind, or was "
            "reset; wait for it, or start again with a new store"
        )
    try:
        oldest = binlog_files(session)[0][0]
    except PrivilegeMissing:
        return  # the server refuses on its own, only without on_purged
    begin = MariadbGtids(gtid_at(session, oldest, 4))
    if not executed.covers(begin):
        raise BinlogPurged(
            f"{server.endpoint.where} no longer has the binlog of transactions between {executed} and {begin}, where its oldest file {oldest} begins; "
            "start again with start = latest or earliest and a new store, or set on_purged"
        )


def _check_file(session: ServerSession, server: SourceServer, position: Position) -> None:
    try:
        files = binlog_files(session)
    except PrivilegeMissing:
        return  # REPLICATION SLAVE is enough to read; the server refuses what it does not have
    sizes, (oldest, newest) = dict(files), (files[0][0], files[-1][0])
    if position.file in sizes:
        if position.offset > sizes[position.file]:
            raise PositionNotFound(
                f"{server.endpoint.where}: {position.file} has {sizes[position.file]} bytes, the start position is {position.offset}: the server was reset or "
                "is another; start again with a new store"
            )
        return
    kept = f"it has {oldest} to {newest}"
    if position.file.rpartition(".")[0] == oldest.rpartition(".")[0] and position.order < Position(oldest, 0).order:
        raise BinlogPurged(
            f"{server.endpoint.where} no longer has {position.file} of the start position: {kept}; start again with start = latest or earliest and a "
            "new store, or set on_purged"
        )
    raise PositionNotFound(f"{server.endpoint.where} has no file {position.file}: {kept}; is it another server, or was it reset?")
