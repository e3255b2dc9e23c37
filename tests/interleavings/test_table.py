"""Readers come and go while the producer counts space: none is promised an event that may be written over, or loses one without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmstore
import shmstore.ring.overflow
from shmstore import EventStore, Subscription
from shmstore.memory.layout import SLOT, SlotFlag, SubscriptionState, subscription_word
from shmstore.ring.cursors import ACK_OF, GET_OF, OVERSIZED, PUT, STATE_OF
from shmstore.ring.writer import Writer
from shmstore.store.subscription_table import SubscriptionTable
from tests.interleavings.mutants import mutants, mutate
from tests.interleavings.process import Memory
from tests.interleavings.stage import Stage, pid_of, read

LOST = int(SubscriptionState.LOST)
ACTIVE = int(SubscriptionState.ACTIVE)


def taken(stage: Stage, store: EventStore, name: str, start: Any = "earliest") -> Any:
    """Subscribe; return the entry and where it starts, or why not."""
    try:
        entry, _ = store._table.take(name, start)
    except shmstore.PositionNotFound:
        return "refused"
    return entry, stage.words[ACK_OF[entry]]


def counted(writer: Writer) -> int:
    """Look again; return up to where the producer counts events as free."""
    writer.refresh()
    return int(writer._limit_sequence - writer._views.capacity)


# ---------------------------------------------------------------- a subscriber that comes


def joining(start: Any) -> Callable[[Memory], Any]:
    """Space is given by an ack, taken over, and looked at again, while a reader subscribes."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, size=1)
        newcomer = stage.attach()
        stage.words[GET_OF[2]] = stage.words[ACK_OF[2]] = 1  # of who was at the newcomer's entry before
        stage.put(b"0", b"1")
        writer = stage.producer._writer

        def look() -> int:
            stage.words[ACK_OF[1]] = 0
            return max(counted(writer), counted(writer))

        def read(end: Any) -> Any:
            if end["new"] == "refused":
                return "refused"
            _, ack = end["new"]
            return ack if end["look"] <= ack else "written over"

        return {"look": look, "new": lambda: taken(stage, newcomer, "new", start)}, read

    return scenario


def test_a_subscriber_is_kept_what_it_was_promised(outcomes):
    """A reader that subscribes while space is taken over starts where nothing can be written over, or is refused."""
    assert outcomes(joining(0), asymmetric=True) == {-1, "refused"}
    assert outcomes(joining("earliest"), asymmetric=True) == {-1, 0}


BROKEN_HANDSHAKES = [
    ("one look", (Writer, "refresh", "max(self._floor, min(floor, slowest_ack(self._views)))", "floor")),
    ("producer's fence", (Writer, "refresh", "        fence()  # a subscriber", "        pass  # a subscriber")),
    ("floor not told", (Writer, "refresh", "        words[FLOOR] = floor\n        fence()", "        fence()")),
    ("floor not kept", (Writer, "refresh", "words[FLOOR] = self._floor = floor", "words[FLOOR] = floor")),
    ("floor taken back", (Writer, "refresh", "max(self._floor, slowest_ack(self._views))", "slowest_ack(self._views)")),
    ("newcomer's fence", (SubscriptionTable, "_fill", "        fence()  # from here", "        pass  # from here")),
    ("floor not read", (SubscriptionTable, "_fill", "        if floor > ack:", "        if False:")),
    (
        "ack after state",
        (SubscriptionTable, "_fill", "words[GET_OF[entry]] = words[ACK_OF[entry]] = ack\n", "pass\n"),
        (SubscriptionTable, "_fill", "        floor = words[FLOOR]\n", "        floor = words[FLOOR]\n        words[ACK_OF[entry]] = ack\n"),
    ),
    (
        "joining not counted",
        (shmstore.ring.cursors, "slowest_ack", "words[STATE_OF[entry]] & 1", "words[STATE_OF[entry]] == ACTIVE"),
    ),
    ("entries told late", (SubscriptionTable, "_fill", "        words[ENTRIES] = max(words[ENTRIES], entry + 1)\n", ""),
     (SubscriptionTable, "_fill", "        floor = words[FLOOR]\n", "        floor = words[FLOOR]\n        words[ENTRIES] = max(words[ENTRIES], entry + 1)\n")),
]  # fmt: skip


