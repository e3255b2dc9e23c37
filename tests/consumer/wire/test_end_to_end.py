"""From a real MariaDB's changes to the canal clients of PyPI: producer, store, server, client."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.consumer.formats import canal_values
from shmstore.consumer.wire.protocol import messages as m
from tests.consumer.wire.harness import PackagedClient, RawClient, ServerThread, entries
from tests.producer.running import running, wait_for_position
from tests.servers.server import Server

pytestmark = pytest.mark.server
UPDATE, DELETE, CREATE, ALTER = 2, 3, 4, 5


@pytest.fixture
def eight_hours_ahead() -> Iterator[None]:
    """The process's local time zone is UTC+8."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC-8")
        time.tzset()
        canal_values._local.cache_clear()
        yield
    time.tzset()
    canal_values._local.cache_clear()


@contextmanager
def produced(server: Server, database: str, **options: Any) -> Iterator[EventStore]:
    """A store that a producer fills with the changes of `database`."""
    with (
        running(server, include=(f"{database}.*",), start="latest", **options) as run,
        EventStore.attach(run.settings.store) as store,
    ):
        yield store


def start(client: PackagedClient, port: int, store: EventStore, client_id: str, filter: str = r".*\..*") -> None:
    client.connect(host="127.0.0.1", port=port)
    client.check_valid(username="", password="")
    client.subscribe(client_id=client_id, destination=store.name, filter=filter)


class Copy:
    """A table kept from a client's messages, key to row; it refuses what could not happen."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self.statements: list[str] = []

    def apply(self, message: dict[str, Any]) -> None:
        for kind, event, _schema, name, rows in message["entries"]:
            if kind != 2:
                continue
            table = self.tables.setdefault(name, {})
            for before, after in rows:
                if before:
                    assert table.pop(before["id"]).items() <= before.items()  # a column may have been added
                if after:
                    assert after["id"] not in table
                    table[after["id"]] = after
            if event in (CREATE, ALTER):
                self.statements.append(name)


@pytest.mark.parametrize("package", ["canal", "pycanal"])
def test_tables_arrive(
    package: str,
    mariadb: Server,
    database: str,
    new_server: Callable[..., ServerThread],
    packaged: Callable[[str], PackagedClient],
    seed: int,
) -> None:
    """Two packaged clients at once keep copies of a server's tables through rollbacks and reconnects; both end as SELECT has it."""
    rng = random.Random(seed)
    with produced(mariadb, database) as store:
        server = new_server(values="exact")
        readers = {"1001": r".*\..*", "1002": rf"{database}\.wanted"}
        clients = {}
        for client_id, filter in readers.items():
            clients[client_id] = packaged(package)
            start(clients[client_id], server.port, store, client_id, filter)
        copies = {client_id: Copy() for client_id in readers}
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            for table in ("wanted", "other"):
                cursor.execute(
                    f"CREATE TABLE {table} (id INT PRIMARY KEY, name VARCHAR(30) CHARACTER SET utf8mb4, n BIGINT UNSIGNED, d DECIMAL(12,3))"
                )
            used = 0
            for step in range(60):
                for table in ("wanted", "other"):
                    for _ in range(rng.randint(1, 5)):
                        used += 1
                        cursor.execute(
                            f"INSERT INTO {table} (id, name, n, d) VALUES (%s, %s, %s, %s)",
                            (used, rng.choice(["näme", "日本", "", None]), 2**64 - used, rng.random() * 1e6),
                        )
                    cursor.execute(
                        f"UPDATE {table} SET name = CONCAT(COALESCE(name, ''), '!'), d = d + 1 WHERE id %% 7 = %s",
                        (rng.randrange(7),),
                    )
                    cursor.execute(f"DELETE FROM {table} WHERE id %% 11 = %s", (rng.randrange(11),))
                if rng.random() < 0.8:
                    connection.commit()
                else:
                    connection.rollback()
                if step == 30:
                    cursor.execute("ALTER TABLE wanted ADD more INT")
                for client_id, client in clients.items():
                    if rng.random() < 0.2:
                        client.get_without_ack(batch_size=rng.randint(1, 4))
                        if rng.random() < 0.5:
                            client.rollback(batch_id=0)
                        else:
                            client.disconnect()
                            if package == "canal" or rng.random() < 2:
                                start(client, server.port, store, client_id, readers[client_id])
                    copies[client_id].apply(client.get(size=rng.randint(1, 20)))
            connection.commit()
            wait_for_position(mariadb, store)
            for client_id, client in clients.items():
                while (message := client.get(size=100))["id"]:
                    copies[client_id].apply(message)
            for table, readers_of in (("wanted", ("1001", "1002")), ("other", ("1001",))):
                cursor.execute(f"SELECT id, name, n, d FROM {table}")
                rows = {
                    str(row[0]): {
                        name: None if value is None else str(value)
                        for name, value in zip(("id", "name", "n", "d"), row, strict=True)
                    }
                    for row in cursor
                }
                for client_id in readers_of:
                    copy = {
                        key: {name: row[name] for name in ("id", "name", "n", "d")}
                        for key, row in copies[client_id].tables[table].items()
                    }
                    assert copy == rows
            assert "other" not in copies["1002"].tables
            assert copies["1002"].statements.count("wanted") == 2


