"""How the value of one of Canal's properties is taken over: a function of each kind, which `mapping` names in its rules.

Each puts options into a `Conversion`, and returns how they differ from Canal's, or nothing. It raises ValueError where Canal would not take the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from shmstore.cli.canal.conversion import PASSWORD, PASSWORD_HASH, QUEUE_PASSWORD, Conversion
from shmstore.cli.canal.druid import decrypted
from shmstore.patterns.linear_regex import compile_pattern
from shmstore.patterns.table_patterns import split_patterns

Take = Callable[[Conversion, str], str | None]


# ---------------------------------------------------------------- values


def _yes(name: str, value: str) -> bool:
    lowered = value.lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"{name} is {value!r}; it must be true or false")
    return lowered == "true"


def _number(name: str, value: str, low: int = 0, high: int = 2**63 - 1) -> int:
    if not re.fullmatch(r"\d{1,19}", value, re.ASCII) or not low <= int(value) <= high:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")
    return int(value)


def number(section: str, option: str, low: int = 0, high: int = 2**63 - 1) -> Take:
    """Take a number as it is."""

    def take(to: Conversion, value: str) -> None:
        to.put(section, option, _number(to.rule, value, low, high))

    return take


def text(section: str, option: str) -> Take:
    """Take the value as it is."""

    def take(to: Conversion, value: str) -> None:
        to.put(section, option, value)

    return take


def _address(name: str, value: str) -> str:
    """``HOST:PORT``, as Canal wants it."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or re.search(r"[\s,/]", value):
        raise ValueError(f"{name} is {value!r}; it must be HOST:PORT")
    return f"{host}:{_number(name, port, 1, 65535)}"


# ---------------------------------------------------------------- the server's side: where clients connect


