"""Kafka as a queue (consumer/queues/kafka.py, `shmstore queue`): real brokers, kills, logins, and readers of two languages."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from scripts.benchmarks import measure
from scripts.benchmarks.consumer import queue, queue_full
from shmstore import EventStore
from shmstore.consumer.queues.kafka import Kafka
from shmstore.consumer.queues.kafka_readers import hiding
from shmstore.consumer.queues.kinds import QueueConnection, make
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable
from tests.certificates import self_signed
from tests.consumer.queues import reading
from tests.consumer.queues.hanging import leave_hanging
from tests.consumer.queues.reading import committed, messages
from tests.consumer.queues.senders import send, wait_for
from tests.consumer.queues.test_sender import inserts, transaction
from tests.producer.running import execute, running, wait_for_position
from tests.servers.kafka import Broker, kafka
from tests.servers.server import Server

pytestmark = pytest.mark.usefixtures("state")


def refused(store: str, broker: Broker, *words: str, **more: str) -> str:
    """Return the one line with which sending ends."""
    return send(store, "kafka", broker.address, *words, code=2, **more)


def ids(broker: Broker, topic: str) -> list[int]:
    """The keys of all rows that are committed, sorted: each is there once where nothing comes twice."""
    found = [
        json.loads(value)["pk"]["id"] for each in committed(broker, topic).values() for _, value in each if value is not None
    ]
    return sorted(found)


# ---------------------------------------------------------------- exactly once


def test_a_batch_that_is_given_up(kafka_broker: Broker, store_name: str) -> None:
    """What was taken and never sent holds up no reader of the topic once the queue is closed."""
    ours, other = (Kafka(kafka_broker.address, f"{name}/{store_name}") for name in ("ours", "other"))
    ours.open()
    ours.take([Message(store_name, b"k", b"never", 0)])
    producer = ours._producer
    assert producer is not None
    producer.flush(30)
    ours.close()
    other.open()
    other.send([Message(store_name, b"k", b"there", 0)], Mark(1, 1))
    other.close()
    assert values(kafka_broker, store_name) == [b"there"]


def test_what_was_delivered_is_let_go_of(kafka_broker: Broker, store_name: str) -> None:
    """The client lets go of the messages that the broker has, while more of the same batch is taken; they come in with the commit."""
    queue = Kafka(kafka_broker.address, store_name)
    try:
        queue.open()
        queue.take([Message(store_name, b"k", b"early", 0)])
        producer = queue._producer
        assert producer is not None

        def let_go() -> bool:
            queue.take([])
            return not len(producer)

        wait_for(let_go)
        queue.send([Message(store_name, b"k", b"late", 0)], Mark(1, 1))
    finally:
        queue.close()
    assert values(kafka_broker, store_name) == [b"early", b"late"]


def test_a_sender_that_hides_another_ones_mark(kafka_broker: Broker) -> None:
    """An open transaction of another sender in front of our mark: `open` waits until that is decided, and finds the mark."""
    other, ours = Kafka(kafka_broker.address, "hidden/other"), Kafka(kafka_broker.address, "hidden/ours")
    other.open()
    ours.open()
    producer = other._producer
    assert producer is not None
    producer.begin_transaction()
    producer.produce("shmstore-progress", b"{}", b"hidden/other", 0)
    producer.flush(10)
    ours.send([], Mark(1, 77))
    done: list[Any] = []
    opener = threading.Thread(target=lambda: done.append(Kafka(kafka_broker.address, "hidden/ours").open()))
    opener.start()
    opener.join(3)
    assert not done
    producer.abort_transaction(10)
    opener.join(60)
    assert done == [Mark(1, 77)]
    other.close()
    ours.close()


def test_a_commit_whose_markers_come_later(kafka_broker: Broker, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tests' own reader: it waits for what is being committed. A coordinator answers a commit first, and has it written then."""
    producer = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": store_name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(store_name, b"late", partition=0)
    producer.flush(60)
    looks = []

    def look(admin: AdminClient, places: list[TopicPartition]) -> list[TopicPartition]:
        looks.append(hiding(admin, places))
        if len(looks) == 1:
            producer.commit_transaction(60)
        return looks[-1]

    monkeypatch.setattr(reading, "hiding", look)
    assert committed(kafka_broker, store_name) == {0: [(None, b"late")]}
    assert looks[0]
    assert not looks[-1]


