"""What a DDL does to the columns of tables: enough of the grammar to follow names, signs, character sets and keys.

Plan. A `Catalog` holds the tables; `apply` reads one statement and returns what it changed. A statement that concerns a
table and cannot be read leaves the table `Unreadable` with the reason: asking for it is an error then, never a guess. The
server names columns of one ALTER as they were before it, so that two can change names with each other.
"""

from __future__ import annotations

from typing import NamedTuple

from producer.columns import ColumnDefinition, charset_of_collation, define_column, is_text
from producer.tokens import Token, Tokens, tokenize
from shmstore.event import Column

__all__ = ["Catalog", "Change", "Table", "Unreadable", "versioned"]


class Table(NamedTuple):
    """A table's columns (character sets filled in), the names of its primary key, its default character set."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    charset: str = ""
    versioned: bool = False  # has the implicit row_start and row_end behind its columns


class Unreadable(NamedTuple):
    """Stands for a table whose DDL could not be followed."""

    reason: str


# (database, table) -> what it is now; (database, "") -> the database's default character set; None: gone.
Change = dict[tuple[str, str], Table | Unreadable | str | None]
_ROW_PERIOD = (Column("row_start", "timestamp", scale=6), Column("row_end", "timestamp", scale=6))
_SEQUENCE = tuple(
    [Column(name, "bigint") for name in ("next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment")]
    + [Column("cache_size", "bigint", True), Column("cycle_option", "tinyint", True), Column("cycle_count", "bigint")]
)
_NOT_COLUMNS = {"PRIMARY", "INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CONSTRAINT", "CHECK", "PERIOD", "VECTOR"}
# Words behind ALTER TABLE's ADD and DROP that begin no column; a column of such a name must be quoted or follow COLUMN.
_NOT_ADDED = _NOT_COLUMNS | {"PARTITION", "SYSTEM"}


def versioned(table: Table, end: str = "") -> Table:
    """Return MariaDB's `table` WITH SYSTEM VERSIONING: the `end` of the row's period is in the primary key.

    Where the table does not name the period's columns it has two that no SELECT * shows.
    """
    end_name = end or "row_end"
    key = (*table.key, end_name) if table.key and end_name not in table.key else table.key
    return table._replace(key=key) if end else table._replace(columns=table.columns + _ROW_PERIOD, key=key, versioned=True)


class Catalog:
    """Tables by (database, name). `mariadb` and `charset` are the server's."""

    def __init__(self, *, charset: str = "utf8mb4", mariadb: bool = False, fold_case: bool = False) -> None:
        self.charset = charset
        self.mariadb = mariadb
        self.fold_case = fold_case  # lower_case_table_names is not 0
        self.databases: dict[str, str] = {}
        self.tables: dict[tuple[str, str], Table | Unreadable] = {}

    def key(self, database: str, table: str) -> tuple[str, str]:
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
                self.databases[database] = now
            else:
                self.databases.pop(database, None)
                for key in [key for key in self.tables if key[0] == self.key(database, "")[0]]:
                    del self.tables[key]

    def read(self, sql: str, database: str) -> Change:
        """Return what the statement changes, with `database` as the default one. Nothing where no column is concerned."""
        return _Statement(self, database, Tokens(tokenize(sql))).read()


