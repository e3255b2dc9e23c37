"""Read a binlog file from its beginning, rows undecoded, to find the end of a transaction and the GTID set there.

A server sends no GTID set when it is asked for a file and an offset, and knows no times: both are found by reading.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

from producer.binlog import BinlogReader, Session
from producer.decoder import EventDecoder
from producer.events import ARTIFICIAL_FLAG, EventCode, RawEvent
from producer.filter import TableFilter
from producer.gtid import ExecutedSet, GtidSet, MariadbGtids
from producer.rows import ROWS_EVENTS
from producer.server import Server, binlog_files, current_position
from producer.settings import Settings
from producer.transaction import TransactionBuffer
from shmstore import BinlogPurged, Position, PositionNotFound

Place = tuple[Position, ExecutedSet | None]


def scan_to_offset(settings: Settings, session: Session, server: Server, wanted: Position) -> Place:
    """Return `wanted` with the GTID set executed there. Raises `PositionNotFound` unless a transaction ends there."""
    before = Position(wanted.file, 4)
    with closing(_reader(settings, session, wanted.file)) as reader:
        for position, executed, _ in boundaries(_events(reader), wanted.file):
            if position.file != wanted.file or position.offset > wanted.offset:
                break
            if position.offset == wanted.offset:
                return position, executed
            before = position
    where = f"{server.endpoint[0]}:{server.endpoint[1]}"
    raise PositionNotFound(
        f"{where}: no transaction ends at {wanted.file}:{wanted.offset}; one ends at {before.offset}"
        + (f", the next at {position.offset}" if position.file == wanted.file else "")
    )


def scan_to_time(settings: Settings, session: Session, server: Server, when: float) -> Place:
    """Return the end of the last transaction before the first one at or after `when` (seconds since 1970)."""
    end = current_position(session, server)
    files = [name for name, _ in binlog_files(session)]
    low, high = 0, len(files) - 1  # the last file that begins before `when`
    while low < high:
        middle = (low + high + 1) // 2
        if file_begins(settings, session, files[middle]) < when:
            low = middle
        else:
            high = middle - 1
    if low == 0 and Position(files[0], 0).file_number > 1 and (begins := file_begins(settings, session, files[0])) > when:
        raise BinlogPurged(
            f"{server.endpoint[0]}:{server.endpoint[1]} has no binlog of that time: its oldest file, {files[0]}, begins {begins - when:.0f} s later; "
            "start = earliest takes what there is"
        )
    found: Place = (Position(files[low], 4), None)
    with closing(_reader(settings, session, files[low])) as reader:
        for position, executed, time_ in boundaries(_events(reader), files[low]):
            if time_ >= when:
                return found
            found = (position, executed)
            if position.order >= end.order:
                return found
    return found


def scan_to_set(settings: Settings, session: Session, server: Server, wanted: ExecutedSet) -> Place:
    """Return the place before the first transaction that is not in `wanted`. Raises `PositionNotFound` where that is gone."""
    end = current_position(session, server)
    for name, _ in reversed(binlog_files(session)):
        found: Place | None = None
        with closing(_reader(settings, session, name)) as reader:
            for position, executed, _ in boundaries(_events(reader), name):
                if executed is None:
                    continue
                if not _covers(wanted, executed):
                    break
                found = (position, executed)
                if position.order >= end.order:
                    break
        if found is not None:
            return found
    raise PositionNotFound(f"{server.endpoint[0]}:{server.endpoint[1]} has no place where only {wanted} was executed")


def _covers(wanted: ExecutedSet, executed: ExecutedSet) -> bool:
    if isinstance(wanted, GtidSet) and isinstance(executed, GtidSet):
        return wanted.covers(executed)
    return isinstance(wanted, MariadbGtids) and isinstance(executed, MariadbGtids) and wanted.covers(executed)


def boundaries(raw_events: Iterator[RawEvent], file: str) -> Iterator[tuple[Position, ExecutedSet | None, float]]:
    """Yield (end, executed set, time) of each transaction and DDL in `raw_events`, and of the place before the first."""
    decoder = EventDecoder(TransactionBuffer(events=1 << 30, size=1 << 40), TableFilter(exclude=(".*",)), pass_statements=True)
    decoder.start(Position(file, 4), None)
    was_open = True
    for raw in raw_events:
        if raw.code in _ROWS:
            continue
        decoder.feed(raw)
        is_open = decoder.in_transaction
        if was_open and not is_open and raw.code not in _HEAD and not raw.flags & ARTIFICIAL_FLAG:
            executed = decoder.executed.copy() if decoder.executed is not None else None
            yield decoder.position, executed, raw.timestamp
        elif raw.code in _HEAD and raw.end and decoder.position.file == file:
            executed = decoder.executed.copy() if decoder.executed is not None else None
            yield decoder.position, executed, 0.0
        was_open = is_open


_ROWS = ROWS_EVENTS | {EventCode.TABLE_MAP, EventCode.ROWS_QUERY, EventCode.ANNOTATE_ROWS}
_HEAD = frozenset(
    (
        EventCode.FORMAT,
        EventCode.PREVIOUS_GTIDS,
        EventCode.MARIADB_GTID_LIST,
        EventCode.BINLOG_CHECKPOINT,
        EventCode.START_ENCRYPTION,
    )
)


def file_begins(settings: Settings, session: Session, file: str) -> float:
    """Return the time of the first event of `file`, seconds since 1970."""
    with closing(_reader(settings, session, file)) as reader:
        return next(float(raw.timestamp) for raw in _events(reader) if raw.timestamp)


def _reader(settings: Settings, session: Session, file: str) -> BinlogReader:
    # an id of its own: with the stream's id the server would cut the stream
    return BinlogReader(settings, session, file=file, offset=4, gtids=None, server_id=random.randrange(1 << 31, 1 << 32))


def _events(reader: BinlogReader) -> Iterator[RawEvent]:
    while True:
        for run in reader.read():
            for raw in (run,) if isinstance(run, RawEvent) else run.raw(RawEvent):
                if raw.code not in (EventCode.HEARTBEAT, EventCode.HEARTBEAT_V2):
                    yield raw
