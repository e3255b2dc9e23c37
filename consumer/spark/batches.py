"""Encoded events -> Arrow RecordBatches, in the executors.

Plan. The events of one peek are decoded to stored form and cut into runs that one RecordBatch can hold. What belongs to
an event (position, time, transaction) becomes one short array for each field and is spread over its rows with one `take`;
what belongs to a row (the images) becomes one array for each column. No Python object is made for a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumer.spark import text
from consumer.spark.columns import column_array
from consumer.spark.ddl import actions
from consumer.spark.offset import seq_prefix, seq_suffix
from consumer.spark.options import Options
from consumer.spark.schema import JSON_SCHEMA, RAW_SCHEMA, SOURCE_TYPE, arrow_schema, typed_schema
from shmstore.codec import decode_schema, decode_stored
from shmstore.event import EntryType, EventType, Position, TableSchema

ROWS_PER_BATCH = 20_000
_OPS = {
    int(EventType.INSERT): "c",
    int(EventType.UPDATE): "u",
    int(EventType.DELETE): "d",
    int(EventType.READ): "r",
}
_NO_IMAGES = [None, None, None, None]


class SchemaChanged(ValueError):
    """The columns of a typed query's table are no longer those that the query was planned with."""


class PartialImage(ValueError):
    """A row image lacks columns (binlog_row_image is not FULL), which a typed row cannot say."""


class _Item:
    """One event that yields rows: its header, schema, images and what it is."""

    __slots__ = ("body", "count", "header", "op", "table")

    def __init__(self, header: list[Any], op: str, table: TableSchema | None, body: list[Any]) -> None:
        self.header = header
        self.op = op
        self.table = table
        self.body = body
        rows = body[3] if body[3] is not None else body[1]
        self.count = 1 if rows is None else len(rows)


