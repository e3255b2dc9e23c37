"""Shards that are one table: the definitions of a target through the DDLs of its shards, and across restarts; no server."""

from __future__ import annotations

import pytest

from shmstore import Column, Position, SchemaUnknown, TableSchema, UnsupportedEvent
from shmstore.encoding.codec import decode_schema, encode_schema
from shmstore.home.definitions import Definition
from shmstore.producer.filters.renaming import Renaming
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.schema.merged import MergedTables
from shmstore.producer.schema.shard_statement import retargeted
from shmstore.sql.tokens import SqlMode

ALL = TableFilter()
ID, V = Column("id", "int", nullable=False), Column("v", "varchar", size=80, charset="utf8mb4")
N, M = Column("n", "int"), Column("m", "int", nullable=False)
Name = tuple[str, str]


def shard(number: int, *columns: Column) -> TableSchema:
    return TableSchema("s", f"t_{number}", columns or (ID, V), (0,))


def at(offset: int) -> Position:
    return Position("bin.000001", offset)


class Merged:
    """The targets, and what is kept of them."""

    def __init__(self, *shards: TableSchema, origin: str = "") -> None:
        self.renaming = Renaming([r"s\.t_\d+ -> s.t"], origin)
        self.lines: list[Definition] = []
        self.shards = {(one.database, one.table): one for one in shards}
        self.restart(0)

    def restart(self, reached: int) -> None:
        self.tables = MergedTables(self.renaming)
        self.lines = self.tables.begin(at(reached), [one for one in self.lines if one.reached_by(at(reached))], self.shards)

    def ddl(self, offset: int, schema: TableSchema, sql: str) -> tuple[str | None, bool]:
        """What is put of a DDL that makes `schema` of its table, and whether the target is to be read again."""
        name = (schema.database, schema.table)
        self.tables.forget_statement()
        self.lines += self.tables.follow(at(offset), {name: schema}, sql)
        self.shards[name] = schema
        moved = self.tables.moved
        return next((one.text for one in moved if one.text), None), any(one.reread for one in moved)

    def row(self, schema: TableSchema, *values: object) -> dict[str, object]:
        """A row of a shard as readers get it."""
        plan = self.tables.plan(ALL, schema, encode_schema(schema))
        body = ALL.apply(plan, [None, None, None, [list(values)]], len(schema.columns))
        assert plan.blob is not None
        seen = decode_schema(plan.blob)
        assert (seen.database, seen.table) == ("s", "t")
        assert body[2] is None
        return dict(zip(seen.names, body[3][0], strict=True))


def test_columns_come_and_go_shard_by_shard() -> None:
    merged = Merged(shard(1), shard(2))
    wide, narrow = shard(1, ID, V, N), shard(1, ID, N)
    assert merged.ddl(10, wide, "ALTER TABLE s.t_1 ADD n INT") == ("ALTER TABLE `s`.`t` ADD n INT", False)
    assert merged.row(shard(2), 1, "a") == {"id": 1, "v": "a", "n": None}
    assert merged.ddl(20, narrow, "ALTER TABLE s.t_1 DROP v") == ("ALTER TABLE `s`.`t` DROP v", False)
    assert merged.row(shard(2), 1, "a") == {"id": 1, "n": None}
    assert merged.ddl(30, shard(2, ID, V, N), "ALTER TABLE s.t_2 ADD n INT") == (None, False)
    assert merged.row(shard(2, ID, V, N), 1, "a", 5) == {"id": 1, "n": 5}
    assert merged.ddl(40, shard(2, ID, N), "ALTER TABLE s.t_2 DROP v") == (None, False)
    assert merged.row(shard(2, ID, N), 1, 5) == {"id": 1, "n": 5}


def test_a_default_needs_the_rows_again_only_where_rows_came_in_between() -> None:
    sql = "ALTER TABLE s.t_{} ADD m INT NOT NULL DEFAULT 3"
    merged = Merged(shard(1), shard(2), shard(3), shard(4))
    assert merged.ddl(10, shard(1, ID, V, M), sql.format(1))[1] is False
    assert merged.ddl(20, shard(2, ID, V, M), sql.format(2)) == (None, False)
    merged.row(shard(3), 1, "a")
    assert merged.ddl(30, shard(3, ID, V, M), sql.format(3)) == (None, True)
    assert merged.ddl(40, shard(4, ID, V, M), sql.format(4).replace("3", "4")) == (None, True), "another default"


