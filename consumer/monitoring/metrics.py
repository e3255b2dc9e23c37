"""A store's figures as Prometheus text (exposition format 0.0.4), and whether it is healthy, over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from shmstore import LayoutMismatch, StoreError, StoreNotFound, StoreStat, StoreView, SubscriptionStat
from shmstore.consumer.monitoring.health import NONE, problems
from shmstore.consumer.monitoring.table_counts import TableCounts
from shmstore.consumer.serving.access import Login
from shmstore.consumer.serving.http_server import REFUSED, HttpRequest, HttpServer, Response, plain
from shmstore.home.home import Home, state_directory
from shmstore.home.reader_state import copies_aside

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_COUNTS: Final[Mapping[str, TableCounts]] = MappingProxyType({})


class Families:
    """Metric families in the order in which they are first added to, each with its HELP and TYPE once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._families: dict[str, tuple[str, str, list[str]]] = {}

    def add(self, name: str, kind: str, help: str, value: float, **labels: str) -> None:
        """Add a sample."""
        self._sample(name, kind, help, "", value, labels)

    def histogram(
        self, name: str, help: str, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
    ) -> None:
        """Add a histogram of which `counts` of samples, one more than `bounds`, are at most so large, and `total` is the sum."""
        for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
            self._sample(name, "histogram", help, "_bucket", count, {**labels, "le": str(bound)})
        self._sample(name, "histogram", help, "_sum", total, labels)
        self._sample(name, "histogram", help, "_count", counts[-1], labels)

    def _sample(self, name: str, kind: str, help: str, suffix: str, value: float, labels: dict[str, str]) -> None:
        text = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        number = f"{value:d}" if isinstance(value, int) else repr(value)
        sample = f"{self._prefix}_{name}{suffix}{f'{{{text}}}' if text else ''} {number}"
        self._families.setdefault(name, (kind, help, []))[2].append(sample)

    def text(self) -> str:
        """Return all as text."""
        lines = []
        for name, (kind, help, samples) in self._families.items():
            lines += [f"# HELP {self._prefix}_{name} {help}", f"# TYPE {self._prefix}_{name} {kind}", *samples]
        return "".join(f"{line}\n" for line in lines)


def prometheus(
    stats: Iterable[StoreStat], missing: Mapping[str, str] = NONE, counts: Mapping[str, TableCounts] = NO_COUNTS
) -> str:
    """Return the metrics of these stores, each family once, with the label `store` (and `subscription`), and those `missing` as down.

    `counts` are those of the stores' tables.
    """
    families, up = Families("shmstore"), "1 if the store is in memory and can be read."
    for stat in stats:
        families.add("up", "gauge", up, 1, store=stat.name)
        _store(families, stat)
        _log(families, stat)
        _producer(families, stat)
        for each in stat.subscriptions:
            _subscription(families, stat.name, each)
        for subscription, tables in copies_aside(
            Home(stat.log.home) if stat.log else Home(state_directory() / stat.name)
        ).items():
            aside = "Tables whose copies do not follow them now; the query's log has the reason."
            families.add("copies_aside", "gauge", aside, len(tables), store=stat.name, subscription=subscription)
        if stat.name in counts:
            _tables(families, stat.name, counts[stat.name])
    for name in missing:
        families.add("up", "gauge", up, 0, store=name)
    return families.text()


def _store(families: Families, stat: StoreStat) -> None:
    add = partial(families.add, store=stat.name)
    about = {"source": stat.source, "batch_mode": stat.batch_mode, "lag": stat.lag}
    families.add("store_info", "gauge", "1; the labels say what the store is.", 1, store=stat.name, **about)
    add("put_events_total", "counter", "Events put.", stat.put.sequence + 1)
    add("put_rows_total", "counter", "Rows put.", stat.put.rows)
    add("put_bytes_total", "counter", "Bytes of payload put.", stat.put.bytes)
    newest = "Event time of the newest event, 0 if there is none."
    add("newest_event_timestamp_seconds", "gauge", newest, stat.put.time_ms / 1000)
    add("capacity_events", "gauge", "Most events in the ring.", stat.capacity)
    add("capacity_bytes", "gauge", "Most bytes of payload in the ring.", stat.limit_bytes)
    add("free_events", "gauge", "Free space in the ring, in events.", stat.free_events)
    add("free_bytes", "gauge", "Free space in the ring, in bytes of payload.", stat.free_bytes)
    add("segment_bytes", "gauge", "Bytes of the segment.", stat.segment_bytes)
    add("evictions_total", "counter", "Subscriptions that were evicted because they held up the producer.", stat.evictions)


