"""ALTER TABLE: its comma-separated parts, applied to a draft of the table."""

from __future__ import annotations

from shmstore.sql.columns import ColumnDefinition, define_column, skip_value
from shmstore.sql.definitions import KEYS, add_column, add_definition, leave_out
from shmstore.sql.options import read_options
from shmstore.sql.session import Dialect
from shmstore.sql.table_change import Draft, Table
from shmstore.sql.tokens import Token, Tokens

__all__ = ["MAY_BE_MOVED", "Alteration"]

MAY_BE_MOVED = "the columns of its rows' period are between others, and the statement may have moved them"

TableName = tuple[str, str]

# Parts about partitions, each the only one of its statement: no column changes.
_OF_PARTITIONS = (
    "ANALYZE",
    "CHECK",
    "OPTIMIZE",
    "REBUILD",
    "REPAIR",
    "TRUNCATE",
    "COALESCE",
    "REORGANIZE",
    "EXCHANGE",
    "DISCARD",
    "IMPORT",
)
# Parts for which no server makes the table again, by their first word.
_IN_PLACE = frozenset(("ENABLE", "DISABLE", "ALGORITHM", "LOCK"))
# Parts that are about neither columns nor keys, by their first word.
_OTHERS = frozenset(("FORCE", "ENABLE", "DISABLE", "ALGORITHM", "LOCK", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "VALIDATION"))


