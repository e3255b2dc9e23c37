"""What gRPC does not do automatically: connections that end, and a server that outlives shortages and clients that stand still."""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pyarrow as pa
import pytest
from pyarrow import flight

from shmstore.consumer.flight.connections import place, place_of
from shmstore.consumer.flight.endpoint import Caller, FlightEndpoint, Reply
from shmstore.consumer.remote.address import StoreAddress
from shmstore.consumer.remote.link import Link, RemoteLost, Woken
from shmstore.consumer.remote.protocol import Request
from shmstore.consumer.serving.access import Login
from shmstore.consumer.serving.audit import Audit, Incident
from tests.shmstore.commands import alone

SCHEMA = pa.schema([("bytes", pa.large_binary())])
BLOCK = pa.record_batch([pa.array([bytes(4 << 20)], pa.large_binary())], schema=SCHEMA)


class Endless(FlightEndpoint):
    """Gives bytes forever, or so many blocks, or waits."""

    written = 0
    ended = 0

    def answer(self, ticket: Request, caller: Caller) -> Reply:
        def blocks() -> Iterator[pa.RecordBatch]:
            try:
                for _ in range(int(ticket.get("blocks", 1 << 40))):
                    yield BLOCK
                    self.written += 1
            finally:
                self.ended += 1

        return SCHEMA, blocks()

    def act(self, action: str, request: Request, caller: Caller) -> Request:
        if action == "fail":
            raise KeyError("secret of the server")
        if action == "break":
            raise RuntimeError("secret of the server")
        return {"echo": request}


def await_that(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def link_to(server: FlightEndpoint, password: str = "secret") -> Link:
    return Link(StoreAddress("127.0.0.1", server.port, False, "", password=password))


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Endless]:
    made = Endless("127.0.0.1", 0, Login("", "secret"), Audit(), **getattr(request, "param", {}))
    yield made
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 20, "the end waits for nobody"


def stalled(server: Endless) -> flight.FlightStreamReader:
    """A reader that has got the beginning of an answer without end, and reads no more."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}", generic_options=[("grpc.use_local_subchannel_pool", 1)])
    reader = client.do_get(flight.Ticket(b"{}"), flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret")]))
    reader.read_chunk()
    return reader


def test_a_client_that_stops_reading_holds_up_nobody(server: Endless) -> None:
    """Its answer stands still, others are served meanwhile, and the server ends all the same."""
    readers = [stalled(server) for _ in range(8)]
    seen = -1
    while server.written != seen:  # until no window has any space left
        seen = server.written
        time.sleep(0.3)
    link = link_to(server)
    assert sum(batch.nbytes for batch in link.get({"blocks": 5}, 60).batches) > 20 << 20
    assert link.action("any", {"n": 1}) == {"echo": {"n": 1}}
    link.close()
    del readers


@pytest.mark.parametrize("server", [{"idle_timeout": 5.0}], indirect=True)  # a busy machine may keep the one in use waiting
def test_connections_that_stand_still_are_closed(server: Endless) -> None:
    """One that says nothing, and one that does not read, are ended; the thread of that one is free again. One in use stays."""
    reader, link = stalled(server), link_to(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
        until = time.monotonic() + 60
        while server.ended == 0:
            assert link.action("any", {}) == {"echo": {}}
            assert time.monotonic() < until
            time.sleep(0.1)
        try:
            while silent.recv(1 << 16):  # gRPC's own greeting, then the end
                pass
        except ConnectionResetError:
            pass
    with pytest.raises(flight.FlightUnavailableError):
        all(iter(reader.read_chunk, None))
    link.close()


@pytest.mark.parametrize("server", [{"max_connections": 3}], indirect=True)
def test_so_many_connections_and_no_more(server: Endless, caplog: pytest.LogCaptureFixture) -> None:
    """Those that were there stay; one more is ended, and the log says so."""
    links = []
    for _ in range(3):
        links.append(link_to(server))
        links[-1].action("any", {})
    await_that(lambda: len(server._connections.sweep()[0]) == 3)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as more:
        try:
            while more.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
    await_that(lambda: server.audit.counts[Incident.CONNECTION] > 0)
    for link in links:
        assert link.action("any", {}) == {"echo": {}}
        link.close()
    assert "too many are open" in caplog.text


@pytest.mark.parametrize("server", [{"max_calls": 2}], indirect=True)
def test_so_many_calls_and_no_more(server: Endless) -> None:
    """A call that is one too many is refused at once; when one has ended, there is space again."""
    readers = [stalled(server) for _ in range(2)]
    link = link_to(server)
    with pytest.raises(RemoteLost, match="2 calls are answered"):
        link.get({"blocks": 1}, 60)
    readers[0].cancel()
    await_that(lambda: server.ended == 1)
    assert len(link.get({"blocks": 1}, 60).batches) == 1
    readers[1].cancel()
    link.close()


def test_used_up_files_do_not_end_the_server() -> None:
    """While the process may open no more files no new client is served; when it may again, they are."""
    alone("from tests.consumer.flight.test_endpoint import use_up_files; use_up_files()")


def use_up_files() -> None:
    """What the test does: where another test's connection ends meanwhile, a file is free again, and the new client is served."""
    with closing(Endless("127.0.0.1", 0, Login("", "secret"), Audit())) as server:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        link, later = link_to(server), link_to(server)
        link.action("any", {})
        taken = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            os.close(taken.pop())  # the client's end
            with pytest.raises(RemoteLost):
                later.action("any", {}, 1.0)
            assert link.action("any", {}) == {"echo": {}}, "who is there already is served"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for file in taken:
                os.close(file)
        later.reset()
        await_that(lambda: answers(later))
        link.close()
        later.close()


