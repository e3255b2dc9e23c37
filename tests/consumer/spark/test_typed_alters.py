"""Random DDLs between rows, on a real server: typed queries that are started again read every row once, with the columns that it was written with,
and those that follow have each column's values by what the column is.
"""

from __future__ import annotations

import random
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
import pytest

from shmstore import EntryType, EventStore
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.decode.schema import image_type
from shmstore.consumer.spark.options import SourceOptions, Start
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.schema_lookup import find_table
from shmstore.consumer.spark.source.stream_reader import StreamReader
from shmstore.consumer.spark.spark_version import has_read_limits
from tests.consumer.spark.queries import Query
from tests.producer.running import running, wait_for_position
from tests.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server]

TYPES = ["TINYINT", "SMALLINT", "INT", "BIGINT", "VARCHAR(60)", "DECIMAL(12,2)", "DECIMAL(20,4)"]
VALUES = ["NULL", "0", "1", "-7", "100", "300", "70000", "3000000000", "'12'", "1.25", "-3.5"]
KINDS = ["add", "drop", "rename", "change", "case", "swap", "modify", "index", "recreate", "away", "trade"]
INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


class Author:
    """Changes one table, and another one that trades places with it. Knows which column is which: `steps` has their numbers by name at each step,
    and column `v` of a row the step that it was written at.
    """

    def __init__(self, server: Server, database: str, seed: int) -> None:
        self.choose = random.Random(seed)
        self.connection = server.connect(database=database, autocommit=True)
        self.columns: dict[str, dict[str, int]] = {}  # by table
        self.steps: list[dict[str, int]] = []
        self.numbers = self.alters = self.keys = 0
        self.log: list[str] = []
        self.run("SET SESSION sql_mode = ''")
        for table in ("t", "other"):
            self.create(table)
        self.write(always=True)

    def run(self, sql: str) -> bool:
        """Whether the server took it."""
        with self.connection.cursor() as cursor:
            try:
                cursor.execute(sql)
            except pymysql.MySQLError:
                return False
        self.log.append(sql)
        return True

    def new(self) -> tuple[str, str]:
        self.numbers += 1
        name = self.choose.choice([f"c{self.numbers % 7}", f"Col {self.numbers}", f"ö{self.numbers}"])
        return name, self.choose.choice(TYPES)

    def create(self, table: str) -> None:
        named = {name.lower(): (name, type_) for name, type_ in (self.new() for _ in range(self.choose.randint(2, 4)))}
        columns = ", ".join(f"`{name}` {type_}" for name, type_ in named.values())
        assert self.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT, {columns})")
        self.columns[table] = {name: self.number() for name, _ in named.values()}

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def write(self, *, always: bool = False) -> None:
        """New rows, and every row written again: its image has the values that the DDL gave it. Not always, so that DDLs meet."""
        if always or self.choose.random() < 0.8:
            self.steps.append(dict(self.columns["t"]))
            step = len(self.steps) - 1
            for _ in range(self.choose.randint(1, 3)):
                self.keys += 1
                names = list(self.columns["t"])
                cells = "".join(", " + self.choose.choice(VALUES) for _ in names)
                self.run(f"INSERT INTO t (id, v{''.join(f', `{name}`' for name in names)}) VALUES ({self.keys}, {step}{cells})")
            self.run(f"UPDATE t SET v = {step}")

    def step(self) -> None:
        """One statement, or a few for one purpose."""
        columns, choose = self.columns["t"], self.choose
        one, (name, type_) = choose.choice(list(columns)), self.new()
        kind = choose.choice([*KINDS, "add", "modify", "modify"])
        taken = {known.lower() for known in columns}
        if kind in ("add", "rename", "change") and name.lower() in taken:
            return
        if kind == "add" and self.run(f"ALTER TABLE t ADD COLUMN `{name}` {type_} {choose.choice(['', 'FIRST', 'AFTER id'])}"):
            columns[name] = self.number()
        elif kind == "drop" and len(columns) > 1 and self.run(f"ALTER TABLE t DROP `{one}`"):
            del columns[one]
        elif kind in ("rename", "change"):
            clause = f"RENAME COLUMN `{one}` TO `{name}`" if kind == "rename" else f"CHANGE `{one}` `{name}` {type_}"
            if self.run(f"ALTER TABLE t {clause}"):
                columns[name] = columns.pop(one)
        elif kind == "case" and self.run(f"ALTER TABLE t MODIFY `{one.swapcase()}` {type_}"):
            columns[one.swapcase()] = columns.pop(one)
        elif kind == "swap" and len(columns) > 1:
            two = choose.choice([other for other in columns if other != one])
            if self.run(f"ALTER TABLE t RENAME COLUMN `{one}` TO `{two}`, RENAME COLUMN `{two}` TO `{one}`"):
                columns[one], columns[two] = columns[two], columns[one]
        elif kind == "modify":
            self.run(f"ALTER TABLE t MODIFY `{one}` {type_}")
        elif kind == "index":
            self.run("ALTER TABLE t ADD INDEX (v)") and self.run("ALTER TABLE t DROP INDEX v")
        elif kind == "recreate":
            self.run("DROP TABLE t")
            self.create("t")
        elif kind == "away":
            self.run("RENAME TABLE t TO away")
            self.run(f"ALTER TABLE away ADD `{name}` {type_}") and columns.update({name: self.number()})
            self.run("RENAME TABLE away TO t")
        elif kind == "trade" and self.run("RENAME TABLE t TO away, other TO t, away TO other"):
            self.columns["t"], self.columns["other"] = self.columns["other"], self.columns["t"]
        self.alters += 1


