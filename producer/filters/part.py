"""What part of its tables a snapshot's request wants: the rows that a condition is true of, some of the columns.

The condition is in the language of row filters, and becomes part of the SELECT, made of what was understood and never of the text.
Columns are named in any case of letters; those of the key come along. What column filters take out of a table, or change, is not to be had
by asking, nor by a condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shmstore import TableSchema, UnsupportedEvent
from shmstore.errors import did_you_mean
from shmstore.producer.filters.condition import Bound, bind
from shmstore.producer.filters.condition_parser import parse
from shmstore.producer.filters.condition_tree import Node
from shmstore.producer.filters.table_filter import TablePlan
from shmstore.sql.names import folded

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
    return {i for i in plan.keep if i >= 0} if plan.changes_rows else set(range(len(table.columns)))
