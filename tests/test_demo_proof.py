"""scripts/demo: its proof cannot be fooled, and its readers keep what they are given."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from scripts.shop.canonical import base_type, canonical, checksum_table
from scripts.shop.compare import Difference, Layout, checksum_named, differences, of_rows, of_sqlite, render
from scripts.shop.replay import Replay
from scripts.shop.schema import DATABASE, LIVE_DDL, TABLES, AddColumn, create_statements, follow
from scripts.shop.sqlite_reader import SqliteTables
from scripts.shop.values import Rows
from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.consumer.formats.formatter import format_event
from shmstore.encoding.codec import decode, encode

ROOT = Path(__file__).resolve().parent.parent

# ---------------------------------------------------------------- one text for one value

MICRO = timedelta(microseconds=1)
SAME = [
    # type, then what the server's SELECT, SQLite, Delta and the tail's file hold of one value, and its canonical text
    ("bigint", 2**64 - 1, str(2**64 - 1), Decimal(2**64 - 1), 2**64 - 1, "18446744073709551615"),
    ("tinyint", -128, -128, -128, -128, "-128"),
    ("year", 2155, 2155, 2155, 2155, "2155"),
    ("bit", b"\x02\x01", 513, 513, 513, "513"),
    ("decimal", Decimal("-0.0000000100"), "-0.0000000100", Decimal("-1.00E-8"), "-0.0000000100", "-0.0000000100"),
    ("decimal", Decimal("100"), "100", Decimal("1E+2"), "100", "100"),
    ("float", 1.100000023841858, 1.1, 1.1, 1.1, "1.10000002"),
    ("double", 1e-300, 1e-300, 1e-300, 1e-300, "1e-300"),
    ("varchar", "é😀", "é😀", "é😀", "é😀", "é😀"),
    ("binary", b"\0\xff", b"\0\xff", b"\0\xff", b"\0\xff", "00ff"),
    ("date", date(1917, 2, 3), "1917-02-03", date(1917, 2, 3), "1917-02-03", "1917-02-03"),
    (
        "datetime",
        datetime(2001, 2, 3, 4, 5, 6),
        "2001-02-03 04:05:06.000000",
        datetime(2001, 2, 3, 4, 5, 6),
        "2001-02-03 04:05:06",
        "2001-02-03 04:05:06.000000",
    ),
    (
        "timestamp",
        datetime(2001, 2, 3, 4, 5, 6, 70_000),
        "2001-02-03 04:05:06.070000",
        datetime(2001, 2, 3, 12, 5, 6, 70_000, tzinfo=timezone(timedelta(hours=8))),
        "2001-02-03T04:05:06.07Z",
        "2001-02-03 04:05:06.070000",
    ),
    (
        "time",
        timedelta(hours=-838, minutes=-59, seconds=-59.5),
        -3_020_399_500_000,
        "-838:59:59.500",
        "-838:59:59.500",
        "-3020399500000",
    ),
]


@pytest.mark.parametrize(("data_type", "server", "sqlite", "delta", "tail", "text"), SAME)
def test_one_value_has_one_text_in_every_place(
    data_type: str, server: Any, sqlite: Any, delta: Any, tail: Any, text: str
) -> None:
    """A value's text does not depend on who keeps it."""
    assert [canonical(value, data_type) for value in (server, sqlite, delta, tail)] == [text] * 4


