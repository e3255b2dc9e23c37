"""Stored events -> the bytes of Canal's Entry, filled as Canal's MySQL parser fills it.

Plan. The protobuf package builds the same bytes and is the reference in the tests; here they are put together from
prepared pieces (`fields`, `image`), since an event differs from the one before it in little: its place, its length and
its values. What it shares with that one, mostly its file, second, server and transaction, is kept as bytes.

Where there was a compiler, `shmstore.consumer.wire.native` makes the same bytes of the usual events, without Python objects, and the encoder
here is its reference, which it hands the others to.

What cannot be as Canal has it: RowChange.tableId, which is a number of the table's definition (`rows.EntryTable`) as the server's
own is not kept in a store. Snapshot rows (READ) go out as INSERT with a header property ``snapshot``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from shmstore.consumer.formats.canal_statement import CanalStatement, canal_statement
from shmstore.consumer.formats.canal_values import DDL_TYPES, Values
from shmstore.consumer.formats.ddl_target import ddl_target
from shmstore.consumer.wire.encoding.protobuf import MORE, SMALL, message, number, pair, string, varint
from shmstore.consumer.wire.encoding.rows import EntryTable
from shmstore.encoding.codec import Header, decode_stored
from shmstore.errors import StoreCorrupt
from shmstore.event import EntryType, EventType

try:
    from shmstore.consumer.wire.native import entries as compiled
except ImportError:  # built without a compiler
    compiled = None  # type: ignore[assignment]

#: True where the usual events are encoded by compiled code; SHMSTORE_PURE=1 in the environment keeps it from that.
COMPILED: bool = compiled is not None and os.environ.get("SHMSTORE_PURE", "") in ("", "0")

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
_BEGIN_PROP: Final = "\x1a"
_END_PROP: Final = "\x1a"
_QUERY: Final = int(EventType.QUERY)
_XA: Final[dict[int, str]] = {EventType.XACOMMIT: "XA COMMIT", EventType.XAROLLBACK: "XA ROLLBACK"}
_CURRENT: Final = string("\x0a", "curtGtid")
_ONE: Final = pair("b", "rowsCount", "1")
_EMPTY: Final = [None, None, None, None]

Wanted = Callable[[str], bool]


class Encoder:
    """Encodes stored events, those of one client after each other."""

    def __init__(self, values: Values, *, gtids: bool | None = None) -> None:
        """`gtids`: entries have their transaction's GTID and the executed set, as with Canal's ``gtidon``; None: unless `values` are
        Canal's."""
        self._values = values
        self._canal = values is Values.CANAL
        self._with_gtids = not self._canal if gtids is None else gtids
        self._tables: dict[bytes, EntryTable] = {}
        self._native = compiled.Entries(self._table, self._canal, self._with_gtids) if COMPILED else None
        # What an event shares with the one before it, most of the time, and its bytes.
        self._file = self._prefix = self._lead = ""
        self._second = self._server = -1
        self._middle = ""
        self._transaction = self._current = ""
        self._gtids = self._known = ""

    def encode(self, payload: bytes | memoryview, wanted: Wanted | None = None) -> bytes | None:
        """Return the entry of a stored event, with the tag and length of ``Messages.messages`` before it; two entries where a statement
        comes with its rows.

        None for a heartbeat, for what Canal does not send, and for a table that `wanted` (of ``schema.table``) refuses. Raises
        `StoreCorrupt` where the payload is not an event.
        """
        if self._native is not None:
            found: bytes | None = self._native.encode(payload, wanted)
            if found is not NotImplemented:
                return found
        return self.encode_pure(payload, wanted)

    def encode_pure(self, payload: bytes | memoryview, wanted: Wanted | None = None) -> bytes | None:
        """`encode` without compiled code."""
        header, schema, body = decode_stored(payload)
        try:
            entry, type_, file, offset, length, time_ms, server, transaction, _, _, gtids, _, _, sql, more, _ = header
            # Of Header: schemaName and tableName; eventType; further props. Then Entry.entryType and storeValue.
            names = kind = props = query = ""
            if entry == _ROWS and not sql:
                table = self._table(schema)  # type: ignore[arg-type]
                if wanted is not None and not wanted(table.name):
                    return None
                names, entry_type = table.names, _ROWS_TYPE
                kind, value, props = _rows(type_, table, body or _EMPTY)
            elif entry == _BEGIN:
                if self._canal and "thread_id" not in more and type_ != _READ:
                    return None  # MariaDB's has no event of its own but the GTID
                entry_type, value = _BEGIN_TYPE, _thread(more.get("thread_id", ""))
                if self._canal and "xa" in more:
                    value = _xa(_BEGIN_PROP, "XA START", more, " ") + value
            elif entry == _END:
                entry_type, value = _END_TYPE, string("\x12", more.get("xid", "0"))
                if "xa" in more and (self._canal or more["xa"] != "one phase"):
                    value += _xa(_END_PROP, "XA END", more, " " if self._canal else "")
                    if self._canal and "xa_end" in more:
                        offset, length = map(int, more["xa_end"].split(":"))
            elif entry in _STATEMENTS:
                statement = _statement(header, self._canal)
                if statement is None or (
                    wanted is not None and statement.names and not any(wanted(name) for name in statement.names)
                ):
                    return None  # one about no table is never filtered by name, as in Canal
                names = string(_SCHEMA, statement.database) + string(_TABLE, statement.table)
                kind, entry_type = f"{_KIND}{varint(statement.type)}", _ROWS_TYPE
                value = _change(header, statement, canal=self._canal)
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
            if transaction != self._transaction and self._with_gtids:
                # A place in the binlog stands in for the GTID of a server that has none.
                stands_in = not transaction or transaction.startswith(self._prefix)
                current = "" if stands_in else message(_PROP, _CURRENT + string("\x12", transaction))
                self._current, self._transaction = current, transaction
            if gtids != self._gtids and self._with_gtids:
                self._gtids, self._known = gtids, string(_GTIDS, gtids)
            current = self._current
            if current and "curtGtidSn" in more:
                current += _logical(more)
            if self._canal and "rows_query_at" in more:
                query = self._query(more, current)
            start = offset - length  # as Canal: where the event starts
            place = f"\x18{MORE[start & 0x3FFF]}{SMALL[start >> 14]}" if 0x3FFF < start < 1 << 28 else number(_START, start)
            size = f"P{SMALL[length]}" if 0 < length < 0x4000 else number(_LENGTH, length)
            head = f"{self._lead}{place}{self._middle}{names}{size}{kind}{current}{props}{self._known}"
            if len(head) + len(value) < 0x3F00:
                stored = f"\x1a{SMALL[len(value)]}{value}" if value else ""
                whole = f"\x0a{SMALL[len(head)]}{head}{entry_type}{stored}"
                return f"{query}\x12{SMALL[len(whole)]}{whole}".encode("latin-1")
            whole = f"{message(_HEADER, head)}{entry_type}{message(_STORED, value)}"
            return f"{query}{message(_MESSAGE, whole)}".encode("latin-1")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise StoreCorrupt(f"event of {len(payload)} bytes cannot be read: {type(error).__name__}: {error}") from error

    def _query(self, more: dict[str, str], current: str) -> str:
        """The entry of the statement behind the rows that come, as the server logged it before them."""
        start, length = map(int, more["rows_query_at"].split(":"))
        place = (
            f"{number(_START, start)}{self._middle}{string(_TABLE, more.get('rows_query_table', ''))}{number(_LENGTH, length)}"
        )
        head = f"{self._lead}{place}{_KIND}{varint(_QUERY)}{current}{self._known}"
        change = f"{_TYPE}{varint(_QUERY)}{string(_SQL, more['rows_query'])}"
        return message(_MESSAGE, f"{message(_HEADER, head)}{_ROWS_TYPE}{message(_STORED, change)}")

    def _table(self, blob: bytes) -> EntryTable:
        table = self._tables.get(blob)
        if table is None:
            if len(self._tables) >= 4096:
                self._tables.clear()
            table = self._tables[blob] = EntryTable(blob, self._values)
        return table