def answers(link: Link) -> bool:
    try:
        return link.action("any", {}, 5.0) == {"echo": {}}
    except RemoteLost:
        link.reset()
        return False


def test_who_may_ask(server: Endless, caplog: pytest.LogCaptureFixture) -> None:
    """The password, alone or with a user name; a wrong one is refused in every form, and the log names the host once, not the password."""
    location = f"grpc://127.0.0.1:{server.port}"
    client = flight.FlightClient(location)
    bearer = client.authenticate_basic_token("anybody", "secret")
    action = flight.Action("any", b"{}")
    assert len(list(client.do_action(action, flight.FlightCallOptions(headers=[bearer])))) == 1
    with pytest.raises(flight.FlightUnauthenticatedError):
        client.authenticate_basic_token("anybody", "guessed")
    wrong = [[], [(b"authorization", b"Bearer guessed")], [(b"authorization", b"Basic !!!")], [(b"authorization", b"Basic eDp5")]]
    for headers in wrong:
        options = flight.FlightCallOptions(headers=headers)
        for call in (client.do_action(action, options), lambda o=options: client.do_get(flight.Ticket(b"{}"), o)):
            with pytest.raises(flight.FlightUnauthenticatedError, match=r"^wrong user name or password\b"):
                list(call() if callable(call) else call)
    assert server.audit.counts[Incident.LOGIN] == 2 * len(wrong) + 1  # and the handshake
    lines = [record.message for record in caplog.records if "login refused from 127.0.0.1" in record.message]
    assert len(lines) == 1
    assert "guessed" not in caplog.text


@pytest.mark.parametrize(
    ("action", "text"), [("fail", "the request is not understood: KeyError"), ("break", "internal error: RuntimeError")]
)
def test_errors_say_nothing_of_the_inside(server: Endless, action: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A client that is not ours sees one line, without a traceback; the server's log has it where it is the server's fault."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret")])
    with caplog.at_level(logging.ERROR), pytest.raises(flight.FlightServerError, match=text) as raised:
        list(client.do_action(flight.Action(action, b"{}"), options))
    assert "Traceback" not in str(raised.value)
    assert ("Traceback" in caplog.text) is (action == "break")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":', b"\xff\xfe"])
def test_what_is_no_request(server: Endless, body: bytes) -> None:
    """Bytes that are no request are refused, whatever they are."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret")])
    with pytest.raises(flight.FlightServerError, match=r"not JSON|not a JSON object"):
        client.do_get(flight.Ticket(body), options).read_all()


def test_a_wait_ends_by_a_wake(server: Endless) -> None:
    """An answer that does not come ends for the thread that waits when another wakes it; the next call is answered."""
    link = link_to(server)

    def wake() -> None:
        await_that(lambda: server.written > 0)
        link.wake()

    waker = threading.Thread(target=wake)
    waker.start()
    with pytest.raises(Woken):
        link.get({"blocks": 1 << 20}, 600, wakes=True)
    waker.join()
    assert link.action("any", {}) == {"echo": {}}
    await_that(lambda: server.ended == 1)
    link.close()


def test_an_address_that_is_taken(server: Endless) -> None:
    """Two servers never share a port: the second one raises the system's error."""
    with pytest.raises(OSError, match=r"Address already in use$"):
        Endless("127.0.0.1", server.port, Login("", ""), Audit())


def test_a_server_that_speaks_no_tls(server: Endless) -> None:
    """A client that wants TLS of it says what may be wrong."""
    link = Link(StoreAddress("127.0.0.1", server.port, True, "", roots=b""))
    with pytest.raises(RemoteLost) as lost:
        link.action("any", {})
    assert "is `shmstore serve --flight` running there, on this port, with TLS" in str(link.unreachable(lost.value))
    link.close()


def test_places() -> None:
    """A client's end has one name, however gRPC or the kernel write it."""
    assert place_of("ipv4:10.0.0.1:4066") == place("10.0.0.1", 4066) == place("::ffff:10.0.0.1", 4066)
    assert place_of("ipv6:%5B2001:db8::1%5D:80") == place("2001:db8:0::1", 80)
    assert place_of("unix:") not in {place("127.0.0.1", 0)}
