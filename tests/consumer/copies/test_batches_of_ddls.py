"""Many DDLs among the rows of one batch: in DuckDB all of it is one transaction, in which a table may be replaced that was written to before."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from shmstore import Column, Event, EventType, TableSchema
from tests.consumer.copies.lakes import FORMATS, apply, replication, rows
from tests.consumer.spark.events import Binlog

KEYS = 400  # beyond what a DuckLake keeps within its catalog


class Table:
    """A table that changes at random, and the rows that it has."""

    def __init__(self, binlog: Binlog, choose: random.Random) -> None:
        self.binlog, self.choose, self.added = binlog, choose, 0
        self.columns = [Column("id", "int")]
        self.rows: dict[int, list[Any]] = {}

    @property
    def schema(self) -> TableSchema:
        return TableSchema("shop", "orders", tuple(self.columns), (0,))

    def write(self) -> list[Event]:
        """Insert a range of keys in the place of the rows that have them."""
        choose, first = self.choose, self.choose.randrange(KEYS)
        keys = range(first, first + choose.choice([1, 3, KEYS // 2]))
        gone = [tuple(self.rows[key]) for key in keys if key in self.rows]
        fresh = {key: [key, *(choose.choice([None, key, -1]) for _ in self.columns[1:])] for key in keys}
        self.rows |= fresh
        deleted = self.binlog.delete(*gone, table=self.schema) if gone else []
        return [*deleted, *self.binlog.insert(*map(tuple, fresh.values()), table=self.schema)]

    def delete(self) -> list[Event]:
        """Delete some rows, where there are any."""
        some = [key for key in self.rows if self.choose.random() < 0.3]
        gone = [tuple(self.rows.pop(key)) for key in some]
        return self.binlog.delete(*gone, table=self.schema) if gone else self.write()

    def truncate(self) -> list[Event]:
        """Delete all rows."""
        self.rows.clear()
        return self.binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE)

    def add(self, default: int | None) -> list[Event]:
        """Add a column."""
        self.added += 1
        self.columns.append(Column(f"c{self.added}", "int"))
        for row in self.rows.values():
            row.append(default)
        return self.binlog.ddl(f"ALTER TABLE orders ADD c{self.added} INT" + f" DEFAULT {default}" * (default is not None))

    def drop(self) -> list[Event]:
        """Drop a column, where there is one beyond the key."""
        if len(self.columns) < 2:
            return self.add(None)
        at = self.choose.randrange(1, len(self.columns))
        for row in self.rows.values():
            del row[at]
        return self.binlog.ddl(f"ALTER TABLE orders DROP COLUMN {self.columns.pop(at).name}")

    def change(self) -> list[Event]:
        """One of these."""
        choose = self.choose
        acts = [self.write, self.write, self.delete, self.truncate, self.drop, lambda: self.add(None), lambda: self.add(7)]
        return choose.choices(acts, [3, 3, 3, 1, 2, 4, 2])[0]()


@pytest.mark.parametrize("format", FORMATS)
def test_any_ddls_among_the_rows_of_a_batch(tmp_path: Path, binlog: Binlog, seed: int, format: str) -> None:
    """After each batch the copy has the rows and columns of the table."""
    table, copy = Table(binlog, random.Random(seed)), replication(tmp_path, format)
    apply(copy, 0, table.write())
    for batch in range(1, 7):
        apply(copy, batch, *(table.change() for _ in range(table.choose.randint(2, 7))))
        assert not copy.aside, f"seed {seed}, batch {batch}"
        found = {key: list(row) for key, row in rows(copy, format).items()}
        assert found == table.rows, f"seed {seed}, batch {batch}"
