"""Canal's own server and a store that was made of its files: the same entries to the same client; and a client that moves in the middle of a load.

Maven has no artifact with Canal's configuration: SHMSTORE_CANAL_CONF names the folder `conf` of an unpacked Canal, whose files are used.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore, producer
from shmstore.cli.canal import cursors, files
from shmstore.consumer.wire import CanalSettings
from shmstore.consumer.wire.protocol import messages as m
from tests.consumer.wire.harness import RawClient, ServerThread, entries, ids
from tests.producer.running import Running, end_of_log, execute, remove, store_name, wait_for, wait_for_position
from tests.servers import canal_conf
from tests.servers.canal import DESTINATION, canal_from_files, canal_server
from tests.servers.server import Server, start_server
from tests.servers.zookeeper import zookeeper

pytestmark = [pytest.mark.server, pytest.mark.long]
LOAD = [
    "CREATE DATABASE IF NOT EXISTS shop",
    "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), total DECIMAL(9,2))",
    "CREATE TABLE shop.log (id INT PRIMARY KEY, a INT, b INT)",
    "CREATE TABLE shop.skipped (id INT PRIMARY KEY)",
    *(f"INSERT INTO shop.orders VALUES ({i}, 'n{i}', {i}.5)" for i in range(5)),
    "INSERT INTO shop.log VALUES (1, 2, 3), (2, 3, 4)",
    "UPDATE shop.orders SET total = total + 1",
    "DELETE FROM shop.orders WHERE id = 3",
    "INSERT INTO shop.skipped VALUES (1)",
    "ALTER TABLE shop.log ADD c INT",
    "UPDATE shop.log SET c = 1",
    "TRUNCATE TABLE shop.skipped",
]
CONFIGURATIONS = {
    "shipped": "",
    "one table": "canal.instance.filter.regex=shop\\\\.orders",
    "several tables": "canal.instance.filter.regex=shop\\\\.(orders|log)",
    "black": "canal.instance.filter.black.regex=shop\\\\.skipped,mysql\\\\..*",
    "fields": "canal.instance.filter.field=shop.orders:id/total",
    "black fields": "canal.instance.filter.black.field=shop.log:a/c",
    "no ddl": "canal.instance.filter.query.ddl=true",
    "no deletes": "canal.instance.filter.dml.delete=true",
    "inserts alone": "canal.instance.filter.dml.delete=true\ncanal.instance.filter.dml.update=true",
    "no begin and end": "canal.instance.filter.transaction.entry=true",
    "items": "canal.instance.memory.batch.mode=ITEMSIZE\ncanal.instance.memory.buffer.size=1024",
    "gtids": "canal.instance.gtidon=true\ncanal.instance.master.gtid={gtids}\ncanal.instance.master.timestamp={now}",
    "no statements' text": "canal.instance.filter.query.dml=true\ncanal.instance.filter.query.dcl=true",
    "statements alone": "canal.instance.filter.rows=true",
    "isolated ddl, small parts": "canal.instance.get.ddl.isolation=true\ncanal.instance.transaction.size=2\ncanal.instance.parser.parallel=false",
    "full images alone": "canal.instance.binlog.format=ROW\ncanal.instance.binlog.image=FULL\ncanal.instance.mysql.slaveId=4711",
}


def conf(folder: Path, server: Server, text: str, start: tuple[str, int] | None = None) -> Path:
    """A copy of Canal's shipped folder, for `server`, with lines behind those of its files."""
    assert "SHMSTORE_CANAL_CONF" in os.environ, "set SHMSTORE_CANAL_CONF to the folder conf of an unpacked Canal"
    shutil.copytree(os.environ["SHMSTORE_CANAL_CONF"], folder)
    with (folder / "example" / "instance.properties").open("a") as file:
        file.write(f"\ncanal.instance.master.address=127.0.0.1:{server.port}\n{text}\n")
        if start is not None:
            file.write(f"canal.instance.master.journal.name={start[0]}\ncanal.instance.master.position={start[1]}\n")
    return folder


