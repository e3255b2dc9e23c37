"""Waiters are woken when their own condition holds: however wish, look and change meet, none continues to sleep.

On the stage no wait ends by time-out, so that a lost wake-up is forever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import shmstore.ring.cursors
from shmstore import EventStore, Subscription
from shmstore.memory.deadline import Deadline
from shmstore.ring.reader import Reader
from shmstore.ring.writer import Writer
from shmstore.store.backpressure import Backpressure
from tests.interleavings.mutants import mutants, mutate
from tests.interleavings.process import Memory
from tests.interleavings.stage import Stage, read

# ---------------------------------------------------------------- a reader that waits


def arming(memory: Memory) -> Any:
    stage = Stage(memory, capacity=4)
    reader = stage.reader(1)
    return {"get": lambda: len(reader.get()), "put": lambda: stage.producer.put(b"ab")}, lambda end: end["get"]


def test_a_waiting_reader_is_always_woken(outcomes):
    """A reader that waits for an event gets it, however its arming and the put meet; it never sleeps on."""
    assert outcomes(arming) == {1}


@pytest.mark.parametrize("asymmetric", [True, False])
def test_arming_without_a_fence_is_caught(outcomes, monkeypatch, asymmetric):
    """Without the fence between arming and looking, a reader sleeps on in some schedule."""
    mutate(monkeypatch, (Subscription, "_await", "                heavy_fence()\n", ""))
    assert ("stuck", "get") in outcomes(arming, asymmetric=asymmetric)


def test_a_put_without_its_fence_is_caught(outcomes, monkeypatch):
    """Where there is no membarrier, a put that looks at who waits without a fence of its own leaves a reader asleep."""
    mutate(monkeypatch, (EventStore, "_published", "        if not ASYMMETRIC:\n", "        if False:\n"))
    assert ("stuck", "get") in outcomes(arming, asymmetric=False)
    assert ("stuck", "get") not in outcomes(arming, asymmetric=True)


ARM = "                words[wanted_word] = get + n\n                words[ARMED] = 1\n"
LOOK = "                heavy_fence()\n                there = self._reader.available()\n"


def test_looking_before_arming_is_caught(outcomes, monkeypatch):
    """A reader that arms itself after it looked sleeps on in some schedule, fence or not."""
    mutate(monkeypatch, (Subscription, "_await", ARM + LOOK, LOOK + ARM))
    assert ("stuck", "get") in outcomes(arming, asymmetric=True)


def two_armed(memory: Memory) -> Any:
    """Reader two sleeps already, for the first event; reader one arms itself, for two, while the producer looks."""
    stage = Stage(memory, capacity=4, readers=2)
    one = stage.reader(1)
    stage.arm(2, wanted=0)

    def put() -> None:
        stage.producer.put(b"ab")
        stage.producer.put(b"cd")

    def wait() -> None:
        memory.wait("/stage.2")

    return {"one": lambda: len(one.get(min_events=2)), "two": wait, "put": put}, lambda end: end["one"]


def test_two_waiting_readers_are_both_woken(outcomes):
    """Two readers that wait for different things, one arming itself while the producer looks, are both woken."""
    assert outcomes(two_armed) == {2}


@mutants(
    ("no fence", (shmstore.ring.cursors, "armed_readers", "    fence()", "    pass")),
    (
        "cleared late",
        (shmstore.ring.cursors, "armed_readers", "    words[ARMED] = 0\n", ""),
        (
            shmstore.ring.cursors,
            "armed_readers",
            "    return ready",
            "    words[ARMED] = int(any(words[w] != DISARMED for w in WANTED_OF))\n    return ready",
        ),
    ),
    ("flag before wish", (Subscription, "_await", ARM, "".join(reversed(ARM.splitlines(keepends=True))))),
    ("not set again", (shmstore.ring.cursors, "armed_readers", "            words[ARMED] = 1", "            pass")),
    (
        "all disarmed",
        (
            shmstore.ring.cursors,
            "armed_readers",
            "        else:\n",
            "        else:\n            words[WANTED_OF[entry]] = DISARMED\n",
        ),
    ),
)
def test_a_careless_look_at_the_readers_is_caught(outcomes, monkeypatch, changes):
    """A flag that is cleared without a fence, after the look, or though a reader still waits, leaves a reader asleep."""
    mutate(monkeypatch, *changes)
    assert ("stuck", "one") in outcomes(two_armed, asymmetric=True)


def both_arming(memory: Memory) -> Any:
    """Two readers arm themselves for the same event while it is put."""
    stage = Stage(memory, capacity=4, readers=2)
    one, two = stage.reader(1), stage.reader(2)
    return {
        "one": lambda: len(one.get()),
        "two": lambda: len(two.get()),
        "put": lambda: stage.producer.put(b"ab"),
    }, lambda end: (end["one"], end["two"])


def test_two_readers_that_arm_at_once_are_both_woken(outcomes):
    """Two readers that come to wait while an event is put both get it."""
    assert outcomes(both_arming) == {(1, 1)}


def test_a_look_at_one_reader_only_is_caught(outcomes, monkeypatch):
    """A producer that wakes the first it finds leaves the second asleep."""
    mutate(monkeypatch, (shmstore.ring.cursors, "armed_readers", "ready.append(entry)", "ready.append(entry)\n            break"))
    found = outcomes(both_arming, asymmetric=True)
    assert {("stuck", "one"), ("stuck", "two")} & found


def herd(memory: Memory) -> Any:
    """Two readers sleep: for the first event, and for the third. Two are put."""
    stage = Stage(memory, capacity=4, readers=2)
    stage.arm(1, wanted=0)
    stage.arm(2, wanted=2)

    def put() -> None:
        stage.producer.put(b"ab")
        stage.producer.put(b"cd")

    return {"put": put}, lambda end: tuple(end.cells.get(("semaphore", f"/stage.{entry}"), 0) for entry in (1, 2))


def test_nobody_is_woken_for_nothing(outcomes):
    """A reader is woken once, when what it waits for is there, and not before."""
    assert outcomes(herd) == {(1, 0)}


@mutants(
    ("early", (shmstore.ring.cursors, "armed_readers", "if wanted <= put or", "if True or")),
    ("twice", (shmstore.ring.cursors, "armed_readers", "            words[WANTED_OF[entry]] = DISARMED\n", "")),
)
def test_a_thundering_herd_is_caught(outcomes, monkeypatch, changes):
    """Waking a reader that waits for more, or one that was woken already, shows."""
    mutate(monkeypatch, *changes)
    assert outcomes(herd, asymmetric=True) != {(1, 0)}


# ---------------------------------------------------------------- a producer that waits


def wanting_space(memory: Memory) -> Any:
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)
    stage.put(b"ab", b"cd")
    batch = reader.get(timeout=0)
    return {"put": lambda: stage.producer.put(b"ef"), "ack": lambda: reader.ack(batch)}, lambda end: end["put"]


def test_a_waiting_producer_is_always_woken(outcomes):
    """A producer that waits for free space is woken by the ack that makes it, however wish and ack meet."""
    assert outcomes(wanting_space) == {2}


def test_a_wish_without_a_fence_is_caught(outcomes, monkeypatch):
    """A wish for space that is overtaken by the look at the acks leaves the producer asleep."""
    mutate(monkeypatch, (Backpressure, "wait", "            heavy_fence()\n", ""))
    # refresh has a fence of its own, which would hide it
    mutate(monkeypatch, (Writer, "refresh", "    fence()  # a subscriber", "    pass  # a subscriber"))
    assert ("stuck", "put") in outcomes(wanting_space, asymmetric=True)


WISH = "            words[ACK_WANTED] = wish\n"
LOOK_AGAIN = "            heavy_fence()\n            writer.refresh(n, size)\n"


def test_a_wish_after_the_look_is_caught(outcomes, monkeypatch):
    """A producer that looks before it says what it wants sleeps on."""
    mutate(monkeypatch, (Backpressure, "wait", WISH + LOOK_AGAIN, LOOK_AGAIN + WISH))
    assert ("stuck", "put") in outcomes(wanting_space, asymmetric=True)


def test_an_ack_without_its_fence_is_caught(outcomes, monkeypatch):
    """Where there is no membarrier, an ack that looks at the wish without a fence of its own leaves the producer asleep."""
    mutate(monkeypatch, (Subscription, "ack", "        if not ASYMMETRIC:\n", "        if False:\n"))
    assert ("stuck", "put") in outcomes(wanting_space, asymmetric=False)
    assert ("stuck", "put") not in outcomes(wanting_space, asymmetric=True)


def two_acks(memory: Memory) -> Any:
    """The producer comes to wait until all have acked two events; two readers ack them at once."""
    stage = Stage(memory, capacity=2, readers=2)
    readers = [stage.reader(1), stage.reader(2)]
    stage.put(b"ab", b"cd")
    batches = [reader.get(timeout=0) for reader in readers]
    return {
        "put": lambda: stage.producer.put(b"ef"),
        "one": lambda: readers[0].ack(batches[0]),
        "two": lambda: readers[1].ack(batches[1]),
    }, lambda end: end["put"]


def test_of_two_acks_one_wakes_the_producer(outcomes):
    """Of two readers that ack at once at least one sees that space is there, and wakes the producer."""
    assert outcomes(two_acks) == {2}


def test_an_ack_that_does_not_fence_is_caught(outcomes, monkeypatch):
    """Two readers that each look at the other's ack before their own is visible both leave the producer asleep."""
    mutate(monkeypatch, (shmstore.ring.cursors, "ack_is_wanted", "    fence()", "    pass"))
    assert ("stuck", "put") in outcomes(two_acks, asymmetric=True)


