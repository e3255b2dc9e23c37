"""shmstore.consumer.wire.protocol.connection_state: bytes in, requests out, without a socket."""

import random
import struct
from typing import Any

import pytest

from shmstore.consumer.wire.protocol import connection_state as p
from shmstore.consumer.wire.protocol import messages as m
from shmstore.consumer.wire.protocol.authentication import Credentials, hash_password, token
from shmstore.consumer.wire.protocol.framing import frame
from shmstore.consumer.wire.protocol.messages import PacketType as T
from shmstore.errors import ProtocolError

SEED = bytes(range(8))
NAME: dict[str, Any] = {"destination": "example", "client_id": "1001"}
CLIENT = p.Client("example", 1001)


def packet(kind: int, message: Any = None, **more: Any) -> bytes:
    body = {} if message is None else {"body": message.SerializeToString()}
    return frame(m.Packet(type=kind, **body, **more).SerializeToString())


def connection(*, ready: bool = True, account: Credentials | None = None) -> p.Connection:
    made = p.Connection(account or Credentials(), SEED, 1 << 20)
    if ready:
        made.receive(packet(T.CLIENTAUTHENTICATION, m.ClientAuth()))
        assert ask(made) == p.Answer(p.granted())
    return made


def ask(made: p.Connection, data: bytes = b"") -> p.Request:
    made.receive(data)
    found = made.next()
    assert found is not None
    return found[1]


def error(answer: p.Request) -> tuple[int, str]:
    assert isinstance(answer, p.Answer)
    ack = m.Ack.FromString(m.Packet.FromString(answer.data[4:]).body)
    assert ack.error_code == answer.code
    return ack.error_code, ack.error_message


# ---------------------------------------------------------------- golden bytes


@pytest.mark.parametrize(
    ("data", "golden"),
    [
        (p.handshake(bytes([0, 1, 2, 3, 4, 5, 6, 7])), "10 01 18 01 2a 0a 12 08 00 01 02 03 04 05 06 07"),
        (p.granted(), "10 01 18 03"),
        (p.refused(400, "x"), "10 01 18 03 2a 06 08 90 03 12 01 78"),
        (p.no_batch(), "10 01 18 07 2a 0b 08 ff ff ff ff ff ff ff ff ff 01"),
        (p.batch(5, [b"\x12\x02ab", b"\x12\x01c"]), "18 07 2a 09 08 05 12 02 61 62 12 01 63"),
    ],
)
def test_golden_answers(data: bytes, golden: str) -> None:
    """Answers are byte for byte those of a canal server."""
    body = bytes.fromhex(golden)
    assert data == struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16383, 16384, 70000])
def test_batch_is_a_message(size: int) -> None:
    """A batch of any size reads back through the protobuf package."""
    content = [bytes(size), b"", b"x" * 3]
    fields = [m.Messages(messages=[data]).SerializeToString() for data in content]
    parsed = m.Packet.FromString(p.batch(size + 1, fields)[4:])
    assert parsed.type == T.MESSAGES
    assert not parsed.HasField("version")
    answer = m.Messages.FromString(parsed.body)
    assert (answer.batch_id, list(answer.messages)) == (size + 1, content)


# ---------------------------------------------------------------- conversations

REQUESTS = [
    (T.SUBSCRIPTION, m.Sub(**NAME, filter="a,b"), p.Subscribe(CLIENT, "a,b")),
    (T.UNSUBSCRIPTION, m.Unsub(**NAME), p.Unsubscribe(CLIENT)),
    (T.GET, m.Get(**NAME, fetch_size=7), p.Get(CLIENT, 7, 0.0)),
    (T.CLIENTACK, m.ClientAck(**NAME, batch_id=3), p.Acknowledge(CLIENT, 3)),
    (T.CLIENTROLLBACK, m.ClientRollback(**NAME), p.Rollback(CLIENT, 0)),
]


