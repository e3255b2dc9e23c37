"""Every source of a configuration at once: each store has a producer of its own, and several sources of one store are a group."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from shmstore import EventStore, StoreNotFound, checkpoints
from shmstore.producer.pipeline.group import run_group
from shmstore.producer.pipeline.replicator import StopEvent, run
from shmstore.producer.pipeline.sink import Stop, with_store
from shmstore.producer.pipeline.statistics import Summary
from shmstore.producer.settings import Settings
from shmstore.producer.start.resume import resume_point

__all__ = ["run_all"]


def run_all(settings: Sequence[Settings], stop: Stop | StopEvent, *, log: logging.Logger | None = None) -> list[Summary]:
    """Replicate several sources, each store in a thread. The first error stops all and is raised."""
    stopping = stop if callable(stop) else stop.is_set
    failed = threading.Event()
    groups: dict[str, list[int]] = {}
    for i, one in enumerate(settings):
        groups.setdefault(one.store, []).append(i)
    results: dict[int, Summary] = {}
    errors: list[BaseException] = []

    def work(members: list[int]) -> None:
        try:
            found = _run([settings[i] for i in members], lambda: failed.is_set() or stopping(), log)
            results.update(zip(members, found, strict=True))
        except BaseException as error:  # handed to the caller's thread, whatever it is
            errors.append(error)
            failed.set()

    threads = [threading.Thread(target=work, args=(members,), name=f"producer-{store}") for store, members in groups.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[i] for i in range(len(settings))]


def _is_of_group(settings: Settings) -> bool:
    """Whether the store was one of several sources before, so that the one left goes on where it was."""
    try:
        with EventStore.attach(settings.store, path=settings.store_path or None, state=settings.state or None) as store:
            resume = resume_point(store)
    except StoreNotFound:
        resume = None
    if resume is not None:
        return resume.position.of_group
    return any(checkpoint.position.of_group for checkpoint in checkpoints(settings.store, settings.state or None).values())


def _run(settings: list[Settings], stop: Stop, log: logging.Logger | None) -> list[Summary]:
    if len(settings) == 1 and not _is_of_group(settings[0]):
        return [run(settings[0], stop, log=log)]
    return with_store(settings[0], log or logging.getLogger("producer"), lambda store: run_group(settings, store, stop, log=log))
