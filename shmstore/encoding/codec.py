"""Event <-> MessagePack bytes.

Plan. An encoded event is one MessagePack array, readable by any MessagePack library:

    [format, header, resume, schema, body]

    format  int, 2
    header  `Header`, in its order, but for `resume`
    resume  nil, or [{source: [file, offset, gtids]}, order, row]: where each source continues after this event. At the end of each
            transaction of a store of several sources; and where a large transaction is cut: `shmstore.event.Cut`
    schema  nil, or a *bin* that is itself MessagePack: [database, table, [column ...], primary_key], column =
            [name, type, unsigned, nullable, size, scale, charset, [member ...]]. Encoded once per table version and
            copied as bytes; readers keep what they decoded, keyed by those bytes. Where the table's definition says more:
            [database, table, [column ...], primary_key, [definition ...], unique_key, size], size being that of the
            bytes of the first four as an array of their own: `bare_schema`.
    body    nil, or [before_columns, before_rows, after_columns, after_rows]: rows are arrays of values in column order,
            nil where the event has no such image; *_columns is nil when every column is present, else the indexes of
            the columns that are (row images MINIMAL and NOBLOB; one set serves a whole binlog event).

The schema says how a value is stored, so that no value needs a tag and a column goes to Arrow without Python objects:

    DECIMAL                     str   digits as MySQL prints them         <-> decimal.Decimal
    DATE                        int   days since 1970-01-01               <-> datetime.date
    DATETIME                    int   microseconds since 1970, no zone    <-> datetime.datetime, naive
    TIMESTAMP                   int   microseconds since 1970 UTC         <-> datetime.datetime, UTC
    TIME                        int   microseconds, signed                <-> datetime.timedelta
    everything else             nil, int, float, str or bin, as it is

A str in a DATE, DATETIME or TIMESTAMP column is a zero or impossible date, as MySQL shows it; it stays a str.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

import msgpack
import numpy as np
from numpy.typing import NDArray

from shmstore.encoding.conversions import MAKES, conversions
from shmstore.encoding.row_check import check_rows, check_schema, kinds_of
from shmstore.errors import BatchTooLarge, StoreCorrupt
from shmstore.event import ABSENT, FILTERS_CHANGED, Column, Cut, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.memory.layout import MAX_PAYLOAD, SLOT, SlotFlag
from shmstore.sources import pack_sources, unpack_sources

try:
    from shmstore.native import columns as compiled
except ImportError:  # built without a compiler
    compiled = None  # type: ignore[assignment]

FORMAT: Final = 2
_HEAD: Final = 1 << 16  # bytes that an event's head hardly ever exceeds


class Header(NamedTuple):
    """What every event says of itself, in stored form. The order is the format's; what compiled code knows of it: index.pxi."""

    entry: int
    type: int
    file: str
    offset: int
    length: int
    time_ms: int
    server_id: int
    transaction: str
    order: int
    part: int
    gtids: str
    row: int
    database: str
    sql: str
    props: dict[str, str]
    resume: list[Any] | None = None

    @property
    def position(self) -> Position:
        """The end of the event in the binlog."""
        sources = self.resume if self.resume is not None and self.ends_transaction else None
        return Position(self.file, self.offset, self.gtids, self.row, unpack_sources(sources[0]) if sources else ())

    @property
    def cut(self) -> Cut | None:
        """What the last event of a part says of its transaction; None of any other event."""
        if self.resume is None or self.ends_transaction:
            return None
        return Cut(unpack_sources(self.resume[0]), self.resume[1], self.resume[2])

    @property
    def ends_transaction(self) -> bool:
        """As `Event.ends_transaction`."""
        return (
            self.entry == _END
            or (self.entry == _DDL and "in_transaction" not in self.props)
            or (self.entry == _HEARTBEAT and FILTERS_CHANGED in self.props)
        )


_END, _DDL, _HEARTBEAT = int(EntryType.END), int(EntryType.DDL), int(EntryType.HEARTBEAT)

#: True where events are encoded and decoded by compiled code; SHMSTORE_PURE=1 in the environment keeps it from that.
COMPILED: bool = compiled is not None and os.environ.get("SHMSTORE_PURE", "") in ("", "0")


class Packed(NamedTuple):
    """`data` is MessagePack already: in the place of a body, or of a body's rows, it is copied as it is."""

    data: bytes | memoryview


