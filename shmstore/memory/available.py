"""How much memory there is to be had. Asked first: for memory that it has not, the kernel kills processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

PROC: Final = "/proc"
PLENTY: Final = 2**63
# Of version 2 and version 1 of control groups: files of (limit, use), and what memory.stat calls pages that can be given up at once.
_V2: Final = ((("memory.max", "memory.current"), ("memory.high", "memory.current")), "inactive_file")
_V1: Final = ((("memory.limit_in_bytes", "memory.usage_in_bytes"),), "total_inactive_file")


def free_memory(proc: str = PROC) -> int:
    """Return the bytes that this process may still take: of the host's memory and of that of its control groups, swap included."""
    host = _figures(f"{proc}/meminfo", 1024)
    swap = host.get("SwapFree:", 0)
    return min([host.get("MemAvailable:", PLENTY) + swap, *(free + swap for free in _groups(proc))])


def _groups(proc: str) -> Iterator[int]:
    """Yield what is free in each control group that this process is in, from its own upwards, as far as it can be seen."""
    paths: dict[str, str] = {}  # "" is version 2's
    for line in _lines(f"{proc}/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in _lines(f"{proc}/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        version, controller = (_V2, "") if kind == "cgroup2" else (_V1, "memory")
        if kind not in ("cgroup", "cgroup2") or controller not in paths or (controller and controller not in options.split(",")):
            continue
        root, top = fields.split()[3:5]
        path = os.path.relpath(paths[controller], root)
        here = top if path.startswith("..") else os.path.normpath(f"{top}/{path}")  # of a container, its own group alone is there
        while True:
            yield from _left(here, *version)
            if here == top or here == "/":
                break
            here = os.path.dirname(here)


def _left(group: str, files: tuple[tuple[str, str], ...], spare: str) -> Iterator[int]:
    for limit, use in files:
        limits, uses = _lines(f"{group}/{limit}"), _lines(f"{group}/{use}")
        if limits and uses and limits[0].isdecimal():  # else "max"
            yield max(0, int(limits[0]) - int(uses[0]) + _figures(f"{group}/memory.stat").get(spare, 0))


def _figures(path: str, unit: int = 1) -> dict[str, int]:
    return {name: int(value) * unit for name, value, *_ in map(str.split, _lines(path))}


def _lines(path: str) -> list[str]:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()
    return []
