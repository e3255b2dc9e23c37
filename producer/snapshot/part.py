"""What part of its tables a request wants: the rows that a condition is true of, some of the columns; and asking for it.

The condition is in the language of row filters (`conditions`), and becomes part of the SELECT, made of what was understood and never of the
text. Columns are named in any case of letters; those of the key come along. What column filters take out of a table, or
change, is not to be had by asking, nor by a condition.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from shmstore import StoreError, TableSchema, UnsupportedEvent
from shmstore.errors import did_you_mean
from shmstore.home.definitions import DefinitionsFile, definitions_in
from shmstore.home.home import Home
from shmstore.home.snapshots import request_snapshot as ask
from shmstore.producer.conditions import Bound, Node, bind, parse
from shmstore.producer.errors import PatternError
from shmstore.producer.filter import TablePlan, read_patterns
from shmstore.sql.names import folded

__all__ = ["Part", "request_snapshot"]

_WHOLE = TablePlan()


class Part(NamedTuple):
    """Some of the rows (`node` None: all), some of the columns (empty: all)."""

    node: Node | None
    columns: tuple[str, ...]

    @classmethod
    def read(cls, where: str, columns: Sequence[str]) -> Part:
        """Return what a request says. Raises `PatternError`."""
        return cls(parse(where) if where else None, tuple(columns))

    def condition(self, table: TableSchema, plan: TablePlan = _WHOLE) -> Bound | None:
        """Return which rows of `table` are wanted; None: all. Raises `UnsupportedEvent` where it does not fit the table, or what `plan` leaves of it."""
        if self.node is None:
            return None
        bound = bind(self.node, table, "condition")
        as_they_are = _kept(table, plan).difference(i for i, _ in plan.change)
        if hidden := [table.names[i] for i in sorted(bound.columns - as_they_are)]:
            raise UnsupportedEvent(
                f"the condition asks for column {hidden[0]!r} of table {table.database}.{table.table}, which column filters take out or change"
            )
        return bound

    def shown(self, table: TableSchema, key: Sequence[int], plan: TablePlan = _WHOLE) -> tuple[int, ...]:
        """Return the columns of `table` that are wanted, in their order, those of the key with them. Raises `UnsupportedEvent` where one is not there."""
        if not self.columns:
            return tuple(range(len(table.columns)))
        kept = {folded(table.names[i]): i for i in _kept(table, plan)}
        if missing := [name for name in self.columns if folded(name) not in kept]:
            names = [table.names[i] for i in sorted(kept.values())]
            raise UnsupportedEvent(
                f"table {table.database}.{table.table} has no column {missing[0]!r}{did_you_mean(missing[0], names)}; it has {', '.join(names)}"
            )
        return tuple(sorted({*key, *(kept[folded(name)] for name in self.columns)}))

    def partial(self, table: TableSchema, shown: Sequence[int], plan: TablePlan) -> str:
        """Return what the events of `table` have a part of: rows, columns, both, or nothing."""
        return ",".join(["rows"] * (self.node is not None) + ["columns"] * (not _kept(table, plan) <= set(shown)))


def _kept(table: TableSchema, plan: TablePlan) -> set[int]:
    """The columns that column filters leave in."""
    return set(range(len(table.columns)) if plan.blob is None else plan.keep)


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
