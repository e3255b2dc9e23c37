"""Sessions of one Spark for threads that each set something for a statement of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from pyspark.sql import SparkSession


class Sessions:
    """Clones of `session`: its settings, catalogs and cache, apart from the settings that a body has for itself."""

    def __init__(self, session: SparkSession) -> None:
        self._session: Any = session
        self._idle: SimpleQueue[SparkSession] = SimpleQueue()

    @contextmanager
    def with_settings(self, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        """A session that no other thread has meanwhile, in which `settings` hold."""
        try:
            session = self._idle.get_nowait()
        except Empty:
            session = SparkSession(self._session.sparkContext, self._session._jsparkSession.cloneSession())
        for name, value in settings.items():
            session.conf.set(name, value)
        try:
            yield session
        finally:
            for name in settings:
                session.conf.unset(name)
            self._idle.put(session)
