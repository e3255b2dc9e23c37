"""shmstore.producer.verify on real servers: equal copies are called equal while both change, and no broken one is."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shmstore import Consumer, EventType, StoreError
from shmstore.consumer.copies.reading import called
from shmstore.consumer.copies.reading.arrow_copies import parquet
from shmstore.consumer.copies.reading.called import CalledCopy
from shmstore.event import TableSchema
from shmstore.producer.verify.changed_rows import ChangedRows
from shmstore.producer.verify.result import VerifyProgress
from shmstore.producer.verify.verification import Verification
from tests.producer.running import Running, running, wait_for
from tests.producer.snapping import Load, fill
from tests.producer.verify.verifying import hurried, verified
from tests.servers.server import Server


class Kept:
    """A copy in memory that a consumer keeps up to date, in a thread."""

    def __init__(self, store: str, state: Path, key: int = 0) -> None:
        self.tables: dict[str, dict[Any, dict[str, Any]]] = {}
        self._lock, self._consumer = threading.Lock(), Consumer(store, "copy")
        self._key, self.loses = key, frozenset[Any]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for batch in self._consumer:
            with self._lock:
                for event in batch:
                    self._apply(event)

    def _apply(self, event: Any) -> None:
        if event.table is None:
            return
        rows, names = self.tables.setdefault(event.table.table, {}), event.table.names
        for row in event.rows:
            if (row.before or row.after)[self._key] in self.loses:
                continue
            if event.type in (EventType.UPDATE, EventType.DELETE):
                rows.pop(row.before[self._key], None)
            if row.after is not None:
                rows[row.after[self._key]] = dict(zip(names, row.after, strict=True))

    def read(self, table: TableSchema) -> list[dict[str, Any]]:
        with self._lock:
            return list(self.tables.get(table.table, {}).values())

    def read_slowly(self, table: TableSchema) -> Iterator[dict[str, Any]]:
        """Each row as it is when that is read, in the order of the keys."""
        last = -1
        while True:
            with self._lock:
                rows = self.tables.get(table.table, {})
                last = min((key for key in rows if key > last), default=-1)
                if last < 0:
                    return
                row = rows[last]
            yield row

    def close(self) -> None:
        self._consumer.stop()
        self._thread.join(30)
        self._consumer.close()


@contextmanager
def kept(server: Server, database: str, state: Path, rows: int) -> Iterator[tuple[Running, Kept]]:
    """A table of so many rows, whose copy a consumer keeps."""
    fill(server, database, rows)
    with running(server, include=(f"{database}.*",), snapshot="initial", state=str(state)) as run:
        copy = Kept(run.settings.store, state)
        with closing(copy):
            wait_for(lambda: len(copy.tables.get("t", ())) == rows, "the rows")
            yield run, copy


def test_a_copy_that_follows_is_equal_while_both_change(any_server: Server, database: str, tmp_path: Path, seed: int) -> None:
    """Under a load that changes, moves and deletes rows all the while: equal, with changes seen; and with one row taken from the
    copy, or one value off, that row is named with both values, whatever else changes."""
    with kept(any_server, database, tmp_path, 5_000) as (run, copy):
        load = Load(any_server, database, seed, 4_000)
        with closing(ExitLoad(load)):
            for _ in range(3):
                found = verified(run, lambda *_: CalledCopy(copy.read), database, subscription="copy")
                assert found.equal, found
            assert found.changed > 0

            def broken(table: TableSchema) -> list[dict[str, Any]]:
                rows = copy.read(table)
                return [{**row, "n": row["n"] + 1} if row["id"] == 4_500 else row for row in rows if row["id"] != 4_800]

            found = verified(run, lambda *_: CalledCopy(broken), database, subscription="copy")
    assert [each.key for each in found.samples] == [[4_500], [4_800]]
    assert found.differences == 2
    assert [(each.source is None, each.copy is None) for each in found.samples] == [(False, False), (False, True)]
    assert found.samples[0].source is not None
    assert found.samples[0].copy == [4_500, found.samples[0].source[1] + 1, "row 4500"]


@pytest.mark.parametrize("part", ["begin", "middle", "end"])
def test_a_change_that_the_copy_loses_meanwhile_is_found(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, part: str
) -> None:
    """Rows that changed behind their reading, and whose change the copy never took in, have equal old values on both sides: they are found all the
    same, and those whose change it did take in are not. The copy has each row as it is when that is read."""
    chosen = random.Random(seed)
    hurried(monkeypatch)
    monkeypatch.setattr(called, "BATCH_ROWS", chosen.randrange(20, 120))
    moment = {"begin": 0, "middle": chosen.randrange(1, 1_199), "end": 1_200}[part]
    with kept(any_server, database, tmp_path, 600) as (run, copy):
        numbers = chosen.sample(range(1, 601), 120)
        statements = {
            number: chosen.choice(("UPDATE t SET n = n + 1", "DELETE FROM t", "UPDATE t SET id = id + 10000"))
            for number in numbers
        }
        new = range(2_000, 2_040)
        lost = {*chosen.sample(numbers, 60), *chosen.sample(new, 20)}
        copy.loses = frozenset(lost)
        done = False

        def meanwhile(progress: VerifyProgress) -> None:
            nonlocal done
            if progress.doing == "reading" and progress.rows + progress.copied >= moment and not done:
                done = True
                with any_server.connect(database=database) as connection, connection.cursor() as cursor:
                    for number in numbers:
                        cursor.execute(f"{statements[number]} WHERE id = {number}")
                    for number in new:
                        cursor.execute(f"INSERT INTO t VALUES ({number}, 1, 'new')")

        found = verified(run, lambda *_: CalledCopy(copy.read_slowly), database, subscription="copy", progress=meanwhile)
    moved = {number + 10_000 for number in lost if "id + 10000" in statements.get(number, "")}
    assert done
    assert sorted([each.key[0] for each in found.samples]) == sorted(lost | moved)


class ExitLoad:
    def __init__(self, load: Load) -> None:
        self.close = load.stop


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("DROP TABLE t", "it was dropped, or renamed, while it was compared"),
        ("RENAME TABLE t TO elsewhere", "it was dropped, or renamed"),
        ("ALTER TABLE t DROP COLUMN n", ""),
    ],
    ids=["drop", "rename", "alter"],
)
def test_a_ddl_while_a_table_is_read_stops_no_other(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ddl: str, says: str
) -> None:
    """A table that goes is reported as not compared, one that changes is read again, and the next one is compared as ever."""
    hurried(monkeypatch)
    for name in ("t", "u"):
        fill(any_server, database, 300, name)
    left = [ddl]

    def meanwhile(progress: VerifyProgress) -> None:
        if left and progress.doing == "reading" and progress.rows == 100:
            with any_server.connect(database=database) as connection, connection.cursor() as cursor:
                cursor.execute(left.pop())

    def read(table: TableSchema) -> Iterator[dict[str, Any]]:
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(table.names)} FROM {table.table}")
            yield from [dict(zip(table.names, row, strict=True)) for row in cursor.fetchall()]

    with (
        running(any_server, include=(f"{database}.*",), state=str(tmp_path)) as run,
        Verification(run.settings, lambda *_: CalledCopy(read), subscription=None, progress=meanwhile) as verification,
    ):
        found = [verification.verify(database, name) for name in ("t", "u")]
        assert not left
        assert (says in found[0].problem, bool(found[0].problem), found[0].rows) == (True, bool(says), 0 if says else 300)
        assert (found[1].equal, found[1].rows) == (True, 300)
        assert not list((tmp_path / run.settings.store / "verify").iterdir())


def test_a_copy_that_is_behind_an_alter_is_waited_for(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that takes in the ALTER only when the comparison waits for it lacks a column before; it is not refused for that."""
    fill(any_server, database, 300)
    names = ["id", "n", "t"]

    def read(table: TableSchema) -> Iterator[dict[str, Any]]:
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(names)} FROM t")
            yield from [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    with (
        running(any_server, include=(f"{database}.*",), state=str(tmp_path)) as run,
        Consumer(run.settings.store, "copy") as consumer,
    ):

        def follow() -> None:
            for batch in consumer:
                names.extend(["more" for event in batch if event.type is EventType.ALTER])

        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("ALTER TABLE t ADD COLUMN more INT DEFAULT 5")
        following, wait = threading.Thread(target=follow, daemon=True), Verification._wait

        def waiting(self: Verification, behind: Callable[[], str], changes: ChangedRows) -> None:
            if not following.ident:
                following.start()
            wait(self, behind, changes)

        monkeypatch.setattr(Verification, "_wait", waiting)
        found = verified(run, lambda *_: CalledCopy(read), database, subscription="copy")
        consumer.stop()
        following.join(30)
    assert (found.problem, found.equal, found.rows, found.table.names) == ("", True, 300, ("id", "n", "t", "more"))


def test_a_key_that_is_hashed(any_server: Server, database: str, tmp_path: Path) -> None:
    """What differs, and what changed meanwhile, is found though the server cannot be asked for a hash."""
    fill(any_server, database, 200)
    left = ["UPDATE t SET n = n + 1 WHERE id = 100"]
    with running(any_server, include=(f"{database}.t",), column_hash=(f"{database}.t.id",), state=str(tmp_path)) as run:

        def read(table: TableSchema) -> Iterator[dict[str, Any]]:
            with any_server.connect(database=database) as connection, connection.cursor() as cursor:
                while left:
                    cursor.execute(left.pop())
                cursor.execute("SELECT sha2(id, 256), n, t FROM t")
                for key, n, t in cursor.fetchall():
                    yield {"id": key, "n": n + (t == "row 50"), "t": t}

        found = verified(run, lambda *_: CalledCopy(read), database)
        assert [(each.source or each.copy or [])[2] for each in found.samples] == ["row 50"]


def test_what_cannot_be_compared_says_why(mariadb: Server, database: str, tmp_path: Path) -> None:
    """No copy, no key, a column with the wrong kind, a subscription that does not exist, one that does not read on, no producer."""
    with kept(mariadb, database, tmp_path, 100) as (run, copy):
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE keyless (a INT)")
        assert "there is no copy" in verified(run, lambda *_: parquet(str(tmp_path / "none")), database).problem
        assert "no primary key" in verified(run, lambda *_: CalledCopy(copy.read), database, "keyless").problem
        assert "no such table" in verified(run, lambda *_: CalledCopy(copy.read), database, "gone").problem
        wrong = CalledCopy(lambda table: [{**row, "n": "seven"} for row in copy.read(table)])
        assert "'seven' is no integer" in verified(run, lambda *_: wrong, database).problem
        with pytest.raises(ValueError, match="no subscription 'other' that feeds the copies: it has copy"):
            verified(run, lambda *_: CalledCopy(copy.read), database, subscription="other")
        copy.close()
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1000, 1, 'later')")
        with pytest.raises(StoreError, match=r"the copy has not taken in event .*subscription 'copy'.* is its query running\?"):
            verified(run, lambda *_: CalledCopy(copy.read), database, subscription="copy", patience=2.0)
        run.stop()
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1001, 1, 'unseen')")
        with pytest.raises(StoreError, match="no producer runs on store"):
            verified(run, lambda *_: CalledCopy(copy.read), database, patience=2.0)


