"""Which events copies are made of: the tables, of a store, that a subscription reads."""

from __future__ import annotations

from dataclasses import dataclass

from shmstore.patterns.table_patterns import Patterns


@dataclass(frozen=True, slots=True)
class CopiedTables:
    """What is copied. `path` is the folder of a store in a file, `state` that of the store's home, where they are not the usual ones."""

    store: str
    subscription: str
    tables: Patterns
    zero_dates: str = "fail"  # or null: what becomes of dates that are none
    path: str | None = None
    state: str | None = None

    def wants(self, database: str, table: str) -> bool:
        """True when this table is copied."""
        return self.tables.match(f"{database}.{table}")
