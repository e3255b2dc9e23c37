"""Reading rows as Python values: events got from a store with its log, and each event's rows looked at, with all their values.

Narrow and wide rows as in `loads`; in bulk, 2,000 rows a transaction and a rows event for each 8 KB of a binlog, or single: each row a transaction
of its own, begin, row and end. ``shmstore`` is the loop that a program has: batches, events, rows. The others are limits: compiled code (objects.pyx,
built here) creates the same objects once more, out of texts, numbers and dates that lie ready, with nothing to parse or to look up, and the same loop
looks at the rows. An object that two events share is not created again there either. In ``objects alone`` CPython makes texts of UTF-8, which is how
they are stored; in ``objects copied`` they are copies of texts as CPython has them in memory, without a look at a character.

``throughput/cpu`` is rows for each second of the thread's own CPU. All take turns, in one process.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from scripts.benchmarks import loads, measure
from scripts.benchmarks.stores import new_store
from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.consumer import Consumer

_NARROW = TableSchema(
    "bench",
    "narrow",
    (
        Column("id", "int", nullable=False),
        Column("k", "int", nullable=False),
        Column("c", "char", nullable=False, size=120, charset="latin1"),
        Column("pad", "char", nullable=False, size=60, charset="latin1"),
    ),
    (0,),
)
_WIDE = TableSchema(
    "bench",
    "wide",
    (
        Column("id", "int", nullable=False),
        Column("n", "bigint", unsigned=True),
        Column("name", "varchar", size=256, charset="utf8mb4"),
        Column("amount", "decimal", size=12, scale=2),
        Column("at", "datetime", scale=6),
        Column("seen", "timestamp"),
        Column("doc", "json", charset="utf8mb4"),
        Column("kind", "enum", charset="utf8mb4", members=("new", "paid", "sent", "gone")),
        Column("x", "double"),
        Column("note", "text", charset="utf8mb4"),
        Column("raw", "blob"),
        Column("day", "date"),
    ),
    (0,),
)
_TYPES = (
    *(EventType.INSERT, EventType.UPDATE) * 3,
    EventType.INSERT,
    EventType.DELETE,
)  # half inserts, three eighths updates, one eighth deletes
_ROWS = 5_000  # of a load, whose events the ring still has
_PASSES = {"narrow/bulk": 400, "wide/bulk": 40, "narrow/single": 80, "wide/single": 40}  # over a load, in one run


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every load; return the measurements."""
    taken: list[measure.Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        ready = _compiled(Path(folder))
        for case in filter(measure.wanted, loads.CASES):
            passes = size.of(_PASSES[case])
            for subject, rates in _rates(case, size.of(_ROWS), passes, runs, ready).items():
                taken.append(measure.of("values", case, subject, "throughput/cpu", "rows/CPU s", rates))
                measure.say(f"values {case} {subject}: {measure.number(taken[-1].median)} rows/CPU s")
    return taken


def _rates(case: str, rows: int, passes: int, runs: int, ready: Any) -> dict[str, list[float]]:
    """Rows for a second of CPU of each subject, in each run."""
    with new_store("values") as store:
        events = list(_events(case, rows))
        for first in range(0, len(events), 1000):
            store.put(events[first : first + 1000])
        with Consumer(store, subscription="values", auto_ack=False, timeout=0) as consumer:
            events = [event for batch in consumer for event in batch]
            subjects = {"shmstore": partial(_read, consumer)} | {
                subject: partial(_create, ready.Ready(_pieces(events, text), Decimal), events[0].sequence)
                for subject, text in (("objects alone", "utf8"), ("objects copied", "text"))
            }
            for subject, read in list(subjects.items())[1:]:
                made = read.args[0].events(read.args[1])
                if [(event, event.sequence) for event in made] != [(event, event.sequence) for event in events]:
                    raise RuntimeError(f"{subject}: they are not those that the reader creates")
            del events
            rates: dict[str, list[float]] = {subject: [] for subject in subjects}
            for _ in range(runs):
                for subject, read in subjects.items():
                    began = time.thread_time()
                    seen = sum(read() for _ in range(passes))
                    rates[subject].append(seen / (time.thread_time() - began))
    return rates


def _read(consumer: Consumer) -> int:
    """Read the store from its first event on; return how many rows came."""
    consumer.rollback()
    return sum(_look(batch) for batch in consumer)


def _create(ready: Any, first: int) -> int:
    """Create the events, of which the first has the sequence `first`; return how many rows they have."""
    return _look(ready.events(first))


def _look(events: Iterable[Event]) -> int:
    """Look at all rows; return how many there are."""
    rows = 0
    for event in events:
        for _ in event.rows:
            rows += 1
    return rows


# ---------------------------------------------------------------- the load


def _events(case: str, rows: int) -> Iterator[Event]:
    """The events of a load, as a MariaDB server's come."""
    shape, kind = case.split("/")
    table, of_event = (_NARROW, 40) if shape == "narrow" else (_WIDE, 20)
    of_event, of_transaction = (of_event, 2000) if kind == "bulk" else (1, 1)
    chance = random.Random(1)
    values = [_values(chance, shape) for _ in range(min(rows, 1000))]
    types = cycle(_TYPES)
    for number, first in enumerate(range(0, rows, of_transaction)):
        last = min(rows, first + of_transaction)
        yield _event(EntryType.BEGIN, number, 0)
        starts = range(first, last, of_event)
        for order, start in enumerate(starts, 1):
            images = [(i, *values[i % len(values)]) for i in range(start, min(last, start + of_event))]
            type_ = next(types)
            before, after = type_ is not EventType.INSERT, type_ is not EventType.DELETE
            changed = tuple(Row(image if before else None, image if after else None) for image in images)
            yield _event(EntryType.ROWS, number, order, type_)._replace(table=table, rows=changed)
        end = _event(EntryType.END, number, len(starts) + 1)
        place = end.position._replace(gtids=end.transaction)
        yield end._replace(position=place, props={"xid": str(number), "events": str(len(starts)), "rows": str(last - first)})


def _event(entry: EntryType, number: int, order: int, type_: EventType = EventType.NONE) -> Event:
    """An event of the transaction of this number."""
    place = Position("binlog.000001", 400 + 1_000_000 * number + 8000 * order)
    return Event(entry, type_, place, 1_700_000_000_000 + number // 1000 * 1000, 1, 42, f"0-1-{number}", order)


def _values(chance: random.Random, shape: str) -> tuple[Any, ...]:
    """A row as readers have it, without its key."""
    if shape == "narrow":
        return loads._narrow_row(chance)
    n, name, amount, at, seen, *rest = loads._wide_row(chance)
    return (n, name, amount and Decimal(amount), at, seen and seen.replace(tzinfo=datetime.UTC), *rest)


# ---------------------------------------------------------------- the limit


def _compiled(folder: Path) -> Any:
    """The module objects.pyx, built in `folder`. Raises CalledProcessError where there is no compiler."""
    source = shutil.copy(Path(__file__).with_name("objects.pyx"), folder)
    environment = {**os.environ, "CFLAGS": "-O3 -w"}
    subprocess.run(
        [sys.executable, "-m", "Cython.Build.Cythonize", "--inplace", source],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (built,) = folder.glob("objects.*.so")
    spec = importlib.util.spec_from_file_location("objects", built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pieces(events: list[Event], text: str) -> list[tuple[str, int, Any]]:
    """What objects.pyx creates the events from: (what, how many, value), each before those that it holds. An object that came before is shared."""
    pieces: list[tuple[str, int, Any]] = []
    seen: set[int] = set()

    def add(value: Any) -> None:
        kind = type(value)
        known = id(value) in seen
        seen.add(id(value))
        if known or value is None or kind in (bool, EntryType, EventType, TableSchema) or value in ((), ""):
            pieces.append(("same", 0, value))
        elif kind is str:
            pieces.append((text, len(value.encode()) if text == "utf8" else 0, value.encode() if text == "utf8" else value))
        elif kind is int:
            pieces.append(("signed" if value < 2**63 else "unsigned", 0, value))
        elif kind is Decimal:
            pieces.append(("decimal", 0, str(value)))
        elif kind is datetime.datetime:
            pieces.append(("utc" if value.tzinfo else "moment", 0, value))
        elif kind is bytes:
            pieces.append(("bytes", len(value), value))
        elif kind in (float, datetime.date):
            pieces.append(("real" if kind is float else "date", 0, value))
        elif kind is dict:
            pieces.append(("dict", len(value), None))
            for pair in value.items():
                list(map(add, pair))
        else:
            pieces.append(("tuple" if kind is tuple else "named", len(value), kind))
            list(map(add, value))

    for event in events:
        add(event)
    return pieces
