"""Events as lines of JSON, in the shapes that other tools' consumers already read.

    json      our own (`own`)
    canal     Canal's flat message
    debezium  Debezium's MySQL envelope (3.x)
    maxwell   Maxwell's

Of a DDL the binlog has the statement only, and so have the documents. A change that was logged as a statement (``statements = pass``) is a
document with the statement in json and canal; debezium and maxwell have none for it, as those tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shmstore.consumer.formats import canal, debezium, maxwell, own
from shmstore.consumer.formats.context import Context
from shmstore.consumer.formats.json_text import dump
from shmstore.event import EntryType, Event

_SHAPES: Final = {
    "json": own.documents,
    "canal": canal.documents,
    "debezium": debezium.documents,
    "maxwell": maxwell.documents,
}
FORMATS: Final = tuple(_SHAPES)


class Formatter:
    """Events of one stream, in order, as JSON documents without line ends.

    `name` is Debezium's logical server name, `schemas` its documents with their schema, and `transactions` its transaction metadata;
    `gtids`: Canal's documents have the executed GTID set, as with its ``gtidon``. Raises ValueError where `format` is not one of `FORMATS`.
    """

    def __init__(
        self,
        format: str = "json",
        *,
        name: str = "shmstore",
        schemas: bool = False,
        transactions: bool = False,
        gtids: bool = False,
    ) -> None:
        if format not in _SHAPES:
            raise ValueError(f"format {format!r} is unknown; formats are {', '.join(FORMATS)}")
        if (schemas or transactions) and format != "debezium":
            raise ValueError(f"format {format} has neither schemas nor transactions of its own: these are debezium's")
        if gtids and format != "canal":
            raise ValueError(f"format {format} has GTIDs without being asked: only canal's documents leave them out")
        self._shape = _SHAPES[format]
        self._context = Context(name, schemas, transactions, gtids)

    @property
    def thread(self) -> int | None:
        """The server's thread of the transaction in hand, where that is known."""
        return self._context.thread

    def begin(self, thread: int | None) -> None:
        """Take note of a transaction of that thread, where its begin is not looked at. Transaction metadata needs the begin itself."""
        self._context.thread = thread

    def lines(self, event: Event, sequence: int | None = None, *, wanted: bool = True) -> Iterator[str]:
        """Yield the documents of `event`; none where the shape has none for it. `sequence` is its number in its store (``seq``, ``id``).

        What is not `wanted` is only looked at: it may begin the transaction of what is, or end it.
        """
        for document in self.documents(event, sequence, wanted=wanted):
            yield dump(document).decode()

    def documents(self, event: Event, sequence: int | None = None, *, wanted: bool = True) -> Iterator[dict[str, Any]]:
        """As `lines`, before they are text."""
        context = self._context
        context.watch(event)
        if not wanted and not (context.transactions and event.entry is EntryType.END):
            return
        context.sequence = sequence
        yield from self._shape(event, context)


def format_event(event: Event, format: str = "json", *, sequence: int | None = None, name: str = "shmstore") -> Iterator[str]:
    """Yield the documents of one event alone, as `Formatter` does."""
    return Formatter(format, name=name).lines(event, sequence)
