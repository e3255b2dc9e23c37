"""Processes of several users at one store: whichever user comes first, no user with the right to it is locked out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import shmstore.memory.mapping
from shmstore import EventStore

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")

GROUP, OWNER, MEMBER = 54321, 54322, 54323

BECOME = """
import ctypes, os, sys
import shmstore.store.integrity, shmstore.store.cursor_repair
from shmstore import *
name, user, group = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setgid(group); os.setuid(user)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is its own again
def say(word): print(word, flush=True)
def heard(): return sys.stdin.readline().strip()
"""


class User:
    """A process of another user that runs `code`, talked to by lines."""

    def __init__(self, name: str, user: int, group: int, code: str) -> None:
        pure = "" if shmstore.memory.mapping.COMPILED else "1"
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "SHMSTORE_PURE": pure}
        self.process = subprocess.Popen(
            [sys.executable, "-c", BECOME + code, name, str(user), str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def hears(self) -> str:
        """The next line that it says; empty where it failed."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, word: str = "go") -> None:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def user(name: str) -> Iterator[Callable[[int, int, str], User]]:
    """Start a process of another user; it is ended afterwards."""
    with ExitStack() as stack:
        yield lambda who, group, code: stack.enter_context(User(name, who, group, code))


OWNS = """
store = EventStore.create(name, capacity=4, memory_unit=64, log=False)
say("created")
heard()
for _ in range(6):
    store.put(b"x" * 200, timeout=60)  # the second one waits for free space
store.subscribe("mine").get(timeout=0.001)
say("done")
"""
READS = """
store = EventStore.attach(name)
reader = store.subscribe("members")
assert not reader.get(timeout=0.001)
say("slept")
for _ in range(6):
    reader.ack(reader.get(timeout=60))
say("done")
"""
PUTS = """
store = EventStore.attach(name)
for _ in range(6):
    store.put(b"x" * 200, timeout=60)
store.subscribe("mine").get(timeout=0.001)
say("done")
"""


def test_root_locks_no_owner_out(user, name, either_way):
    """Where root is the first to subscribe, to take the lock and to wait, the owner of the store puts, waits and subscribes as ever."""
    owner = user(OWNER, OWNER, OWNS)
    assert owner.hears() == "created"
    with EventStore.attach(name) as store, store.subscribe("roots") as reader:
        assert not reader.get(timeout=0.001)  # sleeps
        owner.tell()
        for _ in range(6):
            batch = reader.get(timeout=60)
            assert len(batch) == 1
            reader.ack(batch)
        assert owner.hears() == "done"


def test_a_member_of_the_group_locks_nobody_out(user, name, either_way):
    """What a member of the store's group was the first to use, its owner uses as well, who is not of the group."""
    EventStore.create(name, capacity=4, memory_unit=64, mode=0o660, group=GROUP, log=False).close()
    os.chown(f"/dev/shm/shmstore.{name}", OWNER, GROUP)
    member = user(MEMBER, GROUP, READS)
    assert member.hears() == "slept"
    owner = user(OWNER, OWNER, PUTS)
    assert owner.hears() == "done"
    assert member.hears() == "done"


REMEMBERS = """
os.umask(0o022)
with EventStore.create(name, mode=0o660, group=group, capacity=16, memory_unit=64) as store:
    for k in range(100):
        store.put(b"%d" % k)
say("put")
"""
FINDS = """
os.umask(0o022)
with EventStore.attach(name) as store, store.subscribe(f"of {user}".replace(" ", "-")) as mine:
    say(str(len(mine.get())))
    heard()
    say(str(store.put(b"more")))
"""


def test_a_group_shares_a_log(user, name, tmp_path_factory, monkeypatch):
    """Any member of the group restores a store from its home, reads and puts, whatever the umask; no other user can look in."""
    state = tmp_path_factory.mktemp("state")
    for folder in (state, *state.parents[:3]):
        folder.chmod(0o755)
    monkeypatch.setenv("SHMSTORE_STATE", str(state))
    state.chmod(0o777)
    assert user(OWNER, GROUP, REMEMBERS).hears() == "put"
    for put, who in ((100, MEMBER), (101, OWNER)):
        with EventStore.attach(name) as store:
            where = store.segment.where
        os.unlink(where)
        reader = user(who, GROUP, FINDS)
        assert reader.hears() == str(put)
        reader.tell()
        assert reader.hears() == str(put)
        reader.process.wait()
    assert {oct(path.stat().st_mode & 0o007) for path in (state / name).rglob("*") if path.parent.name == "log"} == {"0o0"}
    EventStore.unlink(name, log=True)


