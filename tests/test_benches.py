"""Every bench works: its smallest run, of a room at once, has figures. Peers are left out. Spark's benches and the one of queues are measured where
a Spark and a broker run: tests/consumer/spark/test_benches.py, tests/consumer/queues/test_kafka.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmarks import measure
from scripts.benchmarks.__main__ import BENCHES, ROOMS
from scripts.benchmarks.stores import new_store
from tests.shmstore.samples import leftovers

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {"spark", "tables", "merges", "replicate", "queue"}


def test_every_module_of_a_room_is_a_bench_or_serves_one() -> None:
    """A room has the benches that the command line knows, and what only they import."""
    modules = {
        path.stem: path.parent.name
        for path in (ROOT / "scripts" / "benchmarks").glob("*/*.py")
        if path.parent.name != "peers" and "def measure_all" in path.read_text()
    }
    assert modules == BENCHES


def test_a_bench_that_fails_leaves_no_store(state: Path) -> None:
    """Neither in shared memory nor in its home: also one with a subscription that is open."""

    def bench() -> None:
        with new_store("fails", log=False) as store:
            store.subscribe("reader")
            found.append(store.name)
            raise RuntimeError("it failed")

    found: list[str] = []
    with pytest.raises(RuntimeError, match="it failed"):
        bench()
    [name] = found
    assert leftovers(name) == []
    assert list(state.rglob(f"*{name}*")) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("room", [room for room, benches in ROOMS.items() if not set(benches) <= ELSEWHERE])
def test_the_benches_of_a_room_measure(room: str, tmp_path: Path) -> None:
    """Each has a figure of the project's own, and what is a rate is more than none."""
    benches = [bench for bench in ROOMS[room] if bench not in ELSEWHERE]
    command = [
        sys.executable,
        "-m",
        "scripts.benchmarks",
        *benches,
        "--smallest",
        "--runs",
        "1",
        "--json",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    taken = measure.read([tmp_path / "run"])[1]
    assert {m.bench for m in taken if m.subject.startswith("shmstore")} == set(benches)
    assert [m for m in taken if m.metric.startswith("throughput") and not m.median > 0] == []
