"""Rows events -> row images with values in stored form, ready for `codec.encode_stored`.

Plan. Each table layout, kind of event and set of columns present becomes a program once (`row_program`), which is kept and run
for all such events: by compiled code where that is there, else by `row_interpreter`. What compiled code does not run, hidden
columns and PARTIAL_UPDATE events (`partial_update`), is interpreted, too.

A bad value raises one of a few plain errors while a program runs; `RowsDecoder.rows` turns them into `UnsupportedEvent` with
the name of the column.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from shmstore.encoding.codec import Packed
from shmstore.errors import SourceError, UnsupportedEvent
from shmstore.event import EventType, Position, TableSchema
from shmstore.producer.binlog import row_interpreter
from shmstore.producer.binlog.compression import uncompress
from shmstore.producer.binlog.partial_update import PartialUpdate
from shmstore.producer.binlog.row_program import steps
from shmstore.producer.binlog.table_map import Field, Layout, TableMap, parse_layout
from shmstore.producer.errors import ValueRefused
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.values.varint import packed

if TYPE_CHECKING:
    from shmstore.sql.session import Session

__all__ = ["ROWS_EVENTS", "DecodedRows", "RowsDecoder"]


class _RowsKind(NamedTuple):
    """What a rows event's type byte says."""

    type: EventType
    version: int  # 2: extra data behind the flags
    compressed: bool = False
    partial: bool = False


_KINDS: Final = {
    23: _RowsKind(EventType.INSERT, 1),
    24: _RowsKind(EventType.UPDATE, 1),
    25: _RowsKind(EventType.DELETE, 1),
    30: _RowsKind(EventType.INSERT, 2),
    31: _RowsKind(EventType.UPDATE, 2),
    32: _RowsKind(EventType.DELETE, 2),
    39: _RowsKind(EventType.UPDATE, 2, partial=True),
    166: _RowsKind(EventType.INSERT, 1, compressed=True),
    167: _RowsKind(EventType.UPDATE, 1, compressed=True),
    168: _RowsKind(EventType.DELETE, 1, compressed=True),
    169: _RowsKind(EventType.INSERT, 2, compressed=True),
    170: _RowsKind(EventType.UPDATE, 2, compressed=True),
    171: _RowsKind(EventType.DELETE, 2, compressed=True),
}
ROWS_EVENTS: Final = frozenset(_KINDS)
_CACHED = 4096
_DECODERS = 256  # of one layout
_DUMMY_TABLE = 0xFFFFFF  # a rows event that only ends a statement names this table and holds no rows
_NO_TABLE = TableMap(_DUMMY_TABLE, Layout("", "", (), ()))
# What damaged bytes make programs and the functions that they call raise.
_DAMAGE = (struct.error, LookupError, ValueError, TypeError, OverflowError, RecursionError, zlib.error)


class DecodedRows(NamedTuple):
    """The rows of one event. `body` is [before columns, before rows, after columns, after rows] in stored form."""

    table: TableMap
    type: EventType
    body: list[Any]
    count: int  # type: ignore[assignment]  # rows; it takes the place of tuple.count


class _Known(NamedTuple):
    """A table map that was read."""

    map: TableMap
    schema: TableSchema | None  # what was known besides
    named: bool  # the log names its columns


class Schemas(Protocol):
    """What the decoder asks of a schema history, and lets it see.

    `find` is asked of tables whose columns the log does not name; of the others `define` is, where there is one. `reach`, `hidden` and
    `learn` are those of `SchemaHistory`, and may be missing, too.
    """

    def find(self, database: str, table: str) -> TableSchema | None:
        """Return the table as it is at the position that was reached."""

    def follow(self, position: Position, database: str, sql: str, session: Session = ...) -> bool:
        """Take in a DDL that ends at `position`."""


