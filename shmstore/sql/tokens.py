"""SQL text -> tokens: words, quoted names, strings, numbers and punctuation; comments dropped, executable ones opened.

The one reader of SQL text: the producer follows DDLs with it, the consumers say what a DDL is about and what it does to a copy.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

__all__ = ["SqlMode", "Token", "Tokens", "has_query", "literal", "located", "modes", "pieces", "scan", "statement"]


class SqlMode(NamedTuple):
    """What of a session's sql_mode decides how its statements are read. It comes with each of them in the binlog."""

    ansi_quotes: bool = False  # ANSI_QUOTES: "x" is a name
    plain_backslash: bool = False  # NO_BACKSLASH_ESCAPES: a backslash in a string is a character like others
    real_as_float: bool = False  # REAL is FLOAT, not DOUBLE
    oracle: bool = False  # of MariaDB: DATE has a time, BLOB is long, and there is NUMBER
    maxdb: bool = False  # of MariaDB: TIMESTAMP is DATETIME

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, bits: int) -> SqlMode:
        """Read the number that sql_mode is to the servers, the same for these in all versions."""
        return cls(*[bool(bits & 1 << bit) for bit in _MODES.values()])

    @property
    def bits(self) -> int:
        """The number that `of` reads."""
        return sum([1 << bit for bit, on in zip(_MODES.values(), self, strict=True) if on])

    @classmethod
    def named(cls, names: str) -> SqlMode:
        """Read what `str` wrote: the property ``sql_mode`` of a DDL event, or nothing."""
        there = names.split(",")
        return cls(*[name in there for name in _MODES])

    def __str__(self) -> str:
        """The names as in SET sql_mode; nothing for the usual mode."""
        return ",".join([name for name, on in zip(_MODES, self, strict=True) if on])


_MODES: Final = {"ANSI_QUOTES": 2, "NO_BACKSLASH_ESCAPES": 20, "REAL_AS_FLOAT": 0, "ORACLE": 9, "MAXDB": 12}  # each with its bit
USUAL: Final = SqlMode()
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(.)|''|\"\"", re.DOTALL)


class Token(NamedTuple):
    """`kind` is "word", "name", "string", "number", "hex", "bits" or "other"; `text` as written, but names and strings without quotes."""

    kind: str
    text: str

    @property
    def upper(self) -> str:
        """The keyword this may be; nothing for what is quoted."""
        return self.text.upper() if self.kind in ("word", "number", "other") else ""


@lru_cache(maxsize=4)
def _pattern(ansi_quotes: bool, plain_backslash: bool) -> re.Pattern[str]:
    stop, escape = ("", "") if plain_backslash else (r"\\", r"|\\.")
    single, double = [f"{quote}(?:[^{quote}{stop}]|{quote}{quote}{escape})*{quote}" for quote in "'\""]
    name, string = "`(?:[^`]|``)*`", single
    if ansi_quotes:
        name += r'|"(?:[^"]|"")*"'
    else:
        string += "|" + double
    letter = r"0-9A-Za-z_$\u0080-\U0010ffff"
    return re.compile(
        rf"""(?P<skip>[ \t-\r]+ | \#[^\n]* | --(?=[\s\x00]|$)[^\n]* | /\*(?!!|M!)(?:.*?\*/|.*$) | /\*M?!(?:\d{{5,6}})? | \*/)
          | (?P<name>{name})
          | (?P<string>{string})
          | (?P<hex>[xX]'[0-9a-fA-F]*' | 0x[0-9a-fA-F]+(?![{letter}]))
          | (?P<bits>[bB]'[01]*' | 0b[01]+(?![{letter}]))
          | (?P<number>(?:[0-9]+\.?[0-9]* | (?<![{letter}`"])\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![{letter}@]))
          | (?P<word>[{letter}@]+)
          | (?P<other>.)""",
        re.VERBOSE | re.DOTALL,
    )


