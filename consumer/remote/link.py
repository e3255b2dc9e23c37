"""Link: calls to one server of Arrow Flight, and what may happen to them.

A call runs in a thread, because one that waits in gRPC lets no signal's handler run: Ctrl-C would wait for the answer. The client that asked waits for
the thread instead, on a queue, which a signal's handler (or another thread) may wake with `wake`. A call that no client waits for any more is
canceled, and its answer thrown away.

After a failure the whole client is made again: the channel of the old one waits up to two minutes until it tries to connect again.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
import weakref
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import flight

from shmstore.consumer.remote.address import StoreAddress
from shmstore.consumer.remote.protocol import Request, pack, unpack, unpack_error
from shmstore.errors import StoreError, StoreUnreachable

ACTION_SECONDS: Final = 30.0  # until an action is answered
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]  # a new client is a new connection
_links: weakref.WeakSet[Link] = weakref.WeakSet()


class RemoteLost(Exception):
    """A call was not answered, and whether it was carried out is unknown."""


class Woken(Exception):
    """A client ended the wait for an answer."""


class LinkAnswer(NamedTuple):
    """What DoGet gave: its schema's metadata, that of its first message, and its record batches."""

    schema: pa.Schema
    metadata: Request
    batches: list[pa.RecordBatch]


class Link:
    """Calls to the server at `address`, one at a time but for `renew`."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._client: flight.FlightClient | None = None
        self._answers: queue.SimpleQueue[tuple[int, bool, Any]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._thread: _CallThread | None = None
        kind, secret = ("Bearer", address.password) if not address.user else ("Basic", _basic(address))
        self._headers = [(b"authorization", f"{kind} {secret}".encode())] if address.user or address.password else []
        _links.add(self)

    # ------------------------------------------------------------ calls

    def action(self, name: str, request: Request, seconds: float = ACTION_SECONDS) -> Request:
        """Return the answer to an action. Raises the server's error, and `RemoteLost`."""
        return self._called(lambda thread: self._action(name, request, seconds), seconds + 1, wakes=False)  # type: ignore[no-any-return]

    def get(self, ticket: Request, seconds: float, *, wakes: bool = False) -> LinkAnswer:
        """Return what `ticket` gives. Raises the server's error, `RemoteLost` where nothing comes for `seconds`, and `Woken` if it `wakes`."""
        return self._called(lambda thread: self._get(ticket, thread), seconds, wakes=wakes)  # type: ignore[no-any-return]

    def stream(self, ticket: Request, seconds: float) -> Iterator[pa.RecordBatch]:
        """Yield the record batches that `ticket` gives as they come. Raises as `get`."""

        def begin(thread: _CallThread) -> flight.FlightStreamReader:
            thread.reader = self._opened(ticket)
            return thread.reader

        reader = self._called(begin, seconds, wakes=False)
        while (batch := self._called(lambda _: _following(reader), seconds, wakes=False)) is not None:
            yield batch

    def renew(self, session: str) -> None:
        """Say that the client lives; from any thread. Nothing is reported of a failure: the next call finds it."""
        with suppress(Exception):
            self._action("renew", {"session": session}, ACTION_SECONDS)

    def wake(self) -> None:
        """End a wait for an answer. From any thread, and from a signal's handler: the queue's `put` may interrupt its `get`."""
        self._answers.put((-1, False, None))

    def pause(self, seconds: float, *, wakes: bool) -> None:
        """Wait. Raises `Woken`, if it `wakes`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                if self._answers.get(timeout=left)[0] < 0 and wakes:
                    raise Woken

    def reset(self) -> None:
        """Connect again with the next call."""
        self._abandon()
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()

    def close(self) -> None:
        """End what still runs. Idempotent."""
        thread = self._thread
        self.reset()
        if thread is not None:
            thread.join(1.0)

    # ------------------------------------------------------------ in the thread

    def _connected(self) -> flight.FlightClient:
        client = self._client
        if client is None:
            roots = {"tls_root_certs": self._address.roots} if self._address.roots is not None else {}
            self._client = client = flight.FlightClient(self._address.location, generic_options=_OPTIONS, **roots)
        return client

    def _action(self, name: str, request: Request, seconds: float) -> Request:
        options = flight.FlightCallOptions(timeout=seconds, headers=self._headers)
        answers = self._connected().do_action(flight.Action(name, pack(request)), options)
        return unpack(next(iter(answers)).body.to_pybytes())

    def _get(self, ticket: Request, thread: _CallThread) -> LinkAnswer:
        thread.reader = reader = self._opened(ticket)
        if thread.abandoned:  # meanwhile
            reader.cancel()
        metadata: Request = {}
        batches = []
        try:
            while True:
                chunk = reader.read_chunk()
                thread.heard = time.monotonic()
                if chunk.app_metadata is not None:
                    metadata = unpack(chunk.app_metadata.to_pybytes())
                batches.append(chunk.data)
        except StopIteration:
            return LinkAnswer(reader.schema, metadata, batches)
        finally:
            thread.reader = None

    def _opened(self, ticket: Request) -> flight.FlightStreamReader:
        return self._connected().do_get(flight.Ticket(pack(ticket)), flight.FlightCallOptions(headers=self._headers))

    # ------------------------------------------------------------ around it

    def _called(self, call: Callable[[_CallThread], Any], seconds: float, *, wakes: bool) -> Any:
        thread = self._thread
        if thread is None:
            self._thread = thread = _CallThread(self._answers)
        number = next(self._numbers)
        thread.begin(number, call)
        try:
            while True:
                left = thread.heard + seconds - time.monotonic()
                try:
                    found, done, answer = self._answers.get(timeout=max(0.0, left))
                except queue.Empty:
                    if thread.heard + seconds > time.monotonic():  # a part of a large answer has come
                        continue
                    raise RemoteLost(f"no answer for {seconds:.0f} s") from None
                if found < 0 and wakes:
                    raise Woken
                if found == number:
                    break
        except BaseException:
            self._abandon()
            raise
        if done:
            return answer
        raise self._translated(answer) from None

    def _abandon(self) -> None:
        """No client waits for the answer of the thread any more: it ends, and another one takes the next call."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.abandon()

    def _translated(self, error: BaseException) -> BaseException:
        """The error that an error of Flight means."""
        if isinstance(error, flight.FlightError):
            found = unpack_error(error.extra_info or b"")
            if found is not None:
                return found
            text = str(error).partition(". gRPC client debug context")[0].partition("; last error")[0]
            if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
                return StoreError(f"{self._address.location} refused the login: {text}")
            return RemoteLost(text)
        if isinstance(error, pa.ArrowException | OSError | StopIteration):
            return RemoteLost(str(error).partition(". gRPC client debug context")[0])
        return error

    def unreachable(self, error: RemoteLost) -> StoreUnreachable:
        """The error of a server that cannot be reached."""
        where = self._address.location
        return StoreUnreachable(
            f"no answer from {where}: {error}; is `shmstore serve --flight` running there, on this port, "
            f"{'with TLS (and its certificate in SHMSTORE_FLIGHT_CA)' if self._address.tls else 'without TLS (else grpc+tls://)'}?"
        )


