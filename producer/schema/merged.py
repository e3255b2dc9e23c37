"""Shards that are one table to readers (`--rename`): how that target is defined, and what of a shard's rows and DDLs it gets.

A target has a definition, which at first is that of its shards: they must be alike. A DDL of a shard changes it by this rule:

    the shard is then as the target never was   the DDL is the target's, too: it is put, with the target's name, and defines it from there on
    the shard is then as the target is, or was  it only follows: the DDL is not put. Where rows that are there may have got other values
                                                than those that readers know, an event says that the target's rows have to be read again
    a new shard is not as the target is or was  its rows stop the producer, with both named

Until a shard follows, its rows come in the target's definition, by the names of the columns: without those that the target lost, with NULL in
those that it got.

The definitions of a target, oldest first, are kept with those of the tables in the store's home (`PublishedTables`), so that a producer that
starts again decides the same. Shards are known by the names that the server has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from shmstore import Column, Position, SchemaUnknown, TableSchema, UnsupportedEvent
from shmstore.column_type import column_type
from shmstore.encoding.codec import decode_schema, encode_schema
from shmstore.home.definitions import Definition
from shmstore.producer.filters.renaming import Renaming, TableName
from shmstore.producer.filters.table_filter import TableFilter, TablePlan
from shmstore.producer.schema.shard_statement import changes_rows, gives_values, retargeted
from shmstore.sql.classify import Statement
from shmstore.sql.names import folded
from shmstore.sql.tokens import USUAL, SqlMode

__all__ = ["Effect", "MergedTables", "Moved"]

NO_SHARDS: Final = Renaming()
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_LISTED = 5  # differences that a message names


class Moved(NamedTuple):
    """A shard whose definition a DDL changed. `text`: the statement as the target's, where that is put; `reread`: the rows of the target have
    to be read again."""

    shard: TableName
    target: TableName
    text: str | None
    reread: bool


class Effect(NamedTuple):
    """What a DDL means for targets. `shards` are those that it is about, `alone` them and no other table. `text`: the statement as one about a target,
    and that target, where it is put so; `reread`: the targets whose rows have to be read again."""

    shards: tuple[TableName, ...]
    alone: bool
    text: tuple[str, TableName] | None
    reread: tuple[TableName, ...]


class _TargetVersion(NamedTuple):
    """A definition of a target, with the target's name; `text`: the statement that made it, where that is known."""

    schema: TableSchema
    text: str = ""


