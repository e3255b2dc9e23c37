"""SQL text of a DDL -> tokens: words, quoted names, strings, numbers and punctuation; comments dropped, executable ones opened."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Token", "Tokens", "tokenize", "unquoted"]

_TOKEN = re.compile(
    r"""(?P<skip>\s+ | \#[^\n]* | --(?=[\s\x00]|$)[^\n]* | /\*(?!!|M!)(?:.*?\*/|.*$) | /\*M?!\d* | \*/)
      | `(?P<name>(?:[^`]|``)*)`
      | (?P<string>(?:_\w+\s*)?[nN]?'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
      | (?P<hex>[xX]'[0-9a-fA-F]*' | 0[xX][0-9a-fA-F]+)
      | (?P<word>[0-9A-Za-z_$@\u0080-\U0010ffff]+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(.)|''|\"\"", re.DOTALL)


class Token(NamedTuple):
    """`kind` is "word", "name", "string", "hex" or "other"; `text` as written, but quoted names unquoted."""

    kind: str
    text: str

    @property
    def upper(self) -> str:
        """The keyword this may be; nothing for what is quoted."""
        return self.text.upper() if self.kind in ("word", "other") else ""


def tokenize(sql: str) -> list[Token]:
    """Cut `sql` into tokens."""
    tokens = []
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup or ""
        if kind == "skip":
            continue
        text = match[kind]
        tokens.append(Token(kind, text.replace("``", "`") if kind == "name" else text))
    return tokens


def unquoted(token: Token) -> str:
    """Return the value of a string or hexadecimal literal, or the name that a quoted or bare word is."""
    if token.kind == "hex":
        digits = token.text[2:].rstrip("'")
        return bytes.fromhex(digits.rjust(len(digits) + len(digits) % 2, "0")).decode("utf-8", "replace")
    if token.kind != "string":
        return token.text
    start = min(i for i in (token.text.find("'"), token.text.find('"')) if i >= 0)
    quote, body = token.text[start], token.text[start + 1 : -1]

    def plain(match: re.Match[str]) -> str:
        if match[1] is not None:
            return _ESCAPES.get(match[1], match[1])
        return quote if match[0] == quote * 2 else match[0]

    return _ESCAPE.sub(plain, body)


class Tokens:
    """A place in a list of tokens."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def left(self) -> bool:
        """Whether there are more."""
        return self.at < len(self.tokens)

    def peek(self, ahead: int = 0) -> str:
        """The keyword `ahead` places on; nothing at the end or where something quoted stands."""
        where = self.at + ahead
        return self.tokens[where].upper if where < len(self.tokens) else ""

    def take(self) -> Token:
        """The next token. Raises ValueError at the end."""
        if not self.left:
            raise ValueError("the statement ends early")
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, *words: str) -> bool:
        """Pass over the keywords if all of them come next."""
        if all(self.peek(i) == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def name(self) -> str:
        """The next name, quoted or bare. Raises ValueError where something else stands."""
        token = self.take()
        if token.kind == "other" or token.kind == "hex":
            raise ValueError(f"{token.text!r} where a name belongs")
        return unquoted(token)

    def table_name(self, database: str) -> tuple[str, str]:
        """The next [database.]table."""
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
