"""Copies that Spark writes, in Iceberg and, by executors, in Delta, on a Spark that has what that needs: `test_iceberg` runs these tests in an
environment of their own."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from shmstore import Column, Event, EventType, TableSchema
from shmstore.consumer.copies import copy as copies
from shmstore.consumer.copies.ddl import actions
from shmstore.consumer.copies.target import TargetFailed
from shmstore.consumer.spark import replicate, session_settings
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.replicate.iceberg import MARKS, IcebergTarget
from shmstore.consumer.spark.replicate.replicate import Replication
from shmstore.encoding.codec import encode
from tests.consumer.copies.lakes import LocalCopies
from tests.consumer.copies.test_applied_changes import check as check_changes
from tests.consumer.copies.test_applied_changes import random_changes
from tests.consumer.spark.events import ORDERS, Binlog, order_row
from tests.consumer.spark.replicate.test_command import run
from tests.consumer.spark.replicate.test_event_runs import story
from tests.consumer.spark.replicate.test_random_alter import check
from tests.servers.iceberg_rest import iceberg_rest
from tests.servers.maven import jars
from tests.servers.postgres import start_postgres

POSTGRESQL = "org.postgresql:postgresql:42.7.8"
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0"
DELTA = ("io.delta:delta-spark_4.0_2.13:4.4.0:", "io.delta:delta-storage:4.4.0:")
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}
CATALOGS = ("lake", "rest", "jdbc")
# for what Iceberg's library does with rows and snapshots, whatever keeps the pointer to the newest: in every catalog in the long runs
in_one_catalog = pytest.mark.parametrize(
    "catalog", [CATALOGS[0], *(pytest.param(name, marks=pytest.mark.long) for name in CATALOGS[1:])], indirect=True
)
_numbers = itertools.count(1)
OTHER = ORDERS._replace(table="other")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark with Iceberg's runtime, and three catalogs: `lake` in a folder, `rest` behind a REST server, `jdbc` in a PostgreSQL."""
    from pyspark.sql import SparkSession

    found = jars("iceberg-spark-4.0-1.11.0-postgresql", RUNTIME, POSTGRESQL).glob("*.jar")
    folders = {name: tmp_path_factory.mktemp(name) for name in CATALOGS}
    with start_postgres() as postgres, iceberg_rest(folders["rest"]) as url:
        catalogs = {
            "lake": {"type": "hadoop", "warehouse": str(folders["lake"])},
            "rest": {"type": "rest", "uri": url},
            "jdbc": {
                "type": "jdbc",
                "uri": f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres",
                "jdbc.user": postgres.user,
                "jdbc.password": postgres.password,
                "warehouse": str(folders["jdbc"]),
            },
        }
        found = [*found, *jars("delta-spark-4.0-4.4.0-alone", *DELTA).glob("*.jar")]
        settings = {"spark.jars": ",".join(map(str, found)), "spark.sql.session.timeZone": "UTC", **DELTA_SETTINGS}
        for name, given in catalogs.items():
            settings[f"spark.sql.catalog.{name}"] = "org.apache.iceberg.spark.SparkCatalog"
            settings |= {f"spark.sql.catalog.{name}.{key}": value for key, value in given.items()}
        session = (
            SparkSession.builder.master("local[2]").config(map=session_settings(local_checkpoints=False) | settings).getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(params=CATALOGS)
def catalog(request: pytest.FixtureRequest) -> str:
    """The name of each catalog."""
    return str(request.param)


@pytest.fixture
def target(catalog: str) -> str:
    """Where the copies of one test are."""
    return f"{catalog}.n{next(_numbers)}_{{database}}.{{table}}"


def replication(spark: Any, target: str, format: str = "iceberg", **named: Any) -> Replication:
    return Replication(SourceOptions.parse({"store": "none", "zeroDates": "null"}), target, format, session=spark, **named)


def apply(copy: Replication, batch: int, *transactions: list[Event], query: str = "q") -> None:
    copy.apply([encode(event) for events in transactions for event in events], query, batch)


def rows(copy: Replication, spark: Any, table: str = "orders") -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.table(copy.path("shop", table)).collect())


