"""Locks, conditions, ownership and deadlines between processes."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from shmstore import EventStore, StoreError
from shmstore.memory.deadline import Deadline
from shmstore.memory.layout import LOCK_PRODUCER
from shmstore.memory.locks import Lock, Ownership, is_alive, start_time
from shmstore.memory.ordering import fence
from shmstore.memory.semaphores import Condition


@pytest.fixture
def condition() -> Condition:
    """A condition in this process's own memory."""
    return Condition(memoryview(bytearray(8)), 0)


def child(body: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs `body` and says "ready" when it got there."""
    return subprocess.Popen(
        [sys.executable, "-c", body, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


HOLDER = """
import os, sys, time
from shmstore import EventStore
from shmstore.memory.locks import Ownership
store = EventStore.attach(sys.argv[1])
if sys.argv[2] == "table":
    store._lock.acquire()
else:
    role = Ownership(store.segment.fd, int(sys.argv[2])); assert role.acquire()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("begins", [False, True], ids=["ends", "begins"])
def test_an_owner_that_ends_or_begins_is_not_called_dead(begins: bool) -> None:
    """Whenever it does its two steps while another process looks: that does not see the pid of an owner together with a role that is free."""
    hooks = 8
    for first, second in itertools.combinations_with_replacement(range(hooks), 2):
        fd = os.memfd_create("roles")
        try:
            owner, note, hook = Ownership(fd, 0), [0 if begins else 9], itertools.count()
            assert begins or owner.acquire()
            release, write = owner.release, functools.partial(note.__setitem__, 0, 9 if begins else 0)
            steps = [owner.acquire, write] if begins else [write, release]

            def moment(at=(first, second), steps=steps, hook=hook) -> None:
                now = next(hook)
                for step, when in zip(steps, at, strict=True):
                    if when == now:
                        step()

            class Words(list):
                def __getitem__(self, word, note=note, moment=moment):
                    moment()
                    return note[word]

            class Looking(Ownership):
                def taken(self, moment=moment):
                    moment()
                    found = super().taken()
                    moment()
                    return found

            pid, taken = Looking(fd, 0).noted(Words(), 0)
            assert taken or not pid, (first, second)
            owner.release()
        finally:
            os.close(fd)


@pytest.mark.parametrize("wrong", [-1, -0.001, float("nan")])
def test_a_deadline_in_the_past_is_refused(wrong):
    """A negative time-out, or one that is no number, is a mistake and not a wait without end."""
    with pytest.raises(ValueError, match="timeout"):
        Deadline(wrong)


def test_deadlines():
    """None never comes; 0 is past at once; others count down and never below zero."""
    assert Deadline(None).left(0.5) == 0.5
    assert not Deadline(None).passed
    assert Deadline(0).left(1) == 0
    assert Deadline(0).passed
    assert 0 < Deadline(100).left(1000) <= 100
    assert Deadline(100).left(1) == 1


def test_a_reused_pid_fools_nobody():
    """A process is known by pid and start time; a zombie is dead."""
    assert is_alive(os.getpid(), start_time(os.getpid()))
    assert not is_alive(os.getpid(), start_time(os.getpid()) + 1)
    assert not is_alive(0, 0)
    assert not is_alive(2**30, 5)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, not yet reaped: a zombie
    assert start_time(pid) == 0
    os.waitpid(pid, 0)


def test_one_owner_at_a_time(make):
    """A role is held by one object, even inside one process, and free again after release."""
    store = make()
    one, two = (Ownership(store.segment.fd, 9) for _ in range(2))
    assert not one.taken()
    assert one.acquire()
    assert one.acquire()
    assert two.taken()
    assert not two.acquire()
    one.release()
    one.release()
    assert two.acquire()
    assert one.taken()
    two.release()


def test_a_role_ends_with_its_process(make, name):
    """The kernel frees a role when its holder is killed, and no other descriptor that closes does."""
    store = make()
    process = child(HOLDER, name, LOCK_PRODUCER)
    assert process.stdout.readline() == "ready\n"
    role = Ownership(store.segment.fd, LOCK_PRODUCER)
    assert not role.acquire()
    EventStore.attach(name).close()  # closing another descriptor of the file must not free it (as lockf would)
    assert not role.acquire()
    process.kill()
    process.wait()
    assert role.acquire()
    role.release()


def test_a_role_dropped_is_released(make):
    """An owner that was forgotten without release does not hold the role until the process ends."""
    store = make()
    role = Ownership(store.segment.fd, 9)
    assert role.acquire()
    del role
    gc.collect()
    assert not Ownership(store.segment.fd, 9).taken()


def test_a_forked_child_holds_nothing(make, name):
    """A child does not keep its parent's role alive after the parent gave it up."""
    store = make()
    role = Ownership(store.segment.fd, 9)
    assert role.acquire()
    down, up = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(up)
        os.read(down, 1)  # until the parent is done
        os._exit(0)
    try:
        assert Ownership(store.segment.fd, 9).taken()
        role.release()
        assert not Ownership(store.segment.fd, 9).taken()
    finally:
        os.write(up, b"x")
        os.close(up)
        os.close(down)
        os.waitpid(pid, 0)


def test_a_processor_that_reorders_is_given_fences(name):
    """Without compiled code on such a processor each word of a store is stored and loaded with a fence, and all goes as usual."""
    program = f"""
import os
here = os.uname()
os.uname = lambda: os.uname_result((*here[:4], "riscv64"))
from shmstore import EventStore
from shmstore.memory import ordering
fences = []
class Lock:
    def __enter__(self): fences.append(1)
    def __exit__(self, *_): pass
with EventStore.create({name!r}, log=False) as store:
    assert type(store.segment.words) is ordering.OrderedWords
    reader = store.subscribe("r")
    store.put([b"1", b"2"])
    ordering._barrier, ordering.hot = Lock(), None
    memory, words = store.segment.views.fixed.cast("q"), store.segment.words
    words[0] = words[0] + 1
    assert len(fences) == 4 and words[0] == memory[0]
    batch = reader.get(timeout=0)
    assert [bytes(each) for each in batch.payloads()] == [b"1", b"2"]
    reader.ack(batch)
    assert store.check() == [], store.check()
"""
    environment = {**os.environ, "SHMSTORE_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    EventStore.unlink(name)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fence_survives_a_fork():
    """A child forked while another thread is inside a fence can fence."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [fence() for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                fence()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_the_lock_excludes(make, attach):
    """Two attachments never hold the table's lock at once."""
    stores, inside, most = [make(), attach()], [0], [0]

    def work(lock: Lock) -> None:
        for _ in range(300):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=work, args=(store._lock,)) for store in stores for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]


