"""Sessions: the subscriptions that clients hold.

A session is one client's hold on one subscription, and has an attachment of its own. It ends by `close`, when its client has has been silent for
its lease, or a moment after the connection that it came by has gone: the client's process has ended, or its connection was lost and it will
ask for the session again, by its id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from shmstore import Batch, EventStore, ProtocolError, ShmStoreError, StoreClosed, Subscription, SubscriptionInUse
from shmstore.consumer.consumer import Consumer
from shmstore.consumer.flight.connections import Place
from shmstore.consumer.remote.protocol import Request, SessionUnknown, unpack_start
from shmstore.consumer.serving.audit import Audit, Incident

GRACE: Final = 2.0  # seconds after its connection has gone: its client may come back
LEASE: Final = 60.0  # seconds, for clients that ask for none
SLICE: Final = 0.5  # seconds between two looks whether a client that waits is still there
_log = logging.getLogger("shmstore.serve")


class FlightSession:
    """One client's hold on a subscription. All calls but `renew` come within `turn`."""

    def __init__(self, consumer: Consumer, store: str, lease: float, place: Place) -> None:
        self.store = store  # as clients call it
        self.lease = lease
        self.place = place
        self.used_at = time.monotonic()
        self.closed = False
        self._consumer = consumer
        self.names = (self.attached.name, self.subscription.name)  # of the store, as it is called here, and of the subscription
        self._lock = threading.Lock()
        self._wanted = 0
        self.calls = 0  # that are carried out or wait

    @property
    def subscription(self) -> Subscription:
        """The subscription here."""
        found = self._consumer.subscription
        assert isinstance(found, Subscription)
        return found

    @property
    def attached(self) -> EventStore:
        """The store here."""
        found = self._consumer.store
        assert isinstance(found, EventStore)
        return found

    def renew(self, place: Place) -> None:
        """Note that the client lives."""
        self.place, self.used_at = place, time.monotonic()

    @contextmanager
    def turn(self, place: Place) -> Iterator[None]:
        """One call at a time. A get that waits ends for the next call: no client waits for its answer any more."""
        self.renew(place)
        self._wanted += 1
        try:
            while not self._lock.acquire(timeout=0.02):
                with suppress(ShmStoreError):
                    self.subscription.interrupt()
        finally:
            self._wanted -= 1
        try:
            if self.closed:
                raise SessionUnknown("the session has ended: subscribe again")
            self.calls += 1
            yield
        finally:
            self.calls = 0
            self.used_at = time.monotonic()
            self._lock.release()

    # ------------------------------------------------------------ within a turn

    def resume(self, known: Request) -> None:
        """Continue for a client that has acked and got so much. Raises `StoreClosed` where the store is another one."""
        store, subscription = self.attached, self.subscription
        check_epoch(known, store, self.store)
        acked = min(int(known["acked"]), store.newest)
        if subscription.ack_cursor.sequence < acked:
            self.align(acked)
            if subscription.get_cursor.sequence >= acked:
                subscription.ack(acked)
        self.align(max(int(known["got"]), subscription.ack_cursor.sequence))

    def align(self, got: int | None) -> None:
        """Let the get cursor stand at `got`, up to where the client has got, as far as that can be."""
        subscription = self.subscription
        if got is None:
            return
        got = max(got, subscription.ack_cursor.sequence)
        if got < subscription.get_cursor.sequence:
            subscription.rollback(got + 1)
        subscription.advance(got)

    def get(self, request: Request, gone: Callable[[], bool], most: float) -> tuple[Batch, bool]:
        """Return the next events, copied, and whether these are as many as were asked for."""
        limits = {name: int(request[name]) for name in ("limit_events", "limit_bytes") if request.get(name) is not None}
        wanted = int(request.get("min_events", 1))
        until = time.monotonic() + min(float(request.get("timeout", 0.0)), most)
        while True:
            began, left = time.monotonic(), max(0.0, until - time.monotonic())
            wait = min(left, SLICE)
            batch = self.subscription.get(**limits, timeout=wait, min_events=wanted)
            whole = len(batch) >= wanted or (bool(batch) and time.monotonic() - began < wait)
            if whole or left <= SLICE or self._wanted or gone():
                return batch.copy(), whole
            if batch:
                self.subscription.rollback(batch)

    def cursors(self) -> Request:
        """Up to where the client has acked and got."""
        return {"acked": list(self.subscription.ack_cursor), "got": list(self.subscription.get_cursor)}

    @property
    def held(self) -> int:
        """Events that the client has got and not acked; none while the store is away."""
        with suppress(StoreClosed):
            return self.subscription.get_cursor.sequence - self.subscription.ack_cursor.sequence
        return 0

    def reattached(self, call: Callable[[bool], Any]) -> Any:
        """Return what `call` returns, called again (True) where the store was removed and restored from its log."""
        try:
            return call(False)
        except StoreClosed as closed:
            if not self._consumer.attach_again(closed):
                raise
            return call(True)

    def close(self) -> None:
        """Give the subscription back, at its ack."""
        self.closed = True
        self._consumer.close()


def check_epoch(known: Request, store: EventStore, name: str) -> None:
    """Raise `StoreClosed` where a client knows another store of this name; KeyError, TypeError or ValueError where it does not say what it knows."""
    for what in ("acked", "got"):
        int(known[what])
    if int(known["epoch"]) != store.epoch:
        raise StoreClosed(f"store {name!r} is another one now: it was removed, and created again; attach again")


