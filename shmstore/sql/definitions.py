"""The parts of a list of columns and keys, as CREATE TABLE and ALTER TABLE ... ADD have it, written into a draft of the table."""

from __future__ import annotations

from shmstore.sql.columns import ColumnDefinition, define_column
from shmstore.sql.session import Dialect
from shmstore.sql.table_change import Draft
from shmstore.sql.tokens import Tokens

__all__ = ["KEYS", "add_column", "add_definition", "leave_out"]

# Words that begin a key or a check in a list of columns; a column of such a name is quoted or follows COLUMN.
KEYS = frozenset(("PRIMARY", "INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CONSTRAINT", "CHECK"))


def add_definition(draft: Draft, tokens: Tokens, dialect: Dialect, *, unless_exists: bool = False) -> ColumnDefinition | None:
    """Read one definition: a column, which is returned, or a key."""
    if not tokens.left:
        raise ValueError("an empty definition")
    if not _begins_key(tokens):
        return add_column(draft, tokens, dialect, unless_exists=unless_exists)
    if tokens.accept("PERIOD"):
        _period(draft, tokens)
    else:
        _key(draft, tokens)
    return None


def add_column(draft: Draft, tokens: Tokens, dialect: Dialect, *, unless_exists: bool = False) -> ColumnDefinition:
    """Read a column. `unless_exists`: IF NOT EXISTS, which does nothing where there is one of its name."""
    definition = define_column(tokens.name(), tokens, dialect)
    if not unless_exists or not draft.has(definition.column.name):
        if definition.primary and unless_exists and draft.has_key:
            definition = definition.without_key()
        draft.add(definition)
    else:
        leave_out(draft, definition)
    return definition


def leave_out(draft: Draft, definition: ColumnDefinition) -> None:
    """Take in a column that IF EXISTS or IF NOT EXISTS leaves out: its PRIMARY KEY is another part, which stays where there is no key."""
    if definition.primary and not draft.has_key:
        draft.set_key([definition.column.name])


def _begins_key(tokens: Tokens) -> bool:
    """Whether a key or check comes next. PERIOD and VECTOR may also name a column: a type follows then."""
    word = tokens.peek()
    if word == "PERIOD":
        return tokens.peek(1) in ("FOR", "IF")
    if word == "VECTOR":  # something quoted is the name of an index, or the schema of a type
        return tokens.peek(1) in ("INDEX", "KEY", "(") or (not tokens.peek(1) and tokens.peek(2) != ".")
    return word in KEYS


def _key(draft: Draft, tokens: Tokens) -> None:
    named = ""
    if tokens.accept("CONSTRAINT"):
        tokens.accept("IF", "NOT", "EXISTS")
        if tokens.peek() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            named = tokens.name()
    if named.upper() == "PRIMARY" and tokens.peek() in ("CHECK", "FOREIGN"):
        raise ValueError("a constraint of the primary key's name")
    if tokens.accept("PRIMARY", "KEY"):
        unless_exists = tokens.accept("IF", "NOT", "EXISTS")
        if unless_exists and not draft.has_key and (named or tokens.peek() not in ("(", "USING")):
            raise ValueError("PRIMARY KEY IF NOT EXISTS with a name, which an index may have")
        while tokens.left and tokens.peek() != "(":
            tokens.take()
        names = [Tokens(part).name() for part in tokens.parenthesized()]
        if not unless_exists or not draft.has_key:
            draft.set_key(names)


def _period(draft: Draft, tokens: Tokens) -> None:
    unless_exists = tokens.accept("IF", "NOT", "EXISTS")
    if not tokens.accept("FOR"):
        raise ValueError("PERIOD without FOR")
    name = tokens.name()
    begin, end = [Tokens(part).name() for part in tokens.parenthesized()]
    if name.upper() != "SYSTEM_TIME" and not (unless_exists and draft.has_period):
        draft.set_period(name, begin, end)