@mutants(*BROKEN_HANDSHAKES)
def test_a_broken_handshake_is_caught(outcomes, monkeypatch, changes):
    """A floor that is not looked at twice, not fenced, or not looked at by the newcomer hands out what is written over."""
    mutate(monkeypatch, *changes)
    assert "written over" in outcomes(joining(0), asymmetric=True)


def relay(memory: Memory) -> Any:
    """A newcomer comes to hold what a slow reader behind it in the table lets go just then; the producer looks at both."""
    stage = Stage(memory, capacity=2, size=1, readers=2)
    stage.words[STATE_OF[1]] = SubscriptionState.FREE
    newcomer, slow = stage.attach(), stage.reader(2)
    stage.put(b"0", b"1")
    batch = slow.get(limit_events=1, timeout=0)
    writer = stage.producer._writer

    def look() -> int:
        return counted(writer)

    def read(end: Any) -> Any:
        return end["new"] if end["new"] == "refused" else end["look"] <= end["new"][1]

    return {"look": look, "new": lambda: taken(stage, newcomer, "new", 0), "ack": lambda: slow.ack(batch)}, read


def test_a_look_that_falls_between_newcomer_and_ack_does_no_harm(outcomes):
    """A look that misses a newcomer, and then finds the ack that the newcomer relied on gone, is made good by the second."""
    assert outcomes(relay, asymmetric=True) == {True, "refused"}


@mutants(*(each for each in BROKEN_HANDSHAKES if each[0] in ("one look", "floor not read", "newcomer's fence")))
def test_a_single_look_is_caught(outcomes, monkeypatch, changes):
    """Without the second look, or the newcomer's, the newcomer is written over."""
    mutate(monkeypatch, *changes)
    assert False in outcomes(relay, asymmetric=True)


def pair(same: bool, *, counting: bool = True) -> Callable[[Memory], Any]:
    """Two come at once where no reader was subscribed; the producer counts."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, size=1, readers=0)
        stores = stage.attach(), stage.attach()
        stage.put(b"0", b"1")
        writer = stage.producer._writer

        def take(store: EventStore, name: str) -> Any:
            try:
                return taken(stage, store, name)
            except shmstore.SubscriptionInUse:
                return "in use"

        def look() -> int:
            return counted(writer) if counting else -1

        def read(end: Any) -> Any:
            states = tuple(end.cells["word", STATE_OF[entry]] for entry in range(3))
            return *sorted((end["a"], end["b"]), key=str), end["look"], states

        return {"a": lambda: take(stores[0], "n"), "b": lambda: take(stores[1], "n" if same else "m"), "look": look}, read

    return scenario


def test_two_who_come_at_once_have_a_place_each(outcomes):
    """Two names get two entries, both from the first event on; of two readers of one name the second is refused."""
    assert outcomes(pair(False), asymmetric=True) == {((1, -1), (2, -1), -1, (0, 1, 1))}
    assert outcomes(pair(True), asymmetric=True) == {((1, -1), "in use", -1, (0, 1, 0))}


@pytest.mark.long
@pytest.mark.parametrize("same", [False, True])
def test_coming_without_the_lock_is_caught(outcomes, monkeypatch, same):
    """Without the table's lock two who come at once meet at one entry."""
    mutate(monkeypatch, (SubscriptionTable, "take", "with self.locked():", "if True:"))
    found = outcomes(pair(same, counting=False), asymmetric=True)
    assert found - {((1, -1), "in use", -1, (0, 1, 0)) if same else ((1, -1), (2, -1), -1, (0, 1, 1))}


