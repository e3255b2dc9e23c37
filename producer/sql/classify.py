"""What the SQL text of a QUERY event is: a transaction's bounds, a DDL and its tables, or a statement that changes rows.

Plan: cut the text into tokens (comments dropped, ``/*!50700 ... */`` opened, quoted names unquoted), then read the first
few. Only what a binlog holds is known; anything else is of type QUERY, never an error. Kinds are Canal's: an ALTER that
only adds or drops an index is CINDEX or DINDEX, one that renames the table is RENAME.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from shmstore.event import EventType
from shmstore.sql_tokens import USUAL, SqlMode, Tokens, statement

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
    ACCOUNT = auto()  # accounts, privileges, and where passwords stand besides: it never reaches a store, a file or a log
    DML = auto()  # changes rows: a statement-format event
    OTHER = auto()


class Statement(NamedTuple):
    """A statement, classified. `tables` are the tables it names, `targets` the new names of a RENAME, pair by pair."""

    kind: Kind
    type: EventType = EventType.QUERY
    tables: tuple[TableName, ...] = ()
    targets: tuple[TableName, ...] = ()
    name: str = ""  # of a savepoint; of a database where a DDL names no table


_ACCOUNT = ("USER", "ROLE", "SERVER")
_REPLICATION = ("SLAVE", "REPLICA", "GROUP_REPLICATION", "ALL")  # START takes a password
_DML = frozenset(("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "SELECT", "DO", "("))
_DDL = frozenset(("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"))
_PLAIN = {"BEGIN": Statement(Kind.BEGIN), "COMMIT": Statement(Kind.COMMIT), "ROLLBACK": Statement(Kind.ROLLBACK)}


def classify(sql: str, database: str, mode: SqlMode = USUAL) -> Statement:
    """Return what `sql` is; `database` and `mode` are the session's, for names without one and for its quotes."""
    return _PLAIN.get(sql) or (_remembered if len(sql) <= LONGEST else _classify)(sql, database, mode)


def _classify(sql: str, database: str, mode: SqlMode) -> Statement:
    tokens = statement(sql, mode)
    head = tokens.peek()
    try:
        return _read(tokens, database)
    except ValueError:  # it ends early, or something else stands where a name belongs
        return Statement(Kind.DDL if head in _DDL else Kind.OTHER)


def _read(tokens: Tokens, database: str) -> Statement:
    head = tokens.take().upper
    if head in ("BEGIN", "COMMIT") and tokens.peek() in ("", "WORK"):
        return _PLAIN[head]
    if head == "START":
        if tokens.accept("TRANSACTION"):
            return _PLAIN["BEGIN"]
        return Statement(Kind.ACCOUNT if tokens.peek() in _REPLICATION else Kind.OTHER)
    if head == "ROLLBACK":
        tokens.accept("WORK")
        if not tokens.accept("TO"):
            return _PLAIN["ROLLBACK"]
        tokens.accept("SAVEPOINT")
        return Statement(Kind.ROLLBACK_TO, name=tokens.name())
    if head == "SAVEPOINT":
        return Statement(Kind.SAVEPOINT, name=tokens.name())
    if head == "RELEASE":
        tokens.accept("SAVEPOINT")
        return Statement(Kind.RELEASE, name=tokens.name())
    if head == "XA":
        return _xa(tokens)
    if head in _DML:
        return _dml(head, tokens, database)
    if head in ("GRANT", "REVOKE", "CHANGE", "CLONE"):
        return Statement(Kind.ACCOUNT)
    if head == "SET":
        return Statement(Kind.ACCOUNT if tokens.peek() in ("PASSWORD", "DEFAULT", "ROLE") else Kind.OTHER)
    if head in _DDL:
        return _ddl(head, tokens, database)
    return Statement(Kind.DDL if head in ("ANALYZE", "OPTIMIZE", "REPAIR", "COMMENT") else Kind.OTHER)


# What comes again and again is short. Of a text, the cache keeps all: 256 of any length could be gigabytes.
LONGEST = 1024
_remembered = lru_cache(maxsize=256)(_classify)


def _xa(tokens: Tokens) -> Statement:
    verb = tokens.take().upper
    kinds = {"START": Kind.XA_START, "BEGIN": Kind.XA_START, "END": Kind.XA_END}
    kinds |= {"COMMIT": Kind.XA_COMMIT, "ROLLBACK": Kind.XA_ROLLBACK}
    types = {"COMMIT": EventType.XACOMMIT, "ROLLBACK": EventType.XAROLLBACK}
    name = "".join(token.text for token in tokens.rest() if token.upper not in ("ONE", "PHASE"))
    return Statement(kinds.get(verb, Kind.OTHER), types.get(verb, EventType.QUERY), name=name)


_DML_TYPES = {
    "INSERT": EventType.INSERT,
    "REPLACE": EventType.INSERT,
    "LOAD": EventType.INSERT,
    "UPDATE": EventType.UPDATE,
    "DELETE": EventType.DELETE,
}
# What may stand between the verb of a change and its table.
_DML_WORDS = ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE", "INTO")
_BEHIND_TABLES = ("SET", "WHERE", "ORDER", "LIMIT", "RETURNING")


