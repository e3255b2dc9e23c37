"""How far snapshots are, for people."""

from __future__ import annotations

from shmstore.clock import calendar_ms
from shmstore.home.snapshots import Progress, Task
from shmstore.units import printable


def page(progress: Progress, waits: int = 0) -> str:
    """Return how far snapshots are, as text: a line for each table, with rates and what is left."""
    lines = [f"{waits} requests wait for a producer" if waits > 1 else "1 request waits for a producer"] * bool(waits)
    lines += [printable(f"request {request.id}: {request.problem}") for request in progress.requests if request.problem]
    if not progress.tasks:
        return "\n".join(lines or ["no snapshot was asked for"])
    table: list[tuple[str, ...]] = [("TABLE", "STATE", "ROWS", "OF ABOUT", "ROWS/S", "LEFT", "")]
    table += [tuple(map(printable, _line(task))) for task in progress.tasks]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if i in (0, 1, 6) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    done = sum(not task.open for task in progress.tasks)
    rows = sum(task.progress.rows for task in progress.tasks)
    return "\n".join([*lines, f"{done} of {len(progress.tasks)} tables, {rows:,} rows"])


def _line(task: Task) -> tuple[str, ...]:
    """A table's line."""
    progress, now = task.progress, calendar_ms()
    rate, seconds = task.rate(now), task.left(now)
    left = "" if seconds is None else f"{seconds:,.0f} s"
    about = f"{task.estimate:,}" if task.open and task.estimate else ""
    name = f"{task.database}.{task.table}"
    return name, progress.state, f"{progress.rows:,}", about, f"{rate:,.0f}" if rate else "", left, task.problem
