"""RocketMQ, by its remoting protocol, which name servers and brokers of versions 4 and 5 speak, without a proxy.

A topic is the topic of that name, with ``_`` for each dot, and a partition one of its queues, counted by broker and then by queue, as RocketMQ's own
producers do. A request carries messages of one queue, which the broker takes together, and no second one is on its way to a queue: so each queue has
them in order. `send` returns when the brokers have all of them. RocketMQ has no transaction over several messages, so no mark is kept: after an error or a
kill a batch comes again, at least once. The message's id is EPOCH-SEQUENCE-ROW-NUMBER, the same each time, by which a reader drops what it has.

A frame is its length, the header's length, the header in JSON, and a body::

    u32 length   u32 header length   {"code": 320, "opaque": 7, "flag": 0, "extFields": {...}}   body

An answer has its request's ``opaque`` and bit 0 of ``flag``. A body of a request to send has for each message::

    u32 size   u32 0   u32 0   u32 0   u32 length   value   u16 length   NAME 01 TEXT 02 NAME 01 TEXT 02 ...
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import socket
import ssl
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from shmstore.consumer.queues.connecting import ANSWER_SECONDS, checked, hosts, named
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable

QUEUES: Final = 4  # of a new topic at each broker, as RocketMQ's own producers make it
KNOWN_SECONDS: Final = 2.0  # for name servers to know a new topic
IDLE_SECONDS: Final = 60  # a server closes a connection that is idle for 120
REQUEST: Final = 256 << 10  # bytes of messages in a request, about
FRAME: Final = 16 << 20  # bytes; a server hangs up at more
PROPERTIES: Final = 0x7FFF  # bytes

_CREATE_TOPIC, _TOPICS, _ROUTE, _CLUSTER, _SEND, _TOPIC = 17, 21, 105, 106, 320, 351  # codes of requests
_DONE, _UNSUPPORTED, _TOO_LARGE, _REFUSED, _NO_TOPIC = 0, 3, 13, 16, 17  # codes of answers
_NOT_JSON: Final = re.compile(rb"([{,])(\d+):")  # numbers as names
_STRANGE: Final = "what answers is not RocketMQ"
_NAME: Final = re.compile(r"[%|\w-]{1,127}", re.ASCII)


class _Place(NamedTuple):
    """A queue: that of a broker, at an address."""

    broker: str
    number: int
    address: tuple[str, int]


class _Reply(NamedTuple):
    code: int
    why: str
    body: bytes


_Made = tuple[Message, bytes]


class RocketMQ:
    """A RocketMQ cluster as a `Queue`: `address` is HOST:PORT,... of its name servers, tried in turn.

    `settings`: ``tag`` of the messages, and ``group``, the producer's. Raises ValueError for others.
    """

    exactly_once = False

    def __init__(
        self,
        address: str,
        *,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
        partitions: int = QUEUES,
        create: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        _, texts = checked(settings or {}, "RocketMQ", (), ("tag", "group"))
        self._address, self._names = address, hosts(address, "RocketMQ")
        self._tag, self._group = texts.get("tag", ""), texts.get("group", "shmstore")
        self._login, self._tls, self._new, self._create = (user, password), tls, partitions, create
        self._links: dict[tuple[str, int], _Link] = {}
        self._name_server: tuple[str, int] | None = None
        self._first: dict[str, list[_Place]] = {}  # queues of a topic as it was seen first: a key stays in its own
        self._now: set[str] = set()  # topics that were seen since `open`

    # ---------------------------------------------------------------- begin

    def open(self) -> Mark | None:
        """Find a name server that answers. There is no mark."""
        self.close()
        self._now.clear()
        for number, place in enumerate(self._names):
            try:
                self._link(place)
            except QueueUnreachable:
                if number == len(self._names) - 1:
                    raise
            else:
                self._name_server = place
                break
        return None

    def partitions(self, topic: str) -> int:
        """How many queues the topic has."""
        try:
            return len(self._queues(_named(topic)))
        except (QueueRefused, QueueUnreachable):
            raise
        except OSError as error:
            raise self._unreachable(str(error)) from error

    def _queues(self, name: str) -> list[_Place]:
        """The queues of a topic, which is made where it is not there."""
        if name not in self._now:
            places = self._route(name)
            if not places:
                made = self._make(name)
                until = time.monotonic() + KNOWN_SECONDS
                # Brokers tell the name server one after the other: with the queues of the first alone each key would move at the next start.
                while not (places := self._route(name)) or made - {place.broker for place in places}:
                    if time.monotonic() > until:
                        raise self._unreachable(
                            f"a broker has topic {name}, and the name server knows no queue of it that can be written"
                        )
                    time.sleep(0.01)
            moved = {(place.broker, place.number): place for place in places}
            places = [moved.get((place.broker, place.number), place) for place in self._first.get(name, places)]
            if gone := [place for place in places if (place.broker, place.number) not in moved]:
                raise self._unreachable(
                    f"topic {name} has no queue {gone[0].number} of broker {gone[0].broker} now, and other queues would break the order of keys"
                )
            self._first[name] = places
            self._now.add(name)
        return self._first[name]

    def _route(self, name: str) -> list[_Place]:
        """The queues of a topic that can be written; none where it is not there."""
        answer = self._ask(self._names_at(), _ROUTE, {"topic": name})
        if answer.code == _NO_TOPIC:
            return []
        route = _json(self._checked(answer, "write on topics").body)
        found = []
        with _understood():
            masters = {data["brokerName"]: data["brokerAddrs"].get("0") for data in route["brokerDatas"]}
            for data in sorted(route["queueDatas"], key=lambda each: str(each["brokerName"])):
                if (master := masters.get(data["brokerName"])) and data["perm"] & 2:
                    address = hosts(master, "RocketMQ")[0]
                    found += [_Place(data["brokerName"], number, address) for number in range(data["writeQueueNums"])]
        return found

    def _make(self, name: str) -> set[str]:
        """Make a topic at each broker, unless one has it: it may have more queues, and a name server forgets it with its broker for a while.

        Returns the brokers that made it.
        """
        cluster = _json(self._checked(self._ask(self._names_at(), _CLUSTER, {}), "list the cluster").body)
        with _understood():
            addresses = {broker: data["brokerAddrs"].get("0") for broker, data in cluster["brokerAddrTable"].items()}
            brokers = {broker: hosts(address, "RocketMQ")[0] for broker, address in addresses.items() if address}
        if not brokers:
            raise self._unreachable("no broker is there")
        if any(self._has(place, name) for place in brokers.values()):
            return set()
        if not self._create:
            raise QueueRefused(f"RocketMQ at {self._address} has no topic {name}: create it, or leave out --no-create-topics")
        wanted = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": self._new, "writeQueueNums": self._new, "perm": 6}
        wanted |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        for place in brokers.values():
            self._checked(self._ask(place, _CREATE_TOPIC, wanted), f"create topic {name}")
        return set(brokers)

    def _has(self, broker: tuple[str, int], name: str) -> bool:
        """Whether a broker has a topic."""
        answer = self._ask(broker, _TOPIC, {"topic": name})
        if answer.code == _UNSUPPORTED:  # version 4
            topics = _json(self._checked(self._ask(broker, _TOPICS, {}), "list topics").body)
            with _understood():
                return name in topics["topicConfigTable"]
        return answer.code != _NO_TOPIC and bool(self._checked(answer, f"get topic {name}"))

    # ---------------------------------------------------------------- send

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        """Send all, and wait until the brokers have them."""
        try:
            self._send(messages, mark.epoch)
        except (OSError, MessageTooLarge) as error:
            self.close()
            if isinstance(error, MessageTooLarge | QueueRefused | QueueUnreachable):
                raise
            raise self._unreachable(str(error)) from error

    def _send(self, messages: Sequence[Message], epoch: int) -> None:
        made: dict[tuple[str, _Place], list[_Made]] = {}
        for message, encoded in _encoded(messages, epoch, self._tag):
            name = _named(message.topic)
            queues = self._queues(name)
            number = zlib.crc32(message.key or b"") if message.partition is None else message.partition
            made.setdefault((name, queues[number % len(queues)]), []).append((message, encoded))
        waiting = {where: deque(_requests(some)) for where, some in made.items()}
        while waiting:
            asked = []
            for (name, place), requests in waiting.items():
                link = self._link(place.address)
                asked.append(
                    (requests, link, link.ask(_SEND, self._head(name, place), b"".join([each[1] for each in requests[0]])))
                )
            for requests, link, opaque in asked:
                self._taken(requests, link.answer(opaque))
            waiting = {where: requests for where, requests in waiting.items() if requests}

    def _head(self, name: str, place: _Place) -> dict[str, object]:
        """The header of a request to send: group, topic, queue, time, and that it is a batch."""
        head = {
            "a": self._group,
            "b": name,
            "c": "TBW102",
            "d": self._new,
            "e": place.number,
            "f": 0,
            "g": int(time.time() * 1000),
        }
        return head | {"h": 0, "i": "", "j": 0, "k": "false", "m": "true"}

    def _taken(self, requests: deque[list[_Made]], answer: _Reply) -> None:
        """Take the answer to the first of `requests`."""
        some = requests.popleft()
        if answer.code != _TOO_LARGE and "size exceeded" not in answer.why:
            self._checked(answer, "write on the topics")
        elif len(some) > 1:
            half = len(some) // 2
            requests.extendleft((some[half:], some[:half]))
        else:
            raise _too_large(some[0][0], answer.why)

    # ---------------------------------------------------------------- connections

    def _names_at(self) -> tuple[str, int]:
        if self._name_server is None:
            raise self._unreachable("it is not open")
        return self._name_server

    def _link(self, place: tuple[str, int]) -> _Link:
        link = self._links.get(place)
        if link is not None and time.monotonic() - link.used > IDLE_SECONDS:
            link.close()
            link = None
        if link is None:
            try:
                link = self._links[place] = _Link(place, self._tls, self._login)
            except OSError as error:  # a broker may be known by an address that only its own host has
                raise self._unreachable(f"{place[0]}:{place[1]}: {error}") from error
        return link

    def _ask(self, place: tuple[str, int], code: int, fields: Mapping[str, object]) -> _Reply:
        link = self._link(place)
        return link.answer(link.ask(code, fields))

    def close(self) -> None:
        """Let go of the connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._name_server = None

    def _checked(self, answer: _Reply, right: str) -> _Reply:
        """The answer. Raises our error for one that is not good."""
        why = re.sub(r"\s+", " ", answer.why)[:500]
        if answer.code in (_UNSUPPORTED, _REFUSED) or "AclException" in why or "AuthenticationException" in why:
            raise QueueRefused(f"RocketMQ at {self._address} refuses: {why}; the user needs the right to {right}")
        if answer.code != _DONE:  # also where no replica, or no disk, has it yet
            raise self._unreachable(f"code {answer.code}, {why}")
        return answer

    def _unreachable(self, why: str) -> QueueUnreachable:
        return QueueUnreachable(f"RocketMQ at {self._address} does not take messages: {why}")