_KINDS: Final = tuple([get_origin(kind) or kind for kind in get_type_hints(Header).values()])[:-1]
_NIL: Final = b"\xc0"
_EVENT: Final = bytes([0x95, FORMAT])  # how an event's bytes begin: an array of five, and the format
_LARGE: Final = 1 << 20
_packers: Final[list[msgpack.Packer]] = []  # not in use: to make one takes longer than to pack a row
_ENTRY = {int(entry): entry for entry in EntryType}
_TYPE = {int(type_): type_ for type_ in EventType}

# ---------------------------------------------------------------- MessagePack


def pack(value: Any) -> bytes:
    """Return `value` as MessagePack. Raises TypeError, ValueError or OverflowError where it cannot be written."""
    if COMPILED:
        packed: bytes | None = compiled.pack(value, Packed)
        if packed is not None:
            return packed
    return b"".join(_pieces(value)) if _holds_packed(value) else _packed(value)


def _pieces(value: Any) -> list[bytes | memoryview]:
    """The bytes of a value, those of a `Packed` as they are: it may be a body, or rows of one, which is the last value of an event."""
    if not _holds_packed(value):
        return [_packed(value)]
    if isinstance(value, Packed):
        return [value.data]
    return [bytes([0x90 | len(value)]), *(piece for each in value for piece in _pieces(each))]


def _holds_packed(value: Any) -> bool:
    """Whether `value` is an event, a body or rows with something `Packed` in it."""
    kind = type(value)
    if kind not in (list, tuple):
        return kind is Packed
    size = len(value)
    return (size == 5 and _holds_packed(value[4])) or (size == 4 and Packed in map(type, value))


def _packed(value: Any) -> bytes:
    try:
        packer = _packers.pop()  # no other thread has it then, and no finalizer that runs meanwhile
    except IndexError:
        packer = msgpack.Packer()
    packed: bytes = packer.pack(value)
    if len(packed) <= _LARGE:  # it keeps as much memory
        _packers.append(packer)
    return packed


def _unpack(data: bytes | memoryview) -> Any:
    """Return the one value that `data` is. Raises ValueError; no length in it is believed that is more than there are bytes.

    msgpack reads a length again once it has made a list of it, and fills more than it has where another process wrote meanwhile: so it gets a copy.
    """
    return msgpack.unpackb(data if type(data) is bytes else bytes(data), ext_hook=_refuse)


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not used")


def unpack_rows(rows: Any) -> Any:
    """Return the rows of a body as lists, where they are `Packed`; else as they are."""
    return _unpack(rows.data) if isinstance(rows, Packed) else rows


# ---------------------------------------------------------------- schema


@lru_cache(maxsize=4096)
def encode_schema(table: TableSchema) -> bytes:
    """Return the schema's bytes. The same schema always gives the same bytes, so they serve as its identity. Raises ValueError or TypeError for what is
    none."""
    check_schema(table)
    bare = pack([table.database, table.table, [column[:-1] for column in table.columns], table.primary_key])
    definitions = [column.definition for column in table.columns]
    if not table.unique_key and not any(definitions):
        return bare
    return _DEFINED + bare[1:] + pack(definitions) + pack(table.unique_key) + _SIZE + len(bare).to_bytes(4, "big")


_BARE, _DEFINED, _SIZE = b"\x94", b"\x97", b"\xce"  # MessagePack: arrays of 4 and of 7, a number of 32 bits


def bare_schema(blob: bytes) -> bytes:
    """Return the encoded schema without what only the table's definition says: the same on every server and after each restart."""
    if blob[:1] != _DEFINED or blob[-5:-4] != _SIZE:
        return blob
    return _BARE + blob[1 : int.from_bytes(blob[-4:], "big")]


@lru_cache(maxsize=4096)
def decode_schema(blob: bytes) -> TableSchema:
    """Return the schema of `blob`. Raises `StoreCorrupt` where it is not one."""
    try:
        database, table, columns, key, *more = _unpack(blob)
        definitions, unique, _ = more or ([""] * len(columns), False, 0)
        made = [Column._make([*c[:7], tuple(c[7]), text]) for c, text in zip(columns, definitions, strict=True)]
        schema = TableSchema(database, table, tuple(made), tuple(key), unique)
        check_schema(schema)
        return schema
    except (ValueError, TypeError, IndexError) as error:
        raise StoreCorrupt(f"table schema of {len(blob)} bytes cannot be read: {error}") from error


@lru_cache(maxsize=4096)
def _known(blob: bytes) -> tuple[TableSchema, bytes]:
    """The schema of `blob`, and what compiled code makes of its columns. A lookup by bytes costs less than one by the schema."""
    table = decode_schema(blob)
    return table, bytes([MAKES.get(column.type, 0) for column in table.columns])


# ---------------------------------------------------------------- events


