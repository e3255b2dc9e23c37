"""Rows that Spark's executors read straight from a real server: as a DataFrame, and as the beginning of copies."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from shmstore import EventStore
from shmstore.cli.commands.replicate import _server_tables as server_tables_of
from shmstore.consumer.copies.targets import delta, parquet
from shmstore.consumer.spark import read_table
from shmstore.consumer.spark.__main__ import main
from shmstore.consumer.spark.options import OptionError
from shmstore.consumer.spark.replicate.replicate import replicate
from shmstore.encoding.arrow import ZeroDate
from shmstore.producer import ServerTables
from shmstore.producer.snapshot import server_tables
from tests.producer.running import Running, execute, running, wait_for, wait_for_position
from tests.producer.snapping import Load, fill, select
from tests.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def run(any_server: Server, database: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A producer of the database, whose tables have parts of 1,000 rows and more."""
    monkeypatch.setattr(server_tables, "LEAST_ROWS", 1000)
    with running(any_server, include=(f"{database}.*",), snapshot_chunk=1000) as started:
        yield started


def copied(format: str, path: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """A copy's rows by key."""
    table = DeltaTable(str(path)).to_pyarrow_table() if format == "delta" else pq.read_table(path)
    return {(row["id"],): tuple(row.values()) for row in table.to_pylist()}


@pytest.mark.every_spark
def test_a_table_is_a_frame_with_a_partition_for_each_part(
    run: Running, any_server: Server, database: str, spark: Any, tmp_path: Path
) -> None:
    """It has the server's rows, each once; the password is in no plan; impossible dates are errors, or NULL when asked for."""
    user = f"reader{any_server.port}"
    execute(
        any_server,
        database,
        f"CREATE USER {user}@'%' IDENTIFIED BY 'S3cret-of-the-reader'",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@'%'",
    )
    try:
        fill(any_server, database, 5000)
        execute(any_server, database, "ANALYZE TABLE t")
        secret = tmp_path / "password"
        secret.write_text("S3cret-of-the-reader\n")
        tables = ServerTables(replace(run.settings, user=user, password_file=str(secret)))
        table = tables.open(f"{database}.t", parts=4)
        frame = read_table(spark, table)
        secret.unlink()  # executors are on other hosts
        assert frame.rdd.getNumPartitions() == table.parts == 4
        assert [field.dataType.simpleString() for field in frame.schema] == ["int", "int", "string"]
        assert sorted(map(tuple, frame.collect())) == sorted(select(any_server, database, "t").values())
        plans = frame._jdf.queryExecution().toString() + frame._jdf.queryExecution().stringWithStats()
        assert "MapInArrow" in plans
        assert "S3cret" not in plans + repr(table) + repr(tables)
    finally:
        execute(any_server, database, f"DROP USER {user}@'%'")
    execute(
        any_server,
        database,
        "SET sql_mode = ''",
        "CREATE TABLE d (id INT PRIMARY KEY, day DATE)",
        "INSERT INTO d VALUES (1, '2026-02-03'), (2, '0000-00-00')",
    )
    dated = ServerTables(run.settings).open(f"{database}.d")
    with pytest.raises(Exception, match=ZeroDate.__name__):
        read_table(spark, dated).collect()
    assert [row.day is None for row in read_table(spark, dated, zero_dates="null").orderBy("id").collect()] == [False, True]
    with pytest.raises(OptionError, match="zero_dates='never'"):
        read_table(spark, dated, zero_dates="never")


@pytest.mark.every_spark
def test_rows_and_the_stream_from_their_sequence_are_the_table(
    run: Running, any_server: Server, database: str, spark: Any, seed: int
) -> None:
    """The recipe of docs/how-to/spark-tables.md: the rows as a frame, then a query from `sequence` on, each row in place of the one with its key."""
    fill(any_server, database, 5000)
    execute(any_server, database, "ANALYZE TABLE t")
    load = Load(any_server, database, seed, rows=5500)
    try:
        table = ServerTables(run.settings).open(f"{database}.t")
        copy = {(row.id,): tuple(row) for row in read_table(spark, table).collect()}
    finally:
        load.stop()
    with EventStore.attach(run.settings.store) as store:
        wait_for_position(any_server, store, put=True)
    source = spark.read.format("shmstore").option("store", run.settings.store).option("tables", f"{database}.t")
    for row in source.option("startingOffsets", table.sequence).load().orderBy("seq").collect():
        if row.before is not None:
            copy.pop((row.before.id,), None)
        if row.after is not None:
            copy[row.after.id,] = tuple(row.after)
    assert copy == select(any_server, database, "t")


def acked(run: Running) -> int | None:
    """What the query's subscription has acked; None where there is none."""
    with EventStore.attach(run.settings.store) as store:
        return next((each.ack for each in store.subscriptions() if each.name == "replicate"), None)


@pytest.mark.parametrize("format", [pytest.param("delta", marks=pytest.mark.every_spark), "parquet"])
def test_copies_begin_with_rows_that_executors_read(
    run: Running,
    any_server: Server,
    database: str,
    spark: Any,
    tmp_path: Path,
    seed: int,
    format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under load, and with a driver that dies before the rows are a copy: the next one reads the table again; the copies equal their tables, and
    nothing of it went through the store."""
    fill(any_server, database, 6000)
    execute(
        any_server,
        database,
        "CREATE TABLE timed (id BIGINT UNSIGNED PRIMARY KEY, took TIME(3), n INT)",
        "INSERT INTO timed VALUES (1, '-100:00:00.5', 1), (18446744073709551615, NULL, 2)",
        "CREATE TABLE bare (id INT PRIMARY KEY)",
        "CREATE TABLE keyless (n INT)",
        "INSERT INTO keyless VALUES (1)",
        "ANALYZE TABLE t",
    )
    target = tmp_path / "lake"

    def query() -> Any:
        given = {"store": run.settings.store, "tables": f"{database}.*", "target": f"{target}/{{database}}/{{table}}"}
        return replicate(spark, **given, format=format, snapshot=ServerTables(run.settings))

    load = Load(any_server, database, seed, rows=6500)
    try:
        where = (delta, "create_table_with_add_actions") if format == "delta" else (parquet.ParquetTable, "_replace")

        def die(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(*where, die)
            with pytest.raises(KeyboardInterrupt):
                query()
        first = acked(run)
        begun = load.count
        assert not (target / database / "t" / "_delta_log").exists()
        started = query()
        assert load.count > begun
        assert first is not None
    finally:
        load.stop()
    try:
        execute(any_server, database, "DELETE FROM t WHERE id % 9 = 4", "UPDATE timed SET n = 7", "INSERT INTO bare VALUES (5)")
        execute(any_server, database, "ALTER TABLE t ADD COLUMN more INT DEFAULT 7", "UPDATE t SET more = 8 WHERE id = 2")

        def same() -> bool:
            assert started.exception() is None, started.exception()
            return all(
                copied(format, target / database / table) == select(any_server, database, table) for table in ("t", "bare")
            )

        wait_for(same, "the copies to be their tables")
        wait_for(lambda: [row[2] for row in copied(format, target / database / "timed").values()] == [7, 7], "the other copy")
        assert {row[1] for row in copied(format, target / database / "timed").values()} == {"-100:00:00.500", None}
        assert not list((target / database).rglob("_rows"))
        if format == "delta":
            added = pa.table(DeltaTable(str(target / database / "t"), version=0).get_add_actions(flatten=True))
            assert len(added) > 1
            assert None not in added.column("num_records").to_pylist() + added.column("min.id").to_pylist()
    finally:
        started.stop()
    with EventStore.attach(run.settings.store) as store:
        events = [event for batch in [store.peek(store.oldest)] for event in batch if event.type.name == "READ"]
    assert not events


def test_a_ddl_while_rows_are_read_begins_the_table_again(
    run: Running,
    any_server: Server,
    database: str,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The copy has the table as it is then."""
    caplog.set_level(logging.INFO, "shmstore")
    fill(any_server, database, 2000)
    opened = ServerTables.open
    changes = ["ALTER TABLE t ADD COLUMN more INT DEFAULT 7"]

    def late(self: ServerTables, *given: Any, **more: Any) -> Any:
        table = opened(self, *given, **more)
        if changes:
            execute(any_server, database, changes.pop())
        return table

    monkeypatch.setattr(ServerTables, "open", late)
    target = f"{tmp_path}/{{table}}"
    started = replicate(
        spark, store=run.settings.store, tables=f"{database}.*", target=target, snapshot=ServerTables(run.settings)
    )
    try:
        assert "a DDL changed it: it is read again" in caplog.text
        assert "t: 2,000 rows in" in caplog.text
        assert copied("delta", tmp_path / "t") == select(any_server, database, "t")
    finally:
        started.stop()


def test_what_cannot_begin_so_is_said(run: Running, spark: Any, tmp_path: Path) -> None:
    """Other formats, object stores, histories, and offsets of another query."""
    given: dict[str, Any] = {
        "store": run.settings.store,
        "target": f"{tmp_path}/{{table}}",
        "snapshot": ServerTables(run.settings),
    }
    with pytest.raises(ValueError, match="history=True and snapshot=True"):
        replicate(spark, **given, history=True)
    with pytest.raises(ValueError, match="format='delta' or 'parquet' and a target in a folder"):
        replicate(spark, **{**given, "target": "s3://lake/{table}"}, checkpoint=str(tmp_path / "c"))
    with pytest.raises(ValueError, match="leave out startingOffsets"):
        replicate(spark, **given, options={"startingOffsets": json.dumps({"epoch": 1})})


def test_the_command_takes_the_producers_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`shmstore spark replicate --snapshot-from FILE` reads the producer's settings there; without the command that is an error, as is a bad file."""
    file = tmp_path / "orders.toml"
    file.write_text('[producer]\nhost = "db1"\nstore = "other"\n')
    assert repr(server_tables_of("orders", str(file))) == "ServerTables(db1, store='orders')"
    words = ["replicate", "orders", "--target", f"{tmp_path}/{{table}}", "--snapshot-from", str(file)]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "run shmstore spark replicate" in capsys.readouterr().err
    with EventStore.create(f"orders-{os.getpid()}", log=False) as store:
        try:
            words[1] = store.name
            file.write_text("[producer]\nhots = 1\n")
            assert main(words, server_tables_of) == 2
            assert "hots" in capsys.readouterr().err
        finally:
            EventStore.unlink(store.name)
