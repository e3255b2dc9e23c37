"""What Spark calls in this process always gets an answer, and one that can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from shmstore.consumer.spark.query_errors import shown_first
from shmstore.consumer.spark.spark_version import runs_for_spark


class CallFailed(RuntimeError):
    """A function that Spark called ended by what is no `Exception`: a panic of a library in Rust, SystemExit, KeyboardInterrupt."""


@contextmanager
def answering() -> Iterator[None]:
    """Let whatever the body raises reach Spark: py4j answers the JVM after an `Exception` alone, and after anything else the JVM would wait forever.

    Raises `CallFailed` in place of what is no `Exception`. Of both the first line that Spark shows says the cause.
    """
    try:
        yield
    except BaseException as error:
        shown_first(error)
        if isinstance(error, Exception):
            raise
        raise CallFailed(f"{type(error).__name__}: {error}") from error


@contextmanager
def readable() -> Iterator[None]:
    """Let an error of this package reach the program as its own line, in the first line of Spark's message, without the frames of its stack.

    In Spark's processes alone, which end after an error; SHMSTORE_DEBUG in the environment keeps the frames.
    """
    try:
        yield
    except Exception as error:
        ours = type(error).__module__.partition(".")[0] in ("shmstore", "consumer")
        if ours and runs_for_spark() and "SHMSTORE_DEBUG" not in os.environ:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
