"""The seed of what is random in a test: by the test's name, a fresh one, or the one asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest
from hypothesis import given, settings, strategies as st

@pytest.mark.parametrize("case", [1, 2])
def test_drawn(case, seed):
    pass

@settings(max_examples=3)
@given(st.binary(min_size=9, max_size=9))
def test_given(example):
    print(example)

@pytest.mark.long
def test_long(seed):
    pass
"""


@pytest.fixture
def drawn(tmp_path: Path):
    """What the tests above drew: a function from SHMSTORE_SEED to two seeds, Hypothesis' examples, and a long run's seed."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")

    def run(chosen: str) -> tuple[list[str], str, str]:
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-sq",
            "-p",
            "tests.conftest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
        ]
        env = os.environ | {"SHMSTORE_SEED": chosen}
        done = subprocess.run([*words, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        *seeds, long = re.findall(r"SHMSTORE_SEED=(\d+)\n", done.stdout)
        examples = "".join(re.findall(r"b['\"].*\n", done.stdout))
        assert examples.count("\n") >= 3
        return seeds, examples, long

    return run


def test_the_name_gives_the_seed(drawn):
    """By default a test and Hypothesis draw the same each time, cases of a test different seeds, a long run a fresh one."""
    (one, examples, long), again = drawn(""), drawn("")
    assert (one, examples) == again[:2]
    assert len(set(one)) == 2
    assert long != again[2]


def test_fresh_seeds(drawn):
    """SHMSTORE_SEED=random draws other seeds and other examples each time."""
    one, again = drawn("random"), drawn("random")
    assert len({*one[0], *again[0], one[2], again[2]}) == 6
    assert one[1] != again[1]


def test_a_seed_asked_for(drawn):
    """SHMSTORE_SEED=<n> gives all tests, long runs too, that seed; Hypothesis draws by it."""
    one = drawn("77")
    assert one == drawn("77")
    assert {*one[0], one[2]} == {"77"}
    assert one[1] != drawn("78")[1]
