"""What the tests talk through: a server in a thread, a plain-socket client, the PyPI clients in processes of their own."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.consumer.wire import CanalSettings
from shmstore.consumer.wire.protocol import messages as m
from shmstore.consumer.wire.server.server import CanalServer

TABLE = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "int", nullable=False),
        Column("name", "varchar", size=80, charset="utf8mb4"),
        Column("note", "text", charset="utf8mb4"),
    ),
    (0,),
)
OTHER = TABLE._replace(table="audit")


def events(ids: range | list[int], table: TableSchema = TABLE, offset: int = 1000) -> list[Event]:
    """One transaction, begin, a single-row event an id, end."""
    here = itertools.count(offset, 100)

    def event(entry: EntryType, type_: EventType = EventType.NONE, **more: Any) -> Event:
        return Event(entry, type_, Position("binlog.000001", next(here)), 1700000000000, 1, 50, **more)

    rows = [event(EntryType.ROWS, EventType.INSERT, table=table, rows=(Row(None, (i, f"näme {i}", None)),)) for i in ids]
    return [event(EntryType.BEGIN, props={"thread_id": "7"}), *rows, event(EntryType.END, props={"xid": "99"})]


class ServerThread:
    """A server in a thread of this process, so that tests can look into it."""

    def __init__(self, settings: CanalSettings) -> None:
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self.loop = asyncio.new_event_loop()
        self.server = CanalServer(settings)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(30)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self.server.start())
        except BaseException as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        self.loop.run_forever()

    @property
    def port(self) -> int:
        return self.server.address[1]

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.call(self.server.close())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(30)
            self.loop.close()


class RawClient:
    """A canal client as plain as can be, for what the packaged ones cannot be made to do."""

    def __init__(self, port: int, destination: str, client_id: int | str = 1001, *, login: bool = True, **auth: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.name = {"destination": destination, "client_id": str(client_id)}
        self.handshake = m.Packet.FromString(self.read())
        if login:
            assert self.authenticate(**auth).error_code == 0

    def read(self) -> bytes:
        head = self._exactly(4)
        return self._exactly(struct.unpack(">i", head)[0])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the server closed the connection")
            data += chunk
        return data

    def send(self, kind: int, message: Any = None) -> None:
        body = b"" if message is None else message.SerializeToString()
        packet = m.Packet(type=kind, body=body).SerializeToString()
        self.socket.sendall(struct.pack(">i", len(packet)) + packet)

    def receive(self) -> Any:
        packet = m.Packet.FromString(self.read())
        return {m.PacketType.ACK: m.Ack, m.PacketType.MESSAGES: m.Messages}[packet.type].FromString(packet.body)

    def ask(self, kind: int, message: Any = None) -> Any:
        self.send(kind, message)
        return self.receive()

    def authenticate(self, **auth: Any) -> Any:
        return self.ask(m.PacketType.CLIENTAUTHENTICATION, m.ClientAuth(**auth))

    def subscribe(self, filter: str = "") -> Any:
        return self.ask(m.PacketType.SUBSCRIPTION, m.Sub(**self.name, filter=filter))

    def unsubscribe(self) -> Any:
        return self.ask(m.PacketType.UNSUBSCRIPTION, m.Unsub(**self.name))

    def get(self, size: int = 1000, **options: Any) -> Any:
        return self.ask(m.PacketType.GET, m.Get(**self.name, fetch_size=size, **options))

    def ack(self, batch_id: int) -> None:
        self.send(m.PacketType.CLIENTACK, m.ClientAck(**self.name, batch_id=batch_id))

    def rollback(self, batch_id: int = 0) -> None:
        self.send(m.PacketType.CLIENTROLLBACK, m.ClientRollback(**self.name, batch_id=batch_id))

    def close(self) -> None:
        self.socket.close()


def entries(answer: Any) -> list[Any]:
    """The entries of a MESSAGES answer, parsed."""
    return [m.Entry.FromString(data) for data in answer.messages]


def ids(answer: Any) -> list[int]:
    """The first column of every row in a MESSAGES answer."""
    found = []
    for entry in entries(answer):
        if entry.entryType == 2:
            for row in m.RowChange.FromString(entry.storeValue).rowDatas:
                columns = row.afterColumns or row.beforeColumns
                found.append(int(columns[0].value))
    return found


class PackagedClient:
    """`canal-python` or `py3canal`, unmodified, in a process of its own: their generated code wants protobuf in pure Python."""

    def __init__(self, package: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("packaged_client.py")), package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        )

    def send(self, method: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConnectionError("the client's process ended")
        kind, value = json.loads(line)
        if kind == "error":
            raise RuntimeError(value)
        return value

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.send(method, **arguments)
            return self.receive()

        return call

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


def refused(answer: Any, code: int) -> str:
    """The text of an error answer, which must have `code`, one line and no stack trace."""
    assert isinstance(answer, m.Ack)
    assert answer.error_code == code
    assert answer.error_message
    assert "\n" not in answer.error_message
    assert "Traceback" not in answer.error_message
    return str(answer.error_message)


def wait_for(holds: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Wait until `holds`, or fail with `what`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)
