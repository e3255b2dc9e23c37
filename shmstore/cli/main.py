"""The `shmstore` command: the one place that knows all three packages.

Plan. `parser` describes the commands, and each is one function here; `main` runs one and turns an error into one line on
stderr and an exit code: 0 done, 1 `check`, `config check`, `verify`, `log verify` or `doctor` found something, 2 bad input or an error that says what to do,
130 Ctrl-C, 141 the reader of the output went away. A command imports what it needs when it runs, so that `shmstore ls`
works without MySQL, Spark or protobuf installed. SHMSTORE_DEBUG=1 shows tracebacks instead.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

try:
    import argparse
    import json
    import logging
    import os
    import threading
    import time

    from shmstore.cli import config_file, init_command, log_commands, log_lines, parser, service, verify_command
    from shmstore.cli.config_file import CONFIG
    from shmstore.cli.error_text import line_of, missing
    from shmstore.cli.log_lines import say
    from shmstore.cli.named_store import attach, home_of, look
    from shmstore.cli.signals import ended, on_signal
    from shmstore.errors import ShmStoreError, StoreError, StoreNotFound
except KeyboardInterrupt:  # Ctrl-C before `main` can see it
    sys.exit(130)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from shmstore import StoreStat
    from shmstore.cli.remembered import RememberedStore
    from shmstore.consumer import Consumer
    from shmstore.consumer.access import Login
    from shmstore.consumer.tail import Peek
    from shmstore.producer import Summary

SERVED = (  # options of `serve` that go to the server as they are
    *("user", "values", "gtids", "start", "filter", "tls_cert", "tls_key", "max_connections", "max_frame", "max_reply"),
    *("max_outstanding", "max_new_clients", "auth_timeout", "release_after", "state", "metrics_port"),
    *("zookeeper", "zookeeper_timeout", "zookeeper_ca", "zookeeper_cert", "zookeeper_key", "advertise"),
)
TAKES_UP = 4.0  # seconds that a producer may take to see a request
NICE = 10  # of who only looks: where the processors are busy, producer and readers come first


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line `words` (those of the process by default); return the exit code."""
    if sys.stdout is None:  # started with it closed (>&-)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  open as long as the process
    try:
        options = parser.parser(COMMANDS, FILLS).parse_args(words)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        settle_stdout()
        return 141
    except ModuleNotFoundError as error:
        message = missing(error.name)
        if message is None or "SHMSTORE_DEBUG" in os.environ:
            raise
        return fail(message)
    except (ShmStoreError, ValueError, OSError) as error:
        if "SHMSTORE_DEBUG" in os.environ:
            raise
        settle_stdout()
        return fail(line_of(error))


def settle_stdout() -> None:
    """Write what stdout still holds; where that fails, discard it: Python's own flush at exit must not fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str) -> int:
    """Print `message` as one line on stderr; return exit code 2."""
    say(message, logging.ERROR)
    return 2


# ---------------------------------------------------------------- the producer


def producer_flags(parser: argparse.ArgumentParser) -> None:
    """Add the producer's own options."""
    from shmstore import producer

    producer.add_flags(parser)


def service_flags(parser_: argparse.ArgumentParser) -> None:
    """Add the options of a producer that runs."""
    producer_flags(parser_)
    parser.log_lines(parser_)


def _show_log_lines(options: argparse.Namespace) -> None:
    """Begin the log of a producer; say first where it will be slower than it could be."""
    from shmstore.native import pure_python

    log_lines.show(options)
    if slow := pure_python():
        say(slow, logging.WARNING)


def produce(options: argparse.Namespace) -> int:
    """`shmstore produce`."""
    from shmstore import producer

    settings = producer.load_settings(flags=vars(options), config=options.config, source=options.source)
    _show_log_lines(options)
    stop = threading.Event()
    with on_signal(stop.set) as came, service.watched({settings.store: settings.store_path}, stop.is_set) as stops:
        summary = producer.run(settings, stops)
    say(f"{settings.store}: {line_of_summary(summary)}")
    return ended(came)


def run(options: argparse.Namespace) -> int:
    """`shmstore run`: every source of a configuration."""
    from shmstore import producer

    if options.config is None and not os.path.exists(CONFIG):
        raise ValueError(f"there is no {CONFIG} in this folder: give --config FILE, with a [source.NAME] for each source")
    settings = producer.load_all(flags=vars(options), config=options.config or CONFIG, source=options.source)
    _show_log_lines(options)
    stop = threading.Event()
    with on_signal(stop.set) as came, service.watched({each.store: each.store_path for each in settings}, stop.is_set) as stops:
        summaries = producer.run_all(settings, stops)
    stores = [each.store for each in settings]
    for each, summary in zip(settings, summaries, strict=True):
        name = f"{each.store} from {each.name}" if stores.count(each.store) > 1 else each.store
        say(f"{name}: {line_of_summary(summary)}")
    return ended(came)


