"""Tail: a store's events as lines of JSON, acked only when they are flushed."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

from shmstore import Batch, ShmStoreError, StoreClosed, StoreView
from shmstore.consumer.consumer import Consumer
from shmstore.consumer.formats.context import stored_values
from shmstore.consumer.formats.formatter import Formatter
from shmstore.consumer.formats.json_text import dump
from shmstore.consumer.table_choice import TableChoice
from shmstore.event import Event
from shmstore.start_position import Start

BATCH_EVENTS = 1000  # read, printed and acked at a time
PEEK_SECONDS = 0.1  # how often a peek that follows looks for more: it leaves no trace in the store that could wake it


class Peek:
    """Reads a store in batches without a subscription, so that it holds no reader up: up to `last`, or with `follow` without end.

    Behind the ring it continues in the store's log. What the log keeps no longer, or without a log the ring, is left out: it continues at
    the oldest event that is kept and reports to `missed` how many are gone; without `missed` iterating raises `PositionNotFound`. A store with
    a log that was removed meanwhile is restored.
    """

    def __init__(
        self,
        store: StoreView,
        start: Start,
        last: int | None = None,
        *,
        follow: bool = False,
        missed: Callable[[int], None] | None = None,
    ) -> None:
        self._store = store
        self._last = last
        self._follow = follow
        self._missed = missed
        self._stopped = False
        self._next = store.find(start)
        self._own: StoreView | None = None  # attached to here

    def __enter__(self) -> Peek:
        return self

    def __exit__(self, *error: object) -> None:
        if self._own is not None:
            self._own.close()

    def __iter__(self) -> Iterator[Batch]:
        while not self._stopped:
            if self._store.has_log and self._store.lost:
                self._attach_again()
            gone = None if self._missed is None else self._pass
            try:
                for batch in self._store.read(self._next, self._last, limit_events=BATCH_EVENTS, gone=gone):
                    self._next = batch.last + 1
                    yield batch
                    if self._stopped or self._store.lost:
                        break
                else:
                    if not self._follow:
                        return
                    time.sleep(PEEK_SECONDS)
            except StoreClosed:  # removed since the look above
                if not self._store.has_log or not self._store.lost:
                    raise

    def _pass(self, first: int, last: int) -> None:
        assert self._missed is not None
        self._missed(last + 1 - first)
        self._next = last + 1

    def _attach_again(self) -> None:
        """Attach to the store as it was restored from its home. Raises `StoreClosed` where that is gone, or another's."""
        store = self._store.attach_again(same=True)
        if self._own is not None:
            self._own.close()
        self._store = self._own = store
        self._next = min(self._next, store.newest + 1)  # what was in memory alone comes again

    def ack(self, sequence: int | None = None) -> None:
        """Do nothing: nothing was taken."""

    def rollback(self) -> None:
        """Do nothing: nothing was taken."""

    def stop(self) -> None:
        """End the iteration."""
        self._stopped = True


def tail(
    reader: Consumer | Peek,
    out: BinaryIO,
    *,
    formatter: Formatter | None = None,
    chosen: Callable[[Event], bool] | None = None,
    count: int | None = None,
    last: int | None = None,
) -> None:
    """Write the events of `reader` to `out`, one JSON document a line in UTF-8 (`formatter` says which), until it ends.

    Only those that `chosen` says, at most `count` that the format has documents for, and none that came after the batch which holds sequence `last`.
    A batch is acked once it is flushed; with `count` reached inside a batch, just what was looked at is. Raises
    `BrokenPipeError` when no process can read `out` any more, also while there is nothing to write.
    """
    gone = threading.Event()
    over = os.eventfd(0, os.EFD_CLOEXEC)
    poll = select.poll()
    poll.register(over, select.POLLIN)
    with suppress(OSError):  # what is no file is not watched
        poll.register(out.fileno(), 0)  # errors alone: that a pipe has lost its reader

    def watch() -> None:
        if all(file != over for file, _ in poll.poll()):
            gone.set()
            with suppress(ShmStoreError):  # which the reader meets itself
                reader.stop()

    watcher = threading.Thread(target=watch, name="tail-output", daemon=True)
    watcher.start()
    try:
        _write(reader, out, formatter or Formatter(), chosen, count, last)
    finally:
        os.eventfd_write(over, 1)
        watcher.join()
        os.close(over)
    if gone.is_set():
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _write(
    reader: Consumer | Peek,
    out: BinaryIO,
    formatter: Formatter,
    chosen: Callable[[Event], bool] | None,
    count: int | None,
    last: int | None,
) -> None:
    for batch in reader:
        for event in batch:
            wanted = chosen is None or chosen(event)
            with stored_values(event.sequence):
                lines = [dump(each) + b"\n" for each in formatter.documents(event, event.sequence, wanted=wanted)]
            out.writelines(lines)
            if count is not None and lines:
                count -= 1
                if count == 0:
                    out.flush()
                    reader.ack(event.sequence)
                    reader.rollback()  # or leaving in order would ack the rest of the batch, too
                    return
        out.flush()
        if last is not None and batch.last >= last:
            reader.ack()
            return


def tables(patterns: str) -> Callable[[Event], bool]:
    """Return what tells the rows and DDLs of the tables that `patterns` names, as `Patterns` reads them. Raises `ValueError`."""
    return TableChoice(patterns).has
