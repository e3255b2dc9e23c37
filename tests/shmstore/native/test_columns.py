"""Compiled columns against the reference: the same rows, or the same refusal, whatever the bytes."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from shmstore import EntryType, EventType, StoreCorrupt, TableSchema
from shmstore.encoding import arrow
from shmstore.encoding.arrow import Events, arrow_type, plan_of, read_events
from shmstore.encoding.arrow_rows import StoredEvents, read_rows, typed_runs
from shmstore.encoding.arrow_table import TableOptions, read_table
from shmstore.encoding.codec import decode_schema, encode_schema
from tests.shmstore.samples import BAD_UTF8
from tests.shmstore.tables import ALL, NARROW, other_event, random_events, row, rows_event

pytestmark = pytest.mark.skipif(not arrow.COMPILED, reason="no compiled columns here")

Outcome = pa.Table | tuple[type, str]
SWAPPED = pa.struct([("text", pa.string()), ("number", pa.int32())])
REFUSALS = {StoreCorrupt, arrow.ZeroDate, arrow.PartialImage, ValueError}


def join(payloads: Sequence[bytes]) -> tuple[memoryview, Any]:
    return memoryview(b"".join(payloads)), np.cumsum([len(payload) for payload in payloads], dtype=np.int64)


def outcome(payloads: Sequence[bytes], options: TableOptions = TableOptions()) -> Outcome:  # noqa: B008
    """The rows, or what was raised."""
    try:
        table = read_table(*join(payloads), None, options, np.arange(len(payloads)), lambda name, rows: None)
    except Exception as error:
        return type(error), str(error)
    table.validate(full=True)
    return table


def equal(a: pa.Table, b: pa.Table) -> bool:
    """As `Table.equals`, but a NaN, which a damaged float may be, equals itself."""
    return all(
        x.equals(y) or (pa.types.is_floating(x.type) and x.cast(pa.string()).equals(y.cast(pa.string())))
        for x, y in zip(a.combine_chunks().flatten(), b.combine_chunks().flatten(), strict=True)
    )


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Reads events both ways, which must agree to the bit."""

    def read(payloads: Sequence[bytes], options: TableOptions = TableOptions(), *, several: bool = False) -> Outcome:  # noqa: B008
        compiled = outcome(payloads, options)
        with monkeypatch.context() as patch:
            patch.setattr(arrow, "COMPILED", False)
            reference = outcome(payloads, options)
        assert type(compiled) is type(reference), (compiled, reference)
        if isinstance(compiled, pa.Table) and isinstance(reference, pa.Table):
            assert compiled.schema == reference.schema
            assert equal(compiled, reference)
        else:
            # the same refusal, but where several things are wrong each may find another first
            assert {compiled[0], reference[0]} <= REFUSALS
            assert compiled == reference or several
        return compiled

    return read


def direct(payloads: Sequence[bytes], table: TableSchema = ALL, zero_dates: str = "error") -> Any:
    """The images by compiled code alone; None where it leaves them to the reference."""
    events = read_events(*join(payloads))
    if events is None:
        return None
    chosen = np.flatnonzero(events.records["rows"])
    return events.images(chosen, table, [arrow_type(column) for column in table.columns], zero_dates)


def direct_rows(
    events: Events, run: Sequence[int], seqs: Any = (1,), ops: bytes = bytes(range(256)), table: TableSchema = NARROW
) -> pa.RecordBatch | None:
    """The rows by compiled code alone, of events of `NARROW`."""
    types = [arrow_type(column) for column in table.columns]
    plan = plan_of(table, types, types)
    assert plan is not None
    return events.rows(np.array(run), table, plan, "error", ops, seqs)


def test_every_type_and_kind_of_event(seed: int, both: Callable[..., Outcome]) -> None:
    """Random rows of every type, in every kind of event, come out the same; none of them is left to the reference."""
    chance = random.Random(seed)
    for _ in range(8):
        payloads = random_events(chance, 60)
        table = both(payloads)
        assert isinstance(table, pa.Table)
        assert table.num_rows > 60
        assert direct(payloads) is not None


