"""The `shmstore` command: the one place that knows all three packages.

Plan. Each module of `commands` has the options and the functions of some commands, `command_line` puts them together. `main` runs
one and turns an error into one line on stderr and an exit code: 0 done, 1 `check`, `config check`, `verify`, `log verify` or
`doctor` found something, 2 bad input or an error that says what to do, 130 Ctrl-C, 141 the reader of the output went away. A
command imports what it needs when it runs, so that `shmstore ls` works without MySQL, Spark or protobuf installed.
SHMSTORE_DEBUG=1 shows tracebacks instead.
"""

from __future__ import annotations

import shmstore.cli.interrupt  # noqa: F401  before all others

# isort: split

import atexit
import gc
import logging
import os
import sys
from typing import TYPE_CHECKING

from shmstore.cli import command_line
from shmstore.cli.error_text import line_of, missing
from shmstore.cli.log_lines import say
from shmstore.errors import ShmStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

# What is imported stays. Looking for garbage among it, at each 700 new objects and twice at exit, is a quarter of a short command's time.
gc.set_threshold(10_000)
atexit.register(gc.freeze)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line `words` (those of the process by default); return the exit code."""
    if sys.stdout is None:  # started with it closed (>&-)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  open as long as the process
    try:
        words = sys.argv[1:] if words is None else words
        if words[:1] != ["spark"]:  # whose program may be one that multiplies matrices
            # Nothing here does, and numpy would start a thread for each processor while it is imported.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        options = command_line.commands(words).parser.parse_args(words)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        settle_stdout()
        return 141
    except ImportError as error:
        message = missing(error)
        if message is None or "SHMSTORE_DEBUG" in os.environ:
            raise
        return fail(message)
    except (ShmStoreError, ValueError, OSError) as error:
        if "SHMSTORE_DEBUG" in os.environ:
            raise
        settle_stdout()
        return fail(line_of(error))


def settle_stdout() -> None:
    """Write what stdout still holds; where that fails, discard it: Python's own flush at exit must not fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str) -> int:
    """Print `message` as one line on stderr; return exit code 2."""
    say(message, logging.ERROR)
    return 2
