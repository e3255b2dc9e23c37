"""Conditions against the servers: on rows of the binlog and in SQL, true for the same rows, unknown for the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmstore import TableSchema
from shmstore.encoding.codec import pack
from shmstore.producer.filters.condition import Bound, bind
from shmstore.producer.filters.condition_parser import parse
from shmstore.producer.filters.condition_steps import steps_of
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.snapshot.tables import quoted
from tests.producer.decoding import Log, database_of, plain, run
from tests.producer.test_random_tables import KINDS, binary, odd_day
from tests.servers.server import Server

pytestmark = pytest.mark.server

ROWS = 60


def words(r: random.Random) -> str:
    """Text whose parts differ by case, accents, spaces at the end and what LIKE gives a meaning to."""
    return (
        "_utf8mb4 x'"
        + "".join(r.choices(["a", "A", "ä", "ss", "ß", " ", "%", "_", "\\", "|", "\n", "世", "😀"], k=r.randint(0, 4)))
        .encode()
        .hex()
        + "'"
    )


def few(r: random.Random) -> str:
    return str(r.choice(["'a'", "'B'", "'ä'", "''"]))


SPECIAL = [
    ("varchar(20) character set utf8mb4", words),
    ("char(20) character set utf8mb4", words),
    ("text character set utf8mb4", words),
    ("varchar(20) character set latin1", few),
    ("varchar(20) character set utf16", few),
    ("date", odd_day),
    ("datetime(2)", lambda r: f"{odd_day(r)[:-1]} 12:34:56.78'"),
    ("varbinary(4)", binary(4)),
    ("float", lambda r: str(r.choice((0, 0.1, 1.5, -2.25, 1e-5)))),
    ("decimal(8,3)", lambda r: str(r.choice((0, 1.5, -2.125, 10)))),
    ("int", lambda r: str(r.randint(-3, 3))),
]
COMPARED_ELSEWISE = (
    "char",
    "varchar",
    "text",
    "mediumtext",
    "year",
    "enum",
    "set",
)  # where the server's own comparison is another one


class Filled:
    """A table with rows, as the binlog had them and as SELECT shows them."""

    def __init__(self, connection: Any, schema: TableSchema, rows: list[list[Any]], shown: list[tuple[Any, ...]]) -> None:
        self.connection, self.schema, self.rows, self.shown = connection, schema, rows, shown

    def __repr__(self) -> str:
        return "Filled()"


@pytest.fixture(scope="module")
def filled(any_server: Server) -> Iterator[Filled]:
    r = random.Random(16)
    kinds = [(kind, value) for kind, value in KINDS] + SPECIAL
    with database_of(any_server, "conditions") as (connection, log):
        run(connection, "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        columns = ", ".join(f"c{i} {kind}{'' if 'null' in kind else ' null'}" for i, (kind, _) in enumerate(kinds))
        run(connection, f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4", "SET NAMES utf8mb4")
        log.skip()
        for i in range(ROWS):
            values = ["NULL" if r.random() < 0.15 else value(r) for _, value in kinds]
            run(connection, f"INSERT INTO t VALUES ({i}, {', '.join(values)})")
        rows, schema = _logged(log)
        names = ", ".join(
            f"HEX(`{c.name}`)" if c.type in BINARY else f"CAST(`{c.name}` AS CHAR CHARACTER SET utf8mb4)" for c in schema.columns
        )
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {names} FROM t ORDER BY id")
            shown = list(cursor.fetchall())
        assert [row[0] for row in rows] == list(range(ROWS))
        yield Filled(connection, schema, rows, shown)


BINARY = frozenset({"binary", "varbinary", "blob", "longblob", "bit"})
TIMES = frozenset({"date", "datetime", "timestamp"})  # where what is no time is text
NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year"})


def _logged(log: Log) -> tuple[list[list[Any]], TableSchema]:
    rows, schema = [], None
    for type_, body in log.events():
        if type_ == 19:
            log.decoder.table_map(body)
        elif type_ in (23, 30):
            decoded = log.decoder.rows(type_, body)
            rows += plain(decoded.body)[3]
            schema = decoded.table.schema
    assert schema is not None
    return rows, schema


def _literal(filled: Filled, i: int, row: int, more: str) -> str | None:
    """A literal of column `i`: a row's value, or one near it; None where there is none."""
    type_, shown = filled.schema.columns[i].type, filled.shown[row][i]
    if shown is None:
        return None
    text = str(shown)
    if type_ == "bit":
        return str(int(text or "0", 16))
    if type_ in BINARY:
        return f"x'{text}{more * 2}'" if text or more else "x'00'"
    if type_ in NUMBERS:
        return text + more if "." in text and len(text) < 30 else text
    if type_ in ("float", "double"):
        return str(filled.rows[row][i])
    if type_ in ("date", "datetime", "timestamp"):
        stored = filled.rows[row][i]
        return f"'{text}'" if isinstance(stored, int) else None  # no literal is an impossible date
    if type_ == "time":
        return f"'{text}'"
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + ("" if type_ in ("enum", "set") else " " * len(more)) + "'"


