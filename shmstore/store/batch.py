"""Batch: a run of events got from a store, still encoded, decoded when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress, count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shmstore.encoding import checksum, codec
from shmstore.errors import StoreClosed, StoreCorrupt, StoreError
from shmstore.event import Event, Position, TableSchema
from shmstore.home.definitions import last_defined
from shmstore.log.files import Content
from shmstore.memory.layout import SlotFlag
from shmstore.memory.ordering import COMPILED, hot
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import LOG, oldest_kept
from shmstore.store.content import OVERSIZED, copied, newest_schema, own, payloads_in_ring, read

_Made = TypeVar("_Made")


class _Run:
    """The numbers of a batch, and the way to its payloads."""

    __slots__ = ("_ends", "_raw", "_segment", "first", "generation", "last")

    def __init__(self, segment: Segment | Elsewhere, first: int, last: int, generation: int) -> None:
        self._segment: Any = segment
        self.first = first
        self.last = last
        self.generation = generation
        self._raw: memoryview | None = None
        self._ends: Any = None  # where each payload ends in `_raw`, int64, back to back; None: as the ring says

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def id(self) -> int:
        """The batch's id: its last sequence."""
        return self.last

    @property
    def raw(self) -> memoryview:
        """All payloads back to back, without a copy."""
        raw = self._raw
        if raw is None:
            raw = self._raw = self._whole()
        return raw

    def payloads(self) -> Iterator[memoryview]:
        """Yield the bytes of each event.

        Raises:
            StoreCorrupt: The slots contradict each other.
        """
        return self._each()

    def _in_ring(self) -> tuple[memoryview, bytes] | None:
        """The payloads where they lie in the ring, and their ends, for compiled code, which bears that they change meanwhile; None: not to be had."""
        return None

    def _in_ring_still(self) -> bool:
        """Whether the ring was not written over since `_in_ring` gave something."""
        return False

    def _counted(self) -> int:
        """How many rows the batch has, where that is known without a look at its payloads, else -1."""
        return -1

    def _whole(self) -> memoryview:
        raise NotImplementedError

    def _each(self) -> Iterator[memoryview]:
        raise NotImplementedError


if COMPILED and not TYPE_CHECKING:
    _Run = hot.Run  # native/hot.pyx: the same for batches about which nothing is unusual


class Elsewhere:
    """Takes the place of a segment in batches of events that are in no store of this host. `known` is as `arrow_table.read_table` asks, of a table alone."""

    views: ClassVar[Any] = SimpleNamespace(native=None)  # nothing is looked up in it

    def __init__(self, known: Callable[[str], Any]) -> None:
        self.known = known


