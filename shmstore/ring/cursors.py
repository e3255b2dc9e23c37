"""put, get and ack as words of a segment: where each stands, who waits for them. No lock, no clock, no waiting.

Each cursor has one writer: the producer's `Writer` moves put, a subscription's `Reader` moves its get and its ack. So no call takes a lock.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final, NamedTuple

from shmstore.errors import StoreCorrupt
from shmstore.memory.layout import (
    ABSURD,
    DISARMED,
    SUBSCRIPTIONS,
    StoreFlag,
    SubscriptionState,
    header_word,
    subscription_word,
)
from shmstore.memory.mapping import Views
from shmstore.memory.ordering import fence

PUT: Final = header_word("put")
FLOOR: Final = header_word("floor")
REACH: Final = header_word("reach")
OVERSIZED: Final = header_word("oversized")
ENTRIES: Final = header_word("entries")
ARMED: Final = header_word("armed")
ACK_WANTED: Final = header_word("ack_wanted")
STATE_OF: Final = tuple(subscription_word(entry, "state") for entry in range(SUBSCRIPTIONS))
GET_OF: Final = tuple(subscription_word(entry, "get") for entry in range(SUBSCRIPTIONS))
ACK_OF: Final = tuple(subscription_word(entry, "ack") for entry in range(SUBSCRIPTIONS))
WANTED_OF: Final = tuple(subscription_word(entry, "wanted") for entry in range(SUBSCRIPTIONS))
PAUSED_OF: Final = tuple(subscription_word(entry, "paused") for entry in range(SUBSCRIPTIONS))
ACTIVE: Final = int(SubscriptionState.ACTIVE)
LOGGED: Final = ACK_OF[0]  # in a store with a log: the last event that is written there
LOG_FIRST: Final = header_word("log_first")
SYNCED: Final = header_word("synced")
SYNC_WANTED: Final = header_word("sync_wanted")
LOG: Final = int(StoreFlag.LOG)
LOITERING: Final = (
    DISARMED - 1
)  # of entry 0's `wanted`: the appender waits for more to come, or for a producer that finds no free space
ABSURD_BYTES: Final = 2**62


class Cursor(NamedTuple):
    """Where put, a get or an ack stands: its sequence, and the bytes, rows (both cumulative) and event time up to there."""

    sequence: int
    bytes: int
    rows: int
    time_ms: int


def cursor_at(views: Views, sequence: int) -> Cursor:
    """Return the cursor at `sequence`, which must be within the capacity of the put cursor."""
    at = sequence & (views.slot_count - 1)
    return Cursor(sequence, views.ends[at], views.rows[at], int(views.slots["time"][at]))


def spared(views: Views) -> int:
    """Return the last event that the ring may give up: what the log has, or without a log what every subscription has acked."""
    return views.words[LOGGED] if views.flags & LOG else slowest_ack(views)


def oldest_kept(views: Views) -> int:
    """Return the first event that a reader can still get: the log's oldest, or without a log the first that some reader has not acked."""
    return views.words[LOG_FIRST] if views.flags & LOG else slowest_ack(views) + 1


def first_slot(views: Views) -> int:
    """Return the first event whose slot the ring has for sure, whatever a put that is not published has written; that before the store's
    first counts. A put writes no slot beyond floor + capacity; with a log the ring was perhaps restored, with slots of its capacity alone.

    Look after a slot was read: then it was not overwritten while it was.
    """
    fence()
    kept = views.capacity if views.flags & LOG else views.slot_count - views.capacity
    return max(views.words[FLOOR] - kept + 1, views.first - 1)


def slowest_ack(views: Views) -> int:
    """Return the lowest ack of the subscriptions, joining ones included.

    Without a log there is always one: entry 0 stands in while there is no subscription. A look that falls between two changes of the
    table may find none; it then learns nothing new.
    """
    words = views.words
    acks = [words[ACK_OF[entry]] for entry in range(words[ENTRIES]) if words[STATE_OF[entry]] & 1]
    slowest = min(acks, default=words[FLOOR])
    if abs(words[PUT] - slowest) > ABSURD:
        raise StoreCorrupt(f"an ack cursor is at {slowest}, put at {words[PUT]}: `shmstore check` shows more")
    return slowest


# ---------------------------------------------------------------- the same ends, with the usual cases in compiled code


def with_core(core: type, reference: type) -> Any:
    """`reference` as a subclass of `core`, which keeps its numbers and has its `try_` methods, compiled (see native/hot.pyx)."""
    kinds = [kind for kind in reversed(reference.__mro__) if kind is not object]
    methods = {
        name: value
        for kind in kinds
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType) and name not in vars(core)
    }
    slots = [name for kind in kinds for name in vars(kind)["__slots__"] if not hasattr(core, name)]
    return type(reference.__name__, (core,), {"__slots__": slots, "__doc__": reference.__doc__, **methods})


# ---------------------------------------------------------------- wake-ups, decided here, done by the store


def armed_readers(views: Views, *, everyone: bool) -> list[int]:
    """Return the entries whose readers have what they wait for, disarmed; with `everyone`, those that have anything at all. In a store
    with a log entry 0 is one of them: the appender.

    Called by the producer after it published and fenced. The flag is cleared before the entries are looked at: a reader
    that arms itself later sets it again, and it looks at put after that, so it sees what was published.
    """
    words = views.words
    words[ARMED] = 0
    fence()  # or a reader that arms itself now could have its flag cleared, and its wish not seen
    put = words[PUT]
    ready = []
    logged = bool(views.flags & LOG)
    for entry in range(0 if logged else 1, min(words[ENTRIES], SUBSCRIPTIONS)):  # were it damaged: what was put is put
        wanted = words[WANTED_OF[entry]]
        if wanted == DISARMED or (wanted == LOITERING and not everyone):
            continue
        if wanted <= put or (everyone and words[(GET_OF if entry else ACK_OF)[entry]] < put):
            words[WANTED_OF[entry]] = DISARMED
            ready.append(entry)
        else:
            words[ARMED] = 1
    return ready


def ack_is_wanted(views: Views, ack: int) -> bool:
    """True, and the wish is taken back, where the producer waits for free space and every subscription has given it.

    Called by a reader after its ack. Of two readers that ack at once, each after its own store, at least one
    sees both acks.
    """
    words = views.words
    wanted = words[ACK_WANTED]
    if wanted > ack:
        return False
    fence()  # our ack, before the look at the others'
    if spared(views) < wanted:
        return False
    words[ACK_WANTED] = DISARMED
    return True
