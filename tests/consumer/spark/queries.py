"""A streaming query that keeps what it got, and waiting for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

# Spark gives a Python worker 15 s to come up, and no setting for it: too little on a host that many share.
NO_WORKER = "Python worker failed to connect back"
STARTS = 5


def started(start: Callable[[], _T]) -> _T:
    """Return what `start` returns, which is called again where Spark's Python worker did not come up in time, and only there."""
    for _ in range(STARTS - 1):
        try:
            return start()
        except Exception as error:
            if NO_WORKER not in str(error):
                raise
    return start()


class Query:
    """`readStream.format("shmstore")` into a list: rows by batch id, a replayed batch replaces its first run."""

    def __init__(self, spark: Any, store: str, checkpoint: Path, format: str = "shmstore", **options: str) -> None:
        self._spark = spark
        self._format = format
        self._options = {"store": store, **options}
        self._checkpoint = str(checkpoint)
        self.batches: dict[int, list[Any]] = {}
        self.runs: list[int] = []
        self.fail_at: int | None = None
        self.fails_before = False  # it has written, else after
        self.running: Any = None
        self._begin: Callable[[], None] = lambda: None
        self._before = (0, 0)  # batches run when it was started, and how often it was

    def start(self, *, once: bool = False, **options: str) -> Query:
        """Start, or start again from the checkpoint."""

        def begin() -> None:
            frame = self._spark.readStream.format(self._format).options(**{**self._options, **options}).load()
            trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
            writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
            self.running = writer.trigger(**trigger).start()
            if once:
                self.running.awaitTermination(200)  # a host that many share is slow

        self._begin, self._before = begin, (len(self.runs), 1)
        started(begin)
        return self

    def _error(self) -> Any:
        """What stopped the query; one whose worker did not come up before its first batch is started again."""
        error = self.running.exception()
        runs, starts = self._before
        if error is None or NO_WORKER not in str(error) or len(self.runs) > runs or starts == STARTS:
            return error
        self._before = runs, starts + 1
        started(self._begin)
        return None

    def _take(self, frame: Any, batch: int) -> None:
        rows = frame.collect()
        self.runs.append(batch)
        fails, self.fail_at = self.fail_at == batch, None if self.fail_at == batch else self.fail_at
        if not (fails and self.fails_before):
            self.batches[batch] = rows
        if fails:
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
            error = self._error()
            if error is not None:
                raise error
            if time.monotonic() > until:
                raise TimeoutError(f"{len(self.rows)} rows after {timeout} s, status {self.running.status}")
            time.sleep(0.02)

    def await_error(self, timeout: float = 150) -> str:
        """Wait until the query fails, and return what it says."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            error = self._error()
            if error is not None:
                return str(error)
            time.sleep(0.02)
        raise TimeoutError("the query did not fail")

    def stop(self) -> None:
        """Stop, if it runs."""
        if self.running is not None:
            self.running.stop()


def put_slowly(store: Any, transactions: list[list[Any]], timeout: float = 30) -> threading.Thread:
    """Put `transactions` from a thread of its own, waiting for free space. The store object is the thread's from now on."""

    def run() -> None:
        for events in transactions:
            store.put(events, timeout=timeout)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
