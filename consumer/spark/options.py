"""The options of ``spark.readStream.format("shmstore")`` and of ``spark.read``: names, values, errors."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from shmstore import CheckpointFile, Position
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.patterns.table_patterns import FORMS as TABLE_FORMS
from shmstore.patterns.table_patterns import Patterns
from shmstore.start_position import FORMS, parse_start
from shmstore.start_position import Start as Place

PAYLOADS = ("json", "typed", "variant", "raw")
TRANSPORTS = ("auto", "shm", "inline", "network")
SCHEMA_CHANGES = ("fail", "follow")
ZERO_DATES = ("fail", "null")
FORMATS = ("delta", "iceberg", "parquet")  # of copies
MERGES = ("driver", "executors")  # what merges the rows of copies

HELP = {
    "store": "name of the store (required)",
    "storePath": "folder of a store that is a file on disk (none: shared memory)",
    "subscription": "name of this query's subscription; each query on a store needs one of its own (PROGRAM-DATABASE.TABLE for one table, else PROGRAM)",
    "program": "first part of a subscription's default name (spark)",
    "tables": f"{TABLE_FORMS} (*)",
    "payload": "json | typed | variant | raw; typed needs exactly one table (typed for one table named, else json)",
    "startingOffsets": "committed | earliest | latest | sequence | file:offset | GTID | ISO time | JSON offset; used when the subscription is new (committed)",
    "startingTimestamp": "milliseconds since 1970 UTC, as in Kafka's source: the first transaction that has an event then or later; instead of startingOffsets",
    "endingOffsets": "latest | JSON offset: the end of a batch read; a stream for which it is given waits there (latest)",
    "maxRowsPerTrigger": "most rows of the query's tables in a micro-batch; a transaction comes whole (none; without a log half of what the ring holds)",
    "maxBytesPerTrigger": "most encoded bytes of their events, with k, m or g (64m unless maxRowsPerTrigger is given; without a log half the ring)",
    "failOnDataLoss": "true | false: stop when events between two offsets are missing (true)",
    "includeTransactionMarkers": "true | false: rows with op begin and end (false)",
    "includeDdl": "true | false: rows with op ddl, and t for TRUNCATE (false)",
    "transport": "auto | shm | inline | network: how executors get the events; auto is shm, and network for executors that cannot see it (auto)",
    "transportHost": "address of this host that executors reach, for auto and network (that of the default route)",
    "transportTlsCert": "certificate (PEM file on this host) that names transportHost: auto and network then use TLS, and executors trust only this one (none)",
    "transportTlsKey": "PEM file on this host with the key of transportTlsCert (none)",
    "partitions": "most partitions of a micro-batch (number of processors)",
    "partitionBytes": "fewest encoded bytes for which there is a further partition (4m)",
    "schemaChanges": "fail | follow: with typed payload, when a DDL changes the table's columns: stop before its rows, or continue (fail)",
    "zeroDates": "fail | null: with typed payload, what zero and impossible dates are (fail)",
    "storeTimeout": "seconds to wait for a store that is missing or still catching up after it was re-created (60)",
    "tableTimeout": "seconds to wait for a typed query's table that does not exist yet (0)",
    "stateDirectory": "folder of the store's home, or without a log of the subscription's durable checkpoint (the store's default)",
}
_NAMES = {name.lower(): name for name in HELP}
_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)


class OptionError(ValueError):
    """An option is unknown, missing or has a wrong value. The message lists what is right."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: `kind` is committed, earliest, latest, sequence, position, gtid, time or offset; `value` what goes with it."""

    kind: Literal["committed", "earliest", "latest", "sequence", "position", "gtid", "time", "offset"]
    value: Any = None

    @property
    def place(self) -> Place:
        """What `EventStore.find` takes, of any kind but committed and offset."""
        match self.kind:
            case "gtid" | "position":
                return Position(*self.value)
            case "time":
                return datetime.fromtimestamp(self.value / 1000, UTC)
            case "sequence":
                return int(self.value)
        return self.kind

    @classmethod
    def parse(cls, text: str) -> Start:
        """Return the start that `text` names. Raises `OptionError`."""
        text = text.strip()
        if text == "committed":
            return cls("committed")
        if text.startswith("{"):
            try:
                return cls("offset", json.loads(text))
            except json.JSONDecodeError as error:
                raise OptionError(f"startingOffsets is not valid JSON: {error}") from error
        try:
            place = parse_start(text)
        except ValueError:
            raise OptionError(
                f"startingOffsets={text!r} is not understood: committed, {FORMS}, or the JSON of an offset"
            ) from None
        if isinstance(place, Position):
            return cls("position" if place.file else "gtid", place)
        if isinstance(place, datetime):
            return cls("time", round(place.timestamp() * 1000))
        return cls("sequence", place) if isinstance(place, int) else cls(place)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options. `HELP` says what each is."""

    store: str
    store_path: str | None
    subscription: str
    subscription_given: bool
    tables: Patterns
    payload: str
    start: Start
    end: Start | None
    max_rows: int | None
    max_bytes: int | None
    fail_on_data_loss: bool
    markers: bool
    ddl: bool
    transport: str
    transport_host: str | None
    transport_tls: tuple[str, str] | None
    partitions: int
    partition_bytes: int
    schema_changes: str
    zero_dates: str
    store_timeout: float
    table_timeout: float
    state_directory: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Return the options in `options` (names in any case). Raises `OptionError`, whose text lists the right ones."""
        given = {key.lower(): value for key, value in options.items()}
        _check_names(given)
        store = given.get("store", given.get("path", ""))
        if not store:
            raise OptionError(f"option store is missing: name the store to read. {_listing()}")
        try:
            tables = Patterns.of_tables(given.get("tables", "*"))
        except ValueError as error:
            raise OptionError(f"option tables: {error}") from error
        payload = _choice(given, "payload", PAYLOADS, "typed" if tables.one else "json")
        if payload == "typed" and not tables.one:
            raise OptionError(
                f"payload=typed needs exactly one table, as tables=shop.orders; got {given.get('tables', '*')!r}. Use payload=json"
            )
        markers, ddl = _flag(given, "includetransactionmarkers", False), _flag(given, "includeddl", False)
        end = Start.parse(given["endingoffsets"]) if "endingoffsets" in given else None
        if end is not None and end.kind not in ("latest", "offset"):
            raise OptionError("endingOffsets is latest or the JSON of an offset")
        return cls(
            store=store,
            store_path=given.get("storepath"),
            subscription=_subscription(given, store, tables.one),
            subscription_given=bool(given.get("subscription")),
            tables=tables,
            payload=payload,
            start=_start(given),
            end=end,
            max_rows=_size(given, "maxrowspertrigger"),
            max_bytes=_size(given, "maxbytespertrigger"),
            fail_on_data_loss=_flag(given, "failondataloss", True),
            markers=markers,
            ddl=ddl,
            transport=_choice(given, "transport", TRANSPORTS, "auto"),
            transport_host=given.get("transporthost"),
            transport_tls=_tls(given),
            partitions=_size(given, "partitions") or os.cpu_count() or 1,
            partition_bytes=_size(given, "partitionbytes") or 4 << 20,
            schema_changes=_choice(given, "schemachanges", SCHEMA_CHANGES, "fail"),
            zero_dates=_choice(given, "zerodates", ZERO_DATES, "fail"),
            store_timeout=_seconds(given, "storetimeout", 60.0),
            table_timeout=_seconds(given, "tabletimeout", 0.0),
            state_directory=given.get("statedirectory"),
        )

    @property
    def all_tables(self) -> bool:
        """True when no table is filtered out."""
        return self.tables.everything

    @property
    def selection(self) -> CopiedTables:
        """What is copied where these options are those of a query that keeps copies."""
        return CopiedTables(
            self.store, self.subscription, self.tables, self.zero_dates, path=self.store_path, state=self.state_directory
        )

    def wants(self, database: str, table: str) -> bool:
        """True when rows of this table are asked for."""
        return self.tables.match(f"{database}.{table}")


