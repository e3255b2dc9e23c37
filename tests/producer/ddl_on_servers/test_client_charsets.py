"""DDLs of clients in every character set that a server takes: what is made of their bytes, against the server's information_schema."""

from __future__ import annotations

import random
from typing import Any

import pymysql
import pytest

from shmstore.producer.binlog import events
from shmstore.sql.catalog import Catalog, Unreadable
from shmstore.sql.charsets import statement_decoder
from shmstore.sql.session import Session
from shmstore.sql.table_change import Table
from tests.producer.decoding import QUERY, Log, database_of, run
from tests.servers.server import Server

pytestmark = pytest.mark.server

SETS = "armscii8 ascii big5 binary cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 cp932 dec8 eucjpms euckr gb18030 gb2312 gbk geostd8 greek"
SETS += " hebrew hp8 keybcs2 koi8r koi8u latin1 latin2 latin5 latin7 macce macroman sjis swe7 tis620 ujis utf8mb3 utf8mb4"
EAST_ASIAN = ("big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis")
UNICODE = ["ä", "€", "表", "\ufffc", "я"]
SPECIAL = {"sjis": [b"\x81\x5f", b"\x95\x5c", b"\x83\x60"], "ujis": [b"\xa1\xc0"], "cp932": [b"\x80", b"\x95\x5c", b"\xfd"]}
SPECIAL |= {"swe7": [bytes([code]) for code in b"@[]^{|}~"], "gbk": [b"\x81\x5c", b"\x81\x60", b"\xff"]}


def send(connection: Any, statement: bytes) -> None:
    """Run a statement of bytes, whatever the connection's character set is to PyMySQL."""
    connection._execute_command(3, statement)
    connection._read_query_result()


def characters(charset: str, draw: random.Random) -> list[bytes]:
    """Characters of a set as bytes, some of which are none."""
    if charset in ("utf8mb3", "utf8mb4", "binary"):
        return [character.encode() for character in UNICODE]
    if charset == "swe7":
        return SPECIAL[charset]
    if charset not in EAST_ASIAN:
        return [bytes([code]) for code in range(0x80, 0x100)]
    found = [bytes([draw.randrange(0x81, 0xFF), draw.randrange(0x40, 0xFF)]) for _ in range(100)]
    return SPECIAL.get(charset, []) + [one for one in found if one[1] != 0x7F]


def is_text(unit: bytes, charset: str) -> bool:
    try:
        return "\ufffd" not in statement_decoder(charset)[0](unit)
    except UnicodeDecodeError:
        return False


def last_query(log: Log) -> events.QueryEvent:
    found = [events.query(body) for code, body in log.events() if code == QUERY]
    return [query for query in found if query.sql not in ("BEGIN", "COMMIT")][-1]


def shown(connection: Any, table: str) -> list[tuple[str, ...]]:
    """(name, members in SQL) of a table's columns, as the server has them."""
    sql = f"SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"
    return run(connection, f"{sql} ORDER BY ORDINAL_POSITION")


def followed(catalog: Catalog, database: str, query: events.QueryEvent, table: str) -> list[tuple[str, ...]] | None:
    """The same of the table that is followed; None where it is unknown."""
    catalog.take(catalog.read(query.sql, query.database, query.session))
    found = catalog.find(database, table)
    assert found is not None, query.sql
    if isinstance(found, Unreadable):
        return None
    lines = []
    for column in found.columns:
        members = ",".join(["'" + member.replace("\\", "\\\\").replace("'", "''") + "'" for member in column.members])
        lines.append((column.name, f"enum({members})"))
    return lines