# ---------------------------------------------------------------- a subscriber that goes


def leaving(memory: Memory) -> Any:
    """The only subscription is forgotten; another reader comes, and the producer counts, twice."""
    stage = Stage(memory, capacity=2, size=1)
    leaver, newcomer = stage.attach(), stage.attach()
    stage.put(b"0", b"1")
    stage.words[GET_OF[1]] = stage.words[ACK_OF[1]] = 0
    stage.words[GET_OF[0]] = stage.words[ACK_OF[0]] = 1  # as if no reader had been subscribed before, at the end
    writer = stage.producer._writer

    def look() -> int:
        return max(counted(writer), counted(writer))

    return {
        "leave": lambda: leaver._table.remove("s1"),
        "new": lambda: taken(stage, newcomer, "new"),
        "look": look,
    }, lambda end: (end["new"][1], end["look"] <= 0, end.cells["word", STATE_OF[0]])


def test_what_nobody_reads_is_kept_for_the_next(outcomes):
    """Where the last subscription goes while another comes, the other starts where the last had acked; the producer keeps that."""
    assert outcomes(leaving, asymmetric=True) == {(0, True, 0)}


STANDS_AT = "words[PUT] if wish != DISARMED and ack < wish else ack"


@mutants(
    ("nobody stands in", (SubscriptionTable, "remove", "not self._logged and not others and", "False and")),
    ("stale ack", (SubscriptionTable, "remove", f"words[GET_OF[0]] = words[ACK_OF[0]] = {STANDS_AT}", "pass")),
    ("at the end", (SubscriptionTable, "remove", STANDS_AT, "words[PUT]")),
    (
        "stays",
        (SubscriptionTable, "_fill", "        words[STATE_OF[0]] = FREE\n", ""),
        (SubscriptionTable, "locked", "self._half_done()", "()"),
    ),
    long=["stale ack", "at the end", "stays"],
)
def test_going_carelessly_is_caught(outcomes, monkeypatch, changes):
    """Without entry 0 in its stead, or with that at a wrong ack, or staying, events are lost or kept forever."""
    mutate(monkeypatch, *changes)
    assert outcomes(leaving, asymmetric=True) != {(0, True, 0)}


# ---------------------------------------------------------------- clear


def clearing(closing: bool) -> Callable[[Memory], Any]:
    """A process discards everything while a reader gets and acks, and perhaps closes, and an observer looks."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, size=1)
        reader, other = stage.reader(1, owner="get"), stage.attach()
        stage.put(b"0", b"1")

        def get() -> None:
            batch = reader.get(limit_events=1, timeout=0)
            reader.ack(batch)
            if closing:
                reader.close()

        def clear() -> str:
            try:
                other.clear()
            except shmstore.SubscriptionInUse:
                return "in use"
            return "cleared"

        def look() -> bool:
            ack, get, put = (stage.words[word] for word in (ACK_OF[1], GET_OF[1], PUT))
            return ack <= get <= put

        return {"get": get, "clear": clear, "look": look}, lambda end: (
            end["clear"],
            end["look"],
            end.cells["word", GET_OF[1]],
            end.cells["word", ACK_OF[1]],
        )

    return scenario


def test_clear_refuses_while_a_reader_lives(outcomes):
    """Clearing moves nothing while a reader lives, and moves a subscription to the end once it is closed; get never before ack."""
    assert outcomes(clearing(False), asymmetric=True) == {("in use", True, 0, 0)}
    assert outcomes(clearing(True), asymmetric=True) == {("in use", True, 0, 0), ("cleared", True, 1, 1)}


@mutants(
    ("not owned", (SubscriptionTable, "clear", "owned.enter_context(self._owned(entry))", "pass")),
    (
        "ack first",
        (SubscriptionTable, "clear", "words[GET_OF[entry]] = put", "words[ACK_OF[entry]] = put"),
        (
            SubscriptionTable,
            "clear",
            "                words[ACK_OF[entry]] = put\n",
            "                words[GET_OF[entry]] = put\n",
        ),
    ),
)
def test_clearing_carelessly_is_caught(outcomes, monkeypatch, changes):
    """Clearing under a live reader, or moving ack before get, shows."""
    mutate(monkeypatch, *changes)
    assert outcomes(clearing(True), asymmetric=True) - {("in use", True, 0, 0), ("cleared", True, 1, 1)}


# ---------------------------------------------------------------- eviction


def evicting(verb: str) -> Callable[[Memory], Any]:
    """The producer needs space and evicts a reader that gets, rolls back and gets again, or acks."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, size=1, evict=True)
        reader = stage.reader(1)
        stage.put(b"0", b"1")
        batch = None if verb == "get" else reader.get(limit_events=1, timeout=0)

        def read_on() -> Any:
            try:
                if verb == "rollback":
                    reader.rollback(batch)
                elif verb == "ack":
                    reader.ack(batch)
                return read(reader.get(timeout=0))
            except shmstore.SubscriptionLost:
                return "lost"

        return {"put": lambda: stage.producer.put(b"2"), verb: read_on}, lambda end: (
            end[verb],
            end.cells["word", STATE_OF[1]],
        )

    return scenario


