"""Each concurrency promise as a scenario of which every schedule is tried, with what may come of it and what must not.

For each there are mutants: the same code with one line or fence in the wrong place. The scenario must catch them, or it
proves nothing.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import shmstore.overflow
import shmstore.ring
import shmstore.room
import shmstore.store
import shmstore.subscription
import shmstore.table
from shmstore.layout import SlotFlag, SubscriptionState
from shmstore.ring import ACK_OF, ARMED, GET_OF, OVERSIZED, PUT, ROOM_WANTED, STATE_OF, WANTED_OF
from shmstore.sync import Deadline
from tests.interleavings.scheduler import Memory, explore
from tests.interleavings.stage import Stage, read, staged


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[Any, int]]:
    """Explore a scenario on a stage; with both kinds of fences where `asymmetric` is not given."""

    def run(scenario: Callable[[Memory], Any], *, asymmetric: bool | None = None, switches: int = 10**9) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for kind in (True, False) if asymmetric is None else (asymmetric,):
            current: list[Memory] = []

            def placed(memory: Memory, current: list[Memory] = current) -> Any:
                current[:] = [memory]
                return scenario(memory)

            with staged(monkeypatch, lambda current=current: current[0], asymmetric=kind):
                for outcome, times in explore(placed, switches).items():
                    found[outcome] = found.get(outcome, 0) + times
        print(sum(found.values()), "schedules:", found)
        return found

    return run


def mutant(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Replace `old` by `new` in the source of a function."""
    function = inspect.getattr_static(owner, name)
    source = inspect.getsource(function)
    assert source.count(old) == 1, f"{name} has {source.count(old)} of {old!r}"
    module = inspect.getmodule(function)
    scope: dict[str, Any] = {}
    head, body = "from __future__ import annotations\nif True:\n", source.replace(old, new)
    body = body if body[0] == " " else textwrap.indent(body, " ")
    exec(compile(head + body, module.__file__, "exec"), module.__dict__, scope)
    patch.setattr(owner, name, scope[name])


# ---------------------------------------------------------------- publish order


def publishing(memory: Memory) -> Any:
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)

    def put() -> None:
        stage.producer.put(b"ab", timeout=0)
        stage.producer.put(b"cd", timeout=0)

    def get() -> tuple[bytes, ...]:
        return read(reader.get(timeout=0))

    return {"put": put, "get": get}, lambda m: m.of("get").result


def test_an_event_is_seen_whole_or_not_at_all(outcomes):
    """A get beside two puts sees none, the first, or both, each byte of them."""
    assert set(outcomes(publishing)) == {(), (b"ab",), (b"ab", b"cd")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "        self._arena[at : at + size] = payload\n",
            "        self._words[PUT] = put\n        self._arena[at : at + size] = payload\n",
        ),
        ("        self._ends[i] = end\n", "        self._words[PUT] = put\n        self._ends[i] = end\n"),
    ],
)
def test_publishing_too_early_is_caught(outcomes, monkeypatch, old, new):
    """A put that moves the cursor before payload or end is written shows bytes that were never put."""
    mutant(monkeypatch, shmstore.ring.Writer, "put_one", old, new)
    assert set(outcomes(publishing, asymmetric=True)) - {(), (b"ab",), (b"ab", b"cd")}


def overwriting(memory: Memory) -> Any:
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)
    stage.put(b"ab", b"cd")

    def put() -> None:
        stage.producer.put(b"ef")

    def get() -> tuple[bytes, ...]:
        batch = reader.get(limit_events=1, timeout=0)
        seen = read(batch)
        reader.ack(batch)
        return seen + read(reader.get(limit_events=1, timeout=0))

    return {"put": put, "get": get}, lambda m: (m.of("get").result, m.cells["word", PUT])


def test_nothing_is_overwritten_before_its_ack(outcomes):
    """A producer that waits for room writes over an event only after its ack, and always gets there."""
    assert set(outcomes(overwriting)) == {((b"ab", b"cd"), 2)}


def test_acking_before_reading_is_caught(outcomes, monkeypatch):
    """A reader that acks what it has not read yet reads what came after it."""

    def scenario(memory: Memory) -> Any:
        bodies, result = overwriting(memory)
        reader_get = bodies["get"]
        reader = next(cell.cell_contents for cell in reader_get.__closure__ if hasattr(cell.cell_contents, "get_cursor"))

        def get() -> tuple[bytes, ...]:
            batch = reader.get(limit_events=1, timeout=0)
            reader.ack(batch)
            return read(batch)

        return {**bodies, "get": get}, result

    assert set(outcomes(scenario, asymmetric=True)) - {((b"ab",), 2)}


