"""`shmstore serve`: stores for readers on other hosts."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from shmstore.arguments import Parser
from shmstore.cli import log_lines, service
from shmstore.cli.command import Commands
from shmstore.cli.listening import add_access, cannot_listen, clients_password, counters_at, tls_of
from shmstore.cli.log_lines import say
from shmstore.cli.options import STATE, add_log_lines
from shmstore.cli.signals import ended, on_signal
from shmstore.cli.values import address, port, seconds, whole
from shmstore.errors import ShmStoreError, StoreNotFound

SERVED = (  # options of `serve` that go to the server as they are
    *("user", "values", "gtids", "start", "filter", "tls_cert", "tls_key", "max_connections", "max_frame", "max_reply"),
    *("max_outstanding", "max_new_clients", "auth_timeout", "release_after", "state", "transaction_entries"),
    *("zookeeper", "zookeeper_timeout", "zookeeper_ca", "zookeeper_cert", "zookeeper_key", "advertise"),
)


def add(commands: Commands) -> None:
    """Add the command."""
    sub = commands.add(
        serve,
        "serve",
        "let other hosts read this host's stores, by Canal's protocol or Arrow Flight",
        "  shmstore serve orders --listen 0.0.0.0:11111 --user canal --password-file /run/secrets/canal\n"
        "  shmstore serve orders --flight 0.0.0.0:8815 --user audit --password-file /run/flight",
        "With --listen, clients of Canal read a store. With --flight, a Consumer on another host reads it\n"
        "as on this host, and pandas, Polars and any other Flight client get typed rows:\n"
        "  Consumer('grpc+tls://audit:PASSWORD@HOST:8815/orders', 'audit')\n"
        "With both options it runs both servers; with --flight alone no server for Canal's clients.",
        store=False,
    )
    flags(sub)


def flags(sub: Parser) -> None:
    """Add its options."""
    sub.add_argument(
        "stores",
        nargs="*",
        metavar="STORE",
        help="stores to serve as destinations of the same name, or DESTINATION=STORE (default: every store of this host)",
    )
    sub.add_argument(
        "--listen",
        type=address,
        metavar="HOST:PORT",
        help="address for Canal's clients; port 0 takes a free port (default: 127.0.0.1:11111; with --flight: none)",
    )
    sub.add_argument(
        "--flight", type=address, metavar="HOST:PORT", help="address for Arrow Flight, commonly port 8815 (default: none)"
    )
    access = add_access(sub, "SHMSTORE_SERVE_PASSWORD")
    access.add_argument(
        "--password-hash-file",
        metavar="FILE",
        help="file with SHA1(SHA1(password)) in hex instead, the form of canal.passwd and MySQL's native passwords (for Canal's clients "
        "only)",
    )
    what = sub.add_argument_group("What clients read")
    what.add_argument(
        "--start",
        choices=("earliest", "latest"),
        default="earliest",
        help="where a new client id begins (default: earliest)",
    )
    what.add_argument(
        "--filter",
        default="",
        metavar="REGEXES",
        help="tables for clients without a filter, in Canal's form: shop\\..* (default: all)",
    )
    what.add_argument(
        "--transaction-entries",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="send BEGIN and END of transactions; no: as Canal with filter.transaction.entry (default: yes)",
    )
    what.add_argument(
        "--values",
        choices=("canal", "exact"),
        default="canal",
        help="send values, types and statements as Canal does (canal), or values as the server prints them and all statements (exact); "
        "default: canal. To pass what Canal accepts and a producer refuses, see produce --statements pass --row-image any",
    )
    what.add_argument(
        "--gtids",
        choices=("auto", "on", "off"),
        default="auto",
        help="fill the entries' gtid, as Canal does with gtidon; auto: with --values exact (default: auto)",
    )
    limits = sub.add_argument_group("Limits")
    limits.add_argument("--max-connections", type=whole, default=1024, metavar="N", help="most connections (default: 1024)")
    limits.add_argument(
        "--max-frame", type=whole, default=1 << 20, metavar="BYTES", help="largest request that is accepted (default: 1048576)"
    )
    limits.add_argument(
        "--max-reply",
        type=whole,
        default=64 << 20,
        metavar="BYTES",
        help="largest reply, unless a single event is larger (default: 67108864)",
    )
    limits.add_argument(
        "--max-outstanding",
        type=whole,
        default=1024,
        metavar="N",
        help="most unacked batches of a client (default: 1024)",
    )
    limits.add_argument(
        "--max-new-clients",
        type=whole,
        default=16,
        metavar="N",
        help="most new client ids that one login may create (with --flight: new subscriptions of one host) (default: 16)",
    )
    limits.add_argument(
        "--release-after",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="release the subscription of a connected client that has sent no request for this long; that of a client that left is "
        "released at once (default: 600)",
    )
    limits.add_argument(
        "--idle-timeout",
        type=seconds,
        metavar="SECONDS",
        help="close a connection that is silent for this long (default: 3600; with --flight 300)",
    )
    limits.add_argument(
        "--auth-timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="close a connection that has not logged in after this long (default: 30)",
    )
    cluster = sub.add_argument_group("Cluster")
    cluster.add_argument(
        "--zookeeper",
        default="",
        metavar="HOSTS",
        help="ZooKeeper's addresses, HOST:PORT,...; register there as Canal's servers do: one of several servers is active, and clients "
        "find it and their cursors there (default: none)",
    )
    cluster.add_argument(
        "--zookeeper-timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="another server becomes active when ZooKeeper has not heard from this one for so long (default: 10)",
    )
    cluster.add_argument(
        "--zookeeper-ca",
        default="",
        metavar="FILE",
        help="use TLS with ZooKeeper, and trust this authority (PEM file). SHMSTORE_ZOOKEEPER_LOGIN=USER:PASSWORD logs in, and prevents "
        "other logins from overwriting these servers' nodes (default: neither)",
    )
    cluster.add_argument(
        "--zookeeper-cert", default="", metavar="FILE", help="this server's certificate for ZooKeeper (PEM file) (default: none)"
    )
    cluster.add_argument("--zookeeper-key", default="", metavar="FILE", help="key of that certificate (PEM file)")
    cluster.add_argument(
        "--advertise",
        default="",
        metavar="HOST:PORT",
        help="where clients reach this server (default: the address that it listens on)",
    )
    operation = sub.add_argument_group("Operation")
    operation.add_argument("--state", metavar="DIR", help=f"folder of stores' homes {STATE}")
    operation.add_argument(
        "--metrics-port",
        type=port,
        default=0,
        metavar="PORT",
        help="serve counters of clients at /metrics on this port, as Prometheus text, and /healthz; with TLS if --tls-cert is given "
        "(default: none)",
    )
    operation.add_argument(
        "--metrics-password-file",
        metavar="FILE",
        help="file with the password for /metrics, read again when it changes; or set SHMSTORE_METRICS_PASSWORD",
    )
    add_log_lines(sub)


def serve(options: argparse.Namespace) -> int:
    """`shmstore serve`."""
    password = clients_password(options.password_file, "SHMSTORE_SERVE_PASSWORD")
    hashed = options.password_hash_file
    if hashed and password:
        raise ValueError("a password and --password-hash-file are both given: leave one out")
    if hashed and options.flight is not None:
        raise ValueError("--password-hash-file is of canal's protocol alone: give --password-file for --flight")
    if options.user and not password and not hashed:
        raise ValueError(
            f"--user {options.user} has no password, so any client could log in: give --password-file or SHMSTORE_SERVE_PASSWORD"
        )
    for file in (options.tls_cert, options.tls_key, options.zookeeper_ca, options.zookeeper_cert, options.zookeeper_key):
        if file:
            os.close(os.open(file, os.O_RDONLY))  # ssl does not say which file it cannot read
    if options.flight is None or options.listen is not None:
        options.listen = options.listen or ("127.0.0.1", 11111)
    log_lines.show(options)
    with exposing(options) as expose:
        return serve_clients(options, password, expose)


#: Takes what returns a server's counters as Prometheus text.
Expose = Callable[[Callable[[], str]], None]


@contextmanager
def exposing(options: argparse.Namespace) -> Iterator[Expose]:
    """Answer on --metrics-port while the block runs, with what the servers in it say of themselves."""
    from shmstore.consumer.serving.access import Login, exposed

    counters: list[Callable[[], str]] = []

    def answer(path: str) -> tuple[int, str] | None:
        if path == "/metrics":
            return 200, "".join(text() for text in counters)
        if path == "/healthz":  # of the stores served `shmstore metrics` says how they are
            return (200, "ok\n") if counters else (503, "no client is answered yet\n")
        return None

    if not options.metrics_port:
        yield counters.append
        return
    where = ((options.listen or options.flight)[0], options.metrics_port)
    password, tls = clients_password(options.metrics_password_file, "SHMSTORE_METRICS_PASSWORD"), tls_of(options)
    with counters_at(where, answer, login=Login("", password) if password else None, tls=tls):
        about = {"password": bool(password), "tls": tls is not None}
        for warning in exposed(where[0], "the counters of clients", **about, option="--metrics-password-file"):
            say(warning, logging.WARNING)
        yield counters.append


def serve_clients(options: argparse.Namespace, password: str | Callable[[], str], expose: Expose) -> int:
    """Serve by the protocols that are asked for until a signal comes."""
    missing = missing_stores(options.stores, options.state)
    if options.flight is None:
        return serve_canal(options, password, missing, expose)
    from shmstore.consumer.flight import FlightSettings
    from shmstore.consumer.flight.process import serving

    def ready(address: tuple[str, int]) -> None:
        say(f"listening on {address[0]}:{address[1]} for Arrow Flight")
        if options.listen is None:
            service.notify("READY=1", f"STATUS=listening on {address[0]}:{address[1]}")
            report_missing(missing)

    settings = FlightSettings(
        host=options.flight[0],
        port=options.flight[1],
        stores=tuple(options.stores),
        state=options.state,
        user=options.user,
        password=password,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        max_connections=options.max_connections,
        max_new_subscriptions=options.max_new_clients,
        ready=ready,
        beat=None if options.listen else lambda: service.notify("WATCHDOG=1"),
        expose=expose,
        **({} if options.idle_timeout is None else {"idle_timeout": options.idle_timeout}),
    )
    try:
        if options.listen is None:
            over = threading.Event()
            with on_signal(over.set) as came, serving(settings):
                over.wait()
            return ended(came)
        with serving(settings):
            return serve_canal(options, password, missing, expose)
    except OSError as error:
        if isinstance(error, ShmStoreError):
            raise
        raise cannot_listen(options.flight, error, "--flight") from error


def serve_canal(options: argparse.Namespace, password: str | Callable[[], str], missing: Sequence[str], expose: Expose) -> int:
    """Serve by Canal's protocol until a signal comes."""
    from shmstore.consumer.wire import CanalProcess, CanalSettings

    def ready(address: tuple[str, int]) -> None:
        say(f"listening on {address[0]}:{address[1]}")
        service.listening(address)
        report_missing(missing)
        report_unused(options)

    settings = CanalSettings(
        host=options.listen[0],
        port=options.listen[1],
        stores=tuple(options.stores),
        password=password,
        password_hash=clients_password(options.password_hash_file, ""),
        zookeeper_login=os.environ.get("SHMSTORE_ZOOKEEPER_LOGIN", ""),
        ready=ready,
        expose=expose,
        idle_timeout=3600.0 if options.idle_timeout is None else options.idle_timeout,
        **{name: getattr(options, name) for name in SERVED},
    )
    try:
        server = CanalProcess(settings)
        with on_signal(server.stop) as came:
            server.run()
        return ended(came)
    except OSError as error:
        if isinstance(error, ShmStoreError):
            raise
        raise cannot_listen(options.listen, error) from error


