"""shmstore/home/kinds.py: whatever is in a home goes with its store, and is looked at, by one table."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from shmstore import Checkpoint, CheckpointFile, EventStore, Position, StoreNotFound
from shmstore.cli.main import main
from shmstore.consumer.live import actions
from shmstore.consumer.wire.session.unacked import RecordFile
from shmstore.home import audit, kinds, pauses
from shmstore.home.acks import NOWHERE
from shmstore.home.control import RELOAD, ControlFiles, Wish
from shmstore.home.definitions import DefinitionsFile, sources_of
from shmstore.home.home import LOCK, Home
from shmstore.home.kinds import KINDS, files_of, problems
from shmstore.home.reader_state import CopiesBatch, keep_aside, keep_batch, keep_filter, keep_planned
from shmstore.home.snapshot_progress import Progress, SnapshotRequest
from shmstore.home.snapshots import ProgressFile
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.settings import Settings
from shmstore.producer.start.in_force import FiltersFile, InForce, filters_of
from shmstore.producer.start.origin import Origin, OriginFile
from shmstore.units import moment


@pytest.fixture(name="name")
def _name(store_name: str, state: Path) -> str:
    """A store whose home is in a state folder of the test's own."""
    return store_name


def history(path: Path, home: Home) -> None:
    draft = SchemaHistory(path, draft=True)
    draft.begin(Position("binlog.000001", 4), {})
    draft.keep(home)


def fill(home: Home) -> None:
    """Make a file of each kind, by the part of the code that writes it, and what killed writers leave."""
    CheckpointFile.of(home, "r").save(Checkpoint(NOWHERE, home.epoch or 1, 0))
    RecordFile(home, "canal-7")
    keep_aside(home, "r", ["shop.orders"])
    keep_planned(home, "r", (1, 2))
    keep_batch(home, "r", CopiesBatch("q", "duckdb:/copy.duckdb", 0, home.epoch or 1, 0, 1))
    ProgressFile(home).save(Progress(1))
    ProgressFile(home).ask(SnapshotRequest("12345678", ("shop.*",)))
    control = ControlFiles(home)
    control.answer(Wish(control.ask(RELOAD), RELOAD), done=True, text="nothing changed")
    control.ask(RELOAD)
    keep_filter(home, "canal-7", ["shop\\.orders"])
    pauses.keep(home, "me")
    pauses.keep(home, "me", "r")
    audit.note(home, "me", "pause", "producer", "done")
    for source in ("", "db1.example.com:3306", "log", "origin", "verify", ".."):
        folder = home.of_source(source)
        DefinitionsFile(home, source).replace([])
        history(folder / "schemas-a.jsonl", home)
        history(folder / "schemas-b.jsonl", home)
        home.put_aside(folder / "schemas-b.jsonl", "schema history")
        OriginFile(home, source).save(Origin("server", "version"))
        FiltersFile(home, source).save(1, InForce(-1, filters_of(Settings(store="s"))))
        (folder / "problems.open").write_text(json.dumps({"version": 1, "open": {}}))
        (folder / "_tables.jsonl.0123456789ab.tmp").touch()
    (home.path / "verify" / "0123").mkdir(parents=True)
    (home.path / "verify" / "0123" / "progress.json").touch()
    (home.path / "log.removed-abcd").mkdir()
    (home.path / "log.removed-abcd" / "0.events").touch()


