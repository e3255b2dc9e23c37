"""The scripts: each explains itself, and those that clean up or refuse really do."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.benchmarks import chart, measure
from scripts.benchmarks.producer import growth

ROOT = Path(__file__).resolve().parent.parent
SVG = "{http://www.w3.org/2000/svg}"
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and os.access(path, os.X_OK))


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, cwd="/")


def test_all_scripts_are_there() -> None:
    """The scripts that the README and the CI name exist and may be executed."""
    assert {"check", "demo", "servers", "setup", "test"} <= set(SCRIPTS)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name: str) -> None:
    """`--help` works from any folder and shows more than one line."""
    done = run(ROOT / "scripts" / name, "--help")
    assert done.returncode == 0, done.stderr
    if name != "check":
        assert len(done.stdout.splitlines()) > 3
    assert done.stdout.strip()


def test_servers_describes_what_it_offers() -> None:
    """Each kind of server that `scripts/servers` takes stands in its help with what it is; none is taken that it could not start."""
    done = run(ROOT / "scripts" / "servers", "--help").stdout
    offered = re.findall(r"\{(.*)\}", done)[0].split(",")
    assert [kind for kind in offered if not re.search(rf"^  {kind} +\w", done, re.MULTILINE)] == []
    assert {kind.rstrip("0123456789") for kind in offered} == {"mariadb", "mysql"}


@pytest.mark.parametrize(
    "arguments", [("check", "--no-such-option"), ("servers", "oracle"), ("servers", "mariadb", "--port", "99999")]
)
def test_bad_arguments(arguments: tuple[str, ...]) -> None:
    """A wrong argument is refused with exit code 2 and without a traceback."""
    done = run(ROOT / "scripts" / arguments[0], *arguments[1:])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert arguments[-1] in done.stderr


def test_setup_spares_a_foreign_folder(tmp_path: Path) -> None:
    """A folder that is no virtual environment is left alone, whatever $SHMSTORE_VENV says."""
    (tmp_path / "letters.txt").write_text("dear")
    done = run(ROOT / "scripts" / "setup", SHMSTORE_VENV=str(tmp_path))
    assert done.returncode == 1
    assert "no virtual environment" in done.stderr
    assert (tmp_path / "letters.txt").read_text() == "dear"


def leftovers(tmp_path: Path, mark: str, before: str) -> subprocess.CompletedProcess[str]:
    command = f"import sys; sys.path.insert(0, {str(ROOT / '.ci')!r}); import leftovers; leftovers.PATIENCE_SECONDS = 0.2; "
    command += f"sys.exit(leftovers.check(set({before!r}.split())))"
    return run(sys.executable, "-c", command, SHMSTORE_CI_RUN=mark, TMPDIR=str(tmp_path))


def test_ci_finds_what_is_left(tmp_path: Path) -> None:
    """A process, a segment and a folder that a CI run leaves fail it, each named; the process is ended; a clean run passes."""
    mark = f"test{os.getpid()}"
    before = run(sys.executable, ROOT / ".ci" / "leftovers.py", "list").stdout
    segment = Path(f"/dev/shm/shmstore.tools{os.getpid()}")
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, "SHMSTORE_CI_RUN": mark})
    try:
        segment.touch()
        (tmp_path / "shmstore-mariadb-x").mkdir()
        found = leftovers(tmp_path, mark, before)
        assert found.returncode == 1
        for what in (f"process {process.pid}", segment.name, "shmstore-mariadb-x"):
            assert what in found.stdout
        assert process.wait(10) != 0
    finally:
        process.kill()
        process.wait()
        segment.unlink()
        (tmp_path / "shmstore-mariadb-x").rmdir()
    # Other tests' stores come and go meanwhile: everything that is there now counts as having been there.
    deadline = time.monotonic() + 30
    while (clean := leftovers(tmp_path, mark, run(sys.executable, ROOT / ".ci" / "leftovers.py", "list").stdout)).returncode:
        assert time.monotonic() < deadline, clean.stdout


def taken(*rates: tuple[str, str, float], metric: str = "throughput") -> list[measure.Measurement]:
    return [measure.of("decode", case, subject, metric, "rows/s", [rate]) for case, subject, rate in rates]


IMPORTED = re.compile(r"^[ ]*from ((?:shmstore|scripts|tests)[\w.]*) import (\([^)]*\)|[^\n(]+)", re.MULTILINE)
PROGRAMS = sorted(
    path
    for folder in ("scripts", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix == ".py" or path.name in SCRIPTS
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(program: Path) -> None:
    """Each of our names that a script, a benchmark or an example imports exists: also inside a function, and in the text of a child's program."""
    for module, names in IMPORTED.findall(program.read_text()):
        for name in re.findall(r"(\w+)(?: as \w+)?(?:,|$|\s)", re.sub(r"#.*|[()]", "", names)):
            found = importlib.import_module(module)
            if not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.benchmarks", *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


