"""Column definitions in SQL text -> `Column`, as far as a TABLE_MAP event leaves it open: name, sign, character set, members.

Every word of a definition is read as the server's grammar has it: one that is not known makes the definition unreadable, since
a word may be another thing in another place (DEFAULT is a value, a storage format and a collation). `Column.definition` is the type
as written, in the form that Canal's parser (Druid) gives it: the name, the arguments, ``unsigned`` and ``zerofill``.
"""

from __future__ import annotations

import re
from typing import NamedTuple, cast

from shmstore.column_type import bytes_of_character, defined
from shmstore.errors import UnsupportedEvent
from shmstore.event import Column
from shmstore.sql.charsets import member_text, stored_text
from shmstore.sql.column_types import GEOMETRY, TEXT, read_type
from shmstore.sql.session import Dialect
from shmstore.sql.tokens import Tokens, scan

__all__ = [
    "GEOMETRY",
    "UNKNOWN",
    "ColumnDefinition",
    "accept_charset",
    "as_wide",
    "charset_of_collation",
    "column_of_type",
    "converted",
    "define_column",
    "is_text",
    "settled",
    "wide_text",
    "with_definition",
]

# Whether a column may be NULL, where its definition does not say: of a TIMESTAMP the session does (explicit_defaults_for_timestamp).
UNKNOWN = cast("bool", None)


class ColumnDefinition(NamedTuple):
    """A column as a definition gives it. `charset` of `column` is empty where the table's default applies.

    `members` are those of an ENUM or SET as written: what bytes mean is known when the character set is (`settled`).
    """

    column: Column
    primary: bool  # PRIMARY KEY among its attributes
    place: str | None  # None: at the end, "": first, else the name of the column before it
    begins_period: bool = False  # AS ROW START: the beginning of a system-versioned row's period
    ends_period: bool = False  # AS ROW END
    members: tuple[str | bytes, ...] = ()
    literals: str = ""  # the character set in which the members came
    length: int | None = None  # of text and bytes: characters of CHAR, VARCHAR, TEXT, bytes of the others
    counts: bool = False  # AUTO_INCREMENT
    invisible: bool = False
    versioned: bool = False  # WITH SYSTEM VERSIONING
    collates: bool = False  # BINARY, or a COLLATE that names no character set

    def without_key(self) -> ColumnDefinition:
        """The definition where its PRIMARY KEY is left out; what that says of NULL stays."""
        return self._replace(primary=False, column=self.column._replace(nullable=False))


def is_text(column: Column) -> bool:
    """Whether the column has a character set."""
    return column.type in TEXT


def charset_of_collation(collation: str) -> str:
    """Return the character set in a collation's name, empty where the name has none (MariaDB's uca1400_ai_ci)."""
    first = collation.lower().partition("_")[0]
    return "" if first.startswith("uca") or first == "default" else _standard(first)


def _standard(charset: str) -> str:
    charset = charset.lower()
    return "utf8mb3" if charset == "utf8" else charset


def column_of_type(name: str, column_type: str, charset: str = "") -> Column:
    """Return the column that information_schema's COLUMN_TYPE and CHARACTER_SET_NAME describe. Raises ValueError where it cannot be read."""
    definition = define_column(name, Tokens(scan(column_type)), Dialect(mariadb=False))
    if definition.members:  # MySQL names no character set where it is binary
        return settled(definition, _standard(charset) or "binary")
    return definition.column._replace(charset=_standard(charset))


def with_definition(column: Column, known: Column | None) -> Column:
    """Return the column as the log has it with the type as `known`, of the table's definition, has it: unless that is another type."""
    if known is None or known.unsigned != column.unsigned:
        return column
    if known.type != column.type and not (column.type == "geometry" and known.type in GEOMETRY):
        return column
    return defined(column, known.definition) if known.definition else column


# ------------------------------------------------------------ the character set


def settled(definition: ColumnDefinition, default: str, *, convert: str = "") -> Column:
    """Return the column as the server stores it: with its character set, `default` where it names none, and its members.

    `convert`: of CONVERT TO, which all text takes. Raises ValueError for members that are no text: of CHARACTER SET binary,
    bytes that are not UTF-8.
    """
    column = definition.column
    if not is_text(column):
        return _wide_enough(column._replace(charset=""), definition.length)
    charset = column.charset or default
    if not charset:
        raise ValueError(f"the character set of column {column.name} is its database's, which is not known")
    if charset == "binary":
        column = _wide_enough(column._replace(type=_BINARY_TYPES.get(column.type, column.type), charset=""), definition.length)
        return column._replace(members=tuple([_bytes_text(member, definition.literals) for member in definition.members]))
    charset = convert or charset
    if charset == "binary":
        return settled(definition._replace(column=column._replace(charset=charset)), charset)
    members = tuple([_text(member, charset).rstrip(" ") for member in definition.members])
    return _wide_enough(column._replace(charset=charset, members=members), definition.length)


