"""What the SQL text of a QUERY event is: a transaction's bounds, a DDL and its tables, or a statement that changes rows.

Plan: cut the text into tokens (comments dropped, ``/*!50700 ... */`` opened, quoted names unquoted), then read the first
few. Only what a binlog holds is known; anything else is of type QUERY, never an error. Types are Canal's: an ALTER that
only adds or drops an index is CINDEX or DINDEX, one that renames the table is RENAME.

What changes rows is found by what the statement does, not by its first word: ANALYZE and WITH come before the verb, a CREATE TABLE
may have a query, and a statement that is not known counts as a change if a verb of one is anywhere in it.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from shmstore.event import EventType
from shmstore.sql.tokens import USUAL, SqlMode, Tokens, has_query, modes, statement

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
    fills: bool = False  # a CREATE TABLE with a query: a DDL that also writes rows, which no rows event shows

    @property
    def changes_rows(self) -> bool:
        """Whether rows change by it that no rows event shows."""
        return self.kind is Kind.DML or self.fills


_ACCOUNT = ("USER", "ROLE", "SERVER")
_REPLICATION = ("SLAVE", "REPLICA", "GROUP_REPLICATION", "ALL")  # START takes a password
_VERBS = frozenset(("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "EXECUTE", "IMPORT"))
_DML = _VERBS | {"SELECT", "DO", "VALUES", "("}  # a query is logged where a function in it writes
_DDL = frozenset(("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"))
_PLAIN = {"BEGIN": Statement(Kind.BEGIN), "COMMIT": Statement(Kind.COMMIT), "ROLLBACK": Statement(Kind.ROLLBACK)}


def classify(sql: str, database: str, mode: SqlMode = USUAL) -> Statement:
    """Return what `sql` is; `database` and `mode` are the session's, for names without one and for its quotes."""
    return _PLAIN.get(sql) or (_remembered if len(sql) <= LONGEST else _classify)(sql, database, mode)


def _classify(sql: str, database: str, mode: SqlMode) -> Statement:
    found = []
    for quotes in dict.fromkeys([(one.ansi_quotes, one.plain_backslash) for one in modes(sql, mode)]):
        with suppress(ValueError):  # it ends early, or has something else where a name belongs
            found.append(_read(statement(sql, SqlMode(*quotes)), database))
    return _any_of(found) if found else _unread(statement(sql, mode))


def _any_of(readings: list[Statement]) -> Statement:
    """What a statement may be, of which one of `readings` is right: a statement about accounts, a DDL, a change if one is, of all their tables."""
    first = readings[0]
    if all(one == first for one in readings):
        return first
    if any(one.kind is Kind.ACCOUNT for one in readings):
        return Statement(Kind.ACCOUNT)
    likely = next((one for one in readings if one.kind is Kind.DDL), first)
    tables = tuple(dict.fromkeys([name for one in readings for name in (*one.tables, *one.targets)]))
    if likely.kind is Kind.DML and not all(one.tables for one in readings):
        tables = ()  # it may change any
    return Statement(likely.kind, likely.type, tables, (), likely.name, any(one.changes_rows for one in readings))


def _unread(tokens: Tokens) -> Statement:
    """What can be said of a statement that is not known, or cannot be read."""
    head = tokens.peek()
    if head not in _DDL:
        return Statement(Kind.OTHER if _VERBS.isdisjoint([token.upper for token in tokens.rest()]) else Kind.DML)
    while tokens.left and tokens.take().upper != "TABLE":
        pass
    return Statement(Kind.DDL, fills=head == "CREATE" and has_query(tokens.rest()))


def _read(tokens: Tokens, database: str) -> Statement:
    head = tokens.take().upper
    if head in ("EXPLAIN", "DESCRIBE", "DESC") and tokens.peek() == "ANALYZE":
        head = tokens.take().upper
    if head == "ANALYZE" and tokens.peek() not in ("TABLE", "TABLES", "NO_WRITE_TO_BINLOG", "LOCAL"):  # it runs what follows
        if tokens.accept("FORMAT", "="):
            tokens.take()
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
    if head == "WITH":
        return _with(tokens, database)
    if head in _DML:
        return _dml(head, tokens, database)
    if head in ("GRANT", "REVOKE", "CHANGE", "CLONE"):
        return Statement(Kind.ACCOUNT)
    if head == "SET":
        return Statement(Kind.ACCOUNT if tokens.peek() in ("PASSWORD", "DEFAULT", "ROLE") else Kind.OTHER)
    if head in _DDL:
        return _ddl(head, tokens, database)
    if head in ("ANALYZE", "OPTIMIZE", "REPAIR", "COMMENT"):
        return Statement(Kind.DDL)
    raise ValueError("a statement that is not known")


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


