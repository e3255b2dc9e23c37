"""shmstore/log/backup.py: the copy of a home that is in use is one that a power cut could have left."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmstore import Checkpoint, CheckpointFile, EventStore, Position, StoreError, StoreNotFound
from shmstore.cli.main import main
from shmstore.home import kinds
from shmstore.home.acks import acks_of
from shmstore.home.home import Home
from shmstore.log import backup, copy
from shmstore.store.remembered import describe_home
from tests.shmstore.home.test_kinds import fill
from tests.shmstore.store.logged import read_all, taken


def payload(k: int) -> bytes:
    return b"event %d." % k * (50 + k % 7 * 60)  # some hundred fill a set


@pytest.fixture(name="name")
def _name(store_name: str, state: Path) -> str:
    """A store whose home is in a state folder of the test's own."""
    return store_name


@contextmanager
def between(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> Iterator[None]:
    """Do `work` before each file is copied."""
    real = copy.copy_file

    def copy_file(path: Path, to: Path, size: int | None = None) -> int:
        work()
        return real(path, to, size)

    with monkeypatch.context() as patch:
        for module in (copy, backup):
            patch.setattr(module, "copy_file", copy_file)
        yield


def put_back(home: Home, made: Home) -> None:
    """As the page says: the store is removed, and the copy comes to where its home was."""
    EventStore.unlink(home.name, log=True)
    shutil.copytree(made.path, home.path)


@pytest.mark.parametrize("trims", [False, True])
def test_what_is_copied_while_it_changes_is_a_home(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, trims: bool
) -> None:
    """Before each file that is copied, events come, a reader acks, sets are begun and removed: the copy has no gap, no ack is ahead of it or
    behind its beginning, and a store that is restored from it continues."""
    rng = random.Random(seed)
    with EventStore.create(name, capacity=64, memory_unit=1 << 16, log_size=16 << 20) as store:
        home, count, slowly, steps = store.home, 0, 900, 0

        def put(events: int) -> None:
            nonlocal count
            for k in range(count, count + events):
                store.put(payload(k), timeout=20)
            count += events

        with store.subscribe("slow", checkpoint_interval=0) as slow, store.subscribe("fast", checkpoint_interval=0) as fast:
            put(1500)
            taken(slow, slowly, limit_events=20)

            def work() -> None:
                nonlocal slowly, steps
                steps += 1
                put(rng.choice([0, 1, 3, 40]))
                if rng.random() < 0.5:
                    taken(slow, 20, limit_events=20)
                    slowly += 20
                    read_all(fast)
                store.sync()
                if trims:
                    store.trim("latest")

            for number in range(3):
                with between(monkeypatch, work):
                    made, problems = backup.back_up(home, tmp_path / str(number))
                assert problems == []
                found = describe_home(made)
                assert slowly <= found.newest < count
                for sequence in found.acks.values():
                    assert found.oldest - 1 <= sequence <= found.newest
                assert sorted(found.acks) == ["fast", "slow"]
            assert steps > 30
        assert trims == (store.oldest > 0)
    put_back(home, made)
    with EventStore.attach(name) as store, store.subscribe("slow") as slow:
        assert (store.newest, store.oldest) == (found.newest, found.oldest)
        low = found.acks["slow"] + 1
        assert store.put(payload(found.newest + 1)) == found.newest + 1
        assert taken(slow, found.newest + 2 - low) == [payload(k) for k in range(low, found.newest + 2)]
        assert store.check() == []


def test_a_log_that_is_trimmed_away_is_copied_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the second try has what a copied ack needs. Each time: it says so, and leaves nothing."""
    with EventStore.create(name, capacity=64, memory_unit=1 << 16, log_size=16 << 20) as store:
        reader = store.subscribe("r", checkpoint_interval=0)
        times = 1

        def pass_on() -> None:  # more is acked and gone, when the newest set is copied and the others are not
            nonlocal times
            if times:
                times -= 1
                first = store.newest + 1
                for k in range(first, first + 1500):
                    store.put(payload(k), timeout=20)
                taken(reader, 1500, limit_events=20)
                store.sync()
                store.trim("latest")

        copied = copy._copy_set

        def copy_set(log: Path, to: Path, first: int) -> int:
            found = copied(log, to, first)
            if first:
                pass_on()
            return found

        for k in range(1500):
            store.put(payload(k), timeout=20)
        taken(reader, 700, limit_events=20)
        monkeypatch.setattr(copy, "_copy_set", copy_set)
        made, problems = backup.back_up(store.home, tmp_path / "once")
        found = describe_home(made)
        assert problems == []
        assert found.oldest - 1 <= found.acks["r"] <= found.newest
        times = 100
        with pytest.raises(StoreError, match="trimmed faster than it can be copied"):
            backup.back_up(store.home, tmp_path / "never")
        assert list((tmp_path / "never").iterdir()) == []
        reader.close()


def test_all_kinds_that_last_are_copied(name: str, tmp_path: Path) -> None:
    """With content and rights; what is of the moment is not."""
    with EventStore.create(name, mode=0o640) as store:
        fill(store.home)
        made, problems = backup.back_up(store.home, tmp_path / "b")
        assert problems == []
        here = {path.relative_to(store.home.path): (kind, path) for kind, path in kinds.files_of(store.home)}
        there = {path.relative_to(made.path): path for _, path in kinds.files_of(made)}
        lasting = {at for at, (kind, _) in here.items() if kind.backup != kinds.MOMENT}
        assert {kind.backup for kind, _ in here.values()} == {kinds.MOMENT, kinds.NEVER_AHEAD, kinds.NEVER_BEHIND}
        assert set(there) == lasting | {Path("log")}
        for at in lasting:
            assert there[at].read_bytes() == here[at][1].read_bytes()
        for at in [Path(), Path("log"), Path("log/store.json"), *lasting]:
            one, two = os.stat(store.home.path / at), os.stat(made.path / at)
            assert (stat.S_IMODE(one.st_mode), one.st_uid, one.st_gid) == (stat.S_IMODE(two.st_mode), two.st_uid, two.st_gid), at


def test_a_store_without_a_log(name: str, tmp_path: Path) -> None:
    """Its readers' places."""
    with EventStore.create(name, log=False) as store:
        CheckpointFile.of(store.home, "r").save(Checkpoint(Position("binlog.000001", 4), store.epoch, 0))
        made, problems = backup.back_up(store.home, tmp_path / "b")
        assert (problems, acks_of(made)) == ([], acks_of(store.home))


def test_what_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and nothing left; damage of the store is found in the copy."""
    with pytest.raises(StoreNotFound, match="nothing to back up"):
        backup.back_up(Home.of(name), tmp_path)
    with EventStore.create(name) as store:
        store.put([payload(k) for k in range(100)])
        store.sync()
        (tmp_path / "taken" / name).mkdir(parents=True)
        assert main(["backup", name, str(tmp_path / "taken")]) == 2
        assert "exists: choose another folder" in capsys.readouterr().err
        (tmp_path / "file").touch()
        assert main(["backup", name, str(tmp_path / "file")]) == 2

        def stop(_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backup.back_up(store.home, tmp_path / "b", stop)
        assert list((tmp_path / "b").iterdir()) == []

        def again(_: int) -> None:
            with pytest.raises(StoreError, match="another backup"):
                backup.back_up(store.home, tmp_path / "b")

        if os.geteuid() == 0:  # another user's folder of that name stays as it is
            theirs = tmp_path / "b" / f".{name}.tmp"
            (theirs / "x").mkdir(parents=True)
            os.chown(theirs, 65534, 65534)
            with pytest.raises(StoreError, match="another user's"):
                backup.back_up(store.home, tmp_path / "b")
            assert list(theirs.iterdir()) == [theirs / "x"]
            shutil.rmtree(theirs)
        left = tmp_path / "b" / f".{name}.tmp" / "half"  # of one that was killed
        left.mkdir(parents=True)
        assert backup.back_up(store.home, tmp_path / "b", again).problems == []
        assert [each.name for each in (tmp_path / "b").iterdir()] == [name]
        assert main(["backup", name, str(tmp_path / "good")]) == 0
        assert "100 events" in capsys.readouterr().out
        with next(store.home.log.glob("*.events")).open("r+b") as file:
            file.seek(5000)
            file.write(b"\0" * 64)
        assert main(["backup", name, str(tmp_path / "damaged")]) == 1
        assert "are lost" in capsys.readouterr().out