def written(store: EventStore, database: str) -> list[dict[str, Any]]:
    """The rows of table t that are in the store, as a reader without Spark has them."""
    found = []
    for batch in store.read(store.oldest, store.newest):
        for event in batch.events:
            table = event.table
            if event.entry is EntryType.ROWS and table is not None and (table.database, table.table) == (database, "t"):
                found += [dict(zip(table.names, row.after or (), strict=True)) for row in event.rows]
    return found


def held(value: Any, type_: str) -> Any:
    """The value as a column of Spark's type `type_` has it; None where it cannot."""
    if value is None:
        return None
    if type_ == "string":
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    if type_ in INTEGERS:
        most = 1 << INTEGERS[type_]
        return int(number) if number == int(number) and -most <= number < most else None
    digits, scale = (12, 2) if type_ == "decimal(12,2)" else (20, 4)
    fits = number == round(number, scale) and abs(number) < 10 ** (digits - scale)
    return number if fits else None


def followed(
    row: dict[str, Any], plan: dict[str, str], numbers: dict[str, list[int]], steps: list[dict[str, int]]
) -> dict[str, Any]:
    """What a query that was planned with `plan`, columns with Spark's types, has of a row. `numbers` are those that each of them has been."""
    now = {number: name for name, number in steps[row["v"]].items()}
    spelled = {name.lower(): name for name in row}
    sources = {name: next((now[number] for number in known if number in now), None) for name, known in numbers.items()}
    taken = set(sources.values())
    for name, source in sources.items():
        other = spelled.get(name.lower())
        if source is None and other is not None and other not in taken:  # another column of the name
            sources[name] = other
            numbers[name].append(steps[row["v"]][other])
    found = {name: row[name] for name in ("id", "v")}
    for name, source in sources.items():
        found[name] = None if source is None else held(row[source], plan[name])
    return found


class TypedQuery(Query):
    """Keeps the columns of each micro-batch, too."""

    # Spark before 4.2: a run has the columns from the start of the run before. One that follows continues with them; else it ends in front of the
    # first row, where a DDL came since, and the next start has that row's.
    runs_late = not has_read_limits()
    limited = 0.5  # how often a run has a limit

    def __init__(self, spark: Any, store: str, checkpoint: Path, **options: str) -> None:
        super().__init__(spark, store, checkpoint, "shmstore", **options)
        self.schemas: dict[int, Any] = {}
        self.count = self.taken = 0  # runs, and micro-batches whose rows are in `found`
        self.found: list[
            tuple[int, dict[str, str], dict[str, Any]]
        ] = []  # of each row the number of its run, the run's columns, and its image

    def _take(self, frame: Any, batch: int) -> None:
        self.schemas[batch] = frame.schema["after"].dataType
        super()._take(frame, batch)


def run_until_read(query: TypedQuery, count: int, choose: random.Random, follow: bool) -> None:
    """Start the query until it has read `count` rows."""
    begun = query.count
    while query.count < begun + 10 * count:
        rows_before = len(query.found)
        limits = {"maxRowsPerTrigger": str(choose.choice([3, 20]))} if choose.random() < query.limited else {}
        try:
            query.start(once=True, schemaChanges="follow" if follow else "fail", **limits)
        except Exception as error:
            known = query.runs_late and not follow and query.count == begun and "has other columns" in str(error)
            if not known or len(query.batches) > query.taken:
                raise
            query.count += 1
            continue
        for batch in sorted(query.batches)[query.taken :]:
            for row in sorted(query.batches[batch], key=lambda row: row.seq):
                types = {field.name: field.dataType.simpleString() for field in query.schemas[batch]}
                query.found.append((query.count, types, dict(zip(types, row.after, strict=True))))
        query.taken, query.count = len(query.batches), query.count + 1
        if len(query.found) >= count:
            return
        assert len(query.found) > rows_before, f"a run read nothing after {rows_before} of {count} rows"
    raise AssertionError("too many runs")


