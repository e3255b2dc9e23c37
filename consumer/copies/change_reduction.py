"""A micro-batch's events -> for each table the steps that bring its copy up to date.

Most events are rows: which table's they are, and how many, is known of all of them at once, and they are read when a step ends, to the last change of
each key (`changed_rows`). The others are looked at one by one, and the rows between two of them belong together. A DDL in the
middle ends a step: what came before it is applied before it. How many steps there are, and of which events, follows from the events alone,
not from what the copy holds or is waiting for, so that a batch that is run again has the same ones. Whether an ALTER is followed or the
table read again may differ then, where a step that is done is not done again. Rows that a TRUNCATE of the same batch deletes are never written: a
commit is dear in Delta and Parquet. Their step keeps its number, as None, so that a batch which an earlier version began ends well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shmstore.consumer.copies.changed_rows import Stored, all_versions, last_changes, read_acts, row_seqs
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.ddl import Action, Change, actions, keeps_values
from shmstore.encoding.arrow import PartialImage, ZeroDate
from shmstore.encoding.arrow_rows import StoredEvents, index_events, partial_images
from shmstore.encoding.codec import Header, decode_schema
from shmstore.event import Column, EntryType, EventType, TableSchema
from shmstore.home.snapshot_progress import REPLACING
from shmstore.sql.names import folded, places_of, same

VALID_FROM, VALID_TO, CURRENT, SEQ = "_valid_from", "_valid_to", "_current", "_seq"
_MOMENT = pa.timestamp("us", "UTC")
Columns = Mapping[str, Column]  # of a table, by `folded` names
OURS: Final = "_shmstore_"  # what names of tables in a database or a catalog begin with that are no copies
HISTORY: Final = "shmstore.history"  # the mark of a copy that says whether it keeps every version of a row
REMOVED: Final = "shmstore.removed"  # the mark, in a table of marks, of a copy that was removed: no person moved it away
_MARKED: Final = frozenset(
    ["snapshot_part", "snapshot_partial"]
)  # properties of a snapshot's rows that say more than that they are rows
NOTHING_KNOWN: Final[Mapping[tuple[str, str], Columns]] = MappingProxyType({})
HISTORY_FIELDS = [
    pa.field(VALID_FROM, _MOMENT),
    pa.field(VALID_TO, _MOMENT),
    pa.field(CURRENT, pa.bool_()),
    pa.field(SEQ, pa.string()),
]


class Encoded(NamedTuple):
    """Encoded events, back to back: each ends in `raw` where `ends` says."""

    raw: bytes | memoryview
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, payloads: Iterable[Any]) -> Encoded:
        """Return a copy of events that are in memory one by one."""
        pieces = list(payloads)
        return cls(b"".join(pieces), np.cumsum([len(piece) for piece in pieces], dtype=np.int64))


class CannotFollow(ValueError):
    """The stream holds something after which no copy can continue, or the target does not fit; the message says what to do."""


class CannotCopy(CannotFollow):
    """One table can have no copy in this target, whatever comes: the others can."""


class CopyDamaged(CannotCopy):
    """One table's copy cannot be read, so that nothing can be done to it, not even a mark be kept: the others can be written."""


class CopyDiffers(ValueError):
    """A copy cannot take rows or a change: what it holds is not what its table held. Its rows have to be read again."""


class CopyRefuses(CopyDiffers):
    """A copy of this kind cannot hold such rows, and reading them again is no use."""


def keeps_history(mark: int, names: Iterable[str]) -> bool:
    """Whether a copy keeps every version of a row: `mark` is its `HISTORY`; of one that is older than the mark the names of its columns say it."""
    return mark > 0 or (mark < 0 and {field.name for field in HISTORY_FIELDS} <= set(names))


#: What a table's rows may raise: it concerns no other table. `CannotFollow`, a ValueError too, is of all.
OF_ONE_TABLE: Final = (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError)


