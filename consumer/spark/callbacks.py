"""What Spark calls in this process always gets an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CallFailed(RuntimeError):
    """A function that Spark called ended by what is no `Exception`: a panic of a library in Rust, SystemExit, KeyboardInterrupt."""


@contextmanager
def answering() -> Iterator[None]:
    """Let whatever the body raises reach Spark: py4j answers the JVM after an `Exception` alone, and after anything else the JVM would wait for ever.

    Raises `CallFailed` in place of what is no `Exception`.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise CallFailed(f"{type(error).__name__}: {error}") from error
