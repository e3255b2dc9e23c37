"""Stored events -> the bytes of Canal's Entry, filled as Canal's MySQL parser fills it.

Plan. The protobuf package builds the same bytes and is the reference in the tests; here they are put together from
prepared pieces (`fields`, `image`), since an event differs from the one before it in little: its place, its length and
its values. What it shares with that one, mostly its file, second, server and transaction, is kept as bytes.

What cannot be as Canal has it: RowChange.tableId, which is a number of the table's definition (`image.Table`) as the server's
own is not kept in a store, and the display widths in mysqlType. Snapshot rows (READ) go out as INSERT with a header
property ``snapshot``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from shmstore.consumer.formats.canal_values import DDL_TYPES, Values
from shmstore.consumer.formats.ddl_target import ddl_target
from shmstore.consumer.wire.encoding.protobuf import MORE, SMALL, message, number, pair, string, varint
from shmstore.consumer.wire.encoding.rows import Table
from shmstore.encoding.codec import Header, decode_stored
from shmstore.errors import StoreCorrupt
from shmstore.event import EntryType, EventType

_ROWS: Final = int(EntryType.ROWS)
_BEGIN: Final = int(EntryType.BEGIN)
_END: Final = int(EntryType.END)
#: What holds the text of a statement: also rows that were logged as one, which have no table.
_STATEMENTS: Final = (int(EntryType.DDL), _ROWS)
_READ: Final = int(EventType.READ)
_BEGIN_TYPE: Final = "\x10\x01"
_ROWS_TYPE: Final = "\x10\x02"
_END_TYPE: Final = "\x10\x03"
# Tags of fields: those of Messages and Entry, of Header, of RowChange, of TransactionEnd.
_MESSAGE, _HEADER, _STORED = "\x12", "\x0a", "\x1a"
_FILE, _START, _SERVER, _TIME, _SCHEMA, _TABLE = "\x12", "\x18", "\x20", "\x30", "\x42", "\x4a"
_LENGTH, _KIND, _PROP, _GTIDS = "P", "X", "b", "j"
_TYPE, _IS_DDL, _SQL, _CHANGE_PROP, _DDL_SCHEMA = "\x10", "P", "Z", "j", "r"
_END_PROP: Final = "\x1a"
_XA: Final[dict[int, str]] = {EventType.XACOMMIT: "XA COMMIT", EventType.XAROLLBACK: "XA ROLLBACK"}
_CURRENT: Final = string("\x0a", "curtGtid")
_ONE: Final = pair("b", "rowsCount", "1")
_EMPTY: Final = [None, None, None, None]

Wanted = Callable[[str], bool]


class Encoder:
    """Encodes stored events, those of one client after each other."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._tables: dict[bytes, Table] = {}
        # What an event shares with the one before it, most of the time, and its bytes.
        self._file = self._prefix = self._lead = ""
        self._second = self._server = -1
        self._middle = ""
        self._transaction = self._current = ""
        self._gtids = self._known = ""

    def encode(self, payload: bytes | memoryview, wanted: Wanted | None = None) -> bytes | None:
        """Return the entry of a stored event, with the tag and length of ``Messages.messages`` before it.

        None for a heartbeat, and for a table that `wanted` (of ``schema.table``) refuses. Raises `StoreCorrupt` where the
        payload is not an event.
        """
        header, schema, body = decode_stored(payload)
        try:
            entry, type_, file, offset, length, time_ms, server, transaction, _, _, gtids, _, _, sql, more = header
            # Of Header: schemaName and tableName; eventType; further props. Then Entry.entryType and storeValue.
            names = kind = props = ""
            if entry == _ROWS and not sql:
                table = self._tables.get(schema) or self._table(schema)  # type: ignore[arg-type]
                if wanted is not None and not wanted(table.name):
                    return None
                names, entry_type = table.names, _ROWS_TYPE
                kind, value, props = _rows(type_, table, body or _EMPTY)
            elif entry == _BEGIN:
                entry_type, value = _BEGIN_TYPE, _thread(more.get("thread_id", ""))
            elif entry == _END:
                entry_type, value = _END_TYPE, string("\x12", more.get("xid", "0"))
                if "xa" in more:
                    value += _xa(_END_PROP, "XA END", more)
            elif entry in _STATEMENTS:
                schema_name, table_name = _target(header)
                if wanted is not None and table_name and not wanted(f"{schema_name}.{table_name}"):
                    return None  # one about no table is never filtered by name, as in Canal
                names = string(_SCHEMA, schema_name) + string(_TABLE, table_name)
                kind, entry_type, value = f"{_KIND}{varint(type_)}", _ROWS_TYPE, _ddl(header)
            else:
                return None
            # What is kept is set last: of a damaged header nothing is.
            if file != self._file:
                lead = "\x08\x01" + string(_FILE, file)
                self._lead, self._prefix, self._file = lead, f"{file}:", file
                self._transaction = self._current = ""
            if time_ms // 1000 != self._second or server != self._server:
                second = time_ms // 1000
                # serverId, serverenCode UTF-8, executeTime, sourceType MYSQL
                middle = f"{number(_SERVER, server)}\x2a\x05UTF-8{number(_TIME, second * 1000)}\x38\x02"
                self._middle, self._second, self._server = middle, second, server
            if transaction != self._transaction:
                # A place in the binlog stands in for the GTID of a server that has none.
                stands_in = not transaction or transaction.startswith(self._prefix)
                current = "" if stands_in else message(_PROP, _CURRENT + string("\x12", transaction))
                self._current, self._transaction = current, transaction
            if gtids != self._gtids:
                self._gtids, self._known = gtids, string(_GTIDS, gtids)
            current = self._current
            if current and "curtGtidSn" in more:
                current += _logical(more)
            start = offset - length  # as Canal: where the event starts
            place = f"\x18{MORE[start & 0x3FFF]}{SMALL[start >> 14]}" if 0x3FFF < start < 1 << 28 else number(_START, start)
            size = f"P{SMALL[length]}" if 0 < length < 0x4000 else number(_LENGTH, length)
            head = f"{self._lead}{place}{self._middle}{names}{size}{kind}{current}{props}{self._known}"
            if len(head) + len(value) < 0x3F00:
                stored = f"\x1a{SMALL[len(value)]}{value}" if value else ""
                whole = f"\x0a{SMALL[len(head)]}{head}{entry_type}{stored}"
                return f"\x12{SMALL[len(whole)]}{whole}".encode("latin-1")
            return message(_MESSAGE, f"{message(_HEADER, head)}{entry_type}{message(_STORED, value)}").encode("latin-1")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise StoreCorrupt(f"event of {len(payload)} bytes cannot be read: {type(error).__name__}: {error}") from error

    def _table(self, blob: bytes) -> Table:
        if len(self._tables) >= 4096:
            self._tables.clear()
        table = self._tables[blob] = Table(blob, self._values)
        return table


