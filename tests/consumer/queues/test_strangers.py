"""What a queue's address may lead to: nothing, a name that cannot be, another server, one that never answers. One line says what to do, without secrets."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from shmstore import Consumer, EventStore
from shmstore.consumer.queues import connecting, kafka, kinds, nats_stream, pulsar, rabbitmq, redis_streams, rocketmq
from shmstore.consumer.queues import sender as sender_module
from shmstore.consumer.queues.messages import MessageOptions
from shmstore.consumer.queues.queue import Mark, Message, Queue, QueueRefused, QueueUnreachable
from tests.certificates import self_signed
from tests.consumer.queues.senders import wait_for
from tests.consumer.queues.test_sender import inserts, transaction

pytestmark = pytest.mark.usefixtures("state")
KINDS = ("kafka", "nats", "pulsar", "rabbitmq", "redis", "rocketmq")
AT_LEAST = ("rabbitmq", "rocketmq")
SECRET, TOKEN = "pä$$ w'ö\"rd@:/", "p$$w'o\"rd@:/"  # a token has neither blanks nor other letters


def connection(kind: str, address: str, **more: str) -> kinds.QueueConnection:
    password = TOKEN if kind == "pulsar" else SECRET
    return kinds.QueueConnection(address, "s/x", exactly_once=kind not in AT_LEAST, user="token", password=password, **more)  # type: ignore[arg-type]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is waited for a moment only."""
    for module in (connecting, kafka, nats_stream, rabbitmq, redis_streams, rocketmq):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(pulsar, "ANSWER_MS", 1000)  # it takes whole seconds
    monkeypatch.setattr(connecting, "LOOK_SECONDS", 0.5)


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize("kind", KINDS)
def test_addresses_that_cannot_be(kind: str) -> None:
    """Each is refused before anything is sent; what stands before an @ is not shown."""
    wrong = ["", " ", "h:0", "h:99999", "h:port", "a b:1", f"{'a' * 64}:1", "127.0.0.1:1,,127.0.0.1:2"]
    wrong += ["kafka://h:1", "http://h:1/", "user:s3cret@h:1", "redis://:s3cret@h:1"]
    for address in wrong:
        with pytest.raises(ValueError, match=r"--brokers .* is no address of .*: write HOST:PORT") as caught:
            kinds.make(kind, connection(kind, address))
        assert "s3cret" not in str(caught.value)


def test_what_no_host_has() -> None:
    """A name that no host has, and a port at which nothing listens."""
    assert (
        connecting.look("no-such-host.invalid:1", "kafka", False) == "no host has the name no-such-host.invalid: check --brokers"
    )
    assert connecting.look("127.0.0.1:1", "kafka", False).startswith("nothing listens at 127.0.0.1:1: check --brokers")
    assert connecting.look("/run/redis.sock", "redis", False) == ""


# ---------------------------------------------------------------- other servers


