"""Fixtures that all tests share: real servers, started once a session, and fresh databases on them.

A test that needs a server which cannot be had fails with the reason; it is never skipped. Tests that stop a server, change its
settings or need its whole binlog start one of their own with `start_server`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `tests.servers.server`, from wherever pytest was called

from tests.servers.server import Server, start_server  # noqa: E402

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """The release's MariaDB, shared by the session."""
    with start_server("mariadb") as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[Server]:
    """MySQL, shared by the session."""
    with start_server("mysql") as server:
        yield server


@pytest.fixture(scope="session", params=["mariadb", "mysql"])
def any_server(request: pytest.FixtureRequest) -> Server:
    """The test runs once on MariaDB, once on MySQL."""
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of a fresh, empty utf8mb4 database on the test's server (any_server, else mysql, else mariadb), dropped afterwards."""
    kind = next((name for name in ("any_server", "mysql") if name in request.fixturenames), "mariadb")
    server: Server = request.getfixturevalue(kind)
    name = f"t{os.getpid()}_{next(_numbers)}"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield name
    if server.pid == 0:
        return
    with server.connect() as connection, connection.cursor() as cursor:
        # A transaction that a failed test left open must not hang the next ones; the message then says which test it was.
        cursor.execute("SET SESSION lock_wait_timeout = 5")
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
