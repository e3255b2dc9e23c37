"""The same tests on other versions of Spark than the installed one: some on the oldest, in the long runs all on each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.consumer.spark.versions import environment

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[3]
OLDEST = "4.0"


def run(version: str, folder: Path, *words: str, tests: str = "tests/consumer/spark") -> str:
    """Run the Spark tests with pyspark of `version`; return what pytest says."""
    python = environment(version, folder / version)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_HOME", "PYTEST_"))}
    shown = [python, "-c", "import pyspark; print(pyspark.__version__)"]
    found = subprocess.run(shown, capture_output=True, text=True, check=True, env=kept).stdout
    assert found.startswith(f"{version}."), f"this is pyspark {found}"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=10", *words, tests]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, f"pyspark {found}: {done.stdout[-6000:]}"
    return done.stdout


def test_the_oldest_spark(tmp_path: Path) -> None:
    """What differs between versions holds on the oldest: restarts and kills, limits and triggers, types, batch reads, copies."""
    assert " passed" in run(OLDEST, tmp_path, "-m", "every_spark and not long", "-k", "not mysql")


@pytest.mark.long
@pytest.mark.parametrize("version", [OLDEST, "4.1", "4.2"])
def test_every_spark(version: str, tmp_path: Path) -> None:
    """All Spark tests pass on each version; the installed one runs them itself."""
    assert " passed" in run(version, tmp_path, "-m", "not long", "--deselect", "tests/consumer/spark/test_versions.py")
