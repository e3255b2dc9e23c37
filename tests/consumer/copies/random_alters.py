"""Statements at random: ALTERs of every kind, and changes of rows with values that fit nothing in some modes, on a real server."""

from __future__ import annotations

import random

import pymysql

from tests.consumer.spark.comparison import selected, types_of
from tests.servers.server import Server

TYPES = [
    *("TINYINT", "SMALLINT UNSIGNED", "MEDIUMINT", "INT", "INT UNSIGNED", "BIGINT", "BIGINT UNSIGNED", "INT ZEROFILL"),
    *("DECIMAL(6,2)", "DECIMAL(10,2)", "DECIMAL(20,4)", "FLOAT", "DOUBLE", "BIT(3)", "BIT(8)", "YEAR", "BOOL"),
    *("DATE", "DATETIME", "DATETIME(3)", "DATETIME(6)", "TIMESTAMP NULL", "TIMESTAMP(6) NULL", "TIME", "TIME(3)"),
    *("CHAR(3)", "CHAR(9)", "VARCHAR(5)", "VARCHAR(20)", "VARCHAR(60)", "TINYTEXT", "TEXT", "MEDIUMTEXT"),
    *(
        "VARCHAR(20) CHARACTER SET latin1",
        "TEXT CHARACTER SET latin1",
        "VARCHAR(40) CHARACTER SET utf8mb4",
        "CHAR(5) COLLATE utf8mb4_bin",
    ),
    *("BINARY(3)", "BINARY(6)", "VARBINARY(5)", "VARBINARY(20)", "TINYBLOB", "BLOB", "LONGBLOB"),
    *("ENUM('a','b')", "ENUM('a','b','c')", "ENUM('b','a')", "SET('a','b')", "SET('a','b','c')", "JSON"),
]
ONLY = {"mariadb": ["UUID", "INET6", "VARCHAR(30) COMPRESSED"], "mysql": []}
VALUES = [
    "NULL",
    "0",
    "1",
    "-1",
    "7",
    "200",
    "70000",
    "'a'",
    "'b'",
    "'a,b'",
    "''",
    "'1.25'",
    "1.5",
    "-12.345",
    "'2026-02-03'",
    "3e9",
]
VALUES += [
    "'2026-02-03 04:05:06.789'",
    "'12:13:14.5'",
    "'ä€ü'",
    "'x  '",
    "x'0001ff'",
    "x'6162'",
    '\'{"a": [1, "ö"]}\'',
    "'long' ",
    "'[]'",
]
VALUES += ["'123e4567-e89b-12d3-a456-426655440000'", "'::1'", "'12'", "18446744073709551615", "'2026-02-03 00:00:00'"]
DEFAULTS = ["0", "1", "-5", "'x'", "''", "'a'", "'it''s'", "x'61'", "1.5", "'2026-01-01'", "'10:00:00'", "NULL", "TRUE", "'12'"]
ADDS = [
    "BINARY(5) NOT NULL DEFAULT 'ab'",
    "CHAR(4) DEFAULT 'x '",
    "SET('a','b') DEFAULT 'b,a'",
    "ENUM('a','b') NOT NULL",
    "TIME DEFAULT '1:2:3'",
    "INT CHECK (z{n} IS NOT NULL OR TRUE)",
    "INT NOT NULL",
    "VARCHAR(9) NOT NULL",
    "DATETIME DEFAULT CURRENT_TIMESTAMP",
    "INT AS (id + 1) STORED",
    "INT UNSIGNED NOT NULL DEFAULT 3",
    "VARCHAR(20) NOT NULL DEFAULT 'plain'",
]


# Names of columns that a copy may trip over; `{n}` makes them new.
ODD = [
    *(
        "Col{n}",
        "ä{n}",
        "Ö{n}",
        "σ{n}ς",
        "a.b{n}",
        "q'{n}",
        'd"{n}',
        "back\\slash{n}",
        "t`ick{n}",
        "new\nline{n}",
        "per%cent{n}",
        "{{brace{n}}}",
    ),
    *("_valid_from", "_valid_to", "_current", "_seq", "_end", "_end_seq", "_shmstore_deleted", "_shmstore_number", "s", "t"),
]