# ---------------------------------------------------------------- transactions that hang


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return sorted((value for each in committed(broker, topic).values() for _, value in each), key=lambda value: value or b"")


def test_a_batch_that_hangs(kafka_broker: Broker, store_name: str) -> None:
    """The mark and its rows are in a transaction that the broker forgot: `open` returns the mark before it, and what is sent again is there once."""
    topic, reader, marks = f"{store_name}-rows", f"s/{store_name}", f"{store_name}-marks"
    queue = Kafka(kafka_broker.address, reader, progress_topic=marks)
    assert queue.open() is None
    queue.send([Message(topic, b"k", b"%d first" % number, number) for number in range(3)], Mark(1, 1))
    queue.close()
    rows = [Message(topic, b"k", b"%d second" % number, number) for number in range(2)]
    leave_hanging(kafka_broker, reader, [*rows, Message(marks, reader.encode(), Mark(1, 2).to_json(), 0)])
    assert queue.open() == Mark(1, 1)
    queue.send(rows[:1], Mark(1, 2))
    assert values(kafka_broker, topic) == [b"0 first", b"0 second", b"1 first", b"2 first"]
    queue.send(rows[1:], Mark(1, 3))
    assert values(kafka_broker, topic) == [b"0 first", b"0 second", b"1 first", b"1 second", b"2 first"]
    assert queue.open() == Mark(1, 3)
    queue.close()


@pytest.mark.parametrize(("sequence", "there"), [(7, [b"first", b"sent"]), (5, [b"first", b"hung", b"sent"])])
def test_rows_that_hang(kafka_broker: Broker, store_name: str, sequence: int, there: list[bytes]) -> None:
    """Rows behind the mark come again, so they are aborted; those that the mark counts are committed with the next ones."""
    topic, reader, marks = f"{store_name}-rows", f"s/{store_name}", f"{store_name}-marks"
    queue = Kafka(kafka_broker.address, reader, progress_topic=marks)
    queue.open()
    queue.send([Message(topic, b"k", b"first", 1)], Mark(1, 5))
    queue.close()
    headers = [("shmstore.sequence", b"%d" % sequence)]
    leave_hanging(kafka_broker, reader, [Message(topic, b"k", b"hung", 1, headers=headers)])
    assert queue.open() == Mark(1, 5)
    queue.send([Message(topic, b"k", b"sent", 1)], Mark(1, 7))
    assert values(kafka_broker, topic) == there
    queue.close()


def test_rows_that_hang_in_a_later_topic(kafka_broker: Broker, store_name: str) -> None:
    """They are met when a part of the batch was taken: the batch begins again, and first they are ended."""
    first, later, reader = f"{store_name}-first", f"{store_name}-later", f"s/{store_name}"
    queue = Kafka(kafka_broker.address, reader, progress_topic=f"{store_name}-marks")
    queue.open()
    queue.send([Message(first, b"k", b"0", 1), Message(later, b"k", b"0", 1)], Mark(1, 5))
    queue.close()
    leave_hanging(kafka_broker, reader, [Message(later, b"k", b"hung", 1, headers=[("shmstore.sequence", b"7")])])
    assert queue.open() == Mark(1, 5)
    queue.take([Message(first, b"k", b"1", 1)])
    with pytest.raises(QueueUnreachable, match=f"topic {later} has a transaction of '{reader}' that was not ended"):
        queue.take([Message(later, b"k", b"1", 1)])
    assert queue.open() == Mark(1, 5)
    queue.take([Message(first, b"k", b"1", 1)])
    queue.take([Message(later, b"k", b"1", 1)])
    queue.send([], Mark(1, 7))
    assert values(kafka_broker, first) == [b"0", b"1"]
    assert values(kafka_broker, later) == [b"0", b"1"]
    queue.close()


