"""What continues while the demo runs: the ring's cursors and each reader's, sampled, shown, and turned into rows a second."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Final, TextIO

from shmstore import EventStore

_TITLES: Final = {
    "load": "load: committed on the server",
    "put": "producer: binlog -> ring",
    "sqlite": "reader: Consumer -> SQLite",
    "spark": "reader: Spark -> Delta",
    "replicate": "reader: Spark replicate() -> Delta",
    "tail": "reader: shmstore tail -> file",
}


@dataclass
class Stage:
    """One stage's row changes: how many there are, when the last came, how far behind the ring's put cursor it ever was."""

    name: str
    rows: int = 0
    last: float = 0.0
    largest_lag: int = 0

    def see(self, rows: int, now: float) -> bool:
        """Note the count at the time `now`; return True when it has grown."""
        if rows <= self.rows:
            return False
        self.rows, self.last = rows, now
        return True


class Monitor:
    """Samples a store. `look` after every change of interest; `show` writes what was last seen."""

    def __init__(self, store: EventStore, readers: list[str], *, target: int, out: TextIO = sys.stdout) -> None:
        self.store = store
        self.readers = readers
        self.target = target
        self.stages = {name: Stage(name) for name in ("load", "put", *readers)}
        self.moved = time.monotonic()  # when anything last moved
        self.first = 0.0  # when the first row change was there: all stages are measured from it
        self._out = out
        self._live = out.isatty()
        self._lines = 0
        self._began = self.moved
        self._shown = 0.0
        self._previous: dict[str, tuple[float, int]] = {}
        self._subscriptions: dict[str, Any] = {}
        self._before: tuple[int, ...] = ()

    def look(self, committed: int) -> None:
        """Take one sample; `committed` is what the load says it has changed."""
        now = time.monotonic()
        put = self.store.put_cursor
        self._subscriptions = {stat.name: stat for stat in self.store.subscriptions()}
        seen = self.stages["load"].see(committed, now) | self.stages["put"].see(put.rows, now)
        if seen and not self.first:
            self.first = now
        for name in self.readers:
            stat = self._subscriptions.get(name)
            if stat is not None:
                self.stages[name].see(stat.ack.rows, now)
                self.stages[name].largest_lag = max(self.stages[name].largest_lag, put.rows - stat.ack.rows)
        state = (committed, put.sequence, *(stat.ack.sequence for stat in self._subscriptions.values()))
        if state != self._before:
            self._before, self.moved = state, now

    def caught_up(self) -> bool:
        """True when every reader has acked the newest event."""
        newest = self.store.newest
        found = {stat.name: stat.ack.sequence for stat in self.store.subscriptions()}
        return all(found.get(name, -1) >= newest for name in self.readers)

    def show(self, *, last: bool = False) -> None:
        """Write the state: redrawn in place on a terminal, otherwise a line every five seconds."""
        now = time.monotonic()
        if not last and now - self._shown < (0.5 if self._live else 5.0):
            return
        self._shown = now
        if self._live:
            lines = self._page(now)
            if self._lines:
                self._out.write(f"\x1b[{self._lines}A\x1b[J")
            self._out.write("\n".join(lines) + "\n")
            self._lines = len(lines)
        else:
            self._out.write(self._line(now) + "\n")
        self._out.flush()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._out.write(text + "\n")
        self._lines = 0  # the next page comes below it
        self._out.flush()

    def _page(self, now: float) -> list[str]:
        load, put = self.stages["load"].rows, self.stages["put"].rows
        events = self.store.newest + 1
        pace = f"{self._rate('load', now):,.0f} rows/s"
        lines = [
            f"{now - self._began:6.1f} s   load {load:>12,} of {self.target:,} row changes committed, {pace}",
            f"           put  {put:>12,} rows in {events:,} events, {self._rate('put', now):,.0f} rows/s",
            f"           {'reader':8} {'got':>11} {'acked':>11} {'lag rows':>9} {'lag s':>7} {'rows/s':>9}",
        ]
        for name in self.readers:
            found = self._subscriptions.get(name)
            if found is None:
                lines.append(f"           {name:8} not there yet")
                continue
            cursors = f"{found.get.rows:>11,} {found.ack.rows:>11,} {found.lag_rows:>9,} {max(found.lag_ms, 0) / 1000:>7.1f}"
            lines.append(f"           {name:8} {cursors} {self._rate(name, now):>9,.0f}")
        return lines

    def _line(self, now: float) -> str:
        parts = [
            f"{now - self._began:5.0f} s  load {self.stages['load'].rows:,}/{self.target:,}  put {self.stages['put'].rows:,}"
        ]
        for name in self.readers:
            found = self._subscriptions.get(name)
            if found is not None:
                parts.append(
                    f"{name} got {found.get.rows:,} acked {found.ack.rows:,} lag {found.lag_rows:,} ({max(found.lag_ms, 0) / 1000:.1f} s)"
                )
        return "  |  ".join(parts)

    def _rate(self, name: str, now: float) -> float:
        """Rows a second since the last time this was asked."""
        rows = self.stages[name].rows
        then, before = self._previous.get(name, (self._began, 0))
        self._previous[name] = (now, rows)
        return (rows - before) / (now - then) if now > then else 0.0

    def rates(self) -> str:
        """Return the table of stages: rows, seconds from the first change to this stage's last, rows/s, how far behind it was."""
        lines = [f"{'stage':34} {'rows':>10} {'seconds':>8} {'rows/s':>9} {'largest lag, rows':>18} {'done after the load':>20}"]
        for stage in self.stages.values():
            seconds = stage.last - self.first
            rate = f"{stage.rows / seconds:,.0f}" if seconds > 0 else "-"
            line = f"{_TITLES[stage.name]:34} {stage.rows:>10,} {seconds:>8.1f} {rate:>9}"
            if stage.name in self.readers:
                line += f" {stage.largest_lag:>18,} {max(stage.last - self.stages['load'].last, 0):>18.1f} s"
            lines.append(line)
        return "\n".join(lines)
