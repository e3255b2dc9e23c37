"""Processes of several users at one store: whoever comes first, none of those who may use it is locked out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import shmstore.memory.mapping
from shmstore import EventStore

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")

GROUP, OWNER, MEMBER = 54321, 54322, 54323

BECOME = """
import ctypes, os, sys
import shmstore.store.integrity, shmstore.store.recovery
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
    """Any member of the group puts a store together again from its home, reads and puts, whatever the umask; nobody else can look in."""
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
    """Without a group nobody but the owner may look into the home, whatever the umask."""
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