def test_an_evicted_reader_gets_whole_events_or_hears_of_it(outcomes):
    """A reader evicted at any moment of its get has its events, as they were, or an error; never half of each."""
    assert outcomes(evicting("get"), asymmetric=True) == {((b"0", b"1"), LOST), ("lost", LOST)}
    assert outcomes(evicting("rollback"), asymmetric=True) == {((b"0", b"1"), LOST), ("lost", LOST)}


def test_an_ack_in_time_prevents_an_eviction(outcomes):
    """A reader that acks during an eviction continues, or hears that it was too late: it is not skipped over."""
    assert outcomes(evicting("ack")) == {
        ((b"1",), ACTIVE),
        ((b"1",), LOST),  # read before it was marked
        ("lost", LOST),
    }


CHECK = "                fence()  # the copy was made before the state is looked at: still ACTIVE means nothing was overwritten\n"


@mutants(
    ("copy unchecked", (Subscription, "_checked", CHECK + "                self._check_state()\n", "")),
    ("skipped silently", (SubscriptionTable, "evict", "words[STATE_OF[entry]] = LOST", "words[ACK_OF[entry]] = wanted")),
    ("no copy", (Subscription, "_checked", "batch = batch.copy()", "pass")),
)
@pytest.mark.parametrize("verb", ["get", "rollback"])
def test_an_unchecked_copy_is_caught(outcomes, monkeypatch, changes, verb):
    """A copy that is not checked afterwards, or a reader that is not marked before its events are overwritten, is seen."""
    mutate(monkeypatch, *changes)
    assert outcomes(evicting(verb), asymmetric=True) - {((b"0", b"1"), LOST), ("lost", LOST)}


def one_late(memory: Memory) -> Any:
    """Of two readers one has acked all, the other acks too late or just in time for the producer."""
    stage = Stage(memory, capacity=2, size=1, readers=2, evict=True)
    readers = stage.reader(1), stage.reader(2)
    stage.put(b"0", b"1")
    batches = [reader.get(timeout=0) for reader in readers]
    readers[0].ack(batches[0])

    def ack() -> str:
        try:
            readers[1].ack(batches[1])
        except shmstore.SubscriptionLost:
            return "lost"
        return "acked"

    return {"put": lambda: stage.producer.put(b"2"), "ack": ack}, lambda end: (
        end["put"],
        end["ack"],
        *(end.cells["word", STATE_OF[entry]] for entry in range(3)),
    )