# ---------------------------------------------------------------- a reader that waits


def arming(memory: Memory) -> Any:
    stage = Stage(memory, capacity=4)
    reader = stage.reader(1)
    return {"get": lambda: len(reader.get()), "put": lambda: stage.producer.put(b"ab")}, lambda m: m.of("get").result


def test_a_waiting_reader_is_always_woken(outcomes):
    """A reader that waits for an event gets it, however its arming and the put meet; it never sleeps on."""
    assert set(outcomes(arming)) == {1}


@pytest.mark.parametrize("asymmetric", [True, False])
def test_arming_without_a_fence_is_caught(outcomes, monkeypatch, asymmetric):
    """Without the fence between arming and looking, a reader sleeps on in some schedule."""
    mutant(monkeypatch, shmstore.subscription.Subscription, "_await", "                heavy_fence()\n", "")
    assert ("stuck", "get") in outcomes(arming, asymmetric=asymmetric)


def test_a_put_without_its_fence_is_caught(outcomes, monkeypatch):
    """Where there is no membarrier, a put that looks at who waits without a fence of its own leaves a reader asleep."""
    mutant(
        monkeypatch,
        shmstore.store.EventStore,
        "_published",
        "        if not ASYMMETRIC:\n            fence()",
        "        if False:\n            fence()",
    )
    assert ("stuck", "get") in outcomes(arming, asymmetric=False)
    assert ("stuck", "get") not in outcomes(arming, asymmetric=True)


def test_looking_before_arming_is_caught(outcomes, monkeypatch):
    """A reader that arms itself after it looked sleeps on in some schedule, fence or not."""
    mutant(
        monkeypatch,
        shmstore.subscription.Subscription,
        "_await",
        "                words[wanted_word] = get + n\n"
        "                words[ARMED] = 1\n"
        "                heavy_fence()\n"
        "                there = self._reader.available()\n",
        "                heavy_fence()\n"
        "                there = self._reader.available()\n"
        "                words[wanted_word] = get + n\n"
        "                words[ARMED] = 1\n",
    )
    assert ("stuck", "get") in outcomes(arming, asymmetric=True)


def two_armed(memory: Memory) -> Any:
    """Reader two sleeps already, for the first event; reader one arms itself, for two, while the producer looks."""
    stage = Stage(memory, capacity=4, readers=2)
    one = stage.reader(1)
    stage.words[WANTED_OF[2]], stage.words[ARMED] = 0, 1

    def put() -> None:
        stage.producer.put(b"ab")
        stage.producer.put(b"cd")

    return (
        {"one": lambda: len(one.get(min_events=2)), "two": lambda: memory.wait("/stage.2"), "put": put},
        lambda m: m.of("one").result,
    )


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_two_waiting_readers_are_both_woken(outcomes):
    """Two readers that wait for different things, arming themselves while the producer looks, are both woken."""
    assert set(outcomes(two_armed, asymmetric=True, switches=1)) == {2}


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_clearing_the_flag_without_a_fence_is_caught(outcomes, monkeypatch):
    """A producer whose clearing of the flag is overtaken by its look at the readers loses one that arms itself just then."""
    mutant(monkeypatch, shmstore.ring, "armed_readers", "    fence()", "    pass")
    monkeypatch.setattr(shmstore.store, "armed_readers", shmstore.ring.armed_readers)
    monkeypatch.setattr(shmstore.room, "armed_readers", shmstore.ring.armed_readers)
    assert ("stuck", "one") in outcomes(two_armed, asymmetric=True, switches=1)


# ---------------------------------------------------------------- a producer that waits


def wanting_room(memory: Memory) -> Any:
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)
    stage.put(b"ab", b"cd")
    batch = reader.get(timeout=0)

    def put() -> int:
        return stage.producer.put(b"ef")

    return {"put": put, "ack": lambda: reader.ack(batch)}, lambda m: m.of("put").result


def test_a_waiting_producer_is_always_woken(outcomes):
    """A producer that waits for room is woken by the ack that makes it, however wish and ack meet."""
    assert set(outcomes(wanting_room)) == {2}


