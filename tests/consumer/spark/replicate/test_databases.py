"""Copies in databases, kept by a query of Spark: what is Spark's of them. What a copy does there is tested without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.consumer.copies.databases.database import DatabaseError
from shmstore.consumer.spark.replicate.replicate import replicate
from tests.consumer.copies.databases.servers import copies, text
from tests.consumer.spark.events import Binlog, order_row
from tests.consumer.spark.queries import started
from tests.consumer.spark.test_examples import example

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_streaming_query(spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path, kind: str) -> None:
    """`replicate` into a database end to end, as in its example; the checkpoint does not hold the password."""
    with copies(kind, None, "shop", tmp_path) as target:
        store.put(binlog.insert(*[order_row(n) for n in range(3000)]))
        store.put(binlog.delete(order_row(5)))
        checkpoint = tmp_path / "checkpoint"
        for _ in range(2):
            started(
                lambda: example("database").run(spark, store_name, target.address, target.password, str(checkpoint), once=True)
            )
        assert target.select("orders") == sorted(tuple(map(text, order_row(n))) for n in range(3000) if n != 5)
        kept = [path for path in checkpoint.rglob("*") if path.is_file()]
        assert kept
        if target.password:
            assert not [path for path in kept if target.password.encode() in path.read_bytes()]


def test_what_is_wrong_is_an_error_before_a_query_runs(spark: Any, store: EventStore, store_name: str, tmp_path: Path) -> None:
    """A wrong host, a format, no checkpoint, JDBC's old name: one line each, and no subscription is left."""

    def refused(target: str, **given: Any) -> str:
        with pytest.raises((DatabaseError, ValueError)) as caught:
            replicate(spark, store=store_name, target=target, **given)
        assert "\n" not in str(caught.value)
        assert "s3cret" not in str(caught.value)
        return str(caught.value)

    checkpoint = str(tmp_path / "c")
    address = "postgresql://me:s3cret@127.0.0.1:1/x#{database}.{table}"
    assert "cannot connect to postgresql://127.0.0.1:1/x" in refused(address, checkpoint=checkpoint)
    assert "checkpoint" in refused(address)
    assert "leave out format" in refused(address, checkpoint=checkpoint, format="delta")
    assert "postgresql://USER@HOST" in refused("{database}.{table}", checkpoint=checkpoint, format="jdbc")
    assert not store.subscriptions()
