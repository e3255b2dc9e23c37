"""NATS JetStream as a queue (consumer/queues/nats_stream.py, `shmstore queue --kind nats`): a real server, kills, parts of batches, what it refuses."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.client import JetStreamContext

from shmstore import EventStore
from shmstore.consumer.queues import kinds, nats_stream
from shmstore.consumer.queues.nats_stream import NatsStream
from shmstore.consumer.queues.queue import Mark, Message, QueueRefused, QueueUnreachable
from shmstore.event import EventType, Row
from tests.certificates import self_signed
from tests.consumer.queues.reading import streamed
from tests.consumer.queues.senders import all_acked, send, sending, wait_for
from tests.consumer.queues.test_sender import inserts, transaction
from tests.servers.nats import NatsServer, nats_cluster, nats_server

pytestmark = pytest.mark.usefixtures("state")


def some(topic: str, numbers: range, epoch: int = 1) -> list[Message]:
    return [Message(topic, f"schlüssel 鍵 {number % 3}".encode(), b"%d" % number, sequence=number) for number in numbers]


class _Cut(Exception):
    pass


@pytest.mark.parametrize("window", [4, 1])
@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_part_of_a_batch(
    nats_there: NatsServer, store_name: str, seed: int, fault: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender goes at any message, or behind the last one, and the next batches have other limits: each message is there once, in order."""
    chance, topic, reader, done, sent = (
        random.Random(seed),
        f"{store_name}-{fault}{window}",
        f"s/{store_name}{fault}{window}",
        0,
        0,
    )
    monkeypatch.setattr(nats_stream, "WINDOW", window)
    publish = NatsStream._publish
    while done < 60:
        queue = NatsStream(nats_there.address, reader)
        mark = queue.open()
        assert (mark.sequence if mark else -1) == done - 1
        sent, last = 0, chance.randint(0, 9)

        async def cut(self: NatsStream, *words: Any, waits: bool, last: int = last) -> None:
            nonlocal sent
            if sent == last and fault == "before":
                await self._client.flush()
                raise QueueUnreachable("cut")
            await publish(self, *words, waits=waits)
            sent += 1
            if sent > last:
                raise QueueUnreachable("cut")

        with monkeypatch.context() as patched:
            patched.setattr(NatsStream, "_publish", cut)
            try:
                for _ in range(3):
                    upto = min(60, done + chance.randint(1, 9))
                    queue.send(some(topic, range(done, upto)), Mark(1, upto - 1))
                    done = upto
            except QueueUnreachable:
                pass
        queue.close()
        mark = NatsStream(nats_there.address, reader).open()
        done = mark.sequence + 1 if mark else 0
    found = streamed(nats_there, topic)[0]
    assert [int(each.data) for each in found] == list(range(60))


