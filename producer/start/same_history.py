"""Whether the server still has the history that a store was read from: known by content, not by names and numbers.

A server that was reset gives the same files, offsets and GTIDs to other transactions, and so does another server. So before a stream
continues, the last transaction that the store has is looked for on the server and compared with what the store holds:

1. At its place in the binlog: from its beginning up to its end, where the file is long enough to have it.
2. Elsewhere, where the stream is followed by GTIDs: under its GTID. A replica that took over has it in other files.

Compared are the time, the server that wrote it, what ends it (XID or statement), its place, and the rows, as far as both sides have
them: an option that changed since, or other columns of a replica, are no other history. Where the server has removed that
transaction alone, this cannot be known, and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from shmstore import (
    ABSENT,
    BinlogPurged,
    EntryType,
    Event,
    EventType,
    Position,
    PositionNotFound,
    SchemaUnknown,
    SourceError,
    TableSchema,
)
from shmstore.producer.binlog import events
from shmstore.producer.binlog.compression import uncompress_query
from shmstore.producer.binlog.events import ARTIFICIAL_FLAG, EventCode, RawEvent
from shmstore.producer.binlog.files import BinlogFiles
from shmstore.producer.binlog.packets import singly
from shmstore.producer.binlog.rows import ROWS_EVENTS, Schemas
from shmstore.producer.connection.link import BinlogLink
from shmstore.producer.connection.server import SourceServer, binlog_files, log_end
from shmstore.producer.connection.session import FAR, ServerSession
from shmstore.producer.errors import ChecksumMismatch, LinkLost, PrivilegeMissing
from shmstore.producer.filters.renaming import Renaming
from shmstore.producer.gtid import GtidSet, MariadbGtids
from shmstore.producer.positions.gtid_position import gtid_at
from shmstore.producer.positions.scan import OUTSIDE, dump
from shmstore.producer.schema.shard_statement import retargeted
from shmstore.producer.settings import Settings
from shmstore.producer.start.last_transaction import LastTransaction
from shmstore.producer.start.origin import Origin, differs
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.decoder import EventDecoder
from shmstore.sql.classify import classify
from shmstore.sql.tokens import SqlMode
from shmstore.units import moment

NOT_RENAMED = Renaming()
COMPARED = 4 << 20  # bytes of a transaction up to which its rows are compared
_HEARTBEATS = (EventCode.HEARTBEAT, EventCode.HEARTBEAT_V2)
_ROWS = ROWS_EVENTS | {EventCode.TABLE_MAP, EventCode.ROWS_QUERY, EventCode.ANNOTATE_ROWS}
_quiet = logging.Logger("same-history", logging.CRITICAL + 1)  # what cannot be decoded is not compared: the stream will say so


class WantedTransaction(NamedTuple):
    """What is looked for, in the store of `settings`. `rows`: whether its events were made with the present options, and so can be compared."""

    last: LastTransaction
    settings: Settings
    schemas: Schemas | None
    rows: bool

    def events(self) -> list[Event] | None:
        """Return the store's events to be compared; None where they cannot be, or are too many."""
        return self.last.events(COMPARED) if self.rows else None


def require_same_history(
    wanted: WantedTransaction | None,
    origin: Origin | None,
    session: ServerSession,
    server: SourceServer,
    *,
    by_gtid: bool,
    log: logging.Logger,
) -> None:
    """Raise `PositionNotFound` where the server has another history than the store. Where that cannot be seen, log it.

    `wanted` None: the store cannot show what it ends with; then `origin` says what the server was.
    """
    if wanted is None:
        _require_same_origin(origin, session, server, by_gtid=by_gtid, log=log)
        return
    end = wanted.last.end
    found = at_place(wanted, lambda file, offset: dump(session, file, offset), _sizes(session))
    if found == "":
        return
    if found is not None and not by_gtid:
        raise _another(wanted, session, server, origin, found)
    if by_gtid and wanted.last.gtids:
        found = _under_gtid(wanted, session, server)
        if found == "":
            return
        if found is not None:
            raise _another(wanted, session, server, origin, found)
    log.warning(
        "%s no longer has transaction %s, the last one in store %r: whether the server is still the one that the store was read from could not be "
        "checked",
        session.endpoint.where,
        end.transaction,
        wanted.settings.store,
    )


