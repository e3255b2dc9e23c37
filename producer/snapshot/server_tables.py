"""The tables of a server, to be read in parts by other processes on any hosts, next to a store that has what changes meanwhile.

Plan. A part is a range of a table's key; the process that reads one opens a connection of its own. P is where the store stands when a table is
opened. Each part is read in chunks, each of them a consistent read that shows all that was committed up to P (`watermarks`); later ones
show more. So a copy that takes the rows, and then all of the store's changes from P on, each in place of the row with its key, has for
each key

    the last change behind P, where there is one                     the stream brings it, whichever state the read showed
    the row that was read, where there is none                       it is the same in every read behind P

and equals the table at every position that no read was ahead of, wherever a key was moved to, deleted, or put again in between. What it
needs are whole row images, which a stream with snapshots has anyway. Until then it is a mixture of moments.

A DDL in between: each chunk looks, inside its read, whether the table still is as it was opened. Where it is not, the read fails and the
table is to be opened again. A DDL behind the last chunk is in the stream.

Parts are about equal: of a key that begins with an integer the server's own estimates of index ranges say how many rows are where, and
the range that has most is halved; of others the server walks once over the index. A table without a key is one part.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmstore import EntryType, EventType, Position, SourceError, StoreView, TableSchema
from shmstore.clock import calendar_ms
from shmstore.encoding.codec import Header, Packed, decode_schema, encode_schema, encode_stored
from shmstore.producer.connection.backoff import Backoff
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.server import SourceServer, read_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.errors import LinkLost, ServerUnreachable
from shmstore.producer.positions.scan import scan_to_offset
from shmstore.producer.settings import ServerAddress, Settings
from shmstore.producer.snapshot.select import Selection, key_literals, literals, selection
from shmstore.producer.snapshot.tables import SourceTable, list_tables, quoted, read_table
from shmstore.producer.snapshot.watermarks import begin, prepare, prepared, refusal

PARTS = 16  # of a table, where nothing was said
LEAST_ROWS = 20_000  # that are worth a part
CHUNK_BYTES = 32 << 20  # of one consistent read, about: the server keeps old rows for that long
PIECE_BYTES = 512 << 10  # of rows, as the server sends them, that are given at a time
ATTEMPTS = 10  # to connect again, in a row
HALVINGS = 10_000  # of ranges of numbers, at most: a table's values may be anywhere
PIECES = 8  # of a part, of which it is made where its key is a number
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")

Key = tuple[str, ...]  # as SQL literals, perhaps of the key's first columns alone; empty: no bound


class ServerTables:
    """The tables that the producer with these settings puts into its store, as they are on its server."""

    def __init__(self, settings: Settings) -> None:
        """`settings`: those of the store's producer, of which connection and filters count. Nothing is connected to."""
        if settings.binlog:
            raise SourceError("local binlog files hold no tables: give the settings of a server")
        self._settings, self._renaming = settings, settings.renaming()

    def __repr__(self) -> str:
        return f"ServerTables({self._settings.host}, store={self._settings.store!r})"

    def names(self) -> list[tuple[str, str]]:
        """Return (database, table) of those that the filters let through, and that readers know by this name. Raises `SourceError`."""
        session, _ = self._connected()
        try:
            found = list_tables(session, self._settings.table_filter().passes)
            return [name for name in found if self._renaming.target_of(*name) is None]
        finally:
            session.close()

    def open(self, name: str, *, parts: int = PARTS) -> ServerTable:
        """Return the table ``DATABASE.TABLE`` in about as many parts; fewer where it is small.

        Raises `SourceError`; `StoreNotFound` where the store is missing.
        """
        database, _, table = name.partition(".")
        if (target := self._renaming.target_of(database, table)) is not None:
            raise SourceError(
                f"--rename makes {'.'.join(target)} of table {name}: its rows are read by a snapshot, shmstore snapshot {self._settings.store} "
                f"--tables {'.'.join(target)}"
            )
        session, endpoint = self._connected()
        try:
            server = read_server(session)
            if problem := refusal(server):
                raise SourceError(problem)
            if not table or not self._settings.table_filter().passes(database, table):
                raise SourceError(f"the producer's filters let no table {name!r} through: name one as DATABASE.TABLE")
            sequence, position = self._reached(session, server)
            _await_prepared(session, self._settings.read_timeout)
            found = read_table(session, database, table, history=self._settings.schema_history)
            if found is None:
                raise SourceError(f"{endpoint.where} has no table {name}, or does not show it to the account: GRANT SELECT ON it")
            settings = replace(self._settings, password=self._settings.secret(), password_file="")  # that file is on this host
            cut = _bounds(session, self._selection(found), parts, settings.read_timeout)
            return ServerTable(settings, endpoint, server.identity, found, tuple(pairwise([(), *cut, ()])), sequence, position)
        finally:
            session.close()

    def _selection(self, table: SourceTable) -> Selection:
        blob = encode_schema(table.schema)
        return selection(table, self._settings.table_filter().condition(table.schema, blob))

    def _connected(self) -> tuple[ServerSession, ServerAddress]:
        """A connection to the first server that answers."""
        errors: list[SourceError] = []
        for endpoint in self._settings.endpoints():
            try:
                session = connect(self._settings, endpoint)
                prepare(session)
                return session, endpoint
            except SourceError as error:
                errors.append(error)
        raise errors[0]

    def _reached(self, session: ServerSession, server: SourceServer) -> tuple[int, Position]:
        """The first event of the store that no read is sure to show, and the place in the binlog before it."""
        settings = self._settings
        with StoreView.attach(settings.store, path=settings.store_path or None, state=settings.state or None) as view:
            if not view.has_log:
                raise SourceError(
                    f"store {settings.store!r} has no log, so it cannot keep the changes while tables are read: create it with log = on"
                )
            point = view.ack_point_until(view.newest)
            position = view.start_position if point is None else view.peek(point, limit_events=1).position
            first = view.oldest if point is None else point + 1
        if position is None:
            raise SourceError(f"store {settings.store!r} holds nothing, and no producer has begun to fill it: start it first")
        if position.of_group:
            raise SourceError(f"store {settings.store!r} has several sources: tables can be read only with a store of one source")
        if not position.gtids and not server.mariadb:
            executed = scan_to_offset(session, position)[1]
            position = position._replace(gtids=str(executed or ""))
        return first, position