def config_check(options: argparse.Namespace) -> int:
    """`shmstore config check`."""
    found = config_file.problems(options.file, parser.commands(COMMANDS, FILLS))
    print("\n".join(f"{options.file}: {each}" for each in found) or f"{options.file}: nothing is wrong")
    return 1 if found else 0


def doctor(options: argparse.Namespace) -> int:
    """`shmstore doctor`."""
    from shmstore import producer

    flags = vars(options)
    if options.config is None and "SHMSTORE_STORE" not in os.environ:
        flags["store"] = options.store or "doctor"  # nothing is stored; the name only goes into the server id
    asked = {"flags": flags, "config": options.config}
    every = producer.load_all(**asked) if options.source is None else [producer.load_settings(**asked)]
    failed = False
    for settings in every:
        if len(every) > 1:
            print(f"{settings.name}:", flush=True)
        for finding in producer.check_server(settings):
            print(f"{finding.state:4}  {finding.check}: {finding.found}" + f", wanted {finding.wanted}" * bool(finding.wanted))
            if finding.fix:
                print(f"      fix: {finding.fix}")
            failed = failed or finding.state == "fail"
    return 1 if failed else 0


def snapshot(options: argparse.Namespace) -> int:
    """`shmstore snapshot`."""
    from shmstore import producer
    from shmstore.consumer.live.actions import check_single_source

    asks, produced = options.cancel or options.tables is not None, False
    if asks or not producer.snapshot_status(options.store, state=options.state):
        with look(options) as store:  # a request to a store that does not exist would wait for ever
            check_single_source(store)
            produced = store.stat().producer_alive
        if asks and not produced:
            say(f"no producer is running on store {options.store!r}: the next one will do this")
    if options.cancel:
        producer.cancel_snapshot(options.store, state=options.state)
    elif options.tables is not None:
        print(producer.request_snapshot(options.store, options.tables, state=options.state))
    if asks and not (options.status or options.watch):
        return 0
    patience = time.monotonic() + TAKES_UP
    while True:
        found = producer.snapshot_status(options.store, state=options.state)
        waits = producer.snapshot_waits(options.store, state=options.state)
        clear = "\x1b[H\x1b[2J" if options.watch and sys.stdout.isatty() else ""
        print(clear + (found or producer.Progress()).page(waits), flush=True)
        if not options.watch or (not waits and not (found and found.open)):
            return 1 if found and found.failed else 0
        if waits and produced and time.monotonic() > patience:
            patience = float("inf")
            say(
                "the producer has not seen this request: is its state in another folder (--state, SHMSTORE_STATE, another user's)?"
            )
        time.sleep(1)


def line_of_summary(made: Summary) -> str:
    """Return a producer's summary as one line."""
    at = f", up to {made.position.file}:{made.position.offset}" if made.position else ""
    return f"put {made.rows} rows in {made.events} events of {made.transactions} transactions ({made.bytes} bytes){at}"


# ---------------------------------------------------------------- readers


def tail(options: argparse.Namespace) -> int:
    """`shmstore tail`."""
    from shmstore.consumer import Consumer
    from shmstore.consumer.formats.formatter import Formatter
    from shmstore.consumer.tail import BATCH_EVENTS, Peek, tables
    from shmstore.consumer.tail import tail as write

    chosen = None if options.tables is None else tables(options.tables)
    if options.state:
        os.environ["SHMSTORE_STATE"] = options.state
    with look(options) as store:
        formatter = Formatter(options.format, name=store.name, schemas=options.schemas, transactions=options.transactions)
        reader: Consumer | Peek
        if options.subscription is None:
            reader = Peek(store, options.start, follow=options.follow, missed=warn_of_missed)
        else:
            how = {"start": options.start, "limit_events": BATCH_EVENTS, "timeout": None if options.follow else 0}
            reader = Consumer(options.store, options.subscription, path=options.path, **how)
        last = None if options.follow else store.newest
        with reader, on_signal(reader.stop) as came:
            write(reader, sys.stdout.buffer, formatter=formatter, chosen=chosen, count=options.count, last=last)
        return ended(came)


def warn_of_missed(count: int) -> None:
    """Report on stderr events that the store dropped before they were printed."""
    say(f"{count} events were dropped from the store before they could be printed; with --subscription it keeps them")


