"""Read a binlog file from its beginning, rows undecoded, to find the end of a transaction and the GTID set there.

A server sends no GTID set when it is asked for a file and an offset, and knows no times: both are found by reading. A server
continues with the next file, and at the end of the last one it waits: it is read up to its first heartbeat there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager

from shmstore import BinlogPurged, Position, PositionNotFound
from shmstore.producer.binlog.events import ARTIFICIAL_FLAG, EventCode, RawEvent
from shmstore.producer.binlog.packets import singly
from shmstore.producer.binlog.rows import ROWS_EVENTS
from shmstore.producer.connection.dump import BinlogReader
from shmstore.producer.connection.server import SourceServer, binlog_files, log_end
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.stop import Stop, Stopped
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.decoder import EventDecoder

ScannedPosition = tuple[Position, ExecutedSet | None]
Boundary = tuple[Position, ExecutedSet | None, float]


def scan_to_offset(session: ServerSession, wanted: Position) -> ScannedPosition:
    """Return `wanted` with the GTID set executed there. Raises `PositionNotFound` unless a transaction ends there."""
    before, after = Position(wanted.file, 4), None
    if wanted.offset <= before.offset:
        return before, None  # what was executed before it the file itself says
    with _reading(session, wanted.file) as ends:
        for position, executed, _ in ends:
            if position.order > wanted.order:
                after = position
                break
            if position.order == wanted.order:
                return position, executed
            before = position
    following = f", the next at {after.offset}" if after is not None and after.file == wanted.file else ""
    raise PositionNotFound(
        f"{session.endpoint.where}: no transaction ends at {wanted.file}:{wanted.offset}; one ends at {before.offset}{following}"
    )


def scan_to_time(session: ServerSession, server: SourceServer, when: float) -> ScannedPosition:
    """Return the end of the last transaction before the first one at or after `when` (seconds since 1970)."""
    end = log_end(session, server)
    files = [name for name, _ in binlog_files(session)]
    low, high = 0, len(files) - 1  # the last file that begins before `when`
    while low < high:
        middle = (low + high + 1) // 2
        if file_begins(session, files[middle]) < when:
            low = middle
        else:
            high = middle - 1
    if low == 0 and Position(files[0], 0).file_number > 1 and (begins := file_begins(session, files[0])) > when:
        raise BinlogPurged(
            f"{session.endpoint.where} has no binlog of that time: its oldest file, {files[0]}, begins {begins - when:.0f} s later; "
            "start = earliest begins with the oldest event"
        )
    found: ScannedPosition = (Position(files[low], 4), None)
    with _reading(session, files[low]) as ends:
        for position, executed, time in ends:
            if time >= when:
                break
            found = (position, executed)
            if position.order >= end.order:
                break
    return found


def scan_to_set(session: ServerSession, server: SourceServer, wanted: ExecutedSet) -> ScannedPosition:
    """Return the position before the first transaction that is not in `wanted`. Raises `PositionNotFound` where that is missing."""
    end = log_end(session, server)
    for name, _ in reversed(binlog_files(session)):
        found: ScannedPosition | None = None
        with _reading(session, name) as ends:
            for position, executed, _ in ends:
                if executed is None:
                    continue
                if not wanted.covers(executed):
                    break
                found = (position, executed)
                if position.order >= end.order:
                    break
        if found is not None:
            return found
    raise PositionNotFound(f"{session.endpoint.where} has no position where only {wanted} was executed")


def boundaries(raw_events: Iterator[RawEvent], file: str) -> Iterator[Boundary]:
    """Yield (end, executed set, time) of each transaction and DDL in `raw_events`, which begin with `file`, and of each event outside of
    them, with which a file begins or ends: of these the time is 0."""
    decoder = EventDecoder(TransactionBuffer(events=1 << 30, size=1 << 40), TableFilter(exclude=(".*",)), pass_statements=True)
    decoder.start(Position(file, 4), None)
    for raw in raw_events:
        if raw.code in ROWS:
            continue
        real = bool(raw.end) and not raw.flags & ARTIFICIAL_FLAG
        if real and raw.code == EventCode.ROTATE:
            decoder.state.advance(raw.end)  # its own end, before it leads to the next file
        position = decoder.position
        decoder.feed(raw)
        if real and not decoder.in_transaction:
            executed = decoder.executed.copy() if decoder.executed is not None else None
            outside = raw.code in OUTSIDE
            yield position if raw.code == EventCode.ROTATE else decoder.position, executed, 0.0 if outside else raw.timestamp


ROWS = ROWS_EVENTS | {EventCode.TABLE_MAP, EventCode.ROWS_QUERY, EventCode.ANNOTATE_ROWS}
OUTSIDE = frozenset(
    (
        EventCode.FORMAT,
        EventCode.PREVIOUS_GTIDS,
        EventCode.MARIADB_GTID_LIST,
        EventCode.BINLOG_CHECKPOINT,
        EventCode.START_ENCRYPTION,
        EventCode.ROTATE,
        EventCode.STOP,
    )
)


def file_begins(session: ServerSession, file: str) -> float:
    """Return the time of the first event of `file`, seconds since 1970."""
    with closing(dump(session, file, 4)) as reader:
        return next((float(raw.timestamp) for raw in received(reader, session.stop) if raw.timestamp), 0.0)


@contextmanager
def _reading(session: ServerSession, file: str) -> Iterator[Iterator[Boundary]]:
    with closing(dump(session, file, 4)) as reader:
        yield boundaries(received(reader, session.stop), file)


def dump(session: ServerSession, file: str, offset: int, gtids: ExecutedSet | None = None) -> BinlogReader:
    """Open a stream that is not the producer's: from `offset` of `file`, or after `gtids`. Raises `SourceError`."""
    # an id of its own: with the stream's id the server would cut the stream
    own = random.randrange(1 << 31, 1 << 32)
    return BinlogReader(session.settings, session, file=file, offset=offset, gtids=gtids, server_id=own)


def received(reader: BinlogReader, stop: Stop) -> Iterator[RawEvent]:
    """Yield what the server has; its first heartbeat says that this was all. Raises `Stopped`."""
    while not stop():
        for run in reader.read():
            for raw in singly(run):
                if raw.code in (EventCode.HEARTBEAT, EventCode.HEARTBEAT_V2):
                    return
                yield raw
    raise Stopped
