"""Reader 1: a Python process that keeps the shop's tables in SQLite, through `Consumer`.

``python -m scripts.shop.sqlite_reader STORE FILE``. Each batch is one SQLite transaction, in which the place in the ring is saved
too: a batch that comes again after a crash between SQLite's commit and the ack is recognized and skipped, so every change is
applied exactly once.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.shop.canonical import base_type, canonical
from scripts.shop.schema import DATABASE, follow
from shmstore import ABSENT, EntryType, Event, TableSchema
from shmstore.consumer import Consumer

_LARGEST: Final = 2**63 - 1  # of SQLite's INTEGER; larger numbers are kept as text
_NATIVE: Final = (float, str, bytes, type(None))


def to_sqlite(value: Any, data_type: str) -> Any:
    """Return `value` as SQLite can keep it without loss: numbers, text and bytes as they are, TIME in
    microseconds, the rest as canonical text."""
    if isinstance(value, _NATIVE):
        return value
    if isinstance(value, int):
        return value if -_LARGEST - 1 <= value <= _LARGEST else str(value)
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if value is ABSENT:
        raise ValueError("the row image lacks a column: the demo's server writes full images")
    return canonical(value, data_type)


class _Statements(NamedTuple):
    """What one version of a table needs: SQL, the columns to convert, and the key's indexes."""

    table: TableSchema
    upsert: str
    delete: str
    convert: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    key: tuple[int, ...]


def _statements(table: TableSchema) -> _Statements:
    names = ", ".join(f'"{name}"' for name in table.names)
    where = " AND ".join(f'"{table.names[i]}" = ?' for i in table.primary_key)
    types = [column.type for column in table.columns]

    def convert(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([to_sqlite(value, type_) for value, type_ in zip(values, types, strict=True)])

    upsert = f'INSERT OR REPLACE INTO "{table.table}" ({names}) VALUES ({", ".join("?" * len(types))})'
    return _Statements(table, upsert, f'DELETE FROM "{table.table}" WHERE {where}', convert, table.primary_key)


class SqliteTables:
    """The shop's tables in one SQLite file. Columns have no declared type, so that SQLite keeps each value as it is given."""

    def __init__(self, path: Path | str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS _progress (store INTEGER PRIMARY KEY CHECK (store = 0), epoch TEXT, sequence INTEGER)"
        )
        self._known: dict[int, _Statements] = {}  # by id of the schema, which the entry keeps alive
        self._tables = self._existing()

    def _existing(self) -> set[str]:
        return {row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def done(self, epoch: int) -> int:
        """Return the last sequence of this life of the store that is in the tables; -1 for none."""
        row = self._connection.execute("SELECT epoch, sequence FROM _progress").fetchone()
        return row[1] if row and row[0] == str(epoch) else -1

    def apply(self, events: Iterable[Event], *, first: int = 0, epoch: int = 0) -> int:
        """Apply `events`, whose sequences count from `first`, in one transaction; return the number of row changes applied."""
        done = self.done(epoch)
        sequence, rows = first - 1, 0
        self._connection.execute("BEGIN")
        try:
            for event in events:
                sequence += 1
                if sequence <= done:
                    continue
                if event.entry is EntryType.ROWS:
                    self._rows(event)
                    rows += len(event.rows)
                elif event.entry is EntryType.DDL:
                    self._ddl(event)
            if sequence > done:
                self._connection.execute("INSERT OR REPLACE INTO _progress VALUES (0, ?, ?)", (str(epoch), sequence))
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            self._known.clear()  # a table made by this batch is gone again
            self._tables = self._existing()
            raise
        return rows

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _rows(self, event: Event) -> None:
        table = event.table
        if table is None or table.database != DATABASE:
            return
        known = self._known.get(id(table))
        if known is None:
            known = self._known[id(table)] = _statements(table)
            self._create(table)
        convert, key, execute = known.convert, known.key, self._connection.execute
        for before, after in event.rows:
            # A changed key leaves the old row behind: it goes first. REPLACE then writes the new values, whatever was there.
            if before is not None and (after is None or any(before[i] != after[i] for i in key)):
                old = convert(before)
                execute(known.delete, [old[i] for i in key])
            if after is not None:
                execute(known.upsert, convert(after))

    def _create(self, table: TableSchema) -> None:
        if table.table in self._tables:
            return
        key = ", ".join(f'"{table.names[i]}"' for i in table.primary_key)
        columns = ", ".join(f'"{name}"' for name in table.names)
        self._connection.execute(f'CREATE TABLE "{table.table}" ({columns}, PRIMARY KEY ({key})) WITHOUT ROWID')
        self._tables.add(table.table)

    def _ddl(self, event: Event) -> None:
        added = follow(event.sql) if event.database == DATABASE else None
        if added is None or added.table not in self._tables:
            return
        # The rows already there got the default without a row event: only the DDL tells.
        self._connection.execute(f'ALTER TABLE "{added.table}" ADD COLUMN "{added.name}"')
        if added.default is not None:
            number = base_type(added.type).endswith("int")
            default = int(added.default) if number else added.default
            self._connection.execute(f'UPDATE "{added.table}" SET "{added.name}" = ?', (default,))


def main() -> None:
    """Read until SIGTERM."""
    store, path = sys.argv[1:3]
    tables = SqliteTables(path)
    with Consumer(store, subscription="sqlite", start="earliest") as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        for batch in consumer:
            tables.apply(batch, first=batch.first, epoch=consumer.store.epoch)
    tables.close()


if __name__ == "__main__":
    main()
