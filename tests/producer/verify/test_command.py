"""`shmstore verify`: what it prints, its exit codes, and what it asks for."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shmstore import Consumer, producer
from shmstore.cli.commands.verify import _of_postgresql, _Secret
from shmstore.cli.main import main
from shmstore.consumer.copies.reading.address import parse
from shmstore.producer.verify.verification import Verification
from tests.producer.running import Running, execute, running, wait_for
from tests.producer.snapping import fill
from tests.servers.server import Server


@pytest.fixture
def run(mariadb: Server, database: str, tmp_path: Path) -> Iterator[Running]:
    """A producer of a table of a thousand rows, and its copy in an SQLite file."""
    fill(mariadb, database, 1000)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy, copy:
        copy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, t TEXT)")
        copy.executemany("INSERT INTO t VALUES (?, ?, ?)", [(i, i % 97, f"row {i}") for i in range(1, 1001)])
    with running(mariadb, include=(f"{database}.*",), state=str(tmp_path), snapshot="never") as made:
        yield made


def words(run: Running, tmp_path: Path, *more: str) -> list[str]:
    settings = run.settings
    where = ["--host", settings.host, "--port", str(settings.port), "--user", settings.user, "--store", settings.store]
    return [
        "verify",
        *where,
        "--state",
        settings.state,
        "--include",
        settings.include[0],
        "--copy",
        f"sqlite:{tmp_path}/copy.db",
        *more,
    ]


def changed(tmp_path: Path, sql: str) -> None:
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy, copy:
        copy.execute(sql)


def test_equal_and_different(run: Running, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 and one line a table; 1 and each row that differs with both values, as text and as JSON."""
    assert main(words(run, tmp_path, "--at-rest")) == 0
    table, end = capsys.readouterr().out.splitlines()
    assert table.startswith(f"{database}.t: equal, 1,000 rows at GTID 0-1-")
    assert end.startswith("equal at GTID 0-1-")
    assert end.endswith(": 1 table, 1,000 rows")

    changed(tmp_path, "UPDATE t SET n = NULL, t = 'ROW 5' WHERE id = 5")
    changed(tmp_path, "DELETE FROM t WHERE id = 7")
    changed(tmp_path, "INSERT INTO t VALUES (2000, 1, 'more')")
    assert main(words(run, tmp_path, "--at-rest", "--tables", f"{database}.t")) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{database}.t: DIFFERENT, 3 rows of 1,000 in the source and 1,000 in the copy, 3 rows were compared again",
        "  id=5: n is NULL, in the source 5; t is 'ROW 5', in the source 'row 5'",
        "  id=7: not in the copy",
        "  id=2000: not in the source",
        "DIFFERENT: 1 of 1 table",
    ]
    assert main(words(run, tmp_path, "--at-rest", "--json")) == 1
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document["equal"], document["differences"], document["rows"]) == (False, 3, 1000)
    assert document["samples"][0]["key"] == {"id": 5}
    assert document["samples"][0]["copy"] == {"id": 5, "n": None, "t": "ROW 5"}
    assert document["samples"][1]["copy"] is None


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_comparison_that_is_ended(
    run: Running,
    database: str,
    tmp_path: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ends in order, says how it continues, and does not count as equal."""
    compare = Verification.verify
    before = signal.signal(number, lambda *_: pytest.fail("the command does not handle it"))

    def ended(self: Verification, *table: str) -> Any:
        os.kill(os.getpid(), number)
        return compare(self, *table)

    monkeypatch.setattr(Verification, "verify", ended)
    try:
        assert main(words(run, tmp_path, "--at-rest")) == 130
    finally:
        signal.signal(number, before)
    assert "the same command continues where it was" in capsys.readouterr().err


def test_repair_asks_for_the_rows_of_what_differs(
    run: Running, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request is of the tables that differ, and says that it repairs: its rows take the place of a copy's."""
    changed(tmp_path, "DELETE FROM t WHERE id = 7")
    with Consumer(run.settings.store, "copy", timeout=20) as consumer:
        assert main(words(run, tmp_path, "--at-rest", "--repair")) == 1
        assert f"asked for new rows of {database}.t (snapshot " in capsys.readouterr().err
        events = iter(event for batch in consumer for event in batch if event.props.get("snapshot_part") == "last")
        assert next(events).props["snapshot_reason"] == "repair"

    def done() -> bool:
        progress = producer.snapshot_status(run.settings.store, state=tmp_path)
        return progress is not None and not progress.open

    wait_for(done, "the snapshot")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--at-rest", "--tables", "no.such"), "no table matches no.such"),
        (
            (),
            "say which subscription feeds the copies (--subscription; the store has none), or that none does any more (--at-rest)",
        ),
        (("--copy", "dleta:/lake/{table}"), "'dleta:/lake/{table}' is not a copy location: give delta:PATH or URL"),
        (("--copy", "iceberg:/lake"), "'iceberg:/lake' names one place for all copies: put {table} into it"),
        (("--copy", "mysql:db1"), "'mysql:db1' names no server: give mysql://USER@HOST:PORT"),
        (("--copy", "mysql://db1#t"), "#t names a table without its database"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_says_what_to_do(
    run: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    """One line on stderr and exit code 2."""
    assert main(words(run, tmp_path, *more)) == 2
    assert said in capsys.readouterr().err


def test_a_command_prints_the_copys_password(
    run: Running, mariadb: Server, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is run for the copy's server and its account, not with the source's; one that fails is one line; with a file it is refused."""
    execute(mariadb, database, "CREATE USER verifier IDENTIFIED BY 'of-the-copy'", "GRANT ALL ON *.* TO verifier")
    where = f"{run.settings.host}:{run.settings.port}"
    command = f"echo $SHMSTORE_USER@$SHMSTORE_HOST:$SHMSTORE_PORT >> {tmp_path}/asked; echo of-the-copy"
    try:
        copy = ("--at-rest", "--copy", f"mysql://verifier@{where}", "--copy-password-command")
        assert main(words(run, tmp_path, *copy, command)) == 0
        assert set((tmp_path / "asked").read_text().splitlines()) == {f"verifier@{where}"}
        capsys.readouterr()
        assert main(words(run, tmp_path, *copy, "exit 3")) == 2
        assert f"no password for {where}: password_command ended with exit code 3" in capsys.readouterr().err
    finally:
        execute(mariadb, database, "DROP USER verifier")
    with pytest.raises(SystemExit, match="2"):
        main(words(run, tmp_path, *copy, command, "--copy-password-file", "x"))


def test_a_command_for_postgresql() -> None:
    """It knows the server by the URL."""
    command = "echo $SHMSTORE_USER@$SHMSTORE_HOST:$SHMSTORE_PORT"
    for url, wanted in (("postgresql://a%40b@db2:5433/x", "a@b@db2:5433"), ("postgresql:///x", "@localhost:5432")):
        assert _of_postgresql(url, _Secret(command=command)) == wanted
    assert _of_postgresql("postgresql://db2", _Secret("geheim")) == "geheim"
    with pytest.raises(ValueError, match="is for one server"):
        _of_postgresql("postgresql://a:1,b:2/x", _Secret(command=command))


def test_addresses() -> None:
    """Placeholders are filled in the place and in the table's name; names of tables have defaults."""
    assert parse("delta:s3://lake/{database}/{table}").of("shop", "orders") == ("delta", "s3://lake/shop/orders", "")
    for text in ("delta:/lake", "delta:///lake", "delta:/lake/"):
        assert parse(text).of("shop", "orders") == ("delta", "/lake/shop/orders", "")
    assert parse("parquet://lake").of("shop", "orders") == ("parquet", "lake/shop/orders", "")
    assert parse("duckdb:///a.duckdb").of("shop", "orders") == ("duckdb", "a.duckdb", "shop.orders")
    assert parse("duckdb:////data/a.duckdb#{table}").of("shop", "orders") == ("duckdb", "/data/a.duckdb", "orders")
    assert parse("iceberg:/w/{database}/{table}").of("shop", "orders") == ("iceberg", "/w/shop/orders", "")
    assert parse("iceberg:prod").of("shop", "orders") == ("iceberg", "prod", "shop.orders")
    for kind, name in (("duckdb", "shop.orders"), ("sqlite", "orders")):  # as SQLAlchemy writes them
        for text, path in (("///a.db", "a.db"), ("////data/a.db", "/data/a.db"), ("a.db", "a.db"), ("/data/a.db", "/data/a.db")):
            assert parse(f"{kind}:{text}").of("shop", "orders") == (kind, path, name)
        for text in ("//a.db", "//host/a.db", "///", "/////a.db"):
            with pytest.raises(ValueError, match=f"{kind}:///FILE is a file in the current folder, {kind}:////PATH is a path"):
                parse(f"{kind}:{text}")
    assert parse("postgresql://me@host:5432/db#{database}.{table}").of("shop", "orders") == (
        *("postgresql", "postgresql://me@host:5432/db", "shop.orders"),
    )
    assert parse("mariadb://me@host:3306").of("shop", "orders") == ("mariadb", "mariadb://me@host:3306", "shop.orders")
    assert parse("mysql://me@host/copies?tls=required#x_{table}").of("shop", "orders") == (
        *("mysql", "mysql://me@host/copies?tls=required", "copies.x_orders"),
    )
    assert parse("mysql://me@host/copies").name == "copies.{table}"
    for wrong in (
        "mysql://me:s3cret@host:x",
        "mysql://me:s3cret@host?tsl=required",
        "mysql://me:s3cret@host#t",
        "mysq://me:s3cret@h",
    ):
        with pytest.raises(ValueError, match=r"copy location|the URL of the database|names a table") as caught:
            parse(wrong)
        assert "s3cret" not in str(caught.value)
