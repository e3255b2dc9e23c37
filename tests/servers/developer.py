"""`scripts/servers`: one database server for a developer, until Ctrl-C. Help needs nothing but the standard library."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.shop.schema import create_statements
from shmstore.cli.signals import on_signal

if TYPE_CHECKING:
    from tests.servers.server import Server

KINDS = {
    "mariadb": "the MariaDB of this machine's release (or one that is installed)",
    "mariadb105": "MariaDB 10.5, of Debian 11",
    "mariadb114": "MariaDB 11.4, of Maven Central",
    "mariadb118": "MariaDB 11.8",
    "mysql": "the newest MySQL that the package archive has (or one that is installed)",
}
DESCRIPTION = """\
Start a real database server for yourself: on a free port of 127.0.0.1, root without a password,
row binlog with full images and full metadata, as `shmstore produce` wants it.

""" + "\n".join(f"  {kind:<11} {what}" for kind, what in KINDS.items())
EPILOG = """\
examples:
  scripts/servers mariadb                           until Ctrl-C, then all is removed
  scripts/servers mariadb --shop --port 3310        with the tables of the tutorial
  scripts/servers mysql --port 3310 --dir ./data    the same data the next time
  scripts/servers mariadb -- --log-bin-compress=ON  what follows -- goes to the server

Then, in another terminal, start the producer with the command that is printed, write rows with
the printed client, and read them: shmstore tail orders --format json
"""


ROWS = (
    "INSERT INTO shop.customers (id, name, country, vip, credit, interests) VALUES "
    "(1, 'Ada', 'GB', 1, 100, 'books'), (2, 'Grace', 'US', 0, 50, 'music,garden')",
    "INSERT INTO shop.orders (id, customer_id, status, placed, season, total, flags) VALUES "
    "(1, 1, 'sent', '2026-11-18 09:00:00', 2026, 30, b'0'), (2, 2, 'paid', '2026-11-19 10:30:00', 2026, 9.90, b'0'), "
    "(3, 1, 'new', '2026-11-20 08:00:00', 2026, 4.50, b'1')",
)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line. What follows -- is the server's; argparse would take it so only right behind the kind."""
    own = list(words)
    options: list[str] = []
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(
        prog="scripts/servers", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS, help="which server")
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--shop", action="store_true", help="create the demo's shop: four tables, two customers, three orders")
    parser.add_argument("--dir", metavar="DIR", help="folder for data and log; kept at the end and used again the next time")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder at the end, and say where it is")
    parser.add_argument("option", nargs="*", help="options of the server itself, after --")
    arguments = parser.parse_args(own)
    arguments.option += options
    if not 0 <= arguments.port < 65536:
        parser.error(f"--port {arguments.port} is no TCP port (1 to 65535, or 0 for a free one)")
    return arguments


def main() -> int:
    """Run the command."""
    arguments = parse(sys.argv[1:])
    kept = arguments.dir
    if arguments.keep and not kept:
        kept = tempfile.mkdtemp(prefix=f"shmstore-{arguments.kind}-")
    from tests.servers.server import ServerUnavailable, start_server

    asked = threading.Event()
    try:
        with on_signal(asked.set), start_server(arguments.kind, arguments.option, kept, arguments.port) as server:
            if arguments.shop:
                _open_shop(server)
            _describe(server, arguments.kind, kept)
            while not asked.wait(1.0):
                if not server.running:
                    print(f"the server ended by itself; its log:\n{server.log()[-3000:]}", file=sys.stderr)
                    return 1
            print("stopping")
    except ServerUnavailable as error:
        print(f"scripts/servers: {error}", file=sys.stderr)
        return 2
    if kept:
        print(f"kept: {kept}   start again with: scripts/servers {arguments.kind} --dir {shlex.quote(kept)}")
    return 0


def _open_shop(server: Server) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES LIKE 'shop'")
        if cursor.fetchone() is None:  # a folder that is used again has it
            for statement in (*create_statements(), *ROWS):
                cursor.execute(statement)


def _describe(server: Server, kind: str, kept: str | None) -> None:
    from tests.servers.programs import find_program

    client = [*find_program(kind).client, f"--host={server.host}", f"--port={server.port}", f"--user={server.user}"]
    script = server.directory / "client"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    script.chmod(0o755)
    own = Path(".venv/bin/shmstore").resolve()
    command = own if own.exists() else "shmstore"
    lines = [
        f"{server.flavor} {server.version} is up, pid {server.pid}",
        f"  host {server.host}, port {server.port}, user {server.user}, no password",
        f"  folder    {server.directory} ({'kept' if kept else 'removed'} at the end); log: error.log",
    ]
    if find_program(kind).client:
        lines.append(f"  client    {script}")
    lines += [
        f"  produce   {command} produce --host {server.host} --port {server.port} --user {server.user} --store orders",
        "Ctrl-C stops it.",
    ]
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
