"""Checks a server and an account before use: each finding says what is set, what is wanted, and the SQL that fixes it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from shmstore import EventStore, Position, SourceError, StoreError, StoreNotFound, StoreView
from shmstore.home.acks import checkpoints_in
from shmstore.home.home import Home
from shmstore.native import pure_python
from shmstore.producer.connection.dump import replica_id
from shmstore.producer.connection.server import SourceServer, binlog_files, log_end, read_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.errors import PrivilegeMissing
from shmstore.producer.filters.fit import unfit_row_filters
from shmstore.producer.filters.unused import unused_patterns
from shmstore.producer.pipeline.retention import SHORT_HOURS, file_after, kept_seconds
from shmstore.producer.positions.gtid_position import answered
from shmstore.producer.positions.scan import file_begins
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.tables import (
    VisibleTables,
    list_tables,
    may_hide_columns,
    may_select,
    quoted,
    require_all_columns,
)
from shmstore.producer.start.choose import check_position
from shmstore.producer.start.resume import lowest
from shmstore.store.remembered import describe_home


class Finding(NamedTuple):
    """One check's outcome. `state` is ``ok``, ``warn`` or ``fail``; `fix` is SQL or what to do, empty when ok."""

    check: str
    state: str
    found: str
    wanted: str = ""
    fix: str = ""


def check_server(settings: Settings) -> list[Finding]:
    """Return the findings for the first server of the list. Raises `SourceError` when it cannot be asked."""
    session = connect(settings, settings.endpoints()[0])
    try:
        server = read_server(session)
        findings = [Finding("server", "ok", f"{server.flavor} {server.version} at {server.endpoint.where}")]
        if service := server.service:
            found = f"{service.name}: its parameters take the place of SET GLOBAL; no SUPER, RELOAD, FLUSH or lock is needed"
            findings.append(Finding("managed service", "ok", found))
        if slow := pure_python():
            findings.append(Finding("code", "warn", slow.partition("; ")[0], "compiled code", slow.partition("; ")[2]))
        findings += _binlog(server, settings)
        findings += _identity(session, server, settings)
        if server.variables.get("log_bin") == "ON":  # without one the server refuses to say what these ask
            findings += _account(session)
            findings += _large_events(session, server)
            findings += _snapshots(session, server, settings)
            findings += _row_filters(session, settings)
            findings += _patterns(session, settings)
            findings += _retention(session, server, settings)
        return [each._replace(fix=service.fix(each.fix)) for each in findings] if service else findings
    finally:
        session.close()


def tables_of(settings: Settings) -> list[tuple[str, str]]:
    """Return (database, table) of all tables that the account sees. Raises `SourceError` when the server cannot be asked."""
    session = connect(settings, settings.endpoints()[0])
    try:
        return list_tables(session, lambda database, table: True)
    finally:
        session.close()


def _is(server: SourceServer, name: str, wanted: str, fix: str, *, state: str = "fail", missing: str = "missing") -> Finding:
    found = server.variables.get(name, missing)
    return Finding(name, "ok", found) if found == wanted else Finding(name, state, found, wanted, fix)


def _binlog(server: SourceServer, settings: Settings) -> list[Finding]:
    have = server.variables
    findings = [_is(server, "log_bin", "ON", "set log_bin = binlog and server_id = 1 under [mysqld], then restart the server")]
    findings.append(_is(server, "binlog_format", "ROW", server.lasting("binlog_format", "ROW"), missing="ROW"))
    image = "fail" if settings.row_image == "full" else "warn"
    findings.append(
        _is(server, "binlog_row_image", "FULL", server.lasting("binlog_row_image", "FULL"), state=image, missing="FULL")
    )
    metadata = "fail" if settings.schema_history == "off" else "warn"  # a history is right only from where it begins
    fix = server.lasting("binlog_row_metadata", "FULL")
    if "binlog_row_metadata" not in have:  # before MySQL 8.0.1 and MariaDB 10.5
        fix = "this server cannot log column names: follow its DDLs, with schema_history = auto"
    findings.append(_is(server, "binlog_row_metadata", "FULL", fix, state=metadata))
    findings.append(_is(server, "binlog_checksum", "CRC32", server.lasting("binlog_checksum", "CRC32"), state="warn"))
    if server.mariadb:
        findings.append(Finding("compression", "ok", f"log_bin_compress = {have.get('log_bin_compress', 'OFF')}"))
    else:
        compression = have.get("binlog_transaction_compression", "OFF")
        findings.append(Finding("compression", "ok", f"binlog_transaction_compression = {compression}"))
        fix = (
            "SET GLOBAL gtid_mode = OFF_PERMISSIVE; SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL enforce_gtid_consistency = ON; "
            "SET GLOBAL gtid_mode = ON; -- and, as a restart of the server ends that, in its option file under [mysqld]: both = ON"
        )
        if server.version.startswith("5.6."):
            fix = (
                "set gtid_mode = ON, enforce_gtid_consistency = ON and log_slave_updates under [mysqld], then restart the server"
            )
        findings.append(_is(server, "gtid_mode", "ON", fix, state="warn"))  # without it there is no failover
    zone = have.get("time_zone", "SYSTEM")
    findings.append(Finding("time_zone", "ok", zone if zone != "SYSTEM" else f"SYSTEM ({have.get('system_time_zone', '')})"))
    return findings