def _rows(type_: int, table: Table, body: list[Any]) -> tuple[str, str, str]:
    """Of a rows event: Header.eventType, the RowChange, Header.props."""
    count = len(body[1] or body[3] or ())
    rows = table.rows(body) if count else ""
    kind, change = _type(type_)
    return kind, f"{table.head}{change}{rows}", _ONE if count == 1 and type_ != _READ else _count(count, type_)


def _target(header: Header) -> tuple[str, str]:
    """The table that a statement is about; none where it ends a prepared transaction: whoever saw its rows must see that."""
    return ("", "") if "xa" in header.props else ddl_target(header.sql, header.database, header.props)


def _ddl(header: Header) -> str:
    """The RowChange of a statement, mostly a DDL."""
    kind, database, sql, props = header.type, header.database, header.sql, header.props
    type_ = f"{_TYPE}{varint(kind)}"
    if "xa" in props:
        return type_ + _xa(_CHANGE_PROP, _XA.get(kind, ""), props)
    is_ddl = f"{_IS_DDL}\x01" if kind in DDL_TYPES else ""
    return f"{type_}{is_ddl}{string(_SQL, sql)}{string(_DDL_SCHEMA, props.get('default_database', database))}"


@lru_cache(maxsize=64)
def _type(kind: int) -> tuple[str, str]:
    """Of a rows event's type: Header.eventType; RowChange.eventType and isDdl."""
    kind = EventType.INSERT if kind == _READ else kind
    return f"{_KIND}{varint(kind)}", f"{_TYPE}{varint(kind)}{_IS_DDL}\x00"


@lru_cache(maxsize=256)
def _count(rows: int, type_: int) -> str:
    """The header's properties of a rows event."""
    counted = pair(_PROP, "rowsCount", str(rows)) if rows else ""
    return counted + pair(_PROP, "snapshot", "true") if type_ == _READ else counted


@lru_cache(maxsize=1024)
def _thread(text: str) -> str:
    return number("\x20", int(text) if text.isdigit() else 0)


def _logical(props: dict[str, str]) -> str:
    """The numbers of MySQL's logical clock."""
    return "".join([pair(_PROP, name, props[name]) for name in ("curtGtidSn", "curtGtidLct") if name in props])


def _xa(tag: str, kind: str, props: dict[str, str]) -> str:
    return pair(tag, "XA_TYPE", kind) + pair(tag, "XA_XID", props.get("xa_xid", ""))
