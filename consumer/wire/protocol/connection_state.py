"""The protocol without I/O: bytes in, requests out; answers in, bytes out.

Plan. A connection is in one of two states. What a packet does is in one table, `TRANSITIONS`: (state, type) -> step;
a pair that is not in it is answered with error 400 and the state stays. Steps that need no store (authentication, refusals)
give their answer themselves; the others come out as requests for the server to carry out, one at a time and in order.

    server -> HANDSHAKE     NEW      CLIENTAUTHENTICATION -> READY, or NEW again when refused
                            READY    SUBSCRIPTION UNSUBSCRIPTION GET -> one answer each
                                     CLIENTACK CLIENTROLLBACK -> an answer only when refused: clients read anything
                                     unasked for as the answer to their next request

An error never closes the connection, as in Canal; only a frame that cannot be one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from shmstore.consumer.wire.protocol import messages
from shmstore.consumer.wire.protocol.authentication import Credentials
from shmstore.consumer.wire.protocol.framing import FrameReader, frame
from shmstore.consumer.wire.protocol.messages import PacketType
from shmstore.errors import ProtocolError

VERSION: Final = 1
FAILED: Final = 400
NAME_MISSING: Final = 401
BATCH_MISSING: Final = 402
NO_BATCH: Final = -1
SEED_BYTES: Final = 8

# Get.unit -> seconds; anything else counts as milliseconds.
_UNITS: Final = (1e-9, 1e-6, 1e-3, 1.0, 60.0, 3600.0, 86400.0)
_MILLISECONDS: Final = 2
_SHORT: Final = re.compile(r"[+-]?[0-9]+")
_MOST_SECONDS: Final = 366 * 86400.0
_LONGEST_NAME: Final = 100  # of a destination, as of a store
_LONGEST_ERROR: Final = 1000


class State(Enum):
    """Where a connection stands."""

    NEW = "new"
    READY = "ready"


class Client(NamedTuple):
    """Whose subscription a request is about."""

    destination: str
    client_id: int


class Answer(NamedTuple):
    """Bytes to send; the request was dealt with here. `code` is 0 where it was granted."""

    data: bytes
    code: int = 0


class Subscribe(NamedTuple):
    """Begin, continue, or change the filter (None: keep the server's). Answer `granted`."""

    client: Client
    filter: str


class Unsubscribe(NamedTuple):
    """Forget the subscription. Answer `granted`."""

    client: Client


class Get(NamedTuple):
    """The next batch of `size` events or KiB. `wait`: 0.0 what exists, None until it is full, else seconds. Answer `batch`."""

    client: Client
    size: int
    wait: float | None


class Acknowledge(NamedTuple):
    """Batch `batch_id` is done. No answer when fine."""

    client: Client
    batch_id: int


class Rollback(NamedTuple):
    """Give back batch `batch_id`, or all (0). No answer when fine."""

    client: Client
    batch_id: int


Request = Answer | Subscribe | Unsubscribe | Get | Acknowledge | Rollback

# ---------------------------------------------------------------- answers


def granted() -> bytes:
    """Return the ACK that says yes: no body at all."""
    return frame(messages.Packet(version=VERSION, type=PacketType.ACK).SerializeToString())


def shown(text: str, most: int = 64) -> str:
    """Return what came from a client as it may stand in an answer or a log: one line, of `most` characters at most."""
    printable = "".join(character if character.isprintable() else "?" for character in text[: most + 1])
    return printable if len(text) <= most else f"{printable[:most]}..."


def refused(code: int, text: str) -> bytes:
    """Return the ACK that says no."""
    body = messages.Ack(error_code=code, error_message=shown(text, _LONGEST_ERROR)).SerializeToString()
    return frame(messages.Packet(version=VERSION, type=PacketType.ACK, body=body).SerializeToString())


def no_batch() -> bytes:
    """Return the MESSAGES that says: nothing there."""
    body = messages.Messages(batch_id=NO_BATCH).SerializeToString()
    return frame(messages.Packet(version=VERSION, type=PacketType.MESSAGES, body=body).SerializeToString())


def batch(batch_id: int, entries: Sequence[bytes]) -> bytes:
    """Return the MESSAGES of a batch. Each of `entries` has its field tag and length before it (`entry.Encoder`)."""
    head = b"\x08" + varint(batch_id)
    content = len(head) + sum(map(len, entries))
    size = varint(content)
    length = 3 + len(size) + content
    if length > 0x7FFFFFFF:
        raise ProtocolError(f"a batch of {length} bytes does not fit a frame of the canal protocol (2 GiB)")
    # 18 07: type MESSAGES; 2a: body. Canal sends no version here. Joined once: a batch is large.
    return b"".join((length.to_bytes(4, "big"), b"\x18\x07\x2a", size, head, *entries))


def varint(number: int) -> bytes:
    """Return a non-negative integer as protobuf's varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def handshake(seed: bytes) -> bytes:
    """Return the packet a server opens with."""
    body = messages.Handshake(seeds=seed).SerializeToString()
    return frame(messages.Packet(version=VERSION, type=PacketType.HANDSHAKE, body=body).SerializeToString())


class _Refusal(Exception):
    """Ends a step with an error answer."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text


# ---------------------------------------------------------------- the machine


class Connection:
    """One client's side of the conversation. Feed it with `receive`, then call `next` until it returns None."""

    def __init__(self, credentials: Credentials, seed: bytes, max_frame: int) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"the seed has {len(seed)} bytes, the protocol wants {SEED_BYTES}")
        self.state = State.NEW
        #: The name of the last login, let in or not.
        self.user = ""
        self.read_timeout: float | None = None
        self.write_timeout: float | None = None
        self._credentials = credentials
        self._seed = seed
        self._frames = FrameReader(max_frame)

    def greeting(self) -> bytes:
        """Return what is sent as soon as the socket is open."""
        return handshake(self._seed)

    def receive(self, chunk: bytes) -> None:
        """Take bytes from the socket."""
        self._frames.feed(chunk)

    @property
    def buffered(self) -> int:
        """Bytes taken and not yet dealt with."""
        return self._frames.buffered

    def next(self) -> tuple[int, Request] | None:
        """Return (packet type, request or answer), or None until more bytes come.

        Raises `ProtocolError` where the stream cannot be read further: say so to the client, and close.
        """
        packet = self._frames.next()
        if packet is None:
            return None
        kind = 0
        try:
            parsed = _parse(messages.Packet, packet)
            kind = parsed.type
            step = TRANSITIONS.get((self.state, kind))
            if step is None:
                if self.state is State.NEW:
                    raise _Refusal(FAILED, f"packet type {kind} before authentication")
                raise _Refusal(FAILED, f"packet type {kind} is not supported here")
            if parsed.compression not in (0, 1):
                raise _Refusal(FAILED, f"compression {parsed.compression} is not supported: send packets uncompressed")
            return kind, step(self, parsed.body)
        except _Refusal as refusal:
            return kind, Answer(refused(refusal.code, refusal.text), refusal.code)

    # ------------------------------------------------------------ steps

    def _authenticate(self, body: bytes) -> Request:
        auth = _parse(messages.ClientAuth, body)
        self.user = auth.username
        if not self._credentials.admit(auth.username, auth.password, self._seed):
            raise _Refusal(FAILED, f"auth failed for user:{shown(auth.username)}")
        # The documentation says seconds; every Canal since 1.0.26 and every client means milliseconds.
        self.read_timeout = auth.net_read_timeout / 1000 if auth.net_read_timeout > 0 else None
        self.write_timeout = auth.net_write_timeout / 1000 if auth.net_write_timeout > 0 else None
        wanted = Subscribe(_client(auth), auth.filter) if auth.destination and auth.client_id else None
        self.state = State.READY
        # One answer for both: the subscription's, where one was asked for along with it.
        return Answer(granted()) if wanted is None else wanted

    def _subscribe(self, body: bytes) -> Request:
        sub = _parse(messages.Sub, body)
        return Subscribe(_client(sub), sub.filter)

    def _unsubscribe(self, body: bytes) -> Request:
        return Unsubscribe(_client(_parse(messages.Unsub, body)))

    def _get(self, body: bytes) -> Request:
        get = _parse(messages.Get, body)
        unit = get.unit if get.HasField("unit") and 0 <= get.unit < len(_UNITS) else _MILLISECONDS
        wait: float | None
        if not get.HasField("timeout") or get.timeout == -1:
            wait = 0.0
        elif get.timeout <= 0:
            wait = None
        else:
            wait = min(get.timeout * _UNITS[unit], _MOST_SECONDS)
        return Get(_client(get), max(1, get.fetch_size), wait)

    def _acknowledge(self, body: bytes) -> Request:
        ack = _parse(messages.ClientAck, body)
        client = _client(ack)
        if ack.batch_id == 0:
            raise _Refusal(BATCH_MISSING, "batchId should assign value")
        return Acknowledge(client, ack.batch_id)

    def _rollback(self, body: bytes) -> Request:
        rollback = _parse(messages.ClientRollback, body)
        return Rollback(_client(rollback), rollback.batch_id)


