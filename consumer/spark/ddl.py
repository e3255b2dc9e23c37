"""What a DDL statement does to tables, as far as a replica must know: enough SQL to read it, no more.

A statement that does nothing to a table's rows or columns (an index, a grant, a view) has no actions. What cannot be
read for certain becomes an action `unclear`, so that a replica stops instead of guessing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>\s+|--\s[^\n]*|\#[^\n]*|/\*(?!M?!).*?\*/)
    |(?P<hint>/\*M?!\d*|\*/)
    |(?P<name>`(?:[^`]|``)+`)
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<number>\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+|\d+(?:[eE][-+]?\d+)?(?![\w$]))
    |(?P<word>[\w$\u0080-\uffff]+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}


class Action(NamedTuple):
    """One change to one table: `kind` is truncate, drop, create, rename, alter or unclear. `to` is the new name of a rename."""

    kind: str
    database: str
    table: str
    to: tuple[str, str] | None = None


class _Token(NamedTuple):
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The upper-case keyword, or the sign; empty for names, strings and numbers."""
        return self.text.upper() if self.kind in ("word", "sign") else ""


def _tokens(sql: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup or ""
        if kind in ("space", "hint"):
            continue
        text = match[0]
        if kind == "name":
            text = text[1:-1].replace("``", "`")
        elif kind == "text":
            quote = text[0]
            text = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), text[1:-1].replace(quote * 2, quote), flags=re.DOTALL)
        found.append(_Token(kind, text))
    return found


class _Reader:
    """A cursor over the tokens of one statement."""

    def __init__(self, sql: str) -> None:
        self.tokens = _tokens(sql)
        self.at = 0

    def peek(self, ahead: int = 0) -> _Token:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else _Token("end", "")

    def next(self) -> _Token:
        token = self.peek()
        self.at += 1
        return token

    def skip(self, *words: str) -> bool:
        """Step over `words` where they come next, all of them or none."""
        if all(self.peek(i).word == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def table(self, database: str) -> tuple[str, str] | None:
        """Read ``name`` or ``name.name``."""
        first = self.next()
        if first.kind not in ("word", "name"):
            return None
        if self.peek().word == ".":
            self.next()
            second = self.next()
            return (first.text, second.text) if second.kind in ("word", "name", "number") else None
        return database, first.text


@lru_cache(maxsize=1024)
def actions(sql: str, database: str) -> tuple[Action, ...]:
    """Return what `sql`, run with `database` as the current one, does to tables."""
    reader = _Reader(sql)
    if reader.skip("TRUNCATE"):
        reader.skip("TABLE")
        return _one("truncate", reader.table(database))
    if reader.skip("DROP", "DATABASE") or reader.skip("DROP", "SCHEMA"):
        reader.skip("IF", "EXISTS")
        return (Action("drop", reader.next().text, "*"),)
    if reader.skip("DROP", "TABLE"):  # DROP TEMPORARY TABLE does nothing to a replica
        reader.skip("IF", "EXISTS")
        return _each("drop", reader, database)
    if reader.skip("RENAME", "TABLE") or reader.skip("RENAME", "TABLES"):
        reader.skip("IF", "EXISTS")
        return _renames(reader, database)
    if reader.peek().word == "CREATE":
        return _create(reader, database)
    if reader.skip("ALTER"):
        for word in ("ONLINE", "OFFLINE", "IGNORE"):
            reader.skip(word)
        if not reader.skip("TABLE"):
            return ()
        reader.skip("IF", "EXISTS")
        return _alter(reader, database)
    return ()


def _one(kind: str, table: tuple[str, str] | None) -> tuple[Action, ...]:
    return (Action(kind, *table),) if table else (Action("unclear", "", ""),)


def _each(kind: str, reader: _Reader, database: str) -> tuple[Action, ...]:
    found: list[Action] = []
    while True:
        table = reader.table(database)
        if table is None:
            return (Action("unclear", "", ""),)
        found.append(Action(kind, *table))
        if not reader.skip(","):
            return tuple(found)


def _renames(reader: _Reader, database: str) -> tuple[Action, ...]:
    found: list[Action] = []
    while True:
        old = reader.table(database)
        if reader.skip("WAIT"):
            reader.next()
        reader.skip("NOWAIT")
        if old is None or not reader.skip("TO"):
            return (Action("unclear", "", ""),)
        new = reader.table(database)
        if new is None:
            return (Action("unclear", "", ""),)
        found.append(Action("rename", *old, new))
        if not reader.skip(","):
            return tuple(found)


def _create(reader: _Reader, database: str) -> tuple[Action, ...]:
    reader.skip("CREATE")
    replaces = reader.skip("OR", "REPLACE")
    if not reader.skip("TABLE"):
        return ()
    reader.skip("IF", "NOT", "EXISTS")
    table = reader.table(database)
    kind = "drop" if replaces else "create"  # CREATE OR REPLACE TABLE begins with an empty one
    return _one(kind, table)


def _alter(reader: _Reader, database: str) -> tuple[Action, ...]:
    table = reader.table(database)
    if table is None:
        return (Action("unclear", "", ""),)
    found = [Action("alter", *table)]
    depth, begins = 0, True
    while (token := reader.next()).kind != "end":
        if begins and token.word == "RENAME" and reader.peek().word not in ("COLUMN", "INDEX", "KEY"):
            if not reader.skip("TO"):
                reader.skip("AS")
            new = reader.table(database)
            if new is not None:
                found.append(Action("rename", *table, new))
        elif (
            begins
            and token.word in ("TRUNCATE", "DROP", "EXCHANGE", "IMPORT", "DISCARD")
            and reader.peek().word in ("PARTITION", "TABLESPACE")
        ):
            found.append(Action("unclear", *table))
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        begins = depth == 0 and token.word == ","
    return tuple(found)
