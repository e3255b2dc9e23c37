"""Store and model, to be driven together by Hypothesis: every verb, several subscriptions, both modes, tiny rings that wrap.

After each step both must agree on every cursor, every count and every byte. `Machine` is the ring alone; what else a store with a log is
asked, `tests.model.test_log_model` adds.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import shmstore.memory.mapping
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
    StoreClosed,
    StoreFull,
    StoreStat,
    Subscription,
    SubscriptionInUse,
    SubscriptionNotFound,
)
from shmstore.memory.layout import DISARMED, MAX_SEQUENCE
from shmstore.ring.cursors import ACK_WANTED
from shmstore.ring.overflow import overflows
from tests.model.store_model import Stored, StoreModel

COMPILED = shmstore.memory.mapping.COMPILED
NAMES = ("a", "b", "c")
FILE = "binlog.000003"


def if_any(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A rule that does nothing where the machine has none of them. A precondition must not depend on how fast a log is written."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def guarded(machine: Machine, **given: Any) -> None:
            if getattr(machine, what):
                body(machine, **given)

        return guarded

    return decorate


class Machine(RuleBasedStateMachine):
    """One store, one model, up to three subscriptions; each batch is remembered with who got it."""

    log = False
    patience = 0.0  # seconds that a put may wait for free space

    def __init__(self) -> None:
        super().__init__()
        self.store: EventStore | None = None
        self.name = f"model-{os.getpid()}"
        self.numbers = random.Random(0)
        self.subscriptions: dict[str, Subscription] = {}
        self.got: list[tuple[str, Batch, Subscription]] = []
        self.stale: set[int] = set()

    @initialize(
        power=st.sampled_from([0, 1, 2, 3, 3, 4, 4, 5]),
        unit=st.sampled_from([1, 3, 16, 16, 64]),
        mode=st.sampled_from(BatchMode),
        isolation=st.booleans(),
        checksum=st.booleans(),
        readers=st.integers(0, 2),
        first=st.sampled_from([0, 0, 1, 2**31 - 5, 2**32 - 5, 2**53 - 5, MAX_SEQUENCE - 2**20]),
        compiled=st.tuples(st.booleans(), st.booleans()),
    )
    def create(
        self,
        power: int,
        unit: int,
        mode: BatchMode,
        isolation: bool,
        checksum: bool,
        readers: int,
        first: int,
        compiled: tuple[bool, bool],
    ) -> None:
        self.compiled = compiled
        self.choose(compiled[0])
        capacity = 2**power
        self.options = {
            "capacity": capacity, "memory_unit": unit, "batch_mode": mode, "ddl_isolation": isolation,
            "checksum": checksum, "first_sequence": first,
        }  # fmt: skip
        self.store = EventStore.create(self.name, **self.options, log=self.log)
        self.mode, self.unit, self.checksum = mode, unit, checksum
        self.model = StoreModel(capacity, capacity * unit, ddl_isolation=isolation, first=first, log=self.log)
        self.producer = self.store
        self.choose(compiled[1])
        self.other = EventStore.attach(self.name)
        for name in NAMES[:readers]:
            self.subscribe(name, "earliest", 0)

    def teardown(self) -> None:
        shmstore.memory.mapping.COMPILED = COMPILED
        if self.store is not None:
            self.producer.close()
            self.store.close()
            self.other.close()
            EventStore.unlink(self.name, log=self.log)

    def choose(self, compiled: bool) -> None:
        """Let who attaches next have the compiled hot path, where there is one, or not: each kind must work with the other."""
        shmstore.memory.mapping.COMPILED = compiled and COMPILED

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

    @rule(
        how=st.sampled_from(["one", "many", "encoded", "encoded", "oversized"]),
        plan=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5), st.booleans()), min_size=1, max_size=9),
    )
    def put(self, how: str, plan: list[tuple[int, int, bool]]) -> None:
        if how == "one":
            event = self.made(plan[0][0])
            self.agree([event], lambda: self.producer.put(event.payload, timeout=self.patience))
        elif how == "many":
            events = [self.made(size) for size, _, _ in plan]
            self.agree(events, lambda: self.producer.put([event.payload for event in events], timeout=self.patience))
        elif how == "oversized":
            size, rows, ddl = plan[0]
            self.put_encoded([self.made(self.model.limit + size**3, rows, ddl=ddl)])
        else:
            self.put_encoded([self.made(size, rows, ddl=ddl) for size, rows, ddl in plan])

    def put_encoded(self, events: list[Stored]) -> None:
        slots = np.zeros(len(events), SLOT)
        slots["size"] = [len(event.payload) for event in events]
        slots["rows"] = [event.rows for event in events]
        slots["flags"] = [int(SlotFlag.DDL) if event.ddl else 0 for event in events]
        slots["file"] = 3
        slots["offset"] = self.model.newest - self.model.first + 2 + np.arange(len(events))
        blob = b"".join(event.payload for event in events)
        self.agree(events, lambda: self.producer.put_encoded(blob, slots, timeout=self.patience))

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
        wanted: str | int = model.oldest + offset if start == "sequence" else start
        if name in model.readers:
            self.subscriptions[name] = store.subscribe(name, start=wanted)
            model.reopen(name)
            return
        if isinstance(wanted, int) and not model.oldest <= wanted <= model.newest + 1:
            with pytest.raises(PositionNotFound):
                store.subscribe(name, start=wanted)
            return
        self.subscriptions[name] = store.subscribe(name, start=wanted)
        model.subscribe(
            name, {"earliest": model.oldest - 1, "latest": model.newest}.get(start, 0) if isinstance(wanted, str) else wanted - 1
        )

    @rule(
        what=st.sampled_from(["close", "close", "unsubscribe", "unsubscribe", "clear", "reattach", "restart", "nothing"]),
        name=st.sampled_from(NAMES),
    )
    def administer(self, what: str, name: str) -> None:
        match what:
            case "close":
                self.close(name)
            case "unsubscribe":
                self.unsubscribe(name)
            case "clear":
                self.clear()
            case "reattach":
                self.reattach()
            case "restart":
                self.restart_producer()
            case _:
                self.put_nothing()

    def close(self, name: str) -> None:
        if name in self.subscriptions:
            self.subscriptions.pop(name).close()
            self.model.readers[name].open = False

    def unsubscribe(self, name: str) -> None:
        if name in self.subscriptions:
            with pytest.raises(SubscriptionInUse):
                self.other.unsubscribe(name)
        elif name not in self.model.readers:
            with pytest.raises(SubscriptionNotFound):
                self.other.unsubscribe(name)
        else:
            wish = self.other.segment.words[ACK_WANTED]
            self.other.unsubscribe(name)
            self.model.unsubscribe(name, -1 if wish == DISARMED else wish)

    def clear(self) -> None:
        if self.subscriptions:
            with pytest.raises(SubscriptionInUse):
                self.other.clear()
        else:
            self.other.clear()
            self.model.clear()

    def reattach(self) -> None:
        """All readers' process goes, another comes: subscriptions continue at their acks."""
        names = list(self.subscriptions)
        self.other.close()
        self.choose(self.compiled[1])
        self.other = EventStore.attach(self.name)
        for name in names:
            self.subscriptions[name] = self.other.subscribe(name)
            self.model.reopen(name)

    def restart_producer(self) -> None:
        if self.producer.stat().producer_alive:
            with EventStore.attach(self.name) as second, pytest.raises(ProducerInUse):
                second.put(b"x")
        self.producer.close()
        self.choose(self.compiled[0])
        self.producer = EventStore.attach(self.name)

    # ------------------------------------------------------------ get

    @precondition(lambda self: self.log or self.subscriptions)
    @rule(
        who=st.integers(0, 2),
        limit=st.none() | st.integers(1, 12),
        limit_events=st.none() | st.integers(1, 12),
        limit_bytes=st.none() | st.integers(1, 40),
        min_events=st.sampled_from([1, 1, 1, 2, 3]),
    )
    @if_any("subscriptions")
    def get(self, who: int, limit: int | None, limit_events: int | None, limit_bytes: int | None, min_events: int) -> None:
        self.take(self.reading(who), limit, limit_events, limit_bytes, min_events)

    def take(self, name: str, limit: int | None, limit_events: int | None, limit_bytes: int | None, min_events: int) -> None:
        model, reader = self.model, self.subscriptions[name]
        events, size = limit_events, limit_bytes
        if limit is not None:
            events = limit if events is None else min(events, limit)
        if min_events > min(model.capacity, events if events is not None else model.capacity):
            with pytest.raises(ValueError, match="min_events"):
                reader.get(limit, limit_events=limit_events, limit_bytes=limit_bytes, min_events=min_events, timeout=0)
            return
        last = model.takes(name, events, size, looks=min_events > 1)
        batch = reader.get(limit, limit_events=limit_events, limit_bytes=limit_bytes, min_events=min_events, timeout=0)
        self.extends(name, batch, last, events, size)
        model.readers[name].get = batch.last
        self.same(batch, model.run(batch.first, batch.last))
        if batch:
            self.got.append((name, batch, reader))

    def extends(self, name: str, batch: Batch, last: int, limit_events: int | None, limit_bytes: int | None) -> None:
        """The batch goes from behind the reader's get to `last`, where the model has its end."""
        assert (batch.first, batch.last) == (self.model.readers[name].get + 1, last)

    def reading(self, who: int) -> str:
        names = sorted(self.subscriptions)
        return names[who % len(names)]

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

    @rule(rounds=st.integers(1, 12), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4))
    def flow(self, rounds: int, sizes: list[int]) -> None:
        """All readers read, most ack, the producer puts what fits: the ring wraps around."""
        for turn in range(rounds):
            for name in sorted(self.subscriptions):
                self.take(name, None, None, None, 1)
                if turn % 3 < 2 and self.model.readers[name].ack < self.model.readers[name].get:
                    self.subscriptions[name].ack(self.model.readers[name].get)
                    self.model.readers[name].ack = self.model.readers[name].get
            self.put_encoded([self.made(size, size % 3, ddl=size % 5 == 0) for size in sizes])

    def batch(self, which: int) -> tuple[str, Batch, Subscription, bool]:
        """One of the last batches, and whether it may be acked: no rollback took it back."""
        name, batch, reader = self.got[-1 - which % min(len(self.got), 8)]
        return name, batch, reader, id(batch) not in self.stale

    @precondition(lambda self: self.log or self.subscriptions)
    @rule(who=st.integers(0, 2), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), limit=st.integers(1, 12))
    @if_any("subscriptions")
    def put_and_get_by_bytes(self, who: int, sizes: list[int], limit: int) -> None:
        self.put_encoded([self.made(size) for size in sizes])
        self.take(self.reading(who), None, None, limit, 1)

    @precondition(lambda self: self.log or self.got)
    @rule(which=st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7]))
    @if_any("got")
    def ack(self, which: int) -> None:
        self.try_ack(which)

    def try_ack(self, which: int) -> None:
        name, batch, subscription, valid = self.batch(which)
        if self.subscriptions.get(name) is not subscription:
            with pytest.raises((StoreClosed, AckError)):
                subscription.ack(batch)
            return
        reader = self.model.readers[name]
        if valid and reader.ack < batch.last <= reader.get:
            subscription.ack(batch)
            reader.ack = batch.last
        else:
            with pytest.raises(AckError):
                subscription.ack(batch)

    @precondition(lambda self: self.log or self.subscriptions)
    @rule(who=st.integers(0, 2), offset=st.integers(-3, 9), by_position=st.booleans())
    @if_any("subscriptions")
    def ack_up_to(self, who: int, offset: int, by_position: bool) -> None:
        name = self.reading(who)
        reader, model = self.model.readers[name], self.model
        sequence = reader.ack + offset
        # Only events put with put_encoded have a position: their number.
        ends = self.offset_of(sequence)
        known = not by_position or ends == sequence - model.first + 1
        what = Position(FILE, sequence - model.first + 1) if by_position else sequence
        if reader.ack < sequence <= reader.get and known:
            self.subscriptions[name].ack(what)
            reader.ack = sequence
        else:
            with pytest.raises(AckError):
                self.subscriptions[name].ack(what)

    def offset_of(self, sequence: int) -> int:
        return int(self.other.segment.views.slots["offset"][sequence & (self.other.segment.views.slot_count - 1)])

    @precondition(lambda self: self.log or self.got)
    @rule(which=st.integers(0, 7), everything=st.booleans())
    @if_any("got")
    def rollback(self, which: int, everything: bool) -> None:
        self.try_rollback(which, everything)

    @precondition(lambda self: self.log or self.subscriptions)
    @rule(
        who=st.integers(0, 2),
        gets=st.lists(st.integers(1, 3), min_size=2, max_size=4),
        back=st.integers(0, 3),
        everything=st.booleans(),
        again=st.lists(st.integers(1, 3), min_size=1, max_size=2),
        order=st.lists(st.integers(0, 7), min_size=2, max_size=5),
    )
    @if_any("subscriptions")
    def redo(self, who: int, gets: list[int], back: int, everything: bool, again: list[int], order: list[int]) -> None:
        """Get, roll some of it back, get again, and try to ack the old and the new in any order."""
        name = self.reading(who)
        for limit in gets:
            self.take(name, None, limit, None, 1)
        if self.got:
            self.try_rollback(back, everything)
        for limit in again:
            self.take(name, None, limit, None, 1)
        for which in order if self.got else ():
            self.try_ack(which)

    def try_rollback(self, which: int, everything: bool) -> None:
        name, batch, subscription, valid = self.batch(which)
        if self.subscriptions.get(name) is not subscription:
            with pytest.raises((StoreClosed, AckError)):
                subscription.rollback(None if everything else batch)
            return
        reader = self.model.readers[name]
        to = reader.ack if everything else batch.first - 1
        if everything or (valid and reader.ack <= to <= reader.get):
            subscription.rollback(None if everything else batch)
            reader.get = to
            self.stale |= {id(taken) for whose, taken, _ in self.got if whose == name and taken.last > to}
        else:
            with pytest.raises(AckError):
                subscription.rollback(batch)

    @precondition(lambda self: self.log or self.subscriptions)
    @rule(who=st.integers(0, 2), offset=st.integers(-2, 12), start=st.sampled_from(["sequence", "sequence", "text", "latest"]))
    @if_any("subscriptions")
    def seek(self, who: int, offset: int, start: str) -> None:
        """Continue elsewhere: what lies before is acked, what was got is given again."""
        name = self.reading(who)
        reader, subscription = self.model.readers[name], self.subscriptions[name]
        sequence = self.model.newest + 1 if start == "latest" else reader.ack + 1 + offset
        if (self.model.oldest if self.log else reader.ack + 1) <= sequence <= self.model.newest + 1:
            subscription.seek(start if start == "latest" else sequence if start == "sequence" else str(sequence))
            self.stale |= {id(taken) for whose, taken, _ in self.got if whose == name and (self.log or taken.last > reader.ack)}
            reader.ack = reader.get = reader.durable = sequence - 1
            if self.log:
                reader.seen = sequence - 1
        else:
            with pytest.raises(PositionNotFound):
                subscription.seek(sequence)

    @precondition(lambda self: self.log or self.subscriptions)
    @rule(who=st.integers(0, 2), offset=st.integers(-2, 9))
    @if_any("subscriptions")
    def rollback_to_a_sequence(self, who: int, offset: int) -> None:
        name = self.reading(who)
        reader, to = self.model.readers[name], self.model.readers[name].ack + offset
        if reader.ack <= to <= reader.get:
            self.subscriptions[name].rollback(to + 1)
            reader.get = to
            self.stale |= {id(taken) for whose, taken, _ in self.got if whose == name and taken.last > to}
        else:
            with pytest.raises(AckError):
                self.subscriptions[name].rollback(to + 1)

    # ------------------------------------------------------------ peek

    @rule(offset=st.integers(-2, 20), limit_events=st.none() | st.integers(1, 9), limit_bytes=st.none() | st.integers(1, 99))
    def peek(self, offset: int, limit_events: int | None, limit_bytes: int | None) -> None:
        model = self.model
        first = model.oldest + offset
        if not model.oldest <= first <= model.newest + 1:
            with pytest.raises(PositionNotFound):
                self.other.peek(first, limit_events=limit_events, limit_bytes=limit_bytes)
            return
        batch = self.other.peek(first, limit_events=limit_events, limit_bytes=limit_bytes)
        wanted = model.run(first, model.newest)[:limit_events]
        if limit_bytes is not None:
            charges = np.cumsum([event.charge for event in wanted])
            wanted = wanted[: max(1, int(np.searchsorted(charges, limit_bytes, side="right")))]
        if self.log and (limit_events is None or limit_bytes is not None):  # at most what one file has, and the ring's bytes
            assert len(batch) >= min(1, len(wanted))
            wanted = wanted[: len(batch)]
        self.same(batch, wanted)

    # ------------------------------------------------------------ what must always hold

    @invariant()
    @precondition(lambda self: self.store is not None)
    def agrees(self) -> None:
        model, store = self.model, self.other
        assert (store.oldest, store.newest) == (model.oldest, model.newest)
        total = sum(event.charge for event in model.events)
        assert store.put_cursor[:3] == (model.newest, total, sum(event.rows for event in model.events))
        stat = store.stat()
        self.holds(stat)
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
        assert store.check() == []

    def holds(self, stat: StoreStat) -> None:
        """What is in the ring and next to it is what some reader has not acked."""
        model = self.model
        held = model.run(model.acked + 1, model.newest)
        assert stat.free_events == model.capacity - len(held)
        assert stat.free_bytes == model.limit - sum(event.charge for event in held)
        big = [s for s in range(model.acked + 1, model.newest + 1) if len(model.at(s).payload) > model.limit]
        assert [sequence for _, sequence in overflows(self.other.segment)] == big


PHASES = [Phase.explicit, Phase.generate, Phase.target, Phase.shrink]  # not the last: it takes longer than it tells


def run(machine: type[Machine], profile: str, seed: int) -> None:
    """Drive the machine through random histories."""
    run_state_machine_as_test(
        seeded(seed)(machine), settings=settings(settings.get_profile(profile), phases=PHASES[: 3 if machine.log else 4])
    )
