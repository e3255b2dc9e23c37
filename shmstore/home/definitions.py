"""How the tables of a store are defined, before any row of them has come: durable, in the store's home.

The producer writes what readers will find in the events: after its filter, with the types that the rows will have.

    STATE/STORE/tables.jsonl             of the one source; of each of several: STATE/STORE/SOURCE/tables.jsonl

Each line is a definition and the position from which it holds: at first every table, behind them what each DDL made of one. A line is
on disk before anything that comes behind its DDL is in the store, so a reader can be ahead of the store, and never behind it: it takes
the last definition up to where the store ends. Rows that have not come yet have that one, unless another DDL comes before them.

The file begins with all tables whenever the producer connects, by a rename. What a crash cuts off at its end never counted.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmstore.errors import StoreError
from shmstore.event import Column, Position, TableSchema
from shmstore.home.home import Home, May
from shmstore.home.lines import LinesFile

__all__ = ["Definition", "DefinitionsFile", "definitions_in", "last_defined", "position_in", "sources_of"]

NAME: Final = "tables.jsonl"
_HEAD: Final = {"shmstore_tables": 1}
WHAT: Final = "definitions of tables"


class Definition(NamedTuple):
    """A table from the binlog position `file`:`offset` on. `schema` None: there is none, or no process knows how it is defined."""

    file: str
    offset: int
    database: str
    table: str
    schema: TableSchema | None

    @property
    def name(self) -> tuple[str, str]:
        """The database and the table."""
        return self.database, self.table

    def reached_by(self, position: Position) -> bool:
        """Whether a stream that is at `position` has come to it."""
        return Position(self.file, self.offset).order <= position.order


class DefinitionsFile:
    """The definitions of one source's tables. `source` is its name among several of one store, empty for the only one. `may`: see `Home.replace`."""

    def __init__(self, home: Home, source: str = "", may: May | None = None) -> None:
        self.path = home.of_source(source) / NAME
        self._lines = LinesFile(home, self.path, _HEAD, WHAT, may)

    def replace(self, definitions: Iterable[Definition]) -> None:
        """Begin with `definitions`, in place of what exists. Raises `StoreError`."""
        self._lines.begin(map(_packed, definitions))

    def append(self, definitions: Iterable[Definition]) -> None:
        """Add `definitions`; when this returns they are on disk. Raises `StoreError`; then none of them counts."""
        self._lines.append(map(_packed, definitions))

    def read(self) -> list[Definition]:
        """Return what exists, in its order; nothing where there is no such file. Raises `StoreError`."""
        try:
            return list(map(_unpacked, self._lines.read() or ()))
        except OSError as error:
            fix = "let this user read there"
            raise StoreError(f"the definitions of tables in {self.path} cannot be read: {error.strerror}: {fix}") from error
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise StoreError(
                f"the definitions of tables in {self.path} cannot be read ({error}): remove the file, and start the producer again, which writes it"
            ) from error

    def remove(self) -> None:
        """Remove the file, if it is there: what it said is no longer known. Raises `StoreError`."""
        self._lines.remove()


def sources_of(home: Home) -> list[str]:
    """Return the sources of a store whose tables are known; of a store with a single one, the empty name."""
    return [source for source in ("", *home.sources()) if (home.of_source(source) / NAME).exists()]


def position_in(end: Position | None, source: str) -> Position | None:
    """Return where `source` stands at the position `end` of its store; None where that does not say."""
    return end if end is None or not source else dict(end.sources).get(source)


def definitions_in(file: DefinitionsFile, end: Position | None) -> dict[tuple[str, str], Definition]:
    """Return how the tables are defined where the store ends, at `end` of the file's source, by database and table; the first definition that is
    known where that is later. Raises `StoreError`."""
    found: dict[tuple[str, str], Definition] = {}
    for one in file.read():
        if end is None or one.reached_by(end) or one.name not in found:
            found[one.name] = one
    return found


def last_defined(home: Home) -> Mapping[str, TableSchema] | None:
    """Return all tables that the home has a definition of, by name (``database.table``), each with its last columns, also where it is no more; None
    where no tables are defined. Kept until a file changes. Raises `StoreError`."""
    found: ChainMap[str, TableSchema] = ChainMap()
    sources = sources_of(home)
    for source in sources:
        with suppress(FileNotFoundError):
            status = DefinitionsFile(home, source).path.stat()
            found.maps.append(_last(home.path, source, (status.st_ino, status.st_size, status.st_mtime_ns)))
    return found if sources else None


@lru_cache(maxsize=16)
def _last(path: Path, source: str, stamp: tuple[int, ...]) -> dict[str, TableSchema]:
    found = DefinitionsFile(Home(path), source).read()
    return {f"{one.database}.{one.table}": one.schema for one in found if one.schema is not None}


def _packed(one: Definition) -> dict[str, Any]:
    schema = one.schema
    packed = {"at": [one.file, one.offset], "database": one.database, "table": one.table, "columns": None}
    return packed if schema is None else packed | {"columns": schema.columns, "primary_key": schema.primary_key}


def _unpacked(packed: dict[str, Any]) -> Definition:
    file, offset = packed["at"]
    database, table, columns, schema = packed["database"], packed["table"], packed["columns"], None
    if columns is not None:
        made = tuple([Column._make([*column[:7], tuple(column[7]), column[8]]) for column in columns])
        schema = TableSchema(database, table, made, tuple(packed["primary_key"]))
    return Definition(str(file), int(offset), database, table, schema)