COLUMNS = {
    "t": ("TINYINT UNSIGNED", ["0", "127", "128", "255", None], ""),
    "b": ("BIGINT UNSIGNED", ["0", "9223372036854775807", "9223372036854775808", "18446744073709551615", None], ""),
    "s": ("BIGINT", ["-9223372036854775808", "-1", "0", "1", None], ""),
    "dec_": ("DECIMAL(30,10)", ["-12345678901234567890.0123456789", "0", "1.5", "-0.0000000001", None], ""),
    "dt": ("DATETIME(3)", ["1000-01-01 00:00:00.000", "2024-02-29 23:59:59.999", "9999-12-31 00:00:00", "2001-01-01", None], ""),
    "ts": (
        "TIMESTAMP(6) NULL",
        ["1970-01-01 00:00:01", "2024-02-29 23:59:59.999999", "2038-01-19 03:14:07", "2001-01-01", None],
        "",
    ),
    "d": ("DATE", ["1000-01-01", "2024-02-29", "9999-12-31", "2001-01-01", None], ""),
    "tm": ("TIME(2)", ["-838:59:59.00", "838:59:59.00", "00:00:00.01", "-00:00:00.50", None], ""),
    "y": ("YEAR", ["1901", "2155", "2024", "0", None], ""),
    "e": ("ENUM('small','big')", ["small", "big", "big", "small", None], "e+0"),
    "st": ("SET('a','b','c')", ["", "a", "b,c", "a,b,c", None], "st+0"),
    "bi": ("BIT(20)", ["0", "1", "1048575", "524288", None], "bi+0"),
    "c": ("CHAR(10) CHARACTER SET latin1", ["", "é", "x", "a  b", None], ""),
    "vc": ("VARCHAR(20) CHARACTER SET utf8mb4", ["", "日本", "😀", " x ", None], ""),
    "f": ("FLOAT", ["0", "-1.5", "3.4e38", "0.1", None], ""),
    "db": ("DOUBLE", ["0.1", "1e20", "-0.00001", "1.7976931348623157e308", None], ""),
    "bn": ("BINARY(4)", ["", "ab", "é", "abcd", None], "HEX(bn)"),
    "bl": ("BLOB", ["", "\0\x01", "日本", "x", None], "HEX(bl)"),
    "js": ("JSON", ["{}", '{"a": [1, null]}', '"é"', "[]", None], ""),
    "tx": ("TEXT CHARACTER SET utf8mb4", ["", "zeile\nzwei", "😀" * 100, "x", None], ""),
}


ALWAYS = ("bi", "bn", "bl")  # compared by a number or in hex, whatever the values
OTHERWISE = ("f", "db", "dec_", "bn", "js")  # as Canal prints them: test_formatter holds that