def _log(families: Families, stat: StoreStat) -> None:
    add, log = partial(families.add, store=stat.name), stat.log
    if log is None:
        return
    add("log_bytes", "gauge", "Bytes of the log on disk.", log.bytes)
    add(
        "log_size_bytes",
        "gauge",
        "Most bytes of the log; when they are used up, a reader's unacked events hold up the producer.",
        log.size,
    )
    add("log_keep_seconds", "gauge", "How long the log keeps events that every reader has acked.", log.keep_ms / 1000)
    add("log_files", "gauge", "Files of the log.", log.files)
    add(
        "log_oldest_event_timestamp_seconds",
        "gauge",
        "Event time of the oldest event that is kept, 0 if there is none.",
        log.oldest_ms / 1000,
    )
    add("log_oldest_sequence", "gauge", "Sequence of the oldest event that is kept.", log.oldest)
    add("log_written_sequence", "gauge", "Sequence of the last event written to the log.", log.written)
    add("log_synced_sequence", "gauge", "Sequence of the last event that is known to be on disk.", log.synced)
    add(
        "log_trouble",
        "gauge",
        "1 while nothing can be written to the log: the disk refuses, or a reader keeps it full.",
        bool(log.trouble),
    )


def _producer(families: Families, stat: StoreStat) -> None:
    add, stream = partial(families.add, store=stat.name), stat.stream
    add("producer_up", "gauge", "1 while a living process is the producer.", stat.producer_alive)
    add("producer_heartbeat_timestamp_seconds", "gauge", "Last sign of life of the producer.", stat.heartbeat_ms / 1000)
    add("producer_paused", "gauge", "1 while the producer is paused.", stat.stream.paused_ms > 0)
    add("producer_waiting_for_space", "gauge", "1 while the producer waits for free space.", stat.space_wanted is not None)
    if stat.source_position is not None:
        add("source_file_number", "gauge", "Number of the binlog file that was read last.", stat.source_position.file_number)
        add("source_offset_bytes", "gauge", "Offset in that file that was read last.", stat.source_position.offset)
    if not stream.heard_ms:
        return  # no stream: a process puts by hand
    add(
        "source_connected",
        "gauge",
        "1 while the producer has a link to its source (with several sources: to each).",
        stream.connected,
    )
    add(
        "source_heard_timestamp_seconds",
        "gauge",
        "When the source was last heard from, heartbeats included.",
        stream.heard_ms / 1000,
    )
    lag = "From the newest event's time to its put (Debezium: MilliSecondsBehindSource); 0 when the source has no newer event."
    add("source_lag_seconds", "gauge", lag, stream.behind_ms / 1000)
    add("last_put_timestamp_seconds", "gauge", "When an event was last put, 0 if none in this run.", stream.put_ms / 1000)
    add("producer_transactions_total", "counter", "Transactions and DDLs put by this producer.", stream.transactions)
    add(
        "producer_blocked_seconds_total",
        "counter",
        "Seconds that this producer has waited for free space.",
        stream.blocked_ms / 1000,
    )
    add("producer_reconnects_total", "counter", "Links that this producer lost.", stream.reconnects)
    add("producer_skipped_events_total", "counter", "Events left out because they could not be decoded.", stream.skipped)
    add(
        "producer_filtered_events_total",
        "counter",
        "Binlog events (rows of a table, or a statement) that the filters left out completely.",
        stream.filtered_events,
    )
    add(
        "producer_filtered_rows_total",
        "counter",
        "Rows that row filters and operations left out; not rows of tables that are left out, since these are not decoded.",
        stream.filtered_rows,
    )
    add("snapshot_tables", "gauge", "Tables of all requested snapshots.", stream.snapshot_tables)
    add("snapshot_remaining_tables", "gauge", "Tables of the snapshots that are not done.", stream.snapshot_open)
    add("snapshot_rows", "gauge", "Rows of the snapshots that were put.", stream.snapshot_rows)
    if stream.purge_ms:
        purge = "When the server may purge what the producer, or a reader's checkpoint, needs next; absent unless that is near."
        add("source_purge_timestamp_seconds", "gauge", purge, stream.purge_ms / 1000)


