"""What becomes of each of Canal's properties: one table, which the conversion, its report and the documentation read.

A property with `take` is taken over: the function puts options into a `Conversion`, and returns how they differ from Canal's, or nothing. One
without is left out, and `about` says what to do instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from shmstore.cli.canal.conversion import PASSWORD, PASSWORD_HASH, QUEUE_PASSWORD, Conversion
from shmstore.cli.canal.druid import decrypted
from shmstore.patterns.linear_regex import compile_pattern
from shmstore.patterns.table_patterns import split_patterns

Take = Callable[[Conversion, str], str | None]


class Rule(NamedTuple):
    """A property, or with ``*`` at its end all that begin so; `here`: the option that answers to it, for readers; `about`: how that differs, or
    what to do instead."""

    name: str
    here: str
    about: str
    take: Take | None = None


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


def _to(section: str, option: str, low: int = 0, high: int = 2**63 - 1) -> Take:
    """A number that is taken over as it is."""

    def take(to: Conversion, value: str) -> None:
        to.put(section, option, _number(to.rule, value, low, high))

    return take


def _text(section: str, option: str) -> Take:
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


def _listen(to: Conversion, _: str) -> None:
    host = to.get("canal.ip") or "0.0.0.0"
    port = _number("canal.port", to.get("canal.port", "11111"), 0, 65535)
    to.put("serve", "listen", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _advertise(to: Conversion, value: str) -> str | None:
    if not to.get("canal.zkServers"):
        return "only a server that registers in ZooKeeper says where it is: left out"
    to.put("serve", "advertise", f"{value}:{_number('canal.port', to.get('canal.port', '11111'), 1, 65535)}")
    return None


def _user(to: Conversion, value: str) -> None:
    if not to.get("canal.passwd"):
        raise ValueError("canal.user is set and canal.passwd is empty: Canal does not start so; set both, or neither")
    to.put("serve", "user", value)


def _passwd(to: Conversion, value: str) -> str:
    digits = value.removeprefix("*")
    if not re.fullmatch(r"[0-9A-Fa-f]{40}", digits):
        raise ValueError(
            "canal.passwd is not a hash of 40 hexadecimal digits, as SELECT PASSWORD('...') or Canal's tool prints it"
        )
    to.secret("serve", "password_hash_file", PASSWORD_HASH, digits)
    return "the hash as it is, in a file of its own"


def _zookeeper(to: Conversion, value: str) -> str | None:
    to.put("serve", "zookeeper", value)
    return "needs `pip install 'shmstore[zookeeper]'`; a server and a store on each host"


def _metrics(to: Conversion, value: str) -> str:
    to.put("serve", "metrics_port", _number(to.rule, value, 0, 65535))
    return "the metrics have other names; those of the producer are `shmstore metrics`"


def _mode(to: Conversion, value: str) -> str | None:
    kind = value.lower()
    if kind in ("tcp", "kafka"):
        return None
    return f"there is no queue of the kind {value}: read the store with canal's clients or `shmstore tail`, or send to Kafka"


def _without(to: Conversion, value: str) -> None:
    if _yes(to.rule, value):
        to.serves = False


# ---------------------------------------------------------------- the store


def _capacity(to: Conversion, value: str) -> None:
    number = _number(to.rule, value, 2, 1 << 30)
    if number & (number - 1):
        raise ValueError(f"{to.rule} is {number}; it must be a power of two, such as 16384")
    to.put("source", "capacity", number)


def _batch_mode(to: Conversion, value: str) -> None:
    if value not in ("MEMSIZE", "ITEMSIZE"):
        raise ValueError(f"{to.rule} is {value!r}; it must be MEMSIZE or ITEMSIZE")
    to.put("source", "batch_mode", value)


def _isolation(to: Conversion, value: str) -> None:
    to.put("source", "ddl_isolation", _yes(to.rule, value))


# ---------------------------------------------------------------- the database server


def _hosts(to: Conversion, _: str) -> str | None:
    """Both addresses, in order of preference."""
    names = ("canal.instance.master.address", "canal.instance.standby.address")
    to.put("source", "host", ",".join(_address(name, to.get(name)) for name in names if to.get(name)))
    if to.rule == names[1]:
        return "the next server is tried as soon as one does not answer, and reading continues by GTID"
    return None


def _password(to: Conversion, value: str) -> str | None:
    if _yes("canal.instance.enableDruid", to.get("canal.instance.enableDruid", "false")):
        try:
            to.secret("source", "password_file", PASSWORD, decrypted(value, to.get("canal.instance.pwdPublicKey")))
        except ValueError as error:
            raise ValueError(f"canal.instance.dbPassword cannot be decrypted: {error}") from error
        return "decrypted, in a file of its own: druid's encryption is undone by the public key beside it"
    to.secret("source", "password_file", PASSWORD, value)
    return "in a file of its own"


def _druid(to: Conversion, value: str) -> str | None:
    return "the password was decrypted" if value.lower() not in ("false", "") else None


def _slave_id(to: Conversion, value: str) -> str | None:
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


def _tls(to: Conversion, value: str) -> str | None:
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


def _trust(to: Conversion, value: str) -> str:
    file = str(to.folder / "ca.pem")
    to.put("source", "tls_ca", file)
    return f"make {file} first: keytool -exportcert -rfc -keystore {_store_path(value)} -alias ALIAS > ca.pem"


def _certificate(to: Conversion, value: str) -> str:
    certificate, key = str(to.folder / "client.pem"), str(to.folder / "client-key.pem")
    to.put("source", "tls_cert", certificate)
    to.put("source", "tls_key", key)
    return (
        f"make both first: keytool -importkeystore -srckeystore {_store_path(value)} -destkeystore c.p12 -deststoretype PKCS12; "
        "openssl pkcs12 -in c.p12 -nokeys -out client.pem; openssl pkcs12 -in c.p12 -nocerts -nodes -out client-key.pem"
    )


# ---------------------------------------------------------------- where to begin


def _start(to: Conversion, _: str) -> str | None:
    """The first of Canal's: by GTID where that is on, by file, by time."""
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
        return f"Canal does not read it beside what is set: it begins at {start}"
    return "the time, in UTC" if start.startswith("time:") else None


