"""What a DDL does to tables: enough of the grammar to follow names, signs, character sets and keys.

Plan. A `Catalog` holds the tables; `read` reads one statement and returns what it changed. A statement that concerns a
table and cannot be read leaves the table `Unreadable` with the reason; one that does not even show its tables leaves those of
whole databases so. Asking for such a table is an error then, never a guess.
"""

from __future__ import annotations

from typing import NamedTuple

from shmstore.sql.alteration import MAY_BE_MOVED, Alteration
from shmstore.sql.definitions import add_definition
from shmstore.sql.names import folded
from shmstore.sql.options import Options, read_options
from shmstore.sql.sequences import is_sequence, sequence_table, typed_sequence
from shmstore.sql.session import UNKNOWN, Dialect, Session, meanings
from shmstore.sql.table_change import Draft, Table
from shmstore.sql.tokens import Tokens, has_query, scan, statement

__all__ = ["Catalog", "Change", "TableName", "Unreadable"]


class Unreadable(NamedTuple):
    """A table whose DDL could not be followed."""

    reason: str


# A database and a table -> what it is now; None: gone. (database, "") -> the database's default character set, empty where that is
# not known; None: it is gone, with its tables; Unreadable: none of its tables is known. (database, "\0" and a table) -> whether a session
# has a temporary table of that name, as far as the log shows; (database, "\1" and a name) -> whether it is a view. Empty: yes.
TableName = tuple[str, str]
Change = dict[TableName, Table | Unreadable | str | None]

# What CREATE, ALTER and DROP are about where no table changes: the word after the verb.
_OTHER_WORDS = (
    "VIEW ALGORITHM DEFINER SQL INDEX UNIQUE FULLTEXT SPATIAL VECTOR PROCEDURE FUNCTION AGGREGATE LOADABLE TRIGGER EVENT PACKAGE "
    "USER ROLE SERVER LOGFILE TABLESPACE UNDO INSTANCE RESOURCE SPATIAL TEMPORARY PREPARE LIBRARY JSON CATALOG MASKING"
)
_OTHER_OBJECTS = frozenset(_OTHER_WORDS.split())
# Words that MariaDB's flag for statements of one session is about, too, where it is about no temporary table.
_OF_SESSION = ("CONNECTION_ID", "PSEUDO_THREAD_ID")


