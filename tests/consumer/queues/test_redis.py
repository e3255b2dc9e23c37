"""Redis Streams as a queue (consumer/queues/redis_streams.py, `shmstore queue --kind redis`): a real server, kills, logins, what it refuses."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from shmstore import EventStore
from shmstore.consumer.queues import kinds
from shmstore.consumer.queues.queue import Mark, Message, QueueRefused, QueueUnreachable
from shmstore.consumer.queues.redis_streams import PROGRESS, RedisStreams
from shmstore.event import EventType, Row
from tests.consumer.queues.reading import added, entries
from tests.consumer.queues.senders import send, wait_for
from tests.consumer.queues.test_sender import inserts, transaction
from tests.servers.redis import RedisServer, redis_server

pytestmark = pytest.mark.usefixtures("state")


def test_what_an_entry_holds(log_store: EventStore, redis_there: RedisServer) -> None:
    """Key, value and headers as fields; a delete's tombstone has no value; ``maxlen`` trims."""
    topic = f"{log_store.name}.shop.orders"
    log_store.put(transaction(0, inserts(1)))
    log_store.put(transaction(1, [Row((1, "note 1"), None)], EventType.DELETE))
    send(log_store.name, "redis", redis_there.address)
    inserted, deleted, tombstone = entries(redis_there, topic)[0]
    assert json.loads(inserted[b"key"]) == {"id": 1}
    assert json.loads(inserted[b"value"])["after"] == {"id": 1, "note": "note 1"}
    assert inserted[b"shmstore.position"].startswith(b"binlog.000001:")
    assert json.loads(deleted[b"value"])["op"] == "delete"
    assert tombstone[b"key"] == inserted[b"key"]
    assert b"value" not in tombstone
    log_store.put(transaction(2, inserts(*range(2, 2000))))
    send(log_store.name, "redis", redis_there.address, "--set", "maxlen=100")
    assert 100 <= len(entries(redis_there, topic)[0]) < 400


def test_a_name_that_is_no_stream(redis_there: RedisServer, store_name: str) -> None:
    """It is refused before anything is sent; where it becomes one in between, the mark goes back, so that nothing is lost."""
    taken, mark = f"{store_name}-taken", Mark(1, 5)
    with redis.Redis(port=redis_there.port) as client:
        client.set(taken, "x")
        queue = RedisStreams(redis_there.address, f"s/{store_name}")
        assert queue.open() is None
        queue.send([Message(f"{store_name}-a", b"k", b"1")], mark)
        with pytest.raises(QueueRefused, match=rf"{taken} is there, and is a string, no stream"):
            queue.send([Message(f"{store_name}-a", b"k", b"2"), Message(taken, b"k", b"2")], Mark(1, 6))
        assert queue.open() == mark
        client.delete(taken)
        queue.send([Message(taken, b"k", b"2")], Mark(1, 6))
        client.delete(taken)
        client.set(taken, "x")
        with pytest.raises(QueueRefused, match="WRONGTYPE"):
            queue.send([Message(taken, b"k", b"3")], Mark(1, 7))
        assert queue.open() == Mark(1, 6)
        assert [each[b"value"] for each in entries(redis_there, f"{store_name}-a")[0]] == [b"1"]
        queue.close()


def test_a_server_that_is_full(store_name: str) -> None:
    """Nothing of a batch is in, and it may be tried again: where there is room, it goes."""
    with redis_server("--maxmemory", "3mb") as server, redis.Redis(port=server.port) as client:
        queue = RedisStreams(server.address, "s/full")
        some = [Message(store_name, b"k", os.urandom(1000)) for _ in range(400)]
        queue.open()
        sent = (queue.send(some, Mark(1, number)) for number in range(20))
        with pytest.raises(QueueUnreachable, match="maxmemory"):
            list(sent)
        mark = queue.open()
        assert mark is not None
        assert client.xlen(store_name) == 400 * (mark.sequence + 1)
        client.config_set("maxmemory", "100mb")
        queue.send(some, Mark(1, mark.sequence + 1))
        assert client.xlen(store_name) == 400 * (mark.sequence + 2)
        queue.close()


def test_a_replica_takes_over(store_name: str) -> None:
    """What it did not have yet is lost with its mark: it is sent again. A replica takes nothing before, and the line says what to do."""
    some = [[Message(store_name, b"k", b"%d" % number)] for number in range(3)]
    with redis_server() as first, redis_server("--replicaof", "127.0.0.1", str(first.port)) as second:
        queue = RedisStreams(first.address, "s/replica")
        queue.open()
        queue.send(some[0], Mark(1, 0))
        with redis.Redis(port=second.port) as client:
            wait_for(lambda: client.hget(PROGRESS, "s/replica") == Mark(1, 0).to_json())
            with pytest.raises(QueueUnreachable, match="is a replica, which takes no writes: give the address of the primary"):
                RedisStreams(second.address, "s/replica").open()
            client.replicaof("NO", "ONE")
            queue.send(some[1], Mark(1, 1))
            first.stop()
            with pytest.raises(QueueUnreachable):
                queue.send(some[2], Mark(1, 2))
            client.config_set("port", first.port)  # it has the address from here on
        assert queue.open() == Mark(1, 0)
        queue.send([*some[1], *some[2]], Mark(1, 2))
        queue.close()
        assert [value for _, value in added(first, store_name)[0]] == [b"0", b"1", b"2"]