def scan(sql: str, mode: SqlMode = USUAL) -> Iterator[Token]:
    """Cut `sql` into tokens, one after the other as they are asked for."""
    for _, token in located(sql, mode):
        yield token


def located(sql: str, mode: SqlMode = USUAL) -> Iterator[tuple[int, Token]]:
    """As `scan`, each with the index of its first character in `sql`."""
    at = 0
    for kind, text in pieces(sql, mode):
        if kind == "name":
            yield at, Token(kind, text[1:-1].replace(text[0] * 2, text[0]))
        elif kind == "string":
            yield at, Token(kind, _unquoted(text, mode))
        elif kind != "skip":
            yield at, Token(kind, text)
        at += len(text)


def pieces(sql: str, mode: SqlMode = USUAL) -> Iterator[tuple[str, str]]:
    """Cut all of `sql` into (kind of token, text as written); of kind "skip" are spaces, comments, and the marks of executable ones."""
    for match in _pattern(mode.ansi_quotes, mode.plain_backslash).finditer(sql):
        yield match.lastgroup or "", match[0]


def statement(sql: str, mode: SqlMode = USUAL) -> Tokens:
    """Return the tokens of a statement, without a semicolon; of MariaDB's SET STATEMENT ... FOR, those of the statement that follows it."""
    tokens = Tokens(token for token in scan(sql, mode) if token.upper != ";")
    while tokens.accept("SET", "STATEMENT"):
        tokens.until("FOR")
    return tokens


def modes(sql: str, mode: SqlMode) -> list[SqlMode]:
    """Return the modes in which the server may have read a statement: often that of the log alone, which comes first.

    The log has the mode in which a statement ran. MariaDB's SET STATEMENT sql_mode = ... FOR was read in another one.
    """
    if "sql_mode" not in sql.lower():
        return [mode]
    tokens = Tokens(scan(sql, mode))
    while tokens.accept("SET", "STATEMENT"):
        if any(token.text.lower() == "sql_mode" for token in tokens.until("FOR")):
            return [mode, *[SqlMode(*on) for on in product((False, True), repeat=len(SqlMode._fields))]]
    return [mode]


def has_query(tokens: Iterable[Token]) -> bool:
    """Whether a CREATE TABLE that continues like this after the name has a query, whose rows it writes: SELECT, TABLE t, VALUES or WITH.

    A query is outside of parentheses or begins them. What a list of columns or partitions holds is none.
    """
    depth, first = 0, False  # first: only parentheses opened since depth 0
    for token in tokens:
        word = token.upper
        if word == "(":
            first = first or depth == 0
            depth += 1
            continue
        if word in ("SELECT", "TABLE", "VALUES") and (first or depth == 0):
            return True
        if word == "WITH" and first:
            return True
        depth -= word == ")"
        first = False
    return False


def _unquoted(text: str, mode: SqlMode) -> str:
    quote, body = text[0], text[1:-1]
    if mode.plain_backslash:
        return body.replace(quote * 2, quote)

    def plain(match: re.Match[str]) -> str:
        if match[1] is not None:
            return _ESCAPES.get(match[1], match[1])
        return quote if match[0] == quote * 2 else match[0]

    return _ESCAPE.sub(plain, body)