def _dml(head: str, tokens: Tokens, database: str) -> Statement:
    """A change of rows: INSERT, UPDATE or DELETE where the verb says so, and the tables that it may change."""
    type_ = _DML_TYPES.get(head, EventType.QUERY)
    if type_ is EventType.QUERY:
        return Statement(Kind.DML)
    try:
        if head == "LOAD":
            while tokens.take().upper != "TABLE":
                pass
        while tokens.accept_one(*_DML_WORDS):
            pass
        several = head in ("UPDATE", "DELETE")
        return Statement(Kind.DML, type_, _joined(tokens, database) if several else (tokens.table_name(database),))
    except ValueError:
        return Statement(Kind.DML, type_)


def _joined(tokens: Tokens, database: str) -> tuple[TableName, ...]:
    """The tables of an UPDATE or DELETE, in the order written: those that it joins, too, as an alias may stand for any of them."""
    rest = tokens.rest()
    words = [token.upper for token in rest]
    end = next((i for i, word in enumerate(words) if word in _BEHIND_TABLES), len(words))
    if "SELECT" in words[:end]:
        raise ValueError("a table that is a query")
    begin = next((i + 1 for i in range(end - 1, -1, -1) if words[i] in ("USING", "FROM") and words[i + 1 : i + 2] != ["("]), 0)
    found: list[TableName] = []
    references = Tokens(rest[begin:end])
    expected = True
    while references.left:
        word = references.peek()
        if word in (",", "JOIN", "STRAIGHT_JOIN"):
            expected = True
        elif expected and word != "(":
            name = references.table_name(database)
            found += [name] if name not in found else []
            expected = False
            continue
        references.take()
    if not found:
        raise ValueError("no table")
    return tuple(found)


# What ends the search for the object that a CREATE, ALTER or DROP is about: none of these is a table, database or index.
_NO_TABLE = frozenset(
    ["(", "AS", "VIEW", "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "SEQUENCE", "PACKAGE", "PREPARE", "TEMPORARY"]
)  # TEMPORARY: of one session, no rows of it are logged


def _ddl(head: str, tokens: Tokens, database: str) -> Statement:
    if head == "TRUNCATE":
        tokens.accept("TABLE")
        return Statement(Kind.DDL, EventType.TRUNCATE, (tokens.table_name(database),))
    if head == "RENAME":
        return _rename(tokens, database)
    if tokens.accept("OR"):
        tokens.accept("REPLACE")
    while tokens.left and (word := tokens.take().upper) not in _NO_TABLE:  # what may stand between the verb and the object
        if word in _ACCOUNT:
            return Statement(Kind.ACCOUNT)
        if word in ("DATABASE", "SCHEMA"):
            tokens.if_exists()
            return Statement(Kind.DDL, name=tokens.name() if tokens.left else database)
        if word in ("TABLE", "TABLES"):
            return _table(head, tokens, database)
        if word in ("INDEX", "KEY") and head != "ALTER":
            while tokens.take().upper != "ON":
                pass
            return Statement(Kind.DDL, EventType.CINDEX if head == "CREATE" else EventType.DINDEX, (tokens.table_name(database),))
    return Statement(Kind.DDL)


def _table(head: str, tokens: Tokens, database: str) -> Statement:
    tokens.if_exists()
    tables = [tokens.table_name(database)]
    if head == "ALTER":
        return _alterations(tokens, tables[0], database)
    while head == "DROP" and tokens.accept(","):
        tables.append(tokens.table_name(database))
    return Statement(Kind.DDL, EventType.CREATE if head == "CREATE" else EventType.ERASE, tuple(tables))


def _alterations(tokens: Tokens, table: TableName, database: str) -> Statement:
    """Read the list after ALTER TABLE t: the kind is RENAME where the table is renamed, else that of the first part, as in Canal."""
    tokens.wait()
    kinds: list[EventType] = []
    target: TableName | None = None
    for part in map(Tokens, tokens.parts()):
        verb, kind = part.accept_one("ADD", "DROP", "RENAME"), EventType.ALTER
        unique = False
        if verb == "ADD":
            if part.accept("CONSTRAINT") and part.peek() not in ("UNIQUE", "PRIMARY", "FOREIGN", "CHECK"):
                part.name()
            unique = part.accept_one("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR") == "UNIQUE"
        if verb == "RENAME" and part.peek() not in ("COLUMN", "INDEX", "KEY"):
            part.accept_one("TO", "AS", "=")
            target = part.table_name(database)
        elif unique or (verb in ("ADD", "DROP") and part.peek() in ("INDEX", "KEY")):
            kind = EventType.CINDEX if verb == "ADD" else EventType.DINDEX
        elif verb == "DROP" and part.peek() == "CONSTRAINT":
            kind = EventType.DINDEX
        kinds.append(kind)
    if target is not None:
        return Statement(Kind.DDL, EventType.RENAME, (table,), (target,))
    return Statement(Kind.DDL, kinds[0] if kinds else EventType.ALTER, (table,))


def _rename(tokens: Tokens, database: str) -> Statement:
    if tokens.peek() in _ACCOUNT:
        return Statement(Kind.ACCOUNT)
    tokens.accept_one("TABLE", "TABLES")
    tokens.if_exists()
    tables, targets = [], []
    for part in map(Tokens, tokens.parts()):
        tables.append(part.table_name(database))
        while part.take().upper != "TO":
            pass
        targets.append(part.table_name(database))
    return Statement(Kind.DDL, EventType.RENAME, tuple(tables), tuple(targets))
