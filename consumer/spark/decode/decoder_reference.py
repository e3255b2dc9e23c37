"""Encoded events -> Arrow RecordBatches, in the executors.

Plan. The events of one peek are decoded to stored form and cut into runs that one RecordBatch can hold. What belongs to
an event (position, time, transaction) becomes one short array for each field and is spread over its rows with one `take`;
what belongs to a row (the images) becomes one array for each column. No Python object is made for a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shmstore.consumer.spark.ddl import actions
from shmstore.consumer.spark.decode import json_text
from shmstore.consumer.spark.decode.gc_pause import no_collector
from shmstore.consumer.spark.decode.schema import SOURCE_TYPE, arrow_schema, schema_of, typed_schema
from shmstore.consumer.spark.decode.variant import variant_array
from shmstore.consumer.spark.options import Options
from shmstore.consumer.spark.row_order import seqs
from shmstore.encoding.arrow import Image, Images, PartialImage, stored_images, widens
from shmstore.encoding.codec import Header, decode_schema, decode_stored
from shmstore.event import EntryType, EventType, Position, TableSchema

ROWS_PER_BATCH = 4_000  # what is decoded stays in the cache until it is a column: half as fast with 20,000
OPS = {
    int(EventType.INSERT): "c",
    int(EventType.UPDATE): "u",
    int(EventType.DELETE): "d",
    int(EventType.READ): "r",
}
_NO_IMAGES: list[Any] = [None, None, None, None]


class SchemaChanged(ValueError):
    """The columns of a typed query's table are no longer those that the query was planned with."""


class _Item(NamedTuple):
    """One event that yields rows: its header, what it is, its table, its images, and how many rows it yields."""

    header: Header
    op: str
    table: TableSchema | None
    body: list[Any]
    rows: int


