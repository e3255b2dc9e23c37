"""CopySet: the copies of a store's tables, brought up to date together, a batch of events at a time.

It needs no Spark: Spark's `foreachBatch` calls it, and so does `shmstore replicate`. A batch has a number, under the name of what reads the
stream (the query). A batch that is run again has the same number and the same events; each copy knows which of its steps are done.
Where the target allows it, several tables are brought up to date at once, so that a large one does not hold up small ones.
A table whose rows only the server knows is read again, by a snapshot of that one table which is asked of the producer; the others
continue meanwhile.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from shmstore import StoreView
from shmstore.consumer.collector import no_collector
from shmstore.consumer.copies.change_reduction import (
    CannotCopy,
    CannotFollow,
    Columns,
    CopyDamaged,
    Encoded,
    Reread,
    TableChanges,
    collect,
)
from shmstore.consumer.copies.changed_rows import target_fields
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy import Copy
from shmstore.consumer.copies.target import StepRefused, Target
from shmstore.encoding.codec import Header
from shmstore.errors import StoreError
from shmstore.event import Position
from shmstore.home.definitions import DefinitionsFile
from shmstore.home.reader_state import CopiesAside, keep_aside, kept_aside
from shmstore.home.snapshots import request_snapshot
from shmstore.patterns.table_patterns import exactly
from shmstore.sql.names import folded

T = TypeVar("T")
_log = logging.getLogger(__name__)


class CopySet:
    """The copies of the tables of `selection` in `target`, each at the path that `template` says, with ``{database}`` and ``{table}``, and
    ``{source}`` where the store has several. `keys` are the key columns of tables without a primary key, by ``database.table``. With `history`
    every version of a row is kept. Raises ValueError."""

    def __init__(
        self,
        selection: CopiedTables,
        target: Target,
        template: str,
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        history: bool = False,
        remove_dropped: bool = False,
    ) -> None:
        if "{table}" not in template:
            raise ValueError(
                f"target {template!r} must contain {{table}}, and {{database}} if tables of several databases are copied"
            )
        if remove_dropped and "://" in template:
            raise ValueError(
                "remove_dropped=True removes copies in folders, databases and catalogs, not in an object store: leave it out"
            )
        self._selection, self._target, self._template = selection, target, template.replace("{schema}", "{database}")
        self._keys = {name: tuple(columns) for name, columns in (keys or {}).items()}
        self._history, self._remove_dropped = history, remove_dropped
        self._copies: dict[tuple[str | None, str, str], Copy] = {}
        self._known: dict[str | None, dict[tuple[str, str], Columns]] = {}
        self._asked: set[str] = set()
        self._home = StoreView.home_of(selection.store, path=selection.path, state=selection.state)
        self._kept = kept_aside(self._home, selection.subscription)  # as the run before left them
        if self._kept.tables:
            _log.warning(
                "copies that do not follow their tables since an earlier run (%s): %s",
                "set aside, or to be read again",
                ", ".join(sorted(self._kept.tables)),
            )

    def path(self, database: str, table: str, source: str | None = None) -> str:
        """Return where the copy of a table is: a path, or a table's name. `source` is its server, in a store of several."""
        named = self._target.named
        return self._template_of(source).replace("{database}", named(database)).replace("{table}", named(table))

    def _template_of(self, source: str | None) -> str:
        if (source is None) == ("{source}" in self._template):
            raise CannotFollow(
                f"target {self._template!r} contains {{source}}, but the store has one source: leave {{source}} out"
                if source is None
                else f"the store has several sources, whose tables may have the same names: give target a {{source}}, as in {{source}}/{self._template}"
            )
        return self._template.replace("{source}", self._target.named(source or ""))

    def apply(self, payloads: Encoded | Iterable[Any], query: str, batch: int) -> int:
        """Apply encoded events, in order, as one batch of a query; return how many rows changed in them."""
        return self.apply_each({None: payloads}, query, batch)

    def apply_each(self, payloads: Mapping[str | None, Encoded | Iterable[Any]], query: str, batch: int) -> int:
        """The same with the events of each source, in a store of several."""
        collected: dict[str | None, Collection[TableChanges]] = {}
        refused: dict[TableChanges, str] = {}
        while True:
            try:
                return self._apply(payloads, collected, refused, query, batch)
            except _Refused as error:
                if error.change in refused:  # not even a mark is taken
                    raise error.why from None
                refused[error.change] = str(error.why)

    def _apply(
        self,
        payloads: Mapping[str | None, Encoded | Iterable[Any]],
        collected: dict[str | None, Collection[TableChanges]],
        refused: Mapping[TableChanges, str],
        query: str,
        batch: int,
    ) -> int:
        """Apply a batch; its changes are kept in `collected`. Copies of `refused` are set aside, for the reason that it says. Raises `_Refused`."""
        rows, waiting = 0, list[tuple[str, str]]()
        aside, damaged = set(self._kept.tables), set(self._kept.damaged)
        with self._writing():
            for source, events in payloads.items():
                known = self._known.setdefault(source, {})
                if source not in collected:
                    with no_collector():
                        there = partial(self._copied, source)
                        before = partial(self._columns_before, source)
                        kind = self.kind_of(source)
                        found = collect(events, self._selection, self._keys, self._history, there, source, known, before, kind)
                        collected[source] = found.values()
                changes = collected[source]
                works = [partial(self._bring, source, change, query, batch, refused.get(change)) for change in changes]
                for change, copy in zip(changes, self._at_once(works), strict=True):
                    rows += change.rows
                    known[change.name] = change.known
                    name = _full_name(source, *change.name)
                    if isinstance(copy, CannotCopy):
                        self._copies.pop((source, *change.name), None)  # a person may put it right
                        if name not in aside:
                            _log.warning(*self._trouble(name, copy))
                        aside.add(name)
                        damaged |= {name} if isinstance(copy, CopyDamaged) else set()
                    elif copy is not None:
                        (aside.add if copy.aside else aside.discard)(name)
                        if copy.target.exists or not copy.aside:
                            damaged.discard(name)
                        if copy.wanted and source is None:
                            waiting.append((name, copy.wanted))
        kept = CopiesAside(frozenset(aside), frozenset(damaged))
        if kept != self._kept:
            keep_aside(self._home, self._selection.subscription, *kept)
            self._kept = kept
        for name, request in waiting:  # now that the copies' state is kept; asked for again, it is the same request
            self._ask(name, request)
        return rows

    def _bring(
        self, source: str | None, change: TableChanges, query: str, batch: int, refused: str | None
    ) -> Copy | CannotCopy | None:
        """Bring one table's copy up to date; return it, None where nothing concerns it, or why there can be none. Raises `_Refused`."""
        steps = change.finish() if refused is None else [Reread(refused, help=True)]
        if not steps:
            return None
        try:
            copy = self._copy(source, *change.name)
            if not copy.done(query, batch):
                copy.apply(steps, query, batch)
            return copy
        except CannotCopy as error:
            if source is not None and isinstance(error, CopyDamaged):
                raise  # its home does not say what such a copy missed
            return error
        except StepRefused as error:
            raise _Refused(change, error) from error

    def _trouble(self, name: str, error: CannotCopy) -> tuple[str, ...]:
        """What the log says where a table has no copy."""
        if not isinstance(error, CopyDamaged):
            return "%s has no copy, and the others continue: %s", name, str(error)
        text = "the copy of %s is set aside, and the others continue: %s; move it away, then its rows are read again by: shmstore snapshot %s --tables '%s'"
        return text, name, str(error), self._selection.store, name

    def _at_once(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Return what each work returns. They are of different tables, so that each has a copy, and marks, of its own: as many run at the same
        time, in threads, as the target allows. Raises what the first of them raised, after all that had begun have ended: no thread writes to a
        copy of a batch that is run again.
        """
        count = min(self._target.at_once, len(works))
        if count <= 1:
            return [work() for work in works]
        with ThreadPoolExecutor(count, "copies") as pool:
            futures = [pool.submit(self.in_thread(work)) for work in works]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def kind_of(self, source: str | None) -> Callable[..., TableChanges]:
        """Return what makes a `TableChanges` of the events of `source`."""
        return TableChanges

    def in_thread(self, work: Callable[[], T]) -> Callable[[], T]:
        """Return `work` as it is to run in another thread than this one."""
        return work

    def planned(self) -> list[str]:
        """Return a line for each table that is known now: the copy that there is, or the one that its rows would create. Nothing is changed."""
        definitions = {one.name: one.schema for one in DefinitionsFile(self._home).read()}
        lines = []
        with self._target.transaction():
            for (database, table), schema in sorted(definitions.items()):
                name = f"{database}.{table}"
                if schema is None or not self._selection.wants(database, table):
                    continue
                try:
                    path = self.path(database, table)
                    if self._target.table(path, name).exists:
                        lines.append(f"{name}: the copy {path} is there")
                        continue
                except CannotCopy as error:
                    lines.append(f"{name}: no copy: {error}")
                    continue
                keys = self._keys.get(name) or tuple(schema.columns[i].name for i in schema.primary_key)
                columns = ", ".join(f"{field.name} {field.type}" for field in target_fields(schema))
                lines.append(
                    f"{name}: would create {path} ({columns}), key {', '.join(keys)}"
                    if keys
                    else f"{name}: no copy: it has no primary key; give --key '{name}=COLUMN'"
                )
        return lines

    def close(self) -> None:
        """Close what the target has open; the next batch opens it again."""
        self._target.close()

    def _columns_before(self, source: str | None, name: tuple[str, str], ddl: Header, fresh: bool) -> Columns:
        """The columns that a DDL found, as the store's producer wrote them down, or else, where the copy is as it was before it, as that has them."""
        with suppress(StoreError):  # not ours to read
            definitions = DefinitionsFile(self._home, source or "").read()
            before = Position(ddl.file, ddl.offset - 1)  # at its end is what the DDL made of them
            found = [one for one in definitions if one.name == name and one.reached_by(before)]
            if found and found[-1].schema is not None:
                return {folded(column.name): column for column in found[-1].schema.columns}
        return self._copy(source, *name).target.columns if fresh else {}

    def _ask(self, name: str, request: str) -> None:
        if request not in self._asked:
            self._asked.add(request)
            request_snapshot(self._selection.store, exactly(name), state=self._home.state, reason="reread", id=request)

    @property
    def aside(self) -> list[str]:
        """The tables whose copies do not follow them now, as ``database.table``, with ``SOURCE:`` before it in a store of several."""
        return sorted(self._kept.tables)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction for all copies, where the target has such."""
        try:
            with self._target.transaction():
                yield
        except BaseException:
            self._copies.clear()  # the state that they remember may not be what exists
            self._known.clear()
            raise

    def _copy(self, source: str | None, database: str, table: str) -> Copy:
        copy = self._copies.get((source, database, table))
        if copy is None:
            copy = Copy(
                self._target,
                self.path(database, table, source),
                f"{database}.{table}",
                history=self._history,
                store=self._selection.store,
                aside=source is None and _full_name(source, database, table) in self._kept.tables,
                missed=source is None and _full_name(source, database, table) in self._kept.damaged,
                reads_again=source is None,
                remove_dropped=self._remove_dropped,
            )
            self._copies[source, database, table] = copy
        return copy

    def existing(self) -> list[str]:
        """Return patterns that match the tables that have a copy. Raises ValueError where copies cannot be listed."""
        with self._target.transaction():
            found = self._listed(None)
        if "{database}" not in self._template:
            return [f"regex:.*\\.{exactly(table).removeprefix('regex:')}" for _, table in found]
        return sorted(exactly(f"{database}.{table}") for database, table in found)

    def _copied(self, source: str | None, database: str | None) -> list[tuple[str, str]]:
        """The tables of a database, or with None of all, that have a copy. Raises `CannotFollow` where that is not known."""
        try:
            if database is not None:
                return [(database, table) for _, table in self._listed(source, database)]
            if "{database}" in self._template:
                return self._listed(source)
        except CannotCopy:  # of a name that no copy can have
            return []
        except CannotFollow:
            raise
        except ValueError:
            pass  # copies that cannot be listed
        raise CannotFollow(
            f"which copies in {self._template!r} a rolled back XA transaction, or a statement that cannot be read, concerns is not known: ask for "
            f"the rows of all with shmstore snapshot {self._selection.store}, into a new target"
        )

    def _listed(self, source: str | None, database: str | None = None) -> list[tuple[str, str]]:
        """The database, where the template says it, and the table of each copy, or of those of one database."""
        template = self._template_of(source)
        if database is not None:
            template = template.replace("{database}", self._target.named(database))
        pattern, seen = "", set[str]()
        for i, part in enumerate(re.split(r"\{(database|table)\}", template)):
            pattern += re.escape(part) if i % 2 == 0 else f"(?P={part})" if part in seen else f"(?P<{part}>[^/]+)"
            seen |= {part} if i % 2 else set()
        matches = [match.groupdict() for match in map(re.compile(pattern).fullmatch, self._target.paths(template)) if match]
        unnamed = self._target.unnamed
        return [
            (unnamed(match.get("database", "")), unnamed(match["table"]))
            for match in matches
            if not match["table"].startswith("_")
        ]


class _Refused(Exception):
    """The copy that `change` is of refused a step, and `why`."""

    def __init__(self, change: TableChanges, why: StepRefused) -> None:
        super().__init__(str(why))
        self.change, self.why = change, why


def _full_name(source: str | None, database: str, table: str) -> str:
    return f"{database}.{table}" if source is None else f"{source}:{database}.{table}"