def encode(event: Event) -> bytes:
    """Return `event` as MessagePack bytes. Raises ValueError, or TypeError, where it is none that could be read again: what does not
    fit, and what would."""
    if COMPILED and (written := _written(event)) is not None:
        return written
    table = event.table
    if table is None:
        body = schema = None
    else:
        check_rows(table, event.rows)
        schema, body = encode_schema(table), _encode_rows(table, event.rows)
    try:
        payload = pack((FORMAT, _header_of(event), _resume_of(event), schema, body))
        _head(payload)  # the types of its fields
    except (TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError | AttributeError) else ValueError
        raise kind(
            f"this event cannot be stored: {error}; see `shmstore.Event` for what its fields are: {event!r:.200}"
        ) from error
    if event.entry not in _ENTRY or event.type not in _TYPE:
        raise ValueError(
            f"this event cannot be stored: its entry is {event.entry!r}, its type {event.type!r}; give an EntryType and an EventType"
        )
    return payload


def _written(event: Event) -> bytes | None:
    """The event's bytes, checked and written in one pass; None where something of it is unusual, or wrong, which the reference says then."""
    with suppress(TypeError, AttributeError, ValueError, OverflowError, RecursionError):
        if event.cut is None and not event.position.sources and event.entry in _ENTRY and event.type in _TYPE:
            return _writer(event.table).event(_header_of(event), event.rows)
    return None


@lru_cache(maxsize=4096)
def _writer(table: TableSchema | None) -> compiled.EventWriter:
    schema, kinds = (None, ()) if table is None else (encode_schema(table), kinds_of(table))
    takes = [(0, 0, 0) if kind is None else (kind.take, kind.low, kind.high) for kind in kinds]
    return compiled.EventWriter(schema, takes, Row, ABSENT, Decimal, UTC)


def _header_of(event: Event) -> tuple[Any, ...]:
    """What `Header` holds, as a plain tuple: it is made in a third of the time."""
    entry, type_, position, time_ms, server_id, length, transaction, order, part, database, _, _, sql, props, _ = event
    file, offset, gtids, row, _ = position
    return (
        int(entry),
        int(type_),
        file,
        offset,
        length,
        time_ms,
        server_id,
        transaction,
        order,
        part,
        gtids,
        row,
        database,
        sql,
        props,
    )


def _resume_of(event: Event) -> list[Any] | None:
    if event.cut is not None:
        return [pack_sources(event.cut.sources), event.cut.order, event.cut.row]
    position = event.position
    return [pack_sources(position.sources), event.order, position.row] if position.sources else None


def encode_stored(header: Header, schema: bytes | None, body: Sequence[Any] | Packed | None) -> bytes:
    """Return the bytes of an event whose values are already in stored form: the producer's way in."""
    return pack((FORMAT, header[:-1], header.resume, schema, body))


def stored_parts(header: Header, schema: bytes | None, body: list[Any] | None) -> list[bytes | memoryview]:
    """As `encode_stored`, in parts: rows that are large and `Packed` are one of them as they are."""
    packed = () if body is None else [rows for rows in body if type(rows) is Packed]
    if packed and any(len(rows.data) > _LARGE for rows in packed):
        return [encode_head(header), pack(schema), *_pieces(body)]
    if COMPILED or packed:
        return [encode_stored(header, schema, body)]
    return [_packed((FORMAT, header[:-1], header.resume, schema, body))]  # what `encode_stored` finds out


def encode_head(header: Header) -> bytes:
    """Return what the bytes of an event with this header begin with; the schema and the body follow."""
    return _EVENT + pack(header[:-1]) + pack(header.resume)


_NO_ROWS: Final[tuple[Row, ...]] = ()
_tuple: Final = tuple.__new__


def decode(payload: bytes | memoryview, sequence: int = -1) -> Event:
    """Return the event in `payload`, which has `sequence` in its store. Raises `StoreCorrupt` where the bytes are not one."""
    return _reader.event(payload, sequence) if COMPILED else _decode(payload, sequence)


def decode_each(payloads: Iterable[bytes | memoryview], sequences: Iterable[int]) -> Iterator[Event]:
    """Yield what `decode` returns of each payload with its sequence."""
    return _reader.events(payloads, sequences) if COMPILED else map(_decode, payloads, sequences)


