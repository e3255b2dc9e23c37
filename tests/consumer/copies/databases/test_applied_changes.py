"""Changes of a stream of one's own, applied to a table of PostgreSQL, MariaDB and MySQL: real servers, through their own Python drivers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from shmstore.consumer.copies.target import Target
from tests.consumer.copies.databases.servers import Copies, copies
from tests.consumer.copies.test_applied_changes import VALUES, check, check_first_batch, check_key_type, random_changes

pytestmark = [pytest.mark.server]


@pytest.fixture(scope="module", params=["postgresql", "mariadb", "mysql"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    kind = request.param
    server = request.getfixturevalue(kind) if kind != "postgresql" else None
    with copies(kind, server, "shop", tmp_path_factory.mktemp(kind)) as made:
        yield made


@pytest.fixture(autouse=True)
def empty(target: Copies) -> Iterator[None]:
    """Each test begins without copies."""
    yield
    target.clear()


def open_in(target: Copies) -> tuple[Target, str]:
    """The target, as a new process has it, and the path of a table in it."""
    return target.connect(), target.template.replace("{table}", "orders")


@pytest.mark.parametrize("history", [pytest.param(False, marks=pytest.mark.long), True])
def test_any_order_any_batches(target: Copies, history: bool, seed: int) -> None:
    """Out of order inside of batches and across them, twice, replayed, killed between the commits: the same in the end."""
    choose = random.Random(seed)
    check(lambda: open_in(target), choose, history, random_changes(choose, 25))


@pytest.mark.parametrize(("history", "commits"), [(False, 1), (True, 1), (False, 0)])
def test_a_kill_in_the_first_batch(target: Copies, history: bool, commits: int) -> None:
    """MariaDB and MySQL commit a CREATE TABLE alone: a table that a killed process left is no other's."""
    check_first_batch(lambda: open_in(target), history, commits)


@pytest.mark.parametrize(
    "name", [name if name in ("long", "at", "text") else pytest.param(name, marks=pytest.mark.long) for name in VALUES]
)
def test_types_of_keys_and_sequences(target: Copies, name: str) -> None:
    """As in files."""
    check_key_type(lambda: open_in(target), name)
