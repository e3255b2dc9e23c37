"""The compiled hot path stores, loads, fences and wakes in the order of the Python, whose every schedule the other tests here try.

A build of it of its own says each step before it does it. The same calls are made of both, and the steps compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import shmstore

NATIVE = Path(shmstore.__file__).with_name("native")

WATCHED = """
import ctypes, importlib.util, json, os, sys

library, name = sys.argv[1:]
if library:
    spec = importlib.util.spec_from_file_location("shmstore.native.hot", library)
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])

import numpy as np
import shmstore.log.appender, shmstore.ring.cursors, shmstore.store.backpressure, shmstore.memory.segment, shmstore.store.store, shmstore.store.subscription
from shmstore.memory.layout import DISARMED, FIXED_SIZE, SLOT, header_word, subscription_word
from shmstore.memory.ordering import ASYMMETRIC, COMPILED
from shmstore.memory.semaphores import Condition
from shmstore.ring.cursors import ACK_OF, ARMED, FLOOR, GET_OF, OVERSIZED, ENTRIES, PUT, REACH, ACK_WANTED, STATE_OF, WANTED_OF

assert COMPILED == bool(library)
HEARTBEAT = subscription_word(1, "heartbeat_ms")
WORDS = {PUT: "put", ARMED: "armed", FLOOR: "floor", REACH: "reach", ACK_WANTED: "space", WANTED_OF[1]: "wanted", GET_OF[1]: "get", ACK_OF[1]: "ack",
         HEARTBEAT: "heartbeat"}
# What a side reads that another may write meanwhile. The producer alone writes put and floor, a reader its get and ack.
LOADS = {ARMED: "armed", ACK_WANTED: "space", ENTRIES: "entries", OVERSIZED: "oversized", WANTED_OF[1]: "wanted", STATE_OF[0]: "state 0",
         STATE_OF[1]: "state", ACK_OF[0]: "ack 0", header_word("state"): "life"}
OF_PRODUCER, OF_READER = {**LOADS, ACK_OF[1]: "ack"}, {**LOADS, PUT: "put"}
steps, wholes, events, published = [], {}, [], [b""]
asleep = behind_fence = lambda: None


def step(*what):
    steps.append(what)


def stored(i, value):
    if i in WORDS:
        step(WORDS[i], 0 if i == HEARTBEAT else "never" if value == DISARMED else value)
    if i == REACH and published[0]:  # it comes before every byte of the put that it announces
        assert bytes(store.segment.views.arena) == published[0]
    if i == PUT:  # what it lets be seen is whole, and was announced
        views = store.segment.views
        published[0] = bytes(views.arena)
        for sequence in range(views.words[PUT] + 1, value + 1):
            at = sequence & (views.slot_count - 1)
            end = sum(map(len, events[: sequence + 1]))
            assert views.words[REACH] >= end
            payload = bytes(views.arena[(end - len(events[sequence])) % views.arena_size :][: len(events[sequence])])
            slot = views.slots[at]
            assert (payload, views.ends[at], views.rows[at], int(slot["size"]), int(slot["rows"])) == (
                events[sequence], end, sequence + 1, len(payload), 1), sequence
    if i == HEARTBEAT:
        asleep()


def loaded(i, side):
    if i in side and steps[-1:] != [("load", side[i])]:  # looking twice, with nothing between, is looking once
        step("load", side[i])


class Words:
    def __init__(self, words, side):
        self.words, self.side = words, side

    def __getattr__(self, name):
        return getattr(self.words, name)

    def __getitem__(self, i):
        loaded(i, self.side)
        return self.words[i]

    def __setitem__(self, i, value):
        stored(i, value)
        self.words[i] = value


mapped = shmstore.memory.segment.mapped


def watched(*arguments, **options):
    views = mapped(*arguments, **options)
    side = OF_READER if base else OF_PRODUCER  # who creates the store, puts
    base[ctypes.addressof(ctypes.c_char.from_buffer(views.fixed))] = side
    return views._replace(words=Words(views.words, side))