def _decode(payload: bytes | memoryview, sequence: int) -> Event:
    """The reference: compiled code leaves to it what is unusual or damaged."""
    try:
        header, schema, at = _head(payload)
        (
            entry,
            type_,
            file,
            offset,
            length,
            time_ms,
            server,
            transaction,
            order,
            part,
            gtids,
            row,
            database,
            sql,
            props,
            resume,
        ) = header
        body = memoryview(payload)[at:]
        if schema is None:
            if bytes(body[:2]) != _NIL:  # bytes: of signed ones, as in Arrow's buffers, it is another number
                raise ValueError("it has rows and no table")
            table, rows = None, _NO_ROWS
        else:
            table = _known(schema)[0]
            rows = _decode_rows(table, body)
        fields = (
            _ENTRY[entry],
            _TYPE[type_],
            _tuple(Position, (file, offset, gtids, row, ())) if resume is None else header.position,
            time_ms,
            server,
            length,
            transaction,
            order,
            part,
            database,
            table,
            rows,
            sql,
            props,
            None if resume is None else header.cut,
        )
        event = _tuple(Event, fields)  # as Event(*fields), in less than half of its time
        event.__dict__["sequence"] = sequence  # no field of the tuple: see `Event`
        return event
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        if isinstance(error, StoreCorrupt):
            raise
        raise _unreadable(payload, error, sequence) from error


def decode_stored(payload: bytes | memoryview) -> tuple[Header, bytes | None, list[Any] | None]:
    """Return (header, schema bytes, body) with the values in stored form: for Arrow and for copying. Raises `StoreCorrupt`."""
    try:
        header, schema, at = _head(payload)
        return header, schema, _unpack(memoryview(payload)[at:])
    except (ValueError, TypeError) as error:
        raise _unreadable(payload, error) from error


def stored_head(payload: bytes | memoryview) -> tuple[Header, bytes | None]:
    """Return (header, schema bytes); the body is not looked at. Raises `StoreCorrupt`."""
    try:
        header, schema, _ = _head(payload)
    except (ValueError, TypeError) as error:
        raise _unreadable(payload, error) from error
    return header, schema


def split_stored(payload: bytes | memoryview) -> tuple[Header, bytes | None, Packed]:
    """As `stored_head`, and the body as it is, which is not looked at either."""
    try:
        if COMPILED:
            found: tuple[Header, bytes | None, Packed] | None = compiled.split(payload, Header, _unpack, Packed)
            if found is not None:
                return found
        header, schema, at = _head(payload)
    except (ValueError, TypeError) as error:
        raise _unreadable(payload, error) from error
    return header, schema, Packed(memoryview(payload)[at:])


def _head(payload: bytes | memoryview) -> tuple[Header, bytes | None, int]:
    """Return the header, the schema's bytes, and where the body begins. Raises ValueError or TypeError where they are not what they should be."""
    if COMPILED:
        found: tuple[Header, bytes | None, int] | None = compiled.head(payload, Header, _unpack)
        if found is not None:
            return found
    for size in (_HEAD, len(payload)):
        # An array here has as many values as it should have, or is refused before memory is taken for it.
        unpacker = msgpack.Unpacker(
            max_buffer_size=len(payload) or 1,
            read_size=min(_HEAD, len(payload) or 1),
            max_array_len=len(_KINDS),
            ext_hook=_refuse,
        )
        unpacker.feed(payload[:size])
        try:
            count, format_, values = unpacker.read_array_header(), unpacker.unpack(), unpacker.unpack()
            resume, schema = unpacker.unpack(), unpacker.unpack()
            at = unpacker.tell()
        except msgpack.OutOfData:
            continue
        if count != 5 or type(format_) is not int or format_ != FORMAT:
            raise ValueError("it is no array of five that begins with the number of the format")
        if (
            type(values) is not list
            or tuple(map(type, values)) != _KINDS
            or {type(text) for pair in values[-1].items() for text in pair} - {str}
        ):
            raise TypeError("its header has other fields")
        if not (resume is None or _is_resume(resume)):
            raise TypeError("where its sources continue has another form")
        if type(schema) not in (bytes, type(None)):
            raise TypeError("its schema is not bytes")
        if at < len(payload):
            return Header._make([*values, resume]), schema, at
        break
    raise ValueError("it ends too early")


def _is_resume(value: Any) -> bool:
    if type(value) is not list or [type(each) for each in value] != [dict, int, int]:
        return False
    return all(
        type(name) is str and type(at) is list and [type(each) for each in at] == [str, int, str] for name, at in value[0].items()
    )


