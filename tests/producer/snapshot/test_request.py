"""Snapshots of a part of tables: some rows, some columns; what readers get of it, and what is refused."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shmstore import ABSENT, EntryType, Event, EventStore, EventType, producer
from shmstore.cli.commands.snapshot import page
from shmstore.consumer.formats.formatter import format_event
from shmstore.home.home import Home
from shmstore.home.snapshot_progress import Progress, SnapshotRequest
from shmstore.home.snapshots import ProgressFile
from shmstore.producer.errors import PatternError
from tests.producer.running import Running, end_of_log, events_of, execute, remove, running, store_name, wait_for
from tests.producer.snapping import Copy, copied, fill, finished, killable, lately, select, states
from tests.servers.server import Server

pytestmark = pytest.mark.server


@pytest.fixture
def options(tmp_path: Path, database: str) -> dict[str, Any]:
    return {"state": str(tmp_path), "include": (f"{database}.*",), "capacity": 65536, "snapshot_chunk": 300}


def asked(run: Running, server: Server, tables: str, **part: Any) -> list[Event]:
    """The READ events with a table that a request brings."""
    store, state = run.settings.store, run.settings.state
    id_ = producer.request_snapshot(store, tables, state=state, **part)
    wait_for(lambda: not producer.snapshot_waits(store, state=state) and finished(run), "the snapshot")
    return [event for event in events_of(run, server) if event.props.get("snapshot") == id_ and event.table is not None]


def texts(events: list[Event]) -> list[Any]:
    return [json.loads(line)["after"] for event in events for line in format_event(event)]


def problem_of(run: Running) -> str:
    progress = producer.snapshot_status(run.settings.store, state=run.settings.state)
    assert progress is not None
    return page(progress)


def test_some_rows_and_some_columns(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Exactly the rows that the condition is true of, NULLs as in SQL; the columns asked for and the key's; the events say so."""
    columns = "a int, id int, total decimal(9,2), t varchar(20), b blob, e enum('x','y'), PRIMARY KEY (e, id)"
    execute(any_server, database, f"CREATE TABLE t ({columns})", "CREATE TABLE plain (id int, total int, n int)")
    rows = ", ".join(f"({i % 7 or 'NULL'}, {i}, {i}.25, 'row {i % 10}', repeat('x', 50), '{'xy'[i % 2]}')" for i in range(1000))
    execute(any_server, database, f"INSERT INTO t VALUES {rows}", "INSERT INTO plain VALUES (1, 2, 3), (1, 2, 3), (4, NULL, 6)")
    with running(any_server, **options) as run:
        events = asked(run, any_server, f"{database}.t", where="a >= 3 AND t LIKE 'row _'", columns="total, ID")
        after = [row.after for event in events for row in event.rows]
        expected = {key[1] for key in select(any_server, database, "t", (5, 1), "a >= 3 AND t LIKE 'row _'")}
        assert len(after) == len(expected) > 500
        assert {row[1] for row in after} == expected
        assert all((row[0], row[3], row[4]) == (ABSENT,) * 3 and str(row[2]) == f"{row[1]}.25" and row[5] for row in after)
        assert {event.props["snapshot_partial"] for event in events} == {"rows,columns"}
        assert {len(event.table.columns) for event in events if event.table} == {6}
        assert set(texts(events)[0]) == {"id", "total", "e"}
        events = asked(run, any_server, f"{database}.t", where="id IN (3, 5, 2000)")
        whole = {key: row for key, row in select(any_server, database, "t", (1,)).items() if key[0] in (3, 5)}
        assert {(row.after[1],): row.after for event in events for row in event.rows} == whole
        assert {event.props["snapshot_partial"] for event in events} == {"rows"}
        events = asked(run, any_server, f"{database}.t", columns=["a", "id", "total", "t", "b", "e"])
        assert sum(len(event.rows) for event in events) == 1000
        assert all("snapshot_partial" not in event.props for event in events)
        events = asked(run, any_server, f"{database}.*", where="total > 1", columns=("total",))
        plain = [row.after for event in events for row in event.rows if event.table and event.table.table == "plain"]
        assert plain == [(ABSENT, 2, ABSENT)] * 2
        assert states(run) == {"t": "done", "plain": "done"}
        parts = [event.props.get("snapshot_part") for event in events if event.table and event.table.table == "t"]
        assert (parts[0], parts[-1]) == ("first", "last")


@pytest.mark.parametrize("connections", [1, 3])
def test_rows_few_and_far_between_are_looked_for_in_parts(
    any_server: Server, database: str, options: dict[str, Any], connections: int
) -> None:
    """A chunk is so many rows of the table, whatever few of them are wanted: none reads on through all of it."""
    fill(any_server, database, 3000)
    with running(any_server, **{**options, "snapshot_connections": connections}) as run:
        events = asked(run, any_server, f"{database}.t", where="id = 2500 OR id = 7")
        assert [row.after[0] for event in events for row in event.rows] == [7, 2500]
        progress = producer.snapshot_status(run.settings.store, state=run.settings.state)
        assert progress is not None
        assert [(task.progress.rows, task.progress.chunks, task.estimate) for task in progress.tasks] == [(2, 11, 0)]
    filtered = {**options, "snapshot_connections": connections, "snapshot": "initial", "row_filter": (f"{database}.t: n = 5",)}
    with running(any_server, **filtered) as run:
        assert copied(run, any_server).tables["t"] == select(any_server, database, "t", where="n = 5")
        progress = producer.snapshot_status(run.settings.store, state=run.settings.state)
        assert progress is not None
        assert [task.progress.chunks for task in progress.tasks] == [11]


