"""Senders that are killed at any moment, and servers that are killed or cut off meanwhile: what each queue has then, alone and as a cluster."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import nats
import pytest
from confluent_kafka.admin import AdminClient

from shmstore import EventStore
from tests.consumer.queues.reading import added, committed, consumed, published, pulled_once, taken_once
from tests.consumer.queues.senders import Read, all_acked, each_once, kill_senders, sending, wait_for
from tests.consumer.queues.test_sender import inserts, transaction
from tests.servers.cluster import Cluster, Member
from tests.servers.kafka import kafka, kafka_cluster
from tests.servers.nats import NatsServer, nats_cluster, nats_server
from tests.servers.pulsar import pulsar_server
from tests.servers.rabbitmq import RabbitServer, rabbit_cluster, rabbit_server
from tests.servers.redis import redis_server
from tests.servers.rocketmq import rocket_cluster, rocket_server

pytestmark = pytest.mark.usefixtures("state")
TURNS = itertools.cycle(range(6))


@dataclass(frozen=True)
class Kind:
    """A kind of queue: its server, how a topic is read, where each message that may come again is once, and the options of its sender."""

    kind: str
    server: Callable[[], AbstractContextManager[Member]]
    read: Callable[[Any, str], Read]
    words: Callable[[Any], Sequence[str]] = lambda server: ()
    settled: Callable[[Any, str], bool] = lambda server, topic: True  # whether a new topic outlives its server
    partitions: int = 2
    others_take_over: bool = False  # whether messages come in while one of several servers is away


# A broker that was killed is let in again when its session has ended.
SOON = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}


@contextmanager
def kafka_3() -> Iterator[Member]:
    """Three brokers; the coordinator of the transactions and the leader of the rows are hit in turn."""
    with kafka_cluster(options=SOON) as brokers:

        def choose() -> int:
            admin = AdminClient({"bootstrap.servers": ",".join(broker.address for broker in brokers)})
            topics = admin.list_topics(timeout=30).topics
            rows = [name for name in topics if name.endswith(".shop.orders")]
            topic = rows[0] if rows and next(TURNS) % 2 else "__transaction_state"
            return topics[topic].partitions[0].leader - 1 if topic in topics else 0

        yield Cluster(brokers, choose)


@contextmanager
def nats_3() -> Iterator[Member]:
    """Three servers; the leader of the stream is hit."""
    with nats_cluster() as servers:
        yield Cluster(servers, lambda: asyncio.run(_leader(servers)))


async def _leader(servers: Sequence[NatsServer]) -> int:
    client = await nats.connect([f"nats://{server.address}" for server in servers])
    try:
        about = await client.jetstream().streams_info()
        led = about[0].cluster.leader if about and about[0].cluster else None
        return int(led[1:]) if led else 0
    finally:
        await client.close()


@contextmanager
def in_turn(cluster: Callable[[], AbstractContextManager[Sequence[Member]]], address: int | None = None) -> Iterator[Member]:
    """Servers of a cluster, each of which is hit in its turn."""
    with cluster() as members:
        turns = itertools.cycle(range(len(members)))
        yield Cluster(members, lambda: next(turns), members[0].address if address == 0 else "")


def at_least(server: object) -> Sequence[str]:
    return ("--delivery", "at-least-once")


def kept_by(servers: Sequence[RabbitServer], topic: str) -> bool:
    return all(server.keeps(f"{topic}.{number}") for server in servers for number in range(2))


ALONE = {
    "kafka": Kind("kafka", lambda: kafka(options=SOON), committed),
    "nats": Kind("nats", nats_server, published),
    "pulsar": Kind("pulsar", pulsar_server, consumed, lambda server: ("--set", f"admin={server.admin}")),
    "rabbitmq": Kind(
        "rabbitmq",
        rabbit_server,
        lambda server, topic: taken_once(server.port, topic),
        at_least,
        settled=lambda server, topic: kept_by([server], topic),
    ),
    "redis": Kind("redis", redis_server, added),
    "rocketmq": Kind("rocketmq", rocket_server, pulled_once, at_least),
}
CLUSTERS = {
    "kafka-of-3": Kind("kafka", kafka_3, committed, others_take_over=True),
    "nats-of-3": Kind("nats", nats_3, published, lambda server: ("--new-replication", "3"), others_take_over=True),
    "rabbitmq-of-3": Kind(
        "rabbitmq",
        lambda: in_turn(rabbit_cluster),
        lambda server, topic: taken_once(server.members[0].port, topic),
        at_least,
        settled=lambda server, topic: kept_by(server.members, topic),
        others_take_over=True,
    ),
    "rocketmq-of-2": Kind(
        "rocketmq",
        lambda: in_turn(rocket_cluster, 0),
        lambda server, topic: pulled_once(server.members[0], topic),
        at_least,
        partitions=4,
    ),
}
ALL = ALONE | CLUSTERS
SEVERAL = pytest.mark.parametrize("name", [*ALONE, *(pytest.param(name, marks=pytest.mark.long) for name in CLUSTERS)])


def kill(store: EventStore, kind: Kind, kills: int, chance: random.Random) -> None:
    """Kill senders, and at each third kill a server or cut it off; each row is in the partitions once, and each key in order."""
    topic = f"{store.name}.shop.orders"
    with kind.server() as server:

        def between(number: int) -> None:
            if number % 6 == 1:
                wait_for(lambda: kind.settled(server, topic))
                server.stop()
                time.sleep(chance.uniform(0, 1))
                server.start()
            elif number % 6 == 4:
                server.pause()
                time.sleep(chance.uniform(0, 3))
                server.resume()

        words = ("--new-partitions", "2", *kind.words(server))
        put = kill_senders(store, kind.kind, server.address, *words, kills=kills, chance=chance, between=between)
        found = kind.read(server, topic)
        assert len(found) == kind.partitions
        each_once(found, put)


@SEVERAL
def test_kills(log_store: EventStore, name: str, seed: int) -> None:
    """Senders, and a server under load, are killed at any moment: each row is there once, or at least once where a reader drops ids that it has."""
    kill(log_store, ALL[name], 4, random.Random(seed))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", ALL)
def test_two_hundred_kills(log_store: EventStore, name: str, part: int, seed: int) -> None:
    """The same four times 50 times."""
    kill(log_store, ALL[name], 50, random.Random(seed + part))


@SEVERAL
def test_a_server_that_goes_and_comes(log_store: EventStore, name: str) -> None:
    """A sender outlives its server, which is killed, started again, and cut off for a while; what was put meanwhile comes once, and Ctrl-C ends it."""
    kind, topic = ALL[name], f"{log_store.name}.shop.orders"
    with kind.server() as server:
        words = ("--new-partitions", "2", *kind.words(server))
        with sending(log_store.name, kind.kind, server.address, *words) as process:

            def put(number: int) -> None:
                log_store.put(transaction(number, inserts(*range(number * 10, number * 10 + 10))))

            def wait() -> None:
                wait_for(lambda: process.poll() is not None or all_acked(log_store))
                assert process.poll() is None, process.communicate()[1][-3000:]

            put(0)
            wait()
            wait_for(lambda: kind.settled(server, topic))
            for number, (go, come) in enumerate(((server.stop, server.start), (server.pause, server.resume)), 1):
                go()
                put(number)
                if kind.others_take_over:
                    wait()
                else:
                    time.sleep(1)
                come()
                wait()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        found = kind.read(server, topic)
    ids = [[json.loads(key or b"")["id"] for key, _ in some] for some in found.values()]
    assert sorted(each for some in ids for each in some) == list(range(30))
    assert all(some == sorted(some) for some in ids)
