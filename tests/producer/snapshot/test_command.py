"""`shmstore snapshot`: asks, shows, watches and cancels, through the files that the producer reads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import Column, EntryType, Event, EventStore, EventType, Position, TableSchema
from shmstore.cli.main import main
from shmstore.home.definitions import Definition, DefinitionsFile
from shmstore.home.home import Home
from shmstore.home.snapshot_progress import SnapshotRequest, TableProgress
from shmstore.home.snapshots import ProgressFile
from shmstore.producer import Progress, SettingsError, load_settings

NAME = f"orders-{os.getpid()}"  # a store of this machine that has the name would be asked instead of the files


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgressFile:
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path))
    return ProgressFile(Home.of(NAME))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore.create(NAME, capacity=64, path=tmp_path / "ring", log=False) as made:
        yield made
    EventStore.unlink(NAME, path=tmp_path / "ring")


def test_requests_wait_for_the_producer_in_order(
    file: ProgressFile, store: EventStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request is a file of its own with its tables; the id is printed; cancel is a request, too."""
    words = ["snapshot", NAME, "--path", store.stat().path]
    assert main(words) == 0
    assert capsys.readouterr().out == "no snapshot was asked for\n"
    assert main([*words, "--tables", "shop.*,crm.users", "--tables", "x.y"]) == 0
    said = capsys.readouterr()
    assert f"no producer is running on store '{NAME}': the next one will do this" in said.err
    assert main([*words, "--status"]) == 0
    assert capsys.readouterr().out == "1 request waits for the producer\n"
    store.claim()
    assert main([*words, "--cancel", "--status"]) == 0
    assert capsys.readouterr() == ("2 requests wait for the producer\n", "")
    id_ = said.out.strip()
    (_, first), (_, second) = file.asked()
    assert (first.id, first.tables, first.cancel, second.cancel) == (id_, ("shop.*,crm.users", "x.y"), False, True)


def test_a_producer_with_another_state_folder(file: ProgressFile, store: EventStore) -> None:
    """A request that a living producer does not take up is explained, while it is watched."""
    store.claim()
    words = ["snapshot", NAME, "--path", str(store.stat().path), "--tables", "shop.*", "--watch"]
    with subprocess.Popen(
        [sys.executable, "-m", "shmstore", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            assert "another folder (--state" in process.stderr.readline()
        finally:
            process.kill()


def test_a_store_of_several_sources_has_no_snapshots(
    file: ProgressFile, store: EventStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its producer would never take the request up: it is refused, and nothing is asked."""
    sources = (("a", Position("binlog.000001", 4, "0-1-1")), ("b", Position("binlog.000001", 4, "1-2-1")))
    store.put([Event(EntryType.END, EventType.NONE, Position("", 0, sources=sources), 0)])
    assert main(["snapshot", NAME, "--path", store.stat().path, "--tables", "shop.*", "--watch"]) == 2
    assert "has several sources" in capsys.readouterr().err
    assert file.asked() == []


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("shop.[", "filter pattern 'shop.[' is no regular expression"), ("", "no table is named"), (" ,", "no table")],
)
def test_a_pattern_that_cannot_be_read_is_refused(
    file: ProgressFile, store: EventStore, capsys: pytest.CaptureFixture[str], pattern: str, says: str
) -> None:
    """One line, exit 2, and nothing is asked: least of all everything, where a variable was empty."""
    store.claim()
    assert main(["snapshot", NAME, "--path", store.stat().path, "--tables", pattern]) == 2
    assert says in capsys.readouterr().err
    assert file.asked() == []


def test_a_part_of_tables_is_asked_for(file: ProgressFile, store: EventStore, capsys: pytest.CaptureFixture[str]) -> None:
    """The condition and the columns are in the request; without a table, or empty, or not to be read, they are refused and nothing is asked."""
    store.claim()
    words = ["snapshot", NAME, "--path", str(store.stat().path)]
    table = ["--tables", "shop.orders"]
    columns = (Column("id", "int"), Column("total", "int"), Column("created", "date"))
    known = Definition("b.000001", 4, "shop", "orders", TableSchema("shop", "orders", columns, (0,)))
    DefinitionsFile(Home.of(NAME)).replace([known])
    for wrong, says in (
        (["--where", "id = 1"], "name these with --tables"),
        (["--columns", "id"], "name these with --tables"),
        ([*table, "--where", ""], "character 1"),
        ([*table, "--columns", ""], "no column is named"),
        ([*table, "--where", "id ="], "character 5"),
        ([*table, "--where", "nr = 1"], "no column 'nr'"),
        ([*table, "--where", "created > 5"], "column 'created' is DATE"),
        ([*table, "--columns", "id,tota"], "did you mean total"),
    ):
        assert main([*words, *wrong]) == 2, wrong
        assert says in capsys.readouterr().err
    assert file.asked() == []
    assert main([*words, *table, "--where", "created > '2026-01-01'", "--columns", "id, total"]) == 0
    ((_, request),) = file.asked()
    assert (request.where, request.columns) == ("created > '2026-01-01'", ("id", "total"))


def test_the_status_is_a_line_for_each_table(file: ProgressFile, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, rate, what is left; what failed is shown, and is the exit code; a damaged file is an error that names it."""
    progress = Progress(7)
    progress.take(SnapshotRequest("r"), [("shop", "orders"), ("shop", "users"), ("shop", "log")])
    for task, place in zip(
        progress.tasks,
        (TableProgress("done", ("1",), 1000, 4), TableProgress("reading", ("1",), 500, 2), TableProgress()),
        strict=True,
    ):
        task.progress, task.began_ms, task.ended_ms, task.estimate = place, 1_000, 3_000, 2000
    file.save(progress)
    assert main(["snapshot", NAME]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["shop.orders", "done", "1,000", "500"],
        ["shop.users", "reading", "500", "2,000", "250", "6", "s"],
        ["shop.log", "waiting", "0", "2,000"],
        ["1", "of", "3", "tables,", "1,500", "rows"],
    ]
    progress.cancel()
    progress.settle(progress.tasks[1], "failed", "it broke")
    file.save(progress)
    assert main(["snapshot", NAME, "--watch"]) == 1
    assert "it broke" in capsys.readouterr().out
    file.path.write_text("{")
    assert main(["snapshot", NAME]) == 2
    assert "snapshot.progress cannot be read" in capsys.readouterr().err


def test_files_without_tables_are_no_source_of_a_snapshot() -> None:
    """Local binlog files: the option is refused, not ignored."""
    for option in ({"snapshot": "initial"}, {"on_purged": "snapshot"}):
        with pytest.raises(SettingsError, match="local binlog files hold no tables"):
            load_settings(flags={"store": "s", "binlog": "/tmp", **option}, environ={})
