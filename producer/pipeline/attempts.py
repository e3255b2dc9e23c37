"""Several sources at once: one that fails is tried again on its own, and the others continue."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from shmstore import ShmStoreError, SourceError
from shmstore.producer.connection.backoff import Backoff
from shmstore.producer.errors import SettingsError
from shmstore.producer.settings import Settings
from shmstore.producer.stop import Stop

SETTLED = 10.0  # seconds a source must have been read for its next failure to count as the first


class Attempts:
    """The threads of one run, `count` of them, each with a source, or a store, of its own.

    A `SourceError` is logged and the source tried again, after the delays of its options, for as long as the run lasts. It ends the run
    where no source was ever read: then a process is waiting to hear why. What trying again does not change (a `SettingsError`, a
    `StoreError`, local files) ends its source alone, and what is no `ShmStoreError` ends all.
    """

    def __init__(self, count: int, stop: Stop, log: logging.Logger) -> None:
        self._count, self._stop, self._log = count, stop, log
        self._lock = threading.Lock()
        self._never: set[str] = set()  # sources that failed before they were read
        self._read: set[str] = set()
        self._errors: dict[str, BaseException] = {}  # of those that do not run, the first to fail first
        self._ended = False

    def is_over(self) -> bool:
        """Whether all are to end."""
        return self._ended or self._stop()

    def end(self, error: BaseException | None = None) -> None:
        """Let all end, with `error`, if there is one."""
        with self._lock:
            self._ended = True
            if error is not None:
                self._errors = {"": error} | self._errors

    def raise_first(self) -> None:
        """Raise the error of the source that failed first, of those that do not run, named; all have ended."""
        for name, error in self._errors.items():
            if name and self._count > 1:
                error.args = (f"{name}: {error}", *error.args[1:])
            raise error

    def run(self, name: str, settings: Settings, attempt: Callable[[], object], was_read: Callable[[], bool]) -> None:
        """Run `attempt` until it returns, or all end. `name` says in log lines what failed; `was_read`: whether the source was read in the last attempt."""
        backoff = Backoff(settings)
        while True:
            began = time.monotonic()
            try:
                attempt()
                if was_read():  # else it is as it was, and all were to end
                    with self._lock:
                        self._errors.pop(name, None)
                return
            except SourceError as error:
                if isinstance(error, SettingsError) or settings.binlog:
                    self._give_up(name, error)
                    return
                if not self._goes_on(name, error, was_read()):
                    return
                if was_read() and time.monotonic() - began > SETTLED:
                    backoff.reset()
                wait = backoff.failed()
                self._log.error(
                    "%s: %s; the others continue, and it is tried again in %.1f s (attempt %d)",
                    name,
                    error,
                    wait,
                    backoff.failures,
                )
            except ShmStoreError as error:
                self._give_up(name, error)
                return
            except BaseException as error:  # handed to the caller's thread, whatever it is
                self.end(error)
                return
            until = time.monotonic() + wait
            while (left := until - time.monotonic()) > 0:
                if self.is_over():
                    return
                time.sleep(min(left, 0.2))

    def _goes_on(self, name: str, error: SourceError, was_read: bool) -> bool:
        with self._lock:
            self._errors.setdefault(name, error)
            if was_read:
                self._read.add(name)
            elif name not in self._read:
                self._never.add(name)
            self._never -= self._read
            if len(self._never) == self._count:
                self._ended = True
        return not self.is_over()

    def _give_up(self, name: str, error: ShmStoreError) -> None:
        with self._lock:
            self._errors.setdefault(name, error)
            more = self._count > 1 and not self._ended
        if more:
            self._log.error("%s: %s; the others continue without it", name, error)