def _gtid_on(to: Conversion, value: str) -> str | None:
    on = _yes(to.rule, value)
    if to.serves:
        to.put("serve", "gtids", "on" if on else "off")
    return (
        None
        if on
        else "clients get no GTIDs; the producer follows the server's GTIDs where it has them, so that it can fail over"
    )


def _latest(to: Conversion, value: str) -> str | None:
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


def _filter(option: str) -> Take:
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


def _kept_fields(to: Conversion, value: str) -> str:
    found, passed = _fields(value)
    for table, columns in found.items():
        only = "|".join(map(_literal, columns))
        to.add("source", "column_exclude", f"regex:{_literal(table)}\\.(?!(?:{only})$).*")
    return "; ".join(["written as the columns that are left out, because column_include is for every table", *passed])


def _dropped_fields(to: Conversion, value: str) -> str | None:
    kept = {table.lower() for table in _fields(to.get("canal.instance.filter.field"))[0]}
    found, passed = _fields(value)
    for table, columns in found.items():
        if table.lower() in kept:
            passed.append(f"of {table} filter.field decides, as in Canal")
            continue
        for column in columns:
            to.add("source", "column_exclude", f"regex:{_literal(table)}\\.{_literal(column)}")
    return "; ".join(passed) or None


def _without_operations(*kinds: str) -> Take:
    def take(to: Conversion, value: str) -> None:
        if _yes(to.rule, value):
            to.without.update(kinds)

    return take


def _dcl(to: Conversion, value: str) -> str | None:
    return None if _yes(to.rule, value) else "statements about accounts are never kept: they carry secrets"


def _dml_statements(to: Conversion, value: str) -> None:
    if _yes(to.rule, value):
        to.without.add("query")
    else:
        to.put("source", "rows_query", True)


def _table_error(to: Conversion, value: str) -> None:
    if _yes(to.rule, value):
        to.put("source", "on_error", "skip")


def _transaction_entries(to: Conversion, value: str) -> str | None:
    if _yes(to.rule, value):
        to.put("serve", "transaction_entries", False)
        return "the store keeps them, as its readers need whole transactions; clients of this server do not get them"
    return None