class FlightSessions:
    """The sessions of one server."""

    def __init__(self, store_of: Callable[[str], str], state: str | None, audit: Audit, max_lease: float, max_new: int) -> None:
        self._store_of, self._state = store_of, state
        self._audit = audit
        self._max_lease = max_lease
        self._max_new = max_new
        self._changed = threading.Condition()
        self._sessions: dict[str, FlightSession] = {}
        self._starting: set[str] = set()  # ids of sessions that are being made
        self._new: Counter[str] = Counter()  # subscriptions that were begun, by host

    def get(self, id: str) -> FlightSession:
        """The session of an id. Raises `SessionUnknown`."""
        session = self._sessions.get(id)
        if session is None:
            raise SessionUnknown("there is no such session (any more): subscribe again")
        return session

    def subscribe(self, request: Request, place: Place) -> tuple[FlightSession, bool]:
        """Return the session of the request's id, and whether it was made for this. Raises what subscribing raises."""
        id, name, store = (str(request[key]) for key in ("session", "subscription", "store"))
        if len(id) < 16:
            raise ProtocolError("the id of a session has less than 16 characters: choose it at random")
        lease = min(max(1.0, float(request.get("lease", LEASE))), self._max_lease)
        with self._changed:
            while id in self._starting:  # the same client, which has lost its first call
                self._changed.wait()
            session = self._sessions.get(id)
            if session is not None and not session.closed:
                session.renew(place)
                return session, False
            self._starting.add(id)
        # Without the lock: a store that is restored takes its time, and other clients have none to lose.
        made: FlightSession | None = None
        try:
            made = FlightSession(self._consumer(request, store, name, place), store, lease, place)
            return made, True
        finally:
            with self._changed:
                if made is not None:
                    self._sessions[id] = made
                self._starting.remove(id)
                self._changed.notify_all()

    def check_resume(self, request: Request) -> None:
        """Raise what `FlightSession.resume` would raise, before anything is made for the client."""
        store = str(request["store"])
        with EventStore.attach(self._store_of(store), state=self._state) as attached:
            check_epoch(request["resume"], attached, store)

    def _consumer(self, request: Request, store: str, name: str, place: Place) -> Consumer:
        real = self._store_of(store)
        with EventStore.attach(real, state=self._state) as attached:
            there = any(each.name == name for each in attached.subscriptions())
        if there:
            return self._subscribed(request, real, store, name)
        with self._changed:  # counted before it is made: one of several at once would not see the others
            allowed = self._new[place.host] < self._max_new
            self._new[place.host] += allowed
        if not allowed:
            text = (
                f"{place.host} has begun {self._max_new} subscriptions, all it may (--max-new-clients): continue with one of them"
            )
            self._audit.note(Incident.SUBSCRIPTION, place.host, text)
            raise ProtocolError(text)
        try:
            return self._subscribed(request, real, store, name)
        except BaseException:
            with self._changed:
                self._new[place.host] -= 1
            raise

    def _subscribed(self, request: Request, real: str, store: str, name: str) -> Consumer:
        how: dict[str, Any] = {
            "auto_ack": False,
            "timeout": 0,
            "limit_events": 1,
            "checkpoint": bool(request.get("checkpoint", True)),
        }
        try:
            return Consumer(real, name, state=self._state, start=unpack_start(request.get("start", "earliest")), **how)
        except SubscriptionInUse as error:
            held = list(self._sessions.values())
            holder = next((s for s in held if s.store == store and s.subscription.name == name), None)
            if holder is None:
                raise
            raise SubscriptionInUse(
                f"{error}: a client at {holder.place.host} has it, and was heard {time.monotonic() - holder.used_at:.0f} s ago; it is free when "
                f"that client has ended, or has not been heard from for {holder.lease:.0f} s"
            ) from error

    def names(self) -> list[tuple[str, str]]:
        """The store and the subscription of each."""
        return [session.names for session in list(self._sessions.values())]

    def close(self, id: str) -> None:
        """End a session. Raises `SessionUnknown`."""
        session = self.get(id)
        with session.turn(session.place):
            self._end(id, session)

    def _end(self, id: str, session: FlightSession) -> None:
        with self._changed:
            self._sessions.pop(id, None)
        session.close()

    def look_after(self, connected: set[Place]) -> None:
        """Give back what no client holds any more."""
        for id, session in list(self._sessions.items()):
            silent = time.monotonic() - session.used_at
            left = session.place not in connected and silent > GRACE
            if session.calls or not (left or silent > session.lease):
                continue
            with suppress(SessionUnknown):
                place = session.place
                with session.turn(place):
                    held, name = session.held, session.subscription.name
                    self._end(id, session)
                if held:
                    why = "left" if left else f"not been heard for {silent:.0f} s"
                    text = f"the client of subscription {name!r} of {session.store!r} at {place.host} has {why}, with {held} events not acked"
                    self._audit.note(Incident.UNACKED, f"{session.store}/{name}", text)

    def close_all(self) -> None:
        """Give all of them back."""
        for id, session in list(self._sessions.items()):
            with suppress(ShmStoreError), session.turn(session.place):
                self._end(id, session)