def test_numbers_of_every_size(both: Callable[..., Outcome]) -> None:
    """An integer is read from each of MessagePack's forms of it, and stops at its column's edge."""
    edges = [0, 1, -1, -32, -33, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, -32769, 65535, 65536, 2**31 - 1, 2**31]
    edges += [-(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64 - 1]
    read = refused = 0
    for number in edges:
        for i, column in enumerate(ALL.columns[:12]):
            cells: list[Any] = [None] * len(ALL.columns)
            cells[i] = number
            payloads = [rows_event(0, EventType.INSERT, None, [cells])]
            table = both(payloads)
            if isinstance(table, pa.Table):
                read += 1
                found = table["after"].to_pylist()[0][column.name]
                assert int(found) == number
                assert direct(payloads) is not None
            else:
                refused += 1
                assert direct(payloads) is None
    assert read > 100
    assert refused > 100


DECIMALS = [
    "0",
    "-0.00",
    "1",
    "1.5",
    "1.50",
    "-9999999999.99",
    "10000000000.00",
    "1.505",
    "007.1",
    "-",
    ".",
    "1.",
    ".5",
    "+1",
    "1e2",
    "1..2",
    "--1",
    "1-",
    "١",
]


@pytest.mark.parametrize("text", [*DECIMALS, "", "12 ", "9" * 28 + "." + "9" * 10, "9" * 38, "9" * 39, "1" * 41])
def test_decimals(text: str, both: Callable[..., Outcome]) -> None:
    """Digits become the same number, or the same refusal, for every precision and scale."""
    for place in (12, 13, 14, 15):
        cells: list[Any] = [None] * len(ALL.columns)
        cells[place] = text
        both([rows_event(0, EventType.INSERT, None, [cells])])


BAD_TEXT = [
    *BAD_UTF8,
    b"\xff",
    b"\xc3",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"a\xc3(",
    b"\xe2(\xa1",
    b"\xf0\x9f\x98(",
    b"abcdefg\xc3",
    b"abcdefgh\x80",
]


@pytest.mark.parametrize("bad", BAD_TEXT)
def test_text_that_is_not_utf8_is_refused(bad: bytes, both: Callable[..., Outcome]) -> None:
    """Bytes that Python would not decode never become a string, and two halves in two cells do not make a whole."""
    mark = b"?" * len(bad)
    for cells in ([1, mark.decode()], [1, "x" * 9 + mark.decode()]):
        payload = rows_event(0, EventType.INSERT, None, [cells, [2, "next"]], NARROW)
        broken = payload.replace(mark, bad)
        assert broken != payload
        result = both([broken])
        assert isinstance(result, tuple)
        assert direct([broken], NARROW) is None
    # a character whose second half is in the next cell
    split = rows_event(0, EventType.INSERT, None, [[1, "?"], [2, "!"]], NARROW).replace(b"?", b"\xc3").replace(b"!", b"\xa4")
    assert isinstance(both([split]), tuple)


def test_a_bad_byte_is_found_wherever_it_is() -> None:
    """One byte that is not ASCII is seen at every place of a text of every length; two that are a character are no fault."""
    for size in range(1, 41):
        payload = rows_event(0, EventType.INSERT, None, [[1, "?" * size], [2, "next"]], NARROW)
        for at in range(size):
            text = b"?" * at + b"\xb6" + b"?" * (size - at - 1)
            assert direct([payload.replace(b"?" * size, text)], NARROW) is None, (size, at)
            if at:
                text = text[: at - 1] + b"\xc3" + text[at:]
                assert direct([payload.replace(b"?" * size, text)], NARROW) is not None, (size, at)


def test_every_character_is_utf8(both: Callable[..., Outcome]) -> None:
    """Every character passes, next to its neighbors and at every place in a word of eight bytes."""
    texts = [
        "".join(map(chr, range(start, start + 0x400))) for start in range(0, 0x110000, 0x400) if not 0xD800 <= start < 0xE000
    ]
    payload = rows_event(0, EventType.INSERT, None, [[i, "x" * (i % 8) + text] for i, text in enumerate(texts)], NARROW)
    table = both([payload])
    assert isinstance(table, pa.Table)
    assert direct([payload], NARROW) is not None


def test_zero_dates_and_partial_images(both: Callable[..., Outcome]) -> None:
    """They are refused or NULL, as asked; compiled code reads zero dates alone when they are to be NULL."""
    cells: list[Any] = [None] * len(ALL.columns)
    cells[18], cells[19], cells[20] = "0000-00-00", "2026-02-31 00:00:00", "0000-00-00 00:00:00"
    payloads = [rows_event(0, EventType.INSERT, None, [cells])]
    assert both(payloads)[0] is arrow.ZeroDate
    assert isinstance(both(payloads, TableOptions(zero_dates="null")), pa.Table)
    assert direct(payloads, zero_dates="null") is not None
    partial = [rows_event(0, EventType.UPDATE, [[5]], [[6]], columns=[7]), *random_events(random.Random(3), 5)]
    assert both(partial)[0] is arrow.PartialImage
    table = both(partial, TableOptions(partial="null"))
    assert isinstance(table, pa.Table)
    assert table["after"].to_pylist()[0]["i64"] == 6


SHAPES: list[tuple[str, list[Any]]] = [
    ("a row too short", [None, None, None, [[1, "a"], [2]]]),
    ("rows too short", [None, None, None, [[1], [2]]]),
    ("rows too long", [None, None, None, [[1, "a", 5]]]),
    ("no images", [None, None, None, None]),
    ("no rows", [None, None, None, []]),
    ("one after less", [None, [[1, "a"], [2, "b"]], None, [[1, "a"]]]),
    ("a map for a row", [None, None, None, [{"id": 1}]]),
    ("text for rows", [None, None, None, "rows"]),
    ("a number for rows", [None, None, None, 5]),
    ("a list in a cell", [None, None, None, [[1, ["a"]]]]),
    ("true for a number", [None, None, None, [[True, "a"]]]),
    ("a float for a number", [None, None, None, [[1.5, "a"]]]),
    ("bytes for text", [None, None, None, [[1, b"a"]]]),
    ("bytes that are no text", [None, None, None, [[1, b"\xff"]]]),
    ("columns that are not there", [None, None, [0, 9], [[1, "a"]]]),
    ("columns as text", [None, None, "ab", [[1, "a"]]]),
    ("three parts", [None, None, None]),
]


@pytest.mark.parametrize(("what", "body"), SHAPES)
def test_strange_bodies(what: str, body: list[Any], both: Callable[..., Outcome]) -> None:
    """Bodies of another shape are read, or refused, as the reference does; never by guesswork."""
    header = [2, 1, "binlog.000001", 100, 50, 5, 1, "t", 0, 0, "", 0, "d", "", {}]
    for partial in ("error", "null"):
        both([msgpack.packb([1, header, encode_schema(NARROW), body])], TableOptions(partial=partial))  # type: ignore[arg-type]


def test_strange_headers(both: Callable[..., Outcome]) -> None:
    """A header with a field of another type or size is the reference's to judge."""
    header: list[Any] = [2, 1, "binlog.000001", 100, 50, 5, 1, "t", 0, 0, "", 0, "d", "", {}]
    for place in range(15):
        for strange in (None, -1, 2**63, 2**64 - 1, 1.5, "x", b"x", [], {}, {"a": 1}, {1: "a"}, True, 2**40):
            changed = [*header[:place], strange, *header[place + 1 :]]
            for wrapped in ([1, changed, encode_schema(NARROW), [None, None, None, [[1, "a"]]]], [1, changed, None, None]):
                both([msgpack.packb(wrapped)])
    for strange in ([2, header, None, None], [1, header[:-1], None, None], [1, header], [1, header, None, None, None], 5, {}, []):
        both([msgpack.packb(strange)])


def test_damaged_events(both: Callable[..., Outcome], seed: int) -> None:
    """Payloads cut, flipped, spliced and lengthened at random are read as the reference reads them, or refused as it refuses them."""
    chance = random.Random(seed)
    read = refused = 0
    for _ in range(1200):
        table = chance.choice([ALL, NARROW])
        payloads = random_events(chance, chance.randint(1, 3), table)
        which = chance.randrange(len(payloads))
        damaged = bytearray(payloads[which])
        for _ in range(chance.choice([1, 1, 2, 5])):
            at = chance.randrange(len(damaged))
            how = chance.randrange(6)
            if how <= 2:
                damaged[at] = chance.choice(
                    [chance.randrange(256), damaged[at] ^ 1 << chance.randrange(8), 0xC0, 0xDD, 0xC1, 0xDB]
                )
            elif how == 3:
                del damaged[at:]
            elif how == 4:
                damaged[at:at] = chance.randbytes(chance.randint(1, 5))
            else:
                del damaged[at : at + chance.randint(1, 9)]
            if not damaged:
                break
        payloads[which] = bytes(damaged)
        if isinstance(both(payloads, several=True), pa.Table):
            read += 1
        else:
            refused += 1
    assert read > 50
    assert refused > 50


def test_ends_that_lie(both: Callable[..., Outcome]) -> None:
    """Ends beyond the bytes, before their start, or short of them are not followed."""
    raw, ends = join([rows_event(i, EventType.INSERT, None, [[i, "x"]], NARROW) for i in range(4)])
    assert read_events(raw, ends) is not None
    for i, lie in ((3, len(raw) + 1), (3, len(raw) - 1), (1, 0), (0, -5), (2, 2**62), (0, int(ends[2]))):
        wrong = ends.copy()
        wrong[i] = lie
        assert read_events(raw, wrong) is None


def test_events_that_are_not_there() -> None:
    """Numbers of events outside the run raise; nothing is read for them."""
    payloads = [rows_event(i, EventType.INSERT, None, [[i, "x"]], NARROW) for i in range(4)]
    events = read_events(*join(payloads))
    assert events is not None
    for number in (-1, 4, 2**40):
        with pytest.raises(IndexError):
            direct_rows(events, [0, number])
        with pytest.raises(IndexError):
            events.images(np.array([0, number]), NARROW, [pa.int32(), pa.string()], "error")
    for numbers, ops in (([], bytes(256)), ([1], b"c")):
        with pytest.raises(ValueError, match="one number for each file"):
            direct_rows(events, [0], numbers, ops)
    for values in (np.arange(3), np.arange(5)):
        with pytest.raises(ValueError, match="one value for each event"):
            direct_rows(events, [0], values)


def test_runs_and_their_rows(seed: int) -> None:
    """Events with rows are cut into the same runs as by the reference, of any size, and have the same rows; `seq` is the event's number, or text."""
    chance = random.Random(seed)
    other = NARROW._replace(table="other")
    for _ in range(20):
        payloads = [
            payload
            for _ in range(chance.randrange(1, 6))
            for payload in random_events(chance, chance.randrange(1, 12), chance.choice([NARROW, other]))
        ]
        events, reference = read_events(*join(payloads)), StoredEvents(*join(payloads))
        assert events is not None
        assert len(events.records) == len(payloads)
        numbers = np.array([chance.randrange(-(2**63), 2**63) for _ in payloads])
        for most in (1, 2, 5, 40, 10**6):
            found = typed_runs(events, most, partial=True)
            assert [run.tolist() for run in found] == [run.tolist() for run in typed_runs(reference, most, partial=True)]
            for run in found:
                table = decode_schema(events.schemas[events.records["schema"][run[0]]])
                for sequences in (numbers, None):
                    rows = [
                        read_rows(way, run, table, [1, 0], SWAPPED, zero_dates="error", sequences=sequences)
                        for way in (events, reference)
                    ]
                    assert rows[0].equals(rows[1])
                assert direct_rows(events, run, numbers, table=table) is not None
    assert typed_runs(read_events(*join([other_event(0, EntryType.BEGIN)])), 5, partial=True) == []


def test_names_of_any_size() -> None:
    """Each row has the names of its table; more text than a column can have is left to the reference before memory is taken."""
    cells = [[i, None] for i in range(2048)]
    for name in ("", "a", "数据", "x" * 64, "y" * 1000):
        table = NARROW._replace(database=name, table=name[::-1])
        events = read_events(*join([rows_event(0, EventType.INSERT, None, cells, table)]))
        assert events is not None
        rows = direct_rows(events, [0], table=table)
        assert rows is not None
        rows.validate(full=True)
        assert rows["database"].to_pylist() == [name] * 2048
        assert rows["table"].to_pylist() == [name[::-1]] * 2048
    before = pa.total_allocated_bytes()
    for table in (NARROW._replace(database="x" * (1 << 20)), NARROW._replace(table="x" * (1 << 20))):
        assert direct_rows(events, [0], table=table) is None
    assert pa.total_allocated_bytes() == before


def test_rows_that_claim_much_memory_get_none() -> None:
    """A row count far beyond the bytes that are there costs no memory: it is seen before any column is made."""
    wide = TableSchema("d", "w", tuple(ALL.columns[0]._replace(name=f"c{i}") for i in range(4000)))
    cells = [[0] * 4] * 200_000  # four values a row where the table has 4,000 columns
    payload = rows_event(0, EventType.INSERT, None, cells, wide)
    events = read_events(*join([payload]))
    assert events is not None
    assert events.images(np.array([0]), wide, [pa.int8()] * 4000, "error") is None
    steps = [("no such column", 0, 0)] * 4000
    assert events._index.images(np.array([0]), steps, steps, False, pa.schema([])) is None  # not one was begun


def test_columns_are_in_arrows_memory(seed: int) -> None:
    """All of a table is memory of Arrow's pool, which counts it, and gets it back with the table; also where a table is not made in the end."""
    payloads = random_events(random.Random(seed), 200)
    refused = [*payloads, rows_event(0, EventType.INSERT, None, ["x" * len(ALL.columns)])]
    outcome(payloads)
    gc.collect()
    before = pa.total_allocated_bytes()
    table = outcome(payloads)
    assert isinstance(table, pa.Table)
    assert pa.total_allocated_bytes() - before >= table.get_total_buffer_size()
    del table
    for _ in range(20):
        assert not isinstance(outcome(refused), pa.Table)
    gc.collect()
    assert pa.total_allocated_bytes() == before


def test_arrays_that_are_kept_for_longer(seed: int) -> None:
    """An array of a table is right, and keeps its memory, after the table went; it may go in another thread, and last."""
    payloads = random_events(random.Random(seed), 200)
    gc.collect()
    before = pa.total_allocated_bytes()
    kept: list[pa.Array] = []
    wanted: list[list[Any]] = []
    for i in range(8):
        table = outcome(payloads)
        assert isinstance(table, pa.Table)
        column = table.combine_chunks().column(i % 4) if i % 2 else table.column(4).chunk(0).field(i)
        kept.append(column)
        wanted.append(column.to_pylist())
    del table, column
    for other in range(20):
        assert isinstance(outcome(payloads[other:]), pa.Table)  # memory that went is used again
    assert [column.to_pylist() for column in kept] == wanted
    assert pa.total_allocated_bytes() > before
    threads = [threading.Thread(target=kept.pop) for _ in range(len(kept))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert pa.total_allocated_bytes() == before


def test_a_batch_that_is_refused_leaves_no_memory() -> None:
    """Where Arrow does not take the arrays, as their schema is another, they are given back."""
    events = read_events(*join([rows_event(0, EventType.INSERT, None, [[1, "a"]] * 5000, NARROW)]))
    assert events is not None
    before = pa.total_allocated_bytes()
    steps = [("int", 4, 0), ("text", 0, 0)]
    for schema in (pa.schema([("before", pa.int8())]), pa.schema([("before", pa.struct([])), ("after", pa.string())])):
        with pytest.raises(pa.ArrowInvalid):
            events._index.images(np.array([0]), steps, steps, False, schema)
    with pytest.raises(TypeError):
        events._index.images(np.array([0]), steps, steps, False, "no schema")
    assert pa.total_allocated_bytes() == before


_NO_PANDAS = """
import sys
from pathlib import Path
import numpy as np
from shmstore.encoding.arrow_table import TableOptions, read_table

raw, ends = Path(sys.argv[1]).read_bytes(), np.array([int(end) for end in sys.argv[2:]], np.int64)
table = read_table(memoryview(raw), ends, None, TableOptions(), np.arange(len(ends)), lambda name, rows: None)
imported = [name for name in ("pandas", "pyarrow.compute") if name in sys.modules]
print(table.num_rows, imported)
"""


def test_a_table_needs_no_pandas(tmp_path: Path) -> None:
    """Events of every kind, of several files, become a table without the import of pandas, which takes longer than many a batch."""
    kinds = (
        (EventType.INSERT, None, [[1, "a"]]),
        (EventType.UPDATE, [[1, "a"]], [[2, None]]),
        (EventType.DELETE, [[2, None]], None),
    )
    payloads = [rows_event(50 * (i % 4), *kind, NARROW) for i, kind in enumerate(kinds * 4)]
    raw, ends = join(payloads)
    Path(tmp_path, "raw").write_bytes(raw)
    run = subprocess.run(
        [sys.executable, "-c", _NO_PANDAS, str(Path(tmp_path, "raw")), *map(str, ends.tolist())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "12 []"


def test_the_events_memory_may_change_meanwhile(seed: int) -> None:
    """Bytes that another process changes after they were indexed give other rows or none; nothing outside them is read."""
    chance = random.Random(seed)
    for _ in range(300):
        payloads = random_events(chance, 3, NARROW)
        raw = bytearray(b"".join(payloads))
        events = read_events(memoryview(raw), join(payloads)[1])
        assert events is not None
        for _ in range(chance.choice([1, 5, 50])):
            raw[chance.randrange(len(raw))] = chance.choice([0xDB, 0xDD, 0xC6, 0xFF, chance.randrange(256)])
        chosen = np.flatnonzero(events.records["rows"])
        found = events.images(chosen, NARROW, [pa.int32(), pa.string()], "null")
        for image in found or ():
            image.validate(full=True)
        rows = direct_rows(events, chosen)
        if rows is not None:
            rows.validate(full=True)


def test_other_events_have_no_rows(both: Callable[..., Outcome]) -> None:
    """BEGIN, END, DDL and statements give no rows; the rows around them stay in order."""
    payloads = [other_event(0, EntryType.BEGIN), rows_event(1, EventType.INSERT, None, [row(random.Random(1), NARROW)], NARROW)]
    payloads += [other_event(2, EntryType.DDL, "ALTER TABLE d.narrow ADD x int"), other_event(3, EntryType.ROWS, "INSERT …")]
    payloads += [rows_event(4, EventType.DELETE, [row(random.Random(2), NARROW)], None, NARROW), other_event(5, EntryType.END)]
    table = both(payloads)
    assert isinstance(table, pa.Table)
    assert table["op"].to_pylist() == ["c", "d"]
    assert both([other_event(0, EntryType.BEGIN)]).num_rows == 0  # type: ignore[union-attr]
