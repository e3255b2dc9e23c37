"""The loop: read, decode, filter, buffer, put. Owns reconnecting and stopping.

What was put is the truth: after every lost link, as after a restart, the stream continues after the last transaction end
in the ring, and what is already there of a transaction that stands half in it is left out. Nothing is put twice,
nothing is left out. Between links the replicator waits, longer each time, with jitter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from shmstore import Event, EventStore, Position, SchemaUnknown, ShmStoreError, SlotFlag, StreamStat, UnsupportedEvent
from shmstore.encoding.codec import encode_batch
from shmstore.home.definitions import DefinitionsFile
from shmstore.producer.binlog.files import BinlogFiles, list_files
from shmstore.producer.binlog.packets import singly
from shmstore.producer.connection.backoff import Backoff
from shmstore.producer.connection.dump import BinlogReader, replica_id
from shmstore.producer.connection.link import BinlogLink
from shmstore.producer.connection.server import read_server, require_binlog
from shmstore.producer.connection.session import connect
from shmstore.producer.errors import ChecksumMismatch, LinkLost, LoginRefused, ServerBehind, ServerUnreachable, SettingsError
from shmstore.producer.filters.changed import TablesChanged, as_readers_see, entered_by_rename, names_changed, tables_changed
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.pipeline.live_settings import LiveSettings, encoded
from shmstore.producer.pipeline.pausing import Pausing
from shmstore.producer.pipeline.problems import ENDED, LINK
from shmstore.producer.pipeline.reloads import Reloads
from shmstore.producer.pipeline.retention import Retention
from shmstore.producer.pipeline.sink import Record, Sink, StoreSink, with_store
from shmstore.producer.pipeline.statistics import Statistics, Summary
from shmstore.producer.positions.local_files import find_position, find_time
from shmstore.producer.schema.merged import MergedTables
from shmstore.producer.schema.present import PresentTables
from shmstore.producer.schema.published import PublishedTables
from shmstore.producer.settings import ServerAddress, Settings
from shmstore.producer.snapshot.runner import Snapshot
from shmstore.producer.snapshot.tables import VisibleTables
from shmstore.producer.start.beginning import ServerFound, StreamBeginning, choose_beginning
from shmstore.producer.start.origin import Origin, OriginFile, options_of, origin_of
from shmstore.producer.start.resume import StreamStart
from shmstore.producer.start.same_history import WantedTransaction, require_same_files
from shmstore.producer.start.schema_history import keep_history
from shmstore.producer.start.start_warnings import warn_of_filters, warn_of_start
from shmstore.producer.stop import Stop, StopEvent, Stopped
from shmstore.producer.transactions.buffer import Flush, new_buffer
from shmstore.producer.transactions.decoder import EventDecoder
from shmstore.producer.transactions.state import HalfTransaction
from shmstore.sql.classify import Statement

Handler = Callable[[list[Event]], list[Event] | None]

SECOND = 1.0
SETTLED = 10.0  # seconds a link must have stood for the next failure to count as the first


class Replicator:
    """One source into one store, or into the `sink` of a group: then the group alone writes to the store."""

    def __init__(
        self,
        settings: Settings,
        store: EventStore,
        stop: Stop,
        *,
        before: Handler | None = None,
        after: Handler | None = None,
        log: logging.Logger | None = None,
        sink: Sink | None = None,
        reloads: Reloads | None = None,
    ) -> None:
        self._settings, self._store, self._stop = settings, store, stop
        self._before, self._after = before, after
        self._log = log or logging.getLogger("producer")
        self._sink: Sink = sink or StoreSink(settings, store, self._log)
        self._live = LiveSettings(settings, store, self._sink.source, reloads or Reloads([settings]), self._log)
        self._buffer = new_buffer(
            events=max(1, min(settings.transaction_events, store.capacity // 2)),
            size=max(1, min(settings.transaction_bytes, store.limit_bytes // 2)),
            empty_events=settings.empty_events,
            empty_seconds=settings.empty_seconds,
        )
        self._merged = MergedTables(settings.renaming())
        self._decoder = EventDecoder(
            self._buffer,
            self._live.now.table_filter(self._left_out),
            rows_query=settings.rows_query,
            pass_statements=settings.statements == "pass",
            skip_errors=settings.on_error == "skip",
            log=self._log,
            altered=self._altered,
            followed=lambda position, query: self._published.follow(position, query.database, query.sql, query.session),
            drain=self._put_ready,
            merged=self._merged,
        )
        self._published = PublishedTables(
            DefinitionsFile(store.home, self._sink.source or "", store.may_produce), self._decoder.filter, self._merged
        )
        self._filters_again = 0.0  # when filters that could not be taken are tried again
        self._origin = OriginFile(store.home, self._sink.source or "", store.may_produce)
        self._known: Origin | None = None  # as it was written last
        alone = self._sink.source is None and not settings.binlog
        self._snapshot = Snapshot(settings, store, self._decoder, self._log, stop) if alone else None
        if not alone and (settings.snapshot != "never" or settings.on_purged == "snapshot"):
            raise SettingsError(f"store {settings.store!r} has several sources: snapshots work with one source in a store")
        self._endpoints = settings.endpoints()
        self._source = settings.name
        self._link: BinlogLink | None = None  # that is read
        self._linked = False  # whether any link was opened yet
        self._beat = 0.0
        self._statistics = Statistics()
        self._retention = Retention(settings, self._log)
        self._pausing = Pausing(store, self._log)

    def _left_out(self, table: str, ghost: str) -> None:
        what = "table %s is left out: it has the name of a working table of gh-ost or pt-online-schema-change for %s (ghost_tables = keep reads it)"
        self._log.warning(what, ghost, table)

    @property
    def _options(self) -> str:
        return options_of(self._live.now) if self._before is None else ""

    def _altered(self, statement: Statement, database: str) -> None:
        if self._snapshot is None:
            return
        self._snapshot.altered(statement, database)
        if not statement.targets or self._live.now.new_tables != "snapshot":
            return
        # Asked for before the statement is put: after a kill between the two it is read, and asked for, again.
        if entered := entered_by_rename(statement.tables, statement.targets, self._decoder.filter):
            self._live.ask_for_renamed(entered, self._decoder.position)

    def summary(self) -> Summary:
        """Return the counts so far."""
        return self._statistics.summary(self._decoder.skipped, self._position, self._decoder.account_statements)

    @property
    def linked(self) -> bool:
        """Whether the source was ever read."""
        return self._linked

    @property
    def stream(self) -> StreamStat:
        """How the stream goes."""
        state = self._decoder.state
        stat = self._statistics.stat(self._decoder.skipped)._replace(
            purge_ms=self._retention.purge_ms,
            filtered_events=state.filtered_events,
            filtered_rows=state.filtered_rows,
            paused_ms=self._pausing.since_ms,
        )
        if self._snapshot is None:
            return stat
        tasks = self._snapshot.progress.tasks
        left, rows = sum(task.open for task in tasks), sum(task.progress.rows for task in tasks)
        return stat._replace(snapshot_tables=len(tasks), snapshot_open=left, snapshot_rows=rows)

    @property
    def _position(self) -> Position | None:
        return self._decoder.position if self._decoder.position.file else None

    def run(self) -> Summary:
        """Replicate until asked to stop. Raises `ShmStoreError` for what trying again would not fix."""
        try:
            with closing(self._retention), suppress(Stopped):
                self._run()
            return self.summary()
        except ShmStoreError as error:
            self._sink.problems.begin(ENDED, error)
            raise
        finally:
            self._sink.problems.close()
            self._statistics.connected = False

    def _run(self) -> None:
        backoff = Backoff(self._settings)
        damaged: list[str] = []
        while self._is_to_read():
            try:
                link = self._connect()
            except (LinkLost, ServerUnreachable, LoginRefused) as error:
                is_known = self._linked or (self._sink.source is not None and self._sink.resume() is not None)
                if not is_known and not isinstance(error, LinkLost):
                    raise  # never had a connection: a process is waiting to hear why
                if self._stop():
                    break
                self._wait_again(backoff, error)
                continue
            linked = time.monotonic()  # not before: what was slow to come has not stood yet
            self._statistics.connected = True
            self._statistics.hear()
            self._sink.problems.end(LINK, ENDED)
            try:
                self._heartbeat(at_once=True)
                self._stream(link)
                if self._pausing.wanted is None:
                    break
                continue
            except LinkLost as error:
                lost = error
            finally:
                link.close()
                if self._snapshot is not None:
                    self._snapshot.close()
            if self._stop():
                break  # no other link follows
            if isinstance(lost, ChecksumMismatch):
                damaged.append(str(lost))
                if damaged.count(str(lost)) >= 3:  # not on the way: in the server's own file
                    raise UnsupportedEvent(
                        f"{lost}, repeatedly; the server's binlog is damaged: take a snapshot and start after it"
                    ) from lost
            self._statistics.reconnects += 1
            if time.monotonic() - linked > SETTLED:
                backoff.reset()
            self._wait_again(backoff, lost)

    def _is_to_read(self) -> bool:
        """Wait as long as the producer is paused; False when asked to stop."""
        self._statistics.connected = False
        self._pausing.wait(self._stop, self._heartbeat)
        return not self._stop()

    def _wait_again(self, backoff: Backoff, error: Exception) -> None:
        wait = backoff.failed()
        self._sink.problems.begin(LINK, error)
        self._log.warning("%s; trying again in %.1f s (attempt %d)", error, wait, backoff.failures)
        self._statistics.connected = False
        self._heartbeat(at_once=True)
        until = time.monotonic() + wait
        while not self._stop() and self._pausing.wanted is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
            self._heartbeat()

    # ------------------------------------------------------------ the link

    def _connect(self) -> BinlogLink:
        """Open a link to the first server of the list that answers, and start the decoder where it begins."""
        if self._settings.binlog:
            return self._open_files()
        for i, endpoint in enumerate(self._endpoints):
            try:
                link = self._connect_to(endpoint)
            except (LinkLost, ServerUnreachable, LoginRefused, ServerBehind) as error:
                if i == len(self._endpoints) - 1 or self._stop():
                    if isinstance(error, ServerBehind) and i and self._linked:
                        raise ServerUnreachable(str(error)) from error  # a replica that took over may yet catch up
                    raise
                self._log.warning("%s; trying the next server", error)
                continue
            self._endpoints = (*self._endpoints[i:], *self._endpoints[:i])  # stay with it
            return link
        raise AssertionError("no endpoint")

    def _connect_to(self, endpoint: ServerAddress) -> BinlogLink:
        """Inspect the server, choose where to begin, claim the source's part of the store, and open. Before the claim nothing is
        written; where the source begins is reported last, when all that this takes is on the disk."""
        sink, session = self._sink, connect(self._settings, endpoint, self._stop)
        resume = sink.resume()
        try:
            server = read_server(session)
            require_binlog(server, self._settings)
            self._statistics.set_clock(round(float(session.query("SELECT @@timestamp")[0][0]) * 1000))
            found = ServerFound(session, server, resume, sink.checkpoints, sink.last, self._origin.load(), self._options)
            chosen = choose_beginning(self._live.now, found, self._store.home.of_source(sink.source or ""), self._log)
            if found.fresh and not self._linked:
                warn_of_start(self._settings, self._log)
            self._claim(found)
            if not self._linked:
                warn_of_filters(self._live.wanted, VisibleTables(session), self._log)
            self._write(found, chosen)
            sink.begin(chosen.start)
            return self._open(found, chosen)
        finally:
            session.close()

    def _claim(self, found: ServerFound) -> None:
        server, domain = found.server, ""
        if self._sink.source is not None and server.mariadb:
            domain = str(found.session.query("SELECT @@global.gtid_domain_id")[0][0])
        self._sink.claim(gtids=server.gtids, domain=domain)

    def _write(self, found: ServerFound, chosen: StreamBeginning) -> None:
        """Write to the disk what a restart has to find."""
        keep_history(
            chosen.schemas, self._store.home.of_source(self._sink.source or ""), self._store.home, self._store.may_produce
        )
        self._published.begin_at(chosen.schemas, chosen.start.position)
        self._known = self._origin_now(found)
        self._origin.save(self._known)
        self._live.begin()
        if self._snapshot is not None and chosen.snapshot:
            self._snapshot.want(found.session, found.server, chosen.snapshot)

    def _origin_now(self, found: ServerFound) -> Origin:
        known, options = found.origin, self._options
        same = not found.fresh and known is not None and known.options == options
        since = known.since if same and known is not None else self._store.newest
        return origin_of(found.session, found.server)._replace(options=options, since=since)

    def _open(self, found: ServerFound, chosen: StreamBeginning) -> BinlogLink:
        """Ask for the binlog from the start on, and let the decoder begin there."""
        settings, server, start = self._settings, found.server, chosen.start
        link = BinlogReader(
            settings,
            found.session,
            file=start.position.file,
            offset=start.position.offset,
            gtids=start.executed if start.by_gtid else None,
            server_id=replica_id(settings, self._store.epoch, self._sink.source or ""),
            leaves_out=self._decoder.leaves_out,
        )
        self._linked = True
        self._source = settings.name or server.source
        present = PresentTables(settings, found.session.endpoint, self._log)
        self._decoder.use(chosen.schemas, present, server.variables.get("lower_case_table_names", ""))
        self._decoder.start(start.position, start.executed, self._comparable(start.tail))
        if self._snapshot is not None:
            self._snapshot.begin(server)
        place = f"GTID {start.executed}" if start.by_gtid else f"{start.position.file}:{start.position.offset}"
        self._log.info("reading %s %s from %s into store %r", server.flavor, server.version, place, self._store.name)
        self._retention.use(server)
        return link

    def _comparable(self, tail: HalfTransaction | None) -> HalfTransaction | None:
        """What a handler may have changed is not compared with what the server has."""
        return tail if tail is None or self._before is None else tail._replace(replay=None)

    def _open_files(self) -> BinlogLink:
        """Open the local binlog files at the position where the store ends, else where the options say, else at the first."""
        settings, start = self._settings, self._settings.beginning
        files = list_files(settings.binlog)
        resume = self._sink.resume()
        if resume is not None:
            last = self._sink.last
            require_same_files(
                WantedTransaction(last, self._live.now, None, rows=False) if last is not None else None, files, self._log
            )
            files, position, executed = find_position(files, resume.position, self._stop)
        elif isinstance(start, datetime):
            if not self._linked:
                warn_of_start(settings, self._log)
            files, position, executed = find_time(files, start.timestamp(), self._stop)
        else:
            first = start if isinstance(start, Position) else Position(files[0].name, 4)
            files, position, executed = find_position(files, first, self._stop)
        self._published.begin_files(resume.position if resume is not None else None, position)
        self._live.begin()
        self._sink.begin(StreamStart(position, executed))
        self._linked = True
        self._source = settings.name or f"file://{Path(settings.binlog).resolve()}"
        self._decoder.start(position, executed, self._comparable(resume.tail if resume is not None else None))
        self._log.info("reading %s from %s:%d into store %r", settings.binlog, position.file, position.offset, self._store.name)
        return BinlogFiles(files, position.offset, self._log)

    def _stream(self, link: BinlogLink) -> None:
        """Read until asked to stop, or until the source ends."""
        feed, buffer, snapshot = self._decoder.feed, self._buffer, self._snapshot
        heartbeats = self._decoder.heartbeats
        self._link = link
        while not self._stop():
            if self._live.pending and not self._take_filters():
                return
            if self._pausing.wanted is not None and not self._decoder.in_transaction:
                self._put_ready()
                return
            events = link.read()
            if events is None:
                self._put_ready()
                return
            if events:
                self._statistics.hear()
            for raw in events:
                if not self._waits_for_end:
                    self._feed(feed, raw)
                elif not self._feed_singly(raw, link):
                    return
                if buffer.full and not self._put_ready():
                    return
            buffer.tick()
            if not self._put_ready():
                return
            if snapshot is not None and not self._step_snapshot(link, snapshot, heard=bool(events)):
                return
            drained = self._decoder.heartbeats > heartbeats and not self._decoder.in_transaction
            heartbeats = self._decoder.heartbeats
            if drained:
                self._retention.heartbeat(self._decoder.position)
                self._statistics.calm()
            if events:
                self._sink.heard(drained=drained)
            self._heartbeat()

    def _feed(self, feed: Callable[[Any], object], raw: Any) -> None:
        """Decode. What came whole before an event that stops the producer is put: readers have it, and a restart begins at that event."""
        try:
            feed(raw)
        except (UnsupportedEvent, SchemaUnknown):
            self._put_ready()
            raise

    @property
    def _waits_for_end(self) -> bool:
        """Whether something is to be done at the end of the next transaction."""
        return self._live.pending or self._pausing.wanted is not None or (self._snapshot is not None and self._snapshot.waits)

    def _step_snapshot(self, link: BinlogLink, snapshot: Snapshot, *, heard: bool, read: bool = True) -> bool:
        """Let the snapshot do a little, or much where it holds the stream; False when asked to stop meanwhile."""
        link.hurry(snapshot.active)
        while snapshot.active:
            snapshot.step(heard, read=read)
            if not self._put_ready() or (snapshot.holds and (self._stop() or self._pausing.wanted is not None)):
                return False
            snapshot.settle()
            if not snapshot.holds:
                break
            link.rest()  # its silence is ours
            self._heartbeat()
        return True

    def _feed_singly(self, run: Any, link: BinlogLink) -> bool:
        """Feed a run of events one by one, and look at the ends of transactions, as long as one is waited for; False when asked to stop."""
        snapshot = self._snapshot
        for raw in singly(run):
            self._feed(self._decoder.feed_one, raw)
            if self._decoder.in_transaction or not self._waits_for_end:
                continue
            if not self._put_ready() or (self._live.pending and not self._take_filters()):
                return False
            if snapshot is not None and snapshot.waits and not self._step_snapshot(link, snapshot, heard=True, read=False):
                return False
            if self._pausing.wanted is not None:  # the rest of the run is read again
                return False
        self._decoder.forget_tables()  # the compiled side has not seen them
        return True

    # ------------------------------------------------------------ filters

    def _take_filters(self) -> bool:
        """Let the filters of the file be in force from here on, if the stream is between two transactions; False when asked to stop.

        The order is that of `start.in_force`: all before is put, and on disk; what follows is written down; its event is put.
        """
        live, decoder = self._live, self._decoder
        state = decoder.state
        if not state.file or state.in_transaction or state.tail is not None or time.monotonic() < self._filters_again:
            return True
        if not self._put_ready():
            return False
        if live.take_quietly():
            return True
        after = live.wanted.table_filter(self._left_out)
        try:
            tables = as_readers_see(self._tables_changed(after), self._merged.renaming)
        except (LinkLost, LoginRefused, ServerUnreachable) as error:
            self._filters_again = time.monotonic() + SECOND
            self._log.warning("filters: %s; they will be taken later", error)
            return True
        if not live.on_disk():
            self._log.warning("filters: the log of store %r is not on disk yet; they will be taken later", self._store.name)
            return True
        change = live.prepare(tables, snapshots=self._snapshot is not None)
        event = live.event(change, decoder.position)
        self._buffer.add(*encoded(event))
        self._buffer.end(int(SlotFlag.TRANSACTION_END))
        flush = self._buffer.take()
        assert flush is not None
        if not self._hand_over(flush, partial(live.record, change)):
            return False
        decoder.use_filter(after)
        if self._known is not None:
            self._known = self._known._replace(
                options=options_of(change.settings) if self._before is None else "", since=self._store.newest
            )
            self._origin.save(self._known)
        self._published.use(after, decoder.position)
        if self._snapshot is not None:
            self._snapshot.refilter()
        live.put(change, decoder.position)
        if self._after is not None:
            self._after([event])
        return True

    def _tables_changed(self, after: TableFilter) -> TablesChanged:
        """What other filters mean for the tables that the server has now, or, of local files, that are known. Raises `LinkLost` and its like."""
        before = self._decoder.filter
        if self._settings.binlog:
            return names_changed(self._published.names, before, after)
        session = connect(self._settings, self._endpoints[0], self._stop)
        try:
            return tables_changed(VisibleTables(session), before, after)
        finally:
            session.close()

    # ------------------------------------------------------------ the store

    def _put_ready(self) -> bool:
        """Put what is whole; False when asked to stop while the ring was full."""
        while (flush := self._buffer.take()) is not None:
            if not self._put(flush):
                return False
        return True

    def _put(self, flush: Flush) -> bool:
        if self._snapshot is not None:
            self._snapshot.note(flush.blob, flush.slots)
        events = flush.events() if self._before or self._after else []
        if self._before is not None:
            last = events[-1]
            changed = self._before(events)
            if changed is not None:
                if not changed:
                    return True
                end, events = changed[-1], changed
                if last.cut is not None and not end.ends_transaction:  # a restart continues after `last` all the same
                    events = [*changed[:-1], end._replace(part=last.part, cut=last.cut)]
                blob, slots = encode_batch(events)
                flush = flush._replace(blob=memoryview(blob), slots=slots)
        if not self._hand_over(flush):
            return False
        if self._after is not None:
            self._after(events)
        return True

    def _hand_over(self, flush: Flush, record: Record | None = None) -> bool:
        statistics, newest = self._statistics, int(flush.slots["time"][-1])
        statistics.begin(newest)
        done = self._sink.put(flush, self._stop, self._while_full, record)
        if statistics.waited() and self._link is not None:
            self._link.rest()
        if done:
            statistics.put(
                transactions=flush.ends, events=len(flush.slots), rows=flush.rows, size=len(flush.blob), newest_ms=newest
            )
        return done

    def _while_full(self) -> None:
        if self._snapshot is not None:
            self._snapshot.read_on()
        self._heartbeat()

    def _heartbeat(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not (self._linked or self._pausing.since_ms) or not (at_once or now - self._beat >= SECOND):
            return
        self._beat = now
        self._pausing.look()
        self._live.look(self._stop)
        self._retention.look(self._position)
        self._sink.heartbeat(self._source, self._position, self.stream)
        if self._snapshot is not None:
            self._snapshot.look()


def run(
    settings: Settings,
    stop: Stop | StopEvent,
    *,
    before: Handler | None = None,
    after: Handler | None = None,
    log: logging.Logger | None = None,
    reloads: Reloads | None = None,
) -> Summary:
    """Replicate `settings`' source into its store until `stop` says so; the store is created when it is not there.

    `before` gets the events of each put and may return others in their place, but leaves no BEGIN without its END; `after` sees
    what was put. `reloads` reads the configuration file again on request; without it such a request is refused. Raises `ShmStoreError`.
    """
    stopping = stop if callable(stop) else stop.is_set
    where = log or logging.getLogger("producer")
    return with_store(
        settings,
        where,
        lambda store: Replicator(settings, store, stopping, before=before, after=after, log=where, reloads=reloads).run(),
    )