def record(path: Path, measurements: list[measure.Measurement], machine: str = "a machine") -> Path:
    path.write_text(measure.document(measurements, machine))
    return path


def test_bench_says_what_is_slower(tmp_path: Path) -> None:
    """`--against` names each of our rates that fell and each cost that rose by more than 15 %, and exits 1; else 0."""
    before = taken(("a", "shmstore", 100.0), ("b", "shmstore", 100.0), ("a", "peer", 100.0))
    before += taken(("a", "shmstore", 10.0), metric="cpu")
    now = taken(("a", "shmstore", 84.0), ("b", "shmstore", 86.0), ("a", "peer", 10.0))
    now += taken(("a", "shmstore", 11.6), metric="cpu")
    assert [line.split(":")[0] for line in measure.slower(now, before)] == ["decode a throughput", "decode a cpu"]
    old, new = record(tmp_path / "old", before), record(tmp_path / "new", now)
    done = bench("--from", new, "--against", old)
    assert (done.returncode, done.stdout.count("slower: ")) == (1, 2)
    assert bench("--from", old, "--against", old).returncode == 0


def test_bench_merges_runs_of_one_machine(tmp_path: Path) -> None:
    """`--from` takes several recorded runs together and `--json` writes them as one; other machines and files are refused."""
    one, two = record(tmp_path / "1", taken(("a", "shmstore", 5.0))), record(tmp_path / "2", taken(("b", "shmstore", 7.0)))
    assert bench("--from", one, two, "--json", tmp_path / "both").returncode == 0
    assert [m.case for m in measure.read([tmp_path / "both"])[1]] == ["a", "b"]
    (tmp_path / "text").write_text("not a run")
    for wrong in (record(tmp_path / "3", taken(("a", "shmstore", 5.0)), "another"), tmp_path / "text", tmp_path / "none"):
        done = bench("--from", one, wrong)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_bench_draws_a_picture_of_each_bench(tmp_path: Path) -> None:
    """A picture is well-formed SVG with a bar for each peer, right of 1 where we are faster, and colors for dark pages."""
    peers = taken(("a", "shmstore", 100.0), ("a", "<slow>", 10.0), ("a", "fast", 400.0), ("b", "alone", 1.0))
    (picture,) = chart.pictures(peers, "a machine").values()
    tree = ElementTree.fromstring(picture)
    bars = [element for element in tree.iter(f"{SVG}rect") if len(element)]
    assert [element[0].text for element in bars] == ["<slow>", "fast"]
    one = float(next(e.get("x1", "") for e in tree.iter(f"{SVG}line") if e.get("class") == "one"))
    right, left = (float(element.get("x", "")) for element in bars)
    assert right == pytest.approx(one, abs=0.1)
    assert left < one
    assert "prefers-color-scheme:dark" in picture
    done = bench("--from", record(tmp_path / "peers", peers), "--chart", tmp_path)
    assert (done.returncode, (tmp_path / "bench-decode.svg").read_text()) == (0, picture)
    done = bench("--from", record(tmp_path / "run", taken(("a", "shmstore", 1.0))), "--chart", tmp_path)
    assert (done.returncode, "no case of this run has a peer" in done.stderr) == (2, True)


def test_a_peer_has_one_color() -> None:
    """A peer has the same color in the pictures of all benches, and no other peer of a picture has it."""
    runs = [("x", "shmstore", 9.0, *peers) for peers in (("one", "two"), ("three", "one"), ("four", "three", "two"))]
    measured = [
        measure.of(f"bench{number}", case, subject, "throughput", "rows/s", [rate])
        for number, (case, ours, rate, *peers) in enumerate(runs)
        for subject in (ours, *peers)
    ]
    colors: dict[str, set[str]] = {}
    for picture in chart.pictures(measured, "a machine").values():
        bars = [element for element in ElementTree.fromstring(picture).iter(f"{SVG}rect") if len(element)]
        assert len({bar.get("class") for bar in bars}) == len(bars)
        for bar in bars:
            colors.setdefault(str(bar[0].text), set()).add(bar.get("class", ""))
    assert [len(found) for found in colors.values()] == [1, 1, 1, 1]


def test_a_choice_of_cases_holds_for_every_bench_or_is_refused() -> None:
    """`--only` with a bench that does not know it is an error, before anything is measured."""
    done = bench("decode", "spark", "--only", "bulk")
    assert (done.returncode, "--only would not hold for spark" in done.stderr) == (2, True)


def test_growth_is_told_as_a_ratio_to_the_best_point() -> None:
    """Each point's cost is divided by the lowest of its own series and server."""
    points = [
        measure.of("growth", case, "shmstore", "cpu", "ns/row", [cost])
        for case, cost in (("rows/10/mariadb", 300.0), ("rows/100/mariadb", 100.0), ("rows/10/mysql", 50.0))
    ]
    points.append(measure.of("growth", "rows/10/mysql", "raw dump", "cpu", "ns/row", [1.0]))
    assert [m.median for m in growth.ratios(points)] == [3.0, 1.0, 1.0]