def test_each_kind_is_found(name: str) -> None:
    """The table has a row for each file that something writes; nothing is left over, and a source's name never meets another kind's."""
    with EventStore.create(name, log_size=16 << 20) as store:
        fill(store.home)
        home = store.home
        assert {kind for kind, _ in files_of(home)} == set(KINDS)
        listed = {path for _, path in files_of(home)}
        there = {each for each in home.path.iterdir() if each.name != LOCK}
        sources = {home.of_source(source) for source in home.sources()}
        assert there - sources == {each for each in listed if each.parent == home.path}
        assert sources_of(home) == ["", *sorted(["db1.example.com:3306", "log", "origin", "verify", ".."])]
        assert all(each.parent == home.path for each in sources)
        assert problems(home) == []
    EventStore.unlink(name, log=True)


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("where", ["in memory", "in its home"])
def test_nothing_is_left(name: str, log: bool, where: str) -> None:
    """After `rm --log`, and `rm --forget` of a store without a log, there is nothing of a store, and one of its name begins clean."""
    with EventStore.create(name, log=log, log_size=16 << 20) as store:
        home = store.home
        fill(home)
    if where == "in its home":
        os.unlink(f"/dev/shm/shmstore.{name}")
    assert main(["rm", name, "--log" if log else "--forget"]) in (0, None)
    assert not home.path.exists()
    assert name not in EventStore.names()
    with EventStore.create(name, log_size=16 << 20) as store:
        assert not store.subscriptions()
        assert sources_of(store.home) == []
        assert RecordFile(store.home, "canal-7").record.next_id == 1
        assert SchemaHistory(store.home.path / "schemas-a.jsonl").first is None
    EventStore.unlink(name, log=True)


@pytest.mark.parametrize("log", [True, False])
def test_a_creation_that_is_undone(name: str, log: bool) -> None:
    """A store that its producer made for nothing goes, memory and log; what readers acked of an earlier one stays."""
    before = Checkpoint(Position("binlog.000001", 4), 77, 5)
    file = CheckpointFile(None, name, "r")
    file.save(before)
    with EventStore.create(name, log=log, log_size=16 << 20) as store:
        store.undo_create()
        assert not store.home.has_log
    assert name not in EventStore.names()
    assert file.load() == before
    assert {kind.what for kind, _ in files_of(Home.of(name))} == {"checkpoint"}


def test_what_is_not_ours_stays(name: str) -> None:
    """A file that a person put into a home is not removed with it."""
    with EventStore.create(name, log_size=16 << 20) as store:
        home = store.home
        fill(home)
        (home.path / "notes.txt").write_text("mine")
    EventStore.unlink(name, log=True)
    assert os.listdir(home.path) == ["notes.txt"]


def test_a_removal_that_was_killed(name: str) -> None:
    """Whatever it left, the next one takes along, though the store is found no more."""
    with EventStore.create(name, log_size=16 << 20) as store:
        home = store.home
        fill(home)
    os.unlink(f"/dev/shm/shmstore.{name}")
    home.log.rename(home.path / "log.removed-1234")
    EventStore.unlink(name, log=True)
    assert not home.path.exists()
    with pytest.raises(StoreNotFound):
        EventStore.unlink(name, log=True)


KILLED = """
import os, signal, sys
from shmstore.consumer.live import actions
from shmstore.home import kinds
from shmstore.home.home import Home
left = [int(sys.argv[2])]
def line(frame, event, arg):
    if event == "line":
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return line
sys.settrace(lambda frame, event, arg: line if "shmstore/home/" in frame.f_code.co_filename else None)
kinds.remove(Home(sys.argv[1]))
print(int(sys.argv[2]) - left[0])
"""


