"""The tables as they were at each position of the binlog: what the log itself does not say.

With `binlog_row_metadata` MINIMAL (MySQL's default) or NO_LOG (MariaDB's) a rows event has no column names, no members of ENUM
and SET, and on MariaDB no signs and character sets. They come from here: a snapshot of information_schema at one position, and
from there every DDL in the order of the log. So an old event is read with the columns of its time, not with today's.

Plan. A history is a list of records ordered by position: a snapshot holds all tables (of one database, or of the server),
a DDL what it changed. `seek` replays them up to a position; `follow` adds a DDL there, or takes the one that is known. The
file is JSON, one record a line, appended and synced before it counts; a line cut off by a crash is dropped.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shmstore.errors import SchemaUnknown
from shmstore.event import Column, Position, TableSchema
from shmstore.home.home import Home, May
from shmstore.home.lines import LinesFile
from shmstore.producer.binlog.table_map_metadata import BEGIN_BEHIND
from shmstore.producer.schema.current import CurrentTables
from shmstore.producer.schema.periods import NO_PERIOD, periods
from shmstore.producer.schema.seen import seen
from shmstore.sql.catalog import Catalog, Change, TableName, Unreadable
from shmstore.sql.columns import UNKNOWN as UNKNOWN_NULL
from shmstore.sql.columns import charset_of_collation, column_of_type
from shmstore.sql.hidden_columns import with_hidden
from shmstore.sql.names import places_of
from shmstore.sql.session import UNKNOWN, Session
from shmstore.sql.table_change import ROW_ID, Draft, Table

__all__ = ["SchemaHistory"]

AskServer = Callable[[str], Sequence[Sequence[Any]]]
FORMAT = 1
WHAT = "schema history"
_HEAD = {"shmstore_schema_history": FORMAT}

_SERVER = "SELECT @@character_set_server, @@lower_case_table_names, VERSION()"
_DATABASES = "SELECT schema_name, default_character_set_name FROM information_schema.schemata"
_TABLES = (
    "SELECT table_schema, table_name, table_collation, table_type, engine FROM information_schema.tables "
    "WHERE table_type <> 'SYSTEM VIEW' AND table_schema NOT IN ('information_schema', 'performance_schema', 'sys')"
)
_COLUMNS = (
    "SELECT table_schema, table_name, column_name, column_type, character_set_name, is_nullable, {} "
    "FROM information_schema.columns "
    "WHERE table_schema NOT IN ('information_schema', 'performance_schema', 'sys') ORDER BY table_schema, table_name, ordinal_position"
)
_MARIADB_COLUMNS = _COLUMNS.format("generation_expression")
_MYSQL_COLUMNS = _COLUMNS.format("extra")  # it has no system versioning, and 5.6 no such column
_KEYS = (
    "SELECT table_schema, table_name, column_name FROM information_schema.statistics "
    "WHERE index_name = 'PRIMARY' ORDER BY table_schema, table_name, seq_in_index"
)
_HASHES = (  # a hash in an index of another engine than MEMORY is a column, too
    "SELECT k.table_schema, k.table_name, COUNT(DISTINCT k.index_name) FROM information_schema.statistics k "
    "JOIN information_schema.tables t ON t.table_schema = k.table_schema AND t.table_name = k.table_name "
    "WHERE k.index_type = 'HASH' AND k.non_unique = 0 AND t.engine <> 'MEMORY' GROUP BY k.table_schema, k.table_name"
)


class _Record(NamedTuple):
    position: Position
    kind: str  # "snapshot" | "ddl" | "map": a table as a table map shows it
    change: Change
    sql: str = ""
    database: str | None = None  # a snapshot of this one; None: of all
    server: tuple[str, bool, bool] = ("utf8mb4", False, False)  # a snapshot's: character set, MariaDB, names fold case


class SchemaHistory:
    """Tables by position. `path`: the file that keeps them, loaded when it is there; None: memory only.

    A `draft` writes nothing before `keep`. `aside`: the files that it is to take the place of then, perhaps one at `path`.
    Raises `SchemaUnknown` where the file is not a history.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, draft: bool = False, aside: Sequence[Path] = ()) -> None:
        self._path = None if path is None else Path(path)
        self._lines = None if self._path is None or self.folder is None else LinesFile(Home(self.folder), self._path, _HEAD, WHAT)
        self._drafted: list[_Record] | None = [] if draft else None
        self.aside = list(aside)
        self.current: CurrentTables | None = None  # where the log names columns: how they are defined now
        self.waiting = False  # the stream is still before the beginning: nothing is known yet
        self._records: list[_Record] = []
        self._applied = 0  # records that the catalog holds
        self._catalog = Catalog()
        self._schemas: dict[tuple[str, str], tuple[Table, TableSchema]] = {}
        if self._lines is not None and self._path not in self.aside:
            self._load(self._lines)
            self._replay(len(self._records))

    @property
    def path(self) -> Path | None:
        """The file that keeps it."""
        return self._path

    @property
    def folder(self) -> Path | None:
        """The folder of the source's files in the store's home, where that file is."""
        return None if self._path is None else self._path.parent

    @property
    def first(self) -> Position | None:
        """Position of the oldest record: nothing before it is known."""
        return self._records[0].position if self._records else None

    @property
    def snapshotted(self) -> Position | None:
        """Position of the oldest snapshot."""
        return next((record.position for record in self._records if record.kind == "snapshot"), None)

    @property
    def last(self) -> Position | None:
        """Position of the newest snapshot or DDL: what came behind it is known only to who followed the log from there."""
        return self._records[-1].position if self._records else None

    # ------------------------------------------------------------ reading

    @property
    def tables(self) -> Mapping[TableName, Table | Unreadable]:
        """All tables as they were at the position that was reached, by the names of database and table."""
        return self._catalog.tables

    def table(self, database: str, table: str) -> Table:
        """A table that `find` finds, in the form in which it is followed."""
        found = self._catalog.find(database, table)
        assert isinstance(found, Table)
        return found

    def find(self, database: str, table: str) -> TableSchema | None:
        """The table as it was at the position that was reached, None where none of this name was known there.

        Raises `SchemaUnknown` where a DDL of the table could not be followed.
        """
        key = self._catalog.key(database, table)
        found = self._catalog.find(database, table)
        if found is None or self.waiting:
            return None
        if isinstance(found, Unreadable):
            raise SchemaUnknown(
                f"table {database}.{table}: {found.reason}; leave it out with --exclude '{database}.{table}', or {BEGIN_BEHIND}"
            )
        cached = self._schemas.get(key)
        if cached is not None and cached[0] is found:
            return cached[1]
        names = [column.name for column in found.columns]
        schema = TableSchema(database, table, found.columns, tuple([names.index(name) for name in found.key]))
        self._schemas[key] = (found, schema)
        return schema

    def define(self, database: str, table: str) -> TableSchema | None:
        """What is known of a table whose columns the log names: there nothing need be known. Raises `SourceError` of `current`."""
        if self.current is None:
            try:
                return self.find(database, table)
            except SchemaUnknown:
                return None
        found, followed = self.current.find(database, table), self._catalog.find(database, table)
        if found is None or self.waiting or not isinstance(followed, Table):
            return found
        # Whether the key is a primary one may have changed since: what was followed up to here says how it was.
        key = tuple([i for i in places_of(followed.key, found.names) if i is not None])
        return found._replace(primary_key=key) if len(key) == len(followed.key) else found

    def hidden(self, database: str, table: str) -> int | None:
        """How many columns the log has of the table behind those that `find` gives; None where that is not known."""
        found = self._catalog.tables.get(self._catalog.key(database, table))
        return found.hidden if isinstance(found, Table) else None

    def reach(self, position: Position) -> None:
        """The stream is at `position`: where it waited for the beginning, it may be there now."""
        if self.waiting and self._records and position.order >= self._records[0].position.order:
            self.waiting = False
            self._replay(self._index(position))

    def seek(self, position: Position, has: Callable[[str], bool] | None = None) -> None:
        """Go to the tables as they were at `position`. Raises `SchemaUnknown` when that is older than the first snapshot.

        `has`: whether a GTID set is part of the one executed there. Where given, it decides, and `position` may be of another
        server.
        """
        if not self._records:
            return
        if has is not None:
            count = self._reached(has)
            if not count:
                raise SchemaUnknown(
                    f"the schema history {self._name} begins behind GTID set {position.gtids}; start later, or give a history that goes back further"
                )
            self._replay(count)
            return
        first = self._records[0].position
        if position.file.rpartition(".")[0] != first.file.rpartition(".")[0]:
            raise SchemaUnknown(
                f"the schema history {self._name} is of binlog {first.file}, not {position.file}: another server's; "
                "take a new snapshot into a new history"
            )
        if position.order < first.order:
            raise SchemaUnknown(
                f"the schema history {self._name} begins at {first.file}:{first.offset}, behind {position.file}:{position.offset}; "
                "start there or later, or give a history that goes back further"
            )
        self._replay(self._index(position))

    def _reached(self, has: Callable[[str], bool]) -> int:
        """How many records, from the first on, a position has reached by its GTID set."""
        return next((n for n, record in enumerate(self._records) if not has(record.position.gtids)), len(self._records))

    # ------------------------------------------------------------ writing

    def begin(self, position: Position, tables: Mapping[TableName, Table]) -> None:
        """Begin with `tables`, which are known to be so at `position`."""
        charset = "utf8mb4"
        change: Change = {name: table if table.charset else table._replace(charset=charset) for name, table in tables.items()}
        self._add(_Record(position, "snapshot", change, "", None, (charset, False, False)))

    def carry(self, other: SchemaHistory, position: Position, has: Callable[[str], bool]) -> None:
        """Begin at `position` with the tables as `other`, of another server of the same transactions, has them.

        `has` says how far they were followed there, as for `seek`. Raises `SchemaUnknown` where that is before its beginning.
        """
        other.seek(position, has)
        change: Change = {(database, ""): charset for database, charset in other._catalog.databases.items()}
        change |= {(database, ""): unreadable for database, unreadable in other._catalog.unreadable.items()}
        change |= other._catalog.tables
        server = next(record.server for record in other._records[: other._applied][::-1] if record.kind == "snapshot")
        self._add(_Record(position, "snapshot", change, "", None, server))

    def snapshot(self, query: AskServer, position: Position, *, database: str | None = None) -> None:
        """Add the tables as the server has them now, which is how they are at `position`; of one database, or of all.

        `query` runs a SELECT and returns its rows. The state reached stays where it was if that is behind `position`.
        """
        ((charset, fold, version),) = query(_SERVER)
        mariadb = "mariadb" in str(version).lower()
        server = (str(charset), mariadb, bool(int(fold)))
        change: Change = {}
        for name, default in query(_DATABASES):
            if database is None or name == database:
                change[(name, "")] = _standard(default)
        columns: dict[tuple[str, str], list[Column]] = {}
        unreadable: dict[tuple[str, str], Unreadable] = {}
        row_ids: dict[tuple[str, str], str] = {}
        begins: dict[
            tuple[str, str], str
        ] = {}  # the column that begins the period of a system-versioned row, where it has a name
        ends: dict[tuple[str, str], str] = {}
        for schema, table, name, type_, charset, nullable, generated in query(_MARIADB_COLUMNS if mariadb else _MYSQL_COLUMNS):
            if generated == "ROW START":
                begins[(schema, table)] = name
            elif generated == "ROW END":
                ends[(schema, table)] = name
            elif not mariadb and name.lower() == ROW_ID and "auto_increment" in generated:
                row_ids[(schema, table)] = "invisible" if "INVISIBLE" in generated else "visible"
            try:
                column = column_of_type(name, type_, charset or "")._replace(nullable=nullable == "YES")
            except ValueError as error:
                unreadable[(schema, table)] = Unreadable(f"column {name} of the snapshot could not be read ({error})")
                continue
            columns.setdefault((schema, table), []).append(column)
        keys: dict[tuple[str, str], list[str]] = {}
        for schema, table, name in query(_KEYS):
            keys.setdefault((schema, table), []).append(name)
        own_periods = periods(query, str(version), database) if mariadb else {}
        hashes = {(schema, table): int(count) for schema, table, count in query(_HASHES)} if mariadb else {}
        for schema, table, collation, kind, engine in query(_TABLES):
            if kind == "VIEW" and database in (None, schema):
                change[(schema, "\1" + table)] = ""
            elif (schema, table) in unreadable and database in (None, schema):
                change[(schema, table)] = unreadable[(schema, table)]
            elif database in (None, schema):
                own = columns.get((schema, table), [])
                charset = charset_of_collation(collation or "") or server[0]
                key = tuple(keys.get((schema, table), []))
                row_id = row_ids.get((schema, table), "") if engine == "InnoDB" else ""
                begin, end = begins.get((schema, table), ""), ends.get((schema, table), "")
                period = own_periods.get((schema, table), NO_PERIOD)
                if isinstance(period, Unreadable):
                    change[(schema, table)] = period
                    continue
                found = Table(tuple(own), key, charset, period_begin=begin, period_end=end, row_id=row_id)
                try:
                    draft = Draft(found._replace(period=period.names, overlapless=period.overlapless))
                    if kind == "SYSTEM VERSIONED":
                        draft.version()
                    change[(schema, table)] = draft.table._replace(hidden=hashes.get((schema, table), 0))
                except ValueError as error:  # a DDL ran between two questions, or the account may see only some columns
                    change[(schema, table)] = Unreadable(
                        f"what the server says of it does not fit together ({error}): GRANT SELECT ON it to the account, on all its columns"
                    )
        self._add(_Record(position, "snapshot", change, "", database, server))

    def follow(self, position: Position, database: str, sql: str, session: Session = UNKNOWN) -> bool:
        """Take in a DDL that ends at `position`; `database` and `session` are those that ran it. True when it changed a table or database.

        Call it for every DDL, in the order of the log. One that is known already is taken from the history.
        """
        if self.current is not None:
            self.current.follow(position, database, sql, session)
        self.reach(position)
        if not self._records:
            return False
        at = self._index(position)
        here = bisect_left(self._records, position.order, hi=at, key=lambda record: record.position.order)
        known = next((record for record in self._records[here:at][::-1] if record.kind == "ddl"), None)
        if known is not None:
            self._replay(at)
            return _changes_tables(known.change)
        if self._records[0].position.order >= position.order:
            return False  # the first snapshot has it
        self._replay(at)
        change = self._catalog.read(sql, database, session)
        if self._catalog.mariadb:
            change = with_hidden(change, self._catalog, sql, database, session)
        if change:
            self._add(_Record(position, "ddl", change, sql, database))
            self._replay(self._index(position))
        return _changes_tables(change)

    def learn(self, position: Position, schema: TableSchema, hidden: int) -> None:
        """Take in a table as a table map at `position` describes it in full, where it was not followed like that."""
        self.reach(position)
        if self.waiting or not self._records or position.order < self._records[0].position.order:
            return
        self._replay(self._index(position))
        found = self._catalog.find(schema.database, schema.table)
        known = found if isinstance(found, Table) else Table(())
        now = seen(known, schema, hidden)
        if now != known:
            self._add(_Record(position, "map", {(schema.database, schema.table): now}))

    def define_as(self, position: Position, name: TableName, table: Table) -> None:
        """Take it that a table is so at `position`, whatever was followed."""
        self._add(_Record(position, "map", {name: table}))
        self.waiting = False
        self._replay(self._index(position))

    def keep(self, home: Home | None = None, may: May | None = None) -> None:
        """Write a draft down, in `home`, as far as `may` lets it (see `Home.replace`); from now on each addition is written at once. Raises OSError,
        `StoreError`."""
        drafted, self._drafted = self._drafted, None
        if self._path is None or self._lines is None:
            return
        home = home or self._lines.home
        self._lines = LinesFile(home, self._path, _HEAD, WHAT, may)
        if drafted is None:
            return
        if self._path in self.aside and self._path.exists():
            home.put_aside(self._path, WHAT, may)
        if drafted:
            self._lines.append(map(_packed, drafted))
        for file in self.aside:  # last: after a crash before this, another server's history is still there to take over from
            if file != self._path:
                home.put_aside(file, WHAT, may)

    # ------------------------------------------------------------ records

    @property
    def _name(self) -> str:
        return str(self._path) if self._path is not None else "in memory"

    def _index(self, position: Position) -> int:
        """How many records stand at or before `position`."""
        return bisect_right(self._records, position.order, key=lambda record: record.position.order)

    def _add(self, record: _Record) -> None:
        if self._drafted is not None:
            self._drafted.append(record)
        elif self._lines is not None:
            self._lines.append([_packed(record)])
        at = self._index(record.position)
        self._records.insert(at, record)
        if len(self._records) == 1 or at < self._applied:
            self._replay(max(1, self._applied + (at < self._applied)))
        elif at == self._applied:
            self._replay(at + 1)

    def _replay(self, count: int) -> None:
        """Make the catalog hold the first `count` records."""
        if count < self._applied:
            self._applied = 0
            before = self._catalog
            self._catalog = Catalog(charset="", mariadb=before.mariadb, fold_case=before.fold_case)
        for at in range(self._applied, count):
            record = self._records[at]
            if record.kind == "snapshot":  # forget what it replaces
                if record.database is None or at == 0:
                    charset, mariadb, fold = record.server
                    self._catalog = Catalog(charset=charset, mariadb=mariadb, fold_case=fold)
                else:
                    self._catalog.take({(record.database, ""): None})
            self._catalog.take(record.change)
        self._applied = count

    def _load(self, lines: LinesFile) -> None:
        try:
            records = [_unpacked(packed) for packed in lines.read() or ()]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise SchemaUnknown(
                f"{lines.path} is not a schema history of format {FORMAT}: {error}; move it away and take a new snapshot"
            ) from error
        self._records = sorted(records, key=lambda record: record.position.order)