def snapshots(copy: Replication, spark: Any, table: str = "orders") -> int:
    return int(spark.table(f"{copy.path('shop', table)}.snapshots").count())


def test_changes_deletes_and_keys(spark: Any, target: str, versions: list[list[list[Event]]]) -> None:
    """A row that changes twice, one that goes and comes again, one whose key changes; a batch that is run again changes nothing."""
    copy = replication(spark, target)
    for batch, transactions in enumerate(versions):
        apply(copy, batch, *transactions)
        count = snapshots(copy, spark)
        apply(replication(spark, target), batch, *transactions)
        assert snapshots(copy, spark) == count
    found = {row["id"]: row["status"] for row in spark.table(copy.path("shop", "orders")).collect()}
    assert found == {1: "sent", 2: "again", 4: "new"}


@in_one_catalog
def test_every_type(spark: Any, target: str, binlog: Binlog) -> None:
    """Values are what they are in the source; small integers are Iceberg's int."""
    columns = (
        Column("id", "smallint", unsigned=True), Column("t", "tinyint"), Column("b", "bigint", unsigned=True), Column("f", "float"),
        Column("d", "double"), Column("bits", "bit", size=3), Column("raw", "varbinary", size=9), Column("e", "enum", charset="utf8mb4", members=("a",)),
        Column("n", "decimal", size=38, scale=9), Column("day", "date"), Column("odd `name.x", "varchar", size=9), Column("{s}", "int"),
    )  # fmt: skip
    table = TableSchema("shop", "types", columns, (0,))
    values = (65535, -128, 18446744073709551615, 1.5, -2.25, 5, b"\0\xff", "a", Decimal("1.000000001"), None, "ü", 3)
    copy = replication(spark, target)
    apply(copy, 0, binlog.insert(values, (2,) + (None,) * 11, table=table))
    apply(copy, 1, binlog.update((values, (*values[:-1], 4)), table=table))
    found = rows(copy, spark, "types")
    assert [tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in found] == [
        (2,) + (None,) * 11,
        (*values[:2], Decimal(values[2]), *values[3:-1], 4),
    ]


def test_columns_follow_in_one_commit(spark: Any, target: str, binlog: Binlog) -> None:
    """ADD, DROP, RENAME and widenings write no row again; what comes with a value is read again."""
    copy = replication(spark, target)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)))
    before = snapshots(copy, spark)
    apply(
        copy,
        1,
        binlog.ddl(
            "alter table shop.orders add note varchar(9), drop customer, change status state varchar(300), modify amount decimal(20,2)"
        ),
    )
    assert snapshots(copy, spark) == before + 1
    there = spark.table(copy.path("shop", "orders"))
    assert sorted(there.columns) == sorted(["id", "amount", "placed", "seen", "state", "note"])
    assert dict(there.dtypes)["amount"] == "decimal(20,2)"
    assert [(row.id, row.state, row.note) for row in there.orderBy("id").collect()] == [(1, "new", None), (2, "new", None)]
    apply(copy, 2, binlog.ddl("alter table shop.orders add flag int not null default 9"))
    assert copy.aside == ["shop.orders"]


WIDENINGS = [
    ("smallint", "int", True),
    ("int", "bigint", True),
    ("int unsigned", "bigint", True),
    ("int unsigned", "bigint unsigned", False),
    ("tinyint unsigned", "bigint unsigned", False),
    ("decimal(10,2)", "decimal(38,2)", True),
    ("decimal(38,2)", "decimal(40,2)", False),
    ("varchar(20)", "longtext", True),
    ("varbinary(9)", "mediumblob", True),
]


