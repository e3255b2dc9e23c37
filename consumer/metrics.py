"""A store's figures as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from shmstore import StoreStat

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus(stats: Iterable[StoreStat]) -> str:
    """Return the metrics of these stores, each family once, with the label `store` (and `subscription`)."""
    families: dict[str, tuple[str, str, list[str]]] = {}

    def add(name: str, kind: str, help: str, value: float, **labels: str) -> None:
        text = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        families.setdefault(name, (kind, help, []))[2].append(f"shmstore_{name}{{{text}}} {value:.17g}")

    for stat in stats:
        of = {"store": stat.name}
        add("put_events_total", "counter", "Events put.", stat.put.sequence + 1, **of)
        add("put_rows_total", "counter", "Rows put.", stat.put.rows, **of)
        add("put_bytes_total", "counter", "Bytes of payload put.", stat.put.bytes, **of)
        add(
            "newest_event_timestamp_seconds",
            "gauge",
            "Event time of the newest event, 0 when there is none.",
            stat.put.time_ms / 1000,
            **of,
        )
        add("capacity_events", "gauge", "Events the ring holds.", stat.capacity, **of)
        add("capacity_bytes", "gauge", "Bytes of payload the ring holds.", stat.limit_bytes, **of)
        add("free_events", "gauge", "Events that fit now.", stat.free_events, **of)
        add("free_bytes", "gauge", "Bytes of payload that fit now.", stat.free_bytes, **of)
        add("segment_bytes", "gauge", "Bytes of the segment.", stat.segment_bytes, **of)
        add("producer_up", "gauge", "1 while a living process is the producer.", stat.producer_alive, **of)
        add("producer_heartbeat_timestamp_seconds", "gauge", "Last sign of life of the producer.", stat.heartbeat_ms / 1000, **of)
        if stat.source_position is not None:
            add("source_file_number", "gauge", "Number of the binlog file read last.", stat.source_position.file_number, **of)
            add("source_offset_bytes", "gauge", "Place read last in that file.", stat.source_position.offset, **of)
        for each in stat.subscriptions:
            by = of | {"subscription": each.name}
            add("subscription_up", "gauge", "1 while a living process owns the subscription.", each.alive, **by)
            add("subscription_lost", "gauge", "1 when the subscription was evicted.", each.state == "lost", **by)
            add("subscription_get_sequence", "gauge", "Sequence got last; a rollback takes it back.", each.get.sequence, **by)
            add("subscription_acked_events_total", "counter", "Events acked.", each.ack.sequence + 1, **by)
            add("subscription_lag_events", "gauge", "Events put and not acked.", each.lag_events, **by)
            add("subscription_lag_rows", "gauge", "Rows put and not acked.", each.lag_rows, **by)
            add("subscription_lag_bytes", "gauge", "Bytes put and not acked.", each.lag_bytes, **by)
            add(
                "subscription_lag_seconds", "gauge", "Event time from the last ack to the newest event.", each.lag_ms / 1000, **by
            )

    lines = []
    for name, (kind, help, samples) in families.items():
        lines += [f"# HELP shmstore_{name} {help}", f"# TYPE shmstore_{name} {kind}", *samples]
    return "".join(f"{line}\n" for line in lines)


class Endpoint(ThreadingHTTPServer):
    """An HTTP server that answers ``GET /metrics`` with what `render` returns at that moment; port 0 takes a free one.

    Raises OSError where the address cannot be had. `serve_forever` serves; `stop` ends it, from a signal handler, too.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], render: Callable[[], str]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Page)
        self.render = render

    def stop(self) -> None:
        """End `serve_forever` soon; returns at once."""
        threading.Thread(target=self.shutdown).start()  # shutdown() waits for the loop, which may be what a signal interrupted


class _Page(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        """Answer with the metrics, or with 404 for any other path."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, explain="the metrics are at /metrics")
            return
        try:
            body = self.server.render().encode()
        except Exception as error:
            self.send_error(503, explain=str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a scrape every few seconds is no news."""


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
