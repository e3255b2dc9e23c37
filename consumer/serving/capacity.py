"""How much one server can hold at once: files that it may have open, and threads for what blocks."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from shmstore import ShmStoreError

_T = TypeVar("_T")

#: Open files of a session, at most: its store's segment, the subscription's lock, and where it reads the log four sets of two files, which
#: stay open while they are mapped. A connection is one more.
A_SESSION: Final = 10
#: Those that are none of the clients': listeners, logs, what is open for a moment.
RESERVE: Final = 64


class Capacity(NamedTuple):
    """How many connections a process that may have `files` open can take, and how many sessions besides."""

    connections: int
    sessions: int
    files: int

    @classmethod
    def of_process(cls, wanted: int) -> Capacity:
        """For `wanted` connections, or as many as there may be. Raises the process's soft limit of open files to its hard one."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        files = hard if hard != resource.RLIM_INFINITY else 1 << 30
        connections = max(1, min(wanted, (files - RESERVE) // (1 + A_SESSION)))
        return cls(connections, max(1, (files - RESERVE - connections) // A_SESSION), files)


class Threads:
    """Threads for calls that block, as many as calls that may block at once: none of them waits for another to end."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=most, thread_name_prefix="canal")

    async def run(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Return what `call` returns, in a thread. Raises what it raises, and `ShmStoreError` where no thread can be had."""
        outcome: Future[_T] = Future()

        def carry_out() -> None:
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(call(*arguments))
                except BaseException as error:
                    outcome.set_exception(error)

        try:
            self._pool.submit(carry_out)
        except RuntimeError as error:
            # The call is in the pool's queue all the same: a thread that ends what it does takes it, unless it is withdrawn.
            if outcome.cancel():
                raise ShmStoreError(
                    "the server can start no thread for this: raise its limit of processes (ulimit -u, a container's pids limit), "
                    "or lower --max-connections"
                ) from error
        return await asyncio.wrap_future(outcome)

    def close(self) -> None:
        """Wait for what runs; drop what does not yet."""
        self._pool.shutdown(wait=True, cancel_futures=True)
