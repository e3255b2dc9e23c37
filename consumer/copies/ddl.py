"""What a DDL statement does to tables, as far as a copy of their rows must know: enough SQL to read it, no more.

A copy follows on its own where the rows go (TRUNCATE, DROP), where nothing of them changes (an index, a comment), and where columns
come, go, get another name or become wider while every value stays what it is: `Change`. What anything else does to the rows
that are there, the server knows, with its character sets, time zones and modes. It is not imitated: the action is `reread`, and so
it is wherever a statement is not read for certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from shmstore.column_type import sized
from shmstore.event import Column
from shmstore.sql.column_types import GEOMETRY, read_type
from shmstore.sql.names import folded
from shmstore.sql.session import Dialect, Session
from shmstore.sql.tokens import SqlMode, Tokens, modes, statement

_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_OTHERS = frozenset((*GEOMETRY, "vector", "xmltype"))  # types that no statement adds or widens here
_WIDTHS = {"utf8mb4": 4, "utf8mb3": 3, "latin1": 1, "ascii": 1}  # bytes of a character, at most
_LIMITS = (255, (1 << 16) - 1, (1 << 24) - 1, (1 << 32) - 1)  # bytes of the four sizes of TEXT and BLOB

# The first words of clauses that leave rows and columns as they are. An option's value is looked at, too: `_HARMFUL`.
_INDEXES = frozenset(["INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK", "CONSTRAINT"])
_OPTION = re.compile(
    "ALGORITHM|AUTO_INCREMENT|AVG_ROW_LENGTH|CHARACTER|CHARSET|CHECKSUM|COLLATE|COMMENT|COMPRESSION|DEFAULT|DELAY_KEY_WRITE|DISABLE|ENABLE"
    "|ENCRYPTED|ENCRYPTION|ENGINE|FORCE|KEY_BLOCK_SIZE|LOCK|(MAX|MIN)_ROWS|NOWAIT|ORDER|PACK_KEYS|PAGE_(CHECKSUM|COMPRESSED)|ROW_FORMAT"
    "|STATS_(AUTO_RECALC|PERSISTENT|SAMPLE_PAGES)|TRANSACTIONAL|WAIT"
)
_HARMFUL = re.compile(
    "COALESCE|CONVERT|DISCARD|EXCHANGE|IMPORT|PARTITION|PERIOD|REMOVE|REORGANIZE|SYSTEM|TABLESPACE|TRUNCATE|UNION|VERSIONING"
)
_ENGINES = frozenset(["INNODB", "ROCKSDB", "ARIA", "MYISAM"])


class RowsUnknown(ValueError):
    """The statement may change values, or is not understood."""


class Change(NamedTuple):
    """A column's change: `name` becomes `to`. Without `name` it is added, without `to` dropped.

    An added or redefined column has its new `column`. Rows that are there get the literal `default` in an added one, None for NULL.
    With neither name the primary key changed.
    """

    name: str
    to: str
    column: Column | None = None
    default: int | str | None = None


class Action(NamedTuple):
    """What happens to one table: `kind` is truncate, drop, create, alter (with its `changes`, all at once) or reread.

    A dropped database is a drop of ``*``. A statement that names no table that can be read is a reread of none.
    """

    kind: str
    database: str
    table: str
    changes: tuple[Change, ...] = ()


@lru_cache(maxsize=1024)
def actions(sql: str, database: str, mode: str = "") -> tuple[Action, ...]:
    """Return what `sql`, run with `database` as the current one, does to tables.

    `mode` is the property ``sql_mode`` of its event.
    """
    try:
        first, *others = [
            tuple(_read(statement(sql, read), database, Dialect(read.oracle or read.maxdb, Session(read.bits))))
            for read in modes(sql, SqlMode.named(mode))
        ]
        return first if all(other == first for other in others) else (Action("reread", "", ""),)
    except ValueError:  # it ends early, or something else stands where a name belongs
        return (Action("reread", "", ""),)


def _read(tokens: Tokens, database: str, dialect: Dialect) -> Iterable[Action]:
    verb = tokens.accept_one("TRUNCATE", "DROP", "RENAME", "CREATE", "ALTER")
    if verb == "TRUNCATE":
        tokens.accept("TABLE")
        return [Action("truncate", *tokens.table_name(database))]
    if verb == "DROP" and tokens.accept_one("DATABASE", "SCHEMA"):
        tokens.if_exists()
        return [Action("drop", tokens.name(), "*")]
    if verb == "DROP" and tokens.accept("TABLE"):  # DROP TEMPORARY TABLE does nothing to a replica
        tokens.if_exists()
        return [Action("drop", *Tokens(part).table_name(database)) for part in tokens.parts()]
    if verb == "RENAME" and tokens.accept_one("TABLE", "TABLES"):
        tokens.if_exists()
        return _moved([_renaming(Tokens(part), database) for part in tokens.parts()])
    if verb == "CREATE":
        replaces = tokens.accept("OR", "REPLACE")
        if tokens.accept("TABLE"):
            tokens.if_exists()
            return [Action("drop" if replaces else "create", *tokens.table_name(database))]
    if verb == "ALTER":
        ignores = False
        while word := tokens.accept_one("ONLINE", "OFFLINE", "IGNORE"):
            ignores |= word == "IGNORE"  # rows that do not fit a new key are dropped
        if tokens.accept("TABLE"):
            tokens.if_exists()
            return _alter(tokens, database, dialect, ignores)
    return []


def _renaming(tokens: Tokens, database: str) -> tuple[tuple[str, str], tuple[str, str]]:
    old = tokens.table_name(database)
    tokens.wait()
    if not tokens.accept("TO"):
        raise ValueError("RENAME TABLE without TO")
    return old, tokens.table_name(database)


def _moved(renamings: Iterable[tuple[tuple[str, str], tuple[str, str]]]) -> list[Action]:
    """One after the other: a name whose table is another one in the end is read again, one that has none is empty."""
    origin: dict[tuple[str, str], tuple[str, str] | None] = {}
    for old, new in renamings:
        if old == new:
            continue
        origin[new], origin[old] = origin.get(old, old), None
    return [Action("drop" if was is None else "reread", *name) for name, was in origin.items() if was != name]


def _alter(tokens: Tokens, database: str, dialect: Dialect, ignores: bool) -> list[Action]:
    table, moves, others = tokens.table_name(database), [], []
    tokens.wait()
    changes: list[Change] = []
    kind = "reread" if ignores else "alter"
    for clause in map(Tokens, tokens.parts()):
        words = [token.upper for token in clause.rest()]
        if words[:1] == ["RENAME"] and words[1:2] not in (["COLUMN"], ["INDEX"], ["KEY"]):
            clause.take()
            clause.accept_one("TO", "AS", "=")
            moves = [(table, clause.table_name(database))]
            continue
        if not words:
            continue
        if (
            "PARTITION" in words and "TABLE" in words
        ):  # EXCHANGE PARTITION p WITH TABLE t, CONVERT PARTITION p TO TABLE t, CONVERT TABLE t
            while clause.take().upper != "TABLE":
                pass
            others.append(Action("reread", *clause.table_name(database)))
            kind = "reread"
            continue
        try:
            changes += _changes(clause, words, dialect)
        except ValueError:
            kind = "reread"
    names = [name for change in changes for name in {folded(change.name), folded(change.to)} if name]
    if len(set(names)) < len(names):
        kind = "reread"  # columns swap, or one takes another's name
    if moves and moves[0][1] != table:
        return [*_moved(moves), *others]
    return [Action(kind, *table, tuple(changes) if kind == "alter" else ()), *others]


def _changes(tokens: Tokens, words: list[str], dialect: Dialect) -> list[Change]:
    """The column changes in one clause of ALTER TABLE. Raises ValueError where rows may change."""
    verb = words[0] if words else ""
    if _OPTION.fullmatch(verb):
        _check_options(words)
        return []
    tokens.take()
    if verb == "ALTER":  # a default, an index, a check
        return []
    if verb == "RENAME" and tokens.accept_one("INDEX", "KEY"):
        return []
    column = tokens.accept("COLUMN")
    if verb in ("ADD", "DROP") and not column and (tokens.peek() in _INDEXES or words[1:3] == ["VECTOR", "INDEX"]):
        if "PRIMARY" in words or any(token.text.upper() == "PRIMARY" for token in tokens.rest()[:3]):
            return [Change("", "", None)]
        return []
    if verb in ("ADD", "DROP") and not column and tokens.accept("PRIMARY", "KEY"):
        return [Change("", "", None)]
    if verb == "ADD" and not column and tokens.peek() == "PARTITION":
        return []
    if not column and (_HARMFUL.fullmatch(tokens.peek()) or tokens.peek() in ("VECTOR", "TABLE")) and tokens.peek(1):
        raise RowsUnknown
    tokens.if_exists()
    if verb == "ADD" and tokens.peek() == "(":
        return [change for part in map(Tokens, tokens.parenthesized()) for change in _in_brackets(part, dialect)]
    if verb == "ADD":
        return [_added(tokens, dialect)]
    name = tokens.name()
    if verb == "DROP":
        return [Change(name, "")]
    if verb == "RENAME" and tokens.accept("TO"):
        return [Change(name, tokens.name())]
    if verb in ("MODIFY", "CHANGE"):
        to = name if verb == "MODIFY" else tokens.name()
        return [Change(name, to, _definition(to, tokens, dialect, added=False)[0])]
    raise RowsUnknown


def _in_brackets(tokens: Tokens, dialect: Dialect) -> list[Change]:
    if tokens.peek() in _INDEXES and "PRIMARY" not in [token.upper for token in tokens.rest()]:
        return []
    if tokens.peek() in _INDEXES | {"PRIMARY"} or _HARMFUL.fullmatch(tokens.peek()):
        raise RowsUnknown
    return [_added(tokens, dialect)]


def _check_options(words: list[str]) -> None:
    """Table options follow one another without commas. Raises `RowsUnknown`."""
    if any(map(_HARMFUL.fullmatch, words)):
        raise RowsUnknown
    for i, word in enumerate(words):
        if word == "ENGINE" and not _ENGINES & set(words[i + 1 : i + 3]):
            raise RowsUnknown


# ---------------------------------------------------------------- columns


def _added(tokens: Tokens, dialect: Dialect) -> Change:
    name = tokens.name()
    column, default, has_default = _definition(name, tokens, dialect, added=True)
    if column.type == "timestamp" or (has_default and column.type not in (*_INTEGERS, "varchar")):
        raise RowsUnknown
    if has_default and column.type in _INTEGERS:
        return Change("", name, column, int(default or 0))
    if not column.nullable and not has_default:
        if column.type not in _INTEGERS:
            raise RowsUnknown
        return Change("", name, column, 0)
    return Change("", name, column, default if has_default else None)


def _definition(name: str, tokens: Tokens, dialect: Dialect, *, added: bool) -> tuple[Column, str | None, bool]:
    """A column as it is written, what rows get in it as text, and whether a default is written. Raises ValueError for what is not in the list.

    The size of text is in characters, of which the column's character set makes bytes.
    """
    read = read_type(tokens, dialect)
    type_ = read.name
    if type_ in _OTHERS or read.serial or read.charset:
        raise RowsUnknown
    if read.length is not None and type_ in ("text", "blob"):
        raise RowsUnknown  # the server chooses the size
    members = tuple([member for member in read.members if isinstance(member, str)])
    if len(members) < len(read.members):
        raise RowsUnknown
    column = sized(Column(name, type_, False, True, 0, read.scale, "", members, read.written))._replace(definition="")
    default, has_default = None, False
    while tokens.left:
        if tokens.accept("UNSIGNED") and type_ in _INTEGERS:
            column = column._replace(unsigned=True)
        elif tokens.accept("NOT", "NULL"):
            column = column._replace(nullable=False)
        elif tokens.accept("COMMENT"):
            tokens.take()
        elif tokens.accept("AFTER"):
            tokens.name()
        elif tokens.accept("DEFAULT"):
            if added:
                default, has_default = _literal(tokens, column)
            else:
                _skip_default(tokens)
        elif not tokens.accept_one("NULL", "FIRST", "INVISIBLE", "VISIBLE"):
            raise RowsUnknown
    return column, default, has_default


def _literal(tokens: Tokens, column: Column) -> tuple[str | None, bool]:
    """The default of a column that is added, where it is beyond doubt what rows get: NULL, a whole number, plain text."""
    if tokens.accept("NULL"):
        return None, False
    sign = tokens.accept_one("-", "+").replace("+", "")
    token = tokens.take()
    if column.type in _INTEGERS and token.kind == "number" and token.text.isdigit():
        return sign + token.text, True
    plain = token.text.isascii() and token.text.isalnum() if token.text else True
    if column.type == "varchar" and token.kind == "string" and plain and not sign and len(token.text) <= column.size:
        return token.text, True
    raise RowsUnknown


def _skip_default(tokens: Tokens) -> None:
    """Pass over the default of a column that is there: it is for rows to come."""
    if tokens.peek() == "(":
        tokens.skip_parentheses()
        return
    tokens.accept_one("-", "+")
    if tokens.take().kind == "word" and tokens.peek() == "(":
        tokens.skip_parentheses()


def keeps_values(old: Column, new: Column, *, strict: bool) -> bool:
    """Whether every value of a column `old`, as the binlog describes it, is the same in `new`, as a statement without a character set does.

    `strict`: in the statement's session a value that does not fit is an error. In the table's own character set, which the statement means,
    text that cannot be written is not the same.
    """
    if old.nullable and not new.nullable and not strict:
        return False
    if old.type in _INTEGERS and new.type in _INTEGERS:
        wider = _INTEGERS[new.type] - _INTEGERS[old.type]
        return wider > 0 or (wider == 0 and old.unsigned == new.unsigned) if old.unsigned or not new.unsigned else False
    if old.charset:
        return strict and _keeps_text(old, new)
    if old.type in ("varbinary", *_BLOBS) and new.type in ("varbinary", *_BLOBS):
        return _bytes(new, 1) >= _bytes(old, 1)
    if old.type != new.type:
        return False
    if old.type == "decimal":
        return old.scale == new.scale and old.size <= new.size and not old.unsigned
    return old.type in ("date", "json", "uuid", "inet4", "inet6") or (
        old.type in ("datetime", "timestamp", "time") and old.scale == new.scale
    )


def _keeps_text(old: Column, new: Column) -> bool:
    if old.type == new.type == "enum":
        return old.members == new.members[: len(old.members)]
    wide = ("varchar", *_TEXTS)
    if old.charset not in _WIDTHS or not ((old.type in wide and new.type in wide) or old.type == new.type == "char"):
        return False
    return _bytes(new, _WIDTHS[old.charset]) >= _bytes(old, 1)


def _bytes(column: Column, width: int) -> int:
    """The most bytes of a value."""
    for names in (_TEXTS, _BLOBS):
        if column.type in names:
            return _LIMITS[names.index(column.type)]
    return column.size * width