def test_a_topic_that_has_no_leader_yet(kafka_broker: Broker, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was made just now may have none: it is asked again."""
    asked: list[int] = []

    def answer(*given: Any) -> Any:
        asked.append(len(asked))
        if len(asked) == 1:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return hiding(*given)

    monkeypatch.setattr("shmstore.consumer.queues.kafka.hiding", answer)
    queue = Kafka(kafka_broker.address, f"s/{store_name}")
    queue.open()
    queue.send([Message(store_name, b"k", b"there", 0)], Mark(1, 1))
    queue.close()
    assert len(asked) > 1
    assert values(kafka_broker, store_name) == [b"there"]


def test_another_sender_that_hangs(kafka_broker: Broker, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up those whose mark it hides, and the line says which sender it is and what ends it; no other reader waits."""
    marks, other = f"{store_name}-marks", f"other/{store_name}"
    ours = Kafka(kafka_broker.address, f"ours/{store_name}", progress_topic=marks)
    ours.open()
    ours.send([], Mark(1, 1))
    leave_hanging(kafka_broker, other, [Message(marks, other.encode(), Mark(9, 9).to_json(), 0)])
    assert ours.open() == Mark(1, 1)
    ours.send([], Mark(1, 2))
    monkeypatch.setattr("shmstore.consumer.queues.kafka.TRANSACTION_SECONDS", 0)
    monkeypatch.setattr("shmstore.consumer.queues.kafka.ANSWER_SECONDS", 1.0)
    with pytest.raises(QueueUnreachable, match=rf"transaction of '{other}' at offset \d+ is open.* --start-offset"):
        ours.open()
    monkeypatch.undo()
    assert Kafka(kafka_broker.address, other, progress_topic=marks).open() is None
    assert ours.open() == Mark(1, 2)
    ours.close()


# ---------------------------------------------------------------- from a server to readers


def test_a_compacted_topic_is_the_table(any_server: Server, database: str, kafka_broker: Broker, tmp_path: Path) -> None:
    """Random changes on a real server, keys included: the last message of each key is what SELECT shows, in each format."""
    chance = random.Random(5)
    with running(any_server, include=(f"{database}.*",)) as run:
        execute(any_server, database, f"CREATE TABLE {database}.t (a INT, b VARCHAR(20), n DECIMAL(20,4), PRIMARY KEY (a, b))")
        statements = []
        for number in range(200):
            key, other = chance.randint(0, 12), chance.randint(0, 12)
            statements.append(
                chance.choice(
                    [
                        f"REPLACE INTO {database}.t VALUES ({key}, 'k{key % 3}', {number}.5)",
                        f"UPDATE IGNORE {database}.t SET a = {other}, b = 'k{other % 3}', n = {number} WHERE a = {key}",
                        f"UPDATE {database}.t SET n = {number} WHERE a = {key}",
                        f"DELETE FROM {database}.t WHERE a = {key}",
                    ]
                )
            )
        execute(any_server, database, *statements)
        name = run.settings.store
        with EventStore.attach(name) as store:
            wait_for_position(any_server, store, put=True)
        with any_server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT a, b, n FROM {database}.t ORDER BY a, b")
            wanted = [(a, b, str(n)) for a, b, n in cursor.fetchall()]
        for form in ("json", "debezium"):
            topic = f"{name}-{form}"
            send(name, "kafka", kafka_broker.address, "--subscription", form, "--format", form, "--topic", topic)
            table: dict[bytes, bytes | None] = {}
            for each in committed(kafka_broker, topic).values():
                table.update((key or b"", value) for key, value in each)
            rows = [json.loads(value)["after"] for value in table.values() if value is not None]
            assert sorted((row["a"], row["b"], row["n"]) for row in rows) == wanted


def test_javas_consumer(log_store: EventStore, kafka_broker: Broker, tmp_path: Path) -> None:
    """Kafka's own console consumer reads what is committed: keys, values, headers."""
    log_store.put(transaction(0, inserts(1, 2, 3)))
    send(log_store.name, "kafka", kafka_broker.address)
    settings = tmp_path / "consumer.properties"
    settings.write_text("isolation.level=read_committed\n")
    words = ["--bootstrap-server", kafka_broker.address, "--topic", f"{log_store.name}.shop.orders", "--from-beginning"]
    shown = ["--formatter-property", "print.key=true", "--formatter-property", "print.headers=true", "--max-messages", "3"]
    words += [*shown, "--timeout-ms", "30000", "--command-config", str(settings)]
    done = kafka_broker.run("org.apache.kafka.tools.consumer.ConsoleConsumer", *words)
    lines = [line for line in done.stdout.splitlines() if "\t" in line]
    assert len(lines) == 3, done.stderr[-1000:]
    for number, line in enumerate(sorted(lines, key=lambda line: line.split("\t")[1]), 1):
        headers, key, value = line.split("\t")
        assert "shmstore.position:binlog.000001:2" in headers
        assert json.loads(key) == {"id": number}
        assert json.loads(value)["after"] == {"id": number, "note": f"note {number}"}


# ---------------------------------------------------------------- topics, sizes, logins


def test_topics_made_by_whom(log_store: EventStore, kafka_broker: Broker) -> None:
    """A topic that is there keeps its partitions; one that is not is made as asked for, or by the broker, or the line says who should."""
    log_store.put(transaction(0, inserts(*range(40))))
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    name = log_store.name
    admin.create_topics([NewTopic(f"{name}-there", 7, 1)])[f"{name}-there"].result(30)
    send(name, "kafka", kafka_broker.address, "--subscription", "a", "--topic", f"{name}-there")
    send(name, "kafka", kafka_broker.address, "--subscription", "b", "--topic", f"{name}-made", "--new-partitions", "5")
    send(name, "kafka", kafka_broker.address, "--subscription", "c", "--topic", f"{name}-auto", "--no-create-topics")
    topics = admin.list_topics(timeout=30).topics
    assert [len(topics[f"{name}-{kind}"].partitions) for kind in ("there", "made", "auto")] == [7, 5, 3]
    assert all(ids(kafka_broker, f"{name}-{kind}") == list(range(40)) for kind in ("there", "made", "auto"))


def test_what_the_broker_finds_too_large(kafka_broker: Broker, log_store: EventStore) -> None:
    """A topic's own limit is met at the broker: the error names row, event, topic and setting; `skip` sends all others."""
    topic = f"{log_store.name}-small"
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "2000"})])[topic].result(30)
    queue = Kafka(kafka_broker.address, "large/a", compression="none")
    small = [Message(topic, b"a", b"x" * 100, None, 1, number) for number in range(100)]
    with pytest.raises(MessageTooLarge, match=r"row 300 of event 12 .* max\.message\.bytes"):
        _until_it_goes(queue, [*small, Message(topic, b"b", os.urandom(5000), None, 12, 300)])
    assert committed(kafka_broker, topic) == {}
    _until_it_goes(queue, small)
    assert len(committed(kafka_broker, topic)[0]) == 100
    queue.close()
    log_store.put(transaction(0, [*inserts(1), *inserts(2, note=os.urandom(3000).hex()), *inserts(3)]))
    assert "max.message.bytes" in refused(log_store.name, kafka_broker, "--topic", topic, "--compression", "none")
    send(log_store.name, "kafka", kafka_broker.address, "--topic", topic, "--compression", "none", "--oversized", "skip")
    assert sum(b'"op":"insert"' in (value or b"") for _, value in committed(kafka_broker, topic)[0]) == 2


