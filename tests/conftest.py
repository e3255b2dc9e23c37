"""Fixtures that all tests share: real servers, started once a session, fresh databases on them, stores, and the seed of what is random.

A run tells about the commit, not about luck: each test's seed comes from its name, the same on every machine. `SHMSTORE_SEED=random`
draws a fresh one, `SHMSTORE_SEED=<n>` repeats that of a failed test (it is printed there); Hypothesis follows. Long runs, which nothing
waits for, draw a fresh one by default.

A test that needs a server which cannot be had fails with the reason; it is never skipped. Tests that stop a server, change its
settings or need its whole binlog start one of their own with `start_server`.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `tests.servers.server`, from wherever pytest was called

from shmstore import EventStore  # noqa: E402
from tests.servers.server import Server, start_server  # noqa: E402
from tests.shmstore.commands import kill_started  # noqa: E402

_numbers = itertools.count(1)

SERVERS = os.environ.get("SHMSTORE_TEST_SERVERS", "mariadb,mysql").split(",")
SEED = os.environ.get("SHMSTORE_SEED", "")  # "random", a number, or nothing: by name
settings.register_profile(
    "shmstore",
    derandomize=not SEED,
    database=None,
    print_blob=True,
    deadline=None,  # by the clock on the wall, which tells about the machine
    suppress_health_check=[HealthCheck.too_slow],  # as well
)
settings.load_profile("shmstore")


# A child that a test forks leaves the garbage of the process alone: a Flight server's end would wait in it for threads of the parent's.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)

_state = tempfile.TemporaryDirectory(prefix="shmstore-tests-")
os.environ["SHMSTORE_STATE"] = _state.name  # the homes of stores: never those of the user that runs the tests


# A script that runs the tests in its background lets them ignore Ctrl-C, nohup the end of the terminal, and so would what they start.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


@pytest.hookimpl(tryfirst=True)  # before Hypothesis looks at its option
def pytest_configure(config: pytest.Config) -> None:
    if SEED not in ("", "random"):
        config.option.hypothesis_seed = int(SEED)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs long in one file begins first, so that several processes end at about the same time."""
    long = {"test_versions.py", "test_iceberg.py", "test_kill_each_line.py", "test_kafka.py", "test_kills.py", "test_demo.py"}
    items.sort(key=lambda item: item.path.name not in long)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What all that is random in the test comes from; printed, so that a failure can be repeated."""
    node: pytest.Item = request.node
    if SEED == "random" or (not SEED and node.get_closest_marker("long")):
        chosen = random.SystemRandom().randrange(2**32)
    else:
        chosen = int(SEED) if SEED else zlib.crc32(node.nodeid.encode())
    print(f"SHMSTORE_SEED={chosen}")
    return chosen


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    """A command that a failed test has left running is killed: it would hold up those that follow."""
    yield
    kill_started()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own, for it and for the processes that it starts."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def store_name() -> Iterator[str]:
    """A name for a store, removed after the test."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    yield name
    if name in EventStore.names():
        EventStore.unlink(name, log=True)


@pytest.fixture
def store(store_name: str) -> Iterator[EventStore]:
    """A store of 1024 events."""
    with EventStore.create(store_name, capacity=1024, log=False) as made:
        yield made


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


@pytest.fixture(scope="session", params=SERVERS)
def any_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The test runs once on MariaDB, once on MySQL; on what `SHMSTORE_TEST_SERVERS` names (of `tests.servers.developer.KINDS`), if set."""
    if request.param in ("mariadb", "mysql"):
        yield request.getfixturevalue(request.param)
        return
    with start_server(request.param) as server:
        yield server


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
