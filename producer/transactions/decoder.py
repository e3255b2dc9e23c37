"""Raw binlog events in, encoded events into a transaction buffer out. No socket, no clock, no store.

What a transaction looks like:

    MySQL     GTID | ANONYMOUS_GTID   QUERY BEGIN   (TABLE_MAP rows+)*   XID | QUERY COMMIT | XA_PREPARE
    MariaDB   MARIADB_GTID (is the BEGIN)           (TABLE_MAP rows+)*   XID | QUERY COMMIT | XA_PREPARE
    a DDL     a GTID event, then one QUERY
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from shmstore import EntryType, Position, SchemaUnknown, SlotFlag, TableSchema, UnsupportedEvent
from shmstore.event import FILTERS_CHANGED
from shmstore.producer.binlog import events
from shmstore.producer.binlog.compression import cut_events, payload_pieces, uncompress_query
from shmstore.producer.binlog.events import ARTIFICIAL_FLAG, HEADER_SIZE, IGNORABLE_FLAG, EventCode, RawEvent
from shmstore.producer.binlog.packets import singly
from shmstore.producer.binlog.rows import ROWS_EVENTS, RowsDecoder, Schemas
from shmstore.producer.binlog.statement_text import without_mariadb
from shmstore.producer.binlog.table_map import TableMap
from shmstore.producer.errors import TransactionBroken
from shmstore.producer.filters.row_runs import RowsRun, runs
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.schema.merged import MergedTables
from shmstore.producer.schema.present import PresentTables
from shmstore.producer.stop import Stopped
from shmstore.producer.transactions import statements
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.fast_path import FastPath
from shmstore.producer.transactions.state import NO_PROPS, HalfTransaction, new_state
from shmstore.producer.transactions.writer import EventWriter
from shmstore.sql.classify import Kind, Statement, classify

_HARMLESS = frozenset(
    {
        EventCode.STOP,
        EventCode.INTVAR,
        EventCode.RAND,
        EventCode.USER_VAR,
        EventCode.BEGIN_LOAD_QUERY,  # the file of a LOAD DATA statement, which EXECUTE_LOAD_QUERY ends, or DELETE_FILE
        EventCode.APPEND_BLOCK,
        EventCode.DELETE_FILE,
        EventCode.HEARTBEAT_V2,
        EventCode.IGNORABLE,
        EventCode.TRANSACTION_CONTEXT,
        EventCode.VIEW_CHANGE,
        EventCode.BINLOG_CHECKPOINT,
    }
)
_HEARTBEAT = int(EventCode.HEARTBEAT)  # compared with every event: an enum's member takes longer
_TEXTS = frozenset({EventCode.ROWS_QUERY, EventCode.ANNOTATE_ROWS})  # of statements whose rows follow
RENAMED_FROM = "renamed_from"  # the property that names the shards which a DDL was about
_FIXES: dict[int, str] = {
    EventCode.INCIDENT: "the server lost events itself; take a snapshot, then start after it",
    EventCode.START_ENCRYPTION: "the file is encrypted; read it through its server",
}


class EventDecoder:
    """Decodes one stream. `start` begins (again) at a position; `feed` takes one raw event after the other."""

    def __init__(
        self,
        buffer: TransactionBuffer,
        table_filter: TableFilter,
        *,
        rows_query: bool = False,
        pass_statements: bool = False,
        skip_errors: bool = False,
        log: logging.Logger | None = None,
        altered: Callable[[Statement, str], None] = lambda statement, database: None,
        followed: Callable[[Position, events.QueryEvent], None] = lambda position, query: None,
        drain: Callable[[], bool] | None = None,
        merged: MergedTables | None = None,
    ) -> None:
        """`altered` sees each DDL, whatever the filter, `followed` each after the schema history has seen it; `drain` is called where more is
        ready than one put should take, inside one event, and returns False when the producer is to stop. `merged`: tables that have other names for readers.
        """
        compiled = not isinstance(buffer, TransactionBuffer)  # all of it, or nothing
        self.state = new_state(compiled_code=compiled)
        self.buffer, self.filter = buffer, table_filter
        self.merged = merged or MergedTables()
        self.writer = EventWriter(buffer, self.state)
        self._schemas: Schemas | None = None
        self.rows_decoder = RowsDecoder(compiled=compiled)
        self._keep_rows_query, self._pass_statements, self._skip_errors = rows_query, pass_statements, skip_errors
        self._log = log or logging.getLogger("producer")
        self._table_case = ""  # the server's lower_case_table_names, where it is known: what a DDL's names mean
        self.account_statements = 0  # left out, for they carry secrets
        self.skipped = self.heartbeats = 0  # events left out with skip_errors; heartbeats: each says that the server has sent all
        self._present: PresentTables | None = None  # asked where the rows of a table cannot be read with what was followed
        self._altered, self._followed, self._drain = altered, followed, drain
        take: dict[int, Callable[[RawEvent], None]] = {
            EventCode.QUERY: self._query,
            EventCode.QUERY_COMPRESSED: lambda raw: self._query(raw._replace(body=uncompress_query(raw.body))),
            EventCode.EXECUTE_LOAD_QUERY: lambda raw: self._query(raw._replace(body=events.load_query(raw.body))),
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
            EventCode.TRANSACTION_PAYLOAD: self._payload,
        }
        take.update(dict.fromkeys(ROWS_EVENTS, self._rows))
        take.update(dict.fromkeys(_HARMLESS, lambda raw: None))
        self._take = take
        self._fast_path = FastPath(self) if compiled else None

    # ------------------------------------------------------------ the stream

    def start(self, position: Position, executed: ExecutedSet | None, tail: HalfTransaction | None = None) -> None:
        """Begin at `position`, with `executed` seen before it; `tail`: where the store ends inside the next transaction."""
        self.buffer.reset()
        self.rows_decoder.clear()
        self.forget_tables()
        self.state.start(position, executed, tail)

    def forget_tables(self) -> None:
        """Forget what the fast path knows of tables: another connection, or rows that it has not seen."""
        if self._fast_path is not None:
            self._fast_path.forget_tables()

    def use_filter(self, table_filter: TableFilter) -> None:
        """Decide with `table_filter` from now on. Call it between two transactions."""
        self.filter = table_filter
        self.forget_tables()

    def use(self, schemas: Schemas | None, present: PresentTables | None = None, table_case: str = "") -> None:
        """From the next `start` on, ask `schemas` for what the log does not say, and `present` where rows cannot be read with that.

        `table_case`: the server's lower_case_table_names, where it is known: what a DDL's names mean.
        """
        self._present, self._table_case = present, table_case
        if schemas is not self._schemas:
            self._schemas, self.rows_decoder = schemas, RowsDecoder(schemas=schemas, position=lambda: self.position)

    def known(self, database: str, table: str) -> TableSchema | None:
        """What is known of a table besides the log. Raises `SourceError`."""
        schemas = getattr(self._schemas, "current", None) or self._schemas
        return schemas.find(database, table) if schemas is not None else None

    @property
    def position(self) -> Position:
        """How far the stream has been read."""
        state = self.state
        return Position(state.file, state.offset, state.gtids)

    @property
    def executed(self) -> ExecutedSet | None:
        """The transactions executed up to there; not a copy."""
        return self.state.executed

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or its GTID was read."""
        return self.state.in_transaction

    def feed(self, piece: Any) -> None:
        """Take one event, or a compiled splitter's run of events.

        Raises `UnsupportedEvent` or `SchemaUnknown`, naming the position, unless the settings say to skip it.
        """
        if isinstance(piece, RawEvent):
            self.feed_one(piece)
        elif self._fast_path is not None:
            self._fast_path.run(piece)
        else:
            for raw in singly(piece):
                self.feed_one(raw)

    def feed_one(self, raw: RawEvent) -> None:
        """Take one event, in Python. Raises what `feed` raises."""
        if raw.end and not raw.flags & ARTIFICIAL_FLAG and raw.code != _HEARTBEAT:
            self.state.advance(raw.end)
        try:
            take = self._take.get(raw.code)
            if take is not None:
                take(raw)
            elif not raw.flags & IGNORABLE_FLAG:
                fix = _FIXES.get(raw.code, "a newer shmstore may know it")
                raise UnsupportedEvent(f"{events.name_of(raw.code)} is not understood: {fix}")
        except (UnsupportedEvent, SchemaUnknown) as error:
            where = f"{self.state.file}:{self.state.offset}: {error}"
            if not self._skip_errors or isinstance(error, TransactionBroken):
                raise type(error)(where) from error
            self.skipped += 1
            self._log.error("skipped %s", where)

    def leaves_out(self, code: int, beginning: bytes) -> bool:
        """Whether an event adds nothing but to counts, according to the first 8 bytes of its body: `feed` needs no more of it. Call it once all
        before it was fed."""
        if code in _TEXTS:
            return not self._keep_rows_query
        if code not in ROWS_EVENTS or not self.rows_decoder.knows(beginning):
            return False
        table = self.rows_decoder.table_of(beginning)
        return not self.filter.passes(table.database, table.table)

    def _rotate(self, raw: RawEvent) -> None:
        file, offset = events.rotate(raw.body)
        if file != self.state.file:
            self._abandon("a new binlog file begins")
            self.rows_decoder.clear()  # a restarted server counts its table ids from the beginning
        self.state.move(file, offset)

    def _format(self, raw: RawEvent) -> None:
        self._abandon("a new binlog file begins")
        self.rows_decoder.clear()
        self.rows_decoder.mariadb = "mariadb" in events.format_version(raw.body).lower()

    def _heartbeat(self, raw: RawEvent) -> None:
        """An idle server says how far it has read: past what it did not send, having been asked for a GTID set."""
        self.heartbeats += 1
        file = raw.body.rstrip(b"\0").decode("utf-8", "replace")
        state = self.state
        if state.in_transaction or not raw.end:
            return
        if file == state.file:
            state.advance(raw.end)
        elif file:
            state.move(file, raw.end)

    def _abandon(self, reason: str) -> None:
        """Forget the open transaction: the server did not finish it."""
        state = self.state
        if not state.in_transaction:
            return
        if state.open and self.writer.part_is_out:
            raise TransactionBroken(f"{reason} inside transaction {state.transaction}, parts of which are already in the store")
        self._log.warning("%s:%d: %s inside %s: never committed", state.file, state.offset, reason, state.transaction)
        self.buffer.discard()
        state.over()

    def _payload(self, raw: RawEvent) -> None:
        """Feed the events in a MySQL TRANSACTION_PAYLOAD event. However many they are, only so many are held as one put takes.

        Raises what `feed` raises; `Stopped` when the producer is to stop meanwhile.
        """
        inner = _inner if self._fast_path is None else self._fast_path.inner
        for piece in payload_pieces(raw.body):
            for event in inner(piece, raw):
                self.feed(event)
            if self._drain is not None and self.buffer.full and not self._drain():
                raise Stopped("inside a compressed transaction")

    # ------------------------------------------------------------ GTIDs

    def _previous_gtids(self, raw: RawEvent) -> None:
        if not self.executed:
            self.state.set_executed(events.previous_gtids(raw.body))

    def _mariadb_gtid_list(self, raw: RawEvent) -> None:
        if not self.executed and not raw.flags & ARTIFICIAL_FLAG:
            self.state.set_executed(events.mariadb_gtid_list(raw.body))

    def _gtid(self, raw: RawEvent, gtid: str) -> None:
        self._abandon("another transaction begins")
        state = self.state
        state.begin(gtid, raw.length)
        if state.tail is not None and state.tail.transaction != state.transaction:
            raise TransactionBroken(
                f"the store ends inside transaction {state.tail.transaction}, but the server continues with {state.transaction}: "
                "it is another server, or was reset; start again with a new store"
            )

    def _mariadb_gtid(self, raw: RawEvent) -> None:
        gtid = events.mariadb_gtid(raw.body)
        self._gtid(raw, f"{gtid.domain}-{raw.server_id}-{gtid.number}")
        self.state.unfinished = gtid.unfinished_alter
        if not gtid.standalone:
            self.state.xa = str(gtid.xid) if gtid.xid and gtid.prepared_xa else ""
            self._begin(raw, NO_PROPS)

    def _commit(self) -> str:
        state = self.state
        try:
            return state.commit()
        except ValueError as error:
            raise UnsupportedEvent(f"GTID {state.transaction} behind {state.executed}: another kind of server's log?") from error

    # ------------------------------------------------------------ transactions

    def _begin(self, raw: RawEvent, props: dict[str, str], microsecond: int = 0) -> None:
        if not self.in_transaction:
            self._gtid(raw, "")  # before MySQL 5.7 nothing comes before BEGIN
        self.state.opened()
        self.writer.write(raw, EntryType.BEGIN, props=props, microsecond=microsecond)

    def _end(self, raw: RawEvent, props: dict[str, str]) -> None:
        state, gtids = self.state, self._commit()
        props = {**props, "events": str(state.events), "rows": str(state.rows)}
        if state.xa:
            props = {"xa": "prepare", **props, "xa_xid": state.xa} | ({"xa_end": state.xa_end} if state.xa_end else {})
        state.order += 1
        self.writer.write(raw, EntryType.END, props=props, gtids=gtids)
        state.gtids = gtids
        self.writer.end(SlotFlag.TRANSACTION_END, empty=not state.events)

    def _require_open(self, what: str) -> None:
        if not self.state.open:
            raise TransactionBroken(f"{what} came outside of a transaction: the start position is not at the end of one")

    def _xid(self, raw: RawEvent) -> None:
        self._require_open("a commit")
        self._end(raw, {"xid": str(events.xid(raw.body))})

    def _xa_prepare(self, raw: RawEvent) -> None:
        one_phase, xid = events.xa_prepare(raw.body)
        self._require_open("XA PREPARE")
        self.state.xa = str(xid)
        self._end(raw, {"xa": "one phase"} if one_phase else {})

    def _rollback(self, raw: RawEvent) -> None:
        """The transaction did not happen; what was not transactional in it was logged before, as its own transaction."""
        state = self.state
        if self.writer.part_is_out:
            raise TransactionBroken(f"transaction {state.transaction} was rolled back, parts of it are already in the store")
        self.buffer.discard()
        state.restarted()
        self._begin(raw, NO_PROPS)
        self._end(raw, {"rollback": "1"})

    def _savepoint(self, statement: Statement) -> None:
        if statement.kind is Kind.SAVEPOINT:
            self.buffer.mark(statement.name)
            self.state.mark(statement.name)
        elif statement.kind is Kind.ROLLBACK_TO:
            if not self.buffer.rollback_to(statement.name):
                raise TransactionBroken(
                    f"ROLLBACK TO {statement.name}: what came after it is already in the store, or it was never set"
                )
            self.state.rolled_back_to(statement.name)

    # ------------------------------------------------------------ statements

    def _query(self, raw: RawEvent) -> None:
        query = events.query(raw.body, raw.flags)
        if not self.rows_decoder.mariadb and "/*M!" in query.sql:
            query = query._replace(sql=without_mariadb(query.sql, query.mode))
        statement = classify(query.sql, query.database, query.mode)
        kind = statement.kind
        state = self.state
        if not state.open:
            if kind in (Kind.BEGIN, Kind.XA_START):
                props = {"thread_id": str(query.thread_id)}
                if kind is Kind.XA_START:
                    props |= {"xa": "start", "xa_xid": statement.name}
                self._begin(raw, props, query.microsecond)
                state.xa = props.get("xa_xid", "")
            elif kind in (Kind.COMMIT, Kind.ROLLBACK):
                state.gtids = self._commit()  # of nothing
                state.over()
            else:
                self._alone(raw, query, statement)
        elif kind is Kind.COMMIT:
            self._end(raw, {})
        elif kind is Kind.ROLLBACK:
            self._rollback(raw)
        elif kind in (Kind.SAVEPOINT, Kind.ROLLBACK_TO, Kind.RELEASE):
            self._savepoint(statement)
        elif kind is Kind.XA_END:
            state.xa_end = f"{state.offset}:{raw.length}"
        else:
            self._within(raw, query, statement)

    def _alone(self, raw: RawEvent, query: events.QueryEvent, statement: Statement) -> None:
        """A statement outside of BEGIN and COMMIT: a DDL, or what counts as one. It commits its GTID."""
        state = self.state
        if not state.in_transaction:
            self._gtid(raw, "")
        state.gtids = self._commit()
        try:
            if state.unfinished:
                return  # the table is as it was; a second event says when it is not
            self._follow(query, statement)
            passes = self._passes(statement, query)
            if self.merged and statement.kind is Kind.DDL and "ddl" in self.filter.operations:
                self._write_of_shards(raw, query, statement, {}, state.gtids, passes=passes)
            elif passes:
                self._write_statement(raw, EntryType.DDL, query, statement, {}, state.gtids)
                self.writer.end(SlotFlag.DDL)
        finally:
            state.tail = None
            state.over()

    def _within(self, raw: RawEvent, query: events.QueryEvent, statement: Statement) -> None:
        """A statement inside a transaction: CREATE TABLE ... SELECT, or a change in statement format."""
        self.state.order += 1
        self._follow(query, statement)
        if self._passes(statement, query):
            self.state.count(0)
            if statement.kind is Kind.DDL and self.merged:
                self._write_of_shards(raw, query, statement, {"in_transaction": "1"}, passes=True)
            elif statement.kind is Kind.DDL:
                self._write_statement(raw, EntryType.DDL, query, statement, {"in_transaction": "1"})
            else:
                self._write_statement(raw, EntryType.ROWS, query, statement, {})

    def _follow(self, query: events.QueryEvent, statement: Statement) -> None:
        """Let the schema history see a DDL; refuse what changes rows without showing them.

        In this order: where what is refused is skipped, the table is another one all the same.
        """
        if statement.kind is Kind.DDL:
            self.merged.forget_statement()
            self._altered(statement, query.database)
            if self._schemas is not None:
                self._schemas.follow(self.position, query.database, query.sql, query.session)
                self.forget_tables()  # a table map that was seen may be of another table now
            self._followed(self.position, query)
        if statement.changes_rows and not self._pass_statements:
            raise statements.refused(query)

    def _passes(self, statement: Statement, query: events.QueryEvent) -> bool:
        if statement.kind is Kind.ACCOUNT:
            if not self.account_statements:
                self._log.info("statements about accounts (CREATE USER, GRANT, ...) are left out: they carry secrets")
            self.account_statements += 1
            return False
        passes = statements.passes(self.filter, statement, query)
        self.state.filtered_events += not passes
        return passes

    def _write_statement(
        self,
        raw: RawEvent,
        entry: EntryType,
        query: events.QueryEvent,
        statement: Statement,
        more: dict[str, str],
        gtids: str = "",
    ) -> None:
        if self.merged and statement.kind is Kind.DML:  # readers look for the names that they know
            statement = statement._replace(tables=tuple([self.merged.seen_as(*name) for name in statement.tables]))
        type_, database, props = statements.described(statement, query, self._table_case)
        self.writer.write(
            raw, entry, type_, sql=query.sql, database=database, props=props | more, gtids=gtids, microsecond=query.microsecond
        )

    def _write_of_shards(
        self,
        raw: RawEvent,
        query: events.QueryEvent,
        statement: Statement,
        more: dict[str, str],
        gtids: str = "",
        *,
        passes: bool,
    ) -> None:
        """Write what a DDL is to readers of targets: itself, the same about the target, or that rows have to be read again. `passes`: itself passes."""
        effect, itself = self.merged.effect(statement, self.filter, query.sql, query.mode), passes
        if effect is not None:
            self.forget_tables()  # a target may be defined otherwise now
            more = more | {RENAMED_FROM: ",".join(map(".".join, effect.shards))}
            if effect.text is not None:
                sql, target = effect.text
                query, statement, passes = query._replace(sql=sql), statement._replace(tables=(target,)), True
            else:
                passes = passes and not effect.alone
                if effect.reread:
                    more |= {"tables_changed": ",".join(map(".".join, effect.reread))}
        if passes:
            self._write_statement(raw, EntryType.DDL, query, statement, more, gtids)
        elif "tables_changed" in more:
            props = {FILTERS_CHANGED: "rename", "statement": query.sql} | more
            self.writer.write(raw, EntryType.HEARTBEAT, props=props, gtids=gtids, microsecond=query.microsecond)
        else:
            self.state.filtered_events += itself
            return
        if "in_transaction" not in more:
            self.writer.end(SlotFlag.DDL if passes else SlotFlag.TRANSACTION_END)

    # ------------------------------------------------------------ rows

    def _table_map(self, raw: RawEvent) -> None:
        self.rows_decoder.table_map(raw.body)

    def _rows_query(self, raw: RawEvent) -> None:
        if not self._keep_rows_query:
            return
        mysql = raw.code == EventCode.ROWS_QUERY
        text = (events.rows_query if mysql else events.annotate_rows)(raw.body)
        props = {"rows_query": text, "rows_query_at": f"{self.state.offset - raw.length}:{raw.length}"}
        if mysql and (tables := classify(text, "").tables):
            props["rows_query_table"] = tables[0][1]  # as Canal, which reads it from MySQL's event alone
        self.state.props = props

    def _rows(self, raw: RawEvent) -> None:
        self._require_open("rows")
        self.state.order += 1
        table = self.rows_decoder.table_of(raw.body)
        if not self.filter.passes(table.database, table.table):
            self.state.filtered_events += 1
            return
        try:
            decoded = self.rows_decoder.rows(raw.code, raw.body, table)
        except SchemaUnknown as error:
            if self._present is None or not isinstance(self._schemas, SchemaHistory):
                raise
            self._present.take(error, table, self.rows_decoder, self._schemas, self.position)
            table, decoded = self.rows_decoder.table_of(raw.body), self.rows_decoder.rows(raw.code, raw.body)
        if not decoded.count:
            return
        blob = table.schema_blob
        condition = self.filter.condition(table.schema, blob)
        if condition is None:
            kept = self._write_rows(raw, table, RowsRun(decoded.type, 0, decoded.count, decoded.body))
        else:
            found = runs(condition, decoded.type, decoded.body, f"{table.database}.{table.table}")
            kept = sum([self._write_rows(raw, table, run) for run in found])
        self.state.filtered_rows += decoded.count - kept
        self.state.filtered_events += not kept

    def _write_rows(self, raw: RawEvent, table: TableMap, run: RowsRun) -> int:
        """Write rows, unless they are of an operation that is left out; return how many."""
        if run.type not in self.filter.row_types:
            return 0
        body, blob = run.body, table.schema_blob
        plan = self.merged.plan(self.filter, table.schema, blob)
        if plan.blob is not None:
            body, blob = self.filter.apply(plan, body, len(table.schema.columns)), plan.blob
        self.state.count(run.count)
        self.writer.write(
            raw,
            EntryType.ROWS,
            run.type,
            schema=blob,
            body=body,
            rows=run.count,
            row=run.first,
            database=self.merged.seen_as(table.database, table.table)[0],
            props=self.state.props,
        )
        if "rows_query_at" in self.state.props:  # its place comes with the first rows alone
            self.state.props = {"rows_query": self.state.props["rows_query"]}
        return run.count


def _inner(piece: bytes, outer: RawEvent) -> Iterator[RawEvent]:
    """The events of a piece of `outer`, whose place in the binlog they all have."""
    for event in cut_events(piece):
        timestamp, code, server = int.from_bytes(event[:4], "little"), event[4], int.from_bytes(event[5:9], "little")
        yield RawEvent(code, timestamp, server, outer.length, outer.end, 0, event[HEADER_SIZE:])
