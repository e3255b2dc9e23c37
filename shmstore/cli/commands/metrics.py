"""`shmstore metrics`: figures for Prometheus."""

from __future__ import annotations

import argparse
import logging
import sys

from shmstore.cli import service
from shmstore.cli.command import Commands
from shmstore.cli.listening import access, add_access, cannot_listen
from shmstore.cli.log_lines import say
from shmstore.cli.options import add_stores
from shmstore.cli.signals import ended, on_signal
from shmstore.cli.values import address
from shmstore.errors import StoreError


def add(commands: Commands) -> None:
    """Add the command."""
    sub = commands.add(
        metrics,
        "metrics",
        "print the metrics of stores as Prometheus text",
        "  shmstore metrics > /var/lib/node_exporter/shmstore.prom\n  shmstore metrics --listen 127.0.0.1:9105",
        "A named store that is not in memory, or cannot be read, has shmstore_up 0 and does not hide the others; it is not restored "
        "from its home. /healthz is then 503, and without --listen the exit code is 1 (2 if no store can be read). With --listen "
        "rows and bytes are also counted by table, from the start of this process on, which reads the stores itself.",
        store=False,
    )
    add_stores(sub)
    sub.add_argument(
        "--listen",
        type=address,
        metavar="HOST:PORT",
        help="serve them at http://HOST:PORT/metrics until SIGTERM or Ctrl-C; /healthz answers 200, or 503 with what is wrong",
    )
    add_access(sub, "SHMSTORE_METRICS_PASSWORD")


def metrics(options: argparse.Namespace) -> int:
    """`shmstore metrics`. A store that is missing hides none of the others; one that is in its home alone is missing."""
    from shmstore import StoreView
    from shmstore.consumer.monitoring.metrics import MetricsEndpoint, look, pages, prometheus
    from shmstore.consumer.monitoring.table_counts import Counting
    from shmstore.consumer.serving.access import exposed

    if options.listen is None:
        found, missing = look(options.stores)
        if missing and not found:
            raise StoreError("; ".join(missing.values()))
        sys.stdout.write(prometheus(found, missing))
        for message in missing.values():
            say(message)
        return 1 if missing else 0
    login, tls = access(options, "SHMSTORE_METRICS_PASSWORD")
    counting = Counting(lambda: options.stores or StoreView.names())
    try:
        server = MetricsEndpoint(options.listen, pages(lambda: look(options.stores), counting.counts), login=login, tls=tls)
    except OSError as error:
        raise cannot_listen(options.listen, error) from error
    counting.start()
    with server, on_signal(server.stop) as came:
        say(f"listening on {options.listen[0]}:{server.server_port}")
        for warning in exposed(
            options.listen[0], "figures and names of stores and tables", password=login is not None, tls=tls is not None
        ):
            say(warning, logging.WARNING)
        service.notify("READY=1")
        server.serve_forever()
    counting.close()
    return ended(came)
