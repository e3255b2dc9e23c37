"""What the start of a command costs: the CPU of the whole process, next to an interpreter that does nothing and to one that imports numpy.

`stat`, `ls` and `check` read a store of a thousand events; the other commands explain themselves. The cases take turns.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.benchmarks import measure
from scripts.benchmarks.stores import new_store
from shmstore import EntryType, Event, EventType, Position

COMMANDS = ("stat", "ls", "check", "--version", "--help", "stat --help", "produce --help", "verify --help", "config check")


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Return the CPU of each command. A quick run is no other: it takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHMSTORE_STATE"] = folder
        Path(folder, "shmstore.toml").write_text('[web]\nlisten = "127.0.0.1:0"\n')
        with new_store("start", state=folder) as store:
            cases = {
                ("python", "nothing"): [sys.executable, "-c", "pass"],
                ("python", "numpy"): [sys.executable, "-c", "import numpy"],
            }
            for words in COMMANDS:
                named = [store.name] if words in ("stat", "check") else []
                cases["shmstore", words] = [str(Path(sys.executable).parent / "shmstore"), *words.split(), *named]
            cases = {key: command for key, command in cases.items() if measure.wanted(key[1])}
            taken: dict[tuple[str, str], list[float]] = {key: [] for key in cases}
            store.put([Event(EntryType.ROWS, EventType.QUERY, Position("binlog.000001", 4 + n), 0) for n in range(1000)])
            for run in range(runs + size.peers):
                for key, command in cases.items():
                    spent = _cpu(command, folder)
                    if run or not size.peers:  # the first one compiles what it imports
                        taken[key].append(1000 * spent)
    return [measure.of("start", case, subject, "cpu", "ms", values) for (subject, case), values in taken.items()]


def _cpu(command: list[str], folder: str) -> float:
    """Seconds of CPU of a command. Raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