def test_rows_that_change_meanwhile_are_left_out(
    any_server: Server, database: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key comes along so that a row that the stream has changed is not put in its older state."""
    fill(any_server, database, 20)
    changes = ("UPDATE t SET n = 555 WHERE id = 3", "DELETE FROM t WHERE id = 4", "UPDATE t SET id = 30 WHERE id = 5")
    lately(monkeypatch, any_server, lambda: execute(any_server, database, *changes))
    with running(any_server, **options) as run:
        events = asked(run, any_server, f"{database}.t", where="id < 15", columns="n")
    assert [row.after[0] for event in events for row in event.rows] == [1, 2, *range(6, 15)]


@pytest.mark.parametrize("part", [{}, {"where": "n < 90", "columns": ("id", "n")}], ids=["whole", "part"])
@pytest.mark.parametrize("filters", ["excluded", "hashed"])
def test_column_filters_do_not_hide_a_key_that_changed(
    any_server: Server,
    database: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    filters: str,
    part: dict[str, Any],
) -> None:
    """With a column taken out that stands before the key, or a key that is hashed, rows changed meanwhile stay as the stream brought them."""
    execute(any_server, database, "CREATE TABLE t (first int, id int primary key, n int)")
    execute(any_server, database, f"INSERT INTO t VALUES {', '.join(f'({40 - i}, {i}, {i})' for i in range(20))}")
    changes = ("UPDATE t SET n = 55 WHERE id = 3", "DELETE FROM t WHERE id = 4", "UPDATE t SET id = 30 WHERE id = 5")
    lately(monkeypatch, any_server, lambda: execute(any_server, database, *changes))
    chosen = {"column_exclude": ("*.t.first",)} if filters == "excluded" else {"column_hash": ("*.t.id",)}
    with running(any_server, **options, **chosen) as run:
        events = asked(run, any_server, f"{database}.t", **part)
        names = next(event.table for event in events if event.table).names
    keys = [row.after[names.index("id")] for event in events for row in event.rows]
    left = [0, 1, 2, *range(6, 20)]
    assert keys == (left if filters == "excluded" else [hashlib.sha256(str(i).encode()).hexdigest() for i in left])


def test_what_column_filters_hide_is_not_to_be_had(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Neither by name, nor by a condition on it; a masked column that is asked for comes masked."""
    execute(any_server, database, "CREATE TABLE t (id int primary key, a varchar(9), b varchar(9), c int)")
    execute(any_server, database, "INSERT INTO t VALUES (1, 'secret', 'x', 3)")
    hides = {"column_mask": ("*.t.a",), "column_exclude": ("*.t.c",)}
    with running(any_server, **options, **hides) as run:
        for part in ({"where": "c = 3"}, {"columns": "c"}):
            with pytest.raises(PatternError, match=r"no column 'c'.* it has id, a, b"):
                producer.request_snapshot(run.settings.store, f"{database}.t", state=run.settings.state, **part)
        assert asked(run, any_server, f"{database}.t", where="a = 'secret'") == []
        assert "column 'a' of table" in problem_of(run)
        assert "column filters take out or change" in problem_of(run)
        ProgressFile(Home.of(run.settings.store, options["state"])).ask(
            SnapshotRequest("asks-c", (f"{database}.t",), where="c = 3")
        )
        wait_for(lambda: "column 'c'" in problem_of(run), "the answer")
        assert texts(asked(run, any_server, f"{database}.t", columns="a")) == [{"id": 1, "a": "***"}]


def test_what_does_not_fit_is_refused(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """At once where the tables are known, and nothing is asked; else that table fails, says why, and the others are read."""
    for table in ("t", "u"):
        fill(any_server, database, 10, table)
    execute(any_server, database, "ALTER TABLE u DROP COLUMN n")
    bad = {
        "no column 'm'; it has id, n, t": {"where": "m = 1"},
        r"character 5 belongs a number.* not '= 1'": {"where": "n = = 1"},
        "belongs a column.s name": {"where": " "},
        "compare it with a number": {"where": "n = 'x'"},
        "has no column 'totl'": {"columns": "id,totl"},
        "no column is named": {"columns": " , "},
    }
    with running(any_server, **options) as run:
        store, state = run.settings.store, run.settings.state
        for says, part in bad.items():
            with pytest.raises(ValueError, match=says):
                producer.request_snapshot(store, f"{database}.t", state=state, **part)
        with pytest.raises(ValueError, match=f"table {database}.u"):
            producer.request_snapshot(store, f"{database}.*", state=state, columns="n")
        assert not ProgressFile(Home.of(store, state)).asked()
    with running(any_server, **options, schema_history="off") as run:
        store, state = run.settings.store, run.settings.state
        events = asked(run, any_server, f"{database}.*", where="n < 5", columns="t")
        assert states(run) == {"t": "done", "u": "failed"}
        assert "the condition does not fit table" in problem_of(run)
        assert len([row for event in events for row in event.rows]) == 4
        for number, (id_, part) in enumerate((("whole", {}), ("condition", {"where": "n ="}))):
            ProgressFile(Home.of(store, state)).ask(SnapshotRequest(id_, (f"{database}.t",), asked_ms=number, **part))
        wait_for(lambda: "request condition: condition 'n ='" in problem_of(run) and finished(run), "both")
        assert states(run)["t"] == "done"


def test_a_part_and_the_whole_are_different_wishes() -> None:
    """A table that waits for one request is not left out of another that wants another part of it; of the same part it is."""
    progress = Progress()
    for number, part in enumerate([{}, {"where": "a = 1"}, {"where": "a = 1"}, {"columns": ("a",)}, {}]):
        progress.take(SnapshotRequest(str(number), **part), [("d", "t")])
    assert [task.request for task in progress.tasks] == ["0", "1", "3"]


def test_a_wish_that_replaces_copies_is_not_served_by_one_that_does_not() -> None:
    """A copy takes the rows of a repair in place of its own, and those of a snapshot that was asked for next to them."""
    progress = Progress()
    for number, reason in enumerate(["asked", "repair", "missing", "repair", "purged", "asked"]):
        progress.take(SnapshotRequest(str(number), ("d.t",), reason), [("d", "t")])
    assert [task.request for task in progress.tasks] == ["0", "1"]


def test_the_request_is_kept_over_a_restart(tmp_path: Path) -> None:
    """Condition and columns are in the files; those of before parts could be asked for are read."""
    file = ProgressFile(Home.of("s", tmp_path))
    progress = Progress()
    request = SnapshotRequest("a", ("d.t",), where="n = 'ü'", columns=("id", "n"))
    progress.take(request, [("d", "t")])
    file.save(progress)
    loaded = file.load()
    assert loaded is not None
    assert loaded.requests == [request]
    value = json.loads(file.path.read_text())
    for one in value["requests"]:
        del one["where"], one["columns"]
    file.path.write_text(json.dumps(value))
    loaded = file.load()
    assert loaded is not None
    assert loaded.requests == [SnapshotRequest("a", ("d.t",))]


def test_a_part_survives_kill_9(any_server: Server, database: str, tmp_path: Path, seed: int) -> None:
    """Three kills: it continues behind the chunks that were put, with its condition and columns; each row that is wanted has come."""
    chance, store, chunk, rows = random.Random(seed), store_name(), 50, 3000
    start = "{}:{}".format(*end_of_log(any_server))
    fill(any_server, database, rows)
    words = ["--include", f"{database}.*", "--snapshot-chunk", str(chunk), "--capacity", "65536", "--start", start]
    file = ProgressFile(Home.of(store, tmp_path))
    producer.request_snapshot(store, f"{database}.t", where="n < 30", columns=["n"], state=tmp_path)

    def done() -> int:
        return sum(task.progress.chunks for task in (file.load() or Progress()).tasks)

    def far(process: subprocess.Popen[bytes], chunks: int) -> bool:
        return process.poll() is not None or done() >= chunks

    kills, before = 3, 0
    try:
        for number in range(kills):
            with killable(any_server, store, tmp_path, *words) as process:
                most = rows // chunk * (number + 1) // (kills + 1)
                wait_for(partial(far, process, chance.randint(max(1, most - 10), most)), "the snapshot to continue")
                assert process.poll() is None
                process.send_signal(signal.SIGKILL)
            assert done() >= before
            before = done()
        with killable(any_server, store, tmp_path, *words):
            wait_for(lambda: not (file.load() or Progress()).open, "the snapshot to end")
            with EventStore.attach(store) as attached:
                events = [event for event in attached.peek(attached.oldest) if event.type is EventType.READ]
        found = [row.after for event in events for row in event.rows]
        expected = {key: (row[0], row[1], ABSENT) for key, row in select(any_server, database, "t", where="n < 30").items()}
        assert {(row[0],): row for row in found} == expected
        ends = sum(event.entry is EntryType.END for event in events)
        assert len(expected) <= len(found) <= len(expected) + kills * 4 * chunk
        assert ends <= rows // chunk + 2 + kills * 4
    finally:
        remove(store, str(tmp_path))


def test_a_reader_of_whole_rows_takes_those_of_a_part(any_server: Server, database: str, options: dict[str, Any]) -> None:
    """Rows of a condition alone are whole: put by key they are those of SELECT."""
    fill(any_server, database, 500)
    with running(any_server, **options) as run:
        asked(run, any_server, f"{database}.t", where="id BETWEEN 100 AND 199")
        copy = Copy()
        copy.apply(events_of(run, any_server))
    assert copy.tables["t"] == select(any_server, database, "t", where="id BETWEEN 100 AND 199")
