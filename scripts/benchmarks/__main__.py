"""`scripts/bench`: one command for all benchmarks."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

from scripts.benchmarks import measure

BENCHES = ("store", "decode", "pipeline", "serve", "spark")
PEERS = {"store": ("pyzmq", "faster-fifo", "iceoryx2", "redis"), "decode": (), "pipeline": (), "serve": (), "spark": ()}


def main() -> int:
    """Run the benches named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure the project beside its peers, in one run on one machine. Figures are medians; ratios are what counts.",
        epilog="Example: scripts/bench store --runs 5 --json store.json",
    )
    parser.add_argument("bench", nargs="*", metavar="BENCH", help=f"any of: {', '.join(BENCHES)} (default: all that exist)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each case, of which the median is told (default 5)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the events: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and measurements to FILE")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="an earlier --json FILE: say what is slower now by more than 15 %%; exit 1 then",
    )
    options = parser.parse_args()
    for name in options.bench:
        if name not in BENCHES:
            parser.error(f"no bench {name!r}: choose from {', '.join(BENCHES)}")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    chosen = options.bench or [name for name in BENCHES if Path(__file__).with_name(f"{name}.py").exists()]
    taken: list[measure.Measurement] = []
    measure.say(f"machine: {measure.machine()}")
    for name in chosen:
        if not Path(__file__).with_name(f"{name}.py").exists():
            parser.error(f"bench {name!r} is not there yet")
        _install(PEERS[name])
        measured = importlib.import_module(f"scripts.benchmarks.{name}").measure_all(options.runs, options.quick)
        taken += [m if isinstance(m, measure.Measurement) else measure.Measurement(**m) for m in measured]
    print(measure.machine())
    print(measure.table(taken))
    if options.json:
        options.json.write_text(measure.document(taken) + "\n")
    if options.against:
        worse = measure.slower(taken, json.loads(options.against.read_text())["measurements"])
        for line in worse:
            print(f"slower: {line}")
        return 1 if worse else 0
    return 0


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
