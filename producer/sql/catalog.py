"""What a DDL does to the columns of tables: enough of the grammar to follow names, signs, character sets and keys.

Plan. A `Catalog` holds the tables; `read` reads one statement and returns what it changed. A statement that concerns a
table and cannot be read leaves the table `Unreadable` with the reason: asking for it is an error then, never a guess.
"""

from __future__ import annotations

from typing import NamedTuple

from shmstore.event import Column
from shmstore.producer.sql.columns import charset_of_collation, define_column
from shmstore.producer.sql.table_change import Draft, Table
from shmstore.sql_tokens import USUAL, SqlMode, Tokens, statement

__all__ = ["Catalog", "Change", "TableName", "Unreadable"]


class Unreadable(NamedTuple):
    """Stands for a table whose DDL could not be followed."""

    reason: str


# A database and a table -> what it is now; (database, "") -> the database's default character set; None: gone.
TableName = tuple[str, str]
Change = dict[TableName, Table | Unreadable | str | None]
_SEQUENCE = tuple(
    [Column(name, "bigint") for name in ("next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment")]
    + [Column("cache_size", "bigint", True), Column("cycle_option", "tinyint", True), Column("cycle_count", "bigint")]
)
# Words that begin a key or a check in a list of columns; a column of such a name is quoted or follows COLUMN.
_KEYS = {"PRIMARY", "INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CONSTRAINT", "CHECK"}

# Words that begin a part of ALTER TABLE which is no list of table options.
_NO_OPTIONS = {"ADD", "DROP", "MODIFY", "CHANGE", "RENAME", "ALTER", "CONVERT", "PARTITION", "ORDER"}


class Catalog:
    """Tables by (database, name). `mariadb` and `charset` are the server's."""

    def __init__(self, *, charset: str = "utf8mb4", mariadb: bool = False, fold_case: bool = False) -> None:
        self.charset = charset
        self.mariadb = mariadb
        self.fold_case = fold_case  # lower_case_table_names is not 0
        self.databases: dict[str, str] = {}  # character sets, by the key of a database without a table
        self.tables: dict[TableName, Table | Unreadable] = {}

    def key(self, database: str, table: str) -> TableName:
        """The key of a table, in lower case where the server does not tell cases apart."""
        return (database.lower(), table.lower()) if self.fold_case else (database, table)

    def find(self, database: str, table: str) -> Table | Unreadable | None:
        """The table as it is now."""
        return self.tables.get(self.key(database, table))

    def take(self, change: Change) -> None:
        """Make `change` the catalog's state."""
        for (database, table), now in change.items():
            if table:
                if isinstance(now, (Table, Unreadable)):
                    self.tables[self.key(database, table)] = now
                else:
                    self.tables.pop(self.key(database, table), None)
            elif isinstance(now, str):
                self.databases[self.key(database, "")[0]] = now
            else:
                self.databases.pop(self.key(database, "")[0], None)
                for key in self.tables_of(database):
                    del self.tables[key]

    def tables_of(self, database: str) -> list[TableName]:
        """The keys of a database's tables."""
        return [key for key in self.tables if key[0] == self.key(database, "")[0]]

    def charset_of(self, database: str) -> str | None:
        """The default character set of a database; None where there is no such database."""
        return self.databases.get(self.key(database, "")[0])

    def read(self, sql: str, database: str, mode: SqlMode = USUAL) -> Change:
        """Return what the statement changes, with `database` as the default one. Nothing where no column is concerned."""
        return _Statement(self, database, statement(sql, mode)).read()