def listen(to: Conversion, _: str) -> None:
    """Take the server's address and port."""
    host = to.get("canal.ip") or "0.0.0.0"
    port = _number("canal.port", to.get("canal.port", "11111"), 0, 65535)
    to.put("serve", "listen", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def advertise(to: Conversion, value: str) -> str | None:
    """Take the name that ZooKeeper is given."""
    if not to.get("canal.zkServers"):
        return "only a server that registers in ZooKeeper says where it is: left out"
    to.put("serve", "advertise", f"{value}:{_number('canal.port', to.get('canal.port', '11111'), 1, 65535)}")
    return None


def user(to: Conversion, value: str) -> None:
    """Take the name that clients give."""
    if not to.get("canal.passwd"):
        raise ValueError("canal.user is set and canal.passwd is empty: Canal does not start so; set both, or neither")
    to.put("serve", "user", value)


def passwd(to: Conversion, value: str) -> str:
    """Take the hash of the password that clients give."""
    digits = value.removeprefix("*")
    if not re.fullmatch(r"[0-9A-Fa-f]{40}", digits):
        raise ValueError(
            "canal.passwd is not a hash of 40 hexadecimal digits, as SELECT PASSWORD('...') or Canal's tool prints it"
        )
    to.secret("serve", "password_hash_file", PASSWORD_HASH, digits)
    return "the hash as it is, in a file of its own"


def zookeeper(to: Conversion, value: str) -> str | None:
    """Take ZooKeeper's addresses."""
    to.put("serve", "zookeeper", value)
    return "needs `pip install 'shmstore[zookeeper]'`; a server and a store on each host"


def metrics(to: Conversion, value: str) -> str:
    """Take the port of the metrics."""
    to.put("serve", "metrics_port", _number(to.rule, value, 0, 65535))
    return "the metrics have other names; those of the producer are `shmstore metrics`"


def mode(to: Conversion, value: str) -> str | None:
    """Take where changes go: to clients, or into a queue."""
    kind = value.lower()
    if kind in ("tcp", "kafka"):
        return None
    if kind == "rabbitmq":
        # Canal publishes to queues and exchanges that are there, of any kind.
        to.sections["queue"] |= {"kind": kind, "delivery": "at-least-once", "create_topics": False}
        return "each change at least once, in the binlog's order; needs `pip install 'shmstore[rabbitmq]'`"
    if kind == "rocketmq":
        to.sections["queue"] |= {"kind": kind, "delivery": "at-least-once"}
        return "each change at least once, in the binlog's order"
    if kind == "pulsarmq":
        to.sections["queue"] |= {"kind": "pulsar", "delivery": "at-least-once"}
        return (
            "each change at least once, as Canal sends it; where the broker deduplicates, leave out `delivery`, and each comes once; "
            "needs `pip install 'shmstore[pulsar]'`"
        )
    return (
        f"there is no queue of the kind {value}: read the store with canal's clients or `shmstore tail`, or send to Kafka, Pulsar, RabbitMQ "
        "or RocketMQ"
    )


def without(to: Conversion, value: str) -> None:
    """Take whether there is a server for clients."""
    if _yes(to.rule, value):
        to.serves = False


# ---------------------------------------------------------------- the store


def capacity(to: Conversion, value: str) -> None:
    """Take the ring's number of events, a power of two."""
    number = _number(to.rule, value, 2, 1 << 30)
    if number & (number - 1):
        raise ValueError(f"{to.rule} is {number}; it must be a power of two, such as 16384")
    to.put("source", "capacity", number)


def batch_mode(to: Conversion, value: str) -> None:
    """Take how batches are bounded."""
    if value not in ("MEMSIZE", "ITEMSIZE"):
        raise ValueError(f"{to.rule} is {value!r}; it must be MEMSIZE or ITEMSIZE")
    to.put("source", "batch_mode", value)


def isolation(to: Conversion, value: str) -> None:
    """Take whether a DDL comes alone."""
    to.put("source", "ddl_isolation", _yes(to.rule, value))


# ---------------------------------------------------------------- the database server


def hosts(to: Conversion, _: str) -> str | None:
    """Take both addresses, in order of preference."""
    names = ("canal.instance.master.address", "canal.instance.standby.address")
    to.put("source", "host", ",".join(_address(name, to.get(name)) for name in names if to.get(name)))
    if to.rule == names[1]:
        return "the next server is tried as soon as one does not answer, and reading continues by GTID"
    return None


def password(to: Conversion, value: str) -> str | None:
    """Take the password, decrypted where Canal decrypts it."""
    if _yes("canal.instance.enableDruid", to.get("canal.instance.enableDruid", "false")):
        try:
            to.secret("source", "password_file", PASSWORD, decrypted(value, to.get("canal.instance.pwdPublicKey")))
        except ValueError as error:
            raise ValueError(f"canal.instance.dbPassword cannot be decrypted: {error}") from error
        return "decrypted, in a file of its own: druid's encryption is decrypted with the public key next to it"
    to.secret("source", "password_file", PASSWORD, value)
    return "in a file of its own"


def druid(to: Conversion, value: str) -> str | None:
    """Take whether the password is encrypted."""
    return "the password was decrypted" if value.lower() not in ("false", "") else None


def slave_id(to: Conversion, value: str) -> str | None:
    """Take the replica's id."""
    number = _number(to.rule, value, 0, 2**32 - 1)
    to.put("source", "server_id", number)
    return "while Canal still runs, set another one: two replicas of one id end each other's connection" if number else None


_TLS: Final = {
    "DISABLED": "disabled",
    "PREFERRED": "preferred",
    "REQUIRED": "required",
    "VERIFY_CA": "verify-ca",
    "VERIFY_IDENTITY": "verify-identity",
}


def tls(to: Conversion, value: str) -> str | None:
    """Take the way of TLS."""
    mode = _TLS.get(value.upper())
    if mode is None:
        raise ValueError(f"{to.rule} is {value!r}; it must be one of {', '.join(_TLS)}")
    to.put("source", "tls", mode)
    if mode.startswith("verify") and not to.get("canal.instance.master.trustCertificateKeyStoreUrl"):
        to.put("source", "tls_ca", str(to.folder / "ca.pem"))
        return "put the certificate authority, as PEM, where tls_ca says: Canal takes the JVM's own"
    return None


def _store_path(url: str) -> str:
    return url.removeprefix("file:").replace("//", "/")


def trust(to: Conversion, value: str) -> str:
    """Take the certificate authority of a Java key store."""
    file = str(to.folder / "ca.pem")
    to.put("source", "tls_ca", file)
    return f"make {file} first: keytool -exportcert -rfc -keystore {_store_path(value)} -alias ALIAS > ca.pem"


def certificate(to: Conversion, value: str) -> str:
    """Take the certificate and key of a Java key store."""
    certificate, key = str(to.folder / "client.pem"), str(to.folder / "client-key.pem")
    to.put("source", "tls_cert", certificate)
    to.put("source", "tls_key", key)
    return (
        f"make both first: keytool -importkeystore -srckeystore {_store_path(value)} -destkeystore c.p12 -deststoretype PKCS12; "
        "openssl pkcs12 -in c.p12 -nokeys -out client.pem; openssl pkcs12 -in c.p12 -nocerts -nodes -out client-key.pem"
    )


# ---------------------------------------------------------------- where to begin


def start(to: Conversion, _: str) -> str | None:
    """Take the place that Canal would begin at: by GTID where that is on, by file, by time."""
    prefix = "canal.instance.master."
    gtid, file, offset, time = (to.get(f"{prefix}{each}") for each in ("gtid", "journal.name", "position", "timestamp"))
    by_gtid = _yes("canal.instance.gtidon", to.get("canal.instance.gtidon", "false"))
    moment = _number(f"{prefix}timestamp", time) if time else 0
    place = _number(f"{prefix}position", offset) if offset else 0
    if by_gtid and gtid:
        start = f"gtid:{gtid}"
    elif file and (place or not moment):
        start = f"{file}:{place or 4}"
    elif moment:
        try:
            start = f"time:{datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec='milliseconds')}"
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError(f"{prefix}timestamp is {time!r}; it must be milliseconds since 1970") from error
    else:
        return "Canal reads it only with gtidon = true" if gtid else "Canal reads it only with journal.name" if place else None
    to.put("source", "start", start)
    to.begins_before()
    if to.rule.endswith(("gtid", "timestamp")) and not start.startswith(("gtid:" if to.rule.endswith("gtid") else "time:",)):
        return f"Canal ignores it, since another setting has priority: it begins at {start}"
    return "the time, in UTC" if start.startswith("time:") else None


def gtid_on(to: Conversion, value: str) -> str | None:
    """Take whether clients get GTIDs."""
    on = _yes(to.rule, value)
    if to.serves:
        to.put("serve", "gtids", "on" if on else "off")
    return (
        None
        if on
        else "clients get no GTIDs; the producer follows the server's GTIDs where it has them, so that it can fail over"
    )


def latest(to: Conversion, value: str) -> str | None:
    """Take what happens where the server has purged the binlog."""
    if _yes(to.rule, value):
        to.put("source", "on_purged", "latest")
    return None


# ---------------------------------------------------------------- what is read


def _patterns(to: Conversion, value: str) -> list[str]:
    """The expressions of a filter, each written so that it is read as one."""
    found = []
    for pattern in split_patterns(value):
        if pattern in (r".*\..*", ".*"):
            return []
        compile_pattern(pattern)  # Raises PatternRefused, a ValueError
        found.append(pattern if re.fullmatch(r"\w+\.\w+", pattern, re.ASCII) else f"regex:{pattern}")
    return found


def filter_patterns(option: str) -> Take:
    """Take the expressions of a filter of tables."""

    def take(to: Conversion, value: str) -> None:
        try:
            patterns = _patterns(to, value)
        except ValueError as error:
            raise ValueError(f"{to.rule} cannot be taken over: {error}") from error
        if patterns:
            to.put("source", option, patterns)
        elif option == "exclude":
            raise ValueError(f"{to.rule} is {value!r}: it leaves out every table")

    return take


def _fields(value: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return (the columns by table, why some were passed over)."""
    found: dict[str, list[str]] = {}
    passed = []
    for part in filter(None, map(str.strip, value.split(","))):
        table, colon, columns = part.partition(":")
        names = [name.strip() for name in columns.split("/") if name.strip()]
        if not colon or ":" in columns or "." not in table or not names:
            passed.append(f"{part!r} is not SCHEMA.TABLE:COLUMN/COLUMN, and Canal passes over it too")
        else:
            found[table.strip()] = names
    return found, passed


def _literal(name: str) -> str:
    return re.sub(r"(\W)", r"\\\1", name)


def kept_fields(to: Conversion, value: str) -> str:
    """Take the columns that are kept."""
    found, passed = _fields(value)
    for table, columns in found.items():
        only = "|".join(map(_literal, columns))
        to.add("source", "column_exclude", f"regex:{_literal(table)}\\.(?!(?:{only})$).*")
    return "; ".join(["written as the columns that are left out, because column_include is for every table", *passed])


def dropped_fields(to: Conversion, value: str) -> str | None:
    """Take the columns that are left out."""
    kept = {table.lower() for table in _fields(to.get("canal.instance.filter.field"))[0]}
    found, passed = _fields(value)
    for table, columns in found.items():
        if table.lower() in kept:
            passed.append(f"of {table} filter.field decides, as in Canal")
            continue
        for column in columns:
            to.add("source", "column_exclude", f"regex:{_literal(table)}\\.{_literal(column)}")
    return "; ".join(passed) or None


def without_operations(*kinds: str) -> Take:
    """Take that these operations are left out."""

    def take(to: Conversion, value: str) -> None:
        if _yes(to.rule, value):
            to.without.update(kinds)

    return take


def dcl(to: Conversion, value: str) -> str | None:
    """Take whether statements about accounts are left out."""
    return None if _yes(to.rule, value) else "statements about accounts are never kept: they carry secrets"


def dml_statements(to: Conversion, value: str) -> None:
    """Take whether the statements of row changes are left out."""
    if _yes(to.rule, value):
        to.without.add("query")
    else:
        to.put("source", "rows_query", True)


def table_error(to: Conversion, value: str) -> None:
    """Take whether a table that cannot be read is skipped."""
    if _yes(to.rule, value):
        to.put("source", "on_error", "skip")


def transaction_entries(to: Conversion, value: str) -> str | None:
    """Take whether clients get the ends of transactions."""
    if _yes(to.rule, value):
        to.put("serve", "transaction_entries", False)
        return "the store keeps them, as its readers need whole transactions; clients of this server do not get them"
    return None


def formats(to: Conversion, value: str) -> None:
    """Take the formats of the binlog that are read."""
    kinds = {each.strip().upper() for each in value.split(",")} - {""}
    if unknown := kinds - {"ROW", "STATEMENT", "MIXED"}:
        raise ValueError(f"{to.rule} has {sorted(unknown)[0]!r}; it may have ROW, STATEMENT, MIXED")
    to.put("source", "statements", "pass" if kinds & {"STATEMENT", "MIXED"} else "fail")


def images(to: Conversion, value: str) -> None:
    """Take the row images that are read."""
    kinds = {each.strip().upper() for each in value.split(",")} - {""}
    if unknown := kinds - {"FULL", "MINIMAL", "NOBLOB"}:
        raise ValueError(f"{to.rule} has {sorted(unknown)[0]!r}; it may have FULL, MINIMAL, NOBLOB")
    to.put("source", "row_image", "any" if kinds & {"MINIMAL", "NOBLOB"} else "full")


def heartbeat(to: Conversion, value: str) -> str | None:
    """Take how often the server shows that it lives, and how long it may be silent."""
    if not _yes("canal.instance.detecting.enable", to.get("canal.instance.detecting.enable", "false")):
        return None if to.rule.endswith("enable") else "detecting.enable is false"
    every = _number("canal.instance.detecting.interval.time", to.get("canal.instance.detecting.interval.time", "5"), 1)
    times = _number("canal.instance.detecting.retry.threshold", to.get("canal.instance.detecting.retry.threshold", "3"), 1)
    to.put("source", "heartbeat", every)
    to.put("source", "read_timeout", max(every * times, every + 1))
    return "the server sends the heartbeats in its binlog stream; no statement is run"


def timeout(to: Conversion, value: str) -> None:
    """Take how long the server may be silent, where no heartbeat says so."""
    to.sections["source"].setdefault("read_timeout", _number(to.rule, value, 1))


# ---------------------------------------------------------------- Kafka

LIBRDKAFKA: Final = {
    "linger.ms": "linger.ms",
    "batch.size": "batch.size",
    "max.request.size": "message.max.bytes",
    "client.id": "client.id",
    "request.timeout.ms": "request.timeout.ms",
    "delivery.timeout.ms": "delivery.timeout.ms",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
}


def flat(to: Conversion, value: str) -> str | None:
    """Take the form of messages."""
    to.put("queue", "format", "canal")
    if _yes(to.rule, value):
        return None
    to.put("queue", "flat_message", False)
    return "needs `pip install 'shmstore[server]'`"


def database_hash(to: Conversion, value: str) -> None:
    """Take whether the database is a part of the hash that chooses a partition."""
    if not _yes(to.rule, value):
        to.put("queue", "database_hash", False)


def compression(to: Conversion, value: str) -> None:
    """Take how messages are compressed."""
    if value not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise ValueError(f"{to.rule} is {value!r}; it must be none, gzip, snappy, lz4 or zstd")
    to.put("queue", "compression", value)


def kafka_setting(to: Conversion, value: str) -> None:
    """Take a setting of Kafka's Java client that librdkafka has under another name."""
    to.add("queue", "set", f"{LIBRDKAFKA[to.rule.removeprefix('kafka.')]}={value}")


def buffer(to: Conversion, value: str) -> None:
    """Take the size of the send buffer, in bytes."""
    to.add("queue", "set", f"queue.buffering.max.kbytes={max(1, _number(to.rule, value) // 1024)}")


def jaas(to: Conversion, value: str) -> str:
    """Take the login at Kafka."""
    found = dict(re.findall(r"""(username|password)\s*=\s*\\?["']((?:[^"'\\]|\\[^"'])*)\\?["']""", value))
    if set(found) != {"username", "password"}:
        raise ValueError(f"{to.rule} has no username and password: only SCRAM and PLAIN can be taken over")
    to.put("queue", "user", found["username"])
    to.secret("queue", "password_file", QUEUE_PASSWORD, found["password"])
    return "the password is in a file of its own"


def protocol(to: Conversion, value: str) -> None:
    """Take whether Kafka is spoken to by TLS."""
    if value.upper().endswith("SSL"):
        to.put("queue", "tls", True)


def rabbit_host(to: Conversion, value: str) -> None:
    """Take where RabbitMQ is: HOST, or HOST:PORT."""
    to.put("queue", "brokers", value if re.search(r":\d+$", value) else f"{value}:5672")


def pulsar_url(to: Conversion, value: str) -> None:
    """Take where Pulsar's brokers are: pulsar://HOST:PORT,HOST:PORT, or pulsar+ssl://."""
    scheme, sign, places = value.partition("://")
    if not sign or scheme not in ("pulsar", "pulsar+ssl") or not places.strip("/"):
        raise ValueError(f"{to.rule} is {value!r}; it must be pulsar://HOST:PORT or pulsar+ssl://HOST:PORT")
    port = 6651 if scheme == "pulsar+ssl" else 6650
    words = [word.strip() for word in places.rstrip("/").split(",")]
    to.put("queue", "brokers", ",".join(word if re.search(r":\d+$", word) else f"{word}:{port}" for word in words))
    if scheme == "pulsar+ssl":
        to.put("queue", "tls", True)


def pulsar_token(to: Conversion, value: str) -> str:
    """Take the token that Pulsar is shown."""
    to.put("queue", "user", "token")
    return queue_password(to, value)


def pulsar_prefix(to: Conversion, value: str) -> None:
    """Take what Canal writes before the name of a topic: [persistent://]TENANT/NAMESPACE."""
    name = value.removeprefix("persistent://").rstrip("/")
    if not re.fullmatch(r"[\w=:.-]+/[\w=:.-]+", name, re.ASCII):
        raise ValueError(f"{to.rule} is {value!r}; it must be persistent://TENANT/NAMESPACE")
    to.add("queue", "set", f"namespace={name}")


def name_servers(to: Conversion, value: str) -> None:
    """Take where RocketMQ's name servers are: HOST:PORT;HOST:PORT."""
    to.put("queue", "brokers", ",".join(word.strip() for word in value.split(";") if word.strip()))


def queue_setting(name: str) -> Take:
    """Return what takes a setting of a queue's that `shmstore queue --set` has as `name`."""

    def take(to: Conversion, value: str) -> None:
        to.add("queue", "set", f"{name}={value}")

    return take


def queue_password(to: Conversion, value: str) -> str:
    """Take the password of the queue's user."""
    to.secret("queue", "password_file", QUEUE_PASSWORD, value)
    return "in a file of its own"
