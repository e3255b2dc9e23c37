"""Binlogs to measure with: narrow and wide tables, in bulk and in transactions of single-row changes.

narrow is sysbench's table; wide has twelve columns of as many types, UTF-8 beyond ASCII, and 5 % NULL. A load is
written once to a server, into a binlog file of its own, and read as often as wanted.
"""

from __future__ import annotations

import datetime
import json
import random
from typing import Any, NamedTuple

CASES = ("narrow/bulk", "wide/bulk", "narrow/single", "wide/single")
_ROWS = {"narrow/bulk": 400_000, "wide/bulk": 200_000, "narrow/single": 100_000, "wide/single": 40_000}
_NARROW = "CREATE TABLE {} (id INT PRIMARY KEY AUTO_INCREMENT, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL)"
_WIDE = (
    "CREATE TABLE {} (id INT PRIMARY KEY AUTO_INCREMENT, n BIGINT UNSIGNED, name VARCHAR(64), amount DECIMAL(12,2), at DATETIME(6), "
    "seen TIMESTAMP NULL, doc JSON, kind ENUM('new','paid','sent','gone'), x DOUBLE, note TEXT, raw BLOB, day DATE) CHARACTER SET utf8mb4"
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz äöü 数据库变更 0123456789"


class Load(NamedTuple):
    """One binlog: the rows changed in it, and where it begins."""

    case: str
    rows: int
    file: str
    offset: int
    end_file: str
    end_offset: int


def write(server: Any, case: str, scale: float) -> Load:
    """Write the load of `case` to `server`; an UPDATE is one row changed."""
    shape, kind = case.split("/")
    chance = random.Random(1)
    connection = server.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        cursor.execute("USE bench")
        table = f"{shape}_{kind}"
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
        cursor.execute((_NARROW if shape == "narrow" else _WIDE).format(table))
        cursor.execute("FLUSH BINARY LOGS")
        file, offset = _place(cursor)
        rows = int(_ROWS[case] * scale)
        make = _narrow_row if shape == "narrow" else _wide_row
        values = [make(chance) for _ in range(1000)]
        changed = (_bulk if kind == "bulk" else _single)(cursor, connection, table, shape, values, rows)
        end_file, end_offset = _place(cursor)
    connection.close()
    return Load(case, changed, file, offset, end_file, end_offset)


def _place(cursor: Any) -> tuple[str, int]:
    for statement in ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"):
        try:
            cursor.execute(statement)
        except Exception:  # each server knows one of them
            continue
        found = cursor.fetchone()
        return str(found[0]), int(found[1])
    raise RuntimeError("the server tells no binlog position")


def _text(chance: random.Random, size: int) -> str:
    return "".join(chance.choices(_LETTERS, k=size))


def _narrow_row(chance: random.Random) -> tuple[Any, ...]:
    digits = "".join(chance.choices("0123456789", k=170))
    return (chance.randrange(1, 2**31), digits[:119], digits[111:170])


def _wide_row(chance: random.Random) -> tuple[Any, ...]:
    moment = datetime.datetime(2020, 1, 1) + datetime.timedelta(microseconds=chance.randrange(10**15 // 8))
    document = json.dumps({"a": chance.randrange(1000), "b": [1, 2, 3], "c": _text(chance, 20)}, ensure_ascii=False)
    row: list[Any] = [
        chance.randrange(2**64),
        _text(chance, 40),
        f"{chance.randrange(10**9)}.{chance.randrange(100):02}",
        moment,
        moment.replace(microsecond=0),
        document,
        chance.choice(["new", "paid", "sent", "gone"]),
        chance.random() * 1e6,
        _text(chance, 150),
        chance.randbytes(64),
        moment.date(),
    ]
    return tuple(None if chance.random() < 0.05 else value for value in row)


def _columns(shape: str) -> str:
    return "k, c, pad" if shape == "narrow" else "n, name, amount, at, seen, doc, kind, x, note, raw, day"


def _bulk(cursor: Any, connection: Any, table: str, shape: str, values: list[tuple[Any, ...]], rows: int) -> int:
    """Half inserts, three eighths updates, one eighth deletes, 200 rows a statement."""
    marks = ", ".join(["%s"] * len(values[0]))
    insert = f"INSERT INTO {table} ({_columns(shape)}) VALUES ({marks})"
    changed = 0
    for i in range(max(1, rows // 2 // 200)):
        cursor.executemany(insert, [values[(i * 200 + j) % len(values)] for j in range(200)])
        changed += 200
        if i % 10 == 9:
            connection.commit()
    connection.commit()
    cursor.execute(f"SELECT MIN(id), MAX(id) FROM {table}")
    low, high = cursor.fetchone()
    column = "k = k + 1" if shape == "narrow" else "x = x + 1, name = CONCAT(COALESCE(name, ''), '!')"
    for changing, share in (
        ((f"UPDATE {table} SET {column} WHERE id >= %s AND id < %s"), 3 / 8),
        ((f"DELETE FROM {table} WHERE id >= %s AND id < %s"), 1 / 8),
    ):
        wanted, at = int(rows * share), low
        while wanted > 0 and at <= high:
            changed += cursor.execute(changing, (at, at + 200))
            at += 200
            wanted -= 200
        connection.commit()
    return changed


def _single(cursor: Any, connection: Any, table: str, shape: str, values: list[tuple[Any, ...]], rows: int) -> int:
    """Transactions of four single-row statements: insert, update, update, delete or insert."""
    marks = ", ".join(["%s"] * len(values[0]))
    insert = f"INSERT INTO {table} ({_columns(shape)}) VALUES ({marks})"
    column = "k = k + 1" if shape == "narrow" else "x = COALESCE(x, 0) + 1, day = '2024-02-29'"
    changed = 0
    for i in range(rows // 4):
        cursor.execute(insert, values[i % len(values)])
        id_ = cursor.lastrowid
        changed += 1 + cursor.execute(f"UPDATE {table} SET {column} WHERE id = %s", (id_,))
        changed += cursor.execute(
            f"UPDATE {table} SET {column.replace('2024-02-29', '2024-02-28')} WHERE id = %s", (max(1, id_ // 2),)
        )
        changed += (
            cursor.execute(insert, values[(i + 7) % len(values)])
            if i % 2
            else cursor.execute(f"DELETE FROM {table} WHERE id = %s", (id_,))
        )
        connection.commit()
    return changed
