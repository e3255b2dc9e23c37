"""Measurements: taking them several times, and saying them as a table, as JSON, and compared with the last recorded run."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

_TICKS = os.sysconf("SC_CLK_TCK")


class Measurement(NamedTuple):
    """One figure of one subject: the median of `runs` runs, with the lowest and the highest."""

    bench: str
    case: str
    subject: str
    metric: str
    unit: str
    median: float
    min: float
    max: float
    runs: int


def of(bench: str, case: str, subject: str, metric: str, unit: str, values: Iterable[float]) -> Measurement:
    """Return the measurement over the values of all runs."""
    taken = sorted(values)
    return Measurement(bench, case, subject, metric, unit, statistics.median(taken), taken[0], taken[-1], len(taken))


def machine() -> str:
    """Name the machine: processor, cores, memory, Python."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    except OSError:
        memory = 0
    return f"{model}, {os.cpu_count()} cores, {memory} GiB, Linux {platform.release()}, Python {platform.python_version()}"


Case = TypeVar("Case")


class Size(NamedTuple):
    """How much a run measures: the part of the usual rows or events, on which kinds of servers, and whether the peers are measured too."""

    scale: float
    kinds: tuple[str, ...] = ("mariadb", "mysql")
    peers: bool = True

    def of(self, count: int, step: int = 1) -> int:
        """Return this part of `count`, in whole steps: at least one."""
        return max(step, int(count * self.scale) // step * step)

    def some(self, cases: Iterable[Case]) -> list[Case]:
        """Return all cases; the first one where it is enough that they work."""
        return list(cases)[: None if self.peers else 1]


WHOLE, QUICK = Size(1.0), Size(0.2)
SMALLEST = Size(0.001, ("mariadb",), peers=False)

_only: list[str] = []


def choose(parts: list[str]) -> None:
    """From now on, want only cases whose name holds all of `parts`."""
    _only[:] = parts


def wanted(case: str) -> bool:
    """Whether a case is to be measured; its name ends in the server's kind."""
    return all(part in case for part in _only)


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def timed(came: Callable[[], int], rows: int, pids: list[int]) -> tuple[float, float]:
    """(rows a second, seconds of CPU a row of the processes) behind the first quarter; `came` returns how many rows have come until now.

    A small load may come at once: then all of it counts, and the time until it came.
    """
    seen, first, began, used = 0, 0, 0.0, 0.0
    deadline = time.monotonic() + 600
    started = time.perf_counter(), cpu(pids)
    while seen < rows:
        seen = came()
        if not began and seen * 4 >= rows:
            first, began, used = seen, time.perf_counter(), cpu(pids)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{seen} of {rows} rows came")
    if first == seen:
        first, (began, used) = 0, started
    took, used = time.perf_counter() - began, cpu(pids) - used
    return (seen - first) / took, used / max(1, seen - first)


def cpu(pids: list[int]) -> float:
    """Seconds of CPU that the processes have used."""
    used = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / _TICKS


def table(measurements: list[Measurement], subject: str = "shmstore") -> str:
    """Return the measurements as text: a line each, with the ratio of `subject` to each peer in the same case."""
    ours = {(m.bench, m.case, m.metric): m.median for m in measurements if m.subject == subject}
    lines = [
        f"{'bench':15} {'case':16} {'subject':22} {'metric':14} {'median':>14} {'min':>14} {'max':>14} unit{'':12} {subject} / it"
    ]
    for m in measurements:
        reference = ours.get((m.bench, m.case, m.metric))
        ratio = f"{reference / m.median:8.2f}x" if reference and m.median and not m.subject.startswith(subject) else ""
        lines.append(
            f"{m.bench:15} {m.case:16} {m.subject:22} {m.metric:14} {number(m.median):>14} {number(m.min):>14} {number(m.max):>14} {m.unit:16} {ratio}"
        )
    return "\n".join(lines)


def number(value: float) -> str:
    """A figure with thousands separated, and as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def slower(now: list[Measurement], before: list[Measurement], tolerance: float = 0.15) -> list[str]:
    """Say what is slower by more than `tolerance` than in an earlier run of the same machine."""
    earlier = {(m.bench, m.case, m.subject, m.metric): m.median for m in before}
    said = []
    for m in now:
        old = earlier.get((m.bench, m.case, m.subject, m.metric))
        if not old or not m.subject.startswith("shmstore"):
            continue
        worse = m.median < old * (1 - tolerance) if m.metric.startswith("throughput") else m.median > old * (1 + tolerance)
        if worse:
            said.append(f"{m.bench} {m.case} {m.metric}: {number(m.median)} {m.unit}, was {number(old)}")
    return said


def document(measurements: list[Measurement], machine: str) -> str:
    """Return the run as JSON, a line for each measurement."""
    lines = ",\n".join(json.dumps(m._asdict()) for m in measurements)
    return f'{{"machine": {json.dumps(machine)}, "measurements": [\n{lines}\n]}}'


def read(paths: list[Path]) -> tuple[str, list[Measurement]]:
    """Return (machine, measurements) of recorded runs. Raises ValueError where one is none, or of another machine."""
    machines, taken = [], []
    for path in paths:
        try:
            found = json.loads(path.read_text())
            machines.append(str(found["machine"]))
            taken += [Measurement(**m) for m in found["measurements"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no run that --json wrote: {error!r}; name one that is") from error
    if len(set(machines)) != 1:
        raise ValueError(f"the runs are of different machines: {', '.join(sorted(set(machines)))}; name runs of one")
    return machines[0], taken