@dataclass(frozen=True)
class ServerTable:
    """A table in parts. It travels to its readers, with what is needed to log in; its text shows no secret.

    `sequence` is the first event of the store that the process that keeps a copy has to take besides the rows, `position` the place before it.
    """

    _settings: Settings
    _endpoint: ServerAddress
    _identity: str
    _table: SourceTable
    _ranges: tuple[tuple[Key, Key], ...]
    sequence: int
    position: Position

    def __repr__(self) -> str:
        return f"ServerTable({self.name}, {self.parts} parts, from {self.position.file}:{self.position.offset})"

    @property
    def name(self) -> str:
        """``DATABASE.TABLE``."""
        return f"{self._table.schema.database}.{self._table.schema.table}"

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return len(self._ranges)

    @property
    def schema(self) -> TableSchema:
        """The table's columns as the stream has them, after the column filters."""
        blob = encode_schema(self._table.schema)
        plan = self._settings.table_filter().plan(self._table.schema, blob)
        return self._table.schema if plan.blob is None else decode_schema(plan.blob)

    def read(self, part: int) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """Yield the rows of a part as encoded READ events, and where these end, some at a time; in the order of the key.

        A lost connection is opened again, behind the last row that was given. Raises `SourceError`.
        """
        reading = _Reading(self._settings, self._endpoint, self._identity, self._table, self.position, self._ranges[part])
        try:
            yield from reading.pieces()
        finally:
            reading.close()


def _await_prepared(session: ServerSession, wait: float) -> None:
    """Wait until the XA transactions that are prepared now have ended. Raises `SourceError`."""
    waiting = prepared(session)
    until = time.monotonic() + wait
    while waiting:
        if time.monotonic() > until:
            raise SourceError(
                f"{session.endpoint.where} has had {len(waiting)} prepared XA transactions for {wait:g} s, whose rows no read shows: XA RECOVER lists "
                "them; XA COMMIT or XA ROLLBACK them, and open the table again"
            )
        time.sleep(0.05)
        waiting &= prepared(session)