def _rows(type_: int, table: EntryTable, body: list[Any]) -> tuple[str, str, str]:
    """Of a rows event: Header.eventType, the RowChange, Header.props."""
    count = len(body[1] or body[3] or ())
    rows = table.rows(body) if count else ""
    kind, change = _type(type_)
    return kind, f"{table.head}{change}{rows}", _ONE if count == 1 and type_ != _READ else _count(count, type_)


def _statement(header: Header, canal: bool) -> CanalStatement | None:
    """What a statement is to a client; None where it is not sent."""
    kind, sql, database, props = header.type, header.sql, header.database, header.props
    if canal or "xa" in props:
        return canal_statement(kind, sql, database, props)
    schema, table = ddl_target(sql, database, props)
    return CanalStatement(EventType(kind), schema, table, kind in DDL_TYPES or None, (f"{schema}.{table}",) if table else ())


def _change(header: Header, statement: CanalStatement, *, canal: bool) -> str:
    """The RowChange of a statement."""
    kind, sql, props = header.type, header.sql, header.props
    type_ = f"{_TYPE}{varint(statement.type)}"
    if "xa" in props:
        text, space = (string(_SQL, sql), " ") if canal else ("", "")
        return f"{type_}{text}{_xa(_CHANGE_PROP, _XA.get(kind, ''), props, space)}"
    is_ddl = "" if statement.is_ddl is None else f"{_IS_DDL}\x01" if statement.is_ddl else f"{_IS_DDL}\x00"
    default = props.get("default_database", "" if canal else header.database)
    return f"{type_}{is_ddl}{string(_SQL, sql)}{string(_DDL_SCHEMA, default)}"


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


def _xa(tag: str, kind: str, props: dict[str, str], space: str = "") -> str:
    """Of an XA statement: its kind, and its XID: with `space` before it, all that follows the kind in the statement, as Canal has it."""
    return pair(tag, "XA_TYPE", kind) + pair(tag, "XA_XID", space + props.get("xa_xid", ""))
