"""Checkpoints without a process for each file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.consumer.spark import checkpoint_location
from shmstore.consumer.spark.replicate import local_checkpoints
from shmstore.consumer.spark.replicate.java_errors import JAVA_ERRORS
from shmstore.consumer.spark.replicate.local_checkpoints import SCHEME
from tests.consumer.spark.events import Binlog, order_row
from tests.consumer.spark.queries import Query

pytestmark = pytest.mark.spark


def test_what_has_a_location(spark: Any, tmp_path: Path) -> None:
    """A path of this host has one, however it is written; what is kept elsewhere is left alone."""
    for given in (tmp_path / "a b%", f"file:{tmp_path}/a b%", f"file://{tmp_path}/a b%"):
        assert checkpoint_location(spark, given) == f"{SCHEME}:{tmp_path}/a b%"
    for elsewhere in ("hdfs://host/checkpoint", "s3a://bucket/checkpoint", "dbfs:/checkpoint", "file://host/checkpoint"):
        assert checkpoint_location(spark, elsewhere) == elsewhere


def test_a_jvm_that_refuses_leaves_the_path(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever class pyspark gives Java's error: Spark's own way is slower, and works."""
    refusals = [
        lambda jvm: jvm.org.apache.spark.sql.types.DataType.fromJson("?"),
        lambda jvm: jvm.java.lang.Integer.parseInt("?"),
        lambda jvm: jvm.java.util.List.of().get(0),
    ]
    raised = set()
    for refusal in refusals:
        with pytest.raises(JAVA_ERRORS) as caught:
            refusal(spark.sparkContext._jvm)
        raised.add(caught.type)
        monkeypatch.setattr(local_checkpoints, "_install", lambda jvm, spark, refusal=refusal: refusal(jvm))
        assert checkpoint_location(spark, tmp_path) == str(tmp_path)
    assert len(raised) > 1


def test_a_query_goes_from_a_path_to_its_location_and_back(
    spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path
) -> None:
    """The files are those of the path, with the modes that Hadoop gives them, so the query continues where it was."""
    query = Query(spark, store_name, tmp_path / "a b%", tables="shop.orders")
    places = [str(tmp_path / "a b%"), checkpoint_location(spark, tmp_path / "a b%")] * 2
    for number, place in enumerate(places):
        query._checkpoint = place
        store.put(binlog.insert(order_row(number)))
        query.start(once=True)
        query.stop()
    assert [row.after.id for row in query.rows] == [0, 1, 2, 3]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "a b%" / "offsets").glob("[0-9]*")}
    assert len(list((tmp_path / "a b%" / "offsets").glob("[0-9]*"))) == 4
    assert len(modes) == 1


def test_no_process_is_started_for_a_file(spark: Any, tmp_path: Path) -> None:
    """The mode is set by a call: with Hadoop's own class a process would be started to set it."""
    location = checkpoint_location(spark, tmp_path)
    jvm = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{location}/one")
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    files.create(path, True).close()
    files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("640"))
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o640
    declared = [method.getName() for method in files.getClass().getDeclaredMethods()]
    assert "setPermission" in declared
