"""`shmstore top` and `web`: stores as they are now, on a terminal and in a browser."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from shmstore.cli import log_lines, service
from shmstore.cli.command import Commands
from shmstore.cli.listening import access, add_access, cannot_listen
from shmstore.cli.log_lines import say
from shmstore.cli.options import add_log_lines, add_show_values, add_state, add_stores
from shmstore.cli.signals import ended, on_signal
from shmstore.cli.values import address

NICE = 10  # of who only looks: where the processors are busy, producer and readers come first


def add(commands: Commands) -> None:
    """Add the commands."""
    sub = commands.add(
        top,
        "top",
        "show stores live in the terminal: what flows, how fast, which reader is behind, and the events",
        "  shmstore top",
        "Keys: n the next store, s sort the tables by another figure, f filter tables and events, p hold the list of events, x ask "
        "for a snapshot, u forget the reader that the cursor is on, P pause or resume the producer, R that reader (these "
        "three ask first), q quit. It needs the right to read the stores, and for x, u, P and R the right to write. "
        "In the ring ► is put, | the end of the log, a and A the ack and get of the first reader, b and B those of the second. Needs the extra `top`.",
        store=False,
    )
    add_stores(sub)
    add_state(sub)
    add_show_values(sub)
    sub = commands.add(
        web,
        "web",
        "show stores live on a web page: what flows, how fast, which reader is behind, and the events",
        "  shmstore web\n"
        "  shmstore web orders --listen 0.0.0.0:9180 --password-file /run/web --tls-cert cert.pem --tls-key key.pem",
        "It needs only the right to read the stores, delays no reader, and reads no events while no page is open. The page loads "
        "nothing from other hosts. Values of columns and statements are masked without --show-values.\n"
        "\n"
        "On 127.0.0.1 (the default) only this host reaches it; on another host, forward the port with `ssh -L 9180:127.0.0.1:9180 "
        "HOST`. For any other address set a password and TLS: --tls-cert and --tls-key, or a proxy with TLS:\n"
        "  location / { proxy_pass http://127.0.0.1:9180; proxy_buffering off; proxy_read_timeout 1h; }    # nginx\n"
        "  reverse_proxy 127.0.0.1:9180                                                                    # Caddy\n"
        "If the proxy passes on the name that it was asked for (Host), --password-file is needed here.",
        store=False,
    )
    add_stores(sub)
    add_state(sub)
    sub.add_argument(
        "--listen",
        type=address,
        default=("127.0.0.1", 9180),
        metavar="HOST:PORT",
        help="address of the page; port 0 takes a free one (default: 127.0.0.1:9180)",
    )
    add_access(sub, "SHMSTORE_WEB_PASSWORD")
    what = sub.add_argument_group("What can be seen and done")
    add_show_values(what)
    what.add_argument(
        "--token-file",
        metavar="FILE",
        help="let clients that know the token in this file pause, resume, reload, seek, snapshot and unsubscribe (default: no actions)",
    )
    add_log_lines(sub)


def top(options: argparse.Namespace) -> int:
    """`shmstore top`."""
    from shmstore.consumer.live.observer import Observer
    from shmstore.consumer.live.top import Top

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError(
            "top needs a terminal: `shmstore stat STORE --watch 1` does without one, `shmstore web` shows the same to a browser"
        )
    logging.getLogger("shmstore").addHandler(logging.NullHandler())  # lines on stderr would go through the picture
    observer = Observer(options.stores, state=options.state)
    os.nice(NICE)
    try:
        Top(observer, show_values=options.show_values).run()
    finally:
        observer.close()
    return 0


def web(options: argparse.Namespace) -> int:
    """`shmstore web`."""
    from shmstore.consumer.live.observer import Observer
    from shmstore.consumer.live.web import Web, warnings
    from shmstore.consumer.serving.access import SecretFile

    login, tls = access(options, "SHMSTORE_WEB_PASSWORD")
    token = SecretFile(options.token_file) if options.token_file else None
    log_lines.show(options)
    os.nice(NICE)  # of this thread and those that it starts from here on
    try:
        server = Web(
            options.listen,
            Observer(options.stores, state=options.state, always=True),
            show_values=options.show_values,
            token=token,
            login=login,
            tls=tls,
        )
    except OSError as error:
        raise cannot_listen(options.listen, error) from error
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
