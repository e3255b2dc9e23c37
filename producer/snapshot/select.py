"""What is asked of a table, chunk by chunk, in the order of its key: the SELECT, and its literals."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from shmstore import Column
from shmstore.producer.connection.prepared import BYTES, INDEXED, NUMBERS
from shmstore.producer.filters.condition import Bound
from shmstore.producer.snapshot.tables import SourceTable, quoted
from shmstore.sql.charsets import python_codec

HIDDEN = "SET SESSION show_gipk_in_create_table_and_information_schema = ON"  # MySQL's invisible keys are in the binlog


# ---------------------------------------------------------------- the SELECT


class Selection(NamedTuple):
    """What is selected: columns of the table, then what only tells a row's key (`extras`: key column, its expression)."""

    table: SourceTable
    columns: tuple[Column, ...]
    extras: tuple[tuple[int, str], ...]
    shown: tuple[int, ...]  # the columns of the table that make a row
    condition: str = ""  # SQL, which holds of all rows; empty: of any

    def sql(self, after: Sequence[str], until: Sequence[str], limit: int) -> str:
        """Return the SELECT of `limit` rows (0: all) behind the key `after`, up to the key `until`; of all where the table has no key."""
        text = self._select(self._chosen, after, until, self.condition)
        return text + (f" LIMIT {limit}" if limit and self.table.key else "")

    def sql_where(self, condition: str) -> str:
        """Return the SELECT of the rows that a condition, which is SQL, is true of."""
        condition = f"({condition}) AND {self.condition}" if self.condition else condition
        return f"{self._from(self._chosen)} WHERE {condition}"

    def key_sql(self, after: Sequence[str], rows: int, until: Sequence[str] = ()) -> str:
        """Return the SELECT of the key that stands so many rows, of any kind, behind the key `after`, not behind `until`; its columns are `key_columns`.

        Without the condition it runs over the index alone.
        """
        extras = dict(self.extras)
        assert self.table.key is not None
        columns = self.table.schema.columns
        chosen = [extras.get(i, quoted(columns[i].name)) for i in self.table.key.columns]
        return f"{self._select(chosen, after, until, '')} LIMIT {rows - 1}, 1"

    @property
    def key_columns(self) -> list[Column]:
        """The columns of what `key_sql` selects."""
        extras = {i: self.columns[len(self.shown) + at] for at, (i, _) in enumerate(self.extras)}
        return [extras.get(i, self.table.schema.columns[i]) for i in (self.table.key.columns if self.table.key else ())]

    @property
    def _chosen(self) -> list[str]:
        """What makes a row, and behind it what tells its key."""
        return [_as_logged(self.table, i) for i in self.shown] + [expression for _, expression in self.extras]

    def _from(self, chosen: Sequence[str]) -> str:
        past = " FOR SYSTEM_TIME ALL" if self.table.versioned else ""
        return f"SELECT {', '.join(chosen)} FROM {self.table.name}{past}"

    def _select(self, chosen: Sequence[str], after: Sequence[str], until: Sequence[str], condition: str) -> str:
        table = self.table
        text = self._from(chosen)
        if table.key is None:
            return text + (f" WHERE {condition}" if condition else "")
        keys = [quoted(table.schema.columns[i].name) for i in table.key.columns]
        text += f" FORCE INDEX ({quoted(table.key.name)})"
        bounds = [condition] if condition else []
        if after:
            bounds.append(_behind(keys, after, ">", ">"))
        if until:
            bounds.append(_behind(keys, until, "<", "<="))
        return text + (f" WHERE {' AND '.join(bounds)}" if bounds else "") + f" ORDER BY {', '.join(keys)}"


def _behind(keys: Sequence[str], bound: Sequence[str], sign: str, last: str) -> str:
    """`_beyond`, and in front of it what an index is used for. The server tries every part of this on every row."""
    beyond = _beyond(keys, bound, sign, last)
    return beyond if len(bound) == 1 else f"{keys[0]} {sign}= {bound[0]} AND ({beyond})"


def _beyond(keys: Sequence[str], bound: Sequence[str], sign: str, last: str) -> str:
    """(a, b) > (x, y), written so that an index is used for it; `last`: the sign of the bound's last part, which need not be the key's."""
    if len(bound) == 1:
        return f"{keys[0]} {last} {bound[0]}"
    return f"{keys[0]} {sign} {bound[0]} OR ({keys[0]} = {bound[0]} AND ({_beyond(keys[1:], bound[1:], sign, last)}))"


def _as_logged(table: SourceTable, i: int) -> str:
    column = table.schema.columns[i]
    return f"CAST({quoted(column.name)} AS BINARY({column.size}))" if i in table.raw else quoted(column.name)


def selection(table: SourceTable, *conditions: Bound | None, shown: Sequence[int] | None = None) -> Selection:
    """Return how `table` is selected: the rows that all `conditions` are true of (None: all), the columns `shown`, which hold the key (None: all)."""
    extras: list[tuple[int, str]] = []
    more: list[Column] = []
    columns = table.schema.columns
    for i in table.key.columns if table.key else ():
        column = columns[i]
        if column.type in ("enum", "set"):  # in the order of their numbers
            extras.append((i, f"CAST({quoted(column.name)} AS UNSIGNED)"))
            more.append(INDEXED)
        elif column.charset and python_codec(column.charset) != "utf-8":
            extras.append((i, f"CAST({quoted(column.name)} AS BINARY)"))
            more.append(BYTES)
    shown = range(len(columns)) if shown is None else shown
    condition = " AND ".join([one.sql(partial(_as_logged, table)) for one in conditions if one is not None])
    return Selection(table, (*[columns[i] for i in shown], *more), tuple(extras), tuple(shown), condition)


def literals(selected: Selection, row: Sequence[Any]) -> tuple[str, ...]:
    """Return the key of a row of `selected` as SQL literals that mean exactly its bytes."""
    at = {i: at for at, i in enumerate(selected.shown)} | {
        i: len(selected.shown) + at for at, (i, _) in enumerate(selected.extras)
    }
    assert selected.table.key is not None
    return key_literals(selected, [row[at[i]] for i in selected.table.key.columns])


def key_literals(selected: Selection, values: Sequence[Any]) -> tuple[str, ...]:
    """Return a row of `Selection.key_sql` as such literals."""
    table = selected.table
    assert table.key is not None
    parts = zip(table.key.columns, values, strict=True)
    return tuple([literal(table.schema.columns[i], table.collations[i], value) for i, value in parts])


def literal(column: Column, collation: str, value: Any) -> str:
    """Return a stored value as an SQL literal that means exactly its bytes; text of other character sets than UTF-8 has to be bytes."""
    if column.type in NUMBERS or column.type in ("enum", "set"):
        return str(value)
    if column.type == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    if isinstance(value, float):
        return f"{value:.17e}"
    if column.charset:
        raw = value if isinstance(value, bytes) else value.encode()
        return f"_{column.charset} x'{raw.hex()}' COLLATE {collation}"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return f"'{value if isinstance(value, str) else _moment(column.type, value)}'"


def _moment(type_: str, value: int) -> str:
    if type_ == "date":
        return (date(1970, 1, 1) + timedelta(value)).isoformat()
    if type_ == "time":
        seconds, micros = divmod(abs(value), 1_000_000)
        sign = "-" if value < 0 else ""
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    return (datetime(1970, 1, 1) + timedelta(microseconds=value)).isoformat(" ", "microseconds")
