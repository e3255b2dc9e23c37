"""A store's events as files: each once and in order, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from shmstore import Event, EventStore, PositionNotFound, ShmStoreError, StoreError
from shmstore.consumer import spool as files
from shmstore.consumer.spool import Spool, ends_of, pieces, read_payloads, read_slots
from shmstore.encoding.codec import decode
from tests.consumer.spark.events import Binlog, order_row
from tests.shmstore.test_atomic_file import room_for


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))


@pytest.fixture
def name() -> Iterator[str]:
    made = f"spooltest-{os.getpid()}"
    yield made
    if made in EventStore.names():
        EventStore.unlink(made)


def events_in(folder: Path) -> list[Event]:
    """All events of a spool; every file is whole and goes on where the one before it ends."""
    found: list[Event] = []
    last = None
    for piece in pieces(folder):
        raw, ends = read_payloads(piece)
        got = [decode(raw[start:end]) for start, end in pairwise([0, *ends.tolist()])]
        assert len(got) == piece.last - piece.first + 1 == len(read_slots(piece))
        if last is not None and last.epoch == piece.epoch:
            assert piece.first == last.last + 1
            assert ends_of(piece).start == ends_of(last).end
        assert ends_of(piece).end.order[:2] == got[-1].position.order[:2]
        found += got
        last = piece
    return found


def test_files_hold_whole_transactions_in_order(name: str, tmp_path: Path) -> None:
    """What was put is in the files, cut at transaction ends, and acked once it is there."""
    binlog, put = Binlog(), []
    with EventStore.create(name, capacity=64) as store:
        spool = Spool(store, tmp_path / "spool", file_bytes=2000)
        for n in range(60):
            put += binlog.insert(*[order_row(100 * n + i) for i in range(1 + n % 5)])
            store.put(put[-3:], timeout=0)
            spool.step(0)
            assert store.subscriptions()[0].lag_events == 0
        store.put(put_open := binlog.insert(order_row(1))[:2])
        assert spool.step(0) == 0  # its end has not come
        spool.close()
    assert events_in(tmp_path / "spool") == put
    assert len(pieces(tmp_path / "spool")) > 10
    assert put_open


def test_a_full_disk_loses_nothing(name: str, tmp_path: Path) -> None:
    """A file that there is no room for is not there, nor acked, nor half there; the error names it, and the next spool writes it."""
    binlog = Binlog()
    put = binlog.insert(*[order_row(n) for n in range(100)])
    with EventStore.create(name, capacity=64) as store:
        store.put(put)
        with room_for(200), Spool(store, tmp_path / "spool") as spool, pytest.raises(StoreError) as failed:
            spool.step(0)
        assert re.match(
            rf"spool file {tmp_path}/spool/0+-.*\.parquet cannot be written: .*; make room there, or ", str(failed.value)
        )
        assert os.listdir(tmp_path / "spool") == []
        assert store.subscriptions()[0].lag_events == len(put)
        with Spool(store, tmp_path / "spool") as spool:
            assert spool.step(0) == len(put)
    assert events_in(tmp_path / "spool") == put


def test_a_transaction_larger_than_the_ring_is_cut(name: str, tmp_path: Path) -> None:
    """A transaction that fills the ring before its end comes is written in parts, or its producer would wait for ever."""
    binlog = Binlog()
    rows = binlog.transaction(*[(event.type, event.rows) for n in range(100) for event in binlog.insert(order_row(n))[1:2]])
    with EventStore.create(name, capacity=16) as store:
        spool = Spool(store, tmp_path / "spool")
        for event in rows:
            if store.subscriptions()[0].lag_events >= 15:
                spool.step(0)
            store.put([event], timeout=0)
        spool.step(0)
        spool.close()
    assert events_in(tmp_path / "spool") == rows


@pytest.mark.parametrize("where", ["write", "rename", "after rename", "ack"])
def test_a_crash_at_any_line_of_a_write(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Killed while the file is written, before or after its rename, before or after the ack: each event is there once."""
    binlog, put = Binlog(), []
    real_rename, real_write, real_ack = os.rename, files.pq.write_table, files.Spool._publish
    with EventStore.create(name, capacity=64) as store:
        for round_ in range(6):
            spool = Spool(store, tmp_path / "spool")
            put += binlog.insert(order_row(2 * round_)) + binlog.insert(order_row(2 * round_ + 1))
            store.put(put[-6:])

            def crash(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            def rename_and_crash(*paths: Path) -> None:
                real_rename(*paths)
                raise KeyboardInterrupt

            if round_ % 2:
                with monkeypatch.context() as patch:
                    if where == "write":
                        patch.setattr(files.pq, "write_table", crash)
                    elif where == "rename":
                        patch.setattr(files.os, "rename", crash)
                    elif where == "after rename":
                        patch.setattr(files.os, "rename", rename_and_crash)
                    else:
                        patch.setattr(spool._reader, "ack", crash)
                    with pytest.raises(KeyboardInterrupt):
                        spool.step(0)
            else:
                spool.step(0)
            spool.close()
        spool = Spool(store, tmp_path / "spool")
        spool.step(0)
        spool.close()
    assert events_in(tmp_path / "spool") == put
    assert (real_write, real_ack) == (files.pq.write_table, files.Spool._publish)


def test_a_store_that_was_made_again(name: str, tmp_path: Path) -> None:
    """A new life of the store brings events again that the spool has: left out. One that begins too late: said, not skipped."""
    binlog, put = Binlog(), []
    for _ in range(8):
        put.append(binlog.insert(order_row(len(put))))
    with EventStore.create(name, capacity=64) as store:
        spool = Spool(store, tmp_path / "spool")
        store.put([event for events in put[:5] for event in events])
        spool.step(0)
        spool.close()
    EventStore.unlink(name)
    with EventStore.create(name, capacity=64) as store:
        spool = Spool(store, tmp_path / "spool")
        store.put([event for events in put[2:] for event in events])
        spool.step(0)
        spool.close()
    assert events_in(tmp_path / "spool") == [event for events in put for event in events]
    EventStore.unlink(name)
    binlog.offset += 5000
    with EventStore.create(name, capacity=64) as store:
        spool = Spool(store, tmp_path / "spool")
        store.put(binlog.insert(order_row(99)))
        with pytest.raises(PositionNotFound):
            spool.step(0)
        spool.close()


@pytest.mark.parametrize("chunks_before", [0, 1, 2])
@pytest.mark.parametrize("saved", [True, False])
def test_a_store_lost_in_a_snapshot(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks_before: int, saved: bool
) -> None:
    """The rows that a snapshot reads after its store was lost stand at the place where the spool ends: they are written, not taken
    for known; and the transactions there are not written twice, whether the checkpoint is as far as the files or not."""
    binlog, folder = Binlog(), tmp_path / "spool"
    first = binlog.insert(order_row(1)) + binlog.insert(order_row(2))
    chunks = [binlog.snapshot(order_row(10 * n), order_row(10 * n + 1)) for n in range(1, 4)]
    before = [event for chunk in chunks[:chunks_before] for event in chunk]
    with EventStore.create(name, capacity=64) as store:
        with Spool(store, folder) as spool:
            store.put(first[:3])
            spool.step(0)
        with Spool(store, folder) as spool:
            if not saved:
                monkeypatch.setattr(spool._reader, "_checkpoint", None)
            store.put(first[3:] + before)
            spool.step(0)
    EventStore.unlink(name)
    after = [event for chunk in chunks[chunks_before:] for event in chunk] + binlog.insert(order_row(3))
    with EventStore.create(name, capacity=64) as store, Spool(store, folder) as spool:
        store.put(first[3:] if saved else first)
        spool.step(0)
        for at in range(0, len(after), 3):
            store.put(after[at : at + 3])
            spool.step(0)
        assert store.subscriptions()[0].lag_events == 0
    assert events_in(folder) == first + before + after


def test_files_go_when_all_readers_are_done(name: str, tmp_path: Path) -> None:
    """Files that the slowest reader is done with are removed, the newest never; without a reader none is."""
    binlog, folder = Binlog(), tmp_path / "spool"
    with EventStore.create(name, capacity=64) as store:
        spool = Spool(store, folder)
        for n in range(6):
            store.put(binlog.insert(order_row(n)))
            spool.step(0)
        assert spool.clean() == 0
        (folder / "readers").mkdir()
        for reader, number in (("a", 3), ("b", 1)):
            (folder / f"readers/{reader}.json").write_text(json.dumps({"number": number, "offset": {}}))
        assert spool.clean() == 2
        for reader in "ab":
            (folder / f"readers/{reader}.json").write_text(json.dumps({"number": 5, "offset": {}}))
        assert spool.clean() == 3
        assert [piece.number for piece in pieces(folder)] == [5]
        spool.close()
        os.rename(pieces(folder)[0].path, folder / f"0000000004-{store.epoch:016x}-3-5.parquet")
        with pytest.raises(ShmStoreError, match="acked 17"):
            Spool(store, folder)


PROGRAM = "import sys; from shmstore.cli.main import main; sys.exit(main())"


def run_with_kills(name: str, folder: Path, kills: int, seed: int) -> None:
    choose = random.Random(seed)
    binlog, put = Binlog(), []
    command = [sys.executable, "-c", PROGRAM, "spool", name, "--directory", str(folder), "--interval", "0.02"]
    with EventStore.create(name, capacity=128) as store:
        store.subscribe("spool").close()  # as if the spool had been there before
        process = None
        try:
            for _ in range(kills + 1):
                process = subprocess.Popen(command, stderr=subprocess.PIPE)
                began = len(put)
                until = time.monotonic() + choose.uniform(0.3, 0.6)
                while time.monotonic() < until or len(put) == began:
                    events = binlog.insert(*[order_row(len(put) + i) for i in range(choose.randrange(1, 9))])
                    store.put(events, timeout=60)
                    put += events
                    assert process.poll() is None, process.communicate()[1].decode()
                process.kill()
                process.communicate()
            process = subprocess.Popen(command, stderr=subprocess.PIPE)
            until = time.monotonic() + 60
            while store.subscriptions()[0].lag_events and time.monotonic() < until:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[1].decode()
            assert process.returncode == 0, said
            assert "events" in said
        finally:
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
    found = events_in(folder)
    assert len(found) == len(put)
    assert found == put


def test_kills(name: str, tmp_path: Path, seed: int) -> None:
    """`shmstore spool` killed with -9 at any moment, under load: the files hold every event once, in order."""
    run_with_kills(name, tmp_path / "spool", 3, seed)


@pytest.mark.long
def test_many_kills(name: str, tmp_path: Path, seed: int) -> None:
    """The long run of the same."""
    run_with_kills(name, tmp_path / "spool", 100, seed)