def both_wait(memory: Memory) -> Any:
    """One of two slots is taken, and was got before. A new reader waits for two events, the producer for two slots."""
    stage = Stage(memory, capacity=2)
    stage.put(b"ab")
    stage.reader(1).get(timeout=0)
    backpressure, writer = stage.producer._backpressure, stage.producer._writer
    return {
        "get": lambda: len(stage.reader(1).get(min_events=2)),
        "put": lambda: backpressure.wait(writer, 2, 4, Deadline(None)),
    }, lambda end: "both"


def test_a_reader_does_not_wait_for_what_cannot_come(outcomes):
    """A reader that waits for two events gets the one that is there when the producer waits for two slots."""
    assert outcomes(both_wait) == {("stuck", "put")}


@mutants(
    ("everyone", (Backpressure, "wait", "everyone=True", "everyone=False")),
    ("get not taken back", (Reader, "__init__", "views.words[self._get] = self.ack", "pass")),
    ("wish unseen", (Subscription, "_await", "or (there and words[ACK_WANTED] != DISARMED)", "")),
)
def test_not_waking_everybody_is_caught(outcomes, monkeypatch, changes):
    """A producer that wakes no reader for less than they wait for, or a reader that does not look at its wish: both sleep on."""
    mutate(monkeypatch, *changes)
    assert ("stuck", "get", "put") in outcomes(both_wait, asymmetric=True)