def settings_of(made: Any, state: Path) -> producer.Settings:
    """The producer's settings, as the file has them, with a store of the test's."""
    (path,) = files.write([made])
    (settings,) = producer.load_all(config=path, environ={}, flags={"state": str(state), "store": store_name()})
    return settings


def seen(client: RawClient, quiet: float = 4.0) -> list[Any]:
    """What a client is given until nothing more comes, in a form that two servers may share."""
    found, until = [], time.monotonic() + 60  # it may have to start
    while time.monotonic() < until:
        answer = client.get(100, timeout=200, unit=2)
        for entry in entries(answer):
            until = time.monotonic() + quiet
            header = entry.header
            rows, known = [], ""
            if entry.entryType == 2:
                change = m.RowChange.FromString(entry.storeValue)
                rows = [change.isDdl, change.sql]
                known = header.gtid if change.isDdl else ""  # Canal's rows have it, too: see canal-differences.md
                for row in change.rowDatas:
                    rows += [
                        [(c.name, c.value, c.isNull, c.updated) for c in image] for image in (row.beforeColumns, row.afterColumns)
                    ]
            gtid = [pair.value for pair in header.props if pair.key == "curtGtid"]
            place = (header.logfileName, header.logfileOffset, header.executeTime, header.serverId, gtid, known)
            found.append((entry.entryType, header.schemaName.lower(), header.tableName, header.eventType, rows, place))
        if answer.batch_id > 0:
            client.ack(answer.batch_id)
    return found


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_same_entries(name: str, tmp_path: Path) -> None:
    """The same files, the same server, the same client: what Canal sends comes from the converted store too."""
    with start_server("mysql") as server:
        text, start = CONFIGURATIONS[name], end_of_log(server)
        if "{gtids}" in text:
            execute(server, "mysql", "CREATE DATABASE shop")  # a set that is empty is none
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT REPLACE(@@global.gtid_executed, '\\n', '')")
                text = text.format(gtids=cursor.fetchone()[0], now=int(time.time() * 1000))
            folder = conf(tmp_path / "conf", server, text)
        else:
            folder = conf(tmp_path / "conf", server, text, start)
        (made,) = files.conversions(str(folder), tmp_path / "out", {}, {})
        with canal_from_files(server, folder) as canal:
            client = RawClient(canal.port, "example")
            assert client.subscribe().error_code == 0
            execute(server, "mysql", *LOAD)
            theirs = seen(client)
            client.close()
            assert theirs, canal.log()[-3000:]
        settings = settings_of(made, tmp_path / "state")
        run = Running(settings)
        serving = ServerThread(
            CanalSettings(
                port=0,
                stores=(f"example={settings.store}",),
                state=tmp_path / "state",
                **{
                    option: made.sections["serve"][option]
                    for option in ("gtids", "transaction_entries")
                    if option in made.sections["serve"]
                },
            )
        )
        try:
            wait_for(lambda: not run.alive or settings.store in EventStore.names(), "the store")
            client = RawClient(serving.port, "example")
            assert client.subscribe().error_code == 0
            ours = seen(client)
            client.close()
        finally:
            serving.stop()
            run.stop()
            remove(settings.store, str(tmp_path / "state"))
        for each in (theirs, ours):
            assert any(entry[0] == 2 for entry in each), f"{name}: nothing came"
        # Statements about a database pass Canal's filters for tables; here they are asked about.
        rows = [[entry for entry in each if entry[0] == 2 and entry[2]] for each in (theirs, ours)]
        assert rows[1] == rows[0]
        if name == "no begin and end":
            assert {entry[0] for entry in ours} == {2}  # Canal lets one of them through now and then


class Load:
    """One transaction after the other, of one to three rows, whose ids count up."""

    def __init__(self, server: Server) -> None:
        execute(server, "mysql", "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, a INT)")
        self.last, self._server, self._over = 0, server, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def start(self) -> None:
        self._thread.start()

    def _write(self) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            while not self._over.is_set():
                cursor.execute("BEGIN")
                for _ in range(self.last % 3 + 1):
                    cursor.execute(f"INSERT INTO shop.t VALUES ({self.last}, 1)")
                    self.last += 1
                cursor.execute("COMMIT")

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()


