"""A snapshot for a schema history: a server's tables as they are, at a moment at which they were all so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shmstore import Position
from shmstore.producer.connection.session import ServerSession, steady
from shmstore.producer.schema.history import SchemaHistory

__all__ = ["take_snapshot"]

_ANYWHERE = Position("any.000001", 4)


def take_snapshot(
    history: SchemaHistory, session: ServerSession, where: Callable[[], Position], *, database: str | None = None
) -> Position:
    """Put the tables as they are, of one database or of all, into `history`, at a position where they were so; return it.

    `where` says where the server writes. The tables are read before and after it does: where both are the same, they were so at that
    position. Raises `SourceError` of the questions, and `SchemaUnknown` where the tables do not stop changing.
    """
    answers, position = steady(lambda: _read(session, database), where)
    history.snapshot(answers.__getitem__, position, database=database)
    return position


class _Recorder(dict[str, Sequence[tuple[Any, ...]]]):
    """Answers to queries, asked when first wanted."""

    def __init__(self, query: Callable[[str], Sequence[tuple[Any, ...]]]) -> None:
        super().__init__()
        self._query = query

    def __missing__(self, sql: str) -> Sequence[tuple[Any, ...]]:
        self[sql] = self._query(sql)
        return self[sql]


def _read(session: ServerSession, database: str | None) -> dict[str, Sequence[tuple[Any, ...]]]:
    recorder = _Recorder(session.query)
    SchemaHistory().snapshot(recorder.__getitem__, _ANYWHERE, database=database)
    return dict(recorder)
