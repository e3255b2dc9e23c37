"""Signals while a command waits: whatever the main thread does, and whichever thread a signal comes to, the command ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shmstore import EventStore

# The main thread waits and sets an event, as the commands do, and sends itself a signal in front of the bytecodes of its own wait that `random` chooses.
AT_ANY_BYTECODE = """
import os, random, signal, sys, threading
from shmstore.cli.signals import ended, on_signal

chance = random.Random(int(sys.argv[1]))
ending = [signal.SIGTERM, signal.SIGHUP]

def ends(at):
    over, step = threading.Event(), 0

    def trace(frame, event, _):
        nonlocal step
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_filename == threading.__file__:
            step += 1
            if step in at:
                os.kill(os.getpid(), chance.choice(ending))
        return trace

    def stop():
        over.set()

    with on_signal(stop) as came:
        sys.settrace(trace)
        while not over.wait(0.0001 if step < max(at) else None):
            pass
        over.set()
        sys.settrace(None)
    assert came and ended(came) == 0, came

for _ in range(int(sys.argv[2])):
    ends({chance.randrange(1, 400) for _ in range(chance.randint(1, 4))})
print("ended")
"""

# Signals to another thread, which never wakes the main one out of C code.
TO_ANOTHER_THREAD = """
import signal, sys, threading, time
from shmstore.cli.signals import on_signal

over, ready = threading.Event(), threading.Event()
number = getattr(signal, sys.argv[1])

def send():
    ready.wait()
    time.sleep(0.2)  # where the main thread does not wait yet, the test shows less
    signal.pthread_kill(threading.get_ident(), number)
    threading.Event().wait()

threading.Thread(target=send, daemon=True).start()
with on_signal(over.set) as came:
    ready.set()
    over.wait()  # without a limit
assert came == [number], came
print("ended")
"""

# A burst of signals from another process, of every kind, while the main thread waits and sets.
IN_A_BURST = """
import os, signal, sys, threading
from shmstore.cli.signals import on_signal

over, reloads = threading.Event(), []
reading, writing = os.pipe()
sender = os.fork()
if not sender:
    os.read(reading, 1)
    for _ in range(2000):
        os.kill(os.getppid(), signal.SIGHUP)
    os.kill(os.getppid(), signal.SIGTERM)
    os._exit(0)

with on_signal(over.set, lambda: reloads.append(1)) as came:
    os.write(writing, b"x")
    while not over.wait(0.00001):
        pass
os.waitpid(sender, 0)
assert came == [signal.SIGTERM] and reloads, (came, len(reloads))
print("ended")
"""


# A block that waits for a host that answers nothing, in C code, and does not look whether it is stopped.
WITHOUT_AN_END = """
import os, signal, socket, sys
from shmstore.cli.signals import ended, on_signal

ours, theirs = socket.socketpair()
number = getattr(signal, sys.argv[1])
try:
    with on_signal(lambda: None, patience=0.05) as came:
        os.kill(os.getpid(), number)
        ours.recv(1)
except KeyboardInterrupt:
    assert came == [number], came
    print("ended")
"""


# A program of a user's, whose own handler stops a consumer, also while it does so.
A_CONSUMER = """
import os, random, signal, sys, threading
from shmstore.consumer import Consumer

chance = random.Random(int(sys.argv[2]))
for _ in range(20):
    first, step = chance.randrange(1, 150), 0
    at = {first, *(first + chance.randint(1, 60) for _ in range(4))}  # the others mostly while the first is handled

    def trace(frame, event, _):
        global step
        frame.f_trace_opcodes = True
        if event == "opcode" and ("/consumer/" in frame.f_code.co_filename or frame.f_code.co_filename == threading.__file__):
            step += 1
            if step in at:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    with Consumer(sys.argv[1], "reader", timeout=None) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        sys.settrace(trace)
        for batch in consumer:
            pass
        consumer.stop()
        sys.settrace(None)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("ended")
"""


def outcome(program: str, *arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a program, which is killed where it hangs."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def test_signals_at_any_bytecode(seed: int) -> None:
    """One to four signals in front of bytecodes of the main thread's own wait, where it holds the event's lock."""
    assert outcome(AT_ANY_BYTECODE, seed, 40) == (0, "ended\n", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_that_comes_to_another_thread(name: str) -> None:
    """The main thread may wait without a limit: the thread that reads the signals ends its wait."""
    assert outcome(TO_ANOTHER_THREAD, name) == (0, "ended\n", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_block_that_does_not_end(name: str) -> None:
    """It is interrupted when its time is over, as by a second Ctrl-C, and only the signal that came is in the list."""
    assert outcome(WITHOUT_AN_END, name) == (0, "ended\n", "")


def test_a_burst() -> None:
    """Thousands of SIGHUP that read a file again, then SIGTERM."""
    assert outcome(IN_A_BURST) == (0, "ended\n", "")


def test_a_consumer_is_stopped_at_any_bytecode(store_name: str, seed: int) -> None:
    """`Consumer.stop` may interrupt itself, and whatever else the consumer does."""
    with EventStore.create(store_name, capacity=64, log=False):
        assert outcome(A_CONSUMER, store_name, seed) == (0, "ended\n", "")
