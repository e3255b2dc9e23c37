"""StandardSql: what the dialects say in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from shmstore.consumer.copies.databases.dialect import Statements, TablePlace


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

    def names(self, columns: Sequence[str]) -> str:
        """Return names as a list of identifiers."""
        return ", ".join(map(self.quote, columns))
