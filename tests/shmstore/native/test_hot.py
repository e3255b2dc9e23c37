"""The compiled hot path against its reference in Python: the same bytes, the same batches, the same refusals, whatever is in memory."""

from __future__ import annotations

import gc
import random
import weakref
from itertools import count
from typing import Any

import numpy as np
import pytest

import shmstore.memory.mapping
from shmstore import EventStore, ShmStoreError, StoreClosed, StoreCorrupt
from shmstore.memory.layout import DISARMED, SLOT, SlotFlag, header_word
from shmstore.memory.ordering import hot
from shmstore.ring.cursors import ACK_OF, ACK_WANTED, ARMED, FLOOR, GET_OF, OVERSIZED, PUT
from shmstore.ring.overflow import overflows
from tests.shmstore.samples import contents, leftovers

pytestmark = pytest.mark.skipif(not shmstore.memory.mapping.COMPILED, reason="no compiled hot path here")

CAPACITY, UNIT = 8, 64
HEARTBEAT = header_word("heartbeat_ms")
_numbers = count(1)


class Pair:
    """Two stores alike, one used through compiled code and one through the reference. What is done is done to both."""

    def __init__(self, patch: pytest.MonkeyPatch, **options: Any) -> None:
        self.names = [f"hot-{next(_numbers)}-{id(self):x}-{kind}" for kind in ("compiled", "pure")]
        self.stores = []
        for name, compiled in zip(self.names, (True, False), strict=True):
            patch.setattr(shmstore.memory.mapping, "COMPILED", compiled)
            self.stores.append(EventStore.create(name, **{"capacity": CAPACITY, "memory_unit": UNIT, **options}, log=False))
        self.readers = [store.subscribe("r") for store in self.stores]
        assert [store.segment.views.native is None for store in self.stores] == [False, True]

    def both(self, do: Any) -> Any:
        """Do it on each side; the outcomes must be alike, and so must the words and rings afterwards."""
        outcomes = [outcome(do, store, reader) for store, reader in zip(self.stores, self.readers, strict=True)]
        assert outcomes[0] == outcomes[1]
        assert self.memory(0) == self.memory(1)
        return outcomes[0]

    def memory(self, side: int) -> list[bytes]:
        views = self.stores[side].segment.views
        words = [views.words[at] for at in (PUT, ARMED, OVERSIZED, ACK_WANTED, FLOOR, GET_OF[1], ACK_OF[1])]
        words += [sequence for _, sequence in overflows(self.stores[side].segment)]
        return [repr(words).encode(), bytes(views.ends), bytes(views.rows), bytes(views.slot_bytes), bytes(views.arena)]

    def close(self) -> None:
        for name, store in zip(self.names, self.stores, strict=True):
            store.close()
            EventStore.unlink(name)
            assert leftovers(name) == []


def outcome(do: Any, store: EventStore, reader: Any) -> Any:
    try:
        return do(store, reader)
    except (ShmStoreError, ValueError, TypeError, AttributeError) as error:
        return type(error)


@pytest.fixture
def pair(monkeypatch):
    pairs = []

    def make(**options):
        pairs.append(Pair(monkeypatch, **options))
        return pairs[-1]

    yield make
    for each in pairs:
        each.close()


def random_encoded(rng: random.Random, payloads: list[bytes]) -> tuple[Any, np.ndarray]:
    """Payloads back to back, as bytes or a view of them, with slot records; now and then the two do not belong together."""
    slots = np.zeros(len(payloads), SLOT)
    slots["size"] = [len(payload) for payload in payloads]
    slots["rows"] = [rng.choice((0, 1, 7, 2**32 - 1)) for _ in payloads]
    slots["time"], slots["offset"], slots["file"] = rng.randrange(2**41), rng.randrange(2**40), rng.randrange(2**20)
    slots["flags"] = [rng.choice((0, 0, int(SlotFlag.DDL | SlotFlag.ACK_POINT))) for _ in payloads]
    blob = b"".join(payloads)
    wrong = rng.randrange(20)
    if wrong == 0:
        slots["size"][0] += 1
    elif wrong == 1:
        slots = slots[:-1]
    elif wrong == 2:
        slots = slots.view(np.uint8)
    elif wrong == 3:
        slots = np.repeat(slots, 2)[::2]  # not contiguous, and right
    return rng.choice((bytes, bytearray, memoryview))(blob), slots


