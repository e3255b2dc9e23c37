"""RemoteBatch: events that came from another host, in memory of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmstore import SLOT, Batch
from shmstore.consumer.remote.events import Events

_NOWHERE: Any = SimpleNamespace(views=SimpleNamespace(native=None))  # no segment: all that a batch looks up there, this one has


class RemoteBatch(Batch):
    """A batch that stays valid for as long as it is held."""

    __slots__ = ("_slots",)

    def __init__(self, first: int, last: int, generation: int, events: Events | None) -> None:
        super().__init__(_NOWHERE, first, last, generation)
        self._slots = np.zeros(0, SLOT) if events is None else events.slots
        self._raw = memoryview(b"" if events is None else events.raw)
        self._ends = np.zeros(0, np.int64) if events is None else np.ascontiguousarray(events.ends)

    @property
    def slots(self) -> NDArray[np.void]:
        """The slot records, dtype `layout.SLOT`, shape (len(batch),)."""
        return self._slots

    @property
    def rows(self) -> int:
        """Rows in the batch."""
        return int(self._slots["rows"].sum(dtype=np.int64))

    @property
    def oversized(self) -> bool:
        """False: it lies nowhere else."""
        return False

    @property
    def _flags(self) -> NDArray[Any]:
        flags: NDArray[Any] = self._slots["flags"]
        return flags

    def copy(self) -> Batch:
        """The batch itself."""
        return self