def _until_it_goes(queue: Kafka, some: list[Message]) -> None:
    """Send as a sender does: opened again where it did not go."""
    for _ in range(10):
        queue.open()
        with suppress(QueueUnreachable):
            return queue.send(some, Mark(1, 1))
    raise AssertionError("it never went")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of this host, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def guarded(authority: tuple[str, str]) -> Iterator[Broker]:
    """A broker that speaks TLS and asks for a login, and lets only `admin` and who is allowed do anything."""
    certificate, key = authority
    both = Path(certificate).with_name("both.pem")
    both.write_text(Path(key).read_text() + Path(certificate).read_text())
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="admin-secret";'
    options = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": jaas,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificate,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    with kafka("SASL_SSL", options, scram="SCRAM-SHA-512=[name=admin,password=admin-secret]") as broker:
        broker.login = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": certificate,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": "admin-secret",
        }
        yield broker


def test_logins(log_store: EventStore, guarded: Broker, authority: tuple[str, str], tmp_path: Path) -> None:
    """The right password sends over TLS; a wrong one, none, and one without rights end with a line that says so, and no password in it."""
    log_store.put(transaction(0, inserts(1, 2)))
    secret = tmp_path / "secret"
    secret.write_text("admin-secret\n")
    words = ("--tls-ca", authority[0], "--user", "admin")
    send(log_store.name, "kafka", guarded.address, *words, "--password-file", str(secret))
    assert len(messages(guarded, f"{log_store.name}.shop.orders", **guarded.login)) >= 1
    secret.write_text("wrong-secret")
    said = refused(log_store.name, guarded, *words, "--password-file", str(secret), "--subscription", "b")
    assert "uthentication" in said
    assert "wrong-secret" not in said
    assert "has no password" in refused(log_store.name, guarded, *words, "--subscription", "b")


