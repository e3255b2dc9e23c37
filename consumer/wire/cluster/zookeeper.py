"""A server's place in ZooKeeper, as Canal's servers have theirs: who is active, and the clients' cursors.

    /otter/canal/cluster/HOST:PORT                          ephemeral: a server
    /otter/canal/destinations/D/cluster/HOST:PORT           ephemeral: a server that can serve D
    /otter/canal/destinations/D/running                     ephemeral: the one that does, {"active":true,"address":"HOST:PORT"}
    /otter/canal/destinations/D/ID                          a client; below it cursor, filter, and the client's own running

Plan. One thread does all: it looks at the running nodes, makes them where there is none, and writes the cursors. That is also how it knows
that its session lives: ZooKeeper cannot have expired it before the session's timeout has passed since the sending of a request that
was answered. So after two thirds of that time without an answer this server is active no more, by its own clock, before another could be, and
whatever state the connection seems to be in; the third that is left is for what is under way. The clock continues while the host
sleeps.

A cursor is written on the condition that its node has the version that this server left, or found when it began to serve the client: of
two servers that both take themselves for the active one, the second to write is refused, and looks again whose the node is.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from shmstore import ProtocolError, ShmStoreError
from shmstore.consumer.serving.access import tls_context
from shmstore.consumer.wire.cluster.cursor import ClusterCursor
from shmstore.consumer.wire.protocol.connection_state import Client, shown

_ROOT: Final = "/otter/canal"
_TRUST: Final = 2 / 3  # of the session's timeout: for so long an answer is good
_LOOKS: Final = 6  # in a session's timeout
_NO_NODE: Final = -1  # version of a node that is not there
_T = TypeVar("_T")

_log = logging.getLogger("shmstore.serve")


def clock() -> float:
    """Seconds; they pass while the host sleeps, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def reached_at(host: str, zookeeper: str) -> str:
    """The address that others reach this server at: what it listens on, or where it listens everywhere, that of the way to ZooKeeper."""
    if host not in ("0.0.0.0", "::"):
        return host
    there, _, port = zookeeper.partition("/")[0].split(",")[0].partition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((there, int(port or 2181)))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ShmStoreError(
            f"no way to ZooKeeper at {there} ({error.strerror}): say where clients reach this server with --advertise"
        ) from error