class _Statement:
    """One statement being read against a catalog."""

    def __init__(self, catalog: Catalog, database: str, tokens: Tokens) -> None:
        self.catalog = catalog
        self.database = database
        self.tokens = tokens
        self.subject: TableName | None = None

    def read(self) -> Change:
        try:
            return self._read()
        except (ValueError, IndexError) as error:
            if self.subject is None:
                return {}
            return {self.subject: Unreadable(f"a DDL of the table could not be followed ({error})")}

    def _read(self) -> Change:
        tokens = self.tokens
        verb = tokens.take().upper
        if verb == "CREATE":
            replaces = tokens.accept("OR", "REPLACE")
            if tokens.peek() in ("DATABASE", "SCHEMA"):
                tokens.take()
                exists = tokens.if_exists()
                name = tokens.name()
                if exists and self.catalog.charset_of(name) is not None:
                    return {}
                emptied = self.catalog.tables_of(name) if replaces else []
                change: Change = dict.fromkeys(emptied)
                return change | {(name, ""): self._charset_option(tokens, self.catalog.charset)}
            if tokens.accept("TABLE"):
                return self._create()
            if tokens.accept("SEQUENCE"):
                tokens.if_exists()
                return {tokens.table_name(self.database): Table(_SEQUENCE)}
        elif verb == "DROP":
            if tokens.peek() in ("DATABASE", "SCHEMA"):
                tokens.take()
                tokens.if_exists()
                return {(tokens.name(), ""): None}
            if tokens.accept("TABLE") or tokens.accept("TABLES") or tokens.accept("SEQUENCE"):
                tokens.if_exists()
                return {Tokens(part).table_name(self.database): None for part in tokens.parts()}
        elif verb == "RENAME":
            if tokens.accept("TABLE") or tokens.accept("TABLES"):
                return self._rename()
        elif verb == "ALTER":
            return self._alter()
        return {}

    # ------------------------------------------------------------ databases

    def _charset_option(self, tokens: Tokens, default: str) -> str:
        """The character set among the options that come next, else `default`."""
        charset = collated = ""
        while tokens.left:
            if tokens.accept("CHARACTER", "SET") or tokens.accept("CHARSET") or tokens.accept("CHAR", "SET"):
                tokens.accept("=")
                charset = tokens.name().lower()
            elif tokens.accept("COLLATE"):
                tokens.accept("=")
                collated = charset_of_collation(tokens.name())
            elif tokens.accept("SELECT") or tokens.accept("PARTITION"):
                break
            else:
                tokens.take()
        charset = collated or charset
        return default if charset in ("", "default") else "utf8mb3" if charset == "utf8" else charset

    def _database_charset(self, database: str) -> str:
        return self.catalog.charset_of(database) or self.catalog.charset

    # ------------------------------------------------------------ CREATE TABLE

    def _create(self) -> Change:
        tokens = self.tokens
        exists = tokens.if_exists()
        self.subject = name = tokens.table_name(self.database)
        if exists and self.catalog.find(*name) is not None:
            return {}
        if tokens.accept("LIKE") or tokens.accept("(", "LIKE"):
            model = self.catalog.find(*tokens.table_name(self.database))
            return {name: model if model is not None else Unreadable("it was created LIKE a table that is not known")}
        if tokens.peek() != "(":
            raise ValueError("CREATE TABLE without a list of columns")
        definitions = tokens.parenthesized()
        rest = [token.upper for token in tokens.rest()]
        if "SELECT" in rest or any(part and part[0].upper == "SELECT" for part in definitions):
            raise ValueError("CREATE TABLE ... SELECT")
        draft = Draft(Table(()), charset=self._charset_option(tokens, self._database_charset(name[0])))
        wanted = _has(rest, "WITH", "SYSTEM", "VERSIONING")
        for part in definitions:
            wanted = wanted or _has([token.upper for token in part], "WITH", "SYSTEM", "VERSIONING")
            self._define(draft, Tokens(part))
        if wanted:
            draft.version()
        return {name: draft.table}

    def _define(self, draft: Draft, tokens: Tokens) -> None:
        """Read one definition of a CREATE's or ADD's list: a column or a key."""
        if not tokens.left:
            raise ValueError("an empty definition")
        if self._begins_key(tokens):
            self._key(draft, tokens)
        else:
            draft.add(define_column(tokens.name(), tokens, mariadb=self.catalog.mariadb))

    def _begins_key(self, tokens: Tokens) -> bool:
        """Whether a key or check comes next. PERIOD and VECTOR may also name a column: a type follows then."""
        word = tokens.peek()
        if word in ("PERIOD", "VECTOR"):
            return tokens.peek(1) in ("FOR", "INDEX", "KEY", "(", "")
        return word in _KEYS

    def _key(self, draft: Draft, tokens: Tokens) -> None:
        if tokens.accept("CONSTRAINT") and tokens.peek() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            tokens.name()
        if tokens.accept("PRIMARY", "KEY"):
            while tokens.left and tokens.peek() != "(":
                tokens.take()
            draft.set_key([Tokens(part).name() for part in tokens.parenthesized()])

    # ------------------------------------------------------------ RENAME

    def _rename(self) -> Change:
        change: Change = {}
        maybe = self.tokens.if_exists()
        for part in self.tokens.parts():
            tokens = Tokens(part)
            old = tokens.table_name(self.database)
            while tokens.left and tokens.peek() != "TO":
                tokens.take()
            tokens.accept("TO")
            new = tokens.table_name(self.database)
            known = change[old] if old in change else self.catalog.find(*old)
            if known is None and maybe:
                continue
            change[old] = None
            change[new] = known if known is not None else Unreadable("it was renamed from a table that is not known")
        return change

    # ------------------------------------------------------------ ALTER

    def _alter(self) -> Change:
        tokens = self.tokens
        if tokens.peek() in ("DATABASE", "SCHEMA"):
            tokens.take()
            named = tokens.peek() not in ("CHARACTER", "CHARSET", "COLLATE", "DEFAULT", "UPGRADE", "CHAR")
            if tokens.peek() in ("COMMENT", "ENCRYPTION", "READ"):  # words that may name a database
                named = tokens.peek(1) not in ("=", "ONLY", "")
            database = tokens.name() if named else self.database
            return {(database, ""): self._charset_option(tokens, self._database_charset(database))}
        while tokens.peek() in ("ONLINE", "IGNORE", "OFFLINE"):
            tokens.take()
        if not tokens.accept("TABLE"):
            return {}
        tokens.if_exists()
        self.subject = name = tokens.table_name(self.database)
        tokens.wait()
        table = self.catalog.find(*name)
        target = name
        specs = [Tokens(part) for part in tokens.parts()]
        draft = self._drafted(table, specs) if isinstance(table, Table) else None
        for spec in specs:
            new = self._renamed(spec)
            if new is not None:
                target = new
            elif draft is not None:
                self._specification(draft, spec)
        now = draft.table if draft is not None else table
        change: Change = {name: None} if target != name else {}
        if now is not None and (now != table or target != name):
            change[target] = now
        return change

    def _drafted(self, table: Table, specs: list[Tokens]) -> Draft:
        """The table with the character sets that the statement's options say, wherever in it they stand."""
        charset = convert = ""
        for spec in specs:
            if spec.accept("CONVERT", "TO"):
                convert = self._charset_option(spec, self._database_charset((self.subject or ("", ""))[0]))
            elif spec.peek() not in _NO_OPTIONS:
                charset = self._charset_option(Tokens(spec.rest()), charset)
        return Draft(table, charset=charset, convert=convert)

    def _renamed(self, spec: Tokens) -> TableName | None:
        """The table's new name where `spec` is RENAME [TO] name."""
        if spec.peek() != "RENAME" or spec.peek(1) in ("COLUMN", "INDEX", "KEY"):
            return None
        spec.take()
        _ = spec.accept("TO") or spec.accept("AS") or spec.accept("=")
        return spec.table_name(self.database)

    def _specification(self, draft: Draft, spec: Tokens) -> None:
        """Apply one of the comma-separated parts of an ALTER TABLE."""
        if spec.accept("ADD"):
            self._add(draft, spec)
        elif spec.accept("DROP"):
            self._drop(draft, spec)
        elif spec.accept("MODIFY"):
            spec.accept("COLUMN")
            if not self._missing(draft, spec):
                name = spec.name()
                draft.replace(name, define_column(name, spec, mariadb=self.catalog.mariadb))
        elif spec.accept("CHANGE"):
            spec.accept("COLUMN")
            if not self._missing(draft, spec):
                old = spec.name()
                draft.replace(old, define_column(spec.name(), spec, mariadb=self.catalog.mariadb))
        elif spec.accept("RENAME", "COLUMN") and not self._missing(draft, spec):
            old = spec.name()
            if not spec.accept("TO"):
                raise ValueError("RENAME COLUMN without TO")
            draft.rename(old, spec.name())

    def _missing(self, draft: Draft, spec: Tokens) -> bool:
        """IF EXISTS of a column that is not there: nothing happens."""
        return spec.accept("IF", "EXISTS") and not draft.has(Tokens(spec.rest()).name())

    def _add(self, draft: Draft, spec: Tokens) -> None:
        explicit = spec.accept("COLUMN")
        if spec.accept("SYSTEM", "VERSIONING"):
            draft.version()
        elif spec.accept("IF", "NOT", "EXISTS"):
            name = spec.name()
            if not draft.has(name):
                draft.add(define_column(name, spec, mariadb=self.catalog.mariadb))
        elif spec.peek() == "(":
            for part in spec.parenthesized():
                self._define(draft, Tokens(part))
        elif explicit:
            draft.add(define_column(spec.name(), spec, mariadb=self.catalog.mariadb))
        elif spec.peek() != "PARTITION":
            self._define(draft, spec)

    def _drop(self, draft: Draft, spec: Tokens) -> None:
        explicit = spec.accept("COLUMN")
        if spec.accept("PRIMARY", "KEY"):
            draft.drop_key()
        elif spec.accept("SYSTEM", "VERSIONING"):
            draft.unversion()
        elif spec.peek() == "PERIOD" and spec.peek(1) in ("FOR", "IF"):
            pass
        elif (explicit or spec.peek() not in _KEYS | {"PARTITION"}) and not self._missing(draft, spec):
            draft.drop(spec.name())


def _has(words: list[str], *wanted: str) -> bool:
    """Whether the words stand next to each other somewhere."""
    return any(tuple(words[i : i + len(wanted)]) == wanted for i in range(len(words)))
