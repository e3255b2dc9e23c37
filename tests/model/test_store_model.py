"""Store and model driven together by Hypothesis: every verb, several subscriptions, both modes, tiny rings that wrap.

After each step both must agree on every cursor, every count and every byte. `SHMSTORE_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shmstore import (
    SLOT,
    AckError,
    Batch,
    BatchMode,
    BatchTooLarge,
    EventStore,
    Position,
    PositionNotFound,
    ProducerInUse,
    SlotFlag,
    StoreFull,
    Subscription,
    SubscriptionInUse,
    SubscriptionNotFound,
)
from shmstore.layout import MAX_SEQUENCE
from shmstore.overflow import overflows
from tests.model.store_model import Stored, StoreModel

NAMES = ("a", "b", "c")
FILE = "binlog.000003"


class Machine(RuleBasedStateMachine):
    """One store, one model, up to three subscriptions; each batch is remembered with who got it."""

    batches = Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        self.store: EventStore | None = None
        self.name = f"model-{os.getpid()}"
        self.numbers = random.Random(0)

    @initialize(
        power=st.integers(0, 4),
        unit=st.sampled_from([1, 3, 16, 64]),
        mode=st.sampled_from(BatchMode),
        isolation=st.booleans(),
        checksum=st.booleans(),
        first=st.sampled_from([0, 0, 1, 2**31 - 5, 2**32 - 5, 2**53 - 5, MAX_SEQUENCE - 2**20]),
    )
    def create(self, power: int, unit: int, mode: BatchMode, isolation: bool, checksum: bool, first: int) -> None:
        capacity = 2**power
        self.options = {
            "capacity": capacity, "memory_unit": unit, "batch_mode": mode, "ddl_isolation": isolation,
            "checksum": checksum, "first_sequence": first,
        }  # fmt: skip
        self.store = EventStore.create(self.name, **self.options)
        self.mode, self.unit, self.checksum = mode, unit, checksum
        self.model = StoreModel(capacity, capacity * unit, ddl_isolation=isolation, first=first)
        self.producer = self.store
        self.other = EventStore.attach(self.name)
        self.subscriptions: dict[str, Subscription] = {}
        self.offset = 0
        self.valid: dict[int, bool] = {}
        self.seen: list[tuple[str, int, Batch]] = []

    def teardown(self) -> None:
        if self.store is not None:
            self.producer.close()
            self.store.close()
            self.other.close()
            EventStore.unlink(self.name)

    # ------------------------------------------------------------ put

    def made(self, size: int, rows: int = 1, *, ddl: bool = False) -> Stored:
        payload = self.numbers.randbytes(size)
        return Stored(payload, rows, ddl, self.model.charge(payload))

    def agree(self, events: list[Stored], put: object) -> None:
        model, before = self.model, self.model.newest
        if not model.can_ever_fit(events):
            with pytest.raises(BatchTooLarge):
                put()  # type: ignore[operator]
        elif not model.fits(events):
            with pytest.raises(StoreFull):
                put()  # type: ignore[operator]
        else:
            assert put() == before + len(events)  # type: ignore[operator]
            model.events += events

    @rule(size=st.integers(1, 70))
    def put_one(self, size: int) -> None:
        event = self.made(size)
        self.agree([event], lambda: self.producer.put(event.payload, timeout=0))

    @rule(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=9))
    def put_many(self, sizes: list[int]) -> None:
        events = [self.made(size) for size in sizes]
        self.agree(events, lambda: self.producer.put([event.payload for event in events], timeout=0))

    @rule(plan=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5), st.booleans()), min_size=1, max_size=9))
    def put_encoded(self, plan: list[tuple[int, int, bool]]) -> None:
        events = [self.made(size, rows, ddl=ddl) for size, rows, ddl in plan]
        slots = np.zeros(len(events), SLOT)
        slots["size"] = [len(event.payload) for event in events]
        slots["rows"] = [event.rows for event in events]
        slots["flags"] = [int(SlotFlag.DDL) if event.ddl else 0 for event in events]
        slots["file"] = 3
        slots["offset"] = self.model.newest - self.model.first + 2 + np.arange(len(events))
        blob = b"".join(event.payload for event in events)
        self.agree(events, lambda: self.producer.put_encoded(blob, slots, timeout=0))

    @rule(extra=st.integers(1, 5000), ddl=st.booleans())
    def put_oversized(self, extra: int, ddl: bool) -> None:
        event = self.made(self.model.limit + extra, 7, ddl=ddl)
        slots = np.zeros(1, SLOT)
        slots["size"], slots["rows"], slots["flags"] = len(event.payload), 7, int(SlotFlag.DDL) if ddl else 0
        self.agree([event], lambda: self.producer.put_encoded(event.payload, slots, timeout=0))

    @rule()
    def put_nothing(self) -> None:
        assert self.producer.put([]) == self.model.newest
        with pytest.raises(ValueError, match="bytes"):
            self.producer.put(b"")

    # ------------------------------------------------------------ subscribe, unsubscribe, close

    @rule(name=st.sampled_from(NAMES), start=st.sampled_from(["earliest", "latest", "sequence"]), offset=st.integers(-3, 20))
    def subscribe(self, name: str, start: str, offset: int) -> None:
        model, store = self.model, self.other
        if name in self.subscriptions:
            with pytest.raises(SubscriptionInUse):
                store.subscribe(name)
            return
        wanted: str | int = model.acked + 1 + offset if start == "sequence" else start
        if name in model.readers:
            self.subscriptions[name] = store.subscribe(name, start=wanted)
            model.reopen(name)
            return
        if isinstance(wanted, int) and not model.acked + 1 <= wanted <= model.newest + 1:
            with pytest.raises(PositionNotFound):
                store.subscribe(name, start=wanted)
            return
        self.subscriptions[name] = store.subscribe(name, start=wanted)
        model.subscribe(
            name, {"earliest": model.acked, "latest": model.newest}.get(start, 0) if isinstance(wanted, str) else wanted - 1
        )

    @rule(name=st.sampled_from(NAMES))
    def close(self, name: str) -> None:
        if name in self.subscriptions:
            self.subscriptions.pop(name).close()
            self.model.readers[name].open = False

    @rule(name=st.sampled_from(NAMES))
    def unsubscribe(self, name: str) -> None:
        if name in self.subscriptions:
            with pytest.raises(SubscriptionInUse):
                self.other.unsubscribe(name)
        elif name not in self.model.readers:
            with pytest.raises(SubscriptionNotFound):
                self.other.unsubscribe(name)
        else:
            self.other.unsubscribe(name)
            self.model.unsubscribe(name)

    @rule()
    def clear(self) -> None:
        if self.subscriptions:
            with pytest.raises(SubscriptionInUse):
                self.other.clear()
        else:
            self.other.clear()
            self.model.clear()

    @rule()
    def reattach(self) -> None:
        """All readers' process goes, another comes: subscriptions go on at their acks."""
        names = list(self.subscriptions)
        self.other.close()
        self.other = EventStore.attach(self.name)
        for name in names:
            self.subscriptions[name] = self.other.subscribe(name)
            self.model.reopen(name)

    @rule()
    def restart_producer(self) -> None:
        if self.producer.stat().producer_alive:
            with EventStore.attach(self.name) as second, pytest.raises(ProducerInUse):
                second.put(b"x")
        self.producer.close()
        self.producer = EventStore.attach(self.name)

    # ------------------------------------------------------------ get

    @rule(
        target=batches,
        name=st.sampled_from(NAMES),
        limit=st.none() | st.integers(1, 12),
        limit_events=st.none() | st.integers(1, 12),
        limit_bytes=st.none() | st.integers(1, 200),
        min_events=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def get(self, name: str, limit: int | None, limit_events: int | None, limit_bytes: int | None, min_events: int) -> object:
        if name not in self.subscriptions:
            return multiple()
        model, reader = self.model, self.subscriptions[name]
        events, size = limit_events, limit_bytes
        if limit is not None and self.mode is BatchMode.ITEMSIZE:
            events = limit if events is None else min(events, limit)
        elif limit is not None:
            size = limit * self.unit if size is None else min(size, limit * self.unit)
        if min_events > min(model.capacity, events if events is not None else model.capacity):
            with pytest.raises(ValueError, match="min_events"):
                reader.get(limit, limit_events=limit_events, limit_bytes=limit_bytes, min_events=min_events, timeout=0)
            return multiple()
        get, most = model.readers[name].get, model.takes(name, events, size)
        batch = reader.get(limit, limit_events=limit_events, limit_bytes=limit_bytes, min_events=min_events, timeout=0)
        # A reader may go by what it saw when it last looked: then it gets fewer than there are by now, but some.
        assert batch.first == get + 1
        assert get + (most > get) <= batch.last <= most
        if limit is not None or min_events > 1 or most == get:
            assert batch.last == most
        model.readers[name].get = batch.last
        self.same(batch, model.run(batch.first, batch.last))
        if not batch:
            return multiple()
        number = len(self.valid)
        self.valid[number] = True
        self.seen.append((name, number, batch))
        return name, number, batch, reader

    def same(self, batch: Batch, wanted: list[Stored]) -> None:
        assert len(batch) == len(wanted)
        assert [bytes(payload) for payload in batch.payloads()] == [event.payload for event in wanted]
        assert bytes(batch.raw) == b"".join(event.payload for event in wanted)
        assert batch.slots["rows"].tolist() == [event.rows for event in wanted]
        assert batch.rows == sum(event.rows for event in wanted)
        assert batch.ends.tolist() == np.cumsum([len(event.payload) for event in wanted]).astype(int).tolist()
        points = [batch.first + i for i, event in enumerate(wanted) if event.ddl]
        assert batch.ack_point == (points[-1] if points else None)

    # ------------------------------------------------------------ ack, rollback

    def known(self, got: object) -> tuple[str, int, Batch, bool]:
        """The batch, and whether it may still be acked: its reader is the same, and no rollback took it back."""
        name, number, batch, reader = got  # type: ignore[misc]
        valid = self.subscriptions.get(name) is reader and self.valid[number]
        return name, number, batch, valid

    @rule(got=batches)
    def ack_batch(self, got: object) -> None:
        name, _, batch, valid = self.known(got)
        if name not in self.subscriptions:
            return
        reader = self.model.readers[name]
        if got[3] is not self.subscriptions[name]:  # type: ignore[index]
            return  # a batch of an earlier life of the reader is an ack by sequence: covered by the next rule
        if valid and reader.ack < batch.last <= reader.get:
            self.subscriptions[name].ack(batch)
            reader.ack = batch.last
        else:
            with pytest.raises(AckError):
                self.subscriptions[name].ack(batch)

    @rule(name=st.sampled_from(NAMES), offset=st.integers(-3, 20))
    def ack_sequence(self, name: str, offset: int) -> None:
        if name not in self.subscriptions:
            return
        reader = self.model.readers[name]
        sequence = reader.ack + offset
        if reader.ack < sequence <= reader.get:
            self.subscriptions[name].ack(sequence)
            reader.ack = sequence
        else:
            with pytest.raises(AckError):
                self.subscriptions[name].ack(sequence)

    @rule(name=st.sampled_from(NAMES), sequence=st.integers(0, 60))
    def ack_position(self, name: str, sequence: int) -> None:
        """Only events put with put_encoded have a position: it is their number."""
        if name not in self.subscriptions:
            return
        reader, model = self.model.readers[name], self.model
        wanted = model.first + sequence
        slots = self.other.segment.views.slots
        held = [
            s
            for s in range(reader.get, reader.ack, -1)
            if int(slots["offset"][s & (self.other.segment.views.places - 1)]) == sequence + 1
        ]
        if held:
            assert held == [wanted]
            self.subscriptions[name].ack(Position(FILE, sequence + 1))
            reader.ack = wanted
        else:
            with pytest.raises(AckError):
                self.subscriptions[name].ack(Position(FILE, sequence + 1))

    @rule(name=st.sampled_from(NAMES))
    def rollback(self, name: str) -> None:
        if name not in self.subscriptions:
            return
        reader = self.model.readers[name]
        self.subscriptions[name].rollback()
        reader.get = reader.ack
        self.take_back(name, reader.ack)

    @rule(got=batches)
    def rollback_batch(self, got: object) -> None:
        name, _, batch, valid = self.known(got)
        if name not in self.subscriptions or got[3] is not self.subscriptions[name]:  # type: ignore[index]
            return
        reader = self.model.readers[name]
        if valid and reader.ack <= batch.first - 1 <= reader.get:
            self.subscriptions[name].rollback(batch)
            reader.get = batch.first - 1
            self.take_back(name, batch.first - 1)
        else:
            with pytest.raises(AckError):
                self.subscriptions[name].rollback(batch)

    def take_back(self, name: str, to: int) -> None:
        for whose, number, batch in self.seen:
            if whose == name and batch.last > to:
                self.valid[number] = False

    # ------------------------------------------------------------ peek

    @rule(offset=st.integers(-2, 20), limit_events=st.none() | st.integers(1, 9), limit_bytes=st.none() | st.integers(1, 99))
    def peek(self, offset: int, limit_events: int | None, limit_bytes: int | None) -> None:
        model = self.model
        first = model.acked + 1 + offset
        if not model.acked + 1 <= first <= model.newest + 1:
            with pytest.raises(PositionNotFound):
                self.other.peek(first, limit_events=limit_events, limit_bytes=limit_bytes)
            return
        batch = self.other.peek(first, limit_events=limit_events, limit_bytes=limit_bytes)
        wanted = model.run(first, model.newest)[:limit_events]
        if limit_bytes is not None:
            charges = np.cumsum([event.charge for event in wanted])
            wanted = wanted[: max(1, int(np.searchsorted(charges, limit_bytes, side="right")))]
        self.same(batch, wanted)

    # ------------------------------------------------------------ what must always hold

    @invariant()
    @precondition(lambda self: self.store is not None)
    def agrees(self) -> None:
        model, store = self.model, self.other
        assert (store.oldest, store.newest) == (model.acked + 1, model.newest)
        total = sum(event.charge for event in model.events)
        assert store.put_cursor[:3] == (model.newest, total, sum(event.rows for event in model.events))
        stat = store.stat()
        held = model.run(model.acked + 1, model.newest)
        assert stat.free_events == model.capacity - len(held)
        assert stat.free_bytes == model.limit - sum(event.charge for event in held)
        assert {s.name for s in stat.subscriptions} == set(model.readers)
        for each in stat.subscriptions:
            reader = model.readers[each.name]
            assert (each.ack.sequence, each.get.sequence) == (reader.ack, reader.get if reader.open else each.get.sequence)
            assert reader.ack <= each.get.sequence <= model.newest
            waiting = model.run(reader.ack + 1, model.newest)
            assert each.lag_events == len(waiting)
            assert each.lag_bytes == sum(event.charge for event in waiting)
            assert each.lag_rows == sum(event.rows for event in waiting)
            assert each.alive == reader.open
        big = [s for s in range(model.acked + 1, model.newest + 1) if len(model.at(s).payload) > model.limit]
        assert [sequence for _, sequence in overflows(store.segment)] == big
        assert store.check() == []


def run(profile: str) -> None:
    chosen = int(os.environ.get("SHMSTORE_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    print(f"SHMSTORE_SEED={chosen}")
    machine = seed(chosen)(Machine)
    phases = [Phase.explicit, Phase.generate, Phase.target, Phase.shrink]
    run_state_machine_as_test(
        machine, settings=settings(settings.get_profile(profile), database=None, phases=phases, print_blob=True)
    )


def test_store_and_model_agree():
    """In 150 random histories of up to 50 steps store and model agree on every cursor, count and byte."""
    run("model-ci")


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_store_and_model_agree_ten_thousand_times():
    """The same for 10,000 histories."""
    run("model-long")