def test_a_log_is_its_owners_alone(name, tmp_path, monkeypatch):
    """Without a group only the owner may look into the home, whatever the umask."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path))
    before = os.umask(0o022)
    try:
        with EventStore.create(name) as store:
            store.put(b"x")
    finally:
        os.umask(before)
    assert {folder.stat().st_mode & 0o777 for folder in (tmp_path / name, tmp_path / name / "log")} == {0o700}
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / name / "log").iterdir()} == {0}
    EventStore.unlink(name, log=True)


GOES_ON = """
store = EventStore.create(name, capacity=8, memory_unit=64)
with store.subscribe("r") as reader:
    store.put([b"one", b"two"])
    reader.ack(reader.get(limit_events=1))
store.close()
say("created")
heard()
with EventStore.attach(name) as store, store.subscribe("r") as reader:
    assert store.newest == 4, store.newest
    assert store.put(b"six") == store.sync() == 5
    assert b"".join(map(bytes, reader.get().payloads())) == b"threefourfivesix"
    reader.ack(reader.get_cursor.sequence)
    store.resize(log_keep=5)
say("done")
heard()
os.unlink(f"/dev/shm/shmstore.{name}")
with EventStore.attach(name) as store:
    assert store.put(b"seven") == 6
    assert [each.ack.sequence for each in store.subscriptions()] == [5]
say("done")
"""


def test_root_locks_no_owner_out_of_a_home(user, name, either_way, tmp_path, monkeypatch):
    """Root puts the owner's store together again, produces into it, reads, and changes its sizes: the owner continues with all of it."""
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, OWNER, OWNER)
    for each in (tmp_path, *tmp_path.parents):
        if each.is_relative_to("/tmp") and each != Path("/tmp") and each.stat().st_uid == os.getuid():
            each.chmod(0o755)
    monkeypatch.setenv("SHMSTORE_STATE", str(state))
    owner = user(OWNER, OWNER, GOES_ON)
    assert owner.hears() == "created"
    os.unlink(f"/dev/shm/shmstore.{name}")
    with EventStore.attach(name) as store, store.subscribe("r") as reader:
        store.put([b"three", b"four", b"five"])
        assert bytes(reader.get(limit_events=1).raw) == b"two"
        reader.ack(1)
        store.resize(log_keep=7)
    owner.tell()
    assert owner.hears() == "done"
    strangers = [path for path in (*state.rglob("*"), Path(f"/dev/shm/shmstore.{name}")) if path.stat().st_uid != OWNER]
    assert strangers == []
    owner.tell()
    assert owner.hears() == "done"
    EventStore.unlink(name, log=True)


WATCHES = """
with StoreView.attach(name) as store:
    assert store.stat().log.written == 29
    assert b"".join(map(bytes, store.peek(3, limit_events=2).payloads())) == b"event 3event 4"  # out of the log
    assert store.check() == []
say("looked")
heard()
try:
    StoreView.attach(name)
except StoreNotFound as error:
    say(error)
"""


def test_a_watcher_needs_to_read_alone(user, name, tmp_path_factory, monkeypatch):
    """With mode 0640 a member of the group sees ring and log; where the store is in its home alone it hears whose turn it is."""
    state = tmp_path_factory.mktemp("state")
    for folder in (state, *state.parents[:3]):
        folder.chmod(0o755)
    monkeypatch.setenv("SHMSTORE_STATE", str(state))
    with EventStore.create(name, capacity=8, memory_unit=64, mode=0o640, group=GROUP) as store:
        for k in range(30):
            store.put(b"event %d" % k)
        store.sync()
    watcher = user(MEMBER, GROUP, WATCHES)
    assert watcher.hears() == "looked"
    os.unlink(f"/dev/shm/shmstore.{name}")
    watcher.tell()
    assert "may only look at its home" in watcher.hears()
    with EventStore.attach(name) as store:
        assert store.newest == 29
    EventStore.unlink(name, log=True)


def test_ls_counts_what_another_user_may_not_read(name: str) -> None:
    """In one line, and lists no error for each."""
    imported = "import contextlib, io\nfrom shmstore.cli.main import main\nwith contextlib.redirect_stdout(io.StringIO()):\n    main(['ls'])\n"
    listed = f"{imported}{BECOME}\nmain(['ls'])\n"
    with EventStore.create(name, capacity=4, memory_unit=64, log=False):
        done = subprocess.run(
            [sys.executable, "-c", listed, name, str(MEMBER), str(GROUP)],
            env={**os.environ, "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
        )
    assert name not in done.stdout, done.stdout
    assert done.stderr.count("not yours to read") == 1, done.stderr
