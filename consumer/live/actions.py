"""What can be done to a store from outside, the same on the command line and from a live view; each time with a line in the store's audit log.

`by` names the user that asks; by default the user of this process. What is refused is in the audit log, too, with the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from shmstore import CheckpointFile, EventStore, ShmStoreError, StoreView, SubscriptionNotFound
from shmstore.home import audit, kinds, pauses
from shmstore.home.control import RELOAD, ControlAnswer, ControlFiles
from shmstore.home.home import Home
from shmstore.home.snapshots import request_snapshot
from shmstore.sources import place_text
from shmstore.start_position import Start

LOOK: Final = 0.1  # seconds between two looks for what a producer does


class Named(NamedTuple):
    """A store as it is named, and who asks for something."""

    store: str
    path: str | None = None
    state: str | os.PathLike[str] | None = None
    by: str = ""


@contextmanager
def audited(home: Home, named: Named, action: str, what: str) -> Iterator[None]:
    """Write into the audit log what the block does, or why it did not."""
    by = named.by or audit.user()
    try:
        yield
    except (ShmStoreError, ValueError, OSError) as error:
        audit.note(home, by, action, what, str(error))
        raise
    audit.note(home, by, action, what, "done")


def _attach(named: Named) -> EventStore:
    return EventStore.attach(named.store, path=named.path, state=named.state)


def unsubscribe(named: Named, subscription: str) -> None:
    """Forget a subscription that no process reads, and its checkpoint: or a new one of this name would look for events that are missing.

    Raises `SubscriptionNotFound`, `SubscriptionInUse`, and what `EventStore.attach` raises.
    """
    with _attach(named) as store, audited(store.home, named, "unsubscribe", subscription):
        try:
            store.unsubscribe(subscription)
        except SubscriptionNotFound:
            if CheckpointFile.of(store.home, subscription).load_bytes() is None:
                raise
        kinds.forget(store.home, subscription)


def seek(named: Named, subscription: str, start: Start) -> str:
    """Let a subscription that no process reads continue at `start`; return where that is, as a sentence.

    Raises as `EventStore.seek`, and what `EventStore.attach` raises.
    """
    with _attach(named) as store, audited(store.home, named, "seek", f"{subscription} to {start}"):
        acked = store.seek(subscription, start)
        waits = store.newest - acked
        text = "it skips everything put so far" if waits <= 0 else f"{waits:,} events wait for it"
        at = store.peek(acked + 1, limit_events=1) if waits > 0 else None
        where = f", {place_text(at.position_of(acked + 1))}" if at and at.slots["entry"][0] else ""
        return f"{subscription} continues at event {acked + 1}{where}: {text}"


def snapshot(named: Named, tables: str) -> str:
    """Ask the producer of a store that is in memory for the rows of `tables` (patterns); return the id of the request.

    Raises `StoreNotFound` where there is none, `ValueError` where the patterns are none or the store has several sources.
    """
    # A request to a store that does not exist would wait forever.
    attached = StoreView.attach(named.store, path=named.path, state=named.state, restore=False)
    with attached as view, audited(view.home, named, "snapshot", tables):
        check_single_source(view)
        return request_snapshot(named.store, tables, state=view.home.state)


def reload(named: Named, wait: float) -> ControlAnswer | None:
    """Ask the producer of a store to read its file again; return its answer, or None where none came in `wait` seconds.

    Raises ValueError where no producer runs.
    """
    with StoreView.attach(named.store, path=named.path, state=named.state) as view:
        answer = None
        with audited(view.home, named, "reload", "asked for"):
            if not view.stat().producer_alive:
                raise ValueError(f"no producer of store {named.store!r} runs: the next one will read its file when it starts")
            files = ControlFiles(view.home)
            asked = files.ask(RELOAD)
        until = time.monotonic() + wait
        while answer is None and time.monotonic() < until:
            time.sleep(LOOK)
            answer = next((one for one in files.answers() if one.id == asked), None)
        return answer


def pause(named: Named, subscription: str | None = None, *, wait: float = 0.0) -> str:
    """Let the producer of a store read nothing, or the reader of `subscription` be given nothing, until `resume`; return what that means.

    Of a producer that runs it waits up to `wait` seconds until it is paused. Raises `SubscriptionNotFound`, and what `EventStore.attach` raises.
    """
    by = named.by or audit.user()
    with _attach(named) as store, audited(store.home, named, "pause", subscription or "producer"):
        if subscription is not None:
            store.pause(subscription, by)
            return f"{subscription} is paused: its reader gets no events{_holds(store)}"
        pauses.keep(store.home, by)
        if not store.stat().producer_alive:
            return "no producer runs; the next one is paused from its start on"
        if not _awaited(store, wait, paused=True):
            return "the producer will pause at the end of the transaction that it reads"
        at = store.stat().source_position
        place = f" at {place_text(at)}" if at is not None else ""
        return f"the producer is paused{place}: the source must keep its binlog from there on until the producer is resumed"


def is_paused(named: Named, subscription: str | None = None) -> bool:
    """Return whether the producer, or `subscription`, is paused, or will be when it comes. Raises `StoreError` where that cannot be seen."""
    return pauses.kept(Home.of(named.store, named.state), subscription) is not None


def _holds(store: EventStore) -> str:
    """What a subscription that is paused holds up, as the end of a sentence."""
    stat = store.stat()
    then = "is evicted" if stat.lag == "evict" else "holds up the producer"
    if stat.log is None:
        return f"; the store has no log, so it {then} when the ring is full"
    return f"; the log keeps its events, and when the log is full it {then}"


def resume(named: Named, subscription: str | None = None, *, wait: float = 0.0) -> str:
    """Undo `pause`; return what that means. Raises as `pause`."""
    with _attach(named) as store, audited(store.home, named, "resume", subscription or "producer"):
        if subscription is not None:
            store.resume(subscription)
            return f"{subscription} is resumed"
        if not pauses.forget(store.home):
            return "the producer was not paused"
        if not store.stat().producer_alive:
            return "the next producer will read; none runs now"
        _awaited(store, wait, paused=False)
        return "the producer is resumed"


def _awaited(store: EventStore, wait: float, *, paused: bool) -> bool:
    """Wait up to `wait` seconds until the producer is paused, or is not; return whether it is so."""
    until = time.monotonic() + wait
    while bool(store.stat().stream.paused_ms) is not paused and time.monotonic() < until:
        time.sleep(LOOK)
    return bool(store.stat().stream.paused_ms) is paused


def check_single_source(store: StoreView) -> None:
    """Raise `ValueError` where a store has several sources, of which no snapshot can be asked."""
    if store.of_group:
        raise ValueError(f"store {store.name!r} has several sources: a snapshot needs a store with a single source")
