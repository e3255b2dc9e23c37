"""What a server of Arrow Flight is started with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shmstore import StoreNotFound
from shmstore.consumer.remote.address import PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightSettings:
    """Options of the server. Raises `ValueError` where one is out of bounds or two contradict each other.

    `stores` are the stores that clients may name, each NAME or NAME=STORE where clients know it by another one; empty means every store of this
    host. `state` is the folder of their homes.
    Clients give `user` and `password`, or the password alone as a bearer token; an empty password lets every client in, and one
    that is a function is asked each time, as it may be changed. `max_calls` bounds
    what is answered at once, a thread each; a connection without a byte for `idle_timeout` seconds is closed, and a subscription whose client
    has been silent for the lease it asked for, at most `max_lease` seconds, is given back. `max_new_subscriptions` is how many subscriptions
    one host may begin that were not there before. `ready` is called with (host, port) once the server listens, `beat` each
    second from then on; `expose` is given what returns its counters as Prometheus text.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    stores: tuple[str, ...] = ()
    state: str | None = None
    user: str = ""
    password: str | Callable[[], str] = field(default="", repr=False)
    tls_cert: str | None = None
    tls_key: str | None = None
    max_connections: int = 1024
    max_calls: int = 256
    max_new_subscriptions: int = 16
    max_lease: float = 3600.0
    idle_timeout: float = 300.0
    ready: Callable[[tuple[str, int]], None] | None = None
    beat: Callable[[], None] | None = None
    expose: Callable[[Callable[[], str]], None] | None = None

    def __post_init__(self) -> None:
        """Check what can be checked before anything is opened."""
        for name in ("max_connections", "max_calls", "max_new_subscriptions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        for name in ("max_lease", "idle_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give more than 0 seconds")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}: give 0 to 65535")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("TLS needs both a certificate and its key: give tls_cert and tls_key, or neither")
        if self.user and not self.password:
            raise ValueError(f"user {self.user} has no password, so any client could log in: give one")

    @property
    def served(self) -> dict[str, str]:
        """What clients name, with the store of each; empty where every store is served."""
        pairs = (name.partition("=") for name in self.stores)
        return {name: store or name for name, _, store in pairs}

    def store_of(self, name: str) -> str:
        """The name here of the store that clients call `name`. Raises `StoreNotFound` where it is not served."""
        if not self.stores:
            return name
        store = self.served.get(name)
        if store is None:
            raise StoreNotFound(f"store {name!r} is not served here; there are {', '.join(self.served)}")
        return store