def test_a_wish_without_a_fence_is_caught(outcomes, monkeypatch):
    """A wish for room that is overtaken by the look at the acks leaves the producer asleep."""
    mutant(monkeypatch, shmstore.room.Room, "wait", "            heavy_fence()\n", "")
    # refresh has a fence of its own, which would hide it
    mutant(monkeypatch, shmstore.ring.Writer, "refresh", "    fence()  # a subscriber", "    pass  # a subscriber")
    assert ("stuck", "put") in outcomes(wanting_room, asymmetric=True)


def two_acks(memory: Memory) -> Any:
    """The producer sleeps already, until all have acked two events; two readers ack them at once."""
    stage = Stage(memory, capacity=2, readers=2)
    readers = [stage.reader(1), stage.reader(2)]
    stage.put(b"ab", b"cd")
    batches = [reader.get(timeout=0) for reader in readers]
    stage.words[ROOM_WANTED] = 1

    return (
        {
            "put": lambda: memory.wait("/stage.room"),
            "one": lambda: readers[0].ack(batches[0]),
            "two": lambda: readers[1].ack(batches[1]),
        },
        lambda m: "woken",
    )


def test_of_two_acks_one_wakes_the_producer(outcomes):
    """Of two readers that ack at once at least one sees that room is there, and wakes the producer."""
    assert set(outcomes(two_acks)) == {"woken"}


def test_an_ack_that_does_not_fence_is_caught(outcomes, monkeypatch):
    """Two readers that each look at the other's ack before their own is visible both leave the producer asleep."""
    mutant(monkeypatch, shmstore.ring, "room_is_wanted", "    fence()", "    pass")
    monkeypatch.setattr(shmstore.subscription, "room_is_wanted", shmstore.ring.room_is_wanted)
    assert ("stuck", "put") in outcomes(two_acks, asymmetric=True)


def both_wait(memory: Memory) -> Any:
    """One of two places is taken. The reader waits for two events, the producer for two places; the reader never acks."""
    stage = Stage(memory, capacity=2)
    reader = stage.reader(1)
    stage.put(b"ab")
    room, writer = stage.producer._room, stage.producer._writer
    return {
        "get": lambda: len(reader.get(min_events=2)),
        "put": lambda: room.wait(writer, 2, 4, Deadline(None)),
    }, lambda m: "both"


def test_a_reader_does_not_wait_for_what_cannot_come(outcomes):
    """A reader that waits for two events gets the one that is there when the producer waits for two places."""
    assert set(outcomes(both_wait)) == {("stuck", "put")}


def test_not_waking_everybody_is_caught(outcomes, monkeypatch):
    """A producer that waits for room and does not wake readers that wait for more than can come: both sleep on."""
    mutant(monkeypatch, shmstore.room.Room, "wait", "everyone=True", "everyone=False")
    assert ("stuck", "get", "put") in outcomes(both_wait, asymmetric=True)


# ---------------------------------------------------------------- a subscriber that comes


def joining(start: Any) -> Callable[[Memory], Any]:
    """Room is given by an ack, taken over, and looked at again, while somebody subscribes."""

    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, size=1)
        newcomer = stage.attach()
        stage.put(b"0", b"1")
        writer = stage.producer._writer

        def look() -> None:
            stage.words[ACK_OF[1]] = 0
            writer.refresh()
            writer.refresh()

        def subscribe() -> Any:
            try:
                place, _ = newcomer._table.take("new", start)
            except shmstore.PositionNotFound:
                return "refused"
            return stage.words[ACK_OF[place]]

        def read(m: Memory) -> Any:
            ack = m.of("new").result
            return ack if ack == "refused" or writer._floor <= ack else "written over"

        return {"look": look, "new": subscribe}, read

    return scenario


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_subscriber_is_kept_what_it_was_promised(outcomes):
    """Whoever subscribes while room is taken over starts where nothing can be written over, or is refused."""
    assert set(outcomes(joining(0), asymmetric=True, switches=1)) == {-1, "refused"}
    assert set(outcomes(joining("earliest"), asymmetric=True, switches=1)) == {-1, 0}


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        (shmstore.ring.Writer, "refresh", "max(self._floor, min(floor, slowest_ack(self._views)))", "floor"),
        (shmstore.ring.Writer, "refresh", "        fence()  # a subscriber", "        pass  # a subscriber"),
        (shmstore.table.SubscriptionTable, "_fill", "        fence()  # from here", "        pass  # from here"),
        (shmstore.table.SubscriptionTable, "_fill", "        if floor > ack:", "        if False:"),
    ],
)
def test_a_broken_handshake_is_caught(outcomes, monkeypatch, owner, name, old, new):
    """A floor that is not looked at twice, not fenced, or not looked at by the newcomer hands out what is written over."""
    mutant(monkeypatch, owner, name, old, new)
    assert "written over" in outcomes(joining(0), asymmetric=True, switches=1)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_taking_a_floor_back_is_caught(outcomes, monkeypatch):
    """A producer that lowers its floor for a newcomer hides from it what was written over meanwhile."""

    def refresh(self: Any) -> None:
        self._words[shmstore.ring.FLOOR] = floor = shmstore.ring.slowest_ack(self._views)
        shmstore.ring.fence()
        self._words[shmstore.ring.FLOOR] = floor = min(floor, shmstore.ring.slowest_ack(self._views))
        self._floor = max(self._floor, floor)  # as far as it ever was

    monkeypatch.setattr(shmstore.ring.Writer, "refresh", refresh)
    assert "written over" in outcomes(joining(0), asymmetric=True, switches=1)


