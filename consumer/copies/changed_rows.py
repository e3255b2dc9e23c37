"""The rows of a table's events -> the last change of each key, or all versions of each, as Arrow tables.

A row that changed has an image before, one after, or both. So each is at most two acts: the key before is deleted, then the row after is written.
Numbered by row, acts are in their order:

    row           0              1                   2
    event         INSERT k=1     UPDATE k=1 -> k=2   DELETE k=2
    act           1 write 1      2 delete 1          4 delete 2
                                 3 write 2

and the last act of each key is what became of it. An UPDATE that keeps its key deletes and writes the same one, and the second counts. No row is a
Python object: events are read into columns by what they have (INSERTs, DELETEs, UPDATEs), keys become numbers, and numbers are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shmstore.consumer.formats.values import time_text
from shmstore.encoding.arrow import Events, ZeroDate, arrow_type, column_array
from shmstore.encoding.arrow_rows import StoredEvents, read_images
from shmstore.encoding.row_order import seqs
from shmstore.event import Column, Position, TableSchema

ROWS_PER_READ: Final = 65_536  # the text of a column that is read at once has 2 GiB at most
_BEFORE, _AFTER = 1, 2  # of an event's images
_MICROSECONDS: Final = pa.timestamp("us", "UTC")
_TEMPORAL: Final = ("date", "datetime", "timestamp")

Stored = Events | StoredEvents


def copied_type(column: Column) -> pa.DataType:
    """Return the type that a copy has of `column`. TIME is text there, as MySQL prints it: table formats have no such interval. A frame that is no
    table of a server has "bool", too."""
    own = {"time": pa.string(), "bool": pa.bool_()}
    return own.get(column.type) or arrow_type(column)


def target_fields(table: TableSchema) -> list[pa.Field]:
    """Return the columns of a copy of `table`."""
    return [pa.field(column.name, copied_type(column)) for column in table.columns]


def target_field(column: Column) -> pa.Field:
    """Return the column of a copy that holds `column`."""
    return pa.field(column.name, copied_type(column))


class Acts(NamedTuple):
    """What rows did. Each act has its key in `keys` and its number in `places`; the last ones of `keys`, as many as `written` has rows, write these."""

    keys: pa.Table
    places: NDArray[np.int64]
    written: pa.Table
    zeros: dict[int, ZeroDate]  # rows of `written` with a date that does not exist, NULL there, and what is wrong

    @property
    def order(self) -> NDArray[np.int64]:
        """The acts, as indexes of `places`, in their order."""
        at = np.full(int(self.places.max(initial=-1)) + 1, -1, np.int64)
        at[self.places] = np.arange(len(self.places))
        return at[at >= 0]

    @property
    def deletes(self) -> int:
        """How many acts delete: the first ones."""
        return len(self.places) - len(self.written)


def last_changes(acts: Acts) -> tuple[pa.Table, pa.Table]:
    """Return the rows whose writing was the last act of their key, and the keys whose last act was a delete. Raises `ZeroDate`."""
    if not acts.deletes and not acts.zeros and _ascend(acts.keys):
        return acts.written, acts.keys.slice(0, 0)  # rows of a table that is read, and new ones: each key once
    codes, order = _codes(acts.keys), acts.order
    last = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    last[codes[order]] = order  # of an index that comes more than once numpy keeps the last
    chosen = np.zeros(len(codes), np.bool_)
    chosen[last] = True
    deleted, written = chosen[: acts.deletes], chosen[acts.deletes :]
    for row, wrong in acts.zeros.items():
        if written[row]:
            raise wrong
    return _only(acts.written, written), _only(acts.keys.slice(0, acts.deletes), deleted)


class KeyVersions(NamedTuple):
    """The versions of a history. `moments` of rows are milliseconds since 1970."""

    ended: pa.Table  # a key whose current version ends, with `ended_at` and `ended_seq`
    ended_at: pa.Array
    ended_seq: pa.Array
    rows: pa.Table
    begins: pa.Array
    ends: pa.Array  # NULL: it is the current one
    seqs: pa.Array


def all_versions(acts: Acts, times: NDArray[np.int64], seqs: pa.Array) -> KeyVersions:
    """Return the rows that were written, each with when it ended, and each key with its first act. `times` and `seqs` are of rows. Raises `ZeroDate`."""
    for wrong in acts.zeros.values():
        raise wrong
    codes, order, row = _codes(acts.keys), acts.order, acts.places // 2
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[order[::-1]]] = order[::-1]
    of_key = order[np.argsort(codes[order], kind="stable")]  # acts of a key one after the other
    following = np.full(len(codes), -1, np.int64)
    followed = codes[of_key[:-1]] == codes[of_key[1:]]
    following[of_key[:-1][followed]] = of_key[1:][followed]
    ends = following[acts.deletes :]
    written = row[acts.deletes :]
    return KeyVersions(
        acts.keys.take(pa.array(first)),
        _moments(times[row[first]]),
        seqs.take(pa.array(row[first])),
        acts.written,
        _moments(times[written]),
        _moments(times[row[ends]], ends < 0),
        seqs.take(pa.array(written)),
    )


def read_acts(events: Stored, run: NDArray[np.int64], schema: TableSchema, keys: Sequence[int], zero_dates: str) -> Acts:
    """Return what the rows of `run` did, events of a table with the columns of `schema`, of which `keys` are the key.

    Raises `ZeroDate` where a key is a date that does not exist, also where `zero_dates` is ``null``; ValueError where a value is not of its column.
    """
    counts = events.records["rows"][run]
    starts = np.cumsum(counts) - counts
    key_schema = pa.schema([target_field(schema.columns[i]) for i in keys])
    row_schema = pa.schema(target_fields(schema))
    deleted, written = [key_schema.empty_table()], [row_schema.empty_table()]
    deletes, writes, zeros = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], dict[int, ZeroDate]()
    done = 0
    for piece in _pieces(events.records["images"][run], counts):
        events_ = run[piece]
        before, after, exact = _images(events, events_, schema, keys, zero_dates)
        places = 2 * (np.repeat(starts[piece], counts[piece]) + _within(counts[piece]))
        if before.null_count < len(before):
            there = _there(before)
            deleted.append(_only(_table(schema, before, keys), there))
            deletes.append(places[there])
        if after.null_count < len(after):
            if not exact:
                zeros |= {done + row: wrong for row, wrong in _zero_dates(events, events_, schema)}
            there = _there(after)
            written.append(_only(_table(schema, after, range(len(schema.columns))), there))
            writes.append(places[there] + 1)
            done += len(writes[-1])
    rows = pa.concat_tables(written)
    return Acts(pa.concat_tables([*deleted, rows.select(list(keys))]), np.concatenate([*deletes, *writes]), rows, zeros)


def row_seqs(events: Stored, run: NDArray[np.int64], head: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Return of each row of `run` when it changed (milliseconds since 1970), and its `seq`, behind `head`."""
    records, counts = events.records[run], events.records["rows"][run]
    numbers = np.array([Position(file, 0).file_number for file in events.files], np.int64)
    file, offset, order, time, row = (
        np.repeat(values, counts)
        for values in (numbers[records["file"]], records["offset"], records["order"], records["time"], records["row"])
    )
    text = seqs(file, offset, order, row + _within(counts))
    return time, pc.binary_join_element_wise(head, text, "") if head else text


