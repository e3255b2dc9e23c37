"""Encoded events -> Arrow RecordBatches, in the executors.

A typed query's rows are columns at once (`shmstore.encoding.arrow_rows`): no Python object is made for a cell. Those of a payload that many
tables share are decoded to stored form first, since their images become texts. So are events without rows: DDL, BEGIN and END.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shmstore.consumer.collector import no_collector
from shmstore.consumer.copies.ddl import actions
from shmstore.consumer.formats.own import image_texts
from shmstore.consumer.spark.decode.conversion import converted
from shmstore.consumer.spark.decode.lineage import Names, places_in
from shmstore.consumer.spark.decode.schema import SOURCE_TYPE, arrow_schema, schema_of
from shmstore.consumer.spark.decode.variant import variant_array
from shmstore.consumer.spark.options import SourceOptions
from shmstore.encoding.arrow import Events, arrow_type, fit, widens
from shmstore.encoding.arrow_rows import (
    OPS,
    RowPositions,
    Spread,
    StoredEvents,
    index_events,
    partial_reads,
    read_rows,
    runs,
    stored_positions,
)
from shmstore.encoding.codec import Header, decode_schema
from shmstore.event import EntryType, TableSchema
from shmstore.sql.names import folded, places_of

ROWS_PER_BATCH = 20_000
STORED_ROWS_PER_BATCH = 4_000  # what is decoded stays in the cache until it is a column: half as fast with 20,000
_NO_IMAGES: list[Any] = [None, None, None, None]


class SchemaChanged(ValueError):
    """The columns of a typed query's table are not those that the query was planned with."""


class _Item(NamedTuple):
    """One event that yields rows: its header, what it is, its table, its images, and how many rows it yields."""

    header: Header
    op: str
    table: TableSchema | None
    body: list[Any]
    rows: int