def _subscription(families: Families, store: str, stat: SubscriptionStat) -> None:
    def add(name: str, kind: str, help: str, value: float) -> None:
        families.add(f"subscription_{name}", kind, help, value, store=store, subscription=stat.name)

    add("up", "gauge", "1 while a living process owns the subscription.", stat.alive)
    add("lost", "gauge", "1 if the subscription was evicted.", stat.state == "lost")
    add("paused", "gauge", "1 while the subscription is paused.", stat.paused)
    add("get_sequence", "gauge", "Last sequence that was got; a rollback moves it back.", stat.get.sequence)
    add("acked_events_total", "counter", "Events acked.", stat.ack.sequence + 1)
    add("unacked_events", "gauge", "Events got and not acked.", stat.get.sequence - stat.ack.sequence)
    add("lag_events", "gauge", "Events put and not acked.", stat.lag_events)
    add("lag_rows", "gauge", "Rows put and not acked.", stat.lag_rows)
    add("lag_bytes", "gauge", "Bytes put and not acked.", stat.lag_bytes)
    add("lag_seconds", "gauge", "Event time from the last ack to the newest event.", stat.lag_ms / 1000)
    oldest = "Event time of the oldest unacked event, 0 if there is none; it does not change while a reader hangs."
    add("oldest_unacked_timestamp_seconds", "gauge", oldest, stat.oldest_ms / 1000)


def _tables(families: Families, store: str, counts: TableCounts) -> None:
    # As lists: the thread that counts continues meanwhile.
    help = "Rows put, by table and operation, since this endpoint began."
    for (database, table, operation), rows in list(counts.rows.items()):
        families.add("table_rows_total", "counter", help, rows, store=store, database=database, table=table, operation=operation)
    for (database, table), size in list(counts.bytes.items()):
        by = {"store": store, "database": database, "table": table}
        help = "Bytes of events with rows put, by table, since this endpoint began."
        families.add("table_bytes_total", "counter", help, size, **by)
        help = "Event time of a table's newest rows."
        families.add("table_last_event_timestamp_seconds", "gauge", help, counts.last_ms[database, table] / 1000, **by)
    help = "Events that left the store, or could not be read, before they were counted by table."
    families.add("table_uncounted_events_total", "counter", help, counts.uncounted, store=store)


def look(names: Sequence[str] = (), *, all_reasons: bool = False) -> tuple[list[StoreStat], dict[str, str]]:
    """Look at the stores `names`, or at all that are in memory here; return what they are, and for each that cannot be read, why.

    Of stores that no process named those are left out that are removed, or of another user, unless `all_reasons` says so; not a store of this
    user's that cannot be read, such as one of another version. None is restored from its home.
    """
    found, missing = [], {}
    for name in names or StoreView.names():
        try:
            with StoreView.attach(name, restore=False) as store:
                found.append(store.stat())
        except StoreError as error:
            own = isinstance(error, LayoutMismatch) and StoreView.is_own(name)
            if names or own or (all_reasons and not isinstance(error, StoreNotFound)):
                missing[name] = str(error)
    return found, missing


Answer = Callable[[str], tuple[int, str] | None]  # a path -> status and text; None where there is no such page


Look = Callable[[], tuple[Sequence[StoreStat], Mapping[str, str]]]  # -> stores, and for each that is missing, why


def pages(look: Look, counts: Mapping[str, TableCounts] = NO_COUNTS) -> Answer:
    """Return the pages of stores: ``/metrics`` is what `look` finds at that moment, with the `counts` of their tables; ``/healthz`` is 200
    or, where a store is missing or something keeps one from making progress, 503 and what that is.
    """

    def answer(path: str) -> tuple[int, str] | None:
        if path == "/metrics":
            return 200, prometheus(*look(), counts)
        if path == "/healthz":
            found = problems(*look())
            return 503 if found else 200, "".join(f"{line}\n" for line in found or ["ok"])
        return None

    return answer


class MetricsEndpoint(HttpServer):
    """An HTTP server that answers each GET with the page that `answer` returns for its path, as Prometheus text."""

    def __init__(
        self, address: tuple[str, int], answer: Answer, *, login: Login | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        def respond(request: HttpRequest) -> Response:
            found = answer(request.path) if request.method == "GET" else None
            if found is None:
                return plain(404, "there are /metrics and /healthz")
            text = found[1] + self._refusals() if request.path == "/metrics" else found[1]
            return Response(found[0], CONTENT_TYPE, text.encode())

        super().__init__(address, respond, login=login, tls=tls)

    def _refusals(self) -> str:
        families = Families("shmstore_http")
        help = "Refused by this HTTP server: connections over a limit, wrong passwords, pages of other origins, requests that come too slowly."
        for reason in REFUSED:
            families.add("refused_total", "counter", help, self.refused[reason], reason=reason)
        return families.text()


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
