"""Checkpoints: durable positions, written whole or not at all, and refused when damaged."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

import shmstore.store.subscription
from shmstore import Checkpoint, CheckpointFile, EventStore, Position, PositionNotFound, StoreError, checkpoints, state_directory
from tests.shmstore.samples import begin, ddl, end, position, rows


def test_it_comes_back_as_it_was(tmp_path):
    """A checkpoint holds position, GTIDs, epoch and sequence, all of 64 bits."""
    file = CheckpointFile(tmp_path, "s", "a")
    assert file.load() is None
    checkpoint = Checkpoint(Position("binlog.000009", 2**40, "u:1-5", 3), 2**63 - 1, 2**53 + 1)
    file.save(checkpoint)
    assert file.load() == checkpoint
    assert checkpoints("s", tmp_path) == {"a": checkpoint}
    file.remove()
    file.remove()
    assert file.load() is None
    assert checkpoints("s", tmp_path) == {}
    assert checkpoints("never", tmp_path) == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "5", '{"file": "b.1"}', '{"file":"b.1","offset":"x","gtids":"","row":0}', "\0" * 40]
)
def test_a_damaged_file_is_an_error(tmp_path, text):
    """A checkpoint that cannot be read stops the reader with the file's name; it never counts as "none"."""
    file = CheckpointFile(tmp_path, "s", "a")
    file.save(Checkpoint(position(1), 1, 1))
    file.path.write_text(text)
    with pytest.raises(StoreError, match=r"a\.json"):
        file.load()


def test_bytes_that_are_no_text_are_an_error(tmp_path):
    """A checkpoint of bytes that are not UTF-8 is damaged, too."""
    file = CheckpointFile(tmp_path, "s", "a")
    file.save(Checkpoint(position(1), 1, 1))
    file.path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StoreError):
        file.load()


def test_killed_at_any_line_of_a_save(tmp_path):
    """A process killed at any line of save leaves the old checkpoint or the new one, whole."""
    old, new = Checkpoint(position(1), 5, 1), Checkpoint(position(2), 5, 2)
    files = {sys.modules[f"shmstore.{name}"].__file__ for name in ("home.acks", "home.home", "atomic_file")}
    k, seen = 0, set()
    while True:
        file = CheckpointFile(tmp_path, "s", "a")
        file.save(old)
        pid = os.fork()
        if pid == 0:
            left = [k]

            def line(frame, event, arg, left=left):
                if event == "line":
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                return line

            sys.settrace(lambda frame, event, arg: line if frame.f_code.co_filename in files else None)
            try:
                file.save(new)
            finally:
                os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) < 0
        seen.add(file.load())
        assert checkpoints("s", tmp_path).keys() == {"a"}
        if not killed:
            break
        k += 1
    assert seen == {old, new}
    assert k > 8


def test_a_disk_that_refuses(tmp_path):
    """A checkpoint that cannot be written raises StoreError and leaves the old one."""
    file = CheckpointFile(tmp_path, "s", "a")
    file.save(Checkpoint(position(1), 5, 1))
    target = CheckpointFile(tmp_path, "s", "b")
    target.path.mkdir()
    with pytest.raises(StoreError, match=r"b\.json"):
        target.save(Checkpoint(position(1), 5, 1))
    assert [entry for entry in os.listdir(tmp_path / "s") if entry.endswith(".tmp")] == []