def _changes_tables(change: Change) -> bool:
    """Whether a table or a database changes, and not only what is noted of views and temporary tables."""
    return any(table[:1] not in ("\0", "\1") for _, table in change)


def _standard(charset: str) -> str:
    return "utf8mb3" if charset == "utf8" else charset


def _packed(record: _Record) -> dict[str, Any]:
    change = [[database, table, _packed_value(now)] for (database, table), now in record.change.items()]
    position = [record.position.file, record.position.offset, record.position.gtids]
    packed = {"position": position, "kind": record.kind, "database": record.database, "change": change, "nulls": True}
    return packed | ({"server": record.server} if record.kind == "snapshot" else {"sql": record.sql})


def _packed_value(now: Table | Unreadable | str | None) -> Any:
    if isinstance(now, Unreadable):
        return {"unreadable": now.reason}
    if isinstance(now, Table):
        return now._asdict()
    return now


def _unpacked(packed: dict[str, Any]) -> _Record:
    file, offset, gtids = packed["position"]
    # Without "nulls" an earlier version wrote it, to which only the columns that a snapshot showed were NULL or not.
    known = "nulls" in packed, packed["kind"] == "snapshot"
    change = {(database, table): _unpacked_value(now, *known) for database, table, now in packed["change"]}
    charset, mariadb, fold = packed.get("server", ("utf8mb4", False, False))
    position = Position(str(file), int(offset), str(gtids))
    return _Record(position, packed["kind"], change, packed.get("sql", ""), packed["database"], (charset, mariadb, fold))


def _unpacked_value(now: Any, nulls: bool, snapshot: bool) -> Table | Unreadable | str | None:
    if not isinstance(now, dict):
        return None if now is None else str(now)
    if "unreadable" in now:
        return Unreadable(now["unreadable"])
    columns = tuple([Column._make([*column[:7], tuple(column[7]), *(column[8:] or [""])]) for column in now["columns"]])
    if not (nulls or (snapshot and not now["versioned"])):
        columns = tuple([column._replace(nullable=UNKNOWN_NULL) for column in columns])
    key, period, end = list(now["key"]), tuple(now.get("period", ())), now.get("period_end", "")
    overlapless = bool(period) and len(key) > 2 and [name for name in key if name != "row_end"][-2:] == [*period[:0:-1]]
    if "overlapless" not in now and overlapless and now["versioned"]:  # an earlier version put the implicit row_end last
        key.insert(-2, key.pop())
    return Table(
        columns,
        tuple(key),
        now["charset"],
        bool(now["versioned"]),
        period_begin=now.get("period_begin", ""),
        period_end=end,
        period=period,
        row_id=now.get("row_id", ""),
        hidden=now.get("hidden"),
        overlapless=now.get("overlapless", overlapless),
    )
