"""A micro-batch that executors reduce: the driver decides as it does by the events themselves, and no row comes to it. No Spark is started here."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from shmstore import Column, Event, EventType, TableSchema
from shmstore.consumer.copies.change_reduction import Last, Merge, Reread, RowsElsewhere, Step, TableChanges, Versions, collect
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.targets.keyed_rows import BECOMES, DELETE
from shmstore.consumer.spark.replicate import event_runs
from shmstore.consumer.spark.replicate.event_runs import RunChanges, reducer
from shmstore.encoding.codec import encode
from shmstore.patterns.table_patterns import Patterns
from tests.consumer.spark.events import ORDERS, Binlog, order_row

TABLES = CopiedTables("none", "spark", Patterns.of_tables("shop.*"))
OTHER = ORDERS._replace(table="other")
BYTES = 2000  # of a row that the driver collects, at most


class LocalRuns:
    """`RunSource` in this process: `events`, in stretches, each as a task has it, in batches."""

    def __init__(self, events: list[Event], choose: random.Random, history: bool = False) -> None:
        payloads = [encode(event) for event in events]
        cuts = sorted({0, len(events), *(choose.randrange(len(events)) for _ in range(choose.randrange(4)))})
        self.rows = list[SimpleNamespace]()
        for first, end in pairwise(cuts):
            table = pa.table(
                [
                    pa.array(range(first, end), pa.int64()),
                    pa.array(payloads[first:end], pa.binary()),
                    pa.nulls(end - first, pa.string()),
                ],
                ["sequence", "payload", "source"],
            )
            batches = table.to_batches(max_chunksize=choose.randrange(1, 9))
            for made in reducer(TABLES, {}, history)(iter(batches)):
                self.rows += [SimpleNamespace(**row) for row in made.to_pylist()]

        self.found = sorted((row for row in self.rows if row.event is not None), key=lambda row: row.first)
        self.kind = partial(RunChanges, self, self.found)

    def events(self) -> list[bytes]:
        return [row.event for row in self.found]

    def blocks(self, step: RowsElsewhere) -> list[dict[str, Any]]:
        """The rows of a step's runs, in their order."""
        data = [row.data for first in step.runs for row in self.rows if row.first == first and row.data is not None]
        return [row for block in data for row in pa.ipc.open_stream(block).read_all().to_pylist()]


def story(
    binlog: Binlog, choose: random.Random, length: int, there: dict[str, set[int]] | None = None, *, followed: bool = False
) -> list[Event]:
    """Transactions on two tables, with what ends a run between them; with `followed` only what a copy follows. `there` are the keys in the tables."""
    there = {"orders": set(), "other": set()} if there is None else there
    events: list[Event] = []
    for _ in range(length):
        table = choose.choice([ORDERS, OTHER])
        ids, new = there[table.table], choose.randrange(9)
        old = choose.choice(sorted(ids)) if ids else None
        what = choose.randrange(12)
        if what == 0:
            events += binlog.ddl(f"truncate table shop.{table.table}", EventType.TRUNCATE)
            ids.clear()
        elif what == 1:
            events += binlog.ddl(choose.choice(["create table x (a int)", f"alter table shop.{table.table} comment 'x'"]))
        elif what == 2 and not followed:
            part = choose.choice(["first", "", "last", "whole"])
            events += binlog.read(part, order_row(new), table=table, partial=choose.choice(["", "", "where"]))
        elif what == 3 and not followed:
            events += choose.choice(
                [binlog.filters(tables_changed=f"shop.{table.table}"), binlog.filters(tables_out="shop.other")]
            )
        elif old is None or (new not in ids and choose.random() < 0.5):
            events += binlog.insert(order_row(new), table=table) if new not in ids else []
            ids.add(new)
        elif choose.random() < 0.3:
            events += binlog.delete(order_row(old), table=table)
            ids.remove(old)
        else:
            to = old if new in ids else new
            events += binlog.update((order_row(old), order_row(to, status=str(choose.randrange(9)))), table=table)
            ids ^= {old, to} if to != old else set()
    return events