def _identity(session: ServerSession, server: SourceServer, settings: Settings) -> list[Finding]:
    epoch, pid = _store_of(settings)
    theirs = server.variables.get("server_id", "0")
    if theirs == "0":
        return [Finding("server_id", "fail", "0", "not 0", "SET GLOBAL server_id = 1; and server_id = 1 under [mysqld]")]
    own = replica_id(settings, epoch) if settings.server_id or epoch is not None else 0
    ours = f"ours {own}" if own else "ours is chosen when the store is made"
    if str(own) == theirs:
        return [
            Finding(
                "server_id",
                "fail",
                f"our server id is the server's own: {own}",
                "another",
                "set the option server_id to a free number",
            )
        ]
    try:
        rows = session.query("SHOW SLAVE HOSTS" if server.mariadb else "SHOW REPLICAS")
    except SourceError:
        return [Finding("server_id", "ok", f"server {theirs}, {ours}; other replicas are not shown to this account")]
    ids = [str(row[0]) for row in rows]
    if str(own) in ids:
        if pid:
            return [Finding("server_id", "ok", f"server {theirs}, {ours}: the producer of store {settings.store!r}, pid {pid}")]
        fix = "stop the other producer of this store, or set the option server_id to a free number"
        return [Finding("server_id", "warn", f"a replica with our server id {own} is connected", "none", fix)]
    return [Finding("server_id", "ok", f"server {theirs}, {ours}, {len(ids)} other replicas")]


def _store_of(settings: Settings) -> tuple[int | None, int]:
    """The epoch of the store, None where there is none, and the process on this host that is its producer now, 0 where there is none."""
    with (
        suppress(StoreError, ValueError),
        StoreView.attach(settings.store, path=settings.store_path or None, restore=False) as store,
    ):
        stat = store.stat()
        return stat.epoch, stat.producer_pid if stat.producer_alive else 0
    with suppress(StoreError, ValueError):
        return describe_home(Home.of(settings.store, settings.state or None)).epoch, 0
    return None, 0


def _account(session: ServerSession) -> list[Finding]:
    user = str(session.query("SELECT CURRENT_USER()")[0][0])
    account = "@".join(f"'{part}'" for part in user.rsplit("@", 1))
    findings = []
    try:
        files = binlog_files(session)
        findings.append(Finding("privilege to see positions", "ok", user))
    except PrivilegeMissing:
        files = []
        privilege = "BINLOG MONITOR" if session.mariadb else "REPLICATION CLIENT"
        findings.append(
            Finding(
                "privilege to see positions",
                "fail",
                f"{user} lacks {privilege}",
                privilege,
                f"GRANT {privilege} ON *.* TO {account};",
            )
        )
    try:
        if files:
            file_begins(session, files[-1][0])
        findings.append(
            Finding("privilege to read the binlog", "ok" if files else "warn", user if files else f"not checked for {user}")
        )
    except SourceError as error:
        grant = f"GRANT REPLICATION SLAVE ON *.* TO {account};"
        findings.append(Finding("privilege to read the binlog", "fail", str(error), "REPLICATION SLAVE", grant))
    return findings


def _large_events(session: ServerSession, server: SourceServer) -> list[Finding]:
    """A MariaDB before 11 cannot say the GTIDs of a position behind an event larger than its max_allowed_packet."""
    if not server.mariadb:
        return []
    name, found = "max_allowed_packet", server.variables.get("max_allowed_packet", "unknown")
    try:
        end = log_end(session, server)
        if answered(session, end.file, end.offset) is not None:
            return [Finding(name, "ok", found)]
    except SourceError:
        return []  # a privilege is missing, as said above
    found = f"{found}, and {end.file} holds a larger event: to start behind it, unless at the latest position, the whole file must be read"
    return [Finding(name, "warn", found, "as large as the largest event", "SET GLOBAL max_allowed_packet = 1073741824;")]


def _snapshots(session: ServerSession, server: SourceServer, settings: Settings) -> list[Finding]:
    if settings.snapshot == "never" and settings.on_purged != "snapshot":
        return []
    name, findings = "snapshots", []
    if not server.gtids:
        mode = server.variables.get("gtid_mode", "OFF")
        findings.append(
            Finding(name, "fail", f"gtid_mode = {mode}", "ON", "turn GTIDs on, as shown above: a snapshot needs them")
        )
    account = "@".join(f"'{part}'" for part in str(session.query("SELECT CURRENT_USER()")[0][0]).rsplit("@", 1))
    if not may_select(session):
        findings.append(
            Finding(name, "fail", "the account cannot read any table", "SELECT", f"GRANT SELECT ON *.* TO {account};")
        )
    if may_hide_columns(session):
        findings += [
            Finding(
                name, "fail", f"the account may not read all columns of {table}", "all", f"GRANT SELECT ON {table} TO {account};"
            )
            for table in _partly_hidden(session, settings)
        ]
    return findings or [Finding(name, "ok", f"snapshot = {settings.snapshot}, on_purged = {settings.on_purged}")]