def missing_stores(served: Sequence[str], state: str | None) -> list[str]:
    """Return which of the stores that are to be served do not exist. Raises `ValueError` where one cannot."""
    from shmstore import EventStore

    missing = []
    for name in (pair.partition("=")[2] or pair.partition("=")[0] for pair in served):
        try:
            EventStore.attach(name, state=state).close()
        except StoreNotFound:
            missing.append(name)
    return missing


def report_unused(options: argparse.Namespace) -> None:
    """Say which expressions of --filter name no table in any of the stores that are served, as far as their tables are known."""
    from shmstore import StoreView
    from shmstore.consumer.wire.session.filter import compile_filter, patterns
    from shmstore.home.definitions import DefinitionsFile, sources_of

    names: set[str] = set()
    for pair in options.stores:
        home = StoreView.home_of(pair.partition("=")[2] or pair, state=options.state)
        for source in sources_of(home):
            names |= {".".join(one.name) for one in DefinitionsFile(home, source).read()}
    for pattern in patterns(options.filter) if names else ():
        wanted = compile_filter(pattern)
        if wanted is not None and not any(map(wanted, names)):
            say(f"--filter: {pattern!r} names no table of {', '.join(options.stores)}", logging.WARNING)


def report_missing(missing: Sequence[str]) -> None:
    """Say which of the stores that are served do not exist."""
    for name in missing:
        say(f"store {name!r} does not exist yet: its clients are refused until it is created")