def test_only_who_is_late_is_evicted(outcomes):
    """Who has acked stays; entry 0 does not come to stand in; and the producer has its space."""
    assert outcomes(one_late) == {
        (2, "acked", 0, ACTIVE, ACTIVE),
        (2, "acked", 0, ACTIVE, LOST),  # while it was marked
        (2, "lost", 0, ACTIVE, LOST),
    }


@mutants(
    ("everybody", (SubscriptionTable, "evict", "if words[ACK_OF[entry]] < wanted]", "]")),
    ("stood in for", (SubscriptionTable, "evict", "if len(late) == len(entries):", "if True:")),
)
def test_evicting_too_many_is_caught(outcomes, monkeypatch, changes):
    """An eviction that does not look at the acks marks a reader that has given space; entry 0 next to others shows."""
    mutate(monkeypatch, *changes)
    found = outcomes(one_late, asymmetric=True)
    assert {each[2:4] for each in found} - {(0, ACTIVE)}


# ---------------------------------------------------------------- oversized events


def freeing(patch: pytest.MonkeyPatch, *sides: str) -> Callable[[Memory], Any]:
    """One event is in a segment of its own. Two who hold it let it go at once: by an ack, or by being forgotten."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, readers=2)
        stage.put(b"ab")
        stage.slots["flags"] = SlotFlag.OVERSIZED
        stage.words[OVERSIZED] = 0
        memory.cells["overflow"] = "there"
        patch.setattr(shmstore.ring.overflow, "_remove", lambda path: Memory.current.store("overflow", "gone"))
        bodies = {}
        for entry, side in enumerate(sides, 1):
            store = stage.attach()
            if side == "ack":
                reader = stage.reader(entry)
                reader.get(timeout=0)
                bodies[f"ack {entry}"] = lambda reader=reader: reader.ack(0)
            else:
                bodies[f"leave {entry}"] = lambda store=store, entry=entry: store.unsubscribe(f"s{entry}")
        return bodies, lambda end: end.cells["overflow"]

    return scenario


def test_of_two_acks_one_frees_the_overflow(outcomes, monkeypatch):
    """The segment of an oversized event is removed by one of two who let it go at once, never by none."""
    assert outcomes(freeing(monkeypatch, "ack", "ack"), asymmetric=True) == {"gone"}
    assert outcomes(freeing(monkeypatch, "ack", "leave"), asymmetric=True) == {"gone"}


def test_a_free_without_order_is_caught(outcomes, monkeypatch):
    """Two acks that look at each other before their own is visible leave the segment behind."""
    mutate(monkeypatch, (Subscription, "ack", "            fence()  # our ack", "            pass  # our ack"))
    assert "there" in outcomes(freeing(monkeypatch, "ack", "ack"), asymmetric=True)
    assert "there" in outcomes(freeing(monkeypatch, "ack", "leave"), asymmetric=True)


def test_going_without_a_look_at_the_overflow_is_caught(outcomes, monkeypatch):
    """The reader that is forgotten last and does not free what it held leaves the segment behind."""
    mutate(monkeypatch, (EventStore, "_freeing", "        self._free_oversized(before)\n", ""))
    assert "there" in outcomes(freeing(monkeypatch, "ack", "leave"), asymmetric=True)


def oversized(patch: pytest.MonkeyPatch) -> Callable[[Memory], Any]:
    """An oversized event is put, got and acked; then the producer puts another event."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, size=1)
        reader = stage.reader(1)
        stage.slots["flags"][0], stage.slots["size"][0] = SlotFlag.OVERSIZED, 1
        writer = stage.producer._writer
        patch.setattr(shmstore.ring.overflow, "write", lambda *a: Memory.current.store("overflow", "there"))
        patch.setattr(shmstore.ring.overflow, "_remove", lambda path: Memory.current.store("overflow", "gone"))
        patch.setattr(shmstore.ring.overflow, "overflows", lambda segment: [])
        patch.setattr(
            shmstore.ring.overflow, "read", lambda *a: memoryview(b"!" if Memory.current.load("overflow") == "there" else b"?")
        )
        patch.setattr(Writer, "put_encoded", lambda self, blob, slots, sizes: self.put_one(b"."))
        one = np.zeros(1, SLOT)
        one["size"] = 5

        def get() -> None:
            batch = reader.get()
            assert batch.first == 0
            if not batch.oversized or bytes(batch.raw) != b"!":
                raise AssertionError("not there")
            reader.ack(batch)

        def put() -> int:
            stage.producer.put_encoded(b"large", one)
            return writer.put

        return {"put": put, "get": get}, lambda end: (end["put"], end.cells["overflow"])

    return scenario


