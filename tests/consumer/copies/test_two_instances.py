"""Two processes that keep the same copies: one that was overtaken while it applied a batch changes nothing any more."""

from __future__ import annotations

import fcntl
import os
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shmstore import Column, Event, EventType
from shmstore.consumer.copies.copy import Copy
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.target import TargetFailed
from shmstore.consumer.copies.targets import folders
from shmstore.encoding.codec import encode
from tests.consumer.copies.lakes import DUCKDB, FORMATS, LocalCopies, exists, read, replication, rows
from tests.consumer.copies.test_copying import Story
from tests.consumer.spark.events import ORDERS, Binlog, order_row

PATIENCE = 120.0
ROUNDS = 2
BATCHES = 8


def step(story: Story) -> list[Event]:
    """One transaction or DDL, also one that drops the table: it is created again with the next rows."""
    if story.choose.random() < 0.85:
        return story.step()
    story.model.clear()
    return story.binlog.ddl("DROP TABLE orders", EventType.ERASE)


def persist(copies: CopySet, batch: list[bytes], number: int) -> None:
    """Apply a batch as the command does: what is refused because the other one was there before is tried again."""
    try:
        copies.apply(batch, "q", number)
    except TargetFailed:
        copies.apply(batch, "q", number)


def held(copy: LocalCopies) -> list[str]:
    """The rows, in any order."""
    return sorted(map(repr, read(copy, copy.format).to_pylist())) if exists(copy) else []


