"""Counters of a server of Arrow Flight, as Prometheus text. Calls are answered by threads of their own, so each count is one step under a lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from shmstore.consumer.monitoring.metrics import Families
from shmstore.consumer.remote import events
from shmstore.consumer.serving.audit import Audit, Incident

INCIDENTS: Final = (Incident.CONNECTION, Incident.LOGIN, Incident.SUBSCRIPTION, Incident.UNACKED)


@dataclass(slots=True)
class Sent:
    """What was sent of one store, to one subscription or to the client that reads ranges."""

    streams: int = 0
    batches: int = 0
    rows: int = 0
    bytes: int = 0


class FlightMetrics:
    """The counters of one server."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.connections = 0  # at the last look
        self.open: Counter[str] = Counter()  # streams, by store
        self.sent: dict[tuple[str, str], Sent] = {}  # by store and subscription; "" for ranges
        self.actions: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._lock = threading.Lock()

    def action(self, name: str) -> None:
        """Count an action that is carried out."""
        with self._lock:
            self.actions[name] += 1

    def failed(self, error: str) -> None:
        """Count a call that ended in an error of this name."""
        with self._lock:
            self.errors[error] += 1

    @contextmanager
    def stream(self, store: str, subscription: str) -> Iterator[Sent]:
        """Count a stream while it is sent."""
        with self._lock:
            sent = self.sent.setdefault((store, subscription), Sent())
            sent.streams += 1
            self.open[store] += 1
        try:
            yield sent
        finally:
            with self._lock:
                self.open[store] -= 1

    def count(self, sent: Sent, batch: pa.RecordBatch) -> None:
        """Count a record batch of a stream: changed rows, also where it has an event a row, and the bytes of its columns."""
        rows = batch.num_rows
        if batch.schema.equals(events.SCHEMA):
            rows = int(np.sum(batch.column("rows").to_numpy(), dtype=np.int64))
        with self._lock:
            sent.batches += 1
            sent.rows += rows
            sent.bytes += batch.nbytes

    def exposition(self, sessions: Iterable[str] = ()) -> str:
        """Everything in Prometheus' text format; `sessions` has the store of each."""
        families = Families("shmstore_flight")
        families.add("connections", "gauge", "Connections open.", self.connections)
        for incident in INCIDENTS:
            families.add(f"{incident.counter}_total", "counter", incident.help, self.audit.counts[incident])
        with self._lock:
            open_, sent = (
                dict(self.open),
                {key: (one.streams, one.batches, one.rows, one.bytes) for key, one in self.sent.items()},
            )
            actions, errors = dict(self.actions), dict(self.errors)
        for store, count in sorted(Counter(sessions).items()):
            families.add("sessions", "gauge", "Subscriptions that clients hold.", count, store=store)
        for store, count in sorted(open_.items()):
            families.add("open_streams", "gauge", "Streams that are being sent.", count, store=store)
        for (store, subscription), counts in sorted(sent.items()):
            for (name, help), count in zip(_TOTALS.items(), counts, strict=True):
                families.add(f"{name}_total", "counter", help, count, store=store, subscription=subscription)
        for name, count in sorted(actions.items()):
            families.add("actions_total", "counter", "Actions carried out, by name.", count, action=name)
        for name, count in sorted(errors.items()):
            families.add("errors_total", "counter", "Calls that ended in an error, by its name.", count, error=name)
        return families.text()


_TOTALS: Final = {
    "streams": "Streams begun: ranges (no subscription), and the batches of a subscription, one each.",
    "record_batches": "Record batches sent.",
    "rows": "Rows sent; of events as they are, the rows in them.",
    "bytes": "Bytes of record batches sent, before TLS and HTTP/2.",
}