def shown_value(column: Any) -> str | None:
    """A column's value as the SELECT shows it: bytes in hex."""
    if column.isNull:
        return None
    return column.value.encode("latin-1").hex().upper() if column.name in ("bn", "bl") else str(column.value)


@pytest.mark.parametrize("values", ["canal", "exact"])
def test_values_as_the_server_prints_them(
    values: str, any_server: Server, database: str, new_server: Callable[..., ServerThread], eight_hours_ahead: None
) -> None:
    """Every value reads as the server itself prints it, a TIMESTAMP in UTC; canal values in local time, ENUM and SET as numbers."""
    with produced(any_server, database) as store:
        client = RawClient(new_server(values=values).port, store.name)
        client.subscribe()
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET time_zone = '{'+08:00' if values == 'canal' else '+00:00'}'")
            cursor.execute("SET sql_mode = ''")
            cursor.execute(
                f"CREATE TABLE matrix (id INT PRIMARY KEY, {', '.join(f'{name} {kind}' for name, (kind, _, _) in COLUMNS.items())})"
            )
            for i in range(5):
                cursor.execute(
                    f"INSERT INTO matrix VALUES ({', '.join(['%s'] * (len(COLUMNS) + 1))})",
                    (i, *(tests[i] for _, tests, _ in COLUMNS.values())),
                )
            cursor.execute("UPDATE matrix SET t = 1, vc = 'new' WHERE id < 2")
            connection.commit()
            shown = [
                f"CAST({number if number and (values == 'canal' or name in ALWAYS) else name} AS CHAR)"
                for name, (_, _, number) in COLUMNS.items()
                if not (values == "canal" and name in OTHERWISE)
            ]
            cursor.execute(f"SELECT id, {', '.join(shown)} FROM matrix ORDER BY id")
            wanted = [tuple(row[1:]) for row in cursor.fetchall()]
        wait_for_position(any_server, store)
        rows: dict[str, tuple[Any, ...]] = {}
        updated: list[list[str]] = []
        while (answer := client.get(1000)).batch_id > 0:
            for entry in entries(answer):
                change = m.RowChange.FromString(entry.storeValue)
                for row in change.rowDatas if entry.entryType == 2 else ():
                    kept = [column for column in row.afterColumns[1:] if not (values == "canal" and column.name in OTHERWISE)]
                    rows[row.afterColumns[0].value] = tuple(shown_value(column) for column in kept)
                    if entry.header.eventType == UPDATE:
                        updated.append([column.name for column in row.afterColumns if column.updated])
            client.ack(answer.batch_id)
        assert [rows[str(i)] for i in range(5)] == wanted
        assert updated == [["t", "vc"], ["t", "vc"]]
        client.close()


def test_headers(mariadb: Server, database: str, new_server: Callable[..., ServerThread]) -> None:
    """Begin has the thread, end the XID, entries their place, size and GTID, DDL its statement, as Canal's parser fills them."""
    with produced(mariadb, database) as store:
        client = RawClient(new_server(values="exact").port, store.name)
        client.subscribe()
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            cursor.execute("INSERT INTO t VALUES (1), (2)")
            connection.commit()
            cursor.execute("SELECT CONNECTION_ID(), @@server_id, @@gtid_current_pos")
            thread, server_id, gtid = cursor.fetchone()
        wait_for_position(mariadb, store)
        found = entries(client.get(10000))
        create, begin, row, end = found[-4:]
        change = m.RowChange.FromString(create.storeValue)
        assert (change.isDdl, change.eventType, change.ddlSchemaName) == (True, CREATE, database)
        assert change.sql.startswith("CREATE TABLE t")
        assert (create.header.schemaName, create.header.tableName, create.header.eventType) == (database, "t", CREATE)
        assert m.TransactionBegin.FromString(begin.storeValue).threadId in (thread, 0)
        assert int(m.TransactionEnd.FromString(end.storeValue).transactionId) > 0
        assert (row.header.schemaName, row.header.tableName, row.header.serverId) == (database, "t", server_id)
        props = {pair.key: pair.value for pair in row.header.props}
        assert props == {"rowsCount": "2", "curtGtid": gtid.split(",")[-1]}
        offsets = [(entry.header.logfileOffset, entry.header.eventLength) for entry in (begin, row, end)]
        assert offsets == sorted(offsets)
        assert row.header.logfileOffset + row.header.eventLength == end.header.logfileOffset
        client.close()


