"""Look a whole log over and say what is damaged: for the command line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from shmstore.errors import StoreCorrupt
from shmstore.log import format as log_format
from shmstore.log.files import set_firsts
from shmstore.log.format import BLOCK, BLOCKS, EVENTS
from shmstore.log.log_set import LogSet, opened
from shmstore.log.mark import read_mark


def verify(folder: str | os.PathLike[str], epoch: int, logged: int | None = None) -> list[str]:
    """Return what is wrong with the log in `folder`, a sentence each with the events that are lost; an empty list where nothing is.

    Reads every byte. `logged` is the last event written, where a store is there to say; without, the last that was on disk counts as that,
    or the last whole group behind it.
    May run while events are appended and sets removed. Raises `StoreError` where the folder cannot be read.
    """
    folder, found = Path(folder), []
    mark = read_mark(folder, epoch) if logged is None else None
    firsts = set_firsts(folder)
    for k, first in enumerate(firsts):
        last = firsts[k + 1] - 1 if k + 1 < len(firsts) else logged
        stem = folder / log_format.set_name(first)
        try:
            found += _findings(LogSet(folder, first, epoch), last, mark)
        except FileNotFoundError as error:
            if stem.with_suffix(EVENTS).exists():  # else it was removed since
                found.append(f"{error.filename} is missing: {_events(first, last)} are lost")
        except StoreCorrupt as error:
            found.append(f"{str(error).partition(';')[0]}: {_events(first, last)} are lost")
    return found


def _findings(log_set: LogSet, last: int | None, mark: int | None) -> list[str]:
    found = []
    whole = -1 if last is not None else _last_whole(log_set)
    if last is None and mark is not None and mark > whole:
        last = mark
    if last is None:
        last = whole
        size = os.stat(log_set.stem.with_suffix(BLOCKS)).st_size
        count = log_set.cover(last, last) - log_set.first + 1
        if not log_set.damaged and size > log_set.blocks * BLOCK.itemsize:
            found.append(
                f"{log_set.stem}{BLOCKS} holds bytes behind event {log_set.first + count - 1}, the last whole one: they were being written when "
                "the producer ended, and the next one cuts them off"
            )
    there = log_set.cover(last, last) if last >= log_set.first else last
    at = log_set.first
    while at <= there:
        damage = log_set.damage(at, there)
        if damage is None:
            break
        found.append(str(damage.error).partition(", and nothing of them")[0])
        at = damage.last + 1
    if there < last:
        found.append(f"{log_set.stem} ends at event {there}: events {there + 1} to {last} are lost")
    if log_set.damaged or there < log_set.first or found:
        return found
    bad = log_format.first_fault(log_set.records(log_set.first, there), 0, log_set.end, log_set.rows)
    if bad >= 0:
        found.append(f"{log_set.stem} has a record, of event {log_set.first + bad}, that does not follow from those before it")
    return found


def _last_whole(log_set: LogSet) -> int:
    """The last event of the last block of a set that is what it says, wherever it is in the file."""
    with open(log_set.stem.with_suffix(BLOCKS), "rb", opener=opened) as file:
        raw = file.read()
    for i in reversed(range(len(raw) // BLOCK.itemsize)):
        part = raw[i * BLOCK.itemsize : (i + 1) * BLOCK.itemsize]
        block = np.frombuffer(part, BLOCK)[0]
        if log_format.block_sound(part) and int(block["first"]) >= log_set.first and log_set.holds(block):
            return int(block["first"]) + int(block["count"]) - 1
    return log_set.first - 1


def _events(first: int, last: int | None) -> str:
    return f"events from {first} on" if last is None else f"events {first} to {last}"
