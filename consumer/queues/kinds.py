"""Which queues there are: Kafka, NATS JetStream, Pulsar, RabbitMQ, Redis Streams, RocketMQ, and those that other packages bring by the entry point
``shmstore.queues``.

An entry point names a callable that takes a `QueueConnection` and returns a `Queue`, as `kafka` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from ssl import SSLContext
from typing import Final

from shmstore.consumer.queues.connecting import hosts, tls_context
from shmstore.consumer.queues.queue import Queue
from shmstore.errors import did_you_mean, install


@dataclass(frozen=True, slots=True)
class QueueConnection:
    """Where a queue is and how it is reached. `reader` names what is sent, STORE/SUBSCRIPTION; `settings` are the queue's own. What is empty, or -1, is
    as the queue has it.

    `stopped` is asked in long waits: where it returns true they end.
    """

    address: str
    reader: str
    exactly_once: bool = True
    user: str = ""
    password: str = field(default="", repr=False)
    mechanism: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    progress: str = ""
    partitions: int = -1
    replication: int = -1
    create: bool = True
    compression: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    stopped: Callable[[], bool] = lambda: False

    @property
    def over_tls(self) -> bool:
        """Whether the connection is over TLS: asked for, or by a file that only TLS needs."""
        return self.tls or bool(self.tls_ca or self.tls_cert)


Make = Callable[[QueueConnection], Queue]


def kafka(connection: QueueConnection) -> Queue:
    """A Kafka cluster. Raises ModuleNotFoundError without confluent-kafka, ValueError for what cannot be a setting."""
    with _needed("Kafka needs confluent-kafka", "kafka"):
        from shmstore.consumer.queues.kafka import PROGRESS, Kafka
    hosts(connection.address, "Kafka", 9092)  # librdkafka takes anything, and says later that nothing answers
    login: dict[str, str] = {}
    if connection.user:
        mechanism = connection.mechanism or "SCRAM-SHA-512"
        login = {"sasl.mechanism": mechanism, "sasl.username": connection.user, "sasl.password": connection.password}
    login["security.protocol"] = ("SASL_" if login else "") + ("SSL" if connection.over_tls else "PLAINTEXT")
    files = {
        "ssl.ca.location": connection.tls_ca,
        "ssl.certificate.location": connection.tls_cert,
        "ssl.key.location": connection.tls_key,
    }
    return Kafka(
        connection.address,
        connection.reader,
        exactly_once=connection.exactly_once,
        progress_topic=connection.progress or PROGRESS,
        partitions=connection.partitions,
        replication=connection.replication,
        create=connection.create,
        compression=connection.compression or "lz4",
        settings=login | {name: file for name, file in files.items() if file} | dict(connection.settings),
        stopped=connection.stopped,
    )


def nats(connection: QueueConnection) -> Queue:
    """A NATS server with JetStream. Raises ModuleNotFoundError without nats-py, ValueError for what cannot be a setting."""
    with _needed("NATS needs nats-py", "nats"):
        from shmstore.consumer.queues.nats_stream import PROGRESS, NatsStream
    _only_once(connection, "NATS")
    return NatsStream(
        connection.address,
        connection.reader,
        user=connection.user,
        password=connection.password,
        tls=_tls(connection),
        progress=connection.progress or PROGRESS,
        partitions=max(1, connection.partitions),
        replicas=max(1, connection.replication),
        create=connection.create,
        settings=connection.settings,
    )


def pulsar(connection: QueueConnection) -> Queue:
    """A Pulsar cluster. Raises ModuleNotFoundError without pulsar-client, ValueError for what cannot be a setting."""
    with _needed("Pulsar needs pulsar-client", "pulsar"):
        from shmstore.consumer.queues.pulsar import PROGRESS, Pulsar
    _leave_out(
        "Pulsar",
        {
            "--sasl": connection.mechanism,
            "--new-replication": connection.replication > 0,
            "--no-create-topics": not connection.create,
        },
    )
    _tls(connection)  # the client reads the files at each connection, and OpenSSL may ask for a passphrase there
    return Pulsar(
        connection.address,
        connection.reader,
        exactly_once=connection.exactly_once,
        user=connection.user,
        password=connection.password,
        tls=connection.over_tls,
        tls_ca=connection.tls_ca,
        tls_cert=connection.tls_cert,
        tls_key=connection.tls_key,
        progress=connection.progress or PROGRESS,
        partitions=connection.partitions,
        compression=connection.compression,
        settings=connection.settings,
        stopped=connection.stopped,
    )


def rabbitmq(connection: QueueConnection) -> Queue:
    """A RabbitMQ server. Raises ModuleNotFoundError without pika, ValueError for what cannot be a setting."""
    with _needed("RabbitMQ needs pika", "rabbitmq"):
        from shmstore.consumer.queues.rabbitmq import RabbitMQ
    _at_least_once(connection, "RabbitMQ", "queues")
    return RabbitMQ(
        connection.address,
        user=connection.user,
        password=connection.password,
        tls=_tls(connection),
        partitions=max(1, connection.partitions),
        create=connection.create,
        settings=connection.settings,
    )


def redis(connection: QueueConnection) -> Queue:
    """A Redis server. Raises ModuleNotFoundError without redis, ValueError for what cannot be a setting."""
    with _needed("Redis Streams need redis", "redis"):
        from shmstore.consumer.queues.redis_streams import PROGRESS, RedisStreams
    _only_once(connection, "Redis Streams")
    _leave_out("Redis Streams", {"--new-replication": connection.replication > 0})
    return RedisStreams(
        connection.address,
        connection.reader,
        user=connection.user,
        password=connection.password,
        tls=connection.over_tls,
        tls_ca=connection.tls_ca,
        tls_cert=connection.tls_cert,
        tls_key=connection.tls_key,
        progress=connection.progress or PROGRESS,
        partitions=max(1, connection.partitions),
        settings=connection.settings,
    )


def rocketmq(connection: QueueConnection) -> Queue:
    """A RocketMQ cluster. Raises ValueError for what cannot be a setting."""
    from shmstore.consumer.queues.rocketmq import QUEUES, RocketMQ

    _at_least_once(connection, "RocketMQ", "messages")
    return RocketMQ(
        connection.address,
        user=connection.user,
        password=connection.password,
        tls=_tls(connection),
        partitions=connection.partitions if connection.partitions > 0 else QUEUES,
        create=connection.create,
        settings=connection.settings,
    )


@contextmanager
def _needed(what: str, extra: str) -> Iterator[None]:
    """Import what an extra brings. Raises ModuleNotFoundError that says how it is installed; `what`: who needs which package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{what}: {install(extra)}", name=error.name) from error


