"""Events larger than the arena: each is in a segment of its own, freed with its ack.

Such an event is charged the whole limit, so it is alone in flight. Its segment is written before the put cursor moves: a
crash in between leaves a file that no slot names, which the next producer removes, or writes again where it is another user's.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from contextlib import suppress

import numpy as np

from shmstore.errors import StoreClosed, StoreError, refused
from shmstore.memory.layout import SlotFlag
from shmstore.memory.segment import Segment, entries, owner_of, take_memory
from shmstore.memory.shared_memory import open_file, remove_file
from shmstore.ring.cursors import PUT, spared


def write(segment: Segment, sequence: int, payload: bytes | memoryview) -> None:
    """Write the event's segment. Raises `StoreError` where that cannot be, `StoreClosed` where the store was removed meanwhile."""
    path = f"{segment.overflow_prefix}.{sequence}"
    try:
        fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            _give(fd, segment)
            _fill(fd, segment, payload)
            if not _named(fd, path):
                _fill_foreign(path, segment, payload)
            if segment.home:  # the process that cleans up /dev/shm under us does not take it away before the log has it
                segment.unlogged = sequence, os.fdopen(os.dup(fd), "rb")
        finally:
            os.close(fd)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        short = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
        fix = "make space there" if short else f"be its owner, uid {segment.uid}, or a member of its group, gid {segment.gid}"
        folder = os.path.dirname(path)
        what = f"nothing was stored: an event of {len(payload):,} bytes cannot have a separate file next to store {segment.name!r} in {folder}"
        raise refused(what, error, fix) from error
    # Who removed the store may have looked for such files before this was there. The put ends here, then, with nothing stored: an event
    # that was published without its payload would be lost, to the log, too, and with it whatever comes behind it. A store that is taken
    # away after this look keeps the file: its keeper appends the event, as it waits for the put (`Keeper.finish`).
    if segment.removed:
        _remove(path)
        raise StoreClosed(f"store {segment.name!r} was removed: attach again, or create it again")


def _give(fd: int, segment: Segment) -> None:
    """Let every user of the store read the event, and remove it where the directory lets its owner alone do so."""
    if os.geteuid() != segment.uid:
        with suppress(PermissionError):  # not root: the group is enough
            os.fchown(fd, segment.uid, -1)
    if segment.mode != 0o600:
        os.fchown(fd, -1, segment.gid)
        os.fchmod(fd, segment.mode)


def _fill(fd: int, segment: Segment, payload: bytes | memoryview) -> None:
    take_memory(fd, len(payload), in_memory=segment.path is None)
    view, at = memoryview(payload), 0
    while at < len(view):
        at += os.pwrite(fd, view[at:], at)


def _named(fd: int, path: str) -> bool:
    """Give the file its name; False where an orphan has it that this user may not remove."""
    while True:
        with suppress(FileExistsError):
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)  # as in segment.create
            return True
        try:
            remove_file(path)
        except FileNotFoundError:
            continue
        except PermissionError:
            return False


def _fill_foreign(path: str, segment: Segment, payload: bytes | memoryview) -> None:
    """Write the event into the orphan of another member of the store's group. No process reads it: no slot ever named it."""
    try:
        fd = open_file(path)
    except OSError:
        raise _in_the_way(path) from None
    try:
        found = os.fstat(fd)
        kind = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if not kind or found.st_gid != segment.gid or stat.S_IMODE(found.st_mode) != segment.mode:
            raise _in_the_way(path)  # a stranger's, who could read along
        os.ftruncate(fd, 0)
        _fill(fd, segment, payload)
    finally:
        os.close(fd)


def _in_the_way(path: str) -> StoreError:
    return StoreError(f"{path} is in the way and belongs to uid {owner_of(path)}: remove it as that user; nothing was stored")


def read(segment: Segment, sequence: int) -> memoryview:
    """Return the bytes of an oversized event, mapped and not copied: they stay valid as long as they are held, because a segment
    that a slot names is never written again. Raises OSError where it cannot be read."""
    known = segment.unlogged
    if known is not None and known[0] == sequence:
        return _mapped(known[1].fileno())
    with os.fdopen(open_file(f"{segment.overflow_prefix}.{sequence}", read_only=True), "rb") as file:
        return _mapped(file.fileno())


def _mapped(fd: int) -> memoryview:
    if not os.fstat(fd).st_size:  # which cannot be mapped
        return memoryview(b"")
    return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))


def free(segment: Segment, after: int) -> None:
    """Remove the segments of events after `after` that every subscription has acked by now, or the log has."""
    views = segment.views
    acked = spared(views)
    if acked <= after or acked - after > views.capacity:
        return
    i = (after + 1) & (views.slot_count - 1)
    flags = views.slots["flags"][i : i + acked - after]
    for offset in np.flatnonzero(flags & int(SlotFlag.OVERSIZED)).tolist():
        _remove(f"{segment.overflow_prefix}.{after + 1 + offset}")


def remove_orphans(segment: Segment) -> None:
    """Remove what a dead producer wrote and did not publish, and what was acked while no process looked."""
    acked, put = spared(segment.views), segment.words[PUT]
    for path, sequence in overflows(segment):
        if sequence <= acked or sequence > put:
            _remove(path)


def overflows(segment: Segment) -> list[tuple[str, int]]:
    """Return (path, sequence) of every overflow segment of this life of the store."""
    directory, base = os.path.split(segment.overflow_prefix)
    numbers = [entry[len(base) + 1 :] for entry in entries(directory) if entry.startswith(f"{base}.")]
    return sorted((f"{segment.overflow_prefix}.{number}", int(number)) for number in numbers if number.isdecimal())


def _remove(path: str) -> None:
    # Another reader's ack came to the same end; or the directory is sticky and the file another user's: then the producer
    # removes it before it writes the next.
    with suppress(FileNotFoundError, PermissionError):
        remove_file(path)
