"""DuckLake: the tests of targets, in a process with the DuckDB that its extension is built for. No network is asked, but for the packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.python_packages import packages

ROOT = Path(__file__).resolve().parents[3]
VERSION = "1.5.5"
#: Tests of the folder that say most in a few seconds.
FEW = "test_ddl_and_rows_of_one_batch or test_a_replayed_batch or test_a_target_that_is_closed"
#: For files of this older DuckDB, too, which refuses more of what one transaction does.
BOTH = "test_any_ddls_among_the_rows_of_a_batch"


def run(chosen: str, seed: int, *files: str) -> None:
    folder = packages("duckdb", VERSION, f"duckdb-extension-ducklake=={VERSION}.*")
    environment = {**os.environ, "PYTHONPATH": str(folder), "SHMSTORE_TEST_COPIES": "duckdb ducklake", "SHMSTORE_SEED": str(seed)}
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "not long",
        "-k",
        f"(ducklake and not test_ducklake and ({chosen})) or {BOTH}",
    ]
    done = subprocess.run(
        [*words, *(f"tests/consumer/copies/{file}" for file in files)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    assert " passed" in done.stdout


def test_some_of_the_contract(seed: int) -> None:
    """DDLs among rows, a batch that comes again, and another process that writes to the lake."""
    run(FEW, seed, "test_targets.py", "test_batches_of_ddls.py", "test_copying.py")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_whole_contract(seed: int) -> None:
    """All that is asked of the other kinds."""
    run("test", seed, "")