# ---------------------------------------------------------------- reading


def _within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each row in its event."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _pieces(images: NDArray[np.int64], counts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Events that are read at once: of the same images, and of about `ROWS_PER_READ` rows at most."""
    for kind in (_AFTER, _BEFORE, _BEFORE | _AFTER):
        chosen = np.flatnonzero(images == kind)
        ends = np.cumsum(counts[chosen])
        cuts = np.searchsorted(ends, np.arange(ROWS_PER_READ, int(ends[-1]) + 1 if len(ends) else 0, ROWS_PER_READ))
        for first, last in pairwise([0, *(np.unique(cuts) + 1).tolist(), len(chosen)]):
            if first < last:
                yield chosen[first:last]


def _images(
    events: Stored, run: NDArray[np.int64], schema: TableSchema, keys: Sequence[int], zero_dates: str
) -> tuple[pa.StructArray, pa.StructArray, bool]:
    """The key before, and the row after; and whether all that is NULL there was NULL: else some was a date that does not exist. Raises `ZeroDate` of a key."""
    types = [arrow_type(column) for column in schema.columns]
    key_types = [type_ if i in keys else None for i, type_ in enumerate(types)]
    if zero_dates == "null" and any(schema.columns[i].type in _TEMPORAL for i in keys):
        read_images(events, run, schema, key_types, key_types, "fail")
    try:
        return *read_images(events, run, schema, key_types, types, zero_dates), True
    except ZeroDate:
        read_images(events, run, schema, key_types, key_types, "fail")
        return *read_images(events, run, schema, key_types, types, "null"), False