def _unreadable(payload: bytes | memoryview, error: Exception, sequence: int = -1) -> StoreCorrupt:
    """What to say of bytes that are not an event of this format."""
    with suppress(ValueError):
        match _unpack(payload):
            case [int(format_), _, _, _, *_] if format_ != FORMAT:
                fix = "upgrade the reader" if format_ > FORMAT else "read it with the shmstore that wrote it"
                return StoreCorrupt(f"event format {format_} is unknown: this shmstore reads format {FORMAT}; {fix}")
    if bytes(payload[:2]) != _EVENT:
        return StoreCorrupt(
            f"not an event: {len(payload)} bytes {f'at sequence {sequence} ' * (sequence >= 0)}that a program put as they are: read them "
            "with `Batch.payloads()`"
        )
    return StoreCorrupt(f"event of {len(payload)} bytes cannot be read: {type(error).__name__}: {error}")


def _encode_rows(table: TableSchema, rows: tuple[Row, ...]) -> list[Any]:
    before = None if not rows or rows[0].before is None else [row.before for row in rows]
    after = None if not rows or rows[0].after is None else [row.after for row in rows]
    return [*_encode_image(table, before), *_encode_image(table, after)]


def _encode_image(table: TableSchema, image: list[Any] | None) -> tuple[list[int] | None, list[list[Any]] | None]:
    if image is None:
        return None, None
    present = [i for i, value in enumerate(image[0]) if value is not ABSENT]
    columns = None if len(present) == len(table.columns) else present
    from_python = conversions(table)[1]
    rows = []
    for values in image:
        stored = list(values)
        for i, convert in from_python:
            stored[i] = convert(stored[i])
        if columns is not None:
            stored = [stored[i] for i in columns]
        rows.append(stored)
    return columns, rows


def _decode_rows(table: TableSchema, body: memoryview) -> tuple[Row, ...]:
    before_columns, before_rows, after_columns, after_rows = _unpack(body)
    before = _decode_image(table, before_columns, before_rows)
    after = _decode_image(table, after_columns, after_rows)
    if before is None:
        return () if after is None else tuple([Row(None, values) for values in after])
    if after is None:
        return tuple([Row(values, None) for values in before])
    return tuple([Row(b, a) for b, a in zip(before, after, strict=True)])


def _decode_image(table: TableSchema, columns: Any, rows: Any) -> list[tuple[Any, ...]] | None:
    if rows is None:
        return None
    to_python = conversions(table)[0]
    width = len(table.columns)
    decoded = []
    for values in rows:
        if columns is not None:
            full: list[Any] = [ABSENT] * width
            for i, value in zip(columns, values, strict=True):
                full[i] = value
            values = full
        if len(values) != width:
            raise ValueError(f"a row has {len(values)} values, table {table.database}.{table.table} has {width} columns")
        for i, convert in to_python:
            values[i] = convert(values[i])
        decoded.append(tuple(values))
    return decoded


def _event_reader(reference: Callable[[bytes | memoryview, int], Any]) -> Any:
    """Compiled code that makes events, and calls `reference` for those that it cannot read."""
    entries = tuple(_ENTRY.get(number) for number in range(max(_ENTRY) + 1))
    types = tuple(_TYPE.get(number) for number in range(max(_TYPE) + 1))
    return compiled.EventReader(Event, Position, Row, Header, ABSENT, Decimal, entries, types, _known, _unpack, reference)


_reader = None if compiled is None else _event_reader(_decode)


# ---------------------------------------------------------------- slots


def flags_of(event: Event) -> int:
    """Return the slot flags of `event`."""
    if not event.ends_transaction:
        return 0
    return SlotFlag.DDL if event.entry is EntryType.DDL else SlotFlag.TRANSACTION_END


def encode_batch(events: Iterable[Event]) -> tuple[bytes, NDArray[np.void]]:
    """Return (payloads back to back, slot records of shape (n,)) ready for `EventStore.put_encoded`."""
    payloads: list[bytes] = []
    records: list[tuple[int, ...]] = []
    for event in events:
        payload = encode(event)
        check_size(len(payload))
        payloads.append(payload)
        records.append(slot_of(event, len(payload)))
    return b"".join(payloads), np.array(records, dtype=SLOT)


def check_size(size: int) -> None:
    """Raise `BatchTooLarge` where no slot can say the size of an event of `size` bytes."""
    if size > MAX_PAYLOAD:
        raise BatchTooLarge(
            f"an event of {size:,} bytes cannot be stored: it may have {MAX_PAYLOAD:,} at most; write fewer rows at once"
        )


def slot_of(event: Event, size: int) -> tuple[int, ...]:
    """Return the slot record of `event`, whose payload has `size` bytes, in the field order of `layout.SLOT`."""
    position = event.position
    return (
        event.time_ms,
        position.offset,
        position.file_number,
        size,
        len(event.rows),
        0,
        flags_of(event),
        event.entry,
        event.type,
        0,
    )
