"""After a crash of the whole host: cut a file-backed store off at its last whole event.

Pages of a mapped file reach the disk in any order, so the put cursor may be ahead of the payloads. Every event of such a
store has a checksum: the first that does not match ends what can be believed, and all cursors are brought back to before
it. A crash of a process alone tears nothing, because memory is shared: so nothing is touched while anybody is attached
with a role, and nothing is found when all is well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmstore.batch import Batch
from shmstore.errors import StoreCorrupt
from shmstore.layout import LOCK_PRODUCER, LOCK_SUBSCRIPTION, MAX_SEQUENCE, SubscriptionState, header_word
from shmstore.ring import ACK_OF, FLOOR, GET_OF, OVERSIZED, PLACES, PUT, STATE_OF, slowest_ack
from shmstore.sync import Ownership

if TYPE_CHECKING:
    from shmstore.store import EventStore


def recover(store: EventStore) -> int:
    """Cut `store` off at its last whole event; return how many events were dropped. Does nothing while a role is held."""
    segment, words = store.segment, store.segment.words
    with store.lock:
        roles = [Ownership(segment.fd, LOCK_PRODUCER)]
        roles += [Ownership(segment.fd, LOCK_SUBSCRIPTION + place) for place in range(1, words[PLACES])]
        if any(role.taken() for role in roles):
            return 0
        put, whole = words[PUT], _last_whole(store)
        if whole == put:
            return 0
        for place in range(words[PLACES]):
            if words[STATE_OF[place]] != SubscriptionState.FREE:
                words[ACK_OF[place]] = min(words[ACK_OF[place]], whole)
                words[GET_OF[place]] = words[ACK_OF[place]]
        words[FLOOR] = min(words[FLOOR], whole)
        words[OVERSIZED] = min(words[OVERSIZED], whole)
        words[PUT] = whole
        words[header_word("producer_pid")] = 0
        return put - whole


def _last_whole(store: EventStore) -> int:
    segment = store.segment
    views, put = segment.views, segment.words[PUT]
    acked = min(slowest_ack(views), put)
    if not 0 <= put - acked <= views.capacity or put > MAX_SEQUENCE:
        return acked
    for sequence in range(acked + 1, put + 1):
        try:
            Batch(segment, sequence, sequence, -1).verify()
        except StoreCorrupt:
            return sequence - 1
    return put
