"""What a DDL statement does to tables, as far as a replica must know: enough SQL to read it, no more.

A statement that does nothing to a table's rows or columns (an index, a grant, a view) has no actions. What cannot be
read for certain becomes an action `unclear`, so that a replica stops instead of guessing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shmstore.event import Column
from shmstore.sql_tokens import SqlMode, Token, Tokens, statement

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


@lru_cache(maxsize=1024)
def actions(sql: str, database: str, mode: str = "") -> tuple[Action, ...]:
    """Return what `sql`, run with `database` as the current one, does to tables.

    `mode` is the property ``sql_mode`` of its event: with ANSI_QUOTES a name stands in double quotes, with NO_BACKSLASH_ESCAPES a
    backslash ends no string later.
    """
    tokens = statement(sql, SqlMode.named(mode))
    try:
        return _read(tokens, database)
    except ValueError:  # it ends early, or something else stands where a name belongs
        return (Action("unclear", "", ""),)


def _read(tokens: Tokens, database: str) -> tuple[Action, ...]:
    verb = tokens.accept_one("TRUNCATE", "DROP", "RENAME", "CREATE", "ALTER")
    if verb == "TRUNCATE":
        tokens.accept("TABLE")
        return (Action("truncate", *tokens.table_name(database)),)
    if verb == "DROP" and tokens.accept_one("DATABASE", "SCHEMA"):
        tokens.if_exists()
        return (Action("drop", tokens.name(), "*"),)
    if verb == "DROP" and tokens.accept("TABLE"):  # DROP TEMPORARY TABLE does nothing to a replica
        tokens.if_exists()
        return tuple([Action("drop", *Tokens(part).table_name(database)) for part in tokens.parts()])
    if verb == "RENAME" and tokens.accept_one("TABLE", "TABLES"):
        tokens.if_exists()
        return tuple([_renamed(Tokens(part), database) for part in tokens.parts()])
    if verb == "CREATE":
        replaces = tokens.accept("OR", "REPLACE")
        if not tokens.accept("TABLE"):
            return ()
        tokens.if_exists()
        # CREATE OR REPLACE TABLE begins with an empty one.
        return (Action("drop" if replaces else "create", *tokens.table_name(database)),)
    if verb == "ALTER":
        while tokens.accept_one("ONLINE", "OFFLINE", "IGNORE"):
            pass
        if tokens.accept("TABLE"):
            tokens.if_exists()
            return _alter(tokens, database)
    return ()


def _renamed(tokens: Tokens, database: str) -> Action:
    old = tokens.table_name(database)
    tokens.wait()
    if not tokens.accept("TO"):
        raise ValueError("RENAME TABLE without TO")
    return Action("rename", *old, tokens.table_name(database))


def _alter(tokens: Tokens, database: str) -> tuple[Action, ...]:
    table = tokens.table_name(database)
    tokens.wait()
    found: list[Action] = []
    clauses: list[Clause] = []
    for clause in map(Tokens, tokens.parts()):
        word, following = clause.peek(), clause.peek(1)
        if word == "RENAME" and following not in ("COLUMN", "INDEX", "KEY"):
            clause.take()
            clause.accept_one("TO", "AS", "=")
            found.append(Action("rename", *table, clause.table_name(database)))
        elif following in ("PARTITION", "TABLESPACE") and word in ("TRUNCATE", "DROP", "EXCHANGE", "IMPORT", "DISCARD"):
            found.append(Action("unclear", *table))
        else:
            clauses.extend(_clauses(clause))
    return (Action("alter", *table, None, tuple(clauses)), *found)


def _clauses(tokens: Tokens) -> list[Clause]:
    """The column changes in one clause of ALTER TABLE; none for an index, a key, an option."""
    verb = tokens.accept_one("ADD", "DROP", "CHANGE", "MODIFY", "RENAME")
    if not verb or (not tokens.accept("COLUMN") and _is_no_column(tokens)):
        return []
    tokens.if_exists()
    if verb == "ADD" and tokens.peek() == "(":
        return [_definition("add", part) for part in map(Tokens, tokens.parenthesized()) if not _is_no_column(part)]
    if verb == "ADD" or verb == "MODIFY":
        return [_definition(verb.lower(), tokens)] if verb == "MODIFY" or not _is_no_column(tokens) else []
    name = tokens.name()
    if verb == "DROP":
        return [Clause("drop", name)]
    if verb == "RENAME":
        tokens.accept("TO")
        return [Clause("rename", name, tokens.name())]
    clause = _definition("modify", tokens)
    return [Clause("rename", name, clause.name), clause] if name != clause.name else [clause]


def _is_no_column(tokens: Tokens) -> bool:
    """Whether a key, a check or a partition comes next."""
    word = tokens.peek()
    return word in _NOT_A_COLUMN or tokens.peek(1) in _EITHER.get(word, ())


def _definition(kind: str, tokens: Tokens) -> Clause:
    name, type_ = tokens.name(), tokens.name().lower()
    arguments = [token for part in tokens.parenthesized() for token in part] if tokens.peek() == "(" else []
    words = _outside(tokens.rest())
    unsigned = "UNSIGNED" in words or "ZEROFILL" in words or type_ == "serial"
    type_ = _SYNONYMS.get(type_, type_)
    numbers = [int(argument.text) for argument in arguments if argument.text.isdigit()]
    size, scale = (10, 0) if type_ == "decimal" else (1 if type_ == "bit" else 0, 0)
    if type_ in ("datetime", "timestamp", "time"):
        scale = numbers[0] if numbers else 0
    elif numbers:
        size, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
    column = Column(name, type_, unsigned, "NOT" not in words, size, scale)
    return Clause(kind, name, "", column, *_default(tokens, column, arguments))


def _outside(tokens: list[Token]) -> list[str]:
    """The words that stand in no brackets: not those of an expression."""
    words, depth = [], 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.upper, 0)
        if depth == 0:
            words.append(token.upper)
    return words


def _default(tokens: Tokens, column: Column, members: list[Token]) -> tuple[str | None, bool]:
    """What rows that were there before get: (literal text or None for NULL, whether it could be read)."""
    while tokens.left:
        word = tokens.take().upper
        if word in ("GENERATED", "AS", "AUTO_INCREMENT"):
            return None, False
        if word == "DEFAULT":
            sign = tokens.accept_one("-", "+").replace("+", "")
            value = tokens.take()
            if value.upper == "NULL":
                return None, True
            if value.upper in ("TRUE", "FALSE"):
                return str(int(value.upper == "TRUE")), True
            clear = value.kind in ("string", "number") and column.type not in ("timestamp", "bit")
            clear = clear and not any(
                token.kind in ("string", "other") for token in tokens.rest()[:1]
            )  # 'a' 'b' is one string, 1 + 1 is computed
            return (sign + value.text, True) if clear else (None, False)
    if column.nullable:
        return None, True
    if column.type == "enum":
        return (members[0].text, True) if members and members[0].kind == "string" else (None, False)
    if column.type in ("date", "datetime", "timestamp"):
        return None, False
    return ("0" if column.type in _NUMBERS else "00:00:00" if column.type == "time" else ""), True
