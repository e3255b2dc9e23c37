"""A server of this host's stores, as other hosts and other languages see it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

from shmstore import (
    Column,
    Consumer,
    EntryType,
    Event,
    EventStore,
    EventType,
    Position,
    Row,
    StoreError,
    StoreNotFound,
    StoreUnreachable,
    TableSchema,
)
from shmstore.consumer.flight import FlightSettings, sessions
from shmstore.consumer.flight.process import serving
from shmstore.consumer.flight.server import FlightServer
from shmstore.consumer.remote.protocol import pack, unpack
from shmstore.encoding.codec import encode
from shmstore.home.definitions import Definition, DefinitionsFile
from shmstore.home.home import Home
from tests.certificates import self_signed
from tests.consumer.test_consumer import transaction
from tests.servers.ports import free_port

pytestmark = pytest.mark.usefixtures("state")
ROOT = Path(__file__).resolve().parents[3]


def url(server: FlightServer, store: EventStore) -> str:
    return f"grpc://127.0.0.1:{server.port}/{store.name}"


def get(client: flight.FlightClient, **ticket: Any) -> pa.Table:
    return client.do_get(flight.Ticket(pack(ticket))).read_all()


def act(client: flight.FlightClient, name: str, **request: Any) -> dict[str, Any]:
    (answer,) = client.do_action(flight.Action(name, pack(request)))
    return unpack(answer.body.to_pybytes())


# ---------------------------------------------------------------- what there is, and ranges of it


def test_stores_and_tables_are_listed(client: flight.FlightClient, log_store: EventStore) -> None:
    """A store is a flight of its events, and each of its tables one of typed rows; what is listed can be got as it is."""
    for number in range(3):
        log_store.put(transaction(number))
    found = {tuple(part.decode() for part in info.descriptor.path): info for info in client.list_flights(log_store.name.encode())}
    assert set(found) == {(log_store.name,), (log_store.name, "shop.orders")}
    assert client.do_get(found[log_store.name,].endpoints[0].ticket).read_all().num_rows == 9
    rows = client.do_get(found[log_store.name, "shop.orders"].endpoints[0].ticket).read_all()
    assert rows.schema == found[log_store.name, "shop.orders"].schema
    assert rows.column("after").to_pylist() == [{"id": 100 * n, "note": f"note {n}"} for n in range(3)]
    info = client.get_flight_info(flight.FlightDescriptor.for_path(log_store.name, "shop.orders"))
    assert info.schema == client.get_schema(info.descriptor).schema == rows.schema
    assert {type.type for type in client.list_actions()} >= {"subscribe", "ack", "seek", "close"}


def test_a_range(client: flight.FlightClient, log_store: EventStore) -> None:
    """Events are as they were put, rows are those of `Batch.to_arrow`, from wherever a start may be, out of ring and log."""
    events = [event for number in range(60) for event in transaction(number)]
    for number in range(60):  # far more than the ring has
        log_store.put(events[3 * number : 3 * number + 3], timeout=30)
    found = get(client, store=log_store.name, first=5, last=100)
    assert found.column("seq").to_pylist() == list(range(5, 101))
    assert found.column("payload").to_pylist() == [encode(event) for event in events[5:101]]
    assert found.column("rows").to_pylist() == log_store.slots(5, 100)["rows"].tolist()
    table = get(client, store=log_store.name, table="shop.orders", first="binlog.000001:40000")
    assert table == log_store.peek(120).to_arrow("shop.orders")
    assert get(client, store=log_store.name, first="latest").num_rows == 0


def test_columns_that_were_added(client: flight.FlightClient, store: EventStore) -> None:
    """A range has one schema, that of the table's newest row; older rows have NULL in what they lack. Rows that come later are seen."""
    from shmstore import Column, TableSchema
    from tests.consumer.test_consumer import TABLE

    store.put(transaction(0))
    assert get(client, store=store.name, table="shop.orders").column("after").type.num_fields == 2
    wider = TableSchema("shop", "orders", (*TABLE.columns, Column("more", "int")), (0,))
    begin, row, end = transaction(1)
    store.put([begin, row._replace(table=wider, rows=(row.rows[0]._replace(after=(7, "x", 9)),)), end])
    assert [row["more"] for row in get(client, store=store.name, table="shop.orders").column("after").to_pylist()] == [None, 9]


