"""A store as lines of text of a given width, and figures as short words: what a terminal shows of the model."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Final

from shmstore.consumer.live.figures import Rate, Remembered, ShownReader, ShownStore, ShownTable, SnapshotTable, Waiting
from shmstore.units import moment, quantity, span

LETTERS: Final = string.ascii_lowercase  # of readers in the ring: a is where the first has acked, A where it got
UNKNOWN: Final = "-"
BLOCKS: Final = "▁▂▃▄▅▆▇█"
LINE: Final = 8  # characters of a line of the last minutes


def printable(text: str) -> str:
    """Return `text` on one line without what a terminal would obey: names and values come from a server."""
    return "".join(each if each.isprintable() else "�" for each in text)


def cut(text: str, width: int) -> str:
    """Return as much of `text` as fits."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[: max(0, width)]


def way(store: ShownStore, width: int) -> list[str]:
    """From source to log, in two lines."""
    read = f", read up to {store.position}" if store.position else ""
    first = f"source {store.source or 'none yet'}{read}"
    producer = f"{store.producer}" if store.producer_alive else f"{store.producer} died" if store.producer else "none"
    waits = f", waits {100 * store.blocked:.0f} %" if store.blocked > 0.01 else ""
    late = f", {span(store.arrive.delay)} behind" if store.arrive.delay is not None and store.arrive.delay >= 0.05 else ""
    parts = [f"─{per_second(store.arrive.rate)}{late}→ producer {producer}{waits}", f"ring {100 * store.ring.used:.0f} %"]
    if store.log is not None:
        full = f", full in {span(store.log.full_in)}" if store.log.full_in is not None else ""
        parts.append(f"log {quantity(store.log.bytes)} ({100 * store.log.used:.0f} %){full}")
    return [cut(printable(first), width), cut(printable(" → ".join(parts)), width)]


def ring(store: ShownStore, width: int) -> str:
    """The ring, unrolled: what it holds, put (►), the end of the log (|), and of each reader its ack (a, b, ...) and get (A, B, ...)."""
    size = max(1, width - 2)
    first, held = store.ring.first, store.ring.held
    cells = ["━" if held >= 1 or ((i + 0.5) / size - first) % 1 < held else "·" for i in range(size)]
    numbers = {reader.name: reader.number for reader in store.readers}
    order = ("log", "get", "ack", "put")  # what comes later covers what exists
    for mark in sorted(store.ring.marks, key=lambda each: order.index(each.cursor)):
        if mark.ring is None:
            continue
        letter = letter_of(numbers.get(mark.reader, 0))
        cells[min(size - 1, int(mark.ring * size))] = {"put": "►", "log": "|", "get": letter.upper(), "ack": letter}[mark.cursor]
    return cut(f"[{''.join(cells)}]", width)


LEGEND: Final = "► put   | end of the log   a acked by reader a   A given to it   ━ held"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The newest part of a series in `width` characters, the largest value as a full block; a blank where nothing is known."""
    if not values:
        return " " * width
    size = max(1, -(-len(values) // width))  # points that one character shows, by their largest
    runs = [values[max(0, end - size) : end] for end in range(len(values), 0, -size)]
    peaks = [max((each for each in run if each is not None), default=None) for run in reversed(runs)]
    most = max((peak for peak in peaks if peak is not None), default=0.0)
    blocks = [" " if peak is None else BLOCKS[round((len(BLOCKS) - 1) * peak / most)] if most else BLOCKS[0] for peak in peaks]
    return "".join(blocks)[-width:].rjust(width)


def at_rest(store: Remembered, width: int) -> list[str]:
    """Where a store is that is not in memory, and what its log keeps, in two lines."""
    held = store.newest - store.oldest + 1
    events = (
        f"{held:,} events, {store.oldest:,} to {store.newest:,}, since {moment(store.oldest_ms)}" if held > 0 else "no events"
    )
    log = f"log {quantity(store.bytes)} ({100 * store.used:.0f} %): {events}"
    return [cut(printable(f"home {store.home}"), width), cut(log, width)]


def letter_of(number: int) -> str:
    """The letter of a reader; those after the last have none of their own."""
    return LETTERS[number] if number < len(LETTERS) else "*"


READERS: Final = ("", "READER", "STATE", "BEHIND", "WAITS", "15 MIN", "RATE", "CAUGHT UP", "BYTES", "READS")


def reader_cells(reader: ShownReader, waited: Sequence[float | None] = ()) -> tuple[str, ...]:
    """A reader, as `READERS` names its cells; `waited` is how long its oldest event waited in the last minutes."""
    holds = {"producer": "STOPS PRODUCER", "log": "fills log"}.get(reader.holds)
    return (
        letter_of(reader.number),
        cut(printable(reader.name), 16),
        holds or reader.state,
        f"{reader.lag_events:,}",
        span(round(reader.waited, 1)) if reader.lag_events else UNKNOWN,
        sparkline(waited, LINE),
        per_second(reader.rate, ""),
        UNKNOWN if reader.catch_up is None else "never" if reader.catch_up == math.inf else span(reader.catch_up),
        quantity(reader.lag_bytes),
        reader.source,
    )


def waiting_cells(number: int, reader: Waiting) -> tuple[str, ...]:
    """A reader of a store that is not in memory, as `READERS` names its cells."""
    behind = f"{reader.lag_events:,}"
    unknown = (UNKNOWN,) * 5
    return letter_of(number), cut(printable(reader.name), 16), reader.state, behind, *unknown, "log"


TABLES: Final = ("TABLE", "ROWS/S", "INSERT", "UPDATE", "DELETE", "BYTES/S", "NEWEST", "LAST DDL")


def table_cells(table: ShownTable) -> tuple[str, ...]:
    """A table, as `TABLES` names its cells."""
    rates = [number(table.rates.get(operation, 0.0)) for operation in ("insert", "update", "delete")]
    newest = moment(table.last_ms)[11:19] if table.last_ms else UNKNOWN
    ddl = f"{moment(table.ddl_ms)[:16]} {printable(table.ddl.upper())}" if table.ddl_ms else UNKNOWN
    name = cut(printable(f"{table.database}.{table.table}"), 22)
    return name, number(table.rate), *rates, quantity(table.bytes_rate), newest, ddl


def snapshot_line(tables: tuple[SnapshotTable, ...], width: int) -> str:
    """What is left of a snapshot; nothing where none is open."""
    still = [each for each in tables if each.state in ("waiting", "reading")]
    if not still:
        return ""
    now = next((each for each in still if each.state == "reading"), still[0])
    of = f" of about {now.about:,}" if now.about else ""
    left = f", {span(now.left)} left" if now.left is not None else ""
    return cut(printable(f"snapshot: {len(still)} of {len(tables)} tables left; {now.table} {now.rows:,}{of} rows{left}"), width)


def per_second(rate: Rate | None, unit: str = " events/s") -> str:
    """Events a second."""
    return UNKNOWN if rate is None else f"{number(rate.events)}{unit}"


def number(value: float) -> str:
    """A rate: what is small and not nothing has a digit more."""
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"
