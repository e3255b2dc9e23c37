"""Server authentication and TLS: a password, with a user name or alone, and TLS.

One place for every server: Arrow Flight, metrics and the live page take a `Login`, and all of them, and Canal's server, `tls_context`.
"""

from __future__ import annotations

import binascii
import hmac
import ipaddress
import os
import ssl
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress

from shmstore.certificate import load_certificate


class Login:
    """The one account of a server. An empty password lets every client in; one that is a function is asked each time, as it may be changed."""

    def __init__(self, user: str, password: str | Callable[[], str]) -> None:
        self._user = user.encode()
        self._password = password

    @property
    def needed(self) -> bool:
        """Whether a password is needed."""
        return bool(self._secret())

    def _secret(self) -> bytes:
        return (self._password if isinstance(self._password, str) else self._password()).encode()

    def admits(self, authorization: str) -> tuple[bool, str]:
        """Whether this Authorization header (Basic, or Bearer with the password alone) proves the password, and the user name in it.

        Takes the same time whichever is wrong.
        """
        user, password = credentials(authorization)
        wanted = self._secret()
        right_user = user is None or not self._user or hmac.compare_digest(user, self._user)
        right = hmac.compare_digest(password, wanted) or not wanted
        return right_user & right, (user or b"").decode(errors="replace")


def credentials(authorization: str) -> tuple[bytes | None, bytes]:
    """The user name (None in a bearer token) and the password in an Authorization header."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() != "basic":
        return None, value.strip().encode()
    try:
        user, _, password = b64decode(value, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return b"", b""
    return user, password


class SecretFile:
    """The secret in a file, without its line end: read again when the file is another one or was written, so that it can be rotated.

    Raises `OSError` where it cannot be read at first, and `ValueError` where there is nothing in it; later it then stays as it was.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._secret = ""
        self._read()

    def __call__(self) -> str:
        """Return the secret as it is now."""
        with suppress(OSError, ValueError):  # in the middle of a rotation
            self._read()
        return self._secret

    def _read(self) -> None:
        with open(self._path, encoding="utf-8") as file:
            about = os.fstat(file.fileno())
            seen = (about.st_ino, about.st_mtime_ns, about.st_size)
            if seen == self._seen:
                return
            secret = file.read().rstrip("\r\n")
        if not secret:
            raise ValueError(f"{os.fspath(self._path)} is empty: it should hold a secret")
        self._secret, self._seen = secret, seen


def exposed(host: str, seen: str, *, password: bool, tls: bool, option: str = "--password-file") -> list[str]:
    """What the user who starts a server on `host` should know of who else can see what it shows."""
    if is_loopback(host):
        return []
    if not password:
        return [f"every client that reaches {host} can see {seen}: no password is set ({option})"]
    return [] if tls else [f"password and figures travel in clear to {host}: set a certificate (--tls-cert, --tls-key)"]


def is_loopback(host: str) -> bool:
    """Whether only this host reaches an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """What a server speaks TLS with: a certificate chain and its key, PEM files.

    Raises `OSError` where a file cannot be read, and `ValueError` where it is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, certificate, key)
    return context