base = {}
shmstore.memory.segment.mapped = watched
for module in [shmstore.ring.cursors, shmstore.ring.writer, shmstore.ring.reader, shmstore.log.appender,
               shmstore.store.backpressure, shmstore.store.content, shmstore.store.store, shmstore.store.subscription]:
    for fence, kind in (("fence", "fence"), ("heavy_fence", "heavy")):
        if hasattr(module, fence):
            setattr(module, fence, lambda do=getattr(module, fence), kind=kind: (step(kind), kind == "heavy" and behind_fence(), do())[2])
notify = Condition.notify
Condition.notify = lambda self: (step("wake"), notify(self))[1]

if library:
    HEAR = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)

    def hear(kind, word, value):
        try:
            if kind in (ord("s"), ord("l")):
                start = next((start for start in base if start <= word < start + FIXED_SIZE), None)
                at = None if start is None else (word - start) // 8
                stored(at, value) if kind == ord("s") else loaded(at, base[start]) if start else None
            else:
                step({ord("f"): "fence", ord("h"): "heavy", ord("p"): "wake", ord("w"): "write", ord("n"): "name"}[kind],
                     *[value] * (kind in (ord("w"), ord("n"))))
            if kind == ord("h"):
                behind_fence()
        except BaseException as error:
            steps.append(repr(error))

    heard = HEAR(hear)
    ctypes.c_void_p.in_dll(ctypes.CDLL(library), "shmstore_traced").value = ctypes.cast(heard, ctypes.c_void_p).value
"""

STEPS = """
def encoded(payloads):
    slots = np.zeros(len(payloads), SLOT)
    slots["size"], slots["rows"] = [len(payload) for payload in payloads], 1
    return b"".join(payloads), slots


def put(*payloads, how):
    events.extend(payloads)
    step("put", how)
    {"one": lambda: store.put(payloads[0]), "many": lambda: store.put(list(payloads)),
     "encoded": lambda: store.put_encoded(*encoded(payloads))}[how]()


def get():
    step("get")
    step("ack", reader.ack(reader.get(timeout=5)))


