"""The rows of a table on its server, in stored form, as the producer would have put them: all of them in pieces, or those of some keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from shmstore import Column, SourceError, TableSchema
from shmstore.encoding.codec import Packed, decode_schema, encode_schema, pack, unpack_rows
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.chunks import CHUNK_BYTES
from shmstore.producer.snapshot.select import literal, literals, selection
from shmstore.producer.snapshot.tables import SourceTable, quoted
from shmstore.producer.stop import Stop, Stopped

FIRST_ROWS = 20_000
MOST_ROWS = 200_000
KEYS_AT_ONCE = 500
LOAD_PAUSE = 0.5  # seconds between two looks at a server that has much to do

StoredRow = Sequence[Any]
StoredRows = Sequence[StoredRow] | Packed  # values in stored form, or all of it as MessagePack


class _Answer(NamedTuple):
    """The rows of a SELECT: how many, the last one with what tells its key, and the bytes that came."""

    rows: Packed
    count: int  # type: ignore[assignment]  # it takes the place of tuple.count
    last: tuple[Any, ...]
    size: int


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

    def pieces(self, after: tuple[str, ...]) -> Iterator[tuple[Packed, tuple[str, ...]]]:
        """Read all rows behind the key `after` (SQL literals; empty: from the first), in its order; yield some, and the key of the last."""
        while True:
            limit = self._limit
            found = self._read(self._selection.sql(after, (), limit))
            if found.count:
                after = literals(self._selection, found.last)
                yield found.rows, after
                self._limit = max(1, min(MOST_ROWS, CHUNK_BYTES * found.count // max(1, found.size)))
            if found.count < limit:
                return

    def rows_of(self, keys: Sequence[StoredRow], columns: Sequence[str] = ()) -> list[StoredRow]:
        """Read the rows that have these values in `columns` (none named: those of the key), in stored form, as the server compares; those of
        other bytes are among them."""
        names = columns or [column.name for column in self.key_columns]
        places = [self.table.schema.names.index(name) for name in names]
        found: list[StoredRow] = []
        if any(hashed and i in places for i, hashed in self._plan.change):  # no query can ask for what a hash was made of
            own, wanted = [self.schema.names.index(name) for name in names], {tuple(key) for key in keys}
            for rows, _ in self.pieces(()):
                found += [row for row in unpack_rows(rows) if tuple([row[i] for i in own]) in wanted]
            return found
        for at in range(0, len(keys), KEYS_AT_ONCE):
            wanted_ = " OR ".join(f"({self._is(places, key)})" for key in keys[at : at + KEYS_AT_ONCE])
            found += unpack_rows(self._read(self._selection.sql_where(wanted_)).rows)
        return found

    def _is(self, places: Sequence[int], values: StoredRow) -> str:
        schema, parts = self.table.schema, []
        for i, value in zip(places, values, strict=True):
            parts.append(f"{quoted(schema.columns[i].name)} = {_as_text(schema.columns[i], self.table.collations[i], value)}")
        return " AND ".join(parts)

    def _read(self, sql: str) -> _Answer:
        width = len(self.table.schema.columns)
        rows = SelectRows(self._session, sql, self._selection.columns, width, self._settings.read_timeout)
        until = time.monotonic() + self._settings.read_timeout
        before = 0
        while not rows.step(0.2):
            if self._stop():
                raise Stopped
            if rows.size != before:
                before, until = rows.size, time.monotonic() + self._settings.read_timeout
            elif time.monotonic() > until:
                raise SourceError(f"{self._session.endpoint.where} has sent no row for {self._settings.read_timeout:g} s")
        if not len(rows):
            return _Answer(Packed(pack([])), 0, (), 0)
        found = Packed(rows.rows.array(0, len(rows)))
        if self._plan.blob is not None:
            found = Packed(pack(self._filters.apply(self._plan, [None, None, None, found], width)[3]))
        return _Answer(found, len(rows), rows.last, rows.size)

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