@pytest.mark.parametrize(
    ("data_type", "one", "other"),
    [
        ("decimal", Decimal("1.50"), Decimal("1.5")),
        ("double", 0.1, 0.1 + 2**-56),
        ("float", 0.1, 0.1 + 2**-27),
        ("varchar", "a", "a "),
        ("varchar", "", None),
        ("varchar", "N", None),
        ("binary", b"ab", b"ab\0"),
        ("datetime", datetime(2001, 1, 1), datetime(2001, 1, 1) + MICRO),
        ("timestamp", datetime(2001, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
        ("time", timedelta(seconds=1), timedelta(seconds=-1)),
        ("bigint", 2**53, 2**53 + 1),
    ],
)
def test_different_values_have_different_texts(data_type: str, one: Any, other: Any) -> None:
    """Scale, sign, zone, padding, the last bit and NULL all tell values apart."""
    assert canonical(one, data_type) != canonical(other, data_type)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("varchar", 5),
        ("varchar", b"5"),
        ("double", "5.0"),
        ("decimal", 5.0),
        ("binary", 5),
        ("time", "soon"),
        ("datetime", datetime(2001, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(data_type: str, value: Any) -> None:
    """A reader that kept text for a number, or a zone where none belongs, does not pass by looking alike."""
    with pytest.raises((TypeError, ValueError)):
        canonical(value, data_type)


# ---------------------------------------------------------------- the checksums

LAYOUT = Layout((("a", "int"), ("b", "varchar"), ("c", "varchar")), ("a",))
ROWS = [(1, "x", "one"), (2, None, "two"), (10, "", "three")]


def sums(rows: list[tuple[Any, ...]], names: tuple[str, ...] = ("a", "b", "c")) -> Any:
    return checksum_named(names, rows, LAYOUT)


def test_order_of_rows_and_columns_does_not_matter() -> None:
    """Places may hold rows and columns in any order."""
    turned = [(c, b, a) for a, b, c in reversed(ROWS)]
    assert differences({"t": sums(ROWS)}, {"p": {"t": sums(turned, ("c", "b", "a"))}}) == []


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([(1, "x", "one"), (2, None, "two"), (10, "", "threE")], {"c"}),
        ([(1, "x", "one"), (2, "", "two"), (10, "", "three")], {"b"}),
        ([(1, "x", "two"), (2, None, "one"), (10, "", "three")], {"c"}),
        ([(1, "xone", ""), (2, None, "two"), (10, "", "three")], {"b", "c"}),
        (ROWS[:2], {"", "a", "b", "c"}),
        ([*ROWS, ROWS[0]], {"", "a", "b", "c"}),
        ([(1, "x", "one"), (2, None, "two"), (11, "", "three")], {"a"}),
        ([], {"", "a", "b", "c"}),
    ],
    ids=["a letter", "NULL for empty", "swapped", "moved to the next column", "row missing", "row twice", "key", "nothing"],
)
def test_a_single_difference_is_found(rows: list[tuple[Any, ...]], found: set[str]) -> None:
    """One changed, missing, doubled or swapped value shows, in its own column."""
    expected, place = {"t": sums(ROWS)}, {"p": {"t": sums(rows)}}
    assert {difference.column for difference in differences(expected, place)} == found


def test_missing_and_additional_columns_and_tables_are_found() -> None:
    """A place must hold just the server's columns and tables."""
    fewer = checksum_named(("a", "b"), [row[:2] for row in ROWS], LAYOUT)
    more = checksum_named(("a", "b", "c", "d"), [(*row, 1) for row in ROWS], LAYOUT)
    expected = {"t": sums(ROWS)}
    assert differences(expected, {"p": {"t": fewer}}) == [Difference("p", "t", "c", expected["t"].columns["c"], "absent")]
    assert [d.column for d in differences(expected, {"p": {"t": more}})] == ["d"]
    assert {d.place for d in differences(expected, {"p": {}})} == {"p"}
    assert " !" in render({"t": LAYOUT}, expected, {"p": {"t": fewer}})
    assert " !" not in render({"t": LAYOUT}, expected, expected and {"p": expected})


# ---------------------------------------------------------------- the readers, on made-up changes


def table_schema(table: str, extra: tuple[str, str] | None = None) -> TableSchema:
    """The schema that the binlog would bring, as far as the readers look at it."""
    declared, key = TABLES[table]
    columns = [*declared, *([extra] if extra else [])]
    names = [name for name, _ in columns]
    scale = {"decimal(12,2)": 2, "time(3)": 3, "timestamp(6)": 6, "timestamp(3)": 3, "datetime(6)": 6}
    made = tuple(
        Column(
            name, base_type(type_), "unsigned" in type_, scale=next((s for text, s in scale.items() if type_.startswith(text)), 0)
        )
        for name, type_ in columns
    )
    return TableSchema(DATABASE, table, made, tuple(names.index(name) for name in key))


def typed(row: tuple[Any, ...], schema: TableSchema) -> tuple[Any, ...]:
    """A row of the load as the binlog would bring it: times and dates as values, not as SQL text."""

    def convert(value: Any, column: Column) -> Any:
        if not isinstance(value, str):
            return value
        if column.type in ("timestamp", "datetime"):
            return datetime.fromisoformat(value).replace(tzinfo=UTC if column.type == "timestamp" else None)
        return int(canonical(value, "time") or 0) * MICRO if column.type == "time" else value

    return tuple(convert(value, column) for value, column in zip(row, schema.columns, strict=True))


class Changes:
    """Random changes of the shop as events, and what the tables must be in the end."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows = Rows(self.random)
        self.schemas = {table: table_schema(table) for table in TABLES}
        self.model: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {table: {} for table in TABLES}
        self.count = 0

    def row(self, table: str, key: int) -> tuple[Any, ...]:
        made = {"customers": self.rows.customer, "payments": self.rows.payment}
        made |= {"orders": lambda k: self.rows.order(k, k), "order_items": lambda k: self.rows.item(k, k % 7)}  # type: ignore[dict-item]
        row = made[table](key)
        if len(self.schemas[table].columns) > len(row):
            row = (*row, self.random.randrange(100))
        return typed(row, self.schemas[table])

    def event(self, table: str, type_: EventType, rows: list[Row]) -> Event:
        self.count += len(rows)
        return Event(EntryType.ROWS, type_, Position("b.1", 1), 0, table=self.schemas[table], rows=tuple(rows))

    def key(self, table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(row[i] for i in self.schemas[table].primary_key)

    def __iter__(self) -> Iterator[Event]:
        for number in range(300):
            table = self.random.choice(list(TABLES))
            model = self.model[table]
            keys = list(model)
            choice = self.random.random()
            if choice < 0.5 or len(keys) < 4:
                rows = [self.row(table, number * 10 + i) for i in range(self.random.randint(1, 4))]
                model.update({self.key(table, row): row for row in rows})
                yield self.event(table, EventType.INSERT, [Row(None, row) for row in rows])
            elif choice < 0.8:
                changed = []
                for key in self.random.sample(keys, 2):
                    before = model.pop(key)
                    after = self.row(table, number * 10 + len(changed))
                    if self.random.random() < 0.6:  # else the key changes too
                        after = tuple(
                            b if i in self.schemas[table].primary_key else a
                            for i, (b, a) in enumerate(zip(before, after, strict=True))
                        )
                    model[self.key(table, after)] = after
                    changed.append(Row(before, after))
                yield self.event(table, EventType.UPDATE, changed)
            else:
                yield self.event(table, EventType.DELETE, [Row(model.pop(key), None) for key in self.random.sample(keys, 3)])
            if number == 150:
                sql = LIVE_DDL[0][1]
                yield Event(EntryType.DDL, EventType.ALTER, Position("b.1", 2), 0, database=DATABASE, sql=sql)
                added = follow(sql)
                assert added is not None
                assert added.table == "customers"
                assert added.default is not None
                self.schemas["customers"] = table_schema("customers", (added.name, added.type))
                self.model["customers"] = {key: (*row, int(added.default)) for key, row in self.model["customers"].items()}

    def layouts(self) -> dict[str, Layout]:
        return {
            table: Layout(tuple((c.name, c.type) for c in schema.columns), tuple(schema.names[i] for i in schema.primary_key))
            for table, schema in self.schemas.items()
        }

    def expected(self) -> dict[str, Any]:
        return {
            table: checksum_table(self.model[table].values(), layout.columns, layout.key)
            for table, layout in self.layouts().items()
        }


def through_the_codec(events: list[Event]) -> list[Event]:
    return [decode(encode(event)) for event in events]


def test_sqlite_tables_follow_every_change(tmp_path: Path, seed: int) -> None:
    """Inserts, updates, deletes, changed keys and an added column with a default, in batches of any size, twice or not."""
    changes = Changes(seed)
    events = through_the_codec(list(changes))
    tables = SqliteTables(tmp_path / "shop.db")
    cut = random.Random(seed)
    first = 0
    while first < len(events):
        size = cut.randint(1, 40)
        tables.apply(events[first : first + size], first=first)
        if cut.random() < 0.3:  # a crash between SQLite's commit and the ack: the batch comes again, perhaps with more behind it
            size += cut.randint(0, 5)
            tables.apply(events[first : first + size], first=first)
        first += size
    tables.close()
    assert differences(changes.expected(), {"sqlite": of_sqlite(tmp_path / "shop.db", changes.layouts())}) == []


def test_sqlite_batch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """A batch is one transaction: when it fails in the middle, none of it is kept, and it can come again."""
    changes = Changes(4)
    events = through_the_codec(list(changes))
    tables = SqliteTables(tmp_path / "shop.db")
    unknown = Event(
        EntryType.DDL, EventType.ALTER, Position("b.1", 3), 0, database=DATABASE, sql="ALTER TABLE orders DROP COLUMN note"
    )
    with pytest.raises(ValueError, match="DROP COLUMN"):
        tables.apply([*events[:100], unknown])
    assert tables.done(0) == -1
    tables.apply(events)
    tables.close()
    assert differences(changes.expected(), {"sqlite": of_sqlite(tmp_path / "shop.db", changes.layouts())}) == []


def test_tail_file_replays_to_the_same_tables(seed: int) -> None:
    """The JSON lines of `shmstore tail` tell every value exactly."""
    changes = Changes(seed)
    events = through_the_codec(list(changes))
    lines = [line for sequence, event in enumerate(events) for line in format_event(event, "json", sequence=sequence)]
    replay = Replay(changes.layouts()).read(lines)
    assert replay.rows == changes.count
    assert differences(changes.expected(), {"tail": of_rows(replay.tables, changes.layouts())}) == []


def test_tail_file_with_a_line_lost_doubled_or_torn_is_found() -> None:
    """A line that is missing changes a checksum; one that is doubled, out of order or torn is refused."""
    changes = Changes(5)
    events = through_the_codec(list(changes))
    lines = [line for sequence, event in enumerate(events) for line in format_event(event, "json", sequence=sequence)]
    layouts = changes.layouts()
    last_insert = max(i for i, line in enumerate(lines) if '"op":"insert"' in line)
    lost = Replay(layouts).read(lines[:last_insert] + lines[last_insert + 1 :])
    assert lost.rows == changes.count - 1
    for wrong in ([*lines, lines[-1]], [*lines[:-2], lines[-1], lines[-2]], [*lines[:-1], lines[-1][:-5]]):
        with pytest.raises(ValueError, match="line"):
            Replay(layouts).read(wrong)


def test_tail_file_of_a_writer_that_was_killed_replays_too() -> None:
    """Lines that came again after a kill are known by their place, and the torn one before them is skipped."""
    changes = Changes(6)
    events = through_the_codec(list(changes))
    lines = [line for sequence, event in enumerate(events) for line in format_event(event, "json", sequence=sequence)]
    killed = [*lines[:200], lines[200][:30], "", *lines[150:]]
    replay = Replay(changes.layouts(), redelivered=True).read(killed)
    assert replay.rows == changes.count
    assert differences(changes.expected(), {"tail": of_rows(replay.tables, changes.layouts())}) == []
    with pytest.raises(ValueError, match="line 201"):
        Replay(changes.layouts()).read(killed)


def test_ddl_that_the_readers_do_not_know_stops_them() -> None:
    """The demo's own DDLs are followed; any other is refused instead of guessed."""
    assert follow(LIVE_DDL[0][1]) == AddColumn("customers", "points", "int unsigned", "7")
    assert follow("alter table `shop`.`orders` add `x` varchar(20) null") == AddColumn("orders", "x", "varchar(20)", None)
    assert [follow(sql) for _, sql in LIVE_DDL[1:]] == [None, None]
    assert [follow(sql) for sql in create_statements()] == [None] * (len(TABLES) + 1)
    for sql in ("ALTER TABLE orders DROP COLUMN note", "ALTER TABLE orders ADD COLUMN a int, ADD COLUMN b int", "TRUNCATE orders", "DROP TABLE orders",
                "ALTER TABLE orders MODIFY COLUMN total int", "RENAME TABLE orders TO o"):  # fmt: skip
        with pytest.raises(ValueError, match="do not know"):
            follow(sql)


def test_shop_has_at_least_twelve_column_types() -> None:
    """What the issue asks of the shop."""
    types = {base_type(declared) for columns, _ in TABLES.values() for _, declared in columns}
    assert len(types) >= 12, sorted(types)
