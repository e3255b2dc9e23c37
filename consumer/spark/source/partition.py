"""Partitions: what an executor gets to read, and how it gets the events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from shmstore import EventStore, PositionNotFound, StoreNotFound
from shmstore.consumer.remote.address import StoreAddress
from shmstore.consumer.remote.events import RemoteEvents
from shmstore.consumer.spark.callbacks import readable
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.decode.lineage import Names
from shmstore.consumer.spark.decode.schema import RAW_SCHEMA, arrow_schema
from shmstore.consumer.spark.decode.worker_memory import settle
from shmstore.consumer.spark.source.multi_source import Sources
from shmstore.event import EntryType, EventType

INLINE_BYTES = 8 << 20
Renamed = tuple[tuple[int, Names], ...]  # from which event on the planned columns have which names
_attached: dict[tuple[str, str | None], EventStore] = {}


class Memory(NamedTuple):
    """A folder that a store's memory is in, as one host or container sees it: another one has a folder of that name, and another file system."""

    folder: str
    boot: str
    device: int

    @classmethod
    def at(cls, folder: str) -> Memory | None:
        """Return what this process sees there; None where there is no such folder."""
        try:
            return cls(folder, Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.stat(folder).st_dev)
        except OSError:
            return None


class Range(NamedTuple):
    """Events `first` to `last` of one life of a store; `state` is the folder of its home, where it has a log, and `memory` where the store's is.
    Events that are lost when they are read are an error if it `fails`, else left out.
    """

    store: str
    path: str | None
    epoch: int
    first: int
    last: int
    state: str | None = None
    fails: bool = True
    memory: Memory | None = None

    @classmethod
    def of(cls, store: EventStore, first: int, last: int, *, fails: bool = True) -> Range:
        """Return the range of events of an attached store."""
        memory = Memory.at(os.path.dirname(store.segment.where))
        return cls(store.name, store.segment.path, store.epoch, first, last, str(store.home.state), fails, memory)


class SharedPartition(InputPartition):
    """Events to be read from the segment, or from the store's log, by an executor on the store's host."""

    def __init__(self, events: Range, sources: Sources | None = None, names: Renamed = ()) -> None:
        super().__init__(events)
        self.events = events
        self.sources = sources
        self.names = names

    def chunks(self) -> Iterator[RemoteEvents]:
        """Yield the events, some at a time. Raises `PositionNotFound`, `StoreNotFound`."""
        yield from read_shared(self.events)


class RemotePartition(InputPartition):
    """Events to be fetched from the query's own process; `nearby` tries the segment first, for executors that see it."""

    def __init__(
        self, events: Range, address: StoreAddress, sources: Sources | None = None, names: Renamed = (), *, nearby: bool
    ) -> None:
        super().__init__(events)
        self.events = events
        self.sources = sources
        self.names = names
        self._address = address
        self._nearby = nearby

    def chunks(self) -> Iterator[RemoteEvents]:
        """Yield the events, some at a time. Raises `PositionNotFound`, OSError."""
        if self._nearby:
            try:
                store = attached(self.events, restore=False)
            except (StoreNotFound, PositionNotFound):
                pass  # another host, perhaps with a store of this name: the query's process knows
            else:
                yield from read_store(store, self.events.first, self.events.last, fails=self.events.fails)
                return
        from shmstore.consumer.spark.source.event_server import fetch  # gRPC takes a while to load

        yield from fetch(self._address, self.events.first, self.events.last)


class InlinePartition(InputPartition):
    """Events that travel in the partition itself, to an executor on any host."""

    def __init__(self, chunks: list[RemoteEvents], sources: Sources | None = None, names: Renamed = ()) -> None:
        super().__init__(None)
        self.sources = sources
        self.names = names
        self._chunks = [each._replace(raw=bytes(each.raw)) for each in chunks]

    def chunks(self) -> Iterator[RemoteEvents]:
        """Yield the events."""
        yield from self._chunks


def read_shared(events: Range) -> Iterator[RemoteEvents]:
    """Yield the events of `events` out of the ring or the log. Raises `PositionNotFound` if they were overwritten, `StoreNotFound`."""
    yield from read_store(attached(events), events.first, events.last, fails=events.fails)


def read_store(store: EventStore, first: int, last: int, *, fails: bool = True) -> Iterator[RemoteEvents]:
    """Yield events of an attached store. Raises `PositionNotFound` if they are not there yet, and if they were overwritten and it `fails`."""
    if last > store.newest:
        raise PositionNotFound(
            f"event {last} is not in store {store.name!r} yet: epoch {store.epoch:016x} ends at {store.newest}"
        )
    try:
        yield from map(RemoteEvents.of, store.read(first, last, gone=None if fails else lambda *_: None))
    except PositionNotFound as error:
        if not store.has_log:
            raise PositionNotFound(
                f"{error}. They were removed after this micro-batch was planned, because its subscription was evicted: take a snapshot of the query's "
                "tables, or set failOnDataLoss=false to continue without them; a larger store, or one with a log or lag=block, keeps them"
            ) from error
        raise PositionNotFound(
            f"{error}. The log removed it after this read was planned: give the store a larger log_size or log_keep, or read less at a time"
        ) from error


