"""StandardSql: what the dialects say in the same words. StagingSql: those that put rows into a temporary table and join it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from shmstore.consumer.copies.databases.dialect import Statements, TablePlace, TableShape


class StandardSql:
    """The methods of a `SqlDialect` as the standard has them, for the dialects that do not differ."""

    def quote(self, name: str) -> str:
        """`SqlDialect.quote`."""
        return '"' + name.replace('"', '""') + '"'

    def text(self, value: str) -> str:
        """`SqlDialect.text`."""
        return "'" + value.replace("'", "''") + "'"

    def table(self, place: TablePlace) -> str:
        """`SqlDialect.table`."""
        return f"{self.quote(place.schema)}.{self.quote(place.name)}"

    def schemas_with(self, database: Statements, table: str) -> list[str]:
        """`SqlDialect.schemas_with`."""
        found = database.query(
            f"SELECT table_schema FROM information_schema.tables WHERE table_name = {self.text(table)} ORDER BY 1"
        )
        return [row[0] for row in found]

    def rename(self, database: Statements, place: TablePlace, old: str, new: str) -> None:
        """`SqlDialect.rename`."""
        database.execute(f"ALTER TABLE {self.table(place)} RENAME COLUMN {self.quote(old)} TO {self.quote(new)}")

    def add(self, database: Statements, place: TablePlace, name: str, type_: str, default: str) -> None:
        """`SqlDialect.add`."""
        given = f" DEFAULT {default}" if default else ""
        database.execute(f"ALTER TABLE {self.table(place)} ADD COLUMN {self.quote(name)} {type_}{given}")

    def too_narrow(self, shape: TableShape, rows: pa.Table) -> Mapping[str, str]:
        """None is: types of text have no length."""
        return {}

    def names(self, columns: Sequence[str]) -> str:
        """Return names as a list of identifiers."""
        return ", ".join(map(self.quote, columns))


class StagingSql(StandardSql, ABC):
    """A dialect whose rows wait in a temporary table, as `s` in a statement, while the copy is `t`."""

    @abstractmethod
    def staged(self, database: Statements, place: TablePlace, rows: pa.Table) -> AbstractContextManager[str]:
        """Put rows into a temporary table with the types of the copy's columns, which is there while the block runs; gives its name. Where the block
        raises, it may stay."""

    def same(self, keys: Sequence[str], table: str = "t") -> str:
        """Return the condition that a row of `table` has the key of one that waits."""
        return " AND ".join(f"{table}.{self.quote(key)} = s.{self.quote(key)}" for key in keys)

    def rows_of(
        self, database: Statements, place: TablePlace, keys: pa.Table | None, columns: Sequence[str]
    ) -> Sequence[Sequence[Any]]:
        """`SqlDialect.rows_of`."""
        table, names = self.table(place), ", ".join(f"t.{self.quote(name)}" for name in columns)
        if keys is None:
            return database.query(f"SELECT {names} FROM {table} t")
        with self.staged(database, place, keys) as stage:
            return database.query(f"SELECT {names} FROM {table} t JOIN {stage} s ON {self.same(keys.column_names)}")