@dataclass(frozen=True)
class Decoder:
    """Turns payloads into the RecordBatches of one query. Pickled into the executors. `table` is that of payload=typed."""

    options: Options
    table: TableSchema | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every RecordBatch."""
        return arrow_schema(schema_of(self.options.payload, self.table))

    def batches(self, payloads: Iterable[bytes | memoryview]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `payloads`, in order. Raises `SchemaChanged`, `PartialImage`, `ZeroDate`, `StoreCorrupt`."""
        render = self._json if self.table is None else self._typed
        run: list[_Item] = []
        rows = 0
        with no_collector():
            for item in self._items(payloads):
                if run and (rows >= ROWS_PER_BATCH or (self.table is not None and not _alike(run[-1], item))):
                    yield self._batch(run, render)
                    run, rows = [], 0
                run.append(item)
                rows += item.rows
            if run:
                yield self._batch(run, render)

    def wanted(self, payload: bytes | memoryview) -> bool:
        """True when the event in `payload` passes the options' filters: for payload=raw."""
        header, schema, _ = decode_stored(payload)
        return (self.wanted_table(schema) if schema is not None else self._other(header)) is not None

    # ---------------------------------------------------------------- events

    def _items(self, payloads: Iterable[bytes | memoryview]) -> Iterator[_Item]:
        known: dict[bytes, TableSchema | None] = {}
        for payload in payloads:
            header, schema, body = decode_stored(payload)
            if schema is None or body is None:
                item = self._other(header)
                if item is not None:
                    yield item
                continue
            try:
                table = known[schema]
            except KeyError:
                table = known[schema] = self.wanted_table(schema)
            if table is not None:
                count = len(body[1] if body[3] is None else body[3])
                if count:
                    yield _Item(header, OPS.get(header.type, "c"), table, body, count)

    def wanted_table(self, schema: bytes) -> TableSchema | None:
        """The table whose rows are wanted, else None."""
        table = decode_schema(schema)
        return table if self.options.wants(table.database, table.table) else None

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
            return any(
                pattern.split(".")[0] in ("*", database) or "*" in pattern.split(".")[0] for pattern in self.options.tables
            )
        return self.options.wants(database, table)

    # ---------------------------------------------------------------- columns

    def _batch(self, run: list[_Item], render: Callable[[list[_Item]], tuple[pa.Array, pa.Array, pa.Array]]) -> pa.RecordBatch:
        headers = Header._make(zip(*[item.header for item in run], strict=True))
        counts = np.fromiter((item.rows for item in run), np.int64, len(run))
        spread = _Spread(counts)
        before, after, key = render(run)
        number = {file: Position(file, 0).file_number for file in set(headers.file)}
        files = np.repeat(np.array([number[file] for file in headers.file]), counts)
        rows = spread.row_numbers + np.repeat(np.array(headers.row, np.int64), counts)
        seq = seqs(files, np.repeat(np.array(headers.offset), counts), np.repeat(np.array(headers.order), counts), rows)
        source = pa.StructArray.from_arrays(
            [
                spread(pa.array(headers.server_id, pa.int64())),
                spread(pa.array(headers.file, pa.string())),
                spread(pa.array(headers.offset, pa.int64())),
                pa.array(rows, pa.int32()),
                pa.nulls(len(rows), pa.string()),
            ],
            fields=list(arrow_schema(SOURCE_TYPE)),
        )
        tables = [item.table for item in run]
        if len(set(map(id, tables))) == 1 and tables[0] is not None:
            databases, names = pa.repeat(tables[0].database, len(rows)), pa.repeat(tables[0].table, len(rows))
        else:
            names = spread(pa.array([table.table if table else None for table in tables], pa.string()))
            databases = [item.table.database if item.table else item.header.database or None for item in run]
            databases = spread(pa.array(databases, pa.string()))
        ddl = pa.array([sql or None for sql in headers.sql], pa.string()) if any(headers.sql) else pa.nulls(len(run), pa.string())
        return pa.RecordBatch.from_arrays(
            [
                seq,
                spread(pa.array([item.op for item in run], pa.string())),
                databases,
                names,
                before,
                after,
                spread(pa.array(headers.time_ms, pa.int64())),
                source,
                spread(pa.array(headers.transaction, pa.string())),
                key,
                spread(ddl),
            ],
            schema=self.schema,
        )

    def _json(self, run: list[_Item]) -> tuple[pa.Array, pa.Array, pa.Array]:
        before, after, keys = _Texts(), _Texts(), _Texts()
        at = 0
        for item in run:
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
            return before.variants(at, type_), after.variants(at, type_), keys.array(at)
        return before.array(at), after.array(at), keys.array(at)

    def _typed(self, run: list[_Item]) -> tuple[pa.Array, pa.Array, pa.Array]:
        first, plan = run[0], self.table
        assert plan is not None
        count = sum(item.rows for item in run)
        if first.body is _NO_IMAGES or first.table is None:
            before, key = self.schema.field("before").type, self.schema.field("pk").type
            return pa.nulls(count, before), pa.nulls(count, before), pa.nulls(count, key)
        place = f"{first.header.file}:{first.header.offset}"
        if first.body[0] is not None or first.body[2] is not None:
            raise PartialImage(
                f"a row image of {plan.database}.{plan.table} at {place} lacks columns, which a typed row would show as NULL: "
                "set binlog_row_image=FULL on the server, or read with payload=json, which leaves them out"
            )
        mapping = self.mapping(first.table, place)
        types = self.types(first.table, mapping)
        counts = [item.rows for item in run]
        return self.structs(
            stored_images(first.table, [item.body for item in run], counts, types, self.options.zero_dates), mapping, count
        )

    def types(self, table: TableSchema, mapping: Sequence[int | None]) -> list[pa.DataType | None]:
        """The planned type of each column of `table`; None for one that the plan has not."""
        types: list[pa.DataType | None] = [None] * len(table.columns)
        for i, field in zip(mapping, self.schema.field("before").type, strict=True):
            if i is not None:
                types[i] = field.type
        return types

    def structs(self, images: Images, mapping: Sequence[int | None], count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
        """The columns before, after and pk of `count` rows; `mapping` says which column of the images fills a planned one."""
        plan = self.table
        assert plan is not None
        image_type, key_type = self.schema.field("before").type, self.schema.field("pk").type
        before, after = (pa.nulls(count, image_type) if image is None else image.struct(mapping, image_type) for image in images)
        if not plan.primary_key:
            return before, after, pa.nulls(count, key_type)
        return before, after, _typed_keys(images, [mapping[i] for i in plan.primary_key], key_type, count)

    def mapping(self, table: TableSchema, place: str) -> list[int | None]:
        """For each planned column the index of the column of `table` that fills it. Raises `SchemaChanged`, naming `place`."""
        plan = self.table
        assert plan is not None
        if table.columns == plan.columns:
            return list(range(len(plan.columns)))
        there = {column.name: i for i, column in enumerate(table.columns)}
        planned = {field.name: field.type for field in self.schema.field("before").type}
        found = {field.name: field.type for field in arrow_schema(typed_schema(table)).field("before").type}
        added = [name for name in found if name not in planned]
        missing = [name for name in planned if name not in found]
        retyped = [name for name in planned if name in found and found[name] != planned[name]]
        narrowed = [name for name in retyped if not widens(found[name], planned[name])]
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


def _typed_keys(images: Images, places: Sequence[int | None], type_: pa.StructType, count: int) -> pa.Array:
    """The key of `after`, or of `before` where there is no `after`."""

    def of(image: Image) -> list[pa.Array]:
        return [pa.nulls(count, field.type) if i is None else image.arrays[i] for i, field in zip(places, type_, strict=True)]

    before, after = images
    if before is None or after is None or not after.absent.any():
        image = after or before
        assert image is not None
        return pa.StructArray.from_arrays(of(image), fields=list(type_))
    gone = pa.array(after.absent)
    keys = [pc.if_else(gone, b, a) for b, a in zip(of(before), of(after), strict=True)]
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
        texts: list[str | None] = [None] * count
        for (_, present), (table, places, rows) in self._groups.items():
            for place, printed in zip(places, json_text.printer(table, present)(rows), strict=True):
                texts[place] = printed
        return pa.array(texts, pa.string())

    def variants(self, count: int, type_: pa.StructType) -> pa.Array:
        return variant_array(self._groups, count, type_)


def _add_keys(keys: _Texts, at: int, item: _Item) -> None:
    table = item.table
    part = 2 if item.body[3] is not None else 0
    columns, rows = item.body[part], item.body[part + 1]
    if table is None or rows is None or not table.primary_key:
        return
    places = table.primary_key
    if columns is not None:
        if not set(places) <= set(columns):
            columns, rows = item.body[0], item.body[1]  # MINIMAL: an unchanged key is in `before` alone
            if rows is None:
                return
        places = tuple(columns.index(i) for i in places) if columns is not None else places
    keys.add(at, table, table.primary_key, [[row[i] for i in places] for row in rows])