def serve(options: argparse.Namespace) -> int:
    """`shmstore serve`. The servers take SIGTERM and Ctrl-C themselves and end in order."""
    password = clients_password(options, "SHMSTORE_SERVE_PASSWORD")
    if options.user and not password:
        raise ValueError(
            f"--user {options.user} has no password, so anybody could log in: give --password-file or SHMSTORE_SERVE_PASSWORD"
        )
    for file in (options.tls_cert, options.tls_key, options.zookeeper_ca, options.zookeeper_cert, options.zookeeper_key):
        if file:
            os.close(os.open(file, os.O_RDONLY))  # ssl does not say which file it cannot read
    if options.flight is None or options.listen is not None:
        options.listen = options.listen or ("127.0.0.1", 11111)
    log_lines.show(options)
    missing = missing_stores(options.stores)
    if options.flight is None:
        return serve_canal(options, password, missing)
    from shmstore.consumer import flight
    from shmstore.consumer.flight.process import serving

    def ready(address: tuple[str, int]) -> None:
        say(f"listening on {address[0]}:{address[1]} for Arrow Flight")
        if options.listen is None:
            service.notify("READY=1", f"STATUS=listening on {address[0]}:{address[1]}")
            report_missing(missing)

    settings = flight.Settings(
        host=options.flight[0],
        port=options.flight[1],
        stores=tuple(options.stores),
        user=options.user,
        password=password,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        max_connections=options.max_connections,
        max_new_subscriptions=options.max_new_clients,
        ready=ready,
        beat=None if options.listen else lambda: service.notify("WATCHDOG=1"),
        **({} if options.idle_timeout is None else {"idle_timeout": options.idle_timeout}),
    )
    try:
        if options.listen is None:
            return ended(flight.serve(settings))
        with serving(settings):
            return serve_canal(options, password, missing)
    except OSError as error:
        if isinstance(error, ShmStoreError):
            raise
        raise cannot_listen(options.flight, error, "--flight") from error


def serve_canal(options: argparse.Namespace, password: str | Callable[[], str], missing: Sequence[str]) -> int:
    """Serve by Canal's protocol until a signal comes."""
    from shmstore.consumer.wire import Settings
    from shmstore.consumer.wire import serve as run_server

    def ready(address: tuple[str, int]) -> None:
        say(f"listening on {address[0]}:{address[1]}")
        service.listening(address)
        report_missing(missing)

    settings = Settings(
        host=options.listen[0],
        port=options.listen[1],
        stores=tuple(options.stores),
        password=password,
        zookeeper_login=os.environ.get("SHMSTORE_ZOOKEEPER_LOGIN", ""),
        ready=ready,
        idle_timeout=3600.0 if options.idle_timeout is None else options.idle_timeout,
        **{name: getattr(options, name) for name in SERVED},
    )
    try:
        return ended(run_server(settings))
    except OSError as error:
        if isinstance(error, ShmStoreError):
            raise
        raise cannot_listen(options.listen, error) from error


def missing_stores(served: Sequence[str]) -> list[str]:
    """Return which of the stores that are to be served do not exist. Raises `ValueError` where one cannot."""
    from shmstore import EventStore

    missing = []
    for name in (pair.partition("=")[2] or pair.partition("=")[0] for pair in served):
        try:
            EventStore.attach(name).close()
        except StoreNotFound:
            missing.append(name)
    return missing


def report_missing(missing: Sequence[str]) -> None:
    """Say which of the stores that are served do not exist."""
    for name in missing:
        say(f"store {name!r} does not exist yet: its clients are refused until it is created")


def clients_password(options: argparse.Namespace, variable: str) -> str | Callable[[], str]:
    """Return the password that clients must give: from --password-file, read again when it changes, or else the environment; or ''."""
    from shmstore.consumer.access import SecretFile

    return SecretFile(options.password_file) if options.password_file else os.environ.get(variable, "")


def access(options: argparse.Namespace, variable: str) -> tuple[Login | None, ssl.SSLContext | None]:
    """Return who may ask an HTTP server of ours, by --password-file or else the environment, and what it speaks TLS with."""
    from shmstore.consumer.access import Login, tls_context

    if bool(options.tls_cert) != bool(options.tls_key):
        raise ValueError("TLS needs both a certificate and its key: give --tls-cert and --tls-key, or neither")
    password = clients_password(options, variable)
    if options.user and not password:
        raise ValueError(f"--user {options.user} has no password: give --password-file or {variable}")
    tls = tls_context(options.tls_cert, options.tls_key) if options.tls_cert else None
    return Login(options.user, password) if password else None, tls


