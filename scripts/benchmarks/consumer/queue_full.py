"""The sender of `shmstore queue` alone, from a store that is full before, into Kafka: rows a second, and seconds of CPU a row, the broker's too.

A case is a load in a format, as in `queue`. The two take turns, each in a process of its own (`queue_alone`):

    shmstore     the sender: reads the store, makes the messages, sends them exactly once, acks
    bare loop    confluent-kafka with the same messages, made before, in the same transactions with the same settings: what the client and the
                 broker bound
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from typing import TypeVar

from scripts.benchmarks import measure
from scripts.benchmarks.consumer import queue_alone
from scripts.benchmarks.consumer.queue import FORMATS, attached, filling, wait_for, written
from shmstore import Consumer

_SUBJECTS = {"shmstore": queue_alone.sender, "bare loop": queue_alone.bare}
_Found = TypeVar("_Found")


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every load on MySQL, the smallest on MariaDB; return the measurements."""
    taken: list[measure.Measurement] = []
    with closing(written(size)) as found:
        for case, load, server, broker in found:
            assert broker.process is not None
            at = broker.address, broker.process.pid
            with tempfile.TemporaryDirectory() as state, filling(server, load, state) as (name, producer):
                wait_for(lambda: attached(name, state))
                with Consumer(name, "held", state=state, auto_ack=False, limit_events=5000) as held:  # so the log keeps all
                    rows = 0
                    while rows < load.rows:
                        rows += next(held).rows
                    producer.kill()
                    producer.wait()
                    for form in size.some(FORMATS):
                        taken += _in_turn(runs, case, queue_alone.Task(name, state, "", form, load.rows, at))
    return taken


def _in_turn(runs: int, case: str, task: queue_alone.Task) -> list[measure.Measurement]:
    """Both, so that what else the machine does meets both."""
    topics = _apart(queue_alone.topics, task._replace(reader="topics"))
    found: dict[str, list[queue_alone.Rates]] = {subject: [] for subject in _SUBJECTS}
    for number in range(runs):
        for subject, send in _SUBJECTS.items():
            one = task._replace(reader=f"{subject.replace(' ', '-')}-{task.form}-{number}")
            found[subject] += _apart(send, one, topics)
    taken = []
    for subject, rates in found.items():
        figures = (
            ("throughput", "rows/s", [each.rows for each in rates]),
            ("cpu", "us/row", [each.cpu * 1e6 for each in rates]),
            ("broker cpu", "us/row", [each.broker_cpu * 1e6 for each in rates]),
        )
        for metric, unit, values in figures:
            if any(values):  # a small load takes less than a tick of the broker's
                taken.append(measure.of("queue_full", f"{case}/{task.form}", subject, metric, unit, values))
        rate = measure.number(statistics.median(each.rows for each in rates))
        measure.say(f"queue_full {case}/{task.form} {subject}: {rate} rows/s")
    return taken


def _apart(what: Callable[..., _Found], *words: object) -> _Found:
    """What a function returns in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(what, *words).result()
