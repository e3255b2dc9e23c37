"""Tools that change a table's schema while it is written to: Percona's own pt-online-schema-change, and the statements of gh-ost."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

from tests.servers.packages import unpacked
from tests.servers.server import Server


def pt_online_schema_change(server: Server, database: str, table: str, change: str) -> None:
    """Run it, out of the system's package archive: it makes a second table, triggers, copies in chunks, swaps the names."""
    root = unpacked("percona-toolkit")
    libraries = [str(path) for part in ("lib", "usr/lib") for path in sorted(root.glob(f"{part}/*-linux-*"))]
    modules = [
        root / "usr/share/perl5",
        *root.glob("usr/lib/*/perl5/*"),
        *root.glob("usr/share/perl/*"),
        *root.glob("usr/lib/*/perl/*"),
    ]
    loader = next(iter([*root.glob("lib64/ld-linux-*"), *root.glob("lib/ld-linux-*"), *root.glob("usr/lib*/ld-linux-*")]))
    command = [
        str(loader),
        "--library-path",
        ":".join(libraries),
        str(root / "usr/bin/perl"),
        str(root / "usr/bin/pt-online-schema-change"),
    ]
    where = f"h=127.0.0.1,P={server.port},u={server.user},p={server.password},D={database},t={table}"
    more = [
        "--alter",
        change,
        "--execute",
        "--no-version-check",
        "--recursion-method=none",
        "--chunk-size=500",
        "--no-check-plan",
    ]
    plugins = next(root.glob("usr/lib/*/libmariadb3/plugin"))
    environment = {
        **os.environ,
        "MARIADB_PLUGIN_DIR": str(plugins),
        "PERL5LIB": ":".join(map(str, modules)),
        "LC_ALL": "C",
        "HOME": str(Path("/nonexistent")),
    }
    done = subprocess.run([*command, where, *more], capture_output=True, text=True, env=environment, timeout=240)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])


def gh_ost_statements(server: Server, database: str, table: str, change: str) -> None:
    """Do what gh-ost does: a ghost table, its log, rows copied in chunks, and an atomic swap behind a lock.

    What it takes from the binlog meanwhile is taken from the table itself here, under the lock. To readers of the binlog these are the same
    kinds of events of the same tables.
    """
    ghost, log, old = f"_{table}_gho", f"_{table}_ghc", f"_{table}_del"
    with server.connect(database=database) as connection, server.connect(database=database) as other:
        cursor, swap = connection.cursor(), other.cursor()
        cursor.execute(
            f"create /* gh-ost */ table `{database}`.`{log}` (id bigint unsigned auto_increment, last_update timestamp not null "
            "DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, hint varchar(64) not null, value varchar(4096) not null, "
            "primary key(id), unique key hint_uidx(hint)) auto_increment=256"
        )
        cursor.execute(f"create /* gh-ost */ table `{database}`.`{ghost}` like `{database}`.`{table}`")
        cursor.execute(f"alter /* gh-ost */ table `{database}`.`{ghost}` {change}")
        cursor.execute(f"select id from `{table}` order by id")
        keys = [row[0] for row in cursor.fetchall()]
        names = "`id`, `n`, `t`"
        for at in range(0, len(keys), 1000):
            some = keys[at : at + 1000]
            cursor.execute(
                f"insert /* gh-ost */ into `{log}` (hint, value) values ('copy {at}', 'rows') on duplicate key update value = 'rows'"
            )
            cursor.execute(
                f"insert /* gh-ost `{database}`.`{table}` */ ignore into `{database}`.`{ghost}` ({names}) (select {names} from "
                f"`{database}`.`{table}` force index (`PRIMARY`) where id >= {some[0]} and id <= {some[-1]} lock in share mode)"
            )
        cursor.execute(
            f"create /* gh-ost */ table `{database}`.`{old}` (id int auto_increment primary key) comment='ghost-cut-over-sentry'"
        )
        cursor.execute(f"lock /* gh-ost */ tables `{database}`.`{table}` write, `{database}`.`{old}` write")
        cursor.execute(f"select {names} from `{table}`")
        rows = cursor.fetchall()
        swap.execute(f"delete from `{ghost}`")
        swap.executemany(
            f"replace /* gh-ost `{database}`.`{table}` */ into `{database}`.`{ghost}` ({names}) values (%s, %s, %s)", rows
        )
        swapped = threading.Thread(
            target=swap.execute,
            args=(
                f"rename /* gh-ost */ table `{database}`.`{table}` to `{database}`.`{old}`, `{database}`.`{ghost}` to `{database}`.`{table}`",
            ),
        )
        swapped.start()
        _wait_until_blocked(server)
        cursor.execute(f"drop /* gh-ost */ table if exists `{database}`.`{old}`")
        _wait_until_blocked(server)  # by the other of the two now: so it goes before the writers that wait for that
        cursor.execute("unlock tables")
        swapped.join()
        cursor.execute(f"drop /* gh-ost */ table if exists `{database}`.`{log}`")
        cursor.execute(f"drop /* gh-ost */ table if exists `{database}`.`{old}`")


def _wait_until_blocked(server: Server) -> None:
    """Wait until the RENAME waits for a lock, and continues waiting."""
    until, seen = time.monotonic() + 60, 0
    with server.connect() as connection, connection.cursor() as cursor:
        while time.monotonic() < until and seen < 5:
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'rename /* gh-ost%%' AND state LIKE 'Waiting%%'"
            )
            seen = seen + 1 if cursor.fetchone()[0] else 0
            time.sleep(0.05)
    if seen < 5:
        raise RuntimeError("the RENAME does not wait")