def _with(tokens: Tokens, database: str) -> Statement:
    """WITH a AS (...), b AS (...) and the verb: the names of the queries are no tables."""
    tokens.accept("RECURSIVE")
    queries: set[str] = set()
    while True:
        queries.add(tokens.name().lower())
        tokens.skip_parentheses()
        tokens.accept("AS")
        tokens.skip_parentheses()
        if tokens.accept("CYCLE"):
            while tokens.take().upper != "RESTRICT":
                pass
        if not tokens.accept(","):
            break
    return _dml(tokens.take().upper, tokens, database, queries)


def _dml(head: str, tokens: Tokens, database: str, queries: Container[str] = ()) -> Statement:
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
        return Statement(Kind.DML, type_, _joined(tokens, database, queries) if several else (tokens.table_name(database),))
    except ValueError:
        return Statement(Kind.DML, type_)


def _joined(tokens: Tokens, database: str, queries: Container[str]) -> tuple[TableName, ...]:
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
        elif word == "(" and not expected:  # of PARTITION, ON or USING
            references.skip_parentheses()
            continue
        elif expected and word != "(":
            qualified = references.peek(1) == "."
            name = references.table_name(database)
            if name not in found and (qualified or name[1].lower() not in queries):
                found.append(name)
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
    if head == "CREATE" and tokens.accept(
        "TEMPORARY", "TABLE"
    ):  # no rows of it are logged, but a function in its query may write some
        return Statement(Kind.DML if _table(head, tokens, database).fills else Kind.DDL)
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
    if head == "CREATE":
        return Statement(Kind.DDL, EventType.CREATE, tuple(tables), fills=has_query(tokens.rest()))
    while tokens.accept(","):
        tables.append(tokens.table_name(database))
    return Statement(Kind.DDL, EventType.ERASE, tuple(tables))


#: What a part after ALTER TABLE t may begin with; any other word is an option of the table.
_ALTERATIONS = frozenset(
    (
        *("ADD", "ALGORITHM", "ALTER", "CHANGE", "CONVERT", "DISABLE", "DISCARD", "DROP", "ENABLE", "FORCE", "IMPORT", "LOCK"),
        *("MODIFY", "ORDER", "RENAME", "WITH", "WITHOUT"),
    )
)


def _alterations(tokens: Tokens, table: TableName, database: str) -> Statement:
    """Read the list after ALTER TABLE t: the kind is RENAME where the table is renamed, ALTER where the table has another option, else that
    of the first part, as in Canal: foreign keys and checks are none."""
    tokens.wait()
    kinds: list[EventType] = []
    target: TableName | None = None
    for part in map(Tokens, tokens.parts()):
        if part.peek() not in _ALTERATIONS:  # an option of the table, such as ENGINE
            kinds.insert(0, EventType.ALTER)
            continue
        verb, kind = part.accept_one("ADD", "DROP", "RENAME"), EventType.ALTER
        key = False
        if verb == "ADD":
            if part.accept("CONSTRAINT") and part.peek() not in ("UNIQUE", "PRIMARY", "FOREIGN", "CHECK"):
                part.name()
            if part.peek() in ("FOREIGN", "CHECK"):
                continue
            key = bool(part.accept_one("UNIQUE", "PRIMARY", "FULLTEXT", "SPATIAL", "VECTOR"))
        if verb == "RENAME" and part.peek() not in ("COLUMN", "INDEX", "KEY"):
            part.accept_one("TO", "AS", "=")
            target = part.table_name(database)
        elif key or (verb in ("ADD", "DROP") and part.peek() in ("INDEX", "KEY")):
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