def test_an_oversized_event_lives_from_its_put_to_its_ack(outcomes, monkeypatch):
    """A reader that gets an oversized event finds its segment, and its ack removes it."""
    assert outcomes(oversized(monkeypatch)) == {(0, "gone")}


WRITE, ANNOUNCE = (
    "                    overflow.write(self.segment, writer.put + 1, blob)\n                    lookup.note_oversized(self.segment, blob)\n",
    "                    writer.announce_oversized()\n",
)
PUBLISH = '                    writer.put_encoded(b"", slots, sizes)\n'


@mutants(
    ("written late", (EventStore, "put_encoded", WRITE + ANNOUNCE + PUBLISH, ANNOUNCE + PUBLISH + WRITE)),
    ("announced late", (EventStore, "put_encoded", ANNOUNCE + PUBLISH, PUBLISH + ANNOUNCE)),
)
def test_an_oversized_event_out_of_order_is_caught(outcomes, monkeypatch, changes):
    """A segment that is written, or announced, after the event is published is not found, or never removed."""
    mutate(monkeypatch, *changes)
    assert outcomes(oversized(monkeypatch), asymmetric=True) != {(0, "gone")}


# ---------------------------------------------------------------- who owns what


def succeeding(memory: Memory) -> Any:
    """A reader closes while another process takes its subscription."""
    stage = Stage(memory, capacity=2, size=1)
    first, other = stage.reader(1, owner="close"), stage.attach()
    stage.words[OWNER] = pid_of("close")
    stage.put(b"0", b"1")
    first.ack(first.get(limit_events=1, timeout=0))

    def close() -> None:
        first.get(timeout=0)
        first.close()

    def take() -> Any:
        try:
            second = other.subscribe("s1")
        except shmstore.SubscriptionInUse:
            return "in use"
        return read(second.get(timeout=0))

    def outcome(end: Any) -> Any:
        owner = end.cells["word", OWNER]
        return end["take"], {pid_of("take"): "take", 0: "nobody"}.get(owner, owner), end.cells["word", GET_OF[1]]

    return {"close": close, "take": take}, outcome


OWNER = subscription_word(1, "owner_pid")
SUCCESSION = {("in use", "nobody", 1), ((b"1",), "take", 1)}


def test_a_successor_takes_over_whole(outcomes):
    """Who takes a subscription over is given again what was not acked, and is its owner from then on; or is refused."""
    assert outcomes(succeeding) == SUCCESSION


NOBODY = '                self._words[subscription_word(self.entry, "owner_pid")] = 0\n'
RELEASE = "                self._owner.release()\n"


@mutants(
    ("released first", (Subscription, "close", NOBODY + RELEASE, RELEASE + NOBODY)),
    ("taken unasked", (SubscriptionTable, "take", "if not owner.acquire():", "if False:")),
    ("from get", (shmstore.ring.reader.Reader, "__init__", "self.get: int = self.ack", "self.get: int = views.words[self._get]")),
)
def test_a_careless_succession_is_caught(outcomes, monkeypatch, changes):
    """An owner noted away after the next has come, a role taken unasked, or a get that is not taken back: each shows."""
    mutate(monkeypatch, *changes)
    assert outcomes(succeeding, asymmetric=True) - SUCCESSION
