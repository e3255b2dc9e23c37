"""What a process that takes batches elsewhere has done since it began: each figure is a field that says its metric."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from shmstore.consumer.monitoring.metrics import Families


def figure(name: str, help: str, default: float = 0) -> Any:
    """Return a dataclass field that is the metric `name`: a counter where that ends in ``_total``, else a gauge."""
    return field(default=default, metadata={"name": name, "help": help})


@dataclass(slots=True, kw_only=True)
class Counters:
    """What every such process counts; a subclass adds its own, and how their names begin."""

    PREFIX: ClassVar[str] = "shmstore"

    batches: int = figure("batches_total", "Batches that were written.")
    retries: int = figure("retries_total", "How often writing was tried again after an error.")
    sequence: int = figure("sequence", "Sequence of the last event that is written; -1: of none.", -1)
    trouble: str = ""  # why nothing is written now

    def exposition(self, store: str, subscription: str) -> str:
        """Return the counters as Prometheus text."""
        families, labels = Families(self.PREFIX), {"store": store, "subscription": subscription}
        for one in fields(self):
            if one.metadata:
                name = one.metadata["name"]
                kind = "counter" if name.endswith("_total") else "gauge"
                families.add(name, kind, one.metadata["help"], getattr(self, one.name), **labels)
        families.add("in_trouble", "gauge", "1 while nothing is written.", int(bool(self.trouble)), **labels)
        return families.text()
