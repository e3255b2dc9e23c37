"""Asking the producer of a store for a snapshot, in the terms of its filters."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from shmstore import StoreError, UnsupportedEvent
from shmstore.home.definitions import DefinitionsFile, definitions_in
from shmstore.home.home import Home
from shmstore.home.snapshots import request_snapshot as ask
from shmstore.producer.errors import PatternError
from shmstore.producer.filters.condition_parser import parse
from shmstore.producer.filters.part import Part
from shmstore.producer.filters.table_filter import read_patterns

__all__ = ["request_snapshot"]


def request_snapshot(
    store: str,
    tables: str | Sequence[str],
    *,
    where: str | None = None,
    columns: str | Sequence[str] | None = None,
    state: str | os.PathLike[str] | None = None,
    reason: str = "asked",
    id: str = "",
) -> str:
    """Ask the producer of `store` for the rows of `tables` (patterns, as for filters); return the request's id.

    `where` is a condition as in row filters (``created > '2026-01-01'``): only rows that it is true of. `columns` are names, as a list or with
    commas between them: rows with these columns and those of the key alone. Every table has to have what the two name.

    The producer looks about once a second; where none runs, the next one does. It takes a request with an `id` (eight hexadecimal
    digits) that it knows for the one that it has. Raises ValueError where nothing is named (an empty text is no wish for everything), or
    the condition cannot be read, or does not fit a table as the producer knows it.
    """
    names = columns.split(",") if isinstance(columns, str) else columns or ()
    chosen = tuple([name.strip() for name in names if name.strip()])
    if columns is not None and not chosen:
        raise PatternError("no column is named: give names, as in id,total, or leave columns out")
    if where is not None or chosen:
        _check(store, tables, Part(None if where is None else parse(where), chosen), state)
    return ask(store, tables, where=where or "", columns=chosen, state=state, reason=reason, id=id)


def _check(store: str, tables: str | Sequence[str], part: Part, state: str | os.PathLike[str] | None) -> None:
    """Raise `PatternError` where a table that is known, as its producer wrote it down last, has not what is asked for."""
    patterns = read_patterns(tables)
    with suppress(StoreError):  # not ours to read: the producer looks
        for one in definitions_in(DefinitionsFile(Home.of(store, state)), None).values():
            if one.schema is None or not patterns.match(f"{one.database}.{one.table}"):
                continue
            try:
                part.condition(one.schema)
                part.shown(one.schema, one.schema.primary_key)
            except UnsupportedEvent as error:
                raise PatternError(str(error)) from error
