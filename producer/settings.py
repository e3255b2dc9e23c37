"""The producer's options: one dataclass, from whose fields flags, environment variables and the TOML file follow (`settings_sources`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shmstore.errors import did_you_mean
from shmstore.event import Position
from shmstore.patterns.table_patterns import FORMS
from shmstore.producer import gtid
from shmstore.producer.errors import SettingsError
from shmstore.producer.filters import OPERATIONS
from shmstore.start_position import parse_start
from shmstore.units import duration, size

if TYPE_CHECKING:
    from shmstore.producer.filters.renaming import Renaming
    from shmstore.producer.filters.table_filter import TableFilter

# The options in groups, as help and documentation show them. Each stands in one.
GROUPS = {
    "The five that matter first": "host user store include snapshot",
    "Connection": "name port password password_file password_command tls tls_ca tls_cert tls_key server_id connect_timeout read_timeout heartbeat "
    "retry_first retry_longest",
    "Position": "binlog start gtid on_purged",
    "Tables and columns": "exclude client_filters rename rename_origin "
    "row_filter ghost_tables column_include column_exclude column_mask column_hash hash_key operations "
    "rows_query statements row_image on_error schema_history",
    "Transactions": "transaction_events transaction_bytes empty_events empty_seconds merge_wait",
    "Store": "state store_path store_group store_checksum capacity memory_unit batch_mode ddl_isolation log log_keep log_size "
    "lag evict_after",
    "Trouble": "on_problem",
    "Snapshot": "new_tables snapshot_connections snapshot_chunk",
}

#: The options that say what of the server's changes is read. They alone can change while the producer runs.
FILTERS = (
    *("include", "exclude", "row_filter", "ghost_tables", "operations"),
    *("column_include", "column_exclude", "column_mask", "column_hash"),
)

#: Options whose values are secret: they have no flag, and are never logged.
SECRETS = ("password", "hash_key")


class ServerAddress(NamedTuple):
    """Where a server answers."""

    host: str
    port: int

    @property
    def where(self) -> str:
        """``HOST:PORT``, as messages name the server."""
        return f"{self.host}:{self.port}"


def _option(default: Any, help_: str, *, choices: tuple[str, ...] = (), low: float = -math.inf, flag: bool = True) -> Any:
    metadata = {"help": help_, "choices": choices, "low": low, "flag": flag}
    if isinstance(default, tuple):
        return field(default=default, metadata=metadata)
    return field(default=default, metadata=metadata, repr=flag)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one producer. Raises `SettingsError` where a value is not allowed."""

    store: str = _option("", "name of the store to write to; created if it does not exist")
    name: str = _option("", "name of this source, as stat shows it; empty: the server's address")
    # ---- connection
    host: str = _option("127.0.0.1", "server to read from, or several to fail over between: HOST[:PORT],HOST[:PORT]")
    port: int = _option(3306, "port of hosts that are given without one", low=1)
    user: str = _option(
        "root",
        "account to log in with; it needs REPLICATION SLAVE and REPLICATION CLIENT (MariaDB: BINLOG MONITOR), and SELECT for snapshots",
    )
    password: str = _option("", "password of the account (environment or file only)", flag=False)
    password_file: str = _option("", "file that holds the password; read again at each connection")
    password_command: str = _option(
        "",
        "shell command that prints the password, such as a cloud's token; run for each connection, with the server in $SHMSTORE_HOST, "
        "$SHMSTORE_PORT and $SHMSTORE_USER; it has 30 seconds",
    )
    tls: str = _option(
        "preferred",
        "encryption of the connection",
        choices=("disabled", "preferred", "required", "verify-ca", "verify-identity"),
    )
    tls_ca: str = _option("", "certificate authorities to trust (PEM file)")
    tls_cert: str = _option("", "the client's certificate (PEM file)")
    tls_key: str = _option("", "key of the client's certificate (PEM file)")
    server_id: int = _option(0, "replica id, different from every other replica's; 0: derived from the store", low=0)
    connect_timeout: float = _option(10.0, "seconds to wait for a connection", low=0.1)
    read_timeout: float = _option(30.0, "seconds without data or heartbeat after which a connection counts as broken", low=1)
    heartbeat: float = _option(1.0, "seconds between the heartbeats that an idle server sends", low=0.1)
    retry_first: float = _option(0.1, "seconds before the first attempt to reconnect; doubled each time", low=0)
    retry_longest: float = _option(30.0, "most seconds between two attempts to reconnect", low=0.1)
    # ---- position
    binlog: str = _option("", "local binlog file, or folder of them, to read instead of a server")
    start: str = _option(
        "latest",
        "where to begin if there is nothing to continue from: latest, earliest, FILE:OFFSET, a GTID set (or gtid:SET) or an ISO time "
        "(or time:TIME; UTC, unless it names a zone; one that has not come yet means latest)",
    )
    gtid: str = _option(
        "auto",
        "how to follow the position: by GTID if the server has them (auto), or by file and offset only (off)",
        choices=("auto", "off"),
    )
    on_purged: str = _option(
        "fail",
        "if the server has deleted the binlog that comes next: stop (fail), continue with the newest or oldest event it has (latest, "
        "earliest), or continue with the newest and read all tables again (snapshot; rows deleted meanwhile stay in readers' copies)",
        choices=("fail", "latest", "earliest", "snapshot"),
    )
    snapshot: str = _option(
        "never",
        "initial: a new store also gets the rows of all tables, read while streaming continues; `shmstore snapshot` asks for tables at "
        "any time",
        choices=("never", "initial"),
    )
    new_tables: str = _option(
        "stream",
        "a table that changed filters let in, or whose rows or columns they change, and one that a RENAME brings in: read its changes from "
        "then on (stream), or read its rows first, as `shmstore snapshot` does (snapshot)",
        choices=("stream", "snapshot"),
    )
    snapshot_connections: int = _option(
        0, "connections that read a snapshot's tables at once; 0: a tenth of those that the server has free, from 1 to 4", low=0
    )
    snapshot_chunk: int = _option(
        0, "rows of a snapshot that are read at a time, at most; 0: as many as 8 MiB hold and half a second brings", low=0
    )
    # ---- tables and columns
    include: tuple[str, ...] = _option((), f"tables to read: {FORMS}; none: all tables")
    exclude: tuple[str, ...] = _option((), "tables to leave out, by the same patterns; wins over include")
    client_filters: str = _option(
        "narrow",
        "what the filter of a client of canal's protocol means: the tables that it gets of those that are read (narrow); or, as in Canal, which "
        "tables are read: those of include and all that any client's filter names, but for exclude (replace). A client that logs in to "
        "`shmstore serve` then decides what is read",
        choices=("narrow", "replace"),
    )
    rename: tuple[str, ...] = _option(
        (),
        r"give tables another name for readers, as 'shop_(\d+)\.orders_(\d+) -> shop.orders', which makes one table of many (once for each; the first "
        "that matches DATABASE.TABLE holds). Filters and conditions know tables by the server's names. The tables must be alike",
    )
    rename_origin: str = _option(
        "",
        "name of a column that is added to renamed tables: DATABASE.TABLE that the row is from. It becomes a part of the primary key",
    )
    row_filter: tuple[str, ...] = _option(
        (),
        "which rows of tables to read, as \"shop.orders: country = 'DE' AND total >= 100\" (once for each): = <> < <= > >= IN, BETWEEN, LIKE, "
        "IS NULL, AND, OR, NOT; text is compared exactly, case and spaces too, times of a TIMESTAMP in UTC. A row that a change takes out "
        "of the filter is deleted, one that it brings in is inserted. Needs binlog_row_image = FULL",
    )
    column_include: tuple[str, ...] = _option(
        (), "columns to keep: the same patterns on DATABASE.TABLE.COLUMN; none: all columns"
    )
    column_exclude: tuple[str, ...] = _option((), "columns to leave out")
    column_mask: tuple[str, ...] = _option((), "columns whose values are replaced by ***")
    column_hash: tuple[str, ...] = _option((), "columns whose values are replaced by their SHA-256 in hex (HMAC with hash_key)")
    hash_key: str = _option("", "secret key for column_hash (environment or file only)", flag=False)
    operations: tuple[str, ...] = _option(OPERATIONS, "kinds of change to keep, separated by commas")
    ghost_tables: str = _option(
        "drop",
        "tables beside T that gh-ost and pt-online-schema-change work on (_T_gho, _T_ghc, _T_del, _T_new, _T_old): leave them out (drop), so "
        "that T alone is seen to change, or read them like others (keep)",
        choices=("drop", "keep"),
    )
    rows_query: bool = _option(False, "keep the statement behind a change in the event's props, if the server logs it")
    statements: str = _option(
        "fail",
        "changes logged as statements instead of rows: stop (fail), or keep their text as QUERY (pass)",
        choices=("fail", "pass"),
    )
    row_image: str = _option(
        "full",
        "binlog_row_image that the server must have; a column that the binlog leaves out all the same is absent, not NULL",
        choices=("full", "any"),
    )
    on_error: str = _option(
        "stop", "an event that cannot be decoded: stop, or skip it, log it and count it", choices=("stop", "skip")
    )
    schema_history: str = _option(
        "auto",
        "learn column names from DDLs and keep them in a file; auto: unless binlog_row_metadata is FULL (the server is then "
        "asked how columns are defined); now: once, where rows do not fit what was followed, read them with the server's present tables: columns of one "
        "type that were renamed, or changed names, before the start do not show, so start behind such a DDL",
        choices=("auto", "on", "off", "now"),
    )
    on_problem: str = _option(
        "",
        "shell command that is run once when a problem begins (no link to the server, no free space, the producer ended with an error) and once "
        "when it ends, with a JSON document on its standard input (event, problem, store, source, what, fix, since, time); or the http:// or "
        "https:// address that the document is posted to; each has 30 seconds. Where an address is secret, give it in the environment or the file",
    )
    # ---- transactions
    transaction_events: int = _option(4096, "events of a transaction that are kept together; a larger one comes in parts", low=1)
    transaction_bytes: int = _option(
        4 << 20, "bytes of a transaction that are kept together; a larger one comes in parts", low=1024
    )
    empty_events: int = _option(8192, "emit one in N transactions emptied by filters, to record progress", low=1)
    empty_seconds: float = _option(5.0, "emit one at least this often, where there are any", low=0)
    merge_wait: float = _option(
        1.0, "several sources in one store: seconds to wait for a silent one before emitting newer events of the others", low=0.01
    )
    # ---- store
    state: str = _option(
        "",
        "folder of stores' homes: logs, what readers have acked, schema histories; empty: $SHMSTORE_STATE, or ~/.local/state/shmstore",
    )
    store_path: str = _option("", "file to keep the store in, instead of shared memory")
    store_group: str = _option("", "group whose members may use the new store too; empty: only its owner")
    store_checksum: bool = _option(False, "add a CRC-32 to each event of the new store; always with store_path")
    capacity: int = _option(
        0, "most events that the store's ring holds, a power of two; 0: as many as it has, 16384 in a new one", low=0
    )
    memory_unit: int = _option(0, "bytes of memory for each of these events; 0: as many as it has, 1024 in a new one", low=0)
    batch_mode: str = _option(
        "MEMSIZE", "what limits the new store: events and bytes, or events only (ITEMSIZE)", choices=("MEMSIZE", "ITEMSIZE")
    )
    ddl_isolation: bool = _option(False, "give readers of the new store each DDL in a batch of its own")
    log: str = _option(
        "on",
        "keep the new store's events on disk too, in its folder in `state`: slow readers read on there, and after a reboot everything "
        "is as it was (on); or the ring alone, which forgets (off)",
        choices=("on", "off"),
    )
    log_keep: str = _option(
        "",
        "how long the log keeps events that every reader has acked: 90m, 24h, 7d, or seconds; empty: as long as now, 24h in a new one",
    )
    log_size: str = _option(
        "",
        "most bytes of the log, as 500m or 10g; what was acked goes earlier then, and `lag` decides about the rest; empty: as many as now, "
        "10g in a new one",
    )
    lag: str = _option(
        "block",
        "when a reader is so far behind that the log (without one: the ring) is full: the producer waits, or marks the reader lost (evict)",
        choices=("block", "evict"),
    )
    evict_after: float = _option(30.0, "seconds that the producer waits before it marks a reader lost", low=0)

    def __post_init__(self) -> None:
        if not self.store:
            raise SettingsError("no store is named: give --store NAME (or store = in the TOML file)")
        for option in fields(self):
            value, meta = getattr(self, option.name), option.metadata
            if meta["choices"] and value not in meta["choices"]:
                near = did_you_mean(value, meta["choices"])
                raise SettingsError(f"{option.name} is {value!r}; allowed: {', '.join(meta['choices'])}{near}")
            if isinstance(value, int | float) and not value >= meta["low"]:
                raise SettingsError(f"{option.name} is {value}; it must be at least {meta['low']:g}")
        if self.capacity == 1 or self.capacity & (self.capacity - 1):
            raise SettingsError(f"capacity is {self.capacity}; it must be a power of two, such as 16384")
        for name, read in (("log_keep", duration), ("log_size", size)):
            try:
                if getattr(self, name):
                    read(getattr(self, name))
            except ValueError as error:
                raise SettingsError(f"{name} is {error}") from error
        if self.server_id >= 2**32:
            raise SettingsError(f"server_id is {self.server_id}; it must be below 4294967296")
        if self.binlog and (self.snapshot != "never" or self.on_purged == "snapshot"):
            raise SettingsError(
                "local binlog files hold no tables, so there can be no snapshot: leave out snapshot and on_purged, or binlog"
            )
        if self.password_command and (self.password_file or self.password):
            other = "password_file" if self.password_file else "password"
            raise SettingsError(f"password_command and {other} are both given: leave one out")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise SettingsError("tls_cert and tls_key go together: give both or neither")
        if self.tls in ("verify-ca", "verify-identity") and not self.tls_ca:
            raise SettingsError(f"tls is {self.tls!r}, but tls_ca names no file of certificate authorities")
        if isinstance(self.beginning, Position) and not self.beginning.file:
            if self.binlog:
                raise SettingsError(f"start is {self.start!r}, a GTID set: binlog files are read from FILE:OFFSET or from a time")
            try:
                gtid.parse(self.beginning.gtids)
            except ValueError as error:
                raise SettingsError(f"start is {self.start!r}: {error}") from error
        if self.row_filter and self.row_image != "full":
            raise SettingsError(
                f"row_image is {self.row_image!r}, but a row filter needs whole rows: leave out row_image, and SET GLOBAL binlog_row_image = FULL"
            )
        if self.rename and self.schema_history == "off":
            raise SettingsError("rename compares how tables are defined: leave out schema_history = off")
        self.endpoints()
        self.table_filter()
        self.renaming()

    @property
    def beginning(self) -> str | Position | datetime:
        """What `start` names: "latest", "earliest", a position (a file, or GTIDs alone) or a time. Raises `SettingsError`."""
        try:
            found = parse_start(self.start, sequences=False)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        return str(found) if isinstance(found, int) else found

    def endpoints(self) -> tuple[ServerAddress, ...]:
        """Return the servers, in order of preference."""
        found = []
        for part in self.host.split(","):
            host, port = part.strip(), str(self.port)
            if host.startswith("["):
                host, _, rest = host[1:].partition("]")
                port = rest[1:] or port
            elif host.count(":") == 1:
                host, _, port = host.partition(":")
            if not host or not port.isascii() or not port.isdigit():
                raise SettingsError(f"host is {self.host!r}: {part.strip()!r} is not HOST[:PORT]")
            if not 0 < int(port) < 65536:
                raise SettingsError(f"port is {port}: give 1 to 65535")
            found.append(ServerAddress(host, int(port)))
        return tuple(found)

    def table_filter(self, left_out: Callable[[str, str], None] | None = None) -> TableFilter:
        """Return a new filter for these options; `left_out`: as `TableFilter` has it."""
        from shmstore.producer.filters.table_filter import TableFilter  # which loads numpy: not for --help

        columns = {name: getattr(self, name) for name in ("column_include", "column_exclude", "column_mask", "column_hash")}
        return TableFilter(
            include=self.include,
            exclude=self.exclude,
            operations=self.operations,
            hash_key=self.hash_key,
            row_filter=self.row_filter,
            ghost_tables=self.ghost_tables,
            left_out=left_out,
            **columns,
        )

    def renaming(self) -> Renaming:
        """Return the rules for the names of tables."""
        from shmstore.producer.filters.renaming import Renaming

        return Renaming(self.rename, self.rename_origin)

    def secret(self) -> str:
        """Return the password, read again from its file if one is named. Raises `SettingsError`."""
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"password_file {self.password_file!r} cannot be read: {error}") from error
