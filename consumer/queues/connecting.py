"""What the connections of several queues have in common: addresses, TLS, settings, names of partitions, and the words for a second instance."""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from shmstore.certificate import load_certificate
from shmstore.consumer.queues.queue import Message, QueueRefused

ANSWER_SECONDS: Final = 30.0  # for a server to answer


def hosts(text: str, of: str) -> list[tuple[str, int]]:
    """Read HOST:PORT,HOST:PORT as (host, port) each. `of` is the queue's name. Raises ValueError."""
    return [_host(word.strip(), of) for word in text.split(",")]


def _host(word: str, of: str) -> tuple[str, int]:
    host, colon, number = word.rpartition(":")
    if not colon or not host or not number.isdecimal() or not number.isascii() or not 0 < int(number) < 65536:
        raise ValueError(f"--brokers {word!r} is no address of {of}: write HOST:PORT")
    return host.strip("[]"), int(number)


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


def numbered(name: str, message: Message, partitions: int, between: str = ".") -> str:
    """Return the name of the message's partition of `name`: the name alone where there is one, else NAME.0, NAME.1 and so on, by its key."""
    if partitions == 1:
        return name
    number = message.partition
    return f"{name}{between}{zlib.crc32(message.key or b'') % partitions if number is None else number}"


def fenced(reader: str) -> QueueRefused:
    """The error of an instance whose place another one took."""
    return QueueRefused(f"another instance sends {reader!r} now: let one of them run, or give each a subscription of its own")
