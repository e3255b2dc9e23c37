"""shmstore/atomic_file.py: files that a full disk leaves as they were."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmstore import Checkpoint, CheckpointFile, Column, EntryType, Event, EventType, Position, StoreError
from shmstore.atomic_file import replace
from shmstore.home.home import Home
from shmstore.home.snapshot_progress import Progress
from shmstore.home.snapshots import ProgressFile
from shmstore.producer.schema.history import SchemaHistory


@contextmanager
def space_for(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: a write gets as far as that, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """What cannot be written whole changes nothing and leaves nothing behind; the error names the file and the way out."""
    path = tmp_path / "new" / "file"
    replace(path, lambda at: at.write_text("old"), "note", "think")
    with (
        space_for(1),
        pytest.raises(
            StoreError, match=rf"^note {path} cannot be written: File too large \(errno 27\); make space there, or think$"
        ),
    ):
        replace(path, lambda at: at.write_text("new"), "note", "think")
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        replace(path / "below", lambda at: at.write_text("x"), "note", "think")


def test_two_writers_at_once(tmp_path: Path) -> None:
    """Two that replace one file at the same time, be they of one process, each put a whole one there: the last stays."""
    path = tmp_path / "file"

    def write(at: Path) -> None:
        at.write_text("first")
        replace(path, lambda other: other.write_text("second"), "note", "think")

    replace(path, write, "note", "think")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_checkpoint_is_written_once_there_is_space(tmp_path: Path, make) -> None:
    """An ack counts though its checkpoint cannot be written, which is reported; what is left unwritten is written at the end."""
    store = make(capacity=8)
    file = CheckpointFile(tmp_path, store.name, "audit")
    reader = store.subscribe("audit", checkpoint=file, checkpoint_interval=0)
    for offset in (4, 8):
        store.put(Event(EntryType.END, EventType.NONE, Position("binlog.000001", offset), 0))
    reader.ack(reader.get(limit_events=1, timeout=0))
    assert file.load() == Checkpoint(Position("binlog.000001", 4), store.epoch, 0)
    with space_for(1), pytest.raises(StoreError, match=r"^checkpoint .*audit\.json cannot be written: .*SHMSTORE_STATE$"):
        reader.ack(reader.get(timeout=0))
    assert (reader.ack_cursor.sequence, file.load().sequence) == (1, 0)
    reader.close()
    assert file.load() == Checkpoint(Position("binlog.000001", 8), store.epoch, 1)


def test_a_history_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    """A DDL that there was no free space for is not half in the history: once there is space it is followed, and the file can be read."""
    path = tmp_path / "schemas.jsonl"
    answers = {"@@character_set_server": [("utf8mb4", 0, "8.4.0")], "schemata": [("d", "utf8mb4")]}
    history = SchemaHistory(path)
    place = Position("binlog.000001", 100)
    with space_for(20), pytest.raises(StoreError, match="make space there, or name another folder with state"):
        history.snapshot(lambda sql: next((rows for word, rows in answers.items() if word in sql), []), place)
    assert not path.exists()
    history.snapshot(lambda sql: next((rows for word, rows in answers.items() if word in sql), []), place)
    before, ddl = path.read_bytes(), "CREATE TABLE t (a INT)"
    with space_for(len(before) + 10), pytest.raises(StoreError, match=rf"^schema history {path} cannot be written: "):
        history.follow(Position("binlog.000001", 200), "d", ddl)
    assert path.read_bytes() == before
    assert SchemaHistory(path).find("d", "t") is None
    assert history.follow(Position("binlog.000001", 200), "d", ddl)
    again = SchemaHistory(path).find("d", "t")
    assert again is not None
    assert again.columns == (Column("a", "int", definition="INT"),)
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_progress_that_cannot_be_written(tmp_path: Path) -> None:
    """Of a snapshot's progress, too, the error names the file and the option."""
    file = ProgressFile(Home.of("s", tmp_path))
    with (
        space_for(1),
        pytest.raises(StoreError, match=r"snapshot\.progress cannot be written: .* name another folder with state"),
    ):
        file.save(Progress())
    assert file.load() is None