def require_same_files(wanted: WantedTransaction | None, files: Sequence[Path], log: logging.Logger) -> None:
    """The same of local binlog files."""
    paths = {file.name: file for file in files}
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    found = None if wanted is None else at_place(wanted, lambda file, offset: BinlogFiles([paths[file]], offset), sizes)
    if wanted is not None and found:
        raise PositionNotFound(
            f"{files[0].parent} has another history than {_described(wanted)}: {found}; give the files of the same server, or start again with a new "
            "store"
        )
    if found is None:
        log.warning(
            "whether the files in %s are of the server that was read could not be checked: the last transaction of the store is not there",
            files[0].parent,
        )


def _described(wanted: WantedTransaction) -> str:
    end = wanted.last.end
    place = f"{end.position.file}:{end.position.offset}, of {moment(end.time_ms)}"
    return f"store {wanted.settings.store!r}, whose last transaction is {end.transaction} at {place}"


def _sizes(session: ServerSession) -> dict[str, int] | None:
    try:
        return dict(binlog_files(session))
    except PrivilegeMissing:
        return None  # REPLICATION SLAVE is enough to read


def _another(
    wanted: WantedTransaction, session: ServerSession, server: SourceServer, origin: Origin | None, found: str
) -> PositionNotFound:
    return PositionNotFound(
        f"{session.endpoint.where} has another history than {_described(wanted)}: {found}; {_reason(origin, server)}; start again with a new store"
    )


def _reason(origin: Origin | None, server: SourceServer) -> str:
    if origin is None:
        return "the server was reset (RESET BINARY LOGS AND GTIDS, RESET MASTER) or restored, or is another one"
    if origin.identity == server.identity:
        return f"the server ({server.identity}) was reset (RESET BINARY LOGS AND GTIDS, RESET MASTER) or restored"
    return f"it is {server.identity}, the store was read from {origin.identity} ({origin.server})"


def _require_same_origin(
    origin: Origin | None, session: ServerSession, server: SourceServer, *, by_gtid: bool, log: logging.Logger
) -> None:
    other = origin is not None and by_gtid and origin.identity != server.identity  # by its GTIDs it may continue here
    found = None if origin is None or other else differs(origin, session)
    if found:
        raise PositionNotFound(
            f"{session.endpoint.where} is not the server that was read, or has another binlog: {found}; {_reason(origin, server)}; "
            "start again with a new store"
        )
    if found is None:
        log.warning(
            "whether %s is still the server that was read could not be checked: the store has no transaction to compare%s",
            session.endpoint.where,
            f", and it was read from {origin.identity}" if other and origin is not None else "",
        )


# ---------------------------------------------------------------- where to look


def at_place(wanted: WantedTransaction, open_link: Callable[[str, int], BinlogLink], sizes: dict[str, int] | None) -> str | None:
    """Look where the store says that it is. Return "" where it is there, what exists instead, None where that file is gone.

    `sizes`: of the files that there are, by name, where that is known. Raises `LinkLost`.
    """
    end, begin = wanted.last.end, wanted.last.begins()
    file, offset = end.position.file, end.position.offset
    if not file or offset - end.length >= FAR or (sizes is not None and file not in sizes):
        return None
    if sizes is not None and sizes[file] < offset:
        return f"its {file} has {sizes[file]} bytes"
    start, whole = offset - end.length, False
    if begin is not None and begin.position.file == file and 0 <= offset - begin.position.offset <= COMPARED:
        start, whole = begin.position.offset - begin.length, begin.entry is EntryType.BEGIN
    try:
        with closing(open_link(file, start)) as link:
            return _compared(wanted, _events(link), Position(file, start), placed=True, whole=whole)
    except BinlogPurged:
        return None
    except SourceError as error:  # not where an event begins, or not of a transaction's
        if isinstance(error, LinkLost) and not isinstance(error, ChecksumMismatch):
            raise
        return f"its {file} has something else there ({error})"


