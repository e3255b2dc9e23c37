"""Every source of a configuration at once: each store has a producer of its own, and several sources of one store are a group."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from shmstore import EventStore
from shmstore.home.acks import checkpoints_in
from shmstore.producer.pipeline.attempts import Attempts
from shmstore.producer.pipeline.group import Group
from shmstore.producer.pipeline.reloads import Reloads
from shmstore.producer.pipeline.replicator import Replicator
from shmstore.producer.pipeline.sink import with_store
from shmstore.producer.pipeline.statistics import Summary
from shmstore.producer.settings import Settings
from shmstore.producer.start.resume import resume_point
from shmstore.producer.stop import Stop, StopEvent

__all__ = ["run_all"]


def run_all(
    settings: Sequence[Settings], stop: Stop | StopEvent, *, log: logging.Logger | None = None, reloads: Reloads | None = None
) -> list[Summary]:
    """Replicate several sources, each store in a thread, until `stop` says so; return what each did. `reloads`: as `run` has it.

    A source that fails is tried again on its own while the others continue, as `Attempts` says. What does not run in the end is raised: the
    `ShmStoreError` of the first that failed.
    """
    where = log or logging.getLogger("producer")
    reading_again = reloads or Reloads(settings)
    groups: dict[str, list[int]] = {}
    for i, one in enumerate(settings):
        groups.setdefault(one.store, []).append(i)
    attempts = Attempts(len(groups), stop if callable(stop) else stop.is_set, where)
    results: dict[int, Summary] = {}

    def work(members: list[int]) -> None:
        chosen, source = [settings[i] for i in members], _Source(reading_again)

        def attempt() -> None:
            results.update(zip(members, source.run(chosen, attempts.is_over, where), strict=True))

        attempts.run(_name(chosen), chosen[0], attempt, lambda: source.was_read)

    threads = [threading.Thread(target=work, args=(members,), name=f"producer-{store}") for store, members in groups.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    attempts.raise_first()
    return [results[i] for i in range(len(settings))]


def _name(settings: list[Settings]) -> str:
    """What log lines call the sources of one store."""
    store, names = f"store {settings[0].store!r}", ", ".join(one.name for one in settings if one.name)
    return f"{names} ({store})" if names else store


class _Source:
    """The sources of one store, of which there may be one."""

    def __init__(self, reloads: Reloads) -> None:
        self._reloads = reloads
        self.was_read = False  # in the last attempt

    def run(self, settings: list[Settings], stop: Stop, log: logging.Logger) -> list[Summary]:
        return with_store(settings[0], log, lambda store: self._run(settings, store, stop, log))

    def _run(self, settings: list[Settings], store: EventStore, stop: Stop, log: logging.Logger) -> list[Summary]:
        if len(settings) > 1 or _is_of_group(store):
            group = Group(settings, store, stop, log=log, reloads=self._reloads)
            try:
                return group.run()
            finally:
                self.was_read = group.was_read
        replicator = Replicator(settings[0], store, stop, log=log, reloads=self._reloads)
        try:
            return [replicator.run()]
        finally:
            self.was_read = replicator.linked


def _is_of_group(store: EventStore) -> bool:
    """Whether the store was one of several sources before, so that the one left continues where it was."""
    resume = resume_point(store)
    if resume is not None:
        return resume.position.of_group
    return any(checkpoint.position.of_group for checkpoint in checkpoints_in(store.home).values())