class Catalog:
    """Tables by (database, name). `mariadb` and `charset` are the server's."""

    def __init__(self, *, charset: str = "utf8mb4", mariadb: bool = False, fold_case: bool = False) -> None:
        self.charset = charset
        self.mariadb = mariadb
        self.fold_case = fold_case  # lower_case_table_names is not 0
        self.databases: dict[str, str] = {}  # character sets, by the key of a database without a table
        self.former: dict[str, set[str]] = {}  # those that a database of this name had before: a session may have noted one
        self.unreadable: dict[
            str, Unreadable
        ] = {}  # databases of which a statement could not be read: any table may have changed
        self.tables: dict[TableName, Table | Unreadable] = {}
        self.temporary: set[TableName] = set()
        self.views: set[TableName] = set()

    def key(self, database: str, table: str) -> TableName:
        """The key of a table, in lower case where the server does not tell cases apart."""
        return (folded(database), folded(table)) if self.fold_case else (database, table)

    def find(self, database: str, table: str) -> Table | Unreadable | None:
        """The table as it is now."""
        key = self.key(database, table)
        return self.tables.get(key) or self.unreadable.get(key[0])

    def take(self, change: Change) -> None:
        """Make `change` the catalog's state."""
        for (database, table), now in change.items():
            name = self.key(database, "")[0]
            if table[:1] in ("\0", "\1"):
                marked = self.temporary if table[0] == "\0" else self.views
                (marked.discard if now is None else marked.add)(self.key(database, table[1:]))
            elif table:
                if isinstance(now, (Table, Unreadable)):
                    self.tables[self.key(database, table)] = now
                    self.views.discard(self.key(database, table))
                else:
                    self.tables.pop(self.key(database, table), None)
            elif isinstance(now, str):
                self._end_charset(name)
                self.databases[name] = now
            else:
                self.take(dict.fromkeys(self.all_of(database)))
                if isinstance(now, Unreadable):
                    self.unreadable[name] = now
                else:
                    self.unreadable.pop(name, None)
                    self._end_charset(name)

    def _end_charset(self, name: str) -> None:
        charset = self.databases.pop(name, None)
        if charset is not None:
            self.former.setdefault(name, set()).add(charset)

    def tables_of(self, database: str) -> list[TableName]:
        """The keys of a database's tables."""
        return [key for key in self.tables if key[0] == self.key(database, "")[0]]

    def all_of(self, database: str) -> list[TableName]:
        """What a change says of all that goes with a database: its tables and its views."""
        key = self.key(database, "")[0]
        return [*self.tables_of(database), *[(one, "\1" + view) for one, view in self.views if one == key]]

    def charset_of(self, database: str) -> str | None:
        """The default character set of a database, empty where it is not known; None where there is no such database."""
        return self.databases.get(self.key(database, "")[0])

    def stale_charsets(self, database: str) -> set[str]:
        """What sessions that chose the database before may take for its character set: each that it had, and has no longer."""
        name = self.key(database, "")[0]
        return self.former.get(name, set()) - {self.databases[name]} if name in self.databases else set()

    def read(self, sql: str, database: str, session: Session = UNKNOWN) -> Change:
        """Return what the statement changes, with `database` as the default one. Nothing where no column is concerned."""
        first, *others = [_Statement(self, sql, database, meant).read() for meant in meanings(sql, session)]
        if all(other == first for other in others):
            return first
        unknown = Unreadable(f"a DDL could not be followed: {_shown(sql)} (the log does not say in which sql_mode it was read)")
        names = dict.fromkeys([name for change in (first, *others) for name in change])
        return {
            name: unknown if any(other.get(name, sql) != first.get(name, sql) for other in others) else first[name]
            for name in names
        }

    def is_view(self, database: str, name: str) -> bool:
        """Whether a view has this name."""
        return self.key(database, name) in self.views


def _shown(sql: str) -> str:
    return repr(sql if len(sql) <= 200 else sql[:197] + "...")