class Merge(NamedTuple):
    """Last change of each key: whole rows to write, and keys to delete. `keys` are the names of the key columns of `schema`.

    `updates` are new values of some columns, with the keys of rows that exist; no key is in two of the three.
    """

    keys: tuple[str, ...]
    upserts: pa.Table
    deletes: pa.Table
    schema: TableSchema
    updates: pa.Table | None = None


class Versions(NamedTuple):
    """SCD type 2: keys whose current version ends (with when and by which seq), and new versions."""

    keys: tuple[str, ...]
    ends: pa.Table
    versions: pa.Table
    schema: TableSchema


class RowsElsewhere(NamedTuple):
    """As `Merge`, or with `history` as `Versions`, of rows that other processes hold: of these `runs` of events in `source`. Only a target that those
    processes write to gets it."""

    keys: tuple[str, ...]
    schema: TableSchema
    history: bool
    source: Any
    runs: tuple[int, ...]


class Empty(NamedTuple):
    """The table lost all its rows (TRUNCATE, DROP), at this moment; `dropped`: it is no more, or has another name."""

    time_ms: int
    dropped: bool = False


class Leave(NamedTuple):
    """The producer's filters leave the table out from here on: its rows are not known any more."""

    place: str


class Alter(NamedTuple):
    """The table's columns changed, all at once, and no value with them."""

    changes: tuple[Change, ...]


class Reread(NamedTuple):
    """Only the server knows what the table's rows are now. With `help`, a person has to act before they can be read.

    `schema` and `keys` are those of the rows that could not be taken, where they are known.
    """

    reason: str
    help: bool = False
    schema: TableSchema | None = None
    keys: tuple[str, ...] = ()


class First(NamedTuple):
    """A snapshot of the table begins: its rows come, between the stream's changes, until `Last`. With a `gap` the copy may lack changes."""

    snapshot: int
    schema: TableSchema
    keys: tuple[str, ...]
    gap: bool = False


class Last(NamedTuple):
    """All rows of the table have come."""

    snapshot: int
    schema: TableSchema
    keys: tuple[str, ...]


class Replace(NamedTuple):
    """The rows of the copy in `path` take the place of those in this one; where there is no copy there, no rows of `schema`."""

    path: str
    schema: TableSchema
    keys: tuple[str, ...]


Step = Merge | Versions | RowsElsewhere | Empty | Leave | Alter | Reread | First | Last | Replace


