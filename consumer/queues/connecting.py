"""What the connections of several queues have in common: addresses, TLS, settings, names of partitions, the words for a second instance, and a look at
what answers where a queue does not."""

from __future__ import annotations

import re
import socket
import ssl
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from shmstore.certificate import load_certificate
from shmstore.consumer.queues.queue import Message, QueueRefused

ANSWER_SECONDS: Final = 30.0  # for a server to answer
LOOK_SECONDS: Final = 2.0
_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[\w.-]{1,253}))(?::(?P<port>[0-9]{1,5}))?")
_GREETINGS: Final = {  # what servers say first, or to a question that is not theirs
    b"HTTP/": "an HTTP server",
    b"SSH-": "an SSH server",
    b"AMQP": "rabbitmq",
    b"INFO ": "nats",
    b"-ERR": "redis",
    b"-NOAUTH": "redis",
    b"-DENIED": "redis",
}


def hosts(text: str, of: str, port: int | None = None) -> list[tuple[str, int]]:
    """Read HOST:PORT,HOST:PORT as (host, port) each; `port` is that of a host without one. `of` is the queue's name. Raises ValueError."""
    return [_host(word.strip(), of, port) for word in text.split(",")]


def _host(word: str, of: str, port: int | None) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(word)
    number = int(found["port"]) if found and found["port"] else port
    host = (found["v6"] or found["name"]) if found else ""
    try:
        host.encode("idna")  # as every lookup does
    except UnicodeError:
        host = ""
    if not host or number is None or not 0 < number < 65536:
        login = "; a user goes into --user, a password into --password-file" if "@" in word else ""
        raise ValueError(f"--brokers {word.rpartition('@')[2]!r} is no address of {of}: write HOST:PORT{login}")
    return host, number


def tls_context(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    """Trusts what the CA's file says, or the system, and shows a certificate. Raises ValueError for files that cannot be read."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate:
            load_certificate(context, certificate, key or certificate)
    except (OSError, ValueError) as error:
        raise ValueError(f"TLS: {', '.join(filter(None, (ca, certificate, key)))} cannot be read: {error}") from error
    return context


def checked(
    settings: Mapping[str, str], of: str, numbers: Sequence[str], texts: Sequence[str] = ()
) -> tuple[dict[str, int], dict[str, str]]:
    """Return those of `settings` that are numbers, 0 where not given, and those that are texts. Raises ValueError for others."""
    found, said = dict.fromkeys(numbers, 0), {}
    for name, value in settings.items():
        if name in texts:
            said[name] = value
        elif name not in found:
            raise ValueError(f"--set {name} is no setting of {of}: there are {', '.join((*numbers, *texts))}")
        elif not value.isdecimal() or not value.isascii():
            raise ValueError(f"--set {name}={value}: give a whole number")
        else:
            found[name] = int(value)
    return found, said


def named(name: str, of: str, form: re.Pattern[str], takes: str) -> str:
    """Return the name of a topic. Raises `QueueRefused` where it does not have the form of those of a queue, which `takes` names."""
    if form.fullmatch(name):
        return name
    shown = name if len(name) < 200 else f"{name[:200]}..."
    raise QueueRefused(f"topic {shown!r} cannot be one of {of}, which takes {takes}: give another --topic")


def numbered(name: str, message: Message, partitions: int, between: str = ".") -> str:
    """Return the name of the message's partition of `name`: the name alone where there is one, else NAME.0, NAME.1 and so on, by its key."""
    if partitions == 1:
        return name
    number = message.partition
    return f"{name}{between}{zlib.crc32(message.key or b'') % partitions if number is None else number}"


def fenced(reader: str) -> QueueRefused:
    """The error of an instance whose place another one took."""
    return QueueRefused(f"another instance sends {reader!r} now: let one of them run, or give each a subscription of its own")


def look(address: str, kind: str, tls: bool) -> str:
    """Return what to do where a queue of `kind` does not answer, as a look at its first address tells it; empty where that tells nothing.

    `tls`: whether the queue is spoken to over TLS. Nothing secret is sent.
    """
    try:
        host, port = hosts(address, kind)[0]
    except ValueError:  # the address of another package's queue, or a socket
        return ""
    place = f"{host}:{port}"
    try:
        greeting = _greeting(host, port)
        speaks = _speaks_tls(host, port)
    except socket.gaierror:
        return f"no host has the name {host}: check --brokers"
    except ConnectionRefusedError:
        return f"nothing listens at {place}: check --brokers, and that the server runs"
    except OSError:
        return f"{place} cannot be reached: check --brokers, the network and its firewalls"
    what = next((name for begin, name in _GREETINGS.items() if greeting.startswith(begin)), "")
    if speaks and not tls and kind != "rocketmq":  # its servers speak both
        return f"{place} speaks TLS: give --tls or --tls-ca, or the port that speaks none"
    if what and what != kind:
        return f"{what} answers at {place}: give the address of {kind}"
    if tls and speaks is False and kind != "nats":  # NATS begins without
        return f"{place} does not speak TLS: leave out the --tls options, or give the port that does"
    return "" if greeting else f"{place} takes connections: check that it is {kind}, and its log"


def _greeting(host: str, port: int) -> bytes:
    """The first bytes that a server says. Raises OSError where there is none."""
    with socket.create_connection((host, port), LOOK_SECONDS) as link:
        try:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return link.recv(16)
        except OSError:  # it waits for more, or hung up
            return b""


def _speaks_tls(host: str, port: int) -> bool | None:
    """Whether a server speaks TLS, with whatever certificate; None where that does not show. Raises OSError where there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), LOOK_SECONDS) as link:
        try:
            context.wrap_socket(link, server_hostname=host).close()
        except ssl.SSLError as error:
            reason = error.reason or ""
            return True if "ALERT" in reason else False if reason == "WRONG_VERSION_NUMBER" else None
        except OSError:
            return None
    return True