class _Statement:
    """One statement being read against a catalog."""

    def __init__(self, catalog: Catalog, sql: str, database: str, session: Session) -> None:
        self.catalog = catalog
        self.sql = sql
        self.database = database
        self.session = session
        self.dialect = Dialect(catalog.mariadb, session)
        self.tokens = statement(sql, session.mode)
        self.subject: TableName | None = None  # the table that alone is concerned, once it is known
        self.gone: list[TableName] = []  # what is not there afterwards in any case

    def read(self) -> Change:
        try:
            return self._read()
        except (ValueError, IndexError) as error:
            unknown = Unreadable(f"a DDL could not be followed: {_shown(self.sql)} ({error})")
            if self.subject is not None:
                change: Change = dict.fromkeys(self.gone)
                return change | {self.subject: unknown}
            return {(name, ""): unknown for name in self._concerned()}

    def _concerned(self) -> set[str]:
        """The databases that a statement may concern which does not show its tables: the default one, and each that it names."""
        catalog = self.catalog
        there = {*catalog.databases, *(database for database, _ in catalog.tables)}
        named = {catalog.key(token.text, "")[0] for token in scan(self.sql, self.session.mode)}
        default = {catalog.key(self.database, "")[0]} if self.database else set()
        return (there & named) | default or there

    def _read(self) -> Change:
        tokens = self.tokens
        verb = tokens.accept_one("CREATE", "DROP", "RENAME", "ALTER")
        if verb == "CREATE":
            return self._create()
        if verb == "DROP":
            return self._drop()
        if verb == "RENAME" and tokens.peek() != "USER":
            if tokens.accept_one("TABLE", "TABLES"):
                return self._rename()
            raise ValueError(f"RENAME {tokens.peek()}")
        if verb == "ALTER":
            return self._alter()
        if tokens.accept_one("OPTIMIZE", "REPAIR"):
            return self._tidied()
        return {}

    def _tidied(self) -> Change:
        """Some of these servers and engines make the table again."""
        self.tokens.accept_one("NO_WRITE_TO_BINLOG", "LOCAL")
        if not self.tokens.accept_one("TABLE", "TABLES"):
            return {}
        names = [Tokens(part).table_name(self.database) for part in self.tokens.parts()]
        tables = [(name, self.catalog.find(*name)) for name in names]
        return {name: Unreadable(MAY_BE_MOVED) for name, table in tables if isinstance(table, Table) and table.scattered}

    # ------------------------------------------------------------ databases

    def _create_database(self, *, replaces: bool) -> Change:
        tokens, catalog = self.tokens, self.catalog
        exists = tokens.if_exists()
        name = tokens.name()
        if exists and catalog.charset_of(name) is not None:
            return {}
        server = self.session.server or catalog.charset
        change: Change = dict.fromkeys(catalog.all_of(name)) if replaces else {}
        return change | {(name, ""): self._database_options(server, server)}

    def _alter_database(self) -> Change:
        tokens, catalog = self.tokens, self.catalog
        named = tokens.peek() not in ("CHARACTER", "CHARSET", "COLLATE", "DEFAULT", "UPGRADE", "CHAR")
        if tokens.peek() in ("COMMENT", "ENCRYPTION", "READ"):  # words that may name a database
            named = tokens.peek(1) not in ("=", "ONLY", "") and tokens.peek_kind(1) != "string"
        database = tokens.name() if named else self.database
        if tokens.accept("UPGRADE"):
            raise ValueError("a database gets another name")
        before = catalog.charset_of(database) or ""
        default = self.session.server or catalog.charset
        if self.dialect.mariadb and default != before:
            default = ""  # DEFAULT is the server's from MariaDB 10.11 on; in 10.5 the database keeps what it has
        return {(database, ""): self._database_options(default, before)}

    def _database_options(self, default: str, collated: str) -> str:
        """The character set that the options give: `default` for DEFAULT, `collated` where nothing is given."""
        options = read_options(self.tokens)
        if self.tokens.left:
            return ""  # what it says is not known
        if options.charset is None and options.collation is None:
            return collated
        return options.charset_or(default, collated)

    def _database_charset(self, database: str) -> str:
        """The character set of a database's new tables; empty where it is not known."""
        charset = self.catalog.charset_of(database)
        return self.session.server or self.catalog.charset if charset is None else charset

    def _alter_default(self, database: str) -> str:
        """What DEFAULT means in an ALTER TABLE; empty where the log does not show it.

        To MySQL and MariaDB 10.5 it is what the session noted when it chose its database, or when it lost it, or with SET: only that of
        the last the log has. From 10.11 on it is that of the table's database.
        """
        noted = self.catalog.charset_of(self.database) or ""
        possible = {noted, self.session.database or noted, *self.catalog.stale_charsets(self.database)}
        if self.dialect.mariadb:
            possible.add(self._database_charset(database))
        return noted if len(possible) == 1 else ""

    # ------------------------------------------------------------ CREATE

    def _create(self) -> Change:
        tokens = self.tokens
        replaces = tokens.accept("OR", "REPLACE")
        if tokens.accept_one("DATABASE", "SCHEMA"):
            return self._create_database(replaces=replaces)
        if tokens.accept("TABLE"):
            return self._create_table(replaces=replaces)
        if tokens.accept("SEQUENCE"):
            return self._create_sequence(replaces=replaces)
        if tokens.accept("TEMPORARY", "TABLE"):
            return self._temporary(created=True)
        self._require_other()
        tokens.accept_one("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
        if tokens.accept("INDEX"):
            return self._create_index()
        return self._create_view() if self._names_view() else {}

    def _names_view(self) -> bool:
        """Pass over what comes before the name of a view."""
        tokens = self.tokens
        if tokens.peek() not in ("ALGORITHM", "DEFINER", "SQL", "VIEW"):
            return False
        while tokens.left and (word := tokens.take().upper) not in (
            "PROCEDURE",
            "FUNCTION",
            "AGGREGATE",
            "TRIGGER",
            "EVENT",
            "PACKAGE",
        ):
            if word == "VIEW":
                return True
        return False

    def _create_index(self) -> Change:
        maybe = False
        while self.tokens.left and not self.tokens.accept("ON"):
            maybe = self.tokens.take().upper == "EXISTS" or maybe
        return self._renewed(self.tokens.table_name(self.database), maybe=maybe)

    def _renewed(self, name: TableName, *, maybe: bool) -> Change:
        """A table that gets or loses an index is made again; `maybe`: or it does not."""
        self.subject = name
        table = self.catalog.find(*name)
        if not isinstance(table, Table) or not table.scattered or self._of_temporary():
            return {}
        if maybe:
            raise ValueError(MAY_BE_MOVED)
        return {name: Draft(table).table}

    def _create_view(self) -> Change:
        exists = self.tokens.if_exists()
        database, name = self.tokens.table_name(self.database)
        return {} if exists and self.catalog.find(database, name) is not None else {(database, "\1" + name): ""}

    def _is_there(self, name: TableName) -> bool:
        """Whether a table or a view has this name: what IF NOT EXISTS asks."""
        return self.catalog.is_view(*name) or self.catalog.find(*name) is not None

    def _temporary(self, *, created: bool) -> Change:
        """MariaDB logs these where the format is not ROW, so that RENAME TABLE may be about one: of that it does not log the flag."""
        if not self.dialect.mariadb:
            return {}
        self.tokens.if_exists()
        parts = [self.tokens] if created else [Tokens(part) for part in self.tokens.parts()]
        names = [part.table_name(self.database) for part in parts]
        return {(database, "\0" + table): "" if created else None for database, table in names}

    def _require_other(self) -> None:
        """Raise ValueError unless the statement is about an object that is no table."""
        tokens = self.tokens
        while tokens.accept_one("ONLINE", "OFFLINE", "OR", "REPLACE", "IF", "NOT", "EXISTS"):
            pass
        if tokens.peek() not in _OTHER_OBJECTS:
            raise ValueError(f"{tokens.peek() or 'something quoted'!r} where a kind of object belongs")

    def _failed_create(self, *, replaces: bool) -> Change:
        """MariaDB logs a CREATE OR REPLACE that failed when it had dropped the old table."""
        if not replaces or self.subject is None:
            raise ValueError("it failed on the server")
        return {self.subject: None}

    def _create_sequence(self, *, replaces: bool) -> Change:
        exists = self.tokens.if_exists()
        self.subject = name = self.tokens.table_name(self.database)
        if exists and self._is_there(name):
            return {}
        if self.session.failed:
            return self._failed_create(replaces=replaces)
        return {name: sequence_table(self.tokens)}

    def _create_table(self, *, replaces: bool) -> Change:
        tokens = self.tokens
        exists = tokens.if_exists()
        self.subject = name = tokens.table_name(self.database)
        if exists and self._is_there(name):
            return {}
        if self.session.failed:
            return self._failed_create(replaces=replaces)
        if tokens.accept("LIKE") or tokens.accept("(", "LIKE"):
            if self.dialect.mariadb and self.session.temporary and not replaces:  # which sets the flag, too
                raise ValueError("it is LIKE a temporary table")
            model_name = tokens.table_name(self.database)
            if self.dialect.mariadb and self.catalog.key(*model_name) in self.catalog.temporary:
                raise ValueError("it may be LIKE a temporary table")
            model = self.catalog.find(*model_name)
            if isinstance(model, Table) and model.scattered:
                model = Draft(model).table
            return {name: model if model is not None else Unreadable("it was created LIKE a table that is not known")}
        if has_query(tokens.rest()):
            raise ValueError("CREATE TABLE ... SELECT")
        if tokens.peek() != "(":
            raise ValueError("CREATE TABLE without a list of columns")
        definitions = tokens.parenthesized()
        options = read_options(tokens)
        if tokens.left and not tokens.accept("PARTITION", "BY"):
            raise ValueError(f"{tokens.peek() or 'something quoted'!r} among the options of a table")
        charset = options.charset_or("" if self._unsaid(options) else self._database_charset(name[0]))
        draft = Draft(Table(()), charset=charset)
        versioned = options.versioned
        for part in definitions:
            one = Tokens(part)
            column = add_definition(draft, one, self.dialect)
            if column and one.left:
                raise ValueError(f"{one.peek() or 'something quoted'!r} behind the definition of a column")
            versioned = versioned or bool(column and column.versioned)
        if versioned:
            draft.version()
        if options.engine not in ("", "INNODB"):  # only InnoDB's tables have a key that MySQL generated
            return {name: draft.table._replace(row_id="")}
        return {name: draft.table}

    def _unsaid(self, options: Options) -> bool:
        """Whether the statement leaves out a character set that is not the database's: of LIKE a temporary table."""
        if options.charset is not None or options.collation is not None:
            return False
        of_temporary = self.session.temporary and self.session.rewritten
        return self.dialect.omits_charsets or (of_temporary and bool(options.engine))

    # ------------------------------------------------------------ DROP, RENAME

    def _drop(self) -> Change:
        tokens = self.tokens
        if tokens.accept_one("DATABASE", "SCHEMA"):
            tokens.if_exists()
            return {(tokens.name(), ""): None}
        if kind := tokens.accept_one("TABLE", "TABLES", "SEQUENCE"):
            tokens.if_exists()
            names = [self._dropped(Tokens(part)) for part in tokens.parts()]
            return {name: None for name in names if kind != "SEQUENCE" or self._may_be_sequence(name)}
        if tokens.accept("TEMPORARY", "TABLE"):
            return self._temporary(created=False)
        while tokens.accept_one("ONLINE", "OFFLINE"):
            pass
        if tokens.accept("INDEX"):
            return self._drop_index()
        if tokens.accept("VIEW"):
            tokens.if_exists()
            names = [Tokens(part).table_name(self.database) for part in tokens.parts()]
            return {(database, "\1" + name): None for database, name in names if self.catalog.is_view(database, name)}
        self._require_other()
        return {}

    def _may_be_sequence(self, name: TableName) -> bool:
        table = self.catalog.find(*name)
        return not isinstance(table, Table) or is_sequence(table)

    def _dropped(self, tokens: Tokens) -> TableName:
        name = tokens.table_name(self.database)
        tokens.accept_one("RESTRICT", "CASCADE")
        tokens.wait()
        self._end(tokens)
        return name

    def _end(self, tokens: Tokens) -> None:
        if tokens.left:
            raise ValueError(f"{tokens.peek() or 'something quoted'!r} where the statement ends")

    def _drop_index(self) -> Change:
        tokens = self.tokens
        maybe = tokens.if_exists()
        index = tokens.name()
        if not tokens.accept("ON"):
            raise ValueError("DROP INDEX without ON")
        self.subject = name = tokens.table_name(self.database)
        table = self.catalog.find(*name)
        if index.upper() != "PRIMARY":
            return self._renewed(name, maybe=maybe)
        if not isinstance(table, Table) or self._of_temporary():
            return {}
        draft = Draft(table)
        draft.drop_key()
        return {name: draft.table} if draft.table != table else {}

    def _rename(self) -> Change:
        change: Change = {}
        if self.session.failed:
            raise ValueError("it failed on the server")
        maybe = self.tokens.if_exists()
        for part in self.tokens.parts():
            tokens = Tokens(part)
            old = tokens.table_name(self.database)
            tokens.wait()
            if not tokens.accept("TO"):
                raise ValueError("RENAME TABLE without TO")
            new = tokens.table_name(self.database)
            self._end(tokens)
            view, renamed = (old[0], "\1" + old[1]), (new[0], "\1" + new[1])
            if change[view] is not None if view in change else self.catalog.is_view(*old):
                change |= {view: None, renamed: ""}
                continue
            known = change[old] if old in change else self.catalog.find(*old)
            if maybe and (known is None or self.catalog.charset_of(new[0]) is None):
                continue
            before = change[new] if new in change else self.catalog.find(*new)
            if before is not None and self.catalog.key(*new) != self.catalog.key(*old):
                change[old] = change[new] = Unreadable(
                    "it was renamed to a table that was there: one of both was a temporary one"
                )
                continue
            change[old] = None
            change[new] = known if known is not None else Unreadable("it was renamed from a table that is not known")
        if not self.dialect.mariadb or not any(self.catalog.key(*name) in self.catalog.temporary for name in change):
            return {} if self._of_temporary() else change
        unknown = Unreadable("it was renamed, or a temporary one of its name was: the log does not say which")
        return dict.fromkeys(change, unknown) | {(database, "\0" + table): "" for database, table in change}

    # ------------------------------------------------------------ ALTER

    def _alter(self) -> Change:
        tokens = self.tokens
        if tokens.accept_one("DATABASE", "SCHEMA"):
            return self._alter_database()
        if tokens.accept("SEQUENCE"):
            return self._alter_sequence()
        while tokens.accept_one("ONLINE", "IGNORE", "OFFLINE"):
            pass
        if not tokens.accept("TABLE"):
            self._require_other()
            return {}
        tokens.if_exists()
        name = tokens.table_name(self.database)
        tokens.wait()
        if self.session.failed:
            raise ValueError("it failed on the server")
        alteration = Alteration(tokens, self.database, self.dialect)
        self.subject = target = alteration.target or name
        if alteration.target is not None and self.catalog.is_view(*name):
            return {(name[0], "\1" + name[1]): None, (target[0], "\1" + target[1]): ""}
        if self.catalog.key(*target) != self.catalog.key(*name):
            self.gone.append(name)
        if alteration.attached is not None:
            self.gone.append(alteration.attached)
        if self._of_temporary():
            return {} if alteration.target is None else {(target[0], "\0" + target[1]): ""}
        table = self.catalog.find(*name)
        now = alteration.apply(table, self._alter_default(name[0])) if isinstance(table, Table) else table
        change: Change = dict.fromkeys(self.gone)
        if alteration.converted is not None:
            change[alteration.converted] = (
                now if now is not None else Unreadable("it was a partition of a table that is not known")
            )
        if now is not None and (now != table or target != name):
            change[target] = now
        return change

    def _alter_sequence(self) -> Change:
        self.tokens.if_exists()
        self.subject = name = self.tokens.table_name(self.database)
        table = self.catalog.find(*name)
        now = typed_sequence(self.tokens, table) if isinstance(table, Table) else table
        return {name: now} if now is not None and now != table else {}

    def _of_temporary(self) -> bool:
        """Whether the statement is about a temporary table of its session, which hides another of that name.

        Raises ValueError where that cannot be seen: of CONNECTION_ID() the log says the same.
        """
        if not (self.dialect.mariadb and self.session.temporary):
            return False
        if any(token.upper in _OF_SESSION for token in scan(self.sql, self.session.mode)):
            raise ValueError("it may be about a temporary table")
        return True