@dataclass(slots=True, eq=False)
class TableChanges:
    """Collects one table's changes. Its `steps` are complete after `finish`."""

    name: tuple[str, str]
    keys: tuple[str, ...] | None
    zero_dates: str
    history: bool
    events: Stored
    seq_head: str = ""
    steps: list[Step | None] = field(default_factory=list)
    rows: int = 0
    known: dict[str, Column] = field(default_factory=dict)  # columns by `folded` name, as the last rows had them
    before: Callable[[Header, bool], Columns] = (
        lambda ddl, fresh: {}
    )  # those that a DDL found; `fresh`: none of this batch came before it
    _schema: TableSchema | None = None
    _key_columns: tuple[int, ...] = ()
    _runs: list[NDArray[np.int64]] = field(
        default_factory=list
    )  # events with rows since the last step, all with the columns of `_schema`

    def add(self, schema: TableSchema, run: NDArray[np.int64]) -> None:
        """Take `run`, numbers of events with rows of `schema`. Raises `CopyDiffers`."""
        if self._schema is None or (schema is not self._schema and schema[2:] != self._schema[2:]):
            self._flush()
            self._begin(schema)
        if len(run):
            self._runs.append(run)
            self.rows += int(self.events.records["rows"][run].sum())

    def add_one(self, schema: TableSchema, header: Header, number: int) -> None:
        """Take one rows event which has no rows, or of which its header says more. Raises `PartialImage`, `CopyDiffers`.

        Of a snapshot that was asked for a part of the table nothing is taken: it neither has all rows, nor says anything that the copy does
        not know.
        """
        if "snapshot_partial" in header.props:
            return
        part = header.props.get("snapshot_part") if header.type == EventType.READ else None
        if part == "first":
            self._flush()
            self._begin(schema)
            gap = header.props.get("snapshot_reason") in REPLACING
            self.steps.append(First(int(header.props["snapshot"], 16), schema, self._names(), gap))
        self.add(schema, np.zeros(0, np.int64))
        if isinstance(self.events, StoredEvents) and self.events.partial[number]:
            raise PartialImage(
                f"a row image of {'.'.join(self.name)} at {header.file}:{header.offset} lacks columns: set binlog_row_image=FULL on the server"
            )
        if self.events.records["rows"][number]:
            self.add(schema, np.array([number]))
        if part == "last":
            self._flush()
            self.steps.append(Last(int(header.props["snapshot"], 16), schema, self._names()))

    def _begin(self, schema: TableSchema) -> None:
        self._schema = None
        names = self.keys or tuple(schema.columns[i].name for i in schema.primary_key)
        if not names:
            raise CopyDiffers(
                f"table {'.'.join(self.name)} has no primary key, so its rows cannot be identified: "
                f"give keys={{'{'.'.join(self.name)}': ['column', ...]}}, or leave the table out"
            )
        places = places_of(names, schema.names)
        if missing := [name for name, i in zip(names, places, strict=True) if i is None]:
            raise CopyDiffers(
                f"table {'.'.join(self.name)} has no column {', '.join(sorted(missing))} to use as a key: it has {', '.join(schema.names)}"
            )
        self._leave_names(schema.names)
        self._schema, self.known = schema, {folded(column.name): column for column in schema.columns}
        self._key_columns = tuple([i for i in places if i is not None])

    def _leave_names(self, names: Iterable[str]) -> None:
        """Raise `CopyDiffers` where one of a table's columns has a name that a history needs."""
        if self.history and (ours := {field.name for field in HISTORY_FIELDS} & set(map(folded, names))):
            raise CopyDiffers(
                f"table {'.'.join(self.name)} has a column {min(ours)}, which a history needs for itself: leave the table out, or filter the "
                "column out in the producer"
            )

    def _names(self) -> tuple[str, ...]:
        assert self._schema is not None
        return tuple(self._schema.columns[i].name for i in self._key_columns)

    def act(self, action: Action, header: Header) -> None:
        """Take one DDL. Raises `CopyDiffers`."""
        if action.kind in ("truncate", "drop"):
            self._empty(Empty(header.time_ms, action.kind == "drop"))
            return
        self._flush()
        if action.kind == "alter" and self._keeps_values(action, header):
            changes = tuple([change for change in action.changes if change.name or change.to])
            self._leave_names(change.to for change in changes)
            if changes:
                self.steps.append(Alter(changes))
                self._schema = None
            for change in changes:
                old = self.known.pop(folded(change.name), None)
                if old is not None and change.to and change.column is None:
                    self.known[folded(change.to)] = old._replace(name=change.to)
        elif action.kind in ("alter", "reread"):
            self.distrust(f"the DDL at {header.file}:{header.offset} may have changed its values ({header.sql})")

    def _empty(self, step: Empty) -> None:
        """Add a step after which no row is left, in place of those right before it that wrote or deleted rows. A history keeps them."""
        if self.history:
            self._flush()
        else:
            number = len(self.steps) - 1
            while number >= 0 and _overwrites(step, self.steps[number]):
                self.steps[number] = None
                number -= 1
            if self._forget():
                self.steps.append(None)
        self.steps.append(step)

    def _forget(self) -> bool:
        """Leave out the rows since the last step; return whether there are any."""
        runs, self._runs = self._runs, []
        return bool(runs)

    def leave(self, place: str) -> None:
        """The producer reads the table no further. Raises `CopyDiffers`."""
        self._flush()
        self.steps.append(Leave(place))
        self._schema = None

    def distrust(self, reason: str) -> None:
        """Only the server knows the rows from here on."""
        with suppress(*OF_ONE_TABLE):
            self._flush()
        self._runs = []
        self.steps.append(Reread(reason))
        self._schema, self.known = None, {}

    def _keeps_values(self, action: Action, header: Header) -> bool:
        """Whether no value of the rows that are there changed. Where no rows said how a column was, what is kept outside of the stream does."""
        strict = header.props.get("sql_strict") != "off"
        known: Columns = self.known
        if any(change.name and change.column is not None and folded(change.name) not in known for change in action.changes):
            known = {**self.before(header, not any(isinstance(step, Alter) for step in self.steps)), **known}
        for change in action.changes:
            if not change.name and not change.to and not strict:
                return False  # NULLs in the columns of a new key became something else
            if change.name and change.column is not None:
                old = known.get(folded(change.name))
                if old is None or not keeps_values(old, change.column, strict=strict):
                    return False
        return True

    def fail(self, reason: str) -> None:
        """Its rows cannot be taken from here on, until a person has acted."""
        with suppress(*OF_ONE_TABLE):
            self._flush()
        step = Reread(reason, True, self._schema, self._names() if self._schema is not None else ())
        self._runs, self._schema = [], None
        if not any(isinstance(known, Reread) and known.reason == reason for known in self.steps[-1:]):
            self.steps.append(step)

    def finish(self) -> list[Step | None]:
        """Return the steps, each at the place that is its number."""
        try:
            self._flush()
        except OF_ONE_TABLE as error:
            self.fail(str(error))
        return self.steps

    def _flush(self) -> None:
        schema = self._schema
        if schema is None or not self._runs:
            return
        names, run = self._names(), np.concatenate(self._runs)
        try:
            acts = read_acts(self.events, run, schema, self._key_columns, self.zero_dates)
        except ZeroDate as error:
            if self.zero_dates != "null":
                raise
            raise CopyDiffers(f"a key of {'.'.join(self.name)} is no date, and as NULL it would be no key: {error}") from error
        if self.history:
            versions = all_versions(acts, *row_seqs(self.events, run, self.seq_head))
            ends = versions.ended.append_column(VALID_TO, versions.ended_at).append_column(SEQ, versions.ended_seq)
            fresh = versions.rows
            added = (versions.begins, versions.ends, versions.ends.is_null(), versions.seqs)
            for column, values in zip(HISTORY_FIELDS, added, strict=True):
                fresh = fresh.append_column(column.name, values)
            self.steps.append(Versions(names, ends, fresh, schema))
        else:
            self.steps.append(Merge(names, *last_changes(acts), schema))
        self._runs = []


