"""StoreView: to look at a store needs the right to read it, and nothing of it moves."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmstore import EventStore, LayoutMismatch, StoreClosed, StoreNotFound, StoreView
from shmstore.memory.layout import header_word
from tests.shmstore.samples import begin, contents, end, rows

pytestmark = pytest.mark.usefixtures("either_way")
GROUP, LOOKER = 54321, 54322


@pytest.fixture
def look(name: str) -> Iterator[Callable[..., StoreView]]:
    """Look at the store of this test."""
    views = []

    def attached(**options: object) -> StoreView:
        views.append(StoreView.attach(name, **options))
        return views[-1]

    yield attached
    for view in views:
        view.close()


def test_a_view_sees_what_the_store_sees(make, look):
    """Figures, positions, events and findings are those of a store that is attached to be used, oversized events included."""
    store = make(capacity=8, memory_unit=1024)
    reader = store.subscribe("a")
    store.put([begin(0), rows(1), end(2)])
    reader.ack(reader.get(limit_events=2, timeout=0))
    view = look()
    assert view.stat() == store.stat()
    assert view.subscriptions() == store.subscriptions()
    assert view.check() == store.check() == []
    assert contents(view.peek(2)) == contents(store.peek(2))
    assert [(event.position, event.rows) for event in view.peek(2)] == [(event.position, event.rows) for event in store.peek(2)]
    for what in (
        "name",
        "epoch",
        "capacity",
        "oldest",
        "newest",
        "first_position",
        "latest_position",
        "latest_event",
        "put_cursor",
    ):
        assert getattr(view, what) == getattr(store, what), what
    assert view.last_ack_point() == store.last_ack_point()
    assert view.find(store.first_position) == store.find(store.first_position)
    store.put([begin(3), rows(4), end(5)])  # it sees what comes later, too
    assert view.newest == store.newest
    while reader.lag_events:
        reader.ack(reader.get(timeout=0))
    store.put(b"x" * 9000, timeout=0)
    assert contents(view.peek(view.newest)) == [b"x" * 9000]
    assert view.stat() == store.stat()


def test_a_view_changes_nothing(make, look, name):
    """The segment's bytes stay as they are, its memory cannot be written through a view, and no role is taken."""
    store = make(capacity=8, memory_unit=64, mode=0o600)
    store.put([b"1", b"2"])
    store.subscribe("a").get(timeout=0)

    def state() -> tuple[str, list[str]]:
        there = sorted(entry for entry in os.listdir("/dev/shm") if name in entry)
        return hashlib.sha256(Path(f"/dev/shm/shmstore.{name}").read_bytes()).hexdigest(), there

    before = state()
    view = look()
    view.stat(), view.check(), view.peek(0), view.find("latest")
    views = view.segment.views
    for write in (
        lambda: view.segment.words.__setitem__(header_word("put"), 7),
        lambda: view.segment.write_text("source", "x"),
        lambda: views.arena.__setitem__(0, 1),
        lambda: views.slots["size"].__setitem__(0, 1),
        lambda: views.ends_array.__setitem__(0, 1),
    ):
        with pytest.raises((TypeError, ValueError), match="read-only"):
            write()
    with open("/proc/self/maps") as maps:
        rights = {line.split()[1] for line in maps if f"shmstore.{name}" in line}
    assert rights == {"r--s"}  # that of who made it has no name
    view.close()
    assert state() == before


def test_a_view_of_what_is_not_there(make, look, name):
    """A view says what attach says: no store, no view; another layout; removed or closed since."""
    with pytest.raises(StoreNotFound, match=name):
        look()
    store = make()
    store.put(b"x")
    view, closed = look(), look()
    closed.close()
    closed.close()
    for use in (closed.stat, closed.subscriptions, closed.check, lambda: closed.peek(0)):
        with pytest.raises(StoreClosed, match="closed"):
            use()
    EventStore.unlink(name)
    assert view.stat().newest == 0
    with pytest.raises(StoreClosed, match="removed"):
        view.peek(0)
    os.mkfifo(f"/dev/shm/shmstore.{name}")
    try:
        with pytest.raises(LayoutMismatch, match="regular file"):
            look()
    finally:
        os.unlink(f"/dev/shm/shmstore.{name}")


def test_a_view_repairs_nothing(name, tmp_path, look):
    """A store in a file that is cut off after a crash of the host is cut off by a process that attaches to use it, not by a viewer."""
    path = tmp_path / "store"
    with EventStore.create(name, path=path, capacity=8, memory_unit=64, log=False) as store:
        store.put([b"1", b"2"])
        store.segment.views.arena[1] = 0  # the second
    whole = path.read_bytes()
    view = look(path=path)
    assert view.newest == 1
    assert path.read_bytes() == whole
    view.close()
    with EventStore.attach(name, path=path) as store:
        assert store.newest == 0
    EventStore.unlink(name, path=path)


AS_LOOKER = """
import ctypes, os, sys
import shmstore.store.integrity, shmstore.store.cursor_repair
import shmstore.consumer.tail, shmstore.consumer.monitoring.metrics, shmstore.consumer.formats.formatter, shmstore.cli.main, shmstore.cli.text_report, json
from shmstore import *
name, user, group = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setgid(group); os.setuid(user)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is its own again
try:
    EventStore.attach(name)
except StoreError as error:
    assert "Permission denied" in str(error), error
else:
    raise SystemExit("may write")
sys.exit(shmstore.cli.main.main(sys.argv[4:]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stat", "NAME"], "audit"),
        (["stat", "NAME", "--json"], '"producer_alive": true'),
        (["ls"], "NAME"),
        (["metrics", "NAME"], "shmstore_put_events_total"),
        (["check", "NAME"], "no damage found"),
        (["tail", "NAME", "--no-follow"], '"op":"insert"'),
    ],
)
def test_who_may_read_may_look(name, words, says):
    """With mode 0640 a member of the group sees all there is to see, and may neither put nor subscribe."""
    with EventStore.create(name, capacity=8, memory_unit=1024, mode=0o640, group=GROUP, log=False) as store:
        store.claim()
        store.subscribe("audit").close()
        store.put([begin(0), rows(1), end(2)])
        for uid, group, code in ((LOOKER, GROUP, 0), (LOOKER, LOOKER, 2)):
            command = [word.replace("NAME", name) for word in words]
            line = [sys.executable, "-c", AS_LOOKER, name, str(uid), str(group), *command]
            environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
            if group == GROUP:
                others = [line for line in done.stderr.splitlines() if words != ["ls"] or "not yours to read" not in line]
                assert (done.returncode, others) == (0, [])
                assert says.replace("NAME", name) in done.stdout
                assert f"cannot open store {name!r}" not in done.stdout
            elif words == ["ls"]:
                assert name not in done.stdout
                assert "not yours to read" in done.stderr
            else:
                assert (done.returncode, "Permission denied" in done.stderr) == (code, True)
