"""Every error shmstore raises on purpose.

A message holds what was seen, what was allowed, and what to do. On the command line these become one line and exit
code 2; anything else that reaches the user is a bug.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable


class ShmStoreError(Exception):
    """Root of all errors raised by shmstore, its producer and its consumers."""


class StoreError(ShmStoreError):
    """An error of the store itself: its segment, its owners, its limits."""


class StoreNotFound(StoreError, FileNotFoundError):
    """No store has this name."""


class StoreExists(StoreError, FileExistsError):
    """A store of this name is already there."""


class StoreUnreachable(StoreError, ConnectionError):
    """The server of a store on another host does not answer."""


class LayoutMismatch(StoreError, ValueError):
    """The segment is not a store, is of another layout version, or its sizes contradict each other."""


class StoreCorrupt(StoreError, ValueError):
    """A slot or an event of an attached store is damaged; nothing of it was delivered."""


class StoreClosed(StoreError, ValueError):
    """The store or subscription was used after close(), or its segment was removed."""


class StoreFull(StoreError, TimeoutError):
    """There was not enough free space before the deadline; nothing was stored."""


class SyncTimeout(StoreError, TimeoutError):
    """The log did not have the events on disk before the deadline; they are not lost, and may be asked for again."""


class BatchTooLarge(StoreError, ValueError):
    """This list of events could never fit into this store; nothing was stored."""


class AckError(StoreError, ValueError):
    """The batch or sequence cannot be acked or rolled back; no cursor was moved."""


class ProducerInUse(StoreError, RuntimeError):
    """Another living process is the producer of this store."""


class SubscriptionInUse(StoreError, RuntimeError):
    """Another living process owns this subscription."""


class SubscriptionLost(StoreError, RuntimeError):
    """The subscription was evicted because it held up the producer; events after its ack are no longer in the store."""


class SubscriptionNotFound(StoreError, LookupError):
    """The store has no subscription of this name."""


class SourceError(ShmStoreError):
    """An error of the MySQL or MariaDB side: server, account, binlog."""


class BinlogDisabled(SourceError):
    """The server writes no binlog, or one that rows cannot be read from."""


class BinlogPurged(SourceError):
    """The server no longer has the binlog of the start position."""


class PositionNotFound(SourceError, LookupError):
    """The start position does not exist on this server or in this store."""


class UnsupportedEvent(SourceError):
    """The binlog holds something that cannot be decoded exactly; the producer stops rather than skip it."""


class SchemaUnknown(SourceError):
    """A rows event has no column names or types, which are needed to decode it."""


class CopyUnreadable(ShmStoreError, ValueError):
    """A copy of a table that is not there, lacks a column, or holds what cannot stand for a value of the table."""


class ProtocolError(ShmStoreError, ValueError):
    """A client of the wire protocol sent something that is not allowed."""


# ---------------------------------------------------------------- what the system refused


def refused(what: str, error: OSError, fix: str = "") -> StoreError:
    """Return the error that says that `what` failed, why, and what to do: `fix`, unless the error number has a fix of its own."""
    number, file = error.errno or 0, "" if error.filename is None else os.fsdecode(error.filename)
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        fix = f"this process may have {most:,} file descriptors: close some, or allow more (`ulimit -n`)"
    elif number == errno.ENFILE:
        fix = "the host has no more file descriptors: see `sysctl fs.file-nr fs.file-max`"
    elif number == errno.ENOMEM and error.strerror == os.strerror(
        errno.ENOMEM
    ):  # of the kernel: a mapping, not a file that is too large
        fix = "this process cannot map more memory: see `ulimit -v` and `sysctl vm.max_map_count`, or close stores that it does not need"
    elif file.startswith("/proc/") and not os.path.isdir("/proc/self/fd"):
        fix = "no /proc is mounted, which a store needs: `mount -t proc proc /proc`, or give it to the container"
    seen = f"{what}: {error.strerror or error}" + (f" (errno {number})" if number else "")
    return StoreError(seen + (f", {file}" if file and file not in what else "") + (f"; {fix}" if fix else ""))


# ---------------------------------------------------------------- what to do


def install(extra: str) -> str:
    """Return how to install the extra `extra`. The project is in no package index yet."""
    return f"in a checkout of shmstore, pip install '.[{extra}]'"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean NAME?`` with the one of `names` that is nearest to `word`, or nothing where none is near."""
    from difflib import get_close_matches  # only where something is wrong

    known = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), known, 1)
    return f"; did you mean {known[near[0]]}?" if near else ""
