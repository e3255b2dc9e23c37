"""The text of a statement in the binlog: bytes of the character set that its client sent them in -> str.

Strict where names depend on it: what is no text of the set becomes U+FFFD, which no name and no member of an ENUM or SET may hold
(`shmstore.sql_tokens`), so that a DDL with such a name makes its table unknown.

Plan. The server cuts a statement into tokens as bytes, and converts what is inside of names and strings afterwards. In four sets the
characters that come out may be syntax, or the syntax another character: sjis and ujis have a second backslash, armscii8 a second
apostrophe, and to swe7 a backtick is é. There the text is cut into tokens first; then what is inside gets its characters, quoted again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shmstore.errors import UnsupportedEvent
from shmstore.producer.values.charsets import charset_of, lenient, statement_decoder
from shmstore.sql_tokens import USUAL, SqlMode, pieces

__all__ = ["statement_text", "without_mariadb"]

_UNICODE = ("utf8mb4", "utf8mb3", "binary")  # binary: the server takes names in it for UTF-8
# What servers write themselves of CREATE TABLE ... SELECT in row format, and of CREATE TABLE ... LIKE a temporary table
_GENERATED = re.compile(rb"CREATE (OR REPLACE )?TABLE (IF NOT EXISTS )?`([^`]|``)*`(\.`([^`]|``)*`)? \(\n  `")
_TAIL = re.compile(rb"\n\).*", re.DOTALL)


def statement_text(raw: bytes, collation: int, mode: SqlMode = USUAL) -> str:
    """Return the text of a statement of a client whose character_set_client has this collation (0: UTF-8)."""
    try:
        charset = charset_of(collation) if collation else "utf8mb4"
    except UnsupportedEvent:
        return raw.decode("ascii", "replace")
    if raw.isascii() and charset != "swe7":
        return raw.decode("ascii")
    if charset in _UNICODE:
        return raw.decode("utf-8", "replace")
    if (generated := _generated(raw)) is not None:
        return generated
    decode, meant = statement_decoder(charset)
    try:
        text = decode(raw)
    except UnicodeDecodeError:
        text = lenient(raw, charset)
    return _converted(text, meant, mode) if any(character in text for character in meant) else text


def _generated(raw: bytes) -> str | None:
    """The text where the server wrote it itself: in UTF-8, whatever the client's set; None where it did not.

    A client may have sent the output of SHOW CREATE TABLE. What shows that, a default character set at its end, a query's own option
    may be, too; then nothing of another set than ASCII is known, unless START TRANSACTION tells.
    """
    if not _GENERATED.match(raw):
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    tail = _TAIL.search(raw)
    if tail is not None and b"CHARSET=" in tail[0] and not tail[0].startswith(b"\n) START TRANSACTION"):
        return raw.decode("ascii", "replace")
    return text


_CHARACTER = re.compile(r"\\?.", re.DOTALL)


def _converted(text: str, meant: Mapping[str, str], mode: SqlMode) -> str:
    """Exchange the characters inside of names and strings for those they mean, and quote again."""

    def inside(match: re.Match[str]) -> str:
        character = meant.get(match[0][-1])
        if character is None:
            return match[0]
        return character * 2 if character == quote or (character == "\\" and not mode.plain_backslash) else character

    found: list[str] = []
    for kind, piece in pieces(text, mode):
        quote = piece[0]
        if kind == "name" or (kind == "word" and any(character in meant for character in piece)):
            quote, body = (quote, piece[1:-1].replace(quote * 2, quote)) if kind == "name" else ("`", piece)
            body = "".join([meant.get(character, character) for character in body])
            piece = quote + body.replace(quote, quote * 2) + quote
        elif kind == "string" and mode.plain_backslash:
            piece = quote + re.sub(".", inside, piece[1:-1], flags=re.DOTALL) + quote
        elif kind == "string":
            piece = quote + _CHARACTER.sub(inside, piece[1:-1]) + quote
        found.append(piece)
    return "".join(found)


def without_mariadb(sql: str, mode: SqlMode = USUAL) -> str:
    """Return a statement of MySQL with its comments of MariaDB's form, ``/*M! ... */``, as plain ones.

    Both servers log what they do not execute so (``/*!99999 x */`` as ``/* 99999 x */``), but MySQL does not know this form.
    """
    done = ""
    while "/*M!" in sql:
        at = 0
        for kind, piece in pieces(sql, mode):
            if kind == "skip" and piece.startswith("/*M!"):
                break
            at += len(piece)
        else:
            break  # those of strings
        end = sql.find("*/", at)
        end = len(sql) if end < 0 else end + 2
        done += sql[: at + 3] + " " + sql[at + 4 : end]
        sql = sql[end:]
    return done + sql