@dataclass(frozen=True)
class Decoder:
    """Turns payloads into the RecordBatches of one query. Pickled into the executors. `table` is that of payload=typed."""

    options: Options
    table: TableSchema | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every RecordBatch."""
        if self.options.payload == "raw":
            return arrow_schema(RAW_SCHEMA)
        return arrow_schema(JSON_SCHEMA if self.table is None else typed_schema(self.table))

    def batches(self, payloads: Iterable[bytes | memoryview]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `payloads`, in order. Raises `SchemaChanged`, `PartialImage`, `ZeroDate`, `StoreCorrupt`."""
        render = self._json if self.table is None else self._typed
        run: list[_Item] = []
        rows = 0
        for item in self._items(payloads):
            if run and (rows >= ROWS_PER_BATCH or (self.table is not None and not _alike(run[-1], item))):
                yield self._batch(run, render)
                run, rows = [], 0
            run.append(item)
            rows += item.count
        if run:
            yield self._batch(run, render)

    def wanted(self, payload: bytes | memoryview) -> bool:
        """True when the event in `payload` passes the options' filters: for payload=raw."""
        header, schema, _ = decode_stored(payload)
        return self._item(header, schema, _NO_IMAGES) is not None

    # ---------------------------------------------------------------- events

    def _items(self, payloads: Iterable[bytes | memoryview]) -> Iterator[_Item]:
        for payload in payloads:
            header, schema, body = decode_stored(payload)
            item = self._item(header, schema, body or _NO_IMAGES)
            if item is not None and item.count:
                yield item

    def _item(self, header: list[Any], schema: bytes | None, body: list[Any]) -> _Item | None:
        entry = header[0]
        if entry == EntryType.ROWS and schema is not None:
            table = decode_schema(schema)
            if not self.options.wants(table.database, table.table):
                return None
            return _Item(header, _OPS.get(header[1], "c"), table, body)
        if entry == EntryType.DDL and self.options.ddl:
            touched = actions(header[13], header[12])
            if touched and not self.options.all_tables and not any(self._touches(a.database, a.table) for a in touched):
                return None
            truncates = len(touched) == 1 and touched[0].kind == "truncate"
            named = TableSchema(touched[0].database, touched[0].table, ()) if len(touched) == 1 else None
            return _Item(header, "t" if truncates else "ddl", named, _NO_IMAGES)
        if entry in (EntryType.BEGIN, EntryType.END) and self.options.markers:
            return _Item(header, "begin" if entry == EntryType.BEGIN else "end", None, _NO_IMAGES)
        return None

    def _touches(self, database: str, table: str) -> bool:
        """A dropped database (table ``*``) and an unreadable statement touch whatever could be in them."""
        if not database:
            return True
        if table == "*":
            return any(
                pattern.split(".")[0] in ("*", database) or "*" in pattern.split(".")[0] for pattern in self.options.tables
            )
        return self.options.wants(database, table)

    # ---------------------------------------------------------------- columns

    def _batch(self, run: list[_Item], render: Callable[[list[_Item]], tuple[pa.Array, pa.Array, pa.Array]]) -> pa.RecordBatch:
        headers = list(zip(*[item.header for item in run], strict=True))
        counts = np.fromiter((item.count for item in run), np.int64, len(run))
        spread = _Spread(counts)
        before, after, key = render(run)
        number = {file: Position(file, 0).file_number for file in set(headers[2])}
        prefixes = [seq_prefix(number[item.header[2]], item.header[3], item.header[8]) for item in run]
        rows = spread.row_numbers + np.repeat(np.array(headers[11], np.int64), counts)
        suffixes = pa.array([seq_suffix(row) for row in range(int(rows.max()) + 1)]).take(pa.array(rows))
        source = pa.StructArray.from_arrays(
            [
                spread(pa.array(headers[6], pa.int64())),
                spread(pa.array(headers[2], pa.string())),
                spread(pa.array(headers[3], pa.int64())),
                pa.array(rows, pa.int32()),
            ],
            fields=list(arrow_schema(SOURCE_TYPE)),
        )
        databases = [item.table.database if item.table else item.header[12] or None for item in run]
        tables = [item.table.table if item.table else None for item in run]
        return pa.RecordBatch.from_arrays(
            [
                pc.binary_join_element_wise(spread(pa.array(prefixes, pa.string())), suffixes, ""),
                spread(pa.array([item.op for item in run], pa.string())),
                spread(pa.array(databases, pa.string())),
                spread(pa.array(tables, pa.string())),
                before,
                after,
                spread(pa.array(headers[5], pa.int64())),
                source,
                spread(pa.array(headers[7], pa.string())),
                key,
                spread(pa.array([sql or None for sql in headers[13]], pa.string())),
            ],
            schema=self.schema,
        )

    def _json(self, run: list[_Item]) -> tuple[pa.Array, pa.Array, pa.Array]:
        before: list[str | None] = []
        after: list[str | None] = []
        keys: list[str | None] = []
        for item in run:
            before_columns, before_rows, after_columns, after_rows = item.body
            for columns, rows, texts in ((before_columns, before_rows, before), (after_columns, after_rows, after)):
                if rows is None or item.table is None:
                    texts.extend([None] * item.count)
                else:
                    texts.extend(map(text.printer(item.table, tuple(columns) if columns is not None else None), rows))
            keys.extend(_json_keys(item))
        return pa.array(before, pa.string()), pa.array(after, pa.string()), pa.array(keys, pa.string())

    def _typed(self, run: list[_Item]) -> tuple[pa.Array, pa.Array, pa.Array]:
        first, plan = run[0], self.table
        assert plan is not None
        count = sum(item.count for item in run)
        before_type, key_type = self.schema.field("before").type, self.schema.field("pk").type
        if first.body is _NO_IMAGES or first.table is None:
            return pa.nulls(count, before_type), pa.nulls(count, before_type), pa.nulls(count, key_type)
        mapping = self._mapping(first)
        images: list[tuple[list[pa.Array], np.ndarray[Any, Any]] | None] = []
        for part in (1, 3):
            rows, absent = _dense(run, part, len(first.table.columns))
            if absent.all():
                images.append(None)
                continue
            values = list(zip(*rows, strict=True))
            arrays = [
                pa.nulls(count, field.type)
                if i is None
                else column_array(first.table.columns[i], field.type, values[i], self.options.zero_dates)
                for i, field in zip(mapping, before_type, strict=True)
            ]
            images.append((arrays, absent))
        structs = [_struct(image, before_type, count) for image in images]
        if not plan.primary_key:
            return structs[0], structs[1], pa.nulls(count, key_type)
        return structs[0], structs[1], _typed_keys(images, plan.primary_key, key_type)

    def _mapping(self, item: _Item) -> list[int | None]:
        """For each planned column the index of the event's column that fills it."""
        plan, table = self.table, item.table
        assert plan is not None
        assert table is not None
        place = f"{item.header[2]}:{item.header[3]}"
        if item.body[0] is not None or item.body[2] is not None:
            raise PartialImage(
                f"a row image of {plan.database}.{plan.table} at {place} lacks columns, which a typed row would show as NULL: "
                "set binlog_row_image=FULL on the server, or read with payload=json, which leaves them out"
            )
        if table.columns == plan.columns:
            return list(range(len(plan.columns)))
        there = {column.name: i for i, column in enumerate(table.columns)}
        planned = {field.name: field.type for field in self.schema.field("before").type}
        found = {field.name: field.type for field in arrow_schema(typed_schema(table)).field("before").type}
        added = [name for name in found if name not in planned]
        missing = [name for name in planned if name not in found]
        retyped = [name for name in planned if name in found and found[name] != planned[name]]
        narrowed = [name for name in retyped if not _widens(found[name], planned[name])]
        if narrowed or (self.options.schema_changes == "fail" and (added or missing or retyped)):
            changes = [f"{name} is new" for name in added] + [f"{name} is not there" for name in missing]
            changes += [f"{name} is {found[name]} instead of {planned[name]}" for name in retyped]
            raise SchemaChanged(
                f"{plan.database}.{plan.table} at {place} has other columns than this query was planned with: {', '.join(changes)}. "
                "Restart the query to plan it with the table's newest columns (its checkpoint stays good); events from before the "
                "change can be read over with schemaChanges=follow (missing columns become NULL, new ones are left out, types may widen)"
            )
        return [there.get(name) for name in planned]


