"""A column's Arrow type, and `Batch.to_arrow`: documented columns, every value exact, what is refused."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from shmstore import Batch, Column, EntryType, EventStore, EventType, StoreCorrupt, TableSchema
from shmstore.encoding.codec import decode
from shmstore.home.definitions import Definition, DefinitionsFile
from tests.shmstore import samples
from tests.shmstore.tables import ALL, NARROW, other_event, random_events, rows_event

pa = pytest.importorskip("pyarrow")
arrow = pytest.importorskip("shmstore.encoding.arrow")

COLUMNS = ["op", "database", "table", "before", "after", "ts_ms", "server_id", "file", "offset", "seq", "row", "transaction"]


@pytest.fixture(params=["compiled", "pure"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to read rows."""
    if request.param == "pure":
        monkeypatch.setattr(arrow, "COMPILED", False)
    elif not arrow.COMPILED:
        pytest.skip("no compiled columns here")
    return str(request.param)


@pytest.fixture
def batch_of(make: Callable[..., EventStore]) -> Callable[[list[bytes]], Batch]:
    """Puts payloads into a store and gets them as one batch."""

    store = make(capacity=1024, memory_unit=4096)
    subscription = store.subscribe("reader")

    def put(payloads: list[bytes]) -> Batch:
        if payloads:
            store.put_encoded(*samples.encoded(payloads))
        return subscription.get(timeout=0)

    return put


def test_types() -> None:
    """Each MySQL type has the Arrow type that holds all its values."""
    found = {column.name: str(arrow.arrow_type(column)) for column in ALL.columns}
    assert found == {
        "i8": "int8", "u8": "int16", "i16": "int16", "u16": "int32", "i24": "int32", "i32": "int32", "u32": "int64", "i64": "int64",
        "u64": "decimal128(20, 0)", "y": "int32", "bit": "int64", "bit64": "decimal128(20, 0)", "amount": "decimal128(12, 2)",
        "wide": "decimal128(38, 10)", "whole": "decimal128(20, 0)", "huge": "string", "f": "float", "x": "double",
        "day": "date32[day]", "at": "timestamp[us]", "seen": "timestamp[us, tz=UTC]", "took": "duration[us]", "name": "string",
        "kind": "string", "doc": "string", "id": "string", "raw": "binary", "shape": "binary",
    }  # fmt: skip


