"""A copy that cannot be read is set aside, the others continue, and what it missed is never left out of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from shmstore.consumer.copies.target import TargetFailed
from shmstore.consumer.copies.targets import delta, parquet
from shmstore.errors import StoreError
from shmstore.home.home import Home
from shmstore.home.reader_state import ASIDE, kept_aside
from shmstore.home.snapshots import ProgressFile
from tests.consumer.copies.lakes import apply, replication, rows
from tests.consumer.spark.events import ORDERS, Binlog, order_row

OTHER = ORDERS._replace(table="other")


@pytest.fixture(autouse=True)
def _home(state: Path) -> None:
    """A home of the test's own, which says what is aside."""


def last_file(folder: Path) -> Path:
    """The file that says what the copy in a folder is."""
    return sorted([*folder.glob("_delta_log/*.json"), *folder.glob("part-00000.parquet")])[-1]


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def garbage(file: Path) -> None:
    file.write_bytes(b"\xff" * 200)


def empty(file: Path) -> None:
    os.truncate(file, 0)


@pytest.mark.parametrize("format", ["parquet", "delta"])
@pytest.mark.parametrize("damage", [cut, garbage, empty])
def test_a_damaged_copy_is_aside_until_it_was_moved_away(
    tmp_path: Path, binlog: Binlog, format: str, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names it once, and what to do; a snapshot then makes it again, and until then no row begins a new one."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)), binlog.insert(order_row(1), table=OTHER))
    folder = Path(copy.path("shop", "orders"))
    damage(last_file(folder))
    for batch in (1, 2):
        copy = replication(tmp_path, format)
        apply(copy, batch, binlog.insert(order_row(2 + batch)), binlog.insert(order_row(2 + batch), table=OTHER))
        assert copy.aside == ["shop.orders"]
    assert set(rows(copy, format, "other")) == {1, 3, 4}
    assert caplog.text.count("move it away, then its rows are read again by: shmstore snapshot none --tables 'shop.orders'") == 1
    assert str(folder) in caplog.text
    folder.rename(tmp_path / "moved")
    apply(copy, 3, binlog.insert(order_row(5)))
    assert not folder.exists()
    copy = replication(tmp_path, format)
    apply(copy, 4, binlog.read("whole", *map(order_row, range(1, 6))))
    assert copy.aside == []
    assert kept_aside(Home.of("none"), "spark") == (frozenset(), frozenset())
    assert set(rows(copy, format)) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("format", ["parquet", "delta"])
@pytest.mark.parametrize("missed", [True, False])
def test_a_copy_that_is_put_right_is_read_again_where_it_missed_something(
    tmp_path: Path, binlog: Binlog, format: str, missed: bool
) -> None:
    """A backup that is restored looks like a copy that follows. One that was put right for the same batch has all."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1)))
    file = last_file(Path(copy.path("shop", "orders")))
    content = file.read_bytes()
    garbage(file)
    second, third = binlog.insert(order_row(2)), binlog.insert(order_row(3))
    apply(replication(tmp_path, format), 1, second)
    file.write_bytes(content)
    copy = replication(tmp_path, format)
    if not missed:  # killed before it was acked
        apply(copy, 1, second)
    apply(copy, 2, third)
    if not missed:
        assert copy.aside == []
        assert set(rows(copy, format)) == {1, 2, 3}
        return
    assert copy.aside == ["shop.orders"]
    assert set(rows(copy, format)) == {1}
    copy = replication(tmp_path, format)
    apply(copy, 3, binlog.insert(order_row(4)))  # asked for once
    assert [asked.tables for _, asked in ProgressFile(Home.of("none")).asked()] == [(r"regex:shop\.orders",)]
    apply(copy, 4, binlog.read("whole", *map(order_row, range(1, 5))))
    assert copy.aside == []
    assert set(rows(copy, format)) == {1, 2, 3, 4}


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_a_copy_that_is_removed_while_it_is_open(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """Its next row does not begin a copy that lacks the others."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1)))
    shutil.rmtree(copy.path("shop", "orders"))
    apply(copy, 1, binlog.update((order_row(1), order_row(1, status="paid"))))
    apply(copy, 2, binlog.insert(order_row(2)))
    assert copy.aside == ["shop.orders"]
    assert not list(Path(copy.path("shop", "orders")).rglob("*.parquet"))
    apply(copy, 3, binlog.read("whole", order_row(1, status="paid"), order_row(2)))
    assert copy.aside == []
    assert set(rows(copy, format)) == {1, 2}


@pytest.mark.parametrize(
    ("format", "error"),
    [
        ("parquet", OSError(28, "No space left on device")),
        ("delta", DeltaError("Failed to parse parquet: Generic LocalFileSystem error: No space left on device (os error 28)")),
        ("delta", DeltaError("Generic S3 error: Error performing PUT after 10 retries: connection refused")),
        ("delta", CommitFailedError("a concurrent transaction changed the table")),
    ],
)
def test_what_the_disk_refuses_is_tried_again(
    tmp_path: Path, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, format: str, error: Exception
) -> None:
    """A full disk is of no table: nothing is set aside, and the same batch comes again."""
    copy = replication(tmp_path, format)
    apply(copy, 0, binlog.insert(order_row(1)))
    batch = binlog.insert(order_row(2))

    def refuse(*given: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(*((parquet, "write") if format == "parquet" else (delta.DeltaLakeTable, "_merge")), refuse)
        with pytest.raises(TargetFailed, match=r"copy.*shop.orders"):
            apply(copy, 1, batch)
    apply(copy, 1, batch)
    assert copy.aside == []
    assert set(rows(copy, format)) == {1, 2}


@pytest.mark.parametrize(
    "change",
    [
        "CREATE UNIQUE INDEX theirs ON lake.shop.orders (customer)",
        "DROP TABLE lake.shop.orders; CREATE VIEW lake.shop.orders AS SELECT 1 AS id",
    ],
)
def test_a_table_that_duckdb_refuses(tmp_path: Path, binlog: Binlog, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """DuckDB ends the transaction over all copies; the batch is done again without that one."""
    copy = replication(tmp_path, "duckdb")
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert(order_row(1), table=OTHER))
    with duckdb.connect(str(tmp_path / "lake.duckdb")) as connection:
        connection.execute(change)
    same = [value if name == "id" else old for name, value, old in zip(ORDERS.names, order_row(2), order_row(1), strict=True)]
    apply(copy, 1, binlog.insert(order_row(2), table=OTHER), binlog.insert(tuple(same)), binlog.insert(order_row(3), table=OTHER))
    assert set(rows(copy, "duckdb", "other")) == {1, 2, 3}
    assert copy.aside == ["shop.orders"]
    assert "the copy of shop.orders is set aside, and the others continue: DuckDB refused" in caplog.text
    copy = replication(tmp_path, "duckdb")
    apply(copy, 2, binlog.insert(order_row(4)), binlog.insert(order_row(4), table=OTHER))
    assert set(rows(copy, "duckdb", "other")) == {1, 2, 3, 4}
    assert copy.aside == ["shop.orders"]


def test_a_list_of_what_is_aside_that_cannot_be_read(tmp_path: Path, binlog: Binlog) -> None:
    """Copies in it would follow with what they missed left out."""
    home = Home.of("none")
    home.path.mkdir(parents=True, exist_ok=True)
    (home.path / f"spark{ASIDE}").write_text("{")
    with pytest.raises(StoreError, match=r"cannot be read.*shmstore verify"):
        replication(tmp_path, "parquet")