def test_a_removal_killed_at_any_line(name: str, state: Path, seed: int) -> None:
    """The store is either there, whole, or found no more; a second removal leaves nothing."""
    choose = random.Random(seed)
    seen, k, lines = set(), 10**9, 0
    while True:
        with EventStore.create(name, log_size=16 << 20) as store:
            store.put(b"x")
            fill(store.home)
            home = store.home
        os.unlink(f"/dev/shm/shmstore.{name}")
        done = subprocess.run([sys.executable, "-c", KILLED, os.fspath(home.path), str(k)], capture_output=True)
        found = home.has_log
        seen.add((done.returncode != 0, found))
        if found:
            with EventStore.attach(name) as store:
                assert store.newest == 0
        with suppress(StoreNotFound):
            EventStore.unlink(name, log=True)
        assert not home.path.exists(), k
        assert name not in EventStore.names()
        if not lines:
            lines = k = int(done.stdout)
        k -= choose.randrange(1, 2 * lines // 25)
        if k < 0:
            break
    assert {(True, True), (True, False), (False, False)} <= seen


def test_temporary_files_go_when_the_store_is_put_together(name: str) -> None:
    """What killed writers left does not pile up, and is no subscription."""
    with EventStore.create(name, log_size=16 << 20) as store:
        home = store.home
        store.subscribe("r").close()
    left = home.path / "_r.json.0123456789ab.tmp"
    left.write_text("{")
    os.unlink(f"/dev/shm/shmstore.{name}")
    with EventStore.attach(name) as store:
        assert [each.name for each in store.subscriptions()] == ["r"]
        assert not left.exists()
    EventStore.unlink(name, log=True)


def test_forgetting_one_reader(name: str) -> None:
    """All that is kept of it goes, and nothing of another whose name begins alike."""
    with EventStore.create(name, log_size=16 << 20) as store:
        home = store.home
        for reader in ("r", "r.x"):
            store.subscribe(reader).close()
            keep_aside(home, reader, [])
        actions.unsubscribe(actions.Named(name), "r")
        assert sorted(each.name for _, each in files_of(home)) == ["actions.audit", "log", "r.x.copies-aside", "r.x.json"]
    EventStore.unlink(name, log=True)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.check is not None and not kind.folder], ids=lambda kind: kind.what
)
def test_verify_reads_each_kind(name: str, kind: kinds.FileKind, capsys: pytest.CaptureFixture[str]) -> None:
    """`log verify` names a file of the home that cannot be read back, whichever kind it is of."""
    with EventStore.create(name, log_size=16 << 20) as store:
        home = store.home
        store.put(b"x")
        fill(home)
        assert main(["log", "verify", name]) in (0, None)
        path = next(path for each, path in files_of(home) if each == kind)
        path.write_text("\0nonsense\n")
        capsys.readouterr()
        assert main(["log", "verify", name]) == 1
        assert re.search(rf"{kind.what}.*{path.name}", capsys.readouterr().out)
    EventStore.unlink(name, log=True)


#: What damages a file, or another user of the store may put there.
DAMAGED = {
    "deep": b"[" * 200_000 + b"\n",
    "infinite": b'{"version":1e999,"format":1e999,"shmstore_pause":1,"since_ms":Infinity,"shmstore_control":1,"asked_ms":1e999}\n',
    "large": b'{"shmstore_pause":1,"since_ms":' + b"9" * 30 + b"}\n",
    "many digits": b"9" * 5000 + b"\n",
    "fifo": None,
    "folder": None,
}


def damage(path: Path, how: str) -> None:
    path.unlink(missing_ok=True)
    if how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.write_bytes(DAMAGED[how] or b"")


@pytest.mark.parametrize("how", DAMAGED)
def test_a_file_of_any_content_is_a_problem_and_no_end(name: str, how: str) -> None:
    """Whatever is in the place of a file, it is named among the home's problems, and its reader neither waits nor ends by an unknown error."""
    with EventStore.create(name, log_size=16 << 20) as store:
        home = store.home
        fill(home)
        named = [(kind, path) for kind, path in files_of(home) if kind.check is not None and not kind.folder]
        assert len(named) > 10
        for _, path in named:
            damage(path, how)
        found = "\n".join(problems(home))
        if how != "folder":  # which is of no kind
            assert [path.name for kind, path in named if f"{kind.what}" not in found] == []
        pause = pauses.kept(home)
        assert pause is not None
        assert moment(pause.since_ms)
        assert ProgressFile(home).asked() == [] or how not in ("fifo", "folder")
        assert ControlFiles(home).asked() == [] or how not in ("fifo", "folder")
    EventStore.unlink(name, log=True)


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_identity_concerns_its_store_alone(
    name: str, state: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ls` lists all stores and what is wrong with this one, and what it advises works: `rm --log` removes it."""
    other = state / "other" / "log"
    other.mkdir(parents=True)
    damage(other / "store.json", how)
    EventStore.create(name, log_size=16 << 20).close()
    assert main(["ls"]) == 0
    said = capsys.readouterr().out
    assert f"{name} " in said
    assert "store.json cannot be read" in said
    assert main(["rm", "other", "--log"]) == 0
    assert not other.parent.exists()
    EventStore.unlink(name, log=True)
