"""The rows of a table on its server, in stored form, as the producer would have put them: all of them in pieces, or those of some keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from math import inf
from typing import Any

from shmstore import Column, SourceError, TableSchema
from shmstore.encoding.codec import Packed, decode_schema, encode_schema, pack, unpack_rows
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.select import key_literals, literal, literals, selection
from shmstore.producer.snapshot.tables import SourceTable, quoted
from shmstore.producer.stop import Stop, Stopped

FIRST_ROWS = 20_000
MOST_ROWS = 200_000
SELECT_BYTES = 32 << 20  # that an answer is meant to have: so long does a server keep old rows for it
PIECE_BYTES = 256 << 10  # of an answer that are given at once, while they are in the processor's cache
KEYS_AT_ONCE = 500
LOAD_PAUSE = 0.5  # seconds between two looks at a server that has much to do

StoredRow = Sequence[Any]
StoredRows = Sequence[StoredRow] | Packed  # values in stored form, or all of it as MessagePack


class SourceRows:
    """A table of a server. `schema` is that of the rows as they are given: with the columns that the producer's filters leave."""

    def __init__(self, session: ServerSession, table: SourceTable, filters: TableFilter, settings: Settings, stop: Stop) -> None:
        self._session, self.table, self._filters, self._settings, self._stop = session, table, filters, settings, stop
        blob = encode_schema(table.schema)
        self._plan = filters.plan(table.schema, blob)
        self.schema: TableSchema = table.schema if self._plan.blob is None else decode_schema(self._plan.blob)
        self.key_columns = tuple([table.schema.columns[i] for i in table.key.columns]) if table.key else ()
        self._selection = selection(table, filters.condition(table.schema, blob))
        self._limit = FIRST_ROWS
        self._last = b"", b""  # as the answer gives it

    @property
    def key_problem(self) -> str:
        """Why its rows cannot be distinguished; empty where they can."""
        if not self.key_columns:
            return "it has no primary key and no unique key without NULLs, so that no reader could say which rows differ"
        changed = {self.table.schema.columns[i].name for i, hashed in self._plan.change if not hashed}
        names = set(self.schema.names) - changed
        lost = [column.name for column in self.key_columns if column.name not in names]
        return f"its key needs column {lost[0]}, which column filters take out or mask" if lost else ""

    @property
    def key(self) -> tuple[int, ...]:
        """Where the columns of the key are in a row."""
        return tuple([self.schema.names.index(column.name) for column in self.key_columns])

    @property
    def last(self) -> tuple[str, ...]:
        """The key of the last row that `pieces` gave, as SQL literals."""
        row, extras = self._last
        return literals(self._selection, (*unpack_rows(Packed(row)), *unpack_rows(Packed(extras))))

    def pieces(self, after: tuple[str, ...] = (), *, rest: Callable[[], None] = lambda: None) -> Generator[Packed]:
        """Read all rows behind the key `after` (SQL literals; empty: from the first), in its order; yield some at a time. `rest` is
        called before each SELECT. Close it where it is left before its end: its SELECT has the session until then."""
        more = True
        while more:
            rest()
            count, size, limit = 0, 0, self._limit
            until = self._end(after, limit)
            answer = self._asked(self._selection.sql(after, until, 0 if until else limit))
            whole = False
            try:
                while not whole:
                    whole = self._come(answer, PIECE_BYTES)
                    if len(answer):
                        count, size, self._last = count + len(answer), size + answer.size, answer.rows.last
                        yield self._taken(answer)
            except GeneratorExit:
                if not whole:
                    self._left(answer)
                raise
            more, after = bool(until) or count == limit, until or (self.last if count else after)
            if count:
                self._limit = max(1, min(MOST_ROWS, SELECT_BYTES * count // max(1, size)))

    def rows_of(self, keys: Sequence[StoredRow], columns: Sequence[str] = ()) -> list[StoredRow]:
        """Read the rows that have these values in `columns` (none named: those of the key), in stored form, as the server compares; those of
        other bytes are among them."""
        names = columns or [column.name for column in self.key_columns]
        places = [self.table.schema.names.index(name) for name in names]
        found: list[StoredRow] = []
        if any(hashed and i in places for i, hashed in self._plan.change):  # no query can ask for what a hash was made of
            own, wanted = [self.schema.names.index(name) for name in names], {tuple(key) for key in keys}
            for rows in self.pieces():
                found += [row for row in unpack_rows(rows) if tuple([row[i] for i in own]) in wanted]
            return found
        for at in range(0, len(keys), KEYS_AT_ONCE):
            wanted_ = " OR ".join(f"({self._is(places, key)})" for key in keys[at : at + KEYS_AT_ONCE])
            answer = self._asked(self._selection.sql_where(wanted_))
            self._come(answer)
            if len(answer):
                found += unpack_rows(self._taken(answer))
        return found

    def _is(self, places: Sequence[int], values: StoredRow) -> str:
        schema, parts = self.table.schema, []
        for i, value in zip(places, values, strict=True):
            parts.append(f"{quoted(schema.columns[i].name)} = {_as_text(schema.columns[i], self.table.collations[i], value)}")
        return " AND ".join(parts)

    def _end(self, after: tuple[str, ...], limit: int) -> tuple[str, ...]:
        """The key that stands `limit` rows of any kind behind `after`, where only some rows are wanted: the server, which sends nothing while it looks
        for one, is then never long silent. Empty where fewer are left, and where all rows are wanted."""
        if not self._selection.condition:
            return ()
        columns = self._selection.key_columns
        answer = SelectRows(
            self._session, self._selection.key_sql(after, limit), columns, len(columns), self._settings.read_timeout
        )
        self._come(answer)
        return key_literals(self._selection, answer.last) if len(answer) else ()

    def _asked(self, sql: str) -> SelectRows:
        return SelectRows(
            self._session, sql, self._selection.columns, len(self.table.schema.columns), self._settings.read_timeout
        )

    def _come(self, answer: SelectRows, size: float = inf) -> bool:
        """Wait until so many bytes have come; True when all rows have."""
        until, before = time.monotonic() + self._settings.read_timeout, -1
        while not answer.step(0.2, size):
            if self._stop():
                raise Stopped
            if answer.size >= size and len(answer):
                return False
            if answer.size != before:
                before, until = answer.size, time.monotonic() + self._settings.read_timeout
            elif time.monotonic() > until:
                raise SourceError(f"{self._session.endpoint.where} has sent no row for {self._settings.read_timeout:g} s")
        return True

    def _taken(self, answer: SelectRows) -> Packed:
        """The rows that have come, which the answer then forgets."""
        found = Packed(answer.rows.array(0, len(answer)))
        answer.clear()
        if self._plan.blob is None:
            return found
        return Packed(pack(self._filters.apply(self._plan, [None, None, None, found], len(self.table.schema.columns))[3]))

    def _left(self, answer: SelectRows) -> None:
        """Take in the rest of an answer that was left before its end, so that the session is free."""
        try:
            while not self._come(answer, PIECE_BYTES):
                answer.clear()
        except (SourceError, Stopped):
            self._session.close()

    def wait_for_rest(self, most: int, pauses: Callable[[int], None]) -> None:
        """Wait while more than `most` (0: any number) statements run on the server; `pauses` gets how many do."""
        while most and not self._stop():
            running = int(self._session.query("SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])
            if running <= most:
                return
            pauses(running)
            time.sleep(LOAD_PAUSE)


def _as_text(column: Column, collation: str, value: Any) -> str:
    """A stored value of a key as an SQL literal, which an index is used for."""
    if not isinstance(value, str) or not column.charset:
        return literal(column, collation, value)
    text = f"_utf8mb4 x'{value.encode('utf-8', 'surrogatepass').hex()}'"
    if column.type in ("enum", "set"):
        return text
    return f"CONVERT({text} USING {column.charset}) COLLATE {collation}"