def _text(member: str | bytes, charset: str) -> str:
    try:
        return stored_text(member, charset) if isinstance(member, str) else member_text(member, charset)
    except UnsupportedEvent as error:
        raise ValueError(str(error).partition(": ")[0]) from error


def _bytes_text(member: str | bytes, literals: str) -> str:
    """A member of a column of CHARACTER SET binary: bytes as they came, which are text where they are UTF-8."""
    if isinstance(member, str) and not member.isascii() and literals and not literals.startswith("utf8mb"):
        raise ValueError(f"the member {member!r} of an ENUM or SET is no text of binary: its bytes are of {literals}")
    return _text(member, "binary")


_BINARY_TYPES = {"char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob", "mediumtext": "mediumblob"}
_BINARY_TYPES["longtext"] = "longblob"
_TEXT_TYPES = {binary: text for text, binary in _BINARY_TYPES.items()}
_WIDTHS = {"tiny": 255, "": 65535, "medium": (1 << 24) - 1, "long": (1 << 32) - 1}  # bytes


def _wide_enough(column: Column, length: int | None) -> Column:
    """The column as TEXT or BLOB of the size that `length` asks for: a TEXT with a length, or a VARCHAR that is too long."""
    if length is None or column.type not in ("text", "blob", "varchar", "varbinary"):
        return column
    size = length * bytes_of_character(column.charset)
    if column.type.startswith("var") and size <= _WIDTHS[""]:
        return column
    kind = "text" if column.charset else "blob"
    wide = _of_size(kind, size)
    return column if wide == column.type else column._replace(type=wide, definition=wide)


def _of_size(kind: str, size: int) -> str:
    return next((prefix for prefix, most in _WIDTHS.items() if size <= most), "long") + kind


def converted(column: Column, charset: str, *, keeps_width: bool) -> Column:
    """Return a column of text in another character set, as wide as its characters need. Its members stay as they are.

    `keeps_width`: of MySQL, which counts the characters of a VARCHAR that no longer fits as `as_wide` does.
    """
    if charset == "binary":
        return settled(ColumnDefinition(column, False, None, members=column.members), "", convert=charset)
    if column.type.endswith("text"):
        return wide_text(column, as_wide(column, "text", charset), charset)  # a given length counted characters of the other set
    length = _LENGTH.search(column.definition) if column.type == "varchar" else None
    wide = _wide_enough(column._replace(charset=charset), int(length[1]) if length else None)
    return wide_text(column, as_wide(column, "text", charset), charset) if keeps_width and wide.type != column.type else wide


def wide_text(column: Column, type_: str, charset: str) -> Column:
    """Return the column as a TEXT or BLOB of this size."""
    return column._replace(type=type_, definition=type_, charset=charset)


