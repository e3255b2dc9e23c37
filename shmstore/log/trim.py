"""Trim: the oldest files of a log removed before retention would do it.

Only what every subscription has durably acked goes: after a power cut each of them still finds its next event. The newest file stays,
and whatever is needed to know, after a power cut, where the log ended.
"""

from __future__ import annotations

from typing import NamedTuple

from shmstore.log.files import SetStat, log_of, remove_sets
from shmstore.log.keeper import Subscriptions
from shmstore.memory.layout import header_word
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import SYNCED

Acked = tuple[str, int]  # a subscription, and the last event that it has durably acked


class Trimmed(NamedTuple):
    """What went: events `first` to `last` (none where ``last < first``), in so many `files` and `bytes` on disk.

    `needed_by` is the subscription that holds back the rest; None if there is none.
    """

    first: int
    last: int
    files: int
    bytes: int
    needed_by: Acked | None = None


def trim(segment: Segment, subscriptions: Subscriptions, before: int, least: Acked | None) -> Trimmed:
    """Remove the files all of whose events are before sequence `before`, and acked by the subscription that has acked `least`, if any.

    May run while a producer appends and readers read. Raises `StoreError` where the disk refuses.
    """
    words = segment.words
    sets: list[SetStat] = log_of(segment).sets()
    whole = sets[:-1] if sets and words[SYNCED] >= sets[-1].first else sets[:-2]  # the newest that stays is on disk
    asked = [each for each in whole if each.last < before]
    gone = [each for each in asked if least is None or each.last <= least[1]]
    needed_by = least if len(gone) < len(asked) else None
    oldest = sets[0].first if sets else words[SYNCED] + 1
    if not gone or subscriptions.let_go(gone[-1].last, evict=False) is None:  # a process moved back meanwhile
        return Trimmed(oldest, oldest - 1, 0, 0, needed_by)
    remove_sets(log_of(segment).folder, [each.first for each in gone])
    left = sets[len(gone) :]
    words[header_word("log_bytes")] = sum(each.bytes for each in left)
    words[header_word("log_oldest_ms")] = left[0].first_ms
    return Trimmed(oldest, gone[-1].last, 3 * len(gone), sum(each.bytes for each in gone), needed_by)
