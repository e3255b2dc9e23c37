"""Random DDLs in random modes: whatever the server takes, the followed tables are those of its information_schema."""

from __future__ import annotations

import random
import re

import pymysql
import pytest

from shmstore.event import Position
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.sql.catalog import Unreadable
from shmstore.sql_tokens import SqlMode
from tests.producer.decoding import database_of, run
from tests.producer.schema.test_history import query_of, tables_of
from tests.servers.server import start_server

STATEMENTS = 80
BARE = [
    "a",
    "b",
    "c",
    "Dd",
    "e1",
    "größe",
    "period",
    "action",
    "comment",
    "data",
    "end",
    "first",
    "hash",
    "type",
    "value",
    "charset",
]
QUOTED = [
    "it`s",
    'a"b',
    "x\\y",
    "c, d",
    "select",
    "key",
    "primary",
    "system",
    "vector",
    "unsigned",
    "after",
    "check",
    "(",
    "'",
    "byte",
]
TEXTS = ["x", "it's", "back\\", '"', "x, c date", "(", ")", "AFTER a", "/* ", "`", "-- x", "# y", "unsigned", "CHARSET=gbk", "ü"]
SETS = ["latin1", "utf8mb4", "gbk", "ucs2", "koi8r", "utf32", "binary", "utf8mb3", "ascii"]
PLAIN = [
    "int",
    "INT UNSIGNED",
    "bigint unsigned zerofill",
    "decimal(5,2)",
    "datetime(3)",
    "time",
    "year",
    "float",
    "bit(3)",
    "BOOL",
]
PLAIN += ["date", "varbinary(9)", "blob", "double precision", "json", "char byte", "national varchar(3)", "nchar(2)"]