@in_one_catalog
@pytest.mark.parametrize(("old", "new", "promotes"), WIDENINGS, ids=lambda given: str(given).replace(" ", "-"))
def test_a_type_becomes_wider(spark: Any, target: str, binlog: Binlog, old: str, new: str, promotes: bool) -> None:
    """Where Iceberg cannot promote a column's type, the copy waits for its rows to be read again, and the query continues."""
    (change,) = actions(f"alter table shop.orders add v {old}", "shop")[0].changes
    assert change.column is not None
    charset = "latin1" if change.column.type == "varchar" else ""
    table = ORDERS._replace(columns=(ORDERS.columns[0], change.column._replace(charset=charset)))
    value = {"decimal": Decimal("1.50"), "varchar": "a", "varbinary": b"a"}.get(change.column.type, 1)
    copy = replication(spark, target)
    apply(copy, 0, binlog.insert((1, value), table=table))
    assert [row[1] for row in rows(copy, spark)] == [value]
    apply(copy, 1, binlog.ddl(f"alter table shop.orders modify v {new}"))
    assert copy.aside == ([] if promotes else ["shop.orders"])
    assert [row[1] for row in rows(copy, spark)] == [value]


def test_all_rows_go_and_come_again(spark: Any, target: str, binlog: Binlog) -> None:
    """TRUNCATE; a DDL whose rows are read again by a snapshot, which take the place of the old ones in one step; DROP DATABASE."""
    copy = replication(spark, target)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)))
    apply(copy, 1, binlog.ddl("truncate table shop.orders", EventType.TRUNCATE), binlog.insert(order_row(3)))
    assert [row[0] for row in rows(copy, spark)] == [3]
    wider = ORDERS._replace(columns=(*ORDERS.columns[:-1], Column("status", "int")))
    apply(copy, 2, binlog.ddl("alter table shop.orders modify status int"))
    assert copy.aside == ["shop.orders"]
    assert [row[0] for row in rows(copy, spark)] == [3]
    first = binlog.read("first", (*order_row(3)[:-1], 1), table=wider)
    apply(replication(spark, target), 3, first, binlog.insert((*order_row(4)[:-1], 2), table=wider))
    copy = replication(spark, target)
    apply(copy, 4, binlog.read("last", (*order_row(5)[:-1], 3), table=wider))
    assert [(row[0], row[5]) for row in rows(copy, spark)] == [(3, 1), (4, 2), (5, 3)]
    assert copy.aside == []
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {copy.path('shop', 'x').rpartition('.')[0]}").collect()] == [
        "orders"
    ]
    apply(copy, 5, binlog.ddl("drop database shop", EventType.ERASE))
    assert rows(copy, spark) == []


