"""What passes: tables by pattern, rows by conditions, columns taken out, masked or hashed, operations.

Patterns are those of `shmstore.patterns.table_patterns`, on ``database.table`` and, of columns, on ``database.table.column``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from shmstore.encoding.codec import encode_schema, unpack_rows
from shmstore.event import EventType, TableSchema
from shmstore.patterns.table_patterns import Patterns
from shmstore.producer.errors import PatternError
from shmstore.producer.filters import OPERATIONS
from shmstore.producer.filters.condition import Bound, bind
from shmstore.producer.filters.condition_parser import parse
from shmstore.producer.filters.condition_tree import Both, Node

MASK = "***"
# What tools that change a table's schema create next to it. gh-ost: _t_gho, _t_ghc, _t_del; pt-online-schema-change: _t_new, _t_old, with
# more underscores in front where such a name is taken.
_GHOST = re.compile(r"_+(.+)_(?:gho|ghc|del|new|old)")


def read_patterns(texts: str | Iterable[str]) -> Patterns:
    """Return the patterns that `texts` list. Raises `PatternError`."""
    try:
        return Patterns.parse(texts)
    except ValueError as error:
        raise PatternError(str(error)) from error


def read_row_filter(text: str) -> tuple[Patterns, Node]:
    """Return the tables and the condition of ``shop.orders: country = 'DE'``. Raises `PatternError`."""
    names, colon, condition = text.partition(":")
    if not colon or not names.strip() or not condition.strip():
        raise PatternError(f"row filter {text!r} is not TABLES: CONDITION, as in \"shop.orders: country = 'DE'\"")
    return read_patterns(names.strip()), parse(condition.strip())


class TablePlan(NamedTuple):
    """What is done with the rows of one table version. `blob` is the schema that they come with; None: nothing, pass them as they are."""

    blob: bytes | None = None
    keep: tuple[
        int, ...
    ] = ()  # indexes of the columns that stay, in order; below 0 one that is added, ~index of its value in `added`
    change: tuple[tuple[int, bool], ...] = ()  # (index, True: hash, False: mask)
    added: tuple[Any, ...] = ()
    same_rows: bool = False  # only the schema is another

    @property
    def changes_rows(self) -> bool:
        """Whether rows are not passed as they are."""
        return self.blob is not None and not self.same_rows


class TableFilter:
    """Decides on tables, rows and statements. Decisions are kept, so that an event costs one dict lookup."""

    def __init__(
        self,
        *,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        column_include: Iterable[str] = (),
        column_exclude: Iterable[str] = (),
        column_mask: Iterable[str] = (),
        column_hash: Iterable[str] = (),
        hash_key: str = "",
        operations: Iterable[str] = OPERATIONS,
        row_filter: Iterable[str] = (),
        ghost_tables: str = "keep",
        left_out: Callable[[str, str], None] | None = None,
    ) -> None:
        """`left_out` is called once for each ghost table: whose it is, and its name."""
        self._ghosts = ghost_tables == "keep"
        self._left_out = left_out
        self._include, self._exclude = read_patterns(include), read_patterns(exclude)
        self._column_include, self._column_exclude = read_patterns(column_include), read_patterns(column_exclude)
        self._column_mask, self._column_hash = read_patterns(column_mask), read_patterns(column_hash)
        self._key = hash_key.encode()
        self.operations = frozenset(operations)
        if unknown := self.operations - {
            *OPERATIONS,
            "dcl",
        }:  # dcl was one once: statements about accounts are passed to no reader now
            raise PatternError(f"operation {sorted(unknown)[0]!r} is unknown; there are {', '.join(OPERATIONS)}")
        self._columns = any((self._column_include, self._column_exclude, self._column_mask, self._column_hash))
        self._tables: dict[tuple[str, str], bool] = {}
        self._plans: dict[bytes, TablePlan] = {}
        self.row_filters = [(text, *read_row_filter(text)) for text in row_filter]  # as written, for which tables, which rows
        self._conditions: dict[bytes, Bound | None] = {}
        types = {"insert": EventType.INSERT, "update": EventType.UPDATE, "delete": EventType.DELETE}
        self.row_types = frozenset(types[name] for name in self.operations & types.keys())

    def passes(self, database: str, table: str) -> bool:
        """Whether the rows and DDLs of this table pass."""
        known = self._tables.get((database, table))
        if known is None:
            name = f"{database}.{table}"
            known = (not self._include or self._include.match(name)) and not self._exclude.match(name)
            if known and not self._ghosts and (ghost := _GHOST.fullmatch(table)) and self.passes(database, ghost[1]):
                known = False
                if self._left_out is not None:
                    self._left_out(f"{database}.{ghost[1]}", table)
            if len(self._tables) > 100_000:
                self._tables.clear()
            self._tables[(database, table)] = known
        return known

    @property
    def has_columns(self) -> bool:
        """Whether columns are taken out of any table, or changed."""
        return self._columns

    def conditions_of(self, database: str, table: str) -> list[str]:
        """Return the row filters of a table, as they are written."""
        return [text.partition(":")[2].strip() for text, tables, _ in self.row_filters if tables.match(f"{database}.{table}")]

    def plan(self, schema: TableSchema, blob: bytes) -> TablePlan:
        """Return what is done with the columns of the table version `schema`, encoded as `blob`."""
        if not self._columns:
            return _NOTHING
        plan = self._plans.get(blob)
        if plan is None:
            plan = self._plans[blob] = self._make_plan(schema)
        return plan

    def condition(self, schema: TableSchema, blob: bytes) -> Bound | None:
        """Return which rows of the table version `schema`, encoded as `blob`, pass; None: all. Raises `UnsupportedEvent`.

        Of several filters for one table all have to hold.
        """
        if not self.row_filters:
            return None
        if blob not in self._conditions:
            name = f"{schema.database}.{schema.table}"
            nodes = tuple([node for _, tables, node in self.row_filters if tables.match(name)])
            self._conditions[blob] = bind(nodes[0] if len(nodes) == 1 else Both(nodes), schema) if nodes else None
        return self._conditions[blob]

    def _make_plan(self, schema: TableSchema) -> TablePlan:
        keep, change, columns = [], [], []
        for i, column in enumerate(schema.columns):
            name = f"{schema.database}.{schema.table}.{column.name}"
            if (self._column_include and not self._column_include.match(name)) or self._column_exclude.match(name):
                continue
            keep.append(i)
            hashed = self._column_hash.match(name)
            if hashed or self._column_mask.match(name):
                change.append((i, hashed))
                size = 64 if hashed else len(MASK)
                column = column._replace(type="varchar", size=size, scale=0, unsigned=False, charset="utf8mb4", members=())
            columns.append(column)
        if len(keep) == len(schema.columns) and not change:
            return _NOTHING
        place = {i: at for at, i in enumerate(keep)}
        key = tuple(place[i] for i in schema.primary_key) if all(i in place for i in schema.primary_key) else ()
        changed = TableSchema(schema.database, schema.table, tuple(columns), key)
        return TablePlan(encode_schema(changed), tuple(keep), tuple(change))

    def apply(self, plan: TablePlan, body: list[Any], width: int) -> list[Any]:
        """Return the stored `body` of a rows event, as `plan` says; `width` is the table's number of columns."""
        if not plan.changes_rows:
            return body
        before_columns, before_rows, after_columns, after_rows = body
        before = self._image(plan, before_columns, before_rows, width)
        return [*before, *self._image(plan, after_columns, after_rows, width)]

    def _image(self, plan: TablePlan, columns: Any, rows: Any, width: int) -> tuple[Any, Any]:
        if rows is None:
            return None, None
        rows = unpack_rows(rows)
        place = {c: at for at, c in enumerate(range(width) if columns is None else columns)}
        take = [i if i < 0 else place[i] for i in plan.keep if i < 0 or i in place]
        change = [(place[i], hashed) for i, hashed in plan.change if i in place]
        out = []
        for values in rows:
            if change:
                values = list(values)
                for at, hashed in change:
                    if values[at] is not None:
                        values[at] = self.digest(values[at]) if hashed else MASK
            out.append([values[at] if at >= 0 else plan.added[~at] for at in take])
        present = [at for at, i in enumerate(plan.keep) if i < 0 or i in place]
        return (None if len(present) == len(plan.keep) else present), out

    def digest(self, value: Any) -> str:
        """Return the hex SHA-256 of `value` (HMAC where there is a key): equal values stay equal."""
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        return hmac.new(self._key, raw, hashlib.sha256).hexdigest() if self._key else hashlib.sha256(raw).hexdigest()


_NOTHING = TablePlan()
