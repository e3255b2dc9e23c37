"""Queues that other packages bring, by the entry point ``shmstore.queues`` (consumer/queues/kinds.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.cli.main import main
from shmstore.consumer.queues.kinds import QueueConnection, kinds, make
from tests.consumer.queues.memory import Broker, MemoryQueue
from tests.consumer.queues.test_sender import inserts, transaction

brokers: dict[str, Broker] = {}


def memory(connection: QueueConnection) -> MemoryQueue:
    """What the entry point names: the queue in memory at an address."""
    return MemoryQueue(brokers[connection.address])


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """An installed package with a queue of the kind `remembered`, and its broker, which is at `here`."""
    about = tmp_path / "remembered-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: remembered\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[shmstore.queues]\nremembered = {__name__}:memory\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(brokers, "here", Broker())
    return brokers["here"]


def test_another_packages_queue(broker: Broker, log_store: EventStore) -> None:
    """`shmstore queue --kind` finds it, and sends each change once."""
    log_store.put(transaction(0, inserts(1, 2, 3)))
    words = ["queue", log_store.name, "--kind", "remembered", "--brokers", "here", "--once"]
    assert main(words) == 0
    assert main(words) == 0
    assert len(broker.of(f"{log_store.name}.shop.orders")) == 3
    assert "remembered" in kinds()


def test_one_that_keeps_no_marks(broker: Broker, log_store: EventStore, capsys: pytest.CaptureFixture[str]) -> None:
    """It is asked for by what it does: at least once."""
    broker.transactional = False
    log_store.put(transaction(0, inserts(1, 2, 3)))
    words = ["queue", log_store.name, "--kind", "remembered", "--brokers", "here", "--once"]
    assert main(words) == 2
    assert "'remembered' keeps no marks" in capsys.readouterr().err
    assert main([*words, "--delivery", "at-least-once"]) == 0
    assert "at-least-once" in capsys.readouterr().err
    assert len(broker.of(f"{log_store.name}.shop.orders")) == 3


def test_a_kind_that_is_unknown(broker: Broker) -> None:
    """The message names those that there are, and the nearest."""
    with pytest.raises(
        ValueError, match=r"kafka, nats, pulsar, rabbitmq, redis, rocketmq, remembered; did you mean remembered\?"
    ):
        make("rememberd", QueueConnection("here", "s/x"))
