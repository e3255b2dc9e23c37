"""Snapshots: the rows of chosen tables, put between the stream's transactions while the stream continues.

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
them (same file, offset, GTIDs), `order` continues counting, and a checkpoint may stand at their END.

Where something came between, all chunks under way are forgotten and begun again behind the last key that is put; where a link
broke, only the chunk that was read over it.

A table without a key cannot be read in parts, nor its rows distinguished: it is read whole, at a position behind which nothing
of it was put, and the stream waits meanwhile. No other chunk is under way then.

While the ring is full all reads continue to their ends, so that the server is rid of the rows that it keeps for them, and of their locks,
which a DDL waits for: a chunk into memory, a table without a key onto the disk (`whole_table`).
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shmstore import EventStore, Position, SourceError
from shmstore.encoding.codec import encode_schema
from shmstore.home.acks import checkpoints_in
from shmstore.home.snapshot_progress import Progress, TableProgress, Task
from shmstore.producer import gtid
from shmstore.producer.connection.backoff import Backoff
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.server import SourceServer
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import LinkLost, LoginRefused, PrivilegeMissing, ServerUnreachable
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.chunks import MOST_BYTES, Chunk, EndAsked, TableRead
from shmstore.producer.snapshot.connections import ReadConnections
from shmstore.producer.snapshot.intake import Intake
from shmstore.producer.snapshot.kept_progress import KeptProgress
from shmstore.producer.snapshot.placing import Placing, RowSource
from shmstore.producer.snapshot.shape import Shape, shape_of
from shmstore.producer.snapshot.watermarks import begin, prepared
from shmstore.producer.snapshot.whole_table import WholeTable
from shmstore.producer.stop import Stop
from shmstore.producer.transactions.decoder import EventDecoder
from shmstore.sql.classify import Statement

SLICE = 0.02  # seconds of reading between two looks at the stream
SHOWN = 1.0  # seconds after which the rows of a table without key are written down again, for viewers
ATTEMPTS = 20  # of one chunk
PATIENCE = 5.0  # seconds before a chunk that waits for XA transactions says so
MISSES = 3  # looks in a row that met the stream inside a transaction; then each end is looked for


class Snapshot:
    """The snapshots of one store."""

    def __init__(self, settings: Settings, store: EventStore, decoder: EventDecoder, log: logging.Logger, stop: Stop) -> None:
        self._settings, self._store, self._decoder, self._log = settings, store, decoder, log
        self._kept = KeptProgress(store)
        self._intake = Intake(settings, self._kept, lambda: decoder.filter, decoder.merged.renaming, log, stop)
        self._connections = ReadConnections(settings, log, stop)
        self._placing = Placing(store, decoder)
        self._server: SourceServer | None = None
        self._tables: list[TableRead] = []  # under way, in the order of their tasks
        self._busy: Task | None = None  # whose chunk is looked at
        self._written: list[tuple[Task, TableProgress]] = []  # what is in the transaction buffer
        self._backoff = Backoff(settings)  # of its own links
        self._disturbed: dict[tuple[str, str], int] = {}  # how often each table's chunks were begun in vain since one was put
        self._whole: WholeTable | None = None  # the table without a key that is put
        self._pause, self._heard = 0.0, False
        self._ahead: list[Position] = []
        self._saved, self._shown = 0.0, 0  # when, and with how many rows
        self.active = False  # True while there is something to do
        self.waits = False  # True while an end of a transaction is wanted and was not met by chance
        self._misses, self._wants_end = 0, False

    @property
    def progress(self) -> Progress:
        """How far all that was asked for is."""
        return self._kept.now

    @property
    def holds(self) -> bool:
        """Whether the stream must not be read."""
        return self._whole is not None

    def want(self, session: ServerSession, server: SourceServer, reason: str) -> None:
        """Write down, before anything is put, that all tables are wanted. Raises `SourceError` where they cannot be had."""
        self._intake.want(session, server, reason)

    def begin(self, server: SourceServer) -> None:
        """The stream comes from `server` from now on."""
        self._drop()
        self._connections.begin(server)
        self._server, self._heard, self._pause = server, False, 0.0
        self._disturbed.clear()
        self._written.clear()
        self._backoff.reset()
        self._placing.begin(int(server.variables.get("server_id") or 0))
        self._kept.begin()
        found = checkpoints_in(self._store.home).values()
        # Such a reader gets nothing again that it had acked; a row put before that would stay older than what it has.
        self._ahead = [
            checkpoint.position for checkpoint in found if self._store.has_log or checkpoint.epoch != self._store.epoch
        ]
        self.active = self.progress.open
        self.look()

    def look(self) -> None:
        """Take in what was asked for. Call it about once a second."""
        if self._server is not None:
            if self._intake.look(self._server):
                self._disturbed.clear()
                self._drop()
                self.active = False
            self.active |= self.progress.open  # what is at its end is for `step` to end: it says so, and closes the connections

    def refilter(self) -> None:
        """The decoder has another filter: leave out the tables that it does not let through; the chunks under way begin again with it."""
        self._drop()
        for task in self.progress.tasks:
            if task.open and not self._decoder.filter.passes(task.database, task.table):
                self._settle(task, "cancelled", "changed filters leave it out")
        self.active = self.progress.open

    # ------------------------------------------------------------ between reads of the stream

    def note(self, blob: memoryview, slots: NDArray[np.void]) -> None:
        """Note what is being put."""
        for table in self._tables:
            if table.chunks:
                table.window.note(blob, slots)

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
        """The ring is full, for an unknown time: end the reads that are under way, so that the server is rid of them.

        Nothing is put, nor begun: what is being put is not in the store yet.
        """
        until = time.monotonic() + 1.0
        whole = self._whole
        if whole is not None:
            self._busy, self._connections.using = self._tables[0].task, whole.session
        self._try(lambda: self._read_more(until) if whole is None else whole.read_on(until))
        if self._whole is not None:
            self._show(self._tables[0].task)

    def _advance(self, read: bool) -> None:
        self._busy = self._kept.next_open
        if self._busy is None:
            self._log.info("snapshot: all that was asked for is in the store")
            self._drop()
            self.active = False
            return
        if not self.holds:
            self._place_ready()
        if self._whole is not None:
            self._put_whole(self._whole)
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
        while sum(len(table.chunks) for table in self._tables) <= self._connections.most or self._unopened():
            session = self._connections.idle(self._reading_sessions())
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

    def _reading_sessions(self) -> list[ServerSession | None]:
        busy = [chunk.session for table in self._tables for chunk in table.chunks]
        return busy + [table.asked.session for table in self._tables if table.asked is not None]

    def _unopened(self) -> Chunk | None:
        """A chunk that is in line, and read by no process yet."""
        return next((chunk for table in self._tables if (chunk := table.may_open)), None)

    def _plan(self, session: ServerSession) -> Chunk | None:
        """The next chunk of the tables under way, else the first of the next table; None where none can be begun now."""
        wait, alone = self._settings.read_timeout, self._connections.alone
        if any(table.asked is not None for table in self._tables):
            return None  # the next one is what the answer makes
        for table in self._tables:
            self._busy = table.task
            if (chunk := table.plan(session, wait, alone=alone)) is not None or table.asked is not None:
                return chunk
        names = {(table.task.database, table.task.table) for table in self._tables}
        for task in self.progress.tasks:
            if not task.open or (task.database, task.table) in names or any(task is written for written, _ in self._written):
                continue
            if any(table.keyless for table in self._tables):
                return None
            self._busy = task
            if task.target and not self._at_end():
                self._wants_end = True  # where the table is gone, that its target has all rows may have to be put
                return None
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
                # At low: the process that begins to keep the table's changes at this event has those that the first rows are put without.
                first = not any(other.began for other in self._tables if self._are_one(other.task, task))
                table.began = True
                if first and not any(other.progress.chunks for other in self._others(task)):
                    self._placing.put(chunk, self._kept.request_of(task), None, "first")
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

    def _shape_of(self, session: ServerSession, task: Task) -> Shape | None:
        """How the table is read now; None where there is nothing to read."""
        shape = shape_of(session, self._settings, self._decoder, self._kept.request_of(task), task)
        if not isinstance(shape, Shape):
            if shape.state == "gone" and self._end_without(task):
                return None
            self._settle(task, shape.state, shape.problem)
            return None
        if task.by and task.by != shape.by and task.progress.key:
            self._log.warning("snapshot: %s.%s has another key now: read from its beginning", task.database, task.table)
            task.progress = TableProgress()
        task.by = shape.by
        return shape

    # ------------------------------------------------------------ tables that are one to readers

    @staticmethod
    def _are_one(one: Task, other: Task) -> bool:
        return bool(one.target) and (one.target, one.request) == (other.target, other.request)

    def _others(self, task: Task) -> list[Task]:
        """The other tables of the same request that readers know by the same name."""
        return [other for other in self.progress.tasks if other is not task and self._are_one(other, task)]

    def _is_last(self, task: Task) -> bool:
        """Whether all other tables of that name are put. If one failed, readers get no sign that they have all rows."""
        put = [other for other, progress in self._written if progress.state == "done"]
        return all(other.progress.state in ("done", "gone") or any(other is one for one in put) for other in self._others(task))

    def _end_without(self, task: Task) -> bool:
        """The table of `task` is gone: where it was the last of its target's, put that all rows have come; return whether that was so."""
        begun = any(other.progress.chunks for other in self._others(task)) or bool(task.progress.chunks)
        database, _, table = task.target.partition(".")
        schema = self._decoder.merged.schema_of((database, table))
        if not begun or schema is None or not self._is_last(task):
            return False
        self._placing.put_end((database, table), encode_schema(schema), self._kept.request_of(task))
        self._written.append((task, task.progress._replace(state="done")))
        return True

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
                self._busy, self._connections.using = one.table.task, one.session
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
            self._connections.hang_up(session)  # quicker than reading to the end
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
            self._connections.using = chunk.session
            chunk.rows = self._select(chunk.session, chunk)
            name = f"{task.database}.{task.table}"
            self._whole = WholeTable(chunk.rows, chunk.session, name, self._store.home.path, self._log)
            return
        ends = table.planned and len(table.chunks) == 1
        part = "last" if ends and self._is_last(task) else ""
        count = self._placing.put_chunk(chunk, self._kept.request_of(task), part)
        table.put(chunk)
        key = chunk.until or chunk.last or table.progress.key
        table.progress = TableProgress("done" if ends else "reading", key, table.progress.rows + count, table.progress.chunks + 1)
        self._written.append((task, table.progress))
        self._disturbed.pop((task.database, task.table), None)
        self._backoff.reset()

    def _put_whole(self, whole: WholeTable) -> None:
        """Put the rows of a table without key as they come: the stream stands still."""
        chunk = self._tables[0].chunks[0]
        task = chunk.table.task

        def put(rows: RowSource, last: bool) -> None:
            part = "last" if last and self._is_last(task) else ""
            count = self._placing.put(chunk, self._kept.request_of(task), rows, part)
            task.progress = task.progress._replace(state="reading", rows=task.progress.rows + count)

        done = whole.step(SLICE, put)
        self._show(task)  # at the end, too: what came waits for readers for an unknown time
        if not done:
            return
        chunk.table.put(chunk)
        self._written.append((task, task.progress._replace(state="done", chunks=1)))
        self._free_stream()
        self._disturbed.pop((task.database, task.table), None)
        self._backoff.reset()

    def _show(self, task: Task) -> None:
        """Write down how many rows of a table without key have come, for viewers: after a crash it is read from its beginning."""
        if task.progress.rows != self._shown and time.monotonic() - self._saved >= SHOWN:
            self._saved, self._shown = time.monotonic(), task.progress.rows
            self._kept.save()

    def _free_stream(self) -> None:
        """The stream may be read again."""
        if self._whole is not None:
            self._whole.close()
            self._whole = None

    def settle(self) -> None:
        """Write down how far it is. Call it when what `step` left in the transaction buffer is in the store."""
        if not self._written:
            return
        written, self._written = self._written, []
        self._kept.put(written)
        for task, progress in written:
            if progress.state == "done":
                self._log.info("snapshot: %s.%s: %d rows in %d chunks", task.database, task.table, progress.rows, progress.chunks)
                self._forget(task)
        self._kept.save()

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

    def _settle(self, task: Task, state: str, problem: str) -> None:
        self.progress.settle(task, state, problem)
        self._forget(task)
        log = self._log.error if state == "failed" else self._log.warning
        log("snapshot: %s.%s is left out: %s", task.database, task.table, problem)
        self._kept.save()

    def _forget(self, task: Task) -> None:
        self._tables = [table for table in self._tables if table.task is not task]
        self._disturbed.pop((task.database, task.table), None)

    def _drop(self, wait: float = 0.0) -> None:
        """Forget the chunks under way. What is in the transaction buffer of others is put, and counts (`settle`)."""
        if self.holds and self._tables and self._tables[0].task.open:
            self._tables[0].task.progress = TableProgress()  # of a table without key nothing counts until all of it is there
        self._tables.clear()
        self._free_stream()
        self._pause = time.monotonic() + wait
        self._connections.close()

    def _lose(self, wait: float) -> None:
        """A link broke, or none comes about: what was read over it is begun again, after so many seconds if over a new one; the others continue."""
        if (session := self._connections.lose(wait)) is not None:
            for table in self._tables:
                table.lost(session)
        # What is put of a table without a key is to be put from its beginning. With no connection left no process knows for how long
        # what is put would have to be noted.
        if self.holds or not self._connections:
            self._drop(wait)

    def close(self) -> None:
        """The stream is read no further on this link: end the reads under way, which the server keeps old rows for."""
        self._written.clear()
        self._drop()
