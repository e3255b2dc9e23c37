"""Spool: a store's events as Parquet files, for readers that are away for longer than the ring holds.

Plan. A spool is a subscription that writes what it gets to a folder and acks it then, so that the ring never fills because Spark
is down. A file holds events of one life of the store, without a gap, up to a transaction end (within a transaction only where
that is larger than half the ring):

    FOLDER/0000000017-1f00c0ffee00cafe-4711-5200.parquet     number, epoch, first and last sequence
    FOLDER/readers/NAME.json                                 up to which file a reader is done

Written under another name, synced, renamed, the folder synced, and acked last: after a crash between any two of these the events
come again, and those that the newest file holds already are left out. So each event is in one file, whatever is killed. Files that
every reader is done with are removed, the newest one never: it says how far the spool is.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shmstore import SLOT, Batch, CheckpointFile, EventStore, Position, PositionNotFound, ShmStoreError, SlotFlag, StoreCorrupt
from shmstore.atomic_file import replace
from shmstore.encoding.codec import decode_stored
from shmstore.event import EventType

FILE_BYTES = 64 << 20
_META = b"shmstore.spool"
_FIELDS = [name for name in SLOT.names or () if name not in ("reserved", "check")]
_GET_EVENTS = 8192


class Piece(NamedTuple):
    """One file: events `first` to `last` of one life of the store."""

    path: Path
    number: int
    epoch: int
    first: int
    last: int


def pieces(folder: Path) -> list[Piece]:
    """Return the files of a spool, in order."""
    found = []
    for path in folder.glob("*.parquet"):
        number, epoch, first, last = path.stem.split("-")
        found.append(Piece(path, int(number), int(epoch, 16), int(first), int(last)))
    return sorted(found, key=lambda piece: piece.number)


class Ends(NamedTuple):
    """Where a file begins (after) and ends in the binlog, and the store that it came from."""

    store: str
    start: Position
    end: Position


def ends_of(piece: Piece) -> Ends:
    """Return what the file's footer says. Raises `StoreCorrupt`."""
    try:
        value = json.loads(pq.read_metadata(piece.path).metadata[_META])
        return Ends(value["store"], Position(*value["start"]), Position(*value["end"]))
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(f"{piece.path} is no file of a spool: {error}") from error


def read_slots(piece: Piece) -> np.ndarray[Any, np.dtype[np.void]]:
    """Return the slots of a file's events, without their payloads."""
    table = pq.read_table(piece.path, columns=_FIELDS)
    slots = np.zeros(len(table), SLOT)
    for name in _FIELDS:
        slots[name] = table.column(name).to_numpy()
    return slots


