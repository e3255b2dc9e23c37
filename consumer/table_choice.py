"""Which events are about some tables: their rows, and the DDLs that name them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from shmstore import Batch
from shmstore.consumer.formats.ddl_target import ddl_target
from shmstore.encoding.codec import Header, decode_schema, stored_head
from shmstore.event import EntryType, Event, TableSchema
from shmstore.patterns.table_patterns import Patterns


class TableChoice:
    """The tables that `patterns` name, as `Patterns` reads them. Raises `ValueError` where they cannot be read.

    Chosen are the rows and the DDLs of these tables. BEGIN, END, heartbeats, and DDLs about no table or other ones, are not.
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        self._match = lru_cache(maxsize=4096)(Patterns.of_tables(patterns).match)

    def has(self, event: Event) -> bool:
        """Whether `event` is about one of the tables."""
        return any(map(self._match, tables_of(event)))

    def has_table(self, name: str) -> bool:
        """Whether ``database.table`` is one of the tables."""
        return self._match(name)

    def of(self, batch: Batch) -> Batch:
        """Return the batch with these events alone; their rows are not decoded. Raises `StoreCorrupt` for what is not an event."""
        marks = []
        for payload in batch.payloads():
            header, schema = stored_head(payload)
            marks.append(any(map(self._match, _tables(header, None if schema is None else decode_schema(schema)))))
        return batch if all(marks) else batch.select(marks)


def tables_of(event: Event) -> list[str]:
    """The tables that an event is about, as ``database.table``: several for ``DROP TABLE a, b`` and for RENAME."""
    return _tables(event, event.table)


def _tables(event: Event | Header, table: TableSchema | None) -> list[str]:
    if table is not None:
        return [f"{table.database}.{table.table}"]
    if event.entry not in (EntryType.DDL, EntryType.ROWS):  # rows without a table: logged as a statement
        return []
    named = event.props.get("tables") or ".".join(ddl_target(event.sql, event.database, event.props))
    return [name for name in (*named.split(","), *event.props.get("to_table", "").split(",")) if name]