class MergedTables:
    """The targets of one source, at the position that was reached."""

    def __init__(self, renaming: Renaming = NO_SHARDS) -> None:
        self.renaming = renaming
        self._renames = bool(renaming)
        #: What the DDL that was followed last did to shards.
        self.moved: list[Moved] = []
        self._versions: dict[TableName, list[_TargetVersion]] = {}
        self._shards: dict[TableName, TableSchema] = {}
        self._refused: dict[TableName, str] = {}
        self._behind: set[TableName] = set()  # shards whose rows may have been put in another definition than their own
        self._plans: dict[bytes, TablePlan] = {}
        self._filter: TableFilter | None = None  # that the plans are of

    def __bool__(self) -> bool:
        return self._renames

    # ------------------------------------------------------------ definitions

    def begin(self, position: Position, kept: Iterable[Definition], shards: Mapping[TableName, TableSchema]) -> list[Definition]:
        """Begin with the tables that pass, of which some are shards, as they are at `position`, and with what was `kept` up to there; return what
        to keep. Raises `SchemaUnknown` where shards of a new target are not alike."""
        self._shards = {name: schema for name, schema in shards.items() if self.renaming.target_of(*name) is not None}
        before, self._versions = self._versions, {}
        groups: dict[TableName, list[TableName]] = {}
        for name in sorted(self._shards):
            groups.setdefault(self.renaming.seen_as(*name), []).append(name)
        lines: dict[TableName, list[Definition]] = {}
        for line in kept:
            if line.schema is not None and line.name in groups:
                lines.setdefault(line.name, []).append(line)
        found: list[Definition] = []
        for target, names in groups.items():
            if (target in shards) and target not in self._shards:
                raise SchemaUnknown(
                    f"rename makes {'.'.join(target)} of {'.'.join(names[0])}, but the server has a table of that name, which is read under its own: "
                    "give another target, or leave that table out with --exclude"
                )
            versions = [_TargetVersion(self._bare(line.schema)) for line in lines.get(target, ()) if line.schema is not None]
            there = lines.get(target, [])
            if not any(_alike(version.schema, self._shards[name]) for version in versions for name in names):
                self._require_alike(target, names)
                versions = [_TargetVersion(_named(self._shards[names[0]], target))]
                there = [self._line(position, target, versions[0].schema)]
            self._versions[target] = [self._with_text(version, before.get(target, ())) for version in versions]
            found += there
        self._refused = {}
        for name, schema in self._shards.items():
            target = self.renaming.seen_as(*name)
            if self._version_like(target, schema) < 0:
                self._refused[name] = self._refusal(name, schema, target)
        self._behind = {name for name, schema in self._shards.items() if not self._is_present(name, schema)}
        self._plans.clear()
        return found

    def follow(
        self, position: Position, changed: Mapping[TableName, TableSchema | None], sql: str, mode: SqlMode = USUAL
    ) -> list[Definition]:
        """Take in what a DDL made of tables that pass (None: there is no such table, or it is not known how it is defined); return what to keep
        of targets. `moved` then says what it means for them."""
        self.moved = []
        found: list[Definition] = []
        for name, schema in changed.items():
            target = self.renaming.target_of(*name)
            if target is None:
                continue
            before = self._shards.pop(name, None)
            if schema is None:
                self._refused.pop(name, None)
                if before is not None:
                    self.moved.append(Moved(name, target, None, reread=True))
            else:
                self._shards[name] = schema
                found += self._take(position, name, target, before, sql, mode)
        if changed:
            self._plans.clear()
        return found

    def _take(
        self, position: Position, name: TableName, target: TableName, before: TableSchema | None, sql: str, mode: SqlMode
    ) -> list[Definition]:
        schema, versions = self._shards[name], self._versions.setdefault(target, [])
        at, text = self._version_like(target, schema), retargeted(sql, mode, target)
        if at < 0 and versions and (before is None or name in self._refused):
            self._refused[name] = self._refusal(name, schema, target)
            self._behind.add(name)
            return []
        self._refused.pop(name, None)
        if at < 0:
            versions.append(_TargetVersion(_named(schema, target), text or ""))
            self.moved.append(Moved(name, target, text, reread=text is None))
            self._behind.discard(name)
            return [self._line(position, target, versions[-1].schema)]
        silent = before is None or _keeps_rows(before, schema, sql, mode)
        if not silent and name not in self._behind and at > 0:
            same = text is not None and text == versions[at].text
            silent = same and before is not None and _alike(before, versions[at - 1].schema)
        if before is not None:
            self.moved.append(Moved(name, target, None, reread=not silent))
        if at == len(versions) - 1:
            self._behind.discard(name)
        return []

    def forget_statement(self) -> None:
        """The statement that is followed next moved no shard so far."""
        self.moved = []

    def effect(self, statement: Statement, table_filter: TableFilter, sql: str, mode: SqlMode) -> Effect | None:
        """Return what a DDL, which was followed, means for targets; None where it is about none."""
        names = [name for name in (*statement.tables, *statement.targets) if table_filter.passes(*name)]
        shards = [name for name in names if self.renaming.target_of(*name) is not None]
        if not shards and not self.moved:
            return None
        moved = [one.shard for one in self.moved]
        reread = [one.target for one in self.moved if one.reread]
        text = next(((one.text, one.target) for one in self.moved if one.text is not None), None)
        if text is None and shards and (statement.targets or changes_rows(sql, mode)):
            reread += [self.renaming.seen_as(*name) for name in shards]
        alone = bool(names) and len(names) == len(shards)
        return Effect(tuple(dict.fromkeys(shards + moved)), alone, text, tuple(dict.fromkeys(reread)))

    def _version_like(self, target: TableName, schema: TableSchema) -> int:
        """The newest version of a target that a shard is like; -1: there is none."""
        versions = self._versions.get(target, [])
        return next((i for i in range(len(versions) - 1, -1, -1) if _alike(versions[i].schema, schema)), -1)

    def _is_present(self, name: TableName, schema: TableSchema) -> bool:
        versions = self._versions.get(self.renaming.seen_as(*name), [])
        return bool(versions) and _alike(versions[-1].schema, schema)

    def _require_alike(self, target: TableName, names: list[TableName]) -> None:
        first = names[0]
        for other in names[1:]:
            if not _alike(self._shards[first], self._shards[other]):
                raise SchemaUnknown(
                    f"tables {'.'.join(first)} and {'.'.join(other)} differ, and rename makes {'.'.join(target)} of both: "
                    f"{_differences(self._shards[first], self._shards[other])}; make them alike, or leave one out with --exclude"
                )

    def _refusal(self, name: TableName, schema: TableSchema, target: TableName) -> str:
        versions = self._versions[target]
        other = next((shard for shard, own in self._shards.items() if shard != name and self._is_present(shard, own)), target)
        return (
            f"table {'.'.join(name)} differs from {'.'.join(other)}, and rename makes {'.'.join(target)} of both: "
            f"{_differences(schema, versions[-1].schema)}; make it alike, or leave it out with --exclude"
        )

    @staticmethod
    def _with_text(version: _TargetVersion, before: Iterable[_TargetVersion]) -> _TargetVersion:
        return next((one for one in before if _alike(one.schema, version.schema)), version)

    # ------------------------------------------------------------ rows

    def plan(self, table_filter: TableFilter, schema: TableSchema, blob: bytes) -> TablePlan:
        """Return what is done with the rows of the table version `schema`, encoded as `blob`: what `table_filter` says, and for a shard what makes
        rows of its target of them. Raises `UnsupportedEvent` where they cannot be."""
        if not self._renames:
            return table_filter.plan(schema, blob)
        if table_filter is not self._filter:
            self._filter = table_filter
            self._plans.clear()
        plan = self._plans.get(blob)
        if plan is None:
            plan = self._plans[blob] = self._make_plan(table_filter.plan(schema, blob), schema)
        return plan

    def seen_as(self, database: str, table: str) -> TableName:
        """Return the name that readers see for a table."""
        return self.renaming.seen_as(database, table) if self._renames else (database, table)

    def _make_plan(self, plan: TablePlan, schema: TableSchema) -> TablePlan:
        name = schema.database, schema.table
        target = self.renaming.target_of(*name)
        if target is None:
            if name in self._versions:
                raise UnsupportedEvent(
                    f"table {'.'.join(name)} has the name that rename gives to others: give another target, or leave it out with --exclude"
                )
            return plan
        if name in self._refused:
            raise UnsupportedEvent(self._refused[name])
        own = schema if plan.blob is None else decode_schema(plan.blob)
        keep = tuple(range(len(schema.columns))) if plan.blob is None else plan.keep
        versions = self._versions.setdefault(target, [])
        if not versions:
            versions.append(_TargetVersion(_named(own, target)))
        present = versions[-1].schema
        if not _alike(own, present):
            self._behind.add(name)
        places = {folded(column): i for i, column in enumerate(own.names)}
        at = [places.get(folded(column.name), -1) for column in present.columns]
        key = [present.columns[i].name for i in present.primary_key]
        if lost := [column for column in key if folded(column) not in places]:
            raise UnsupportedEvent(
                f"table {'.'.join(name)} has no column {lost[0]}, which is of the key of {'.'.join(target)}, as rename calls it: make the tables alike"
            )
        columns = [
            own.columns[i] if i >= 0 else missing._replace(nullable=True) for i, missing in zip(at, present.columns, strict=True)
        ]
        kept = [keep[i] if i >= 0 else ~0 for i in at]
        primary_key, added = present.primary_key, tuple[str | None, ...]((None,))
        if origin := self.renaming.origin:
            if any(folded(column.name) == folded(origin) for column in columns):
                raise UnsupportedEvent(
                    f"table {'.'.join(name)} has a column {origin} of its own: give rename_origin another name"
                )
            columns.append(self._origin)
            kept.append(~1)
            added = (None, ".".join(name))
            primary_key = (*primary_key, len(columns) - 1) if primary_key else ()
        same = kept == list(range(len(schema.columns))) and not plan.change
        changed = TableSchema(*target, tuple(columns), primary_key, own.unique_key)
        return TablePlan(encode_schema(changed), tuple(kept), plan.change, added, same)

    @property
    def _origin(self) -> Column:
        return Column(self.renaming.origin, "varchar", nullable=False, size=self.renaming.origin_bytes, charset="utf8mb4")

    def schema_of(self, target: TableName) -> TableSchema | None:
        """Return how the rows of a target are defined now; None where that is not known."""
        versions = self._versions.get(target)
        return self._with_origin(versions[-1].schema) if versions else None

    def _with_origin(self, schema: TableSchema) -> TableSchema:
        if not self.renaming.origin:
            return schema
        key = (*schema.primary_key, len(schema.columns)) if schema.primary_key else ()
        return schema._replace(columns=(*schema.columns, self._origin), primary_key=key)

    def _bare(self, schema: TableSchema) -> TableSchema:
        """The schema without the column of the origin."""
        if not self.renaming.origin or schema.names[-1:] != (self.renaming.origin,):
            return schema
        last = len(schema.columns) - 1
        return schema._replace(columns=schema.columns[:-1], primary_key=tuple([i for i in schema.primary_key if i != last]))

    def _line(self, position: Position, target: TableName, schema: TableSchema) -> Definition:
        return Definition(position.file, position.offset, *target, self._with_origin(schema))


