"""Any side may be killed at any moment: the others continue, nothing acked is seen again, nothing un-acked is lost.

A killed side's stores up to there are seen, its locks are free, and no process hears of it. What a wake-up would have been, the bounded
waits make good: such outcomes are "late".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import shmstore
import shmstore.memory.locks
import shmstore.ring.overflow
import shmstore.store.cursor_repair
from shmstore import EventStore
from shmstore.memory.layout import LOCK_PRODUCER, SubscriptionState, header_word
from shmstore.memory.locks import Lock
from shmstore.ring.cursors import ACK_OF, PUT, STATE_OF, slowest_ack
from shmstore.ring.reader import Reader
from shmstore.ring.writer import Writer
from shmstore.store.backpressure import Backpressure
from shmstore.store.subscription_table import SubscriptionTable
from tests.interleavings.mutants import mutants, mutate
from tests.interleavings.process import Memory
from tests.interleavings.stage import Role, Semaphore, Stage, pid_of, read

ACTIVE, LOST = int(SubscriptionState.ACTIVE), int(SubscriptionState.LOST)
FREE, JOINING = int(SubscriptionState.FREE), int(SubscriptionState.JOINING)
PRODUCER = header_word("producer_pid")


@pytest.fixture(autouse=True)
def no_files(monkeypatch):
    """No segments besides the ring."""
    monkeypatch.setattr(shmstore.ring.overflow, "overflows", lambda segment: [])


def owned(stage: Stage, side: str) -> EventStore:
    """The stage's producer, its role held by `side`."""
    role = Role(-1, LOCK_PRODUCER, held=True)
    stage.memory.cells["lock", ("role", role.byte)] = side
    stage.words[PRODUCER] = pid_of(side)
    stage.producer._producer = role  # type: ignore[assignment]
    return stage.producer


# ---------------------------------------------------------------- the producer


def succeeding(memory: Memory) -> Any:
    """The producer is killed in a put, or not; another claims its role, puts, and reads all that is there."""
    stage = Stage(memory, capacity=4)
    old, new, reader = owned(stage, "old"), stage.attach(), stage.reader(1)

    def put() -> None:
        old.put(b"ab")

    def claim() -> Any:
        try:
            new.put(b"cd")
        except shmstore.ProducerInUse:
            return "in use"
        return read(reader.get(timeout=0))

    return {"old": put, "new": claim}, lambda end: (end["old"], end["new"], end.cells["word", PRODUCER] == pid_of("new"))


def test_a_successor_finds_whole_events_only(outcomes):
    """Killed at any moment of a put, a producer leaves the event whole or not at all; the next begins after it."""
    assert outcomes(succeeding, mortal=["old"]) == {
        (None, "in use", False),
        ("killed", "in use", False),
        ("killed", (b"cd",), True),
        ("killed", (b"ab", b"cd"), True),
    }


PAYLOAD = "        self._arena[at : at + size] = payload\n"


@mutants(
    ("published early", (Writer, "put_one", PAYLOAD, "        self._words[PUT] = put\n" + PAYLOAD)),
    ("role unasked", (EventStore, "claim", "if not self._producer.acquire():", "if False:")),
)
def test_a_half_put_event_is_caught(outcomes, monkeypatch, changes):
    """An event that is published before it is whole, and a second producer, are seen."""
    mutate(monkeypatch, *changes)
    assert outcomes(succeeding, asymmetric=True, mortal=["old"]) - {
        (None, "in use", False),
        ("killed", "in use", False),
        ("killed", (b"cd",), True),
        ("killed", (b"ab", b"cd"), True),
    }


