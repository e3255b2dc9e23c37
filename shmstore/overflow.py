"""Events larger than the arena: each lies in a segment of its own, freed with its ack.

Such an event is charged the whole limit, so it is alone in flight. Its segment is written before the put cursor moves: a
crash in between leaves a file that no slot names, which the next producer removes.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

import numpy as np

from shmstore.errors import StoreError
from shmstore.layout import SlotFlag
from shmstore.ring import PUT, slowest_ack
from shmstore.segment import Segment


def write(segment: Segment, sequence: int, payload: bytes | memoryview) -> None:
    """Write the event's segment. Raises `StoreError` where there is no memory for it."""
    path = f"{segment.beside}.{sequence}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if segment.mode != 0o600:
            os.fchown(fd, -1, segment.gid)
            os.fchmod(fd, segment.mode)
        os.posix_fallocate(fd, 0, len(payload))
        view, at = memoryview(payload), 0
        while at < len(view):
            at += os.pwrite(fd, view[at:], at)
    except OSError as error:
        os.unlink(path)
        if error.errno != errno.ENOSPC:
            raise
        raise StoreError(
            f"an event of {len(payload)} bytes does not fit into {os.path.dirname(path)}: make room there; nothing was stored"
        ) from error
    finally:
        os.close(fd)
    if segment.removed:  # who removed the store may have looked before this was there
        _remove(path)


def free(segment: Segment, after: int) -> None:
    """Remove the segments of events after `after` that every subscription has acked by now."""
    views = segment.views
    acked = slowest_ack(views)
    if acked <= after or acked - after > views.capacity:
        return
    i = (after + 1) & (views.places - 1)
    flags = views.slots["flags"][i : i + acked - after]
    for offset in np.flatnonzero(flags & int(SlotFlag.OVERSIZED)).tolist():
        _remove(f"{segment.beside}.{after + 1 + offset}")


def remove_orphans(segment: Segment) -> None:
    """Remove what a dead producer wrote and did not publish, and what was acked while nobody looked."""
    acked, put = slowest_ack(segment.views), segment.words[PUT]
    for path, sequence in overflows(segment):
        if sequence <= acked or sequence > put:
            _remove(path)


def overflows(segment: Segment) -> list[tuple[str, int]]:
    """Return (path, sequence) of every overflow segment of this life of the store."""
    directory, base = os.path.split(segment.beside)
    numbers = [entry[len(base) + 1 :] for entry in os.listdir(directory) if entry.startswith(f"{base}.")]
    return sorted((f"{segment.beside}.{number}", int(number)) for number in numbers if number.isdecimal())


def _remove(path: str) -> None:
    # Another reader's ack came to the same end; or the directory is sticky and the file another user's: then the producer
    # removes it before it writes the next.
    with suppress(FileNotFoundError, PermissionError):
        os.unlink(path)