def test_recorded_conversation_at_every_byte() -> None:
    """A whole conversation gives the same requests wherever its bytes are split, and when they come one by one."""
    stream = packet(T.CLIENTAUTHENTICATION, m.ClientAuth(username="u", password=b"p")) + b"".join(
        packet(kind, body) for kind, body, _ in REQUESTS
    )
    wanted = [p.Answer(p.granted()), *(request for *_, request in REQUESTS)]
    splits = [[stream[:cut], stream[cut:]] for cut in range(len(stream) + 1)]
    for chunks in [*splits, [stream[i : i + 1] for i in range(len(stream))]]:
        made, found = connection(ready=False), []
        for chunk in chunks:
            made.receive(chunk)
            while (item := made.next()) is not None:
                found.append(item[1])
        assert found == wanted


def test_transition_table() -> None:
    """Every packet type in every state does what the table says; what is not in it is answered 400 and changes nothing."""
    bodies = {kind: body for kind, body, _ in REQUESTS} | {T.CLIENTAUTHENTICATION: m.ClientAuth()}
    for state in p.State:
        for kind in [*range(14), 99, 2**31 - 1, -1]:
            made = connection(ready=state is p.State.READY)
            answer = ask(made, packet(kind, bodies.get(kind)))
            if (state, kind) in p.TRANSITIONS:
                assert not isinstance(answer, p.Answer) or answer == p.Answer(p.granted())
                assert made.state is p.State.READY
            else:
                assert error(answer)[0] == 400
                assert made.state is state
                good = (
                    ask(made, packet(T.GET, m.Get(**NAME)))
                    if state is p.State.READY
                    else ask(made, packet(T.CLIENTAUTHENTICATION))
                )
                assert not isinstance(good, p.Answer) or good.code == 0


def test_every_order_of_three_packets() -> None:
    """Whatever three packets come first, each is answered or passed on, and only authentication opens the door."""
    kinds = [*range(13), 99]
    bodies = {kind: body for kind, body, _ in REQUESTS} | {T.CLIENTAUTHENTICATION: m.ClientAuth()}
    for first in kinds:
        for second in kinds:
            for third in kinds:
                made = connection(ready=False)
                state = p.State.NEW
                for kind in (first, second, third):
                    answer = ask(made, packet(kind, bodies.get(kind)))
                    allowed = (state, kind) in p.TRANSITIONS
                    assert allowed == (not isinstance(answer, p.Answer) or answer.code == 0)
                    if kind == T.CLIENTAUTHENTICATION and allowed:
                        state = p.State.READY
                    assert made.state is state


# ---------------------------------------------------------------- authentication


def test_auth_without_body() -> None:
    """With empty user and password the Python clients send a packet without a body: it is an authentication all the same."""
    made = connection(ready=False)
    assert ask(made, frame(bytes.fromhex("1802"))) == p.Answer(p.granted())
    assert made.state is p.State.READY


def test_auth_refused_and_again() -> None:
    """A wrong password is answered 400 with the user's name, and the connection may try again."""
    made = connection(ready=False, account=Credentials("canal", hash_password("sesame")))
    for proof in (b"wrong", b"", b"0" * 40, b"zz" * 20, b"\xff\xfe"):
        assert error(ask(made, packet(T.CLIENTAUTHENTICATION, m.ClientAuth(username="canal", password=proof)))) == (
            400,
            "auth failed for user:canal",
        )
        assert made.state is p.State.NEW
    right = m.ClientAuth(username="canal", password=token("sesame", SEED).encode(), net_read_timeout=30000, net_write_timeout=0)
    assert ask(made, packet(T.CLIENTAUTHENTICATION, right)) == p.Answer(p.granted())
    assert (made.read_timeout, made.write_timeout) == (30.0, None)