def _formats(to: Conversion, value: str) -> None:
    kinds = {each.strip().upper() for each in value.split(",")} - {""}
    if unknown := kinds - {"ROW", "STATEMENT", "MIXED"}:
        raise ValueError(f"{to.rule} has {sorted(unknown)[0]!r}; it may have ROW, STATEMENT, MIXED")
    to.put("source", "statements", "pass" if kinds & {"STATEMENT", "MIXED"} else "fail")


def _images(to: Conversion, value: str) -> None:
    kinds = {each.strip().upper() for each in value.split(",")} - {""}
    if unknown := kinds - {"FULL", "MINIMAL", "NOBLOB"}:
        raise ValueError(f"{to.rule} has {sorted(unknown)[0]!r}; it may have FULL, MINIMAL, NOBLOB")
    to.put("source", "row_image", "any" if kinds & {"MINIMAL", "NOBLOB"} else "full")


def _heartbeat(to: Conversion, value: str) -> str | None:
    if not _yes("canal.instance.detecting.enable", to.get("canal.instance.detecting.enable", "false")):
        return None if to.rule.endswith("enable") else "detecting.enable is false"
    every = _number("canal.instance.detecting.interval.time", to.get("canal.instance.detecting.interval.time", "5"), 1)
    times = _number("canal.instance.detecting.retry.threshold", to.get("canal.instance.detecting.retry.threshold", "3"), 1)
    to.put("source", "heartbeat", every)
    to.put("source", "read_timeout", max(every * times, every + 1))
    return "the server sends the heartbeats in its binlog stream; no statement is run"


def _timeout(to: Conversion, value: str) -> None:
    to.sections["source"].setdefault("read_timeout", _number(to.rule, value, 1))


# ---------------------------------------------------------------- Kafka

_LIBRDKAFKA: Final = {
    "linger.ms": "linger.ms",
    "batch.size": "batch.size",
    "max.request.size": "message.max.bytes",
    "client.id": "client.id",
    "request.timeout.ms": "request.timeout.ms",
    "delivery.timeout.ms": "delivery.timeout.ms",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
}


def _flat(to: Conversion, value: str) -> str | None:
    to.put("queue", "format", "canal")
    return None if _yes(to.rule, value) else "messages are Canal's JSON, not its protobuf: consumers set flatMessage = true"


def _database_hash(to: Conversion, value: str) -> None:
    if not _yes(to.rule, value):
        to.put("queue", "database_hash", False)


def _compression(to: Conversion, value: str) -> None:
    if value not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise ValueError(f"{to.rule} is {value!r}; it must be none, gzip, snappy, lz4 or zstd")
    to.put("queue", "compression", value)


def _kafka_setting(to: Conversion, value: str) -> None:
    to.add("queue", "set", f"{_LIBRDKAFKA[to.rule.removeprefix('kafka.')]}={value}")


def _buffer(to: Conversion, value: str) -> None:
    to.add("queue", "set", f"queue.buffering.max.kbytes={max(1, _number(to.rule, value) // 1024)}")


def _jaas(to: Conversion, value: str) -> str:
    found = dict(re.findall(r"""(username|password)\s*=\s*\\?["']((?:[^"'\\]|\\[^"'])*)\\?["']""", value))
    if set(found) != {"username", "password"}:
        raise ValueError(f"{to.rule} has no username and password: only SCRAM and PLAIN can be taken over")
    to.put("queue", "user", found["username"])
    to.secret("queue", "password_file", QUEUE_PASSWORD, found["password"])
    return "the password is in a file of its own"


def _protocol(to: Conversion, value: str) -> None:
    if value.upper().endswith("SSL"):
        to.put("queue", "tls", True)


_SAME: Final = ""
_ADMIN: Final = "there is no admin server: files are the configuration, `shmstore web` and `shmstore top` show what runs"
_RDS: Final = "binlogs in the object storage of Aliyun's RDS are not read: keep them on the server long enough"
_TABLES: Final = "definitions of tables are kept in the store's home, without a database"
_PARSER: Final = "the parser is compiled code in one thread"
_OTHER_QUEUE: Final = "there is no queue of this kind: Kafka, or a package of your own (docs: queues of other kinds)"
_STANDBY: Final = "after a failover reading continues by GTID; without GTIDs the standby's files have no known place"