def quoted(name: str) -> str:
    """A name as SQL."""
    return f"`{name.replace('`', '``')}`"


class Author:
    """Writes statements about the tables of one database; what the server refuses does not count."""

    def __init__(self, server: Server, database: str, choose: random.Random, kind: str) -> None:
        self.choose, self.database, self.names = choose, database, 0
        self.connection = server.connect(database=database)
        self.types = TYPES + ONLY[kind]
        self.tables: list[str] = []
        self.table = ""  # that is altered
        self.altered = 0
        self.log: list[str] = []

    def run(self, sql: str) -> bool:
        """Whether the server took it."""
        with self.connection.cursor() as cursor:
            try:
                cursor.execute(sql)
            except pymysql.MySQLError:
                return False
        if not sql.startswith("INSERT"):
            self.log.append(sql)
        return True

    def mode(self) -> None:
        self.run(
            f"SET SESSION sql_mode = '{self.choose.choice(['', '', 'STRICT_TRANS_TABLES', 'STRICT_ALL_TABLES,ANSI_QUOTES'])}'"
        )
        self.run(f"SET SESSION time_zone = '{self.choose.choice(['+00:00', '+05:30', '-08:00'])}'")

    def name(self) -> str:
        """A new column's, as SQL: of some the names are odd, or our helpers are called so."""
        self.names += 1
        if self.choose.random() < 0.5:
            return f"`c{self.names}`"
        return quoted(self.choose.choice(ODD).format(n=self.names))

    def spelled(self, name: str) -> str:
        """A column's name as SQL, perhaps in another case of letters."""
        return quoted(self.choose.choice([name, name, name, name.swapcase(), name.upper()]))

    def columns(self, table: str) -> list[str]:
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
                (self.database, table),
            )
            return [row[0] for row in cursor.fetchall()]

    def create(self, table: str) -> None:
        while True:
            columns = ", ".join(f"{self.name()} {self.choose.choice(self.types)}" for _ in range(self.choose.randint(1, 4)))
            charset = self.choose.choice(["utf8mb4", "utf8mb4", "latin1"])
            if self.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns}) CHARSET {charset}"):
                break
        self.tables.append(table)

    def change(self, table: str) -> None:
        """A few changes of rows; with values that fit nothing in some modes."""
        self.run("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
        for _ in range(self.choose.randint(1, 6)):
            names = [self.spelled(name) for name in self.columns(table) if name.lower() != "id"]
            kind = self.choose.random()
            if kind < 0.7:
                cells = ", ".join(self.choose.choice(VALUES) for _ in names)
                if not self.run(
                    f"REPLACE INTO {table} ({', '.join(['id', *names])}) VALUES ({self.choose.randrange(40)}, {cells})"
                ):
                    for name in names:
                        self.run(
                            f"INSERT IGNORE INTO {table} (id, {name}) VALUES ({self.choose.randrange(40)}, {self.choose.choice(VALUES)})"
                        )
            elif kind < 0.85 and names:
                self.run(f"UPDATE IGNORE {table} SET {self.choose.choice(names)} = {self.choose.choice(VALUES)} WHERE id % 3 = 1")
            else:
                self.run(f"DELETE FROM {table} WHERE id = {self.choose.randrange(40)}")

    def clause(self, columns: list[str]) -> str:
        choose = self.choose
        one = choose.choice(columns)
        old, other, type_ = self.spelled(one), self.spelled(choose.choice(columns)), choose.choice(self.types)
        null = choose.choice(["", "", "", " NULL", " NOT NULL"]) if "NULL" not in type_ else ""
        place = choose.choice(["", "", "", " FIRST", f" AFTER {other}"])
        kind = choose.choice(
            [
                "add",
                "add",
                "adds",
                "drop",
                "rename",
                "swap",
                "take",
                "again",
                "modify",
                "modify",
                "modify",
                "change",
                "rest",
                "case",
            ]
        )
        match kind:
            case "add":
                default = f" DEFAULT {choose.choice(DEFAULTS)}" if choose.random() < 0.5 else ""
                return f"ADD COLUMN {self.name()} {type_}{null}{default}{place}"
            case "adds":
                return f"ADD COLUMN {choose.choice([self.name(), f'`z{self.names}`'])} {choose.choice(ADDS).format(n=self.names)}"
            case "drop":
                return f"DROP COLUMN {old}"
            case "rename":
                return f"RENAME COLUMN {old} TO {self.name()}"
            case "swap":
                return f"RENAME COLUMN {old} TO {other}, RENAME COLUMN {other} TO {old}"
            case "take":
                return f"RENAME COLUMN {old} TO {other}, DROP COLUMN {other}"
            case "again":
                return f"ADD COLUMN {old} {type_}, DROP COLUMN {old}"
            case "modify":
                return f"MODIFY {old} {type_}{null}{place}"
            case "change":
                return f"CHANGE {old} {choose.choice([self.name(), other])} {type_}{null}"
            case "case":
                types = {"smallint": "INT", "int": "BIGINT", "varchar": "TEXT", "text": "LONGTEXT", "blob": "LONGBLOB"}
                wider = types.get(self.types_of(self.table).get(one, ""), "BIGINT")
                new = quoted(one.swapcase())
                return choose.choice([f"RENAME COLUMN {old} TO {new}", f"MODIFY {new} {wider}", f"CHANGE {old} {new} {wider}"])
        return choose.choice(
            [
                "ADD INDEX (id)", "COMMENT='WAIT'", "ENGINE=InnoDB", "FORCE", f"ALTER COLUMN {old} DROP DEFAULT", "AUTO_INCREMENT=7",
                "CONVERT TO CHARACTER SET latin1", "CONVERT TO CHARACTER SET utf8mb4", "DEFAULT CHARACTER SET latin1",
                "MODIFY id INT AUTO_INCREMENT", "MODIFY id BIGINT", "ADD UNIQUE INDEX (id)", "ADD CHECK (id >= -1 AND id IS NOT NULL)",
            ]
        )  # fmt: skip

    def alter(self, table: str) -> None:
        """One DDL that the server takes."""
        while True:
            self.mode()
            self.table = table
            columns = [name for name in self.columns(table) if name.lower() != "id"] or ["id"]
            kind = self.choose.random()
            if kind < 0.04:
                sql = f"TRUNCATE TABLE {table}"
            elif kind < 0.08:
                other = self.choose.choice(self.tables)
                sql = f"RENAME TABLE {table} TO swapped, {other} TO {table}, swapped TO {other}"
            elif kind < 0.11:
                sql = f"ALTER TABLE {table} WAIT 5"
            elif kind < 0.14:
                sql = f"DROP TABLE {table}"
            else:
                wait = " WAIT 5" if self.choose.random() < 0.05 else ""
                sql = f"ALTER TABLE {table}{wait} " + ", ".join(
                    self.clause(columns) for _ in range(self.choose.choice([1, 1, 2, 3]))
                )
            if "DROP COLUMN `id`" not in sql.replace("`ID`", "`id`") and self.run(sql):  # a table without its key has no copy
                break
        self.altered += 1
        if sql.startswith("DROP TABLE"):
            self.tables.remove(table)
            self.create(table)

    def rows(self, table: str) -> tuple[set[str], list[tuple[str, ...]]]:
        """What SELECT shows: the columns, and rows as text, columns in the order of their names."""
        self.run("SET SESSION sql_mode = ''")
        return selected(self.connection, self.database, table)

    def types_of(self, table: str) -> dict[str, str]:
        return types_of(self.connection, self.database, table)
