"""The store as a plain list and a few numbers: what `EventStore` must look like from outside, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """One event: payload, rows, whether it is a DDL, and what it counts against the limit."""

    payload: bytes
    rows: int
    ddl: bool
    charge: int


@dataclass(slots=True)
class Reader:
    """A subscription: everything up to `ack` is done, up to `get` is out. `seen` is where put stood when it last looked. Of a store with
    a log everything up to `durable` stays done, whatever happens.

    A reader looks again only when it has got all it knows of, when it waits, or when a limit of bytes may have left something.
    """

    ack: int
    get: int
    seen: int
    open: bool = True
    durable: int = -1


class StoreModel:
    """All that was ever put, and where each reader is. Sequences are indexes into the list, plus `first`."""

    def __init__(self, capacity: int, limit: int, *, ddl_isolation: bool, first: int = 0, log: bool = False) -> None:
        self.capacity, self.limit, self.ddl_isolation, self.first, self.log = capacity, limit, ddl_isolation, first, log
        self.events: list[Stored] = []
        self.readers: dict[str, Reader] = {}
        self.stand_in = first - 1  # what is acked while there is no subscription

    @property
    def newest(self) -> int:
        return self.first + len(self.events) - 1

    @property
    def acked(self) -> int:
        return min((reader.ack for reader in self.readers.values()), default=self.stand_in)

    @property
    def oldest(self) -> int:
        """What can still be read: with a log all that was ever put, without one what some reader has not acked."""
        return self.first if self.log else self.acked + 1

    def at(self, sequence: int) -> Stored:
        return self.events[sequence - self.first]

    def run(self, first: int, last: int) -> list[Stored]:
        return self.events[first - self.first : last - self.first + 1]

    # ------------------------------------------------------------ put

    def can_ever_fit(self, events: list[Stored]) -> bool:
        return len(events) <= self.capacity and sum(event.charge for event in events) <= self.limit

    def fits(self, events: list[Stored]) -> bool:
        if self.log:
            return True  # as soon as the log has what is in the ring
        held = self.run(self.acked + 1, self.newest)
        count, size = len(held) + len(events), sum(event.charge for event in (*held, *events))
        return count <= self.capacity and size <= self.limit

    def charge(self, payload: bytes) -> int:
        return min(len(payload), self.limit)

    # ------------------------------------------------------------ subscriptions

    def subscribe(self, name: str, ack: int) -> None:
        self.readers[name] = Reader(ack, ack, ack, durable=ack)

    def unsubscribe(self, name: str, wish: int) -> None:
        """`wish`: the ack that the producer waits for in vain."""
        gone = self.readers.pop(name)
        if not self.readers:
            self.stand_in = self.newest if gone.ack < wish else gone.ack

    def reopen(self, name: str) -> None:
        reader = self.readers[name]
        reader.open, reader.get, reader.seen = True, reader.ack, reader.ack

    def clear(self) -> None:
        self.stand_in = self.newest
        for reader in self.readers.values():
            reader.ack = reader.get = reader.seen = self.newest

    # ------------------------------------------------------------ get

    def takes(self, name: str, limit_events: int | None, limit_bytes: int | None, *, looks: bool) -> int:
        """Last sequence of the next batch; get itself when nothing is there. `looks` when the reader waits first."""
        reader = self.readers[name]
        get = reader.get
        if looks or limit_bytes is not None or reader.seen <= get:
            reader.seen = self.newest
        last, size = get, 0
        while last < reader.seen:
            event = self.at(last + 1)
            size += event.charge
            if last > get:
                if limit_events is not None and last + 1 - get > limit_events:
                    break
                if limit_bytes is not None and size > limit_bytes:
                    break
                if self.ddl_isolation and event.ddl:
                    break
            last += 1
            if self.ddl_isolation and event.ddl:
                break
        return last