@pytest.mark.parametrize("kind", ["rows", "history", "removed when dropped"])
@pytest.mark.parametrize("format", [format for format in FORMATS if format not in DUCKDB])  # which gives a file to one process
def test_one_that_was_overtaken_changes_nothing(
    tmp_path: Path, format: str, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops before a step of a batch. The other one does that batch and more. Then the first one continues, and either finds that all is done,
    or is refused, and finds that when it tries again."""
    choose = random.Random(seed)
    for number in range(ROUNDS):
        with monkeypatch.context() as patch:
            overtake(
                tmp_path / str(number),
                format,
                choose,
                patch,
                history=kind == "history",
                remove_dropped=kind == "removed when dropped",
            )


def overtake(
    folder: Path, format: str, choose: random.Random, patch: pytest.MonkeyPatch, *, history: bool, **named: bool
) -> None:
    story, real = Story(Binlog(), choose), Copy._do
    batches = [[encode(event) for _ in range(choose.randrange(1, 5)) for event in step(story)] for _ in range(BATCHES)]
    first, second = (replication(folder, format, history=history, **named) for _ in range(2))
    at, steps = choose.randrange(1, BATCHES - 2), choose.randrange(3)
    for number in range(at):
        for copies in (first, second) if choose.random() < 0.5 else (first,):
            persist(copies, batches[number], number)
    inside, proceed, left, wrong = threading.Event(), threading.Event(), [steps], list[Exception]()

    def do(copy: Copy, *given: Any) -> None:
        if threading.current_thread().name == "first":
            left[0] -= 1
            if left[0] < 0 and not inside.is_set():
                inside.set()
                assert proceed.wait(PATIENCE)
        real(copy, *given)

    def overtaken() -> None:
        try:
            first.apply(batches[at], "q", at)
        except Exception as error:
            wrong.append(error)
        inside.set()

    patch.setattr(Copy, "_do", do)
    thread = threading.Thread(target=overtaken, name="first")
    thread.start()
    try:
        assert inside.wait(PATIENCE)
        for number in range(at, choose.randrange(at + 1, BATCHES)):
            persist(second, batches[number], number)
    finally:
        proceed.set()
        thread.join(PATIENCE)
    assert not wrong or isinstance(wrong[0], TargetFailed), wrong
    for number in range(at, BATCHES):
        for copies in choose.sample([first, second], choose.randrange(1, 3)):
            persist(copies, batches[number], number)
    alone = replication(folder / "alone", format, history=history, **named)
    for number, batch in enumerate(batches):
        alone.apply(batch, "q", number)
    assert held(first) == held(alone), wrong
    assert history or not exists(alone) or rows(alone, format) == story.model


def steps(binlog: Binlog) -> dict[str, list[Event]]:
    """What a table may go through, of which some changes no row."""
    wider = ORDERS._replace(columns=(*ORDERS.columns, Column("note", "varchar", size=9, charset="utf8mb4")))
    return {
        "rows": binlog.insert(order_row(3)),
        "a deletion": binlog.delete(order_row(1)),
        "nothing": binlog.delete(order_row(9)),
        "TRUNCATE": binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE),
        "a column": binlog.ddl("ALTER TABLE orders ADD note VARCHAR(9)"),
        "values": binlog.ddl("ALTER TABLE orders ADD note VARCHAR(9) DEFAULT 'x'"),
        "rows of other columns": binlog.insert((*order_row(3), "x"), table=wider),
        "a snapshot": binlog.read("whole", order_row(4), reason="gap"),
    }


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("format", [format for format in FORMATS if format not in DUCKDB])
def test_no_step_is_done_to_a_copy_that_another_process_has_changed(
    tmp_path: Path, binlog: Binlog, format: str, empty: bool, history: bool
) -> None:
    """Also where the step would change no row, or the other process had set a mark alone."""
    truncate = binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE)
    begin = [[encode(event) for event in events] for events in (binlog.insert(order_row(1)), truncate if empty else [])]
    later = [encode(event) for event in binlog.delete(order_row(8))]
    for name, events in steps(binlog).items():
        first, second = (replication(tmp_path / name, format, history=history) for _ in range(2))
        for copies in (first, second):
            for number, batch in enumerate(begin):
                persist(copies, batch, number)
        second.apply(later, "q", 2)
        there = held(first)
        with suppress(TargetFailed):
            first.apply([encode(event) for event in events], "q", 2)
        assert held(first) == there, name
        persist(first, later, 2)
        assert not first.aside, name


@pytest.mark.parametrize("format", [format for format in FORMATS if format not in DUCKDB])
def test_a_copy_is_created_once(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """By the one that comes first."""
    first, second = (replication(tmp_path, format) for _ in range(2))
    batch = [encode(event) for event in binlog.insert(order_row(1))]
    nothing = [encode(event) for event in binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE)]
    first.apply(nothing, "q", 0)  # it has looked, and no copy is there
    second.apply(batch, "q", 0)
    with pytest.raises(TargetFailed, match="another process"):
        first.apply(batch, "q", 0)
    first.apply(batch, "q", 0)
    assert rows(first, format).keys() == {1}
    assert not first.aside


def two(folder: Path, format: str) -> tuple[LocalCopies, LocalCopies]:
    """Two that remove copies of dropped tables."""
    return replication(folder, format, remove_dropped=True), replication(folder, format, remove_dropped=True)


def encoded(*transactions: list[Event]) -> list[bytes]:
    return [encode(event) for events in transactions for event in events]


def bring(copies: LocalCopies, *batches: list[bytes], begin: int = 0) -> None:
    """Apply batches from number `begin` on, and leave the file to the other one."""
    for number, batch in enumerate(batches, begin):
        persist(copies, batch, number)
        copies.close()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_removed_copy_is_not_created_again_by_one_that_is_behind(
    tmp_path: Path, binlog: Binlog, format: str, known: bool
) -> None:
    """Whether it had seen the copy or not. What comes later begins it again, also for another query."""
    first, second = two(tmp_path, format)
    nothing = encoded(binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE))
    begin = encoded(binlog.insert(order_row(1))) if known else nothing
    rows_, drop = encoded(binlog.insert(order_row(2))), encoded(binlog.ddl("DROP TABLE orders", EventType.ERASE))
    bring(first, begin)
    bring(second, begin, rows_, drop)
    assert not exists(second)
    bring(first, rows_, begin=1)
    assert not exists(first)
    assert first.existing() == []
    bring(first, drop, encoded(binlog.insert(order_row(3))), begin=2)
    assert rows(first, format).keys() == {3}
    assert len(first.existing()) == 1
    bring(second, encoded(binlog.insert(order_row(3))), encoded(binlog.insert(order_row(4))), begin=3)
    assert rows(first, format).keys() == {3, 4}
    other = replication(tmp_path, format)
    bring(second, drop, begin=5)
    other.apply(rows_, "another", 0)
    other.close()
    assert rows(other, format).keys() == {2}
    assert not {*first.aside, *second.aside, *other.aside}


@pytest.mark.parametrize("format", FORMATS)
def test_a_copy_that_came_later_is_not_removed_by_one_that_is_behind(tmp_path: Path, binlog: Binlog, format: str) -> None:
    """Nor written to."""
    drop, wider = encoded(binlog.ddl("DROP TABLE orders", EventType.ERASE)), encoded(binlog.insert(order_row(2), order_row(5)))
    begin, later = encoded(binlog.insert(order_row(1))), encoded(binlog.insert(order_row(3)))
    for name, behind in {"drops": drop, "writes": wider}.items():
        first, second = two(tmp_path / name, format)
        bring(first, begin)
        bring(second, begin, behind, drop, later)
        bring(first, behind, begin=1)
        assert rows(first, format).keys() == {3}, name
        bring(first, drop, later, encoded(binlog.delete(order_row(3))), begin=2)
        assert rows(second, format) == {}, name
        assert not first.aside, name


@pytest.mark.parametrize(
    "format", [format for format in FORMATS if format not in DUCKDB]
)  # where a removal is part of a transaction
def test_a_removal_that_was_cut_short_is_done_again(
    tmp_path: Path, binlog: Binlog, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind each of its lines: the copy is whole, or gone."""
    batches = [encoded(binlog.insert(order_row(1))), encoded(binlog.ddl("DROP TABLE orders", EventType.ERASE))]
    for line in range(1, 9):
        folder, calls = tmp_path / str(line), list[str]()
        first, _ = two(folder, format)
        bring(first, batches[0])

        def dies(real: Any, calls: list[str] = calls, line: int = line) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                calls.append(real.__name__)
                if len(calls) >= line:
                    raise KeyboardInterrupt
                return real(*given, **named)

            return call

        with monkeypatch.context() as patch:
            for module, name in ((folders, "replace"), (folders.os, "rename"), (folders.shutil, "rmtree")):
                patch.setattr(module, name, dies(getattr(module, name)))
            try:
                first.apply(batches[1], "q", 1)
            except KeyboardInterrupt:
                assert len(calls) == line
            else:
                assert len(calls) < line
                break
        first, second = two(folder, format)
        assert not exists(first) or rows(first, format).keys() == {1}
        bring(first, batches[1], begin=1)
        bring(second, *batches)
        assert not exists(first)
        bring(first, *batches, begin=2)  # what the first removal left goes with the next one
        assert [path.name for path in (folder / "lake/shop").iterdir() if path.suffix != ".tmp"] == [".orders.removed"]
    assert line > 4


@pytest.mark.parametrize("alone", [True, False])
def test_a_folder_is_held(tmp_path: Path, alone: bool) -> None:
    """Alone, no other process holds it; else others do together, and none alone. Then it is free."""
    folder = tmp_path / "copy"

    def free(kind: int) -> bool:
        opened = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(opened, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(opened)

    with folders.held(folder, folder, "shop.orders", alone=alone):
        assert (free(fcntl.LOCK_SH), free(fcntl.LOCK_EX)) == (not alone, False)
    assert free(fcntl.LOCK_EX)
