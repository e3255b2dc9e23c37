"""A micro-batch's events -> for each table the steps that bring its copy up to date.

Events come in their order, so "the last change of a key" is the last one seen: one dict a table, no sorting, and only rows
that survive are turned into columns. A change of the primary key deletes the old key and writes the new one. A DDL in the
middle ends a step: what came before it is applied before it. How many steps there are, and of which events, follows from the events alone,
not from what the copy holds or is waiting for, so that a batch that is run again has the same ones. Whether an ALTER is followed or the
table read again may differ then, where a step that is done is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.ddl import Action, Change, actions, keeps_values
from shmstore.consumer.formats.values import time_text
from shmstore.encoding.arrow import PartialImage, ZeroDate, arrow_type, column_array
from shmstore.encoding.codec import Header, decode_schema, decode_stored
from shmstore.encoding.row_order import seq_prefix, seq_suffix
from shmstore.event import Column, EntryType, EventType, Position, TableSchema
from shmstore.home.snapshots import REPLACING
from shmstore.sql.names import folded, places_of, same

VALID_FROM, VALID_TO, CURRENT, SEQ = "_valid_from", "_valid_to", "_current", "_seq"
_MOMENT = pa.timestamp("us", "UTC")
Columns = Mapping[str, Column]  # of a table, by `folded` names
OURS: Final = "_shmstore_"  # what names of tables in a database or a catalog begin with that are no copies
HISTORY: Final = "shmstore.history"  # the mark of a copy that says whether it keeps every version of a row
NOTHING_KNOWN: Final[Mapping[tuple[str, str], Columns]] = MappingProxyType({})
HISTORY_FIELDS = [
    pa.field(VALID_FROM, _MOMENT),
    pa.field(VALID_TO, _MOMENT),
    pa.field(CURRENT, pa.bool_()),
    pa.field(SEQ, pa.string()),
]


class CannotFollow(ValueError):
    """The stream holds something after which no copy can continue, or the target does not fit; the message says what to do."""


class CannotCopy(CannotFollow):
    """One table can have no copy in this target, whatever comes: the others can."""


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
    """Last change of each key: whole rows to write, and keys to delete. `keys` are the names of the key columns of `schema`."""

    keys: tuple[str, ...]
    upserts: pa.Table
    deletes: pa.Table
    schema: TableSchema


class Versions(NamedTuple):
    """SCD type 2: keys whose current version ends (with when and by which seq), and new versions."""

    keys: tuple[str, ...]
    ends: pa.Table
    versions: pa.Table
    schema: TableSchema


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


Step = Merge | Versions | Empty | Leave | Alter | Reread | First | Last | Replace


def target_fields(table: TableSchema) -> list[pa.Field]:
    """The columns of a copy of `table`. TIME is text there, as MySQL prints it: table formats have no such interval."""
    return [pa.field(column.name, pa.string() if column.type == "time" else arrow_type(column)) for column in table.columns]


def target_field(column: Column) -> pa.Field:
    """The column of a copy that holds `column`."""
    return target_fields(TableSchema("", "", (column,)))[0]


def columns_of(table: TableSchema, rows: Sequence[Sequence[Any]], zero_dates: str) -> pa.Table:
    """Return `rows`, in stored form, with the columns of a copy of `table`."""
    fields = target_fields(table)
    values: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
    arrays = []
    for column, field_, cells in zip(table.columns, fields, values, strict=True):
        if column.type == "time":
            text = time_text(column.scale)
            arrays.append(pa.array([None if value is None else text(value) for value in cells], pa.string()))
        else:
            arrays.append(column_array(column, field_.type, cells, zero_dates))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


@dataclass(slots=True)
class TableChanges:
    """Collects one table's changes. Its `steps` are complete after `finish`."""

    name: tuple[str, str]
    keys: tuple[str, ...] | None
    zero_dates: str
    history: bool
    seq_head: str = ""
    steps: list[Step] = field(default_factory=list)
    rows: int = 0
    known: dict[str, Column] = field(default_factory=dict)  # columns by `folded` name, as the last rows had them
    before: Callable[[Header, bool], Columns] = (
        lambda ddl, fresh: {}
    )  # those that a DDL found; `fresh`: none of this batch came before it
    _schema: TableSchema | None = None
    _key_columns: tuple[int, ...] = ()
    _last: dict[Any, Any] = field(default_factory=dict)
    _log: list[tuple[Any, Any, int, str]] = field(default_factory=list)

    def add(self, schema: TableSchema, header: Header, body: list[Any]) -> None:
        """Take one rows event. Raises `PartialImage`, `CopyDiffers`.

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
        self._take(schema, header, body)
        if part == "last":
            self._flush()
            self.steps.append(Last(int(header.props["snapshot"], 16), schema, self._names()))

    def _take(self, schema: TableSchema, header: Header, body: list[Any]) -> None:
        if self._schema is None or (schema is not self._schema and schema[2:] != self._schema[2:]):
            self._flush()
            self._begin(schema)
        before_columns, before, after_columns, after = body
        if before_columns is not None or after_columns is not None:
            raise PartialImage(
                f"a row image of {'.'.join(self.name)} at {header.file}:{header.offset} lacks columns: set binlog_row_image=FULL on the server"
            )
        if before is None and after is None:
            return  # a snapshot's event without rows
        self.rows += len(after if after is not None else before)
        if self.history:
            self._add_history(header, before, after)
            return
        key, last = self._key(), self._last
        if before is None:
            for row in after:
                last[key(row)] = row
        elif after is None:
            for row in before:
                last[key(row)] = None
        else:
            for old, new in zip(before, after, strict=True):
                was, is_ = key(old), key(new)
                if was != is_:
                    last[was] = None
                last[is_] = new

    def _add_history(self, header: Header, before: Any, after: Any) -> None:
        key = self._key()
        prefix = self.seq_head + seq_prefix(Position(header.file, 0).file_number, header.offset, header.order)
        for i in range(len(after if after is not None else before)):
            seq = prefix + seq_suffix(header.row + i)
            new = after[i] if after is not None else None
            if before is not None:
                was = key(before[i])
                if new is None or key(new) != was:
                    self._log.append((was, None, header.time_ms, seq))
            if new is not None:
                self._log.append((key(new), new, header.time_ms, seq))

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

    def _key(self) -> Callable[[Any], Any]:
        columns = self._key_columns
        if len(columns) == 1:
            column = columns[0]
            return lambda row: row[column]
        return lambda row: tuple([row[i] for i in columns])

    def act(self, action: Action, header: Header) -> None:
        """Take one DDL. Raises `CopyDiffers`."""
        self._flush()
        if action.kind in ("truncate", "drop"):
            self.steps.append(Empty(header.time_ms, action.kind == "drop"))
        elif action.kind == "alter" and self._keeps_values(action, header):
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

    def leave(self, place: str) -> None:
        """The producer reads the table no further. Raises `CopyDiffers`."""
        self._flush()
        self.steps.append(Leave(place))
        self._schema = None

    def distrust(self, reason: str) -> None:
        """Only the server knows the rows from here on."""
        with suppress(*OF_ONE_TABLE):
            self._flush()
        self._last, self._log = {}, []
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
        self._last, self._log, self._schema = {}, [], None
        if not any(isinstance(known, Reread) and known.reason == reason for known in self.steps[-1:]):
            self.steps.append(step)

    def finish(self) -> list[Step]:
        """Return the steps."""
        try:
            self._flush()
        except OF_ONE_TABLE as error:
            self.fail(str(error))
        return self.steps

    def _flush(self) -> None:
        schema = self._schema
        if schema is None or not (self._last or self._log):
            return
        names = self._names()
        if self.history:
            self.steps.append(self._versions(schema, names))
            self._log = []
            return
        upserts = [row for row in self._last.values() if row is not None]
        if self.zero_dates == "null":
            self._check_keys(schema)
        deletes = [key for key, row in self._last.items() if row is None]
        self.steps.append(Merge(names, columns_of(schema, upserts, self.zero_dates), self._key_table(schema, deletes), schema))
        self._last = {}

    def _check_keys(self, schema: TableSchema) -> None:
        """Raise `CopyDiffers` where a key would become NULL, and so be no key."""
        for at, i in enumerate(self._key_columns):
            if schema.columns[i].type in ("date", "datetime", "timestamp"):
                keys = list(self._last) if len(self._key_columns) == 1 else [key[at] for key in self._last]
                try:
                    column_array(schema.columns[i], target_field(schema.columns[i]).type, keys, "fail")
                except ZeroDate as error:
                    raise CopyDiffers(
                        f"a key of {'.'.join(self.name)} is no date, and as NULL it would be no key: {error}"
                    ) from error

    def _key_table(self, schema: TableSchema, keys: list[Any]) -> pa.Table:
        rows = [(key,) for key in keys] if len(self._key_columns) == 1 else keys
        return columns_of(schema._replace(columns=tuple(schema.columns[i] for i in self._key_columns)), rows, self.zero_dates)

    def _versions(self, schema: TableSchema, names: tuple[str, ...]) -> Versions:
        first: dict[Any, tuple[int, str]] = {}
        following: dict[Any, int] = {}
        versions: list[tuple[Any, int, int | None, str]] = []
        for key, row, time_ms, seq in reversed(self._log):
            if row is not None:
                versions.append((row, time_ms, following.get(key), seq))
            following[key] = time_ms
            first[key] = (time_ms, seq)
        versions.reverse()
        ends = self._key_table(schema, list(first))
        ends = ends.append_column(VALID_TO, _moments([time for time, _ in first.values()]))
        ends = ends.append_column(SEQ, pa.array([seq for _, seq in first.values()], pa.string()))
        fresh = columns_of(schema, [row for row, _, _, _ in versions], self.zero_dates)
        fresh = fresh.append_column(VALID_FROM, _moments([begins for _, begins, _, _ in versions]))
        fresh = fresh.append_column(VALID_TO, _moments([ends_ for _, _, ends_, _ in versions]))
        fresh = fresh.append_column(CURRENT, pa.array([ends_ is None for _, _, ends_, _ in versions], pa.bool_()))
        fresh = fresh.append_column(SEQ, pa.array([seq for _, _, _, seq in versions], pa.string()))
        return Versions(names, ends, fresh, schema)


def _moments(times_ms: list[Any]) -> pa.Array:
    return pa.array([None if time is None else time * 1000 for time in times_ms], pa.int64()).cast(_MOMENT)


def collect(
    payloads: Iterable[Any],
    selection: CopiedTables,
    keys: dict[str, tuple[str, ...]],
    history: bool,
    copies: Callable[[str | None], Iterable[tuple[str, str]]],
    source: str | None = None,
    known: Mapping[tuple[str, str], Columns] = NOTHING_KNOWN,
    before: Callable[[tuple[str, str], Header, bool], Columns] = lambda name, ddl, fresh: {},
) -> dict[tuple[str, str], TableChanges]:
    """Return the changes of each table of `selection` in `payloads`, encoded events in their order.

    `keys` overrides the primary key by ``database.table``; `copies` gives the tables of a database, or with None of all, that have a copy.
    `source` is the one that the events are from, in a store of several. `known` are the columns that earlier rows had, by table, and `before`
    gives those that a DDL found where that says nothing (`TableChanges.before`).
    Raises `CannotFollow`.
    """
    found: dict[tuple[str, str], TableChanges] = {}
    head = "" if source is None else f"{source}/"
    touched: set[tuple[str, str]] = set()  # in the transaction that is open
    prepared: dict[str, set[tuple[str, str]]] = {}  # by the XA transactions of this batch

    def changes(database: str, table: str) -> TableChanges:
        name = (database, table)
        if name not in found:
            given = keys.get(f"{database}.{table}")
            found[name] = TableChanges(
                name, given, selection.zero_dates, history, head, known=dict(known.get(name, {})), before=partial(before, name)
            )
        return found[name]

    def distrust(names: Iterable[tuple[str, str]], reason: str) -> None:
        for name in sorted(names):
            if selection.wants(*name):
                changes(*name).distrust(reason)

    wanted: dict[bytes, TableSchema | None] = {}
    for payload in payloads:
        header, blob, body = decode_stored(payload)
        place = f"{header.file}:{header.offset}"
        if blob is not None and body is not None:
            if blob not in wanted:
                schema = decode_schema(blob)
                wanted[blob] = schema if selection.wants(schema.database, schema.table) else None
            table = wanted[blob]
            if table is not None:
                change = changes(table.database, table.table)
                touched.add(change.name)
                try:
                    change.add(table, header, body)
                except OF_ONE_TABLE as error:
                    change.fail(str(error))
        elif header.entry == EntryType.BEGIN:
            touched = set()
        elif header.entry == EntryType.END:
            if header.props.get("xa") == "prepare":
                prepared[header.props["xa_xid"]] = touched
        elif header.entry == EntryType.HEARTBEAT:
            entered, left, differ = (
                {_table_of(name) for name in header.props.get(prop, "").split(",") if name}
                for prop in ("tables_in", "tables_out", "tables_changed")
            )
            distrust(
                entered | differ, f"the producer's filters changed at {place}: rows of before did not pass, or with other columns"
            )
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
