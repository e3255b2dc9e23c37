"""What a restarted producer reads again of a transaction that is half in the store must be what the store has of it.

It is compared event by event, as far as the store still has them. Not compared is what another server of the same transaction has
otherwise, or a restart: offsets, and how the table's definition was spelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shmstore.encoding.codec import bare_schema, split_stored


class Replayed(NamedTuple):
    """An event of a transaction: its place in it, and what it does."""

    place: tuple[int, int]  # order and row
    type: int
    database: str
    sql: str
    schema: bytes | None
    body: bytes


class Replay:
    """Compares events, in their order, with those of `transaction` among `payloads`; None is an event that the store has no longer."""

    def __init__(self, payloads: Iterable[memoryview | None], transaction: str) -> None:
        self._events = _events(payloads, transaction)
        self._gap = False  # before `_next` the store has lost some
        self._next: Replayed | None = None
        self._advance()

    @property
    def over(self) -> bool:
        """Whether the store has no more events."""
        return self._next is None

    def has(self, event: Replayed) -> bool:
        """Whether the store has this event next, or has lost what may have been it."""
        found = self._next
        if found is None or event.place < found.place:
            return self._gap
        self._advance()
        return found == event._replace(schema=bare_schema(event.schema or b""))

    def _advance(self) -> None:
        self._next, self._gap = None, False
        for event in self._events:
            if event is not None:
                self._next = event
                return
            self._gap = True


def _events(payloads: Iterable[memoryview | None], transaction: str) -> Iterator[Replayed | None]:
    for payload in payloads:
        header, schema, body = split_stored(payload) if payload is not None else (None, None, None)
        if header is None or body is None or header.transaction != transaction:
            yield None
        else:
            bare = bare_schema(schema or b"")
            yield Replayed((header.order, header.row), header.type, header.database, header.sql, bare, bytes(body.data))