# ---------------------------------------------------------------- one part


class _Reading:
    """Reads one part."""

    def __init__(
        self,
        settings: Settings,
        endpoint: ServerAddress,
        identity: str,
        table: SourceTable,
        position: Position,
        bounds: tuple[Key, Key],
    ) -> None:
        self._settings, self._endpoint, self._identity = settings, endpoint, identity
        self._table, self._position = table, position
        self._filters = settings.table_filter()
        blob = encode_schema(table.schema)
        self._plan = self._filters.plan(table.schema, blob)
        self._selection = selection(table, self._filters.condition(table.schema, blob))
        self._blob = blob if self._plan.blob is None else self._plan.blob
        self._limit = max(1, CHUNK_BYTES // (table.row_bytes or 128)) if table.key is not None else 0
        self._session: ServerSession | None = None
        self._server: SourceServer | None = None
        self._after, self._until = bounds
        self._given = self._whole = False

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def pieces(self) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """Yield the rows."""
        backoff = Backoff(self._settings)
        while not self._whole:
            try:
                for event in self._chunk():
                    backoff.reset()
                    yield event, np.array([len(event)], np.int64)
            except (LinkLost, ServerUnreachable):
                self.close()
                wait = backoff.failed()
                if backoff.failures > ATTEMPTS or (self._given and self._table.key is None):
                    raise
                time.sleep(wait)

    def _chunk(self) -> Iterator[bytes]:
        """Yield some rows behind the last that were given as an event; a chunk of rows in all, and none behind the last chunk's."""
        session = self._begin()
        end: Key = ()
        # The server sends nothing while it looks for a row that passes: so it looks through no more than a chunk.
        if self._selection.condition and self._limit:
            end = _end(session, self._selection, self._after, self._limit, self._settings.read_timeout, self._until)
        sql = self._selection.sql(self._after, end or self._until, 0 if end else self._limit)
        wait, done, count = self._settings.read_timeout, False, 0
        rows = SelectRows(session, sql, self._selection.columns, len(self._table.schema.columns), wait)
        silent = bool(self._selection.condition) and not self._limit  # without a key there are no ranges to look through
        while not done:
            done = rows.fill(PIECE_BYTES, None if silent else wait)
            if len(rows):
                self._after = literals(self._selection, rows.last) if self._table.key is not None else ()
                self._given = True
                count += len(rows)
                event = self._event(Packed(rows.rows.array(0, len(rows))))
                rows.clear()
                yield event
        session.query("COMMIT")
        self._after = end or self._after
        self._whole = not end and not 0 < self._limit <= count

    def _begin(self) -> ServerSession:
        """Begin a consistent read that shows all up to the position, of a table that is as it was. Raises `SourceError`."""
        settings = self._settings
        if self._session is None:
            self._session = connect(settings, self._endpoint)
            prepare(self._session, sparse=bool(self._selection.condition))
            self._server = read_server(self._session)
            if self._server.identity != self._identity:
                raise SourceError(
                    f"{self._endpoint.where} is another server ({self._server.identity}) than the one whose table was opened ({self._identity}): "
                    "open the table again"
                )
        session, server = self._session, self._server
        assert server is not None
        until = time.monotonic() + settings.read_timeout
        executed = server.executed(self._position.gtids) if self._position.gtids or not server.mariadb else None
        while begin(session, server, self._position, executed) is None:
            if time.monotonic() > until:
                raise SourceError(
                    f"{self._endpoint.where} has not executed what the store holds, up to {self._position.file}:{self._position.offset}: is it the "
                    "server that the store's producer reads?"
                )
            time.sleep(0.005)
        schema = self._table.schema
        now = read_table(session, schema.database, schema.table, history=settings.schema_history)
        if now is None or (now.schema, now.key, now.collations) != (schema, self._table.key, self._table.collations):
            raise SourceError(
                f"{schema.database}.{schema.table} was changed by a DDL, or dropped, after it was opened: open it again and read it from the beginning"
            )
        return session

    def _event(self, rows: Packed) -> bytes:
        body: list[Any] = [None, None, None, rows]
        if self._plan.blob is not None:
            body = self._filters.apply(self._plan, body, len(self._table.schema.columns))
        position = self._position
        header = Header(
            int(EntryType.ROWS),
            int(EventType.READ),
            position.file,
            position.offset,
            length=0,
            time_ms=calendar_ms(),
            server_id=0,
            transaction=f"{position.file}:{position.offset}",
            order=0,
            part=0,
            gtids="",
            row=0,
            database=self._table.schema.database,
            sql="",
            props={},
        )
        return encode_stored(header, self._blob, body)


# ---------------------------------------------------------------- where parts end


def _bounds(session: ServerSession, selected: Selection, parts: int, wait: float) -> list[Key]:
    """Return where parts end: fewer than `parts` keys, in order. Those of an index that begins with an integer are its first column alone."""
    table = selected.table
    if table.key is None:
        return []
    source = f"FROM {table.name} FORCE INDEX ({quoted(table.key.name)})"
    rows = _estimate(session, f"SELECT 1 {source}")
    parts = min(parts, 1 + rows // LEAST_ROWS)
    if parts < 2:
        return []
    first = table.schema.columns[table.key.columns[0]]
    if first.type in _INTEGERS:
        return [(str(value),) for value in _halved(session, source, quoted(first.name), parts)]
    found: list[Key] = []
    step = max(LEAST_ROWS, rows // parts)
    while True:
        end = _end(session, selected, found[-1] if found else (), step, wait)
        if not end:
            return found
        found.append(end)


def _end(session: ServerSession, selected: Selection, after: Key, rows: int, wait: float, until: Key = ()) -> Key:
    """The key that stands so many rows, of any kind, behind `after`, not behind `until`; empty where fewer are left."""
    sql = selected.key_sql(after, rows, until)
    found = SelectRows(session, sql, selected.key_columns, len(selected.key_columns), wait)
    found.fill(1 << 30, wait)
    return key_literals(selected, found.last) if len(found) else ()


def _halved(session: ServerSession, source: str, column: str, parts: int) -> list[int]:
    """Return the values that ranges of an integer column end with, but for the last."""

    def estimated(low: int, high: int) -> tuple[int, int, int]:
        # COUNT: of a plain SELECT MySQL makes no estimate where the index is forced
        sql = f"SELECT COUNT(*) {source} WHERE {column} BETWEEN {low} AND {high}"
        return -_estimate(session, sql), low, high

    low, high = session.query(f"SELECT MIN({column}), MAX({column}) {source}")[0]
    if low is None:
        return []
    ranges = [estimated(int(low), int(high))]  # those that have most rows first
    whole: list[tuple[int, int, int]] = []  # ranges that cannot be halved
    left = HALVINGS
    while ranges and left and ranges[0][0] * parts * PIECES < sum(rows for rows, _, _ in (*ranges, *whole)):
        rows, low, high = ranges[0]
        if low == high:
            whole.append(heapq.heappop(ranges))
            continue
        left -= 1
        middle = (low + high) // 2
        heapq.heapreplace(ranges, estimated(low, middle))
        heapq.heappush(ranges, estimated(middle + 1, high))
    pieces = sorted([*whole, *ranges], key=lambda each: each[1])
    total, ends, passed = -sum(rows for rows, _, _ in pieces), list[int](), 0
    for rows, _, high in pieces[:-1]:
        before, passed = passed, passed - rows
        if passed * parts // total > before * parts // total:
            ends.append(high)
    return ends


def _estimate(session: ServerSession, sql: str) -> int:
    """Return how many rows the server takes a SELECT to look at."""
    names, rows = session.select(f"EXPLAIN FORMAT=TRADITIONAL {sql}")
    return int(dict(zip([name.lower() for name in names], rows[0], strict=True)).get("rows") or 0)