def test_where_they_live(monkeypatch, tmp_path):
    """The state directory is $SHMSTORE_STATE, else below $XDG_STATE_HOME, else below the home directory."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "x"))
    assert state_directory() == tmp_path / "x"
    assert CheckpointFile(None, "s", "a").path == tmp_path / "x" / "s" / "a.json"
    monkeypatch.delenv("SHMSTORE_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "y"))
    assert state_directory() == tmp_path / "y" / "shmstore"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory() == tmp_path / ".local" / "state" / "shmstore"


def test_names_stay_inside(tmp_path):
    """No store or subscription name leads out of the directory."""
    for store, subscription in (("..", "a"), ("s", "../a"), ("s/t", "a"), ("", "a")):
        with pytest.raises(ValueError, match="name"):
            CheckpointFile(tmp_path, store, subscription)


def test_never_ahead_of_the_ack_and_only_at_ack_points(make, name, tmp_path):
    """A checkpoint stands at the last acked transaction end or DDL; got or half-acked transactions do not move it."""
    file = CheckpointFile(tmp_path, name, "a")
    store = make(capacity=32, memory_unit=1024)
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
    store.put([begin(0), rows(1), end(2), begin(3), ddl(4), begin(5), rows(6), end(7)])
    stands = []
    for _ in range(8):
        batch = reader.get(limit_events=1, timeout=0)
        before = file.load()
        assert before is None or before.sequence <= reader.ack_cursor.sequence
        reader.ack(batch)
        now = file.load()
        stands.append(None if now is None else now.sequence)
    assert stands == [None, None, 2, 2, 4, 4, 4, 7]


def test_the_interval_bounds_the_writes(make, name, tmp_path):
    """Within the interval acks do not write; close does."""
    file = CheckpointFile(tmp_path, name, "a")
    store = make(capacity=32, memory_unit=1024)
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=3600)
    store.put([end(0), end(1), end(2)])
    for _ in range(3):
        reader.ack(reader.get(limit_events=1, timeout=0))
    assert file.load() is None or file.load().sequence == 0
    reader.close()
    assert file.load().sequence == 2


def test_an_interrupt_at_any_line_of_an_ack(name, tmp_path):
    """Whatever line of an ack a signal strikes at, the checkpoint that close saves is not ahead of the ack."""
    k = 0
    while True:
        file = CheckpointFile(tmp_path, name, f"a{k}")
        with EventStore.create(name, capacity=8, memory_unit=1024, log=False) as store:
            reader = store.subscribe(f"a{k}", checkpoint=file, checkpoint_interval=3600)
            store.put([end(0), end(1)])
            reader.ack(reader.get(limit_events=1, timeout=0))
            batch = reader.get(timeout=0)
            left, struck = [k], [False]

            def line(frame, event, arg, left=left, struck=struck):
                if event == "line" and not struck[0]:
                    left[0] -= 1
                    if left[0] < 0:
                        struck[0] = True
                        raise KeyboardInterrupt
                return line

            files = {shmstore.store.subscription.__file__, sys.modules["shmstore.ring.reader"].__file__}
            sys.settrace(lambda frame, event, arg, line=line, files=files: line if frame.f_code.co_filename in files else None)
            try:
                reader.ack(batch)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            acked = reader.ack_cursor.sequence
            reader.close()
            assert acked in (0, 1)
            assert file.load().sequence <= acked
            assert store.subscriptions()[0].ack.sequence == acked
        EventStore.unlink(name)
        if not struck[0]:
            break
        k += 1
    assert k > 8
    assert acked == file.load().sequence == 1


def test_resuming_without_the_segment(make, name, tmp_path):
    """A reader continues from its checkpoint in a new store of the same source: nothing twice, nothing missing."""
    source = [begin(0), rows(1), end(2, "u:1"), begin(3), rows(4), end(5, "u:1-2")]
    file = CheckpointFile(tmp_path, name, "a")
    store = make(capacity=32, memory_unit=1024)
    store.claim(start=position(-1))
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
    store.put(source)
    reader.ack(reader.get(limit_events=4, timeout=0))
    store.close()
    EventStore.unlink(name)
    store = make(capacity=32, memory_unit=1024)
    with pytest.raises(PositionNotFound):
        store.subscribe("a", checkpoint=file)
    store.claim(start=file.load().position)
    store.put(source[3:])
    assert store.subscribe("a", checkpoint=file).get(timeout=0).events == source[3:]


def test_resuming_in_the_same_life(make, name, tmp_path):
    """In the same life of the store the ack counts, which may be ahead of the checkpoint."""
    file = CheckpointFile(tmp_path, name, "a")
    store = make(capacity=32, memory_unit=1024)
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
    store.put([end(0), begin(1), rows(2)])
    reader.ack(reader.get(limit_events=2, timeout=0))
    assert file.load().sequence == 0
    reader.close()
    reader = store.subscribe("a", checkpoint=file)
    assert reader.get(timeout=0).events == [rows(2)]
    reader.close()
    store.unsubscribe("a")
    store.clear()
    with pytest.raises(PositionNotFound):  # its events are gone from the ring, and it must know
        store.subscribe("a", checkpoint=file)


def test_raw_events_have_no_checkpoint(make, name, tmp_path):
    """Raw payloads flagged as transaction ends carry no position: nothing is saved, and the ack works."""
    from tests.shmstore.samples import END, encoded

    file = CheckpointFile(tmp_path, name, "a")
    store = make(capacity=32)
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
    store.put_encoded(*encoded([b"raw"], flags=[END]))
    reader.ack(reader.get(timeout=0))
    assert file.load() is None


def test_the_file_is_text_for_people(tmp_path):
    """A checkpoint can be read, and written, by hand."""
    file = CheckpointFile(tmp_path, "s", "a")
    file.save(Checkpoint(Position("b.000001", 4, "u:1"), 5, 6))
    assert json.loads(file.path.read_text()) == {
        "format": 2,
        "file": "b.000001",
        "offset": 4,
        "gtids": "u:1",
        "row": 0,
        "sources": {},
        "epoch": 5,
        "sequence": 6,
    }
