"""What is put is seen whole, in order, and not written over before it may be."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

import shmstore
import shmstore.memory.mapping
import shmstore.memory.segment
import shmstore.store.stats
from shmstore.memory.mapping import cursors_sane
from shmstore.ring.cursors import ACK_OF, GET_OF, PUT
from shmstore.ring.reader import Reader
from shmstore.ring.writer import Writer
from shmstore.store.stats import describe
from shmstore.store.subscription import Subscription
from tests.interleavings.mutants import mutants, mutate
from tests.interleavings.process import Memory
from tests.interleavings.stage import Stage, read


def publishing(memory: Memory) -> Any:
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)

    def put() -> None:
        stage.producer.put(b"ab", timeout=0)
        stage.producer.put(b"cd", timeout=0)

    def get() -> tuple[bytes, ...]:
        return read(reader.get(timeout=0))

    return {"put": put, "get": get}, lambda end: end["get"]


def test_an_event_is_seen_whole_or_not_at_all(outcomes):
    """A get during two puts sees none, the first, or both, each byte of them."""
    assert outcomes(publishing) == {(), (b"ab",), (b"ab", b"cd")}


PAYLOAD, END = "        self._arena[at : at + size] = payload\n", "        self._ends[i] = end\n"
EARLY = "        self._words[PUT] = put\n"


@mutants(
    ("payload", (Writer, "put_one", PAYLOAD, EARLY + PAYLOAD)),
    ("end", (Writer, "put_one", END, EARLY + END)),
)
def test_publishing_too_early_is_caught(outcomes, monkeypatch, changes):
    """A put that moves the cursor before payload or end is written shows bytes that were never put."""
    mutate(monkeypatch, *changes)
    assert outcomes(publishing, asymmetric=True) - {(), (b"ab",), (b"ab", b"cd")}


def listing(memory: Memory) -> Any:
    """A list is put where there is no free space for it yet, and got."""
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)
    stage.put(b"ab")
    first = reader.get(timeout=0)

    def get() -> Any:
        reader.ack(first)
        return read(reader.get())

    return {"put": lambda: stage.producer.put([b"cd", b"ef"]), "get": get}, lambda end: end["get"]


def test_a_list_is_seen_whole(outcomes):
    """Who waits for one event gets both of a list: it is put all or nothing."""
    assert outcomes(listing) == {(b"cd", b"ef")}


PUBLISH = "        self._words[PUT] = after[0]  #"


@mutants(
    ("one by one", (Writer, "_publish", PUBLISH, "        self._words[PUT] = after[0] - 1\n" + PUBLISH)),
    (
        "ends late",
        (Writer, "_publish", "        np.add.accumulate(sizes, out=self._views.ends_array[i : i + n])\n", ""),
        (
            Writer,
            "_publish",
            "        after = ",
            "        self._words[PUT] = self.put + n\n"
            "        np.add.accumulate(sizes, out=self._views.ends_array[i : i + n])\n        after = ",
        ),
    ),
    long=["ends late"],
)
def test_a_list_in_parts_is_caught(outcomes, monkeypatch, changes):
    """A list whose events, or whose ends, become visible one after the other is seen."""
    mutate(monkeypatch, *changes)
    assert outcomes(listing, asymmetric=True) != {(b"cd", b"ef")}


def overwriting(memory: Memory, *, early: bool = False) -> Any:
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)
    stage.put(b"ab", b"cd")

    def put() -> None:
        stage.producer.put(b"ef")

    def get() -> tuple[bytes, ...]:
        batch = reader.get(limit_events=1, timeout=0)
        seen = () if early else read(batch)
        reader.ack(batch)
        return (seen or read(batch)) + read(reader.get(limit_events=1, timeout=0))

    return {"put": put, "get": get}, lambda end: (end["get"], end.cells["word", PUT])


def test_nothing_is_overwritten_before_its_ack(outcomes):
    """A producer that waits for free space writes over an event only after its ack, and always gets there."""
    assert outcomes(overwriting) == {((b"ab", b"cd"), 2)}


def test_acking_before_reading_is_caught(outcomes):
    """A reader that acks what it has not read yet reads what came after it."""
    assert ((b"ef", b"cd"), 2) in outcomes(lambda memory: overwriting(memory, early=True), asymmetric=True)


def test_counting_too_much_space_is_caught(outcomes, monkeypatch):
    """A producer that counts more as free than was acked writes over what is not read."""
    mutate(
        monkeypatch,
        (Writer, "refresh", "self._limit_sequence = min(floor", "self._limit_sequence = min(floor + 1"),
        (Writer, "refresh", "+ self._views.limit", "+ 2 * self._views.limit"),
    )
    assert outcomes(overwriting, asymmetric=True) - {((b"ab", b"cd"), 2)}


# ---------------------------------------------------------------- ack <= get <= put


def observing(memory: Memory) -> Any:
    """A viewer looks at a subscription, as `stat` does, while its reader gets, rolls back, gets and acks, and the producer puts."""
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)
    stage.put(b"ab")

    def get() -> None:
        reader.get(timeout=0)
        reader.rollback()
        for _ in range(2):
            batch = reader.get(limit_events=1, timeout=0)
            reader.ack(batch)

    def look() -> tuple[int, ...]:
        return tuple(stage.words[word] for word in (ACK_OF[1], GET_OF[1], PUT))

    def read(end: Any) -> Any:
        ack, get, put = end["look"]
        return ack <= get <= put

    return {"put": lambda: stage.producer.put(b"cd"), "get": get, "look": look}, read


def test_cursors_are_in_order_at_every_moment(outcomes):
    """A process that reads ack, get and put, in this order, finds them in this order."""
    assert outcomes(observing) == {True}


@mutants(
    ("get", (Reader, "take", "self._words[self._get] = self.get = last", "self.get = last")),
    ("rollback", (Subscription, "rollback", "to = reader.ack\n", "to = reader.ack - 1\n")),
    (
        "put",
        (
            Writer,
            "put_one",
            "        i = put & self._mask\n",
            "        i = put & self._mask\n        self._words[PUT] = put - 2\n",
        ),
    ),
)
def test_cursors_out_of_order_are_caught(outcomes, monkeypatch, changes):
    """A get that is not written down, a rollback too far, and a put cursor that goes back are seen."""
    mutate(monkeypatch, *changes)
    assert outcomes(observing, asymmetric=True) != {True}


def describing(memory: Memory) -> Any:
    """A process asks for the state of a full store, or attaches to it, while all is acked and more is put."""
    stage = Stage(memory, capacity=2, size=1)
    reader = stage.reader(1)
    stage.put(b"0", b"1")
    batch = reader.get(timeout=0)
    writer = stage.producer._writer

    def put() -> None:
        for payload in (b"2", b"3"):
            writer.refresh()
            writer.put_one(payload)

    def ack() -> None:
        reader.ack(batch)
        if more := reader.get(timeout=0):
            reader.ack(more)

    def look() -> Any:
        stat = describe(stage, (), None)  # type: ignore[arg-type]
        return 0 <= stat.free_events <= 2, 0 <= stat.free_bytes <= 2, cursors_sane(stage.views)

    return {"put": put, "ack": ack, "look": look}, lambda end: end["look"]


def test_what_is_told_of_a_moving_store_is_possible(outcomes):
    """The reported space is never negative, or more than there is; and a store that moves is not taken for a broken one."""
    assert outcomes(describing, asymmetric=True) == {(True, True, True)}


@pytest.mark.long
@mutants(
    (
        "put last",
        (shmstore.store.stats, "describe", "    put = cursor_at(views, words[PUT])\n", ""),
        (
            shmstore.store.stats,
            "describe",
            "min(spared(views), put.sequence))",
            "spared(views)); put = cursor_at(views, words[PUT])",
        ),
    ),
    ("ack beyond put", (shmstore.store.stats, "describe", "min(spared(views), put.sequence)", "spared(views)")),
    (
        "one look at put",
        (shmstore.memory.mapping, "cursors_sane", '    after = words[header_word("put")]\n', "    after = before\n"),
    ),
)
def test_telling_what_cannot_be_is_caught(outcomes, monkeypatch, changes):
    """Cursors read in another order make space that is negative, or a store that looks broken."""
    mutate(monkeypatch, *changes)
    monkeypatch.setitem(globals(), "describe", shmstore.store.stats.describe)
    monkeypatch.setitem(globals(), "cursors_sane", shmstore.memory.mapping.cursors_sane)
    assert outcomes(describing, asymmetric=True) != {(True, True, True)}


# ---------------------------------------------------------------- peek


def peeking(memory: Memory) -> Any:
    """A viewer peeks at an event that is being acked and written over."""
    stage = Stage(memory, capacity=2, size=1)
    reader = stage.reader(1)
    stage.put(b"0", b"1")
    batch = reader.get(limit_events=1, timeout=0)
    peeker = stage.attach()

    def peek() -> Any:
        try:
            return read(peeker.peek(0, limit_events=2))
        except shmstore.PositionNotFound:
            return "gone"

    return {
        "put": lambda: stage.producer.put(b"2"),
        "ack": lambda: reader.ack(batch),
        "peek": peek,
    }, lambda end: end["peek"]


def test_a_peek_is_whole_or_refused(outcomes):
    """A peek gives events as they were put, or says that they are gone."""
    assert outcomes(peeking) == {(b"0", b"1"), "gone"}


def test_an_unchecked_peek_is_caught(outcomes, monkeypatch):
    """A peek that does not look at the floor after its copy gives bytes of the next event."""
    mutate(monkeypatch, (shmstore.store.lookup, "peek", "if segment.words[FLOOR] >= first:", "if False:"))
    assert (b"2", b"1") in outcomes(peeking, asymmetric=True)


def test_a_floor_that_is_not_told_is_caught(outcomes, monkeypatch):
    """A producer that takes space without writing the floor down leaves a peek with bytes of the next event."""
    mutate(
        monkeypatch,
        (Writer, "refresh", "        words[FLOOR] = floor\n", ""),
        (Writer, "refresh", "words[FLOOR] = self._floor", "self._floor"),
    )
    assert (b"2", b"1") in outcomes(peeking, asymmetric=True)


# ---------------------------------------------------------------- a store that is removed


def unlinking(patch: pytest.MonkeyPatch) -> Any:
    """A process removes the store while the producer puts; a reader was waiting when all began."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=4)
        stage.arm(1, wanted=0)
        patch.setattr(shmstore.memory.segment, "attach", lambda name, path: stage)
        patch.setattr(shmstore.memory.segment, "os", NoFiles)
        patch.setattr(shmstore.memory.segment, "remove_file", lambda path: None)

        def put() -> tuple[str, int]:
            told = []
            for _ in range(3):
                try:
                    stage.producer.put(b"ab", timeout=0)
                    told.append("put")
                except shmstore.StoreClosed:
                    told.append("closed")
                if len(told) == 2:
                    memory.wait("removed")
            return told[2], stage.words[PUT] + 1 - told.count("put")

        def unlink() -> None:
            shmstore.EventStore.unlink("stage")
            memory.post("removed")

        return {"put": put, "unlink": unlink}, lambda end: end["put"]

    return scenario


class NoFiles:
    """Replaces the module os where there is nothing to remove."""

    class path:
        split = staticmethod(lambda path: ("", path))
        isdir = staticmethod(lambda path: True)

    listdir = staticmethod(lambda path: [])


def test_a_producer_hears_that_its_store_was_removed(outcomes, monkeypatch):
    """The first put after a store was removed says so, whatever an earlier one did meanwhile, and what is refused is not stored."""
    assert outcomes(unlinking(monkeypatch)) == {("closed", 0)}


LATE = "        if self._words[STATE] != LIVE:\n            raise self._removed()\n"
ASKED = textwrap.indent(LATE, "    ")
DONE = "        return self._published() if"


@mutants(
    ("never asked", (shmstore.EventStore, "_put_one", ASKED, "")),
    ("asked too late", (shmstore.EventStore, "_put_one", ASKED, ""), (shmstore.EventStore, "put", DONE, LATE + DONE)),
)
def test_a_removal_that_goes_unheard_is_caught(outcomes, monkeypatch, changes):
    """A put that does not ask whether the store was removed, and one that asks when the event was stored, are seen."""
    mutate(monkeypatch, *changes)
    assert outcomes(unlinking(monkeypatch), asymmetric=True) != {("closed", 0)}