def _named(schema: TableSchema, name: TableName) -> TableSchema:
    return schema._replace(database=name[0], table=name[1])


def _plain(column: Column) -> Column:
    return column._replace(definition="")


def _alike(one: TableSchema, other: TableSchema) -> bool:
    """Whether two tables have the same columns and key, in the same order."""
    return one.primary_key == other.primary_key and [*map(_plain, one.columns)] == [*map(_plain, other.columns)]


def _differences(one: TableSchema, other: TableSchema) -> str:
    """What is not the same, in words."""
    ours, theirs = ({column.name: _text(column) for column in table.columns} for table in (one, other))
    found = [
        f"{name} is {ours.get(name, 'not there')} and {theirs.get(name, 'not there')}"
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name)
    ]
    keys = [", ".join([table.columns[i].name for i in table.primary_key]) or "none" for table in (one, other)]
    if keys[0] != keys[1]:
        found.append(f"the key is {keys[0]} and {keys[1]}")
    more = f", and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return ", ".join(found[:_LISTED]) + more if found else "the columns have another order"


def _text(column: Column) -> str:
    charset = f" character set {column.charset}" if column.charset else ""
    return column_type(_plain(column)) + charset + ("" if column.nullable else " not null")


def _keeps_rows(before: TableSchema, now: TableSchema, sql: str, mode: SqlMode) -> bool:
    """Whether every row of a shard that changes from `before` to `now` has the values that readers of the target know: old values are kept, and what
    is new is NULL."""
    if changes_rows(sql, mode):
        return False
    old = {folded(column.name): column for column in before.columns}
    new = {folded(column.name): column for column in now.columns}
    added, lost = new.keys() - old.keys(), old.keys() - new.keys()
    if added and (lost or gives_values(sql, mode) or not all(new[name].nullable for name in added)):
        return False  # one that is lost may have become one that is added
    keys = [[folded(table.columns[i].name) for i in table.primary_key] for table in (before, now)]
    return keys[0] == keys[1] and all(_keeps(old[name], new[name]) for name in new.keys() - added)


def _keeps(old: Column, new: Column) -> bool:
    """Whether each value of a column is the same in the other."""
    if old.nullable and not new.nullable:
        return False
    for family in (_INTEGERS, _TEXTS, _BLOBS):
        if old.type in family and new.type in family:
            same = (old.unsigned, old.charset) == (new.unsigned, new.charset)
            return same and family.index(old.type) <= family.index(new.type)
    same = (old.type, old.unsigned, old.charset, old.scale) == (new.type, new.unsigned, new.charset, new.scale)
    return same and old.size <= new.size and new.members[: len(old.members)] == old.members