def test_tables_before_their_first_row(
    client: flight.FlightClient, log_store: EventStore, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the producer has defined is listed and typed without a look at the events; a table that is no more, as its rows were."""
    from shmstore import Column, TableSchema
    from shmstore.consumer.flight import tables

    log_store.put(transaction(0))
    made = TableSchema("shop", "lines", (Column("line", "int"),), (0,))
    place = ("binlog.000001", 4)
    defined = [Definition(*place, "shop", "lines", made), Definition("binlog.000009", 4, "shop", "lines", None)]
    DefinitionsFile(Home.of(log_store.name, state)).replace([*defined, Definition(*place, "shop", "orders", None)])
    with monkeypatch.context() as patch:
        patch.setattr(tables, "schemas", lambda *_: pytest.fail("looked at the events"))
        listed = [tuple(part.decode() for part in info.descriptor.path) for info in client.list_flights(log_store.name.encode())]
        assert listed == [(log_store.name,), (log_store.name, "shop.lines")]
        found = get(client, store=log_store.name, table="shop.lines")
    assert found.num_rows == 0
    assert [field.name for field in found.schema.field("after").type] == ["line"]
    assert get(client, store=log_store.name, table="shop.orders").num_rows == 1


@pytest.mark.parametrize(
    ("ticket", "text"),
    [
        ({"store": "no-such-store"}, "no store 'no-such-store'"),
        ({"store": "../../etc/passwd"}, "cannot name a store"),
        ({"stores": "x"}, "a ticket has store"),
        ({"store": "STORE", "table": "shop.nothing"}, "no row of shop.nothing, .* it knows shop.orders"),
        ({"store": "STORE", "first": 99}, "99"),
        ({"store": "STORE", "first": [1]}, "give a sequence, a text, or"),
        ({"store": "STORE", "first": "nowhere"}, "not understood"),
        ({"store": "STORE", "table": "shop.orders", "zero_dates": "maybe"}, "neither 'error' nor 'null'"),
        ({"session": "0" * 32}, "there is no such session"),
    ],
)
def test_what_cannot_be_got(client: flight.FlightClient, store: EventStore, ticket: dict[str, Any], text: str) -> None:
    """The error says what was wrong with the request."""
    store.put(transaction(0))
    ticket = {key: store.name if value == "STORE" else value for key, value in ticket.items()}
    with pytest.raises(flight.FlightServerError, match=text):
        get(client, **ticket)


def test_homes_that_are_elsewhere(store_name: str, tmp_path: Path) -> None:
    """A store whose memory is gone is restored from the folder that the server was given, for its tables and for its readers."""
    elsewhere = str(tmp_path / "elsewhere")
    with EventStore.create(store_name, state=elsewhere) as store:
        store.put(transaction(1))
        store.sync()
    EventStore.unlink(store_name, state=elsewhere)
    try:
        with serving(FlightSettings(port=0, state=elsewhere)) as server:
            client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
            assert get(client, store=store_name, first=0).num_rows == 3
            EventStore.unlink(store_name, state=elsewhere)
            with Consumer(f"grpc://127.0.0.1:{server.port}/{store_name}", "copy", start="earliest", timeout=5) as consumer:
                assert len(next(iter(consumer))) == 3
    finally:
        EventStore.unlink(store_name, state=elsewhere, log=True)


def test_only_what_is_served(store: EventStore) -> None:
    """With names given, others are neither listed nor reached; a store may go by another name."""
    with serving(FlightSettings(port=0, stores=(f"orders={store.name}",))) as server:
        client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
        assert [info.descriptor.path for info in client.list_flights()] == [[b"orders"]]
        store.put(transaction(0))
        assert get(client, store="orders").num_rows == 3
        for name in (store.name, "another"):
            with pytest.raises(StoreNotFound, match="is not served here; there are orders"):
                Consumer(f"grpc://127.0.0.1:{server.port}/{name}", "audit")


# ---------------------------------------------------------------- the command


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    return self_signed(tmp_path)


def test_serve_with_tls_and_a_password(
    store: EventStore, certificate: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`shmstore serve --flight` together with the canal server: TLS with a certificate of one's own, user and password, SIGTERM ends both."""
    store.put(transaction(0))
    (tmp_path / "password").write_text("pass:w@rd\n")
    port = free_port()
    words = ["serve", store.name, "--flight", f"127.0.0.1:{port}", "--listen", "127.0.0.1:0", "--user", "audit"]
    words += ["--password-file", str(tmp_path / "password"), "--tls-cert", certificate[0], "--tls-key", certificate[1]]
    process = subprocess.Popen([sys.executable, "-m", "shmstore", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"shmstore: listening on 127.0.0.1:{port} for Arrow Flight\n"
        assert process.stderr.readline().startswith("shmstore: listening on 127.0.0.1:")
        where = f"localhost:{port}/{store.name}"
        monkeypatch.setenv("SHMSTORE_FLIGHT_CA", certificate[0])
        with Consumer(f"grpc+tls://audit:pass%3Aw%40rd@{where}", "audit", timeout=0) as consumer:
            assert [batch.last for batch in consumer] == [2]
        monkeypatch.setenv("SHMSTORE_FLIGHT_USER", "audit")
        monkeypatch.setenv("SHMSTORE_FLIGHT_PASSWORD", "pass:w@rd")
        Consumer(f"grpc+tls://{where}", "other", timeout=0).close()
        for wrong in (f"grpc+tls://audit:guess@{where}", f"grpc+tls://other:pass%3Aw%40rd@{where}"):
            with pytest.raises(StoreError, match="refused the login"):
                Consumer(wrong, "audit")
        with pytest.raises(StoreUnreachable, match="without TLS"):
            Consumer(f"grpc://{where}", "audit")
        monkeypatch.delenv("SHMSTORE_FLIGHT_CA")
        with pytest.raises(StoreUnreachable, match="SHMSTORE_FLIGHT_CA"):
            Consumer(f"grpc+tls://{where}", "audit")
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "guess" not in rest
    assert "login refused from 127.0.0.1" in rest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(store: EventStore, number: signal.Signals) -> None:
    """The server alone, while a client waits and another has stopped reading: it ends in order, and the subscriptions are free."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "shmstore", "serve", "--flight", f"127.0.0.1:{port}"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert "for Arrow Flight" in process.stderr.readline()
        consumer = Consumer(f"grpc://127.0.0.1:{port}/{store.name}", "audit", timeout=0)
        store.put(transaction(0))
        assert next(consumer).last == 2
        process.send_signal(number)
        rest = process.communicate(timeout=60)[1]
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
    assert process.returncode == (0 if number == signal.SIGTERM else 130)
    assert [stat.alive for stat in store.subscriptions()] == [False]
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 30


def test_without_pyarrow(tmp_path: Path) -> None:
    """The command and a URL say in one line what is missing."""
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "shmstore", "serve", "--flight", "127.0.0.1:0"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pyarrow is not installed: in a checkout of shmstore, pip install '.[arrow]'" in done.stderr
    code = "from shmstore import Consumer; Consumer('grpc://host/orders', 'audit')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("ModuleNotFoundError: grpc:// needs pyarrow: in a checkout of shmstore, pip install '.[arrow]'\n")


def test_the_lease_is_bounded() -> None:
    """What a client may ask for has a bound, and so have the server's own options."""
    assert FlightSettings().max_lease >= sessions.LEASE
    for wrong in ({"port": 70000}, {"max_calls": 0}, {"tls_cert": "x"}, {"user": "x"}, {"idle_timeout": 0}):
        with pytest.raises(ValueError, match="give"):
            FlightSettings(**wrong)
    assert "secret" not in repr(FlightSettings(user="u", password="secret"))


def test_any_grpc_client_takes_the_messages(server: FlightServer, store_name: str, state: Path) -> None:
    """Messages are below gRPC's default of 4 MiB: a client in any language that sets nothing reads events and rows, whole."""
    table = TableSchema("shop", "orders", (Column("id", "int"), Column("note", "varchar", size=500, charset="utf8mb4")), (0,))
    count, width = 30_000, 250
    rows = tuple(Row(None, (i, f"{i:0{width}}")) for i in range(count))
    insert = Event(EntryType.ROWS, EventType.INSERT, Position("b.1", 500), 1, length=100, table=table, rows=rows)
    small = [insert._replace(position=Position("b.1", 600 + i), rows=rows[:1]) for i in range(20_000)]
    with EventStore.create(store_name, capacity=1 << 15, memory_unit=2048) as store:
        store.put([insert])
        for at in range(0, len(small), 5000):
            store.put(small[at : at + 5000])
    name = b'{"store": "%s"' % store_name.encode()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        ask = channel.unary_stream(
            "/arrow.flight.protocol.FlightService/DoGet",
            request_serializer=lambda ticket: b"\x0a" + bytes([len(ticket)]) + ticket,  # the message Ticket
            response_deserializer=bytes,
        )
        for ticket in (name + b', "table": "shop.orders"}', name + b', "first": 1}'):
            sizes = [len(message) for message in ask(ticket)]
            assert sum(sizes) > 2 * max(sizes)
            assert max(sizes) < 3.1 * (1 << 20)
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    found = get(client, store=store_name, table="shop.orders")
    assert found.num_rows == count + len(small)
    assert [row["id"] for row in found["after"].to_pylist()[:count]] == list(range(count))
    assert get(client, store=store_name, first=1)["seq"].to_pylist() == list(range(1, len(small) + 1))


@pytest.mark.parametrize("known", [{"epoch": 7, "acked": 0, "got": 0}, {"epoch": 7}, {}, 5, {"epoch": "x", "acked": 0, "got": 0}])
def test_a_resume_that_is_refused_leaves_nothing(client: flight.FlightClient, log_store: EventStore, known: Any) -> None:
    """What a client cannot resume is found out before a subscription is made, which would hold the log for no reader."""
    request = {"store": log_store.name, "subscription": "away", "session": "0123456789abcdef", "resume": known}
    with pytest.raises(flight.FlightServerError):
        list(client.do_action(flight.Action("subscribe", pack(request))))
    assert log_store.subscriptions() == ()


def test_json_that_is_too_deep_is_no_internal_error(
    client: flight.FlightClient, log_store: EventStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A ticket or an action of nothing but brackets, or of a number of thousands of digits, is refused like any other that is not understood."""
    for body in (b"[" * 200_000, b'{"store": ' + b"[" * 100_000, b'{"store": ' + b"9" * 5000 + b"}"):
        with pytest.raises(flight.FlightServerError, match="not JSON"):
            client.do_get(flight.Ticket(body)).read_all()
        with pytest.raises(flight.FlightServerError, match="not JSON"):
            list(client.do_action(flight.Action("store", body)))
    for first in (10**400, 1e308, [["x"]], {"a": 1}, True, None):
        with pytest.raises(flight.FlightServerError):
            get(client, store=log_store.name, first=first)
    assert "a call failed" not in caplog.text
