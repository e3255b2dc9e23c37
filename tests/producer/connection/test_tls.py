"""TLS next to the socket: what `ssl.SSLSocket` promises, with fewer reads."""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shmstore.producer.connection.tls import PIECE, TlsContext, TlsSocket
from tests.certificates import self_signed

RECORD = 1 << 14


class Counted:
    """A socket that counts its reads."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain, self.reads = plain, 0

    def recv_into(self, buffer: Any) -> int:
        self.reads += 1
        return self._plain.recv_into(buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


class Peer:
    """The other side, whose encrypted bytes go out when and in what pieces the test wants."""

    def __init__(self, certificate: Path, link: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.link, self.incoming, self.outgoing = link, ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.refused = ""

    def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                self.link.sendall(self.outgoing.read())
                return
            except ssl.SSLWantReadError:
                self.link.sendall(self.outgoing.read())
                self.incoming.write(self.link.recv(1 << 16))

    def encrypted(self, *texts: bytes) -> bytes:
        """The bytes of a record for each text of up to RECORD bytes."""
        for text in texts:
            self.tls.write(text)
        return self.outgoing.read()

    def send(self, *texts: bytes) -> None:
        self.link.sendall(self.encrypted(*texts))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(self_signed(tmp_path_factory.mktemp("tls"), "here", also=["DNS:here"])[0])


def connect(peer: Peer, plain: Any, context: ssl.SSLContext, name: str = "here") -> TlsSocket:
    def other_side() -> None:
        try:
            peer.shake_hands()
        except ssl.SSLError as error:
            peer.refused = str(error)

    other = threading.Thread(target=other_side)
    other.start()
    try:
        return TlsContext(context).wrap_socket(plain, name)
    finally:
        other.join()


@pytest.fixture
def ends(certificate: Path) -> Iterator[tuple[Peer, TlsSocket, Counted]]:
    """Both sides of a link, hands shaken."""
    here, there = socket.socketpair()
    here.settimeout(10)
    plain, peer = Counted(here), Peer(certificate, there)
    tls = connect(peer, plain, ssl.create_default_context(cafile=str(certificate)))
    plain.reads = 0
    yield peer, tls, plain
    tls.close()
    there.close()


def test_many_records_take_one_read(ends: tuple[Peer, TlsSocket, Counted]) -> None:
    """What came together is received together, whatever the records are; and more than asked for waits."""
    peer, tls, plain = ends
    peer.send(*[b"%04d" % i for i in range(1000)])
    buffer = bytearray(3000)
    assert tls.recv_into(buffer) == 3000
    assert tls.recv(5000) == b"".join(b"%04d" % i for i in range(750, 1000))
    assert bytes(buffer) == b"".join(b"%04d" % i for i in range(750))
    assert plain.reads == 1


def test_a_record_in_pieces_survives_a_timeout(ends: tuple[Peer, TlsSocket, Counted]) -> None:
    """A record of which a part has come is waited for, no longer than the timeout, and is whole at the next call."""
    peer, tls, _ = ends
    text = random.Random(1).randbytes(RECORD)
    data = peer.encrypted(text)
    tls.settimeout(0.05)
    for start in range(0, len(data) - 1, 5000):
        peer.link.sendall(data[start : min(start + 5000, len(data) - 1)])
        with pytest.raises(TimeoutError):
            tls.recv(RECORD)
    peer.link.sendall(data[-1:])
    assert tls.recv(RECORD) == text


def test_drops_do_not_prolong_the_timeout(ends: tuple[Peer, TlsSocket, Counted]) -> None:
    """A call ends in time even where some byte comes all the while."""
    peer, tls, _ = ends
    data, over = peer.encrypted(bytes(RECORD)), threading.Event()

    def drip() -> None:
        for byte in data:
            if over.wait(0.01):
                return
            peer.link.sendall(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    tls.settimeout(0.1)
    try:
        with pytest.raises(TimeoutError):
            tls.recv(RECORD)
        assert dripping.is_alive()
    finally:
        over.set()
        dripping.join()


@pytest.mark.parametrize("farewell", [True, False])
def test_the_end_comes_behind_the_last_data(ends: tuple[Peer, TlsSocket, Counted], farewell: bool) -> None:
    """A closed link gives what came before, then nothing, as often as one asks; a record cut off is nothing."""
    peer, tls, _ = ends
    peer.send(b"last words")
    if farewell:
        with suppress(ssl.SSLWantReadError):
            peer.tls.unwrap()
        peer.link.sendall(peer.outgoing.read())
    else:
        peer.link.sendall(peer.encrypted(b"cut off")[:-1])
    peer.link.close()
    assert tls.recv(100) == b"last words"
    assert [tls.recv(100), tls.recv(100)] == [b"", b""]


def test_a_changed_record_is_refused(ends: tuple[Peer, TlsSocket, Counted]) -> None:
    """A flipped bit is an error, not data."""
    peer, tls, _ = ends
    data = bytearray(peer.encrypted(bytes(100)))
    data[50] ^= 1
    peer.link.sendall(data)
    with pytest.raises(ssl.SSLError):
        tls.recv(100)


def test_no_more_is_held_than_a_piece(ends: tuple[Peer, TlsSocket, Counted]) -> None:
    """What is not asked for stays with the system: the other side is held up, as by any socket."""
    peer, tls, _ = ends
    sender = threading.Thread(target=lambda: peer.send(*[bytes(RECORD)] * 300))
    sender.start()
    left = 300 * RECORD
    while left:
        left -= len(tls.recv(1000))
        assert tls._incoming.pending <= PIECE + RECORD
    sender.join()


def test_data_goes_out_too(ends: tuple[Peer, TlsSocket, Counted]) -> None:
    """What is sent is what comes; the buffered reader reads as many bytes as asked for."""
    peer, tls, _ = ends
    data = random.Random(1).randbytes(200_000)
    sender = threading.Thread(target=tls.sendall, args=(data,))
    sender.start()
    seen = b""
    while len(seen) < len(data):
        peer.incoming.write(peer.link.recv(1 << 16))
        with suppress(ssl.SSLWantReadError):
            while True:
                seen += peer.tls.read(1 << 16)
    sender.join()
    assert seen == data
    peer.send(*[data[i : i + 1000] for i in range(0, 20_000, 1000)])
    reader = tls.makefile("rb")
    assert [reader.read(4), reader.read(19_000), reader.read(996)] == [data[:4], data[4:19_004], data[19_004:20_000]]


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_another_certificate_is_refused(certificate: Path, wrong: str) -> None:
    """A certificate of another authority, or for another name, ends the handshake; the other side hears why."""
    here, there = socket.socketpair()
    here.settimeout(10)
    peer = Peer(certificate, there)
    context = ssl.create_default_context(cafile=None if wrong == "authority" else str(certificate))
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(peer, here, context, "elsewhere" if wrong == "name" else "here")
    assert "alert" in peer.refused.lower()
    here.close()
    there.close()


def test_no_answer_to_the_handshake() -> None:
    """A server that says nothing is given up after the timeout; one that closes, at once."""
    for closed, error in (
        (False, (TimeoutError,)),
        (True, (ssl.SSLEOFError, ssl.SSLZeroReturnError)),
    ):  # as OpenSSL's version has it
        here, there = socket.socketpair()
        here.settimeout(10 if closed else 0.05)
        if closed:
            there.shutdown(socket.SHUT_WR)
        with pytest.raises(error):
            TlsSocket(here, ssl.create_default_context(), "here")
        there.close()
