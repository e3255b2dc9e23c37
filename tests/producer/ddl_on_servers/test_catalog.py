"""DDLs followed as the servers do them: each statement's tables against those of a new snapshot of information_schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shmstore.event import Position
from shmstore.producer.binlog import events
from shmstore.producer.schema.history import SchemaHistory
from shmstore.sql.classify import classify
from tests.producer.decoding import QUERY, database_of, run
from tests.producer.schema.test_history import query_of, tables_of
from tests.servers.server import Server, start_server

BOTH = [
    "CREATE TABLE t (id int unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, `weird ``name` varchar(10), n decimal(5,2) UNSIGNED ZEROFILL)",
    "ALTER TABLE t ADD COLUMN a int FIRST, ADD b bigint unsigned AFTER id, ADD c enum('x','it''s','a,b','\\\\','u ') CHARACTER SET latin1",
    "ALTER TABLE t ADD (d set('1','2') NOT NULL DEFAULT '1', e char(3) CHARACTER SET ucs2 COLLATE ucs2_bin, KEY (a))",
    "ALTER TABLE t CHANGE a z tinyint unsigned COMMENT 'AFTER unsigned, (', MODIFY b int",
    "ALTER TABLE t MODIFY COLUMN z smallint unsigned DEFAULT 5 AFTER c, DROP d, DROP COLUMN e",
    "ALTER TABLE t DROP PRIMARY KEY, MODIFY id int, ADD CONSTRAINT pk PRIMARY KEY USING BTREE (z, id)",
    "ALTER TABLE t ADD UNIQUE KEY u (b), ADD INDEX (n), ADD CONSTRAINT ch CHECK (b > 0 OR 'DROP n' = 'x')",
    "ALTER TABLE t ALTER COLUMN b SET DEFAULT 7, ALTER n DROP DEFAULT",
    "ALTER TABLE t DROP CONSTRAINT ch",
    "ALTER TABLE t RENAME COLUMN b TO bb",
    "ALTER TABLE t ADD `select` text, ADD `order` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, ADD COLUMN status int",
    "ALTER TABLE t CONVERT TO CHARACTER SET gbk",
    "ALTER TABLE t ADD after_convert varchar(9), ADD bin1 char(4) CHARACTER SET binary, ADD asc1 char(3) ASCII",
    "ALTER TABLE t DEFAULT CHARACTER SET = latin2, COMMENT = 'CHARSET=utf8mb4'",
    "ALTER TABLE t ADD in_latin2 longtext, ADD nat NATIONAL VARCHAR(9), ADD nch NCHAR(4), ADD lng LONG VARCHAR, ADD lvb LONG VARBINARY",
    "ALTER TABLE t ENGINE = InnoDB, COLLATE utf8mb4_bin",
    "ALTER TABLE t ADD in_mb4 varchar(5)",
    "ALTER TABLE t RENAME TO t2",
    "ALTER TABLE t2 RENAME AS t, ADD last int",
    "CREATE TABLE other LIKE t",
    "RENAME TABLE t TO tmp, other TO t, tmp TO other",
    "CREATE TABLE parts (id int, k int, PRIMARY KEY (k, id)) CHARSET koi8r PARTITION BY HASH(k) PARTITIONS 2",
    "ALTER TABLE parts ADD PARTITION PARTITIONS 1",
    "ALTER TABLE parts ADD x varchar(3) REMOVE PARTITIONING",
    "ALTER TABLE parts ADD y varchar(3), COMMENT 'x' PARTITION BY RANGE (k) (PARTITION p VALUES LESS THAN MAXVALUE)",
    "CREATE TABLE synonyms (a BOOL, b INT4, c INTEGER UNSIGNED, d DEC(5), e NUMERIC(6,1), f FIXED, g REAL, h DOUBLE PRECISION, i FLOAT(30), "
    "j CHARACTER VARYING(5), k CHARACTER(5), l MIDDLEINT, m INT1, n SERIAL, o FLOAT4, p FLOAT8, q VARCHARACTER(4), r CHAR BYTE)",
    "CREATE TABLE kinds (a year, b date, c datetime(3), d timestamp(6) NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), e time(2), "
    "f bit(7), g json, h geometry, i point, j binary(3), k varbinary(3), l blob, m tinytext, n mediumblob, o longtext CHARACTER SET utf16)",
    "CREATE TABLE gen (a int, b int GENERATED ALWAYS AS (a + 1) VIRTUAL, c varchar(9) AS (concat('x,(', a)) STORED, UNIQUE (b))",
    "CREATE TABLE refs (id int PRIMARY KEY, g int, FOREIGN KEY (g) REFERENCES other2 (id) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE /* a comment, ( */ `co``mm` (a int /*! unsigned */, -- end, )\n b int # more, (\n)",
    "CREATE TABLE IF NOT EXISTS kinds (different int)",
    "CREATE TABLE case_names (Id int, ID2 int)",
    "ALTER TABLE case_names CHANGE iD iD int unsigned, ADD x int AFTER ID",
    "ALTER TABLE case_names RENAME COLUMN id TO id2, RENAME COLUMN id2 TO id",
    "CREATE TABLE swap (a int, b varchar(3), PRIMARY KEY (a))",
    "ALTER TABLE swap RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "CREATE TABLE defaults (a varchar(9) DEFAULT 'unsigned' COLLATE latin1_bin, b int DEFAULT -1 COMMENT 'PRIMARY KEY', c enum('CHARSET','(') DEFAULT '(')",
    "DROP TABLE IF EXISTS nothing_here, swap",
    "CREATE TABLE charsets (a char(1), b char(1) CHARSET utf8, c text COLLATE latin1_german2_ci, d tinytext UNICODE) DEFAULT CHARSET=cp1251 COLLATE=cp1251_bin",
    "CREATE TABLE keys1 (a int KEY, b int UNIQUE KEY, c int UNIQUE)",
    "CREATE TABLE keys2 (a varchar(99), b int, `primary` int, PRIMARY KEY (a(10), b), KEY `k` (b), FULLTEXT KEY ft (a))",
    # a new column takes the place that one of its name had in the key, where that one is gone or comes behind it
    "CREATE TABLE keys4 (a int, b int, c int, PRIMARY KEY (c, b))",
    "ALTER TABLE keys4 DROP b, ADD b int FIRST",
    "ALTER TABLE keys4 ADD c int, RENAME COLUMN c TO d",
    "ALTER TABLE keys4 ADD B int FIRST, CHANGE b e int",
    "ALTER TABLE keys4 CHANGE d a int, DROP a, ADD e2 int",
    "ALTER TABLE keys4 DROP b, DROP a",
    "ALTER TABLE keys2 DROP INDEX k, DROP COLUMN `primary`, ADD COLUMN `key` int",
    "ALTER DATABASE CHARACTER SET latin5",
    "CREATE TABLE in_latin5 (a varchar(3), e enum('ş'))",
    "TRUNCATE TABLE in_latin5",
    # where in an ALTER a part stands does not count: options first, then what goes and changes, then what comes and moves, then keys
    "CREATE TABLE parts1 (a int, b varchar(9), c int, e enum('x') CHARACTER SET binary, PRIMARY KEY (c)) CHARSET latin1",
    "ALTER TABLE parts1 ADD d varchar(20), DEFAULT CHARSET = gbk",
    "ALTER TABLE parts1 ADD PRIMARY KEY (f), DROP PRIMARY KEY, ADD f int",
    "ALTER TABLE parts1 MODIFY b varchar(10) AFTER h, CHANGE c h int, ADD i int FIRST, ADD j int AFTER i",
    "ALTER TABLE parts1 ADD k varchar(3) CHARACTER SET koi8r, ADD l enum('ü') CHARACTER SET latin1, CONVERT TO CHARACTER SET utf8mb4, ADD m text",
    "ALTER TABLE parts1 DROP d, DROP l, ADD d int, COMMENT 'x' CHARSET latin2",
    "ALTER TABLE parts1 ADD n char(3), CONVERT TO CHARACTER SET binary",
    "CREATE TABLE keys3 (PRIMARY KEY (id), id int, UNIQUE (x), x int)",
    # members as hexadecimal and bit literals are bytes of the column's own character set
    "CREATE TABLE hex1 (a enum(0xfc, x'41', 'b') CHARACTER SET latin1, b set(b'01000001', 0b01000010), c enum(0xC3BC), d enum(X'', 0x4))",
    "CREATE TABLE hex2 (a enum(0x41, 'x ') CHARACTER SET ucs2, b set(0x414243, 'y') CHARACTER SET ucs2, c enum(0x4120)) CHARSET gbk",
    "CREATE TABLE hex3 (a enum(0xcac0), c enum(0x4100) CHARACTER SET utf16le, d enum(0xfc) COLLATE latin1_bin) CHARSET gbk",
    "ALTER TABLE hex3 ADD e enum(0xfc) DEFAULT x'fc', ADD f varchar(9) DEFAULT _latin1'unsigned' NOT NULL, CHARSET latin2",
    "CREATE TABLE bin1 (a varchar(5), b enum('b '), c text, d char(5), e varchar(5) COLLATE utf8mb4_bin, f tinytext, g longtext) CHARSET binary",
    # words that are keywords in some places only
    "CREATE TABLE words (`period` int, `system` int, `vector` int, `check` int, `primary` int, `ascii` int, `byte` int, `first` int, z int)",
    "ALTER TABLE words DROP COLUMN `period`, DROP `system`, DROP `check`, ADD `period` int AFTER `first`, ADD `system` int",
    "ALTER TABLE words MODIFY z char(3) AFTER `first`, ADD y char(3) NOT NULL AFTER `byte`, DROP `vector`",
    "ALTER TABLE words CHANGE `first` `after` char(3) AFTER `ascii`, ADD x int COMMENT 'after ascii', ADD `constraint` int",
    "CREATE TABLE IF NOT EXISTS actions (action int, begin int, charset int, comment int, data int, end int, no int, status int, type int, value int)",
    "ALTER TABLE actions DROP charset, DROP comment, ADD hash int, ADD names int, ADD names2 int AFTER names, DROP end",
    "CREATE TABLE refs2 (a char(3) CHECK (a <> 'unicode'), b int, CONSTRAINT `unsigned` CHECK (b > 0), c int REFERENCES zz (x) ON DELETE SET NULL)",
    "CREATE DATABASE IF NOT EXISTS ddl CHARACTER SET utf16",
    "CREATE TABLE still (a text)",
    "CREATE INDEX i ON in_latin5 (a)",
    "CREATE VIEW v AS SELECT 1 AS x",
    "DROP VIEW v",
]
ONLY = {
    "mariadb": [
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS last varchar(5), DROP COLUMN IF EXISTS nope, ADD COLUMN IF NOT EXISTS new1 int unsigned",
        "ALTER TABLE t MODIFY COLUMN IF EXISTS nope int, CHANGE COLUMN IF EXISTS new1 new2 int, RENAME COLUMN IF EXISTS nope TO x",
        "ALTER ONLINE TABLE IF EXISTS t WAIT 5 DROP new2",
        "SET STATEMENT lock_wait_timeout = 5, max_statement_time = 9 FOR ALTER TABLE t ADD set1 int",
        "CREATE OR REPLACE TABLE kinds (u uuid, i inet6, j inet4, k varchar(20) COMPRESSED, c json CHECK (json_valid(c)))",
        "CREATE TABLE versioned (id int PRIMARY KEY, x int) WITH SYSTEM VERSIONING",
        "ALTER TABLE versioned ADD y int",
        "ALTER TABLE versioned DROP SYSTEM VERSIONING",
        "ALTER TABLE versioned ADD SYSTEM VERSIONING",
        "CREATE TABLE period (id int PRIMARY KEY, s timestamp(6) GENERATED ALWAYS AS ROW START, e timestamp(6) GENERATED ALWAYS AS ROW END, "
        "PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
        "ALTER TABLE period DROP PRIMARY KEY, ADD x int, ADD PRIMARY KEY (x)",
        "CREATE TABLE ending (x int, s timestamp(6) GENERATED ALWAYS AS ROW START, e timestamp(6) GENERATED ALWAYS AS ROW END, "
        "PERIOD FOR SYSTEM_TIME (s, e), PRIMARY KEY (e)) WITH SYSTEM VERSIONING",
        "ALTER TABLE ending ADD y int, ADD PRIMARY KEY IF NOT EXISTS (y)",
        "ALTER TABLE ending DROP e, DROP s, MODIFY y int AFTER x",  # else they stay before it, which information_schema does not show
        "ALTER TABLE versioned DROP PRIMARY KEY, ADD z int, ADD PRIMARY KEY (z), ADD UNIQUE (x)",
        "ALTER TABLE words DROP COLUMN system",
        "CREATE TABLE hashed (a int, b text, c blob, UNIQUE (b), UNIQUE (c))",
        "ALTER DATABASE COMMENT 'x' CHARACTER SET latin7",
        "CREATE TABLE in_latin7 (a text)",
        "CREATE TABLE texts (a blob COLLATE latin1_bin, b blob(10) NOT NULL COLLATE utf32_bin, c varbinary(60000) COLLATE utf8mb4_bin, "
        "d binary COLLATE gbk_bin, e json COLLATE latin1_bin, f long varbinary DEFAULT 'x' COLLATE koi8r_bin, "
        "g blob COLLATE 'binary', h varbinary(9) NOT NULL COLLATE utf8mb4_bin, i tinyblob COMMENT 'x' COLLATE latin2_bin, j point COLLATE latin1_bin)",
        "ALTER TABLE texts MODIFY i mediumblob COLLATE dec8_bin, ADD k binary(9) COLLATE swe7_bin, CONVERT TO CHARACTER SET utf32",
        "CREATE TABLE without (a int, b int)",  # what IF EXISTS leaves out gives a key all the same
        "ALTER TABLE without CHANGE IF EXISTS nope B bigint PRIMARY KEY, ADD c int",
        "ALTER TABLE without CHANGE IF EXISTS nope c int PRIMARY KEY, MODIFY IF EXISTS nope2 int KEY",
        "ALTER TABLE without DROP PRIMARY KEY, MODIFY IF EXISTS nope int KEY, ADD nope int",
        "ALTER TABLE without MODIFY IF EXISTS d int KEY, ADD d int",
        "CREATE SEQUENCE seq START 5",
        "DROP SEQUENCE seq",
        "CREATE TABLE period2 (id int, f date, u date, PERIOD FOR app (f, u))",
        "RENAME TABLE IF EXISTS nope TO nope2, parts TO parts2",
        # A key without overlaps ends with the period, behind the row's end, and goes with the last column of its own; another one stays.
        "CREATE TABLE app (id int, v int, z date, s date, e date, PERIOD FOR p (s, e), PRIMARY KEY (id, p WITHOUT OVERLAPS))",
        "ALTER TABLE app ADD rs timestamp(6) AS ROW START, ADD re timestamp(6) AS ROW END, ADD PERIOD FOR SYSTEM_TIME (rs, re), "
        "ADD SYSTEM VERSIONING",
        "ALTER TABLE app DROP PRIMARY KEY, ADD PRIMARY KEY (v, p WITHOUT OVERLAPS)",
        "ALTER TABLE app DROP SYSTEM VERSIONING, DROP rs, DROP re, RENAME COLUMN s TO e, RENAME COLUMN e TO s",
        "ALTER TABLE app CHANGE e x date, CHANGE z e date",
        "ALTER TABLE app ADD SYSTEM VERSIONING",
        "ALTER TABLE app DROP v",
        "CREATE TABLE app2 (id int, s date, e date, PERIOD FOR p (s, e), PRIMARY KEY (e)) WITH SYSTEM VERSIONING",
        "ALTER TABLE app2 DROP SYSTEM VERSIONING",
        # A column that names only a collation is of the table's character set.
        "CREATE TABLE two_sets (a text, b text, c text) CHARACTER SET latin1",
        "ALTER TABLE two_sets ADD d text COLLATE DEFAULT, ADD e text, CHARACTER SET gbk, MODIFY a text BINARY, MODIFY b text, "
        "ADD f text CHARACTER SET cp850 BINARY, CONVERT TO CHARACTER SET utf32",
        "ALTER TABLE two_sets ADD g date DEFAULT {d '2020-01-01'} FIRST, ADD h year(4) zerofill",
    ],
    "mysql": [
        "CREATE TABLE invisible (a int INVISIBLE, b int, c varchar(3) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs)",
        "CREATE TABLE funcs (a int, b json, KEY f ((a + 1)), c int DEFAULT (1 + (2 * 3)), v vector(3), g point SRID 4326)",
        "ALTER TABLE funcs ADD KEY g ((abs(a))), ADD d varchar(9) DEFAULT (concat('a', ')')), ALGORITHM = INSTANT"[:-len(", ALGORITHM = INSTANT")],
        "ALTER TABLE words DROP period, ADD vector vector(3), ADD period int",
        "ALTER TABLE words DROP vector, DROP COLUMN period",
        "CREATE TABLE hex4 (a enum(0xfc, 'x') CHARACTER SET latin1, b enum('ü ') CHARACTER SET binary)",
        "CREATE TABLE years (a year(4) unsigned, b year zerofill)",
        "CREATE TABLE sub (a int, b int) PARTITION BY RANGE (a) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def newer() -> Iterator[Server]:
    with start_server("mariadb118") as server:
        yield server


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql", "newer"])
def test_every_ddl_is_followed_as_the_server_does_it(kind: str) -> None:
    """After each statement the followed tables are those that a new snapshot of information_schema shows."""
    # On a server of its own: information_schema is read after each DDL, which takes long with the tables of all other tests in it.
    with start_server({"newer": "mariadb118"}.get(kind, kind)) as server, database_of(server, "ddl") as (connection, _):
        run(connection, "SET SESSION foreign_key_checks = 0, sql_mode = ''")
        if server.flavor == "mariadb":
            run(connection, "SET SESSION system_versioning_alter_history = KEEP")
        followed = SchemaHistory()
        followed.snapshot(query_of(connection), Position("binlog.000001", 1))
        for i, sql in enumerate(BOTH + ONLY[server.flavor]):
            run(connection, sql)
            followed.follow(Position("binlog.000001", 100 + i), "ddl", sql)
            fresh = SchemaHistory()
            fresh.snapshot(query_of(connection), Position("binlog.000001", 1), database="ddl")
            expected = tables_of(fresh, "ddl")
            got = tables_of(followed, "ddl")
            assert sorted(got) == sorted(expected), sql
            for table, wanted in expected.items():
                assert list(got[table]) == list(wanted), f"{sql}: {table}: {set(got[table][0]) ^ set(wanted[0])}"


MODED = [
    ("", r"""CREATE TABLE m (a int comment 'it\\', b varchar(5) CHARACTER SET latin1 comment "x\", c date, ", d enum('\\','\''))"""),
    ("NO_BACKSLASH_ESCAPES", r"""CREATE TABLE n (a int comment 'it\', b varchar(5) CHARACTER SET latin1 comment 'x, c date', d enum('\','e\n'))"""),
    ("ANSI_QUOTES", r"""CREATE TABLE "o ""p" ("a" int comment 'x\', c date', "b, c" varchar(5), PRIMARY KEY ("b, c"))"""),
    ("ANSI_QUOTES", r"""ALTER TABLE "o ""p" ADD "key" int, RENAME COLUMN "a" TO "primary", RENAME TO "table" """),
    ("ANSI,NO_BACKSLASH_ESCAPES", r"""CREATE TABLE "q\" ("a\" int comment '\', "b" char(5) DEFAULT '\', "set" set('\','b'))"""),
    ("NO_BACKSLASH_ESCAPES", r"""ALTER TABLE m ADD e enum("\",'\'''), DROP a"""),
    ("", r"""ALTER TABLE n ADD e enum("\\","\"x"), DROP a"""),
]  # fmt: skip


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql", "newer"])
def test_text_is_read_in_the_mode_it_was_written_in(kind: str, request: pytest.FixtureRequest) -> None:
    """NO_BACKSLASH_ESCAPES and ANSI_QUOTES decide where strings and names end; each statement's mode comes with it in the log."""
    server: Server = request.getfixturevalue(kind)
    with database_of(server, "modes") as (connection, log):
        followed = SchemaHistory()
        followed.snapshot(query_of(connection), Position("binlog.000001", 1))
        for i, (mode, sql) in enumerate(MODED):
            log.skip()
            run(connection, f"SET SESSION sql_mode = '{mode}'", sql)
            (query,) = [events.query(body) for type_, body in log.events() if type_ == QUERY]
            assert query.sql.startswith(sql.strip())
            assert set(mode.split(",")) & {"NO_BACKSLASH_ESCAPES", "ANSI_QUOTES"} <= set(str(query.mode).split(","))
            statement = classify(query.sql, query.database, query.mode)
            followed.follow(Position("binlog.000001", 100 + i), query.database, query.sql, query.session)
            fresh = SchemaHistory()
            run(connection, "SET SESSION sql_mode = DEFAULT")
            fresh.snapshot(query_of(connection), Position("binlog.000001", 1), database="modes")
            expected = tables_of(fresh, "modes")
            assert tables_of(followed, "modes") == expected, sql
            assert {table for _, table in statement.targets or statement.tables} <= set(expected), sql
