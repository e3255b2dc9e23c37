"""The order of Spark's calls: what a reader may take from it, in each version, when Spark is killed between any two of its steps.

`MicroBatches` goes through the steps of one streaming query as MicroBatchExecution of Spark 4.0 and 4.1 does, and stops between any two; the
last tests kill the process that a real Spark calls, in each of its calls, in whichever version is installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shmstore import EventStore, StoreFull
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import OptionError, SourceOptions
from shmstore.consumer.spark.source.call_order import CallOrderReader
from shmstore.consumer.spark.source.partition import Range, SharedPartition
from tests.consumer.spark.events import Binlog, order_row
from tests.consumer.spark.killed_source import CALLS, KilledSource
from tests.consumer.spark.queries import Query


class MicroBatches:
    """A query and its checkpoint: offset log and commit log by batch, and a sink that keeps the keys of each batch's rows."""

    def __init__(self, store: EventStore, **options: str) -> None:
        self._decoder = Decoder(SourceOptions.parse({"store": store.name, **options}))
        self._store = store
        self.offsets: dict[int, str] = {}
        self.commits: set[int] = set()
        self.sink: dict[int, list[str]] = {}
        self.reader: CallOrderReader | None = None

    @property
    def committed(self) -> int:
        """The last event of the last batch in the commit log."""
        return max((json.loads(self.offsets[batch])["seq"] for batch in self.commits), default=-1)

    def run(self, trigger: str, *, ignores: bool = False) -> Iterator[str]:
        """Start the query; yield before each step. `trigger`: processing, once (AvailableNow is that), or wrapped, which is
        AvailableNow with the wrapper. A sink that `ignores` the batch's rows has them from elsewhere.
        """
        self.reader = reader = CallOrderReader(self._decoder)
        yield "start"
        fetched = json.dumps(reader.latestOffset()) if trigger == "wrapped" else ""
        yield "restart"
        start, batch, constructed = "", 0, False
        if self.offsets:
            batch = max(self.offsets)
            seen = self.offsets[batch]
            reader.partitions(json.loads(seen), json.loads(seen))
            yield "seen"
            start, constructed = self.offsets.get(batch - 1, ""), True
            if batch in self.commits:
                start, batch, constructed = seen, batch + 1, False
        while True:
            if not constructed:
                if trigger == "wrapped":
                    end = fetched
                    start = start or json.dumps(reader.initialOffset())
                    reader.latestOffset()  # for the progress report
                else:
                    end = json.dumps(reader.latestOffset())
                yield "latestOffset"
                if end != start:
                    self.offsets[batch] = end
                    yield "offset log"
                    if batch:
                        reader.commit(json.loads(self.offsets[batch - 1]))
                        yield "commit"
                    constructed = True
            if constructed:
                end = self.offsets[batch]
                first = start or json.dumps(reader.initialOffset())
                yield "initialOffset"
                if ignores:
                    events = Range.of(self._store, json.loads(first)["seq"] + 1, json.loads(end)["seq"])
                    planned: list[Any] = [SharedPartition(events)]
                else:
                    planned = reader.partitions(json.loads(first), json.loads(end))
                    yield "partitions"
                found = [key for one in planned for rows in reader.read(one) for key in rows.column("pk").to_pylist()]
                yield "read"
                assert self.sink.get(batch, found) == found, "a batch that runs again has the same rows"
                self.sink[batch] = found
                yield "sink"
                self.commits.add(batch)
                yield "commit log"
                start, batch, constructed = end, batch + 1, False
            elif trigger == "wrapped":
                return
            if trigger == "once":
                return

    def rows(self) -> list[str]:
        """The keys of all rows, in order."""
        return [key for batch in sorted(self.sink) for key in self.sink[batch]]


RUNS = st.lists(
    st.tuples(
        st.sampled_from(["processing", "processing", "once", "wrapped"]), st.booleans(), st.integers(1, 40), st.integers(0, 9)
    ),
    max_size=8,
)


