"""What a run of events has for a query that does not read all tables: how many rows, and where its table gets other columns.

It goes by the heads of the events, before a micro-batch is planned: a limit counts the rows that the query reads, a micro-batch without
any is not run, and one of a typed query ends in front of the first row that the query's plan is not for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore import EventStore
from shmstore.consumer.spark.decode.decoder import Decoder, differences
from shmstore.consumer.spark.decode.lineage import Lineage, LineageState, Names
from shmstore.encoding.arrow import Events
from shmstore.encoding.arrow_rows import StoredEvents, index_events
from shmstore.encoding.codec import decode_schema
from shmstore.event import EntryType, TableSchema


class ColumnTurn(NamedTuple):
    """The first row that a typed query's plan is not for: its event, where that is in the binlog, what differs, and its columns."""

    sequence: int
    where: str
    why: str
    table: TableSchema


class Look(NamedTuple):
    """Of each event how many rows the query reads; and the first `ColumnTurn`, from which on that is not counted."""

    rows: NDArray[np.int64]
    turn: ColumnTurn | None


class TableScan:
    """Looks at a store's events for one query, forward from where it begins; looking at the same ones again is possible."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.is_typed = decoder.table is not None
        self.follows = self.is_typed and decoder.options.schema_changes == "follow"
        self._lineage = None if decoder.table is None else Lineage(decoder.table)
        self._begun = None if self._lineage is None else self._lineage.state  # the lineage in front of all events
        self._since: int | None = None  # the event that this holds from, once it is known
        self._forget()

    def begin_anew(self, last: int) -> None:
        """Forget all events: the store was re-created, where they have other numbers. The columns stay as they were behind event `last`."""
        self._begun = next((state for sequence, state in reversed(self._states) if sequence <= last), self._begun)
        self._since = 0
        self._forget()

    def _forget(self) -> None:
        self._names: list[tuple[int, Names]] = []  # from which event on which ones hold
        self._states: list[tuple[int, LineageState]] = []  # behind which event the lineage was so
        self._looked = (0, -1)  # the events that both are known for

    def catch_up(self, store: EventStore, last: int) -> None:
        """Take in what DDLs did to the columns between the event that the plan holds from and `last`. Raises `PositionNotFound`."""
        since = self._decoder.since
        begins = self.follows and self._looked == (0, -1)
        if begins and since is not None and since[0] == store.epoch and since[1] <= last:
            self.look(store, since[1], last)

    def look(self, store: EventStore, first: int, last: int) -> Look:
        """Look at the events `first` to `last`. Raises `PositionNotFound`."""
        rows: list[NDArray[np.int64]] = []
        turn = None
        if self.follows:
            self._rewind(first)
            if self._since is None and self._decoder.since is not None and self._decoder.since[0] == store.epoch:
                self._since = self._decoder.since[1]
        for batch in store.read(first, last):
            found, turn = self.look_at(batch.raw, batch.ends, batch.first)
            rows.append(found)
            if turn is not None:
                break
        begun = self._looked[0] if self._looked[0] <= first <= self._looked[1] + 1 else first
        self._looked = (begun, last if turn is None else turn.sequence - 1)
        return Look(np.concatenate([*rows, np.zeros(0, np.int64)]), turn)

    def look_at(self, raw: memoryview | bytes, ends: NDArray[np.int64], first: int) -> Look:
        """Look at the events in `raw`, which end at `ends`, the first of which is `first`."""
        events = index_events(raw, ends)
        rows = self._decoder.rows_in(events)
        turn = None if self._decoder.table is None else self._walk(events, rows, first, self._decoder.table)
        return Look(rows if turn is None else rows[: turn.sequence - first], turn)

    def has_looked(self, first: int, last: int) -> bool:
        """Whether it has looked at these events: `names` are known then."""
        return self._looked[0] <= first and last <= self._looked[1]

    def names(self, first: int, last: int) -> tuple[tuple[int, Names], ...]:
        """The names that the planned columns have in events `first` to `last`, from which event on; nothing where they are as planned."""
        before = [one for one in self._names if one[0] <= first][-1:]
        found = (*before, *[one for one in self._names if first < one[0] <= last])
        planned = () if self._decoder.table is None else tuple(self._decoder.table.names)
        return () if all(names == planned for _, names in found) else found

    # ---------------------------------------------------------------- a typed query's columns

    def _rewind(self, first: int) -> None:
        """Have the lineage as it was in front of event `first`."""
        assert self._lineage is not None
        assert self._begun is not None
        if first > self._looked[1] + 1 or first < self._looked[0]:  # nothing is known of what is in between
            self._forget()
            self._looked = (first, first - 1)
        self._names = [one for one in self._names if one[0] < first]
        while self._states and self._states[-1][0] >= first:
            self._states.pop()
        self._lineage.state = self._states[-1][1] if self._states else self._begun

    def _walk(self, events: Events | StoredEvents, rows: NDArray[np.int64], first: int, plan: TableSchema) -> ColumnTurn | None:
        """Go through the DDLs, and the events in which the table's columns may be others than in the one before."""
        schema, ddl = events.records["schema"], events.records["entry"] == EntryType.DDL
        own = np.flatnonzero((rows > 0) & (schema >= 0))
        group = np.stack([schema[own], np.cumsum(ddl)[own]]) if self.follows else schema[own][None]
        begins = own[np.flatnonzero(np.r_[True, (group[:, 1:] != group[:, :-1]).any(axis=0)])] if len(own) else own
        marks = np.union1d(begins, np.flatnonzero(ddl)) if self.follows else begins
        if self._since is None and len(own):  # in a store that was re-created: by the first row
            self._since = first + int(own[0])
        for i in marks.tolist():
            table = None if ddl[i] else decode_schema(events.schemas[schema[i]])
            why = ""
            if self.follows:
                why = self._follow(events, i, first + i, table)
            elif table is not None:
                why = differences(table, plan)
            if why and table is not None:
                header, _ = events.stored(np.array([i]))[0]
                return ColumnTurn(first + i, f"{header.file}:{header.offset}", why, table)
        return None

    def _follow(self, events: Events | StoredEvents, i: int, sequence: int, table: TableSchema | None) -> str:
        """Take in a DDL, or rows of `table`; return why these cannot be read."""
        lineage = self._lineage
        assert lineage is not None
        if self._since is None or sequence < self._since:  # the plan has what these DDLs did
            if table is None:
                return ""
            assert self._decoder.table is not None
            lineage = Lineage(self._decoder.table)
        if table is None:
            lineage.take_ddl(events.stored(np.array([i]))[0][0])
        elif (names := lineage.take_rows(table)) is None:
            return f"a statement before it cannot be read: {lineage.state.unread[:200]}"
        elif not self._names or self._names[-1][1] != names:
            self._names.append((sequence, names))
        if lineage is self._lineage and (not self._states or self._states[-1][1] != lineage.state):
            self._states.append((sequence, lineage.state))
        return ""