def read_payloads(piece: Piece) -> tuple[memoryview, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return a file's payloads back to back, and where each ends."""
    column = pq.read_table(piece.path, columns=["payload"]).column("payload").combine_chunks()
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    _, offsets, values = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return memoryview(values)[int(ends[0]) : int(ends[-1])] if len(array) else memoryview(b""), ends[1:] - ends[0]


def is_after(payload: memoryview, position: Position) -> bool:
    """Whether an event of another life of the store comes after `position`.

    A snapshot's rows do that stand there: the stream had reached it, and what was read there in one life is not what is in another.
    """
    header = decode_stored(payload)[0]
    there = header.position.order
    return there > position.order or (header.type == EventType.READ and there[:2] == position.order[:2])


@contextmanager
def locked(path: Path, what: str, error: type[ShmStoreError] = ShmStoreError) -> Iterator[None]:
    """Hold a lock that the kernel gives back when this process dies. Raises `error`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as refused:
            raise error(f"{what} is in use by another process: stop it, or choose another") from refused
        yield


class Run(NamedTuple):
    """Events out of the ring, copied: their payloads back to back, where each ends, and their slots."""

    first: int
    raw: memoryview
    ends: np.ndarray[Any, np.dtype[np.int64]]
    slots: np.ndarray[Any, np.dtype[np.void]]

    @property
    def last(self) -> int:
        """Sequence of the last event."""
        return self.first + len(self.ends) - 1

    def after(self, count: int) -> Run:
        """The events but the first `count`."""
        if not count:
            return self
        at = int(self.ends[count - 1])
        return Run(self.first + count, self.raw[at:], self.ends[count:] - at, self.slots[count:])


class Spool:
    """Writes one subscription's events into `folder`. `close` leaves what is not written un-acked."""

    def __init__(
        self, store: EventStore, folder: str | os.PathLike[str], subscription: str = "spool", file_bytes: int = FILE_BYTES
    ) -> None:
        self.folder = Path(folder)
        self._store = store
        self._file_bytes = min(file_bytes, max(1, store.limit_bytes // 2))
        self._events = max(1, store.capacity // 2)
        there = pieces(self.folder)
        self._last = there[-1] if there else None
        known = ends_of(there[-1]) if there else None
        if known is not None and known.store != store.name:
            raise ShmStoreError(f"{self.folder} is the spool of store {known.store!r}: give {store.name!r} a folder of its own")
        checkpoint = CheckpointFile(None, store.name, subscription)
        try:
            self._reader = store.subscribe(subscription, start="earliest", checkpoint=checkpoint)
        except PositionNotFound:
            if known is None:
                raise
            # a store made again that is still empty, or one with a gap: told apart when the first event comes
            store.subscribe(subscription, start="earliest").close()
            self._reader = store.subscribe(subscription, start="earliest", checkpoint=checkpoint)
        self._written = known.end if known is not None else None  # left out until passed, in another life of the store
        if self._last is not None and self._last.epoch == store.epoch and self._reader.ack_cursor.sequence > self._last.last:
            raise ShmStoreError(
                f"{self.folder} ends at event {self._last.last}, and subscription {subscription!r} has acked {self._reader.ack_cursor.sequence}: "
                "files are missing, or another folder was written meanwhile; begin with an empty folder"
            )
        self._runs: list[Run] = []
        self._size = 0
        self._stopped = False

    def close(self) -> None:
        """Give the subscription up."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def stop(self) -> None:
        """Make `run` return. From another thread, or a signal's handler."""
        self._stopped = True
        self._reader.interrupt()

    def run(self, interval: float) -> int:
        """Spool until `stop`; return how many events were written. Raises `ShmStoreError` where another process fills the folder."""
        written = 0
        with locked(self.folder / "_lock", f"spool {self.folder}"):
            for left in self.folder.glob("_*.tmp"):
                left.unlink()  # of a process that was killed while it wrote
            while not self._stopped:
                written += self.step(interval)
                self.clean()
        return written

    # ---------------------------------------------------------------- steps

    def step(self, wait: float) -> int:
        """Take what is there, waiting up to `wait` seconds for something, and write it; return how many events were written.

        Goes on taking for `wait` seconds, unless a file's worth is there or the ring is half full.
        """
        until = time.monotonic() + wait
        while True:
            left = max(0.0, until - time.monotonic())
            batch = self._reader.get(limit_events=_GET_EVENTS, limit_bytes=self._file_bytes, timeout=left)
            if batch:
                self._take(batch)
            full = self._size >= self._file_bytes or sum(len(run.ends) for run in self._runs) >= self._events
            if full or not batch or time.monotonic() >= until:
                return self._write(all_of_it=full)

    def _take(self, batch: Batch) -> None:
        if self._runs and batch.first != self._runs[-1].last + 1:
            self._write(all_of_it=True)  # the store left out what was acked in an earlier life: a file has no gap
        run = Run(batch.first, memoryview(bytes(batch.raw)), batch.ends.copy(), batch.slots)
        lead = self._known(run)
        if lead and not self._runs:
            self._reader.ack(run.first + lead - 1)
        run = run.after(lead)
        if len(run.ends):
            self._runs.append(run)
            self._size += len(run.raw)

    def _known(self, run: Run) -> int:
        """How many of the first events the newest file holds already: after a crash between rename and ack.

        Raises `PositionNotFound` where a new life of the store does not go on where the newest file ends.
        """
        if self._last is not None and self._last.epoch == self._store.epoch:
            return max(0, min(len(run.ends), self._last.last + 1 - run.first))
        if self._written is None:
            return 0
        start = 0
        for lead, end in enumerate(run.ends.tolist()):
            if is_after(
                run.raw[start:end], self._written
            ):  # and nothing that follows is known: a snapshot reads behind all that was put
                self._store.find(self._written)
                self._written = None
                return lead
            start = end
        return len(run.ends)

    def _write(self, *, all_of_it: bool) -> int:
        """Write whole transactions; with `all_of_it` also the beginning of one that has no end here."""
        if not self._runs:
            return 0
        slots = np.concatenate([run.slots for run in self._runs])
        points = np.flatnonzero(slots["flags"] & int(SlotFlag.ACK_POINT))
        count = int(points[-1]) + 1 if len(points) else len(slots) if all_of_it else 0
        if not count:
            return 0
        first = self._runs[0].first
        ends = np.cumsum(np.concatenate([np.diff(run.ends, prepend=0) for run in self._runs]))[:count]
        raw = memoryview(b"".join(run.raw for run in self._runs))[: int(ends[-1])]
        self._publish(first, slots[:count], raw, ends)
        self._reader.ack(first + count - 1)
        self._runs = [run.after(max(0, first + count - run.first)) for run in self._runs if run.last >= first + count]
        self._size = sum(len(run.raw) for run in self._runs)
        return count

    def _publish(self, first: int, slots: np.ndarray[Any, Any], raw: memoryview, ends: np.ndarray[Any, Any]) -> None:
        number = self._last.number + 1 if self._last is not None else 0
        last = first + len(slots) - 1
        header = decode_stored(raw[: int(ends[0])])[0]
        tail = decode_stored(raw[int(ends[-2]) if len(ends) > 1 else 0 :])[0]
        end = tail.position
        if end.of_group:
            raise ShmStoreError(
                f"store {self._store.name!r} holds several sources, whose files and offsets have no common order: a spool keeps one source; give "
                "each a store of its own"
            )
        start = Position(header.file, header.offset - header.length, "", header.row)
        if self._last is not None and self._last.epoch == self._store.epoch and self._last.last == first - 1:
            start = ends_of(self._last).end
        meta = {_META: json.dumps({"store": self._store.name, "start": start, "end": end}).encode()}
        offsets = np.concatenate(([0], ends)).astype(np.int64)
        payload = pa.Array.from_buffers(pa.large_binary(), len(slots), [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
        arrays = [pa.array(np.ascontiguousarray(slots[name])) for name in _FIELDS]
        table = pa.table([*arrays, payload], names=[*_FIELDS, "payload"]).replace_schema_metadata(meta)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{number:010d}-{self._store.epoch:016x}-{first}-{last}.parquet"
        options = {"compression": "zstd", "compression_level": 1, "use_dictionary": False}
        replace(path, lambda at: pq.write_table(table, at, **options), "spool file", "spool into another folder")
        self._last = Piece(path, number, self._store.epoch, first, last)

    # ---------------------------------------------------------------- clean-up

    def clean(self) -> int:
        """Remove the files that all readers are done with; return how many. Without a reader none is."""
        done = []
        for path in (self.folder / "readers").glob("*.json"):
            done.append(int(json.loads(path.read_text())["number"]))
        gone = [piece for piece in pieces(self.folder)[:-1] if done and piece.number <= min(done)]
        for piece in gone:
            piece.path.unlink(missing_ok=True)
        return len(gone)
