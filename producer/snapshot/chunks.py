"""A table of a snapshot as chunks of its key: what is read next, by whom, how much at a time, and in which order it is put.

Plan. A chunk is a range of the key, after one key up to another. With several connections the end of a chunk is asked of the server
before its rows are (`Selection.key_sql`, which runs over the index alone), so that the next one can be begun at once; no process waits for
the answer meanwhile. What is behind the table's last full chunk has no end, and with one connection no chunk has, unless only some rows
are wanted: then a chunk without an end could go through the whole table before it comes to the first of them. A chunk that turns out
larger than memory is spent on ends at the last row that came, and its rest is put in line behind it.

A connection that breaks takes nothing along but what it was reading: another one begins that again.

Chunks are read side by side and put one after the other, as their keys stand: so how far a table is remains one key, however many
connections read it, and the process that continues after a kill reads again what had not been put, at most a chunk for each connection and one.
"""

from __future__ import annotations

import time
from collections import deque

from shmstore import Position
from shmstore.home.snapshot_progress import Task
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import LinkLost
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.snapshot.changed_keys import Window
from shmstore.producer.snapshot.select import key_literals, literals
from shmstore.producer.snapshot.shape import Shape

__all__ = ["Chunk", "TableRead"]

CHUNK_BYTES = 8 << 20  # what a chunk is meant to take at most; of larger rows it has fewer
MOST_BYTES = 4 * CHUNK_BYTES  # what it is cut at, where the guess was wrong
CHUNK_SECONDS = 0.5  # what reading it is meant to take: so long does a server keep old rows for it
FIRST_ROWS = 20_000  # of a table's first chunk at most, when no process knows yet how fast they come

KeyBound = tuple[str, ...]  # as SQL literals; empty: no bound


class Chunk:
    """A chunk under way, from `low` on."""

    def __init__(self, table: TableRead, after: KeyBound, until: KeyBound, limit: int) -> None:
        self.table, self.after, self.until, self.limit = table, after, until, limit
        self.low = Position("", 0)  # where the stream stood when its segment of the table's window began
        self.executed: ExecutedSet | None = None
        self.segment = -1  # none yet
        self.waits_for: set[tuple[object, ...]] = set()  # XA transactions that were prepared before `low`
        self.waits_until = 0.0  # when that is reported
        self.high: Position | None = None  # None until a consistent read has begun
        self.rows: SelectRows | None = None
        self.session: ServerSession | None = None  # that reads it, while it does
        self.began = 0.0
        self.whole = False  # all rows are here
        self.last: KeyBound = ()  # the key of the last one

    @property
    def reading(self) -> bool:
        """Whether rows are still to come."""
        return self.rows is not None and not self.whole

    @property
    def broken(self) -> str:
        """Why it cannot be used; empty where it can."""
        return "" if self.segment < 0 else self.table.window.broken(self.segment)

    def begin_again(self) -> None:
        """What was read of it is lost; what was noted since `low` still concerns it."""
        self.high = self.rows = self.session = None

    def note_from(self, low: Position, executed: ExecutedSet | None) -> None:
        """What is put of the table from now on concerns this chunk."""
        self.low, self.executed = low, executed.copy() if executed is not None else None
        self.segment = self.table.window.open()


class EndAsked:
    """Where the next chunk of a table ends, asked of the server."""

    def __init__(self, table: TableRead, after: KeyBound, limit: int, session: ServerSession, wait: float) -> None:
        """`limit`: how many rows the chunk is to have; `wait`: after so many seconds of silence the link is given up."""
        self.table, self.limit, self.session = table, limit, session
        selected = table.shape.selected
        self.rows = SelectRows(session, selected.key_sql(after, limit), selected.key_columns, len(selected.key_columns), wait)
        self._wait, self._until = wait, time.monotonic() + wait

    @property
    def overdue(self) -> bool:
        """Whether the server has been silent for too long."""
        return time.monotonic() > self._until

    def take(self) -> bool:
        """Read what has come; True when that is the answer. Raises `SourceError`, and `LinkLost` where it is overdue."""
        done = self.rows.take()
        if not done and self.overdue:
            where, name = self.session.endpoint.where, self.table.shape.selected.table.name
            raise LinkLost(f"{where} did not say in {self._wait:g} s where the next {self.limit} rows of {name} end")
        return done

    @property
    def key(self) -> KeyBound:
        """The answer; empty where fewer rows are left."""
        return key_literals(self.table.shape.selected, self.rows.last) if len(self.rows) else ()


