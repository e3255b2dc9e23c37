"""shmstore.consumer.wire under many clients: what waits holds up no other, and where the system's limits end the server says so."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from shmstore import BatchMode, EventStore, Row, ShmStoreError
from shmstore.consumer.serving.capacity import A_SESSION, Threads
from shmstore.consumer.wire.protocol import messages as m
from shmstore.consumer.wire.protocol.messages import PacketType as T
from tests.certificates import self_signed
from tests.consumer.wire.harness import OTHER, RawClient, ServerThread, events, ids, refused, wait_for

NewStore = Callable[..., EventStore]
NewServer = Callable[..., ServerThread]

SERVE = """
import resource, sys
from shmstore.consumer.wire import CanalProcess, CanalSettings
soft, hard, most = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
CanalProcess(CanalSettings(port=0, state=sys.argv[1], max_connections=most, max_new_clients=64, ready=lambda at: print(at[1], flush=True))).run()
"""


@contextmanager
def serving(state: Path, soft: int, hard: int, most: int = 1024) -> Iterator[tuple[int, Path, int]]:
    """A server in a process of its own, that may have `soft` files open, and raise that to `hard`: its port, log and pid."""
    log = state / "log"
    with open(log, "w") as written:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(state), str(soft), str(hard), str(most)],
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            cwd=Path(__file__).resolve().parents[3],
        )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), log, process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_waits_without_end_leave_threads_for_others(new_store: NewStore, tmp_path: Path) -> None:
    """540 clients in a GET without end, under a soft limit of 256 files: the next client is served at once, and so are they."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8192:
        pytest.skip(f"this process may have {hard} files open at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stores = [new_store(capacity=64, batch_mode=BatchMode.ITEMSIZE) for _ in range(9)]
    with serving(tmp_path, 256, hard) as (port, _, pid), ExitStack() as opened:
        waiting = []
        for store in stores:
            for number in range(60):
                client = opened.enter_context(closing(RawClient(port, store.name, number)))
                assert client.subscribe().error_code == 0
                client.send(T.GET, m.Get(**client.name, fetch_size=3, timeout=0))
                waiting.append(client)
        other = opened.enter_context(closing(RawClient(port, stores[0].name, 1001)))
        assert other.subscribe().error_code == 0
        assert len(os.listdir(f"/proc/{pid}/fd")) < 3 * len(waiting) + 64
        for store in stores:
            store.put(events([7]))
        assert ids(other.get(3)) == [7]
        for client in waiting:
            assert ids(client.receive()) == [7]


def test_fewer_files_than_connections(new_store: NewStore, tmp_path: Path) -> None:
    """Where the hard limit is too low for --max-connections the server says how many it takes; the next one hears why it is not."""
    store = new_store()
    with serving(tmp_path, 295, 295) as (port, log, _), ExitStack() as opened:
        said = log.read_text()
        assert "takes 21 connections, not 1024: it may have 295 files open" in said
        for number in range(21):
            client = opened.enter_context(closing(RawClient(port, store.name, number)))
            assert client.subscribe().error_code == 0
        more = opened.enter_context(closing(RawClient(port, store.name, 99, login=False)))
        assert "21 connections" in refused(more.authenticate(), 400)


def test_more_clients_than_files(new_store: NewStore, tmp_path: Path) -> None:
    """Where no file is left for one more client's session, it hears so, and those there continue; it finds place when they have left."""
    store = new_store(batch_mode=BatchMode.ITEMSIZE)
    with serving(tmp_path, 295, 295) as (port, _, _), closing(RawClient(port, store.name, 99)) as late:
        with closing(RawClient(port, store.name)) as client:
            for number in range(21):
                client.name["client_id"] = str(number)
                assert client.subscribe().error_code == 0
            store.put(events([1]))
            assert "21 clients" in refused(late.subscribe(), 400)
            client.name["client_id"] = "3"
            assert ids(client.get(3)) == [1]
        wait_for(lambda: late.subscribe().error_code == 0, "the others' sessions are given back")
        assert ids(late.get(3)) == [1]


def test_files_of_a_session_that_reads_the_log(store_name: str, state: Path, tmp_path: Path) -> None:
    """A client that reads its way through a log of many files has no more of them open than the limit counts with.

    The server is a process of its own: this one has the store's writer, and opens what that needs when it needs it.
    """
    table = OTHER._replace(columns=(*OTHER.columns[:2], OTHER.columns[2]._replace(type="longtext")))
    with EventStore.create(
        store_name, capacity=16, memory_unit=1 << 16, log_size=16 << 20, batch_mode=BatchMode.ITEMSIZE
    ) as store:
        for number in range(24):
            begin, row, end = events([number], table, 10_000 * (number + 1))
            store.put([begin, row._replace(rows=(Row(None, (number, "", "x" * 500_000)),)), end], timeout=30)
        assert store.stat().log.files > 16
        with serving(tmp_path, 1024, 1024) as (port, _, pid), closing(RawClient(port, store_name)) as client:
            before = len(os.listdir(f"/proc/{pid}/fd"))
            assert client.subscribe().error_code == 0
            seen = []
            while (answer := client.get(3)).batch_id > 0:
                seen += ids(answer)
                client.ack(answer.batch_id)
            assert seen == list(range(24))
            assert 6 < len(os.listdir(f"/proc/{pid}/fd")) - before <= A_SESSION


def test_no_thread_to_be_had(new_store: NewStore, new_server: NewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system starts no more threads a request is refused with that, and is not carried out behind the client's back."""
    store = new_store(batch_mode=BatchMode.ITEMSIZE)
    server = new_server()
    with closing(RawClient(server.port, store.name)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
            assert "no thread" in refused(client.subscribe(), 400)
        assert store.subscriptions() == ()
        assert client.subscribe().error_code == 0
        store.put(events([1]))
        assert ids(client.get(3)) == [1]


def test_a_thread_less_is_no_call_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that no thread could be started for is not carried out later, when there is one again."""
    import asyncio

    called: list[int] = []

    async def calls() -> None:
        threads = Threads(2)
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
            with pytest.raises(ShmStoreError, match="no thread"):
                await threads.run(called.append, 1)
        await threads.run(called.append, 2)
        threads.close()

    asyncio.run(calls())
    assert called == [2]


def test_a_handshake_of_tls_has_its_time(new_server: NewServer, tmp_path: Path) -> None:
    """Who connects to a server with TLS and says nothing is closed after the time for logging in: it holds a file open."""
    cert, key = self_signed(tmp_path)
    server = new_server(tls_cert=cert, tls_key=key, auth_timeout=0.2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent:
        assert silent.recv(1) == b""