def looking_away(memory: Memory) -> Any:
    """The producer is killed while it takes space over, and a reader subscribes; the next producer counts the space again."""
    stage = Stage(memory, capacity=2, size=1)
    old, new, newcomer = owned(stage, "old"), stage.attach(), stage.attach()
    stage.put(b"0", b"1")
    stage.words[ACK_OF[1]] = 0

    def claim() -> Any:
        try:
            new.claim()
        except shmstore.ProducerInUse:
            return "in use"
        return new._writer._floor

    def take() -> Any:
        try:
            entry, _ = newcomer._table.take("new", 0)
        except shmstore.PositionNotFound:
            return "refused"
        return stage.words[ACK_OF[entry]]

    def outcome(end: Any) -> Any:
        if "in use" in (end["new"], end["take"]) or end["take"] == "refused":
            return "fine"
        return "fine" if end["new"] <= end["take"] else "written over"

    stage.words[ACK_OF[1]] = -1

    def look() -> None:
        stage.words[ACK_OF[1]] = 0
        old._writer.refresh()

    return {"old": look, "new": claim, "take": take}, outcome


def test_a_floor_that_was_never_confirmed_counts_for_nothing(outcomes):
    """A successor counts space from the acks, not from the floor of who was killed before the second look."""
    assert outcomes(looking_away, asymmetric=True, mortal=["old"]) == {"fine"}


def test_trusting_a_dead_producers_floor_is_caught(outcomes, monkeypatch):
    """A successor that begins with its predecessor's floor writes over what a newcomer was promised."""
    mutate(monkeypatch, (Writer, "__init__", "else slowest_ack(views)", "else views.words[FLOOR]"))
    assert "written over" in outcomes(looking_away, asymmetric=True, mortal=["old"])


def handing_over(memory: Memory) -> Any:
    """The ring is full, and the producer waits for free space when it is killed, or not; a reader acks; the next producer waits, too."""
    stage = Stage(memory, capacity=2, size=1)
    old, new, reader = owned(stage, "old"), stage.attach(), stage.reader(1)
    stage.put(b"0", b"1")
    batch = reader.get(timeout=0)

    def claim() -> Any:
        try:
            return new.put(b"3") > 1
        except shmstore.ProducerInUse:
            return "in use"

    return {"old": lambda: old.put(b"2") and None, "new": claim, "ack": lambda: reader.ack(batch)}, lambda end: end["new"]


def test_a_wish_is_not_lost_with_its_producer(outcomes):
    """A producer that takes over while a reader acks has its own wish met, whatever becomes of its predecessor's."""
    assert outcomes(handing_over, mortal=["old"]) == {True, "in use"}


def test_taking_over_without_a_wish_of_ones_own_is_caught(outcomes, monkeypatch):
    """A producer that relies on its predecessor's wish sleeps on."""
    mutate(monkeypatch, (Backpressure, "wait", "            words[ACK_WANTED] = wish\n", ""))
    assert ("stuck", "new") in outcomes(handing_over, asymmetric=True, mortal=["old"])


def resigning(memory: Memory) -> Any:
    """A producer gives its role up while another claims it."""
    stage = Stage(memory, capacity=2, size=1)
    old, new = owned(stage, "old"), stage.attach()

    def claim() -> str:
        try:
            new.claim()
        except shmstore.ProducerInUse:
            return "in use"
        return "claimed"

    def owner(end: Any) -> Any:
        pid = end.cells["word", PRODUCER]
        return end["new"], {pid_of("new"): "new", 0: "nobody"}.get(pid, pid)

    return {"old": old.close, "new": claim}, owner


def test_the_producer_is_known_by_its_number(outcomes):
    """The producer is noted as such, however it took over."""
    assert outcomes(resigning, asymmetric=True) == {("in use", "nobody"), ("claimed", "new")}


def test_resigning_out_of_order_is_caught(outcomes, monkeypatch):
    """A producer that gives its role up before it notes itself away notes its successor away."""
    nobody = '            self._words[header_word("producer_pid")] = 0\n'
    release = "            self._producer.release()\n"
    mutate(monkeypatch, (EventStore, "_resign", nobody + release, release + nobody))
    assert ("claimed", "nobody") in outcomes(resigning, asymmetric=True)


# ---------------------------------------------------------------- a reader