@in_one_catalog
def test_a_crash_before_and_after_each_commit(spark: Any, target: str, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that is run again finds what is done, and the copy is as it should be."""
    batch = [
        *binlog.insert(order_row(1), order_row(2)),
        *binlog.ddl("alter table shop.orders add note varchar(9)"),
        *binlog.ddl("truncate table shop.orders", EventType.TRUNCATE),
    ]
    wider = ORDERS._replace(columns=(*ORDERS.columns, Column("note", "varchar", size=9)))
    batch += binlog.insert((*order_row(3), "x"), table=wider)
    real, crashes = copies.Copy._do, itertools.count()

    class Killed(Exception):
        pass

    for moment in itertools.count():
        left = itertools.count()

        def do(self: Any, *step: Any, left: Any = left, moment: int = moment) -> None:
            if next(left) == moment:
                raise Killed
            real(self, *step)
            if next(left) == moment:
                raise Killed

        monkeypatch.setattr(copies.Copy, "_do", do)
        try:
            apply(replication(spark, target), 0, batch)
        except Killed:
            next(crashes)
            continue
        finally:
            monkeypatch.undo()
        break
    assert next(crashes) >= 4
    assert [(row.id, row.note) for row in spark.table(replication(spark, target).path("shop", "orders")).collect()] == [(3, "x")]


def test_what_others_commit(spark: Any, target: str, binlog: Binlog, caplog: pytest.LogCaptureFixture) -> None:
    """A compaction between batches does not make the copy forget how far it is; one whose snapshots are expired is set aside."""
    copy = replication(spark, target)
    apply(copy, 0, binlog.insert(order_row(1)))
    apply(copy, 1, binlog.insert(order_row(2)))
    name = copy.path("shop", "orders")
    catalog = name.partition(".")[0]
    spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    count = snapshots(copy, spark)
    apply(replication(spark, target), 1, binlog.insert(order_row(9)))
    assert snapshots(copy, spark) == count
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    )
    copy = replication(spark, target)
    apply(copy, 2, binlog.insert(order_row(3)), binlog.insert(order_row(3), table=OTHER))
    assert copy.aside == ["shop.orders"]
    assert "they were expired" in caplog.text
    assert [row[0] for row in rows(copy, spark, "other")] == [3]


def test_a_query_that_is_behind_neither_creates_a_removed_copy_nor_removes_a_newer_one(
    spark: Any, target: str, binlog: Binlog
) -> None:
    """It finds by the mark that the removed copy left that it is behind. What comes later begins the copy again."""
    first, second = (replication(spark, target, remove_dropped=True) for _ in range(2))
    name, drop = first.path("shop", "orders"), binlog.ddl("drop table orders", EventType.ERASE)
    fresh = replication(spark, target, remove_dropped=True)
    apply(fresh, 0, binlog.insert(order_row(1), table=OTHER))  # it has looked at no copy of the table

    def persist(copy: Replication, batch: int, events: list[Event]) -> None:
        try:
            apply(copy, batch, events)
        except TargetFailed:
            apply(copy, batch, events)

    persist(first, 0, binlog.insert(order_row(1)))
    persist(second, 1, binlog.insert(order_row(2)))
    persist(second, 2, drop)
    for copy in (first, fresh):
        persist(copy, 1, binlog.insert(order_row(2)))
        assert not spark.catalog.tableExists(name)
    assert [path for path in first.existing() if "orders" in path] == []
    persist(second, 3, binlog.insert(order_row(3)))
    persist(first, 2, drop)
    persist(first, 3, binlog.insert(order_row(3)))
    assert [row[0] for row in rows(first, spark)] == [3]
    persist(first, 4, drop)
    persist(second, 4, drop)
    persist(second, 5, binlog.insert(order_row(5)))
    assert [row[0] for row in rows(second, spark)] == [5]


NAMES = ["history", "files", "a/b", "a%b", "a\\b"]


@pytest.mark.parametrize(
    "catalog", ["rest", *(pytest.param(name, marks=pytest.mark.long) for name in ("lake", "jdbc"))], indirect=True
)
def test_a_name_that_a_catalog_refuses_concerns_one_copy(spark: Any, target: str, binlog: Binlog) -> None:
    """Of a table, of a database, and names that Iceberg gives a table's metadata: a copy has its rows or is set aside, and the others continue."""
    tables = [
        ORDERS,
        *(ORDERS._replace(table=name) for name in NAMES),
        ORDERS._replace(database="a/b"),
        ORDERS._replace(database="a:b"),
    ]
    aside: list[str] = []
    for batch in range(2):
        copy = replication(spark, target)
        apply(copy, batch, *(binlog.insert(order_row(batch), table=table) for table in tables))
        aside = sorted({*aside, *copy.aside})
        for table in tables:
            name = f"{table.database}.{table.table}"
            if name not in aside:
                path = ".".join(f"`{part}`" for part in copy.path(table.database, table.table).split("."))
                assert [row.id for row in spark.table(path).orderBy("id").collect()] == list(range(batch + 1)), name
    wanted = {"rest": ["a/b.orders", "shop.a%b", "shop.a/b", "shop.a\\b"], "lake": ["a:b.orders"]}
    assert aside == wanted.get(target.split(".")[0], [])
    apply(copy, 2, *(binlog.ddl(f"drop database `{name}`", EventType.ERASE) for name in ("a/b", "a:b")))


def test_tables_of_one_namespace_begin_at_the_same_time(spark: Any, catalog: str) -> None:
    """As those of a batch do: a catalog that cannot create a namespace twice at once ends no query."""
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            space = f"{catalog}.n{next(_numbers)}"
            tables = [IcebergTarget(spark).table(f"{space}.t{number}", f"shop.t{number}") for number in range(4)]
            list(pool.map(lambda table, space=space: table._make_space(space), tables))
            assert spark.catalog.databaseExists(space)


def spoil(folder: Path, files: str, *, checked: bool = False) -> bool:
    """Write something else into them. Where it is `checked`, Hadoop's own sum of each file stays, by which it sees that."""
    found = list(folder.glob(files))
    for file in found:
        file.write_text("{")
        if not checked:
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return bool(found)


def remove(folder: Path, files: str) -> bool:
    found = list(folder.glob(files))
    for file in found:
        file.unlink()
    return bool(found)


DAMAGES: dict[str, Callable[[Path], bool]] = {
    "no_metadata": lambda folder: remove(folder, "metadata/*.metadata.json"),
    "bad_metadata": lambda folder: spoil(folder, "metadata/*.metadata.json"),
    "bad_sums": lambda folder: spoil(folder, "metadata/*.metadata.json", checked=True),
    "no_snapshots": lambda folder: remove(folder, "metadata/snap-*.avro"),
    "bad_manifests": lambda folder: spoil(folder, "metadata/*.avro"),
    "no_rows": lambda folder: remove(folder, "**/*.parquet"),
    "bad_rows": lambda folder: spoil(folder, "**/*.parquet"),
}


@pytest.mark.parametrize(
    ("place", "merge"),
    [
        ("lake", "driver"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("rest", "driver"), ("lake", "executors"), ("delta", "executors"))
        ),
    ],
)
def test_a_damaged_copy_is_set_aside(
    spark: Any, binlog: Binlog, tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str, merge: str
) -> None:
    """Whatever of it is missing or is something else: the others continue, and once it is moved away its rows are read again."""
    format = "delta" if place == "delta" else "iceberg"
    target = f"{tmp_path}/{{database}}/{{table}}" if format == "delta" else f"{place}.n{next(_numbers)}_{{database}}.{{table}}"
    names = [name for name in DAMAGES if place == "lake" or name.endswith("rows") or (place, name) == ("rest", "no_metadata")]
    tables = [ORDERS, *(ORDERS._replace(table=name) for name in names)]

    def run(batch: int, *transactions: list[Event]) -> Replication:
        copy = replication(spark, target, format, merge=merge)
        events = [event for one in transactions for event in one]
        copy.apply_micro_batch(frame_of(spark, events, 1000 * batch, 1), "q", batch)
        return copy

    def ids(name: str) -> list[int]:
        path = copy.path("shop", name)
        there = spark.read.format("delta").load(path) if format == "delta" else spark.table(path)
        return [row.id for row in there.orderBy("id").collect()]

    copy = run(0, *(binlog.insert(order_row(1), order_row(2), table=table) for table in tables))
    folders = {}
    for name in names:
        folders[name] = Path(copy.path("shop", name))
        if format == "iceberg":
            shown = spark.sql(f"DESCRIBE TABLE EXTENDED {copy.path('shop', name)}").where("col_name = 'Location'").first()
            folders[name] = Path(shown.data_type.removeprefix("file:"))
        assert DAMAGES[name](folders[name])
    copy = run(1, *(binlog.update((order_row(1), order_row(7)), table=table) for table in tables))
    assert copy.aside == sorted(f"shop.{name}" for name in names)
    assert ids("orders") == [2, 7]
    for name, folder in folders.items():
        assert f"the copy of shop.{name} is set aside, and the others continue: the copy {copy.path('shop', name)}" in caplog.text
        shutil.rmtree(folder)
        if place == "rest":
            iceberg = spark.sparkContext._jvm.org.apache.iceberg
            identifier = iceberg.catalog.TableIdentifier.parse(copy.path("shop", name).partition(".")[2])
            assert iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, place).dropTable(identifier, False)
    copy = run(2, *(binlog.read("whole", order_row(2), order_row(7), table=table) for table in tables[1:]))
    assert copy.aside == []
    assert all(ids(name) == [2, 7] for name in names)