def collect(
    payloads: Encoded | Iterable[Any],
    selection: CopiedTables,
    keys: dict[str, tuple[str, ...]],
    history: bool,
    copies: Callable[[str | None], Iterable[tuple[str, str]]],
    source: str | None = None,
    known: Mapping[tuple[str, str], Columns] = NOTHING_KNOWN,
    before: Callable[[tuple[str, str], Header, bool], Columns] = lambda name, ddl, fresh: {},
    kind: Callable[..., TableChanges] = TableChanges,
) -> dict[tuple[str, str], TableChanges]:
    """Return the changes of each table of `selection` in `payloads`, encoded events in their order.

    `keys` overrides the primary key by ``database.table``; `copies` gives the tables of a database, or with None of all, that have a copy.
    `source` is the one that the events are from, in a store of several. `known` are the columns that earlier rows had, by table, and `before`
    gives those that a DDL found where that says nothing (`TableChanges.before`). `kind` makes what collects one table's changes.
    Raises `CannotFollow`.
    """
    events = index_events(*(payloads if isinstance(payloads, Encoded) else Encoded.of(payloads)))
    found: dict[tuple[str, str], TableChanges] = {}
    head = "" if source is None else f"{source}/"
    touched: set[tuple[str, str]] = set()  # in the transaction that is open
    prepared: dict[str, set[tuple[str, str]]] = {}  # by the XA transactions of this batch, where one is rolled back in it

    def changes(database: str, table: str) -> TableChanges:
        name = (database, table)
        if name not in found:
            given = keys.get(f"{database}.{table}")
            found[name] = kind(
                *(name, given, selection.zero_dates, history, events, head),
                known=dict(known.get(name, {})),
                before=partial(before, name),
            )
        return found[name]

    def distrust(names: Iterable[tuple[str, str]], reason: str) -> None:
        for name in sorted(names):
            if selection.wants(*name):
                changes(*name).distrust(reason)

    rolled_back = bool((events.records["type"] == EventType.XAROLLBACK).any())
    for piece in pieces(events, selection, rolled_back):
        if not isinstance(piece, int):
            table, run = piece
            change = changes(table.database, table.table)
            touched.add(change.name)
            try:
                change.add(table, run)
            except OF_ONE_TABLE as error:
                change.fail(str(error))
            continue
        header, schema = events.header(piece), events.records["schema"][piece]
        place = f"{header.file}:{header.offset}"
        if schema >= 0:
            table = decode_schema(events.schemas[schema])
            if selection.wants(table.database, table.table):
                change = changes(table.database, table.table)
                touched.add(change.name)
                try:
                    change.add_one(table, header, piece)
                except OF_ONE_TABLE as error:
                    change.fail(str(error))
        elif header.entry == EntryType.BEGIN:
            touched = set()
        elif header.entry == EntryType.END:
            if header.props.get("xa") == "prepare":
                prepared[header.props["xa_xid"]] = touched
        elif header.entry == EntryType.HEARTBEAT:
            entered, left, differ = (_tables_in(header, prop) for prop in ("tables_in", "tables_out", "tables_changed"))
            where = f"of source {header.props['filters_of']} changed" if "filters_of" in header.props else f"changed at {place}"
            why = f"the producer's filters {where}: rows of before did not pass, or with other columns"
            if "renamed_from" in header.props:
                why = f"the DDL at {place} changed a part of its rows, {header.props['renamed_from']} ({header.props.get('statement', '')})"
            distrust(entered | differ, why)
            for name in sorted(left):
                if selection.wants(*name):
                    change = changes(*name)
                    try:
                        change.leave(place)
                    except OF_ONE_TABLE as error:
                        change.fail(str(error))
        elif header.type == EventType.XAROLLBACK:
            names = prepared.get(header.props.get("xa_xid", ""))
            reason = f"the XA transaction rolled back at {place} had been written at its XA PREPARE, and its rows are in the copy"
            distrust(
                {*copies(None), *found} if names is None else names, reason
            )  # what an earlier batch brought of it no process remembers
        elif header.entry == EntryType.ROWS:
            names = {_table_of(name) for name in header.props.get("tables", "").split(",") if name}
            if "table" in header.props:
                names.add((header.database, header.props["table"]))
            if header.props.get("lower_case_table_names") == "1":
                names = {(folded(database), folded(table)) for database, table in names}
            reason = f"the statement at {place} ({header.sql}) changed rows that the binlog does not hold: set binlog_format=ROW on the server"
            distrust(names or {*copies(None), *found}, reason)
        elif header.entry == EntryType.DDL:
            mode = header.props.get("sql_mode", "")
            distrust(_tables_in(header, "tables_changed"), f"the DDL at {place} changed a part of its rows ({header.sql})")
            for action in actions(header.sql, header.props.get("default_database", header.database), mode):
                if not action.table:
                    text = folded(header.sql)
                    concerned = {name for name in {*copies(None), *found} if folded(name[1]) in text}
                    distrust(concerned, f"the DDL at {place} cannot be read ({header.sql})")
                    continue
                if action.kind == "create":
                    continue
                case = header.props.get("lower_case_table_names", "")
                for name in _names(
                    action, lambda name: {*(t for _, t in copies(name)), *(t for d, t in found if d == name)}, case
                ):
                    if selection.wants(*name):
                        change = changes(*name)
                        sure = case or (name[0] == action.database and action.table in ("*", name[1]))
                        try:
                            change.act(action if sure else Action("reread", *name), header)
                        except OF_ONE_TABLE as error:
                            change.fail(str(error))
    return found


