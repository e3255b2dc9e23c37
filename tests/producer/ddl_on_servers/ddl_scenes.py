"""Random statements that need one another: partitions, columns that change names, views and sequences in the way, routines that run DDL."""

from __future__ import annotations

from collections.abc import Callable

from shmstore.sql.table_change import Table
from tests.producer.ddl_on_servers.ddl_grammar import Grammar

__all__ = ["Scenes"]


class Scenes(Grammar):
    """Grammar, and statements that come more often than chance would bring them."""

    def before(self, sql: str) -> list[str]:
        """What has to run before a statement."""
        if sql.startswith("CALL "):
            return ["DROP PROCEDURE IF EXISTS p", f"CREATE PROCEDURE p() {self._routine}"]
        if sql.startswith("EXECUTE s"):
            return [f"PREPARE s FROM {self.string(self._routine)}"]
        return []

    def statement(self) -> str:
        if self.rng.random() > 0.2:
            sql = super().statement()
        else:
            sql = self.scene()
        chance = self.rng.random()
        self._routine = sql
        if chance < 0.02:
            return f"CALL {self.database_name()}.p()"
        if chance < 0.04:
            return f"EXECUTE IMMEDIATE {self.string(sql)}" if self.mariadb and chance < 0.03 else "EXECUTE s"
        if self.mariadb and chance < 0.08:
            return f"SET STATEMENT {self.setting()} FOR {sql}"
        if self.mariadb and chance < 0.09:
            return f"BEGIN NOT ATOMIC {self.one('', 'IF 1 THEN SET @a = 2; END IF; ')}{sql}; END"
        return sql

    def database_name(self) -> str:
        return f"`{self.database}`"

    def setting(self) -> str:
        return self.one(
            "lock_wait_timeout = 5",
            "sql_mode = 'ORACLE'",
            "sql_mode = 'REAL_AS_FLOAT', lock_wait_timeout = 4",
            "sql_mode = ''",
            "sql_mode = CONCAT('ANSI', '_QUOTES')",
            "sql_mode = 'NO_BACKSLASH_ESCAPES'",
            "character_set_server = koi8r",
            "explicit_defaults_for_timestamp = 1",
            "explicit_defaults_for_timestamp = 0",
            "collation_connection = latin1_bin",
            "character_set_client = latin1",
            "default_storage_engine = MyISAM",
        )

    def scene(self) -> str:
        first, second, third = [self.table(name) for name in self.names(3)]
        tables = [name for name in self.tables() if isinstance(self.catalog.find(*name.split(".")), Table)]
        there = first
        if tables:
            name = self.rng.choice(tables)
            there, known = self.table(name), self.catalog.find(*name.split("."))
            assert isinstance(known, Table)
            self.look_at(known)
        kinds: list[Callable[[], str]] = [
            lambda: self.partitioned(first),
            lambda: self.partitioned(first),
            lambda: f"ALTER TABLE {there} {self.of_partitions(second, third)}",
            lambda: f"ALTER TABLE {there} {self.of_partitions(second, third)}",
            lambda: f"ALTER TABLE {there} {self.of_partitions(second, third)}",
            lambda: self.renaming(tables or self.tables()),
            lambda: self.renaming(tables or self.tables()),
            lambda: self.replacing(there),
            lambda: self.viewing(first, there),
            lambda: self.viewing(there, second),
            lambda: self.filled(first, there),
            lambda: self.moved(there, first, second, third),
            lambda: self.indexed(there),
        ]
        if self.mariadb:
            kinds += [lambda: self.versioning(there), lambda: self.versioning(there)]
        return self.rng.choice(kinds)()

    # ------------------------------------------------------------ partitions

    def partitioned(self, table: str) -> str:
        column = self.new()
        parts = "(PARTITION p0 VALUES LESS THAN (10), PARTITION `p 1` VALUES LESS THAN (20) COMMENT 'x, (', PARTITION p2 VALUES LESS THAN MAXVALUE)"
        how = self.one(
            f"RANGE (a) {parts}",
            f"RANGE COLUMNS (a) {parts}",
            f"LIST (a) (PARTITION p0 VALUES IN (1, NULL), PARTITION `p 1` VALUES IN (3, 4){', PARTITION p2 DEFAULT' if self.mariadb else ''})",
            "HASH (a) PARTITIONS 3",
            "LINEAR HASH (a + 1) PARTITIONS 2",
            "KEY ALGORITHM = 2 (a)",
            "LINEAR KEY ALGORITHM=1 (a) PARTITIONS 3",
            "LIST COLUMNS (a) (PARTITION p0 VALUES IN (1, 2) ENGINE = InnoDB MAX_ROWS 5, PARTITION p2 VALUES IN ((3)) COMMENT 'x')",
            "RANGE (a) SUBPARTITION BY LINEAR KEY (a) (PARTITION p0 VALUES LESS THAN (10) (SUBPARTITION s0, SUBPARTITION `s 1`), "
            "PARTITION p2 VALUES LESS THAN MAXVALUE (SUBPARTITION s2 COMMENT = ')', SUBPARTITION s3))",
            f"RANGE (a) SUBPARTITION BY HASH (a) SUBPARTITIONS 2 {parts}",
        )
        versioned = ""
        if self.mariadb and self.rng.random() < 0.2:
            how, versioned = (
                self.one("(PARTITION p0 HISTORY, PARTITION p2 CURRENT)", "INTERVAL 1 DAY PARTITIONS 3", "LIMIT 100"),
                " WITH SYSTEM VERSIONING",
            )
            how = f"SYSTEM_TIME {how}"
        head = self.one("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", *(["CREATE OR REPLACE TABLE"] if self.mariadb else []))
        plain = self.maybe(0.3, "") or f" PARTITION BY {how}"
        more = f", {column} {self.type()}" if column.strip('`"').lower() != "a" else ""
        if self.rng.random() < 0.35:
            plain = ""
        return f"{head} {table} (a INT{more}){self.maybe(0.2, ' CHARSET=latin1')}{versioned}{plain}"

    def of_partitions(self, second: str, third: str) -> str:
        name = self.one("p0", "`p 1`", "p2")
        forms = [
            "REMOVE PARTITIONING",
            f"DROP PARTITION {self.maybe(0.3, 'IF EXISTS ') if self.mariadb else ''}{name}",
            f"TRUNCATE PARTITION {self.one(name, 'ALL')}",
            "COALESCE PARTITION 1",
            f"ANALYZE PARTITION {name}",
            f"{self.one('REBUILD', 'OPTIMIZE', 'REPAIR', 'CHECK')} PARTITION {self.one(name, 'ALL')}",
            "REORGANIZE PARTITION",
            f"PARTITION BY LIST COLUMNS (a) (PARTITION p0 VALUES IN (1, 2), PARTITION p2 VALUES IN ({self.rng.randint(3, 9)}))",
            "ADD PARTITION PARTITIONS 2",
            "ADD PARTITION (PARTITION `p 9` VALUES IN (77, 78))",
            f"REORGANIZE PARTITION {name} INTO (PARTITION {name} VALUES LESS THAN MAXVALUE)",
            f"EXCHANGE PARTITION {name} WITH TABLE {second}{self.maybe(0.3, ' WITHOUT VALIDATION')}",
            f"EXCHANGE PARTITION {name} WITH TABLE {second}",
            "PARTITION BY HASH (a) PARTITIONS 2",
            f"{self.part()} PARTITION BY KEY (a)",
            f"ADD COLUMN {self.new()} INT PARTITION BY RANGE (a) (PARTITION p0 VALUES LESS THAN (5), PARTITION p2 VALUES LESS THAN MAXVALUE)",
            f"DROP COLUMN {self.old()} REMOVE PARTITIONING",
        ]
        if self.mariadb:
            forms += [
                f"CONVERT PARTITION {name} TO TABLE {third}",
                f"CONVERT PARTITION {name} TO TABLE {third}",
                f"CONVERT TABLE {second} TO PARTITION p7 VALUES LESS THAN MAXVALUE",
                f"CONVERT TABLE {second} TO PARTITION p7 VALUES IN (66){self.maybe(0.3, ' WITHOUT VALIDATION')}",
            ]
        return self.rng.choice(forms)

    # ------------------------------------------------------------ names

    def renaming(self, tables: list[str]) -> str:
        """Columns that change names with each other, or one after another."""
        chosen = self.rng.choice(tables)
        known = self.catalog.find(*chosen.split("."))
        names = [column.name for column in known.columns] if isinstance(known, Table) else ["a", "b"]
        picked = [self.quoted(name) for name in self.rng.sample(names, min(3, len(names)))]
        targets = [*picked[1:], self.one(picked[0], self.new())]
        parts = []
        for old, new in zip(picked, targets, strict=True):
            parts.append(
                self.one(
                    f"RENAME COLUMN {old} TO {new}", f"CHANGE {old} {new} {self.type()}", f"CHANGE COLUMN {old} {new} INT FIRST"
                )
            )
        if self.rng.random() < 0.3:
            parts.append(self.part())
        self.rng.shuffle(parts)
        return f"ALTER TABLE {self.table(chosen)} {', '.join(parts)}"

    def replacing(self, there: str) -> str:
        """A column that comes, and another that is changed into it."""
        new, old = self.new(), self.old()
        parts = [f"ADD {self.definition(new, placed=True)}", f"CHANGE {old} {self.definition(new, placed=True)}", f"DROP {old}"]
        if self.rng.random() < 0.3:
            self.rng.shuffle(parts)
        return f"ALTER TABLE {there} {', '.join([*parts, *[self.part()] * (self.rng.random() < 0.3)])}"

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def moved(self, there: str, first: str, second: str, third: str) -> str:
        """Tables that change names, several in one statement."""
        return self.one(
            f"RENAME TABLE {there} TO {first}, {first} TO {second}",
            f"RENAME TABLE {there} TO {first}, {second} TO {there}, {first} TO {third}",
            f"RENAME TABLES {there} TO `d1`.`tmp2`, `d1`.`tmp2` TO {first}",
            f"ALTER TABLE {there} RENAME TO {first}",
            f"ALTER TABLE {there} {self.part()}, RENAME {first}",
            f"ALTER TABLE {there} RENAME {first}, {self.part()}",
            f"DROP TABLE IF EXISTS {there}, {first}, {second}",
            f"DROP TABLE {there}, {first}",
        )

    # ------------------------------------------------------------ other objects

    def viewing(self, first: str, there: str) -> str:
        """Views of the names that tables have."""
        replace = self.maybe(0.5, "OR REPLACE ")
        return self.one(
            f"CREATE {replace}VIEW {first} AS SELECT * FROM {there}",
            f"CREATE {replace}ALGORITHM=MERGE VIEW {first} AS SELECT 1 AS x",
            f"CREATE {replace}SQL SECURITY INVOKER VIEW {first} (y) AS SELECT 2",
            f"ALTER VIEW {first} AS SELECT 3 AS z",
            f"DROP VIEW {first}",
            f"DROP VIEW IF EXISTS {first}, {there}",
            f"CREATE TABLE IF NOT EXISTS {first} (a INT, {self.quoted('view of')} TEXT)",
            f"CREATE TABLE IF NOT EXISTS {first} LIKE {there}",
            f"CREATE TABLE IF NOT EXISTS {first} (b INT) SELECT 1 AS b",
            f"DROP TABLE IF EXISTS {first}",
            f"RENAME TABLE {first} TO {there}",
            f"CREATE TRIGGER tr BEFORE INSERT ON {there} FOR EACH ROW SET @a = 1",
        )

    def filled(self, first: str, there: str) -> str:
        """CREATE TABLE with a query."""
        exists = self.maybe(0.3, "IF NOT EXISTS ")
        rows = "VALUES ROW(1, 'x'), ROW(2, 'y')" if not self.mariadb else "VALUES (1, 'x'), (2, 'y')"
        return self.one(
            f"CREATE TABLE {exists}{first} AS {rows}",
            f"CREATE TABLE {exists}{first} {self.one('', 'IGNORE ', 'REPLACE ')}SELECT * FROM {there}",
            f"CREATE TABLE {exists}{first} (PRIMARY KEY (k)) CHARSET=latin1 AS WITH q AS (SELECT 1 AS k) SELECT * FROM q",
            f"CREATE TABLE {exists}{first} ({self.quoted('n')} ENUM('a','b')) (SELECT 'c' AS d)",
            f"CREATE TABLE {exists}{first} (SELECT 1 AS a UNION SELECT 2)",
            f"CREATE TEMPORARY TABLE {exists}{first} SELECT 1 AS a",
            f"CREATE TEMPORARY TABLE {exists}{first} LIKE {there}",
        )

    def indexed(self, there: str) -> str:
        """Indexes, and foreign keys that bring one or take it away."""
        name, column = self.new(), self.old()
        maybe = self.maybe(0.4, "IF NOT EXISTS ") if self.mariadb else ""
        gone = self.maybe(0.4, "IF EXISTS ") if self.mariadb else ""
        return self.one(
            f"CREATE {self.one('', 'UNIQUE ', 'FULLTEXT ')}INDEX {maybe}{name} ON {there} ({column})",
            f"DROP INDEX {gone}{name} ON {there}",
            f"ALTER TABLE {there} ADD CONSTRAINT {name} FOREIGN KEY {maybe}({column}) REFERENCES {there} ({column})",
            f"ALTER TABLE {there} DROP FOREIGN KEY {gone}{name}",
            f"ALTER TABLE {there} ADD UNIQUE {maybe}{name} ({column}), DROP INDEX {gone}{name}",
            f"ALTER TABLE {there} RENAME INDEX {name} TO {self.new()}",
            f"ALTER TABLE {there} ALTER INDEX {name} {'IGNORED' if self.mariadb else 'INVISIBLE'}",
            f"ALTER TABLE {there} DROP CONSTRAINT {gone}{name}",
            f"ALTER TABLE {there} ADD COLUMN {maybe}{name} INT UNIQUE, ADD COLUMN {maybe}{self.new()} TEXT CHECK ({column} IS NOT NULL)",
        )

    def versioning(self, there: str) -> str:
        """System versioning and periods, added and taken away."""
        first, last = self.maybe(0.3, " FIRST"), self.maybe(0.3, lambda: f" AFTER {self.old()}")
        more = self.maybe(0.3, lambda: f", {self.part()}")
        return self.one(
            f"ALTER TABLE {there} ADD COLUMN rs TIMESTAMP(6) GENERATED ALWAYS AS ROW START{first}, ADD {self.definition(self.new(), placed=True)}, "
            f"ADD COLUMN re TIMESTAMP(6) GENERATED ALWAYS AS ROW END{last}, ADD PERIOD FOR SYSTEM_TIME (rs, re){more}",
            f"ALTER TABLE {there} DROP COLUMN rs, DROP COLUMN re{more}",
            f"ALTER TABLE {there} DROP COLUMN re, DROP COLUMN rs, ADD {self.definition(self.new(), placed=True)}{more}",
            f"ALTER TABLE {there} DROP PERIOD FOR pp, ADD COLUMN qs DATE, ADD COLUMN qe DATE, ADD PERIOD FOR {self.one('pp', 'pq')} (qs, qe)",
            f"ALTER TABLE {there} DROP PERIOD FOR pp, DROP {self.old()}{more}",
            f"ALTER TABLE {there} CHANGE ps xs DATE{first}, CHANGE {self.old()} ps DATE{more}",
            f"ALTER TABLE {there} ADD PRIMARY KEY ({self.one('rs', 're', self.old())}, {self.one('pp WITHOUT OVERLAPS', 'pe, ps', self.old())})",
            f"ALTER TABLE {there} DROP PRIMARY KEY, ADD PRIMARY KEY ({self.one('rs', self.old())}){more}",
            f"ALTER TABLE {there} DROP SYSTEM VERSIONING{more}",
            f"ALTER TABLE {there} ADD SYSTEM VERSIONING",
            f"ALTER TABLE {there} DROP SYSTEM VERSIONING",
            f"ALTER TABLE {there} ADD COLUMN rs TIMESTAMP(6) GENERATED ALWAYS AS ROW START{self.maybe(0.5, ' INVISIBLE')}, "
            f"ADD COLUMN re TIMESTAMP(6) GENERATED ALWAYS AS ROW END, ADD PERIOD FOR SYSTEM_TIME (rs, re), ADD SYSTEM VERSIONING",
            f"ALTER TABLE {there} DROP SYSTEM VERSIONING, DROP COLUMN rs, DROP COLUMN re",
            f"ALTER TABLE {there} DROP COLUMN rs, DROP COLUMN re, DROP PERIOD FOR SYSTEM_TIME, DROP SYSTEM VERSIONING",
            f"ALTER TABLE {there} ADD COLUMN {self.new()} INT{self.one(' WITHOUT', ' WITH')} SYSTEM VERSIONING, {self.part()}",
            f"ALTER TABLE {there} ADD COLUMN ps DATE, ADD COLUMN pe DATE, ADD PERIOD FOR pp (ps, pe)",
            f"ALTER TABLE {there} DROP PERIOD IF EXISTS FOR pp",
            f"ALTER TABLE {there} ADD PERIOD IF NOT EXISTS FOR pp (ps, pe)",
            f"ALTER TABLE {there} DROP PRIMARY KEY, ADD PRIMARY KEY ({self.old()}, pp WITHOUT OVERLAPS)",
            f"ALTER TABLE {there} ADD PRIMARY KEY ({self.one('re', self.old())})",
        )