@in_one_catalog
def test_a_history(spark: Any, target: str, versions: list[list[list[Event]]], binlog: Binlog) -> None:
    """Every version of a row, once, also where a batch is run again by another query."""
    for query in ("q", "another"):
        copy = replication(spark, target, history=True)
        for batch, transactions in enumerate(versions):
            apply(copy, batch, *transactions, query=query)
    found = spark.table(copy.path("shop", "orders")).orderBy("id", "_seq").collect()
    assert [(row.id, row.status, row._current) for row in found] == [
        *((1, "new", False), (1, "paid", False), (1, "sent", True)),
        *((2, "new", False), (2, "again", True), (3, "new", False), (4, "new", True)),
    ]
    apply(copy, 9, binlog.ddl("truncate table shop.orders", EventType.TRUNCATE))
    assert not any(row._current for row in spark.table(copy.path("shop", "orders")).collect())


def test_replicate_into_a_catalog(spark: Any, catalog: str, tmp_path: Path) -> None:
    """The whole query, and again where it finds its namespace and table; a missing catalog and a missing checkpoint are errors before it."""
    from shmstore import EventStore

    binlog = Binlog()
    with EventStore.create(f"iceberg-{next(_numbers)}", state=str(tmp_path / "state")) as store:
        store.put([*binlog.insert(order_row(1), order_row(2)), *binlog.delete(order_row(1))])
        options = {"stateDirectory": str(tmp_path / "state")}
        given = {"store": store.name, "format": "iceberg", "options": options, "trigger": {"availableNow": True}}
        with pytest.raises(ValueError, match="needs a folder"):
            replicate(spark, target=f"{catalog}.{{database}}.{{table}}", **given)
        with pytest.raises(ValueError, match="name of a catalog"):
            replicate(spark, target="nowhere.{database}.{table}", checkpoint=str(tmp_path / "c"), **given)
        for there in ([2], [2, 3]):
            query = replicate(spark, target=f"{catalog}.whole_{{database}}.{{table}}", checkpoint=str(tmp_path / "c"), **given)
            query.awaitTermination(120)
            assert query.exception() is None
            assert [row.id for row in spark.table(f"{catalog}.whole_shop.orders").orderBy("id").collect()] == there
            store.put(binlog.insert(order_row(there[-1] + 1)))
        summary = (
            spark.sql(f"SELECT summary FROM {catalog}.whole_shop.orders.snapshots ORDER BY committed_at DESC").first().summary
        )
        assert str(query.id) in summary[MARKS]
    EventStore.unlink(store.name, log=True, state=str(tmp_path / "state"))