def pieces(
    events: Stored, selection: CopiedTables, transactions: bool = False
) -> Iterator[tuple[TableSchema, NDArray[np.int64]] | int]:
    """Yield the events that are looked at one by one, as numbers, and of the rows between two of them each table's, of those that are copied."""
    tables = [schema if selection.wants(schema.database, schema.table) else None for schema in map(decode_schema, events.schemas)]
    done = 0
    for number in _single(events, transactions).tolist():
        yield from _runs(events, tables, done, number)
        done = number + 1
        yield int(number)
    yield from _runs(events, tables, done, len(events.records))


def _single(events: Stored, transactions: bool) -> NDArray[np.int64]:
    """The events that are looked at one by one. BEGIN and END are only where `transactions` matter: where one of XA is rolled back."""
    records = events.records
    alone = (records["schema"] < 0) | (records["rows"] == 0) | partial_images(events)
    if not transactions:
        alone &= (records["schema"] >= 0) | ((records["entry"] != EntryType.BEGIN) & (records["entry"] != EntryType.END))
    reads = np.flatnonzero(~alone & (records["type"] == EventType.READ))
    alone[reads] = [not _MARKED.isdisjoint(events.header(number).props) for number in reads.tolist()]
    return np.flatnonzero(alone)


def _runs(
    events: Stored, tables: Sequence[TableSchema | None], first: int, last: int
) -> Iterator[tuple[TableSchema, NDArray[np.int64]]]:
    """The rows events of `first` to `last`, without that one: of each table in their order, cut where its definition changes."""
    schema = events.records["schema"][first:last]
    numbers: dict[tuple[str, str], int] = {}
    of_schema = np.array([-1 if one is None else numbers.setdefault(one[:2], len(numbers)) for one in tables] + [-1], np.int64)
    of_table = of_schema[schema]  # the last is schema -1
    order = np.argsort(of_table, kind="stable")
    order = order[of_table[order] >= 0]
    cuts = np.flatnonzero(schema[order[1:]] != schema[order[:-1]]) + 1
    for run in np.split(order, cuts) if len(order) else ():
        table = tables[schema[run[0]]]
        assert table is not None
        yield table, run + first