# ---------------------------------------------------------------- eviction


def evicting(memory: Memory) -> Any:
    stage = Stage(memory, capacity=2, size=1, evict=True)
    reader = stage.reader(1)
    stage.put(b"0", b"1")

    def put() -> None:
        stage.producer.put(b"2")

    def get() -> Any:
        try:
            return read(reader.get(timeout=0))
        except shmstore.SubscriptionLost:
            return "lost"

    return {"put": put, "get": get}, lambda m: (m.of("get").result, m.cells["word", STATE_OF[1]])


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_an_evicted_reader_gets_whole_events_or_hears_of_it(outcomes):
    """A reader evicted at any moment of its get has its events, as they were, or is told; never half of each."""
    lost = SubscriptionState.LOST
    found = outcomes(evicting, asymmetric=True)
    assert set(found) <= {((b"0", b"1"), lost), ("lost", lost)}
    assert len(found) == 2


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        (
            shmstore.subscription.Subscription,
            "_checked",
            "                fence()  # the copy was made before the state is looked at: still ACTIVE means nothing was overwritten\n"
            "                self._check_state()\n",
            "",
        ),
        (shmstore.table.SubscriptionTable, "evict", "                words[STATE_OF[place]] = LOST\n", "                pass\n"),
    ],
)
def test_an_unchecked_copy_is_caught(outcomes, monkeypatch, owner, name, old, new):
    """A copy that is not checked afterwards, or a reader that is not marked before its events are overwritten, is seen."""
    mutant(monkeypatch, owner, name, old, new)
    found = outcomes(evicting, asymmetric=True)
    assert set(found) - {((b"0", b"1"), SubscriptionState.LOST), ("lost", SubscriptionState.LOST)}


# ---------------------------------------------------------------- oversized events


def freeing(patch: pytest.MonkeyPatch) -> Callable[[Memory], Any]:
    def scenario(memory: Memory) -> Any:
        stage = Stage(memory, capacity=2, readers=2)
        readers = [stage.reader(1), stage.reader(2)]
        stage.put(b"ab")
        stage.slots["flags"][0::4] = SlotFlag.OVERSIZED
        stage.words[OVERSIZED] = 0
        removed: list[str] = []
        patch.setattr(shmstore.overflow, "_remove", removed.append)
        for reader in readers:
            reader._reader.available()
            reader._reader.get = 0
            stage.words[GET_OF[reader.place]] = 0

        return (
            {"one": lambda: readers[0].ack(0), "two": lambda: readers[1].ack(0)},
            lambda m: bool(removed),
        )

    return scenario


def test_of_two_acks_one_frees_the_overflow(outcomes, monkeypatch):
    """The segment of an oversized event is removed by one of two acks that come at once, never by none."""
    assert set(outcomes(freeing(monkeypatch))) == {True}


def test_a_free_without_order_is_caught(outcomes, monkeypatch):
    """Two acks that look at each other before their own is visible leave the segment behind."""
    mutant(
        monkeypatch, shmstore.subscription.Subscription, "ack", "            fence()  # our ack", "            pass  # our ack"
    )
    assert False in outcomes(freeing(monkeypatch), asymmetric=True)