def merged(step: Step, runs: LocalRuns) -> Any:
    """What a step does, in a form that can be compared."""
    if isinstance(step, RowsElsewhere):
        found = dict[Any, Any]()
        for row in runs.blocks(step):
            gone = row.pop(BECOMES) == DELETE
            found[row["id"]] = None if gone else row
        return step.keys, found
    if isinstance(step, Merge):
        kept = {row["id"]: row for row in step.upserts.to_pylist()}
        return step.keys, {**kept, **dict.fromkeys(step.deletes.column("id").to_pylist())}
    return step


def test_the_driver_decides_as_by_the_events(binlog: Binlog, seed: int) -> None:
    """The same steps, of the same rows, whatever tasks the events are cut into; each collected row is small."""
    choose = random.Random(seed)
    for _ in range(60):
        events = story(binlog, choose, choose.randrange(1, 40))
        runs = LocalRuns(events, choose)
        given: dict[str, Any] = {"selection": TABLES, "keys": {}, "history": False, "copies": lambda _: [("shop", "orders")]}
        wanted = collect([encode(event) for event in events], **given)
        found = collect(runs.events(), **given, kind=runs.kind)
        assert set(found) <= set(wanted)
        for name, change in wanted.items():
            steps = found[name].finish() if name in found else []
            assert [merged(step, runs) for step in steps] == [merged(step, runs) for step in change.finish()], f"seed {seed}"
            if name in found:
                assert (found[name].rows, found[name].known) == (change.rows, change.known)
        assert all(len(row.event) < BYTES for row in runs.rows if row.event is not None)


def test_a_history_has_the_versions_of_its_runs(binlog: Binlog, seed: int) -> None:
    """Of one task they are those that the driver makes."""
    choose = random.Random(seed)
    events = story(binlog, choose, 60)
    runs = LocalRuns(events, choose, history=True)
    given: dict[str, Any] = {"selection": TABLES, "keys": {}, "history": True, "copies": lambda _: []}
    wanted = collect([encode(event) for event in events], **given)
    found = collect(runs.events(), **given, kind=runs.kind)
    for name, change in wanted.items():
        for step, other in zip(found[name].finish() if name in found else [], change.finish(), strict=True):
            if isinstance(other, Versions):
                seqs = [row["_seq"] for row in runs.blocks(cast(RowsElsewhere, step)) if row[BECOMES] != DELETE]
                assert sorted(seqs) == sorted(other.versions.column("_seq").to_pylist())


@pytest.mark.parametrize(
    "table", [ORDERS._replace(primary_key=()), TableSchema("shop", "orders", (Column("id", "int"), Column("day", "date")), (0,))]
)
def test_rows_that_cannot_be_taken_are_a_reason(binlog: Binlog, table: TableSchema) -> None:
    """A table without a key, a date that is none: the copy is set aside as where the driver reduces, with the same reason."""
    row = order_row(1) if len(table.columns) > 2 else (1, "0000-00-00")
    events = [*binlog.insert(row, table=table), *binlog.insert(row, table=table), *binlog.insert(order_row(1), table=OTHER)]
    reasons, runs = [], LocalRuns(events, random.Random(1))
    for payloads, kind in (([encode(event) for event in events], TableChanges), (runs.events(), runs.kind)):
        found = collect(payloads, TABLES, {}, False, lambda _: [], kind=kind)
        (step,) = [step for step in found["shop", "orders"].finish() if isinstance(step, Reread)]
        assert step.help
        reasons.append(step.reason)
        assert len(found["shop", "other"].finish()) == 1
    assert reasons[0] == reasons[1]


def test_an_executor_holds_a_bounded_part(binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end after some bytes of events, and rows are in blocks of some size."""
    monkeypatch.setattr(event_runs, "RUN_BYTES", 2000)
    monkeypatch.setattr(event_runs, "BLOCK_ROWS", 3)
    runs = LocalRuns(
        [event for n in range(60) for event in binlog.insert(*[order_row(8 * n + i) for i in range(8)])], random.Random(1)
    )
    (change,) = collect(runs.events(), TABLES, {}, False, lambda _: [], kind=runs.kind).values()
    (step,) = change.finish()
    assert isinstance(step, RowsElsewhere)
    assert len(step.runs) > 5
    assert len(runs.blocks(step)) == change.rows == 480
    assert max(pa.ipc.open_stream(row.data).read_all().num_rows for row in runs.rows if row.data is not None) == 3
    assert not isinstance(step, Last | TableChanges)
