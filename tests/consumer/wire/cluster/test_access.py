"""shmstore.consumer.wire.cluster.zookeeper: TLS and a login, at a real ZooKeeper that wants both."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from shmstore.consumer.wire import CanalSettings
from shmstore.consumer.wire.cluster.cursor import ClusterCursor
from shmstore.consumer.wire.cluster.zookeeper import Access, Registration
from shmstore.consumer.wire.protocol.connection_state import Client
from tests.certificates import self_signed
from tests.consumer.wire.cluster.hosts import wait_for
from tests.servers.zookeeper import Zookeeper, zookeeper

pytestmark = pytest.mark.server
SESSION = 1.5
LOGIN = "canal:s3cret"
ROOT = "/otter/canal/destinations"


def certificate(folder: Path, name: str) -> str:
    """A certificate of 127.0.0.1 and its key, in one PEM file."""
    made, key = self_signed(folder, name)
    Path(made).write_text(Path(key).read_text() + Path(made).read_text())
    return made


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return certificate(tmp_path_factory.mktemp("zookeeper-tls"), "here")


@pytest.fixture(scope="module")
def server(pem: str) -> Iterator[Zookeeper]:
    with zookeeper(Path(pem)) as running:
        yield running


def registered(port: int, destination: str, access: Access, number: int = 0) -> Registration:
    registration = Registration(f"127.0.0.1:{port}", [destination], SESSION, lambda _: "", lambda *_: None, access)
    registration.start(("127.0.0.1", 21000 + number))
    return registration


def test_what_a_server_writes_is_its_own(server: Zookeeper, pem: str, plain_client: Any) -> None:
    """Over TLS and with a login: who is active and the cursors are read by all and written by the login alone, and Canal's clients, who have
    none, make their nodes as ever. A server of the same login continues from the cursor."""
    access = Access(pem, pem, pem, LOGIN)
    client = Client("d1", 1001)
    with closing(registered(server.secure_port, "d1", access)) as one:
        wait_for(lambda: one.serves("d1"), "it is active")
        one.begin(client, ClusterCursor("binlog.000001", 100))
        one.subscribed(client, ".*")
        assert plain_client.get(f"{ROOT}/d1/running")[0] == b'{"active":true,"address":"127.0.0.1:21000"}'
        for path in ("running", "1001/cursor", "1001/filter"):
            assert plain_client.get(f"{ROOT}/d1/{path}")[0]
            with pytest.raises(NoAuthError):
                plain_client.set(f"{ROOT}/d1/{path}", b"{}")
        plain_client.create(f"{ROOT}/d1/1001/running", b"{}", ephemeral=True)
        one.acked(client, ClusterCursor("binlog.000001", 200))
        wait_for(lambda: (found := one.peek(client)) is not None and found.offset == 200, "the cursor")
    with closing(registered(server.secure_port, "d1", access, 1)) as two:
        wait_for(lambda: two.serves("d1"), "the next is active")
        found = two.read(client)
        assert found is not None
        assert found.offset == 200
        two.acked(client, ClusterCursor("binlog.000001", 300))
        wait_for(lambda: (found := two.peek(client)) is not None and found.offset == 300, "the cursor")


def test_another_login_is_told(server: Zookeeper, pem: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server with another login cannot move the first one's cursors, and says what to do; no secret is in that."""
    client = Client("d2", 1001)
    with closing(registered(server.secure_port, "d2", Access(pem, pem, pem, LOGIN))) as one:
        wait_for(lambda: one.serves("d2"), "it is active")
        one.begin(client, ClusterCursor("binlog.000001", 100))
    with closing(registered(server.port, "d2", Access(login="canal:other"), 1)) as two:
        wait_for(lambda: two.serves("d2"), "the next is active")
        assert two.read(client) is not None
        with caplog.at_level(logging.WARNING, "shmstore.serve"):
            two.acked(client, ClusterCursor("binlog.000001", 200))
            wait_for(lambda: "belongs to another login" in caplog.text, "the reason")
        found = two.peek(client)
        assert found is not None
        assert found.offset == 100
    assert "other" not in caplog.text.replace("another", "")
    assert "s3cret" not in repr(Access(login=LOGIN))


def test_another_certificate_is_no_zookeeper(
    server: Zookeeper, pem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A ZooKeeper that the CA did not sign is not spoken to; nor does it speak to who shows no certificate, or no TLS."""
    other = certificate(tmp_path, "other")
    wrong = [Access(other, pem, pem), Access(pem), Access()]
    with caplog.at_level(logging.WARNING, "shmstore.serve"):
        for number, access in enumerate(wrong):
            caplog.clear()
            with closing(registered(server.secure_port, "d3", access, number)) as one:
                wait_for(lambda: "does not answer" in caplog.text, "the warning")
                assert not one.serves("d3")


@pytest.mark.parametrize(
    "options",
    [
        {"zookeeper_cert": "a"},
        {"zookeeper_cert": "a", "zookeeper_key": "b"},
        {"zookeeper_ca": "a", "zookeeper_key": "b"},
        {"zookeeper_login": "user"},
        {"zookeeper_login": ":password"},
    ],
)
def test_half_of_it_is_refused(options: dict[str, str]) -> None:
    """A certificate without its key or a CA, and a login without a user or a password."""
    with pytest.raises(ValueError, match="ZooKeeper"):
        CanalSettings(stores=("a",), zookeeper="127.0.0.1:2181", **options)  # type: ignore[arg-type]