def default_subscription(program: str, table: str = "") -> str:
    """Return the name of the subscription with which `program` reads one table, or several where none is named: the same in each run."""
    name = program if not table else f"{program}-{table}"
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("-.") or "spark"
    if plain == name and len(name) <= 100:
        return name
    return f"{plain[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"  # names that differ stay different


def _start(given: Mapping[str, str]) -> Start:
    if "startingtimestamp" not in given:
        return Start.parse(given.get("startingoffsets", "committed"))
    text = given["startingtimestamp"].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 15):  # of the year 5138, which datetime has
        raise OptionError(
            f"option startingTimestamp={text!r}: milliseconds since 1970 UTC, as 1767225600000; a time as text goes into startingOffsets"
        )
    return Start("time", int(text))


def _subscription(given: Mapping[str, str], store: str, table: str) -> str:
    name = given.get("subscription") or default_subscription(given.get("program") or "spark", table)
    try:
        CheckpointFile(None, store, name)
    except ValueError as error:
        raise OptionError(f"option store={store!r} or subscription={name!r}: {error}") from error
    return name


def _check_names(given: Mapping[str, str]) -> None:
    for key in given:
        if key in _NAMES or key == "path":
            continue
        if key.startswith("asyncprogresstracking"):
            raise OptionError(
                "asynchronous progress tracking cannot be used with shmstore: an event's place in the ring is freed once Spark has "
                "logged its batch, and that option lets Spark say so before it is true"
            )
        close = difflib.get_close_matches(key, _NAMES, n=1)
        hint = f" Did you mean {_NAMES[close[0]]}?" if close else ""
        raise OptionError(f"unknown option {key!r}.{hint} {_listing()}")


def _listing() -> str:
    return f"Options: {', '.join(HELP)}"


def _choice(given: Mapping[str, str], key: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(key, default).lower()
    if value not in allowed:
        raise OptionError(f"option {_NAMES[key]}={given[key]!r}: one of {', '.join(allowed)}")
    return value


def _flag(given: Mapping[str, str], key: str, default: bool) -> bool:
    value = given.get(key, str(default)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"option {_NAMES[key]}={given[key]!r}: true or false")
    return value == "true"


def _tls(given: Mapping[str, str]) -> tuple[str, str] | None:
    chain, key = given.get("transporttlscert"), given.get("transporttlskey")
    if bool(chain) != bool(key):
        raise OptionError("TLS needs both a certificate and its key: give transportTlsCert and transportTlsKey, or neither")
    return (chain, key) if chain and key else None


def _size(given: Mapping[str, str], key: str) -> int | None:
    if key not in given:
        return None
    match = _SIZE.fullmatch(given[key].strip())
    number = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()] if match else 0
    if number < 1:
        raise OptionError(f"option {_NAMES[key]}={given[key]!r}: a number of at least 1, if need be with k, m or g")
    return number


def _seconds(given: Mapping[str, str], key: str, default: float) -> float:
    try:
        value = float(given.get(key, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise OptionError(f"option {_NAMES[key]}={given[key]!r}: a number of seconds")
    return value
