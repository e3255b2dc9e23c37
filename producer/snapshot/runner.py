"""Snapshots: the rows of chosen tables, put between the stream's transactions while the stream goes on.

Plan. A table is read chunk by chunk in the order of its key (`chunks`); no lock is taken and nothing is written to the server.
Between two reads of the stream `step` does a little, and begins a chunk again where something came between:

    open    at a transaction end of the stream, low: put an event that says so where the table begins; note from here on the keys
            of this table that are put (`window`), and begin
            a consistent read of the next rows, which must show all that the stream has read. high: where the log ends then
    read    take the rows as they come, a few milliseconds at a time; the stream is read in between
    put     at the first transaction end behind high: rows whose keys were noted are left out, since the stream has brought a
            newer state of them; the others are, at this position, as the server has them. Then write down the last key

What is put is one or more whole transactions, BEGIN, READ events, END. They stand at the transaction end that was put before
them (same file, offset, GTIDs), `order` goes on counting, and a checkpoint may stand at their END.

A table without a key cannot be read in parts, nor its rows distinguished: it is read whole, at a position behind which nothing
of it was put, and the stream waits meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from shmstore import EventStore, EventType, Position, SourceError, checkpoints
from shmstore.encoding.codec import Packed, decode_schema, encode_schema
from shmstore.producer import gtid
from shmstore.producer.connection.backoff import Backoff
from shmstore.producer.connection.prepared import Rows
from shmstore.producer.connection.server import Server
from shmstore.producer.connection.session import Session, connect
from shmstore.producer.errors import LinkLost, LoginRefused, PrivilegeMissing, ServerUnreachable
from shmstore.producer.filter import TablePlan, read_patterns
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.changed_keys import Window
from shmstore.producer.snapshot.read_events import ReadEvents
from shmstore.producer.snapshot.select import Selection, literals, selection
from shmstore.producer.snapshot.tables import defined_as, list_tables, may_select, read_table
from shmstore.producer.snapshot.watermarks import begin, prepare
from shmstore.producer.sql.classify import Statement
from shmstore.producer.transactions.decoder import EventDecoder
from shmstore.snapshots import Progress, ProgressFile, Request, TableProgress, Task, new_id, now_ms

MISSING = "missing"  # reason of a request for the tables that no copy has yet
SLICE = 0.02  # seconds of reading between two looks at the stream
CHUNK_BYTES = 16 << 20  # what a chunk is meant to take at most; of larger rows it has fewer
MOST_BYTES = 4 * CHUNK_BYTES  # what it is cut at, where the guess was wrong
ATTEMPTS = 20  # of one chunk
MISSES = 3  # looks in a row that met the stream inside a transaction; then each end is looked for


class _Shape(NamedTuple):
    """A table as it is read: the SELECT, and how its rows become events."""

    selected: Selection
    blob: bytes  # of the schema, as the table has it
    plan: TablePlan
    by: tuple[str, ...]  # the key's columns
    key_indexes: tuple[int, ...]  # of these in the rows that are put

    @property
    def schema(self) -> bytes:
        """The schema as events carry it."""
        return self.blob if self.plan.blob is None else self.plan.blob


class _Chunk:
    """A chunk under way."""

    def __init__(self, task: Task, shape: _Shape, low: Position, executed: ExecutedSet | None) -> None:
        self.task, self.shape, self.low, self.executed = task, shape, low, executed
        self.window = Window(task.database, task.table, shape.by)
        self.high: Position | None = None
        self.rows: Rows | None = None
        self.limit = 0
        self.whole = self.cut = False  # all rows are here; there were more than memory is spent on


class Snapshot:
    """The snapshots of one store."""

    def __init__(
        self, settings: Settings, store: EventStore, decoder: EventDecoder, log: logging.Logger, stop: Callable[[], bool]
    ) -> None:
        self._settings, self._store, self._decoder, self._log, self._stop = settings, store, decoder, log, stop
        self._file = ProgressFile(settings.store, settings.state or None)
        self.progress = self._file.load() or Progress(store.epoch)
        if self.progress.epoch == store.epoch and self.progress.ahead_of(store.newest):  # the host crashed
            self.progress.rewind(store.newest)
            self._file.save(self.progress)  # before anything is put: what comes now has those sequences
        self._session: Session | None = None
        self._server: Server | None = None
        self._read_events = ReadEvents(decoder.state, decoder.buffer, store.limit_bytes)
        self._shape: tuple[Task, _Shape] | None = None
        self._chunk: _Chunk | None = None
        self._written: tuple[Task, TableProgress] | None = None  # what is in the transaction buffer
        self._backoff = Backoff(settings)  # of its own link
        self._disturbed = 0  # how often the chunk that is due was begun in vain
        self._pause, self._heard, self._average = 0.0, False, 0
        self._ahead: list[Position] = []
        self._saved = 0.0
        self.holds = False  # True while the stream must not be read
        self.active = False  # True while there is something to do
        self.waits = False  # True while an end of a transaction is wanted and was not met by chance
        self._misses = 0

    # ------------------------------------------------------------ requests

    def want(self, session: Session, server: Server, reason: str) -> None:
        """Write down, before anything is put, that all tables are wanted. Raises `SourceError` where they cannot be had."""
        request = Request(new_id(), (), reason, now_ms())
        if problem := self._refusal(server) or self._choose(session, request)[1]:
            raise SourceError(f"no snapshot can be taken: {problem}")
        self.progress = Progress(self._store.epoch)
        self._file.save(self.progress)
        self._file.ask(request)

    def begin(self, server: Server) -> None:
        """The stream comes from `server` from now on."""
        self._drop()
        self._server, self._heard, self._disturbed, self._pause = server, False, 0, 0.0
        self._backoff.reset()
        server_id = int(server.variables.get("server_id") or 0)
        self._read_events = ReadEvents(self._decoder.state, self._decoder.buffer, self._store.limit_bytes, server_id)
        last = self._store.latest_event
        if last is not None and last.type is EventType.READ and not last.ends_transaction:
            self._read_events.close(last)  # a former producer died there; its rows are read again
        self._decoder.altered = self._altered
        for task in self.progress.tasks:
            if task.open and not task.progress.chunks:
                task.progress = TableProgress()  # without a key, and left in the middle
        if self.progress.epoch != self._store.epoch:
            if self.progress.tasks:
                self.progress.rewind(self._file.acked(self.progress.epoch))
            self.progress.epoch = self._store.epoch
            self._file.save(self.progress)
        found = checkpoints(self._settings.store, self._settings.state or None).values()
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
                self._disturbed = 0
                self._drop()
            elif request.id not in known:
                try:
                    self._take(self._server, request)
                except SourceError as error:
                    self._log.warning("snapshot %s waits: %s", request.id, error)
                    return
            self._file.save(self.progress)
            path.unlink(missing_ok=True)
        self.active = self.progress.open

    def _take(self, server: Server, request: Request) -> None:
        problem, tables = request.problem or self._refusal(server), list[tuple[str, str]]()
        if not problem:
            session = connect(self._settings, server.endpoint, self._stop)
            try:
                tables, problem = self._choose(session, request)
            finally:
                session.close()
        if problem:
            self._log.error("snapshot %s: %s", request.id, problem)
        if tables or not problem:
            self._log.info("snapshot %s (%s): %d tables", request.id, request.reason, len(tables))
        self.progress.take(request._replace(problem=problem), tables)

    def _choose(self, session: Session, request: Request) -> tuple[list[tuple[str, str]], str]:
        """The tables that a request means, and what of it means none."""
        patterns = read_patterns(request.tables)
        seen = list_tables(session, self._decoder.filter.passes)
        tables = [(db, name) for db, name in seen if not patterns or patterns.match(f"{db}.{name}")]
        missing = [each for each in patterns.wanted if not any(read_patterns(each).match(f"{db}.{name}") for db, name in tables)]
        if request.reason == MISSING:  # there may be none
            return tables, ""
        if tables:
            return tables, f"no table matches {', '.join(missing)}" if missing else ""
        what = f"no table matches {', '.join(request.tables)}" if request.tables else "the filters let no table through"
        if may_select(session):
            return [], what if request.tables else ""  # a database may begin empty
        return [], f"{what}: the account sees no table; GRANT SELECT ON *.* TO it, or on the databases wanted"

    def _refusal(self, server: Server) -> str:
        """Why this server's tables cannot be read so that they fit into the stream; empty where they can."""
        where = server.endpoint.where
        if not server.gtids:
            return (
                f"{where} has gtid_mode = {server.variables.get('gtid_mode', 'OFF')}: without GTIDs MySQL does not say which transactions "
                "a read shows, so that a snapshot could bring old rows; set gtid_mode = ON"
            )
        image = server.variables.get("binlog_row_image", "FULL")
        if image != "FULL":
            return f"{where} has binlog_row_image = {image}: a snapshot needs whole rows in the stream; SET GLOBAL binlog_row_image = FULL"
        return ""

    # ------------------------------------------------------------ between reads of the stream

    @property
    def window(self) -> Window | None:
        """What wants to know of each put."""
        return None if self._chunk is None else self._chunk.window

    def _altered(self, statement: Statement, database: str) -> None:
        self._shape = None
        if self._chunk is not None:
            self._chunk.window.altered(statement, database)

    def step(self, heard: bool) -> None:
        """Do a little. `heard`: something of the stream was read since the last call. What is ready must have been put."""
        self._heard |= heard
        if not self._heard or time.monotonic() < self._pause:
            return
        try:
            self._misses = 0 if self._at_end() else self._misses + 1
            self._advance()
            chunk = self._chunk
            self.waits = self._misses > MISSES and (chunk is None or chunk.rows is None or chunk.whole)
        except (LinkLost, ServerUnreachable, LoginRefused) as error:
            wait = self._backoff.failed()
            self._log.warning("snapshot: %s; trying again in %.1f s", error, wait)
            self._drop(wait)
        except SourceError as error:
            self._stumble(str(error), final=isinstance(error, PrivilegeMissing))

    def read_on(self) -> None:
        """The ring is full, for who knows how long: end the read that is under way, so that the server is rid of it."""
        until = time.monotonic() + 1.0
        while (chunk := self._chunk) and chunk.rows is not None and not (chunk.whole or self.holds):
            self.step(False)
            if time.monotonic() > until:
                return

    def _advance(self) -> None:
        task = next((task for task in self.progress.tasks if task.open), None)
        chunk = self._chunk
        if task is None:
            self._log.info("snapshot: all that was asked for is in the store")
            self._drop()
            self.active = False
        elif chunk is None or chunk.high is None:
            self._open(task)
        elif self.holds:
            self._read_whole(chunk)
        elif chunk.rows is not None and not chunk.whole:
            self._read(chunk, chunk.rows)
        elif self._at_end() and self._decoder.position.order >= chunk.high.order:
            self._place(chunk)

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

    def _open(self, task: Task) -> None:
        if not self._at_end() or self._behind_readers():
            return
        session = self._connected()
        shape = self._shape_of(session, task)
        if shape is None or self._server is None:
            return
        if self._chunk is None or self._chunk.window.broken or self._chunk.shape is not shape:
            executed = self._decoder.executed
            self._chunk = _Chunk(task, shape, self._decoder.position, executed.copy() if executed is not None else None)
            if not task.progress.chunks:
                # At low: whoever begins to keep the table's changes at this event has those that the first rows are put without.
                self._put(self._chunk, None, "first")
        chunk = self._chunk
        high = begin(session, self._server, chunk.low, chunk.executed)
        if high is None:
            self._pause = time.monotonic() + 0.005  # a commit on its way
            return
        if shape.by:
            average = self._average or shape.selected.table.row_bytes or 1
            chunk.limit = max(1, min(self._settings.snapshot_chunk, CHUNK_BYTES // average))
            chunk.rows = self._select(session, chunk, chunk.limit)
        chunk.high = high

    def _select(self, session: Session, chunk: _Chunk, limit: int = 0) -> Rows:
        selected = chunk.shape.selected
        sql = selected.sql(chunk.task.progress.key, limit)
        return Rows(session, sql, selected.columns, len(selected.table.schema.columns), self._settings.read_timeout)

    def _connected(self) -> Session:
        if self._session is None:
            assert self._server is not None
            self._session = connect(self._settings, self._server.endpoint, self._stop)
            prepare(self._session)
        return self._session

    def _shape_of(self, session: Session, task: Task) -> _Shape | None:
        """How the table is read now; None where there is nothing to read, or another try is due."""
        if self._shape is not None and self._shape[0] is task:
            return self._shape[1]
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
        task.by, task.estimate, task.began_ms = by, table.rows, task.began_ms or now_ms()
        shape = _Shape(selection(table), blob, plan, by, tuple([names.index(name) for name in by]))
        self._shape, self._average = (task, shape), 0
        return shape

    def _read(self, chunk: _Chunk, rows: Rows) -> None:
        if rows.step(SLICE):
            chunk.whole = True
            self._connected().query("COMMIT")
        elif rows.size > MOST_BYTES and len(rows):
            chunk.whole = chunk.cut = True
            self._hang_up()  # quicker than to read on to the end

    def _place(self, chunk: _Chunk) -> None:
        if chunk.window.broken:
            self._stumble(chunk.window.broken)
            return
        if chunk.rows is None:
            if chunk.window.changed:
                self._stumble(
                    "it has no key and changed while it was to be read; give it a primary key, or ask again when it rests"
                )
                return
            self.holds = True
            chunk.rows = self._select(self._connected(), chunk)
            return
        task, shape, rows = chunk.task, chunk.shape, chunk.rows
        key, came = shape.selected.table.key, len(rows)
        after = tuple(literals(shape.selected, key, rows.last)) if came and key else task.progress.key
        if came:
            self._average = max(1, rows.size // came)
        state = "done" if not chunk.cut and came < chunk.limit else "reading"
        count = self._put(chunk, rows, "last" if state == "done" else "")
        self._written = task, TableProgress(state, after, task.progress.rows + count, task.progress.chunks + 1)
        self._chunk, self._disturbed = None, 0
        self._backoff.reset()

    def _read_whole(self, chunk: _Chunk) -> None:
        """Put the rows of a table without key as they come: the stream stands still."""
        assert chunk.rows is not None
        done = chunk.rows.step(SLICE)
        read = chunk.task.progress.rows + self._put(chunk, chunk.rows, "last" if done else "")
        if len(chunk.rows):
            chunk.rows.clear()
        chunk.task.progress = chunk.task.progress._replace(state="reading", rows=read)
        if not done and time.monotonic() - self._saved >= 1.0:  # for who looks: after a crash it is read from its beginning
            self._saved = time.monotonic()
            self._file.save(self.progress)
        if done:
            self._connected().query("COMMIT")
            self._written = chunk.task, chunk.task.progress._replace(state="done", chunks=1)
            self._chunk, self._disturbed, self.holds = None, 0, False
            self._backoff.reset()

    def _put(self, chunk: _Chunk, rows: Rows | None, part: str) -> int:
        """Write the rows that the stream brought nothing newer of into the transaction buffer; return how many.

        The last event of a table says so (`part`), even where it has no rows.
        """
        shape, task = chunk.shape, chunk.task
        if rows is not None and len(rows) and chunk.window.keys:
            rows.rows.leave_out((chunk.window.keys,), shape.key_indexes)
        count = 0 if rows is None else len(rows)
        if count or part:
            request = next(request for request in self.progress.requests if request.id == task.request)
            props = {"snapshot": request.id, "snapshot_reason": request.reason}
            name = task.database, task.table
            size = 0 if rows is None else rows.size
            some = partial(self._body, shape, rows)
            self._read_events.put(self._store.latest_event, name, shape.schema, count, some, size, props, part)
        return count

    def _body(self, shape: _Shape, rows: Rows | None, first: int, count: int) -> Any:
        """Some rows as an event's body has them, after the column filters."""
        if rows is None or not count:
            return []
        found = Packed(rows.rows.array(first, count))
        if shape.plan.blob is None:
            return found
        return self._decoder.filter.apply(shape.plan, [None, None, None, found], len(shape.selected.table.schema.columns))[3]

    def settle(self) -> None:
        """Write down how far it is. Call it when what `step` left in the transaction buffer is in the store."""
        if self._written is None:
            return
        (task, progress), self._written = self._written, None
        task.progress = progress
        if progress.state == "done":
            self._log.info("snapshot: %s.%s: %d rows in %d chunks", task.database, task.table, progress.rows, progress.chunks)
            self._settle(task, "done", save=False)
        newest = self._store.newest
        safe = self._store.sync(newest, 0.0) if self._store.has_log else self._file.acked(self._store.epoch)
        self.progress.mark(newest, task, -1 if safe is None else safe)
        self._file.save(self.progress)

    # ------------------------------------------------------------ what goes wrong

    def _stumble(self, problem: str, *, final: bool = False) -> None:
        """Begin the chunk again; after many times, or where that is no use, give the table up."""
        task = next(task for task in self.progress.tasks if task.open)
        self._disturbed += 1
        self._shape = None
        if final or self._disturbed > ATTEMPTS:
            if final:
                name = f"{task.database}.{task.table}"
                problem = f"{problem.partition(';')[0]}; GRANT SELECT ON {name} TO the producer's account"
            self._settle(task, "failed", problem)
        else:
            self._log.info("snapshot: %s.%s: a chunk is read again: %s", task.database, task.table, problem)
        self._drop(0.01 * self._disturbed)

    def _settle(self, task: Task, state: str, problem: str = "", *, save: bool = True) -> None:
        self.progress.settle(task, state, problem)
        self._shape, self._disturbed = None, 0
        if problem:
            log = self._log.warning if state == "gone" else self._log.error
            log("snapshot: %s.%s is left out: %s", task.database, task.table, problem)
        if save:
            self._file.save(self.progress)

    def _drop(self, wait: float = 0.0) -> None:
        """Forget the chunk under way."""
        if self._chunk is not None and self.holds and self._chunk.task.open:
            self._chunk.task.progress = TableProgress()  # of a table without key nothing counts until all of it is there
        self._chunk, self._written, self.holds = None, None, False
        self._pause = time.monotonic() + wait
        self._hang_up()

    def _hang_up(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        """The stream is read no further on this link: end the read under way, which the server keeps old rows for."""
        self._drop()