@settings(max_examples=60, phases=[Phase.generate])
@given(RUNS, st.booleans(), st.sampled_from([{}, {"maxRowsPerTrigger": "3"}, {"maxBytesPerTrigger": "1k"}]), st.booleans())
def test_nothing_is_lost_or_repeated_between_any_two_steps(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[str, bool, int, int]],
    ignores_at_last: bool,
    limit: dict[str, str],
    log: bool,
) -> None:
    """A query that ends between any two of Spark's steps, and is started again with any trigger, has each row once; nothing is acked
    before its batch is in the commit log."""
    home, name, binlog = str(tmp_path_factory.mktemp("home")), f"order-{os.getpid()}", Binlog()
    more = {"state": home} if log else {"log": False}
    number = 0
    with EventStore.create(name, capacity=64, **more) as store:  # type: ignore[arg-type]
        query = MicroBatches(store, transport="shm", stateDirectory=home, **limit)

        def put(count: int) -> None:
            nonlocal number
            with suppress(StoreFull):
                for _ in range(count):
                    store.put(binlog.insert(order_row(2 * number), order_row(2 * number + 1)), timeout=0)
                    number += 1

        def check() -> None:
            for one in store.subscriptions():
                assert one.ack.sequence <= query.committed, "acked before it is committed"

        try:
            for trigger, ignores, steps, count in runs:
                if trigger == "wrapped" and (limit or not log):
                    trigger = "once"
                put(count)
                for _, step in zip(range(steps), query.run(trigger, ignores=ignores), strict=False):
                    check()
                    if step == "partitions":
                        put(1)
                query.reader.stop()  # type: ignore[union-attr]
            more_steps = 30  # after the last row, for what would come twice
            for _, _ in zip(range(3000), query.run("processing", ignores=ignores_at_last), strict=False):
                check()
                more_steps -= len(query.rows()) >= 2 * number
                if not more_steps:
                    break
            query.reader.stop()  # type: ignore[union-attr]
            assert query.rows() == [f'{{"id":{n}}}' for n in range(2 * number)]
        finally:
            EventStore.unlink(name, log=True)


def test_the_wrapper_of_available_now_is_refused_where_it_would_go_back(
    store: EventStore, store_name: str, binlog: Binlog
) -> None:
    """Spark's wrapper plans before it says where the query is: with a limit that may be behind it, and the error names the setting."""
    for n in range(6):
        store.put(binlog.insert(order_row(n)))
    reader = CallOrderReader(Decoder(SourceOptions.parse({"store": store_name, "maxRowsPerTrigger": "1"})))
    planned = reader.latestOffset()
    seen = {**planned, "seq": planned["seq"] + 6}
    with pytest.raises(OptionError, match=r"triggerAvailableNowWrapper\.enabled=false, or leave out maxRowsPerTrigger"):
        reader.partitions(seen, seen)
    reader.stop()


# ---------------------------------------------------------------- a real Spark


@pytest.mark.spark
@pytest.mark.parametrize(
    "log",
    [pytest.param(True, id="log", marks=pytest.mark.every_spark), pytest.param(False, id="ring", marks=pytest.mark.long)],
)
def test_kills_of_the_process_that_spark_calls(spark: Any, store_name: str, tmp_path: Path, binlog: Binlog, log: bool) -> None:
    """The process is killed in each call of its, before and after it did its work, and the sink fails before and after it wrote: each row
    is there once, and a batch that runs again is the same."""
    home = str(tmp_path / "home")
    more = {"state": home} if log else {"log": False}
    spark.dataSource.register(KilledSource)
    number = 0
    with EventStore.create(store_name, capacity=256, **more) as store:  # type: ignore[arg-type]
        query = Query(
            spark,
            store_name,
            tmp_path / "checkpoint",
            format="killed",
            stateDirectory=home,
            maxRowsPerTrigger="2",
            kill=str(tmp_path / "kill"),
        )
        try:
            for call in [*CALLS, "sink before", "sink after"]:
                for _ in range(3):
                    store.put(binlog.insert(order_row(number)), timeout=30)
                    number += 1
                written = dict(query.batches)
                if call.startswith("sink"):
                    query.fail_at, query.fails_before = max(query.batches) + 1, call == "sink before"
                else:
                    (tmp_path / "kill").write_text(call)
                query.start()
                query.await_error()
                assert not (tmp_path / "kill").exists(), f"{call} was not called"
                assert all(query.batches[batch] == rows for batch, rows in written.items()), call
            query.start()
            assert [row.pk for row in query.await_rows(number)] == [f'{{"id":{n}}}' for n in range(number)]
        finally:
            query.stop()
