"""A table's changes as Polars frames, batch by batch: ``python examples/polars_changes.py STORE``.

Prints what each batch of new orders is worth, by customer.
"""

import sys
from collections.abc import Iterator

import polars as pl

from shmstore import Consumer


def frames(consumer: Consumer, table: str) -> Iterator[pl.DataFrame]:
    """Yield a frame for each batch with rows of `table`; `before` and `after` are structs of the table's columns."""
    for batch in consumer:
        rows = batch.to_arrow(table)
        if rows.num_rows:
            yield pl.DataFrame(rows)


def worth(orders: pl.DataFrame) -> pl.DataFrame:
    """Return the sum of the new orders' totals by customer, as exact decimals."""
    new = orders.filter(pl.col("op").is_in(["c", "r"])).unnest("after")
    return new.group_by("customer_id").agg(pl.col("total").sum()).sort("customer_id")


if __name__ == "__main__":
    with Consumer(sys.argv[1], "polars") as reader:
        for frame in frames(reader, "shop.orders"):
            print(worth(frame))
