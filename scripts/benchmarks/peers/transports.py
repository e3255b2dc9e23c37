"""What moves bytes from one process to another: the store and its peers, alike.

A transport is made with the batch size in events. `sender()` returns ``send(payloads, blob)``, where `blob` is the same
events back to back; `receiver()` returns ``receive() -> how many events came``, which blocks. `blob` says that a batch
travels as one opaque message, in which single events cannot be addressed; otherwise every event stays addressable.

Bytes in, bytes out: a receiver ends with the bytes in Python. Where a transport can also give a view of its memory, that is a
subject of its own, "views", whose reader copies nothing and looks at no byte.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from shmstore import SLOT, EventStore
from tests.servers.packages import ServerUnavailable
from tests.servers.redis import redis_command

EVENT = 200


class Shmstore:
    """put(list) / get, every event addressable afterwards.

    The store has space for 8 MiB, half of faster-fifo's: what is used again while it is still in the processor's cache is faster,
    for all of them.
    """

    name, blob = "shmstore", False

    def __init__(self, batch: int) -> None:
        self.store_name = f"bench-{os.getpid()}-{batch}"
        self.batch = batch
        self.store = EventStore.create(self.store_name, capacity=32768, memory_unit=256, log=False)
        self.store.subscribe("reader").close()

    def sender(self) -> Any:
        store = EventStore.attach(self.store_name)
        put = store.put
        return (lambda payloads, blob: put(blob)) if self.batch == 1 else (lambda payloads, blob: put(payloads))

    def reader(self) -> Any:
        return EventStore.attach(self.store_name).subscribe("reader")

    def receiver(self) -> Any:
        subscription = self.reader()
        get, ack, limit = subscription.get, subscription.ack, self.batch

        def receive() -> Any:
            batch = get(limit_events=limit)
            bytes(batch.raw)
            ack(batch)
            return len(batch)

        return receive

    def close(self) -> None:
        self.store.close()
        EventStore.unlink(self.store_name)


class ShmstoreSpinning(Shmstore):
    """A reader that looks for events, with a processor of its own, before it sleeps."""

    name, blob = "shmstore, spinning", False

    def reader(self) -> Any:
        subscription = super().reader()
        subscription.spin = 0.01
        return subscription


class ShmstoreEncoded(Shmstore):
    """put_encoded / Batch.raw: the events of a batch back to back, with their slots."""

    name, blob = "shmstore-encoded", False

    def sender(self) -> Any:
        import numpy as np

        store = EventStore.attach(self.store_name)
        slots = np.zeros(self.batch, SLOT)
        slots["size"] = EVENT
        slots["rows"] = 1
        return lambda payloads, blob: store.put_encoded(blob, slots)


class ShmstoreViews(ShmstoreEncoded):
    """put_encoded / Batch.raw as the view that it is."""

    name, blob = "shmstore-encoded, views", False

    def receiver(self) -> Any:
        subscription = self.reader()
        get, ack = subscription.get, subscription.ack

        def receive() -> Any:
            batch = get()
            _ = batch.raw
            ack(batch)
            return len(batch)

        return receive


class Queue:
    name, blob = "multiprocessing.Queue", True

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.queue: Any = multiprocessing.get_context("fork").Queue(16384 // batch + 8)

    def sender(self) -> Any:
        queue = self.queue
        return lambda payloads, blob: queue.put(blob)

    def receiver(self) -> Any:
        queue = self.queue
        return lambda: len(queue.get()) // EVENT

    def close(self) -> None:
        self.queue.close()


class Pipe:
    name, blob = "multiprocessing.Pipe", True

    def __init__(self, batch: int) -> None:
        self.ends: tuple[Connection, Connection] = multiprocessing.get_context("fork").Pipe(duplex=False)

    def sender(self) -> Any:
        end = self.ends[1]
        return lambda payloads, blob: end.send_bytes(blob)

    def receiver(self) -> Any:
        end = self.ends[0]
        return lambda: len(end.recv_bytes()) // EVENT

    def close(self) -> None:
        for end in self.ends:
            end.close()


class FasterFifo:
    name, blob = "faster-fifo", True

    def __init__(self, batch: int) -> None:
        import faster_fifo

        self.queue = faster_fifo.Queue(16 * 2**20, loads=bytes, dumps=_identity)

    def sender(self) -> Any:
        put = self.queue.put
        return lambda payloads, blob: put(blob, timeout=60)

    def receiver(self) -> Any:
        get = self.queue.get
        return lambda: len(get(timeout=60)) // EVENT

    def close(self) -> None:
        self.queue.close()


class FasterFifoMany(FasterFifo):
    """put_many / get_many: every event a message."""

    name, blob = "faster-fifo many", False

    def sender(self) -> Any:
        put = self.queue.put_many
        return lambda payloads, blob: put(payloads, timeout=60)

    def receiver(self) -> Any:
        get = self.queue.get_many
        return lambda: len(get(timeout=60, max_messages_to_get=10000))


def _identity(value: Any) -> Any:
    return value


class Zmq:
    name, blob = "pyzmq", True

    def __init__(self, batch: int) -> None:
        self.folder = tempfile.mkdtemp(prefix="bench-zmq-")
        self.address = f"ipc://{self.folder}/s"

    def _socket(self, kind: str) -> Any:
        import zmq

        socket = zmq.Context().socket(getattr(zmq, kind))
        socket.set_hwm(16384)
        return socket

    def sender(self) -> Any:
        socket = self._socket("PUSH")
        socket.connect(self.address)
        return lambda payloads, blob: socket.send(blob, copy=True)

    def receiver(self) -> Any:
        socket = self._socket("PULL")
        socket.bind(self.address)
        return lambda: len(socket.recv()) // EVENT

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Iceoryx:
    """iceoryx2: the reader polls, as its Python binding has no blocking receive on a subscriber."""

    name, blob = "iceoryx2", True

    def __init__(self, batch: int) -> None:
        import iceoryx2  # noqa: F401

        self.service = f"bench/{os.getpid()}/{batch}/{time.monotonic_ns()}"
        self.size = batch * EVENT

    def _service(self) -> Any:
        import ctypes

        import iceoryx2 as iox2

        iox2.set_log_level(iox2.LogLevel.Fatal)
        node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
        slice_type = iox2.Slice[ctypes.c_uint8]
        builder = node.service_builder(iox2.ServiceName.new(self.service)).publish_subscribe(slice_type)
        return node, builder.subscriber_max_buffer_size(256).enable_safe_overflow(False).open_or_create()

    def sender(self) -> Any:
        import ctypes

        import iceoryx2 as iox2

        node, service = self._service()
        builder = service.publisher_builder().initial_max_slice_len(self.size)
        publisher = builder.backpressure_strategy(iox2.BackpressureStrategy.RetryUntilDelivered).create()
        deadline = time.monotonic() + 10
        while service.dynamic_config.number_of_subscribers == 0 and time.monotonic() < deadline:
            time.sleep(0.001)

        def send(payloads: list[bytes], blob: bytes, keep: Any = node) -> None:
            sample = publisher.loan_slice_uninit(len(blob))
            ctypes.memmove(sample.payload_ptr, blob, len(blob))
            sample.assume_init().send()

        return send

    def receiver(self, out: Any = bytes) -> Any:
        node, service = self._service()
        subscriber = service.subscriber_builder().create()

        def receive(keep: Any = node) -> int:
            while (sample := subscriber.receive()) is None:
                pass
            n = memoryview(out(sample.payload().as_memory_view())).nbytes // EVENT
            sample.delete()
            return n

        return receive

    def close(self) -> None:
        for left in glob.glob("/dev/shm/iox2_*"):  # a node that ended without its clean-up
            with suppress(OSError):
                os.unlink(left)


class IceoryxViews(Iceoryx):
    """Its samples as the views that they are."""

    name, blob = "iceoryx2, views", True

    def receiver(self, out: Any = _identity) -> Any:
        return super().receiver(out)


class Redis:
    """Redis streams over a Unix socket; a batch is a pipeline of XADD, read with XREAD COUNT."""

    name, blob = "redis", False

    def __init__(self, batch: int) -> None:
        import redis  # noqa: F401

        try:
            command = redis_command()
        except ServerUnavailable as error:
            raise ImportError(f"no redis-server: {str(error).splitlines()[0]}") from error
        self.folder = tempfile.mkdtemp(prefix="bench-redis-")
        self.batch = batch
        options = ["--port", "0", "--unixsocket", f"{self.folder}/s", "--save", "", "--appendonly", "no", "--dir", self.folder]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not os.path.exists(f"{self.folder}/s"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise ImportError(f"{' '.join(command)} does not start here")
            time.sleep(0.02)

    def _client(self) -> Any:
        import redis

        return redis.Redis(unix_socket_path=f"{self.folder}/s")

    def sender(self) -> Any:
        client = self._client()

        def send(payloads: list[bytes], blob: bytes) -> None:
            pipe = client.pipeline(transaction=False)
            for payload in payloads:
                pipe.xadd("s", {"e": payload}, maxlen=200_000, approximate=True)
            pipe.execute()

        return send

    def receiver(self) -> Any:
        client, last = self._client(), [b"0"]

        def receive() -> int:
            while True:
                found = client.xread({"s": last[0]}, count=max(self.batch, 1), block=1000)
                if found:
                    entries = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
                    last[0] = entries[-1][0]
                    return len(entries)

        return receive

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


ALL = (Shmstore, ShmstoreEncoded, Queue, Pipe, FasterFifo, FasterFifoMany, Zmq, Iceoryx, Redis, ShmstoreViews, IceoryxViews)
BATCHES = (ShmstoreEncoded, ShmstoreViews, IceoryxViews)  # of which single events would say nothing more