def random_step(rng: random.Random) -> Any:
    """A put, a get with its looks at the payloads, an ack or a rollback, as a function of store and reader."""
    sizes = [
        rng.choice((0, 1, 5, 20, 64, 65, 300, 600)) if rng.random() < 0.3 else rng.randrange(1, 60)
        for _ in range(rng.randrange(1, 10))
    ]
    payloads = [bytes([rng.randrange(256)]) * size for size in sizes]
    limit = rng.choice((None, None, 0, 1, 2, 5, -(2**70), 2**70))
    odd = rng.choice(([b"x", "y"], (b"x", b"y"), [], "text", [b"x", b""], bytearray(b"z"), None))
    back = rng.random() < 0.2
    encoded = random_encoded(rng, payloads)

    def take(store, reader):
        batch = reader.get(limit_events=limit, timeout=0)
        seen = (
            batch.first,
            batch.last,
            len(batch),
            batch.id,
            bytes(batch.raw) if batch else b"",
            contents(batch) if batch else [],
        )
        if back:
            reader.rollback(batch if batch else None)
        elif batch:
            reader.ack(batch)
        return seen

    return rng.choice(
        (
            lambda store, reader: store.put(payloads[0], timeout=0),
            lambda store, reader: store.put(payloads, timeout=0),
            lambda store, reader: store.put(odd, timeout=0),
            lambda store, reader: store.put_encoded(*encoded, timeout=0),
            lambda store, reader: store.put_encoded(*encoded, timeout=0),
            take,
            take,
            take,
        )
    )


@pytest.mark.parametrize(
    "options", [{}, {"ddl_isolation": True}, {"checksum": True}, {"lag": "evict"}, {"memory_unit": 1}], ids=str
)
def test_every_step_is_the_reference_step(pair, options, seed: int):
    """Random puts, gets, acks and rollbacks leave the same bytes in memory and give the same batches and errors."""
    rng, stores = random.Random(seed), pair(**options)
    for _ in range(400):
        stores.both(random_step(rng))


def test_forged_memory_is_refused_alike(pair, seed: int):
    """Whatever another process writes over words and ends: compiled code refuses what the reference refuses, and reads no further."""
    rng = random.Random(seed)
    for _ in range(60):
        stores = pair()
        for _ in range(3):
            stores.both(random_step(rng))
        stores.both(lambda store, reader: store.put([b"one", b"two", b"three"], timeout=0))
        for _ in range(rng.randrange(1, 4)):
            value = rng.choice((-(2**63), -1, 0, 1, 7, 2**31, 2**62, 2**63 - 1, rng.randrange(-(2**63), 2**63)))
            if rng.random() < 0.5:
                word = rng.choice((PUT, OVERSIZED, ACK_WANTED))
                stores.both(lambda store, reader, word=word, value=value: store.segment.words.__setitem__(word, value))
            else:
                slot = rng.randrange(12)
                stores.both(lambda store, reader, slot=slot, value=value: store.segment.views.ends.__setitem__(slot, value))
        for _ in range(4):
            outcomes = [
                outcome(random_step(random.Random(rng.random())), *side)
                for side in zip(stores.stores, stores.readers, strict=True)
            ]
            del outcomes  # a forged cursor may be found by one a call earlier than by the other: no crash is what counts
        stores.stores[0].segment.words[ACK_WANTED] = stores.stores[1].segment.words[ACK_WANTED] = DISARMED


def test_ends_that_contradict_each_other_are_corrupt(pair):
    """An end outside of its batch ends the walk over the payloads, compiled or not."""
    for forged in (-5, 2**40, 2**63 - 1, -(2**63)):
        stores = pair()
        stores.both(lambda store, reader: store.put([b"one", b"two", b"three"]))

        def read(store, reader, forged=forged):
            batch = reader.get(timeout=0)
            store.segment.views.ends[1] = forged
            assert bytes(batch.raw) == b"onetwothree"
            return contents(batch)

        assert stores.both(read) is StoreCorrupt


def batch_of(pair, payloads):
    stores = pair(memory_unit=1024)
    stores.stores[0].put(payloads)
    return stores.readers[0].get(timeout=0)


PAYLOADS = [b"a" * 10, b"bb" * 10, b"c", b"dddd", b"e" * 100]


