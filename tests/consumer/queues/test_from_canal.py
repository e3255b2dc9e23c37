"""The [queue] of a configuration that was made of Canal's files, on a real server and a real broker: what Canal's own producer sends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.cli.canal import files
from tests.consumer.queues.reading import committed
from tests.producer.running import execute, remove, wait_for, wait_for_position
from tests.servers import canal_conf
from tests.servers.kafka import Broker
from tests.servers.server import start_server
from tests.shmstore.commands import COMMAND

pytestmark = [pytest.mark.server, pytest.mark.long]


def test_a_converted_queue(kafka_broker: Broker, tmp_path: Path, state: Path) -> None:
    """`shmstore run` and `shmstore queue` with the file as it was written: Canal's flat messages, each change once, in the topics, partitions and order
    that its properties say."""
    folder, store = tmp_path / "conf", f"canalq-{tmp_path.name[-8:].strip('_')}"
    canal_conf.write(folder, store)
    with (folder / "canal.properties").open("a") as file:
        file.write(
            f"\ncanal.destinations = {store}\ncanal.serverMode = kafka\nkafka.bootstrap.servers = {kafka_broker.address}\n"
            "canal.mq.flatMessage = true\nkafka.acks = all\nkafka.compression.type = lz4\nkafka.linger.ms = 5\n"
        )
    with start_server("mysql") as server:
        with (folder / store / "instance.properties").open("a") as file:
            file.write(
                f"\ncanal.instance.master.address=127.0.0.1:{server.port}\ncanal.instance.dbUsername={server.user}\n"
                "canal.instance.dbPassword=\ncanal.instance.filter.regex=shop\\\\..*\n"
                f"canal.mq.topic={store}\ncanal.mq.dynamicTopic={store}-orders:shop\\\\.orders\n"
                "canal.mq.partitionsNum=3\ncanal.mq.partitionHash=shop\\\\.orders:id\n"
            )
        (made,) = files.conversions(str(folder), tmp_path / "out", {}, {})
        (path,) = files.write([made])
        print(path.read_text())
        with (tmp_path / "log").open("wb") as log:
            producing = subprocess.Popen([*COMMAND, "run", "--config", str(path)], stdout=log, stderr=log)
            sending = None
            try:
                wait_for(lambda: producing.poll() is not None or made.store in EventStore.names(), "the store")
                assert producing.poll() is None, (tmp_path / "log").read_text()
                with EventStore.attach(made.store) as attached:
                    wait_for(lambda: attached.stat().stream.connected, "the producer to read")
                    sending = subprocess.Popen([*COMMAND, "queue", "--config", str(path)], stdout=log, stderr=log)
                    execute(
                        server,
                        "mysql",
                        "CREATE DATABASE shop",
                        "CREATE TABLE shop.orders (id INT PRIMARY KEY, total DECIMAL(9,2))",
                        "CREATE TABLE shop.other (id INT PRIMARY KEY, v INT)",
                        *(f"INSERT INTO shop.orders VALUES ({i}, {i}.5)" for i in range(300)),
                        *(f"INSERT INTO shop.other VALUES ({i}, {i})" for i in range(50)),
                        "UPDATE shop.orders SET total = total + 1 WHERE id % 3 = 0",
                        "DELETE FROM shop.orders WHERE id % 10 = 9",
                    )
                    wait_for_position(server, attached, put=True)
                    wait_for(
                        lambda: (
                            sending.poll() is not None  # type: ignore[union-attr]
                            or any(each.ack.sequence >= attached.newest for each in attached.subscriptions())
                        ),
                        "all to be sent",
                    )
                    assert sending.poll() is None, (tmp_path / "log").read_text()
            finally:
                for process in (sending, producing):
                    if process is not None:
                        process.terminate()
                        process.wait(30)
                remove(made.store)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, total FROM shop.orders")
            wanted = {str(row[0]): str(row[1]) for row in cursor.fetchall()}
    copies: dict[str, str] = {}
    changes, places = 0, dict[str, set[int]]()
    for partition, sent in committed(kafka_broker, f"{store}-orders").items():
        for _, value in sent:
            message = json.loads(value or b"{}")
            if message["isDdl"]:
                continue
            assert (message["database"], message["table"]) == ("shop", "orders")
            for row in message["data"]:
                changes += 1
                places.setdefault(row["id"], set()).add(partition)
                if message["type"] == "DELETE":
                    del copies[row["id"]]
                else:
                    copies[row["id"]] = row["total"]
    assert copies == wanted
    assert changes == 300 + 100 + 30
    assert all(len(each) == 1 for each in places.values())  # a row's changes are in one partition, in their order
    assert len(set().union(*places.values())) == 3
    others = [json.loads(value or b"{}") for sent in committed(kafka_broker, store).values() for _, value in sent]
    assert sorted(
        int(row["id"]) for each in others if each.get("table") == "other" and not each["isDdl"] for row in each["data"]
    ) == list(range(50))