def literal(token: Token) -> str | bytes:
    """Return the text of a string, or the bytes of a hexadecimal or bit literal. Raises ValueError for another token."""
    if token.kind == "string":
        return _readable(token.text)
    if token.kind not in ("hex", "bits"):
        raise ValueError(f"{token.text!r} where a literal belongs")
    digits, base, each = token.text[2:].rstrip("'"), *((16, 2) if token.kind == "hex" else (2, 8))
    return int(digits or "0", base).to_bytes(-(-len(digits) // each), "big")


def _readable(text: str) -> str:
    if "\ufffd" in text:
        raise ValueError(f"{text!r}, whose bytes are no text of the client's character set")
    return text


class Tokens:
    """Reads tokens from the first to the last, and no further ahead than it is asked."""

    __slots__ = ("_ahead", "_rest")

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._ahead: deque[Token] = deque()  # looked at, not taken
        self._rest = iter(tokens)

    def _reach(self, ahead: int) -> bool:
        """Whether there is a token `ahead` places on."""
        while len(self._ahead) <= ahead:
            token = next(self._rest, None)
            if token is None:
                return False
            self._ahead.append(token)
        return True

    @property
    def left(self) -> bool:
        """Whether there are more."""
        return self._reach(0)

    def peek(self, ahead: int = 0) -> str:
        """The keyword `ahead` places on; nothing at the end or for what is quoted."""
        return self._ahead[ahead].upper if self._reach(ahead) else ""

    def peek_kind(self, ahead: int = 0) -> str:
        """The kind of the token `ahead` places on; nothing at the end."""
        return self._ahead[ahead].kind if self._reach(ahead) else ""

    def rest(self) -> list[Token]:
        """All tokens that are left; they stay."""
        self._ahead.extend(self._rest)
        return list(self._ahead)

    def take(self) -> Token:
        """The next token. Raises ValueError at the end."""
        if not self.left:
            raise ValueError("the statement ends early")
        return self._ahead.popleft()

    def accept(self, *words: str) -> bool:
        """Pass over the keywords if all of them come next."""
        if all(self.peek(i) == word for i, word in enumerate(words)):
            for _ in words:
                self._ahead.popleft()
            return True
        return False

    def accept_one(self, *words: str) -> str:
        """Pass over the next keyword if it is one of `words`, and return it; else an empty string."""
        return self.take().upper if self.left and self.peek() in words else ""

    def if_exists(self) -> bool:
        """Pass over IF EXISTS or IF NOT EXISTS."""
        return self.accept("IF", "NOT", "EXISTS") or self.accept("IF", "EXISTS")

    def wait(self) -> None:
        """Pass over MariaDB's WAIT n or NOWAIT."""
        if self.accept("WAIT"):
            self.take()
        self.accept("NOWAIT")

    def name(self) -> str:
        """The next name, quoted or bare. Raises ValueError where something else stands."""
        token = self.take()
        if token.kind in ("other", "hex", "bits"):
            raise ValueError(f"{token.text!r} where a name belongs")
        return _readable(token.text)

    def until(self, word: str) -> list[Token]:
        """Pass over all down to a keyword outside of parentheses, which is passed over, too; returns what was before it."""
        found: list[Token] = []
        depth = 0
        while self.left and ((token := self.take()).upper != word or depth):  # SUBSTRING(a FROM 1 FOR 2) has one, too
            depth += (token.upper == "(") - (token.upper == ")")
            found.append(token)
        return found

    def drain(self) -> None:
        """Pass over all that is left."""
        self._ahead.clear()
        self._rest = iter(())

    def table_name(self, database: str) -> tuple[str, str]:
        """The next [database.]table; a point alone before it means the default database."""
        if self.accept("."):
            return database, self.name()
        first = self.name()
        return (first, self.name()) if self.accept(".") else (database, first)

    def parenthesized(self) -> list[list[Token]]:
        """The comma-separated parts of the parentheses that begin here, which are passed over."""
        if not self.accept("("):
            raise ValueError(f"{self.peek() or 'something'!r} where ( belongs")
        return self._split(until_close=True)

    def parts(self) -> list[list[Token]]:
        """The comma-separated parts of all that is left."""
        return self._split(until_close=False)

    def _split(self, until_close: bool) -> list[list[Token]]:
        found: list[list[Token]] = [[]]
        depth = 0
        while self.left:
            token = self.take()
            if token.upper == "(":
                depth += 1
            elif token.upper == ")":
                if depth == 0 and until_close:
                    return found
                depth -= 1
            elif token.upper == "," and depth == 0:
                found.append([])
                continue
            found[-1].append(token)
        if until_close:
            raise ValueError("a parenthesis is not closed")
        return found

    def skip_parentheses(self) -> None:
        """Pass over parentheses where they begin here."""
        if self.peek() == "(":
            self.parenthesized()