_Step = Callable[[Connection, bytes], Request]

#: What each packet does in each state.
TRANSITIONS: Final[dict[tuple[State, int], _Step]] = {
    (State.NEW, PacketType.CLIENTAUTHENTICATION): Connection._authenticate,
    (State.READY, PacketType.SUBSCRIPTION): Connection._subscribe,
    (State.READY, PacketType.UNSUBSCRIPTION): Connection._unsubscribe,
    (State.READY, PacketType.GET): Connection._get,
    (State.READY, PacketType.CLIENTACK): Connection._acknowledge,
    (State.READY, PacketType.CLIENTROLLBACK): Connection._rollback,
}


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise _Refusal(FAILED, f"{kind.DESCRIPTOR.name} of {len(data)} bytes cannot be read: {error}") from error


def _client(message: Any) -> Client:
    """The client that a request names. Canal's client ids are Java shorts in decimal."""
    if not message.destination or not message.client_id:
        raise _Refusal(NAME_MISSING, "destination or clientId is null")
    if not _SHORT.fullmatch(message.client_id) or len(message.client_id) > 32 or not -32768 <= int(message.client_id) <= 32767:
        raise _Refusal(FAILED, f"clientId {message.client_id[:40]!r} is not a number from -32768 to 32767")
    if len(message.destination) > _LONGEST_NAME:
        raise _Refusal(
            FAILED, f"destination {shown(message.destination)!r} has {len(message.destination)} characters: no store's name has"
        )
    return Client(message.destination, int(message.client_id))
