"""What a server is started with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shmstore import ProtocolError, StoreNotFound
from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.wire.protocol.authentication import Credentials
from shmstore.consumer.wire.session.filter import compile_filter


@dataclass(frozen=True, slots=True, kw_only=True)
class CanalSettings:
    """Options of `shmstore.consumer.wire.serve`. Raises `ValueError` where one is out of bounds or two contradict each other.

    `stores` are the destinations that clients may name, each a store's name, or DESTINATION=STORE where clients know it by another one;
    empty means every store of this host. `filter` serves clients that give none. `gtids`: on or off as Canal's gtidon; auto is on with
    exact values. `transaction_entries`: whether clients get the begin and the end of transactions. `start` is where a client id
    never seen before begins: "earliest" or "latest". Sizes are bytes, times seconds. `max_reply` bounds one answer, but for a single entry
    that is larger. `max_new_clients` is how many client ids never seen before one login may begin; `release_after` is when the subscription
    of a client that asks nothing is given back. `state` is a directory for what clients hold un-acked; None is the state directory of
    shmstore. `ready` is called with (host, port) once the server listens; `expose` is given what returns its counters as Prometheus text, to
    other threads.
    `zookeeper` (HOST:PORT,... and perhaps /ROOT) registers the server there under `advertise`, with a session of
    `zookeeper_timeout`: see `shmstore.consumer.wire.cluster`; `zookeeper_ca`, `zookeeper_cert`, `zookeeper_key` (PEM files) and
    `zookeeper_login` (USER:PASSWORD): `cluster.zookeeper.Access`.
    """

    host: str = "127.0.0.1"
    port: int = 11111
    stores: tuple[str, ...] = ()
    user: str = ""
    password: str | Callable[[], str] = ""
    password_hash: str | Callable[[], str] = ""
    values: str = "canal"
    gtids: str = "auto"
    transaction_entries: bool = True
    start: str = "earliest"
    filter: str = ""
    tls_cert: str | None = None
    tls_key: str | None = None
    max_frame: int = 1 << 20
    max_reply: int = 64 << 20
    max_connections: int = 1024
    max_outstanding: int = 1024
    max_new_clients: int = 16
    release_after: float = 600.0
    idle_timeout: float = 3600.0
    auth_timeout: float = 30.0
    state: str | Path | None = None
    zookeeper: str = ""
    zookeeper_timeout: float = 10.0
    zookeeper_ca: str = ""
    zookeeper_cert: str = ""
    zookeeper_key: str = ""
    zookeeper_login: str = ""
    advertise: str = ""
    ready: Callable[[tuple[str, int]], None] | None = None
    expose: Callable[[Callable[[], str]], None] | None = None

    def __post_init__(self) -> None:
        """Check what can be checked before anything is opened."""
        for name in ("max_frame", "max_reply", "max_connections", "max_outstanding", "max_new_clients"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        for name in ("idle_timeout", "auth_timeout", "release_after", "zookeeper_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give more than 0 seconds")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}: give 0 to 65535")
        if self.max_reply > 1 << 30:
            raise ValueError(f"max_reply is {self.max_reply}: a frame of the protocol ends at 2 GiB; give at most {1 << 30}")
        if self.start not in ("earliest", "latest"):
            raise ValueError(f"start is {self.start!r}: give earliest or latest")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("TLS needs both a certificate and its key: give tls_cert and tls_key, or neither")
        if self.gtids not in ("auto", "on", "off"):
            raise ValueError(f"gtids is {self.gtids!r}: give auto, on or off")
        if self.values not in list(Values):
            raise ValueError(f"values is {self.values!r}: give {' or '.join(Values)}")
        try:
            compile_filter(self.filter)
        except ProtocolError as error:
            raise ValueError(str(error)) from error
        _ = self.credentials
        if self.zookeeper and not self.stores:
            raise ValueError("a server that registers in ZooKeeper needs the names of its stores: give them")
        if bool(self.zookeeper_cert) != bool(self.zookeeper_key) or (self.zookeeper_cert and not self.zookeeper_ca):
            raise ValueError("TLS to ZooKeeper needs its CA, and of this server both a certificate and its key, or neither")
        if self.zookeeper_login and not all(self.zookeeper_login.partition(":")):
            raise ValueError("the login at ZooKeeper is not USER:PASSWORD")
        if self.advertise:
            host, _, port = self.advertise.rpartition(":")
            if not host or ":" in host or not port.isdigit() or not 0 < int(port) <= 65535:
                raise ValueError(f"advertise is {self.advertise!r}: give HOST:PORT, as clients reach this server")
        if len({store for _, store in self.destinations}) < len(self.stores) or len(dict(self.destinations)) < len(self.stores):
            raise ValueError(f"stores are {', '.join(self.stores)}: give each destination and each store once")

    @property
    def destinations(self) -> tuple[tuple[str, str], ...]:
        """Destinations, each with its store; none where every store is served."""
        pairs = (name.partition("=") for name in self.stores)
        return tuple((destination, store or destination) for destination, _, store in pairs)

    def store_of(self, destination: str) -> str:
        """The name of the store behind a destination. Raises `StoreNotFound` where it is not served."""
        if not self.stores:
            return destination
        store = dict(self.destinations).get(destination)
        if store is None:
            names = ", ".join(name for name, _ in self.destinations)
            raise StoreNotFound(f"destination {destination!r} is not served here; there are {names}")
        return store

    @property
    def credentials(self) -> Credentials:
        """The account that clients must know now."""
        password = self.password if isinstance(self.password, str) else self.password()
        hashed = self.password_hash if isinstance(self.password_hash, str) else self.password_hash()
        return Credentials.make(self.user, password, hashed)

    def __repr__(self) -> str:
        """Without the secrets."""
        return (
            f"Settings(host={self.host!r}, port={self.port}, stores={self.stores!r}, user={self.user!r}, values={self.values!r})"
        )