def test_the_lock_of_a_killed_holder_is_taken_over(make, name):
    """A lock whose holder was killed is free for the next at once; its semaphore works again afterwards."""
    store = make()
    for _ in range(3):
        process = child(HOLDER, name, "table")
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(StoreError, match="locked"):
            store._lock.acquire(timeout=0.3)
        process.kill()
        process.wait()
        store._lock.acquire(timeout=20)
        store._lock.release()
    store._lock.acquire(timeout=0)
    store._lock.release()


def test_the_lock_times_out_among_threads(make):
    """A thread that cannot have the lock gets an error at its deadline."""
    store = make()
    store._lock.acquire()
    failed = []

    def other() -> None:
        try:
            store._lock.acquire(timeout=0.05)
        except StoreError as error:
            failed.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(20)
    store._lock.release()
    assert len(failed) == 1


def test_a_notice_before_the_wait_is_not_lost(condition):
    """A notify that comes before the wait lets the wait return at once."""
    assert not condition.notified
    condition.notify()
    assert condition.notified
    began = time.monotonic()
    condition.wait(60)
    assert time.monotonic() - began < 50
    assert not condition.notified
    condition.wait(0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, InterruptedError, ZeroDivisionError])
def test_a_signal_ends_a_wait(condition, error):
    """What a signal's handler raises ends the wait at once: SIGTERM's SystemExit just as Ctrl-C's KeyboardInterrupt."""

    def raising(signum: int, frame: object) -> None:
        raise error

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        condition.wait(120)

    before = signal.signal(signal.SIGALRM, raising)
    try:
        with pytest.raises(error):
            wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_whose_handler_returns_lets_the_caller_look(condition):
    """A wait returns after any signal; the caller looks again."""
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        condition.wait(120)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [1]


def test_whoever_wakes_does_not_wait_for_a_closed_mapping(make, attach):
    """A condition holds the memory that it is in: one that outlives its store's close wakes no thread, and nothing breaks."""
    store = make()
    condition = attach()._wakeups.freed
    store.close()
    gc.collect()
    condition.notify()
    condition.wait(60)
    assert not condition.notified