KILLED = """
import json, os, sys
from shmstore import producer
from shmstore.consumer.copies.databases.target import database_target
from shmstore.consumer.copies.reading.arrow_copies import parquet
from shmstore.producer.verify import source_rows, verification
from shmstore.producer.verify.verification import Verification
settings, database, place, most = producer.Settings(**json.loads(sys.argv[1])), sys.argv[2], sys.argv[3], int(sys.argv[4])
source_rows.FIRST_ROWS = source_rows.MOST_ROWS = 1000
verification.SAVE = -1
pieces = []
def progress(done):
    if done.doing == "reading" and done.rows not in pieces:
        pieces.append(done.rows)
    if len(pieces) == most:
        os.kill(os.getpid(), 9)
with Verification(settings, lambda *_: parquet(place), subscription=None, progress=progress) as comparing:
    found = comparing.verify(database, "t")
print(json.dumps([found.rows, found.differences, [each.key for each in found.samples], len(pieces)]))
"""


def test_after_kill_9_it_goes_on_where_it_was(mariadb: Server, database: str, tmp_path: Path) -> None:
    """Killed after 5 of 20 pieces it reads the other 15; what changed between is noted, and what is broken is found."""
    fill(mariadb, database, 20_000)
    options: dict[str, Any] = {"include": (f"{database}.*",), "state": str(tmp_path), "snapshot": "never"}
    with running(mariadb, **options) as run, mariadb.connect(database=database) as connection, connection.cursor() as cursor:
        place = tmp_path / "copy.parquet"

        def copy(broken: bool) -> None:
            cursor.execute("SELECT * FROM t")
            rows = [list(row) for row in cursor.fetchall()]
            rows[777][1] += broken
            ids, n, t = zip(*rows, strict=True)
            pq.write_table(pa.table({"id": pa.array(ids, pa.int32()), "n": pa.array(n, pa.int32()), "t": t}), place)

        own = {**options, "store": run.settings.store, "host": mariadb.host, "port": mariadb.port, "user": mariadb.user}

        def outcome(most: int) -> subprocess.CompletedProcess[str]:
            words = [json.dumps(own), database, str(place), str(most)]
            return subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True, timeout=120)

        copy(broken=False)
        assert outcome(5).returncode == -9
        cursor.execute("UPDATE t SET n = n + 1 WHERE id IN (10, 15000)")  # one is read already, one is not
        cursor.execute("DELETE FROM t WHERE id = 20")
        copy(broken=True)
        done = outcome(0)
        assert done.returncode == 0, done.stderr
        rows, differences, keys, pieces = json.loads(done.stdout)
        assert (rows - 20_000 in (0, -1), differences, keys, pieces) == (True, 1, [[779]], 15)
        assert not list((tmp_path / run.settings.store / "verify").iterdir())
