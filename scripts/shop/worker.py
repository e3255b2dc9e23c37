"""One connection of the live load: its transactions, its keys, its pace."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any, Final

import pymysql

from scripts.shop.shared_load import CONNECTIONS, SharedLoad
from scripts.shop.values import Rows

_RETRY: Final = (1205, 1213)  # lock wait timeout, deadlock: the worker rolls back and continues


class Worker:
    """One connection's share of the load: its own keys (so that what it plans exists), its own random numbers."""

    def __init__(self, load: SharedLoad, number: int) -> None:
        self.load = load
        self.number = number
        self.random = random.Random(load.seed * 1000 + number)
        self.rows = Rows(self.random)
        self.connection = load.connect()
        self.cursor = self.connection.cursor()
        self.changed = Counter[str]()
        self.done = 0
        self.next_key = (number << 40) + 1
        self.customers: list[int] = []
        self.orders: list[int] = []

    # ---- statements: each adds what the server says it changed

    def run(self, kind: str, sql: str, *values: Any) -> int:
        """Execute one statement and count the rows it changed."""
        changed: int = self.cursor.execute(sql, values or None)
        self.changed[kind] += changed
        self.changed["statements"] += 1
        return changed

    def insert(self, table: str, columns: int, rows: list[tuple[Any, ...]], names: str = "") -> None:
        """One multi-row INSERT."""
        place = "(" + ", ".join(["%s"] * columns) + ")"
        self.run(
            "insert", f"INSERT INTO {table} {names} VALUES " + ", ".join([place] * len(rows)), *[v for row in rows for v in row]
        )

    def key(self) -> int:
        """Return a new key of this worker."""
        self.next_key += 1
        return self.next_key

    def insert_customers(self, count: int) -> list[int]:
        """Insert new customers with one statement."""
        keys = [self.key() for _ in range(count)]
        names = "(id, name, email, country, birthday, vip, credit, rating, interests, wakes, profile, photo, joined)"
        self.insert("customers", 13, [self.rows.customer(key) for key in keys], names)
        return keys

    # ---- transactions: what this worker owns changes only after the commit

    def sign_up(self) -> None:
        """New customers, many in one statement."""
        keys = self.insert_customers(self.random.randint(1, 12))
        self.commit()
        self.customers += keys
        if len(self.load.popular) < 2 * CONNECTIONS:
            self.load.popular.append(keys[0])

    def buy(self) -> None:
        """An order with its items and its payment in one transaction, and a customer whom all connections change."""
        order = self.key()
        lines = self.random.randint(1, 8)
        self.insert("orders", 8, [self.rows.order(order, self.random.choice(self.customers))])
        self.insert("order_items", 8, [self.rows.item(order, line) for line in range(1, lines + 1)])
        self.insert("payments", 10, [self.rows.payment(order)])
        customer = self.random.choice(self.load.popular)
        self.run("update", "UPDATE customers SET credit = credit * 0.5 - 1, rating = rating / 2 WHERE id = %s", customer)
        self.commit()
        self.orders.append(order)

    def edit_customer(self) -> None:
        """One row, several columns, NULL among them; the new column once it is there."""
        key = self.random.choice(self.customers)
        row = self.rows.customer(key)
        self.run(
            "update",
            "UPDATE customers SET name = %s, birthday = %s, profile = %s, photo = %s, rating = %s, interests = %s WHERE id = %s",
            *(row[1], row[4], row[10], row[11], row[7], row[8], key),
        )
        if self.load.ddl_done >= 1:
            self.run("update", "UPDATE customers SET points = points + %s WHERE id = %s", self.random.randrange(1, 2**20), key)
        self.commit()

    def edit_items(self) -> None:
        """Many rows by one statement over a range of keys."""
        first = self.random.choice(self.orders)
        self.run(
            "update",
            "UPDATE order_items SET quantity = -quantity, weight = weight / 3, tag = %s "
            "WHERE order_id >= %s AND order_id < %s ORDER BY order_id, line LIMIT 25",
            *(self.random.randbytes(5), first, first + 40),
        )
        self.commit()

    def edit_order(self) -> None:
        """Several single-row statements, with a pause in which the other connections commit."""
        for key in {self.random.choice(self.orders) for _ in range(4)}:
            states = ("new", "paid", "sent", "returned")[: 4 if self.load.ddl_done >= 2 else 3]
            self.run(
                "update",
                "UPDATE orders SET status = %s, total = IF(total > 0, total - 0.0001, total + 0.0001), "
                "flags = flags ^ 1, note = %s WHERE id = %s",
                *(self.random.choice(states), self.rows.note(), key),
            )
        if self.random.random() < 0.2:
            time.sleep(0.005)
        self.commit()

    def change_key(self) -> None:
        """Move the lines of an order: an UPDATE of the primary key."""
        order = self.random.choice(self.orders)
        self.run(
            "update", "UPDATE order_items SET line = line + 1000 WHERE order_id = %s AND line < 1000 ORDER BY line DESC", order
        )
        self.commit()

    def settle(self) -> None:
        """Payments of an order: big decimals, signed and unsigned edges."""
        order = self.random.choice(self.orders)
        delta = self.random.choice((-(2**63), 2**63 - 1, 0, -1))
        card = self.random.choice((2**64 - 1, 2**63, 0))
        self.run(
            "update",
            "UPDATE payments SET delta = %s, card_hash = %s, amount = -amount, took = %s, receipt = NULL WHERE order_id = %s",
            *(delta, card, self.rows.span(3), order),
        )
        self.commit()

    def cancel(self) -> None:
        """Delete an order with everything that hangs on it: multi-row DELETEs in one transaction."""
        order = self.random.choice(self.orders)
        for table, column in (("payments", "order_id"), ("order_items", "order_id"), ("orders", "id")):
            self.run("delete", f"DELETE FROM {table} WHERE {column} = %s", order)
        self.commit()
        self.orders.remove(order)

    def regret(self) -> None:
        """Work that is rolled back: nothing of it may reach a reader."""
        self.insert_customers(3)
        self.run("update", "UPDATE orders SET total = -1 WHERE id = %s", self.random.choice(self.orders))
        self.run("delete", "DELETE FROM payments WHERE order_id = %s", self.random.choice(self.orders))
        self.rollback()

    def half_regret(self) -> None:
        """A transaction that commits, with a part rolled back to a savepoint."""
        kept = self.insert_customers(2)
        before = Counter(self.changed)
        self.cursor.execute("SAVEPOINT half")
        self.insert_customers(4)
        self.cursor.execute("ROLLBACK TO SAVEPOINT half")
        self.changed = before
        self.commit()
        self.customers += kept

    TRANSACTIONS: Final = {
        buy: 40,
        sign_up: 8,
        edit_customer: 16,
        edit_items: 10,
        edit_order: 14,
        change_key: 3,
        settle: 6,
        cancel: 8,
        regret: 4,
        half_regret: 3,
    }

    # ---- the end of a transaction

    def commit(self) -> None:
        """Commit, and only then count."""
        self.connection.commit()
        statements = self.changed.pop("statements", 0)
        rows = self.changed.total()
        self.done += rows
        totals = self.load.totals
        with totals.lock:
            totals.commits += 1
            totals.statements += statements
            totals.rows += rows
            totals.by_kind += self.changed
        self.changed.clear()

    def rollback(self) -> None:
        """Roll back, and forget what was counted."""
        self.connection.rollback()
        self.changed.clear()
        with self.load.totals.lock:
            self.load.totals.rollbacks += 1

    def work(self) -> None:
        """Run random transactions at this connection's share of the rate until the load is nearly done."""
        functions, weights = list(self.TRANSACTIONS), list(self.TRANSACTIONS.values())
        began = time.monotonic()
        while not self.load.nearly_done:
            function = self.random.choices(functions, weights)[0]
            if not self.customers:
                function = Worker.sign_up
            elif not self.orders:
                function = Worker.buy
            try:
                function(self)
            except pymysql.err.OperationalError as error:
                if error.args[0] not in _RETRY:
                    raise
                self.rollback()
                with self.load.totals.lock:
                    self.load.totals.deadlocks += 1
            if self.load.rate:
                pause = began + self.done * CONNECTIONS / self.load.rate - time.monotonic()
                if pause > 0:
                    self.load.stopped.wait(pause)

    def finish(self, rows: int) -> None:
        """Change exactly `rows` rows more."""
        while rows > 0:
            count = min(rows, 20)
            self.insert_customers(count)
            self.commit()
            rows -= count