def test_a_server_that_lost_what_it_had(redis_there: RedisServer, store_name: str) -> None:
    """It is no second instance: trying again helps."""
    queue = RedisStreams(redis_there.address, f"s/{store_name}")
    queue.open()
    queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))
    with redis.Redis(port=redis_there.port) as client:
        client.delete(f"{PROGRESS}:s/{store_name}")
        client.hdel(PROGRESS, f"s/{store_name}")
    with pytest.raises(QueueUnreachable, match="lost what it had"):
        queue.send([Message(store_name, b"k", b"2")], Mark(1, 2))
    assert queue.open() is None
    queue.close()


@pytest.mark.parametrize(
    "why", ["MISCONF Errors writing to the AOF file: No space left on device", "NOREPLICAS Not enough good replicas"]
)
def test_what_passes(redis_there: RedisServer, store_name: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, and replicas that are away: it is tried again."""
    queue = RedisStreams(redis_there.address, f"s/{store_name}")
    queue.open()

    def refuse(*words: object, **more: object) -> None:
        raise redis.ResponseError(why)

    monkeypatch.setattr(redis.client.Pipeline, "execute", refuse)
    with pytest.raises(QueueUnreachable, match=why.split(" ", maxsplit=1)[0]):
        queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))


def test_a_link_that_breaks_is_no_second_instance(redis_there: RedisServer, store_name: str) -> None:
    """Wherever in a batch it is lost: trying again may help, and the mark says whether it came in."""
    queue = RedisStreams(redis_there.address, f"s/{store_name}")
    with redis.Redis(port=redis_there.port) as client:
        queue.open()
        queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))
        send_command = redis.Connection.send_packed_command

        for broken in range(6):

            def breaks(self: redis.Connection, command: object, check_health: bool = True, at: list[int] = [broken]) -> None:  # noqa: B006
                at[0] -= 1
                if at[0] == -1:
                    self._sock.close()  # type: ignore[union-attr]
                send_command(self, command, check_health)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(redis.Connection, "send_packed_command", breaks)
                with suppress(QueueUnreachable):
                    queue.send([Message(store_name, b"k", b"%d" % broken)], Mark(1, 10 + broken))
            mark = queue.open()
            there = [fields[b"value"] for _, fields in client.xrange(store_name)]
            assert (there[-1] == b"%d" % broken and mark == Mark(1, 10 + broken)) or mark != Mark(1, 10 + broken)
    queue.close()


def test_logins_and_rights(log_store: EventStore, tmp_path: Path) -> None:
    """The right password sends; a wrong one, and a user without rights, end with a line that says so, without the password."""
    log_store.put(transaction(0, inserts(1, 2)))
    secret = tmp_path / "secret"
    secret.write_text("let-me-in\n")
    with redis_server("--requirepass", "let-me-in") as server:
        login = ("--user", "default", "--password-file", str(secret))
        send(log_store.name, "redis", server.address, *login)
        assert len(entries(server, f"{log_store.name}.shop.orders", password="let-me-in")[0]) == 2
        said = send(log_store.name, "redis", server.address, code=2)
        assert "it wants a login: give --user" in said
        secret.write_text("wrong-one")
        said = send(log_store.name, "redis", server.address, *login, code=2)
        assert "refuses" in said
        assert "wrong-one" not in said
        with redis.Redis(port=server.port, password="let-me-in") as client:
            client.acl_setuser("weak", enabled=True, passwords=["+weak"], keys=["*"], commands=["+get", "+incr", "+hget"])
        said = send(log_store.name, "redis", server.address, "--user", "weak", SHMSTORE_QUEUE_PASSWORD="weak", code=2)
        assert "needs XADD" in said


def test_a_mark_that_is_none(redis_there: RedisServer, store_name: str) -> None:
    """What another program wrote there stops with a line."""
    with redis.Redis(port=redis_there.port) as client:
        client.hset(PROGRESS, f"s/{store_name}", "hello")
    with pytest.raises(ValueError, match=r"hello.* is not a mark"):
        RedisStreams(redis_there.address, f"s/{store_name}").open()


def test_nothing_listens() -> None:
    """`open` says so; `run` would try again."""
    with pytest.raises(QueueUnreachable, match=r"127\.0\.0\.1:1 does not answer"):
        RedisStreams("127.0.0.1:1", "s/none").open()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"address": "nowhere"}, "no address"),
        ({"address": "h:99999"}, "no address"),
        ({"settings": {"linger.ms": "5"}}, "linger.ms is no setting of Redis: there are db, maxlen"),
        ({"settings": {"db": "-1"}}, "whole number"),
        ({"compression": "lz4"}, "--compression"),
        ({"mechanism": "PLAIN"}, "--sasl"),
        ({"replication": 3}, "--new-replication"),
        ({"exactly_once": False}, "at-least-once"),
        ({"address": "/run/redis.sock", "tls": True}, "speaks no TLS"),
    ],
)
def test_what_cannot_be(given: dict[str, object], says: str) -> None:
    """Each is refused before anything is sent, by its name."""
    connection = kinds.QueueConnection(**{"address": "127.0.0.1:1", "reader": "s/none", **given})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        kinds.make("redis", connection)