def _under_gtid(wanted: WantedTransaction, session: ServerSession, server: SourceServer) -> str | None:
    """Look for its GTID. Returns and raises as `at_place`."""
    gtid = wanted.last.end.transaction
    try:
        log = log_end(session, server)
        if server.mariadb:
            file = _file_with(session, MariadbGtids(gtid))
            if file is None:
                return None
            link = dump(session, file, 4)
        else:
            alone = GtidSet(gtid)
            if GtidSet(str(session.query("SELECT @@global.gtid_purged")[0][0])).covers(alone):
                return None
            file, link = "", dump(session, "", 4, GtidSet(wanted.last.gtids) - alone)
    except (ValueError, PrivilegeMissing):  # no GTID of this kind of server; or it may not be asked
        return None
    with closing(link):
        return _compared(wanted, _from_gtid(_events(link, log), gtid), Position(file, 4), placed=False, whole=True)


def _file_with(session: ServerSession, gtid: MariadbGtids) -> str | None:
    """Return the newest file that does not begin behind this transaction; None where all do: it was purged."""
    for name, _ in reversed(binlog_files(session)):
        if not MariadbGtids(gtid_at(session, name, 4)).covers(gtid):
            return name
    return None


def _events(link: BinlogLink, end: Position | None = None) -> Iterator[RawEvent]:
    """Yield what the link has now, up to `end`: a server that was asked for a GTID set has heartbeats for what it passes over, too."""
    while (runs := link.read()) is not None:
        for run in runs:
            for raw in singly(run):
                if raw.code in _HEARTBEATS:
                    here = Position(raw.body.rstrip(b"\0").decode("utf-8", "replace"), raw.end)
                    if end is None or here.order >= (end.file_number, end.offset & 0xFFFFFFFF):
                        return
                    continue
                yield raw


def _from_gtid(raws: Iterator[RawEvent], gtid: str) -> Iterator[RawEvent]:
    """Yield the events from transaction `gtid` on, and before it those that say how to read them."""
    inside = False
    for raw in raws:
        inside = inside or _gtid_of(raw) == gtid
        if inside or _of_stream(raw):
            yield raw


def _gtid_of(raw: RawEvent) -> str:
    if raw.code == EventCode.GTID:
        return events.gtid(raw.body)
    if raw.code == EventCode.GTID_TAGGED:
        return events.gtid_tagged(raw.body)
    if raw.code == EventCode.MARIADB_GTID:
        found = events.mariadb_gtid(raw.body)
        return f"{found.domain}-{raw.server_id}-{found.number}"
    return ""


def _of_stream(raw: RawEvent) -> bool:
    """Whether it belongs to the stream or the file, not to a transaction."""
    return raw.code in OUTSIDE or not raw.end or bool(raw.flags & ARTIFICIAL_FLAG)


# ---------------------------------------------------------------- what to compare


def _compared(wanted: WantedTransaction, raws: Iterator[RawEvent], start: Position, *, placed: bool, whole: bool) -> str:
    """Compare the transaction that comes first, from `start` on: return what is different, "" where nothing is.

    `placed`: it must be at its place. `whole`: it comes from its beginning; else what comes first is its last event.
    """
    mine, end = wanted.events(), wanted.last.end
    buffer = TransactionBuffer(events=1 << 30, size=1 << 40, empty_events=1)
    decoder = EventDecoder(buffer, wanted.settings.table_filter(), pass_statements=True, skip_errors=True, log=_quiet)
    decoder.use(_Unchanged(wanted.schemas) if wanted.schemas is not None else None)
    decoder.start(start, None)
    for raw in raws:
        of_stream = _of_stream(raw)
        if of_stream or whole:
            if mine is None and raw.code in _ROWS:
                continue
            decoder.feed(raw)
        if not of_stream and not decoder.in_transaction:
            break
    else:
        return "it has no such transaction"
    renaming = wanted.settings.renaming()
    if different := _different_end(end, raw, placed=placed):
        return different
    if mine is None or not whole or decoder.skipped:
        return ""
    flush = buffer.take()
    theirs = [] if flush is None else flush.events()
    return "" if _same_rows(mine, theirs, renaming) else "its rows are different"