RULES: Final = (
    # canal.properties
    Rule("canal.id", "", "nothing has a number"),
    Rule("canal.ip", "[serve] listen", "empty: every address", _listen),
    Rule("canal.register.ip", "[serve] advertise", "where it registers in ZooKeeper", _advertise),
    Rule("canal.port", "[serve] listen", _SAME, _listen),
    Rule("canal.metrics.pull.port", "[serve] metrics_port", "other names of metrics", _metrics),
    Rule("canal.user", "[serve] user", _SAME, _user),
    Rule("canal.passwd", "[serve] password_hash_file", "the hash as it is, in a file of its own", _passwd),
    Rule("canal.admin.*", "", _ADMIN),
    Rule("canal.adminUser", "", _ADMIN),
    Rule("canal.adminPasswd", "", _ADMIN),
    Rule("canal.zkServers", "[serve] zookeeper", "needs the extra `zookeeper`", _zookeeper),
    Rule("canal.zookeeper.flush.period", "", "a cursor is written after each ack"),
    Rule("canal.withoutNetty", "no [serve]", "true: no server for canal's clients", _without),
    Rule("canal.serverMode", "[serve] or [queue]", "tcp and kafka", _mode),
    Rule("canal.file.data.dir", "", "only says where meta.dat is; stores have their homes in $SHMSTORE_STATE"),
    Rule("canal.file.flush.period", "", "acks are on disk at most a second later"),
    Rule("canal.socketChannel", "", "how Canal's parser opens sockets"),
    Rule("canal.instance.memory.buffer.size", "capacity", _SAME, _capacity),
    Rule("canal.instance.memory.buffer.memunit", "memory_unit", _SAME, _to("source", "memory_unit", 1, 1 << 30)),
    Rule("canal.instance.memory.batch.mode", "batch_mode", _SAME, _batch_mode),
    Rule("canal.instance.memory.rawEntry", "", "events are always kept encoded"),
    Rule("canal.instance.detecting.enable", "heartbeat, read_timeout", "the server's own heartbeats, always on", _heartbeat),
    Rule("canal.instance.detecting.sql", "", "no statement is run: the server sends heartbeats in its binlog stream"),
    Rule("canal.instance.detecting.interval.time", "heartbeat", "only with detecting.enable", _heartbeat),
    Rule("canal.instance.detecting.retry.threshold", "read_timeout", "interval × threshold", _heartbeat),
    Rule("canal.instance.detecting.heartbeatHaEnable", "", "with two hosts a failover is always automatic"),
    Rule(
        "canal.instance.transaction.size",
        "transaction_events",
        "a larger one comes in parts",
        _to("source", "transaction_events", 1),
    ),
    Rule("canal.instance.fallbackIntervalInSeconds", "", "after a failover nothing is read twice: GTIDs say where it continues"),
    Rule("canal.instance.network.receiveBufferSize", "", "the kernel's own size"),
    Rule("canal.instance.network.sendBufferSize", "", "the kernel's own size"),
    Rule("canal.instance.network.soTimeout", "read_timeout", _SAME, _timeout),
    Rule("canal.instance.filter.druid.ddl", "", "DDLs are always read, to follow the tables"),
    Rule("canal.instance.filter.query.dcl", "always so", "statements about accounts are never kept", _dcl),
    Rule("canal.instance.filter.query.dml", "operations, rows_query", "true: without `query`", _dml_statements),
    Rule("canal.instance.filter.query.ddl", "operations", "true: without `ddl`", _without_operations("ddl")),
    Rule("canal.instance.filter.table.error", "on_error", "true: skip, log and count", _table_error),
    Rule("canal.instance.filter.rows", "operations", "true: no rows", _without_operations("insert", "update", "delete")),
    Rule("canal.instance.filter.transaction.entry", "[serve] transaction_entries", "true: false", _transaction_entries),
    Rule("canal.instance.filter.dml.insert", "operations", "true: without `insert`", _without_operations("insert")),
    Rule("canal.instance.filter.dml.update", "operations", "true: without `update`", _without_operations("update")),
    Rule("canal.instance.filter.dml.delete", "operations", "true: without `delete`", _without_operations("delete")),
    Rule("canal.instance.binlog.format", "statements", "with STATEMENT or MIXED: pass; else fail", _formats),
    Rule("canal.instance.binlog.image", "row_image", "with MINIMAL or NOBLOB: any; else full", _images),
    Rule("canal.instance.get.ddl.isolation", "ddl_isolation", _SAME, _isolation),
    Rule("canal.instance.parser.*", "", _PARSER),
    Rule("canal.instance.tsdb.*", "", _TABLES),
    Rule("canal.destinations", "a file for each", "every folder with instance.properties", lambda to, value: None),
    Rule("canal.destinations.expr", "", "every folder with instance.properties is a destination"),
    Rule("canal.conf.dir", "", "the folder that was named"),
    Rule("canal.auto.scan", "", "start `shmstore run` for a new file"),
    Rule("canal.auto.scan.interval", "", "see canal.auto.scan"),
    Rule("canal.auto.reset.latest.pos.mode", "on_purged", "true: latest", _latest),
    Rule("canal.instance.global.*", "", "the files that were named are the configuration"),
    Rule("canal.aliyun.*", "", _RDS),
    Rule("canal.mq.flatMessage", "[queue] format", "canal", _flat),
    Rule("canal.mq.canalBatchSize", "", "a batch is at most [queue] batch events"),
    Rule("canal.mq.canalGetTimeout", "", "what comes is sent at once"),
    Rule("canal.mq.accessChannel", "", _OTHER_QUEUE),
    Rule("canal.mq.database.hash", "[queue] database_hash", _SAME, _database_hash),
    Rule("canal.mq.send.thread.size", "", "one thread sends, in order"),
    Rule("canal.mq.build.thread.size", "", "one thread builds messages, in order"),
    Rule("kafka.bootstrap.servers", "[queue] brokers", _SAME, _text("queue", "brokers")),
    Rule("canal.mq.servers", "[queue] brokers", "Canal's name until 1.1.4", _text("queue", "brokers")),
    Rule(
        "kafka.acks",
        "always all",
        "each batch is one transaction",
        lambda to, value: None if value in ("all", "-1") else "always all",
    ),
    Rule("kafka.compression.type", "[queue] compression", _SAME, _compression),
    *(Rule(f"kafka.{name}", "[queue] set", f"`{here}` of librdkafka", _kafka_setting) for name, here in _LIBRDKAFKA.items()),
    Rule("kafka.buffer.memory", "[queue] set", "`queue.buffering.max.kbytes` of librdkafka", _buffer),
    Rule("kafka.max.in.flight.requests.per.connection", "", "order holds with any number: the producer is idempotent"),
    Rule("kafka.retries", "", "a batch is tried until it is there"),
    Rule(
        "kafka.kerberos.*", "", "Kerberos is not offered: SCRAM, PLAIN or TLS; or [queue] set with librdkafka's sasl.kerberos.*"
    ),
    Rule("kafka.sasl.jaas.config", "[queue] user, password_file", "SCRAM and PLAIN", _jaas),
    Rule("kafka.sasl.mechanism", "[queue] sasl", _SAME, _text("queue", "sasl")),
    Rule("kafka.security.protocol", "[queue] tls", "SSL and SASL_SSL: true", _protocol),
    Rule("kafka.ssl.*", "", "[queue] tls_ca, tls_cert and tls_key name PEM files"),
    Rule("rocketmq.*", "", _OTHER_QUEUE),
    Rule("rabbitmq.*", "", _OTHER_QUEUE),
    Rule("pulsarmq.*", "", _OTHER_QUEUE),
    # instance.properties
    Rule("canal.instance.destination", "", "the folder's name"),
    Rule("canal.instance.mysql.slaveId", "server_id", "0: derived from the store", _slave_id),
    Rule("canal.instance.gtidon", "[serve] gtids", "the producer follows GTIDs where the server has them", _gtid_on),
    Rule("canal.instance.rds.*", "", _RDS),
    Rule("canal.instance.master.address", "host", _SAME, _hosts),
    Rule("canal.instance.master.journal.name", "start", "FILE:OFFSET", _start),
    Rule("canal.instance.master.position", "start", "FILE:OFFSET", _start),
    Rule("canal.instance.master.timestamp", "start", "the time, where no position is set", _start),
    Rule("canal.instance.master.gtid", "start", "with gtidon", _start),
    Rule("canal.instance.multi.stream.on", "", "PolarDB-X's streams are not read"),
    Rule("canal.instance.master.sslMode", "tls", _SAME, _tls),
    Rule("canal.instance.master.tlsVersions", "", "the newest version that both know"),
    Rule("canal.instance.master.trustCertificateKeyStoreUrl", "tls_ca", "a PEM file, which you make", _trust),
    Rule("canal.instance.master.trustCertificateKeyStore*", "", "a PEM file has no type and no password"),
    Rule("canal.instance.master.clientCertificateKeyStoreUrl", "tls_cert, tls_key", "PEM files, which you make", _certificate),
    Rule("canal.instance.master.clientCertificateKeyStore*", "", "a PEM file has no type and no password"),
    Rule("canal.instance.standby.address", "host", "the second of the list", _hosts),
    Rule("canal.instance.standby.*", "", _STANDBY),
    Rule("canal.instance.dbUsername", "user", _SAME, _text("source", "user")),
    Rule("canal.instance.dbPassword", "password_file", "in a file of its own", _password),
    Rule("canal.instance.enableDruid", "password_file", "the password is decrypted", _druid),
    Rule("canal.instance.pwdPublicKey", "password_file", "decrypts the password", lambda to, value: None),
    Rule("canal.instance.defaultDatabaseName", "", "no database need be chosen"),
    Rule("canal.instance.connectionCharset", "", "each column is read in its own character set"),
    Rule("canal.instance.filter.regex", "include", "each expression as it is", _filter("include")),
    Rule("canal.instance.filter.black.regex", "exclude", "each expression as it is", _filter("exclude")),
    Rule("canal.instance.filter.field", "column_exclude", "the columns that are not named", _kept_fields),
    Rule("canal.instance.filter.black.field", "column_exclude", _SAME, _dropped_fields),
    Rule("canal.mq.topic", "[queue] topic", _SAME, _text("queue", "topic")),
    Rule("canal.mq.dynamicTopic", "[queue] dynamic_topic", _SAME, _text("queue", "dynamic_topic")),
    Rule("canal.mq.partition", "[queue] partition", _SAME, _to("queue", "partition")),
    Rule("canal.mq.enableDynamicQueuePartition", "", "name the partitions: [queue] partitions_num"),
    Rule("canal.mq.partitionsNum", "[queue] partitions_num", _SAME, _to("queue", "partitions_num", 1)),
    Rule(
        "canal.mq.dynamicTopicPartitionNum",
        "[queue] dynamic_topic_partition_num",
        _SAME,
        _text("queue", "dynamic_topic_partition_num"),
    ),
    Rule("canal.mq.partitionHash", "[queue] partition_hash", _SAME, _text("queue", "partition_hash")),
    Rule("canal.mq.*", "", "a name of Canal's until 1.1.4: see the page on Kafka"),
)