def _partly_hidden(session: ServerSession, settings: Settings) -> Iterator[str]:
    """The tables, quoted, of which the account may not read all columns."""
    for database, table in list_tables(session, settings.table_filter().passes):
        try:
            require_all_columns(session, database, table)
        except PrivilegeMissing:
            yield f"{quoted(database)}.{quoted(table)}"


def _row_filters(session: ServerSession, settings: Settings) -> list[Finding]:
    if not settings.row_filter:
        return []
    name = "row filters"
    wanted, fix = "tables and columns that are there", "correct the names in row_filter, or leave that filter out"
    found = [
        Finding(name, "fail" if each.stops else "warn", each.problem, wanted, fix)
        for each in unfit_row_filters(VisibleTables(session), settings.table_filter())
    ]
    return found or [Finding(name, "ok", ", ".join(settings.row_filter))]


def _patterns(session: ServerSession, settings: Settings) -> list[Finding]:
    wanted, fix = (
        "tables and columns that are there",
        "correct the pattern, or leave it as it is for tables that are still to come",
    )
    found = unused_patterns(VisibleTables(session), settings)
    return [Finding("patterns", "warn", problem, wanted, fix) for problem in found]


def _retention(session: ServerSession, server: SourceServer, settings: Settings) -> list[Finding]:
    try:
        files = binlog_files(session)
    except SourceError:
        return []
    size = sum(bytes_ for _, bytes_ in files)
    findings = [Finding("binlog size", "ok", f"{len(files)} files, {size / 1e9:.3f} GB, {files[0][0]} to {files[-1][0]}")]
    kept = kept_seconds(session, server)
    findings.append(_kept(server, kept))
    seconds = kept if kept is not None and math.isfinite(kept) else 0.0
    position = _start_position(settings)
    return findings if position is None else [*findings, _start(session, server, settings, files, seconds, position)]


def _kept(server: SourceServer, seconds: float | None) -> Finding:
    """For how long the server keeps its files. See `kept_seconds`."""
    if seconds is None:
        ask = f"{server.to_keep(72)} CALL mysql.rds_show_configuration;"
        return Finding("retention", "warn", "mysql.rds_configuration may not be read by this account", "24 hours or more", ask)
    if math.isinf(seconds):
        return Finding("retention", "ok", "no expiry: files stay until they are purged by hand")
    hours = seconds / 3600
    if hours >= SHORT_HOURS:
        return Finding("retention", "ok", f"{hours:.1f} hours")
    found = f"{hours:.1f} hours" if hours else "0 hours: files go as soon as the service itself needs them no more"
    return Finding("retention", "warn", found, "24 hours or more", server.to_keep(72))


def _start(
    session: ServerSession,
    server: SourceServer,
    settings: Settings,
    files: list[tuple[str, int]],
    seconds: float,
    position: Position,
) -> Finding:
    """Whether the server still has what comes after `position`, and for how long; `seconds` is how long it keeps files."""
    name, where = "start position", f"{position.file}:{position.offset}" if position.file else f"GTID {position.gtids}"
    try:
        check_position(settings, session, server, position)
    except SourceError as error:
        found, _, fix = str(error).partition("; ")
        fix = fix or "start again with a new store and start = earliest or latest"
        return Finding(name, "fail", found, "everything after it", fix)
    names = [name for name, _ in files]
    if not seconds or position.file not in names:
        return Finding(name, "ok", f"the server has everything after {where}")
    after = file_after(position.file, names)
    if after is None:
        return Finding(name, "ok", f"{where} is in the newest file")
    left = (file_begins(session, after) + seconds - time.time()) / 3600
    if left >= SHORT_HOURS / 2:
        return Finding(name, "ok", f"{where} is purged in {left:.1f} hours")
    fix = f"start the producer now, or {server.to_keep(168)}"
    return Finding(name, "warn", f"{where} is purged in {max(left, 0.0):.1f} hours", "", fix)


def _start_position(settings: Settings) -> Position | None:
    """Where a producer would start now, if that is a position."""
    try:
        with EventStore.attach(settings.store, path=settings.store_path or None, state=settings.state or None) as store:
            position = store.last_ack_point()
            if position is not None and position.of_group:
                return dict(position.sources).get(settings.name)
            if position is None:
                position = store.start_position  # nothing was put yet
            if position is not None:
                return position
    except StoreNotFound:
        pass
    home = StoreView.home_of(settings.store, path=settings.store_path or None, state=settings.state or None)
    position = lowest(checkpoint.position for checkpoint in checkpoints_in(home).values())
    if position is not None:
        return position
    return settings.beginning if isinstance(settings.beginning, Position) else None