def resuming(memory: Memory, *, waiting: bool = False) -> Any:
    """A reader gets two events and acks them one by one, and is killed somewhere; another takes over while the producer puts."""
    stage = Stage(memory, capacity=2, size=1)
    first, other = stage.reader(1, owner="first"), stage.attach()
    stage.put(b"0", b"1")

    def get() -> None:
        batches = [first.get(limit_events=1, timeout=0) for _ in range(2)]
        for batch in batches:
            first.ack(batch)

    def take() -> Any:
        try:
            second = other.subscribe("s1")
        except shmstore.SubscriptionInUse:
            return "in use"
        ack = stage.words[ACK_OF[1]]
        batch = second.get(timeout=0)
        return ack, batch.first, read(batch)

    def put() -> None:
        writer = stage.producer._writer
        writer.refresh()
        writer.put_one(b"2")

    def put_or_give_up() -> None:
        with suppress(shmstore.StoreFull):
            stage.producer.put(b"2", timeout=0)

    return {"first": get, "second": take, "put": put_or_give_up if waiting else put}, lambda end: end["second"]


def resumed(outcome: Any) -> bool:
    """True where the second reader begins right after the ack, with whole events; or is refused."""
    if outcome == "in use":
        return True
    ack, first, payloads = outcome
    return first == ack + 1 and payloads == tuple(str(i).encode() for i in range(first, first + len(payloads)))