def _of_kafka(connection: QueueConnection) -> dict[str, object]:
    """What of the options only Kafka has."""
    return {"--sasl": connection.mechanism, "--compression": connection.compression}


def _only_once(connection: QueueConnection, of: str) -> None:
    _leave_out(of, _of_kafka(connection) | {"--delivery at-least-once": not connection.exactly_once})


def _at_least_once(connection: QueueConnection, of: str, several: str) -> None:
    if connection.exactly_once:
        raise ValueError(
            f"{of} has no transaction over several {several}, so a batch may come twice after a failure: say so with --delivery at-least-once"
        )
    _leave_out(
        of, {"--new-replication": connection.replication > 0, "--progress-topic": connection.progress} | _of_kafka(connection)
    )


def _leave_out(of: str, given: Mapping[str, object]) -> None:
    """Raise ValueError for the first option that is given."""
    for option, value in given.items():
        if value:
            raise ValueError(f"{option} is not for {of}: leave it out")


def _tls(connection: QueueConnection) -> SSLContext | None:
    if not connection.over_tls:
        return None
    return tls_context(connection.tls_ca, connection.tls_cert, connection.tls_key)


_OURS: Final[dict[str, Make]] = {
    "kafka": kafka,
    "nats": nats,
    "pulsar": pulsar,
    "rabbitmq": rabbitmq,
    "redis": redis,
    "rocketmq": rocketmq,
}


def kinds() -> list[str]:
    """Return the names of the queues that can be asked for."""
    return [*_OURS, *(point.name for point in entry_points(group="shmstore.queues") if point.name not in _OURS)]


def make(kind: str, connection: QueueConnection) -> Queue:
    """Return the queue of that kind. Raises ValueError for one that is not known, or that keeps no marks where each change is to come once."""
    if kind in _OURS:
        return _OURS[kind](connection)
    for point in entry_points(group="shmstore.queues", name=kind):
        queue: Queue = point.load()(connection)
        if connection.exactly_once and not queue.exactly_once:
            raise ValueError(
                f"queue {kind!r} keeps no marks, so a batch may come twice after a failure: say so with --delivery at-least-once"
            )
        return queue
    raise ValueError(f"queue {kind!r} is unknown; there are {', '.join(kinds())}{did_you_mean(kind, kinds())}")