class _Statement:
    """One statement being read against a catalog."""

    def __init__(self, catalog: Catalog, database: str, tokens: Tokens) -> None:
        self.catalog = catalog
        self.database = database
        self.tokens = tokens
        self.subject: tuple[str, str] | None = None

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
            if tokens.accept("OR", "REPLACE"):
                pass
            if tokens.peek() in ("DATABASE", "SCHEMA"):
                tokens.take()
                self._if_exists()
                name = tokens.name()
                return {(name, ""): self._charset_option(self.catalog.charset)}
            if tokens.accept("TABLE"):
                return self._create()
            if tokens.accept("SEQUENCE"):
                self._if_exists()
                return {tokens.table_name(self.database): Table(_SEQUENCE)}
        elif verb == "DROP":
            if tokens.peek() in ("DATABASE", "SCHEMA"):
                tokens.take()
                self._if_exists()
                return {(tokens.name(), ""): None}
            if tokens.accept("TABLE") or tokens.accept("TABLES") or tokens.accept("SEQUENCE"):
                self._if_exists()
                return {Tokens(part).table_name(self.database): None for part in tokens.parts()}
        elif verb == "RENAME":
            if tokens.accept("TABLE") or tokens.accept("TABLES"):
                return self._rename()
        elif verb == "ALTER":
            return self._alter()
        return {}

    def _if_exists(self) -> None:
        _ = self.tokens.accept("IF", "NOT", "EXISTS") or self.tokens.accept("IF", "EXISTS")

    def _wait(self) -> None:
        if self.tokens.accept("WAIT"):
            self.tokens.take()
        self.tokens.accept("NOWAIT")

    # ------------------------------------------------------------ databases

    def _charset_option(self, default: str) -> str:
        """The character set among options to the end of the statement."""
        charset = collated = ""
        tokens = self.tokens
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
        return self.catalog.databases.get(database, self.catalog.charset)

    # ------------------------------------------------------------ CREATE TABLE

    def _create(self) -> Change:
        tokens = self.tokens
        exists = tokens.peek() == "IF"
        self._if_exists()
        self.subject = name = tokens.table_name(self.database)
        if exists and self.catalog.find(*name) is not None:
            return {}
        if tokens.accept("LIKE") or tokens.accept("(", "LIKE"):
            model = self.catalog.find(*tokens.table_name(self.database))
            return {name: model if model is not None else Unreadable("it was created LIKE a table that is not known")}
        if tokens.peek() != "(":
            raise ValueError("CREATE TABLE without a list of columns")
        definitions = tokens.parenthesized()
        if any(part and part[0].upper == "SELECT" for part in definitions):
            raise ValueError("CREATE TABLE ... SELECT")
        rest = tokens.tokens[tokens.at :]
        charset = self._charset_option(self._database_charset(name[0]))
        if any(token.upper == "SELECT" for token in rest):
            raise ValueError("CREATE TABLE ... SELECT")
        table = Table((), (), charset)
        end = ""
        for part in definitions:
            table, period_end = self._defined(table, part)
            end = end or period_end
        words = [token.upper for token in rest]
        wanted = any(words[i : i + 3] == ["WITH", "SYSTEM", "VERSIONING"] for i in range(len(words)))
        wanted = wanted or any(
            "VERSIONING" in [t.upper for t in part] and "WITH" in [t.upper for t in part] for part in definitions
        )
        return {name: versioned(table, end) if wanted else table}

    def _defined(self, table: Table, part: list[Token]) -> tuple[Table, str]:
        """`table` with one more definition; and its name where it ends the row's period."""
        tokens = Tokens(part)
        if not part:
            raise ValueError("an empty definition")
        if part[0].kind == "word" and part[0].upper in _NOT_COLUMNS and not self._is_column(part):
            return self._keyed(table, tokens), ""
        definition = define_column(tokens.name(), tokens, mariadb=self.catalog.mariadb)
        return self._placed(table, definition), definition.column.name if definition.ends_period else ""

    def _is_column(self, part: list[Token]) -> bool:
        """PERIOD and VECTOR are keywords that may also be names: a type follows then."""
        return part[0].upper in ("PERIOD", "VECTOR") and len(part) > 1 and part[1].upper not in ("FOR", "INDEX", "KEY", "(", "")

    def _keyed(self, table: Table, tokens: Tokens) -> Table:
        if tokens.accept("CONSTRAINT") and tokens.peek() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            tokens.name()
        if not tokens.accept("PRIMARY", "KEY"):
            return table
        while tokens.left and tokens.peek() != "(":
            tokens.take()
        names = [Tokens(part).name() for part in tokens.parenthesized()]
        return table._replace(key=tuple([self._column(table, name).name for name in names]))

    def _placed(self, table: Table, definition: ColumnDefinition) -> Table:
        column = definition.column
        if is_text(column) and not column.charset:
            column = column._replace(charset=table.charset)
        columns = list(table.columns)
        at = len(columns) - 2 * table.versioned
        if definition.place == "":
            at = 0
        elif definition.place is not None:
            at = columns.index(self._column(table, definition.place)) + 1
        columns.insert(at, column)
        key = (column.name,) if definition.primary else table.key
        return table._replace(columns=tuple(columns), key=key)

    def _column(self, table: Table, name: str) -> Column:
        for column in table.columns:
            if column.name.lower() == name.lower():
                return column
        raise ValueError(f"column {name} is not known")

    # ------------------------------------------------------------ RENAME

    def _rename(self) -> Change:
        change: Change = {}
        maybe = self.tokens.peek() == "IF"
        self._if_exists()
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
            database = tokens.name() if named else self.database
            return {(database, ""): self._charset_option(self._database_charset(database))}
        while tokens.peek() in ("ONLINE", "IGNORE", "OFFLINE"):
            tokens.take()
        if not tokens.accept("TABLE"):
            return {}
        self._if_exists()
        self.subject = name = tokens.table_name(self.database)
        self._wait()
        table = self.catalog.find(*name)
        change: Change = {}
        target = name
        alteration = _Alteration(self, table) if isinstance(table, Table) else None
        for part in tokens.parts():
            spec = Tokens(part)
            new = self._renamed(spec)
            if new is not None:
                target = new
            elif alteration is not None:
                alteration.apply(spec)
        now = alteration.table() if alteration is not None else table
        if target != name:
            change[name] = None
        if now is not None and (now != table or target != name):
            change[target] = now
        return change

    def _renamed(self, spec: Tokens) -> tuple[str, str] | None:
        """The table's new name where `spec` is RENAME [TO] name."""
        if spec.peek() != "RENAME" or spec.peek(1) in ("COLUMN", "INDEX", "KEY"):
            return None
        spec.take()
        _ = spec.accept("TO") or spec.accept("AS") or spec.accept("=")
        return spec.table_name(self.database)