class Access(NamedTuple):
    """How ZooKeeper is spoken to. `ca` (a PEM file) turns TLS on, `certificate` and `key` are what this server shows; `login` is
    USER:PASSWORD of ZooKeeper's digest scheme: with it, what this server writes no other client may write over."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    login: str = ""

    def __repr__(self) -> str:
        """Without the secret."""
        return f"Access(ca={self.ca!r}, certificate={self.certificate!r}, login={self.login.partition(':')[0]!r})"


class ZookeeperSilent(ProtocolError):
    """ZooKeeper did not answer in time."""


class Registration:
    """This server in ZooKeeper, from `start` to `close`.

    `timeout` is the session's, in seconds. `usable` says why a destination cannot be served here; empty where it can. `changed` is
    called in the registration's thread with a destination and whether it is active here.
    """

    def __init__(
        self,
        hosts: str,
        destinations: Iterable[str],
        timeout: float,
        usable: Callable[[str], str],
        changed: Callable[[str, bool], None],
        access: Access = Access(),  # noqa: B008  immutable
    ) -> None:
        self._hosts, self._timeout, self._access = hosts, timeout, access
        # What was made by one of the servers, all of which have the same login, every client may read, as Canal's clients do without one.
        self._acl = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE] if access.login else OPEN_ACL_UNSAFE
        self._destinations = tuple(destinations)
        self._usable, self._changed = usable, changed
        self._address = ""
        self._lock = threading.Lock()
        self._poked = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._client: Any = None
        #: Seconds of the session, as the server has granted them; 0 before it has.
        self._granted = 0.0
        #: The session in which the nodes were made, and until when it is known to live.
        self._session = 0
        self._good_until = 0.0
        #: Destination -> the session whose running node it has, and the node's own number: none has that twice.
        self._owned: dict[str, tuple[int, int]] = {}
        self._others: dict[str, str] = {}
        self._reported: dict[str, bool] = dict.fromkeys(self._destinations, False)
        self._refusals: dict[str, str] = {}
        self._dirty: dict[Client, ClusterCursor] = {}
        self._versions: dict[Client, int] = {}
        self._silent_since = clock()
        self._complained = False

    # ------------------------------------------------------------ for the server

    def start(self, address: tuple[str, int]) -> None:
        """Register under `address`, as soon as ZooKeeper answers, and continue trying. Raises `ValueError` for hosts that cannot be."""
        self._address = f"{address[0]}:{address[1]}"
        retry = KazooRetry(max_tries=-1, delay=0.1, max_delay=1.0, ignore_expire=True)
        quiet = logging.getLogger("shmstore.serve.zookeeper")
        quiet.setLevel(logging.ERROR)
        access = self._access
        if access.certificate and access.key:
            tls_context(
                access.certificate, access.key
            )  # kazoo would try forever, and OpenSSL ask for a passphrase on the terminal
        self._client = KazooClient(
            self._hosts,
            timeout=self._timeout,
            connection_retry=retry,
            logger=quiet,
            auth_data=[("digest", access.login)] if access.login else None,
            use_ssl=bool(access.ca),
            ca=access.ca or None,
            certfile=access.certificate or None,
            keyfile=access.key or None,
            check_hostname=bool(access.ca),
        )
        self._learn_timeout()
        self._client.add_listener(self._state_changed)
        self._client.start_async()
        self._thread = threading.Thread(target=self._run, name="zookeeper", daemon=True)
        self._thread.start()

    def _learn_timeout(self) -> None:
        """The server may grant a session less time than was asked for, and kazoo keeps to itself how much."""
        connection = self._client._connection
        connect = connection._connect

        def connected(*arguments: object) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*arguments)
            self._granted = read_timeout / 1000 * 3 / 2  # it reads for two thirds of it
            return read_timeout, connect_timeout

        connection._connect = connected

    def serves(self, destination: str) -> bool:
        """True while this server is the active one of `destination`, and no other client can be."""
        return self._owned.get(destination, (0, 0))[0] == self._session != 0 and clock() < self._good_until

    def term(self, destination: str) -> int:
        """A number that is another one each time this server becomes the active one; 0 while it is not."""
        return self._owned.get(destination, (0, 0))[1] if self.serves(destination) else 0

    def active_elsewhere(self, destination: str) -> str:
        """The address of the active server, as far as is known; empty where none is, or this one."""
        return self._others.get(destination, "")

    def read(self, client: Client) -> ClusterCursor | None:
        """The cursor of a client, which this server is to serve from here on; None where there is none. Blocks.

        Raises `ZookeeperSilent`, and `ProtocolError` where what exists is no cursor.
        """
        path = _cursor(client)
        try:
            self._wait(self._client.sync_async(path))
            data, stat = self._wait(self._client.get_async(path))
        except NoNodeError:
            self._versions[client] = _NO_NODE
            return None
        self._versions[client] = stat.version
        return ClusterCursor.decode(data) if data else None

    def acked(self, client: Client, cursor: ClusterCursor) -> None:
        """Let `cursor` be written soon, the newest of several."""
        with self._lock:
            self._dirty[client] = cursor
        self._poked.set()

    def begin(self, client: Client, cursor: ClusterCursor) -> None:
        """Write the first cursor of a client. Blocks until it is there. Raises `ZookeeperSilent`."""
        with suppress(NodeExistsError):
            self._create(_cursor(client), cursor.encode())
        self._versions[client] = 0

    def subscribed(self, client: Client, filter: str) -> None:
        """Let others see the client and its filter, as Canal does. Blocks. Raises `ZookeeperSilent`."""
        path = f"{_client(client)}/filter"
        with suppress(NodeExistsError):
            self._wait(self._client.ensure_path_async(_client(client)))
        try:
            self._wait(self._client.set_async(path, filter.encode()))
        except NoNodeError:
            with suppress(NodeExistsError):
                self._create(path, filter.encode())

    def forget(self, client: Client) -> None:
        """Remove a client and its cursor. Blocks. Raises `ZookeeperSilent`."""
        with self._lock:
            self._dirty.pop(client, None)
        self._remove(_client(client))

    def clients(self, destination: str) -> list[Client]:
        """The clients of a destination. Blocks. Raises `ZookeeperSilent`."""
        try:
            names = self._wait(self._client.get_children_async(_destination(destination)))
        except NoNodeError:
            return []
        return [Client(destination, int(name)) for name in names if name.lstrip("-").isdigit()]

    def peek(self, client: Client) -> ClusterCursor | None:
        """The cursor of a client that another server serves; None where there is none. Blocks. Raises as `read`."""
        try:
            data, _ = self._wait(self._client.get_async(_cursor(client)))
        except NoNodeError:
            return None
        return ClusterCursor.decode(data) if data else None

    def _remove(self, path: str) -> None:
        with suppress(NoNodeError):
            for child in self._wait(self._client.get_children_async(path)):
                self._remove(f"{path}/{child}")
            self._wait(self._client.delete_async(path))

    def close(self) -> None:
        """Write the cursors that are not yet, give everything up at once. Blocks."""
        self._stopping = True
        self._poked.set()
        if self._thread is not None:
            self._thread.join()
        if self._client is not None:
            self._client.stop()
            self._client.close()

    # ------------------------------------------------------------ the thread

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST:  # the nodes went with the session
            self._owned = {}
        self._poked.set()

    def _run(self) -> None:
        while True:
            stopping = self._stopping  # before the look: what was acked before that is written by it
            try:
                if self._client.client_state != KeeperState.CONNECTED or not self._granted:
                    raise ZookeeperSilent("no connection")
                self._look()
                self._note(None)
            except (KazooException, KazooTimeoutError, ZookeeperSilent) as error:
                self._note(error)
            except Exception:
                _log.exception("the registration in ZooKeeper failed")
                self._owned = {}
            self._report()
            if stopping:
                return
            pause = (self._granted or self._timeout) / _LOOKS
            left = self._good_until - clock()
            if any(self._reported.values()) and left > 0:
                pause = min(pause, left + 0.001)
            self._poked.wait(pause)
            self._poked.clear()

    def _note(self, error: BaseException | None) -> None:
        """Log when ZooKeeper has not answered for a while, and when it does again."""
        if error is None:
            if self._complained:
                _log.warning("ZooKeeper at %s answers again", self._hosts)
            self._silent_since, self._complained = clock(), False
        elif not self._complained and clock() - self._silent_since > (self._granted or self._timeout) / 3:
            why = error if isinstance(error.__cause__, NoAuthError) else type(error.__cause__ or error).__name__
            _log.warning("ZooKeeper at %s does not answer (%s)", self._hosts, why)
            self._complained = True

    def _report(self) -> None:
        for destination, before in self._reported.items():
            now = self.serves(destination)
            if now != before:
                self._reported[destination] = now
                _log.info("destination %r is %s here", destination, "active" if now else "no longer active")
                self._changed(destination, now)

    def _wait(self, answer: Any) -> Any:
        """What ZooKeeper answers, an error among it. Raises `ZookeeperSilent`."""
        patience = (self._granted or self._timeout) / 3
        try:
            return answer.get(timeout=patience)
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except NoAuthError as error:
            raise ZookeeperSilent(
                f"ZooKeeper at {self._hosts} refuses what belongs to another login: give all servers of the cluster the same "
                "SHMSTORE_ZOOKEEPER_LOGIN"
            ) from error
        except (KazooTimeoutError, KazooException) as error:
            raise ZookeeperSilent(
                f"ZooKeeper at {self._hosts} does not answer ({type(error).__name__}): no client is served until it does"
            ) from error

    def _ask(self, send: Callable[[], Any]) -> Any:
        """As `_wait`, and an answer is good for the session in which the request was sent."""
        sent, session = clock(), self._current()
        try:
            found = self._wait(send())
        except (NoNodeError, NodeExistsError, BadVersionError):
            self._answered(sent, session)
            raise
        self._answered(sent, session)
        return found

    def _create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Make a node of this server's own. Those above it are open: Canal's clients make theirs there, without a login."""
        client, above = self._client, path.rpartition("/")[0]
        # What other threads are answered says nothing of the session: when that is good for is kept by the registration's own.
        ask = self._ask if threading.current_thread() is self._thread else lambda send: self._wait(send())
        while True:
            try:
                ask(lambda: client.create_async(path, data, acl=self._acl, ephemeral=ephemeral))
                return
            except NoNodeError:
                with suppress(NodeExistsError):
                    ask(lambda: client.ensure_path_async(above, acl=OPEN_ACL_UNSAFE))

    def _current(self) -> int:
        """The session's number; 0 between two."""
        known = self._client.client_id
        return int(known[0]) if known and known[0] else 0

    def _answered(self, sent: float, session: int) -> None:
        if self._current() == session != 0:
            if session != self._session:
                self._good_until = 0.0
                self._session = session
            self._good_until = max(self._good_until, sent + self._granted * _TRUST)

    def _look(self) -> None:
        client, address = self._client, self._address
        nodes = [f"{_ROOT}/cluster/{address}", *(f"{_destination(name)}/cluster/{address}" for name in self._destinations)]
        for node in nodes:
            self._ensure(node)
        for destination in self._destinations:
            why = self._usable(destination)
            if why != self._refusals.get(destination, ""):
                self._refusals[destination] = why
                if why:
                    _log.warning("destination %r cannot be active here: %s", destination, shown(why, 300))
            path = f"{_destination(destination)}/running"
            try:
                data, stat = self._ask(lambda path=path: client.get_async(path, watch=self._watch))  # type: ignore[misc]
            except NoNodeError:
                self._owned.pop(destination, None)
                self._others.pop(destination, None)
                if not why and not self._stopping:
                    self._run_for(path)
                else:
                    with suppress(NoNodeError):
                        self._ask(lambda path=path: client.exists_async(path, watch=self._watch))  # type: ignore[misc]
                continue
            if stat.owner_session_id == self._session:
                if why:
                    self._owned.pop(destination, None)
                    self._ask(lambda path=path: client.delete_async(path))  # type: ignore[misc]
                else:
                    self._owned[destination] = self._session, stat.czxid
                self._others.pop(destination, None)
            else:
                self._owned.pop(destination, None)
                self._others[destination] = _address(data)
        self._write_cursors()

    def _watch(self, event: object) -> None:
        self._poked.set()

    def _ensure(self, path: str) -> None:
        """Make an ephemeral node of this session, in place of one that an earlier session left."""
        client = self._client
        while True:
            try:
                stat = self._ask(lambda: client.exists_async(path))
                if stat is not None and stat.owner_session_id == self._session:
                    return
                if stat is not None:
                    with suppress(NoNodeError):
                        self._ask(lambda: client.delete_async(path))
                self._create(path, b"", ephemeral=True)
                return
            except NodeExistsError:
                continue

    def _run_for(self, path: str) -> None:
        """Become the active server, unless another is faster."""
        data = json.dumps({"active": True, "address": self._address}, separators=(",", ":")).encode()
        with suppress(NodeExistsError):
            self._create(path, data, ephemeral=True)
        self._poked.set()  # look whose it is, and watch it

    def _write_cursors(self) -> None:
        with self._lock:
            dirty, self._dirty = self._dirty, {}
        dirty = {client: cursor for client, cursor in dirty.items() if self.serves(client.destination)}
        sent = clock(), self._current()
        answers = {
            client: self._client.set_async(_cursor(client), cursor.encode(), version=self._versions.get(client, _NO_NODE))
            for client, cursor in dirty.items()
            if self._versions.get(client, _NO_NODE) != _NO_NODE
        }
        left = dict(dirty)
        try:
            for client, cursor in dirty.items():
                try:
                    if client in answers:
                        self._versions[client] = self._wait(answers[client]).version
                        self._answered(*sent)
                    else:
                        self._create(_cursor(client), cursor.encode())
                        self._versions[client] = 0
                except (BadVersionError, NodeExistsError, NoNodeError):
                    self._look_again(client, cursor)
                del left[client]
        except BaseException:  # those behind it, too: a client that acks nothing more would not be written again
            for client, cursor in left.items():
                self._put_back(client, cursor)
            raise

    def _put_back(self, client: Client, cursor: ClusterCursor) -> None:
        with self._lock:
            self._dirty.setdefault(client, cursor)

    def _look_again(self, client: Client, cursor: ClusterCursor) -> None:
        """Another client wrote the cursor: write it once more if this server is the active one still."""
        running = f"{_destination(client.destination)}/running"
        try:
            _, stat = self._ask(lambda: self._client.get_async(running))
            mine = stat.owner_session_id == self._session
        except NoNodeError:
            mine = False
        if not mine:
            self._owned.pop(client.destination, None)
            return
        try:
            _, stat = self._ask(lambda: self._client.get_async(_cursor(client)))
            self._versions[client] = stat.version
        except NoNodeError:
            self._versions[client] = _NO_NODE
        self._put_back(client, cursor)
        self._poked.set()


def _destination(name: str) -> str:
    return f"{_ROOT}/destinations/{name}"


def _client(client: Client) -> str:
    return f"{_destination(client.destination)}/{client.client_id}"


def _cursor(client: Client) -> str:
    return f"{_client(client)}/cursor"


def _address(data: bytes) -> str:
    try:
        return str(json.loads(data)["address"])
    except (ValueError, KeyError, TypeError):
        return "another server"
