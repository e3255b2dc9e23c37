"""RemoteStore: a store on another host, as far as a `Consumer` asks for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Self

from shmstore import BatchMode, StoreClosed, StoreError
from shmstore.consumer.remote.address import StoreAddress, parse_url
from shmstore.consumer.remote.link import Link, RemoteLost
from shmstore.consumer.remote.protocol import Request
from shmstore.consumer.remote.subscription import RemoteSubscription
from shmstore.start_position import Start


class RemoteStore:
    """A store of a server of Arrow Flight. Make one with `attach`."""

    lost = False  # the server finds one that was restored; True: it found another one at this name

    def __init__(self, address: StoreAddress) -> None:
        self.name = address.store
        self._link = Link(address)
        self._closed = False
        self._reader: Callable[[], RemoteSubscription | None] = lambda: None
        try:
            found = self._asked("store", {})
        except BaseException:
            self._link.close()
            raise
        self.epoch = int(found["epoch"])
        self.capacity = int(found["capacity"])
        self.memory_unit = int(found["memory_unit"])
        self.limit_bytes = int(found["limit_bytes"])
        self.batch_mode = BatchMode(found["batch_mode"])
        self.has_log = bool(found["has_log"])

    @classmethod
    def attach(cls, url: str) -> Self:
        """Reach the store at `url` (`address`). Raises `StoreNotFound`, `StoreUnreachable`, `StoreError` where the login is refused."""
        return cls(parse_url(url))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"store {self.name!r} is closed: attach again")

    def _asked(self, action: str, request: Request) -> Request:
        self._check_open()
        try:
            return self._link.action(action, {"store": self.name, **request})
        except RemoteLost as error:
            raise self._link.unreachable(error) from error

    @property
    def newest(self) -> int:
        """Last sequence put; ``oldest - 1`` when nothing is kept."""
        return int(self._asked("store", {})["newest"])

    @property
    def oldest(self) -> int:
        """First sequence that can still be read."""
        return int(self._asked("store", {})["oldest"])

    def subscribe(self, name: str, *, start: Start = "earliest", checkpoint: bool = True) -> RemoteSubscription:
        """Own the subscription `name`, as `EventStore.subscribe`; a store without a log keeps a checkpoint where the server is."""
        self._check_open()
        subscription = RemoteSubscription(self._link, self.name, name, start, checkpoint)
        if subscription.epoch != self.epoch:
            subscription.close()
            self.lost = True
            raise StoreClosed(f"store {self.name!r} is another one now: it was removed, and created again; attach again")
        self._reader = weakref.ref(subscription)
        return subscription

    def sync(self, sequence: int | None = None, timeout: float = 10.0) -> int:
        """Wait until the log has everything up to `sequence` on disk, as `EventStore.sync`, for the subscription of this store.

        Raises `StoreError` where there is none: the server does that for its readers alone.
        """
        self._check_open()
        reader = self._reader()
        if reader is None:
            raise StoreError(f"nothing is read from store {self.name!r}: subscribe before sync()")
        return reader.sync(self.newest if sequence is None else sequence, timeout) if self.has_log else -1

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._closed = True
        self._link.close()
