"""shmstore.consumer.wire.cluster.resume: a cursor of one store is found in another, or said to be missing there."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmstore import EventStore, PositionNotFound
from shmstore.consumer.wire.cluster.cursor import ClusterCursor, cursor_before, cursor_behind
from shmstore.consumer.wire.cluster.resume import StoreBehind, first_wanted
from tests.consumer.wire.cluster.transactions import mariadb, mysql, none, put

Gtid = Callable[[int], tuple[str, str]]
SOURCE = "mariadb://db1:3306/server_id=1"


@contextmanager
def a_store(
    folder: Path, name: str, numbers: list[int], gtid: Gtid, *, file: str = "binlog.000001", source: str = SOURCE
) -> Iterator[EventStore]:
    """A store of a host of its own, that has these transactions."""
    full = f"resume-{os.getpid()}-{name}"
    try:
        with EventStore.create(full, capacity=16, state=folder / name) as store:
            put(store, numbers, gtid, file)
            store.claim()
            store.heartbeat(source, store.latest_position)
            yield store
    finally:
        EventStore.unlink(full, log=True, state=folder / name)


def wanted(numbers: list[int], acked: int) -> int | type[Exception]:
    """The sequence of the first transaction after number `acked`, in a store of transactions of three events."""
    if not numbers or numbers[-1] < acked:
        return StoreBehind
    if numbers[0] > acked + 1:
        return PositionNotFound
    return 3 * sum(number <= acked for number in numbers)


def found(store: EventStore, cursor: ClusterCursor) -> int | type[Exception]:
    try:
        return first_wanted(store, cursor)
    except (StoreBehind, PositionNotFound) as error:
        return type(error)


@pytest.mark.parametrize("gtid", [mariadb, mysql])
def test_by_gtids(gtid: Gtid, tmp_path: Path, seed: int) -> None:
    """Whatever part of the transactions two stores have, and whatever their files are called, the cursor of one is found in the other
    behind the same transaction; where what follows is not kept, or it is not there yet, the error says that."""
    rng = random.Random(seed)
    for round in range(12):
        here = sorted(rng.sample(range(1, 60), rng.randrange(1, 40)))
        first, last = rng.randrange(1, 40), rng.randrange(30, 60)
        there = [number for number in range(first, last) if rng.random() < 0.7]
        with (
            a_store(tmp_path, f"a{round}", here, gtid) as a,
            a_store(tmp_path, f"b{round}", there, gtid, file="mysql-bin.000777", source="mysql://db2:3306/7") as b,
        ):
            for index, number in enumerate(here):
                for sequence in range(3 * index + 2, 3 * index + 5):  # and in the middle of the next
                    cursor = cursor_behind(a, min(sequence, a.newest))
                    assert cursor is not None
                    assert found(a, cursor) == 3 * index + 3
                    result = wanted(there, number)
                    assert found(b, cursor) == result, (here, there, number)


@pytest.mark.parametrize("gtid", [mariadb, mysql, none])
def test_before_the_first_ack(gtid: Gtid, tmp_path: Path) -> None:
    """The cursor of a client that has acked nothing leads to the transaction that it begins with."""
    with a_store(tmp_path, "a", [5, 6, 7], gtid) as a, a_store(tmp_path, "b", [3, 4, 5, 6], gtid) as b:
        cursor = cursor_before(a, 0)
        assert cursor is not None
        assert (found(a, cursor), found(b, cursor)) == (0, 6)
        with a_store(tmp_path, "c", [6, 7], gtid) as c, a_store(tmp_path, "d", [3, 4], gtid) as d:
            assert (found(c, cursor), found(d, cursor)) == (PositionNotFound, StoreBehind)


def test_by_file(tmp_path: Path) -> None:
    """Without GTIDs file and offset decide, of one server: by the identity that it gave, not the name that it was reached by."""
    with (
        a_store(tmp_path, "a", [1, 2, 3], none) as a,
        a_store(tmp_path, "b", [1, 2, 3, 4], none, source="mariadb://127.0.0.1:3306/server_id=1") as b,
        a_store(tmp_path, "c", [1, 2, 3, 4], none, source="mariadb://db1:3306/server_id=2") as c,
    ):
        cursor = cursor_behind(a, 5)
        assert cursor is not None
        assert (found(a, cursor), found(b, cursor)) == (6, 6)
        with pytest.raises(PositionNotFound, match="files of two servers"):
            first_wanted(c, cursor)
        assert found(b, cursor._replace(offset=9000)) is StoreBehind
        b.heartbeat("mariadb://127.0.0.1:3306/server_id=1", b.latest_position._replace(offset=9500))  # type: ignore[union-attr]
        assert found(b, cursor._replace(offset=9000)) == 12


def test_a_cursor_of_canals(tmp_path: Path) -> None:
    """Canal's cursor is where the last transaction's end begins: that is given again, as Canal does."""
    with a_store(tmp_path, "a", [1, 2, 3], none) as a:
        canal = ClusterCursor("binlog.000001", 2200, start=2200, source="//db1:3306/")
        assert found(a, canal) == 5
    with a_store(tmp_path, "b", [1, 2, 3], mariadb) as b:
        assert found(b, canal) == 5
        assert found(b, canal._replace(gtids="0-1-2")) == 6


def test_an_empty_store(tmp_path: Path) -> None:
    """A store that nothing was put into yet has not reached a cursor."""
    with a_store(tmp_path, "a", [1], mariadb) as a, a_store(tmp_path, "b", [], mariadb) as b:
        cursor = cursor_behind(a, 2)
        assert cursor is not None
        assert found(b, cursor) is StoreBehind