def test_a_part_of_another_store(nats_there: NatsServer, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that was created again counts otherwise: what is in the stream is known by subject, key and row."""
    reader = f"s/{store_name}"
    queue = NatsStream(nats_there.address, reader)
    queue.open()
    queue.send(some(store_name, range(3)), Mark(1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(NatsStream, "_publish_mark", _cut)
        with pytest.raises(QueueUnreachable):
            queue.send(some(store_name, range(3, 6)), Mark(1, 5))
    queue = NatsStream(nats_there.address, reader)
    assert queue.open() == Mark(1, 2)
    again = [message._replace(sequence=message.sequence + 100) for message in some(store_name, range(3, 8))]
    queue.send(again, Mark(2, 107))
    assert [int(each.data) for each in streamed(nats_there, store_name)[0]] == list(range(8))
    queue.close()


async def _cut(self: NatsStream) -> None:
    await self._client.flush()
    raise QueueUnreachable("cut")


@pytest.mark.parametrize("window", [nats_stream.WINDOW, 1])
def test_what_another_wrote(nats_there: NatsServer, store_name: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of another in the stream: what is sent is not taken for it, and a running sender does not write behind it."""
    monkeypatch.setattr(nats_stream, "WINDOW", window)
    queue = NatsStream(nats_there.address, f"s/{store_name}")
    queue.open()
    queue.send(some(store_name, range(3)), Mark(1, 2))
    asyncio.run(_publish(nats_there, store_name, b"other"))
    with pytest.raises(QueueUnreachable, match="part of a batch"):
        queue.send(some(store_name, range(3, 6)), Mark(1, 5))
    assert queue.open() == Mark(1, 2)
    with pytest.raises(QueueRefused, match="another wrote into the stream"):
        queue.send(some(store_name, range(3, 6)), Mark(1, 5))
    queue.close()
    assert [each.data for each in streamed(nats_there, store_name)[0]] == [b"0", b"1", b"2", b"other"]


@pytest.mark.parametrize("window", [nats_stream.WINDOW, 1])
def test_a_second_instance(nats_there: NatsServer, store_name: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes over; the first one ends at its next message, of which none comes in."""
    monkeypatch.setattr(nats_stream, "WINDOW", window)
    first, second = (NatsStream(nats_there.address, f"s/{store_name}") for _ in range(2))
    first.open()
    first.send(some(store_name, range(3)), Mark(1, 2))
    assert second.open() == Mark(1, 2)
    with pytest.raises(QueueRefused, match="another instance"):
        first.send(some(store_name, range(3, 9)), Mark(1, 8))
    second.send(some(store_name, range(3, 6)), Mark(1, 5))
    second.close()
    assert [each.data for each in streamed(nats_there, store_name)[0]] == [b"%d" % number for number in range(6)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_replicas_that_were_away(store_name: str) -> None:
    """Of three servers each one that does not lead the stream is killed in its turn, and started again, while messages come: each has all of them when
    it leads."""
    reader, topic = f"s/{store_name}", store_name
    with nats_cluster() as servers:
        queue = NatsStream(",".join(server.address for server in servers), reader, replicas=3)
        wait_for(lambda: _opens(queue))
        sent = 0

        def more(count: int) -> None:
            nonlocal sent
            queue.send(some(topic, range(sent, sent + count)), Mark(1, sent + count - 1))
            sent += count

        more(10)
        first = _leader_of(servers, reader)
        queue.close()
        queue = NatsStream(servers[first].address, reader, replicas=3)
        queue.open()
        for away in {0, 1, 2} - {first}:
            servers[away].stop()
            more(300)
            servers[away].start()
            more(10)
            time.sleep(1)  # so that a message of before is older than what a server knows the ids of
            more(10)
        queue.close()
        for number in range(3):
            wait_for(lambda: _leads(servers, reader, number))  # noqa: B023
            assert [int(each.data) for each in streamed(servers[number], topic)[0]] == list(range(sent))


def _opens(queue: NatsStream) -> bool:
    """Whether a queue opens: servers that just started have no leader yet."""
    try:
        queue.open()
    except QueueUnreachable:
        return False
    return True


def _leads(servers: Sequence[NatsServer], reader: str, number: int) -> bool:
    """Whether server `number` leads the reader's stream; if not, another one is asked to."""
    if _leader_of(servers, reader) == number:
        return True
    asyncio.run(_asked(servers, "LEADER.STEPDOWN", reader))
    return False


def _leader_of(servers: Sequence[NatsServer], reader: str) -> int:
    answer = asyncio.run(_asked(servers, "INFO", reader))
    leader = answer.get("cluster", {}).get("leader")
    return int(leader[1:]) if leader else -1


async def _asked(servers: Sequence[NatsServer], what: str, reader: str) -> dict[str, Any]:
    client = await nats.connect([f"nats://{server.address}" for server in servers])
    try:
        answer = await client.request(f"$JS.API.STREAM.{what}.{reader.replace('/', '-')}", b"", timeout=5)
        return dict(json.loads(answer.data))
    except nats.errors.Error:  # no leader now
        return {}
    finally:
        await client.close()


async def _publish(server: NatsServer, subject: str, data: bytes) -> None:
    client = await nats.connect(f"nats://{server.address}")
    await client.jetstream().publish(subject, data)
    await client.close()


async def _stream(server: NatsServer, **config: Any) -> None:
    client = await nats.connect(f"nats://{server.address}")
    await client.jetstream().add_stream(**config)
    await client.close()


def test_streams_that_are_there(nats_there: NatsServer, store_name: str) -> None:
    """One of the user's own is taken, with its subjects; one that would drop the mark, or has another sender's topics, is not."""
    reader, own = f"s/{store_name}", f"{store_name}-own"
    asyncio.run(_stream(nats_there, name=own, subjects=[f"{own}.>"], max_msgs=100))
    queue = NatsStream(nats_there.address, reader, progress=f"{own}.marks", create=False, settings={"stream": own})
    queue.open()
    queue.send(some(f"{own}.a.b", range(300)), Mark(1, 299))
    assert queue.open() == Mark(1, 299)
    with pytest.raises(QueueRefused, match="does not keep elsewhere"):
        queue.send(some("elsewhere", range(3)), Mark(1, 302))
    queue.close()
    for config in ({"max_age": 60}, {"retention": "workqueue"}, {"retention": "interest"}):
        aged = f"{store_name}-{next(iter(config.values()))}"
        asyncio.run(_stream(nats_there, name=aged, subjects=[aged], **config))
        with pytest.raises(QueueRefused, match="drops messages"):
            NatsStream(nats_there.address, reader, settings={"stream": aged}).open()
    other = NatsStream(nats_there.address, f"other/{store_name}")
    other.open()
    with pytest.raises(QueueRefused, match="overlap"):
        other.send(some(f"{own}.a.b", range(3)), Mark(1, 2))
    with pytest.raises(QueueRefused, match=f"that of 'other/{store_name}'"):
        NatsStream(nats_there.address, reader, settings={"stream": f"other-{store_name}"}).open()


def test_what_a_message_holds(log_store: EventStore, nats_there: NatsServer) -> None:
    """Key and headers; a delete's tombstone is empty; `max_msgs` trims."""
    topic = f"{log_store.name}.shop.orders"
    log_store.put(transaction(0, inserts(1)))
    log_store.put(transaction(1, [Row((1, "note 1"), None)], EventType.DELETE))
    send(log_store.name, "nats", nats_there.address, "--set", "max_msgs=50")
    inserted, deleted, tombstone = streamed(nats_there, topic)[0]
    assert json.loads(inserted.headers["key"]) == {"id": 1}
    assert json.loads(inserted.data)["after"] == {"id": 1, "note": "note 1"}
    assert inserted.headers["shmstore.position"].startswith("binlog.000001:")
    assert json.loads(deleted.data)["op"] == "delete"
    assert tombstone.headers["key"] == inserted.headers["key"]
    assert tombstone.data == b""
    log_store.put(transaction(2, inserts(*range(2, 300))))
    send(log_store.name, "nats", nats_there.address)
    assert len(streamed(nats_there, topic)[0]) == 49


def test_a_server_without_room(log_store: EventStore, tmp_path: Path) -> None:
    """It says so, with what to do, and waits; once there is room all comes in, once."""
    with NatsServer(tmp_path) as server:
        file = tmp_path / "nats.conf"
        roomy = file.read_text()
        server.stop()
        file.write_text(roomy.replace("jetstream {", "jetstream { max_file_store: 200000,"))
        server.start()
        for number in range(20):
            log_store.put(transaction(number, [Row(None, (number * 10 + i, "x" * 2000)) for i in range(10)]))
        with sending(log_store.name, "nats", server.address) as process:
            assert process.stderr is not None
            said = next(line for line in process.stderr if "has no room" in line)
            assert "give it more (max_file_store" in said
            assert "trying again" in said
            assert process.poll() is None
            server.stop()
            file.write_text(roomy)
            server.start()
            wait_for(lambda: all_acked(log_store))
        found = streamed(server, f"{log_store.name}.shop.orders")[0]
    assert [json.loads(each.headers["key"])["id"] for each in found] == list(range(200))


def test_logins_and_rights(log_store: EventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS the right password sends; a wrong one, none, one without rights, and another certificate end with a line, without the password."""
    certificate, key = self_signed(tmp_path)
    users = '{user: boss, password: let-me-in}, {user: weak, password: weak, permissions: {publish: "nothing", subscribe: "_INBOX.>"}}'
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
    log_store.put(transaction(0, inserts(1, 2)))
    name = log_store.name
    with nats_server(f"authorization {{ users: [{users}] }}", tls) as server:

        def said(user: str, password: str, code: int) -> str:
            words = ("--tls-ca", certificate, *(("--user", user) if user else ()))
            return send(name, "nats", server.address, *words, code=code, SHMSTORE_QUEUE_PASSWORD=password)

        assert "sent 2 messages" in said("boss", "let-me-in", 0)
        wrong = said("boss", "wrong-one", 2)
        assert "Authorization" in wrong
        assert "wrong-one" not in wrong
        assert "refuses" in said("", "", 2)
        assert "user needs publish" in said("weak", "weak", 2)
        before = set(threading.enumerate())
        (tmp_path / "other").mkdir()
        other, _ = self_signed(tmp_path / "other")
        queue = kinds.make("nats", kinds.QueueConnection(server.address, "s/x", user="boss", password="let-me-in", tls_ca=other))
        with pytest.raises((QueueUnreachable, QueueRefused), match="certificate"):
            queue.open()
        monkeypatch.setattr(nats_stream, "ANSWER_SECONDS", 600)
        queue.close()  # waits for no answer
        threads = set(threading.enumerate()) - before
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        # The server refuses before the thread that asked has continued.
        ask = asyncio.run_coroutine_threadsafe

        def slow(*words: Any) -> Any:
            asked = ask(*words)
            time.sleep(0.3)
            return asked

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", slow)
        queue = kinds.make("nats", kinds.QueueConnection(server.address, "s/x", user="weak", password="weak", tls_ca=certificate))
        with pytest.raises(QueueRefused, match="user needs publish"):
            queue.open()
        queue.close()


def test_a_question_without_an_answer(nats_there: NatsServer, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream has no leader for a while: it is asked again."""
    asked: list[str] = []
    ask = JetStreamContext._api_request

    async def late(self: JetStreamContext, subject: str, *words: Any, **more: Any) -> Any:
        asked.append(subject)
        if asked.count(subject) == 1:
            raise nats.errors.TimeoutError
        return await ask(self, subject, *words, **more)

    monkeypatch.setattr(JetStreamContext, "_api_request", late)
    queue = NatsStream(nats_there.address, f"s/{store_name}")
    assert queue.open() is None
    queue.send(some(store_name, range(3)), Mark(1, 2))
    assert queue.open() == Mark(1, 2)
    queue.close()
    assert any(asked.count(subject) > 1 for subject in asked)


def test_a_server_without_tls_gets_no_password() -> None:
    """Where TLS is asked for and the server, or another process on the way, says that it speaks none, nothing is sent to it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        came = bytearray()

        def answer() -> None:
            with listening.accept()[0] as link:
                link.sendall(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true}\r\n')
                while piece := link.recv(4096):
                    came.extend(piece)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        queue = kinds.make("nats", kinds.QueueConnection(address, "s/x", user="boss", password="let-me-in", tls=True))
        with pytest.raises(QueueRefused, match="speaks no TLS"):
            queue.open()
        queue.close()
        thread.join(30)
        assert not came


def test_a_mark_that_is_none(nats_there: NatsServer, store_name: str) -> None:
    """What another process wrote there stops with a line."""
    queue = NatsStream(nats_there.address, f"s/{store_name}")
    queue.open()
    queue.close()
    asyncio.run(_publish(nats_there, f"shmstore-progress.s.{store_name}", b"hello"))
    with pytest.raises(ValueError, match=r"hello.* is not a mark"):
        NatsStream(nats_there.address, f"s/{store_name}").open()


def test_nothing_listens() -> None:
    """`open` says so; `run` would try again."""
    queue = NatsStream("127.0.0.1:1", "s/none")
    with pytest.raises(QueueUnreachable, match=r"127\.0\.0\.1:1 does not answer"):
        queue.open()
    queue.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"address": "nowhere"}, "no address"),
        ({"address": "a:1,b:99999"}, "no address"),
        ({"settings": {"db": "5"}}, "db is no setting of NATS: there are max_msgs, max_bytes, stream"),
        ({"settings": {"max_msgs": "-1"}}, "whole number"),
        ({"compression": "lz4"}, "--compression"),
        ({"mechanism": "PLAIN"}, "--sasl"),
        ({"exactly_once": False}, "at-least-once"),
        ({"tls_ca": "/none.pem"}, r"TLS: /none\.pem cannot be read"),
    ],
)
def test_what_cannot_be(given: dict[str, object], says: str) -> None:
    """Each is refused before anything is sent, by its name."""
    connection = kinds.QueueConnection(**{"address": "127.0.0.1:1", "reader": "s/none", **given})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        kinds.make("nats", connection)