_EXACT: Final = {rule.name: rule for rule in RULES if not rule.name.endswith("*")}
_PREFIXES: Final = sorted((rule for rule in RULES if rule.name.endswith("*")), key=lambda rule: -len(rule.name))


def rule_of(name: str) -> Rule | None:
    """Return the rule for a property; None where nothing answers to it."""
    return _EXACT.get(name) or next((rule for rule in _PREFIXES if name.startswith(rule.name[:-1])), None)


def convert(to: Conversion) -> None:
    """Fill `to` with what its destination has. Raises ValueError."""
    mode = to.get("canal.serverMode", "tcp").lower()
    to.serves = mode != "kafka"
    for name in to.source.names:
        rule, value = rule_of(name), to.get(name)
        to.rule = name
        if rule is None:
            to.note("unknown", name, "nothing here answers to it")
        elif not value:
            to.note("empty", name, "")
        elif rule.take is None:
            to.note("left out", name, rule.about)
        elif name.startswith(("kafka.", "canal.mq.")) and mode != "kafka":
            to.note("left out", name, "Canal reads it only with canal.serverMode = kafka")
        elif rule.here.startswith("[serve]") and mode == "kafka" and name not in ("canal.serverMode", "canal.instance.gtidon"):
            to.note("left out", name, "Canal opens no port for clients with canal.serverMode = kafka")
        else:
            why = rule.take(to, value)
            to.note("changed" if why else "taken over", name, f"{rule.here}{f'; {why}' if why else ''}")
    if to.serves:
        _listen(to, "")
    for name, inside in to.source.undefined.items():
        to.note("changed", inside, f"the placeholder ${{{name}}} is defined nowhere, and empty, as in Canal")
    to.finish(mode)
