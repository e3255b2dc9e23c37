"""A table's changes as pandas frames, batch by batch: ``python examples/pandas_changes.py STORE``.

Prints what each batch of new orders is worth, by customer.
"""

import sys
from collections.abc import Iterator

import pandas as pd

from shmstore import Consumer


def frames(consumer: Consumer, table: str) -> Iterator[pd.DataFrame]:
    """Yield a frame for each batch with rows of `table`: columns op, ts_ms, before.COLUMN, after.COLUMN and some more."""
    for batch in consumer:
        rows = batch.to_arrow(table)
        if rows.num_rows:
            yield rows.flatten().to_pandas()


def worth(orders: pd.DataFrame) -> pd.Series:
    """Return the sum of the new orders' totals by customer, as exact decimals."""
    new = orders[orders["op"].isin(["c", "r"])]
    return new.groupby("after.customer_id")["after.total"].sum()


if __name__ == "__main__":
    with Consumer(sys.argv[1], "pandas") as reader:
        for frame in frames(reader, "shop.orders"):
            print(worth(frame).to_string())
