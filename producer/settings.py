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
    password_file: str = _option("", "file with the password; read again at each connection")
    password_command: str = _option(
        "",
        "shell command that prints the password, such as a cloud's token; run for each connection, for at most 30 seconds, with the "
        "server in $SHMSTORE_HOST, $SHMSTORE_PORT and $SHMSTORE_USER",
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
    binlog: str = _option("", "local binlog file, or folder of binlog files, to read instead of a server")
    start: str = _option(
        "latest",
        "where to begin if there is nothing to continue from: latest, earliest, FILE:OFFSET, a GTID set (or gtid:SET) or an ISO time "
        "(or time:TIME; UTC, unless it names a zone; a future time means latest)",
    )
    gtid: str = _option(
        "auto",
        "how to follow the position: by GTID if the server has GTIDs (auto), or by file and offset only (off)",
        choices=("auto", "off"),
    )
    on_purged: str = _option(
        "fail",
        "if the server has deleted the next binlog: stop (fail), continue with the server's newest or oldest event (latest, "
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
        "when new filters, or a RENAME, let a table in, or new filters change its rows or columns: read its changes from then on "
        "(stream), or first read its rows, as `shmstore snapshot` does (snapshot)",
        choices=("stream", "snapshot"),
    )
    snapshot_connections: int = _option(
        0, "connections that read a snapshot's tables at once; 0: a tenth of the server's free connections, from 1 to 4", low=0
    )
    snapshot_chunk: int = _option(0, "most rows in a chunk of a snapshot; 0: as many as fit into 8 MiB and half a second", low=0)
    # ---- tables and columns
    include: tuple[str, ...] = _option((), f"tables to read: {FORMS}; none: all tables")
    exclude: tuple[str, ...] = _option((), "tables to leave out: the same patterns; wins over include")
    client_filters: str = _option(
        "narrow",
        "effect of the filters of Canal's clients: each client gets only its tables of those that the producer reads (narrow); or, "
        "as in Canal, the producer reads the tables of include and of every client's filter, except exclude (replace): then clients "
        "that log in to `shmstore serve` decide what is read",
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
        "rows to read of a table, such as \"shop.orders: country = 'DE' AND total >= 100\" (once for each table): = <> < <= > >= IN, "
        "BETWEEN, LIKE, IS NULL, AND, OR, NOT. Text is compared exactly, with case and spaces, a TIMESTAMP in UTC. A change that "
        "takes a row out of the filter arrives as a DELETE, one that brings it in as an INSERT. Needs binlog_row_image = FULL",
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
        "working tables of gh-ost and pt-online-schema-change (_T_gho, _T_ghc, _T_del, _T_new, _T_old): leave them out, so that "
        "readers see only T change (drop), or read them like other tables (keep)",
        choices=("drop", "keep"),
    )
    rows_query: bool = _option(False, "keep the statement that caused a change in the event's props, if the server logs it")
    statements: str = _option(
        "fail",
        "changes logged as statements instead of rows: stop (fail), or keep their text as QUERY (pass)",
        choices=("fail", "pass"),
    )
    row_image: str = _option(
        "full",
        "binlog_row_image that the server must have; a column that is missing in the binlog nevertheless is absent, not NULL",
        choices=("full", "any"),
    )
    on_error: str = _option(
        "stop", "an event that cannot be decoded: stop, or skip it, log it and count it", choices=("stop", "skip")
    )
    schema_history: str = _option(
        "auto",
        "follow the DDLs, and keep the tables' definitions in a file; auto: only if binlog_row_metadata is not FULL (with FULL the "
        "server is asked for definitions); now: once, for rows that do not fit the history, use the server's present tables. This is "
        "wrong if columns of the same type were renamed or swapped after the start position, so start after such a DDL",
        choices=("auto", "on", "off", "now"),
    )
    on_problem: str = _option(
        "",
        "shell command to run, or http:// or https:// address to post to, once when a problem begins (no link to the server, no free "
        "space, the producer ended with an error) and once when it ends. It gets a JSON document (event, problem, store, source, "
        "what, fix, since, time), a command on its standard input, and has 30 seconds. Put a secret address into the environment or "
        "the file",
    )
    # ---- transactions
    transaction_events: int = _option(
        4096, "most events of a transaction that are kept together; a larger transaction comes in parts", low=1
    )
    transaction_bytes: int = _option(
        4 << 20, "most bytes of a transaction that are kept together; a larger transaction comes in parts", low=1024
    )
    empty_events: int = _option(8192, "keep one in N transactions that filters left empty, to record progress", low=1)
    empty_seconds: float = _option(5.0, "keep an empty transaction at least this often, if there are any", low=0)
    merge_wait: float = _option(
        1.0,
        "with several sources in one store: seconds to wait for a silent source before newer events of the others are put",
        low=0.01,
    )
    # ---- store
    state: str = _option(
        "",
        "folder of stores' homes (log, acks, schema history); empty: $SHMSTORE_STATE, or ~/.local/state/shmstore",
    )
    store_path: str = _option("", "file to keep the store in, instead of shared memory")
    store_group: str = _option("", "group whose members may use the new store, too; empty: only its owner")
    store_checksum: bool = _option(False, "add a CRC-32 to each event of the new store; always with store_path")
    capacity: int = _option(0, "most events in the store's ring, a power of two; 0: unchanged, 16384 for a new store", low=0)
    memory_unit: int = _option(0, "bytes of memory for each of these events; 0: unchanged, 1024 for a new store", low=0)
    batch_mode: str = _option(
        "MEMSIZE",
        "what limits the ring of the new store: events and bytes, or events only (ITEMSIZE)",
        choices=("MEMSIZE", "ITEMSIZE"),
    )
    ddl_isolation: bool = _option(False, "readers of the new store get each DDL in a separate batch")
    log: str = _option(
        "on",
        "keep the new store's events on disk, too, in its home: slow readers read them there, and after a reboot the store is "
        "restored (on); or keep only the ring (off)",
        choices=("on", "off"),
    )
    log_keep: str = _option(
        "",
        "how long the log keeps events that every reader has acked: 90m, 24h, 7d, or seconds; empty: unchanged, 24h for a new store",
    )
    log_size: str = _option(
        "",
        "most bytes of the log, such as 500m or 10g; when they are used up, acked events are removed earlier, and `lag` decides "
        "about the rest; empty: unchanged, 10g for a new store",
    )
    lag: str = _option(
        "block",
        "when the log (without one: the ring) is full because a reader is far behind: the producer waits (block), or marks the "
        "reader lost (evict)",
        choices=("block", "evict"),
    )
    evict_after: float = _option(30.0, "with lag = evict: seconds that the producer waits before it marks a reader lost", low=0)

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