class _Spread:
    """Repeats an array of one value an event to one value a row."""

    def __init__(self, counts: np.ndarray[Any, Any]) -> None:
        self.single = bool((counts == 1).all())
        self.index = pa.array(np.repeat(np.arange(len(counts)), counts))
        ends = np.cumsum(counts)
        self.row_numbers = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)

    def __call__(self, array: pa.Array) -> pa.Array:
        return array if self.single else array.take(self.index)


def _alike(a: _Item, b: _Item) -> bool:
    """True when two events fit one typed RecordBatch: the same columns, all of them present."""
    return (
        a.table is b.table
        and (a.body is _NO_IMAGES) == (b.body is _NO_IMAGES)
        and a.body[0] == b.body[0]
        and a.body[2] == b.body[2]
    )


def _dense(run: Sequence[_Item], part: int, width: int) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """The images `part` of all rows, with a row of NULLs where there is none, and a mask of those."""
    nothing = [(None,) * width]
    rows: list[Any] = []
    absent: list[Any] = []
    for item in run:
        there = item.body[part]
        rows.extend(nothing * item.count if there is None else there)
        absent.append(there is None)
    return rows, np.repeat(np.array(absent), [item.count for item in run])


def _struct(image: tuple[list[pa.Array], np.ndarray[Any, Any]] | None, type_: pa.StructType, count: int) -> pa.Array:
    if image is None:
        return pa.nulls(count, type_)
    arrays, absent = image
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=pa.array(absent) if absent.any() else None)


def _typed_keys(images: list[Any], key: tuple[int, ...], type_: pa.StructType) -> pa.Array:
    """The key of `after`, or of `before` where there is no `after`."""
    before, after = images
    if before is None or after is None:
        arrays = (after or before)[0]
        return pa.StructArray.from_arrays([arrays[i] for i in key], fields=list(type_))
    gone = pa.array(after[1])
    return pa.StructArray.from_arrays([pc.if_else(gone, before[0][i], after[0][i]) for i in key], fields=list(type_))


def _json_keys(item: _Item) -> list[str | None]:
    table = item.table
    part = 2 if item.body[3] is not None else 0
    rows = item.body[part + 1]
    if table is None or rows is None or not table.primary_key:
        return [None] * item.count
    columns = item.body[part]
    places = table.primary_key
    if columns is not None:
        if not set(places) <= set(columns):
            part, rows, columns = 0, item.body[1], item.body[0]  # MINIMAL: an unchanged key is in `before` alone
            if rows is None:
                return [None] * item.count
        places = tuple(columns.index(i) for i in places) if columns is not None else places
    show = text.printer(table, table.primary_key)
    return [show([row[i] for i in places]) for row in rows]


def _widens(found: pa.DataType, planned: pa.DataType) -> bool:
    """True when every value of `found` is one of `planned`, exactly."""
    if pa.types.is_integer(found):
        if pa.types.is_integer(planned):
            return bool(planned.bit_width >= found.bit_width)
        return bool(pa.types.is_decimal(planned) and planned.precision - planned.scale >= 20)
    if pa.types.is_decimal(found) and pa.types.is_decimal(planned):
        return bool(planned.scale >= found.scale and planned.precision - planned.scale >= found.precision - found.scale)
    return bool(pa.types.is_float32(found) and pa.types.is_float64(planned))