def frame_of(spark: Any, events: list[Event], first: int, parts: int) -> Any:
    """The events from number `first` on as a micro-batch has them, in `parts` stretches."""
    values = [(first + i, encode(event), None) for i, event in enumerate(events)]
    frame = spark.createDataFrame(values, "sequence LONG, payload BINARY, source STRING")
    return frame.repartitionByRange(parts, "sequence").sortWithinPartitions("sequence") if parts > 1 else frame.coalesce(1)


@pytest.mark.parametrize(
    ("format", "history"),
    [
        ("delta", False),
        ("iceberg", True),
        pytest.param("delta", True, marks=pytest.mark.long),
        pytest.param("iceberg", False, marks=pytest.mark.long),
    ],
)
def test_executors_merge_what_the_driver_does(spark: Any, tmp_path: Path, seed: int, format: str, history: bool) -> None:
    """Random changes of two tables, an ALTER, a snapshot and a batch that is run again, in tasks of their own: the same rows as in a copy that the driver
    merged."""
    choose, binlog = random.Random(seed), Binlog()
    target = f"{tmp_path}/{{database}}/{{table}}" if format == "delta" else f"lake.n{next(_numbers)}_{{database}}.{{table}}"
    driver, position = LocalCopies(tmp_path, "parquet", history=history), 0
    there: dict[str, set[int]] = {"orders": {0}, "other": {0}}
    first = [*binlog.insert(order_row(0)), *binlog.insert(order_row(0), table=ORDERS._replace(table="other"))]
    for batch, count in enumerate((3, 12, 20)):
        events = [*(first if batch == 0 else []), *story(binlog, choose, count, there, followed=True)]
        if batch == 2 and not history:
            state, note = Column("state", "varchar", size=20), Column("note", "varchar", size=9)
            wider = ORDERS._replace(columns=(*ORDERS.columns[:-1], state, note))
            events += binlog.ddl("alter table shop.orders rename column status to state, add column note varchar(9)")
            events += binlog.insert((*order_row(20), "x"), table=wider)
            events += binlog.update(((*order_row(20), "x"), (*order_row(21), "y")), table=wider)
        driver.apply([encode(event) for event in events], "q", batch)
        for _ in range(2 if batch == 1 else 1):  # also by a driver that comes after one that was killed
            copy = replication(spark, target, format, merge="executors", history=history)
            copy.apply_micro_batch(frame_of(spark, events, position, choose.randrange(1, 4)), "q", batch)
        position += len(events)
        for table in ("orders", "other"):
            path = copy.path("shop", table)
            found = spark.read.format("delta").load(path) if format == "delta" else spark.table(path)
            wanted = spark.read.parquet(driver.path("shop", table))
            assert values(found) == values(wanted), f"seed {seed}"
        assert not copy.aside


