"""Connections that tables are read over: what the server does differently for them."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios

import pytest

from shmstore.producer import Settings
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.snapshot.watermarks import SEND_BYTES, prepare
from tests.producer.running import wait_for
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server

FIRST = SEND_BYTES // 2  # bytes of a row, more than a server sends at once to others


def connected(server: Server) -> ServerSession:
    settings = Settings(store="unused", host=server.host, port=server.port, user=server.user, tls="disabled")
    return connect(settings, settings.endpoints()[0])


def arrived_while_the_second_row_waits(session: ServerSession, holder: ServerSession) -> int:
    """How many bytes have come of a first row of `FIRST` bytes, when the server waits for a lock to make the second."""
    name = f"second-{session.query('SELECT CONNECTION_ID()')[0][0]}"
    assert holder.query("SELECT GET_LOCK(%s, 0)", [name]) == [(1,)]
    link: socket.socket = session.command(
        b"\x03" + f"SELECT REPEAT('x', {FIRST}) UNION ALL SELECT GET_LOCK('{name}', 60)".encode()
    )
    where = f"SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND id = {name.rpartition('-')[2]}"
    wait_for(lambda: holder.query(where) == [(1,)], "the lock to be waited for")
    waiting: int = struct.unpack("i", fcntl.ioctl(link, termios.FIONREAD, bytes(4)))[0]
    holder.query("SELECT RELEASE_LOCK(%s)", [name])
    return waiting


def test_the_server_sends_long_answers_in_long_pieces(any_server: Server) -> None:
    """It holds back what is shorter than a piece until the answer ends; over any other connection it sends it at once."""
    holder = connected(any_server)
    for prepared in (False, True):
        session = connected(any_server)
        if prepared:
            prepare(session)
        came = arrived_while_the_second_row_waits(session, holder)
        assert (came > FIRST // 2) is not prepared, came
        session.close()
    holder.close()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_server_of_short_statements_is_asked_no_long_one(kind: str) -> None:
    """Where it takes statements of 16 KiB at most, the connection is prepared as well; and no log of statements grows by the length."""
    with start_server(kind, ["--max-allowed-packet=16384", "--general-log", "--log-output=TABLE"]) as server:
        session = connected(server)
        prepare(session)
        assert session.query("SELECT @@time_zone, @@max_allowed_packet") == [("+00:00", 16384)]
        logged = [bytes(text) for (text,) in session.query("SELECT CAST(argument AS BINARY) FROM mysql.general_log")]
        assert [text for text in logged if text.startswith(b"SET SESSION time_zone")]
        assert max(map(len, logged)) < 1000
        session.close()