class _CallThread(threading.Thread):
    """Carries out one call after another, until it is abandoned."""

    def __init__(self, answers: queue.SimpleQueue[tuple[int, bool, Any]]) -> None:
        super().__init__(name="shmstore-flight", daemon=True)
        self.reader: flight.FlightStreamReader | None = None
        self.heard = 0.0
        self.abandoned = False
        self._answers = answers
        self._calls: queue.SimpleQueue[tuple[int, Callable[[_CallThread], Any]] | None] = queue.SimpleQueue()
        self.start()

    def begin(self, number: int, call: Callable[[_CallThread], Any]) -> None:
        """Carry out `call`, and put its outcome into the answers as (number, whether it returned, what it returned or raised)."""
        self.heard = time.monotonic()
        self._calls.put((number, call))

    def abandon(self) -> None:
        """End what runs, then the thread."""
        self.abandoned = True  # before the look at the reader: one that comes later looks at this
        self._calls.put(None)
        reader = self.reader
        if reader is not None:
            with suppress(Exception):
                reader.cancel()

    def run(self) -> None:
        """Carry out calls."""
        while (found := self._calls.get()) is not None:
            number, call = found
            try:
                self._answers.put((number, True, call(self)))
            except BaseException as error:
                self._answers.put((number, False, error))


def _following(reader: flight.FlightStreamReader) -> pa.RecordBatch | None:
    try:
        return reader.read_chunk().data
    except StopIteration:
        return None


def _basic(address: StoreAddress) -> str:
    return b64encode(f"{address.user}:{address.password}".encode()).decode()


@atexit.register
def _end() -> None:
    """A thread that is in gRPC when the interpreter ends would end the process with an abort."""
    for link in list(_links):
        link.close()