def values(frame: Any) -> list[str]:
    return sorted(str(sorted(row.asDict().items())) for row in frame.collect())


@pytest.mark.parametrize(
    ("kind", "starts"), [("hadoop", 1), *(pytest.param(kind, 2, marks=pytest.mark.long) for kind in ("hadoop", "rest"))]
)
def test_the_first_start_on_an_empty_catalog(kind: str, starts: int, tmp_path: Path, state: Path) -> None:
    """As a user starts it, where not even the catalog's folder exists: namespaces and tables are created, and no line of Java is printed."""
    from shmstore import EventStore

    name, folder = f"iceberg-{next(_numbers)}", tmp_path / "rest"
    folder.mkdir()
    found = jars("iceberg-spark-4.0-1.11.0-postgresql", RUNTIME, POSTGRESQL).glob("*.jar")
    with EventStore.create(name) as store, iceberg_rest(folder) as url:
        store.put(Binlog().insert(order_row(1), order_row(2)))
        given = {"type": kind, **({"uri": url} if kind == "rest" else {"warehouse": f"{tmp_path}/not/there"})}
        settings = [f"spark.jars={','.join(map(str, found))}", "spark.sql.catalog.new=org.apache.iceberg.spark.SparkCatalog"]
        settings += [f"spark.sql.catalog.new.{key}={value}" for key, value in given.items()]
        words = [word for setting in settings for word in ("--conf", setting)]
        target = "new.{database}.{table}"
        for _ in range(starts):  # the second one finds them
            done = run(name, tmp_path, "--format", "iceberg", "--target", target, "--snapshot", "--once", *words)
            assert done.returncode == 0, done.stderr[-3000:]
            assert "\tat " not in done.stderr
            assert "Traceback" not in done.stderr
        EventStore.unlink(name, log=True)
    if kind == "hadoop":
        assert list((tmp_path / "not/there/shop/orders/data").glob("*.parquet"))


@pytest.mark.server
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "alters"), [("mariadb", 12), pytest.param("mysql", 60, marks=pytest.mark.long)])
def test_copies_equal_select_after_random_alters(
    request: pytest.FixtureRequest, kind: str, alters: int, spark: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a DDL does to rows, columns and keys, with kills, as in the other formats."""
    check(request.getfixturevalue(kind), kind, f"iceberg_{kind}", tmp_path, seed, monkeypatch, ["iceberg"], alters, spark=spark)


@pytest.mark.parametrize("history", [False, True])
def test_changes_of_a_stream_of_ones_own(spark: Any, history: bool, seed: int) -> None:
    """In any order, twice, replayed, killed between the commits: as `apply_changes` calls it."""
    choose, path = random.Random(seed), f"lake.n{next(_numbers)}_shop.orders"
    check_changes(lambda: (IcebergTarget(spark), path), choose, history, random_changes(choose, 16))
