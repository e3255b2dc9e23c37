"""What the documents of an event are made of besides the event: options, and the transaction that it belongs to."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from shmstore import ShmStoreError, StoreCorrupt
from shmstore.event import ABSENT, EntryType, Event, TableSchema

Convert = Callable[[Any], Any]

#: How compiled code writes a column's values (`consumer/queues/native/cell.pxi`): its name of the form, what makes JSON of text where Python must,
#: and what a zero date is where it is not itself.
Form = tuple[str, Convert | None, Any]

#: What holds the text of a statement: also rows that were logged as one, which have no table.
STATEMENTS: Final = (EntryType.DDL, EntryType.ROWS)


@dataclass(slots=True)
class Context:
    """The options of a `Formatter`, the number of the event in hand, and the transaction that it belongs to."""

    name: str = "shmstore"
    schemas: bool = False
    transactions: bool = False
    gtids: bool = False
    sequence: int | None = None
    thread: int | None = None
    transaction: str = ""
    counts: Counter[str] = field(default_factory=Counter)  # documents of the transaction so far, by table

    def watch(self, event: Event) -> None:
        """Take note of a transaction that begins."""
        if event.entry is EntryType.BEGIN:
            thread = event.props.get("thread_id")
            self.thread = int(thread) if thread else None
            begins = f"file={event.position.file},pos={event.position.offset - event.length}"
            self.transaction = gtid(event) or begins
            self.counts.clear()


@contextmanager
def stored_values(sequence: int | None) -> Iterator[None]:
    """Raise `StoreCorrupt` for event `sequence` where the block meets a value that is none of its column: no server has such a one."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        if isinstance(error, ShmStoreError):
            raise
        raise StoreCorrupt(f"event {sequence} has a value that is none of its column: {type(error).__name__}: {error}") from error


def gtid(event: Event) -> str | None:
    """The transaction's GTID; None where it is a position in the binlog instead (``file:offset``)."""
    return None if not event.transaction or event.transaction.startswith(event.position.file + ":") else event.transaction


def image(table: TableSchema, values: tuple[Any, ...] | None, converters: tuple[Convert | None, ...]) -> dict[str, Any] | None:
    """Return {column name: converted value} without the absent columns; a None converter leaves values as they are."""
    if values is None:
        return None
    return {
        column.name: value if convert is None or value is None else convert(value)
        for column, value, convert in zip(table.columns, values, converters, strict=True)
        if value is not ABSENT
    }
