"""What a comparison says: how far it is, and what came of a table."""

from __future__ import annotations

from typing import NamedTuple

from shmstore import Position, TableSchema
from shmstore.producer.verify.source_rows import StoredRow


class Difference(NamedTuple):
    """A key whose rows differ: in stored form, None where there is no row."""

    key: StoredRow
    source: StoredRow | None
    copy: StoredRow | None


class TableResult(NamedTuple):
    """What came of one table. It is equal where `differences` is 0 and `problem` is empty.

    `rows` were read of the source, `copied` of the copy; `changed` keys changed behind position `since`, and `again` rows were compared again, those
    and others that differed. An equal copy has every change up to `until`. `samples` has some of the differences.
    """

    table: TableSchema
    rows: int = 0
    copied: int = 0
    changed: int = 0
    again: int = 0
    differences: int = 0
    samples: tuple[Difference, ...] = ()
    problem: str = ""
    since: Position | None = None
    until: Position | None = None
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether source and copy have the same rows."""
        return not self.differences and not self.problem


class VerifyProgress(NamedTuple):
    """How far the comparison of a table is: the rows that were read, and those of the copy. `estimate` is the server's guess at the table's rows."""

    table: TableSchema
    doing: str
    rows: int = 0
    copied: int = 0
    estimate: int = 0
