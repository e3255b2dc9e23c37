"""Cursors are repaired after a crash of the whole host: cut a file-backed store off at its last whole event.

Pages of a mapped file reach the disk in any order, so the put cursor may be ahead of the payloads, and an ack behind the
floor or ahead of the put cursor. Every event of such a store has a checksum: the first that does not match ends what can be
believed, and all cursors are brought to before it, none below the floor, up to which all was acked. A crash of a process
alone tears nothing, because memory is shared: so nothing is touched while a process is attached with a role, and nothing is
found when all is well.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from shmstore.errors import StoreCorrupt
from shmstore.memory.layout import LOCK_PRODUCER, LOCK_SUBSCRIPTION, MAX_SEQUENCE, header_word
from shmstore.memory.locks import Ownership
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import ACK_OF, ENTRIES, FLOOR, GET_OF, OVERSIZED, PUT, STATE_OF, slowest_ack
from shmstore.store.batch import Batch


def repair_cursors(segment: Segment, lock: AbstractContextManager[object]) -> int:
    """Cut a store off at its last whole event, under its table's `lock`; return how many events were dropped. Does nothing while a
    role is held."""
    words = segment.words
    with lock:
        roles = [Ownership(segment.fd, LOCK_PRODUCER)]
        roles += [Ownership(segment.fd, LOCK_SUBSCRIPTION + entry) for entry in range(1, words[ENTRIES])]
        if any(role.taken() for role in roles):
            return 0
        put, floor, first = words[PUT], words[FLOOR], segment.views.first
        counted = [entry for entry in range(words[ENTRIES]) if words[STATE_OF[entry]] & 1]
        for entry in counted:  # an ack that is on disk later than the floor it made possible
            words[ACK_OF[entry]] = min(max(words[ACK_OF[entry]], floor), put)
        whole = max(_last_whole(segment), first - 1)
        for entry in counted:
            words[ACK_OF[entry]] = min(words[ACK_OF[entry]], whole)
            if not words[ACK_OF[entry]] <= words[GET_OF[entry]] <= whole:
                words[GET_OF[entry]] = words[ACK_OF[entry]]
        if whole == put:
            return 0
        words[FLOOR] = min(floor, whole)
        words[OVERSIZED] = min(words[OVERSIZED], whole)
        words[PUT] = whole
        words[header_word("producer_pid")] = 0
        return put - whole


def _last_whole(segment: Segment) -> int:
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