class RowsDecoder:
    """Decodes the rows events of one binlog connection; it remembers which table id means which table.

    `schemas` gives names, signs and members where the binlog does not hold them (binlog_row_metadata is not FULL), and
    tells types apart that the binlog does not (MariaDB's UUID, INET4 and INET6 from BINARY), and how columns were defined.

    `mariadb` says which server writes the binlog (its FORMAT_DESCRIPTION tells): the two count GEOMETRY differently among
    the columns that have a character set. None: guessed from each TABLE_MAP, which old MySQL's may leave open.
    """

    mariadb: bool | None = None

    def __init__(
        self,
        *,
        schemas: Schemas | None = None,
        compiled: bool = COMPILED,
        position: Callable[[], Position] = lambda: Position("", 0),
    ) -> None:
        """`position`: where the stream is."""
        self._schemas = schemas
        self._compiled = compiled and COMPILED
        self._tables: dict[int, TableMap] = {}
        self._position = position
        self._maps: dict[bytes, _Known] = {}  # by the whole body
        self._layouts: dict[bytes, tuple[Layout, TableSchema | None]] = {}  # by the body behind id and flags
        self._alike: dict[Any, Layout] = {}  # by the body behind the names, and what was known

    def table_map(self, body: bytes) -> TableMap:
        """Take in a TABLE_MAP event (19). Raises `UnsupportedEvent` on malformed bytes."""
        known = self._maps.get(body)
        if known is None or (self._schemas is not None and not self._still(known)):
            known = self._read(body)
        table = known.map
        self._tables[table.table_id] = table
        return table

    def fits(self, table: TableMap, schema: TableSchema, hidden: int | None) -> bool:
        """Whether the rows of a table that was mapped may be of `schema`."""
        layout = parse_layout(self._body(table), lambda *_: schema, self.mariadb, hidden=lambda *_: hidden)
        return layout.error is None

    def again(self, table: TableMap) -> TableMap:
        """Read a table map again, of which more is known now."""
        body = self._body(table)
        self._maps.pop(body, None)
        self._layouts.pop(body[8:], None)
        return self.table_map(body)

    def _body(self, table: TableMap) -> bytes:
        return next(body for body, known in self._maps.items() if known.map is table)

    def _still(self, known: _Known) -> bool:
        try:
            return self._ask(known.map.database, known.map.table, named=known.named) == known.schema
        except SourceError:
            return False  # parsed again: the layout keeps the reason for a caller that asks for the schema

    def _ask(self, database: str, table: str, *, named: bool) -> TableSchema | None:
        schemas = self._schemas
        if schemas is None:
            return None
        if named and (define := getattr(schemas, "define", None)) is not None:
            found: TableSchema | None = define(database, table)
            return found
        if (reach := getattr(schemas, "reach", None)) is not None:
            reach(self._position())
        return schemas.find(database, table)

    def _hidden(self, database: str, table: str) -> int | None:
        hidden = getattr(self._schemas, "hidden", None)
        return None if hidden is None else hidden(database, table)

    def _read(self, body: bytes) -> _Known:
        found: TableSchema | None = None
        named = False

        def ask(database: str, table: str) -> TableSchema | None:
            nonlocal found
            found = self._ask(database, table, named=False)
            return found

        def define(database: str, table: str) -> TableSchema | None:
            nonlocal found, named
            named = True
            found = self._ask(database, table, named=True)
            return found

        cached = self._layouts.get(body[8:])
        if cached is None or self._schemas is not None:
            if len(self._alike) >= _CACHED:
                self._alike.clear()
            layout = parse_layout(body, ask, self.mariadb, self._alike, self._hidden, define)
            if cached is not None and cached[1] == found and cached[0].error is None and layout.error is None:
                layout = cached[0]  # keeps its compiled decoders
            if len(self._layouts) >= _CACHED:
                self._layouts.clear()
            cached = self._layouts[body[8:]] = (layout, found)
            if named and layout.error is None and (learn := getattr(self._schemas, "learn", None)) is not None:
                learn(self._position(), layout.schema, len(layout.fields) - len(layout.schema.columns))
        if len(self._maps) >= _CACHED:
            self._maps.clear()
        entry = self._maps[body] = _Known(TableMap(int.from_bytes(body[:6], "little"), cached[0]), cached[1], named)
        return entry

    def knows(self, body: bytes) -> bool:
        """Whether the TABLE_MAP of a rows event was seen."""
        return int.from_bytes(body[:6], "little") in self._tables

    def table_of(self, body: bytes | memoryview) -> TableMap:
        """Return the table of a rows event without decoding it. Raises `UnsupportedEvent` when its TABLE_MAP was not seen."""
        table_id = int.from_bytes(body[:6], "little")
        table = self._tables.get(table_id)
        if table is None:
            if table_id == _DUMMY_TABLE:
                return _NO_TABLE
            raise UnsupportedEvent(
                f"rows event of table id {table_id}, whose TABLE_MAP was not seen: reading began inside a transaction; "
                "start at a transaction end (a checkpoint, a GTID, or a position that SHOW BINLOG EVENTS gives for one)"
            )
        return table

    def compiled_rows(self, table: TableMap, event_type: int, bits: bytes) -> _Decoder | None:
        """Return the compiled decoder for events of this type with these bits of columns present; None where there is none."""
        made = self._decoder(table.layout, _KINDS[event_type], bits)
        return made if made.compiled else None

    def clear(self) -> None:
        """Forget the table ids, at a rotation or on a new connection. What was compiled stays."""
        self._tables.clear()

    def rows(self, event_type: int, body: bytes | memoryview, table: TableMap | None = None) -> DecodedRows:
        """Decode a rows event, of `table` where that was asked already; `body` may be a view.

        Raises `UnsupportedEvent`, or `SchemaUnknown` where the log and the history lack the schema.
        """
        kind = _KINDS.get(event_type)
        if kind is None:
            raise UnsupportedEvent(f"event type {event_type} is not a rows event this version knows ({sorted(_KINDS)})")
        table = table or self.table_of(body)
        if table is _NO_TABLE:
            return DecodedRows(table, kind.type, [None, None, None, None], 0)
        fields = table.layout.fields
        entry: _Decoder | None = None
        try:
            at = 8
            if kind.version == 2:
                at += max(2, int.from_bytes(body[8:10], "little"))
            count, at = packed(body, at)
            if count != len(fields):
                raise ValueError(f"{count} columns, its TABLE_MAP has {len(fields)}")
            width = (count + 7) // 8
            end = at + (2 * width if kind.type is EventType.UPDATE else width)
            bits = bytes(body[at:end])
            key = (self._compiled, event_type, bits)
            entry = table.layout.decoders.get(key)
            if entry is None:
                if len(body) < end:
                    raise IndexError("the bits of the columns present are cut off")
                if len(table.layout.decoders) >= _DECODERS:  # MINIMAL images of a wide table come in many sets of columns
                    table.layout.decoders.clear()
                entry = table.layout.decoders[key] = self._decoder(table.layout, kind, bits)
            data = body
            if kind.compressed:
                data, end = uncompress(body[end:]), 0
            return entry.run(table, data, end)
        except _DAMAGE as error:
            raise _unreadable(event_type, body, table, error, "" if entry is None else entry.failed()) from error

    def _decoder(self, layout: Layout, kind: _RowsKind, bits: bytes) -> _Decoder:
        count = len(layout.fields)
        first = _present(bits, count)
        if kind.type is EventType.UPDATE:
            return _Decoder(layout, kind, (first, _present(bits[(count + 7) // 8 :], count)), self._compiled)
        return _Decoder(layout, kind, (None, first) if kind.type is EventType.INSERT else (first, None), self._compiled)


_Image = list[int] | None  # indexes of the columns present in the image before or the one after; None: events have no such image


class _Decoder:
    """Decodes the rows of one layout, of one kind of event, with one set of columns present.

    Of a table with a key, where the image before has all columns (MariaDB's binlog_row_image=FULL_NODUP), the one after gets from it those
    that it lacks: they did not change. Without a key this cannot be distinguished from MINIMAL, which canal clients get as it is.

    `before` and `after`: the columns of the images as the event's body names them. `programs`: of the images. Compiled ones give rows as
    MessagePack: no value becomes a Python object.
    """

    __slots__ = ("_images", "_names", "_rows_of", "_unchanged", "after", "before", "compiled", "programs", "type")

    def __init__(self, layout: Layout, kind: _RowsKind, images: tuple[_Image, _Image], may_compile: bool) -> None:
        fields, shown = layout.fields, len(layout.schema.columns)
        before, after = images
        self.type = kind.type
        self._unchanged: list[int] | None = None  # for each column its place in the image after; -1: as before
        keyed = 0 < len(layout.schema.primary_key) < len(fields)
        if keyed and before is not None and after is not None and len(before) == len(fields) > len(after):
            places = {column: place for place, column in enumerate(after)}
            self._unchanged = [places.get(i, -1) for i in range(shown)]
        self.before, self.after = _named(before, shown), _named(before if self._unchanged is not None else after, shown)
        self.compiled = may_compile and not kind.partial and shown == len(fields) and self._unchanged is None
        self._images = images
        self._names = [field.column.name for field in fields]
        self.programs: tuple[Any, Any]
        self._rows_of: Any
        if kind.partial:
            update = PartialUpdate(fields, images[0] or [], images[1] or [])
            self.programs, self._rows_of = update.programs, update.rows_of
        else:
            self.programs = self._program(fields, images[0], shown), self._program(fields, images[1], shown)
            self._rows_of = compiled.rows_of if self.compiled else row_interpreter.rows_of

    def _program(self, fields: Sequence[Field], image: _Image, shown: int) -> Any:
        if image is None:
            return None
        if self.compiled:
            return compiled.Program(steps(fields, image))
        return row_interpreter.Program(steps(fields, image), len([i for i in image if i < shown]))

    def run(self, table: TableMap, data: bytes | memoryview, at: int) -> DecodedRows:
        """Decode the rows in data[at:]."""
        if not any(self._images):
            raise ValueRefused(
                "no column is present in the rows, so their number is not known (MariaDB logs that where all columns are generated); "
                "leave the table out with --exclude"
            )
        if not self.compiled and not isinstance(data, bytes):
            data = bytes(data)
        count, before, after = self._rows_of(*self.programs, data, at)
        if self._unchanged is not None:
            places = list(enumerate(self._unchanged))
            after = [[was[i] if at < 0 else now[at] for i, at in places] for was, now in zip(before, after, strict=True)]
        if self.compiled:
            before, after = before and Packed(before), after and Packed(after)
        return DecodedRows(table, self.type, [self.before, before, self.after, after], count)

    def failed(self) -> str:
        """Name of the column that an error came from."""
        for program, image in zip(self.programs, self._images, strict=True):
            if program is not None and image is not None and program.failed >= 0:
                column: int = image[program.failed]
                program.forget()
                return self._names[column]
        return ""


def _present(bits: bytes, count: int) -> list[int]:
    return [i for i in range(count) if bits[i >> 3] >> (i & 7) & 1]


def _named(image: _Image, shown: int) -> _Image:
    """The columns of an image that are not hidden; None for all of them, too."""
    columns = [i for i in image or () if i < shown]
    return None if image is None or len(columns) == shown else columns


def _unreadable(
    event_type: int, body: bytes | memoryview, table: TableMap, error: BaseException, column: str
) -> UnsupportedEvent:
    where = f"column {column!r} of " if column else ""
    fix = "; check the binlog with mysqlbinlog --verify-binlog-checksum, or leave the table out with --exclude"
    if isinstance(error, ValueRefused):
        fix = ""
    elif isinstance(error, UnicodeDecodeError):
        fix = (
            "; the column holds bytes that are no text of its character set: correct them, or leave the table out with --exclude"
        )
    return UnsupportedEvent(
        f"rows event (type {event_type}) of {len(body)} bytes: {where}table {table.database}.{table.table} cannot be decoded: {error}{fix}"
    )