def _tables_in(header: Header, prop: str) -> set[tuple[str, str]]:
    """The tables that a property lists."""
    return {_table_of(name) for name in header.props.get(prop, "").split(",") if name}


def _overwrites(step: Empty, before: Step | None) -> bool:
    return isinstance(before, Merge | RowsElsewhere) or (isinstance(before, Empty) and before.dropped <= step.dropped)


def _table_of(name: str) -> tuple[str, str]:
    database, _, table = name.partition(".")
    return database, table


def _names(action: Action, copies: Callable[[str], Collection[str]], case: str) -> list[tuple[str, str]]:
    """The tables that an action is about. `case` is the server's lower_case_table_names: where it is 1, names are in lower case in all rows, and in
    any case in a statement. Where it is not known, a name that has no copy may be meant for the one in lower case.
    """
    exact, lower = (action.database, action.table), (folded(action.database), folded(action.table))
    if action.table == "*":
        databases = [lower[0]] if case == "1" else [exact[0]] if case else list(dict.fromkeys((exact[0], lower[0])))
        return [(database, table) for database in databases for table in copies(database)]
    if case == "2":  # as they were when the table was made
        return [(exact[0], next((table for table in copies(exact[0]) if same(table, exact[1])), exact[1]))]
    if case:
        return [lower if case == "1" else exact]
    both = lower != exact and exact[1] not in copies(exact[0]) and lower[1] in copies(lower[0])
    return [exact, lower] if both else [exact]
