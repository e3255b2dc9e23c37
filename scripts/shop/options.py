"""The demo's command line. Imports nothing but the standard library, so that ``--help`` works before anything is installed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final, NamedTuple

READERS: Final = ("sqlite", "spark", "tail")
ALL_READERS: Final = (*READERS, "replicate")  # one more Spark: not by default

_ABOUT: Final = """\
Run the whole chain on real input, and prove the result.

   server -- binlog --> producer -- put --> ring in shared memory -- get/ack --> sqlite   Consumer -> SQLite tables
                                                                            |-> spark    Structured Streaming -> Delta tables
                                                                            '-> tail     shmstore tail -> a file of JSON lines

  1. Starts a private server in a temporary folder, on a free port of 127.0.0.1 (row binlog, full images, full metadata).
  2. Starts the producer (`shmstore produce`) and three readers, each a process of its own with a subscription of its own.
  3. Creates a small shop (customers, orders, order_items, payments) and loads it live from four connections: inserts, updates,
     deletes, statements that change many rows, changes of primary keys, rollbacks, savepoints, and three DDLs in between.
  4. Shows how far each reader is. When all have acked everything, `shmstore verify` compares the SQLite and Delta tables with the
     server. Then, by other code, table by table: row count and a checksum of every column, of a plain SELECT, the SQLite
     tables, the Delta tables and a replay of the tail's file.
  5. Stops everything and removes it, after success, failure and Ctrl-C alike.
"""

_EXAMPLES: Final = """\
examples
  scripts/demo                              the whole demo: 50,000 row changes, one or two minutes
  scripts/demo --rows 2000 --rate 0         a short one, as fast as the server goes
  scripts/demo --server mysql               MySQL instead of MariaDB
  scripts/demo --readers sqlite,tail        without Spark (no Java needed)
  scripts/demo --readers sqlite,replicate   Spark again, by the library's one call: replicate()
  scripts/demo --rows 5000 --rate 0 --capacity 1024
                                            a small ring: the producer waits for the slowest reader, and nothing is lost
  scripts/demo --kill 5                     kill -9 parts in mid-load and start them again: nothing lost, nothing twice
  scripts/demo --keep                       leave all running at the end, to look around with mysql, sqlite3, shmstore stat ...

exit codes
  0    all tables are identical, and everything ended in order
  1    something differs, or a part failed (what and why is printed, with the end of its log)
  2    wrong options
  130  stopped by Ctrl-C (143 by SIGTERM)
"""


class Options(NamedTuple):
    """What the command line says."""

    rows: int
    rate: float
    server: str
    readers: tuple[str, ...]
    capacity: int
    seed: int
    patience: float
    keep: bool
    kill: int = 0


def parse(words: Sequence[str] | None = None) -> Options:
    """Return the options in `words` (the command line by default). Exits with 2 and one line where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description=_ABOUT, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        default=50_000,
        metavar="N",
        help="row changes to commit on the server (default 50000, at least 200)",
    )
    parser.add_argument(
        "--rate", type=_rate, default=2000.0, metavar="N", help="row changes a second (default 2000; 0: as fast as it goes)"
    )
    parser.add_argument(
        "--server", choices=("mariadb", "mysql", "mariadb118"), default="mariadb", help="which server (default mariadb)"
    )
    parser.add_argument(
        "--readers",
        type=_readers,
        default=READERS,
        metavar="LIST",
        help=f"which of {', '.join(ALL_READERS)} (default {','.join(READERS)})",
    )
    parser.add_argument(
        "--capacity",
        type=_capacity,
        default=16384,
        metavar="N",
        help="events that the ring holds, a power of two (default 16384)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the load's random values (default 1)")
    parser.add_argument(
        "--patience",
        type=_rate,
        default=120.0,
        metavar="SECONDS",
        help="give up when nothing has moved for so long (default 120)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="at the end leave all running until Ctrl-C, then keep the files and the store"
    )
    parser.add_argument(
        "--kill",
        type=_count,
        default=0,
        metavar="N",
        help="kill -9 the producer or a reader N times in mid-load, and start it again (default 0)",
    )
    return Options(**vars(parser.parse_args(words)))


def _rows(text: str) -> int:
    if not text.replace("_", "").isdigit() or int(text) < 200:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 200")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return value


def _readers(text: str) -> tuple[str, ...]:
    chosen = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in chosen:
        if word not in ALL_READERS:
            raise argparse.ArgumentTypeError(f"{word!r} is no reader: there are {', '.join(ALL_READERS)}")
    if not chosen:
        raise argparse.ArgumentTypeError(f"no reader given: there are {', '.join(ALL_READERS)}")
    return tuple(name for name in ALL_READERS if name in chosen)


def _capacity(text: str) -> int:
    if not text.isdigit() or int(text) < 64 or int(text) & (int(text) - 1):
        raise argparse.ArgumentTypeError(f"{text} is not a power of two of at least 64")
    return int(text)
