"""A streaming query that keeps what it got, and waiting for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Query:
    """`readStream.format("shmstore")` into a list: rows by batch id, a replayed batch replaces its first run."""

    def __init__(self, spark: Any, store: str, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"store": store, **options}
        self._checkpoint = str(checkpoint)
        self.batches: dict[int, list[Any]] = {}
        self.runs: list[int] = []
        self.fail_at: int | None = None
        self.running: Any = None

    def start(self, *, once: bool = False, **options: str) -> Query:
        """Start, or start again from the checkpoint."""
        frame = self._spark.readStream.format("shmstore").options(**{**self._options, **options}).load()
        trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
        self.running = writer.trigger(**trigger).start()
        if once:
            self.running.awaitTermination(60)
        return self

    def _take(self, frame: Any, batch: int) -> None:
        rows = frame.collect()
        self.runs.append(batch)
        self.batches[batch] = rows
        if self.fail_at == batch:
            self.fail_at = None
            raise RuntimeError("the sink failed")

    @property
    def rows(self) -> list[Any]:
        """All rows, in the order of batches and seq."""
        return [row for batch in sorted(self.batches) for row in sorted(self.batches[batch], key=lambda row: row.seq)]

    def await_rows(self, count: int, timeout: float = 150) -> list[Any]:
        """Wait until `count` rows are there. Raises what stopped the query."""
        self.await_that(lambda: len(self.rows) >= count, timeout)
        return self.rows

    def await_that(self, condition: Callable[[], bool], timeout: float = 150) -> None:
        until = time.monotonic() + timeout
        while not condition():
            error = self.running.exception()
            if error is not None:
                raise error
            if time.monotonic() > until:
                raise TimeoutError(f"{len(self.rows)} rows after {timeout} s, status {self.running.status}")
            time.sleep(0.02)

    def await_error(self, timeout: float = 150) -> str:
        """Wait until the query fails, and return what it says."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            error = self.running.exception()
            if error is not None:
                return str(error)
            time.sleep(0.02)
        raise TimeoutError("the query did not fail")

    def stop(self) -> None:
        """Stop, if it runs."""
        if self.running is not None:
            self.running.stop()


def put_slowly(store: Any, transactions: list[list[Any]], timeout: float = 30) -> threading.Thread:
    """Put `transactions` from a thread of its own, waiting for room. The store object is the thread's from now on."""

    def run() -> None:
        for events in transactions:
            store.put(events, timeout=timeout)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