@pytest.mark.parametrize("charset", SETS.split())
def test_names_and_members_are_those_of_the_server(any_server: Server, database: str, charset: str, seed: int) -> None:
    """Names and members are what the server made of the client's bytes, or the table is unknown: where it garbled them itself."""
    mariadb = any_server.flavor == "mariadb"
    if mariadb and charset == "gb18030":
        return  # it has no such set
    draw = random.Random(seed)
    with database_of(any_server, database) as (connection, log):
        client = any_server.connect(database=database)
        send(client, b"SET NAMES " + charset.encode())
        catalog = Catalog(mariadb=mariadb)
        units, readable = characters(charset, draw), 0
        chunks = [units[at : at + 12] for at in range(0, len(units), 12)]
        while chunks:
            chunk = chunks.pop()
            columns = [
                b"`c%d_%b` ENUM('x%b') COMMENT 'k%b'" % (number, unit, escaped, escaped)
                for number, unit in enumerate(chunk)
                for escaped in [b"\\" + unit if unit in (b"\\", b"'") else unit]
            ]
            run(connection, "DROP TABLE IF EXISTS t")
            log.skip()
            try:
                send(client, b"CREATE TABLE t (" + b", ".join(columns) + b")")
            except pymysql.MySQLError:  # it does not take all of these
                chunks += [[unit] for unit in chunk] if len(chunk) > 1 else []
                continue
            wanted = shown(connection, "t")
            found = followed(catalog, database, last_query(log), "t")
            if found is None and len(chunk) > 1:
                chunks += [[unit] for unit in chunk]
                continue
            if found is None:
                cut = wanted[0][0] in ("c0_", "c0_?") or "?" in wanted[0][1]
                assert cut or not is_text(chunk[0], charset), f"{charset} {chunk[0]!r} is {wanted}, and was not read"
            else:
                assert found == wanted, f"{charset}: {chunk}"
                readable += len(chunk)
        client.close()
    assert readable >= (0 if charset == "ascii" else min(len(units), 30) // 2), "otherwise the test shows little"


NAMES = {"latin1": "ä", "cp850": "é", "cp866": "ж", "cp1251": "я", "gbk": "表", "sjis": "表", "koi8r": "ж", "utf8mb4": "表"}
CODECS = {"sjis": "shift_jis", "koi8r": "koi8_r", "utf8mb4": "utf-8"}


@pytest.mark.parametrize("charset", NAMES)
def test_what_a_server_writes_itself_is_utf8(any_server: Server, database: str, charset: str) -> None:
    """CREATE TABLE ... SELECT in row format and a copy of a temporary table are logged in UTF-8, though the client's set is another."""
    name = NAMES[charset]
    raw = name.encode(CODECS.get(charset, charset))
    mariadb = any_server.flavor == "mariadb"
    with database_of(any_server, database) as (connection, log):
        client = any_server.connect(database=database)
        send(client, b"SET NAMES " + charset.encode())
        catalog = Catalog(mariadb=mariadb)
        for table, statement in (
            ("a", b"CREATE TABLE `aX` (`cX` ENUM('mX') COMMENT 'X')"),
            ("s", b"CREATE TABLE `sX` AS SELECT * FROM `aX`"),
            ("", b"CREATE TEMPORARY TABLE `tX` LIKE `aX`"),
            ("l", b"CREATE TABLE `lX` LIKE `tX`"),
            ("r", b"RENAME TABLE `lX` TO `rX`"),
            ("p", b"CREATE TABLE `pX` (`cX` ENUM('mX')) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"),
        ):
            log.skip()
            send(client, statement.replace(b"X", raw))
            if table:
                assert followed(catalog, database, last_query(log), table + name) == shown(connection, table + name) != []
        log.skip()
        send(client, b"DROP TABLE `sX`, `rX`".replace(b"X", raw))
        query = last_query(log)
        catalog.take(catalog.read(query.sql, query.database, query.session))
        assert catalog.find(database, "s" + name) is catalog.find(database, "r" + name) is None
        client.close()


@pytest.mark.parametrize(
    ("settings", "definition"),
    [
        (b"collation_connection = latin1_swedish_ci", "e ENUM('я', 'b') CHARACTER SET utf8mb4"),
        (b"character_set_connection = binary", "e ENUM('ä', 'b') CHARACTER SET latin1"),
        (b"character_set_connection = binary", "e ENUM('ab', 'c') CHARACTER SET ucs2"),
    ],
)
def test_members_pass_through_the_connection_s_set(any_server: Server, database: str, settings: bytes, definition: str) -> None:
    """A member is a string of the session's character_set_connection before it is one of its column."""
    with database_of(any_server, database) as (connection, log):
        client = any_server.connect(database=database)
        send(client, b"SET " + settings)
        catalog = Catalog(mariadb=any_server.flavor == "mariadb")
        log.skip()
        send(client, f"CREATE TABLE t ({definition})".encode())
        assert followed(catalog, database, last_query(log), "t") == shown(connection, "t") != []
        client.close()


def test_a_name_that_is_no_text_makes_its_table_unknown() -> None:
    """A column or table whose name holds what was no text of the client's set is never known by another name."""
    catalog = Catalog()
    catalog.take({("d", ""): "utf8mb4", ("d", "t"): Table(())})
    for sql in ("ALTER TABLE t ADD `a\ufffd` INT", "ALTER TABLE t ADD e ENUM('\ufffd')", "RENAME TABLE t TO `\ufffd`"):
        change = catalog.read(sql, "d", Session())
        assert any(isinstance(now, Unreadable) for now in change.values()), sql
    assert catalog.read("ALTER TABLE t COMMENT '\ufffd'", "d", Session()) == {}
