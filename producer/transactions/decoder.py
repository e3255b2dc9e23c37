"""Raw binlog events in, encoded events into a transaction buffer out. No socket, no clock, no store.

Follows the stream's state: file and offset, the executed GTID set (it advances at commit only), the transaction that is
open. What a transaction looks like:

    MySQL     GTID | ANONYMOUS_GTID   QUERY BEGIN   (TABLE_MAP rows+)*   XID | QUERY COMMIT | XA_PREPARE
    MariaDB   MARIADB_GTID (is the BEGIN)           (TABLE_MAP rows+)*   XID | QUERY COMMIT | XA_PREPARE
    a DDL     a GTID event, then one QUERY
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from shmstore import EntryType, Position, SchemaUnknown, SlotFlag, UnsupportedEvent
from shmstore.producer.binlog import events
from shmstore.producer.binlog.compression import uncompress_query
from shmstore.producer.binlog.events import ARTIFICIAL_FLAG, IGNORABLE_FLAG, EventCode, RawEvent
from shmstore.producer.binlog.rows import ROWS_EVENTS, RowsDecoder, Schemas
from shmstore.producer.errors import TransactionBroken
from shmstore.producer.filter import TableFilter
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.sql.classify import Kind, Statement, classify
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.fast_path import FastPath, feed_payload, known_table
from shmstore.producer.transactions.writer import NO_PROPS, EventWriter, Tail
from shmstore.sql_tokens import USUAL

_HARMLESS = frozenset(
    {
        EventCode.STOP,
        EventCode.INTVAR,
        EventCode.RAND,
        EventCode.USER_VAR,
        EventCode.DELETE_FILE,
        EventCode.HEARTBEAT_V2,
        EventCode.IGNORABLE,
        EventCode.TRANSACTION_CONTEXT,
        EventCode.VIEW_CHANGE,
        EventCode.BINLOG_CHECKPOINT,
    }
)
_LOAD_DATA = "LOAD DATA was logged as a statement; SET GLOBAL binlog_format = ROW"
_MENDS: dict[int, str] = {
    EventCode.INCIDENT: "the server lost events itself; take a snapshot, then start after it",
    EventCode.BEGIN_LOAD_QUERY: _LOAD_DATA,
    EventCode.APPEND_BLOCK: _LOAD_DATA,
    EventCode.EXECUTE_LOAD_QUERY: _LOAD_DATA,
    EventCode.START_ENCRYPTION: "the file is encrypted; read it through its server",
}


class EventDecoder:
    """One stream's state. `start` begins (again) at a place; `feed` takes one raw event after the other."""

    def __init__(
        self,
        buffer: TransactionBuffer,
        table_filter: TableFilter,
        *,
        rows_query: bool = False,
        pass_statements: bool = False,
        skip_errors: bool = False,
        log: logging.Logger | None = None,
    ) -> None:
        self.writer, self.filter = EventWriter(buffer), table_filter
        self._schemas: Schemas | None = None
        compiled = not isinstance(buffer, TransactionBuffer)  # all of it, or nothing
        self.rows_decoder = RowsDecoder(compiled=compiled)
        self._keep_rows_query, self._pass_statements, self._skip_errors = rows_query, pass_statements, skip_errors
        self._log = log or logging.getLogger("producer")
        self.account_statements = 0  # left out, for they carry secrets
        self.skipped = self.heartbeats = 0  # events left out with skip_errors; heartbeats: each says that the server has sent all
        self.drain: Callable[[], bool] | None = None  # called where more is ready than one put should take, inside one event
        self.executed: ExecutedSet | None = None
        self.altered: Callable[[Statement, str], None] = lambda statement, database: None  # is told of each DDL, whatever passes
        self._unfinished = False  # the statement that comes is half of a MariaDB ALTER
        self._forget_transaction()
        take: dict[int, Callable[[RawEvent], None]] = {
            EventCode.QUERY: self._query,
            EventCode.QUERY_COMPRESSED: lambda raw: self._query(raw._replace(body=uncompress_query(raw.body))),
            EventCode.ROTATE: self._rotate,
            EventCode.FORMAT: self._format,
            EventCode.HEARTBEAT: self._heartbeat,
            EventCode.XID: self._xid,
            EventCode.XA_PREPARE: self._xa_prepare,
            EventCode.TABLE_MAP: self._table_map,
            EventCode.GTID: lambda raw: self._gtid(raw, events.gtid(raw.body)),
            EventCode.GTID_TAGGED: lambda raw: self._gtid(raw, events.gtid_tagged(raw.body)),
            EventCode.ANONYMOUS_GTID: lambda raw: self._gtid(raw, ""),
            EventCode.MARIADB_GTID: self._mariadb_gtid,
            EventCode.PREVIOUS_GTIDS: self._previous_gtids,
            EventCode.MARIADB_GTID_LIST: self._mariadb_gtid_list,
            EventCode.ROWS_QUERY: self._rows_query,
            EventCode.ANNOTATE_ROWS: self._rows_query,
            EventCode.TRANSACTION_PAYLOAD: lambda raw: feed_payload(self, raw),
        }
        take.update(dict.fromkeys(ROWS_EVENTS, self._rows))
        take.update(dict.fromkeys(_HARMLESS, lambda raw: None))
        self._take = take
        self._stream = FastPath(self) if compiled else None
        self.forget_tables: Callable[[], None] = self._stream.forget_tables if self._stream is not None else lambda: None

    # ------------------------------------------------------------ the stream

    def start(self, position: Position, executed: ExecutedSet | None, tail: Tail | None = None) -> None:
        """Begin at `position`, with `executed` seen before it; `tail`: where the store ends inside the next transaction."""
        writer = self.writer
        writer.buffer.reset()
        self.rows_decoder.clear()
        self.forget_tables()
        writer.move(position.file, position.offset)
        writer.tail = tail
        self._set_executed(executed.copy() if executed is not None else None)
        self._forget_transaction()

    def use(self, schemas: Schemas | None) -> None:
        """From the next `start` on, ask `schemas` for what the log does not say."""
        if schemas is not self._schemas:
            self._schemas, self.rows_decoder = schemas, RowsDecoder(schemas=schemas)

    def _forget_transaction(self) -> None:
        self.open = False
        self.gtid_name = ""
        self.event_count = self.row_count = 0  # that passed
        self.marks: dict[str, tuple[int, int, int]] = {}  # savepoint -> the two before it, and what was passed over
        self.row_props, self.xa = NO_PROPS, ""
        self.writer.forget()

    @property
    def position(self) -> Position:
        """How far the stream has been read."""
        return Position(self.writer.file, self.writer.offset, self.writer.gtids)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or its GTID was read."""
        return self.writer.begun is not None

    def feed(self, raw: RawEvent) -> None:
        """Take one event, or a compiled splitter's run of events.

        Raises `UnsupportedEvent` or `SchemaUnknown`, naming the place, unless told to skip.
        """
        if not isinstance(raw, RawEvent):
            if self._stream is not None:
                self._stream.run(raw)
            else:
                for one in raw.raw(RawEvent):
                    self.feed(one)
            return
        if raw.end and not raw.flags & ARTIFICIAL_FLAG and raw.code != EventCode.HEARTBEAT:
            self.writer.advance(raw.end)
        self._dispatch(raw)

    def _dispatch(self, raw: RawEvent) -> None:
        try:
            take = self._take.get(raw.code)
            if take is not None:
                take(raw)
            elif not raw.flags & IGNORABLE_FLAG:
                mend = _MENDS.get(raw.code, "a newer shmstore may know it")
                raise UnsupportedEvent(f"{events.name_of(raw.code)} is not understood: {mend}")
        except (UnsupportedEvent, SchemaUnknown) as error:
            where = f"{self.writer.file}:{self.writer.offset}: {error}"
            if not self._skip_errors or isinstance(error, TransactionBroken):
                raise type(error)(where) from error
            self.skipped += 1
            self._log.error("skipped %s", where)

    def known_table(self, body: bytes) -> tuple[Any, ...] | None:
        """Return what the compiled stream may know of the table map just taken."""
        return known_table(self.rows_decoder, self.filter, body)

    def _rotate(self, raw: RawEvent) -> None:
        file, offset = events.rotate(raw.body)
        if file != self.writer.file:
            self._abandon("a new binlog file begins")
            self.rows_decoder.clear()  # a restarted server counts its table ids from the beginning
        self.writer.move(file, offset)

    def _format(self, raw: RawEvent) -> None:
        self._abandon("a new binlog file begins")
        self.rows_decoder.clear()
        self.rows_decoder.mariadb = "mariadb" in events.format_version(raw.body).lower()

    def _heartbeat(self, raw: RawEvent) -> None:
        """An idle server says how far it has read: past what it did not send, having been asked for a GTID set."""
        self.heartbeats += 1
        file = raw.body.rstrip(b"\0").decode("utf-8", "replace")
        if self.in_transaction or not raw.end:
            return
        if file == self.writer.file:
            self.writer.advance(raw.end)
        elif file:
            self.writer.move(file, raw.end)

    def _abandon(self, reason: str) -> None:
        """Forget the open transaction: the server did not finish it."""
        writer = self.writer
        if not self.in_transaction:
            return
        if self.open and writer.part_is_out:
            raise TransactionBroken(f"{reason} inside transaction {writer.transaction}, parts of which are already in the store")
        self._log.warning("%s:%d: %s inside %s: never committed", writer.file, writer.offset, reason, writer.transaction)
        writer.discard()
        self._forget_transaction()

    # ------------------------------------------------------------ GTIDs

    def _set_executed(self, executed: ExecutedSet | None) -> None:
        self.executed = executed
        self.writer.gtids = "" if executed is None else str(executed)

    def _previous_gtids(self, raw: RawEvent) -> None:
        if not self.executed:
            self._set_executed(events.previous_gtids(raw.body))

    def _mariadb_gtid_list(self, raw: RawEvent) -> None:
        if not self.executed and not raw.flags & ARTIFICIAL_FLAG:
            self._set_executed(events.mariadb_gtid_list(raw.body))

    def _gtid(self, raw: RawEvent, gtid: str) -> None:
        self._abandon("another transaction begins")
        writer = self.writer
        writer.name(gtid, raw.length)
        self.gtid_name = gtid
        if writer.tail is not None and writer.tail.transaction != writer.transaction:
            raise TransactionBroken(
                f"the store ends inside transaction {writer.tail.transaction}, but the server goes on with {writer.transaction}: "
                "it is another server, or was reset; start anew with a new store"
            )

    def _mariadb_gtid(self, raw: RawEvent) -> None:
        gtid = events.mariadb_gtid(raw.body)
        self._gtid(raw, f"{gtid.domain}-{raw.server_id}-{gtid.number}")
        self._unfinished = gtid.unfinished_alter
        if not gtid.standalone:
            self.xa = str(gtid.xid) if gtid.xid and gtid.prepared_xa else ""
            self._begin(raw, NO_PROPS)

    def _commit_gtid(self) -> None:
        if self.gtid_name and self.executed is not None:
            try:
                self.executed.add(self.gtid_name)
            except ValueError as error:
                raise UnsupportedEvent(f"GTID {self.gtid_name} behind {self.executed}: another kind of server's log?") from error
            self.writer.gtids = str(self.executed)

    # ------------------------------------------------------------ transactions

    def _begin(self, raw: RawEvent, props: dict[str, str], microsecond: int = 0) -> None:
        if not self.in_transaction:
            self._gtid(raw, "")  # before MySQL 5.7 nothing comes before BEGIN
        self.open = True
        self.writer.write(raw, EntryType.BEGIN, props=props, microsecond=microsecond)

    def _end(self, raw: RawEvent, props: dict[str, str]) -> None:
        self._commit_gtid()
        props = {**props, "events": str(self.event_count), "rows": str(self.row_count)}
        if self.xa:
            props |= {"xa": "prepare", "xa_xid": self.xa}
        writer = self.writer
        writer.order += 1
        writer.write(raw, EntryType.END, props=props, gtids=writer.gtids)
        writer.end(SlotFlag.TRANSACTION_END, empty=not self.event_count)
        self._forget_transaction()

    def _require_open(self, what: str) -> None:
        if not self.open:
            raise TransactionBroken(f"{what} came outside of a transaction: the start position is not at the end of one")

    def _xid(self, raw: RawEvent) -> None:
        self._require_open("a commit")
        self._end(raw, {"xid": str(events.xid(raw.body))})

    def _xa_prepare(self, raw: RawEvent) -> None:
        one_phase, xid = events.xa_prepare(raw.body)
        self._require_open("XA PREPARE")
        self.xa = "" if one_phase else str(xid)
        self._end(raw, {})

    def _rollback(self, raw: RawEvent) -> None:
        """The transaction did not happen; what was not transactional in it was logged before, as its own transaction."""
        writer, gtid = self.writer, self.gtid_name
        if writer.part_is_out:
            raise TransactionBroken(f"transaction {writer.transaction} was rolled back, parts of it are already in the store")
        begun = writer.begun or 0
        writer.discard()
        self._forget_transaction()
        writer.name(gtid, writer.offset - begun)
        self.gtid_name = gtid
        self._begin(raw, NO_PROPS)
        self._end(raw, {"rollback": "1"})

    def _savepoint(self, statement: Statement) -> None:
        if statement.kind is Kind.SAVEPOINT:
            self.writer.buffer.mark(statement.name)
            self.marks[statement.name] = (self.event_count, self.row_count, self.writer.passed)
        elif statement.kind is Kind.ROLLBACK_TO:
            if not self.writer.buffer.rollback_to(statement.name):
                raise TransactionBroken(
                    f"ROLLBACK TO {statement.name}: what came after it is already in the store, or it was never set"
                )
            self.event_count, self.row_count, self.writer.passed = self.marks[statement.name]

    # ------------------------------------------------------------ statements

    def _query(self, raw: RawEvent) -> None:
        query = events.query(raw.body)
        statement = classify(query.sql, query.database, query.mode)
        kind = statement.kind
        if not self.open:
            if kind in (Kind.BEGIN, Kind.XA_START):
                self.xa = statement.name if kind is Kind.XA_START else ""
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
        elif kind in (Kind.SAVEPOINT, Kind.ROLLBACK_TO, Kind.RELEASE):
            self._savepoint(statement)
        elif kind is not Kind.XA_END:
            self._within(raw, query, statement)

    def _alone(self, raw: RawEvent, query: events.Query, statement: Statement) -> None:
        """A statement outside of BEGIN and COMMIT: a DDL, or what counts as one. It commits its GTID."""
        writer = self.writer
        if not self.in_transaction:
            self._gtid(raw, "")
        self._commit_gtid()
        try:
            if self._unfinished:
                return  # the table is as it was; a second event says when it is not
            self._follow(query, statement)
            if self._passes(statement, query):
                self._write_statement(raw, EntryType.DDL, query, statement, {}, writer.gtids)
                writer.end(SlotFlag.DDL)
        finally:
            self._unfinished = False
            writer.tail = None
            self._forget_transaction()

    def _within(self, raw: RawEvent, query: events.Query, statement: Statement) -> None:
        """A statement inside a transaction: CREATE TABLE ... SELECT, or a change in statement format."""
        self.writer.order += 1
        self._follow(query, statement)
        if self._passes(statement, query):
            self.event_count += 1
            if statement.kind is Kind.DDL:
                self._write_statement(raw, EntryType.DDL, query, statement, {"in_transaction": "1"})
            else:
                self._write_statement(raw, EntryType.ROWS, query, statement, {})

    def _follow(self, query: events.Query, statement: Statement) -> None:
        """Let the schema history see a DDL; refuse what changes rows without showing them."""
        if statement.kind is Kind.DML and not self._pass_statements:
            shown = query.sql if len(query.sql) <= 60 else query.sql[:57] + "..."
            raise UnsupportedEvent(
                f"a change was logged as a statement, not as rows: {shown!r}; SET GLOBAL binlog_format = ROW (sessions may have "
                "set their own), or pass such statements on with statements = pass"
            )
        if statement.kind is Kind.DDL:
            self.altered(statement, query.database)
            if self._schemas is not None:
                self._schemas.follow(self.position, query.database, query.sql, query.mode)

    def _passes(self, statement: Statement, query: events.Query) -> bool:
        if statement.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
            return True  # rows that were put before wait for it
        if statement.kind is Kind.ACCOUNT:
            if not self.account_statements:
                self._log.info("statements about accounts (CREATE USER, GRANT, ...) are left out: they carry secrets")
            self.account_statements += 1
            return False
        if ("ddl" if statement.kind is Kind.DDL else "query") not in self.filter.operations:
            return False
        names = statement.tables + statement.targets
        if not names:
            database = statement.name or query.database
            return not database or self.filter.passes(database, "")
        return any(self.filter.passes(database, table) for database, table in names)

    def _write_statement(
        self, raw: RawEvent, entry: EntryType, query: events.Query, statement: Statement, more: dict[str, str], gtids: str = ""
    ) -> None:
        props = {"thread_id": str(query.thread_id)}
        database = query.database
        if query.database:
            props["default_database"] = query.database
        if query.mode != USUAL:
            props["sql_mode"] = str(query.mode)
        if statement.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
            props |= {"xa": "commit" if statement.kind is Kind.XA_COMMIT else "rollback", "xa_xid": statement.name}
        elif statement.tables:
            database, props["table"] = statement.tables[0]
        elif statement.name:
            database = statement.name
        if len(statement.tables) > 1:
            props["tables"] = ",".join(f"{database}.{table}" for database, table in statement.tables)
        if statement.targets:
            props["to_table"] = ",".join(f"{database}.{table}" for database, table in statement.targets)
        self.writer.write(
            raw,
            entry,
            statement.type,
            sql=query.sql,
            database=database,
            props=props | more,
            gtids=gtids,
            microsecond=query.microsecond,
        )

    # ------------------------------------------------------------ rows

    def _table_map(self, raw: RawEvent) -> None:
        self.rows_decoder.table_map(raw.body)

    def _rows_query(self, raw: RawEvent) -> None:
        if self._keep_rows_query:
            read = events.rows_query if raw.code == EventCode.ROWS_QUERY else events.annotate_rows
            self.row_props = {"rows_query": read(raw.body)}

    def _rows(self, raw: RawEvent) -> None:
        self._require_open("rows")
        self.writer.order += 1
        table = self.rows_decoder.table_of(raw.body)
        if not self.filter.passes(table.database, table.table):
            return
        decoded = self.rows_decoder.rows(raw.code, raw.body)
        if not decoded.count or decoded.type not in self.filter.row_types:
            return
        body, blob = decoded.body, table.schema_blob
        plan = self.filter.plan(table.schema, blob)
        if plan.blob is not None:
            body, blob = self.filter.apply(plan, body, len(table.schema.columns)), plan.blob
        self.event_count += 1
        self.row_count += decoded.count
        self.writer.write(
            raw,
            EntryType.ROWS,
            decoded.type,
            schema=blob,
            body=body,
            rows=decoded.count,
            database=table.database,
            props=self.row_props,
        )