def as_wide(column: Column, kind: str, charset: str) -> str:
    """Return the type, of `kind` "text" or "blob", for as many characters of `charset` as the column has room for.

    A TEXT has room for as many as fit its bytes. Of a VARCHAR or CHAR MySQL divides the characters, too, by the bytes of one.
    Raises ValueError for a column of another type.
    """
    size = _WIDTHS.get(column.type.removesuffix("text").removesuffix("blob")) if column.type.endswith(("text", "blob")) else None
    if size is None:
        length = _LENGTH.search(column.definition) if column.type in _WITH_LENGTH else None
        if length is None:
            raise ValueError("CONVERT TO of a column that becomes a text: it gets the width of what it was")
        size = int(length[1])
    return _of_size(kind, size // bytes_of_character(column.charset) * bytes_of_character(charset))


_WITH_LENGTH = ("char", "varchar", "binary", "varbinary")
_LENGTH = re.compile(r"\((\d+)\)")


# ------------------------------------------------------------ definitions


def accept_charset(tokens: Tokens) -> str | None:
    """Pass over CHARACTER SET or COLLATE with its value, and return the set that it names: empty for DEFAULT. None: it is neither."""
    if tokens.accept("CHARACTER", "SET") or tokens.accept("CHARSET") or tokens.accept("CHAR", "SET"):
        tokens.accept("=")
        charset = _standard(tokens.name())
        return "" if charset == "default" else charset
    if tokens.accept("COLLATE"):
        tokens.accept("=")
        return charset_of_collation(tokens.name())
    return None


def define_column(name: str, tokens: Tokens, dialect: Dialect) -> ColumnDefinition:
    """Read a column definition behind its name. Raises ValueError where it cannot be read."""
    type_ = read_type(tokens, dialect)
    column = Column(name, type_.name, type_.unsigned, True, 0, type_.scale, type_.charset, (), type_.written)
    return (
        _Attributes(column, tokens, dialect, type_.serial)
        .read()
        ._replace(members=type_.members, literals=type_.literals, length=type_.length)
    )


_WITH_VALUE = frozenset(
    ("COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SRID", "REF_SYSTEM_ID", "COMMENT")
)
_SHORT_CHARSETS = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}
_NOW = ("NOW", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP")


class _Attributes:
    """Reads what follows the type, down to FIRST or AFTER."""

    def __init__(self, column: Column, tokens: Tokens, dialect: Dialect, serial: bool) -> None:
        self.column = column
        self.tokens = tokens
        self.dialect = dialect
        self.nullable: bool | None = False if serial else None  # None: no word about it
        self.counts = serial
        self.found = ColumnDefinition(column, False, None)

    def read(self) -> ColumnDefinition:
        tokens = self.tokens
        while tokens.left and not self._ends():
            if not (
                self._type_option() or self._key() or self._generated() or self._constraint() or self._other() or self._place()
            ):
                raise ValueError(f"{tokens.peek() or 'something quoted'!r} among the attributes of column {self.column.name}")
        column = self.column._replace(nullable=self._nullable())
        return self.found._replace(column=column, counts=self.counts, collates=self.found.collates and not column.charset)

    def _ends(self) -> bool:
        """Whether a clause of the table comes next, which ALTER takes without a comma."""
        tokens = self.tokens
        return tokens.peek() in ("PARTITION", "REMOVE", "UPGRADE") and tokens.peek(1) in ("BY", "PARTITIONING")

    def _nullable(self) -> bool:
        if self.counts and self.nullable is None:
            return False
        if self.nullable is not None or self.column.type != "timestamp":
            return self.nullable is not False
        explicit = self.dialect.explicit_timestamps
        return UNKNOWN if explicit is None else explicit

    def _type_option(self) -> bool:
        tokens = self.tokens
        word = tokens.peek()
        if word in ("UNSIGNED", "ZEROFILL") and self.column.type != "year":  # to which it says nothing
            more = (" unsigned" if not self.column.unsigned else "") + (" zerofill" if word == "ZEROFILL" else "")
            self.column = self.column._replace(unsigned=True, definition=self.column.definition + more)
        elif word in _SHORT_CHARSETS:
            self.column = self.column._replace(charset=_SHORT_CHARSETS[word])
        elif word == "COMPRESSED":
            tokens.take()
            if tokens.accept("="):
                tokens.name()
            return True
        elif word == "BINARY":
            self.found = self.found._replace(collates=True)
        elif word not in ("SIGNED", "UNSIGNED", "ZEROFILL"):
            collates = word == "COLLATE"
            charset = accept_charset(tokens)
            if charset and collates:
                self._collate(charset)
            elif charset:
                self.column = self.column._replace(charset=charset)
            elif collates and charset == "":
                self.found = self.found._replace(collates=True)
            return charset is not None
        tokens.take()
        return True

    def _collate(self, charset: str) -> None:
        """COLLATE of a character set: the last of several. MariaDB makes a text of bytes, and JSON is text there."""
        type_ = self.column.type if charset == "binary" else _TEXT_TYPES.get(self.column.type, self.column.type)
        self.column = self.column._replace(type=type_, charset=charset)

    def _key(self) -> bool:
        tokens = self.tokens
        if tokens.accept("PRIMARY", "KEY") or tokens.accept("PRIMARY") or tokens.accept("KEY"):
            self.found = self.found._replace(primary=True)
            return True
        if tokens.accept("UNIQUE"):
            tokens.accept("KEY")
            return True
        return False

    def _generated(self) -> bool:
        tokens = self.tokens
        always = tokens.accept("GENERATED", "ALWAYS")
        if not tokens.accept("AS"):
            if always:
                raise ValueError("GENERATED ALWAYS without AS")
            return False
        if tokens.accept("ROW"):
            ends = tokens.accept("END")
            if not ends and not tokens.accept("START"):
                raise ValueError("AS ROW without START or END")
            self.found = self.found._replace(begins_period=not ends, ends_period=ends)
            self.nullable = False
        else:
            tokens.parenthesized()
            tokens.accept_one("VIRTUAL", "STORED", "PERSISTENT")
            if self.dialect.mariadb and self.nullable is None:
                self.nullable = True  # nor is a TIMESTAMP NOT NULL then
        return True

    def _constraint(self) -> bool:
        tokens = self.tokens
        if tokens.accept("CONSTRAINT"):
            if tokens.peek() not in ("CHECK", "REFERENCES"):
                tokens.name()
            return True
        if tokens.accept("CHECK"):
            tokens.parenthesized()
            _ = tokens.accept("NOT", "ENFORCED") or tokens.accept("ENFORCED")
            return True
        if tokens.accept("REFERENCES"):
            skip_references(tokens)
            return True
        return False

    def _other(self) -> bool:
        tokens = self.tokens
        if tokens.accept("NOT", "NULL"):
            self.nullable = False
        elif tokens.accept("NULL"):
            self.nullable = True
        elif tokens.accept("NOT", "SECONDARY"):
            pass
        elif tokens.accept("SERIAL", "DEFAULT", "VALUE") or tokens.accept("AUTO_INCREMENT"):
            self.counts, self.nullable = True, False
        elif tokens.accept("DEFAULT"):
            skip_value(tokens)
        elif tokens.accept("ON", "UPDATE"):
            if not tokens.accept_one(*_NOW):
                raise ValueError("ON UPDATE without NOW")
            tokens.skip_parentheses()
        elif tokens.peek() in _WITH_VALUE:
            tokens.take()
            tokens.accept("=")
            tokens.take()
        elif tokens.peek() in ("INVISIBLE", "VISIBLE"):
            self.found = self.found._replace(invisible=tokens.take().upper == "INVISIBLE")
        elif tokens.accept("WITH", "SYSTEM", "VERSIONING"):
            self.found = self.found._replace(versioned=True)
        elif tokens.accept("WITHOUT", "SYSTEM", "VERSIONING"):
            pass
        elif self.dialect.mariadb and tokens.peek(1) == "=":  # an option of the storage engine, of any name
            tokens.name()
            tokens.take()
            tokens.take()
        else:
            return False
        return True

    def _place(self) -> bool:
        tokens = self.tokens
        if tokens.accept("FIRST"):
            self.found = self.found._replace(place="")
        elif tokens.accept("AFTER"):
            self.found = self.found._replace(place=tokens.name())
        else:
            return False
        return True


def skip_value(tokens: Tokens) -> None:
    """Pass over the value of a DEFAULT: a literal, a name, a call, or an expression in parentheses."""
    _ = tokens.accept("-") or tokens.accept("+")
    if tokens.peek() == "(":
        tokens.skip_parentheses()
        return
    if tokens.accept("CASE"):
        while not tokens.accept("END"):
            if tokens.peek() == "CASE":
                skip_value(tokens)
            else:
                tokens.take()
        return
    if tokens.accept("NEXT", "VALUE", "FOR") or tokens.accept("PREVIOUS", "VALUE", "FOR"):
        tokens.table_name("")
        return
    first = tokens.take()
    if first.text == "{" and first.kind == "other":  # {d '2020-01-01'}
        tokens.until("}")
        return
    if first.kind == "other":
        raise ValueError(f"{first.text!r} where a default belongs")
    if first.kind == "word" and tokens.peek_kind() in ("string", "hex", "bits"):
        tokens.take()  # behind _latin1, N, DATE and their like
    while tokens.peek_kind() == "string":  # literals side by side are one
        tokens.take()
    while tokens.accept("."):
        tokens.name()
    tokens.skip_parentheses()


def skip_references(tokens: Tokens) -> None:
    """Pass over what follows REFERENCES."""
    tokens.table_name("")
    tokens.skip_parentheses()
    if tokens.accept("MATCH"):
        tokens.take()
    while tokens.accept("ON", "DELETE") or tokens.accept("ON", "UPDATE"):
        if not (tokens.accept("SET", "NULL") or tokens.accept("SET", "DEFAULT") or tokens.accept("NO", "ACTION")):
            tokens.take()
