"""Processes that write to the same copies: one that is killed at any moment, and two at a time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore.consumer.copies.databases import sqlite
from shmstore.consumer.copies.databases.table import DatabaseTable
from shmstore.encoding.codec import encode
from tests.consumer.copies.databases.changes import WIDER, Batch, batches, copies_in
from tests.consumer.copies.databases.servers import KINDS, Copies, copies, text
from tests.consumer.spark.events import Binlog, order_row

pytestmark = [pytest.mark.server]
ROOT = Path(__file__).resolve().parents[4]
PATIENCE = 120.0


@pytest.fixture(autouse=True)
def own_state(state: Path) -> None:
    """Which copies are aside is kept in the test's own folder."""


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copies]:
    kind = request.param
    server = request.getfixturevalue(kind) if kind in ("mariadb", "mysql") else None
    with copies(kind, server, "twice", tmp_path) as made:
        yield made


def test_a_second_process_waits_and_finds_the_marks(
    target: Copies, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While one writes a batch, another that has the same waits, also behind a DDL that commits; then it sees that all is done, and how the
    table is now."""
    monkeypatch.setattr(sqlite, "_WAIT_SECONDS", 0.1)
    binlog, merges, wrong = Binlog(), list[str](), list[BaseException]()
    inside, proceed = threading.Event(), threading.Event()
    first, second = (copies_in(target.url, target.password, target.template) for _ in range(2))
    begin = [encode(event) for event in binlog.insert(order_row(1))]
    events = [*binlog.ddl("ALTER TABLE orders ADD COLUMN extra VARCHAR(20)"), *binlog.insert((*order_row(2), "b"), table=WIDER)]
    batch = [encode(event) for event in events]
    last = [encode(event) for event in binlog.update(((*order_row(2), "b"), (*order_row(2), "c")), table=WIDER)]
    for made in (first, second):
        made.apply(begin, "q", 0)
    real = DatabaseTable._merge

    def merge(table: DatabaseTable, step: Any) -> None:
        merges.append(threading.current_thread().name)
        inside.set()
        assert proceed.wait(PATIENCE)
        real(table, step)

    def run(made: Any) -> None:
        try:
            made.apply(batch, "q", 1)
        except BaseException as error:
            wrong.append(error)

    monkeypatch.setattr(DatabaseTable, "_merge", merge)
    threads = [threading.Thread(target=run, args=(made,), name=name) for made, name in ((first, "first"), (second, "second"))]
    threads[0].start()
    try:
        assert inside.wait(PATIENCE)
        threads[1].start()
        until = time.monotonic() + PATIENCE
        while "another process writes to" not in caplog.text and time.monotonic() < until and not wrong:
            time.sleep(0.05)
    finally:
        proceed.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join(PATIENCE)
    assert not wrong
    assert merges == ["first"]
    assert "another process writes to" in caplog.text
    second.apply(last, "q", 2)
    wanted = [(*order_row(1), None), (*order_row(2), "c")]
    assert target.select("orders") == sorted(tuple(map(text, row)) for row in wanted)
    for made in (first, second):
        made._target.close()


def killed(target: Copies, seed: int, count: int, kills: int) -> None:
    """Apply so many batches in a process that is killed so often, at a random moment behind a random batch; the copy equals the model.

    After each kill it has what its mark says, and all that the process reported: rows and mark are of one transaction.
    """
    choose = random.Random(seed)
    command = [
        sys.executable,
        "-m",
        "tests.consumer.copies.databases.changes",
        target.url,
        target.template,
        str(seed),
        str(count),
    ]
    environment = {**os.environ, "SHMSTORE_COPY_PASSWORD": target.password}
    model = list(batches(Binlog(), seed, count, ddl=True))
    done = -1
    for left in range(kills, -1, -1):
        behind = min(count - 2, done + choose.randint(1, max(2, count // (kills + 1))))
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                done = max(done, int(line))
                if left and int(line) >= behind:
                    time.sleep(choose.uniform(0, 0.03))
                    process.kill()
                    break
        assert left or process.returncode == 0
        if (
            target.kind in ("postgresql", "sqlite") and "orders" in target.tables()
        ):  # in the others a DDL commits what was before it
            ((mark,),) = target.query(
                f"SELECT version FROM {target.name('_shmstore_marks')} WHERE query = 'q' AND name = 'orders'"
            )
            number, step = divmod(int(mark), 1 << 16)
            assert step == (1 << 16) - 1, "a part of a batch"
            assert not [batch for batch in model[number + 1 : done + 1] if batch.transactions], (
                f"{done} was done, and the mark is {number}"
            )
            assert target.select("orders") == texts(model[number]), f"seed {seed}, mark {number}"
    assert target.select("orders") == texts(model[-1]), f"seed {seed}"


def texts(batch: Batch) -> list[tuple[str, ...]]:
    """The rows after a batch, as `Copies.select` has them."""
    return sorted(tuple(map(text, row)) for row in batch.rows)


@pytest.mark.parametrize("target", ["postgresql", "sqlite"], indirect=True)
def test_a_process_that_is_killed_repeats_nothing_and_loses_nothing(target: Copies, seed: int) -> None:
    """Every batch lands once, wherever the kill comes."""
    killed(target, seed, 60, 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_process_that_is_killed_often(target: Copies, seed: int) -> None:
    """The same with `SHMSTORE_TEST_KILLS` kills (default 20)."""
    kills = int(os.environ.get("SHMSTORE_TEST_KILLS", "20"))
    killed(target, seed, 20 * kills, kills)