@dataclass(frozen=True)
class Decoder:
    """Turns events into the RecordBatches of one query. Pickled into the executors. `table` is that of payload=typed, whose columns hold from the event
    `since` on: an epoch, and a number.
    """

    options: SourceOptions
    table: TableSchema | None = None
    since: tuple[int, int] | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every RecordBatch."""
        return arrow_schema(schema_of(self.options.payload, self.table))

    def batches(self, raw: memoryview | bytes, ends: NDArray[np.int64], names: Names | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the events in `raw`, which end at `ends`, in order.

        `names` are those that the planned columns have in these events, where DDLs since have changed them. Raises `SchemaChanged`,
        `PartialImage`, `ZeroDate`, `StoreCorrupt`.
        """
        with no_collector():
            events = index_events(raw, ends)
            tables = [*map(self._wanted_table, events.schemas), None]  # the last is schema -1
            compiled = self.table is not None and isinstance(events, Events)
            most = ROWS_PER_BATCH if compiled else STORED_ROWS_PER_BATCH
            for run in runs(events, self._chosen(events, tables), most, mixed=self.table is None):
                table = tables[events.records["schema"][run[0]]]
                if self.table is None or table is None:
                    yield from self._stored(events, run, tables)
                else:
                    yield self._typed(events, run, table, self.table, names)

    def rows_in(self, events: Events | StoredEvents) -> NDArray[np.int64]:
        """Return how many rows each of `events` yields."""
        tables = [*map(self._wanted_table, events.schemas), None]
        chosen, entry = self._chosen(events, tables), events.records["entry"]
        rows: NDArray[np.int64] = np.where(events.records["schema"] < 0, 1, events.records["rows"]) * chosen
        others = np.flatnonzero(chosen & (events.records["schema"] < 0) & ((entry == EntryType.ROWS) | (entry == EntryType.DDL)))
        rows[others] = [self._other(header) is not None for header, _ in events.stored(others)]
        if (
            self.options.payload == "raw"
        ):  # a row an event, also of one without rows: a snapshot's end, a change of the producer's filters
            asked = (entry == EntryType.ROWS) | (self.options.ddl & (entry == EntryType.HEARTBEAT))
            rows = np.maximum(rows, self._wanted(events, asked))
        return rows

    def wanted(self, raw: memoryview | bytes, ends: NDArray[np.int64], asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the events that are `asked` for pass the options' filters: for payload=raw."""
        return self._wanted(index_events(raw, ends), asked)

    def _wanted(self, events: Events | StoredEvents, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        schema = events.records["schema"]
        tables = np.array([*(self._wanted_table(blob) is not None for blob in events.schemas), False])
        passed: NDArray[np.bool_] = asked & tables[schema]
        others = np.flatnonzero(asked & (schema < 0))
        passed[others] = [
            header.entry == EntryType.HEARTBEAT or self._other(header) is not None for header, _ in events.stored(others)
        ]
        return passed

    # ---------------------------------------------------------------- events

    def _wanted_table(self, schema: bytes) -> TableSchema | None:
        """The table whose rows are wanted, else None."""
        table = decode_schema(schema)
        return table if self.options.wants(table.database, table.table) else None

    def _chosen(self, events: Events | StoredEvents, tables: Sequence[TableSchema | None]) -> NDArray[np.bool_]:
        """Which events may yield rows."""
        schema, entry, rows = (np.ascontiguousarray(events.records[name]) for name in ("schema", "entry", "rows"))
        other = (entry == EntryType.ROWS) | (entry == EntryType.DDL)
        if self.options.markers:
            other |= (entry == EntryType.BEGIN) | (entry == EntryType.END)
        wanted = np.array([table is not None for table in tables])[schema] & (rows > 0)
        if self.table is not None:
            wanted &= ~partial_reads(events)
        chosen: NDArray[np.bool_] = np.where(schema < 0, other, wanted)
        return chosen

    def _other(self, header: Header) -> _Item | None:
        """The row of a DDL, a BEGIN or an END, where it is wanted; of a statement logged as such always, since its rows are not."""
        entry = header.entry
        if entry == EntryType.ROWS:
            return _Item(header, "statement", None, _NO_IMAGES, 1)
        if entry == EntryType.DDL and self.options.ddl:
            touched = actions(header.sql, header.props.get("default_database", header.database), header.props.get("sql_mode", ""))
            if touched and not self.options.all_tables and not any(self._touches(a.database, a.table) for a in touched):
                return None
            truncates = len(touched) == 1 and touched[0].kind == "truncate"
            named = TableSchema(touched[0].database, touched[0].table, ()) if len(touched) == 1 else None
            return _Item(header, "t" if truncates else "ddl", named, _NO_IMAGES, 1)
        if entry in (EntryType.BEGIN, EntryType.END) and self.options.markers:
            return _Item(header, "begin" if entry == EntryType.BEGIN else "end", None, _NO_IMAGES, 1)
        return None

    def _touches(self, database: str, table: str) -> bool:
        """A dropped database (table ``*``) and an unreadable statement touch whatever could be in them."""
        if not database:
            return True
        if table == "*":
            return self.options.tables.match_some_of(database)
        # in lower case, too: some servers store names so
        return self.options.wants(database, table) or self.options.wants(folded(database), folded(table))

    # ---------------------------------------------------------------- columns

    def _batch(
        self,
        positions: RowPositions,
        database: pa.Array,
        table: pa.Array,
        images: tuple[pa.Array, pa.Array, pa.Array],
        ddl: pa.Array,
    ) -> pa.RecordBatch:
        """The rows at `positions`; `images` are the columns before, after and pk."""
        before, after, key = images
        source = [positions.server, positions.file, positions.offset, positions.row, pa.nulls(len(positions.row), pa.string())]
        columns = [
            positions.seq,
            positions.op,
            database,
            table,
            before,
            after,
            positions.time,
            pa.StructArray.from_arrays(source, fields=_SOURCE),
            positions.transaction,
            key,
            ddl,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _typed(
        self,
        events: Events | StoredEvents,
        run: NDArray[np.int64],
        table: TableSchema,
        plan: TableSchema,
        names: Names | None,
    ) -> pa.RecordBatch:
        mapping = self._mapping(events, run, table, plan, names)
        image, key = self.schema.field("after").type, self.schema.field("pk").type
        own = pa.struct([field.with_type(_read_as(table, i, field.type)) for i, field in zip(mapping, image, strict=True)])
        op, database, name, before, after, time, server, file, offset, seq, row, transaction = read_rows(
            events, run, table, mapping, own, zero_dates=self.options.zero_dates
        ).columns
        if own != image:
            before, after = (_planned(one, table, mapping, image) for one in (before, after))
        count = len(after)
        keys = _keys(before, after, plan.primary_key, key) if plan.primary_key else pa.nulls(count, key)
        positions = RowPositions(seq, op, file, offset, time, server, row, transaction)
        return self._batch(positions, database, name, (before, after, keys), pa.nulls(count, pa.string()))

    def _stored(
        self, events: Events | StoredEvents, run: NDArray[np.int64], tables: Sequence[TableSchema | None]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of events of any tables, or of none."""
        items = []
        for (header, body), schema in zip(events.stored(run), events.records["schema"][run].tolist(), strict=True):
            table = tables[schema]
            if table is not None:
                items.append(_Item(header, OPS[header.type & 255], table, body, len(body[1] or body[3] or ())))
            elif (other := self._other(header)) is not None:
                items.append(other)
        if not items:
            return
        headers, ops, found, _, counts = zip(*items, strict=True)
        spread = Spread(counts)
        names = [
            (table.database, table.table) if table else (header.database or None, None)
            for header, table in zip(headers, found, strict=True)
        ]
        database, name = (spread(column, pa.string()) for column in zip(*names, strict=True))
        ddl = spread([header.sql or None for header in headers], pa.string())
        if self.table is None:
            images = self._texts(items, spread.total)
        else:
            images = tuple(pa.nulls(spread.total, self.schema.field(column).type) for column in ("before", "after", "pk"))
        yield self._batch(stored_positions(headers, ops, spread), database, name, images, ddl)

    def _texts(self, items: Sequence[_Item], count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
        before, after, keys = _Texts(), _Texts(), _Texts()
        at = 0
        for item in items:
            before_columns, before_rows, after_columns, after_rows = item.body
            if item.table is not None:
                if before_rows is not None:
                    before.add(at, item.table, before_columns, before_rows)
                if after_rows is not None:
                    after.add(at, item.table, after_columns, after_rows)
                _add_keys(keys, at, item)
            at += item.rows
        if self.options.payload == "variant":
            type_ = self.schema.field("after").type
            return before.variants(count, type_), after.variants(count, type_), keys.variants(count, type_)
        return before.array(count), after.array(count), keys.array(count)

    def _mapping(
        self, events: Events | StoredEvents, run: NDArray[np.int64], table: TableSchema, plan: TableSchema, names: Names | None
    ) -> list[int | None]:
        """For each planned column the index of the column of `table` that fills it. Raises `SchemaChanged`."""
        if self.options.schema_changes == "follow":
            return places_in(plan.names if names is None else names, table.names)
        if changes := differences(table, plan):
            header, _ = events.stored(run[:1])[0]
            raise SchemaChanged(
                f"{plan.database}.{plan.table} at {header.file}:{header.offset} has other columns than this read was planned with: "
                f"{changes}. Give the option schemaChanges=follow, which reads rows from before and behind such a DDL with the same columns, or "
                "read with payload=json, or read up to there and from there on (endingOffsets, startingOffsets)"
            )
        return places_of(plan.names, table.names)


def differences(table: TableSchema, plan: TableSchema) -> str:
    """Return how the columns of `table`, and its key, differ from planned ones; nothing where they do not."""
    fits = fit(table, plan)
    changes = [f"{name} is new" for name in fits.added] + [f"{name} is not there" for name in fits.missing]
    changes += [f"{name} is {found} instead of {planned}" for name, found, planned in fits.changed]
    keys = [[folded(one.columns[i].name) for i in one.primary_key] for one in (table, plan)]
    if not changes and keys[0] != keys[1]:
        changes = [f"the primary key is ({', '.join(keys[0])}) instead of ({', '.join(keys[1])})"]
    return ", ".join(changes)


def _read_as(table: TableSchema, i: int | None, planned: pa.DataType) -> pa.DataType:
    """The type to read a column's values in: the planned one, where that holds all of them."""
    own = planned if i is None else arrow_type(table.columns[i])
    return planned if widens(own, planned) else own


def _planned(image: pa.StructArray, table: TableSchema, mapping: Sequence[int | None], type_: pa.StructType) -> pa.StructArray:
    """The same rows, in planned types."""
    name = f"{table.database}.{table.table}"
    arrays = [
        array if i is None or array.type == field.type else converted(array, name, table.columns[i], field.type)
        for i, field, array in zip(mapping, type_, image.flatten(), strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=image.is_null() if image.null_count else None)


_SOURCE = list(arrow_schema(SOURCE_TYPE))


def _keys(before: pa.StructArray, after: pa.StructArray, key: Sequence[int], type_: pa.StructType) -> pa.StructArray:
    """The key of `after`, or of `before` where there is no `after`."""
    if after.null_count == 0:
        keys = [after.field(i) for i in key]
    elif after.null_count == len(after):
        keys = [before.field(i) for i in key]
    else:
        keys = [pc.if_else(after.is_null(), before.field(i), after.field(i)) for i in key]
    return pa.StructArray.from_arrays(keys, fields=list(type_))


class _Texts:
    """Gathers images of the same table and columns from many events, so that they are printed together."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, tuple[int, ...] | None], tuple[TableSchema, list[int], list[Any]]] = {}

    def add(self, at: int, table: TableSchema, columns: Sequence[int] | None, rows: Sequence[Any]) -> None:
        present = None if columns is None else tuple(columns)
        group = self._groups.get((id(table), present))
        if group is None:
            group = self._groups[id(table), present] = (table, [], [])
        group[1].extend(range(at, at + len(rows)))
        group[2].extend(rows)

    def array(self, count: int) -> pa.Array:
        texts: list[bytes | None] = [None] * count
        for (_, present), (table, at, rows) in self._groups.items():
            for i, printed in zip(at, image_texts(table, present, rows), strict=True):
                texts[i] = printed
        return pa.array(texts, pa.string())

    def variants(self, count: int, type_: pa.StructType) -> pa.Array:
        return variant_array(self._groups, count, type_)


def _add_keys(keys: _Texts, at: int, item: _Item) -> None:
    table = item.table
    part = 2 if item.body[3] is not None else 0
    columns, rows = item.body[part], item.body[part + 1]
    if table is None or rows is None or not table.primary_key:
        return
    key = table.primary_key
    if columns is not None:
        if not set(key) <= set(columns):
            columns, rows = item.body[0], item.body[1]  # MINIMAL: an unchanged key is in `before` alone
            if rows is None:
                return
        key = tuple(columns.index(i) for i in key) if columns is not None else key
    keys.add(at, table, table.primary_key, [[row[i] for i in key] for row in rows])
