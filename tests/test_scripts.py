"""The scripts: each explains itself, and those that clean up or refuse really do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and os.access(path, os.X_OK))


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, cwd="/")


def test_all_scripts_are_there() -> None:
    """The scripts that the README and the CI name exist and may be executed."""
    assert {"check", "demo", "servers", "setup", "test"} <= set(SCRIPTS)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name: str) -> None:
    """`--help` works from any folder and tells more than one line."""
    told = run(ROOT / "scripts" / name, "--help")
    assert told.returncode == 0, told.stderr
    if name != "check":
        assert len(told.stdout.splitlines()) > 3
    assert told.stdout.strip()


@pytest.mark.parametrize(
    "arguments", [("check", "--no-such-option"), ("servers", "oracle"), ("servers", "mariadb", "--port", "99999")]
)
def test_bad_arguments(arguments: tuple[str, ...]) -> None:
    """A wrong argument is refused with exit code 2 and without a traceback."""
    told = run(ROOT / "scripts" / arguments[0], *arguments[1:])
    assert told.returncode == 2
    assert "Traceback" not in told.stderr
    assert arguments[-1] in told.stderr


def test_setup_spares_a_foreign_folder(tmp_path: Path) -> None:
    """A folder that is no virtual environment is left alone, whatever $SHMSTORE_VENV says."""
    (tmp_path / "letters.txt").write_text("dear")
    told = run(ROOT / "scripts" / "setup", SHMSTORE_VENV=str(tmp_path))
    assert told.returncode == 1
    assert "no virtual environment" in told.stderr
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
