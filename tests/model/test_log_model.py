"""Store and model agree in random histories with a log: nothing holds the ring, readers go back and forth, and the host reboots.

A reboot takes the memory; what the log and the subscriptions' files have stays. After one where all had closed nothing has
changed. After an unexpected one, where nothing more is written and no reader writes down what was acked, the events are those that
the log had, and each subscription stands between what it had durably acked and what it had acked.
"""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from shmstore import Batch, EventStore, StoreClosed, StoreStat, SubscriptionInUse, SubscriptionNotFound
from shmstore.home.home import Home
from shmstore.log import format as log_format
from shmstore.log.files import set_firsts
from shmstore.ring.cursors import LOGGED
from tests.model.machine import NAMES, Machine, run

SETS = (512, 24), (64, 3), (4096, 5), (1 << 20, 1 << 14)  # bytes and events of one: a history has many


class LogMachine(Machine):
    """A store with a log; readers' places that last are remembered, too."""

    log = True
    patience = 20.0
    logged = -1  # at the last get

    # ------------------------------------------------------------ what a log changes

    def take(self, name: str, limit: int | None, limit_events: int | None, limit_bytes: int | None, min_events: int) -> None:
        self.logged = self.other.segment.words[LOGGED]
        super().take(name, limit, limit_events, limit_bytes, min_events)

    def extends(self, name: str, batch: Batch, last: int, limit_events: int | None, limit_bytes: int | None) -> None:
        """The batch ends where the model's does, or, out of the log, where the limits, a set or the log end."""
        reader = self.model.readers[name]
        seen = reader.seen
        most = self.model.takes(name, limit_events, limit_bytes, looks=True)
        reader.seen = seen
        assert batch.first == reader.get + 1
        assert min(reader.get + 1, self.model.newest) <= batch.last <= most
        if batch.last not in (last, most) and not self.logged <= batch.last <= self.other.segment.words[LOGGED]:
            assert batch.last + 1 in set_firsts(Home(self.other.segment.home).log)

    def offset_of(self, sequence: int) -> int:
        if not self.model.first <= sequence <= self.model.newest:
            return -1
        return int(self.other.peek(sequence, limit_events=1).slots["offset"][0])

    def holds(self, stat: StoreStat) -> None:
        """The log has all that was ever put, or is about to; it is not in trouble."""
        log = stat.log
        assert log is not None
        assert log.oldest == self.model.first
        assert log.synced <= log.written <= self.model.newest
        assert log.trouble == ""

    def close(self, name: str) -> None:
        if name in self.subscriptions:
            super().close(name)
            self.model.readers[name].durable = self.model.readers[name].ack

    def clear(self) -> None:
        super().clear()
        if not self.subscriptions:
            for reader in self.model.readers.values():
                reader.durable = reader.ack

    def reattach(self) -> None:
        for name in self.subscriptions:
            self.model.readers[name].durable = self.model.readers[name].ack
        super().reattach()

    # ------------------------------------------------------------ seek, for one who is not there; crash and reboot

    @rule(name=st.sampled_from(NAMES), offset=st.integers(0, 99))
    def move(self, name: str, offset: int) -> None:
        """Let a subscription that no process reads continue elsewhere."""
        model = self.model
        sequence = model.first + offset % (len(model.events) + 1)
        if name not in model.readers:
            with pytest.raises(SubscriptionNotFound):
                self.other.seek(name, sequence)
        elif name in self.subscriptions:
            with pytest.raises(SubscriptionInUse):
                self.other.seek(name, sequence)
        else:
            reader = model.readers[name]
            assert self.other.seek(name, sequence) == sequence - 1
            reader.ack = reader.get = reader.durable = sequence - 1

    @rule(part=st.integers(1, 8))
    def sync(self, part: int) -> None:
        """What was asked for is on disk then."""
        sequence = self.model.first - 1 + len(self.model.events) * part // 8
        assert self.other.sync(sequence) >= sequence
        assert self.other.stat().log.synced >= sequence

    @rule(
        how=st.sampled_from(["everybody closed", "nobody did", "nobody did", "memory first", "the producer crashed"]),
        size=st.integers(1, 9),
    )
    def reboot(self, how: str, size: int) -> None:
        model = self.model
        if how == "the producer crashed":
            self.crash()
            self.choose(self.compiled[0])
            self.producer = EventStore.attach(self.name)
            return
        if how == "nobody did":
            self.crash()
            logged = self.other.segment.words[LOGGED] if len(model.events) else model.newest
            for subscription in self.subscriptions.values():
                subscription._owner.release()  # as the kernel does for one that was killed
        elif how == "memory first":
            alone = (
                self.producer._keeper is None
            )  # no process appends: what the ring alone has is lost with it, unless a reader's end appends it
            logged = self.other.segment.words[LOGGED] if alone and len(model.events) else model.newest
            self.lose_memory()
            event = self.made(size)
            with suppress(StoreClosed):  # where the put had to wait, it says that the memory is gone, and put nothing
                self.agree([event], lambda: self.producer.put(event.payload))  # to no reader; the log has it
        self.producer.close()
        self.other.close()
        if how != "memory first":
            self.lose_memory()
        self.choose(self.compiled[0])
        self.producer = EventStore.attach(self.name)
        self.choose(self.compiled[1])
        self.other = EventStore.attach(self.name)
        if how == "nobody did":
            assert self.other.newest == max(logged, model.first - 1)
        elif how == "memory first":
            assert max(logged, model.first - 1) <= self.other.newest <= model.newest
        if self.other.newest < model.newest:
            del model.events[self.other.newest + 1 - model.first :]
        found = {each.name: each.ack.sequence for each in self.other.subscriptions()}
        assert set(found) == set(model.readers)
        for name, reader in model.readers.items():
            if name in self.subscriptions and how != "nobody did":
                reader.durable = min(reader.ack, model.newest)
            assert min(reader.durable, model.newest) <= found[name] <= min(reader.ack, model.newest), name
            assert how == "nobody did" or found[name] == min(reader.ack, model.newest)
            assert reader.durable <= model.newest, "a durable ack ahead of the log"
            reader.open = False
            reader.ack = reader.get = reader.seen = reader.durable = found[name]
        self.subscriptions.clear()

    def crash(self) -> None:
        """The producer's process goes: nothing more is written, nothing is given back."""
        keeper = self.producer._keeper
        if keeper is not None:
            keeper._end()
            for thread in keeper._threads:
                thread.join(20)
            keeper._drop()
            self.producer._keeper = None
        self.producer.close()

    def lose_memory(self) -> None:
        for each in os.listdir("/dev/shm"):
            if each == f"shmstore.{self.name}" or each.startswith(f"shmstore.{self.name}@"):
                with suppress(FileNotFoundError):
                    os.unlink(f"/dev/shm/{each}")


@pytest.fixture(params=SETS, ids=lambda sets: f"{sets[1]} events a set", autouse=True)
def _sets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_format, "file_bytes", lambda log_size: request.param[0])
    monkeypatch.setattr(log_format, "file_slots", lambda log_size: request.param[1])


def test_store_and_model_agree_with_a_log(seed: int):
    """In random histories of up to 50 steps, with reboots, store and model agree on every cursor, count and byte."""
    run(LogMachine, "log-model-ci", seed)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_store_and_model_agree_with_a_log_a_thousand_times(seed: int):
    """The same for 1,000 histories of each size of sets."""
    run(LogMachine, "log-model-long", seed)
