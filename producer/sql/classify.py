"""What the SQL text of a QUERY event is: a transaction's bounds, a DDL and its tables, or a statement that changes rows.

Plan: cut the text into tokens (comments dropped, ``/*!50700 ... */`` opened, quoted names unquoted), then read the first
few. Only what a binlog holds is known; anything else is of type QUERY, never an error. Kinds are Canal's: an ALTER that
only adds or drops an index is CINDEX or DINDEX, one that renames the table is RENAME.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from shmstore.event import EventType
from shmstore.sql_tokens import USUAL, SqlMode, scan

TableName = tuple[str, str]  # database, table


class Kind(Enum):
    """What a statement does to the stream of transactions."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    SAVEPOINT = auto()
    ROLLBACK_TO = auto()
    RELEASE = auto()
    XA_START = auto()
    XA_END = auto()
    XA_COMMIT = auto()
    XA_ROLLBACK = auto()
    DDL = auto()  # of a table, index, view, database, routine ...
    DCL = auto()  # accounts and privileges
    DML = auto()  # changes rows: a statement-format event
    OTHER = auto()


class Statement(NamedTuple):
    """A statement, classified. `tables` are the tables it names, `targets` the new names of a RENAME, pair by pair."""

    kind: Kind
    type: EventType = EventType.QUERY
    tables: tuple[TableName, ...] = ()
    targets: tuple[TableName, ...] = ()
    name: str = ""  # of a savepoint; of a database where a DDL names no table


class _Token(NamedTuple):
    word: str  # in upper case; of what is quoted a sign that no keyword is
    text: str  # as written, unquoted


def _tokens(sql: str, mode: SqlMode) -> Iterator[_Token]:
    for token in scan(sql, mode):
        yield _Token(token.upper or "`", token.text)


class _Reader:
    """Reads tokens one after the other; past the end it gives an empty one."""

    END = _Token("", "")

    def __init__(self, sql: str, mode: SqlMode) -> None:
        self._rest = _tokens(sql, mode)
        self.token = next(self._rest, self.END)

    def step(self) -> _Token:
        """Return the token here and go on."""
        token = self.token
        self.token = next(self._rest, self.END)
        return token

    def take(self, *words: str) -> str:
        """Go on if the token here is one of `words`; return it, else an empty string."""
        return self.step().word if self.token.word in words else ""

    def skip_to(self, *words: str) -> bool:
        """Go on until past one of `words`; False when there is none."""
        while self.token.word:
            if self.step().word in words:
                return True
        return False

    def table(self, database: str) -> TableName:
        """Read ``[database.]table``."""
        first = self.step().text
        if self.token.word == ".":
            self.step()
            return first, self.step().text
        return database, first

    def tables(self, database: str) -> tuple[TableName, ...]:
        """Read a list of tables."""
        found = [self.table(database)]
        while self.take(","):
            found.append(self.table(database))
        return tuple(found)


