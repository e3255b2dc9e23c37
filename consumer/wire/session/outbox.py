"""Entries encoded and not yet delivered, in order: a queue of runs of sequences.

Plan. Entries come in runs, as many as one look at the store gave, and mostly leave in runs: a run that fits a batch as
a whole costs nothing an entry. Nothing is taken out until `drop`, so that what could not be delivered is still there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Limit(NamedTuple):
    """What a batch may hold: entries, bytes of entries; and how many of either make it full.

    As in Canal, the entry that exceeds `bytes` still goes with it; `most` bytes are exceeded by a first entry alone."""

    entries: int
    bytes: int
    most: int


class Run(NamedTuple):
    """Entries of sequences that follow each other, from `first` on; None where nothing is sent of an event.

    `rows` are those of each event; `alone` are the sequences that must be a batch of their own.
    """

    first: int
    entries: Sequence[bytes | None]
    rows: Sequence[int]
    alone: frozenset[int] = frozenset()


class Portion(NamedTuple):
    """What a batch would be made of: the entries, their rows, and the last sequence that goes with them."""

    entries: list[bytes]
    rows: int
    last: int


class Ready:
    """What waits to be delivered."""

    __slots__ = ("_runs", "bytes", "count", "next")

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        #: The sequence that comes first, or would; -1 before anything came.
        self.next = -1
        #: Entries and their bytes, without what is not sent.
        self.count = 0
        self.bytes = 0

    def add(self, run: Run) -> None:
        """Append `run`, which continues where the last one ended."""
        if not self._runs:
            self.next = run.first
        entries = [entry for entry in run.entries if entry is not None]
        self.count += len(entries)
        self.bytes += sum(map(len, entries))
        self._runs.append(run)

    def clear(self) -> None:
        """Forget everything: the same will come again."""
        self._runs.clear()
        self.next = -1
        self.count = self.bytes = 0

    @property
    def has_alone(self) -> bool:
        """True where something must be a batch of its own."""
        return any(run.alone for run in self._runs)

    def skip(self) -> None:
        """Leave out what comes first and is not sent."""
        runs = self._runs
        while runs:
            first, entries, rows, alone = runs[0]
            dropped = next((i for i, entry in enumerate(entries) if entry is not None), len(entries))
            if not dropped:
                return
            self.next = first + dropped
            runs.popleft()
            if dropped < len(entries):
                runs.appendleft(Run(self.next, entries[dropped:], rows[dropped:], alone))
                return

    def portion(self, limit: Limit) -> Portion | None:
        """What one batch of `limit` would take, at least one entry; None where there is none."""
        if not self.count:
            return None
        taken: list[bytes] = []
        size = rows = 0
        last = self.next - 1
        for run in self._runs:
            if not run.alone and None not in run.entries and len(taken) + len(run.entries) <= limit.entries:
                more = sum(map(len, run.entries))  # type: ignore[arg-type]
                if size + more <= min(limit.bytes, limit.most):
                    taken += run.entries  # type: ignore[arg-type]
                    size += more
                    rows += sum(run.rows)
                    last += len(run.entries)
                    continue
            for sequence, (entry, count) in enumerate(zip(run.entries, run.rows, strict=True), run.first):
                if entry is not None:
                    alone = sequence in run.alone
                    full = len(taken) >= limit.entries or size > limit.bytes or size + len(entry) > limit.most
                    if taken and (alone or full):
                        return Portion(taken, rows, last)
                    taken.append(entry)
                    size += len(entry)
                    rows += count
                    if alone:
                        return Portion(taken, rows, sequence)
                last = sequence
        return Portion(taken, rows, last)

    def drop(self, portion: Portion) -> None:
        """Take `portion` out."""
        runs = self._runs
        self.next = portion.last + 1
        self.count -= len(portion.entries)
        self.bytes -= sum(map(len, portion.entries))
        while runs:
            first, entries, rows, alone = runs[0]
            done = self.next - first
            if done <= 0:
                return
            runs.popleft()
            if done < len(entries):
                runs.appendleft(Run(self.next, entries[done:], rows[done:], alone))
                return
