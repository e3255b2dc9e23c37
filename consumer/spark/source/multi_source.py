"""A store of several sources: which of its events a micro-batch has, and which server each came from.

Such a store has another order once it is re-created, so a sequence says nothing there, and neither do file and offset, which are
one server's. GTIDs do: an offset has those of every source, and a transaction was read where they cover its own. A micro-batch
that was planned before the store was re-created is therefore not a range of the ring but a choice from one: what is after its
start and not after its end. So it is the same rows again, in whatever order they come. What a query had read ahead of the others
stays in its offsets until the store has reached it.

Only the last event of a transaction, or of a part of one, names its source. The others are known by whose GTIDs they carry: two
sources never bring transactions of one server (the producer refuses them).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shmstore import Batch, EventStore, EventType, Position, PositionNotFound
from shmstore.consumer.remote.events import RemoteEvents
from shmstore.consumer.spark.source.offset import Offset
from shmstore.encoding.codec import Header, stored_head
from shmstore.event import Sources as Places
from shmstore.gtids import Gtids, covers, parse
from shmstore.store.reader_place import ReaderPlace

_LOOK = 4096


@lru_cache(maxsize=256)
def _gtids(sources: Places) -> Gtids:
    return parse(",".join(at.gtids for _, at in sources))


class SourceMark(NamedTuple):
    """What the last event of a transaction, or of a part (`inside` it), says: where all sources stand, and which one it is from."""

    sequence: int
    sources: Places
    transaction: str
    inside: bool
    position: Position
    source: str

    @classmethod
    def of(cls, sequence: int, header: Header) -> SourceMark | None:
        """Return what `header` says; None where its event is no such one."""
        position, cut = header.position, header.cut
        sources = position.sources if cut is None else cut.sources
        if not sources or not sources[0][0]:
            return None
        return cls(sequence, sources, header.transaction, cut is not None, position, header.props.get("source", ""))


def is_group(store: EventStore) -> bool | None:
    """Whether the store holds several sources; None while it holds nothing that says so."""
    place = store.last_ack_point()
    if place is not None and (place.gtids or place.sources):
        return place.of_group
    newest = store.latest_event  # a large transaction leaves nothing of the one before it
    if newest is not None and newest.cut is not None:
        return bool(newest.cut.sources[0][0])
    return True if next(marks(store), None) is not None else None if place is None else False


def offset_at(store: EventStore, sequence: int, after: Offset | None = None) -> Offset:
    """Return the offset of event `sequence`, the last of a transaction or of a part, for a query that has read up to `after`.

    Raises `PositionNotFound` where it is no such event.
    """
    batch = store.peek(sequence, limit_events=1)
    mark = next((SourceMark.of(sequence, stored_head(payload)[0]) for payload in batch.payloads()), None)
    if mark is None:
        raise PositionNotFound(f"event {sequence} of store {store.name!r} is within a transaction, where no query can continue")
    here, ahead = _gtids(mark.sources), ""
    if after is not None and after.of_group:  # what was read ahead of the others before the store was re-created
        sets = ",".join([*(at.gtids for _, at in after.sources), after.ahead]).split(",")
        ahead = ",".join([part for part in sets if not covers(here, parse(part))])
    file, offset, gtids, row, _ = mark.position
    inside = mark.transaction if mark.inside else ""
    return Offset(store.name, store.epoch, sequence, file, offset, gtids, row, inside, mark.sources, ahead)


def located(store: EventStore, offset: Offset, *, end: bool = False) -> int | None:
    """Return the last event of this store, another than the offset's, before which a query at `offset` has read everything; with `end` the first
    up to which everything not after `offset` is there. None while its producer has not come to it.

    Raises `PositionNotFound` if events after `offset` are no longer in the store.
    """
    position, latest = offset.position, store.latest_position
    if position is None:
        return store.oldest - 1
    if not position.sources:
        behind = latest is None or (position.file and latest.order < position.order)
        return None if behind else store.find(position) - 1
    place = place_of(offset)
    if end:
        return place.reached(store.segment)
    if place.is_comparable(store.segment):
        return place.first_new(store.segment) - 1
    part = next(marks(store), None)  # of a transaction that is larger than the store
    if part is not None and not covers(place.gtids, _gtids(part.sources)):
        raise PositionNotFound(f"store {store.name!r} begins after {offset}")
    return None if part is None else store.oldest - 1


@lru_cache(maxsize=64)
def place_of(offset: Offset) -> ReaderPlace:
    """Return what a query at `offset` has read."""
    return ReaderPlace(offset.position or Position("", 0), ahead=offset.ahead, inside=offset.inside)


def marks(store: EventStore, first: int | None = None, last: int | None = None) -> Iterator[SourceMark]:
    """Yield the marks of events `first` to `last`, or of all that are there, newest first."""
    first, last = store.oldest if first is None else first, store.newest if last is None else last
    while last >= first:
        start = max(first, last - _LOOK + 1)
        batch = store.peek(start, limit_events=last - start + 1)
        for i, payload in reversed(list(enumerate(batch.payloads(), start))):
            mark = SourceMark.of(i, stored_head(payload)[0])
            if mark is not None:
                yield mark
        last = start - 1


def whole(batch: Batch, most: int) -> int:
    """Return how many of the first events of `batch` end with a mark: the most up to `most`, else the fewest; 0 without one."""
    found = [i for i, payload in enumerate(batch.payloads(), 1) if SourceMark.of(i, stored_head(payload)[0]) is not None]
    return max((i for i in found if i <= most), default=min(found, default=0))


def cut_after(store: EventStore, base: int, most: int, last: int) -> int:
    """Return where events after `base` may be cut: at the last mark among `most` of them, else at the first one up to `last`; `base` without one."""
    cut = base
    for batch in store.read(base + 1, last):
        for i, payload in enumerate(batch.payloads(), batch.first):
            if i > base + most and cut > base:
                return cut
            if SourceMark.of(i, stored_head(payload)[0]) is not None:
                cut = i
    return cut


def names_of(store: EventStore, first: int, last: int) -> dict[str, str]:
    """Return the source of each server's transactions among events `first` to `last`, by server UUID or MariaDB's domain."""
    names: dict[str, str] = {}
    shared = False  # an ancestor's GTIDs may be in several sources' sets: its transactions say themselves which one brings them
    place = store.last_ack_point()
    for name, at in place.sources if place is not None else ():
        for server in _servers(at.gtids):
            shared = shared or server in names
            names[server] = name
    for mark in marks(store, first if shared else last, last):
        if mark.source:
            names[_server(mark.transaction)] = mark.source
    return names


def _server(transaction: str) -> str:
    """The server's UUID, or MariaDB's domain, in a GTID."""
    return transaction.partition(":" if ":" in transaction else "-")[0]


def _servers(gtids: str) -> set[str]:
    return {key.partition(":")[0] for key in parse(gtids)}


# ---------------------------------------------------------------- in the executors


class Sources(NamedTuple):
    """What an executor must know of a group: `names` by server UUID or MariaDB's domain; the micro-batch is what is after `after` and not
    after `until`, where they are from before the store was re-created."""

    names: dict[str, str]
    after: Offset | None
    until: Offset | None

    @classmethod
    def of(cls, store: EventStore, start: Offset | None, end: Offset | None, first: int, last: int) -> Sources:
        """Return them for the events `first` to `last` that are after `start` and not after `end`."""
        after = start if start is not None and (start.epoch != store.epoch or start.ahead) else None
        return cls(names_of(store, first, last), after, end if end is not None and end.epoch != store.epoch else None)

    def pieces(self, chunk: RemoteEvents) -> Iterator[tuple[RemoteEvents, str | None]]:
        """Yield the events of `chunk` that are in the micro-batch, in runs; with the name of their source where GTIDs do not say it."""
        reads = chunk.slots["type"] == int(EventType.READ)
        if self.after is None and self.until is None and not reads.any():
            yield chunk, None
            return
        kept = list(map(self._kept, chunk.payloads(), reads.tolist()))
        raw, at = memoryview(chunk.raw), 0
        for (wanted, name), run in groupby(kept):
            count = len(list(run))
            start = int(chunk.ends[at - 1]) if at else 0
            end = at + count
            if wanted:
                yield (
                    RemoteEvents(
                        chunk.first + at, raw[start : int(chunk.ends[end - 1])], chunk.ends[at:end] - start, chunk.slots[at:end]
                    ),
                    name,
                )
            at = end

    def _kept(self, payload: memoryview, read: bool) -> tuple[bool, str | None]:
        header = stored_head(payload)[0]
        if read:  # rows of a snapshot: they stand where their source stood, and say no transaction
            return True, next((self.names[server] for server in _servers(header.gtids) if server in self.names), "")
        position = header.position
        after = self.after is not None and place_of(self.after).has(header.transaction, position)
        until = self.until is None or place_of(self.until).has(header.transaction, position)
        return not after and until is not False, None

    def named(self, batch: pa.RecordBatch, name: str | None) -> pa.RecordBatch:
        """Return rows with their source in `source.name` and before their `seq`."""
        if name is None:
            encoded = batch["transaction"].dictionary_encode()
            known = [self.names.get(_server(transaction)) for transaction in encoded.dictionary.to_pylist()]
            names = pa.array(known, pa.string()).take(encoded.indices)
        else:
            names = pa.repeat(name, len(batch))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["seq"] = pc.binary_join_element_wise(names.fill_null(""), columns["seq"], "/")
        source = columns["source"]
        columns["source"] = pa.StructArray.from_arrays([*source.flatten()[:-1], names], fields=list(source.type))
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)

    def of_events(self, chunk: RemoteEvents, name: str | None) -> pa.Array:
        """Return the source of each event."""
        if name is not None:
            return pa.repeat(name, len(chunk.ends))
        servers = [_server(stored_head(payload)[0].transaction) for payload in chunk.payloads()]
        return pa.array(map(self.names.get, servers), pa.string())