class Writer:
    """Writes statements about one table, in one session's mode."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.mode = SqlMode()
        self.columns: list[str] = []

    def name(self, name: str) -> str:
        if name in BARE and name.isidentifier() and self.rng.random() < 0.5:
            return self.rng.choice([name, name.upper()]) if name.isascii() else name
        quote = self.rng.choice('`"') if self.mode.ansi_quotes else "`"
        return quote + name.replace(quote, quote * 2) + quote

    def old(self) -> str:
        return self.name(self.rng.choice(self.columns or ["a"]))

    def new(self) -> str:
        return self.name(self.rng.choice(BARE + QUOTED))

    def string(self, text: str) -> str:
        quote = "'" if self.mode.ansi_quotes else self.rng.choice("'\"")
        if not self.mode.plain_backslash:
            text = text.replace("\\", "\\\\")
            if self.rng.random() < 0.5:
                return quote + text.replace(quote, "\\" + quote) + quote
        return quote + text.replace(quote, quote * 2) + quote

    def member(self) -> str:
        text = self.rng.choice(["m1", "m2", "m3", "m4 ", "a'b", "c\\d", 'e"f', "(", "ü"])
        if self.rng.random() < 0.2 and text.isascii():
            bytes_ = text.encode()
            return self.rng.choice(
                [f"x'{bytes_.hex()}'", f"0x{bytes_.hex()}", f"b'{int.from_bytes(bytes_, 'big'):0{8 * len(bytes_)}b}'"]
            )
        return self.string(text)

    def type(self) -> str:
        rng = self.rng
        if rng.random() < 0.4:
            return rng.choice(PLAIN)
        if rng.random() < 0.4:
            kind = rng.choice(["enum", "SET"])
            members = {self.member() for _ in range(rng.randint(1, 4))}
            text = f"{kind}({','.join(sorted(members))})"
        else:
            text = rng.choice(["varchar(9)", "CHAR(3)", "text", "tinytext", "longtext", "character varying(4)", "long"])
        charset = rng.choice(SETS)
        if rng.random() < 0.5:
            text += rng.choice(
                [
                    f" CHARACTER SET {charset}",
                    f" CHARSET {charset}",
                    f" COLLATE {charset}_bin" if charset != "binary" else " COLLATE binary",
                ]
            )
        return text

    def attributes(self) -> str:
        rng = self.rng
        text = ""
        if rng.random() < 0.2:
            text += rng.choice([" NOT NULL", " NULL"])
        if rng.random() < 0.1:
            text += f" CHECK ({self.string(rng.choice(TEXTS))} <> 'x')"
        if rng.random() < 0.4:
            text += f" COMMENT {self.string(rng.choice(TEXTS))}"
        return text

    def definition(self, name: str, *, placed: bool) -> str:
        place = self.rng.choice(["", "", " FIRST", f" AFTER {self.old()}"]) if placed else ""
        return f"{name} {self.type()}{self.attributes()}{place}"

    def create(self, table: str) -> str:
        names = self.rng.sample(BARE + QUOTED, self.rng.randint(2, 7))
        parts = [self.definition(self.name(name), placed=False) for name in names]
        self.columns = names
        if self.rng.random() < 0.3:
            parts.append(f"KEY ({self.old()}(2))" if self.rng.random() < 0.5 else f"UNIQUE ({self.old()})")
        if self.rng.random() < 0.4:
            parts.append(f"PRIMARY KEY ({self.old()})")
        self.rng.shuffle(parts)
        return f"CREATE TABLE {table} ({', '.join(parts)}){self.options()}"

    def options(self) -> str:
        rng = self.rng
        charset = rng.choice(SETS)
        text = rng.choice(
            ["", f" DEFAULT CHARSET={charset}", f" CHARACTER SET {charset}", f" CHARSET {charset} COLLATE {charset}_bin"]
        )
        if charset == "binary":
            text = text.replace("binary_bin", "binary")
        return text + (f" COMMENT {self.string(rng.choice(TEXTS))}" if rng.random() < 0.3 else "")

    def part(self) -> str:
        rng = self.rng
        column = rng.choice(["", "COLUMN "])
        kinds = [
            "add",
            "add",
            "add",
            "list",
            "drop",
            "modify",
            "change",
            "rename",
            "key",
            "nokey",
            "convert",
            "options",
            "index",
            "default",
        ]
        match rng.choice(kinds):
            case "add":
                return f"ADD {column}{self.definition(self.new(), placed=True)}"
            case "list":
                return f"ADD ({self.definition(self.new(), placed=False)}, {self.definition(self.new(), placed=False)})"
            case "drop":
                return f"DROP {column}{self.old()}"
            case "modify":
                return f"MODIFY {column}{self.definition(self.old(), placed=True)}"
            case "change":
                return f"CHANGE {column}{self.old()} {self.definition(self.new(), placed=True)}"
            case "rename":
                return f"RENAME COLUMN {self.old()} TO {self.new()}"
            case "key":
                return f"ADD PRIMARY KEY ({self.old()})"
            case "nokey":
                return "DROP PRIMARY KEY"
            case "convert":
                return f"CONVERT TO CHARACTER SET {rng.choice(SETS)}"
            case "index":
                return f"ADD {rng.choice(['INDEX', 'UNIQUE', 'KEY k'])} ({self.old()})"
            case "default":
                return f"ALTER {column}{self.old()} SET DEFAULT {self.string(rng.choice(TEXTS))}"
            case _:
                return self.options().strip() or "ENGINE = InnoDB"

    def alter(self, table: str) -> str:
        return f"ALTER TABLE {table} {', '.join(self.part() for _ in range(self.rng.choice([1, 1, 2, 3, 4])))}"


def alike(table: object) -> object:
    """Without what every TABLE_MAP says: how wide a text is, which servers choose by themselves."""
    if isinstance(table, Unreadable):
        return table
    columns, key = table  # type: ignore[misc]
    wide = re.compile("^(tiny|medium|long)(?=text|blob)")
    return [(name, wide.sub("", type_), *rest) for name, type_, *rest in columns], key


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql", "mariadb118"])
def test_random_statements_are_followed_as_the_server_does_them(kind: str, seed: int) -> None:
    """Names, types, character sets, members and keys after each statement; only members that servers garble may be unknown."""
    rng = random.Random(seed)
    writer = Writer(rng)
    with start_server(kind) as server, database_of(server, "ddl") as (connection, _):
        followed = SchemaHistory()
        followed.snapshot(query_of(connection), Position("binlog.000001", 1))
        taken = tried = number = unknown = 0
        while taken < STATEMENTS:
            if tried % 25 == 0:
                number += 1
            tried += 1
            assert tried < 100 * STATEMENTS, "the server takes too little of this to tell anything"
            table = f"t{number}"
            writer.mode = SqlMode(rng.random() < 0.4, rng.random() < 0.4)
            known = tables_of(followed, "ddl").get(table)
            writer.columns = [column[0] for column in known[0]] if known else []
            sql = writer.alter(table) if known else writer.create(table)
            try:
                run(connection, f"SET SESSION sql_mode = '{writer.mode}'", sql)
            except pymysql.MySQLError:
                continue
            taken += 1
            followed.follow(Position("binlog.000001", 100 * taken), "ddl", sql, writer.mode)
            run(connection, "SET SESSION sql_mode = DEFAULT")
            fresh = SchemaHistory()
            fresh.snapshot(query_of(connection), Position("binlog.000001", 1), database="ddl")
            wanted, got = tables_of(fresh, "ddl"), tables_of(followed, "ddl")
            if isinstance(got[table], Unreadable) and ("garble" in got[table].reason or "no text" in got[table].reason):
                unknown += 1
                run(connection, f"DROP TABLE {table}")
                followed.follow(Position("binlog.000001", 100 * taken + 1), "ddl", f"DROP TABLE {table}")
                number += 1
            else:
                assert {name: alike(table) for name, table in got.items()} == {
                    name: alike(table) for name, table in wanted.items()
                }, f"{sql} in mode {str(writer.mode)!r}"
        assert unknown < taken / 5