def read_some(canal: Any, destination: str, load: Load) -> list[int]:
    """Let a client of Canal's read 2,000 rows of the load, ack them, and go; return them."""
    client, found = RawClient(canal.port, destination), list[int]()
    assert client.subscribe("shop\\..*").error_code == 0
    load.start()
    until = time.monotonic() + 120
    while len(found) < 2000 and time.monotonic() < until:
        answer = client.get(50, timeout=200, unit=2)
        found += ids(answer)
        if answer.batch_id > 0:
            client.ack(answer.batch_id)
    assert len(found) >= 2000, canal.log()[-2000:]
    time.sleep(3)  # what Canal keeps is a second old
    client.close()
    return found


def read_the_rest(server: Server, made: Any, found: list[int], load: Load, folder: Path) -> None:
    """Take over the cursors of a converted destination into a store that is not there yet, and let the same client read on: each row once."""
    made.begins_before()
    settings, destination = settings_of(made, folder / "state"), made.source.name
    said = cursors.take(settings.store, cursors.of_destination(made), state=settings.state)
    assert "canal-1001: continues behind" in said
    assert "filter shop" in said
    run = Running(settings)
    serving = ServerThread(CanalSettings(port=0, stores=(f"{destination}={settings.store}",), state=folder / "state"))
    try:
        wait_for(lambda: not run.alive or settings.store in EventStore.names(), "the store")
        time.sleep(2)
        load.stop()
        if not run.alive:
            run.wait()
        with EventStore.attach(settings.store, state=settings.state) as store:
            wait_for_position(server, store, put=True)
        client = RawClient(serving.port, destination)
        assert client.subscribe().error_code == 0
        before = len(found)
        while found[-1] < load.last - 1:
            answer = client.get(1000)
            found += ids(answer)
            client.ack(answer.batch_id)
        client.close()
    finally:
        load.stop()
        serving.stop()
        run.stop()
        remove(settings.store, settings.state)
    print(f"{before} rows from Canal, {len(found) - before} from the store, {load.last} written")
    assert found == list(range(load.last))


def test_taken_over_in_the_middle_of_a_load(tmp_path: Path) -> None:
    """A client of a running Canal, under load, stops; its meta.dat becomes a subscription: every row comes once, from the one or the other."""
    with start_server("mysql", options=["--binlog-row-metadata=MINIMAL"]) as server:
        load = Load(server)
        folder = conf(tmp_path / "conf", server, "", end_of_log(server))
        with canal_from_files(server, folder) as canal:
            found = read_some(canal, "example", load)
        (made,) = files.conversions(str(folder), tmp_path / "out", {}, {})
        read_the_rest(server, made, found, load, tmp_path)


def test_cursors_that_zookeeper_has(tmp_path: Path) -> None:
    """The same where Canal keeps cursors and filters in ZooKeeper: its own server writes them there, and the conversion of files that name this
    ZooKeeper finds them."""
    with start_server("mysql", options=["--binlog-row-metadata=MINIMAL"]) as server, zookeeper() as running:
        load, address = Load(server), f"127.0.0.1:{running.port}"
        try:
            began = int(time.time() * 1000) - 1000
            with canal_server(server, *end_of_log(server), began, zookeeper=address) as canal:
                found = read_some(canal, DESTINATION, load)
            folder = tmp_path / "conf"
            canal_conf.write(folder, DESTINATION)
            with (folder / "canal.properties").open("a") as file:
                spring = "canal.instance.global.spring.xml = classpath:spring/default-instance.xml"
                file.write(f"\ncanal.destinations = {DESTINATION}\ncanal.zkServers = {address}\n{spring}\n")
            with (folder / DESTINATION / "instance.properties").open("a") as file:
                file.write(f"\ncanal.instance.master.address=127.0.0.1:{server.port}\n")
            (made,) = files.conversions(str(folder), tmp_path / "out", {}, {})
            read_the_rest(server, made, found, load, tmp_path)
        finally:
            load.stop()
