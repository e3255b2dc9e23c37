"""Row filters on the producer's way in: the decode bench's binlogs, with a condition on the table that is read.

``shmstore`` is with a filter that lets about half of the rows pass: on a number (``number``), on text and what is in it (``text``), or on
both and a time (``several``, of the wide table alone). ``shmstore no filter`` is the same reader without one. ``throughput/cpu`` is the binlog's
rows, those that pass and those that do not, for each second of the reader's own CPU.
"""

from __future__ import annotations

from typing import Any

from scripts.benchmarks import measure
from scripts.benchmarks.producer import decode

_CONDITIONS = {
    "narrow/number": "k > 1073741824",
    "narrow/text": "c LIKE '%00%' OR pad < '5'",
    "wide/number": "amount >= 5000000 OR id = 7",
    "wide/text": "kind IN ('new', 'paid') AND note LIKE '%a%'",
    "wide/several": "x < 500000 OR day > '2022-01-01' AND name IS NOT NULL AND NOT kind = 'gone'",
}


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind, port, load in decode.written(size):
        case, shape = load.case, load.case.split("/")[0]
        subjects = {"shmstore no filter": ""} | {
            f"shmstore {name[len(shape) + 1 :]}": condition for name, condition in _CONDITIONS.items() if name.startswith(shape)
        }
        for subject, condition in subjects.items():
            options: dict[str, Any] = {"row_filter": [f"bench.*: {condition}"]} if condition else {}
            rates = decode.several(runs, decode.read_shmstore, port, load, **options)
            values = [cpu for _, cpu in rates]
            taken.append(measure.of("filters", f"{case}/{kind}", subject, "throughput/cpu", "rows/CPU s", values))
            measure.say(f"filters {case}/{kind} {subject}: {measure.number(taken[-1].median)} rows/CPU s")
    return taken
