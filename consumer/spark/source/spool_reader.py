"""SpoolReader: a spool (`shmstore.consumer.spool`) as a source of micro-batches, with the offsets of the store that it came from.

An offset names the same event in the ring and in the spool, so a query may go from one to the other with its checkpoint: by epoch
and sequence where the file of that life is there, else by the position in the binlog. Files never change, so planning and reading
may be done again at any time; executors read the files themselves, and must see the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from shmstore import Position, PositionNotFound, SlotFlag, SubscriptionInUse
from shmstore.atomic_file import replace
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import OptionError, Options
from shmstore.consumer.spark.source.batch_planner import Limit
from shmstore.consumer.spark.source.chunk import Chunk
from shmstore.consumer.spark.source.offset import Offset
from shmstore.consumer.spark.source.partition import record_batches
from shmstore.consumer.spark.source.subscription_owner import awaited, handover
from shmstore.consumer.spool import Ends, Piece, ends_of, is_after, locked, pieces, read_payloads, read_slots
from shmstore.encoding.codec import decode_schema, decode_stored
from shmstore.event import TableSchema

BATCH_BYTES = 64 << 20  # of a micro-batch without limits: so a long outage is caught up in many


class FilePosition(NamedTuple):
    """Behind event `sequence` of file `number`."""

    number: int
    sequence: int


class SpoolPartition(InputPartition):
    """Events of one file; `cut` are the sequences of the first and the last."""

    def __init__(self, piece: Piece, first: int, last: int) -> None:
        super().__init__(None)
        self._piece = piece
        self._cut = (first, last)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the events. Raises OSError where this executor does not see the folder."""
        raw, ends = read_payloads(self._piece)
        slots = read_slots(self._piece)
        first, last = (sequence - self._piece.first for sequence in self._cut)
        start = int(ends[first - 1]) if first else 0
        yield Chunk(self._cut[0], raw[start : int(ends[last])], ends[first : last + 1] - start, slots[first : last + 1])


@lru_cache(maxsize=4096)
def _ends(piece: Piece) -> Ends:
    return ends_of(piece)


@lru_cache(maxsize=64)
def _slots(piece: Piece) -> np.ndarray[Any, Any]:
    return read_slots(piece)


class SpoolReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches that end at transaction boundaries out of a spool's files."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._options = decoder.options
        self._folder = folder_of(self._options)
        self._record = self._folder / "readers" / f"{self._options.subscription}.json"
        self._frozen: int | None = None
        self._lock = ExitStack()
        self._owned = False
        self._noted: Offset | None = None

    def __reduce__(self) -> tuple[type[SpoolReader], tuple[Decoder]]:
        return SpoolReader, (self._decoder,)

    def _own(self) -> None:
        """Hold the subscription's name. Raises `SubscriptionInUse`."""
        if not self._owned:
            path, what = self._record.with_suffix(".lock"), f"subscription {self._options.subscription!r}"
            handover(lambda: self._lock.enter_context(locked(path, what, SubscriptionInUse)))
            self._owned = True

    def _pieces(self) -> list[Piece]:
        found = pieces(self._folder)
        return found if self._frozen is None else [piece for piece in found if piece.number <= self._frozen]

    # ---------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins: after what its subscription has read, else at startingOffsets."""
        self._own()
        if self._record.exists():
            return Offset.of(json.loads(self._record.read_text())["offset"]).to_dict()
        there, start = self._wait_for_files(), self._options.start
        if start.kind in ("committed", "earliest"):
            found = self._offset(FilePosition(there[0].number, there[0].first - 1), there)
        elif start.kind == "latest":
            found = self._offset(FilePosition(there[-1].number, there[-1].last), there)
        elif start.kind == "offset":
            found = Offset.of(start.value)
        elif start.kind == "position":
            found = Offset(self._options.store, 0, -1, *start.value)
        else:
            raise OptionError("startingOffsets of a spool is committed, earliest, latest, file:offset or the JSON of an offset")
        self._note(found, -1)
        return found.to_dict()

    def _wait_for_files(self) -> list[Piece]:
        return awaited(
            lambda: self._pieces() or None,
            self._options.store_timeout,
            lambda: (
                f"spool {self._folder} holds no file: start `shmstore spool {self._options.store} --directory {self._folder}`"
            ),
        )

    def locate(self, offset: Offset, there: list[Piece]) -> FilePosition | None:
        """Return the position of `offset` in the files; None while they have not reached it. Raises `PositionNotFound`, naming the gap."""
        for piece in there:
            if piece.epoch == offset.epoch and piece.first - 1 <= offset.seq <= piece.last:
                return FilePosition(piece.number, offset.seq)
        position = offset.position
        if position is None:  # before the first event of its store
            return FilePosition(there[0].number, there[0].first - 1) if there else None
        place = None
        for piece in there:
            ends = _ends(piece)
            if position.order > ends.end.order:
                continue
            if piece is there[0] and position.order < ends.start.order:
                if not self._options.fail_on_data_loss:
                    return FilePosition(piece.number, piece.first - 1)
                raise PositionNotFound(
                    f"spool {self._folder} no longer has the events after {offset}: it begins at {ends.start.file}:{ends.start.offset}. "
                    "Take a snapshot of the query's tables, or set failOnDataLoss=false to continue without them"
                )
            place = FilePosition(piece.number, piece.first - 1 + self._count(piece, position))
            if place.sequence < piece.last:
                return place
        return place  # the end of the last file, where that is the position

    @staticmethod
    def _count(piece: Piece, position: Position) -> int:
        """How many events of the file come before what is after `position`."""
        raw, ends = read_payloads(piece)
        spans = enumerate(pairwise([0, *ends.tolist()]))
        return next((before for before, (start, end) in spans if is_after(raw[start:end], position)), len(ends))

    def _offset(self, place: FilePosition, there: list[Piece]) -> Offset:
        piece = next(piece for piece in there if piece.number == place.number)
        ends = _ends(piece)
        if place.sequence == piece.last:
            position = ends.end
        elif place.sequence < piece.first:
            position = ends.start
        else:
            raw, marks = read_payloads(piece)
            at = place.sequence - piece.first
            position = decode_stored(raw[int(marks[at - 1]) if at else 0 : int(marks[at])])[0].position
        return Offset.at(self._options.store, piece.epoch, place.sequence, position)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Note that what ends at `start` is done, and return the end of the next micro-batch: `start` itself when nothing is new."""
        self._own()
        there = self._pieces()
        base = self.locate(Offset.of(start), there)
        if base is None:
            return start
        self._done(Offset.of(start), base, there)
        end = self._end_after(base, there, self._limit(limit))
        return start if end == base else self._offset(end, there).to_dict()

    def _limit(self, limit: ReadLimit) -> Limit:
        asked = Limit.of(limit, self._options)
        return asked if any(asked) else Limit(size=BATCH_BYTES)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options ask for."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadMaxBytes(self._options.max_bytes or BATCH_BYTES)

    def _end_after(self, base: FilePosition, there: list[Piece], limit: Limit) -> FilePosition:
        """The last transaction end within the limits, at least one transaction; `base` where there is none."""
        end, rows, size = base, 0, 0
        for piece in there:
            if piece.number < base.number:
                continue
            skip = base.sequence + 1 - piece.first if piece.number == base.number else 0
            slots = _slots(piece)[skip:]
            counts = rows + np.cumsum(slots["rows"], dtype=np.int64)
            sizes = size + np.cumsum(slots["size"], dtype=np.int64)
            fit = len(slots)
            if limit.rows is not None:
                fit = min(fit, int(np.searchsorted(counts, limit.rows, "right")))
            if limit.size is not None:
                fit = min(fit, int(np.searchsorted(sizes, limit.size, "right")))
            points = np.flatnonzero(slots["flags"] & int(SlotFlag.ACK_POINT)) + 1
            within = points[points <= fit]
            if len(within):
                end = FilePosition(piece.number, piece.first + skip + int(within[-1]) - 1)
            elif len(points) and end == base:
                return FilePosition(piece.number, piece.first + skip + int(points[0]) - 1)
            if fit < len(slots) and end != base:
                return end
            if len(slots):
                rows, size = int(counts[-1]), int(sizes[-1])
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest event of the spool, for the query's progress report."""
        there = pieces(self._folder)
        return self._offset(FilePosition(there[-1].number, there[-1].last), there).to_dict() if there else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end: what comes later is for the next run."""
        there = pieces(self._folder)
        self._frozen = there[-1].number if there else -1

    # ---------------------------------------------------------------- partitions

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return a partition for each file between `start` and `end`; the same events each time it is asked."""

        def found() -> list[InputPartition] | None:
            there = pieces(self._folder)
            base, last = self.locate(Offset.of(start), there), self.locate(Offset.of(end), there)
            if base is None or last is None:
                return None
            return [SpoolPartition(piece, a, b) for piece, a, b in _between(base, last, there)]

        return awaited(
            found,
            self._options.store_timeout,
            lambda: f"spool {self._folder} has not reached {Offset.of(end)} yet: start `shmstore spool`",
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in an executor."""
        return record_batches(partition.chunks(), self._decoder)  # type: ignore[attr-defined]

    # ---------------------------------------------------------------- end

    def commit(self, end: dict[str, Any]) -> None:
        """Note that Spark has logged the batch that ends at `end`."""
        there = self._pieces()
        place = self.locate(Offset.of(end), there)
        if place is not None:
            self._done(Offset.of(end), place, there)

    def _done(self, offset: Offset, place: FilePosition, there: list[Piece]) -> None:
        """Record which files were read to their end: those before `place`, and its own where that is the file's end."""
        last = next(piece.last for piece in there if piece.number == place.number)
        number = place.number if place.sequence == last else place.number - 1
        if offset != self._noted:
            self._note(offset, number)

    def _note(self, offset: Offset, number: int) -> None:
        text = json.dumps({"number": number, "offset": offset.to_dict()})
        replace(self._record, lambda at: at.write_text(text), "record of a spool's reader", "spool into another folder")
        self._noted = offset

    def stop(self) -> None:
        """Release the subscription."""
        self._lock.close()
        self._owned = False


class SpoolBatchReader(DataSourceReader):
    """Reads what the spool holds now; moves nothing."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def partitions(self) -> list[InputPartition]:
        """Return the events up to the last transaction end."""
        there = pieces(folder_of(self._decoder.options))
        if not there:
            return []
        reader = SpoolReader(self._decoder)
        base = FilePosition(there[0].number, there[0].first - 1)
        start = self._decoder.options.start
        if start.kind == "offset":
            base = reader.locate(Offset.of(start.value), there) or base
        end = reader._end_after(base, there, Limit())
        return [SpoolPartition(piece, a, b) for piece, a, b in _between(base, end, there)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in an executor."""
        return record_batches(partition.chunks(), self._decoder)  # type: ignore[attr-defined]


def _between(base: FilePosition, last: FilePosition, there: list[Piece]) -> Iterator[tuple[Piece, int, int]]:
    """Yield the files after `base` up to `last`, each with the first and the last sequence that is meant."""
    for piece in there:
        if base.number <= piece.number <= last.number:
            first = base.sequence + 1 if piece.number == base.number else piece.first
            end = last.sequence if piece.number == last.number else piece.last
            if first <= end:
                yield piece, first, end


def folder_of(options: Options) -> Path:
    """Return the spool's folder. Raises `OptionError` where it is not there."""
    folder = Path(options.spool or "")
    if not folder.is_dir():
        raise OptionError(
            f"option spool={options.spool!r} is not a folder: `shmstore spool {options.store} --directory {options.spool}` creates it"
        )
    return folder


def find_schema(options: Options, database: str, table: str) -> TableSchema | None:
    """Return the columns of a table in its newest rows event in the spool, or None."""
    for piece in reversed(pieces(folder_of(options))):
        raw, ends = read_payloads(piece)
        for start, end in reversed(list(pairwise([0, *ends.tolist()]))):
            schema = decode_stored(raw[start:end])[1]
            if schema is not None:
                found = decode_schema(schema)
                if (found.database, found.table) == (database, table):
                    return found
    return None
