"""The command itself on a real server, for each kind of target: random DDLs and changes, `kill -9` at random moments; the copies equal SELECT, and
`verify` says so."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.cli.commands.snapshot import page
from shmstore.home.reader_state import copies_aside, kept_batch
from shmstore.home.snapshots import request_snapshot, snapshot_status, snapshot_waits
from tests.consumer.copies.databases.servers import KINDS, Copies, copies
from tests.consumer.copies.lakes import DUCKDB, FORMATS, LocalCopies, read
from tests.consumer.copies.random_alters import Author
from tests.consumer.spark.comparison import texts
from tests.producer.running import running, wait_for, wait_for_position
from tests.servers.server import Server

pytestmark = [pytest.mark.server]
KILLS = int(os.environ.get("SHMSTORE_TEST_KILLS", "50"))
ALTERS = int(os.environ.get("SHMSTORE_TEST_ALTERS", "60"))
REST = 12  # DDLs between two comparisons
PATIENCE = 300.0  # seconds that all is waited for, on a busy machine
SUBSCRIPTION = "replicate"


class Proof:
    """A producer's store, and the command that keeps copies of its tables."""

    def __init__(self, run: Any, store: EventStore, server: Server, author: Author, folder: Path, target: Copies | str) -> None:
        self.run, self.store, self.server, self.author, self.folder, self.target = run, store, server, author, folder, target
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    @property
    def address(self) -> str:
        """As ``--to`` and ``--copy`` have it."""
        if isinstance(self.target, Copies):
            return self.target.address
        if self.target in ("delta", "parquet"):
            return f"{self.target}:{self.folder}/lake"
        return f"{self.target}:///{self.folder}/lake.duckdb"

    def start(self) -> None:
        """Start the command, with batches of any size."""
        words = [
            "replicate",
            self.run.settings.store,
            "--state",
            self.run.settings.state,
            "--to",
            self.address,
            "--zero-dates",
            "null",
        ]
        words += ["--batch", str(self.author.choose.choice([2_000, 20_000, 1 << 20]))]
        environment = {**os.environ, "SHMSTORE_COPY_PASSWORD": self.target.password if isinstance(self.target, Copies) else ""}
        self.process = subprocess.Popen([sys.executable, "-m", "shmstore", *words], env=environment, stderr=self.log.open("ab"))

    def stop(self) -> None:
        """Kill it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def kill(self) -> None:
        """Kill it at a random moment of its next batch, and start it again."""
        began = kept_batch(self.store.home, SUBSCRIPTION)
        author = self.author
        for _ in range(400):
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            if kept_batch(self.store.home, SUBSCRIPTION) != began:
                break
            author.change(author.choose.choice(author.tables))
            time.sleep(0.05)
        time.sleep(author.choose.uniform(0, 0.2))
        self.stop()
        self.kills += 1
        self.start()

    def settle(self) -> None:
        """Wait until all that the server logged, and every snapshot, is in the copies."""
        wait_for_position(self.server, self.store, PATIENCE, put=True)
        settings, deadline = self.run.settings, time.monotonic() + PATIENCE
        while True:
            newest = self.store.newest
            acked = {one.name: one.ack.sequence for one in self.store.stat().subscriptions}
            progress = snapshot_status(settings.store, state=settings.state)
            waits = snapshot_waits(settings.store, state=settings.state)
            still = not waits and not (progress is not None and progress.open) and self.store.newest == newest
            if still and acked.get(SUBSCRIPTION, -1) >= newest:
                return
            assert self.run.alive, self.run.wait()
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            assert time.monotonic() < deadline, (acked, newest, progress and page(progress, waits))
            time.sleep(0.1)

    def read(self, table: str, types: dict[str, str]) -> tuple[set[str], list[tuple[str, ...]]]:
        """A copy's columns and rows, as text."""
        if isinstance(self.target, Copies):
            names, rows = self.target.held(table, types)
        else:
            held = read(
                LocalCopies(self.folder, self.target, state=str(self.folder / "none")), self.target, table, self.author.database
            )
            names = sorted(held.column_names)
            rows = list(zip(*[held.column(name).to_pylist() for name in names], strict=True))
        return set(names), texts(names, types, rows)

    def compare(self, said: str) -> None:
        """Every copy has the columns and rows that SELECT shows, and `verify` says so. A table without rows may have no copy."""
        author, nul = self.author, set[str]()
        if isinstance(self.target, Copies) and self.target.kind == "postgresql":
            self.put_right(nul)
        self.stop()
        aside = copies_aside(self.store.home).get(SUBSCRIPTION, [])
        wanted = {table: author.rows(table) for table in author.tables if f"{author.database}.{table}" not in nul}
        full = [table for table, (_, rows) in wanted.items() if rows]
        assert not {f"{author.database}.{table}" for table in full} & set(aside), f"{said}: aside: {self.log.read_text()[-5000:]}"
        for table in full:
            found = self.read(table, author.types_of(table))
            assert found == wanted[table], f"{said}, {table}:\n" + "\n".join(author.log)
        if self.target in DUCKDB:  # no other process can have the file meanwhile
            self.verify(full, said)
            self.start()
        else:  # a server that holds the copies, too, may have more to read
            self.start()
            self.verify(full, said)

    def put_right(self, nul: set[str]) -> None:
        """As the log says of copies in PostgreSQL: what has text with U+0000 cannot have a copy; of what had, the rows are read again."""
        author, settings = self.author, self.run.settings
        names = {
            f"{author.database}.{table}": any("\0" in cell for row in author.rows(table)[1] for cell in row)
            for table in author.tables
        }
        nul |= {name for name, has in names.items() if has}
        if again := [name for name in copies_aside(self.store.home).get(SUBSCRIPTION, []) if names.get(name) is False]:
            request_snapshot(settings.store, again, state=settings.state)
            self.settle()

    def verify(self, tables: list[str], said: str) -> None:
        """Run the command."""
        settings = self.run.settings
        words = [
            "verify",
            "--host",
            settings.host,
            "--port",
            str(settings.port),
            "--user",
            settings.user,
            "--store",
            settings.store,
        ]
        words += ["--state", settings.state, "--include", settings.include[0], "--copy", self.address, "--zero-dates", "null"]
        words += ["--subscription", SUBSCRIPTION, "--tables", ",".join(f"{self.author.database}.{table}" for table in tables)]
        environment = {**os.environ, "SHMSTORE_COPY_PASSWORD": self.target.password if isinstance(self.target, Copies) else ""}
        done = subprocess.run([sys.executable, "-m", "shmstore", *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{said}\n{done.stdout}{done.stderr}"
        assert done.stdout.count(": equal, ") == len(tables), done.stdout


@contextmanager
def proof(server: Server, kind: str, database: str, folder: Path, seed: int, target: Copies | str) -> Iterator[Proof]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    author = Author(server, database, random.Random(seed), kind)
    try:
        options = {"state": str(folder / "state"), "include": (f"{database}.*",), "snapshot_chunk": 7}
        with running(server, **options) as run, EventStore.attach(run.settings.store) as store:
            made = Proof(run, store, server, author, folder, target)
            try:
                yield made
            finally:
                made.stop()
    finally:
        author.connection.close()
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {database}")


def prove(request: pytest.FixtureRequest, target: str, folder: Path, seed: int, kills: int, alters: int) -> None:
    """So many DDLs, and so many kills spread over them. The source is MySQL for copies in MySQL, else MariaDB."""
    kind = "mysql" if target == "mysql" else "mariadb"
    server, database = request.getfixturevalue(kind), f"proof_{target}"
    with ExitStack() as stack:
        place: Copies | str = target
        if target in KINDS:
            place = stack.enter_context(copies(target, server, "proof", folder))
        made = stack.enter_context(proof(server, kind, database, folder, seed, place))
        author = made.author
        made.start()
        wait_for(
            lambda: any(one.name == SUBSCRIPTION for one in made.store.stat().subscriptions), "the command to subscribe", PATIENCE
        )
        for number in range(4):
            author.create(f"t{number}")
            author.change(f"t{number}")
        rested = 0
        while author.altered < alters:
            author.alter(author.choose.choice(author.tables))
            for _ in range(author.choose.randrange(1, 4)):
                author.change(author.choose.choice(author.tables))
            while made.kills < kills * author.altered // alters:
                made.kill()
            if author.altered >= rested + REST:
                rested = author.altered
                made.settle()
                made.compare(f"seed {seed}, after {rested} DDLs and {made.kills} kills")
        made.settle()
        made.compare(f"seed {seed}")
        print(f"{target}: {author.altered} DDLs, {made.kills} kills")


def test_a_few_kills_and_ddls(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> None:
    """The same as at length, in small: into DuckDB."""
    prove(request, FORMATS[-1], tmp_path, seed, 2, 6)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", [*FORMATS, *KINDS])
def test_many_kills_and_ddls(request: pytest.FixtureRequest, tmp_path: Path, seed: int, target: str) -> None:
    """`SHMSTORE_TEST_ALTERS` DDLs (default 60) and `SHMSTORE_TEST_KILLS` kills (default 50) in each kind of target."""
    prove(request, target, tmp_path, seed, KILLS, ALTERS)
