"""A server's process, for as long as a block: for programs that take a moment until they answer, and need no farewell."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.packages import ServerUnavailable

START_SECONDS = 120.0


@contextmanager
def serving(
    name: str,
    command: Sequence[str],
    log: Path,
    answers: Callable[[], object],
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run a server; the block begins when `answers` raises no `OSError` any more. Raises `ServerUnavailable` with the end of its log."""
    with open(log, "w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})})
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _without_error(answers):
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    raise ServerUnavailable(f"{name} does not start here: {output.read()[-1000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.kill()
            process.wait()


def _without_error(answers: Callable[[], object]) -> bool:
    try:
        answers()
    except OSError:
        return False
    return True
