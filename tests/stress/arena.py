"""Processes to kill: a tiny server that forks producers and readers which have only shmstore in them.

Started as ``python -m tests.stress.arena``; commands come as lines of JSON on stdin, the pids of what was forked go to
stdout. A forked process writes what it saw to a file of its own, a record a line, each written at once, so that a kill
leaves whole lines and at most one that is cut.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from random import Random
from typing import Any

from shmstore import CheckpointFile, EventStore, ShmStoreError, SubscriptionInUse
from shmstore.log import format as log_format
from shmstore.memory import mapping


def payload(seed: int, i: int) -> bytes:
    """Content of event `i`: its number, and bytes that follow from it, of a length that follows from it."""
    rng = Random(seed * 1_000_003 + i)
    return b"%012d" % i + rng.randbytes(rng.choice((1, 7, 40, 200, 200, 200, 900)) if i % 97 else 70_000)


def patiently(what: Any, *, error: type[ShmStoreError], seconds: float = 30) -> Any:
    """Try until it works: a role of a killed process is free within a moment."""
    until = time.monotonic() + seconds
    while True:
        try:
            return what()
        except error:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)


def produce(name: str, seed: int, total: int, hurry: float, sets: tuple[int, int] | None = None) -> None:
    """Put events from the first that is missing on. What the store has is known from it alone: newest + 1.

    `sets` says how many bytes and events a set of the log has: few, so that a test goes through many.
    """
    rng = Random(os.getpid())
    if sets is not None:
        log_format.file_bytes, log_format.file_slots = (lambda size, n=n: n for n in sets)  # type: ignore[misc]
    with EventStore.attach(name) as store:
        patiently(store.claim, error=ShmStoreError)
        i = store.newest + 1
        while i < total:
            n = min(rng.choice((1, 1, 2, 5, 20)), total - i)
            batch = [payload(seed, k) for k in range(i, i + n)]
            if any(len(each) > store.limit_bytes for each in batch) or n == 1:
                for each in batch:
                    i = store.put(each, timeout=None) + 1
            else:
                i = store.put(batch, timeout=None) + 1
            if hurry:
                time.sleep(rng.random() * hurry)


def consume(name: str, subscription: str, seed: int, total: int, log: str, slow: float, durable: float = 0.0) -> None:
    """Read, check, note, ack. A line ``g first last`` says what was processed, before its ack; ``a last``, after it.

    In a store with a log, ``d last`` says what is acked durably; `durable` is how likely that is asked for.
    """
    rng = Random(os.getpid())
    with EventStore.attach(name) as store:
        reader = patiently(lambda: store.subscribe(subscription), error=SubscriptionInUse)
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        while reader.ack_cursor.sequence < total - 1:
            before = reader.get_cursor.sequence
            # Near the end three more events may never come; and a reader that waits for three must wake when there is no free space.
            least = rng.choice((1, 1, 1, 3)) if before < total - 60 else 1
            batch = reader.get(
                limit_events=rng.choice((3, 10, 50)) if least > 1 else rng.choice((1, 3, 10, 50)), timeout=5, min_events=least
            )
            if not batch:
                continue
            assert batch.first == before + 1, (batch, before)
            for sequence, seen in enumerate(batch.payloads(), batch.first):
                assert seen == payload(seed, sequence), f"event {sequence} is {bytes(seen[:20])!r}"
            if rng.random() < 0.05:
                reader.rollback()
                continue
            os.write(out, b"g %d %d\n" % (batch.first, batch.last))
            reader.ack(batch)
            os.write(out, b"a %d\n" % batch.last)
            if rng.random() < durable:
                store.sync(batch.last)
                reader.save_checkpoint()
                saved = CheckpointFile(None, name, subscription).load()
                os.write(out, b"d %d\n" % (-1 if saved is None else saved.sequence))
                os.fsync(out)
            if slow:
                time.sleep(rng.random() * slow)


def serve() -> None:
    """Fork what stdin asks for, until it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    logging.getLogger("shmstore").addHandler(logging.NullHandler())  # what stderr has is an error
    rng, compiled = Random(os.getpid()), mapping.COMPILED
    for line in sys.stdin:
        order = json.loads(line)
        role = {"produce": produce, "consume": consume}[order.pop("role")]
        mapping.COMPILED = compiled and rng.random() < 0.7  # both kinds, at once and in turn
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = 1
            try:
                role(**order)
                code = 0
            except BaseException as error:
                sys.stderr.write(f"{role.__name__} {order}: {type(error).__name__}: {error}\n")
                sys.stderr.flush()
            finally:
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    serve()
