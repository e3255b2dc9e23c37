"""Columns and tables are the same in a copy where they are on the server, however a statement or a row spells them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shmstore import Column, Event, EventType, TableSchema
from shmstore.home.definitions import Definition, DefinitionsFile
from shmstore.home.home import Home
from tests.consumer.copies.lakes import FORMATS, apply, read, replication, rows
from tests.consumer.spark.events import Binlog


@pytest.fixture(autouse=True)
def _home(state: Path) -> None:
    """A home of the test's own, which says what is aside."""


TABLE = TableSchema("shop", "orders", (Column("id", "int", nullable=False), Column("colA", "int"), Column("Größe", "int")), (0,))


def spelled(table: TableSchema, *names: str, **types: str) -> TableSchema:
    """The table with other spellings of its columns, and other types by the place of a column."""
    columns = [column._replace(name=name) for column, name in zip(table.columns, names, strict=True)]
    return table._replace(columns=tuple([column._replace(type=types.get(column.name, column.type)) for column in columns]))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, but for py4j's own lines, which may be of a query of the same process that has ended."""
    return [record.getMessage() for record in caplog.records if not record.name.startswith("py4j")]


def on(case: str, events: list[Event]) -> list[Event]:
    """DDLs of a server with this lower_case_table_names."""
    return [event._replace(props={**event.props, "lower_case_table_names": case}) for event in events]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "sql",
    [
        "alter table orders modify COLA bigint",
        "alter table orders change cola COLA bigint",
        "alter table orders rename column colA to COLA",
        "alter table orders rename column cOLa to COLA, comment = 'x'",
    ],
)
def test_another_spelling_is_followed(
    tmp_path: Path, binlog: Binlog, format: str, history: bool, sql: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In a DDL it gives the copy's column that spelling: nothing is read again, and no history ends."""
    after = spelled(TABLE, "id", "COLA", "Größe", COLA="bigint" if "bigint" in sql else "int")
    copy = replication(tmp_path, format, history=history)
    apply(copy, 0, binlog.insert((1, 10, 100), (2, 20, 200), table=TABLE))
    apply(copy, 1, binlog.ddl(sql), binlog.insert((3, 30, 300), table=after))
    assert not copy.aside
    assert not warnings_of(caplog)
    found = read(copy, format)
    assert found.column_names[:3] == ["id", "COLA", "Größe"]
    assert sorted(tuple(row.values())[:3] for row in found.to_pylist()) == [(1, 10, 100), (2, 20, 200), (3, 30, 300)]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_rows_in_another_spelling_are_taken_as_they_are(
    tmp_path: Path, binlog: Binlog, format: str, history: bool, seed: int
) -> None:
    """Whatever a query has not seen the DDL of: the copy keeps its spelling, and has all rows."""
    choose, copy, wanted = random.Random(seed), replication(tmp_path, format, history=history), dict[int, tuple[int, ...]]()
    apply(copy, 0, binlog.insert((0, 0, 0), table=TABLE))
    for batch in range(1, 8):
        names = [
            choose.choice([name, name.upper().replace("SS", "ß"), name.swapcase().replace("SS", "ß")]) for name in TABLE.names
        ]
        table, row = spelled(TABLE, *names), (choose.randrange(4), batch, choose.randrange(9))
        old = wanted.get(row[0])
        wanted[row[0]] = row
        apply(copy, batch, binlog.insert(row, table=table) if old is None else binlog.update((old, row), table=table))
    found = [tuple(row.values())[:3] for row in read(copy, format).to_pylist() if row.get("_current", True)]
    assert sorted(found) == sorted(({0: (0, 0, 0)} | wanted).values()), f"seed {seed}"
    assert read(copy, format).column_names[:3] == list(TABLE.names)


@pytest.mark.parametrize("format", FORMATS)
def test_a_key_is_named_in_any_case(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """`keys` names columns as a statement does."""
    copy = replication(tmp_path, format, keys={"shop.orders": ["ID", "COLa"]})
    table = TABLE._replace(primary_key=())
    apply(copy, 0, binlog.insert((1, 1, 5), (1, 2, 6), table=table))
    apply(copy, 1, binlog.update(((1, 1, 5), (1, 1, 7)), table=table))
    assert sorted(tuple(row.values()) for row in read(copy, format).to_pylist()) == [(1, 1, 7), (1, 2, 6)]


@pytest.mark.parametrize("case", ["0", "1", ""])
def test_tables_are_the_same_where_the_server_says_so(tmp_path: Path, binlog: Binlog, case: str) -> None:
    """With lower_case_table_names=1 a DDL of ORDERS is one of orders; with 0 it is not; where that is unknown, a copy is read again at most."""
    copy = replication(tmp_path, "parquet")
    apply(copy, 0, binlog.insert((1, 1, 1), table=TABLE))
    ddls = [
        *binlog.ddl("TRUNCATE TABLE ORDERS", EventType.TRUNCATE),
        *binlog.ddl("drop database SHOP", EventType.QUERY, database="SHOP"),
    ]
    apply(copy, 1, on(case, ddls[:1]) if case else ddls[:1])
    assert (len(rows(copy, "parquet")), copy.aside) == {"0": (1, []), "1": (0, []), "": (1, ["shop.orders"])}[case]
    apply(copy, 2, on(case, ddls[1:]) if case else ddls[1:])
    assert (len(rows(copy, "parquet")), copy.aside) == {"0": (1, []), "1": (0, []), "": (1, ["shop.orders"])}[case]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("known", ["definitions", "copy"])
def test_a_widening_alter_is_followed_by_a_process_that_saw_no_row(
    tmp_path: Path, binlog: Binlog, format: str, history: bool, known: str, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As from cron: how the column was is in the store's home, as its producer wrote it down, or else in the copy."""
    name = TableSchema("shop", "orders", (*TABLE.columns, Column("note", "varchar", size=40, charset="utf8mb4")), (0,))
    copy = replication(tmp_path, format, history=history)
    apply(copy, 0, binlog.insert((1, 10, 100, "a"), table=name))
    file = DefinitionsFile(Home.of("none"))
    if known == "definitions":
        file.replace([Definition("binlog.000001", 4, "shop", "orders", name)])
    ddl = binlog.ddl("alter table orders modify colA bigint" + ", modify note varchar(80)" * (known == "definitions"))
    after = name._replace(columns=(name.columns[0], Column("colA", "bigint"), *name.columns[2:]))
    if known == "definitions":  # as soon as the producer has followed it
        file.append([Definition("binlog.000001", ddl[0].position.offset, "shop", "orders", after)])
    apply(replication(tmp_path, format, history=history), 1, ddl)
    copy = replication(tmp_path, format, history=history)
    narrow = binlog.ddl("alter table orders modify Größe smallint")
    apply(copy, 2, binlog.insert((2, 2**40, 200, "b"), table=after))
    assert not copy.aside
    assert not warnings_of(caplog)
    assert [row["colA"] for row in read(copy, format).sort_by("id").to_pylist()] == [10, 2**40]
    copy = replication(tmp_path, format, history=history)
    apply(copy, 3, narrow)
    assert copy.aside == ["shop.orders"]


def test_what_is_known_of_a_column_is_what_the_ddl_found(tmp_path: Path, binlog: Binlog, state: Path) -> None:
    """Two ALTERs in one batch, of a table whose copy is not at either: the second one narrows what the first one made."""
    copy = replication(tmp_path, "parquet")
    apply(copy, 0, binlog.insert((1, 10, 100), table=TABLE))
    apply(
        replication(tmp_path, "parquet"),
        1,
        binlog.ddl("alter table orders modify colA bigint"),
        binlog.ddl("alter table orders modify colA int"),
    )
    assert replication(tmp_path, "parquet")._copy(None, "shop", "orders").aside
