"""RemoteSubscription: a subscription of a store on another host, as `Subscription` is one of a store on this one.

Plan. The server holds the subscription, in a session of this client's. What this client has got and acked it knows on its own, and says so with
every request (`protocol`), so that a rollback moves nothing but a number here, and a lost connection is no more than a pause: the client
connects again, finds its session or makes it again, and repeats the request. What was acked stays acked, and the batches that it holds
can still be acked; nothing else had the subscription meanwhile, or the server says `SubscriptionInUse`.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import numpy as np

from shmstore import SLOT, AckError, Batch, Cursor, Position, SchemaUnknown, ShmStoreError, StoreClosed
from shmstore.consumer.remote import events
from shmstore.consumer.remote.link import Link, LinkAnswer, RemoteLost, Woken
from shmstore.consumer.remote.protocol import Request, SessionUnknown, pack_start
from shmstore.start_position import Start
from shmstore.store.batch import Elsewhere

WAIT: Final = 10.0  # seconds that the server waits for events in one request
PATIENCE: Final = 60.0  # seconds besides, until an answer begins, or continues
RECONNECT: Final = 60.0  # seconds to try to reach a server that is lost
LEASE: Final = 15.0  # seconds without a word from this client after which the server gives its subscription to others
PAUSE: Final = 0.2  # seconds between two tries
CLOSING: Final = 5.0

_log = logging.getLogger("shmstore")
_T = TypeVar("_T")


class RemoteSubscription:
    """A reader's end of a store on another host. Made by `RemoteStore.subscribe`; one client's until `close` or its end."""

    def __init__(self, link: Link, store: str, name: str, start: Start, checkpoint: bool) -> None:
        self.name = name
        self._link = link
        self._store = store
        self._session = secrets.token_hex(16)
        self._request: Request = {"store": store, "subscription": name, "checkpoint": checkpoint, "lease": LEASE}
        self._closed = self._interrupted = False
        self._here = True  # whether the server has the session, as far as is known
        self._generation = 0
        # (g, last): of the generations up to g, and after the entry before, batches up to sequence `last` are valid. Both ascend.
        self._valid: list[tuple[int, int]] = []
        self._acked = self._got = Cursor(-1, 0, 0, 0)
        self._tables: dict[str, Any] = {}  # that batches had no row of, and whose columns were asked for
        try:
            state = link.action("subscribe", {**self._request, "session": self._session, "start": pack_start(start)})
        except RemoteLost as error:
            raise link.unreachable(error) from error
        self.epoch = int(state["epoch"])  # of the store that the server found
        self._acked, self._got = Cursor(*state["acked"]), Cursor(*state["got"])
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._renew, name="shmstore-flight-lease", daemon=True)
        self._heart.start()

    def _renew(self) -> None:
        while not self._over.wait(LEASE / 3):
            self._link.renew(self._session)

    # ------------------------------------------------------------ get

    def get(
        self,
        limit: int | None = None,
        *,
        limit_events: int | None = None,
        limit_bytes: int | None = None,
        timeout: float | None = None,
        min_events: int = 1,
    ) -> Batch:
        """Return the next events and move the get cursor over them, as `Subscription.get`. Raises `StoreUnreachable` besides."""
        if limit is not None:
            limit_events = limit if limit_events is None else min(limit, limit_events)
        wanted = {"limit_events": limit_events, "limit_bytes": limit_bytes, "min_events": min_events}
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = math.inf if until is None else max(0.0, until - time.monotonic())
            wait = 0.0 if self._interrupted else min(left, WAIT)
            try:
                answer = self._asked(lambda wait=wait: self._next(wanted, wait), wakes=True)  # type: ignore[misc]
            except Woken:
                self._interrupted = False
                return self._batch(self._got.sequence + 1, None)
            batch = self._settled(answer)
            if answer.metadata["whole"]:  # as many as were wanted, or the producer waits for space
                return batch
            if left <= wait or self._interrupted:
                self._interrupted = False
                return batch
            if batch:  # fewer than were wanted, and there is time
                self._go_to(self._cursor(batch.first - 1))

    def _next(self, wanted: Request, wait: float) -> LinkAnswer:
        ticket = {**self._state(), **{key: value for key, value in wanted.items() if value is not None}, "timeout": wait}
        return self._link.get(ticket, wait + PATIENCE, wakes=not self._interrupted)

    def _settled(self, answer: LinkAnswer) -> Batch:
        state = answer.metadata
        self._take(state["before"])
        parts = [events.unpack(part) for part in answer.batches if part.num_rows]
        first, last = state["first"], state["last"]
        found = events.joined(parts) if parts else None
        if (0 if found is None else len(found.ends)) != last - first + 1 or (found is not None and found.first != first):
            raise StoreClosed(f"the server of store {self._store!r} returned unexpected events; expected {first} to {last}")
        self._got = Cursor(*state["got"])
        return self._batch(first, found)

    def _batch(self, first: int, found: events.RemoteEvents | None) -> Batch:
        raw, ends, slots = (b"", np.zeros(0, np.int64), np.zeros(0, SLOT)) if found is None else found[1:]
        return Batch.of(Elsewhere(self._known), first, memoryview(raw), np.ascontiguousarray(ends), slots, self._generation)

    def _known(self, table: str) -> Any:
        """The type of the images of a table's rows; None where the store neither has nor had such a table."""
        if table not in self._tables:
            ticket = {"store": self._store, "table": table, "first": pack_start("latest")}
            try:
                schema = self._asked(lambda: self._link.get(ticket, PATIENCE)).schema
            except SchemaUnknown:
                return None
            self._tables[table] = schema.field("after").type
        return self._tables[table]

    def interrupt(self) -> None:
        """End the wait of the running get, or of the next one that would wait, as if its deadline had come.

        May be called from another thread or from a signal handler.
        """
        self._interrupted = True
        self._link.wake()

    # ------------------------------------------------------------ ack, rollback

    def ack(self, what: Batch | int | Position) -> None:
        """Say that everything up to `what` is done, as `Subscription.ack`. Raises `StoreUnreachable` besides."""
        self._check_open()
        if isinstance(what, Batch) and not what:
            return
        done = what.last if isinstance(what, Batch) else what
        where: Request = {"position": pack_start(done)} if isinstance(done, Position) else {"sequence": done}
        before = self._acked.sequence

        def once() -> Request | None:
            if isinstance(what, Batch) and what.generation != self._generation:
                self._check_generation(what)
            if not isinstance(done, Position) and before < done <= self._acked.sequence:
                return None  # only the answer was lost
            return self._link.action("ack", {**self._state(), **where})

        try:
            state = self._asked(once)
        except ShmStoreError:
            with suppress(ShmStoreError):
                self._take(self._asked(lambda: self._link.action("state", self._state())))  # it may have counted all the same
            raise
        if state is not None:
            self._take(state)

    def rollback(self, what: Batch | int | None = None) -> None:
        """Give again what was got and not acked: all of it, or from a batch or a sequence on. As `Subscription.rollback`."""
        self._check_open()
        if what is None:
            self._go_to(self._acked)
            return
        if isinstance(what, Batch) and what.generation != self._generation:
            self._check_generation(what)
        to = (what.first if isinstance(what, Batch) else what) - 1
        acked, got = self._acked.sequence, self._got.sequence
        if not acked <= to <= got:
            raise AckError(f"{what!r} cannot be rolled back: {self.name!r} has acked up to {acked} and got up to {got}")
        self._go_to(self._cursor(to))

    def _go_to(self, got: Cursor) -> None:
        """The get cursor stands at `got`; batches that end behind it are stale."""
        to, self._got = got.sequence, got
        while self._valid and self._valid[-1][1] >= to:
            self._valid.pop()
        self._valid.append((self._generation, to))
        self._generation += 1
        while len(self._valid) > 1 and self._valid[1][1] <= self._acked.sequence:
            del self._valid[0]  # what it says of older batches, the next one says as well: they are acked

    def _check_generation(self, batch: Batch) -> None:
        after = bisect_left(self._valid, (batch.generation, -2))
        stale = not 0 <= batch.generation <= self._generation or (after < len(self._valid) and batch.last > self._valid[after][1])
        if stale:
            raise AckError(
                f"batch {batch.first}..{batch.last} is stale: it was rolled back, and its events come again in other batches"
            )

    def seek(self, start: Start) -> None:
        """Continue at `start`, as `Subscription.seek`."""
        request = {"start": pack_start(start)}
        state = self._asked(lambda: self._link.action("seek", {**self._state(), **request}))
        self._generation += 1
        self._valid = [(self._generation - 1, -2)]  # batches of before were of another place
        self._acked, self._got = Cursor(*state["acked"]), Cursor(*state["got"])

    # ------------------------------------------------------------ cursors, checkpoint, end

    @property
    def get_cursor(self) -> Cursor:
        """What was got so far."""
        self._check_open()
        return self._got

    @property
    def ack_cursor(self) -> Cursor:
        """What was acked so far."""
        self._check_open()
        return self._acked

    @property
    def lag_events(self) -> int:
        """Events put and not yet acked."""
        state = self._asked(lambda: self._link.action("state", self._state()))
        self._take(state)
        return int(state["newest"]) - self._acked.sequence

    def save_checkpoint(self) -> None:
        """Let the server make durable what was acked. Raises `StoreError` where its disk refuses."""
        self._take(self._asked(lambda: self._link.action("save", self._state())))

    def sync(self, sequence: int, timeout: float) -> int:
        """Wait `timeout` seconds until the store's log has `sequence` on disk; return up to where it has, as `EventStore.sync`."""
        until = time.monotonic() + timeout
        while True:
            request: Request = {"sequence": sequence, "timeout": max(0.0, until - time.monotonic())}
            answer = self._asked(lambda request=request: self._link.action("sync", {**self._state(), **request}))  # type: ignore[misc]
            synced = int(answer["synced"])
            if synced >= sequence or time.monotonic() >= until:
                return synced

    def close(self) -> None:
        """Release the subscription for the next owner, which starts at its ack. Idempotent.

        Where the server cannot be reached it does so on its own, after `LEASE` seconds.
        """
        if self._closed:
            return
        self._closed = True
        self._over.set()
        with suppress(RemoteLost, SessionUnknown):
            self._link.action("close", self._state(), CLOSING)

    # ------------------------------------------------------------ the session

    def _state(self) -> Request:
        return {"session": self._session, "got": self._got.sequence}

    def _cursor(self, sequence: int) -> Cursor:
        """The cursor at an event that is not acked, or the last one acked."""
        for known in (self._got, self._acked):
            if known.sequence == sequence:
                return known
        return Cursor(*self._asked(lambda: self._link.action("cursor", {**self._state(), "sequence": sequence}))["cursor"])

    def _take(self, state: Request) -> None:
        """Note what the server says of its cursors. Where it could not follow to what this client has got, that is given again."""
        self._acked, got = Cursor(*state["acked"]), Cursor(*state["got"])
        if got.sequence != self._got.sequence:
            self._go_to(got)
        self._got = got

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the subscription is closed: subscribe again")

    def _asked(self, ask: Callable[[], _T], *, wakes: bool = False) -> _T:
        """Return what `ask` returns, asked again where the server was lost meanwhile. Raises `StoreUnreachable` when that takes too long."""
        self._check_open()
        until = 0.0
        while True:
            try:
                if not self._here:
                    self._resume()
                    if until:
                        _log.info("store %r: the server answers again, subscription %r continues", self._store, self.name)
                return ask()
            except SessionUnknown:
                self._here = False
            except RemoteLost as error:
                self._here = False
                self._link.reset()
                now = time.monotonic()
                if not until:
                    until = now + RECONNECT
                    _log.warning(
                        "store %r: %s; trying to reach it for %.0f s", self._store, self._link.unreachable(error), RECONNECT
                    )
                if now >= until:
                    raise self._link.unreachable(error) from error
                self._link.pause(PAUSE, wakes=wakes)

    def _resume(self) -> None:
        """Find the session, or have it made again. Raises `SubscriptionInUse`, `StoreClosed`, and what subscribing raises."""
        known: Any = {"epoch": self.epoch, "acked": self._acked.sequence, "got": self._got.sequence}
        self._take(self._link.action("subscribe", {**self._request, "session": self._session, "resume": known}))
        self._here = True
