"""producer/connection/session.py: what errors of a server and of the client mean."""

from __future__ import annotations

import socket
import ssl

import pymysql
import pytest

from shmstore import SourceError, producer
from shmstore.producer.binlog.packets import ServerRefused
from shmstore.producer.connection.server_errors import translate
from shmstore.producer.settings import ServerAddress

ENDPOINT = ServerAddress("db", 3306)
NAMES = "`certificates`.`TLS` SSL EOF occurred, reset by peer, same server_id, same server_uuid/server_id, pynacl, cryptography"


def raised(code: int, text: str, reason: OSError) -> Exception:
    """As PyMySQL raises it when an error of the socket ends a read."""
    try:
        try:
            raise reason
        except OSError:
            raise pymysql.OperationalError(code, text)  # noqa: B904  as PyMySQL does
    except pymysql.OperationalError as error:
        return error


def connecting(reason: OSError, host: str = "db") -> Exception:
    """As PyMySQL raises it when there is no connection."""
    error = pymysql.OperationalError(2003, f"Can't connect to MySQL server on {host!r} ({reason})")
    error.original_exception = reason
    return error


@pytest.mark.parametrize("made", [pymysql.OperationalError, ServerRefused])
def test_a_server_is_known_by_its_code(made: type[Exception]) -> None:
    """Whatever names of tables, columns and files a server's text holds, its code says what it means."""
    for code in [*range(1000, 2000), *range(3000, 4200)]:
        if code != 1236:  # one code for all that can be wrong with a dump
            meant = translate(made(code, f"some {NAMES}"), ENDPOINT)
            assert type(meant) is type(translate(made(code, "some"), ENDPOINT)), f"{code}: {meant}"
            assert NAMES in str(meant)


@pytest.mark.parametrize("code", [1044, 1142, 1143])
def test_a_table_that_may_not_be_read(code: int) -> None:
    """A missing right on a table is no fault of TLS, which would be tried again, and what is to be granted is SELECT."""
    text = "SELECT command denied to user 'r'@'h' for table `d`.`certificates`"
    meant = translate(pymysql.OperationalError(code, text), ENDPOINT)
    assert isinstance(meant, producer.PrivilegeMissing)
    assert str(meant) == f"db:3306: {text}; GRANT SELECT ON it, or ON *.*, TO your account"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (connecting(TimeoutError("timed out"), "certificates.TLS"), producer.ServerUnreachable),
        (connecting(socket.gaierror(-2, "Name or service not known"), "SSL"), producer.ServerUnreachable),
        (connecting(ssl.SSLCertVerificationError(1, "certificate verify failed")), producer.LoginRefused),
        (connecting(ssl.SSLEOFError(8, "EOF occurred in violation of protocol")), producer.LinkLost),
        (connecting(ConnectionResetError(104, "Connection reset by peer")), producer.LinkLost),
        (raised(2013, "Lost connection (alert certificate required)", ssl.SSLError(1, "alert")), producer.LoginRefused),
        (raised(2013, "Lost connection (timed out)", TimeoutError("timed out")), producer.LinkLost),
        (pymysql.OperationalError(2026, "SSL is required but the server doesn't support it"), producer.LoginRefused),
        (ConnectionResetError(104, "Connection reset by peer"), producer.LinkLost),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), producer.LoginRefused),
        (OSError(113, "No route to host"), producer.ServerUnreachable),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, Exception) else value.__name__,
)
def test_an_error_of_the_client_is_known_by_its_reason(error: Exception, kind: type[SourceError]) -> None:
    """What the client says is taken by the kind of error it was made of, not by its text, which names the host."""
    assert type(translate(error, ENDPOINT)) is kind
