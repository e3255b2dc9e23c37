"""Redis Streams, through redis-py.

Each `send` is one MULTI: an XADD for each message, and the mark as a field, STORE/SUBSCRIPTION, of the hash ``shmstore-progress``. So a batch and
its mark are there together or not at all, for every reader. A server that loses its last second (``appendfsync everysec``), or a failover to a
replica that is behind, loses whole transactions: the mark goes back with them, and the next `open` has what is missing sent again.

`open` counts up the key ``shmstore-progress:STORE/SUBSCRIPTION``. `send` watches that key and compares it: where another instance was opened since,
nothing is sent.

A topic is the stream of that name; with several partitions each is a stream, TOPIC:0, TOPIC:1 and so on. The fields of an entry are ``key``,
``value`` (a tombstone has none) and the headers by their names.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    ExecAbortError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    WatchError,
)
from redis.retry import Retry

from shmstore.consumer.queues.connecting import ANSWER_SECONDS, checked, fenced, hosts, numbered, tls_context
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable

PROGRESS: Final = "shmstore-progress"
LARGEST: Final = 512 << 20  # bytes of a value, where the server does not say it

_UNREACHABLE: Final = (ConnectionError, TimeoutError, BusyLoadingError, OutOfMemoryError, ReadOnlyError)
# What passes: a disk that is full, replicas that are away, a script that runs.
_PASSING: Final = ("MISCONF", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY ")
_REFUSED: Final = (AuthenticationError, AuthorizationError, NoPermissionError)


class RedisStreams:
    """A Redis server as a `Queue`: `address` is HOST:PORT, or the path of a socket.

    `reader` names what is sent, STORE/SUBSCRIPTION. `settings`: ``db`` is the database's number, ``maxlen`` about how many entries a stream keeps
    (0: all). Raises ValueError for others.
    """

    exactly_once = True

    def __init__(
        self,
        address: str,
        reader: str,
        *,
        user: str = "",
        password: str = "",
        tls: bool = False,
        tls_ca: str = "",
        tls_cert: str = "",
        tls_key: str = "",
        progress: str = PROGRESS,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._address, self._reader, self._progress = address, reader, progress
        self._counter = f"{progress}:{reader}"
        self._partitions = partitions
        numbers, _ = checked(settings or {}, "Redis", ("db", "maxlen"))
        self._trimmed = ("MAXLEN", "~", numbers["maxlen"]) if numbers["maxlen"] else ()
        self._how: dict[str, Any] = {
            "db": numbers["db"],
            "username": user or None,
            "password": password or None,
            "socket_timeout": ANSWER_SECONDS,
            "socket_connect_timeout": ANSWER_SECONDS,
            "client_name": "shmstore",
            "retry": Retry(NoBackoff(), 0),  # what a lost answer means is for the sender to find out, by the mark
        } | _place(address)
        if tls:
            if "unix_socket_path" in self._how:
                raise ValueError(f"{address} is a socket of this host, which speaks no TLS")
            tls_context(
                tls_ca, tls_cert, tls_key
            )  # redis-py reads them at each connection, and OpenSSL may ask for a passphrase there
            self._how |= {"ssl": True, "ssl_ca_certs": tls_ca or None, "ssl_certfile": tls_cert or None}
            self._how |= {"ssl_keyfile": tls_key or None, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
        self._client: Any = None  # redis-py has types for a part of what it returns
        self._instance = 0  # what `open` counted up to
        self._mark: bytes | None = None  # that is there
        self._streams: set[str] = set()  # that are known to be none or streams
        self._largest = LARGEST

    def open(self) -> Mark | None:
        """Connect, take over from a former instance, and return the mark."""
        self.close()
        self._streams.clear()
        client: Any = redis.Redis(**self._how)
        self._client = client
        try:
            self._instance = int(client.incr(self._counter))
            self._mark = client.hget(self._progress, self._reader)
            self._largest = _largest(client)
        except RedisError as error:
            raise self._raised(error) from error
        return None if self._mark is None else Mark.of_json(self._mark)

    def partitions(self, topic: str) -> int:
        """As many as asked for."""
        return self._partitions

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        """Add all with the mark, in one MULTI."""
        client = self._client
        if client is None:
            raise QueueUnreachable(f"Redis at {self._address} is not open")
        self._client = None  # until it went well
        for message in messages:
            if len(message.value or b"") > self._largest:
                client.close()
                raise MessageTooLarge(
                    f"row {message.row} of event {message.sequence} for stream {message.topic} has {len(message.value or b''):,} bytes, and the "
                    f"server takes {self._largest:,}: raise proto-max-bulk-len there, or choose --oversized",
                    message,
                )
        text = mark.to_json()
        try:
            self._send(client, messages, text)
        except RedisError as error:
            client.close()
            raise self._raised(error) from error
        self._client, self._mark = client, text

    def _send(self, client: Any, messages: Sequence[Message], mark: bytes) -> None:
        with client.pipeline() as batch:
            batch.watch(self._counter)  # before it is read: where it changes from here on, `execute` does nothing
            self._look_whose(int(batch.get(self._counter) or 0))
            added = [(numbered(message.topic, message, self._partitions, ":"), message) for message in messages]
            for stream in {stream for stream, _ in added} - self._streams:
                # The one error that MULTI does not find before it begins, and then leaves the rest of the batch in.
                if (kind := batch.type(stream)) not in (b"stream", b"none"):
                    raise self._refused(f"{stream} is there, and is a {kind.decode()}, no stream: give another --topic")
                self._streams.add(stream)
            batch.multi()
            for stream, message in added:
                batch.execute_command("XADD", stream, *self._trimmed, "*", *_fields(message))
            batch.hset(self._progress, self._reader, mark)
            try:
                batch.execute()
            except WatchError as error:  # another instance was opened; or redis-py's word for a link that was lost in between
                self._look_whose(int(client.get(self._counter) or 0))
                raise ConnectionError(str(error)) from error
            except ResponseError as error:
                if not isinstance(error, (*_UNREACHABLE, *_REFUSED, ExecAbortError)):
                    self._go_back(client)
                raise

    def _look_whose(self, count: int) -> None:
        """Raise unless this instance is the one that was opened last."""
        if count > self._instance:
            raise fenced(self._reader)
        if count < self._instance:
            raise QueueUnreachable(f"Redis at {self._address} lost what it had last, as a replica that was promoted")

    def _go_back(self, client: Any) -> None:
        """Take the mark back: a part of the batch is not in, since a process put another kind of value where a stream was. All of it comes again."""
        if self._mark is None:
            client.hdel(self._progress, self._reader)
        else:
            client.hset(self._progress, self._reader, self._mark)

    def close(self) -> None:
        """Let go of the connection."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _refused(self, why: str) -> QueueRefused:
        return QueueRefused(f"Redis at {self._address} refuses: {why}")

    def _raised(self, error: RedisError) -> QueueUnreachable | QueueRefused:
        """Our error for it."""
        why = re.sub(r"\s+", " ", str(error))
        if "NOAUTH" in why or "HELLO must be called" in why:
            return self._refused("it wants a login: give --user (`default` where it names none) and --password-file")
        if isinstance(error, _REFUSED):
            return self._refused(
                f"{why}; the user needs XADD and TYPE on the streams, and INCR, GET, WATCH, HGET and HSET on {self._progress}*"
            )
        if isinstance(error, ReadOnlyError):
            return QueueUnreachable(
                f"Redis at {self._address} is a replica, which takes no writes: give the address of the primary, or promote it"
            )
        if isinstance(error, _UNREACHABLE) or not isinstance(error, ResponseError) or any(word in why for word in _PASSING):
            return QueueUnreachable(f"Redis at {self._address} does not answer: {why}")
        if "CROSSSLOT" in why or "MOVED" in why:
            return self._refused(
                "it is a cluster, which has no transactions over several streams: give a server without cluster mode"
            )
        return self._refused(why)


def _place(address: str) -> dict[str, Any]:
    """Where the server is."""
    if address.startswith("/"):
        return {"unix_socket_path": address}
    [(host, port), *more] = hosts(address, "Redis")
    if more:
        raise ValueError(f"--brokers {address!r}: give the address of one Redis server, HOST:PORT, or the path of its socket")
    return {"host": host, "port": port}


def _fields(message: Message) -> list[str | bytes]:
    """What an entry of a stream holds: names and values in turn. An entry needs one, so a tombstone without key and headers has an empty key."""
    found: list[str | bytes] = []
    for name, value in (("key", message.key), ("value", message.value), *message.headers):
        if value is not None:
            found += (name, value)
    return found or ["key", b""]


def _largest(client: Any) -> int:
    """How large a value the server takes, where it says so."""
    try:
        found: dict[str, str] = client.config_get("proto-max-bulk-len")
        return int(found["proto-max-bulk-len"])
    except (ResponseError, KeyError, ValueError):  # a managed server does not let it be asked
        return LARGEST