class Alteration:
    """Reads the parts of one ALTER TABLE. Raises ValueError for one that it does not know.

    `target` is the table's new name, where it gets one; `converted` and `attached` are tables that a partition became, and that became
    a partition.
    """

    def __init__(self, tokens: Tokens, database: str, dialect: Dialect) -> None:
        self._dialect = dialect
        self.target: TableName | None = None
        self.converted: TableName | None = None
        self.attached: TableName | None = None
        self._parts: list[list[Token]] = []
        for part in tokens.parts():
            if part:
                self._sort(part, database)

    def _sort(self, part: list[Token], database: str) -> None:
        """Keep what changes columns; take what changes names, and leave out what changes neither."""
        spec = Tokens(part)
        if self._parts and self._ordering and not self._begins_part(spec):
            return  # ORDER BY a, b
        if spec.accept("RENAME"):
            if spec.peek() in ("COLUMN", "INDEX", "KEY"):
                self._parts.append(part)
                return
            _ = spec.accept("TO") or spec.accept("AS") or spec.accept("=")
            self.target = spec.table_name(database)
        elif spec.accept("CONVERT", "PARTITION"):
            spec.name()
            if not spec.accept("TO", "TABLE"):
                raise ValueError("CONVERT PARTITION without TO TABLE")
            self.converted = spec.table_name(database)
        elif spec.accept("CONVERT", "TABLE"):
            self.attached = spec.table_name(database)
        else:
            self._parts.append(part)

    @property
    def _ordering(self) -> bool:
        return self._parts[-1][0].upper == "ORDER" or self._of_partitions(Tokens(self._parts[-1]))

    @staticmethod
    def _begins_part(spec: Tokens) -> bool:
        return spec.peek() in ("ADD", "DROP", "MODIFY", "CHANGE", "RENAME", "ALTER", "CONVERT")

    @staticmethod
    def _of_partitions(spec: Tokens) -> bool:
        if spec.peek() in ("ADD", "DROP"):
            return spec.peek(1) == "PARTITION"
        return spec.peek() in _OF_PARTITIONS and spec.peek(1) in ("PARTITION", "TABLESPACE")

    @property
    def renews(self) -> bool | None:
        """Whether the server makes the table again; None: that depends on what only the server knows."""
        if all(part[0].upper in _IN_PLACE or self._of_rows(Tokens(part)) for part in self._parts):
            return False
        sure = [
            part for part in self._parts if not self._of_partitions(Tokens(part)) and all(one.upper != "EXISTS" for one in part)
        ]
        return True if any(part[0].upper not in _IN_PLACE for part in sure) else None

    @staticmethod
    def _of_rows(spec: Tokens) -> bool:
        return spec.peek() in ("ANALYZE", "CHECK", "REPAIR", "TRUNCATE", "EXCHANGE") and spec.peek(1) == "PARTITION"

    def apply(self, table: Table, default: str) -> Table:
        """Return the table as it is afterwards; `default` is the character set that DEFAULT means, or empty where that is not known."""
        if table.scattered and self.renews is not True:
            if self.renews is None:
                raise ValueError(MAY_BE_MOVED)
            return table
        draft = self._draft(table, default)
        for part in self._parts:
            spec = Tokens(part)
            self._specification(draft, spec)
            self._end(spec)
        return draft.table

    def _draft(self, table: Table, default: str) -> Draft:
        """The table with the character sets that the statement's options say, wherever in it they are."""
        charset = convert = ""
        collated = False
        for part in self._parts:
            spec = Tokens(part)
            converts = spec.accept("CONVERT", "TO")
            if not converts and self._begins_part(spec):
                continue
            options = read_options(spec)
            if table.row_id and options.engine not in ("", "INNODB"):
                raise ValueError("my_row_id in a table of another storage engine")
            if options.charset is None and options.collation is None:
                continue
            if options.charset == "" and not options.collation and not default:
                raise ValueError("the character set of its database is not known")
            collated = collated or (not converts and options.charset is None)
            if converts:
                convert = options.charset_or(default)
            else:
                charset = options.charset_or(default if options.charset is not None else charset or table.charset)
        if convert and collated and self._dialect.mariadb:
            raise ValueError(
                "CONVERT TO with a COLLATE of the table: it is not known which one new columns get"
            )  # 10.11 and 11.8 differ
        return Draft(table, charset=charset, convert=convert, keeps_width=not self._dialect.mariadb)

    def _specification(self, draft: Draft, spec: Tokens) -> None:
        """Apply one part."""
        if self._of_partitions(spec) or spec.peek() == "ORDER":
            spec.drain()
        elif spec.accept("ADD"):
            self._add(draft, spec)
        elif spec.accept("DROP"):
            self._drop(draft, spec)
        elif word := spec.accept_one("MODIFY", "CHANGE"):
            self._change(draft, spec, renames=word == "CHANGE")
        elif spec.accept("RENAME", "COLUMN"):
            maybe = spec.accept("IF", "EXISTS")
            old = spec.name()
            if not spec.accept("TO"):
                raise ValueError("RENAME COLUMN without TO")
            new = spec.name()
            if draft.had(old) or not maybe:
                draft.rename(old, new)
        elif spec.accept("RENAME"):
            spec.drain()  # an index
        elif spec.accept("ALTER"):
            self._alter(draft, spec)
        elif spec.accept("CONVERT", "TO"):
            read_options(spec)
        elif spec.peek() in _OTHERS or (spec.peek() in ("WITH", "WITHOUT") and spec.peek(1) == "VALIDATION"):
            spec.drain()
        else:
            read_options(spec)

    def _end(self, spec: Tokens) -> None:
        """What may follow the last part without a comma: the table's partitions."""
        if spec.accept("REMOVE", "PARTITIONING") or spec.accept("UPGRADE", "PARTITIONING") or not spec.left:
            return
        if not spec.accept("PARTITION", "BY"):
            raise ValueError(f"{spec.peek() or 'something quoted'!r} where a part of ALTER TABLE ends")

    # ------------------------------------------------------------ parts

    def _add(self, draft: Draft, spec: Tokens) -> None:
        explicit = spec.accept("COLUMN")
        maybe = spec.accept("IF", "NOT", "EXISTS")
        if not explicit and spec.accept("SYSTEM", "VERSIONING"):
            draft.version()
        elif spec.peek() == "(":
            for part in spec.parenthesized():
                one = Tokens(part)
                if add_definition(draft, one, self._dialect, unless_exists=maybe) and one.left:
                    raise ValueError(f"{one.peek() or 'something quoted'!r} behind the definition of a column")
        elif explicit or maybe:
            add_column(draft, spec, self._dialect, unless_exists=maybe)
        elif add_definition(draft, spec, self._dialect) is None:
            spec.drain()

    def _change(self, draft: Draft, spec: Tokens, *, renames: bool) -> None:
        spec.accept("COLUMN")
        maybe = spec.accept("IF", "EXISTS")
        old = spec.name()
        definition = define_column(spec.name() if renames else old, spec, self._dialect)
        if draft.had(old) or not maybe:
            draft.replace(old, _unless_keyed(definition, draft, maybe))
        else:
            leave_out(draft, definition)

    def _drop(self, draft: Draft, spec: Tokens) -> None:
        explicit = spec.accept("COLUMN")
        if explicit or spec.peek() not in KEYS:
            if not explicit and spec.accept("SYSTEM", "VERSIONING"):
                draft.unversion()
                return
            if not explicit and spec.peek() == "PERIOD" and spec.peek(1) in ("FOR", "IF"):
                self._drop_period(draft, spec)
                return
            maybe = spec.accept("IF", "EXISTS")
            name = spec.name()
            if draft.had(name) or not maybe:
                draft.drop(name)
            spec.accept_one("RESTRICT", "CASCADE")
        elif spec.accept("PRIMARY"):
            spec.accept("KEY")
            draft.drop_key()
        elif spec.accept_one("INDEX", "KEY", "CONSTRAINT"):
            spec.accept("IF", "EXISTS")
            if spec.name().upper() == "PRIMARY":
                draft.drop_key()
        else:
            spec.drain()

    def _drop_period(self, draft: Draft, spec: Tokens) -> None:
        spec.accept("PERIOD")
        spec.accept("IF", "EXISTS")
        if not spec.accept("FOR"):
            raise ValueError("DROP PERIOD without FOR")
        if spec.name().upper() != "SYSTEM_TIME":
            draft.drop_period()

    def _alter(self, draft: Draft, spec: Tokens) -> None:
        if spec.peek() in ("INDEX", "KEY", "CHECK", "CONSTRAINT"):
            spec.drain()
            return
        spec.accept("COLUMN")
        maybe = spec.accept("IF", "EXISTS")
        name = spec.name()
        if spec.accept("DROP", "DEFAULT"):
            return
        if spec.accept("SET", "DEFAULT"):
            skip_value(spec)
            return
        visible = spec.accept("SET", "VISIBLE")
        if not visible and not spec.accept("SET", "INVISIBLE"):
            raise ValueError("an unknown change of a column")
        if draft.had(name) or not maybe:
            draft.show(name, visible=visible)


def _unless_keyed(definition: ColumnDefinition, draft: Draft, maybe: bool) -> ColumnDefinition:
    """With IF EXISTS, a column's PRIMARY KEY is one IF NOT EXISTS."""
    return definition.without_key() if maybe and definition.primary and draft.has_key else definition
