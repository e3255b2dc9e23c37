"""The producer's options: one dataclass drives flags, environment variables and the TOML file.

An option `read_timeout` is the flag ``--read-timeout``, the variable ``SHMSTORE_READ_TIMEOUT`` and the TOML key
``read_timeout`` in ``[producer]`` (for every source) or ``[source.NAME]`` (for one). A flag wins over a variable, a
variable over the file, the file over the default. Unknown keys are refused. The password has no flag: a process list
shows flags.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
import os
import stat
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from shmstore.arguments import LOG, SECTIONS, duration, size
from shmstore.errors import did_you_mean
from shmstore.event import Position
from shmstore.patterns.table_patterns import FORMS
from shmstore.producer import gtid
from shmstore.producer.errors import SettingsError
from shmstore.producer.filters.table_filter import OPERATIONS, TableFilter
from shmstore.start_position import parse_start

PREFIX = "SHMSTORE_"

# The options in groups, as help and documentation show them. Each stands in one.
GROUPS = {
    "The five that matter first": "host user store include snapshot",
    "Connection": "name port password password_file password_command tls tls_ca tls_cert tls_key server_id connect_timeout read_timeout heartbeat "
    "retry_first retry_longest",
    "Position": "binlog start gtid on_purged",
    "Tables and columns": "exclude row_filter ghost_tables column_include column_exclude column_mask column_hash hash_key operations "
    "rows_query statements row_image on_error schema_history",
    "Transactions": "transaction_events transaction_bytes empty_events empty_seconds merge_wait",
    "Store": "state store_path store_group store_checksum capacity memory_unit batch_mode ddl_isolation log log_keep log_size "
    "lag evict_after",
    "Snapshot": "snapshot_connections snapshot_chunk",
}


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
        "(or time:TIME; UTC, unless it names a zone)",
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
        "initial: a new store also gets the rows of all tables, read while streaming goes on; `shmstore snapshot` asks for tables at "
        "any time",
        choices=("never", "initial"),
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
        "asked how columns are defined); now: once, where rows do not fit what was followed, read them with the server's present tables",
        choices=("auto", "on", "off", "now"),
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
        self.endpoints()
        self.table_filter()

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

    def secret(self) -> str:
        """Return the password, read again from its file if one is named. Raises `SettingsError`."""
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"password_file {self.password_file!r} cannot be read: {error}") from error


_HINTS = typing.get_type_hints(Settings)
_SECRETS = [option.name for option in fields(Settings) if not option.metadata["flag"]]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add every option as a flag, in `GROUPS`, and ``--config FILE`` and ``--source NAME``. What is not given is None."""
    for title, names in GROUPS.items():
        options = [Settings.__dataclass_fields__[name] for name in names.split()]
        secrets = [f"{PREFIX}{option.name.upper()}: {option.metadata['help']}" for option in options if option.name in _SECRETS]
        group = parser.add_argument_group(title, "\n".join(secrets) or None)
        for option in options:
            if option.metadata["flag"]:
                _add_flag(group, option)
    group = parser.add_argument_group("Configuration file")
    group.add_argument("--config", metavar="FILE", help="TOML file of options")
    group.add_argument("--source", metavar="NAME", help="which [source.NAME] of the file; needed if it has several")


_METAVARS = {
    "binlog": "PATH",
    "row_filter": "TABLE:CONDITION",
    "start": "WHERE",
    "operations": "KINDS",
    "state": "DIR",
    "password_command": "CMD",
} | dict.fromkeys(("tls_ca", "tls_cert", "tls_key", "store_path"), "FILE")


def _add_flag(group: argparse._ArgumentGroup, option: dataclasses.Field[Any]) -> None:
    flag, kind, choices = "--" + option.name.replace("_", "-"), _HINTS[option.name], option.metadata["choices"] or None
    shown = ",".join(option.default) if isinstance(option.default, tuple) else option.default
    if type(shown) is float:
        shown = f"{shown:g}"
    help_ = option.metadata["help"].replace("%", "%%") + (f" (default: {shown})" if shown not in ("", False) else "")
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_)
    elif kind in (int, float):
        group.add_argument(flag, type=kind, metavar="SECONDS" if kind is float else "N", help=help_)
    elif kind is str:
        metavar = None if choices else _METAVARS.get(option.name, option.name.rpartition("_")[2].upper())
        group.add_argument(flag, choices=choices, metavar=metavar, help=help_)
    else:
        group.add_argument(flag, action="append", metavar=_METAVARS.get(option.name, "PATTERN"), help=help_)