def _different_end(end: Event, raw: RawEvent, *, placed: bool) -> str:
    """Compare the event that ends the transaction, on both sides."""
    of_payload = raw.code == EventCode.TRANSACTION_PAYLOAD
    if placed and (raw.end != end.position.offset & 0xFFFFFFFF or raw.length != end.length):
        return f"an event of {raw.length} bytes ends at {raw.end}, where one of {end.length} bytes was"
    if raw.timestamp != end.time_ms // 1000 and not of_payload:
        return f"the transaction there is of {moment(raw.timestamp * 1000)}"
    if raw.server_id != end.server_id:
        return f"the transaction there was written by server id {raw.server_id}, not {end.server_id}"
    if of_payload:
        return ""
    statement = raw.code in (EventCode.QUERY, EventCode.QUERY_COMPRESSED)
    if end.entry is EntryType.DDL:
        if not statement:
            return "no statement is there"
        query = events.query(uncompress_query(raw.body) if raw.code == EventCode.QUERY_COMPRESSED else raw.body)
        theirs = classify(query.sql, query.database, query.mode)
        ours = classify(end.sql, end.props.get("default_database", ""), SqlMode.named(end.props.get("sql_mode", "")))
        if "renamed_from" in end.props:  # it may be in the store as a statement about the target
            same = end.sql in (query.sql, retargeted(query.sql, query.mode, (end.database, end.props.get("table", ""))))
        elif placed:
            same = query.sql == end.sql
        else:
            same = (theirs.type, theirs.tables) == (ours.type, ours.tables)
        return "" if same else "another statement is there"
    if placed and "xid" in end.props and (raw.code != EventCode.XID or str(events.xid(raw.body)) != end.props["xid"]):
        return "the transaction there has another XID"
    return ""


def _same_rows(ours: list[Event], theirs: list[Event], renaming: Renaming) -> bool:
    """Whether both are the same changes, in the columns that both have with the same type: ours by the names that readers see, theirs by the
    server's. A replica may group rows otherwise."""
    for one, other in zip_longest(_rows_of(ours, NOT_RENAMED), _rows_of(theirs, renaming)):
        if one is None or other is None or one.what != other.what:
            return False
        for mine, yours in ((one.before, other.before), (one.after, other.after)):
            if any(name in yours and yours[name] != value for name, value in mine.items()):
                return False
    return True


class _Change(NamedTuple):
    """A row's change: what it does to which table, and its values by name and type of the column."""

    what: tuple[EventType, str, str]
    before: dict[tuple[str, str], Any]
    after: dict[tuple[str, str], Any]


def _rows_of(all_: list[Event], renaming: Renaming) -> Iterator[_Change]:
    for event in all_:
        if event.entry is EntryType.ROWS and event.table is not None:
            table = event.table
            database, name = renaming.seen_as(table.database, table.table)
            what = event.type, database.lower(), name.lower()
            names = [(column.name.lower(), column.type) for column in table.columns]
            for row in event.rows:
                yield _Change(what, _values(names, row.before), _values(names, row.after))


def _values(names: list[tuple[str, str]], image: tuple[Any, ...] | None) -> dict[tuple[str, str], Any]:
    return {name: value for name, value in zip(names, image or (), strict=False) if value is not ABSENT}


class _Unchanged:
    """A schema history, to be asked and not to be changed: the stream will bring it the same DDLs."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schemas, name)

    def find(self, database: str, table: str) -> TableSchema | None:
        """Return the table as the stream begins. Raises `LinkLost`, `SchemaUnknown`: then its rows are not compared."""
        return self._asked(self._schemas.find, database, table)

    def define(self, database: str, table: str) -> TableSchema | None:
        """The same of a table whose columns the log names."""
        return self._asked(getattr(self._schemas, "define", self._schemas.find), database, table)

    def _asked(self, ask: Callable[[str, str], TableSchema | None], database: str, table: str) -> TableSchema | None:
        try:
            return ask(database, table)
        except LinkLost:
            raise
        except SourceError as error:
            raise SchemaUnknown(str(error)) from error

    def reach(self, position: Position) -> None:
        """It is where the stream begins."""

    def learn(self, position: Position, schema: TableSchema, hidden: int) -> None:
        """The stream shows it the same table."""

    def follow(self, position: Position, database: str, sql: str, mode: Any = None) -> bool:
        """It knows the DDL already."""
        return False
