"""The target of examples/json_target.py, as a package of another brings it: found by its entry point, and right."""

from __future__ import annotations

import json
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shmstore import Column, Consumer, EventStore
from shmstore.cli.main import main
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.copying import Copying
from shmstore.consumer.copies.kinds import TargetOptions, kinds, open_target
from shmstore.patterns.table_patterns import Patterns
from tests.consumer.copies.test_copying import Killed, Story, killing, logged
from tests.consumer.spark.events import ORDERS, Binlog, order_row

__all__ = ["logged"]
EXAMPLE = Path(__file__).resolve().parents[3] / "examples/json_target.py"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as a distribution of its own on the path."""
    site = tmp_path / "site"
    (site / "json_target-1.0.dist-info").mkdir(parents=True)
    shutil.copy(EXAMPLE, site)
    (site / "json_target-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: json-target\nVersion: 1.0\n")
    (site / "json_target-1.0.dist-info/entry_points.txt").write_text("[shmstore.targets]\njson = json_target:open_target\n")
    monkeypatch.syspath_prepend(str(site))


def held(folder: Path, table: str = "orders") -> dict[int, tuple[Any, ...]]:
    found = json.loads((folder / "lake/shop" / table / "rows.json").read_text())
    return {row["id"]: tuple([row[name] for name in found["columns"]]) for row in found["rows"].values()}


def as_json(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([value if value is None or isinstance(value, int | str) else str(value) for value in row])


def test_a_target_of_another_package(installed: None, tmp_path: Path, binlog: Binlog, logged: EventStore) -> None:
    """`--to json:FOLDER` finds it; a column that goes is followed."""
    assert "json" in kinds()
    logged.put(binlog.insert(order_row(1), order_row(2)))
    logged.put(binlog.ddl("ALTER TABLE orders DROP COLUMN status, RENAME COLUMN customer TO buyer"))
    assert main(["replicate", logged.name, "--to", f"json:{tmp_path}/lake", "--once"]) == 0
    assert held(tmp_path) == {key: as_json(order_row(key)[:-1]) for key in (1, 2)}
    assert json.loads((tmp_path / "lake/shop/orders/rows.json").read_text())["columns"][1] == "buyer"


def test_random_changes_and_kills(
    installed: None, tmp_path: Path, binlog: Binlog, logged: EventStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the promise of a target: each change once, whatever line the process is killed at."""
    choose = random.Random(seed)
    story = Story(binlog, choose)
    story.table = ORDERS._replace(columns=(*ORDERS.columns, *(Column(f"n{i}", "varchar", size=9) for i in range(6))))  # no ALTER
    copied = CopiedTables(logged.name, "replicate", Patterns.of_tables("*"))
    for _ in range(4):
        for _ in range(10):
            logged.put(story.step())
        end = logged.newest
        with killing(choose, 0.12, monkeypatch):
            while True:
                reader = Consumer(logged.name, "replicate", auto_ack=False, limit_events=choose.randrange(1, 40), timeout=0)
                opened = open_target(f"json:{tmp_path}/lake", TargetOptions())
                try:
                    Copying(reader, CopySet(copied, opened.target, opened.template), "here").run(partial(int, end))
                    break
                except Killed:
                    pass
                finally:
                    reader.close()
        assert held(tmp_path) == {key: as_json(row) for key, row in story.model.items()}, f"seed {seed}"