_ACCOUNT = ("USER", "ROLE")
_DML = frozenset(("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "SELECT", "DO", "("))
_PLAIN = {"BEGIN": Statement(Kind.BEGIN), "COMMIT": Statement(Kind.COMMIT), "ROLLBACK": Statement(Kind.ROLLBACK)}


def classify(sql: str, database: str, mode: SqlMode = USUAL) -> Statement:
    """Return what `sql` is; `database` and `mode` are the session's, for names without one and for its quotes."""
    return _PLAIN.get(sql) or (_remembered if len(sql) <= LONGEST else _classify)(sql, database, mode)


def _classify(sql: str, database: str, mode: SqlMode) -> Statement:
    reader = _Reader(sql, mode)
    head = reader.step().word
    if head in ("BEGIN", "COMMIT") and reader.token.word in ("", "WORK", ";"):
        return _PLAIN[head]
    if head == "START" and reader.take("TRANSACTION"):
        return _PLAIN["BEGIN"]
    if head == "ROLLBACK":
        reader.take("WORK")
        if not reader.take("TO"):
            return _PLAIN["ROLLBACK"]
        reader.take("SAVEPOINT")
        return Statement(Kind.ROLLBACK_TO, name=reader.step().text)
    if head == "SAVEPOINT":
        return Statement(Kind.SAVEPOINT, name=reader.step().text)
    if head == "RELEASE":
        reader.take("SAVEPOINT")
        return Statement(Kind.RELEASE, name=reader.step().text)
    if head == "XA":
        return _xa(reader)
    if head in _DML:
        return Statement(Kind.DML)
    if head in ("GRANT", "REVOKE"):
        return Statement(Kind.DCL)
    if head == "SET":
        return Statement(Kind.DCL if reader.token.word in ("PASSWORD", "DEFAULT", "ROLE") else Kind.OTHER)
    if head in ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"):
        return _ddl(head, reader, database)
    return Statement(Kind.DDL if head in ("ANALYZE", "OPTIMIZE", "REPAIR", "COMMENT") else Kind.OTHER)


# What comes again and again is short. Of a text, the cache keeps all: 256 of any length could be gigabytes.
LONGEST = 1024
_remembered = lru_cache(maxsize=256)(_classify)


def _xa(reader: _Reader) -> Statement:
    verb = reader.step().word
    parts = []
    while reader.token.word:
        parts.append(reader.step().text)
    kinds = {"START": Kind.XA_START, "BEGIN": Kind.XA_START, "END": Kind.XA_END}
    kinds |= {"COMMIT": Kind.XA_COMMIT, "ROLLBACK": Kind.XA_ROLLBACK}
    types = {"COMMIT": EventType.XACOMMIT, "ROLLBACK": EventType.XAROLLBACK}
    name = "".join(part for part in parts if part.upper() not in ("ONE", "PHASE"))
    return Statement(kinds.get(verb, Kind.OTHER), types.get(verb, EventType.QUERY), name=name)


def _ddl(head: str, reader: _Reader, database: str) -> Statement:
    if head == "TRUNCATE":
        reader.take("TABLE")
        return Statement(Kind.DDL, EventType.TRUNCATE, (reader.table(database),))
    if head == "RENAME":
        return _rename(reader, database)
    if reader.take("OR"):
        reader.take("REPLACE")
    while True:  # what may stand between the verb and the object
        word = reader.token.word
        if word in _ACCOUNT:
            return Statement(Kind.DCL)
        if word == "TEMPORARY":  # of one session: no rows of it are logged
            return Statement(Kind.DDL)
        if word in ("DATABASE", "SCHEMA"):
            reader.step()
            _if_exists(reader)
            return Statement(Kind.DDL, name=reader.step().text if reader.token.word else database)
        if word in ("TABLE", "TABLES"):
            reader.step()
            return _table(head, reader, database)
        if word in ("INDEX", "KEY") and head != "ALTER":
            reader.step()
            kind = EventType.CINDEX if head == "CREATE" else EventType.DINDEX
            return Statement(Kind.DDL, kind, (reader.table(database),) if reader.skip_to("ON") else ())
        if word in (
            "",
            "(",
            "AS",
            "VIEW",
            "PROCEDURE",
            "FUNCTION",
            "TRIGGER",
            "EVENT",
            "SEQUENCE",
            "PACKAGE",
            "SERVER",
            "PREPARE",
        ):
            return Statement(Kind.DDL)
        reader.step()


def _if_exists(reader: _Reader) -> None:
    if reader.take("IF"):
        reader.take("NOT")
        reader.take("EXISTS")


def _table(head: str, reader: _Reader, database: str) -> Statement:
    _if_exists(reader)
    if head == "CREATE":
        return Statement(Kind.DDL, EventType.CREATE, (reader.table(database),))
    if head == "DROP":
        return Statement(Kind.DDL, EventType.ERASE, reader.tables(database))
    table = reader.table(database)
    return _alterations(reader, table, database)


def _alterations(reader: _Reader, table: TableName, database: str) -> Statement:
    """Read the list after ALTER TABLE t: the kind is that of its most telling part, as in Canal."""
    kinds: list[EventType] = []
    target: TableName | None = None
    depth, fresh = 0, True
    while reader.token.word:
        word = reader.step().word
        if word in "()":
            depth += 1 if word == "(" else -1
        elif depth == 0 and word == ",":
            fresh = True
            continue
        elif depth == 0 and fresh:
            kind = EventType.ALTER
            if word == "ADD":
                reader.take("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
                kind = EventType.CINDEX if reader.token.word in ("INDEX", "KEY") else EventType.ALTER
            elif word == "DROP":
                kind = EventType.DINDEX if reader.token.word in ("INDEX", "KEY") else EventType.ALTER
            elif word == "RENAME" and reader.token.word not in ("COLUMN", "INDEX", "KEY"):
                reader.take("TO", "AS", "=")
                target, kind = reader.table(database), EventType.RENAME
            kinds.append(kind)
        fresh = False
    if target is not None:
        return Statement(Kind.DDL, EventType.RENAME, (table,), (target,))
    same = kinds[0] if kinds and len(set(kinds)) == 1 else EventType.ALTER
    return Statement(Kind.DDL, same, (table,))


def _rename(reader: _Reader, database: str) -> Statement:
    if reader.token.word in _ACCOUNT:
        return Statement(Kind.DCL)
    reader.take("TABLE", "TABLES")
    _if_exists(reader)
    tables, targets = [], []
    while reader.token.word:
        tables.append(reader.table(database))
        reader.skip_to("TO")
        targets.append(reader.table(database))
        if not reader.take(","):
            break
    return Statement(Kind.DDL, EventType.RENAME, tuple(tables), tuple(targets))