def test_a_live_stream(mariadb: Server, database: str, server: ServerThread) -> None:
    """A client that waits gets a change when it is made."""
    with produced(mariadb, database, batch_mode="ITEMSIZE") as store:
        client = RawClient(server.port, store.name)
        client.subscribe()
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            wait_for_position(mariadb, store)
            client.ack(client.get(10000).batch_id)

            def insert() -> None:
                cursor.execute("INSERT INTO t VALUES (1)")
                connection.commit()

            timer = threading.Timer(0.2, insert)
            timer.start()
            answer = client.get(1, timeout=20, unit=3)
            timer.join()
            assert answer.batch_id == 2
        client.close()


STATEMENTS = {"mariadb": "binlog_annotate_row_events", "mysql": "binlog_rows_query_log_events"}


def test_statements_as_canal_sends_them(any_server: Server, database: str, server: ServerThread) -> None:
    """DDLs, XA, changes logged as statements and the statements behind rows, with the filter respected: as Canal's own server."""
    with produced(any_server, database, statements="pass", rows_query=True) as store:
        client = RawClient(server.port, store.name)
        client.subscribe(rf"{database}\.(t|new)")
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {STATEMENTS[any_server.flavor]} = ON")
            for statement in (
                "CREATE TABLE t (id INT PRIMARY KEY, flag TINYINT(1), ok BOOLEAN)",
                "CREATE TABLE other (id INT PRIMARY KEY)",
                "CREATE VIEW v AS SELECT 1",
                "INSERT INTO t VALUES (1, 1, 0)",
                "INSERT INTO other VALUES (1)",
                "XA START 'x'",
                "INSERT INTO t VALUES (2, 1, 0)",
                "XA END 'x'",
                "XA PREPARE 'x'",
                "XA COMMIT 'x'",
                "SET SESSION binlog_format = STATEMENT",
                "UPDATE t SET flag = 0 WHERE id = 1",
                "DELETE FROM other WHERE id = 1",
                "SET SESSION binlog_format = ROW",
                "RENAME TABLE other TO new",
                "DROP TABLE t",
            ):
                cursor.execute(statement)
        wait_for_position(any_server, store)
        seen: list[tuple[Any, ...]] = []
        ends: list[dict[str, str]] = []
        for entry in entries(client.get(10000)):
            header = entry.header
            if entry.entryType == 3:
                ends.append({pair.key: pair.value for pair in m.TransactionEnd.FromString(entry.storeValue).props})
            if entry.entryType != 2:
                continue
            change = m.RowChange.FromString(entry.storeValue)
            types = [column.mysqlType for row in change.rowDatas for column in row.afterColumns]
            what = types or change.sql.partition(" /*")[0].replace("`", "")
            seen.append((header.eventType, header.tableName, change.isDdl, what))
            assert header.gtid == ""
        client.close()
    annotated = "t" if any_server.flavor == "mysql" else ""
    xid = next(props["XA_XID"] for props in ends if props)
    types = ["INT", "TINYINT(1)", "BOOLEAN"]
    assert seen == [
        (CREATE, "t", True, "CREATE TABLE t (id INT PRIMARY KEY, flag TINYINT(1), ok BOOLEAN)"),
        (7, annotated, False, "INSERT INTO t VALUES (1, 1, 0)"),
        (1, "t", False, types),
        (7, annotated, False, "INSERT INTO t VALUES (2, 1, 0)"),
        (1, "t", False, types),
        (13, "", False, f"XA COMMIT{xid}"),
        (UPDATE, "t", False, "UPDATE t SET flag = 0 WHERE id = 1"),
        (9, "new", True, "RENAME TABLE other TO new"),
        (6, "t", True, "DROP TABLE t"),
    ]
    assert {"XA_TYPE": "XA END", "XA_XID": xid} in ends
    assert xid.startswith(" X'78'")
