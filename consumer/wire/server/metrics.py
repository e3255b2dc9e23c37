"""Counters of a server, as plain numbers and as Prometheus text; names after Canal's where it has one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from shmstore.consumer.monitoring.metrics import Families
from shmstore.consumer.serving.audit import Audit, Incident
from shmstore.consumer.wire.protocol.messages import PacketType

#: Upper bounds of the latency histogram in milliseconds, Canal's own.
BUCKETS: Final = (2.5, 10.0, 25.0, 100.0)


@dataclass(slots=True)
class ClientMetrics:
    """What one client (or all that have named none yet) has done. Latency is without the time that a GET asked to wait."""

    packets: Counter[str] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    batches: int = 0
    empty_batches: int = 0
    entries: int = 0
    rows: int = 0
    latency_ms_sum: float = 0.0
    latency_count: int = 0
    latency_buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))

    def request(self, kind: int, latency_ms: float) -> None:
        """Count one request that took `latency_ms`."""
        self.packets[PacketType(kind).name if kind in _KINDS else "UNKNOWN"] += 1
        self.latency_ms_sum += latency_ms
        self.latency_count += 1
        for i, bound in enumerate(BUCKETS):
            if latency_ms <= bound:
                self.latency_buckets[i] += 1

    def as_dict(self) -> dict[str, Any]:
        """All numbers by name."""
        return {
            "packets": dict(self.packets),
            "errors": dict(self.errors),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "batches": self.batches,
            "empty_batches": self.empty_batches,
            "entries": self.entries,
            "rows": self.rows,
            "latency_ms_sum": self.latency_ms_sum,
            "latency_count": self.latency_count,
            "latency_buckets": dict(zip(map(str, BUCKETS), self.latency_buckets, strict=True)),
        }


_KINDS: Final = frozenset(int(kind) for kind in PacketType)


class CanalMetrics:
    """All counters of one server, by (destination, client id); ("", "") counts what was asked before a client was named."""

    def __init__(self) -> None:
        self.connections = 0
        self.connections_total = 0
        self.audit = Audit()
        #: Whether this server of a cluster is the active one, by destination.
        self.active: dict[str, bool] = {}
        self.clients: dict[tuple[str, str], ClientMetrics] = {}

    def client(self, destination: str, client_id: str) -> ClientMetrics:
        """The counters of one client."""
        return self.clients.setdefault((destination, client_id), ClientMetrics())

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain numbers."""
        return {
            "connections": self.connections,
            "connections_total": self.connections_total,
            "active": dict(self.active),
            **{incident.counter: self.audit.counts[incident] for incident in Incident},
            "clients": [
                {"destination": key[0], "client_id": key[1], **client.as_dict()} for key, client in sorted(self.clients.items())
            ],
        }

    def exposition(self) -> str:
        """Everything in Prometheus' text format."""
        families = Families("shmstore_serve")
        families.add("connections", "gauge", "Connections open.", self.connections)
        families.add("connections_total", "counter", "Connections taken.", self.connections_total)
        for incident in Incident:
            families.add(f"{incident.counter}_total", "counter", incident.help, self.audit.counts[incident])
        for destination, active in self.active.items():
            families.add(
                "active", "gauge", "1 where this server of a cluster is the active one.", int(active), destination=destination
            )
        for (destination, client), metrics in sorted(self.clients.items()):
            by = {"destination": destination, "client": client}
            for packet, count in sorted(metrics.packets.items()):
                families.add("client_packets_total", "counter", "Requests, by type.", count, **by, type=packet)
            for code, count in sorted(metrics.errors.items()):
                families.add("client_request_errors_total", "counter", "Requests refused, by code.", count, **by, code=str(code))
            for name, help in _TOTALS.items():
                families.add(f"client_{name}_total", "counter", help, getattr(metrics, name), **by)
            families.histogram(
                "client_request_duration_seconds",
                "Time to answer, without the time that a GET asked to wait.",
                [bound / 1000 for bound in BUCKETS],
                [*metrics.latency_buckets, metrics.latency_count],
                metrics.latency_ms_sum / 1000,
                **by,
            )
        return families.text()


_TOTALS: Final = {
    "bytes_in": "Bytes of requests.",
    "bytes_out": "Bytes of answers.",
    "batches": "Batches sent.",
    "empty_batches": "GETs that found nothing.",
    "entries": "Entries sent.",
    "rows": "Rows sent.",
}
