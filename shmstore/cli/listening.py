"""What the commands that listen have in common: who may ask, TLS, and an address that cannot be used."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shmstore.arguments import Parser
from shmstore.errors import ShmStoreError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from shmstore.consumer.monitoring.counters import Counters
    from shmstore.consumer.monitoring.metrics import Answer
    from shmstore.consumer.serving.access import Login


def add_access(sub: Parser, variable: str) -> argparse._ArgumentGroup:
    """Add who may ask, and TLS, and return their group; `variable` is that of the environment that may hold the password."""
    access = sub.add_argument_group("Access")
    access.add_argument("--user", default="", help="user name that clients must give (default: any)")
    access.add_argument(
        "--password-file",
        metavar="FILE",
        help=f"file with the password that they must give, read again when it changes; or set {variable}",
    )
    access.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM file); turns TLS on")
    access.add_argument("--tls-key", metavar="FILE", help="key of the certificate (PEM file)")
    return access


def clients_password(file: str | None, variable: str) -> str | Callable[[], str]:
    """Return the password that clients must give: from a file, read again when it changes, or else the environment; or ''."""
    from shmstore.consumer.serving.access import SecretFile

    return SecretFile(file) if file else os.environ.get(variable, "")


def access(options: argparse.Namespace, variable: str) -> tuple[Login | None, ssl.SSLContext | None]:
    """Return the login of an HTTP server, by --password-file or else the environment, and what it speaks TLS with."""
    from shmstore.consumer.serving.access import Login

    tls = tls_of(options)
    password = clients_password(options.password_file, variable)
    if options.user and not password:
        raise ValueError(f"--user {options.user} has no password: give --password-file or {variable}")
    return Login(options.user, password) if password else None, tls


def tls_of(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS certificate of an HTTP server; None without."""
    from shmstore.consumer.serving.access import tls_context

    if bool(options.tls_cert) != bool(options.tls_key):
        raise ValueError("TLS needs both a certificate and its key: give --tls-cert and --tls-key, or neither")
    return tls_context(options.tls_cert, options.tls_key) if options.tls_cert else None


@contextmanager
def counters_at(where: tuple[str, int], answer: Answer, **access: Any) -> Iterator[None]:
    """Serve a command's counters on --metrics-port while the block runs; `access` is `MetricsEndpoint`'s login and TLS."""
    from shmstore.consumer.monitoring.metrics import MetricsEndpoint

    try:
        endpoint = MetricsEndpoint(where, answer, **access)
    except OSError as error:
        raise cannot_listen(where, error, "--metrics-port") from error
    endpoint.start()
    try:
        yield
    finally:
        endpoint.close()


@contextmanager
def counting(options: argparse.Namespace, counters: Counters) -> Iterator[None]:
    """Answer on --metrics-port, to this host alone, while the block runs: /metrics, and /healthz, which is 503 while there is trouble. 0: do not."""
    if not options.metrics_port:
        yield
        return

    def answer(path: str) -> tuple[int, str] | None:
        if path == "/metrics":
            return 200, counters.exposition(options.store, options.subscription)
        if path == "/healthz":
            return (503, f"{counters.trouble}\n") if counters.trouble else (200, "ok\n")
        return None

    with counters_at(("127.0.0.1", options.metrics_port), answer):
        yield


def cannot_listen(address: tuple[str, int], error: OSError, option: str = "--listen") -> ShmStoreError:
    """Return the error that says which address cannot be used."""
    return ShmStoreError(f"cannot serve on {address[0]}:{address[1]}: {error.strerror}; choose another address with {option}")
