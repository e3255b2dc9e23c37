"""The rules of test_architecture.py can fail: each is run on a small tree that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_architecture import (
    MOST_MODULES,
    RULES,
    docstrings,
    layers_hold,
    no_circles,
    one_meaning,
    packages_stay_apart,
    plain_names,
    public_names_only,
    pure_parts,
    small_folders,
    states_are_given,
    third_party_owners,
)

BREAKING: list[tuple[Callable[[Path], list[str]], str, str]] = [
    (packages_stay_apart, "producer/a.py", "from shmstore.consumer.consumer import Consumer"),
    (packages_stay_apart, "producer/a.py", "from consumer import Consumer"),
    (packages_stay_apart, "consumer/spark/a.py", "import shmstore.producer.binlog"),
    (packages_stay_apart, "consumer/a.py", "def f():\n    from shmstore.producer.binlog import rows"),
    (packages_stay_apart, "shmstore/store/store.py", "def f():\n    import shmstore.consumer"),
    (packages_stay_apart, "shmstore/cli/main.py", "from shmstore.producer.rows import x"),
    (packages_stay_apart, "shmstore/cli/main.py", "if CHECKING:\n    from shmstore.producer import rows"),
    (packages_stay_apart, "producer/a.py", "if TYPE_CHECKING:\n    from shmstore.consumer import tail"),
    (public_names_only, "producer/a.py", "from shmstore.ring.writer import Writer"),
    (public_names_only, "consumer/a.py", "import shmstore.memory.segment"),
    (public_names_only, "consumer/a.py", "from shmstore.ring import writer"),
    (public_names_only, "consumer/a.py", "from shmstore import Hidden"),
    (public_names_only, "consumer/a.py", "from shmstore.encoding.codec import check_size"),  # of such a module, but not listed
    (third_party_owners, "shmstore/store/store.py", "import posix_ipc"),
    (third_party_owners, "shmstore/store/store.py", "import msgpack"),
    (third_party_owners, "shmstore/store/store.py", "from multiprocessing import shared_memory"),
    (third_party_owners, "producer/binlog/rows.py", "import pymysql.cursors"),
    (third_party_owners, "consumer/consumer.py", "import msgpack"),
    (third_party_owners, "consumer/consumer.py", "from google.protobuf import message"),
    (third_party_owners, "consumer/consumer.py", "def f():\n    import pyspark"),
    (third_party_owners, "consumer/consumer.py", "import requests"),
    (third_party_owners, "consumer/copies/a.py", "import pyspark"),
    (pure_parts, "shmstore/ring/writer.py", "import time"),
    (pure_parts, "consumer/wire/protocol/framing.py", "from socket import socket"),
    (small_folders, "producer/binlog/a.py", ""),
    (plain_names, "shmstore/a.py", "class StoreManager: ..."),
    (plain_names, "shmstore/a.py", "class HTTPBase: ..."),
    (plain_names, "shmstore/a.py", "def f():\n    class RowData: ..."),
    (plain_names, "producer/row_utils.py", ""),
    (plain_names, "producer/helpers/__init__.py", ""),
    (states_are_given, "consumer/a.py", "EventStore.attach(name, path=path)"),
    (states_are_given, "shmstore/cli/a.py", "StoreView.attach(name, restore=given)"),
    (one_meaning, "producer/a.py", "class _Row: ...\ndef f():\n    class _Row: ..."),
    (docstrings, "consumer/a.py", "x = 1"),
    (docstrings, "tests/test_a.py", "x = 1"),
]

# What has to be there as well, for a breach that is between files.
OTHERS = {
    small_folders: {f"producer/binlog/b{n}.py": "" for n in range(MOST_MODULES)},
}


@pytest.mark.parametrize(("rule", "file", "source"), BREAKING)
def test_rule_can_fail(rule: Callable[[Path], list[str]], file: str, source: str, tmp_path: Path) -> None:
    """The rule names the file that breaks it."""
    write(tmp_path, {file: source, **OTHERS.get(rule, {})})
    breaches = rule(tmp_path)
    assert len(breaches) == 1
    assert breaches[0].startswith(file.rpartition("/")[0] if rule is small_folders else file)


def write(root: Path, sources: dict[str, str]) -> None:
    for file, source in sources.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(source)


@pytest.mark.parametrize("how", ["{}", "def f():\n    {}", "if TYPE_CHECKING:\n    {}"])
def test_a_circle_is_found(how: str, tmp_path: Path) -> None:
    """Three modules in a circle are named, those that only lead there or come from there are not."""
    sources = {
        "shmstore/a.py": "from shmstore.b import x",
        "shmstore/b.py": how.format("from shmstore import c"),
        "shmstore/c.py": "import shmstore.a\nimport shmstore.low",
        "shmstore/low.py": "",
        "shmstore/high.py": "import shmstore.a",
    }
    write(tmp_path, sources)
    assert [breach.partition(" ")[0] for breach in no_circles(tmp_path)] == ["shmstore/a.py", "shmstore/b.py", "shmstore/c.py"]


@pytest.mark.parametrize(
    ("file", "source", "right"),
    [
        ("shmstore/ring/a.py", "from shmstore.store.store import x", False),
        ("shmstore/ring/a.py", "from shmstore.memory import layout", True),
        ("shmstore/ring/a.py", "from shmstore.cli import main", False),
        ("producer/values/a.py", "if TYPE_CHECKING:\n    from shmstore.producer.binlog.rows import x", False),
        ("producer/binlog/a.py", "from shmstore.producer.values import scalars", True),
        ("producer/binlog/a.py", "from shmstore.producer.doctor import x", False),
        ("consumer/spark/decode/a.py", "from shmstore.consumer.spark.source.offset import x", False),
        ("consumer/copies/targets/a.py", "from shmstore.consumer.spark.source.offset import x", False),
        ("consumer/spark/source/a.py", "from shmstore.consumer.copies.ddl import x", True),
        ("consumer/wire/session/a.py", "from shmstore.consumer.wire.protocol import framing", True),
    ],
)
def test_layers_are_told_apart(file: str, source: str, right: bool, tmp_path: Path) -> None:
    """An import downwards is right, one upwards is a breach."""
    targets = (
        "shmstore/store/store shmstore/memory/layout shmstore/cli/main producer/binlog/rows producer/values/scalars producer/doctor "
        "consumer/spark/source/offset consumer/copies/ddl consumer/wire/protocol/framing"
    )
    write(tmp_path, {file: source, **{f"{target}.py": "" for target in targets.split()}})
    assert (layers_hold(tmp_path) == []) is right


def test_allowed_is_allowed(tmp_path: Path) -> None:
    """What the rules allow breaks none of them: relative imports, public names, the command line's late imports, Spark's words."""
    sources = {
        "shmstore/__init__.py": '"""Doc."""\nif TYPE_CHECKING:\n    from .store.store import EventStore\n__all__ = ["EventStore"]',
        "shmstore/cli/main.py": '"""Doc."""\ndef f():\n    import shmstore.consumer\nif TYPE_CHECKING:\n    import shmstore.producer',
        "shmstore/store/store.py": '"""Doc."""',
        "shmstore/memory/layout.py": '"""Doc."""\nDISARMED = 1',
        "shmstore/memory/semaphores.py": '"""Doc."""\nimport ctypes\nfrom . import layout',
        "producer/binlog/a.py": '"""Doc."""\nfrom shmstore import EventStore\nfrom shmstore.memory.layout import DISARMED\nimport numpy as np',
        "consumer/consumer.py": '"""Doc."""\nclass Consumer: ...',
        "consumer/spark/a.py": '"""Doc."""\nfrom ..consumer import Consumer\nfrom pyspark.sql import x\nclass ShmDataSource: ...',
        "consumer/wire/protocol/b.py": '"""Doc."""\nfrom google.protobuf import message',
        "consumer/database.py": '"""Doc."""\nimport time',
    }
    write(tmp_path, sources)
    assert [breach for rule in RULES for breach in rule(tmp_path)] == []