def ping_pong(memory: Memory) -> Any:
    """There is space for one event. Two are put, and the reader gets and acks each: each waits for the other, again and again."""
    stage = Stage(memory, capacity=1, size=1)
    reader = stage.reader(1)

    def put() -> None:
        stage.producer.put(b"0")
        stage.producer.put(b"1")

    def get() -> bytes:
        seen = b""
        for _ in range(2):
            batch = reader.get()
            seen += b"".join(read(batch))
            reader.ack(batch)
        return seen

    return {"put": put, "get": get}, lambda end: end["get"]


@pytest.mark.parametrize("asymmetric", [pytest.param(True, marks=pytest.mark.long), False])
def test_each_waits_for_the_other_again_and_again(outcomes, asymmetric):
    """A wish left over from an earlier wait, or a wake-up that comes late, keeps no process asleep in the next."""
    assert outcomes(ping_pong, asymmetric=asymmetric) == {b"01"}


@pytest.mark.long
def test_losing_one_wake_up_of_many_is_caught(outcomes, monkeypatch):
    """An ack that wakes no process leaves both asleep in the second round."""
    mutate(monkeypatch, (EventStore, "_wake_producer", "        self._wakeups.freed.notify()", "        pass"))
    assert ("stuck", "put", "get") in outcomes(ping_pong, asymmetric=False)


# ---------------------------------------------------------------- space that comes without an ack


def freed_by(change: str) -> Callable[[Memory], Any]:
    """The ring is full. A process changes the table so that no reader holds its first event any more; the producer waits for that."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, readers=0 if change == "subscribe" else 2)
        other = stage.attach()
        stage.put(b"ab", b"cd")
        if change == "unsubscribe":
            two = stage.reader(2)
            two.ack(two.get(timeout=0))

        def act() -> None:
            match change:
                case "unsubscribe":
                    other.unsubscribe("s1")
                case "clear":
                    other.clear()
                case "subscribe":
                    other.subscribe("new", start="latest")

        return {"put": lambda: stage.producer.put(b"ef"), "act": act}, lambda end: end["put"]

    return scenario


@pytest.mark.parametrize("change", ["unsubscribe", "clear", "subscribe"])
def test_a_change_of_the_table_wakes_the_producer(outcomes, change):
    """Unsubscribing the slowest, clearing, and subscribing at the end where no reader was: each wakes a producer that waits."""
    assert outcomes(freed_by(change)) == {2}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("unsubscribe", (EventStore, "_freeing", "self._wake_producer()", "pass")),
        ("clear", (EventStore, "_freeing", "self._wake_producer()", "pass")),
        ("subscribe", (EventStore, "subscribe", "            self._wake_producer()", "            pass")),
    ],
)
def test_a_change_that_wakes_nobody_is_caught(outcomes, monkeypatch, change, where):
    """A process that makes space and does not say so leaves the producer asleep."""
    mutate(monkeypatch, where)
    assert ("stuck", "put") in outcomes(freed_by(change), asymmetric=True)


# ---------------------------------------------------------------- a reader that is evicted while it waits


def evicted_asleep(memory: Memory) -> Any:
    """The reader has got all there is, acked nothing, and comes to wait for more; the producer needs space, and evicts it."""
    stage = Stage(memory, capacity=2, size=1, evict=True)
    reader = stage.reader(1)
    stage.put(b"0", b"1")
    reader.get(timeout=0)

    def get() -> Any:
        try:
            return read(reader.get())
        except shmstore.SubscriptionLost:
            return "lost"

    return {"put": lambda: stage.producer.put(b"2"), "get": get}, lambda end: end["get"]


def test_an_evicted_reader_does_not_sleep_on(outcomes):
    """A reader that is evicted while it waits, or comes to wait, hears it at once."""
    assert outcomes(evicted_asleep) == {"lost"}


def test_evicting_a_sleeper_silently_is_caught(outcomes, monkeypatch):
    """An eviction that wakes no reader lets its reader sleep on."""
    mutate(monkeypatch, (Backpressure, "wait", "                    self._wake(late)\n", ""))
    assert ("stuck", "get") in outcomes(evicted_asleep, asymmetric=True)