store = shmstore.EventStore.create(name, capacity=8, memory_unit=8, log=False)
try:
    reader = shmstore.EventStore.attach(name).subscribe("r")
    reader.get(timeout=0.001)  # opens what it sleeps on ...
    store.segment.words[WANTED_OF[1]], store.segment.words[ARMED] = 0, 1
    put(b"first", how="one")  # ... and this, what it is woken by
    get()
    del steps[:]
    for how in ("one", "many", "encoded"):
        number = 1 if how == "one" else 3
        payloads = [b"%d" % i * (i + 1) for i in range(number)]
        put(*payloads, how=how)
        get()
        asleep = lambda: put(*payloads, how=how)  # comes when the reader is about to sleep
        get()
        asleep = lambda: None
        store.segment.words[WANTED_OF[1]], store.segment.words[ARMED] = store.newest + 5, 1  # it waits for more than comes
        put(*payloads, how=how)
        store.segment.words[WANTED_OF[1]], store.segment.words[ARMED] = DISARMED, 0
        get()
        for _ in range(9 // number):  # until space is to be looked for, some times
            put(*payloads, how=how)
            get()
    store.segment.words[ACK_WANTED] = 0  # a wish left over
    for _ in range(9):
        put(b"....", how="one")
        get()
finally:
    shmstore.EventStore.unlink(name)
print(json.dumps(steps))
"""

LOGGED_STEPS = """
import tempfile
from types import SimpleNamespace
from shmstore.log import format
from shmstore.memory import segment as segments
from shmstore.memory.create_options import checked
from shmstore.memory.layout import BatchMode
from shmstore.ring.cursors import LOITERING, SYNC_WANTED, armed_readers
from shmstore.ring.wakeups import Wakeups
from shmstore.ring.writer import writer_of
from shmstore.store.batch import Batch
from shmstore.store.content import copy_of_ring

appending = shmstore.log.appender
WORDS[ACK_OF[0]], WORDS[WANTED_OF[0]] = "logged", "wanted 0"
for side in (OF_PRODUCER, OF_READER):
    side.update({SYNC_WANTED: "sync", WANTED_OF[0]: "wanted 0"})
OF_READER[FLOOR] = "floor"
if not library:
    write, rename = appending._write, os.rename
    appending._write = lambda fd, raw, at: (step("write", memoryview(raw).nbytes), write(fd, raw, at))
    appending.os.rename = lambda old, new, **to: (step("name", int(new.partition(".")[0])), rename(old, new, **to))


def put(payload):
    events.append(payload)
    step("put")
    if library:
        assert writer.try_put(payload) == len(events) - 1
        return
    words[header_word("state")]  # as EventStore.put, and as Backpressure
    if not writer.fits(1, len(payload)):
        writer.refresh(1, len(payload))
        words[ACK_WANTED] = DISARMED
    assert writer.put_one(payload)
    if words[ARMED]:
        wakeups.notify(armed_readers(store.segment.views, everyone=False))


def append(seconds=0):
    step("append")
    appender.retired()
    if not appender.prepared_set:
        appender.set_next(made("next"))
    step("appended", appender.run(seconds))


def read(first, last):
    step("read")
    if library:
        found = bytes(Batch(other, first, last, 0).raw)
    else:
        other.views.words[OVERSIZED]  # what the compiled batch asks first
        found = bytes(copy_of_ring(other, first, last).raw)
    assert found == b"".join(events[first : last + 1])


def made(name):
    return tuple(os.open(f"{folder}/{name}{ending}", os.O_CREAT | os.O_EXCL | os.O_RDWR) for ending in (".events", ".slots", ".blocks"))


with tempfile.TemporaryDirectory() as folder:
    options = checked(capacity=16, memory_unit=8, batch_mode=BatchMode.MEMSIZE, ddl_isolation=False, lag="block", evict_after=1,
                      checksum=False, first_sequence=0, home=folder)
    store = SimpleNamespace(segment=segments.create(name, options, path=None, mode=0o600, group=None))
    try:
        other = segments.attach(name, path=None)
        words, writer, wakeups = store.segment.views.words, writer_of(store.segment.views), Wakeups(store.segment)
        writer.may_put = True
        at = os.open(folder, os.O_RDONLY)
        appender = appending.appender_of(other.views, at, 1, 1 << 20, 16)
        files = made(format.set_name(0))
        appender.set_current(files, 0, 0, 0, 0)
        del steps[:]
        for number in (1, 2, 5, 1, 15, 3, 14, 2, 7, 15):
            for k in range(number):
                put(b"%d" % k * (k + 1) if number < 8 else b"8")
            read(len(events) - number, len(events) - 1)
            append()
            read(len(events) - 1, len(events) - 1)
        words[ACK_WANTED] = len(events)  # the producer finds no free space
        put(b"x")
        append()
        words[SYNC_WANTED] = len(events) + 1  # a reader wants the disk
        put(b"x")
        # What comes when the appender is about to wait for more, to sleep, to wait for more, to sleep.
        others = iter([lambda: None, lambda: put(b"y"), lambda: None, appender.stop])
        behind_fence = lambda: next(others)()
        append(30)
        assert next(others, None) is None
    finally:
        segments.unlink(name, path=None, force=True)
print(json.dumps(steps))
"""


def built(folder: Path, *changes: tuple[str, str, str]) -> str:
    """A build of the compiled hot path that says what it does, with `changes` (file, old text, new text) made to it."""
    pytest.importorskip("Cython")
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    if compiler is None or not (NATIVE / "hot.pyx").exists():
        pytest.skip("nothing to build it from, or with")
    for file in (NATIVE / "hot.pyx", *NATIVE.glob("*.pxi")):
        shutil.copy(file, folder)
    for name, old, new in changes:
        text = (folder / name).read_text()
        assert text.count(old) == 1, f"{name} has {text.count(old)} of {old!r}"
        (folder / name).write_text(text.replace(old, new))
    source, library = folder / "hot.c", folder / f"hot{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([sys.executable, "-m", "cython", "-3", folder / "hot.pyx", "-o", source], check=True)
    options = ["-shared", "-fPIC", "-O0", "-w", "-DSHMSTORE_TRACED", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([compiler, *options, source, "-o", library], check=True)
    return str(library)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hot path as it is."""
    return built(tmp_path_factory.mktemp("traced"))


def steps_of(library: str, calls: str = STEPS) -> Any:
    environment = {**os.environ, "SHMSTORE_PURE": "" if library else "1"}
    name = f"order-{os.getpid()}-{'compiled' if library else 'pure'}"
    done = subprocess.run(
        [sys.executable, "-c", WATCHED + calls, library, name], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_compiled_code_goes_the_steps_of_the_python(library):
    """Stores and loads of cursors, wishes and entries, fences and wake-ups come in the same order, and a cursor after all that it shows."""
    compiled, pure = steps_of(library), steps_of("")
    for i, (one, other) in enumerate(zip(compiled, pure, strict=False)):
        assert one == other, f"step {i}: {compiled[max(0, i - 12) : i + 8]} instead of {pure[max(0, i - 12) : i + 8]}"
    assert len(compiled) == len(pure)
    assert {step[0] for step in compiled} >= {
        "put",
        "get",
        "ack",
        "armed",
        "wanted",
        "floor",
        "reach",
        "space",
        "fence",
        "heavy",
        "wake",
        "heartbeat",
        "load",
    }


def test_a_compiled_appender_goes_the_steps_of_the_python(library):
    """So do a put, the appender and a copy in a store with a log: payload, records, block, LOGGED, fence, and who waits for it."""
    compiled, pure = steps_of(library, LOGGED_STEPS), steps_of("", LOGGED_STEPS)
    for i, (one, other) in enumerate(zip(compiled, pure, strict=False)):
        assert one == other, f"step {i}: {compiled[max(0, i - 12) : i + 8]} instead of {pure[max(0, i - 12) : i + 8]}"
    assert len(compiled) == len(pure)
    kinds = {step[0] for step in compiled}
    assert kinds >= {
        "put",
        "append",
        "write",
        "name",
        "logged",
        "fence",
        "heavy",
        "wake",
        "wanted 0",
        "floor",
        "space",
        "armed",
        "load",
    }


CLEARED = "        publish(words + ARMED, 0)\n"
ENTRIES = "        entries = min(look(words + ENTRIES), MOST)"
ACKED = "        publish(at.words + self.ack_word, last)\n"
SPACE = "look(at.words + ACK_WANTED)"
LOGGED = "        publish(words + FIRST_ACK, last)\n"


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        pytest.param(
            [("puts.pxi", ENTRIES, "        pass"), ("puts.pxi", CLEARED, f"{ENTRIES}\n{CLEARED}")],
            STEPS,
            id="entries before the flag",
        ),
        pytest.param(
            [
                ("takes.pxi", ACKED, f"        cdef int64_t space = {SPACE}\n{ACKED}"),
                ("takes.pxi", f"if {SPACE}", "if space"),
            ],
            STEPS,
            id="space before the ack",
        ),
        pytest.param(
            [
                ("append.pxi", LOGGED, f"        cdef int64_t space = look(words + ACK_WANTED)\n{LOGGED}"),
                ("append.pxi", "if look(words + ACK_WANTED) <= last", "if space <= last"),
            ],
            LOGGED_STEPS,
            id="space before what is logged",
        ),
    ],
)
def test_a_load_out_of_order_is_seen(changes, calls, tmp_path):
    """Compiled code that loads a word where the Python does not is found by its steps: nothing else shows it but a wait of a second."""
    assert steps_of(built(tmp_path, *changes), calls) != steps_of("", calls)
