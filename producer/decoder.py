"""Raw binlog events in, encoded events into a transaction buffer out. No socket, no clock, no store.

Follows the stream's state: file and offset, the executed GTID set (it advances at commit only), the transaction that is
open. What a transaction looks like:

    MySQL     GTID | ANONYMOUS_GTID   QUERY BEGIN   (TABLE_MAP rows+)*   XID | QUERY COMMIT | XA_PREPARE
    MariaDB   MARIADB_GTID (is the BEGIN)           (TABLE_MAP rows+)*   XID | QUERY COMMIT | XA_PREPARE
    a DDL     a GTID event, then one QUERY

`order` counts the events of a transaction as the binlog has them, before any filter, so that it does not depend on
options: by it a restarted producer knows which events of a half-put transaction are in the store. For that, the last
event of every part but the last carries where the transaction began, in its props: `resume`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from producer import events
from producer.compression import payload_events, uncompress_query
from producer.errors import TransactionBroken
from producer.events import ARTIFICIAL_FLAG, IGNORABLE_FLAG, EventCode, RawEvent
from producer.filter import TableFilter
from producer.gtid import ExecutedSet, GtidSet
from producer.rows import ROWS_EVENTS, RowsDecoder
from producer.statement import Kind, Statement, classify
from producer.transaction import TransactionBuffer
from shmstore import EntryType, EventType, Position, SchemaUnknown, SlotFlag, UnsupportedEvent
from shmstore.codec import encode_stored

if TYPE_CHECKING:
    from producer.schema import SchemaHistory

_NO_PROPS: dict[str, str] = {}
_HARMLESS = frozenset(
    {
        EventCode.STOP,
        EventCode.INTVAR,
        EventCode.RAND,
        EventCode.USER_VAR,
        EventCode.DELETE_FILE,
        EventCode.HEARTBEAT,
        EventCode.HEARTBEAT_V2,
        EventCode.IGNORABLE,
        EventCode.TRANSACTION_CONTEXT,
        EventCode.VIEW_CHANGE,
        EventCode.BINLOG_CHECKPOINT,
    }
)
_MENDS = {
    EventCode.INCIDENT: "the server lost events itself; take a snapshot, then start after it",
    EventCode.BEGIN_LOAD_QUERY: "LOAD DATA was logged as a statement; SET GLOBAL binlog_format = ROW",
    EventCode.APPEND_BLOCK: "LOAD DATA was logged as a statement; SET GLOBAL binlog_format = ROW",
    EventCode.EXECUTE_LOAD_QUERY: "LOAD DATA was logged as a statement; SET GLOBAL binlog_format = ROW",
    EventCode.START_ENCRYPTION: "the file is encrypted; read it through its server",
}


class Tail(NamedTuple):
    """The last event of a store, where it stands inside a transaction."""

    transaction: str
    order: int
    part: int


class EventDecoder:
    """One stream's state. `start` begins (again) at a place; `feed` takes one raw event after the other."""

    def __init__(
        self,
        buffer: TransactionBuffer,
        table_filter: TableFilter,
        *,
        schemas: SchemaHistory | None = None,
        rows_query: bool = False,
        pass_statements: bool = False,
        skip_errors: bool = False,
        log: logging.Logger | None = None,
    ) -> None:
        self._buffer, self._filter, self._schemas = buffer, table_filter, schemas
        self._rows_decoder = RowsDecoder(schemas=schemas)
        self._keep_rows_query, self._pass_statements, self._skip_errors = rows_query, pass_statements, skip_errors
        self._log = log or logging.getLogger("producer")
        self.skipped = 0  # events, with skip_errors
        self.file, self.offset, self._file_number = "", 0, 0
        self.executed: ExecutedSet | None = None
        self._executed_text = ""
        self._tail: Tail | None = None
        self._forget_transaction()
        take: dict[int, Callable[[RawEvent], None]] = {
            EventCode.QUERY: self._query,
            EventCode.QUERY_COMPRESSED: lambda raw: self._query(raw._replace(body=uncompress_query(raw.body))),
            EventCode.ROTATE: self._rotate,
            EventCode.FORMAT: self._format,
            EventCode.XID: self._xid,
            EventCode.XA_PREPARE: self._xa_prepare,
            EventCode.TABLE_MAP: lambda raw: self._table_map(raw.body),
            EventCode.GTID: lambda raw: self._gtid(raw, events.gtid(raw.body)),
            EventCode.GTID_TAGGED: lambda raw: self._gtid(raw, events.gtid_tagged(raw.body)),
            EventCode.ANONYMOUS_GTID: lambda raw: self._gtid(raw, ""),
            EventCode.MARIADB_GTID: self._mariadb_gtid,
            EventCode.PREVIOUS_GTIDS: self._previous_gtids,
            EventCode.MARIADB_GTID_LIST: self._mariadb_gtid_list,
            EventCode.ROWS_QUERY: self._rows_query,
            EventCode.ANNOTATE_ROWS: self._rows_query,
            EventCode.TRANSACTION_PAYLOAD: self._payload,
        }
        take.update(dict.fromkeys(ROWS_EVENTS, self._rows))
        take.update(dict.fromkeys(_HARMLESS, lambda raw: None))
        self._take = take

    # ------------------------------------------------------------ the stream

    def start(self, position: Position, executed: ExecutedSet | None, tail: Tail | None = None) -> None:
        """Begin at `position`, with `executed` seen before it; `tail`: where the store ends inside the next transaction."""
        self._buffer.reset()
        self._rows_decoder.clear()
        self._move(position.file, position.offset)
        self.executed = executed.copy() if executed is not None else None
        self._executed_text = str(executed) if executed is not None else ""
        self._tail = tail
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        self._open = False
        self._gtid_name = ""
        self._transaction = ""
        self._begun: int | None = None  # offset where the transaction's first event begins
        self._order = self._events = self._row_count = 0
        self._props_rows: dict[str, str] = _NO_PROPS
        self._marks: dict[str, tuple[int, int]] = {}  # savepoint -> events, rows before it
        self._xa = ""
        self._last: tuple[list[Any], bytes | None, Any] | None = None

    def _move(self, file: str, offset: int) -> None:
        if file != self.file:
            self.file, self._file_number = file, Position(file, 0).file_number
        self.offset = offset

    @property
    def position(self) -> Position:
        """How far the stream has been read."""
        return Position(self.file, self.offset, self._executed_text)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or its GTID was read."""
        return self._open or self._begun is not None

    def feed(self, raw: RawEvent) -> None:
        """Take one event. Raises `UnsupportedEvent` or `SchemaUnknown`, naming the place, unless told to skip."""
        if raw.end and not raw.flags & ARTIFICIAL_FLAG and raw.code != EventCode.HEARTBEAT:
            # log_pos has 32 bits, a file can be longer: count its wraps
            end = self.offset & ~0xFFFFFFFF | raw.end
            self.offset = end if end >= self.offset else end + (1 << 32)
        self._dispatch(raw)

    def _dispatch(self, raw: RawEvent) -> None:
        try:
            take = self._take.get(raw.code)
            if take is not None:
                take(raw)
            elif not raw.flags & IGNORABLE_FLAG:
                mend = _MENDS.get(raw.code, "a newer shmstore may know it")  # type: ignore[call-overload]
                raise UnsupportedEvent(f"{events.name_of(raw.code)} is not understood: {mend}")
        except (UnsupportedEvent, SchemaUnknown) as error:
            where = f"{self.file}:{self.offset}: {error}"
            if not self._skip_errors or isinstance(error, TransactionBroken):
                raise type(error)(where) from error
            self.skipped += 1
            self._log.error("skipped %s", where)

    def _rotate(self, raw: RawEvent) -> None:
        file, offset = events.rotate(raw.body)
        if file != self.file:
            self._abandon("a new binlog file begins")
            self._rows_decoder.clear()  # a restarted server counts its table ids from the beginning
        self._move(file, offset)

    def _format(self, raw: RawEvent) -> None:
        self._abandon("a new binlog file begins")
        self._rows_decoder.clear()

    def _abandon(self, reason: str) -> None:
        """Forget the open transaction: the server did not finish it."""
        if not self.in_transaction:
            return
        if self._open and self._part_is_out():
            raise TransactionBroken(f"{reason} inside transaction {self._transaction}, parts of which are already in the store")
        self._log.warning(
            "%s:%d: %s inside transaction %s: it was never committed", self.file, self.offset, reason, self._transaction
        )
        self._buffer.discard()
        self._forget_transaction()

    def _part_is_out(self) -> bool:
        return self._buffer.part > 0 or (self._tail is not None and self._tail.transaction == self._transaction)

    def _payload(self, raw: RawEvent) -> None:
        for header, body in payload_events(raw.body):
            timestamp, code, server_id = int.from_bytes(header[:4], "little"), header[4], int.from_bytes(header[5:9], "little")
            self._dispatch(RawEvent(code, timestamp, server_id, raw.length, raw.end, 0, body))

    # ------------------------------------------------------------ GTIDs

    def _previous_gtids(self, raw: RawEvent) -> None:
        if self.executed is None or (isinstance(self.executed, GtidSet) and not self.executed):
            self._set_executed(events.previous_gtids(raw.body))

    def _mariadb_gtid_list(self, raw: RawEvent) -> None:
        if not self.executed and not raw.flags & ARTIFICIAL_FLAG:
            self._set_executed(events.mariadb_gtid_list(raw.body))

    def _set_executed(self, executed: ExecutedSet) -> None:
        self.executed, self._executed_text = executed, str(executed)

    def _gtid(self, raw: RawEvent, name: str) -> None:
        self._abandon("another transaction begins")
        self._name_transaction(raw, name)

    def _name_transaction(self, raw: RawEvent, name: str) -> None:
        self._begun = self.offset - raw.length
        self._gtid_name = name
        self._transaction = name or f"{self.file}:{self._begun}"
        if self._tail is not None and self._tail.transaction != self._transaction:
            tail = self._tail
            raise TransactionBroken(
                f"the store ends inside transaction {tail.transaction}, but the server goes on with {self._transaction}: "
                "it is another server, or was reset; start anew with a new store"
            )

    def _mariadb_gtid(self, raw: RawEvent) -> None:
        gtid = events.mariadb_gtid(raw.body)
        self._gtid(raw, f"{gtid.domain}-{raw.server_id}-{gtid.number}")
        if not gtid.standalone:
            self._xa = str(gtid.xid) if gtid.xid and gtid.prepared_xa else ""
            self._begin(raw, _NO_PROPS)

    def _commit_gtid(self) -> None:
        if self._gtid_name and self.executed is not None:
            self.executed.add(self._gtid_name)
            self._executed_text = str(self.executed)

    # ------------------------------------------------------------ transactions

    def _begin(self, raw: RawEvent, props: dict[str, str], microsecond: int = 0) -> None:
        if self._begun is None:
            self._name_transaction(raw, "")
        self._open = True
        self._before = (self._begun, self._executed_text)
        self._add(raw, EntryType.BEGIN, EventType.NONE, props=props, microsecond=microsecond)

    def _end(self, raw: RawEvent, props: dict[str, str], *, empty: bool = False) -> None:
        self._commit_gtid()
        empty = empty or not self._events
        if empty and self._tail is None:  # its BEGIN may have been rolled back or never read
            props = {**props, "events": "0", "rows": "0"}
        else:
            props = {**props, "events": str(self._events), "rows": str(self._row_count)}
        if self._xa:
            props = {**props, "xa": "prepare", "xa_xid": self._xa}
        was_tail = self._tail is not None
        self._order += 1
        self._add(raw, EntryType.END, EventType.NONE, props=props, gtids=self._executed_text)
        self._buffer.end(SlotFlag.TRANSACTION_END, empty=empty and not was_tail and self._buffer.part == 0)
        self._tail = None
        self._forget_transaction()

    def _xid(self, raw: RawEvent) -> None:
        self._require_open("a commit")
        self._end(raw, {"xid": str(events.xid(raw.body))})

    def _xa_prepare(self, raw: RawEvent) -> None:
        one_phase, xid = events.xa_prepare(raw.body)
        self._require_open("XA PREPARE")
        self._xa = "" if one_phase else str(xid)
        self._end(raw, {})

    def _require_open(self, what: str) -> None:
        if not self._open:
            raise TransactionBroken(f"{what} came outside of a transaction: the start position is not at the end of one")

    def _rollback(self, raw: RawEvent) -> None:
        """The transaction did not happen; what was not transactional in it was logged before, as its own transaction."""
        if self._part_is_out():
            raise TransactionBroken(f"transaction {self._transaction} was rolled back, parts of it are already in the store")
        begun = self._transaction, self._gtid_name, self._begun
        self._buffer.discard()
        self._forget_transaction()
        self._transaction, self._gtid_name, self._begun = begun
        self._begin(raw, _NO_PROPS)
        self._end(raw, {"rollback": "1"}, empty=True)

    def _query(self, raw: RawEvent) -> None:
        query = events.query(raw.body)
        if query.error_code and self._log.isEnabledFor(logging.DEBUG):
            self._log.debug("%s:%d: statement logged with error %d", self.file, self.offset, query.error_code)
        statement = classify(query.sql, query.database)
        kind = statement.kind
        if not self._open:
            if kind in (Kind.BEGIN, Kind.XA_START):
                self._xa = statement.name if kind is Kind.XA_START else ""
                self._begin(raw, {"thread_id": str(query.thread_id)}, query.microsecond)
            elif kind in (Kind.COMMIT, Kind.ROLLBACK):
                self._commit_gtid()  # of nothing
                self._forget_transaction()
            else:
                self._alone(raw, query, statement)
        elif kind is Kind.COMMIT:
            self._end(raw, {})
        elif kind is Kind.ROLLBACK:
            self._rollback(raw)
        elif kind is Kind.SAVEPOINT:
            self._buffer.mark(statement.name)
            self._marks[statement.name] = (self._events, self._row_count)
        elif kind is Kind.ROLLBACK_TO:
            if not self._buffer.rollback_to(statement.name):
                raise TransactionBroken(
                    f"ROLLBACK TO {statement.name}: what came before it is already in the store, or was never seen"
                )
            self._events, self._row_count = self._marks.get(statement.name, (0, 0))
        elif kind not in (Kind.RELEASE, Kind.XA_END, Kind.BEGIN, Kind.XA_START):
            self._within(raw, query, statement)

    # ------------------------------------------------------------ statements

    def _alone(self, raw: RawEvent, query: events.Query, statement: Statement) -> None:
        """A statement outside of BEGIN and COMMIT: a DDL, or what counts as one. It commits its GTID."""
        if self._begun is None:
            self._name_transaction(raw, "")
        if statement.kind is Kind.DML and not self._pass_statements:
            raise UnsupportedEvent(_statement_format(query.sql))
        self._commit_gtid()
        if self._follow(query) and self._passes(statement, query):
            props = self._statement_props(query, statement)
            if statement.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
                props["xa"], props["xa_xid"] = statement.kind.name[3:].lower(), statement.name
            self._add_statement(raw, query, statement, props, EntryType.DDL, gtids=self._executed_text)
            self._buffer.end(SlotFlag.DDL)
        self._tail = None
        self._forget_transaction()

    def _within(self, raw: RawEvent, query: events.Query, statement: Statement) -> None:
        """A statement inside a transaction: CREATE TABLE ... SELECT, or a change in statement format."""
        self._order += 1
        if statement.kind in (Kind.DDL, Kind.DCL):
            entry, props = EntryType.DDL, {"in_transaction": "1"}
        else:
            if not self._pass_statements:
                raise UnsupportedEvent(_statement_format(query.sql))
            entry, props = EntryType.ROWS, {}
        if self._follow(query) and self._passes(statement, query):
            self._add_statement(raw, query, statement, {**self._statement_props(query, statement), **props}, entry)
            self._events += 1

    def _add_statement(
        self, raw: RawEvent, query: events.Query, statement: Statement, props: dict[str, str], entry: EntryType, gtids: str = ""
    ) -> None:
        database = statement.tables[0][0] if statement.tables else statement.name or query.database
        if statement.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
            database = query.database
        self._add(
            raw, entry, statement.type, sql=query.sql, database=database, props=props, gtids=gtids, microsecond=query.microsecond
        )

    def _statement_props(self, query: events.Query, statement: Statement) -> dict[str, str]:
        props = {"thread_id": str(query.thread_id)}
        if query.database:
            props["default_database"] = query.database
        if statement.tables:
            props["table"] = statement.tables[0][1]
        if len(statement.tables) > 1:
            props["tables"] = ",".join(f"{database}.{table}" for database, table in statement.tables)
        if statement.targets:
            props["to_table"] = ",".join(f"{database}.{table}" for database, table in statement.targets)
        return props

    def _follow(self, query: events.Query) -> bool:
        if self._schemas is not None:
            self._schemas.follow(self.position, query.database, query.sql)
        return True

    def _passes(self, statement: Statement, query: events.Query) -> bool:
        operation = {Kind.DDL: "ddl", Kind.DCL: "dcl", Kind.XA_COMMIT: "ddl", Kind.XA_ROLLBACK: "ddl"}.get(
            statement.kind, "query"
        )
        if statement.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
            return True  # rows that were put before wait for it
        if operation not in self._filter.operations:
            return False
        names = statement.tables + statement.targets
        if not names:
            database = statement.name or query.database
            return not database or self._filter.passes(database, "")
        return any(self._filter.passes(database, table) for database, table in names)

    # ------------------------------------------------------------ rows

    def _table_map(self, body: bytes) -> None:
        self._rows_decoder.table_map(body)

    def _rows_query(self, raw: RawEvent) -> None:
        if self._keep_rows_query:
            read = events.rows_query if raw.code == EventCode.ROWS_QUERY else events.annotate_rows
            self._props_rows = {"rows_query": read(raw.body)}

    def _rows(self, raw: RawEvent) -> None:
        self._require_open("rows")
        self._order += 1
        table = self._rows_decoder.table_of(raw.body)
        if not self._filter.passes(table.database, table.table):
            return
        decoded = self._rows_decoder.rows(raw.code, raw.body)
        if not decoded.count or decoded.type not in self._filter.row_types:
            return
        plan = self._filter.plan(table.schema, table.schema_blob)
        body, blob = decoded.body, table.schema_blob
        if plan.blob is not None:
            body, blob = self._filter.apply(plan, body, len(table.schema.columns)), plan.blob
        self._events += 1
        self._row_count += decoded.count
        self._add(
            raw,
            EntryType.ROWS,
            decoded.type,
            schema=blob,
            body=body,
            rows=decoded.count,
            database=table.database,
            props=self._props_rows,
        )

    # ------------------------------------------------------------ encoding

    def _add(
        self,
        raw: RawEvent,
        entry: EntryType,
        type_: EventType,
        *,
        schema: bytes | None = None,
        body: list[Any] | None = None,
        rows: int = 0,
        database: str = "",
        sql: str = "",
        props: dict[str, str] = _NO_PROPS,
        gtids: str = "",
        microsecond: int = 0,
    ) -> None:
        buffer, order = self._buffer, self._order
        if self._tail is not None:
            if order <= self._tail.order:
                return  # it is in the store
            buffer.part = max(buffer.part, self._tail.part + 1)
        time_ms = raw.timestamp * 1000 + microsecond // 1000
        header = [
            int(entry),
            int(type_),
            self.file,
            self.offset,
            raw.length,
            time_ms,
            raw.server_id,
            self._transaction,
            order,
            buffer.part,
            gtids,
            0,
            database,
            sql,
            props,
        ]
        payload = encode_stored(header, schema, body)
        if buffer.overflows(len(payload)):
            self._cut()
            header[_PART] = buffer.part
            payload = encode_stored(header, schema, body)
        buffer.add(payload, (time_ms, self.offset, self._file_number, rows, int(entry) | int(type_) << 8))
        self._last = (header, schema, body)

    def _cut(self) -> None:
        """End a part: its last event says where the transaction began."""
        assert self._last is not None
        header, schema, body = self._last
        header[_PROPS] = {**header[_PROPS], "resume": f"{self.file}:{self._begun} {self._before[1]}".rstrip()}
        self._buffer.replace_last(encode_stored(header, schema, body))
        self._buffer.cut()


_PART, _PROPS = 9, 14  # places in the header that codec's plan draws


def _statement_format(sql: str) -> str:
    shown = sql if len(sql) <= 60 else sql[:57] + "..."
    return (
        f"a change was logged as a statement, not as rows: {shown!r}; SET GLOBAL binlog_format = ROW (sessions may have set "
        "their own), or pass such statements on with statements = pass"
    )
