"""What the tests of a store with a log share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from shmstore import StoreFull, Subscription


def reboot(name: str) -> None:
    """The memory goes, as at a reboot; the disk stays."""
    os.unlink(f"/dev/shm/shmstore.{name}")


def payload(k: int) -> bytes:
    return b"event %d." % k * (1 + k % 7)


def taken(reader: Subscription, count: int, **limits: int) -> list[bytes]:
    """The next `count` payloads, got and acked."""
    found: list[bytes] = []
    while len(found) < count:
        batch = reader.get(timeout=5, **limits)
        assert batch, f"only {len(found)} of {count} came"
        found += map(bytes, batch.payloads())
        assert bytes(batch.raw) == b"".join(found[-len(batch) :])
        assert batch.ends[-1] == len(batch.raw)
        assert batch.rows == len(batch) == len(batch.slots)
        reader.ack(batch)
    return found


def read_all(reader: Subscription, timeout: float = 0) -> None:
    while batch := reader.get(timeout=timeout):
        reader.ack(batch)


def refused_at_the_bound(put: Callable[[], object]) -> str:
    """Put until the log's bound refuses it, and return what that says: a disk that is slow for a moment refuses as well, for another reason."""
    while True:
        try:
            put()
        except StoreFull as error:
            if "as large as it may be" in str(error):
                return str(error)
        else:
            raise AssertionError("nothing was refused")


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