def test_payloads_that_are_kept_stay_as_they_are(pair):
    """A view of a payload is used again for another only when no code can see the difference: not while it, a part of it, or a reference lives."""
    batch = batch_of(pair, PAYLOADS)
    assert [bytes(view) for view in list(batch.payloads())] == PAYLOADS
    for keep in (
        lambda view: view,
        lambda view: view[1:],
        memoryview,
        np.asarray,
        lambda view: view.cast("b"),
        lambda view: (view, weakref.ref(view)),
    ):
        kept = [(payload, keep(view)) for payload, view in zip(PAYLOADS, batch.payloads(), strict=True)]
        for payload, had in kept:
            if isinstance(had, tuple):
                assert had[1]() is had[0]
            else:
                seen = bytes(had)
                assert seen in (payload, payload[1:])
    references = [weakref.ref(view) for view in batch.payloads()]
    assert all(reference() is None for reference in references[:-3])


def test_payloads_that_are_not_kept_cost_nothing(pair):
    """Of views that no code keeps there are three."""
    batch = batch_of(pair, PAYLOADS)
    assert len({id(view) for view in batch.payloads()}) == 3


def test_a_released_payload_is_not_used_again(pair):
    """Who releases a view, as `with` does, does not spoil the ones after it."""
    batch = batch_of(pair, PAYLOADS)
    seen = []
    for view in batch.payloads():
        with view:
            seen.append(bytes(view))
    assert seen == PAYLOADS


def test_payloads_outlive_the_store(pair):
    """A batch and its views keep the memory, after everything else was closed and collected."""
    stores = pair(memory_unit=1024)
    stores.stores[0].put(PAYLOADS)
    walk = stores.readers[0].get(timeout=0).payloads()
    first = next(walk)
    for store in stores.stores:
        store.close()
    stores.readers.clear()
    gc.collect()
    assert [bytes(first), *map(bytes, walk)] == PAYLOADS


def test_a_closed_store_and_reader_stay_closed(pair):
    """Bound methods kept from before close() raise StoreClosed after it; nothing is written."""
    stores = pair()
    store, reader = stores.stores[0], stores.readers[0]
    put, get, ack = store.put, reader.get, reader.ack
    put(b"x")
    batch = get()
    segment = store.segment  # whose memory stays for as long as it is held
    reader.close()
    store.close()
    store.segment = segment
    before = stores.memory(0)
    for call in (lambda: put(b"y"), get, lambda: ack(batch)):
        with pytest.raises(StoreClosed):
            call()
    assert stores.memory(0) == before


def test_parts_that_do_not_fit_are_refused(pair):
    """Pointers are taken only from parts whose sizes belong together."""
    views = pair().stores[0].segment.views
    parts = [views.fixed, views.ends, views.rows, views.slot_bytes, views.arena]
    hot.Mapped(*parts, views.slot_count, views.capacity, views.arena_size, True)
    slots, arena = views.slot_count, views.arena_size
    for wrong in (
        (2 * slots, CAPACITY, arena),
        (slots, slots, arena),
        (slots, CAPACITY, 2 * arena),
        (0, 0, 0),
        (-slots, CAPACITY, arena),
    ):
        with pytest.raises(ValueError, match="fit"):
            hot.Mapped(*parts, *wrong, True)
    for i in range(5):
        with pytest.raises(ValueError, match="fit"):
            hot.Mapped(*parts[:i], parts[i][:-1], *parts[i + 1 :], views.slot_count, views.capacity, views.arena_size, True)


def test_words_keep_within_the_segment():
    """A word beyond the fixed part is refused, and what is stored through one object is loaded through the other."""
    pair = EventStore.create(name := f"hot-words-{next(_numbers)}", log=False)
    try:
        words, memory = pair.segment.words, pair.segment.views.fixed.cast("q")
        assert type(words) is hot.Words
        assert len(words) == len(memory)
        words[HEARTBEAT] = -(2**63)
        assert (words[HEARTBEAT], memory[HEARTBEAT]) == (-(2**63),) * 2
        for wrong in (len(words), -1, 2**62):
            with pytest.raises(IndexError):
                words[wrong]
            with pytest.raises(IndexError):
                words[wrong] = 1
        with pytest.raises(OverflowError):
            words[HEARTBEAT] = 2**63
        with pytest.raises(TypeError):
            words[HEARTBEAT] = 1.5
    finally:
        EventStore.unlink(name)
