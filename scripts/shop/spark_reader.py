"""Reader 2: a Spark Structured Streaming query that keeps the shop's tables as Delta tables, through ``foreachBatch``.

``python -m scripts.shop.spark_reader STORE FOLDER [replicate]``; with ``replicate`` the library's one call does it all, and the
demo has two implementations to compare. Otherwise the query reads ``format("shmstore")`` with JSON images, so that one
query serves all tables. A micro-batch becomes one MERGE a table: the last change of every key by `seq`, where an update
that changes the key also deletes the old one. DDLs come in the same stream: a column that one adds gets its default in the
rows already there, at its place in the order. Each commit carries the batch's number in the Delta log, so that a batch that
Spark runs again is recognized.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_string

from scripts.shop.canonical import base_type
from scripts.shop.schema import DATABASE, TABLES, AddColumn, follow
from shmstore.consumer.spark import register, session_settings
from shmstore.spark import replicate

_INTEGERS: Final = {
    "tinyint": "short",
    "smallint": "int",
    "mediumint": "int",
    "int": "long",
    "bigint": "long",
    "year": "int",
    "bit": "long",
}
_SPARK: Final = _INTEGERS | {
    "float": "double",
    "double": "double",
    "date": "date",
    "datetime": "timestamp_ntz",
    "timestamp": "timestamp",
}
_DELTA: Final = {
    "short": "short",
    "int": "integer",
    "long": "long",
    "double": "double",
    "date": "date",
    "binary": "binary",
    "string": "string",
}


def spark_type(declared: str) -> str:
    """Return the Spark type (DDL text) that holds a MySQL column of the type `declared` without loss; TIME stays text."""
    base = base_type(declared)
    if base == "decimal":
        return declared.partition(")")[0] + ")"
    if base == "bigint" and "unsigned" in declared:
        return "decimal(20,0)"
    if base.endswith(("binary", "blob")):
        return "binary"
    return _SPARK.get(base, "string")


def delta_type(type_: str) -> PrimitiveType:
    """Return Delta's type for the Spark type (DDL text) `type_`."""
    return PrimitiveType(_DELTA.get(type_, type_))


class DeltaMirror:
    """One Delta table that follows one table of the shop."""

    def __init__(self, folder: Path, table: str, query: str) -> None:
        self.folder = str(folder / table)
        self.table = table
        self.query = query
        columns, self.key = TABLES[table]
        self.columns = {name: spark_type(declared) for name, declared in columns}
        if DeltaTable.is_deltatable(self.folder):
            self._delta = DeltaTable(self.folder)
            self.columns = {field.name: _spark_of(field) for field in self._delta.schema().fields}
        else:
            schema = Schema([Field(name, delta_type(type_)) for name, type_ in self.columns.items()])
            self._delta = DeltaTable.create(self.folder, schema=schema)

    @property
    def struct(self) -> StructType:
        """The Spark type of a row image."""
        return StructType([StructField(name, _parse(type_)) for name, type_ in self.columns.items()])

    def merge(self, batch: DataFrame, step: int) -> None:
        """Bring the changes of `batch` (rows of the stream, of any table) into the table, by one MERGE with the number `step`."""
        if self._seen(step):
            return
        images = batch.where((F.col("table") == self.table) & F.col("op").isin("c", "u", "d", "r")).select(
            "seq", F.from_json("before", self.struct).alias("b"), F.from_json("after", self.struct).alias("a")
        )
        # A row image is one change of one key: the old image takes its key away, the new one (rank 1, so it wins) sets it.
        changes = (
            images.where("b IS NOT NULL")
            .select("seq", F.lit(0).alias("rank"), "b.*")
            .unionByName(images.where("a IS NOT NULL").select("seq", F.lit(1).alias("rank"), "a.*"))
        )
        newest = Window.partitionBy(*self.key).orderBy(F.desc("seq"), F.desc("rank"))
        source = changes.withColumn("n", F.row_number().over(newest)).where("n = 1").drop("n", "seq").toArrow()
        if source.num_rows == 0:
            return
        values = {f'"{name}"': f's."{name}"' for name in self.columns}
        (
            self._delta.merge(
                source,
                predicate=" AND ".join(f't."{name}" = s."{name}"' for name in self.key),
                source_alias="s",
                target_alias="t",
                commit_properties=self._commit(step),
            )
            .when_matched_delete("s.rank = 0")
            .when_matched_update(values)
            .when_not_matched_insert(values, predicate="s.rank = 1")
            .execute()
        )

    def add_column(self, added: AddColumn, step: int) -> None:
        """Follow ``ALTER TABLE ... ADD COLUMN``: new column, and its default in the rows already there."""
        type_ = spark_type(added.type)
        if added.name not in self.columns:
            self._delta.alter.add_columns([Field(added.name, delta_type(type_))])
            self.columns[added.name] = type_
        if added.default is not None and not self._seen(step):
            literal = added.default if type_ in ("int", "long", "short") else f"'{added.default}'"
            self._delta.update(updates={f'"{added.name}"': literal}, commit_properties=self._commit(step))

    def _seen(self, step: int) -> bool:
        done = self._delta.transaction_version(self.query)
        return done is not None and done >= step

    def _commit(self, step: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(app_id=self.query, version=step)])


