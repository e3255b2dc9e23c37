"""Verification: whether a copy of a table has its source's rows, while both change.

Plan. No lock, and nothing is written to the server. L is the newest event of the store at the beginning.

    1  wait until the producer has passed where the server writes now, and the copy's subscription has acked all that is in the store: the
       copy has L, and the columns that the source had
    2  read all rows of both sides, some of the one and some of the other in turn, so that a server sends while the other's rows are looked
       at: of the source in pieces, each as the server has it at that moment; keep a pair of numbers of each row (`digests`)
    3  P: where the server writes now. As in 1: then the store has every change that 2 may have seen
    4  E: the newest event of the store now. Read the events from L to E: their keys are the ones that changed meanwhile

A key that did not change between L and E has had one row all the while. The source was read behind L (what the server had
committed before and the store had not is noted, for it came behind L), and so was the copy, which had all up to L, and can have nothing behind
E. So its row must be the same on both sides, whichever was read first; of rows that are not, both values are read once more, as follows, and
shown. Rows whose keys changed are compared again, by themselves: those of the source, 3, those of the copy, 4, which then takes a moment; also
those that were equal, for one that changed behind 2 and whose change the copy lost has its old value on both sides. Those that differ and
changed again are compared until each was met at rest. So every change up to P is in the copy.

Changed keys are noted as a snapshot notes them (`changed_keys`). After a DDL of the table, or rows that lack columns, it begins again.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from shmstore import BinlogDisabled, Position, SourceError, StoreError, StoreView, TableSchema
from shmstore.encoding.codec import Packed, unpack_rows
from shmstore.errors import CopyUnreadable
from shmstore.producer.connection.server import SourceServer, read_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.positions.gtid_position import current_position
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.tables import list_tables, read_table
from shmstore.producer.snapshot.watermarks import prepare
from shmstore.producer.stop import Stop, Stopped
from shmstore.producer.verify.changed_rows import ChangedRows, Disturbed
from shmstore.producer.verify.copy import ReadableCopy
from shmstore.producer.verify.digests import Digests, Numbers, differing, key_bytes, numbers_of, row_numbers
from shmstore.producer.verify.result import Difference, TableResult, VerifyProgress
from shmstore.producer.verify.source_progress import SourceProgress
from shmstore.producer.verify.source_rows import SourceRows, StoredRow, StoredRows

ATTEMPTS = 5  # of a table whose definition changes meanwhile
ROUNDS = 20  # of comparing keys again that change all the time
AGAIN = 50_000  # keys whose rows are compared again at once: their values are in memory
SAMPLES = 1000  # keys that differ whose values are read
LOOK = 0.05  # seconds between two looks at the store
SAVE = 1.0  # seconds of reading that a kill costs

_TEMPORAL = frozenset({"date", "datetime", "timestamp"})


class Verification:
    """Compares the copies of a store's tables with its source. Use it in one thread; `close` it."""

    def __init__(
        self,
        settings: Settings,
        copies: Callable[[str, str], ReadableCopy],
        *,
        subscription: str | None,
        patience: float = 60.0,
        zero_dates: str = "error",
        max_load: int = 25,
        progress: Callable[[VerifyProgress], None] = lambda progress: None,
        stop: Stop = lambda: False,
        place: str = "",
    ) -> None:
        """`settings`: those of the store's producer. `copies` opens the copy of a table. `subscription` is the one that feeds the copies;
        None: none does, and they have all that is in the store. `patience` is how many seconds producer and copy may stand still.
        `place` names the copies, so that one that was broken off is gone on with.

        Raises `StoreNotFound`, `SourceError`, `ValueError` where the store has no such subscription.
        """
        self._settings, self._copies, self._subscription, self._patience = settings, copies, subscription, patience
        self._zero_dates, self._max_load, self._progress, self._stop = zero_dates, max_load, progress, stop
        self._place = place
        self._view = StoreView.attach(settings.store, path=settings.store_path or None, state=settings.state or None)
        try:
            self._check_store()
            self._session: ServerSession = self._connected()
        except BaseException:
            self._view.close()
            raise
        self._server: SourceServer = read_server(self._session)
        self._filters, self._renaming = settings.table_filter(), settings.renaming()

    def _connected(self) -> ServerSession:
        session = connect(self._settings, self._settings.endpoints()[0], self._stop)
        prepare(session)
        return session

    def close(self) -> None:
        """Close the connection, and look at the store no more. Idempotent."""
        self._session.close()
        self._view.close()

    def __enter__(self) -> Verification:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_store(self) -> None:
        stat = self._view.stat()
        if self._view.of_group:
            raise ValueError(f"store {stat.name!r} has several sources: verify compares with one server")
        names = [each.name for each in stat.subscriptions]
        if self._subscription is not None and self._subscription not in names:
            there = f"it has {', '.join(names)}" if names else "it has none"
            raise ValueError(f"store {stat.name!r} has no subscription {self._subscription!r} that feeds the copies: {there}")

    def tables(self) -> list[tuple[str, str]]:
        """Return (database, table) of the tables whose rows the producer puts, by the names that readers see."""
        return list(dict.fromkeys([self._renaming.seen_as(*name) for name in list_tables(self._session, self._filters.passes)]))

    # ---------------------------------------------------------------- one table

    def verify(self, database: str, table: str) -> TableResult:
        """Compare one table with its copy. Raises `SourceError`, `StoreError`; `Stopped` when asked to stop."""
        began = time.monotonic()
        nothing = TableSchema(database, table, ())
        if problem := self._of_several(database, table):
            return TableResult(nothing, problem=problem)
        gone = "the server has no such table, or does not show it to this account"
        for _ in range(ATTEMPTS):
            source = self._source(database, table)
            if source is None:
                return TableResult(nothing, problem=gone)
            gone = "it was dropped, or renamed, while it was compared"
            if source.key_problem:
                return TableResult(source.schema, problem=source.key_problem)
            try:
                with closing(self._copies(database, table)) as copy:
                    return self._compare(source, copy)._replace(seconds=time.monotonic() - began)
            except Disturbed:
                continue
            except CopyUnreadable as error:
                return TableResult(source.schema, problem=str(error))
            except SourceError:
                self._session.close()  # a statement that failed takes it along
                self._session = self._connected()
                now = self._source(database, table)
                if now is None:
                    shutil.rmtree(self._folder(source.schema), ignore_errors=True)
                    return TableResult(source.schema, problem=gone)
                if now.table.schema == source.table.schema:
                    raise
        return TableResult(nothing, problem=f"a DDL or an XA transaction changed it {ATTEMPTS} times while it was compared")

    def _of_several(self, database: str, table: str) -> str:
        """Why a table is not compared that has its name, or its rows, by `--rename`; empty for any other."""
        if not self._renaming:
            return ""
        name = (database, table)
        if (target := self._renaming.target_of(*name)) not in (None, name):
            return f"--rename makes {'.'.join(target or ())} of it, and readers know that alone"
        shards = [one for one in list_tables(self._session, self._filters.passes) if self._renaming.target_of(*one) == name]
        if not shards:
            return ""
        return (
            f"--rename makes it of {len(shards)} tables, and verify compares one with one: compare the copy with SELECT ... UNION ALL over "
            f"{', '.join(['.'.join(one) for one in shards[:3]])}{' and the others' * (len(shards) > 3)}"
        )

    def _source(self, database: str, table: str) -> SourceRows | None:
        found = read_table(self._session, database, table, history=self._settings.schema_history)
        return None if found is None else SourceRows(self._session, found, self._filters, self._settings, self._stop)

    def _compare(self, source: SourceRows, copy: ReadableCopy) -> TableResult:
        schema = source.schema._replace(primary_key=source.key)
        changes = ChangedRows(self._view, source)
        with SourceProgress.open(self._folder(schema), schema, self._view, source.table.rows) as state:
            since = state.first = changes.begin(state.first)
            theirs = Digests(state.folder / "copy", len(state.digests), state.digests.point)
            try:
                with closing(theirs):
                    self._passed(changes)
                    now = self._source(schema.database, schema.table)
                    if now is None or now.table.schema != source.table.schema:  # by a DDL before L, of which no event is noted
                        raise Disturbed
                    self._read(source, copy, schema, changes, state, theirs)
                    until = self._passed(changes)
                    changes.follow()
                    odd, moved = differing(state.digests, theirs), changes.keys
                    read = TableResult(
                        schema, state.digests.rows, theirs.rows, changed=len(moved), since=self._place_of(since), until=until
                    )
                    found = self._look_again(source, copy, schema, odd, moved, read, state.digests.point)
            except Disturbed:
                state.done()
                raise
            state.done()
        return found

    def _read(
        self,
        source: SourceRows,
        copy: ReadableCopy,
        schema: TableSchema,
        changes: ChangedRows,
        state: SourceProgress,
        theirs: Digests,
    ) -> None:
        """Read both sides in turn, and the events that come meanwhile, which a small log keeps for a while only."""
        with (
            closing(self._read_source(source, schema, state)) as ours,
            closing(self._read_copy(copy, schema, source.key, theirs)) as copied,
        ):
            reading = [ours, copied]
            while reading:
                for side in list(reading):
                    if next(side, True):
                        reading.remove(side)
                    self._say(schema, "reading", state.digests.rows, theirs.rows, source.table.rows)
                    changes.follow()

    def _read_source(self, source: SourceRows, schema: TableSchema, state: SourceProgress) -> Generator[None]:
        if state.whole:
            return
        rest = partial(
            source.wait_for_rest,
            self._max_load,
            lambda running: self._say(schema, f"waiting: {running} statements run on the server"),
        )
        saved = time.monotonic()
        with closing(source.pieces(state.after, rest=rest)) as pieces:
            for rows in pieces:
                state.digests.add(self._as_copied(source.schema, rows), source.key)
                if time.monotonic() > saved + SAVE:
                    state.save(source.last)
                    saved = time.monotonic()
                yield
        state.whole = True
        state.save(())

    def _read_copy(self, copy: ReadableCopy, schema: TableSchema, key: Sequence[int], theirs: Digests) -> Generator[None]:
        for rows in copy.rows(schema):
            theirs.add(rows, key)
            yield

    def _say(self, schema: TableSchema, doing: str, rows: int = 0, copied: int = 0, estimate: int = 0) -> None:
        if self._stop():
            raise Stopped
        self._progress(VerifyProgress(schema, doing, rows, copied, estimate))

    def _as_copied(self, schema: TableSchema, rows: StoredRows) -> StoredRows:
        """The rows as the copy can hold them: without zero dates, where the copy has NULL in their place."""
        dates = [i for i, column in enumerate(schema.columns) if column.type in _TEMPORAL]
        if self._zero_dates != "null" or not dates:
            return rows
        values = unpack_rows(rows)
        if not any(isinstance(row[i], str) for row in values for i in dates):
            return rows
        return [[None if i in dates and isinstance(value, str) else value for i, value in enumerate(row)] for row in values]

    # ---------------------------------------------------------------- rows that differ

    def _look_again(
        self,
        source: SourceRows,
        copy: ReadableCopy,
        schema: TableSchema,
        odd: Numbers,
        moved: list[bytes],
        found: TableResult,
        point: int,
    ) -> TableResult:
        """Compare the rows of the keys that changed again, and those of the keys with these numbers, each by its values."""
        still = np.setdiff1d(odd, numbers_of(moved, point))
        keys = [*moved, *self._keys_of(source, copy, schema, still, point)]
        differences: list[Difference] = []
        rest: set[bytes] = set()
        for at in range(0, len(keys), AGAIN):
            differ, moving = self._settle(source, copy, schema, set(keys[at : at + AGAIN]))
            differences += differ
            rest |= moving
        more = max(0, len(still) - SAMPLES)
        problem = f"{len(rest)} rows change so often that they were never met at rest" if rest and not differences else ""
        samples = tuple(sorted(differences, key=lambda each: key_bytes(each.key, range(len(each.key)))))
        return found._replace(again=len(keys), differences=len(differences) + more, samples=samples[:SAMPLES], problem=problem)

    def _keys_of(self, source: SourceRows, copy: ReadableCopy, schema: TableSchema, numbers: Numbers, point: int) -> set[bytes]:
        """The keys that have these numbers, `SAMPLES` at most: both sides are read once more for it."""
        found: dict[int, bytes] = {}
        wanted = min(SAMPLES, len(numbers))

        def look(rows: StoredRows) -> bool:
            own = row_numbers(rows, source.key, point)[:, 0]
            places = np.flatnonzero(np.isin(own, numbers)).tolist()
            if places:
                values = unpack_rows(rows)
                for at in places:
                    found.setdefault(int(own[at]), key_bytes(values[at], source.key))
            return len(found) >= wanted

        if not wanted:
            return set()
        with closing(source.pieces()) as pieces:
            for rows in chain(copy.rows(schema), (self._as_copied(schema, rows) for rows in pieces)):
                self._say(schema, "finding what differs")
                if look(rows):
                    break
        return set(list(found.values())[:wanted])

    def _settle(
        self, source: SourceRows, copy: ReadableCopy, schema: TableSchema, keys: set[bytes]
    ) -> tuple[list[Difference], set[bytes]]:
        """Compare the rows of `keys` until each was met at rest. Returns what differs, and the keys that never rested."""
        differences: list[Difference] = []
        rest = keys
        for _ in range(ROUNDS):
            if not rest:
                break
            self._say(schema, f"comparing {len(rest):,} rows again")
            changes = ChangedRows(self._view, source)
            changes.begin(None)
            values = [_values(key, len(source.key)) for key in rest]
            ours = self._by_key(self._as_copied(schema, source.rows_of(values)), source.key)
            self._passed(changes)
            theirs = self._by_key(copy.rows_of(schema, values), source.key)
            changes.follow()
            differ = [key for key in rest if ours.get(key) != theirs.get(key)]
            moved = set(changes.keys)
            for key in differ:
                if key not in moved:
                    pair = ours.get(key), theirs.get(key)
                    differences.append(Difference(_values(key, len(source.key)), *[rows[0] if rows else None for rows in pair]))
            rest = {key for key in differ if key in moved}
        return differences, rest

    @staticmethod
    def _by_key(rows: StoredRows, key: Sequence[int]) -> dict[bytes, list[StoredRow]]:
        found: dict[bytes, list[StoredRow]] = {}
        for row in unpack_rows(rows):
            found.setdefault(key_bytes(row, key), []).append(list(row))
        return found

    # ---------------------------------------------------------------- how far each side is

    def _place_of(self, sequence: int) -> Position | None:
        point = self._view.ack_point_until(sequence)
        return None if point is None else self._view.peek(point, limit_events=1).position_of(point)

    def _passed(self, changes: ChangedRows) -> Position | None:
        """Wait until the store has what the server has now, and the copy what the store then has; return where that is."""
        try:
            here = current_position(self._session, self._server)
        except BinlogDisabled as error:
            raise SourceError(str(error)) from error
        self._wait(lambda: self._behind_producer(here), changes)
        newest = self._view.newest
        self._wait(lambda: self._behind_copy(newest), changes)
        return here

    def _wait(self, behind: Callable[[], str], changes: ChangedRows) -> None:
        """Wait until `behind` says nothing. Raises `StoreError` with it when it has said the same for as long as the patience is."""
        said, until = "", time.monotonic() + self._patience
        while now := behind():
            if self._stop():
                raise Stopped
            if now != said:
                said, until = now, time.monotonic() + self._patience
            elif time.monotonic() > until:
                raise StoreError(f"{now}, for {self._patience:g} s")
            changes.follow()
            time.sleep(LOOK)

    def _behind_producer(self, here: Position) -> str:
        stat = self._view.stat()
        at = max(
            (each for each in (stat.put_position, stat.source_position) if each is not None),
            key=lambda each: each.order,
            default=None,
        )
        if (
            at is not None and at.order >= here.order
        ):  # where it last put a transaction, or said a second ago at most that it reads
            return ""
        if not stat.producer_alive:
            return f"no producer runs on store {stat.name!r}: start it, so that the store comes to {here.file}:{here.offset}"
        return (
            f"the producer stands at {at.file}:{at.offset}, before {here.file}:{here.offset}"
            if at
            else "the producer has not begun to read"
        )

    def _behind_copy(self, newest: int) -> str:
        if self._subscription is None:
            return ""
        for each in self._view.subscriptions():
            if each.name == self._subscription:
                if each.ack.sequence >= newest:
                    return ""
                return f"the copy has not taken in event {newest}: {each.standing}; is its query running?"
        raise StoreError(f"subscription {self._subscription!r} was removed from store {self._view.name!r}")

    def _folder(self, schema: TableSchema) -> Path:
        """Where the numbers of this table's rows are kept: in the store's home."""
        what = f"{self._place}\0{schema.database}\0{schema.table}"
        home = self._view.home
        if home.epoch is None:
            home.make()
        return home.path / "verify" / hashlib.sha256(what.encode()).hexdigest()[:16]


def _values(key: bytes, count: int) -> StoredRow:
    """The values of a key that `key_bytes` wrote."""
    found: StoredRow = unpack_rows(
        Packed(bytes([0x90 | count]) + key if count < 16 else b"\xdc" + count.to_bytes(2, "big") + key)
    )
    return found
