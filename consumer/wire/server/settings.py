"""What a server is started with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shmstore import ProtocolError
from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.wire.protocol.authentication import Credentials
from shmstore.consumer.wire.session.filter import compile_filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of `shmstore.consumer.wire.serve`. Raises `ValueError` where one is out of bounds or two contradict each other.

    `stores` are the destinations that clients may name; empty means every store of this host. `filter` serves clients
    that give none. `start` is where a client id never seen before begins: "earliest" or "latest". Sizes are bytes,
    times seconds. `max_reply` bounds one answer, but for a single entry that is larger. `state` is a directory for
    what clients hold un-acked; None is the state directory of shmstore. `ready` is called with (host, port) once
    the server listens.
    """

    host: str = "127.0.0.1"
    port: int = 11111
    stores: tuple[str, ...] = ()
    user: str = ""
    password: str = ""
    password_hash: str = ""
    values: str = "canal"
    start: str = "earliest"
    filter: str = ""
    tls_cert: str | None = None
    tls_key: str | None = None
    max_frame: int = 1 << 20
    max_reply: int = 64 << 20
    max_connections: int = 1024
    max_outstanding: int = 1024
    idle_timeout: float = 3600.0
    auth_timeout: float = 30.0
    state: str | Path | None = None
    metrics_port: int = 0
    ready: Callable[[tuple[str, int]], None] | None = None

    def __post_init__(self) -> None:
        """Check what can be checked before anything is opened."""
        for name in ("max_frame", "max_reply", "max_connections", "max_outstanding"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        for name in ("idle_timeout", "auth_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give more than 0 seconds")
        for name in ("port", "metrics_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 to 65535")
        if self.max_reply > 1 << 30:
            raise ValueError(f"max_reply is {self.max_reply}: a frame of the protocol ends at 2 GiB; give at most {1 << 30}")
        if self.start not in ("earliest", "latest"):
            raise ValueError(f"start is {self.start!r}: give earliest or latest")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("TLS needs both a certificate and its key: give tls_cert and tls_key, or neither")
        if self.values not in list(Values):
            raise ValueError(f"values is {self.values!r}: give {' or '.join(Values)}")
        try:
            compile_filter(self.filter)
        except ProtocolError as error:
            raise ValueError(str(error)) from error
        _ = self.credentials

    @property
    def credentials(self) -> Credentials:
        """The account that clients must know."""
        return Credentials.make(self.user, self.password, self.password_hash)

    def __repr__(self) -> str:
        """Without the secrets."""
        return (
            f"Settings(host={self.host!r}, port={self.port}, stores={self.stores!r}, user={self.user!r}, values={self.values!r})"
        )