def _parse(type_: str) -> DataType:
    return _parse_datatype_string(type_)


def _spark_of(field: Field) -> str:
    type_ = str(field.type.type)  # a primitive's name, such as "long"
    return "int" if type_ == "integer" else type_


STEPS: Final = 1000  # numbers for the merges of one micro-batch: more than it has DDLs


class Mirrors:
    """All tables of the shop; `apply` is what ``foreachBatch`` calls."""

    def __init__(self, folder: Path, query: str) -> None:
        self.tables = {table: DeltaMirror(folder, table, query) for table in TABLES}

    def apply(self, batch: DataFrame, batch_id: int) -> None:
        """Bring one micro-batch into the tables, parted at the DDLs that change what rows look like."""
        batch.persist()
        try:
            ddls = (
                batch.where((F.col("op") == "ddl") & (F.col("database") == DATABASE))
                .select("seq", "ddl")
                .orderBy("seq")
                .collect()
            )
            step, rest = batch_id * STEPS, batch
            for seq, added in _columns_added(ddls):
                self._merge(rest.where(F.col("seq") < seq), step)
                self.tables[added.table].add_column(added, step + 1)
                rest = rest.where(F.col("seq") > seq)
                step += 2
            self._merge(rest, step)
        finally:
            batch.unpersist()

    def _merge(self, changes: DataFrame, step: int) -> None:
        for table in self.tables.values():
            table.merge(changes, step)


def _columns_added(ddls: Sequence[Any]) -> list[tuple[str, AddColumn]]:
    found = []
    for seq, sql in ddls:
        added = follow(sql)
        if added is not None:
            found.append((seq, added))
    return found


def session(work: Path) -> SparkSession:
    """Return a local Spark that knows the format and writes nothing outside `work`."""
    os.environ["SPARK_LOCAL_DIRS"] = str(work / "local")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:-UsePerfData"  # else the launcher leaves /tmp/hsperfdata_USER
    settings = session_settings() | {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work} -Xss4m -XX:-UsePerfData -XX:TieredStopAtLevel=1",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
    }
    spark = SparkSession.builder.master("local[2]").appName("shmstore demo").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def foreach_batch(spark: SparkSession, store: str, folder: Path) -> StreamingQuery:
    """Start the query that this module is about."""
    changes = (
        spark.readStream.format("shmstore")
        .option("store", store)
        .option("subscription", "spark")
        .option("startingOffsets", "earliest")
        .option("tables", f"{DATABASE}.*")
        .option("payload", "json")
        .option("includeDdl", "true")
        .load()
    )
    return (
        changes.writeStream.foreachBatch(Mirrors(folder / "tables", "shop").apply)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


def one_call(spark: SparkSession, store: str, folder: Path) -> StreamingQuery:
    """Start the query that does the same by the library's own `replicate`."""
    return replicate(
        spark,
        store=store,
        subscription="replicate",
        tables=f"{DATABASE}.*",
        target=str(folder / "tables" / "{table}"),
        format="delta",
        checkpoint=str(folder / "checkpoint"),
        options={"startingOffsets": "earliest"},
    )


def main() -> None:
    """Run the query until SIGTERM."""
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    store, folder = sys.argv[1], Path(sys.argv[2])
    spark = session(folder)
    query = (one_call if "replicate" in sys.argv[3:] else foreach_batch)(spark, store, folder)
    try:
        while not came and query.isActive:
            query.awaitTermination(1)  # raises what the query failed with
    finally:
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
