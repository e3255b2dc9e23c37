"""What a DDL statement does to tables, as far as a replica must know: enough SQL to read it, no more.

A statement that does nothing to a table's rows or columns (an index, a grant, a view) has no actions. What cannot be
read for certain becomes an action `unclear`, so that a replica stops instead of guessing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from shmstore.event import Column


def _quoted(quote: str, plain_backslash: bool) -> str:
    stop, escape = ("", "") if plain_backslash else (r"\\", r"|\\.")
    return f"{quote}(?:[^{quote}{stop}]|{quote}{quote}{escape})*{quote}"


@lru_cache(maxsize=4)
def _pattern(ansi_quotes: bool, plain_backslash: bool) -> re.Pattern[str]:
    name, text = ["`(?:[^`]|``)+`"], [_quoted("'", plain_backslash)]
    if ansi_quotes:
        name.append(_quoted('"', True))
    else:
        text.append(_quoted('"', plain_backslash))
    return re.compile(
        rf"""(?P<space>[ \t-\r]+|--(?=[\s\x00]|$)[^\n]*|\#[^\n]*|/\*(?!M?!).*?\*/)
        |(?P<hint>/\*M?!(?:\d{{5,6}})?|\*/)
        |(?P<name>{"|".join(name)})
        |(?P<text>{"|".join(text)})
        |(?P<number>\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+|\d+(?:[eE][-+]?\d+)?(?![\w$]))
        |(?P<word>[\w$\u0080-\U0010ffff]+)
        |(?P<sign>.)""",
        re.VERBOSE | re.DOTALL,
    )


_NOT_A_COLUMN = frozenset(
    [
        "INDEX",
        "KEY",
        "UNIQUE",
        "FULLTEXT",
        "SPATIAL",
        "CONSTRAINT",
        "PRIMARY",
        "FOREIGN",
        "CHECK",
        "PARTITION",
    ]
)
_SYNONYMS = {
    "integer": "int",
    "int1": "tinyint",
    "int2": "smallint",
    "int3": "mediumint",
    "int4": "int",
    "int8": "bigint",
    "serial": "bigint",
    "bool": "tinyint",
    "boolean": "tinyint",
    "numeric": "decimal",
    "dec": "decimal",
    "fixed": "decimal",
    "real": "double",
    "float4": "float",
    "float8": "double",
}
_NUMBERS = frozenset(["tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "decimal", "float", "double"])
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
# Words that may name a column too: these come next where they do not.
_EITHER = {"PERIOD": ("FOR", "IF"), "SYSTEM": ("VERSIONING",), "VECTOR": ("INDEX", "KEY", "(")}


class Clause(NamedTuple):
    """One column change of an ALTER: `kind` is add, drop, rename (to `to`) or modify.

    An added `column` gives the rows that are there already the literal `default` (None: NULL); `clear` is false where the
    statement gives them something that only the server can compute.
    """

    kind: str
    name: str
    to: str = ""
    column: Column | None = None
    default: str | None = None
    clear: bool = True


class Action(NamedTuple):
    """One change to one table: `kind` is truncate, drop, create, rename, alter or unclear.

    `to` is the new name of a rename, `clauses` are the column changes of an alter. A dropped database is a drop of ``*``.
    """

    kind: str
    database: str
    table: str
    to: tuple[str, str] | None = None
    clauses: tuple[Clause, ...] = ()


class _Token(NamedTuple):
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The upper-case keyword, or the sign; empty for names, strings and numbers."""
        return self.text.upper() if self.kind in ("word", "sign") else ""


def _tokens(sql: str, mode: str) -> list[_Token]:
    plain_backslash = "NO_BACKSLASH_ESCAPES" in mode
    found = []
    for match in _pattern("ANSI_QUOTES" in mode, plain_backslash).finditer(sql):
        kind = match.lastgroup or ""
        if kind in ("space", "hint"):
            continue
        text = match[0]
        if kind == "name" or (kind == "text" and plain_backslash):
            text = text[1:-1].replace(text[0] * 2, text[0])
        elif kind == "text":
            text = _unescaped(text[0], text[1:-1])
        found.append(_Token(kind, text))
    return found


def _unescaped(quote: str, body: str) -> str:
    def plain(match: re.Match[str]) -> str:
        if match[1] is not None:
            return _ESCAPES.get(match[1], match[1])
        return quote if match[0] == quote * 2 else match[0]

    return _ESCAPE.sub(plain, body)


class _Reader:
    """A cursor over the tokens of one statement."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
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
def actions(sql: str, database: str, mode: str = "") -> tuple[Action, ...]:
    """Return what `sql`, run with `database` as the current one, does to tables.

    `mode` is the property ``sql_mode`` of its event: with ANSI_QUOTES a name stands in double quotes, with NO_BACKSLASH_ESCAPES a
    backslash ends no string later.
    """
    reader = _Reader(_tokens(sql, mode))
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
    found: list[Action] = []
    clauses: list[Clause] = []
    for tokens in _split(reader.tokens[reader.at :]):
        clause = _Reader(tokens)
        word, following = clause.peek().word, clause.peek(1).word
        if word == "RENAME" and following not in ("COLUMN", "INDEX", "KEY"):
            clause.next()
            _ = clause.skip("TO") or clause.skip("AS") or clause.skip("=")
            new = clause.table(database)
            found.append(Action("rename", *table, new) if new else Action("unclear", *table))
        elif following in ("PARTITION", "TABLESPACE") and word in ("TRUNCATE", "DROP", "EXCHANGE", "IMPORT", "DISCARD"):
            found.append(Action("unclear", *table))
        else:
            clauses.extend(_clauses(clause))
    return (Action("alter", *table, None, tuple(clauses)), *found)


def _split(tokens: list[_Token]) -> list[list[_Token]]:
    """Cut at commas outside brackets."""
    parts: list[list[_Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        if depth == 0 and token.word == ",":
            parts.append([])
        elif token.word != ";":
            parts[-1].append(token)
    return parts


def _clauses(reader: _Reader) -> list[Clause]:
    """The column changes in one clause of ALTER TABLE; none for an index, a key, an option."""
    verb = reader.next().word
    if verb not in ("ADD", "DROP", "CHANGE", "MODIFY", "RENAME"):
        return []
    if not reader.skip("COLUMN") and _is_no_column(reader):
        return []
    _ = reader.skip("IF", "NOT", "EXISTS") or reader.skip("IF", "EXISTS")
    if verb == "ADD" and reader.skip("("):
        inner = reader.tokens[reader.at : -1]
        return [clause for tokens in _split(inner) if (clause := _definition("add", tokens)) is not None]
    if verb == "ADD" or verb == "MODIFY":
        clause = _definition(verb.lower(), reader.tokens[reader.at :])
        return [clause] if clause else []
    name = reader.next().text
    if verb == "DROP":
        return [Clause("drop", name)]
    if verb == "RENAME":
        reader.skip("TO")
        return [Clause("rename", name, reader.next().text)]
    clause = _definition("modify", reader.tokens[reader.at :])
    if clause is None:
        return []
    return [Clause("rename", name, clause.name), clause] if name != clause.name else [clause]


def _is_no_column(reader: _Reader) -> bool:
    """Whether a key, a check or a partition comes next."""
    word = reader.peek().word
    return word in _NOT_A_COLUMN or reader.peek(1).word in _EITHER.get(word, ())


def _definition(kind: str, tokens: list[_Token]) -> Clause | None:
    reader = _Reader(tokens)
    if kind == "add" and _is_no_column(reader):
        return None
    name, type_ = reader.next().text, reader.next().text.lower()
    arguments: list[_Token] = []
    if reader.skip("("):
        while (token := reader.next()).kind != "end" and token.word != ")":
            if token.word != ",":
                arguments.append(token)
    words = _outside(reader.tokens[reader.at :])
    unsigned = "UNSIGNED" in words or "ZEROFILL" in words or type_ == "serial"
    type_ = _SYNONYMS.get(type_, type_)
    numbers = [int(argument.text) for argument in arguments if argument.text.isdigit()]
    size, scale = (10, 0) if type_ == "decimal" else (1 if type_ == "bit" else 0, 0)
    if type_ in ("datetime", "timestamp", "time"):
        scale = numbers[0] if numbers else 0
    elif numbers:
        size, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
    column = Column(name, type_, unsigned, "NOT" not in words, size, scale)
    return Clause(kind, name, "", column, *_default(reader, column, arguments))


def _outside(tokens: list[_Token]) -> list[str]:
    """The words that stand in no brackets: not those of an expression."""
    words, depth = [], 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        if depth == 0:
            words.append(token.word)
    return words


def _default(reader: _Reader, column: Column, members: list[_Token]) -> tuple[str | None, bool]:
    """What rows that were there before get: (literal text or None for NULL, whether it could be read)."""
    while (token := reader.next()).kind != "end":
        if token.word in ("GENERATED", "AS", "AUTO_INCREMENT"):
            return None, False
        if token.word == "DEFAULT":
            value = reader.next()
            sign = ""
            if value.word in ("-", "+"):
                sign, value = value.text.replace("+", ""), reader.next()
            if value.word == "NULL":
                return None, True
            if value.word in ("TRUE", "FALSE"):
                return str(int(value.word == "TRUE")), True
            clear = value.kind in ("text", "number") and column.type not in ("timestamp", "bit")
            clear = clear and reader.peek().kind not in ("text", "sign")  # 'a' 'b' is one string, 1 + 1 is computed
            return (sign + value.text, True) if clear else (None, False)
    if column.nullable:
        return None, True
    if column.type == "enum":
        return (members[0].text, True) if members and members[0].kind == "text" else (None, False)
    if column.type in ("date", "datetime", "timestamp"):
        return None, False
    return ("0" if column.type in _NUMBERS else "00:00:00" if column.type == "time" else ""), True