def attached(events: Range, *, restore: bool = True) -> EventStore:
    """Return the store, attached once in each worker process. Raises `StoreNotFound`, or `PositionNotFound` in another epoch.

    It is restored from its home where the memory that the range was planned in is seen, and nowhere else: a container may share
    the home with the store's host, and not the memory. Without `restore` it is not restored at all.
    """
    key = (events.store, events.path)
    store = _attached.get(key)
    if store is not None and (store.epoch != events.epoch or store.lost):
        del _attached[key]
        store.close()
        store = None
    if store is None:
        try:
            restore = restore and events.memory is not None and Memory.at(events.memory.folder) == events.memory
            store = EventStore.attach(events.store, path=events.path, state=events.state, restore=restore)
        except StoreNotFound as error:
            raise StoreNotFound(
                f"{error}. The executor runs on another host, or in another container, than the store: use transport=auto, inline or network "
                "in a stream, and transport=inline in a batch read"
            ) from error
        _attached[key] = store
    if store.epoch != events.epoch:
        raise PositionNotFound(
            f"store {events.store!r} was re-created after this micro-batch was planned (epoch {events.epoch:016x}, now {store.epoch:016x}): "
            "restart the query, which then continues at its binlog position"
        )
    return store


def split(first: int, ends: np.ndarray[Any, Any], parts: int) -> list[tuple[int, int]]:
    """Return up to `parts` ranges (first, last) of the events from `first` on, which end at `ends`: about the same bytes in each."""
    marks = np.searchsorted(ends, np.arange(1, parts) * (int(ends[-1]) / parts)) + 1
    cuts = [0, *np.unique(marks).tolist(), len(ends)]
    return [(first + a, first + b - 1) for a, b in pairwise(cuts) if b > a]


# ---------------------------------------------------------------- decode

_RAW_OPS = ("c", "u", "d", "r", "statement", "begin", "end", "ddl", None)
_CODES = np.full((16, 256), _RAW_OPS.index(None))  # by entry and type
_CODES[EntryType.ROWS, [EventType.INSERT, EventType.UPDATE, EventType.DELETE, EventType.READ, EventType.QUERY]] = range(5)
_CODES[[EntryType.BEGIN, EntryType.END, EntryType.DDL]] = np.arange(5, 8)[:, None]


def record_batches(
    chunks: Iterator[RemoteEvents], decoder: Decoder, sources: Sources | None = None, names: Renamed = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `chunks` as the query's payload wants them; `sources` where the store has several, `names` where DDLs changed columns."""
    settle()
    with readable():
        for chunk in chunks:
            for piece, known in _by_names(chunk, names):
                yield from rows_of(piece, decoder, sources, known)


def _by_names(chunk: RemoteEvents, names: Renamed) -> Iterator[tuple[RemoteEvents, Names | None]]:
    """Cut a chunk where the names of the planned columns change."""
    first, last = chunk.first, chunk.first + len(chunk.ends) - 1
    known = next((found for at, found in reversed(names) if at <= first), None)
    for at, found in [*[one for one in names if first < one[0] <= last], (last + 1, None)]:
        yield part(chunk, first, at - 1), known
        first, known = at, found


def part(chunk: RemoteEvents, first: int, last: int) -> RemoteEvents:
    """Return events `first` to `last` of a chunk."""
    a, b = first - chunk.first, last - chunk.first + 1
    if a == 0 and b == len(chunk.ends):
        return chunk
    begin, end = int(chunk.ends[a - 1]) if a else 0, int(chunk.ends[b - 1]) if b else 0
    return RemoteEvents(first, memoryview(chunk.raw)[begin:end], chunk.ends[a:b] - begin, chunk.slots[a:b])


def rows_of(
    whole: RemoteEvents, decoder: Decoder, sources: Sources | None, names: Names | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one chunk, in which the planned columns have these `names`."""
    for chunk, name in ((whole, None),) if sources is None else sources.pieces(whole):
        if decoder.options.payload == "raw":
            batch = _raw(chunk, decoder, None if sources is None else sources.of_events(chunk, name))
            if batch.num_rows:
                yield batch
            continue
        for batch in decoder.batches(chunk.raw, chunk.ends, names):
            yield batch if sources is None else sources.named(batch, name)


def _raw(chunk: RemoteEvents, decoder: Decoder, source: pa.Array | None) -> pa.RecordBatch:
    """One row an event, the payload as it is, nothing decoded but where tables are filtered."""
    slots, options = chunk.slots, decoder.options
    entry = slots["entry"]
    wanted = entry == EntryType.ROWS
    if options.ddl:
        wanted |= (entry == EntryType.DDL) | (entry == EntryType.HEARTBEAT)  # that is a change of the producer's filters
    if options.markers:
        wanted |= (entry == EntryType.BEGIN) | (entry == EntryType.END)
    if not options.all_tables:
        wanted = decoder.wanted(chunk.raw, chunk.ends, wanted)
    offsets = np.concatenate(([0], chunk.ends)).astype(np.int32)
    payload = pa.Array.from_buffers(pa.binary(), len(slots), [None, pa.py_buffer(offsets), pa.py_buffer(chunk.raw)])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(chunk.first, chunk.first + len(slots))),
            pa.array(_RAW_OPS).take(pa.array(_CODES[entry & 15, slots["type"]])),
            pa.array(slots["rows"].astype(np.int64)),
            pa.array(slots["time"].astype(np.int64)),
            pa.array(slots["file"].astype(np.int64)),
            pa.array(slots["offset"].astype(np.int64)),
            payload,
            pa.nulls(len(slots), pa.string()) if source is None else source,
        ],
        schema=arrow_schema(RAW_SCHEMA),
    )
    return batch if wanted.all() else batch.filter(pa.array(wanted))