@pytest.mark.parametrize("waiting", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_killed_reader_is_resumed_at_its_ack(outcomes, waiting):
    """Killed between any two instructions, a reader is followed by one that gets what was not acked, and nothing else."""
    found = outcomes(lambda memory: resuming(memory, waiting=waiting), mortal=["first"])
    assert all(map(resumed, found)), found
    assert {each[0] for each in found} > {-1, 0, 1}


@mutants(
    ("from get", (Reader, "__init__", "self.get: int = self.ack", "self.get: int = views.words[self._get]")),
    ("acked at get", (Reader, "take", "= self.get = last", "= self.get = self._words[self._ack] = last")),
    long=["acked at get"],
)
def test_losing_what_was_not_acked_is_caught(outcomes, monkeypatch, changes):
    """A reader that begins where the last had got to, or acks what it only got, leaves events out."""
    mutate(monkeypatch, *changes)
    assert not all(map(resumed, outcomes(resuming, asymmetric=True, mortal=["first"])))


# ---------------------------------------------------------------- inside the table's lock


def table_change(change: str) -> Callable[[Memory], Any]:
    """The ring is full. A process changes the table and is killed in there; the producer wants space, and counts what holds it up."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, size=1, readers=0 if change == "subscribe" else 2)
        other, newcomer = stage.attach(), stage.attach()
        stage.put(b"0", b"1")
        if change == "unsubscribe":
            two = stage.reader(2)
            two.ack(two.get(timeout=0))

        def act() -> None:
            match change:
                case "subscribe":
                    other._table.take("dying", "latest")
                case "unsubscribe":
                    other.unsubscribe("s1")
                case "clear":
                    with suppress(shmstore.SubscriptionInUse):  # of the newcomer
                        other.clear()

        def put() -> str:
            memory.wait("over")
            try:
                stage.producer.put(b"2", timeout=0)
            except shmstore.StoreFull:
                return "full"
            return "put"

        def look() -> Any:
            entry, _ = newcomer._table.take("new", "earliest")
            words = stage.words
            with newcomer._table.locked():
                states = [words[STATE_OF[p]] for p in range(4)]
                ack, floor = words[ACK_OF[entry]], slowest_ack(stage.views)
            memory.post("over")
            return "whole" if JOINING not in states and states[0] == FREE and floor <= ack else (floor, ack, *states)

        return {"act": act, "put": put, "look": look}, lambda end: (end["put"], end["look"])

    return scenario


@pytest.mark.parametrize(
    "change", [pytest.param("subscribe", marks=pytest.mark.long), "unsubscribe", pytest.param("clear", marks=pytest.mark.long)]
)
def test_a_half_done_change_is_undone(outcomes, change):
    """Killed at any moment in the table, a process leaves nothing joining, and entry 0 only alone: space is what the acks say."""
    assert outcomes(table_change(change), mortal=["act"]) <= {("put", "whole"), ("full", "whole")}


@pytest.mark.long
@mutants(
    ("joining", (SubscriptionTable, "_half_done", "== JOINING]", "== 9]")),
    ("entry 0", (SubscriptionTable, "_half_done", "found.append(0)", "pass")),
)
def test_leaving_a_change_half_done_is_caught(outcomes, monkeypatch, changes):
    """An entry that stays joining, or entry 0 next to another, is seen: it would hold the producer up forever."""
    if changes[0][2] == "found.append(0)":  # what the newcomer frees itself
        mutate(monkeypatch, (SubscriptionTable, "_fill", "        words[STATE_OF[0]] = FREE\n", ""))
    mutate(monkeypatch, *changes)
    assert outcomes(table_change("subscribe"), asymmetric=True, mortal=["act"]) - {("put", "whole"), ("full", "whole")}


def stuck_behind_the_dead(memory: Memory) -> Any:
    """The ring is full and there is no subscription. Who subscribes at the end is killed in there; the producer waits."""
    stage = Stage(memory, capacity=2, size=1, readers=0)
    other = stage.attach()
    stage.put(b"0", b"1")
    memory.watch(("word", STATE_OF[1]))

    def put() -> str:
        for _ in range(3):  # a wait without limit repeats like this
            with suppress(shmstore.StoreFull):
                stage.producer.put(b"2", timeout=0)
                return "put"
            memory.wait("/stage.freed")
        return "full"

    return {"act": lambda: other.subscribe("dying", start="latest") and None, "put": put}, lambda end: (
        end["act"],
        end["put"],
        end.cells["word", STATE_OF[1]],
    )


@pytest.mark.long
def test_the_dead_hold_nobody_up(outcomes):
    """A producer without space undoes what a killed subscriber left, and waits only for who is subscribed, or for the first."""
    found = outcomes(stuck_behind_the_dead, mortal=["act"], timeouts=3)
    assert {each[1] if each[0] == "late" else each for each in found} == {
        (None, "put", ACTIVE),
        ("killed", "put", ACTIVE),
        ("killed", "full", FREE),  # entry 0 keeps the events for the first reader
    }


@pytest.mark.long
@mutants(
    ("nobody repairs", (Backpressure, "wait", "if self._table.repair():", "if False:")),
    ("entry 0", (SubscriptionTable, "_half_done", "found.append(0)", "pass")),
)
def test_waiting_for_the_dead_is_caught(outcomes, monkeypatch, changes):
    """A producer that does not look for what the dead left waits forever."""
    mutate(monkeypatch, *changes)
    found = outcomes(stuck_behind_the_dead, asymmetric=True, mortal=["act"], timeouts=3)
    assert {each[1] if each[0] == "late" else each for each in found} & {("killed", "full", ACTIVE), ("killed", "full", JOINING)}


# ---------------------------------------------------------------- an eviction


def evicting(memory: Memory) -> Any:
    """The producer is killed while it evicts two late readers; the next continues. One reader reads meanwhile."""
    stage = Stage(memory, capacity=2, size=1, readers=2, evict=True)
    old, new, reader = owned(stage, "old"), stage.attach(), stage.reader(1)
    stage.put(b"0", b"1")

    def claim() -> Any:
        try:
            return new.put(b"3")
        except shmstore.ProducerInUse:
            return "in use"

    def get() -> Any:
        try:
            return read(reader.get(timeout=0))
        except shmstore.SubscriptionLost:
            return "lost"

    return {"old": lambda: old.put(b"2") and None, "new": claim, "get": get}, lambda end: (end["new"] != "in use", end["get"])


def test_an_eviction_may_be_cut_off(outcomes):
    """Killed while it evicts, a producer leaves readers that have their events or hear of it; the next makes its space."""
    assert outcomes(evicting, mortal=["old"]) == {(done, seen) for done in (True, False) for seen in ((b"0", b"1"), "lost")}


@pytest.mark.long
def test_space_before_the_mark_is_caught(outcomes, monkeypatch):
    """An eviction that lets entry 0 stand in and marks no reader leaves a reader with what came after."""
    mutate(monkeypatch, (SubscriptionTable, "evict", "words[STATE_OF[entry]] = LOST", "words[STATE_OF[entry]] = FREE"))
    assert outcomes(evicting, asymmetric=True, mortal=["old"]) - {
        (done, seen) for done in (True, False) for seen in ((b"0", b"1"), "lost")
    }


# ---------------------------------------------------------------- after a crash of the host


def recovering(patch: pytest.MonkeyPatch) -> Callable[[Memory], Any]:
    """Two attach to a store whose last event is torn, and one of them claims it and puts."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=4, size=1)
        stage.put(b"0", b"?")
        patch.setattr(shmstore.store.cursor_repair, "_last_whole", lambda segment: min(segment.words[PUT], 0))
        one, two = stage.attach(), stage.attach()

        def attach() -> int:
            return shmstore.store.cursor_repair.repair_cursors(one.segment, one._lock)

        def claim() -> int:
            shmstore.store.cursor_repair.repair_cursors(two.segment, two._lock)
            return two.put(b"1")

        return {"attach": attach, "claim": claim}, lambda end: (
            end["attach"],
            end["claim"],
            end.cells["word", PUT],
            end.cells["word", PRODUCER] == pid_of("claim"),
        )

    return scenario


def test_a_torn_store_is_cut_off_once(outcomes, monkeypatch):
    """Of two who attach one cuts the torn event off, and never under a producer, who stays known as such."""
    assert outcomes(recovering(monkeypatch)) == {(0, 1, 1, True), (1, 1, 1, True)}


@mutants(
    ("roles", (shmstore.store.cursor_repair, "repair_cursors", "if any(role.taken() for role in roles):", "if False:")),
    ("no lock", (shmstore.store.cursor_repair, "repair_cursors", "with lock:", "if True:")),
)
def test_cutting_under_a_producer_is_caught(outcomes, monkeypatch, changes):
    """A process that cuts without asking for roles, or without the lock, cuts off what was put since."""
    mutate(monkeypatch, *changes)
    assert outcomes(recovering(monkeypatch), asymmetric=True) - {(0, 1, 1, True), (1, 1, 1, True)}


# ---------------------------------------------------------------- the lock itself


def locking(patch: pytest.MonkeyPatch) -> Callable[[Memory], Any]:
    """Three add one under the real lock, on the stage's kernel locks and semaphores."""

    def scenario(memory: Memory) -> Any:
        patch.setattr(shmstore.memory.locks, "Ownership", Role)
        memory.cells["semaphore", "lock"] = 1  # as it is made
        locks = [Lock(-1, 0, Semaphore(memory, "lock")) for _ in range(3)]  # type: ignore[arg-type]

        def add(lock: Lock) -> None:
            with lock:
                memory.store("n", memory.load("n") + 1)
                memory.store("m", memory.load("m") + 1)

        memory.watch("n", "m")
        return {name: lambda lock=lock: add(lock) for name, lock in zip("abc", locks, strict=True)}, lambda end: (
            end.cells["n"] - end.cells.get("m", 0),
            3 - end.cells["n"],
        )

    return scenario


def test_the_lock_excludes_and_wakes(outcomes, monkeypatch):
    """Each of three has the lock for itself, and without a death none needs a time-out to get it."""
    assert outcomes(locking(monkeypatch), asymmetric=True) == {(0, 0)}


def test_a_dead_holder_keeps_nobody_out(outcomes, monkeypatch):
    """Where a holder dies, who waits gets the lock, late at worst; what it had half done shows, and nothing is lost."""
    found = outcomes(locking(monkeypatch), asymmetric=True, mortal=["a"], timeouts=1)
    plain = {each[1] if each[0] == "late" else each for each in found}
    assert plain == {(0, 0), (0, 1), (1, 0)}


@mutants(
    ("nobody woken", (Lock, "release", "not self._free.notified", "False")),
    ("byte not asked", (Lock, "acquire", "while not self._owner.acquire():", "while False:")),
)
def test_a_broken_lock_is_caught(outcomes, monkeypatch, changes):
    """A release that wakes no process, and a semaphore without the byte, are seen."""
    mutate(monkeypatch, *changes)
    assert outcomes(locking(monkeypatch), asymmetric=True) != {(0, 0)}