def test_values_are_those_of_iteration(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """Every value in the table is the Python value that iterating over the batch gives, for every type and kind of event."""
    batch_of([other_event(0, EntryType.BEGIN)] * 3)
    batch = batch_of(random_events(random.Random(11), 80))
    assert batch.first == 3
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.column_names == COLUMNS
    expected = []
    for seq, event in enumerate(batch, batch.first):
        op = {EventType.UPDATE: "u", EventType.DELETE: "d", EventType.READ: "r"}.get(event.type, "c")
        for i, (before, after) in enumerate(event.records()):
            place = (event.position.file, event.position.offset, seq, event.position.row + i, event.transaction)
            expected.append((op, "d", "everything", _arrow(before), _arrow(after), event.time_ms, event.server_id, *place))
    assert [tuple(row.values()) for row in table.to_pylist()] == expected


def _arrow(values: dict[str, Any] | None) -> dict[str, Any] | None:
    """What Arrow returns for the Python values of a row: 64-bit unsigned as decimals, floats at their width, digits of 65 as text."""
    if values is None:
        return None
    changed = dict(values)
    for name in ("u64", "bit64"):
        changed[name] = None if changed[name] is None else Decimal(changed[name])
    changed["huge"] = None if changed["huge"] is None else format(changed["huge"], "f")
    changed["f"] = None if changed["f"] is None else pa.scalar(changed["f"], pa.float32()).as_py()
    return changed


def test_edges(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """The edges of types with a meaning of their own arrive as they are: dates before 1970, negative times, exact decimals."""
    table = TableSchema(
        "d",
        "t",
        (
            Column("n", "bigint", unsigned=True),
            Column("p", "decimal", size=38, scale=10),
            Column("day", "date"),
            Column("at", "datetime", scale=6),
            Column("seen", "timestamp"),
            Column("took", "time", scale=1),
        ),
    )
    payload = rows_event(
        0, EventType.INSERT, None, [[2**64 - 1, "-1.0000000001", -354285, -1, 2**31 * 10**6, -3020398500000]], table
    )
    (row,) = batch_of([payload]).to_arrow()["after"].to_pylist()
    assert row == {
        "n": Decimal(2**64 - 1),
        "p": Decimal("-1.0000000001"),
        "day": date(1000, 1, 1),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999999),
        "seen": datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
        "took": -timedelta(hours=838, minutes=59, seconds=58, milliseconds=500),
    }


def test_the_table_outlives_the_batch(way: str, make: Callable[..., EventStore]) -> None:
    """Rows read into a table stay as they are when their batch is acked and its memory is written over."""
    store = make(capacity=8, memory_unit=4096)
    subscription = store.subscribe("reader")
    store.put_encoded(*samples.encoded([rows_event(i, EventType.INSERT, None, [[i, "x" * 400]], NARROW) for i in range(4)]))
    batch = subscription.get(timeout=0)
    table = batch.to_arrow()
    before = table.to_pylist()
    subscription.ack(batch)
    for _ in range(40):
        store.put_encoded(*samples.encoded([rows_event(99, EventType.INSERT, None, [[99, "y" * 4000]], NARROW)]))
        subscription.ack(subscription.get(timeout=0))
    assert table.to_pylist() == before


def test_a_table_without_a_row_in_the_batch(way: str, make: Callable[..., EventStore]) -> None:
    """Where the store has rows of it, or its producer defines it, there are its columns, and no rows; without rows of any other it may come yet."""
    store = make()
    subscription = store.subscribe("reader")
    other = NARROW._replace(table="other")
    defined = TableSchema("d", "defined", (Column("n", "bigint"),), ())
    for payload in (
        rows_event(0, EventType.INSERT, None, [[0, "x"]], other),
        rows_event(1, EventType.INSERT, None, [[1, "x"]], NARROW),
        other_event(2, EntryType.BEGIN),
    ):
        store.put_encoded(*samples.encoded([payload]))
    first, second, third = [subscription.get(1, timeout=0) for _ in range(3)]
    for batch, name in ((first, "d.narrow"), (second, "d.other")):
        table = batch.to_arrow(name)
        assert (table.num_rows, table.column_names) == (0, COLUMNS)
        assert table.schema.field("after").type == pa.struct([("id", pa.int32()), ("note", pa.string())])
    with pytest.raises(ValueError, match=r"'d\.defined' is not in the store"):
        second.to_arrow("d.defined")
    assert third.to_arrow("d.defined").num_rows == 0
    file = DefinitionsFile(store.home)
    file.replace([Definition("binlog.000001", 4, "d", "defined", defined), Definition("binlog.000001", 9, "d", "defined", None)])
    for batch in (second, third):
        assert batch.to_arrow("d.defined").schema.field("after").type == pa.struct([("n", pa.int64())])
    store.close()
    assert second.to_arrow("d.narrow").num_rows == 1, "a batch is held for longer than its store"


def test_tables_are_chosen_by_name(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """One table's rows, in order; a batch with several needs the name, and the error lists them."""
    other = NARROW._replace(table="other")
    payloads = [rows_event(i, EventType.INSERT, None, [[i, "x"]], NARROW if i % 3 else other) for i in range(9)]
    batch = batch_of([other_event(0, EntryType.BEGIN), *payloads, other_event(9, EntryType.END)])
    with pytest.raises(ValueError, match=r"rows of d\.narrow, d\.other: name one"):
        batch.to_arrow()
    assert [row["id"] for row in batch.to_arrow("d.other")["after"].to_pylist()] == [0, 3, 6]
    assert batch.to_arrow("d.other")["seq"].to_pylist() == [1, 4, 7]
    assert [row["id"] for row in batch.to_arrow(NARROW)["after"].to_pylist()] == [1, 2, 4, 5, 7, 8]
    for name in ("d.none", "d.Narrow", "e.narrow"):
        with pytest.raises(
            ValueError, match=rf"table '{name}' is not in the store, .*: the batch holds rows of d\.narrow, d\.other"
        ):
            batch.to_arrow(name)
    with pytest.raises(
        ValueError, match=r"'narrow' has no database: name DATABASE.TABLE; the batch holds rows of d\.narrow, d\.other"
    ):
        batch.to_arrow("narrow")
    with pytest.raises(ValueError, match="the batch holds rows of none"):
        batch_of([]).to_arrow("narrow")


def test_an_empty_batch(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """No events give no rows, with the columns of a schema that was named."""
    table = batch_of([]).to_arrow(NARROW)
    assert table.num_rows == 0
    assert [field.name for field in table.schema.field("after").type] == ["id", "note"]
    assert batch_of([]).to_arrow().num_rows == 0


def test_columns_that_changed(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """The newest columns; older rows have NULL in new ones and keep what widened; what would not fit is an error."""
    newer = TableSchema("d", "narrow", (Column("more", "int"), Column("id", "bigint"), Column("note", "varchar")), (1,))
    old = rows_event(0, EventType.INSERT, None, [[5, "old"]], NARROW)
    new = rows_event(1, EventType.INSERT, None, [[1, 2**40, "new"]], newer)
    table = batch_of([old, new]).to_arrow()
    assert table["after"].to_pylist() == [{"more": None, "id": 5, "note": "old"}, {"more": 1, "id": 2**40, "note": "new"}]
    with pytest.raises(ValueError, match=r"column id of d\.narrow was int64 in some events of the batch and is int32"):
        batch_of([new, old]).to_arrow()


def test_a_column_that_is_spelled_in_another_way_is_the_same(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """As the servers compare names: in any case of letters; a name that is there exactly comes first."""
    old = TableSchema("d", "t", (Column("colA", "int"), Column("Ü", "int"), Column("e", "int"), Column("é", "int")), (0,))
    new = TableSchema("d", "t", (Column("COLA", "bigint"), Column("ü", "int"), Column("É", "int"), Column("e", "int")), (0,))
    events = [
        rows_event(0, EventType.INSERT, None, [[1, 2, 3, 4]], old),
        rows_event(1, EventType.INSERT, None, [[5, 6, 7, 8]], new),
    ]
    found = batch_of(events).to_arrow("d.t")
    wanted = [{"COLA": 1, "ü": 2, "É": 4, "e": 3}, {"COLA": 5, "ü": 6, "É": 7, "e": 8}]
    assert found.column("after").to_pylist() == wanted


def test_zero_dates(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """A date that does not exist is an error that says so, or NULL where that is asked for; other values stay."""
    table = TableSchema("d", "t", (Column("id", "int"), Column("day", "date")))
    batch = batch_of([rows_event(0, EventType.INSERT, None, [[1, "0000-00-00"], [2, 5]], table)])
    with pytest.raises(arrow.ZeroDate, match=r"column day holds '0000-00-00'.*zero_dates"):
        batch.to_arrow()
    found = batch.to_arrow(zero_dates="null")["after"].to_pylist()
    assert found == [{"id": 1, "day": None}, {"id": 2, "day": date(1970, 1, 6)}]
    with pytest.raises(ValueError, match="zero_dates='other'"):
        batch.to_arrow(zero_dates="other")  # type: ignore[arg-type]


def test_partial_images(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """An image without all columns is refused, for NULL would say something else; or its columns are NULL where asked for."""
    batch = batch_of([rows_event(0, EventType.UPDATE, [[1]], [[2]], NARROW, columns=[0])])
    with pytest.raises(arrow.PartialImage, match="binlog_row_image=FULL"):
        batch.to_arrow()
    (row,) = batch.to_arrow(partial="null").to_pylist()
    assert (row["before"], row["after"]) == ({"id": 1, "note": None}, {"id": 2, "note": None})


def test_rows_of_a_snapshot_with_some_columns(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """They are left out, because a request for a part of a table is no error of the other rows; or have NULL where that is asked for."""
    payloads = [
        rows_event(0, EventType.READ, None, [[1]], NARROW, columns=[0]),
        rows_event(1, EventType.INSERT, None, [[2, "x"], [3, "y"]], NARROW),
        rows_event(2, EventType.READ, None, [[4, "z"]], NARROW),
    ]
    batch = batch_of(payloads)
    found = batch.to_arrow().to_pylist()
    assert [(row["op"], row["after"]["id"], row["seq"]) for row in found] == [("c", 2, 1), ("c", 3, 1), ("r", 4, 2)]
    found = batch.to_arrow(partial="null").to_pylist()
    assert [(row["after"]["id"], row["after"]["note"], row["seq"]) for row in found] == [
        (1, None, 0),
        (2, "x", 1),
        (3, "y", 1),
        (4, "z", 2),
    ]


def test_text_of_any_size(way: str, batch_of: Callable[[list[bytes]], Batch], seed: int) -> None:
    """Texts and bytes arrive as they are: empty ones, of a few characters or of many thousand, in every order, of one byte each or of up to four."""
    chance = random.Random(seed)
    table = TableSchema("d", "texts", (Column("a", "varchar"), Column("b", "text"), Column("c", "blob")), ())
    rows: list[list[Any]] = []
    for _ in range(400):
        size = chance.choice((0, 1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200, 200, chance.choice((200, 5000, 20_000))))
        text = "".join(chance.choices(chance.choice(("a", "aä", "aä世😀")), k=size))
        rows.append([chance.choice((None, text, text[:5])), text, chance.choice((None, text.encode(), b"\xff" * size))])
    payloads = [rows_event(i, EventType.INSERT, None, rows[i * 40 : i * 40 + 40], table) for i in range(10)]
    found = batch_of(payloads).to_arrow()
    found.validate(full=True)
    assert [list(row.values()) for row in found["after"].to_pylist()] == rows


def test_a_table_keeps_no_more_memory_than_it_says(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """Large texts before small ones, and large bytes in the same rows, leave a table that is kept no space for what did not come."""
    table = TableSchema("d", "texts", (Column("a", "longtext"), Column("b", "longblob")), ())
    payloads = [rows_event(i, EventType.INSERT, None, [["x" * 100_000 * (not i), b"y" * 20_000]], table) for i in range(50)]
    batch = batch_of(payloads)
    batch.to_arrow()
    gc.collect()
    before = pa.total_allocated_bytes()
    found = batch.to_arrow()
    (text,) = [chunk.field("a").buffers()[2] for chunk in found["after"].chunks]
    assert text.size == 100_000
    assert pa.total_allocated_bytes() - before < 1.3 * found.get_total_buffer_size()


@pytest.mark.parametrize(("one", "other"), [(b"a\xc3", b"\xa4b"), (b"ab", b"\xa4b"), (b"\xe4\xb8", b"\x96."), (b"ab", b"c\xc3")])
@pytest.mark.parametrize("size", [0, 50, 5000])
def test_each_text_is_utf8(way: str, batch_of: Callable[[list[bytes]], Batch], one: bytes, other: bytes, size: int) -> None:
    """Text that is none is refused, also where it is UTF-8 together with the text of the next row."""
    rows = [[0, "x" * size], [1, "ab"], [2, "cd"], [3, "y" * size]]
    payload = rows_event(0, EventType.INSERT, None, rows, NARROW)
    damaged = payload.replace(b"\xa2ab", b"\xa2" + one).replace(b"\xa2cd", b"\xa2" + other)
    with pytest.raises(StoreCorrupt):
        batch_of([damaged]).to_arrow()


def test_many_rows(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """More rows than one chunk holds, in events of many and of one, all come in order, numbered within their event."""
    payloads = [
        rows_event(i, EventType.INSERT, None, [[i * 10_000 + k, None] for k in range(size)], NARROW)
        for i, size in enumerate([9000] * 8 + [1] * 50)
    ]
    table = batch_of(payloads).to_arrow()
    ids = [row["id"] for row in table["after"].to_pylist()]
    assert ids == [i * 10_000 + k for i, size in enumerate([9000] * 8 + [1] * 50) for k in range(size)]
    assert table["row"].to_pylist() == [i % 2 * 500 + k for i, size in enumerate([9000] * 8 + [1] * 50) for k in range(size)]


def test_transactions_do_not_cut(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """Rows of many small transactions come in few chunks, not in one each: BEGIN and END between them cut nothing."""
    payloads = []
    for i in range(100):
        payloads += [
            other_event(i, EntryType.BEGIN),
            rows_event(i, EventType.INSERT, None, [[i, "x"]], NARROW),
            other_event(i, EntryType.END),
        ]
    table = batch_of(payloads).to_arrow()
    assert table.num_rows == 100
    assert table["op"].num_chunks == 1


def test_to_pandas(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """Flattened, it is a pandas frame with a column for each column of the table."""
    pytest.importorskip("pandas")
    frame = batch_of([rows_event(0, EventType.INSERT, None, [[1, "a"], [2, None]], NARROW)]).to_arrow().flatten().to_pandas()
    assert frame["after.id"].tolist() == [1, 2]
    assert frame["after.note"].isna().tolist() == [False, True]
    assert frame["op"].tolist() == ["c", "c"]


def test_damage_is_named(way: str, batch_of: Callable[[list[bytes]], Batch]) -> None:
    """A payload that is no event, and rows that are none of their table, raise `StoreCorrupt`, as iteration does."""
    good = rows_event(0, EventType.INSERT, None, [[1, "a"]], NARROW)
    for bad in (b"\x00", good[:-1], good + b"\x00", rows_event(0, EventType.INSERT, None, [[1]], NARROW)):
        batch = batch_of([good, bad])
        with pytest.raises(StoreCorrupt):
            batch.to_arrow()
        with pytest.raises(StoreCorrupt):
            list(batch)
    with pytest.raises(StoreCorrupt):
        decode(good[:-1])


def test_compiled_code_can_be_switched_off() -> None:
    """SHMSTORE_PURE=1 reads rows without compiled code; `import shmstore` alone brings in no pyarrow."""
    script = (
        "import sys, shmstore; assert 'pyarrow' not in sys.modules; from shmstore.encoding import arrow; print(arrow.COMPILED)"
    )
    for value, wanted in (("1", "False"), ("0", str(arrow.compiled is not None))):
        run = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "SHMSTORE_PURE": value}, capture_output=True, text=True
        )
        assert (run.stdout.strip(), run.stderr) == (wanted, "")


@pytest.mark.parametrize("first", ["bytes", "index"])
def test_an_index_in_a_garbage_cycle(first: str) -> None:
    """The collector does not clear the memoryview that an index looks at, whichever of both it comes to first."""
    native = pytest.importorskip("shmstore.native.columns")
    payload = other_event(0, EntryType.BEGIN)
    gc.disable()
    try:
        for _ in range(20):
            raw = memoryview(bytes(payload))
            index = native.Index(raw, np.array([len(payload)], np.int64))
            cycle: list[Any] = [raw, index] if first == "bytes" else [index, raw]
            cycle.append(cycle)
            del raw, index, cycle
            assert gc.collect()
    finally:
        gc.enable()