class ReaderQuery(TypedQuery):
    """The same without Spark: calls the reader as Trigger.AvailableNow of 4.2 does, and stops now and then."""

    runs_late, limited = False, 0.9
    at: dict[str, Any] | None = None

    def start(self, *, once: bool = False, **options: str) -> ReaderQuery:
        parsed = SourceOptions.parse({**self._options, **options})
        table, since = find_table(parsed)
        reader = StreamReader(Decoder(parsed, table, since))
        reader._freeze(Start("latest"))
        at = self.at or reader.initialOffset()
        while (end := reader.plan(at, BatchLimit(parsed.max_rows))) != at:
            found = [batch for partition in reader.partitions(at, end) for batch in reader.read(partition)]
            rows = [row for batch in found for row in batch.select(["seq", "after"]).to_pylist()]
            self.schemas[len(self.batches)] = image_type(table)
            self.batches[len(self.batches)] = [Delivered(row["seq"], tuple(row["after"].values())) for row in rows]
            at = self.at = end
            if len(self.batches) % 2 == 0:  # the next run is planned here
                reader.commit(at)
                break
        reader.stop()
        return self


class Delivered(NamedTuple):
    """A row of `ReaderQuery`, with the two fields that are looked at."""

    seq: str
    after: tuple[Any, ...]


def lower(row: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in row.items()}


def check(
    mariadb: Server,
    database: str,
    spark: Any,
    state: Path,
    folder: Path,
    seed: int,
    alters: int,
    kind: type[TypedQuery] = TypedQuery,
) -> None:
    with running(mariadb, include=(f"{database}.*",), state=str(state), log_size="64m") as run:
        author = Author(mariadb, database, seed)
        options = {"stateDirectory": str(state), "tables": f"{database}.t", "startingOffsets": "earliest"}
        choose = random.Random(seed)
        stopped = kind(spark, run.settings.store, folder / "stopped", subscription="stopped", **options)
        followed_query = kind(spark, run.settings.store, folder / "followed", subscription="followed", **options)
        with EventStore.attach(run.settings.store, state=str(state)) as store:
            for step in range(alters):
                while author.alters == step:
                    author.step()
                if step % 8 < 7 and step < alters - 1:
                    author.write()
                    continue
                author.write(always=True)  # the queries come to the end, and continue behind a DDL
                wait_for_position(mariadb, store, put=True)
                truth = written(store, database)
                run_until_read(stopped, len(truth), choose, follow=False)
                run_until_read(followed_query, len(truth), choose, follow=True)
        assert len(truth) > alters / 2
        found = stopped.found
        assert [lower(row) for _, _, row in found] == [lower(row) for row in truth], author.log  # another case stops no query
        found = followed_query.found
        assert len(found) == len(truth)
        firsts: list[int] = []  # the place of each run's first row
        numbers: dict[str, list[int]] = {}
        for place, ((number, plan, row), wanted) in enumerate(zip(found, truth, strict=True)):
            if number == len(firsts):
                firsts.append(place)
                first = firsts[-2] if kind.runs_late and number else place
                numbers = {name: [one] for name, one in author.steps[truth[first]["v"]].items()}
                for passed in truth[first:place]:
                    followed(passed, plan, numbers, author.steps)
            assert row == followed(wanted, plan, numbers, author.steps), (plan, wanted, author.log)
        print(
            f"{author.alters} statements, {len(truth)} rows, {len(stopped.batches)} and {len(followed_query.batches)} micro-batches"
        )
    with author.connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SELECT * FROM t")
        last = {row["id"]: row for row in truth}
        shown = cursor.fetchall()
        assert [last[row["id"]] for row in shown] == shown


def test_readers_live_through_alters(mariadb: Server, database: str, state: Path, tmp_path: Path, seed: int) -> None:
    """The source's part of it, without Spark."""
    check(mariadb, database, None, state, tmp_path, seed, 15, ReaderQuery)


@pytest.mark.long
@pytest.mark.parametrize("number", range(8))
def test_readers_live_through_many_alters(
    mariadb: Server, database: str, state: Path, tmp_path: Path, seed: int, number: int
) -> None:
    """40 statements each."""
    check(mariadb, database, None, state, tmp_path, seed + number, 40, ReaderQuery)


@pytest.mark.every_spark
def test_typed_queries_live_through_alters(
    mariadb: Server, database: str, spark: Any, state: Path, tmp_path: Path, seed: int
) -> None:
    """A few statements; the long run below has many."""
    check(mariadb, database, spark, state, tmp_path, seed, 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(8))
def test_typed_queries_live_through_many_alters(
    mariadb: Server, database: str, spark: Any, state: Path, tmp_path: Path, seed: int, number: int
) -> None:
    """40 statements each."""
    check(mariadb, database, spark, state, tmp_path, seed + number, 40)
