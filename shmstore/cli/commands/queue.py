"""`shmstore queue`: a store's changes into a message queue."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING

from shmstore.cli import log_lines, service
from shmstore.cli.command import Commands
from shmstore.cli.listening import clients_password, counting
from shmstore.cli.log_lines import say
from shmstore.cli.options import FORMATS, add_log_lines, add_metrics_port, add_state, add_subscription
from shmstore.cli.signals import ended, on_signal
from shmstore.cli.values import whole
from shmstore.patterns.table_patterns import FORMS as TABLE_FORMS

if TYPE_CHECKING:
    from shmstore.consumer.queues.canal_routing import CanalRouting
    from shmstore.consumer.queues.messages import MessageOptions

PASSWORD = "SHMSTORE_QUEUE_PASSWORD"
PATIENCE = 5.0  # seconds that a batch has after Ctrl-C: a server that answers nothing would hold the end up


def add(commands: Commands) -> None:
    """Add the command."""
    sub = commands.add(
        queue,
        "queue",
        "send a store's changes into a message queue (Kafka, NATS, Pulsar, RabbitMQ, Redis, RocketMQ)",
        "  shmstore queue orders --brokers kafka:9092\n"
        "  shmstore queue orders --brokers kafka:9092 --format debezium --tables 'shop.*'\n"
        "  shmstore queue orders --kind redis --brokers redis:6379\n"
        "  shmstore queue orders --kind nats --brokers nats:4222\n"
        "  shmstore queue orders --kind pulsar --brokers pulsar:6650\n"
        "  shmstore queue orders --kind rabbitmq --brokers rabbit:5672 --delivery at-least-once\n"
        "  shmstore queue orders --kind rocketmq --brokers nameserver:9876 --delivery at-least-once\n"
        "  shmstore queue orders --brokers kafka:9092 --format canal --partitions-num 3 --partition-hash '.*\\..*:$pk$'",
        "It reads as a subscription: it delays no other reader, and the store keeps the events that are not sent yet. Each batch and "
        "a mark of its end are one transaction. After a kill, a lost broker or a restart, sending continues after the mark, and "
        "readers (of Kafka those with isolation.level=read_committed) see each change once. A second instance takes over from the "
        "first one.\n"
        "\n"
        "The key of a message is the row's primary key, so the changes of a row are in one partition, in order. An update that "
        "changes the key is a delete of the old key and an insert of the new one. Each kind needs the extra of its name: kafka, "
        "nats, pulsar, rabbitmq, redis (rocketmq needs none).\n"
        "RabbitMQ and RocketMQ have no transactions over queues: they get each change at least once.",
        store=False,
    )
    sub.add_argument(
        "store", nargs="?", metavar="STORE", help="name of the store, as `shmstore ls` shows it; or `store` in [queue]"
    )
    sub.add_argument("--path", metavar="FILE", help="the store's file, if it is in a file instead of shared memory")
    add_state(sub)
    sub.add_argument(
        "--kind",
        default="kafka",
        help="kafka, nats, pulsar, rabbitmq, redis, rocketmq, or what other packages bring (default: kafka)",
    )
    where = sub.add_argument_group("The queue")
    where.add_argument(
        "--brokers", required=True, metavar="ADDRESSES", help="addresses of the queue's servers: HOST:PORT,HOST:PORT"
    )
    where.add_argument("--user", default="", help="user that logs in (default: none)")
    where.add_argument("--password-file", metavar="FILE", help=f"file with the password; or set {PASSWORD}")
    where.add_argument(
        "--sasl", default="", metavar="MECHANISM", help="SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN (default: SCRAM-SHA-512)"
    )
    where.add_argument("--tls", action="store_true", help="use TLS, and trust the system's authorities")
    where.add_argument("--tls-ca", default="", metavar="FILE", help="use TLS, and trust this authority (PEM file)")
    where.add_argument("--tls-cert", default="", metavar="FILE", help="the client's certificate (PEM file)")
    where.add_argument("--tls-key", default="", metavar="FILE", help="key of the client's certificate (PEM file)")
    where.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of librdkafka, or one that the page of the kind lists (redis: db, maxlen); may be given several times",
    )
    what = sub.add_argument_group("What is sent")
    add_subscription(what, "queue")
    what.add_argument("--tables", metavar="PATTERNS", help=f"only these tables: {TABLE_FORMS}")
    what.add_argument("--format", choices=FORMATS, default="json", help="form of the messages, as in `tail` (default: json)")
    what.add_argument("--schemas", action="store_true", help="debezium: add the schema to key and value")
    what.add_argument(
        "--transactions", action="store_true", help="debezium: add transaction metadata, and the topic STORE.transaction"
    )
    what.add_argument("--gtids", action="store_true", help="canal: add the executed GTID set, as Canal does with gtidon")
    what.add_argument(
        "--flat-message",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="canal: JSON; --no-flat-message: Canal's protobuf (canal.mq.flatMessage)",
    )
    what.add_argument(
        "--keys", action=argparse.BooleanOptionalAction, help="give messages keys (default: yes, except with canal)"
    )
    what.add_argument(
        "--tombstones",
        action=argparse.BooleanOptionalAction,
        help="send a tombstone after each delete (default: with json and debezium)",
    )
    what.add_argument(
        "--headers", action=argparse.BooleanOptionalAction, default=True, help="send position, sequence and transaction"
    )
    to = sub.add_argument_group("Topics and partitions")
    to.add_argument(
        "--topic",
        metavar="TEMPLATE",
        help="name of the topic, with {store}, {database} and {table} (default: {store}.{database}.{table}; maxwell and canal: {store})",
    )
    to.add_argument(
        "--ddl-topic", metavar="TEMPLATE", help="topic of DDLs; '' leaves them out (default: {store}; canal: the table's topic)"
    )
    to.add_argument(
        "--ddl-partition",
        type=int,
        default=0,
        metavar="N",
        help="partition of DDLs; -1 sends them into each partition (default: 0)",
    )
    to.add_argument(
        "--order",
        choices=("key", "table", "transaction"),
        default="key",
        help="key: each key in order; table: a table in one partition; transaction: all in partition 0, in commit order (default: key)",
    )
    to.add_argument(
        "--create-topics", action=argparse.BooleanOptionalAction, default=True, help="create missing topics (default)"
    )
    to.add_argument(
        "--new-partitions",
        type=whole,
        default=-1,
        metavar="N",
        help="partitions of topics that it creates (default: the broker's)",
    )
    to.add_argument(
        "--new-replication",
        type=whole,
        default=-1,
        metavar="N",
        help="replicas of topics that it creates (default: the broker's)",
    )
    canal = sub.add_argument_group("Canal's own routing (with --format canal)")
    canal.add_argument("--dynamic-topic", default="", metavar="RULES", help="canal.mq.dynamicTopic: [TOPIC:]REGEX,...")
    canal.add_argument("--partition", type=int, default=0, metavar="N", help="canal.mq.partition (default: 0)")
    canal.add_argument("--partitions-num", type=whole, default=1, metavar="N", help="canal.mq.partitionsNum (default: 1)")
    canal.add_argument(
        "--dynamic-topic-partition-num", default="", metavar="RULES", help="canal.mq.dynamicTopicPartitionNum: TOPIC:N,..."
    )
    canal.add_argument(
        "--partition-hash", default="", metavar="RULES", help="canal.mq.partitionHash: TABLE:$pk$, TABLE:column^column, TABLE"
    )
    canal.add_argument(
        "--database-hash", action=argparse.BooleanOptionalAction, default=True, help="canal.mq.database.hash (default: yes)"
    )
    how = sub.add_argument_group("How it is sent")
    how.add_argument(
        "--delivery",
        choices=("exactly-once", "at-least-once"),
        default="exactly-once",
        help="at-least-once: without transactions, faster; after a kill the last batch comes again (default: exactly-once)",
    )
    how.add_argument("--progress-topic", default="", metavar="TOPIC", help="topic of the marks (default: shmstore-progress)")
    how.add_argument("--batch", type=whole, default=5000, metavar="EVENTS", help="most events of one transaction (default: 5000)")
    how.add_argument(
        "--compression",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        default="",
        help="compression of messages in Kafka (default: lz4) and Pulsar (default: none)",
    )
    how.add_argument(
        "--oversized",
        choices=("stop", "skip", "truncate", "claim-check"),
        default="stop",
        help="a message that is too large: stop, leave it out, cut its longest texts, or put it into a file (default: stop)",
    )
    how.add_argument("--claim-checks", default="", metavar="FOLDER", help="folder of the files of --oversized claim-check")
    add_metrics_port(how)
    how.add_argument("--once", action="store_true", help="end when all events that are in the store now are sent")
    add_log_lines(sub)


def queue(options: argparse.Namespace) -> int:
    """`shmstore queue`."""
    from shmstore.consumer import Consumer
    from shmstore.consumer.queues import kinds
    from shmstore.consumer.queues.connecting import look
    from shmstore.consumer.queues.sender import Sender

    if options.store is None:
        raise ValueError("no store is given: name it, or write `store` into [queue] of the configuration file")
    log_lines.show(options)
    over = threading.Event()
    connection = kinds.QueueConnection(
        options.brokers,
        f"{options.store}/{options.subscription}",
        exactly_once=options.delivery == "exactly-once",
        user=options.user,
        password=_password(options),
        mechanism=options.sasl,
        tls=options.tls,
        tls_ca=options.tls_ca,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        progress=options.progress_topic,
        partitions=options.new_partitions,
        replication=options.new_replication,
        create=options.create_topics,
        compression=options.compression,
        settings=_settings(options.set),
        stopped=over.is_set,
    )
    about = _messages(options)
    to = kinds.make(options.kind, connection)
    reader = Consumer(
        options.store,
        options.subscription,
        start=options.start,
        limit_events=options.batch,
        limit_bytes=64 << 20,
        timeout=0 if options.once else None,
        path=options.path,
        state=options.state,
    )
    sender = Sender(
        reader,
        to,
        about,
        oversized=options.oversized,
        folder=options.claim_checks,
        look=lambda: look(options.brokers, options.kind, connection.over_tls),
    )

    def stop() -> None:
        over.set()
        sender.stop()

    try:
        with on_signal(stop, patience=PATIENCE) as came, reader, counting(options, sender.counters):
            say(f"sending {options.store} as {options.subscription!r} to {options.brokers}, {options.delivery}")
            service.notify("READY=1", f"STATUS=sending to {options.brokers}")
            sender.run()
    except KeyboardInterrupt:
        if not over.is_set():
            raise
        say("the queue does not answer, so the batch that was being sent comes again at the next start")
    finally:
        to.close()
    done = sender.counters
    say(f"sent {done.messages:,} messages, {done.bytes:,} bytes, up to event {done.sequence}")
    return ended(came)


def _messages(options: argparse.Namespace) -> MessageOptions:
    from shmstore.consumer.queues.messages import MessageOptions

    return MessageOptions(
        options.store,
        options.format,
        topic=options.topic,
        ddl_topic=options.ddl_topic,
        ddl_partition=options.ddl_partition,
        order=options.order,
        tombstones=options.tombstones,
        keys=options.keys,
        schemas=options.schemas,
        transactions=options.transactions,
        gtids=options.gtids,
        flat=options.flat_message,
        headers=options.headers,
        tables=options.tables,
        routing=_routing(options),
    )


def _routing(options: argparse.Namespace) -> CanalRouting | None:
    from shmstore.consumer.queues.canal_routing import CanalRouting

    asked = {
        name: getattr(options, name)
        for name in ("dynamic_topic", "partition", "partitions_num", "dynamic_topic_partition_num", "partition_hash")
    }
    given = [name for name, value in asked.items() if value not in ("", 0, 1)] + ["database_hash"] * (not options.database_hash)
    if not given:
        return None
    if options.format != "canal" or options.keys:
        raise ValueError(f"--{given[0].replace('_', '-')} is Canal's own routing: it needs --format canal, without --keys")
    return CanalRouting(options.topic or options.store, database_hash=options.database_hash, **asked)


def _password(options: argparse.Namespace) -> str:
    if not options.user:
        return ""
    password = clients_password(options.password_file, PASSWORD)
    if not password:
        raise ValueError(f"--user {options.user} has no password: give --password-file or {PASSWORD}")
    return password if isinstance(password, str) else password()


def _settings(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise ValueError(f"--set {word!r} is not a setting: write NAME=VALUE")
        found[name.strip()] = value
    return found