@contextmanager
def listening(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a server that talks so."""
    with ExitStack() as links, socket.create_server(("127.0.0.1", 0)) as server:

        def one(link: socket.socket) -> None:
            with suppress(OSError), link:
                talk(link)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    link = server.accept()[0]
                    links.callback(link.close)
                    threading.Thread(target=one, args=(link,), daemon=True).start()

        accepting = threading.Thread(target=serve, daemon=True)
        accepting.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)  # `accept` ends
        accepting.join()


def silent(link: socket.socket) -> None:
    while link.recv(4096):
        pass


def answering(text: bytes) -> Callable[[socket.socket], object]:
    """Says `text` to the first bytes that come."""

    def talk(link: socket.socket) -> None:
        link.recv(4096)
        link.sendall(text)
        link.shutdown(socket.SHUT_WR)
        silent(link)

    return talk


def greeting(link: socket.socket) -> None:
    link.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
    link.recv(4096)


STRANGERS: dict[str, tuple[Callable[[socket.socket], object], str]] = {
    "silent": (silent, "takes connections: check that it is"),
    "gone": (lambda link: None, "takes connections: check that it is"),
    "http": (answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nhello"), "an HTTP server answers at"),
    "ssh": (greeting, "an SSH server answers at"),
    "noise": (answering(bytes(range(256)) * 20), ""),
}


def refused(queue: Queue) -> str:
    """The line with which a queue refuses to be used."""
    try:
        queue.open()
        queue.send([Message("t", b"k", b"v")], Mark(1, 1))
    except (QueueUnreachable, QueueRefused) as error:
        return str(error)
    finally:
        queue.close()
    raise AssertionError("it took a message")


@pytest.mark.parametrize("over", ["plain", "tls"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_server(kind: str, over: str, impatient: None, tmp_path: Path) -> None:
    """It is an error of one line, with the address and without the password, and a look at the server tells what is wrong."""
    ca, _ = self_signed(tmp_path)
    for talk, hint in STRANGERS.values():
        with listening(talk) as address:
            line = refused(kinds.make(kind, connection(kind, address, tls_ca=ca if over == "tls" else "")))
            assert address in line
            assert line.isprintable()
            assert "rd@" not in line
            assert hint in connecting.look(address, kind, over == "tls")


@pytest.mark.parametrize("kind", KINDS)
def test_it_tells_that_nothing_answers(
    kind: str, log_store: EventStore, impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server takes the connection and says nothing: as long as it does a line says so, with a look at the server."""
    monkeypatch.setattr(sender_module, "FIRST_REPORT", 0.05)
    log_store.put(transaction(0, inserts(1)))
    over = threading.Event()
    with listening(silent) as address, Consumer(log_store.name, "queue") as reader:
        queue = kinds.make(kind, replace(connection(kind, address), stopped=over.is_set))
        sender = sender_module.Sender(
            reader, queue, MessageOptions(log_store.name), look=lambda: connecting.look(address, kind, False)
        )
        thread = threading.Thread(target=sender.run)
        thread.start()
        try:
            wait_for(lambda: "nothing was delivered for" in caplog.text)
            assert sender.counters.trouble
        finally:
            over.set()
            sender.stop()
            thread.join(120)
    queue.close()
    assert not thread.is_alive()
    reports = [each.getMessage() for each in caplog.records if each.getMessage().startswith("nothing was delivered")]
    if kind == "rocketmq":  # it is open when it is connected
        assert re.match(r"nothing was delivered for \d+ s, and 1 message waits: ", reports[0])
    else:
        assert re.match(r"nothing was delivered for \d+ s: ", reports[0])
        assert reports[0].endswith(f"; {address} takes connections: check that it is {kind}, and its log")


@pytest.mark.parametrize("kind", KINDS)
def test_tls_where_none_is_expected(kind: str, impatient: None, tmp_path: Path) -> None:
    """And the other way round: the line, or a look, names the option."""
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def over_tls(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as inside:
            silent(inside)

    with listening(over_tls) as address:
        line = refused(kinds.make(kind, connection(kind, address)))
        assert "rd@" not in line
        if kind != "rocketmq":  # its servers speak both
            assert "speaks TLS: give --tls or --tls-ca" in connecting.look(address, kind, False)
    with listening(answering(b"\x00\x00\x00\x05hello")) as address:
        line = refused(kinds.make(kind, connection(kind, address, tls_ca=certificate)))
        assert "rd@" not in line
        if kind != "nats":  # it begins without
            assert "does not speak TLS: leave out the --tls options" in connecting.look(address, kind, True)


# ---------------------------------------------------------------- in a process

# An answer is waited for without an end: what ends the process is Ctrl-C.
_SENDER = """
import sys
from shmstore.consumer.queues import connecting
connecting.ANSWER_SECONDS = 600.0
from shmstore.cli.commands import queue
queue.PATIENCE = 0.5
from shmstore.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def sender(store: str, kind: str, address: str) -> subprocess.Popen[str]:
    words = ["queue", store, "--kind", kind, "--brokers", address]
    words += ["--delivery", "at-least-once"] if kind in AT_LEAST else []
    return subprocess.Popen([sys.executable, "-c", _SENDER, *words], stderr=subprocess.PIPE, text=True, env=os.environ)


@pytest.mark.parametrize("kind", KINDS)
def test_control_c_while_nothing_answers(log_store: EventStore, kind: str) -> None:
    """A server takes the connection and says nothing: Ctrl-C ends the sender, which tells what it sent."""
    log_store.put(transaction(0, inserts(1)))
    came = threading.Event()

    def talk(link: socket.socket) -> None:
        link.recv(1)
        came.set()
        silent(link)

    with listening((lambda link: (came.set(), silent(link))) if kind == "nats" else talk) as address:
        process = sender(log_store.name, kind, address)
        try:
            assert process.stderr is not None
            assert "sending" in process.stderr.readline()  # from here on Ctrl-C is awaited
            assert came.wait(60)
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
            said = process.stderr.read()
        finally:
            process.kill()
            process.wait()
    assert code == 130, said
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "shmstore: sent 0 messages, 0 bytes, up to event -1"


def test_it_tells_what_answers(log_store: EventStore) -> None:
    """The first line of a sender that gets no answer has the hint."""
    log_store.put(transaction(0, inserts(1)))
    with listening(STRANGERS["http"][0]) as address:
        process = sender(log_store.name, "redis", address)
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline(), process.stderr.readline()]
        finally:
            process.kill()
            process.communicate()
    assert f"an HTTP server answers at {address}: give the address of redis; trying again" in lines[1]
