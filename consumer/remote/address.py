"""Where a store on another host is: ``grpc://host:8815/orders``, with TLS ``grpc+tls://host:8815/orders``.

The account is in the URL (``grpc+tls://audit:secret@host:8815/orders``, special characters percent-encoded) or in the environment:
SHMSTORE_FLIGHT_USER, SHMSTORE_FLIGHT_PASSWORD. SHMSTORE_FLIGHT_CA names a file (PEM) with the certificates that the server's is signed by,
where they are not the system's.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

PORT: Final = 8815
_SCHEMES: Final = {"grpc": False, "grpc+tcp": False, "grpc+tls": True}


def is_url(store: str) -> bool:
    """True where `store` names one on another host; no name of a store has a colon."""
    return "://" in store


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store of a server, and how to log in there. `roots` are the certificates (PEM) to trust, with TLS."""

    host: str
    port: int
    tls: bool
    store: str
    user: str = ""
    password: str = field(default="", repr=False)
    roots: bytes | None = field(default=None, repr=False)

    @property
    def location(self) -> str:
        """The server, as Flight names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc{'+tls' if self.tls else '+tcp'}://{host}:{self.port}"


def parse_url(url: str) -> StoreAddress:
    """Return the address that `url` is. Raises `ValueError`, which says what is wrong without the password."""
    parts = urlsplit(url)
    form = "give grpc://HOST:PORT/STORE, or grpc+tls://HOST:PORT/STORE with TLS"
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"{parts.scheme}:// is not how a store on another host is reached: {form}")
    try:
        port = parts.port or PORT
    except ValueError as error:
        raise ValueError(f"the port in the URL of a store is no number from 1 to 65535: {form}") from error
    store = unquote(parts.path.strip("/"))
    if not parts.hostname or not store or "/" in store or parts.query or parts.fragment:
        raise ValueError(f"{parts.scheme}://{parts.hostname or ''}{parts.path} does not name one store of one host: {form}")
    tls = _SCHEMES[parts.scheme]
    return StoreAddress(
        parts.hostname,
        port,
        tls,
        store,
        unquote(parts.username or "") or os.environ.get("SHMSTORE_FLIGHT_USER", ""),
        unquote(parts.password or "") or os.environ.get("SHMSTORE_FLIGHT_PASSWORD", ""),
        _roots() if tls else None,
    )


def _roots() -> bytes | None:
    """The certificates to trust; gRPC on its own would not look where this system keeps them."""
    file = os.environ.get("SHMSTORE_FLIGHT_CA") or ssl.get_default_verify_paths().cafile
    if file is None:
        return None
    with open(file, "rb") as lines:
        return lines.read()