def test_a_certificate_that_is_not_trusted(guarded: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to a broker whose certificate another signed; the line says that it is the certificate."""
    monkeypatch.setattr("shmstore.consumer.queues.kafka.ANSWER_SECONDS", 8.0)
    authority, _ = self_signed(tmp_path)
    queue = make(
        "kafka", QueueConnection(guarded.address, "s/untrusted", user="admin", password="admin-secret", tls_ca=authority)
    )
    with pytest.raises((QueueUnreachable, QueueRefused), match="certificate"):
        queue.open()
    queue.close()


def test_rights(log_store: EventStore, guarded: Broker, authority: tuple[str, str]) -> None:
    """A user whom the broker allows nothing: the line says what it needs."""
    log_store.put(transaction(0, inserts(1, 2)))
    weak = UserScramCredentialUpsertion("weak", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"weak")
    admin = AdminClient({"bootstrap.servers": guarded.address} | guarded.login)
    admin.alter_user_scram_credentials([weak])["weak"].result(30)
    said = refused(log_store.name, guarded, "--tls-ca", authority[0], "--user", "weak", SHMSTORE_QUEUE_PASSWORD="weak")
    assert "needs WRITE" in said


def test_nothing_listens(log_store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing answers, `open` says so within its time, and `run` would try again."""
    monkeypatch.setattr("shmstore.consumer.queues.kafka.ANSWER_SECONDS", 2.0)
    queue = Kafka("127.0.0.1:1", "s/none")
    with pytest.raises(QueueUnreachable, match=r"127\.0\.0\.1:1"):
        queue.open()
    queue.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"no.such": "1"}, "no.such"), ({"transactional.id": "x"}, "transactional.id"), ({"batch.size": "many"}, "batch.size")],
)
def test_settings_that_cannot_be(settings: dict[str, str], says: str) -> None:
    """Each is refused before anything is sent, by its name."""
    with pytest.raises(ValueError, match=says):
        Kafka("127.0.0.1:1", "s/none", settings=settings)


def test_a_foreign_record_for_our_key(kafka_broker: Broker) -> None:
    """What is no mark, under our key, stops with a line: other programs may be able to write there."""
    queue = Kafka(kafka_broker.address, "s/foreign")
    queue.open()
    queue.send([Message("shmstore-progress", b"s/foreign2", b"\x00{", 0)], Mark(1, 1))
    with pytest.raises(QueueRefused, match="no mark"):
        Kafka(kafka_broker.address, "s/foreign2").open()
    queue.close()


@pytest.mark.parametrize(("bench", "subjects"), [(queue, {"shmstore"}), (queue_full, {"shmstore", "bare loop"})])
def test_the_bench_measures(
    bench: Any, subjects: set[str], kafka_broker: Broker, mariadb: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scripts/bench queue queue_full`: the smallest run, on a server and a broker that other tests share, has rates."""
    monkeypatch.setattr(queue, "kafka", lambda options, java: nullcontext(kafka_broker))
    monkeypatch.setattr(queue, "start_server", lambda kind: nullcontext(mariadb))
    try:
        found = bench.measure_all(1, measure.SMALLEST)
    finally:
        execute(mariadb, "bench", "DROP DATABASE bench")
    assert {m.subject for m in found} == subjects
    assert all(m.median > 0 for m in found)
