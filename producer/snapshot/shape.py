"""How a table is read: its key, its columns and rows after filters and request, as one SELECT."""

from __future__ import annotations

from typing import NamedTuple

from shmstore import UnsupportedEvent
from shmstore.clock import calendar_ms
from shmstore.encoding.codec import decode_schema, encode_schema
from shmstore.home.snapshot_progress import SnapshotRequest, Task
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.filters.part import Part
from shmstore.producer.filters.table_filter import TablePlan
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.select import Selection, selection
from shmstore.producer.snapshot.tables import defined_as, read_table
from shmstore.producer.transactions.decoder import EventDecoder


class Shape(NamedTuple):
    """A table as it is read: the SELECT, and how its rows become events."""

    selected: Selection
    blob: bytes  # of the schema, as the table has it
    plan: TablePlan
    by: tuple[str, ...]  # the key's columns
    key_indexes: tuple[int, ...]  # of these in the rows that are selected
    hashed: frozenset[int] = frozenset()  # those of these that column filters hash
    partial: str = ""  # what the events have a part of: rows, columns
    seen_as: tuple[str, str] = ("", "")  # database and table, as readers know it
    origin: str | None = (
        None  # what its rows have in the column that says from which table a row is; None: there is no such column
    )

    @property
    def present(self) -> list[int] | None:
        """The columns of the rows, as an event's body says it; None: all of the table's."""
        shown = self.selected.shown
        return None if len(shown) == len(self.selected.table.schema.columns) else list(shown)

    @property
    def schema(self) -> bytes:
        """The schema as events carry it."""
        return self.blob if self.plan.blob is None else self.plan.blob


class NotRead(NamedTuple):
    """Why a table is not read: the state that its task comes to, and the problem."""

    state: str
    problem: str


def shape_of(
    session: ServerSession, settings: Settings, decoder: EventDecoder, request: SnapshotRequest, task: Task
) -> Shape | NotRead:
    """Return how the table of `task` is read now, and note in `task` what that is. Raises `SourceError`."""
    table = read_table(session, task.database, task.table, history=settings.schema_history)
    if table is None:
        return NotRead("gone", "there is no such table any more")
    table = defined_as(table, decoder.known(task.database, task.table))
    blob = encode_schema(table.schema)
    merged = decoder.merged
    try:
        plan, seen_as = merged.plan(decoder.filter, table.schema, blob), merged.seen_as(task.database, task.table)
    except UnsupportedEvent as error:
        return NotRead("failed", str(error))
    key = table.key.columns if table.key else ()
    by = tuple([table.schema.columns[i].name for i in key])
    names = (table.schema if plan.blob is None else decode_schema(plan.blob)).names
    masked = [table.schema.columns[i].name for i, hashed in plan.change if i in key and not hashed]
    if lost := [name for name in by if name not in names or name in masked]:
        return NotRead("failed", f"its key needs column {lost[0]}, which column filters take out or mask")
    try:
        part = Part.read(request.where, request.columns)
        shown = part.shown(table.schema, key, plan)
        rows = decoder.filter.condition(table.schema, blob), part.condition(table.schema, plan)
    except UnsupportedEvent as error:
        return NotRead("failed", str(error))
    task.began_ms = task.began_ms or calendar_ms()
    task.estimate = 0 if request.where else table.rows
    selected = selection(table, *rows, shown=shown)
    hashed = frozenset(i for i, is_hashed in plan.change if is_hashed).intersection(key)
    places, partial = tuple([shown.index(i) for i in key]), part.partial(table.schema, shown, plan)
    at = frozenset(shown.index(i) for i in hashed)
    origin = f"{task.database}.{task.table}" if merged.renaming.origin and task.target else None
    return Shape(selected, blob, plan, by, places, at, partial, seen_as, origin)