def _zero_dates(events: Stored, run: NDArray[np.int64], schema: TableSchema) -> Iterator[tuple[int, ZeroDate]]:
    """The rows after that have a date which does not exist, each with what is wrong."""
    temporal = [i for i, column in enumerate(schema.columns) if column.type in _TEMPORAL]
    rows = [row for _, body in events.stored(run) for row in body[3] or ()]
    for number, row in enumerate(rows):
        for i in temporal:
            if type(row[i]) is str:
                try:
                    column_array(schema.columns[i], copied_type(schema.columns[i]), [row[i]], "fail")
                except ZeroDate as wrong:
                    yield number, wrong
                    break


def _there(image: pa.StructArray) -> NDArray[np.bool_]:
    """Which rows have the image."""
    found: NDArray[np.bool_] = image.is_valid().to_numpy(zero_copy_only=False)
    return found


def _table(schema: TableSchema, image: pa.StructArray, places: Sequence[int]) -> pa.Table:
    """Columns of a copy, of those that were read."""
    columns = [schema.columns[i] for i in places]
    arrays = [image.field(column.name) for column in columns]
    made = [_times(array, column) if column.type == "time" else array for array, column in zip(arrays, columns, strict=True)]
    return pa.Table.from_arrays(made, schema=pa.schema([target_field(column) for column in columns]))


def _times(array: pa.Array, column: Column) -> pa.Array:
    """Values of a TIME column as text."""
    text, coded = time_text(column.scale), array.cast(pa.int64()).dictionary_encode()
    return pa.array([text(value) for value in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)


# ---------------------------------------------------------------- keys


def _ascend(keys: pa.Table) -> bool:
    """Whether each row's key is known to be above that of the row before it: of one column of numbers, where that costs a twentieth of `_codes`."""
    if keys.num_columns != 1 or not pa.types.is_integer(keys.schema.field(0).type):
        return False
    column = keys.column(0)
    values = column.to_numpy()
    return not column.null_count and bool((values[1:] > values[:-1]).all())


def _codes(keys: pa.Table) -> NDArray[np.int64]:
    """A number for each row of `keys`, less than there are rows: rows of the same key have the same."""
    codes: NDArray[np.int64] | None = None
    for column in keys.columns:
        if pa.types.is_floating(column.type):
            column = pc.add(column, 0.0)  # -0.0 is 0.0
        found, count = _numbered(column)
        codes = found if codes is None else _numbered(pa.chunked_array([pa.array(codes * count + found)]))[0]
    assert codes is not None
    return codes


def _numbered(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], int]:
    """A number for each value, the same for the same, and how many there are. NULL is a value."""
    coded = column.dictionary_encode("encode")  # its chunks have one dictionary
    chunks = [chunk.indices.to_numpy() for chunk in coded.chunks]
    count = len(coded.chunk(0).dictionary) if chunks else 0
    return np.concatenate(chunks, dtype=np.int64) if chunks else np.zeros(0, np.int64), count


def _only(table: pa.Table, rows: NDArray[np.bool_]) -> pa.Table:
    return table if rows.all() else table.filter(pa.array(rows))


def _moments(times: NDArray[np.int64], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.array(times * 1000, pa.int64(), mask=missing).cast(_MICROSECONDS)
