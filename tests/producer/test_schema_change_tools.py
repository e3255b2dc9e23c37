"""Tables that gh-ost and pt-online-schema-change alter under load: readers see the table change, and not what the tools work on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shmstore import EntryType, Event
from tests.producer.running import events_of, running
from tests.producer.snapping import Load, fill
from tests.servers.schema_change import gh_ost_statements, pt_online_schema_change
from tests.servers.server import Server

CHANGE = "ADD COLUMN extra INT NOT NULL DEFAULT 5"


class Stopping:
    """A load that a `with` block ends."""

    def __init__(self, load: Load) -> None:
        self.close = load.stop


@pytest.mark.parametrize("tool", [pt_online_schema_change, gh_ost_statements], ids=["pt-online-schema-change", "gh-ost"])
@pytest.mark.parametrize("ghosts", ["drop", "keep"])
def test_readers_see_the_table_change(
    any_server: Server, database: str, tmp_path: Path, seed: int, tool: Callable[[Server, str, str, str], None], ghosts: str
) -> None:
    """Under load: every row of the table comes once, with three columns before the swap of names and four behind it, and a copy of them
    is what SELECT says. Of the ghost tables nothing comes but the swap; all comes where it is asked for.

    No keys change: on MariaDB the tool's triggers run for rows that UPDATE IGNORE leaves alone, too, and so its table is another one.
    """
    fill(any_server, database, 3_000)
    with running(any_server, include=(f"{database}.*",), state=str(tmp_path), snapshot="never", ghost_tables=ghosts) as run:
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, n, t FROM t")
            rows = {row[0]: tuple(row) for row in cursor.fetchall()}
            with closing(Stopping(Load(any_server, database, seed, 2_000, pause=0.002, moves=False))):
                tool(any_server, database, "t", CHANGE)
            cursor.execute("INSERT INTO t (id, n, t) VALUES (9999, 1, 'behind')")
            cursor.execute("SELECT id, n, t, extra FROM t")
            expected = {row[0]: tuple(row) for row in cursor.fetchall()}
        events = [event for event in events_of(run, any_server) if event.entry in (EntryType.ROWS, EntryType.DDL)]
    widths = apply(events, rows)
    assert widths == sorted(widths)
    assert set(widths) == {3, 4}
    assert rows == {key: row[:3] for key, row in expected.items()}
    tables = {event.table.table for event in events if event.table is not None}
    swap = [event.sql for event in events if event.entry is EntryType.DDL and "rename" in event.sql.lower()]
    assert len(swap) == 1
    if ghosts == "drop":
        assert tables == {"t"}
        assert not [event.sql for event in events if event.entry is EntryType.DDL and event.props.get("table") not in ("t", None)]
    else:
        assert len(tables) > 1


def apply(events: list[Event], rows: dict[int, Any]) -> list[int]:
    """Bring `rows` up to date with the first three columns of t; return how many columns each event had."""
    widths = []
    for event in events:
        if event.table is None or event.table.table != "t":
            continue
        widths.append(len(event.table.columns))
        for before, after in event.rows:
            if before is not None:
                rows.pop(before[0], None)
            if after is not None:
                rows[after[0]] = tuple(after[:3])
    return widths


def test_the_tool_changes_a_table_that_nothing_else_reads(any_server: Server, database: str, tmp_path: Path) -> None:
    """A table of such a name is read where the table that it would belong to is not: then it is not a ghost table."""
    with running(any_server, include=(f"{database}._alone_old",), state=str(tmp_path)) as run:
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE _alone_old (id INT PRIMARY KEY)")
            cursor.execute("INSERT INTO _alone_old VALUES (1)")
        found = [event.table.table for event in events_of(run, any_server) if event.table is not None]
    assert found == ["_alone_old"]