class TableRead:
    """A table that is being read: its chunks in the order of their keys, and where the next one begins."""

    def __init__(self, task: Task, shape: Shape, most_rows: int) -> None:
        """`most_rows`: of a chunk, 0: no matter."""
        self.task, self.shape, self._most_rows = task, shape, most_rows
        self.window = Window((task.database, task.table), shape.by, shape.seen_as, shape.origin)
        self.chunks: deque[Chunk] = deque()
        self.stale = False  # a DDL went by: whether the shape is still the same is to be looked at
        self.began = bool(task.progress.chunks)  # whether the event that says where the table begins was put
        self.asked: EndAsked | None = None
        self.progress = task.progress  # with what is put, and not in the store yet
        self._after: KeyBound | None = task.progress.key  # None: the last chunk is planned
        self._average = 0  # bytes of a row
        self._limit = 0  # rows of the next chunk

    @property
    def keyless(self) -> bool:
        """Whether it can only be read whole."""
        return self.shape.selected.table.key is None

    @property
    def may_open(self) -> Chunk | None:
        """The first chunk that no process reads yet."""
        return next((chunk for chunk in self.chunks if chunk.high is None), None)

    @property
    def planned(self) -> bool:
        """Whether nothing of the table is without a chunk, as far as is known."""
        return self._after is None

    def plan(self, session: ServerSession, wait: float, *, alone: bool) -> Chunk | None:
        """Add the next chunk; None where there is none to add now: also while `session` asks where it ends. `alone`: only one connection reads."""
        if self._after is None or self.asked is not None:
            return None
        limit = self._rows_due()
        if not self.keyless and (self.shape.selected.condition or not alone):
            self.asked = EndAsked(self, self._after, limit, session, wait)
            return None
        return self._add(limit, ())

    def answered(self) -> None:
        """The server has said where the next chunk ends: add it."""
        asked, self.asked = self.asked, None
        assert asked is not None
        self._add(asked.limit, asked.key)

    def _add(self, limit: int, until: KeyBound) -> Chunk:
        assert self._after is not None
        chunk = Chunk(self, self._after, until, limit)
        self._after = until or None
        self.chunks.append(chunk)
        return chunk

    def lost(self, session: ServerSession) -> None:
        """A connection broke: what it was reading is to be read again."""
        if self.asked is not None and self.asked.session is session:
            self.asked = None
        for chunk in self.chunks:
            if chunk.session is session:
                chunk.begin_again()

    def _rows_due(self) -> int:
        """How many rows the next chunk is to have."""
        average = self._average or self.shape.selected.table.row_bytes or 1
        due = max(1, min(self._limit or FIRST_ROWS, CHUNK_BYTES // average))
        return min(due, self._most_rows) if self._most_rows else due

    def came(self, chunk: Chunk, *, cut: bool) -> None:
        """All rows of a chunk are here; `cut`: those that are, there would be more."""
        rows = chunk.rows
        assert rows is not None
        chunk.whole, chunk.session, came = True, None, len(rows)
        looked_at = chunk.limit if chunk.until and not cut else 0  # though few of them may be wanted
        if came and not self.keyless:
            chunk.last = literals(self.shape.selected, rows.last)
            self._average = max(1, rows.size // came)
        if (read := max(came, looked_at)) and not self.keyless:
            took = max(time.monotonic() - chunk.began, 0.001)
            self._limit = max(1, min(int(read / took * CHUNK_SECONDS), 4 * max(read, FIRST_ROWS)))
        full = not self.keyless and came >= chunk.limit
        if cut and chunk.until:
            at = self.chunks.index(chunk)
            self.chunks.insert(at + 1, Chunk(self, chunk.last, chunk.until, 0))
            chunk.until = chunk.last
        elif not chunk.until and (cut or full):
            self._after = chunk.until = chunk.last

    def put(self, chunk: Chunk) -> bool:
        """The first chunk is put; return whether it was the table's last."""
        assert self.chunks[0] is chunk
        self.chunks.popleft()
        begun = [one.segment for one in self.chunks if one.segment >= 0]
        self.window.forget_before(min(begun, default=chunk.segment + 1))
        return self.planned and not self.chunks