def test_a_column_that_is_renamed_is_not_two_columns() -> None:
    """A shard's column that is lost and one that is added may be the same: only the server knows the rows then."""
    merged = Merged(shard(1), shard(2))
    assert merged.ddl(10, shard(1, ID, N), "ALTER TABLE s.t_1 CHANGE v n INT")[0] is not None
    merged.row(shard(2), 1, "a")
    assert merged.ddl(20, shard(2, ID, N), "ALTER TABLE s.t_2 CHANGE v n INT") == (None, True)


def test_a_restart_decides_the_same() -> None:
    """A DDL whose event a crash took with it is put again; one that is in the store is not."""
    for put in (False, True):
        merged = Merged(shard(1), shard(2), origin="src")
        merged.ddl(10, shard(1, ID, V, N), "ALTER TABLE s.t_1 ADD n INT")
        if not put:
            merged.shards[("s", "t_1")] = shard(1)
        merged.restart(10 if put else 9)
        text = merged.ddl(10, shard(1, ID, V, N), "ALTER TABLE s.t_1 ADD n INT")[0]
        assert (text is None) is put
        assert merged.row(shard(2), 1, "a") == {"id": 1, "v": "a", "n": None, "src": "s.t_2"}
        assert merged.lines[-1].schema is not None
        assert merged.lines[-1].schema.names == ("id", "v", "n", "src")
        assert merged.lines[-1].schema.primary_key == (0, 3)


def test_new_shards_have_to_be_alike() -> None:
    merged = Merged(shard(1))
    assert merged.ddl(10, shard(2), "CREATE TABLE s.t_2 (...)") == (None, False)
    other = shard(3, ID, N)
    assert merged.ddl(20, other, "CREATE TABLE s.t_3 (...)") == (None, False)
    with pytest.raises(UnsupportedEvent, match=r"s\.t_3 differs from s\.t_1, .* s\.t of both: n is int and not there"):
        merged.row(other, 1, 2)
    merged.restart(20)
    with pytest.raises(UnsupportedEvent, match=r"s\.t_3 differs"):
        merged.row(other, 1, 2)
    assert merged.ddl(30, shard(3, ID), "ALTER TABLE s.t_3 DROP n") == (None, False), "it does not become the target's"
    with pytest.raises(UnsupportedEvent, match=r"s\.t_3 differs"):
        merged.row(shard(3, ID), 1)
    merged.ddl(40, shard(3), "ALTER TABLE s.t_3 ADD v VARCHAR(20)")
    assert merged.row(shard(3), 1, "a") == {"id": 1, "v": "a"}


def test_what_differs_at_the_start_is_refused() -> None:
    for other, why in [
        (shard(2, ID, N), "v is varchar.20. character set utf8mb4 and not there"),
        (shard(2, V, ID), "the key is id and v"),
        (shard(2)._replace(primary_key=()), "the key is id and none"),
        (shard(2, ID, V._replace(nullable=False)), "not null"),
    ]:
        with pytest.raises(SchemaUnknown, match=f"tables s.t_1 and s.t_2 differ, .*{why}"):
            Merged(shard(1), other)
    with pytest.raises(SchemaUnknown, match="has a table of that name"):
        Merged(shard(1), TableSchema("s", "t", (ID,), (0,)))
    merged = Merged(shard(1), origin="V")
    with pytest.raises(UnsupportedEvent, match="has a column V of its own"):
        merged.row(shard(1), 1, "a")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER TABLE t_1 ADD x INT", "ALTER TABLE `s`.`a``b` ADD x INT"),
        ("alter /* t_1 */ table\n`s` . `t_1`\tadd x int", "alter /* t_1 */ table\n`s`.`a``b`\tadd x int"),
        ("ALTER TABLE s.`t``1`ADD x INT", "ALTER TABLE `s`.`a``b`ADD x INT"),
        ("ALTER ONLINE TABLE IF EXISTS .t_1 ADD x INT", "ALTER ONLINE TABLE IF EXISTS `s`.`a``b` ADD x INT"),
        ("CREATE TABLE IF NOT EXISTS s.t_1(id INT)", "CREATE TABLE IF NOT EXISTS `s`.`a``b`(id INT)"),
        ("CREATE TABLE t_1 LIKE t_2", "CREATE TABLE `s`.`a``b` LIKE t_2"),
        ("CREATE OR REPLACE TABLE t_1 (id INT)", "CREATE OR REPLACE TABLE `s`.`a``b` (id INT)"),
        ("CREATE INDEX i ON t_1 (v)", None),
        ("DROP TABLE t_1", None),
        ("ALTER TABLE", None),
        ("", None),
    ],
)
def test_a_statement_about_a_shard_is_one_about_the_target(sql: str, expected: str | None) -> None:
    assert retargeted(sql, SqlMode(), ("s", "a`b")) == expected