@st.composite
def conditions(draw: st.DrawFn, filled: Filled, depth: int = 2) -> str:
    """The text of a condition that fits the table."""
    if depth and draw(st.booleans()):
        parts = draw(st.lists(conditions(filled, depth - 1), min_size=1, max_size=3))
        return draw(st.sampled_from(("", "NOT "))) + "(" + draw(st.sampled_from((" AND ", " OR "))).join(parts) + ")"
    i = draw(st.integers(0, len(filled.schema.columns) - 1))
    column = filled.schema.columns[i]
    literal = st.builds(_literal, st.just(filled), st.just(i), st.integers(0, ROWS - 1), st.sampled_from(("", "", "1"))).filter(
        bool
    )
    form = draw(st.sampled_from((["=", "<>", "<", "<=", ">", ">="], ["IS"], ["IN"], ["BETWEEN"], ["LIKE"])))[:]
    sign = draw(st.sampled_from(form))
    text = bool(column.charset) and column.type != "json"
    negated = draw(st.sampled_from(("", "NOT ")))
    if all(row[i] is None or (isinstance(row[i], str) and column.type in ("date", "datetime")) for row in filled.rows):
        sign = "IS"
    if sign == "IS":
        return f"{column.name} IS {negated}NULL"
    if sign == "LIKE" and text:
        pattern = "".join(
            draw(
                st.lists(
                    st.sampled_from(["a", "A", "ä", " ", "%", "_", "\\\\%", "\\\\_", "\\\\\\\\", "|", "世", "😀", "s"]),
                    max_size=4,
                )
            )
        )
        return f"{column.name} {negated}LIKE '{pattern}'"
    if sign in ("LIKE", "IN") or (column.type in ("enum", "set") and sign not in ("=", "<>")):
        return f"{column.name} {negated}IN ({', '.join(draw(st.lists(literal, min_size=1, max_size=3)))})"
    if sign == "BETWEEN":
        return f"{column.name} {negated}BETWEEN {draw(literal)} AND {draw(literal)}"
    return f"{column.name} {sign} {draw(literal)}"


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(data=st.data())
def test_true_false_and_unknown_for_the_same_rows(filled: Filled, data: st.DataObject) -> None:
    """A condition says of each row of the binlog what the server says of it, in the SQL that snapshots use; and where the server compares
    in the same way, for the user's own text, too."""
    _compare(filled, data.draw(conditions(filled)))


def test_each_column_and_its_own_values(filled: Filled) -> None:
    """Each kind of column, compared with values that it has."""
    for i, column in enumerate(filled.schema.columns):
        found = [text for row in range(12) if (text := _literal(filled, i, row, "")) is not None]
        for text in found[:3]:
            _compare(filled, f"{column.name} = {text}")
            if column.type not in ("enum", "set"):
                _compare(filled, f"{column.name} > {text}")


def _compare(filled: Filled, text: str) -> None:
    bound = bind(parse(text), filled.schema)
    ours = [bound.test(row) for row in filled.rows]
    assert _compiled(bound, filled) in (None, ours), text
    sql = bound.sql(lambda i: quoted(filled.schema.columns[i].name))
    assert ours == _asked(filled, sql), (text, sql)
    if all(filled.schema.columns[i].type not in COMPARED_ELSEWISE for i in bound.columns):
        assert ours == _asked(filled, text), text


def _compiled(bound: Bound, filled: Filled) -> list[bool | None] | None:
    """What compiled code says of the rows; None where it leaves the condition to Python. Of a value that it leaves, Python's word counts."""
    steps = steps_of(bound, filled.schema)
    if steps is None or not COMPILED:
        return None
    condition, found = compiled.Condition(steps), []
    for row in filled.rows:
        try:
            found += condition.tried(pack([row]))
        except ValueError:
            odd = [row[i] for i in bound.columns if isinstance(row[i], str if filled.schema.columns[i].type in TIMES else bytes)]
            assert odd, row
            found.append(bound.test(row))
    return found


def _asked(filled: Filled, sql: str) -> list[bool | None]:
    with filled.connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql} FROM t ORDER BY id")
        values = [row[0] for row in cursor.fetchall()]
        cursor.execute(f"SELECT id FROM t WHERE {sql} ORDER BY id")
        assert [row[0] for row in cursor.fetchall()] == [i for i, value in enumerate(values) if value]
    return [None if value is None else str(value) == "1" for value in values]