def test_auth_that_subscribes() -> None:
    """Destination and client id in the authentication subscribe as well; the one answer is the subscription's."""
    made = connection(ready=False)
    assert ask(made, packet(T.CLIENTAUTHENTICATION, m.ClientAuth(**NAME, filter="f"))) == p.Subscribe(CLIENT, "f")
    assert made.state is p.State.READY


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("timeout", "unit", "wait"),
    [
        (None, None, 0.0),
        (-1, None, 0.0),
        (-1, -1, 0.0),
        (-1, 3, 0.0),
        (0, None, None),
        (0, -1, None),
        (-2, None, None),
        (1500, None, 1.5),
        (1500, -1, 1.5),
        (1500, 7, 1.5),
        (1500, 2, 1.5),
        (5, 0, 5e-9),
        (5, 1, 5e-6),
        (5, 3, 5.0),
        (5, 4, 300.0),
        (5, 5, 18000.0),
        (2, 6, 172800.0),
    ],
)
def test_get_waits(timeout: int | None, unit: int | None, wait: float | None) -> None:
    """An absent or -1 time-out does not wait, 0 waits without end, else the unit counts; absent and unknown units are ms."""
    options = {name: value for name, value in (("timeout", timeout), ("unit", unit)) if value is not None}
    answer = ask(connection(), packet(T.GET, m.Get(**NAME, fetch_size=3, **options)))
    assert isinstance(answer, p.Get)
    assert answer.wait == (wait if wait is None else pytest.approx(wait))


def test_get_sizes() -> None:
    """A batch holds at least one entry, whatever was asked for."""
    assert [ask(connection(), packet(T.GET, m.Get(**NAME, fetch_size=size))).size for size in (-5, 0, 1, 2**31 - 1)] == [
        1,
        1,
        1,
        2**31 - 1,
    ]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [T.SUBSCRIPTION, T.UNSUBSCRIPTION, T.GET, T.CLIENTACK, T.CLIENTROLLBACK])
def test_names(kind: int) -> None:
    """An empty destination or client id is 401; a client id that is no Java short is 400."""
    shape = type(next(body for of, body, _ in REQUESTS if of == kind))
    for name in ({}, {"destination": "d"}, {"client_id": "1"}):
        assert error(ask(connection(), packet(kind, shape(**name))))[0] == 401
    for client_id in ("x", "32768", "-32769", "1.0", " 1", "١", "1" * 100, "+"):
        assert error(ask(connection(), packet(kind, shape(destination="d", client_id=client_id))))[0] == 400
    more = {"batch_id": 1} if kind == T.CLIENTACK else {}
    for client_id, number in (("-32768", -32768), ("32767", 32767), ("+7", 7), ("007", 7)):
        request = ask(connection(), packet(kind, shape(destination="d", client_id=client_id, **more)))
        assert request.client == p.Client("d", number)  # type: ignore[union-attr]


def test_ack_without_batch() -> None:
    """Batch id 0 in an ack is 402; -1, which clients send for an empty batch, is passed on."""
    assert error(ask(connection(), packet(T.CLIENTACK, m.ClientAck(**NAME))))[0] == 402
    assert ask(connection(), packet(T.CLIENTACK, m.ClientAck(**NAME, batch_id=-1))) == p.Acknowledge(CLIENT, -1)


def test_compressed_packet() -> None:
    """A compressed packet is refused; compression 0 and 1 mean none."""
    for compression in (0, 1):
        assert ask(connection(), packet(T.GET, m.Get(**NAME), compression=compression)) == p.Get(CLIENT, 1, 0.0)
    assert error(ask(connection(), packet(T.GET, m.Get(**NAME), compression=2)))[0] == 400


def test_nonsense_keeps_the_connection(seed: int) -> None:
    """Random bodies and packets are answered 400 or make a request; the connection continues. Only a bad length ends it."""
    rng = random.Random(seed)
    good = [packet(kind, body) for kind, body, _ in REQUESTS]
    made = connection()
    for _ in range(5000):
        data = bytearray(rng.choice(good)[4:])
        for _ in range(rng.randint(0, 6)):
            if data and rng.random() < 0.7:
                data[rng.randrange(len(data))] = rng.randrange(256)
            else:
                data[rng.randrange(len(data) + 1) :] = rng.randbytes(rng.randrange(12))
        assert isinstance(ask(made, frame(bytes(data))), p.Request)
    assert ask(made, good[2]) == REQUESTS[2][2]
    made.receive(b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError):
        made.next()


def test_an_error_is_one_short_line() -> None:
    """Whatever an error says, what is sent of it is one line, and not long."""
    packet = m.Packet.FromString(p.refused(400, "\n\x1b[31m" + "x" * 100_000)[4:])
    text = m.Ack.FromString(packet.body).error_message
    assert text.startswith("??[31mxxx")
    assert len(text) < 1100
