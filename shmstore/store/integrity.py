"""Look a segment over and say what is wrong with it, a sentence each."""

from __future__ import annotations

import numpy as np

from shmstore.errors import StoreCorrupt
from shmstore.memory.layout import (
    LOCK_PRODUCER,
    LOCK_SUBSCRIPTION,
    SlotFlag,
    StoreFlag,
    SubscriptionState,
    header_word,
    subscription_word,
)
from shmstore.memory.locks import Ownership, is_alive
from shmstore.memory.segment import Segment
from shmstore.ring import overflow
from shmstore.ring.cursors import ACK_OF, ENTRIES, GET_OF, PUT, STATE_OF, spared
from shmstore.store.batch import Batch
from shmstore.store.stats import forgetting


def findings(segment: Segment) -> list[str]:
    """Return what is wrong with `segment`; an empty list where nothing is. Reads only; may run while producer and readers run."""
    found = _cursors(segment)
    if not found:
        found = _events(segment)
    return found + _owners(segment) + _leftovers(segment)


def _cursors(segment: Segment) -> list[str]:
    views, words = segment.views, segment.words
    found = []
    for entry in range(int(bool(segment.home)), words[ENTRIES]):  # entry 0 of a store with a log is the log's
        if words[STATE_OF[entry]] != SubscriptionState.ACTIVE:
            continue
        # Read against the way they move: ack, then get, then put; each may only have grown since.
        ack, get, put = words[ACK_OF[entry]], words[GET_OF[entry]], words[PUT]
        name = segment.read_text("name", entry) or "(none)"
        if not views.first - 1 <= ack <= get <= put:
            found.append(
                f"subscription {name}: cursors out of order: ack {ack}, get {get}, put {put}; "
                f"forget it with `{forgetting(segment.name, name)}`, and subscribe again"
            )
    return found


def _events(segment: Segment) -> list[str]:
    views = segment.views
    acked, put = spared(views), segment.words[PUT]
    n = put - acked
    if not 0 <= n <= views.capacity:
        return [
            f"{n} events in flight, capacity {views.capacity}: remove its memory with `shmstore rm` and start its producer again"
        ]
    if n == 0:
        return []
    found = []
    i = acked & (views.slot_count - 1)
    ends, rows, slots = (
        views.ends_array[i : i + n + 1].copy(),
        views.rows_array[i : i + n + 1].copy(),
        views.slots[i + 1 : i + n + 1].copy(),
    )
    lengths = np.diff(ends)
    wanted = np.where(slots["flags"] & int(SlotFlag.OVERSIZED), views.limit, slots["size"].astype(np.int64))
    for what, wrong in (
        ("length differs from its slot", lengths != wanted),
        ("row count differs from its slot", np.diff(rows) != slots["rows"]),
        ("flags are unknown", (slots["flags"] & ~np.uint16(7)) != 0),
    ):
        if wrong.any():
            found.append(f"event {acked + 1 + int(np.argmax(wrong))}: {what} ({int(wrong.sum())} such events)")
    if int(ends[-1] - ends[0]) > views.limit:
        found.append(f"{int(ends[-1] - ends[0])} bytes in flight, limit {views.limit}")
    if segment.flags & StoreFlag.CHECKSUM and not found:
        for sequence in range(acked + 1, put + 1):
            try:
                Batch(segment, sequence, sequence, -1).verify()
            except StoreCorrupt as error:
                if spared(views) < sequence:  # acked while we looked: its space may hold something else by now
                    found.append(str(error))
    return found


def _owners(segment: Segment) -> list[str]:
    words, found = segment.words, []
    roles = [("the producer", LOCK_PRODUCER, header_word("producer_pid"), header_word("producer_start"))]
    for entry in range(1, words[ENTRIES]):
        if words[STATE_OF[entry]] != SubscriptionState.FREE:
            pid, start = subscription_word(entry, "owner_pid"), subscription_word(entry, "owner_start")
            roles.append((f"the reader of {segment.read_text('name', entry)}", LOCK_SUBSCRIPTION + entry, pid, start))
    for who, byte, pid_word, start_word in roles:
        start = words[start_word]
        pid, taken = Ownership(segment.fd, byte).noted(words, pid_word)
        if pid and not taken and not is_alive(pid, start):
            found.append(f"{who} (pid {pid}) died without closing; its successor continues from its last ack, nothing is lost")
    return found


def _leftovers(segment: Segment) -> list[str]:
    acked, put = spared(segment.views), segment.words[PUT]
    acked -= bool(segment.home)  # the process that appends removes that of the last event that is logged, before it logs another
    found = [
        f"{path} holds event {sequence}, which is not in flight; the next producer removes it"
        for path, sequence in overflow.overflows(segment)
        if not acked < sequence <= put
    ]
    if segment.path is None and not segment.linked:
        found.append("the store was removed; its successors do not see it, detach")
    return found