def spark(options: argparse.Namespace) -> int:
    """`shmstore spark`: its own command line parses the rest, so that spark-submit has the same."""
    from shmstore.consumer.spark.__main__ import main as run_spark

    return run_spark(options.words if "words" in options else ["--help"])


# ---------------------------------------------------------------- stores


def create(options: argparse.Namespace) -> int:
    """`shmstore create`."""
    from shmstore import BatchMode, EventStore

    with EventStore.create(
        options.store,
        capacity=options.capacity,
        memory_unit=options.memory_unit,
        batch_mode=BatchMode[options.batch_mode.upper()],
        ddl_isolation=options.ddl_isolation,
        lag=options.lag,
        evict_after=options.evict_after,
        mode=options.permissions,
        group=options.group,
        path=options.path,
        checksum=options.checksum,
        log=options.log == "on",
        log_keep=options.log_keep,
        log_size=options.log_size,
        state=options.state,
    ):
        return 0


def ls(options: argparse.Namespace) -> int:
    """`shmstore ls`. A store that cannot be read is listed with the reason; one that is in its home alone is left there."""
    from shmstore import StoreView
    from shmstore.cli import text_report
    from shmstore.cli.remembered import describe_home, remembered

    lines = [] if options.json else [text_report.HEAD]
    in_memory = StoreView.names()
    homes = [name for name in remembered(options.state) if name not in in_memory]
    for name in (*in_memory, *homes):
        found: StoreStat | RememberedStore
        try:
            if name in in_memory:
                with StoreView.attach(name, restore=False) as store:
                    found = store.stat()
            else:
                found = describe_home(name, options.state)
        except StoreNotFound:
            continue  # removed since it was listed
        except StoreError as error:
            lines.append(json.dumps({"name": name, "error": str(error)}) if options.json else f"{name:<24} {error}")
        else:
            lines.append(json.dumps(text_report.document(found)) if options.json else text_report.line(found))
    print(*lines, sep="\n")
    return 0


def stat(options: argparse.Namespace) -> int:
    """`shmstore stat`."""
    from shmstore.cli import text_report

    before, then = None, 0.0
    with look(options) as store:
        while True:
            now, at = store.stat(), time.monotonic()
            if options.json:
                print(json.dumps(text_report.document(now)), flush=True)
            else:
                clear = "\x1b[H\x1b[2J" if options.watch and sys.stdout.isatty() else ""
                print(clear + text_report.page(now, before, at - then), flush=True)
            if not options.watch:
                return 0
            time.sleep(options.watch)
            before, then = now, at


def metrics(options: argparse.Namespace) -> int:
    """`shmstore metrics`. A store that is missing hides none of the others; one that is in its home alone is missing."""
    from shmstore import StoreView
    from shmstore.consumer.access import exposed
    from shmstore.consumer.metrics import Endpoint, look, pages, prometheus
    from shmstore.consumer.table_counts import Counting

    if options.listen is None:
        found, missing = look(options.stores)
        if missing and not found:
            return fail("; ".join(missing.values()))
        sys.stdout.write(prometheus(found, missing))
        for message in missing.values():
            say(message)
        return 1 if missing else 0
    login, tls = access(options, "SHMSTORE_METRICS_PASSWORD")
    counting = Counting(lambda: options.stores or StoreView.names())
    try:
        server = Endpoint(options.listen, pages(lambda: look(options.stores), counting.counts), login=login, tls=tls)
    except OSError as error:
        raise cannot_listen(options.listen, error) from error
    counting.start()
    say(f"listening on {options.listen[0]}:{server.server_port}")
    for warning in exposed(
        options.listen[0], "figures and names of stores and tables", password=login is not None, tls=tls is not None
    ):
        say(warning, logging.WARNING)
    service.notify("READY=1")
    with server, on_signal(server.stop) as came:
        server.serve_forever()
    counting.close()
    return ended(came)