class _Link:
    """A connection to a server. Raises OSError where it breaks, or nothing comes for `ANSWER_SECONDS`."""

    def __init__(self, place: tuple[str, int], tls: ssl.SSLContext | None, login: tuple[str, str]) -> None:
        link = socket.create_connection(place, ANSWER_SECONDS)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = tls.wrap_socket(link, server_hostname=place[0]) if tls else link
        self._read = self._socket.makefile("rb")
        self._user, self._password = login
        self._asked = 0
        self._answers: dict[int, _Reply] = {}
        self.used = time.monotonic()

    def ask(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> int:
        """Send a request, and return its number."""
        self._asked += 1
        texts = {name: str(value) for name, value in fields.items()}
        if self._user:
            texts["AccessKey"] = self._user
            signed = "".join(texts[name] for name in sorted(texts)).encode() + body
            texts["Signature"] = base64.b64encode(hmac.digest(self._password.encode(), signed, hashlib.sha1)).decode()
        header = {"code": code, "language": "PYTHON", "version": 0, "opaque": self._asked, "flag": 0, "extFields": texts}
        head = json.dumps(header).encode()
        self._socket.sendall(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body)
        return self._asked

    def answer(self, opaque: int) -> _Reply:
        """Wait for the answer to a request."""
        while opaque not in self._answers:
            length, head = struct.unpack(">II", self._bytes(8))
            head &= 0xFFFFFF  # the first byte says that it is JSON
            if not 4 + head <= length <= FRAME:
                raise ConnectionError(_STRANGE)
            header, body = _json(self._bytes(head)), self._bytes(length - 4 - head)
            with _understood():
                if header["flag"] & 1:
                    self._answers[header["opaque"]] = _Reply(int(header["code"]), str(header.get("remark") or ""), body)
        self.used = time.monotonic()
        return self._answers.pop(opaque)

    def _bytes(self, count: int) -> bytes:
        found = self._read.read(count)
        if len(found) < count:
            raise ConnectionError("the server closed the connection")
        return found

    def close(self) -> None:
        """Let go of it."""
        self._read.close()
        self._socket.close()


@contextmanager
def _understood() -> Iterator[None]:
    """What an answer must have for its use in the body. Raises ConnectionError where it does not."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ConnectionError(_STRANGE) from error


def _json(text: bytes) -> Any:
    with _understood():
        return json.loads(_NOT_JSON.sub(rb'\1"\2":', text))


def _named(topic: str) -> str:
    """RocketMQ's name for it. Raises `QueueRefused` for one that cannot be."""
    return named(topic.replace(".", "_"), "RocketMQ", _NAME, "127 letters, digits, _ and -")


def _encoded(messages: Iterable[Message], epoch: int, tag: str) -> Iterator[_Made]:
    """Each message with its bytes; those of one row are numbered."""
    last, number = (-1, -1), 0
    for message in messages:
        row = message.sequence, message.row
        number = number + 1 if row == last else 0
        last = row
        named = [("UNIQ_KEY", f"{epoch}-{message.sequence}-{message.row}-{number}".encode()), *message.headers]
        if message.key is not None:
            named.append(("KEYS", message.key))
        if tag:
            named.append(("TAGS", tag.encode()))
        texts = b"".join([b"%b\1%b\2" % (name.encode(), value) for name, value in named])
        value = message.value or b""
        if len(texts) > PROPERTIES:
            raise _too_large(message, f"its key and headers have {len(texts):,} bytes, and RocketMQ takes {PROPERTIES:,}")
        if len(value) > FRAME - (64 << 10):
            raise _too_large(message, f"RocketMQ takes {FRAME:,} with all around it")
        size = 22 + len(value) + len(texts)
        yield message, struct.pack(">IIIII", size, 0, 0, 0, len(value)) + value + struct.pack(">H", len(texts)) + texts


def _requests(made: Sequence[_Made]) -> Iterator[list[_Made]]:
    """Messages of a queue, as many as a request takes."""
    some: list[_Made] = []
    size = 0
    for one in made:
        if some and size + len(one[1]) > REQUEST:
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one[1])
    yield some


def _too_large(message: Message, why: str) -> MessageTooLarge:
    return MessageTooLarge(
        f"row {message.row} of event {message.sequence} is a message of {len(message.value or b''):,} bytes for {message.topic}, which is too "
        f"large: {why}; raise maxMessageSize of the brokers, or choose --oversized",
        message,
    )
