"""Arrow tables as Spark's frames."""

from __future__ import annotations

import pyarrow as pa


def whole(table: pa.Table) -> pa.Table:
    """Return a table that ``createDataFrame`` takes whole: of one that has an empty chunk between others, Spark (4.0 to 4.3) loses what follows it."""
    return pa.Table.from_batches([batch for batch in table.to_batches() if batch.num_rows], table.schema)