class _Alteration:
    """The specifications of one ALTER TABLE, applied one after the other.

    Columns that were there before are found by their old names until the end; `old` holds these by position.
    """

    def __init__(self, statement: _Statement, table: Table) -> None:
        self.statement = statement
        self.now = table
        self.old: dict[int, str] = {id(column): column.name.lower() for column in table.columns}
        self.kept = list(table.columns)  # alive, so that ids stay theirs
        self.keys: dict[int, bool] = {id(column): column.name in table.key for column in table.columns}

    def table(self) -> Table:
        return self.now

    def apply(self, spec: Tokens) -> None:
        statement = self.statement
        if spec.accept("ADD"):
            self._add(spec)
        elif spec.accept("DROP"):
            self._drop(spec)
        elif spec.accept("MODIFY"):
            spec.accept("COLUMN")
            if not self._missing(spec):
                name = spec.name()
                self._replace(name, define_column(name, spec, mariadb=statement.catalog.mariadb))
        elif spec.accept("CHANGE"):
            spec.accept("COLUMN")
            if not self._missing(spec):
                old = spec.name()
                self._replace(old, define_column(spec.name(), spec, mariadb=statement.catalog.mariadb))
        elif spec.accept("RENAME", "COLUMN"):
            if not self._missing(spec):
                column = self._before(spec.name())
                if not spec.accept("TO"):
                    raise ValueError("RENAME COLUMN without TO")
                self._exchange(column, column._replace(name=spec.name()))
        elif spec.accept("CONVERT", "TO"):
            charset = _Statement(statement.catalog, statement.database, spec)._charset_option(
                statement._database_charset((statement.subject or ("", ""))[0])
            )
            self.now = self.now._replace(charset=charset)
            for column in self.now.columns:
                if is_text(column):
                    if column.charset != charset and not "".join(column.members).isascii():
                        raise ValueError("CONVERT TO of a column whose members are not ASCII: servers garble them")
                    self._exchange(column, column._replace(charset=charset))
        elif spec.peek() not in ("ALTER", "PARTITION", "ORDER", "RENAME"):  # table options, or what changes no column
            self.now = self.now._replace(charset=_Statement(statement.catalog, "", spec)._charset_option(self.now.charset))

    def _missing(self, spec: Tokens) -> bool:
        """IF EXISTS of a column that is not there: nothing happens."""
        if not spec.accept("IF", "EXISTS"):
            return False
        name = spec.tokens[spec.at].text.lower()
        return name not in [self.old.get(id(column)) for column in self.now.columns]

    def _before(self, name: str) -> Column:
        """The column that had this name before the statement, or got it within it."""
        for column in self.now.columns:
            if self.old.get(id(column)) == name.lower():
                return column
        return self.statement._column(self.now, name)

    def _exchange(self, column: Column, new: Column) -> None:
        columns = list(self.now.columns)
        at = next(i for i, one in enumerate(columns) if one is column)
        columns[at] = new
        in_key = self.keys.get(id(column), True)  # of two columns that change names only one may be meant by the key's name
        key = tuple([new.name if in_key and name == column.name else name for name in self.now.key])
        if id(column) in self.old:
            self.old[id(new)] = self.old.pop(id(column))
            self.keys[id(new)] = self.keys.pop(id(column))
            self.kept.append(new)
        self.now = self.now._replace(columns=tuple(columns), key=key)

    def _replace(self, name: str, definition: ColumnDefinition) -> None:
        column = self._before(name)
        new = definition.column
        if is_text(new) and not new.charset:
            new = new._replace(charset=self.now.charset)
        new = new._replace(nullable=column.nullable)
        self._exchange(column, new)
        if definition.place is not None:
            columns = [one for one in self.now.columns if one is not new]
            at = 0 if definition.place == "" else columns.index(self.statement._column(self.now, definition.place)) + 1
            columns.insert(at, new)
            self.now = self.now._replace(columns=tuple(columns))
        if definition.primary:
            self.now = self.now._replace(key=(new.name,))

    def _add(self, spec: Tokens) -> None:
        statement = self.statement
        explicit = spec.accept("COLUMN")
        if spec.accept("SYSTEM", "VERSIONING"):
            if not any(c.name == "row_end" for c in self.now.columns):
                self.now = versioned(self.now)
            return
        skip = spec.peek() == "IF"
        _ = spec.accept("IF", "NOT", "EXISTS")
        if not explicit and not skip and spec.peek() in _NOT_ADDED and not statement._is_column(spec.tokens[spec.at :]):
            self.now = statement._keyed(self.now, spec)
            return
        if spec.peek() == "(":
            for part in spec.parenthesized():
                self.now, _period = statement._defined(self.now, part)
            return
        name = spec.name()
        if skip and any(column.name.lower() == name.lower() for column in self.now.columns):
            return
        self.now = statement._placed(self.now, define_column(name, spec, mariadb=statement.catalog.mariadb))

    def _drop(self, spec: Tokens) -> None:
        explicit = spec.accept("COLUMN")
        if spec.accept("PRIMARY", "KEY"):
            self.now = self.now._replace(key=())
            return
        if spec.accept("SYSTEM", "VERSIONING"):
            columns = [c for c in self.now.columns if not (self.now.versioned and c.name in ("row_start", "row_end"))]
            key = tuple([name for name in self.now.key if not (self.now.versioned and name == "row_end")])
            self.now = self.now._replace(columns=tuple(columns), key=key, versioned=False)
            return
        if not explicit and spec.peek() in _NOT_ADDED:
            return
        if self._missing(spec):
            return
        column = self._before(spec.name())
        key = tuple([name for name in self.now.key if name != column.name])
        self.now = self.now._replace(columns=tuple([one for one in self.now.columns if one is not column]), key=key)
