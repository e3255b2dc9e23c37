"""Where pure Python runs, `stat`, a producer's log and `doctor` say so, with what it costs and what to do."""

from __future__ import annotations

import os
import subprocess
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from shmstore import EventStore, native
from tests.shmstore.commands import COMMAND


def test_compiled_code_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of it was built and nothing switches it off."""
    monkeypatch.setenv("SHMSTORE_PURE", "0")
    assert native.pure_python() == ""


def test_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It names the variable, or what was not built."""
    monkeypatch.setenv("SHMSTORE_PURE", "1")
    assert native.pure_python().endswith("SHMSTORE_PURE is set; unset it")
    monkeypatch.delenv("SHMSTORE_PURE")
    monkeypatch.setattr(native, "_PACKAGE", tmp_path)
    for name in native.MODULES[1:]:
        built = tmp_path / f"{name}.cpython-39-x86_64-linux-gnu.so"  # of another Python
        built.parent.mkdir(parents=True, exist_ok=True)
        built.touch()
    assert ": no module was compiled; install a C compiler and Python's headers" in native.pure_python()
    (tmp_path / f"{native.MODULES[1]}{EXTENSION_SUFFIXES[0]}").touch()
    missing = ", ".join([native.MODULES[0], *native.MODULES[2:]])
    assert f": not compiled: {missing}; install a C compiler" in native.pure_python()


def test_stat_and_the_log_say_it_once(store_name: str, state: Path, tmp_path: Path) -> None:
    """One line in `stat`, and one before a producer's log."""
    pure = {**os.environ, "SHMSTORE_PURE": "1"}
    with EventStore.create(store_name):
        stat = subprocess.run([*COMMAND, "stat", store_name], env=pure, capture_output=True, text=True, timeout=60)
        assert stat.stdout.count("\ncode       pure Python runs, ") == 1
    produce = [*COMMAND, "produce", "--binlog", str(tmp_path), "--store", store_name]  # there are no files to read
    log = subprocess.run(produce, env=pure, capture_output=True, text=True, timeout=60)
    assert log.stderr.count("pure Python runs, ") == 1, log.stderr