def load_settings(
    *,
    flags: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
    source: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings of one source. Raises `SettingsError`."""
    flags = flags or {}
    return _choose(_read(config or flags.get("config")), source or flags.get("source"), flags, environ)


def load_all(
    *,
    flags: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
    source: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Settings]:
    """Return the settings of `source`, or of every ``[source.NAME]`` of the file, or of the one that a file without any
    describes. Raises `SettingsError`.

    Sources of one store are a group: the options of the store must be the same for each.
    """
    flags = flags or {}
    tables, source = _read(config or flags.get("config")), source or flags.get("source")
    names = [source] if source is not None else list(tables.get("source", {})) or [None]
    found = [_choose(tables, name, flags, environ) for name in names]
    for other in tables.get("source", {}) if source is not None else ():
        if other != source and (store := _choose(tables, other, flags, environ).store) == found[0].store:
            raise SettingsError(f"source {source!r} shares store {store!r} with {other!r}: run them together, without --source")
    for store in {settings.store for settings in found}:
        _require_alike([settings for settings in found if settings.store == store])
    return found


def _choose(
    tables: Mapping[str, Any], source: str | None, flags: Mapping[str, Any], environ: Mapping[str, str] | None
) -> Settings:
    sources = tables.get("source", {})
    if source is None and len(sources) > 1:
        raise SettingsError(f"the file has several sources: say which with --source ({', '.join(sorted(sources))})")
    if source is None and sources:
        (source,) = sources
    if source is not None and source not in sources:
        raise SettingsError(f"the file has no [source.{source}]; it has {', '.join(sorted(sources)) or 'none'}")
    return _settle(tables, source, flags, os.environ if environ is None else environ)


def _require_alike(group: list[Settings]) -> None:
    first, seen = group[0], set()
    for one in group:
        if one.name in seen:
            raise SettingsError(
                f"store {one.store!r} has two sources named {one.name!r}: leave name out, or give each its own, by which a restarted producer finds it"
            )
        seen.add(one.name)
        for option in _OF_STORE:
            ours, other = getattr(first, option), getattr(one, option)
            if ours != other:
                raise SettingsError(
                    f"{option} is {ours!r} in source {first.name!r} and {other!r} in {one.name!r}, which share store {one.store!r}: give both the same, "
                    "best in [producer]"
                )


_OF_STORE = (
    *("state", "merge_wait", "store_path", "store_group", "store_checksum", "capacity", "memory_unit"),
    *("batch_mode", "ddl_isolation", "log", "log_keep", "log_size", "lag", "evict_after"),
)


_SECTIONS = ("producer", "source", *SECTIONS, LOG)  # the first two are read here, the others by their commands


def _read(config: str | os.PathLike[str] | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        with open(config, "rb") as file:
            tables = tomllib.load(file)
            mode = os.fstat(file.fileno()).st_mode
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config {os.fspath(config)!r} cannot be read: {error}") from error
    for key in tables:
        if key not in _SECTIONS:
            raise SettingsError(f"config: [{key}] is unknown{did_you_mean(key, _SECTIONS)}")
    if not isinstance(tables.get("producer", {}), dict):
        raise SettingsError("config: write the options for every source under [producer]")
    sources = tables.get("source", {})
    if not isinstance(sources, dict) or not all(isinstance(table, dict) for table in sources.values()):
        raise SettingsError("config: write each source as [source.NAME]")
    given = {key for table in (tables.get("producer", {}), *sources.values()) for key in table}
    if mode & stat.S_IROTH and (secrets := [name for name in _SECRETS if name in given]):
        where = os.fspath(config)
        logging.getLogger("producer").warning(
            "config %r holds %s and everybody on this host may read it: chmod o-r %s, or set %s instead",
            *(where, " and ".join(secrets), where, " and ".join(PREFIX + name.upper() for name in secrets)),
        )
    return tables


def _settle(tables: Mapping[str, Any], source: str | None, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    names = [option.name for option in fields(Settings)]
    values: dict[str, Any] = {} if source is None else {"store": source, "name": source}
    for where, table in (
        ("producer", tables.get("producer", {})),
        (f"source.{source}", tables.get("source", {}).get(source, {})),
    ):
        for key, value in table.items():
            if key not in names:
                raise SettingsError(f"config: {key!r} in [{where}] is unknown{did_you_mean(key, names)}")
            values[key] = _typed(key, value, f"config [{where}]")
    for name in names:
        variable = PREFIX + name.upper()
        if name != "state" and environ.get(variable):
            values[name] = _typed(name, environ[variable], variable)
        if flags.get(name) is not None:
            values[name] = _typed(name, flags[name], "--" + name.replace("_", "-"))
    return Settings(**values)


def _typed(name: str, value: Any, where: str) -> Any:
    """Return `value` as the type of option `name`; text is read, other types must fit."""
    kind = _HINTS[name]
    try:
        if isinstance(kind, types.GenericAlias):
            parts = [value] if isinstance(value, str) else list(value)
            if not all(isinstance(part, str) for part in parts):
                raise ValueError
            return tuple(p.strip() for part in parts for p in part.split(",")) if name == "operations" else tuple(parts)
        if kind is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}[
                value.lower()
            ]
        if kind is float and type(value) in (int, float, str):
            return float(value)
        if kind is int and type(value) in (int, str):
            return int(value)
        if type(value) is kind:
            return value
    except (ValueError, TypeError, KeyError):
        pass
    wanted = (
        "a list of strings"
        if isinstance(kind, types.GenericAlias)
        else {bool: "true or false", str: "text"}.get(kind, "a number")
    )
    shown = "the value" if not Settings.__dataclass_fields__[name].metadata["flag"] else repr(value)
    raise SettingsError(f"{where}: {name} is {shown}; it must be {wanted}")
