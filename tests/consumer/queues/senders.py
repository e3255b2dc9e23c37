"""`shmstore queue` in processes of its own: run, refused, and killed at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from shmstore import EventStore
from shmstore.event import EventType, Row
from tests.consumer.queues.test_sender import inserts, transaction

Read = Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]  # key and value of each message, by partition


@contextmanager
def sending(store: str, kind: str, address: str, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A sender, killed at the end. `more` is of its environment."""
    python = [sys.executable, "-X", "faulthandler", "-m", "shmstore"]
    command = [*python, "queue", store, "--kind", kind, "--brokers", address, *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | more) as process:
        try:
            yield process
        finally:
            process.kill()


def send(store: str, kind: str, address: str, *words: str, code: int = 0, seconds: float = 120, **more: str) -> str:
    """Send all that is there; return the last line that was said."""
    with sending(store, kind, address, "--once", *words, **more) as process:
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"it does not end: {process.communicate()[1][-3000:]}") from None
    assert process.returncode == code, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


def kill_senders(
    store: EventStore,
    kind: str,
    address: str,
    *words: str,
    kills: int,
    chance: random.Random,
    between: Callable[[int], None] = lambda number: None,
) -> int:
    """Put transactions while senders are killed, each after `between`; then send the rest. Returns N: N times three inserts and an update were put.

    Each fourth one is killed while it starts or soon after, the others within a second after their first ack.
    """
    over, put = threading.Event(), [0]

    def load() -> None:
        while not over.wait(0.002):
            number = put[0]
            while number % 50 == 0 and store.newest - _acked(store) > 20_000 and not over.wait(0.05):
                pass  # on a slow machine the last sender would have to send nearly all of it
            store.put(transaction(number, inserts(*range(number * 3, number * 3 + 3))))
            pair = ((number * 3, f"note {number * 3}"), (number * 3, f"changed {number}"))
            store.put(transaction(number, [Row(*pair)], EventType.UPDATE))
            put[0] += 1

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for number in range(kills):
            before = _acked(store)
            with sending(store.name, kind, address, "--batch", str(chance.randint(3, 400)), *words) as process:
                if number % 4 < 3:
                    wait_for(lambda: process.poll() is not None or _acked(store) > before, process)  # noqa: B023
                time.sleep(chance.uniform(0, 1))
                between(number)
                assert process.poll() is None, process.communicate()[1][-3000:]
                process.send_signal(signal.SIGKILL)
    finally:
        over.set()
        loader.join()
    send(store.name, kind, address, *words, seconds=300)
    return put[0]


def each_once(found: Read, put: int) -> None:
    """What `kill_senders` put is there once, and each key in order."""
    rows = [json.loads(value or b"") for some in found.values() for _, value in some]
    assert sorted(row["pk"]["id"] for row in rows if row["op"] == "insert") == list(range(put * 3))
    assert sum(row["op"] == "update" for row in rows) == put
    for some in found.values():
        by_key: dict[bytes | None, list[int]] = {}
        for key, value in some:
            by_key.setdefault(key, []).append(json.loads(value or b"")["seq"])
        assert all(each == sorted(each) for each in by_key.values())


def wait_for(there: Callable[[], object], process: subprocess.Popen[str] | None = None, seconds: float = 120) -> None:
    """Wait until it is true. Where it does not become so, show what `process` says; Python tells where each of its threads is."""
    until = time.monotonic() + seconds
    while not there():
        if time.monotonic() > until:
            if process is not None:
                process.send_signal(signal.SIGABRT)
            raise AssertionError(process and process.communicate()[1][-5000:])
        time.sleep(0.02)


def _acked(store: EventStore) -> int:
    """The last event that a sender acked; 0 at the beginning."""
    stats = store.subscriptions()
    return stats[0].ack.sequence if stats else 0


def all_acked(store: EventStore) -> bool:
    """Whether a sender acked all that is in the store."""
    stats = store.subscriptions()
    return bool(stats) and min(stat.ack.sequence for stat in stats) == store.newest
