"""A place inside a transaction that has nothing to read on one of its sides: for example a cursor of Canal, which names the start of the event that
ended a transaction, or began it. No stream can begin there: it begins at that transaction's end, or at its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from shmstore import Position, PositionNotFound, SourceError
from shmstore.producer.binlog.events import ARTIFICIAL_FLAG, EventCode, RawEvent
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import LinkLost
from shmstore.producer.positions.scan import ROWS, boundaries, dump, received

__all__ = ["whole_transactions"]

_BETWEEN = ("Gtid", "Anonymous_Gtid", "Rotate", "Stop", "Format_desc", "Gtid_list", "Binlog_checkpoint")


def whole_transactions(session: ServerSession, wanted: Position) -> Position:
    """Return `wanted`, or where it is inside a transaction: that one's end if no change comes behind it, its beginning if none came before.

    Raises `PositionNotFound` where changes are on both sides, and `LinkLost`.
    """
    if wanted.offset <= 4:
        return wanted
    try:
        rows = session.query("SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1", (wanted.file, wanted.offset))
        if not rows or str(rows[0][2]) in _BETWEEN:
            return wanted
    except LinkLost:
        raise
    except SourceError:
        return wanted  # the reader at that place hears why not
    return _read_to(session, wanted)


def _read_to(session: ServerSession, wanted: Position) -> Position:
    watch = _Watch(wanted)
    with closing(dump(session, wanted.file, 4)) as reader:
        begun = Position(wanted.file, 4)
        for position, _, _ in boundaries(watch.passed(received(reader, session.stop)), wanted.file):
            if position.order >= wanted.order:
                break
            begun = position
            watch.before = watch.behind = 0
        else:
            return wanted
    if position.file != wanted.file or not watch.begins or position.order == wanted.order:
        return wanted
    if not watch.behind or watch.last:
        return position._replace(gtids=wanted.gtids)
    if watch.before:
        raise PositionNotFound(
            f"{session.endpoint.where}: {wanted.file}:{wanted.offset} is between the changes of a transaction: start at its beginning, "
            f"{begun.offset}, or at its end, {position.offset}"
        )
    return begun._replace(gtids=wanted.gtids)


class _Watch:
    """Counts the changes of a transaction before and behind a place."""

    def __init__(self, wanted: Position) -> None:
        self._offset = wanted.offset
        self.before = self.behind = 0
        self.begins = False  # whether an event begins at the place
        self.last = False  # whether that event is the last one that was seen

    def passed(self, events: Iterator[RawEvent]) -> Iterator[RawEvent]:
        for raw in events:
            if raw.end and not raw.flags & ARTIFICIAL_FLAG:
                begin = raw.end - raw.length
                self.last = begin == self._offset
                self.begins |= self.last
                if _changes(raw):
                    self.before += begin < self._offset
                    self.behind += begin >= self._offset
            yield raw


def _changes(raw: RawEvent) -> bool:
    """Whether an event changes rows or tables, or may do so."""
    if raw.code in (EventCode.QUERY, EventCode.QUERY_COMPRESSED):
        text = raw.body.rpartition(b"\0")[2][:8].upper()
        return not text.startswith((b"BEGIN", b"COMMIT", b"XA ", b"ROLLBACK"))
    return raw.code in ROWS or raw.code == EventCode.TRANSACTION_PAYLOAD
