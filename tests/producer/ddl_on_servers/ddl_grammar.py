"""Writes random DDL as the grammars of MySQL and MariaDB have it: all clauses, forms of names, words for types and places of options.

A `Grammar` knows what the tables are now (from the followed catalog), so that servers take much of what it writes; what they refuse
changes nothing, and is part of the test.
"""

from __future__ import annotations

from collections.abc import Callable

from shmstore.sql.table_change import Table
from tests.producer.ddl_on_servers.ddl_words import BARE, CLIENTS, DATABASES, ENGINE_OPTIONS, QUOTED, SETS, Words

__all__ = ["Grammar"]


class Grammar(Words):
    """Definitions of columns and keys, and whole statements."""

    # ------------------------------------------------------------ columns

    def default(self) -> str:
        values = [
            "NULL",
            "NULL",
            "1",
            "-1",
            "+ 1",
            "'5'",
            "b'1'",
            "0x41",
            "x'41'",
            "(1 + (2 * 3))",
            "('x, (')",
            "_latin1'7'",
            "N'8'",
            "'a' 'b'",
            "TRUE",
        ]
        values += ["(CASE WHEN 1 THEN 2 END)", "1.5e3", ".5", "DATE'2020-01-01'", "TIMESTAMP '2020-01-01 00:00:00'"]
        if self.mariadb:
            values += [
                "uuid()",
                "concat('a', ')')",
                "CASE WHEN 1 THEN CASE 2 WHEN 2 THEN 3 END END",
                "CURRENT_TIMESTAMP",
                "NOW()",
                "INTERVAL(1, 2)",
                "CAST('1' AS CHAR(3) CHARACTER SET latin1)",
                "IF(1, 2, 3)",
                "LEFT('ab', 1)",
                "REPLACE('a', ',', '(')",
                "TRIM(BOTH ' ' FROM ' 1 ')",
                "CURRENT_USER",
                "CURRENT_DATE",
                "{d '2020-01-01'}",
                "BINARY '1'",
                "CHAR(65 USING latin1)",
                "EXTRACT(DAY FROM '2020-01-02')",
                "CONVERT('1' USING utf8mb3)",
                "NULLIF(1, 2)",
            ]
        else:
            values += ["(uuid())", "(CAST('1' AS CHAR(3) CHARACTER SET latin1))", "(json_array())", "_utf8mb4 x'41'", "N'a' 'b'"]
        return f" DEFAULT {self.rng.choice(values)}"

    def attribute(self, type_: str) -> str:
        """An attribute of a column, and now and then one that its type cannot have."""
        values: list[str | Callable[[], str]] = [" NOT NULL", " NULL", " NOT NULL", lambda: f" COMMENT {self.text()}"]
        values += [self.default, self.default]
        values += [
            " INVISIBLE",
            lambda: f" CHECK ({self.text()} <> 'x')",
            " UNIQUE",
            " UNIQUE KEY",
        ]
        odd = self.rng.random() < 0.03
        if odd or type_.upper().startswith(("TIMESTAMP", "DATETIME")):
            values += [" ON UPDATE CURRENT_TIMESTAMP", " ON UPDATE NOW(3)", " ON UPDATE LOCALTIME", " ON UPDATE LOCALTIMESTAMP()"]
            digits = type_[type_.index("(") :] if "(" in type_ else ""
            values += [f" DEFAULT CURRENT_TIMESTAMP{digits}", f" DEFAULT NOW{digits or '()'} ON UPDATE NOW{digits or '()'}"]
        if type_.endswith(("TEXT", "CHAR", ")")):
            values.append(lambda: f" COLLATE {self.collation(self.rng.choice(SETS))}")
        if odd or ("INT" in type_.upper() and "POINT" not in type_.upper()):
            values += [" AUTO_INCREMENT UNIQUE", " SERIAL DEFAULT VALUE"]
        values += [
            f"{self.one(' /*!50100', ' /*!99999', ' /*M!100100', ' /*!100100', ' /*M!', ' /*!80023', ' /*!', ' /*!999999', ' /*!090000')} "
            f"{self.one('NOT NULL', 'NULL', 'INVISIBLE', 'COMMENT 5'.replace('5', self.text()))} */"
        ]
        if self.mariadb:
            values += [" WITHOUT SYSTEM VERSIONING", " WITH SYSTEM VERSIONING"] if odd or self.versioned else []
            values += [f" {option}" for option in ENGINE_OPTIONS] if odd or "IGNORE_BAD_TABLE_OPTIONS" in self.mode.names else []
        else:
            values += [
                " COLUMN_FORMAT DEFAULT",
                " COLUMN_FORMAT FIXED",
                " STORAGE DEFAULT",
                " STORAGE DISK",
                " STORAGE MEMORY",
                " VISIBLE",
                " NOT SECONDARY",
                " COLUMN_FORMAT DEFAULT COLLATE utf8mb4_bin",
                " COLUMN_FORMAT DYNAMIC",
                " SECONDARY_ENGINE_ATTRIBUTE '{}'",
                " SECONDARY_ENGINE_ATTRIBUTE = ''",
                lambda: f" CONSTRAINT {self.new()} CHECK (1 = 1)",
                " CONSTRAINT CHECK (2 > 1)",
                " CHECK (3 IS NOT NULL) NOT ENFORCED",
                " CHECK (TRUE OR FALSE) ENFORCED",
            ]
        return self.one(*values)

    def references(self) -> str:
        return self.one(
            " REFERENCES zz (a)",
            " REFERENCES `z z`.y (b, c) MATCH FULL ON DELETE SET NULL",
            " REFERENCES zz (a) ON UPDATE CASCADE",
        )

    def generated(self) -> str:
        always = self.maybe(0.5, "GENERATED ALWAYS ")
        stored = self.one("", " VIRTUAL", " STORED", *([" PERSISTENT"] if self.mariadb else []))
        return f" {always}AS (1 + (2)){stored}"

    def attributes(self, type_: str) -> str:
        if self.rng.random() < 0.08:
            behind = [" UNIQUE", " INVISIBLE", " UNIQUE KEY", " CHECK (1 = 1)"]
            behind += [] if self.mariadb else [" NOT NULL", " NULL", " VISIBLE", " KEY", " NOT SECONDARY"]
            return (
                self.generated() + self.maybe(0.3, self.rng.choice(behind)) + self.maybe(0.3, lambda: f" COMMENT {self.text()}")
            )
        return "".join([self.attribute(type_) for _ in range(self.rng.choice([0, 0, 0, 1, 1, 2, 3]))])

    def definition(self, name: str, *, placed: bool) -> str:
        place = self.one("", "", " FIRST", lambda: f" AFTER {self.old()}") if placed else ""
        if self.rng.random() < 0.03:
            return f"{name} SERIAL{self.maybe(0.3, ' COMMENT 5'.replace('5', self.text()))}{place}"
        primary = self.maybe(
            0.06, lambda: self.one(" PRIMARY KEY", " KEY", " PRIMARY KEY NOT NULL", *([" PRIMARY"] if not self.mariadb else []))
        )
        type_ = self.type()
        return f"{name}{self.space()}{type_}{self.attributes(type_)}{primary}{self.maybe(0.05, self.references)}{place}"

    def key(self) -> str:
        column = self.one(
            self.old, lambda: f"{self.old()} (2)", lambda: f"{self.old()} DESC", lambda: f"{self.old()}, {self.old()}"
        )
        using = self.maybe(0.2, " USING BTREE")
        name = self.maybe(0.4, lambda: " " + self.new())
        forms = [
            f"KEY{name}{using} ({column})",
            f"INDEX{name} ({column})",
            f"UNIQUE{name} ({column})",
            f"UNIQUE KEY{name} ({column})",
        ]
        forms += [
            f"CONSTRAINT{name} CHECK ({self.text()} <> 'y')",
            f"CONSTRAINT{name} UNIQUE ({column})",
            f"FULLTEXT KEY{name} ({column})",
            f"FOREIGN KEY{name} ({self.old()}) REFERENCES {self.table(self.rng.choice(self.tables()))} (a) ON DELETE CASCADE",
            f"CONSTRAINT{name} FOREIGN KEY ({self.old()}) REFERENCES zz (a) ON UPDATE SET NULL ON DELETE NO ACTION",
            f"UNIQUE{name} ({self.old()}){' USING HASH' if self.mariadb else ''}",
        ]
        forms += [f"INDEX{name} ({column}) COMMENT {self.text()}", f"CHECK ({self.text()} <> 'y')"]
        forms += [
            f"SPATIAL KEY{name} ({self.old()})",
            f"{self.one('KEY', 'UNIQUE')} {self.new()} TYPE BTREE ({column})",
            f"KEY{name} ({column}) KEY_BLOCK_SIZE=0 USING BTREE",
            f"CONSTRAINT{name} UNIQUE INDEX{name} USING BTREE ({column})",
            f"INDEX{name} ({column}) {'IGNORED' if self.mariadb else 'INVISIBLE'}",
        ]
        if self.mariadb:
            forms += [f"VECTOR KEY{name} ({self.old()}) M=5 DISTANCE=cosine"] if self.newest else []
        else:
            forms += [f"KEY{name} ((1 + (2)), {self.old()})", f"FULLTEXT{name} ({self.old()}) WITH PARSER ngram"]
            forms += [f"CONSTRAINT{name} CHECK ({self.text()} <> 'y') NOT ENFORCED", f"UNIQUE{name} ({column}) VISIBLE"]
        return self.rng.choice(forms)

    def primary(self, *, exists: bool = False) -> str:
        columns = ", ".join(
            dict.fromkeys([self.old() + self.maybe(0.1, self.one(" (2)", " ASC")) for _ in range(self.rng.choice([1, 1, 2]))])
        )
        constraint = self.maybe(0.3, lambda: f"CONSTRAINT{self.maybe(0.6, lambda: ' ' + self.new())} ")
        maybe = " IF NOT EXISTS" if exists and self.mariadb and self.rng.random() < 0.4 else ""
        behind = self.maybe(0.1, self.one(" USING BTREE", " KEY_BLOCK_SIZE=0", f" COMMENT {self.text()}"))
        named = self.maybe(0.1, lambda: f" {self.new()}{self.maybe(0.3, ' TYPE BTREE')}")
        return f"{constraint}PRIMARY KEY{maybe}{named or self.maybe(0.2, ' USING BTREE')} ({columns}){behind}"

    # ------------------------------------------------------------ CREATE

    def option(self) -> str:
        charset = self.rng.choice(SETS)
        collation = self.collation(charset)
        default, equal = self.maybe(0.5, "DEFAULT "), self.one(" = ", "=", " ")
        word = self.one("CHARACTER SET", "CHARSET", "CHAR SET")
        forms: list[str] = [
            f"{default}{word}{equal}{charset}",
            f"{default}COLLATE{equal}{collation}",
            f"{word}{equal}{charset} {default}COLLATE{equal}{collation}",
        ]
        forms += [
            f"COMMENT{equal}{self.text()}",
            "ENGINE = InnoDB",
            "ENGINE MyISAM",
            "ROW_FORMAT=DEFAULT",
            "PACK_KEYS=DEFAULT",
            "STATS_PERSISTENT = DEFAULT",
        ]
        forms += ["MAX_ROWS 5", "AUTO_INCREMENT=7", "CHECKSUM 1", "KEY_BLOCK_SIZE=0", "STATS_AUTO_RECALC=DEFAULT"]
        forms += ["MIN_ROWS=1", "AVG_ROW_LENGTH 5", "DELAY_KEY_WRITE=0", "ROW_FORMAT DYNAMIC", "ROW_FORMAT=COMPACT", "UNION=()"]
        forms += ["ROW_FORMAT FIXED", "ROW_FORMAT=REDUNDANT", "PACK_KEYS 1", "STATS_PERSISTENT=0"]
        forms += [
            "INSERT_METHOD=NO",
            "INSERT_METHOD FIRST",
            "INSERT_METHOD = LAST",
            "STATS_SAMPLE_PAGES=DEFAULT",
            "TABLE_CHECKSUM=0",
        ]
        forms += [f"CONNECTION={self.text()}", f"PASSWORD {self.text()}"]
        if not self.mariadb:
            forms += [
                "STORAGE DISK",
                "STORAGE MEMORY",
                "TABLESPACE innodb_file_per_table",
                "TABLESPACE = `innodb_file_per_table`",
            ]
            forms += ["AUTOEXTEND_SIZE=0", "COMPRESSION='none'", "ENCRYPTION = 'N'", "SECONDARY_ENGINE=NULL"]
            forms += ["SECONDARY_ENGINE_ATTRIBUTE='{}'"]
        else:
            forms += ENGINE_OPTIONS * 2 if "IGNORE_BAD_TABLE_OPTIONS" in self.mode.names else []
            forms += ["PAGE_COMPRESSED=0", "ENCRYPTION_KEY_ID=1", "IETF_QUOTES=NO", "SEQUENCE=0", "ENCRYPTED = DEFAULT"]
            forms += [f"{default}{word}{equal}DEFAULT", f"{default}{word}{equal}DEFAULT", "PAGE_CHECKSUM=1", "TRANSACTIONAL=0"]
            forms += ["COLLATE=uca1400_ai_ci"] if self.newest else []
        return self.rng.choice(forms)

    def options(self) -> str:
        return self.one("", "", lambda: " " + self.option(), lambda: f" {self.option()}{self.one(' ', ', ')}{self.option()}")

    def create(self, table: str) -> str:
        rng = self.rng
        names = rng.sample([*BARE, *QUOTED, CLIENTS[self.mode.client][1]], rng.randint(1, 6))
        self.columns, self.versioned = names, self.mariadb and rng.random() < 0.15
        parts = [self.definition(self.name(name), placed=False) for name in names]
        parts += [self.key() for _ in range(rng.choice([0, 0, 1]))]
        versioned = ""
        if rng.random() < 0.4:
            parts.append(self.primary())
        if not self.mariadb and rng.random() < 0.1:
            parts.insert(rng.choice([0, 0, 1]), "my_row_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY INVISIBLE")
        if self.versioned:
            versioned = " WITH SYSTEM VERSIONING"
            if rng.random() < 0.5:
                parts += [
                    "rs TIMESTAMP(6) GENERATED ALWAYS AS ROW START",
                    "re TIMESTAMP(6) AS ROW END INVISIBLE",
                    "PERIOD FOR SYSTEM_TIME (rs, re)",
                ]
        elif self.mariadb and rng.random() < 0.06:
            parts += ["ps DATE", "pe DATE", "PERIOD FOR pp (ps, pe)"]
            parts += [f"PRIMARY KEY ({self.old()}, {self.one('pe, ps', 'ps, pe', *['pp WITHOUT OVERLAPS'] * 4)})"] * (
                rng.random() < 0.6
            )
        rng.shuffle(parts)
        head = self.one("CREATE TABLE", "create table", "CREATE/**/TABLE", *(["CREATE OR REPLACE TABLE"] if self.mariadb else []))
        head += self.maybe(0.2, " IF NOT EXISTS") if "REPLACE" not in head else ""
        partition = self.maybe(0.05, lambda: f" PARTITION BY {self.one('KEY', 'LINEAR KEY')} ({self.old()}) PARTITIONS 2")
        comma = self.one(", ", ",", " , ")
        return f"{head} {self.table(table)}{self.space()}({comma.join(parts)}){self.options()}{versioned}{partition}"

    # ------------------------------------------------------------ ALTER

    def part(self) -> str:
        column = self.one("", "COLUMN ")
        no = self.maybe(0.25, "IF NOT EXISTS ") if self.mariadb else ""
        yes = self.maybe(0.25, "IF EXISTS ") if self.mariadb else ""
        kinds: list[Callable[[], str]] = [
            lambda: f"ADD {column}{no}{self.definition(self.new(), placed=True)}",
            lambda: f"ADD {column}{no}{self.definition(self.new(), placed=True)}",
            lambda: f"ADD {column}{no}({self.definition(self.new(), placed=False)}, {self.definition(self.new(), placed=False)})",
            lambda: f"ADD {column}({self.definition(self.new(), placed=False)}, {self.key()})",
            lambda: f"DROP {column}{yes}{self.old()}{self.maybe(0.1, ' RESTRICT')}",
            lambda: f"MODIFY {column}{yes}{self.definition(self.old(), placed=True)}",
            lambda: f"MODIFY {column}{yes}{self.definition(self.old(), placed=True)}",
            lambda: f"CHANGE {column}{yes}{self.old()} {self.definition(self.new(), placed=True)}",
            lambda: f"RENAME COLUMN {yes}{self.old()} TO {self.new()}",
            lambda: self.alter_primary(yes),
            lambda: self.alter_primary(yes),
            lambda: f"CONVERT TO {self.one('CHARACTER SET', 'CHARSET', 'CHAR SET')} {self.one(*self.default_charset(), *SETS)}",
            lambda: f"CONVERT TO{self.charset(self.rng.choice(SETS)).removesuffix(' BINARY')}",
            self.option,
            self.option,
            lambda: f"ADD {self.key()}",
            lambda: (
                f"ALTER {column}{yes}{self.old()} {self.one('SET DEFAULT ' + self.text(), 'DROP DEFAULT', 'SET DEFAULT (1 + 1)')}"
            ),
            lambda: self.one(
                "FORCE",
                "ENGINE = InnoDB",
                "ENABLE KEYS",
                "DISABLE KEYS",
                "ALGORITHM = COPY",
                "ALGORITHM INPLACE",
                "ALGORITHM=INSTANT",
                "LOCK=DEFAULT",
                "LOCK = SHARED",
                "LOCK EXCLUSIVE",
                "ALGORITHM DEFAULT",
                "REMOVE PARTITIONING",
                *(["ALGORITHM=NOCOPY"] if self.mariadb else ["WITHOUT VALIDATION", "WITH VALIDATION"]),
            ),
            lambda: self.one(
                f"DROP FOREIGN KEY {yes}{self.new()}",
                f"RENAME {self.one('INDEX', 'KEY')} {yes}{self.old()} TO {self.new()}",
                f"ALTER {self.one('INDEX', 'KEY')} {yes}{self.old()} {'NOT IGNORED' if self.mariadb else 'VISIBLE'}",
                f"ADD CONSTRAINT {no}{self.new()} CHECK ({self.text()} <> 'z')",
                f"ADD {self.one('INDEX', 'UNIQUE', 'UNIQUE KEY')} {no}{self.new()} ({self.old()})",
                *(
                    [f"ADD FOREIGN KEY {no}({self.old()}) REFERENCES zz (a)"]
                    if self.mariadb
                    else [
                        f"DROP CHECK {self.new()}",
                        f"ALTER CHECK {self.new()} NOT ENFORCED",
                        f"ALTER CONSTRAINT {self.new()} ENFORCED",
                    ]
                ),
            ),
            lambda: (
                f"DROP {self.one('INDEX', 'KEY', 'CONSTRAINT')} {self.maybe(0.8, 'IF EXISTS ') if self.mariadb else ''}{self.old()}"
            ),
        ]
        if self.mariadb:
            kinds += [
                lambda: f"{'DROP' if self.versioned != (self.rng.random() < 0.05) else 'ADD'} SYSTEM VERSIONING",
                lambda: self.one(
                    "DROP PERIOD FOR pp",
                    f"ADD PRIMARY KEY ({self.old()}, pp WITHOUT OVERLAPS)",
                    "RENAME COLUMN pe TO pf",
                    "ADD PERIOD FOR pp (ps, pe)",
                ),
            ]
        else:
            kinds += [lambda: f"ALTER {column}{self.one(self.old(), 'my_row_id')} SET {self.one('VISIBLE', 'INVISIBLE')}"]
        return self.rng.choice(kinds)()

    def alter_primary(self, exists: str) -> str:
        """What fits the table, and now and then what does not."""
        add = f"ADD {self.primary(exists=True)}"
        if self.keyed == (self.rng.random() < 0.1):
            return add
        drop = self.one(
            "DROP PRIMARY KEY",
            "DROP PRIMARY KEY",
            f"DROP INDEX {exists}`PRIMARY`",
            f"DROP KEY {exists}`primary`",
            f"DROP CONSTRAINT {exists}`Primary`",
        )
        return self.one(drop, f"{drop}, {add}", f"{add}, {drop}")

    def alter(self, table: str) -> str:
        parts = [self.part() for _ in range(self.rng.choice([1, 1, 1, 2, 2, 3, 4]))]
        if self.rng.random() < 0.04:
            parts.append(f"ORDER BY {self.old()}, {self.old()} DESC")
        if self.rng.random() < 0.04:
            parts.append(f"RENAME {self.one('TO ', 'AS ', '= ', '')}{self.table(self.rng.choice(sorted(self.tables())))}")
        words = self.one(
            "ALTER TABLE",
            "ALTER TABLE",
            "alter table",
            *(["ALTER ONLINE TABLE", "ALTER IGNORE TABLE", "ALTER TABLE IF EXISTS"] if self.mariadb else []),
        )
        wait = self.maybe(0.05, self.one(" WAIT 5", " NOWAIT")) if self.mariadb else ""
        versions = ["/*!50000 , ", "/*!99999 , ", "/*! , ", "/*M!100101 , ", "/*!100000 , ", "/*M! , "]
        text = f"{words} {self.table(table)}{wait}{self.space()}{self.one(', ', ',').join(parts)}"
        return text + self.maybe(0.08, lambda: f" {self.rng.choice(versions)}{self.part()} */")

    # ------------------------------------------------------------ other statements

    def tables(self) -> list[str]:
        # Where MariaDB copies a table whose file has another name, to give it another name, the old one stays, too.
        quoted = "select" if self.mariadb else "t, 5 ("
        return [f"{database}.{name}" for database in DATABASES for name in ("t0", "t1", "t2", "t3", "t4", quoted)]

    def names(self, count: int) -> list[str]:
        """Tables, the first one often of a name that is free."""
        names = self.rng.sample(self.tables(), count)
        free = [name for name in self.tables() if self.catalog.find(*name.split(".")) is None and name not in names]
        if free and self.rng.random() < 0.6:
            names[0] = self.rng.choice(free)
        return names

    def other(self) -> str:
        first, second, third = [self.table(name) for name in self.names(3)]
        charset = self.rng.choice(SETS)
        collation = self.collation(charset)
        database = self.rng.choice(sorted(DATABASES))
        exists = self.maybe(0.5, "IF EXISTS ")
        kinds = [
            f"DROP TABLE {exists}{first}",
            f"DROP TABLE {exists}{first}, {second}{self.maybe(0.3, ' RESTRICT')}",
            f"RENAME TABLE {second} TO {first}",
            f"RENAME TABLE {second} TO {first}, {third} TO {second}",
            f"RENAME TABLE {second} TO `tmp`, {third} TO {second}, `tmp` TO {third}",
            f"CREATE TABLE {self.maybe(0.3, 'IF NOT EXISTS ')}{first} LIKE {second}",
            f"CREATE TABLE {first} (LIKE {second})",
            f"CREATE TABLE {first} SELECT * FROM {second}",
            f"CREATE TABLE {first} (zz int) AS SELECT 1 AS a, 'x' AS b",
            f"TRUNCATE {self.one('', 'TABLE ')}{second}",
            f"{self.one('ANALYZE', 'OPTIMIZE', 'CHECK', 'REPAIR')} TABLE {second}",
            f"DROP TABLES {exists}{second} CASCADE",
            f"DROP SCHEMA IF EXISTS `{database}`",
            f"CREATE SCHEMA IF NOT EXISTS `{database}` DEFAULT CHARACTER SET = {charset} DEFAULT COLLATE = {collation}",
            f"ALTER SCHEMA `{database}` COLLATE {collation}",
            f"CREATE INDEX {self.new()} ON {first} ({self.old()})",
            f"DROP INDEX `PRIMARY` ON {first}",
            f"DROP INDEX {self.new()} ON {first}",
            f"ALTER DATABASE `{database}` {self.one('', 'DEFAULT ')}CHARACTER SET {charset}",
            f"ALTER DATABASE {self.one('CHARACTER SET', 'CHARSET')} = {charset}",
            f"CREATE DATABASE IF NOT EXISTS `{database}` CHARACTER SET {charset}",
            f"CREATE VIEW v1 AS SELECT 1 AS `{self.rng.choice('abc')}`",
            "DROP VIEW v1",
            f"DROP DATABASE {exists}`{database}`",
            f"CREATE DATABASE {self.maybe(0.3, 'IF NOT EXISTS ')}`{database}`{self.maybe(0.5, f' COLLATE {collation}')}",
            f"CREATE TEMPORARY TABLE {first} (x int)",
            f"DROP TEMPORARY TABLE IF EXISTS {first}",
        ]
        if self.mariadb:
            as_ = (
                self.maybe(
                    0.6,
                    lambda: (
                        f" AS {self.one('TINYINT', 'int', 'BIGINT', 'smallint', 'mediumint')}{self.one('', ' UNSIGNED', ' SIGNED')}"
                    ),
                )
                if self.newest
                else ""
            )
            kinds += [
                f"CREATE {self.one('', 'OR REPLACE ')}SEQUENCE {first}{as_}",
                f"CREATE SEQUENCE IF NOT EXISTS {first}{as_} START 5",
                f"ALTER SEQUENCE {first}{as_} RESTART 3",
                f"DROP SEQUENCE {exists}{first}",
                f"RENAME TABLE IF EXISTS {first} TO {second}",
                f"CREATE OR REPLACE TABLE {first} LIKE {second}",
                f"ALTER DATABASE `{database}` CHARACTER SET DEFAULT",
                f"CREATE OR REPLACE DATABASE `{database}` CHARACTER SET DEFAULT",
                f"DROP INDEX IF EXISTS `primary` ON {first}",
                f"SET STATEMENT lock_wait_timeout = 5 FOR DROP TABLE IF EXISTS {first}",
                f"DROP TABLE IF EXISTS {second}, {third} WAIT 5",
                f"DROP TABLE {second} NOWAIT",
                f"TRUNCATE TABLE {second} WAIT 5",
                f"RENAME TABLE {second} WAIT 5 TO {first}",
                f"CREATE OR REPLACE {self.one('', 'UNIQUE ')}INDEX {self.new()} ON {second} ({self.old()}) WAIT 5",
                f"DROP INDEX IF EXISTS {self.new()} ON {second} NOWAIT",
                f"CREATE OR REPLACE DATABASE `{database}` COMMENT {self.text()} COLLATE {collation}",
                f"ALTER DATABASE `{database}` COMMENT = {self.text()}",
            ]
        else:
            kinds += [
                f"ALTER DATABASE `{database}` READ ONLY = 0",
                f"ALTER DATABASE DEFAULT ENCRYPTION = 'N' COLLATE {collation}",
                f"CREATE TABLE {first} TABLE {second}",
                f"CREATE INDEX {self.new()} ON {second} ({self.old()}) ALGORITHM = INPLACE LOCK = DEFAULT",
            ]
        return self.rng.choice(kinds)

    def statement(self) -> str:
        table = self.rng.choice(self.tables())
        database, name = table.split(".")
        known = self.catalog.find(database, name)
        if self.rng.random() < 0.08:
            return self.other()
        if self.catalog.charset_of(database) is None and self.rng.random() < 0.5:
            return f"CREATE DATABASE `{database}` CHARACTER SET {self.rng.choice(SETS)}"
        if self.catalog.is_view(database, name) and self.rng.random() < 0.5:
            return f"DROP VIEW {self.table(table)}"
        if isinstance(known, Table):
            if self.rng.random() < 0.05:
                return f"DROP TABLE {self.table(table)}"
            self.look_at(known)
            return self.alter(table) if self.rng.random() < 0.93 else self.create(table)
        return self.create(table)

    def look_at(self, table: Table) -> None:
        """What is written next is about this table."""
        self.columns = [column.name for column in table.columns]
        self.keyed, self.versioned = bool(table.key), table.versioned