class Batch(_Run):
    """Events `first` to `last` (sequences, both included), in order. Its id is its last sequence.

        for event in batch:  # decoded
            ...
        for payload in batch.payloads():  # their bytes
            ...
        table = batch.to_arrow("shop.orders")

    A batch reads its events when you first look at them: from the ring if it still has them, otherwise from the log. With a log a batch is
    valid for as long as it is held. Without one its payloads are in the ring, and are valid until the batch is acked (in a store that evicts
    they are a copy). An empty batch has ``last == first - 1``; it is false.
    """

    __slots__ = ("_found",)

    _found: Content

    def __iter__(self) -> Iterator[Event]:
        return codec.decode_each(self.payloads(), count(self.first))

    def __repr__(self) -> str:
        return f"Batch({self.first}..{self.last})" if self else f"Batch(empty, next {self.first})"

    @property
    def events(self) -> list[Event]:
        """All events, decoded; each has its `sequence`.

        Raises:
            StoreCorrupt: A payload is not an event.
        """
        return list(self)

    @classmethod
    def of(
        cls, where: Elsewhere, first: int, raw: memoryview, ends: NDArray[np.int64], slots: NDArray[np.void], generation: int
    ) -> Batch:
        """Return the batch of the events from `first` on, with these bytes, ends and slots."""
        content = Content(first, first + len(slots) - 1, raw, ends, slots, int(slots["rows"].sum(dtype=np.int64)))
        return cls._holding(where, content, generation)

    @classmethod
    def _holding(cls, segment: Segment | Elsewhere, content: Content, generation: int) -> Batch:
        """Return the batch of events that were read already, in memory of their own."""
        batch = cls(segment, content.first, content.last, generation)
        batch._found, batch._raw, batch._ends = content, content.raw, content.ends
        return batch

    def _content(self) -> Content:
        try:
            return self._found
        except AttributeError:
            self._found = read(self._segment, self.first, self.last)
            return self._found

    def _whole(self) -> memoryview:
        if not self._segment.views.flags & LOG:
            return payloads_in_ring(self._segment, self.first, self.last)
        content = self._content()
        self._ends = content.ends  # what the compiled look at the payloads goes by
        return content.raw

    @property
    def slots(self) -> NDArray[np.void]:
        """A copy of the slot records, dtype `layout.SLOT`, shape (len(batch),)."""
        content = self._content()
        return content.slots if content.own else copied(content.slots)

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each payload ends in `raw`, shape (len(batch),)."""
        if self.first == self.last:
            return np.array([len(self.raw)], np.int64)
        if self._ends is not None:
            return np.frombuffer(self._ends, np.int64)  # copied with the payloads, in compiled code
        return self._content().ends

    @property
    def sequences(self) -> NDArray[np.int64]:
        """The sequence of each event, shape (len(batch),)."""
        return np.arange(self.first, self.last + 1)

    @property
    def rows(self) -> int:
        """Rows in the batch."""
        rows = self._counted()
        return self._content().rows if rows < 0 else rows

    def _each(self) -> Iterator[memoryview]:
        raw = self.raw
        if self.first == self.last:
            yield raw
            return
        start = 0
        for end in self.ends.tolist():
            if not start <= end <= len(raw):
                raise StoreCorrupt(
                    f"an event of batch {self.first}..{self.last} claims bytes {start} to {end} of {len(raw)}: `shmstore check` shows more"
                )
            yield raw[start:end]
            start = end

    @property
    def oversized(self) -> bool:
        """True where the batch is one event larger than the arena, in a segment of its own."""
        return self.first == self.last and bool(self._content().slots["flags"][0] & OVERSIZED)

    @property
    def ack_point(self) -> int | None:
        """Sequence of the last transaction end or DDL in the batch; None where the whole batch is inside a transaction."""
        points = np.flatnonzero(self._content().slots["flags"] & int(SlotFlag.ACK_POINT))
        return self.first + int(points[-1]) if len(points) else None

    @property
    def ends_transaction(self) -> bool:
        """True where the last event ends a transaction, or is a DDL."""
        return bool(self) and self.ack_point == self.last

    @property
    def position(self) -> Position | None:
        """Binlog position of the last event; None for an empty batch."""
        return self.position_of(self.last) if self else None

    def position_of(self, sequence: int) -> Position:
        """Return the binlog position of one event of the batch, by its sequence."""
        ends = self.ends
        i = sequence - self.first
        header = codec.decode_stored(self.raw[int(ends[i - 1]) if i else 0 : int(ends[i])])[0]
        return header.position

    def to_arrow(
        self,
        table: str | TableSchema | None = None,
        *,
        zero_dates: Literal["error", "null"] = "error",
        partial: Literal["error", "null"] = "error",
    ) -> Any:
        """Return the rows of one table as a `pyarrow.Table`: one row for each changed row, in order. It outlives the batch; a column of it that
        is kept keeps the memory of all.

        Columns: op (c, u, d; r from a snapshot), database, table, before and after (structs of the table's columns; NULL where the change has
        no such image), ts_ms (milliseconds), server_id, file, offset, seq, row, transaction. ``.flatten()`` makes columns of the structs'
        fields, for pandas. The table's columns are those of its newest event in the batch, and older rows have NULL in columns that they
        lack. Where the batch has no row of the table, the result is empty, with the columns that the store knows.

        Args:
            table: ``database.table``, or a `TableSchema` whose columns are wanted; None: the only table of the batch.
            zero_dates: What a date that does not exist becomes: an error, or "null".
            partial: What a missing column of an image becomes: an error, or "null". Without "null", rows of a snapshot that was asked for
                some columns are left out.

        Returns:
            A `pyarrow.Table`.

        Raises:
            ZeroDate: A date does not exist (a ValueError).
            PartialImage: An image lacks a column (a ValueError).
            ValueError: `table` must be named, names no database, or names a table that the store never had while the batch has rows of
                others; or a column changed into a type that cannot hold its old values.
            StoreCorrupt: A payload is not an event.
            ImportError: pyarrow is missing (extra ``arrow``).
        """
        from shmstore.encoding import arrow_table  # pyarrow may be missing

        options = arrow_table.TableOptions(zero_dates, partial)
        return self._made_by(lambda raw, ends: arrow_table.read_table(raw, ends, table, options, self.sequences, self._known))

    def _made_by(self, read: Callable[[memoryview, NDArray[np.int64]], _Made]) -> _Made:
        """Return what `read` makes of the payloads and their ends, in memory of its own.

        In a store with a log the ring may be written over meanwhile. So `read` goes over the ring itself, and, where that was written over,
        again over what the log has: a copy made beforehand takes new memory, whose pages cost more than the rows.
        """
        lent = self._in_ring()
        if lent is not None:
            with suppress(Exception):  # of bytes that were written over, or it is raised again
                made = read(lent[0], np.frombuffer(lent[1], np.int64))
                if self._in_ring_still():
                    return made
            del lent
        return read(self.raw, self.ends)

    def _known(self, table: str, in_rows: bool) -> Any:
        """As `arrow_table.Known`. Where no table is defined, and events are gone already, the store may have had any: then without columns."""
        from shmstore.encoding.arrow import image_type
        from shmstore.store.restore import home_of

        if isinstance(self._segment, Elsewhere):
            with suppress(StoreClosed):
                return self._segment.known(table)
            return image_type(TableSchema("", "", ()))
        defined: Mapping[str, TableSchema] | None = None
        with suppress(StoreError):  # not for this user to read: then rows say it
            defined = last_defined(home_of(self._segment))
        found = (defined or {}).get(table)
        with suppress(StoreClosed):  # a batch may be held for longer
            if found is None and in_rows:
                found = newest_schema(self._segment, table)
            if found is None and (defined is not None or oldest_kept(self._segment.views) == 0):
                return None
        return image_type(found or TableSchema("", "", ()))

    def select(self, chosen: Sequence[bool]) -> Batch:
        """Return the batch with only some of its events.

        Its `first`, `last`, position and ack point stay those of the whole batch, and an ack covers the whole batch.

        Args:
            chosen: A truth value for each event, of length len(batch).
        """
        return _Selected(self.copy(), chosen)

    def copy(self) -> Batch:
        """Return the same batch with its bytes read now, and copied if they are in the ring."""
        content = self._content()
        return self if content.own else Batch._holding(self._segment, own(content), self.generation)

    def verify(self) -> None:
        """Check the payloads of a store with checksums.

        Raises:
            StoreCorrupt: The bytes of a payload are not those that were put.
        """
        checksum.verify(self.first, self.payloads(), self.slots)


class _Selected(Batch):
    """Some events of a batch that is valid as long as it is held."""

    __slots__ = ("_chosen", "_of")

    def __init__(self, of: Batch, chosen: Sequence[bool]) -> None:
        super().__init__(of._segment, of.first, of.last, of.generation)
        self._of = of
        self._chosen: NDArray[np.bool_] = np.array(chosen, np.bool_)
        if self._chosen.shape != (len(of),):
            raise ValueError(f"{len(self._chosen)} marks are given for a batch of {len(of)} events")

    def __len__(self) -> int:
        return int(np.count_nonzero(self._chosen))

    def __iter__(self) -> Iterator[Event]:
        return codec.decode_each(self.payloads(), self.sequences.tolist())

    def __repr__(self) -> str:
        return f"Batch({self.first}..{self.last}, {len(self)} events of it)"

    def _in_ring(self) -> None:
        return None

    def payloads(self) -> Iterator[memoryview]:
        return compress(self._of.payloads(), self._chosen.tolist())

    @property
    def raw(self) -> memoryview:
        if self._raw is None:
            self._raw = memoryview(b"".join(self.payloads()))
        return self._raw

    @property
    def sequences(self) -> NDArray[np.int64]:
        return self._of.sequences[self._chosen]

    @property
    def slots(self) -> NDArray[np.void]:
        found: NDArray[np.void] = self._of.slots[self._chosen]
        return found

    @property
    def ends(self) -> NDArray[np.int64]:
        return np.cumsum(np.diff(self._of.ends, prepend=0)[self._chosen])

    @property
    def rows(self) -> int:
        return int(self.slots["rows"].sum(dtype=np.int64))

    @property
    def oversized(self) -> bool:
        return bool(self) and self._of.oversized

    @property
    def ack_point(self) -> int | None:
        return self._of.ack_point

    @property
    def ends_transaction(self) -> bool:
        return self._of.ends_transaction

    @property
    def position(self) -> Position | None:
        return self._of.position

    def position_of(self, sequence: int) -> Position:
        return self._of.position_of(sequence)

    def select(self, chosen: Sequence[bool]) -> Batch:
        marks = self._chosen.copy()
        marks[marks] = chosen
        return _Selected(self._of, marks.tolist())

    def copy(self) -> Batch:
        return self

    def verify(self) -> None:
        self._of.verify()
