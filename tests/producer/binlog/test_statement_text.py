"""The text of a statement: bytes of a client's character set, cut into tokens as the server does."""

from __future__ import annotations

import pytest

from shmstore.producer.binlog.statement_text import statement_text, without_mariadb
from shmstore.sql.tokens import SqlMode, scan

LATIN1, SWE7, SJIS, UJIS, GBK, ARMSCII8, UTF8MB4, BINARY = 8, 10, 13, 12, 28, 32, 45, 63


@pytest.mark.parametrize(
    ("collation", "raw", "text"),
    [
        (0, "SELECT 'größe'".encode(), "SELECT 'größe'"),
        (UTF8MB4, b"SELECT '\xe4'", "SELECT '\ufffd'"),
        (BINARY, "`表`".encode(), "`表`"),
        (LATIN1, b"`gr\xf6\x81e`", "`grö\x81e`"),
        (80, b"`\x84`", "`ä`"),  # cp850
        (36, b"`\xa6`", "`ж`"),  # cp866
        (
            SWE7,
            rb"CREATE TABLE `a``[` (e ENUM('x''[', '\[', '\\', 'n\n'))",
            r"CREATE TABLE `aéÄ` (e ENUM('x''Ä', 'Ä', 'Ö', 'n\n'))",
        ),
        (SJIS, b"a\x81\x5f `a\x81\x5f` '\x81\x5f' '\\\x81\x5f' '\x95\x5c'", r"`a\` `a\` '\\' '\\' '表'"),
        (UJIS, b"'\xa1\xc0'", r"'\\'"),
        (ARMSCII8, b"`\xff\xa4` '\xff' \"\xff\"", "`')` '''' \"'\""),
        (GBK, b"`x\x81\x7f` '\xff'", "`x\ufffd\x7f` '\ufffd'"),
        (5000, b"SELECT '\xe4'", "SELECT '\ufffd'"),  # a collation of tomorrow
        (5000, b"SELECT 'a'", "SELECT 'a'"),
    ],
)
def test_bytes_of_a_client(collation: int, raw: bytes, text: str) -> None:
    """Names and strings have the characters that the server made of them; what is no text is U+FFFD."""
    assert statement_text(raw, collation) == text


def test_a_backslash_that_escapes_nothing() -> None:
    """sjis' second backslash is doubled only where a backslash escapes, by the session's sql_mode."""
    assert statement_text(b"'\x81\x5f'", SJIS, SqlMode(plain_backslash=True)) == "'\\'"


def test_a_character_that_is_none_swallows_no_quote() -> None:
    """A byte that begins no character, and a backtick after it, are one character to the server: no name ends there."""
    (name,) = [token.text for token in scan(statement_text(b"`x\x85\xfc\x85\x60y`", SJIS))]
    assert name == "x\ufffd\ufffdy"


GENERATED = "CREATE TABLE `tä` (\n  `cä` int NOT NULL\n)"


def test_what_a_server_writes_itself() -> None:
    """Its CREATE TABLE is UTF-8, whatever the client's set. Where a client may have sent the same, nothing but ASCII is taken."""
    for text in (GENERATED, GENERATED + " START TRANSACTION ENGINE=InnoDB DEFAULT CHARSET=utf8mb4", GENERATED + " ENGINE=InnoDB"):
        assert statement_text(text.encode(), LATIN1) == text
    assert statement_text(GENERATED.encode("latin-1"), LATIN1) == GENERATED
    dumped = GENERATED + " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
    assert "\ufffd" in statement_text(dumped.encode(), LATIN1)
    assert statement_text(dumped.encode("latin-1"), LATIN1) == dumped


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("ALTER TABLE t /*M! ADD m INT, */ ADD k INT", "ALTER TABLE t /*M  ADD m INT, */ ADD k INT"),
        ("/*M!100000 a */ /*M! b */ '/*M! c */'", "/*M 100000 a */ /*M  b */ '/*M! c */'"),
        ("ALTER TABLE t /*!80000 ADD m INT, */ ADD k INT", "ALTER TABLE t /*!80000 ADD m INT, */ ADD k INT"),
        ("/* /*M! a */", "/* /*M! a */"),
        ("a /*M! b", "a /*M  b"),
    ],
)
def test_comments_of_mariadb_s_form(sql: str, wanted: str) -> None:
    """They are comments to MySQL, which logs them as they are; in a string they are text."""
    assert without_mariadb(sql) == wanted
