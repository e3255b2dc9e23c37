"""The recipes in plain Python do what their page says, each on a real store and a real target."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shmstore import Batch, Consumer, EventStore
from tests.consumer.spark.events import Binlog
from tests.docs.shop import order_row
from tests.servers.postgres import Postgres, start_postgres

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pandas(store: EventStore, binlog: Binlog) -> None:
    """Each batch with rows of the table is a frame; DECIMAL stays exact."""
    store.put([*binlog.insert(order_row(1), order_row(2), order_row(3, customer=8)), *binlog.delete(order_row(1))])
    module = example("pandas_changes")
    with Consumer(store, "pandas", timeout=0) as reader:
        (frame,) = module.frames(reader, "shop.orders")
    assert list(frame["op"]) == ["c", "c", "c", "d"]
    assert module.worth(frame).to_dict() == {7: Decimal("0.03"), 8: Decimal("0.03")}
    assert store.subscriptions()[0].lag_events == 0


def test_polars(store: EventStore, binlog: Binlog) -> None:
    """Each batch with rows of the table is a frame; DECIMAL stays exact."""
    store.put([*binlog.insert(order_row(1), order_row(2), order_row(3, customer=8)), *binlog.delete(order_row(1))])
    module = example("polars_changes")
    with Consumer(store, "polars", timeout=0) as reader:
        (frame,) = module.frames(reader, "shop.orders")
    assert module.worth(frame).rows() == [(7, Decimal("0.03")), (8, Decimal("0.03"))]


def put_orders(store: EventStore, binlog: Binlog) -> None:
    """Orders 1 to 4; of these 1 is paid, 2 deleted, and 3 becomes number 5."""
    store.put(binlog.insert(*map(order_row, range(1, 5))))
    store.put(binlog.update((order_row(1), order_row(1, status="paid"))))
    store.put([*binlog.delete(order_row(2)), *binlog.update((order_row(3), order_row(5)))])


def write_and_die(consumer: Consumer, write: Callable[[Batch], None]) -> None:
    """Write the first batch, and end before it is acked."""
    write(next(iter(consumer)))
    consumer.close()


@pytest.fixture(params=["local", "flight"])
def log_store(request: pytest.FixtureRequest, store_name: str, state: Path) -> Iterator[tuple[EventStore, str]]:
    """A store with a log, and what its reader calls it: its name, or its URL as from another host."""
    from shmstore.consumer.flight import FlightSettings
    from shmstore.consumer.flight.process import serving

    with EventStore.create(store_name, capacity=1024) as made:
        if request.param == "local":
            yield made, made.name
        else:
            with serving(FlightSettings(port=0)) as server:
                yield made, f"grpc://127.0.0.1:{server.port}/{made.name}"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One server for the module."""
    with start_postgres() as server:
        yield server


@pytest.mark.server
def test_postgres(log_store: tuple[EventStore, str], binlog: Binlog, postgres: Postgres) -> None:
    """Totals and sequence are committed together: what was committed and not acked is not counted a second time."""
    psycopg = pytest.importorskip("psycopg")
    module = example("postgres_totals")
    account = {"host": "127.0.0.1", "port": postgres.port, "dbname": "postgres", "user": postgres.user}
    conninfo = psycopg.conninfo.make_conninfo(**account, password=postgres.password)
    store, address = log_store
    postgres.query("DROP TABLE IF EXISTS totals, progress")
    assert module.run(address, conninfo, timeout=0) == 0  # makes the tables
    put_orders(store, binlog)
    with psycopg.connect(conninfo, autocommit=True) as database:
        write_and_die(Consumer(store, "totals"), lambda batch: module.commit(database, "totals", store.epoch, batch))
    assert store.subscriptions()[0].ack.sequence == -1
    store.put(binlog.insert(order_row(6), order_row(7, customer=8)))
    assert module.run(address, conninfo, timeout=0) == 1  # only what came after
    assert store.subscriptions()[0].lag_events == 0
    rows = postgres.query("SELECT customer, orders, total FROM totals ORDER BY customer")
    assert rows == [["7", "4", "0.1600"], ["8", "1", "0.0700"]]


def test_retries(store: EventStore, binlog: Binlog, tmp_path: Path) -> None:
    """A failure is tried again after growing pauses; what never succeeds is put aside, and the rest continues."""
    store.put(binlog.insert(*map(order_row, range(1, 4))))
    module, taken, pauses, failures = example("retries"), list[int](), list[float](), {1: 2, 2: 99}

    def handle(document: str) -> None:
        key = json.loads(document)["after"]["id"]
        if failures.get(key, 0):
            failures[key] -= 1
            raise ConnectionError("the service is away")
        taken.append(key)

    with Consumer(store, "retries", timeout=0) as reader:
        module.run(reader, handle, tmp_path / "refused", pauses.append)
    assert taken == [1, 3]
    assert [json.loads(line)["after"]["id"] for line in (tmp_path / "refused").read_text().splitlines()] == [2]
    assert pauses == pytest.approx([0.1, 0.2, 0.1, 0.2, 0.4, 0.8, 1.6])
    assert store.subscriptions()[0].lag_events == 0


def test_every_example_is_tested() -> None:
    """Each program in examples/ is run by a test, here or with Spark, and named in the folder's README."""
    elsewhere = ("tests/consumer/spark/test_examples.py", "tests/consumer/copies/test_json_target.py")
    tests = Path(__file__).read_text() + "".join((EXAMPLES.parent / path).read_text() for path in elsewhere)
    readme: Any = (EXAMPLES / "README.md").read_text()
    for path in sorted(EXAMPLES.glob("*.py")):
        assert f'example("{path.stem}")' in tests or f"examples/{path.name}" in tests or path.stem == "database", path.name
        assert path.name in readme
