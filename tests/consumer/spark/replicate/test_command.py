"""The command ``shmstore spark replicate``, end to end: what ends its query ends the command, with an exit code and without lines of Java."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.consumer.spark import __main__ as program
from shmstore.consumer.spark.replicate import replicate as replicate_module
from shmstore.consumer.spark.replicate.replicate import _stop_at_end
from tests.consumer.spark.events import Binlog, order_row


def run(store: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a checkpoint in `folder`; return its exit code and what it printed."""
    command = [sys.executable, "-m", "shmstore", "spark", "replicate", store, "--checkpoint", f"{folder}/checkpoint"]
    return subprocess.run([*command, "--master", "local[1]", *words], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.spark
def test_a_panic_in_delta_rs_ends_the_command(store: EventStore, store_name: str, tmp_path: Path, binlog: Binlog) -> None:
    """With exit code 1, and the panic's text: it never waits for an answer that Spark does not get."""
    store.put(binlog.insert(order_row(1)))
    done = run(store_name, tmp_path, "--target", f"{tmp_path}/a|b/{{database}}/{{table}}")  # a path at which delta-rs panics
    assert done.returncode == 1, done.stderr[-3000:]
    assert "PanicException: Invalid object store url" in done.stderr.splitlines()[-1]


def test_the_cause_is_the_last_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind what Spark's processes print while they end, and whether they end well or not."""

    class Session:
        def stop(self) -> None:
            print("BrokenPipeError: [Errno 32] Broken pipe", file=sys.stderr)
            raise ConnectionError("the JVM has ended")

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no such format")

    monkeypatch.setattr(replicate_module, "replicate", refuse)
    monkeypatch.setattr(program, "_ENDING", ())
    given = program.arguments().parse_args(["replicate", "s", "--target", "/lake/{table}"])
    with pytest.raises(ConnectionError):
        program._run(Session(), given, threading.Event())  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == ["BrokenPipeError: [Errno 32] Broken pipe", "shmstore: no such format"]


@pytest.mark.parametrize("active", [False, True])
def test_a_stop_that_comes_after_the_end_of_spark_is_no_error(active: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The query has ended, and what ended with it is not printed; a query that still runs is reported in one line."""

    class Query:
        isActive = active

        def processAllAvailable(self) -> None:
            raise RuntimeError("the query's own")

        def stop(self) -> Any:
            raise RuntimeError("Cannot call methods on a stopped SparkContext.\n  at org.apache.spark")

    caplog.set_level(logging.INFO, "shmstore")
    _stop_at_end(Query())  # type: ignore[arg-type]
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "Cannot call methods on a stopped SparkContext."
    ] * active
