"""Snapshots: the rows of chosen tables, put between the stream's transactions while the stream goes on.

Plan. A table is read chunk by chunk in the order of its key (`chunks`), over several connections, each with a chunk of its own; no
lock is taken and nothing is written to the server. Between two reads of the stream `step` does a little of each:

    open    at a transaction end of the stream, low: put an event that says so where the table begins; note from here on the keys
            of this table that are put (`Window`), and begin
            a consistent read of the chunk, which must show all that the stream has read. high: where the log ends then
    read    take the rows as they come, a few milliseconds at a time; the stream is read in between
    put     at the first transaction end behind high, and when the chunks before it are put: rows whose keys were noted are left out,
            since the stream has brought a newer state of them; the others are, at this position, as the server has them. Then
            write down the last key

What is put is one or more whole transactions, BEGIN, READ events, END. They stand at the transaction end that was put before
them (same file, offset, GTIDs), `order` goes on counting, and a checkpoint may stand at their END.

Where something came between, all chunks under way are forgotten and begun again behind the last key that is put; where a link
broke, only the chunk that was read over it.

A table without a key cannot be read in parts, nor its rows distinguished: it is read whole, at a position behind which nothing
of it was put, and the stream waits meanwhile. No other chunk is under way then.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmstore import EventStore, EventType, Position, SourceError, UnsupportedEvent
from shmstore.clock import calendar_ms
from shmstore.encoding.codec import Packed, decode_schema, encode_schema, pack, unpack_rows
from shmstore.home.acks import checkpoints_in
from shmstore.home.snapshots import Progress, ProgressFile, Request, TableProgress, Task, new_id
from shmstore.patterns.linear_regex import PatternRefused
from shmstore.producer import gtid
from shmstore.producer.connection.backoff import Backoff
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.server import SourceServer
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.errors import LinkLost, LoginRefused, PatternError, PrivilegeMissing, ServerUnreachable
from shmstore.producer.filters.part import Part
from shmstore.producer.filters.table_filter import read_patterns
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.chunks import MOST_BYTES, Chunk, EndAsked, Shape, TableRead
from shmstore.producer.snapshot.read_events import ReadEvents
from shmstore.producer.snapshot.select import selection
from shmstore.producer.snapshot.tables import defined_as, list_tables, may_select, read_table
from shmstore.producer.snapshot.watermarks import begin, free_connections, prepare, prepared, refusal
from shmstore.producer.stop import Stop
from shmstore.producer.transactions.decoder import EventDecoder
from shmstore.sql.classify import Statement

# Reasons of requests that may mean no table: for those that no copy has yet, and for one that a DDL changed, which may be dropped since,
# or not be read (what gh-ost and pt-online-schema-change rename a table to).
_OF_COPIES = ("missing", "reread")
SLICE = 0.02  # seconds of reading between two looks at the stream
SHOWN = 1.0  # seconds after which the rows of a table without key are written down again, for who looks
CONNECTIONS = 4  # at most, where nothing was said
ATTEMPTS = 20  # of one chunk
PATIENCE = 5.0  # seconds before a chunk that waits for XA transactions says so
MISSES = 3  # looks in a row that met the stream inside a transaction; then each end is looked for


class Snapshot:
    """The snapshots of one store."""

    def __init__(self, settings: Settings, store: EventStore, decoder: EventDecoder, log: logging.Logger, stop: Stop) -> None:
        self._settings, self._store, self._decoder, self._log, self._stop = settings, store, decoder, log, stop
        self._file = ProgressFile(store.home, store.may_produce)
        self.progress = self._file.load() or Progress(store.epoch)
        if self.progress.epoch == store.epoch and self.progress.ahead_of(store.newest):  # the host crashed
            self.progress.rewind(store.newest)
            self._file.save(self.progress)  # before anything is put: what comes now has those sequences
        self._sessions: list[ServerSession] = []  # for reading chunks
        self._most = 0  # how many of them there may be; 0: the server was not asked yet
        self._server: SourceServer | None = None
        self._read_events = ReadEvents(decoder.state, decoder.buffer, store.limit_bytes)
        self._tables: list[TableRead] = []  # under way, in the order of their tasks
        self._busy: Task | None = None  # whose chunk is looked at
        self._written: list[tuple[Task, TableProgress]] = []  # what is in the transaction buffer
        self._backoff = Backoff(settings)  # of its own links
        self._disturbed: dict[tuple[str, str], int] = {}  # how often each table's chunks were begun in vain since one was put
        self._using: ServerSession | None = None  # the connection that is waited for: where a link is lost, it is this one's
        self._retry = 0.0  # when another one may be opened
        self._pause, self._heard = 0.0, False
        self._ahead: list[Position] = []
        self._saved = 0.0
        self.holds = False  # True while the stream must not be read
        self.active = False  # True while there is something to do
        self.waits = False  # True while an end of a transaction is wanted and was not met by chance
        self._misses, self._wants_end = 0, False

    # ------------------------------------------------------------ requests

    def want(self, session: ServerSession, server: SourceServer, reason: str) -> None:
        """Write down, before anything is put, that all tables are wanted. Raises `SourceError` where they cannot be had."""
        request = Request(new_id(), (), reason, calendar_ms())
        if problem := refusal(server) or self._choose(session, request)[1]:
            raise SourceError(f"no snapshot can be taken: {problem}")
        self.progress = Progress(self._store.epoch)
        self._file.save(self.progress)
        self._file.ask(request)

    def begin(self, server: SourceServer) -> None:
        """The stream comes from `server` from now on."""
        self._drop()
        self._server, self._heard, self._pause, self._retry, self._most = server, False, 0.0, 0.0, 0
        self._disturbed.clear()
        self._written.clear()
        self._backoff.reset()
        server_id = int(server.variables.get("server_id") or 0)
        self._read_events = ReadEvents(self._decoder.state, self._decoder.buffer, self._store.limit_bytes, server_id)
        last = self._store.latest_event
        if last is not None and last.type is EventType.READ and not last.ends_transaction:
            self._read_events.close(last)  # a former producer died there; its rows are read again
        for task in self.progress.tasks:
            if task.open and not task.progress.chunks:
                task.progress = TableProgress()  # without a key, and left in the middle
        if self.progress.epoch != self._store.epoch:
            if self.progress.tasks:
                self.progress.rewind(self._file.acked(self.progress.epoch))
            self.progress.epoch = self._store.epoch
            self._file.save(self.progress)
        found = checkpoints_in(self._store.home).values()
        # Such a reader gets nothing again that it had acked; a row put before that would stay older than what it has.
        self._ahead = [
            checkpoint.position for checkpoint in found if self._store.has_log or checkpoint.epoch != self._store.epoch
        ]
        self.active = self.progress.open
        self.look()

    def look(self) -> None:
        """Take in what was asked for. Call it about once a second."""
        if self._server is None or not (asked := self._file.asked()):
            return
        known = {request.id for request in self.progress.requests}
        for path, request in asked:
            if request.cancel:
                self.progress.cancel()
                self._disturbed.clear()
                self._drop()
            elif request.id not in known:
                try:
                    self._take(self._server, request)
                except SourceError as error:
                    self._log.warning("snapshot %s waits: %s", request.id, error)
                    return
            self._file.save(self.progress)
            self._file.take_in(path)
        self.active = self.progress.open

    def _take(self, server: SourceServer, request: Request) -> None:
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
        self.progress.take(request._replace(problem=problem), tables)

    def _choose(self, session: ServerSession, request: Request) -> tuple[list[tuple[str, str]], str]:
        """The tables that a request means, and what of it means none."""
        patterns = read_patterns(request.tables)
        seen = list_tables(session, self._decoder.filter.passes)
        tables = [(db, name) for db, name in seen if not patterns or patterns.match(f"{db}.{name}")]
        missing = [each for each in patterns.wanted if not any(read_patterns(each).match(f"{db}.{name}") for db, name in tables)]
        if request.reason in _OF_COPIES:
            return tables, ""
        if tables:
            return tables, f"no table matches {', '.join(missing)}" if missing else ""
        what = f"no table matches {', '.join(request.tables)}" if request.tables else "the filters let no table through"
        if may_select(session):
            return [], what if request.tables else ""  # a database may begin empty
        return [], f"{what}: the account sees no table; GRANT SELECT ON *.* TO it, or on the databases wanted"

    # ------------------------------------------------------------ between reads of the stream

    def note(self, blob: memoryview, slots: NDArray[np.void]) -> None:
        """Note what is being put."""
        if windows := [table.window for table in self._tables if table.chunks]:
            copy = bytes(blob)
            for window in windows:
                window.note(copy, slots)

    def altered(self, statement: Statement, database: str) -> None:
        """A DDL goes by, whatever the filter, with this default database."""
        for table in self._tables:
            table.stale = True
            table.window.altered(statement, database)

    def step(self, heard: bool, *, read: bool = True) -> None:
        """Do a little. `heard`: something of the stream was read since the last call. What is ready must have been put.

        With `read` False only what takes an end of a transaction is done: the stream has more that is to be put first.
        """
        self._heard |= heard
        if not self._heard or time.monotonic() < self._pause:
            return
        self._misses = 0 if self._at_end() else self._misses + 1
        self._wants_end = False
        self._try(partial(self._advance, read))
        self.waits = self._misses > MISSES and self._wants_end

    def _try(self, work: Callable[[], object]) -> None:
        """Work, and begin again, or give a table up, where the server does not do its part."""
        try:
            work()
        except (LinkLost, ServerUnreachable, LoginRefused) as error:
            wait = self._backoff.failed()
            self._log.warning("snapshot: %s; trying again in %.1f s", error, wait)
            self._lose(wait)
        except SourceError as error:
            if self._busy is None or not self._busy.open:
                raise
            self._stumble(self._busy, str(error), final=isinstance(error, PrivilegeMissing))

    def read_on(self) -> None:
        """The ring is full, for who knows how long: end the reads that are under way, so that the server is rid of them."""
        if not self.holds:  # nothing is put, nor begun: what is being put is not in the store yet
            self._try(lambda: self._read_more(time.monotonic() + 1.0))

    def _advance(self, read: bool) -> None:
        self._busy = next((task for task in self.progress.tasks if task.open), None)
        if self._busy is None:
            self._log.info("snapshot: all that was asked for is in the store")
            self._drop()
            self.active = False
            return
        if not self.holds:
            self._place_ready()
        if self.holds:
            self._read_whole(self._tables[0].chunks[0])
            return
        until = time.monotonic() + SLICE
        self._open_more()
        while read and self._read_more(until):
            self._open_more()

    def _reading(self) -> list[Chunk]:
        return [chunk for table in self._tables for chunk in table.chunks if chunk.reading]

    def _at_end(self) -> bool:
        """Whether the stream is between two transactions, and the store ends inside none."""
        state = self._decoder.state
        return bool(state.file) and not state.in_transaction and state.tail is None

    def _behind_readers(self) -> bool:
        """Whether a reader had acked, in an earlier life of the store, what the stream has yet to bring again."""
        self._ahead = [position for position in self._ahead if not self._reached(position)]
        return bool(self._ahead)

    def _reached(self, position: Position) -> bool:
        executed = self._decoder.executed
        if position.gtids and executed is not None:
            with suppress(ValueError):
                wanted = gtid.parse(position.gtids)
                return type(wanted) is not type(executed) or executed.covers(wanted)
        return self._decoder.position.order >= position.order

    # ------------------------------------------------------------ a chunk

    def _open_more(self) -> None:
        """Give each connection that has nothing to read a chunk, or have it ask where the next one ends."""
        if time.monotonic() < self._pause:
            return
        # What is read waits for the chunks before it: it must not become more and more.
        while sum(len(table.chunks) for table in self._tables) <= max(1, self._most) or self._unopened():
            session = self._using = self._idle()
            if session is None:
                return
            chunk = self._unopened() or self._plan(session)
            if chunk is None:
                return
            if not self._at_end():
                self._wants_end = True
                return
            if self._behind_readers() or not self._open(chunk, session):
                return

    def _idle(self) -> ServerSession | None:
        """A connection that reads nothing; None where all do."""
        busy = [chunk.session for table in self._tables for chunk in table.chunks]
        busy += [table.asked.session for table in self._tables if table.asked is not None]
        idle = next((session for session in self._sessions if session not in busy), None)
        if idle is None and len(self._sessions) < max(1, self._most) and time.monotonic() >= self._retry:
            self._using = None
            try:
                idle = self._connected()
            except SourceError as error:
                if not self._sessions:
                    raise
                self._most = len(self._sessions)
                self._log.info("snapshot: reading over %d connections: no other can be opened: %s", self._most, error)
        return idle

    def _connected(self) -> ServerSession:
        """Open one more connection for reading."""
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

    def _unopened(self) -> Chunk | None:
        """A chunk that is in line, and read by nobody yet."""
        return next((chunk for table in self._tables if (chunk := table.may_open)), None)

    def _plan(self, session: ServerSession) -> Chunk | None:
        """The next chunk of the tables under way, else the first of the next table; None where none can be begun now."""
        wait, alone = self._settings.read_timeout, self._most == 1
        if any(table.asked is not None for table in self._tables):
            return None  # the next one is what the answer makes
        for table in self._tables:
            self._busy = table.task
            if (chunk := table.plan(session, wait, alone=alone)) is not None or table.asked is not None:
                return chunk
        names = {(table.task.database, table.task.table) for table in self._tables}
        for task in self.progress.tasks:
            if not task.open or (task.database, task.table) in names:
                continue
            if any(table.keyless for table in self._tables):
                return None
            self._busy = task
            shape = self._shape_of(session, task)
            if shape is None:
                continue
            table = TableRead(task, shape, self._settings.snapshot_chunk)
            if table.keyless and any(table.chunks for table in self._tables):
                return None
            self._tables.append(table)
            return table.plan(session, wait, alone=alone)
        return None

    def _open(self, chunk: Chunk, session: ServerSession) -> bool:
        """Begin to read a chunk; False where that is to be tried again."""
        table, task = chunk.table, chunk.table.task
        self._busy = task
        assert self._server is not None
        if table.stale:
            if self._written:
                return False  # first that counts: the key may be another now
            shape = self._shape_of(session, task)
            if shape is None:
                self._drop()
                return False
            if shape != table.shape:
                self._stumble(task, "a DDL changed it")
                return False
            table.stale = False
        if chunk.segment < 0:
            chunk.note_from(self._decoder.position, self._decoder.executed)
            chunk.waits_for, chunk.waits_until = prepared(session), time.monotonic() + PATIENCE
            if not table.began:
                # At low: whoever begins to keep the table's changes at this event has those that the first rows are put without.
                table.began = True
                self._put(chunk, "first")
        if self._waits(chunk, session):
            return False
        high = begin(session, self._server, chunk.low, chunk.executed)
        if high is None:
            self._pause = time.monotonic() + 0.005  # a commit on its way
            return False
        chunk.session, chunk.began = session, time.monotonic()
        if not table.keyless:
            chunk.rows = self._select(session, chunk)
        chunk.high = high
        return True

    def _waits(self, chunk: Chunk, session: ServerSession) -> bool:
        """Whether XA transactions that were prepared before low have not ended yet; said once where it takes long."""
        if not chunk.waits_for:
            return False
        chunk.waits_for &= prepared(session)
        if not chunk.waits_for:
            return False
        now = time.monotonic()
        if now > chunk.waits_until:
            chunk.waits_until = float("inf")
            task = chunk.table.task
            self._log.warning(
                "snapshot: %s.%s waits for %d prepared XA transactions, whose rows no read shows: XA RECOVER lists them; XA COMMIT or XA "
                "ROLLBACK them",
                *(task.database, task.table, len(chunk.waits_for)),
            )
        self._pause = now + 0.05
        return True

    def _select(self, session: ServerSession, chunk: Chunk) -> SelectRows:
        selected = chunk.table.shape.selected
        sql = selected.sql(chunk.after, chunk.until, 0 if chunk.until else chunk.limit)
        return SelectRows(session, sql, selected.columns, len(selected.shown), self._settings.read_timeout)

    def _request(self, task: Task) -> Request:
        return next(request for request in self.progress.requests if request.id == task.request)

    def _shape_of(self, session: ServerSession, task: Task) -> Shape | None:
        """How the table is read now; None where there is nothing to read."""
        table = read_table(session, task.database, task.table, history=self._settings.schema_history)
        if table is None:
            self._settle(task, "gone", "there is no such table any more")
            return None
        table = defined_as(table, self._decoder.known(task.database, task.table))
        blob = encode_schema(table.schema)
        plan = self._decoder.filter.plan(table.schema, blob)
        key = table.key.columns if table.key else ()
        by = tuple([table.schema.columns[i].name for i in key])
        names = (table.schema if plan.blob is None else decode_schema(plan.blob)).names
        masked = [table.schema.columns[i].name for i, hashed in plan.change if i in key and not hashed]
        if lost := [name for name in by if name not in names or name in masked]:
            self._settle(task, "failed", f"its key needs column {lost[0]}, which column filters take out or mask")
            return None
        if task.by and task.by != by and task.progress.key:
            self._log.warning("snapshot: %s.%s has another key now: read from its beginning", task.database, task.table)
            task.progress = TableProgress()
        try:
            request = self._request(task)
            part = Part.read(request.where, request.columns)
            shown = part.shown(table.schema, key, plan)
            rows = self._decoder.filter.condition(table.schema, blob), part.condition(table.schema, plan)
        except UnsupportedEvent as error:
            self._settle(task, "failed", str(error))
            return None
        task.by, task.began_ms = by, task.began_ms or calendar_ms()
        task.estimate = 0 if request.where else table.rows
        selected = selection(table, *rows, shown=shown)
        hashed = frozenset(i for i, is_hashed in plan.change if is_hashed).intersection(key)
        places, partial_ = tuple([shown.index(i) for i in key]), part.partial(table.schema, shown, plan)
        return Shape(selected, blob, plan, by, places, frozenset(shown.index(i) for i in hashed), partial_)

    def _read_more(self, until: float) -> bool:
        """Take what the connections bring; True when a chunk is whole, or may be begun, and there is time left."""
        while (left := until - time.monotonic()) > 0:
            asked = [table.asked for table in self._tables if table.asked is not None]
            reads: list[Chunk | EndAsked] = [*self._reading(), *asked]
            reading = {one.rows.fileno(): one for one in reads if one.rows is not None}
            if not reading:
                return False
            poll = select.poll()
            for number in reading:
                poll.register(number, select.POLLIN)
            ready = {number for number, one in reading.items() if one.rows is not None and one.rows.more}
            ready.update(one.rows.fileno() for one in asked if one.overdue)
            ready.update(number for number, _ in poll.poll(0 if ready else 1000 * left))
            for number in ready:
                one = reading[number]
                self._busy, self._using = one.table.task, one.session
                if isinstance(one, Chunk) and one.broken:
                    self._stumble(self._busy, one.broken)
                    return False
                if self._read(one):
                    return True
        return False

    def _read(self, chunk: Chunk | EndAsked) -> bool:
        """Take what has come of a chunk, or of where one ends; True when it is whole."""
        if isinstance(chunk, EndAsked):
            if chunk.take():
                chunk.table.answered()
                return True
            return False
        rows, session = chunk.rows, chunk.session
        assert rows is not None
        assert session is not None
        done = rows.take()
        if done:
            session.query("COMMIT")
        elif rows.size > MOST_BYTES and len(rows):
            self._hang_up(session)  # quicker than to read on to the end
        else:
            return False
        chunk.table.came(chunk, cut=not done)
        return True

    def _place_ready(self) -> None:
        """Put the chunks whose turn it is."""
        for table in list(self._tables):
            while table.chunks and (chunk := table.chunks[0]).high is not None and (chunk.whole or table.keyless):
                self._wants_end = True
                if not self._at_end():
                    return
                if self._decoder.position.order < chunk.high.order:
                    break
                self._wants_end = False
                self._busy = table.task
                if chunk.broken:
                    self._stumble(table.task, chunk.broken)
                    return
                self._place(chunk)
                if self.holds or table not in self._tables:
                    return
                if table.chunks and table.chunks[0] is chunk:
                    break

    def _place(self, chunk: Chunk) -> None:
        table, task = chunk.table, chunk.table.task
        if table.keyless:
            if table.window.changed(chunk.segment):
                self._stumble(
                    task, "it has no key and changed while it was to be read; give it a primary key, or ask again when it rests"
                )
                return
            assert chunk.session is not None
            self.holds, self._using = True, chunk.session
            chunk.rows = self._select(chunk.session, chunk)
            return
        ends = table.planned and len(table.chunks) == 1
        count = self._put(chunk, "last" if ends else "")
        table.put(chunk)
        key = chunk.until or chunk.last or table.progress.key
        table.progress = TableProgress("done" if ends else "reading", key, table.progress.rows + count, table.progress.chunks + 1)
        self._written.append((task, table.progress))
        self._disturbed.pop((task.database, task.table), None)
        self._backoff.reset()

    def _read_whole(self, chunk: Chunk) -> None:
        """Put the rows of a table without key as they come: the stream stands still."""
        task, rows, session = chunk.table.task, chunk.rows, chunk.session
        assert rows is not None
        assert session is not None
        done = rows.step(SLICE)
        read = task.progress.rows + self._put(chunk, "last" if done else "")
        if len(rows):
            rows.clear()
        task.progress = task.progress._replace(state="reading", rows=read)
        if not done and time.monotonic() - self._saved >= SHOWN:  # for who looks: after a crash it is read from its beginning
            self._saved = time.monotonic()
            self._file.save(self.progress)
        if done:
            session.query("COMMIT")
            chunk.table.put(chunk)
            self._written.append((task, task.progress._replace(state="done", chunks=1)))
            self.holds = False
            self._disturbed.pop((task.database, task.table), None)
            self._backoff.reset()

    def _put(self, chunk: Chunk, part: str) -> int:
        """Write the rows that the stream brought nothing newer of into the transaction buffer; return how many.

        The first event of a table, and the last, say so (`part`), even where they have no rows.
        """
        shape, task, rows = chunk.table.shape, chunk.table.task, chunk.rows
        count = 0 if rows is None else len(rows)
        if rows is not None and count and (keys := chunk.table.window.keys(chunk.segment)):
            rows.rows.leave_out(self._as_selected(shape, rows, keys) if shape.hashed else keys, shape.key_indexes)
            count = len(rows)
        if count or part:
            request = self._request(task)
            props = {"snapshot": request.id, "snapshot_reason": request.reason}
            if shape.partial:
                props["snapshot_partial"] = shape.partial
            name = task.database, task.table
            size = 0 if rows is None else rows.size
            some = partial(self._body, shape, rows)
            self._read_events.put(self._store.latest_event, name, shape.schema, count, some, size, props, part)
        return count

    def _as_selected(self, shape: Shape, rows: SelectRows, keys: list[set[bytes]]) -> list[set[bytes]]:
        """Those of `keys`, which hold hashes as the stream does, that `rows` have, with the values that the server has."""
        found = set()
        for row in unpack_rows(Packed(rows.rows.array(0, len(rows)))):
            own = [(row[i], i in shape.hashed) for i in shape.key_indexes]
            as_put = b"".join([pack(self._decoder.filter.digest(value) if hashed else value) for value, hashed in own])
            if any(as_put in one for one in keys):
                found.add(b"".join([pack(value) for value, _ in own]))
        return [found]

    def _body(self, shape: Shape, rows: SelectRows | None, first: int, count: int) -> list[Any]:
        """The body of an event with some of the rows, after the column filters."""
        if rows is None or not count:
            return [None, None, None, []]
        body = [None, None, shape.present, Packed(rows.rows.array(first, count))]
        if shape.plan.blob is None:
            return body
        return self._decoder.filter.apply(shape.plan, body, len(shape.selected.table.schema.columns))

    def settle(self) -> None:
        """Write down how far it is. Call it when what `step` left in the transaction buffer is in the store."""
        if not self._written:
            return
        written, self._written = self._written, []
        newest = self._store.newest
        safe = self._store.sync(newest, 0.0) if self._store.has_log else self._file.acked(self._store.epoch)
        for task, progress in written:
            task.progress = progress
            if progress.state == "done":
                self._log.info("snapshot: %s.%s: %d rows in %d chunks", task.database, task.table, progress.rows, progress.chunks)
                self._settle(task, "done", save=False)
            self.progress.mark(newest, task, -1 if safe is None else safe)
        self._file.save(self.progress)

    # ------------------------------------------------------------ what goes wrong

    def _stumble(self, task: Task, problem: str, *, final: bool = False) -> None:
        """Begin the chunks again; after many times, or where that is no use, give the table up."""
        name = task.database, task.table
        self._disturbed[name] = disturbed = self._disturbed.get(name, 0) + 1
        if final or disturbed > ATTEMPTS:
            if final:
                problem = f"{problem.partition(';')[0]}; GRANT SELECT ON {'.'.join(name)} TO the producer's account"
            self._settle(task, "failed", problem)
        else:
            self._log.info("snapshot: %s.%s: a chunk is read again: %s", *name, problem)
        self._drop(0.01 * disturbed)

    def _settle(self, task: Task, state: str, problem: str = "", *, save: bool = True) -> None:
        self.progress.settle(task, state, problem)
        self._tables = [table for table in self._tables if table.task is not task]
        self._disturbed.pop((task.database, task.table), None)
        if problem:
            log = self._log.warning if state == "gone" else self._log.error
            log("snapshot: %s.%s is left out: %s", task.database, task.table, problem)
        if save:
            self._file.save(self.progress)

    def _drop(self, wait: float = 0.0) -> None:
        """Forget the chunks under way. What is in the transaction buffer of others is put, and counts (`settle`)."""
        if self.holds and self._tables and self._tables[0].task.open:
            self._tables[0].task.progress = TableProgress()  # of a table without key nothing counts until all of it is there
        self._tables.clear()
        self.holds = False
        self._pause = time.monotonic() + wait
        for session in self._sessions[:]:
            self._hang_up(session)

    def _lose(self, wait: float) -> None:
        """A link broke, or none comes about: what was read over it is begun again, after so many seconds if over a new one; the others read on."""
        session, self._using = self._using, None
        self._retry = time.monotonic() + wait
        if session in self._sessions:
            self._hang_up(session)
            for table in self._tables:
                table.lost(session)
        # What is put of a table without a key is to be put from its beginning. With no connection left nobody knows for how long
        # what is put would have to be noted.
        if self.holds or not self._sessions:
            self._drop(wait)

    def _hang_up(self, session: ServerSession) -> None:
        session.close()
        self._sessions.remove(session)

    def close(self) -> None:
        """The stream is read no further on this link: end the reads under way, which the server keeps old rows for."""
        self._written.clear()
        self._drop()
