"""The filters of one source while it is read: those in force, and those of the file, which follow at the end of a transaction.

A start is a change like any other. The filters in force are those that the store was left with (`start.in_force`); where the options are
others by now, these follow once the stream is between two transactions: at once, or where the store ends inside a transaction, behind that,
which is so read to its end with the filters that its beginning was read with.

The change is an event of the log: a HEARTBEAT at the position from which the new filters are in force, with the properties

    filters_changed   the options that changed
    tables_in         tables that pass from here on      database.table, comma separated
    tables_out        tables that do not pass any more
    tables_changed    tables of which other rows or columns pass
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from shmstore import EntryType, Event, EventStore, EventType, Position, StoreError
from shmstore.clock import calendar_ms
from shmstore.encoding.codec import encode_batch
from shmstore.event import FILTERS_CHANGED
from shmstore.home.acks import checkpoints_in
from shmstore.home.snapshot_progress import ENTERED, SnapshotRequest
from shmstore.home.snapshots import ProgressFile, new_id
from shmstore.patterns.table_patterns import exactly
from shmstore.producer.errors import SettingsError
from shmstore.producer.filters.changed import Name, TablesChanged
from shmstore.producer.pipeline.client_filters import ClientFilters
from shmstore.producer.pipeline.reloads import Reloads, live_names, with_live
from shmstore.producer.settings import Settings
from shmstore.producer.start.in_force import FiltersFile, InForce, TablesWanted, filters_of, with_filters
from shmstore.producer.stop import Stop

SYNC = 5.0  # seconds that a change waits for the log to be on disk before it is tried again


class FilterChange(NamedTuple):
    """A change of filters that is to be put. `wanted`: the snapshot that it asks for."""

    settings: Settings
    options: tuple[str, ...]
    tables: TablesChanged
    wanted: TablesWanted | None

    @property
    def text(self) -> str:
        """The change as a log line says it."""
        said = (("comes in", "come in"), ("leaves", "leave"), ("has other rows or columns", "have other rows or columns"))
        tables = [
            f"1 table {one}" if len(names) == 1 else f"{len(names)} tables {several}"
            for names, (one, several) in zip(self.tables, said, strict=True)
            if names
        ]
        return "; ".join([", ".join(self.options), *tables])


class LiveSettings:
    """The settings of one source of `store`. `settings`: those that the process was started with."""

    def __init__(self, settings: Settings, store: EventStore, source: str | None, reloads: Reloads, log: logging.Logger) -> None:
        self._store, self._reloads, self._started, self._log = store, reloads, settings, log
        self._file = FiltersFile(store.home, source or "", store.may_produce)
        self._alone = source is None
        # What an earlier store of this name was read with matters to readers of it alone, who come back with their checkpoints.
        self._kept = self._file.load(store.epoch, store.newest, again=bool(checkpoints_in(store.home)))
        self._next: InForce  # what was written down of the change that is put
        self._begun, self._version = False, reloads.version
        replaces = settings.client_filters == "replace"
        if replaces and not self._alone:
            raise SettingsError(
                f"store {store.name!r} has several sources: client_filters = replace works with one source in a store"
            )
        self._clients = ClientFilters(store.home, log, on=replaces)
        #: What the file says, and clients want besides.
        self.wanted = self._all_wanted()
        #: What is in force.
        self.now = self.wanted if self._kept is None else self._as_kept(self.wanted, self._kept)
        #: Whether other filters are to follow.
        self.pending = self.wanted != self.now

    def _as_kept(self, wanted: Settings, kept: InForce) -> Settings:
        try:
            return with_filters(wanted, kept.filters)
        except ValueError as error:  # written by another version
            raise StoreError(
                f"{self._file.path}, which has the filters of this store, has an error: {error}; remove it"
            ) from error

    def _all_wanted(self) -> Settings:
        return self._clients.joined(with_live(self._started, self._reloads.wanted(self._started)))

    def look(self, stop: Stop) -> None:
        """Take in what was asked for. Call it about once a second. Raises `StoreError`."""
        self._reloads.look(self._store, stop)
        if self._clients.look() or self._version != self._reloads.version:
            self._version = self._reloads.version
            self.wanted = self._all_wanted()
            self.pending = self.wanted != self.now
        if not self.pending:
            self._in_force("nothing changed for this store" if self._alone else "nothing changed")

    def _in_force(self, text: str) -> None:
        self._reloads.in_force(self._store, self._started, self._version, text)

    def begin(self) -> None:
        """Write down what is in force, before anything is put, and ask for the tables that came in with it. Raises `StoreError`."""
        if self._begun:
            return
        kept, newest = self._kept, self._store.newest
        if kept is None or kept.filters != filters_of(self.now):
            kept = InForce(newest, filters_of(self.now))
        self._kept = kept._replace(since=min(kept.since, newest))
        self._file.save(self._store.epoch, self._kept)
        self._ask(self._kept)
        self._begun = True

    # ------------------------------------------------------------ a change

    def on_disk(self) -> bool:
        """Whether all of the store is on disk, as far as it can be: then no crash takes it back behind a change. A group looks when it puts."""
        return not self._alone or not self._store.has_log or self._store.sync(self._store.newest, SYNC) >= self._store.newest

    def take_quietly(self) -> bool:
        """Take what changes no filter, which is no event; return whether that was all."""
        if live_names(self.now, self.wanted):
            return False
        self._take(self.wanted, "in force")
        return True

    def _take(self, settings: Settings, text: str) -> None:
        self.now = settings
        self.pending = self.wanted != settings
        if not self.pending:
            self._in_force(text)

    def prepare(self, tables: TablesChanged, *, snapshots: bool) -> FilterChange:
        """Return the change that follows. `snapshots`: whether tables can be read."""
        wanted = self.wanted
        names = (*tables.enter, *tables.differ)
        asked = None
        if snapshots and wanted.new_tables == "snapshot" and names:
            asked = TablesWanted(new_id(), tuple([exactly(".".join(name)) for name in names]))
        return FilterChange(wanted, tuple(live_names(self.now, wanted)), tables, asked)

    def record(self, change: FilterChange, sequence: int) -> None:
        """Write down the change that follows as event `sequence` of the store. Raises `StoreError`."""
        assert self._kept is not None
        self._next = InForce(sequence, filters_of(change.settings), change.wanted)
        self._file.save(self._store.epoch, self._kept, self._next)

    def event(self, change: FilterChange, position: Position) -> Event:
        """Return the event that says the change, at `position`, where the stream is."""
        newest = self._store.latest_event
        same = newest is not None and (newest.position.file, newest.position.offset) == (position.file, position.offset)
        order = newest.order + 1 if newest is not None and same else 0
        props = {FILTERS_CHANGED: ",".join(change.options)}
        for prop, names in zip(("tables_in", "tables_out", "tables_changed"), change.tables, strict=True):
            if names:
                props[prop] = ",".join([".".join(name) for name in names])
        name = f"{position.file}:{position.offset}:{order}"
        return Event(EntryType.HEARTBEAT, EventType.NONE, position, calendar_ms(), transaction=name, order=order, props=props)

    def put(self, change: FilterChange, position: Position) -> None:
        """The event is in the store: the filters are in force. Raises `StoreError`."""
        entry = self._kept = self._next
        text = f"in force from {position.file}:{position.offset} (event {entry.since}): {change.text}"
        self._log.info("filters %s", text)
        self._ask(entry)
        self._take(change.settings, text)

    def _ask(self, entry: InForce) -> None:
        """Ask for the tables that come in: once, whatever line a kill comes at, as the request has an id of its own until it is taken in."""
        if entry.wanted is None:
            return
        self._ask_for(entry.wanted)
        self._kept = entry._replace(wanted=None)
        self._file.save(self._store.epoch, self._kept)

    def ask_for_renamed(self, names: Sequence[Name], position: Position) -> None:
        """Ask for the rows of tables that a RENAME at `position` lets in. Read again, it asks for the same. Raises `StoreError`."""
        at = f"{position.file}:{position.offset}"
        tables = [".".join(name) for name in names]
        self._log.info("RENAME at %s lets in %s, whose rows are read", at, ", ".join(tables))
        self._ask_for(TablesWanted(f"{zlib.crc32(at.encode()):08x}", tuple(map(exactly, tables))))

    def _ask_for(self, wanted: TablesWanted) -> None:
        ProgressFile(self._store.home).ask(SnapshotRequest(wanted.id, wanted.tables, ENTERED, calendar_ms()))


def encoded(event: Event) -> tuple[list[bytes | memoryview], tuple[int, int, int, int, int]]:
    """Return an event as a transaction buffer takes it: its payload, and the fields of its slot."""
    position = event.position
    slot = (event.time_ms, position.offset, position.file_number, 0, int(event.entry) | int(event.type) << 8)
    return [encode_batch([event])[0]], slot
