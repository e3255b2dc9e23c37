"""shmstore/home: whose a home and its files are. They follow the store's mode and group, whatever the umask; what another user put there is refused."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmstore import Checkpoint, CheckpointFile, EventStore, Position, StoreError, StoreView
from shmstore.home.home import Home
from shmstore.home.kinds import files_of
from shmstore.home.snapshot_progress import SnapshotRequest
from shmstore.home.snapshots import ProgressFile
from tests.shmstore.test_users import GROUP, MEMBER, OWNER, User, user

__all__ = ["user"]

Users = Callable[[int, int, str], User]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
STRANGER = 54399


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture(name="name")
def _name(store_name: str, state: Path) -> str:
    """A store whose home is in a state folder of the test's own."""
    return store_name


@pytest.fixture
def shared(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same, in a folder that every user can reach: not one of pytest's, which another run makes its user's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        monkeypatch.setenv("SHMSTORE_STATE", folder)
        yield name


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def use(store: EventStore) -> None:
    """Write a file of most kinds."""
    from shmstore.home.definitions import DefinitionsFile
    from shmstore.home.reader_state import keep_aside
    from shmstore.producer.schema.history import SchemaHistory

    home = store.home
    store.put(b"x")
    with store.subscribe("r", checkpoint=CheckpointFile.of(home, "r")) as reader:
        reader.ack(reader.get())
    CheckpointFile.of(home, "w").save(Checkpoint(Position("", 0), 1, 1))
    for source in ("", "one"):
        DefinitionsFile(home, source).replace([])
    ProgressFile(home).ask(SnapshotRequest("1", ("a.*",)))
    keep_aside(home, "r", ["a.b"])
    SchemaHistory(home.of_source("one") / "schemas-x.jsonl", draft=True).keep(home)


@pytest.mark.parametrize("mask", [0o000, 0o027, 0o077])
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize(("mode", "folder"), [(0o600, 0o700), (0o660, 0o2770), (0o640, 0o2750)])
def test_the_rights_are_the_stores(name: str, state: Path, mask: int, log: bool, mode: int, folder: int) -> None:
    """Every file of a home has the store's mode, every folder the one that goes with it, whatever the umask; so has what is made first."""
    with umask(mask), EventStore.create(name, mode=mode, capacity=16, log=log, log_size=16 << 20) as store:
        use(store)
        home = store.home
    assert rights(state) == (0o700 if mode == 0o600 else 0o755)
    found = {path: rights(path) for _, path in files_of(home) if path.is_file()}
    assert len(found) >= 5
    assert set(found.values()) == {mode}, found
    folders = [home.path, home.path / "one", *([home.log] if log else [])]
    assert {each.name: rights(each) for each in folders} == {each.name: folder for each in folders}
    assert {rights(each) for each in home.log.iterdir()} == ({mode} if log else set()) if home.log.exists() else not log
    EventStore.unlink(name, log=True)
    assert not home.path.exists()


READS_WITH_A_UMASK = """
os.umask(0o077)
with EventStore.attach(name) as store, store.subscribe("members") as reader:
    reader.ack(reader.get())
say("acked")
"""
MAKES = """
os.umask(0o077)
with EventStore.create(name, mode=0o660, group=group, capacity=16, memory_unit=64) as store:
    store.put([b"a", b"b", b"c"])
    say("put")
    heard()
say("closed")
"""
ATTACHES = """
os.umask(0o077)
with EventStore.attach(name) as store:
    say(" ".join(f"{each.name}={each.ack.sequence}" for each in store.subscriptions()))
    say(str(store.put(b"d")))
"""


def acked_by_a_member(user: Users, name: str) -> Path:
    """The ack of another user of the group, whose umask is 077, in a store that is closed."""
    owner = user(OWNER, GROUP, MAKES)
    assert owner.hears() == "put"
    assert user(MEMBER, GROUP, READS_WITH_A_UMASK).hears() == "acked"
    owner.tell()
    assert owner.hears() == "closed"
    return CheckpointFile(None, name, "members").path


@as_root
def test_a_reader_of_the_group_with_umask_077(user: Users, shared: str) -> None:
    """After a reboot the owner puts the store together again, with the ack that the other user wrote."""
    path = acked_by_a_member(user, shared)
    assert (rights(path), path.stat().st_gid, path.stat().st_uid) == (0o660, GROUP, MEMBER)
    os.unlink(f"/dev/shm/shmstore.{shared}")
    again = user(OWNER, GROUP, ATTACHES)
    assert again.hears() == "members=2"
    assert again.hears() == "3"


@as_root
def test_an_ack_that_cannot_be_read(user: Users, shared: str) -> None:
    """It concerns its subscription: the store is restored, the producer puts, others read on, and that one holds all that there is."""
    path = acked_by_a_member(user, shared)
    path.chmod(0o600)
    os.unlink(f"/dev/shm/shmstore.{shared}")
    again = user(OWNER, GROUP, ATTACHES)
    assert again.hears() == "members=-1"
    assert again.hears() == "3"
    with EventStore.attach(shared) as store, store.subscribe("members") as reader:  # root reads it, as its own user does
        assert reader.ack_cursor.sequence == 2


@pytest.mark.parametrize("content", ["", "{", '{"format": 99}', "\0\0"])
def test_a_damaged_ack(name: str, content: str) -> None:
    """The same of one that is damaged: its reader hears what to do, and does not begin anywhere."""
    with EventStore.create(name, capacity=16, log_size=16 << 20) as store:
        store.put([b"a", b"b", b"c"])
        for each in ("r", "s"):
            with store.subscribe(each) as reader:
                reader.ack(reader.get())
    CheckpointFile(None, name, "r").path.write_text(content)
    os.unlink(f"/dev/shm/shmstore.{name}")
    with EventStore.attach(name) as store:
        assert {each.name: each.ack.sequence for each in store.subscriptions()} == {"r": -1, "s": 2}
        assert store.put(b"d") == 3
        with pytest.raises(StoreError, match=r"r\.json cannot be read.*restore it, or remove it"):
            store.subscribe("r")
        with store.subscribe("s") as reader:
            assert [bytes(each) for each in reader.get().payloads()] == [b"d"]
        assert store.trim("latest").files == 0
        store.unsubscribe("r")
        store.subscribe("r", start="latest").close()
    EventStore.unlink(name, log=True)


CREATES = """
try:
    EventStore.create(name, capacity=8, mode={mode}, group={group}).close()
except StoreError as error:
    say(str(error))
else:
    say("created")
"""
FINDS = """
try:
    EventStore.attach(name).close()
except StoreError as error:
    say(str(error))
else:
    say("attached")
"""


@as_root
@pytest.mark.parametrize("kind", ["folder", "link", "of the group", "of the named group", "of root"])
def test_a_home_that_another_user_made(user: Users, shared: str, kind: str) -> None:
    """Who finds a folder of another user where a home is to be does not use it: unless that is root, or the store is for a group that it is of."""
    home = Home.of(shared).path
    folder = home if kind != "link" else home.with_name(f"{shared}.elsewhere")
    folder.mkdir()
    os.chown(folder, 0 if kind == "of root" else STRANGER, GROUP if "group" in kind else STRANGER)
    folder.chmod(0o2770 if "group" in kind else 0o777)
    if kind == "link":
        home.symlink_to(folder)
        os.chown(home, STRANGER, STRANGER, follow_symlinks=False)
    code = CREATES.format(mode="0o660", group=GROUP) if kind == "of the named group" else CREATES.format(mode="0o600", group=None)
    says = user(OWNER, GROUP, code).hears()
    if kind in ("of the named group", "of root"):
        assert says == "created"
        EventStore.unlink(shared, log=True)
        return
    assert f"is not this user's: {home} belongs to uid {STRANGER}" in says
    assert os.listdir(folder) == []


@as_root
def test_a_store_that_another_user_prepared(user: Users, shared: str) -> None:
    """A whole home of another user, readable by all, is not restored by a user who takes it for their own; its owner and root restore it."""
    assert user(STRANGER, STRANGER, "EventStore.create(name, capacity=8).close(); say('made')").hears() == "made"
    os.unlink(f"/dev/shm/shmstore.{shared}")
    home = Home.of(shared)
    for each in (home.path, home.log):
        each.chmod(0o777)
    for each in home.log.iterdir():
        each.chmod(0o666)
    assert "is not this user's" in user(OWNER, OWNER, FINDS).hears()
    assert user(STRANGER, STRANGER, FINDS).hears() == "attached"
    StoreView.attach(shared).close()


@as_root
def test_a_lock_that_another_user_put_there(user: Users, shared: str) -> None:
    """A file of another user in a home that all may write to is not opened as the log's lock, nor a link followed."""
    assert user(OWNER, OWNER, "EventStore.create(name, capacity=8).close(); say('made')").hears() == "made"
    os.unlink(f"/dev/shm/shmstore.{shared}")
    lock = Home.of(shared).log / "lock"
    lock.unlink()
    lock.touch()
    os.chown(lock, STRANGER, STRANGER)
    assert "is not this user's" in user(OWNER, OWNER, FINDS).hears()
    target = lock.with_name("target")
    target.touch()
    os.chown(target, OWNER, OWNER)
    lock.unlink()
    lock.symlink_to(target)
    os.chown(lock, OWNER, OWNER, follow_symlinks=False)
    assert "Too many levels of symbolic links" in user(OWNER, OWNER, FINDS).hears()
