"""SqlDialect: what differs between the databases that hold copies: the driver, types, values, and the statements of their own."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from shmstore.event import Column


class Refusal(enum.Enum):
    """What an error of a database concerns."""

    VALUES = "values are none of the columns that they are for"
    UNIQUE = "a value is in another row, and an index keeps it unique"
    TABLE = "one table: the others can be written"
    ALL = "the connection, the server or the account"
    BUSY = "another process has the database for now"


class TablePlace(NamedTuple):
    """Where a table is. `schema` is empty where the database has none."""

    schema: str
    name: str


class TableShape(NamedTuple):
    """A table's columns with their types, its primary key, and what the database calls that."""

    columns: Mapping[str, str]
    keys: tuple[str, ...]
    constraint: str = ""


class Reshaping(NamedTuple):
    """Changes of a table's columns, all at once: a column that is dropped may be added with another type. `keys` is the new key, or None."""

    drop: tuple[str, ...] = ()
    add: Mapping[str, str] = {}
    modify: Mapping[str, str] = {}
    keys: tuple[str, ...] | None = None


class Statements(Protocol):
    """What a dialect asks of a database. All raise `DatabaseError`."""

    def execute(self, sql: str) -> None:
        """Run a statement."""

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query; return its rows."""

    def driver(self, sql: str) -> AbstractContextManager[Any]:
        """The driver's own connection, for what it does with `sql`."""

    def all_or_nothing(self) -> AbstractContextManager[None]:
        """Undo what the body did where it raised."""


class SqlDialect(Protocol):
    """One kind of database. What takes `Statements` runs in the transaction that is open, and raises `DatabaseError`."""

    kind: str
    errors: tuple[type[Exception], ...]
    password: str  # the URL's own, or empty
    ddl_commits: bool  # whether a DDL commits what was done before it
    schemas: bool  # whether tables are in schemas
    moment_type: str  # of a moment in UTC, in microseconds
    flag_type: str

    # ---- the driver

    def open(self, password: str) -> Any:
        """Return a connection of the driver; `password` is the URL's where it is empty. Raises `errors`."""

    def alive(self, connection: Any) -> bool:
        """Whether a connection, which has no open transaction, is still open."""

    def prepare(self, database: Statements) -> None:
        """Bring a new connection into the state that the other methods take for granted, and commit."""

    def begin(self, database: Statements) -> bool:
        """Begin a transaction; False where another process keeps this one from it for now."""

    def commit(self, connection: Any) -> None:
        """Commit. Raises `errors`."""

    def run(self, connection: Any, sql: str) -> Sequence[Sequence[Any]]:
        """Run a statement; return its rows. Raises `errors`."""

    def message(self, error: Exception) -> str:
        """What an error of the driver says."""

    def refusal(self, error: Exception) -> Refusal:
        """What an error of the driver concerns."""

    def lock(self, database: Statements, name: str) -> bool:
        """Own `name` until the transaction ends, across processes; False where another process does."""

    def unlock(self, database: Statements, names: Sequence[str]) -> None:
        """Give locks up after a commit, where that does not do it."""

    # ---- text

    def quote(self, name: str) -> str:
        """Return a name as an identifier."""

    def text(self, value: str) -> str:
        """Return text as a literal."""

    def literal(self, array: pa.Array) -> str:
        """Return the one value of an array of a copy's column as a literal."""

    def type_of(self, column: Column, *, key: bool, columns: int) -> str:
        """Return the type of the copy of `column`, in a table of so many `columns`."""

    def too_narrow(self, shape: TableShape, rows: pa.Table) -> Mapping[str, str]:
        """Return new types for the columns of a copy of `shape` that are too narrow for values of `rows`; a key's columns stay as they are."""

    def known(self, name: str, type_: str) -> Column | None:
        """Return the source's column that holds every value of a copy's column of `type_`, and no other; None where that is not known."""

    def check_names(self, columns: Sequence[str], table: str = "") -> None:
        """Raise `CopyRefuses` where the database cannot have a column of one of these names, or a table of that one, where it is given."""

    # ---- tables

    def table(self, place: TablePlace) -> str:
        """Return a table's whole name, as an identifier."""

    def own_schema(self, database: Statements) -> str:
        """Return the schema of names without one; empty where there is none."""

    def create_schema(self, database: Statements, name: str) -> None:
        """Create the schema unless it exists."""

    def schemas_with(self, database: Statements, table: str) -> list[str]:
        """Return the schemas that have a table of this name."""

    def shape(self, database: Statements, place: TablePlace) -> TableShape | None:
        """Return how a table is; None where there is none."""

    def create(self, database: Statements, place: TablePlace, shape: TableShape) -> None:
        """Create a table unless it exists."""

    def rename(self, database: Statements, place: TablePlace, old: str, new: str) -> None:
        """Rename a column."""

    def add(self, database: Statements, place: TablePlace, name: str, type_: str, default: str) -> None:
        """Add a column, in which rows get the literal `default`, or NULL where it is empty."""

    def reshape(self, database: Statements, place: TablePlace, shape: TableShape, change: Reshaping) -> None:
        """Change the columns of a table, which is of `shape`."""

    def empty(self, database: Statements, place: TablePlace, *, at_once: bool) -> None:
        """Remove all rows; with `at_once` as fast as the database can, though it may commit."""

    # ---- rows

    def merge(self, database: Statements, place: TablePlace, keys: Sequence[str], deletes: pa.Table, upserts: pa.Table) -> None:
        """Delete the rows with the keys `deletes`, and put `upserts` in the place of the rows with their keys. Raises `CopyRefuses`."""

    def update(self, database: Statements, place: TablePlace, keys: Sequence[str], rows: pa.Table) -> None:
        """Give the other columns of `rows` their values in the rows that have its keys."""

    def rows_of(
        self, database: Statements, place: TablePlace, keys: pa.Table | None, columns: Sequence[str]
    ) -> Sequence[Sequence[Any]]:
        """Return these columns of the rows that have the values of `keys` in its columns, of all where that is None, as the driver gives them."""

    def end_versions(self, database: Statements, place: TablePlace, keys: Sequence[str], ends: pa.Table) -> None:
        """End the current version of each key in `ends`, which has when, and the ``_seq`` that it is older than."""