def web(options: argparse.Namespace) -> int:
    """`shmstore web`."""
    from shmstore.consumer.access import SecretFile
    from shmstore.consumer.live.observer import Observer
    from shmstore.consumer.live.web import Web, warnings

    login, tls = access(options, "SHMSTORE_WEB_PASSWORD")
    token = SecretFile(options.token_file) if options.token_file else None
    log_lines.show(options)
    try:
        server = Web(
            options.listen,
            Observer(options.stores),
            show_values=options.show_values,
            token=token,
            login=login,
            tls=tls,
        )
    except OSError as error:
        raise cannot_listen(options.listen, error) from error
    os.nice(NICE)
    with server, on_signal(server.stop) as came:
        host = f"[{options.listen[0]}]" if ":" in options.listen[0] else options.listen[0]
        say(f"listening: open {'https' if tls else 'http'}://{host}:{server.server_port}/")
        for warning in warnings(
            options.listen[0], password=login is not None, tls=tls is not None, show_values=options.show_values
        ):
            say(warning, logging.WARNING)
        service.notify("READY=1")
        server.serve_forever(0.1)
    return ended(came)


def top(options: argparse.Namespace) -> int:
    """`shmstore top`."""
    from shmstore.consumer.live.observer import Observer
    from shmstore.consumer.live.top import Top

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError(
            "top needs a terminal: `shmstore stat STORE --watch 1` does without one, `shmstore web` shows the same to a browser"
        )
    logging.getLogger("shmstore").addHandler(logging.NullHandler())  # lines on stderr would go through the picture
    observer = Observer(options.stores)
    os.nice(NICE)
    try:
        Top(observer, show_values=options.show_values).run()
    finally:
        observer.close()
    return 0


def cannot_listen(address: tuple[str, int], error: OSError, option: str = "--listen") -> ShmStoreError:
    """Return the error that says which address cannot be used."""
    return ShmStoreError(f"cannot serve on {address[0]}:{address[1]}: {error.strerror}; choose another address with {option}")


def check(options: argparse.Namespace) -> int:
    """`shmstore check`."""
    with look(options) as store:
        findings = store.check()
    print(*(findings or [f"{options.store}: no damage found"]), sep="\n")
    return 1 if findings else 0


def rm(options: argparse.Namespace) -> int:
    """`shmstore rm`. Of a store with a log the home stays, unless it is asked for."""
    from shmstore import EventStore
    from shmstore.cli import text_report
    from shmstore.log.home import has_log
    from shmstore.store.checkpoint import forget

    home = home_of(options)
    kept, state = has_log(home), home.parent
    if options.forget and kept and not options.log:
        raise ValueError(
            f"store {options.store!r} has a log, which remembers its readers, in {home}: give --log instead of --forget to remove both"
        )
    if not options.force and (users := text_report.users_of(options.store, options.path)):
        in_use = f"store {options.store!r} is in use by {', '.join(users)}"
        raise ValueError(f"{in_use}: stop it first, or remove the store anyway with --force")
    forgot = options.forget and forget(options.store, state)
    try:
        EventStore.unlink(options.store, path=options.path, force=options.force, log=options.log, state=state)
    except StoreNotFound as error:
        if kept:
            raise StoreNotFound(
                f"store {options.store!r} is not in memory, only remembered in {home}: `shmstore rm {options.store} --log` removes that"
            ) from error
        if not forgot:  # that may have been all that was left of it
            raise
    if kept and not options.log:
        say(
            f"{home} stays, and store {options.store!r} comes back when somebody attaches to it; `shmstore rm {options.store} --log` removes it"
        )
    return 0


def unsubscribe(options: argparse.Namespace) -> int:
    """`shmstore unsubscribe`."""
    from shmstore.consumer.live import actions

    actions.unsubscribe(options.store, options.name, path=options.path, state=options.state)
    return 0


def seek(options: argparse.Namespace) -> int:
    """`shmstore seek`."""
    from shmstore.cli import text_report

    with attach(options) as store:
        acked = store.seek(options.name, options.where)
        waits = store.newest - acked
        text = "everything put so far is behind it" if waits <= 0 else f"{waits:,} events wait for it"
        at = store.peek(acked + 1, limit_events=1) if waits > 0 else None
        where = f", {text_report.place(at.position_of(acked + 1))}" if at and at.slots["entry"][0] else ""
    print(f"{options.name} goes on at event {acked + 1}{where}: {text}")
    return 0


COMMANDS: dict[str, parser.Run] = {
    "config check": config_check,
    "log verify": log_commands.verify,
    "log trim": log_commands.trim,
    "log export": log_commands.export,
}
_PRODUCERS = (init_command.init, produce, run, doctor, snapshot, verify_command.verify)
for command in (*_PRODUCERS, tail, serve, spark, ls, stat, metrics, web, top, check, create, rm, unsubscribe, seek):
    COMMANDS[command.__name__] = command
FILLS: dict[str, parser.Fill] = {
    "produce": service_flags,
    "run": service_flags,
    "doctor": producer_flags,
    "init": init_command.flags,
    "verify": verify_command.flags,
}
