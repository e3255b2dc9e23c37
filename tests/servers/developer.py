"""`scripts/servers`: one database server for a developer, until Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.servers.programs import find_program
from tests.servers.server import Server, ServerUnavailable, start_server

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
  scripts/servers mysql --port 3310 --dir ./data    the same data the next time
  scripts/servers mariadb -- --log-bin-compress=ON  what follows -- goes to the server

Then, in another terminal, start the producer with the command that is printed, write rows with
the printed client, and read them: shmstore tail orders --format json
"""


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
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: asked.set())
    try:
        with start_server(arguments.kind, arguments.option, kept, arguments.port) as server:
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


def _describe(server: Server, kind: str, kept: str | None) -> None:
    client = [*find_program(kind).client, f"--host={server.host}", f"--port={server.port}", f"--user={server.user}"]
    script = server.directory / "client"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    script.chmod(0o755)
    here = Path(".").resolve()
    lines = [
        f"{server.flavor} {server.version} is up, pid {server.pid}",
        f"  host {server.host}, port {server.port}, user {server.user}, no password",
        f"  folder    {server.directory} ({'kept' if kept else 'removed'} at the end); log: error.log",
    ]
    if find_program(kind).client:
        lines.append(f"  client    {script}")
    lines += [
        f"  produce   {here}/.venv/bin/shmstore produce --host {server.host} --port {server.port} --user {server.user} --store orders",
        "Ctrl-C stops it.",
    ]
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
