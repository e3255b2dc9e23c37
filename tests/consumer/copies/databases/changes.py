"""Random batches of changes of one table, and the rows that it has after each: the same ones wherever the seed is the same.

As a program it applies them all to a target, batch by batch, and prints the number of each that is committed:

    python -m tests.consumer.copies.databases.changes URL TEMPLATE SEED COUNT     (the password in SHMSTORE_COPY_PASSWORD)
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from shmstore import Column, Event, EventType
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.databases.target import database_target
from shmstore.encoding.codec import encode
from shmstore.patterns.table_patterns import Patterns
from tests.consumer.spark.events import ORDERS, Binlog, order_row

STATES = ["a", "ä😀'\\\n\"{d}", "\\'", "%s?", "", " x ", None]
WIDER = ORDERS._replace(columns=(*ORDERS.columns, Column("extra", "varchar", size=20, charset="utf8mb4")))


class Batch(NamedTuple):
    """Its events, and the rows after it."""

    transactions: list[list[Event]]
    rows: list[tuple[Any, ...]]


def batches(binlog: Binlog, seed: int, count: int, *, ddl: bool = False) -> Iterator[Batch]:
    """Yield so many batches; with `ddl` a column comes and goes again."""
    choose, table = random.Random(seed), ORDERS
    model: dict[int, tuple[Any, ...]] = {}

    def row(key: int, status: str | None) -> tuple[Any, ...]:
        return (*order_row(key, status=status), *["more"] * (table is WIDER))

    for _ in range(count):
        transactions = []
        for _ in range(choose.randrange(1, 6)):
            kind = choose.choice(f"iiiuudk{'tc' * ddl}" if choose.random() < 0.9 else "t")
            free = [key for key in range(60) if key not in model]
            if kind == "i" and free:
                fresh = [row(key, choose.choice(STATES)) for key in choose.sample(free, min(4, len(free)))]
                transactions.append(binlog.insert(*fresh, table=table))
                model.update({row[0]: row for row in fresh})
            elif kind in "ukd" and model:
                old = model.pop(choose.choice(list(model)))
                if kind == "d":
                    transactions.append(binlog.delete(old, table=table))
                else:
                    key = choose.choice(free) if kind == "k" and free else old[0]
                    model[key] = row(key, choose.choice("xyz"))
                    transactions.append(binlog.update((old, model[key]), table=table))
            elif kind == "t":
                transactions.append(binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE))
                model.clear()
            elif kind == "c" and model:
                wider = table is ORDERS
                change = "ADD COLUMN extra VARCHAR(20) DEFAULT 'plain'" if wider else "DROP COLUMN extra"
                transactions.append(binlog.ddl(f"ALTER TABLE orders {change}"))
                table = WIDER if wider else ORDERS
                model = {key: (*old, "plain") if wider else old[:-1] for key, old in model.items()}
        yield Batch(transactions, list(model.values()))


def copies_in(url: str, password: str, template: str, **named: Any) -> CopySet:
    """The copies of all tables, as a new process has them."""
    return CopySet(CopiedTables("none", "replicate", Patterns.parse("*")), database_target(url, password), template, **named)


def main() -> None:
    """Apply all batches; those that are committed already change nothing."""
    url, template, seed, count = sys.argv[1:]
    made = copies_in(url, os.environ["SHMSTORE_COPY_PASSWORD"], template)
    for number, batch in enumerate(batches(Binlog(), int(seed), int(count), ddl=True)):
        made.apply([encode(event) for events in batch.transactions for event in events], "q", number)
        print(number, flush=True)


if __name__ == "__main__":
    main()
