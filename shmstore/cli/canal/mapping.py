"""What becomes of each of Canal's properties: one table, which the conversion, its report and the documentation read.

A property with `take` is taken over, as `taking` says. One without is left out, and `about` says what to do instead.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shmstore.cli.canal import taking as take
from shmstore.cli.canal.conversion import QUEUES, Conversion
from shmstore.cli.canal.taking import Take


class Rule(NamedTuple):
    """A property, or with ``*`` at its end all that begin so; `here`: the option that answers to it, for readers; `about`: how that differs, or
    what to do instead."""

    name: str
    here: str
    about: str
    take: Take | None = None


_SAME: Final = ""
_ADMIN: Final = "there is no admin server: files are the configuration, `shmstore web` and `shmstore top` show what runs"
_RDS: Final = "binlogs in the object storage of Aliyun's RDS are not read: keep them on the server long enough"
_TABLES: Final = "definitions of tables are kept in the store's home, without a database"
_PARSER: Final = "the parser is compiled code in one thread"
_STANDBY: Final = "after a failover reading continues by GTID; without GTIDs the standby's files have no known place"

RULES: Final = (
    # canal.properties
    Rule("canal.id", "", "nothing has a number"),
    Rule("canal.ip", "[serve] listen", "empty: every address", take.listen),
    Rule("canal.register.ip", "[serve] advertise", "where it registers in ZooKeeper", take.advertise),
    Rule("canal.port", "[serve] listen", _SAME, take.listen),
    Rule("canal.metrics.pull.port", "[serve] metrics_port", "other names of metrics", take.metrics),
    Rule("canal.user", "[serve] user", _SAME, take.user),
    Rule("canal.passwd", "[serve] password_hash_file", "the hash as it is, in a file of its own", take.passwd),
    Rule("canal.admin.*", "", _ADMIN),
    Rule("canal.adminUser", "", _ADMIN),
    Rule("canal.adminPasswd", "", _ADMIN),
    Rule("canal.zkServers", "[serve] zookeeper", "needs the extra `zookeeper`", take.zookeeper),
    Rule("canal.zookeeper.flush.period", "", "a cursor is written after each ack"),
    Rule("canal.withoutNetty", "no [serve]", "true: no server for canal's clients", take.without),
    Rule("canal.serverMode", "[serve] or [queue]", "tcp, kafka, pulsarmq, rabbitmq and rocketmq", take.mode),
    Rule("canal.file.data.dir", "", "only says where meta.dat is; stores have their homes in $SHMSTORE_STATE"),
    Rule("canal.file.flush.period", "", "acks are on disk at most a second later"),
    Rule("canal.socketChannel", "", "how Canal's parser opens sockets"),
    Rule("canal.instance.memory.buffer.size", "capacity", _SAME, take.capacity),
    Rule("canal.instance.memory.buffer.memunit", "memory_unit", _SAME, take.number("source", "memory_unit", 1, 1 << 30)),
    Rule("canal.instance.memory.batch.mode", "batch_mode", _SAME, take.batch_mode),
    Rule("canal.instance.memory.rawEntry", "", "events are always kept encoded"),
    Rule("canal.instance.detecting.enable", "heartbeat, read_timeout", "the server's own heartbeats, always on", take.heartbeat),
    Rule("canal.instance.detecting.sql", "", "no statement is run: the server sends heartbeats in its binlog stream"),
    Rule("canal.instance.detecting.interval.time", "heartbeat", "only with detecting.enable", take.heartbeat),
    Rule("canal.instance.detecting.retry.threshold", "read_timeout", "interval × threshold", take.heartbeat),
    Rule("canal.instance.detecting.heartbeatHaEnable", "", "with two hosts a failover is always automatic"),
    Rule(
        "canal.instance.transaction.size",
        "transaction_events",
        "a larger one comes in parts",
        take.number("source", "transaction_events", 1),
    ),
    Rule("canal.instance.fallbackIntervalInSeconds", "", "after a failover nothing is read twice: GTIDs say where it continues"),
    Rule("canal.instance.network.receiveBufferSize", "", "the kernel's own size"),
    Rule("canal.instance.network.sendBufferSize", "", "the kernel's own size"),
    Rule("canal.instance.network.soTimeout", "read_timeout", _SAME, take.timeout),
    Rule("canal.instance.filter.druid.ddl", "", "DDLs are always read, to follow the tables"),
    Rule("canal.instance.filter.query.dcl", "always so", "statements about accounts are never kept", take.dcl),
    Rule("canal.instance.filter.query.dml", "operations, rows_query", "true: without `query`", take.dml_statements),
    Rule("canal.instance.filter.query.ddl", "operations", "true: without `ddl`", take.without_operations("ddl")),
    Rule("canal.instance.filter.table.error", "on_error", "true: skip, log and count", take.table_error),
    Rule("canal.instance.filter.rows", "operations", "true: no rows", take.without_operations("insert", "update", "delete")),
    Rule("canal.instance.filter.transaction.entry", "[serve] transaction_entries", "true: false", take.transaction_entries),
    Rule("canal.instance.filter.dml.insert", "operations", "true: without `insert`", take.without_operations("insert")),
    Rule("canal.instance.filter.dml.update", "operations", "true: without `update`", take.without_operations("update")),
    Rule("canal.instance.filter.dml.delete", "operations", "true: without `delete`", take.without_operations("delete")),
    Rule("canal.instance.binlog.format", "statements", "with STATEMENT or MIXED: pass; else fail", take.formats),
    Rule("canal.instance.binlog.image", "row_image", "with MINIMAL or NOBLOB: any; else full", take.images),
    Rule("canal.instance.get.ddl.isolation", "ddl_isolation", _SAME, take.isolation),
    Rule("canal.instance.parser.*", "", _PARSER),
    Rule("canal.instance.tsdb.*", "", _TABLES),
    Rule("canal.destinations", "a file for each", "every folder with instance.properties", lambda to, value: None),
    Rule("canal.destinations.expr", "", "every folder with instance.properties is a destination"),
    Rule("canal.conf.dir", "", "the folder that was named"),
    Rule("canal.auto.scan", "", "start `shmstore run` for a new file"),
    Rule("canal.auto.scan.interval", "", "see canal.auto.scan"),
    Rule("canal.auto.reset.latest.pos.mode", "on_purged", "true: latest", take.latest),
    Rule("canal.instance.global.*", "", "the files that were named are the configuration"),
    Rule("canal.aliyun.accessKey", "[queue] user", _SAME, take.text("queue", "user")),
    Rule("canal.aliyun.secretKey", "[queue] password_file", _SAME, take.queue_password),
    Rule("canal.aliyun.*", "", _RDS),
    Rule("canal.mq.flatMessage", "[queue] format, flat_message", "canal", take.flat),
    Rule("canal.mq.canalBatchSize", "", "a batch is at most [queue] batch events"),
    Rule("canal.mq.canalGetTimeout", "", "what comes is sent at once"),
    Rule("canal.mq.accessChannel", "", "the traces of Aliyun's cloud are not sent"),
    Rule("canal.mq.database.hash", "[queue] database_hash", _SAME, take.database_hash),
    Rule("canal.mq.send.thread.size", "", "one thread sends, in order"),
    Rule("canal.mq.build.thread.size", "", "one thread builds messages, in order"),
    Rule("kafka.bootstrap.servers", "[queue] brokers", _SAME, take.text("queue", "brokers")),
    Rule("canal.mq.servers", "[queue] brokers", "Canal's name until 1.1.4", take.text("queue", "brokers")),
    Rule(
        "kafka.acks",
        "always all",
        "each batch is one transaction",
        lambda to, value: None if value in ("all", "-1") else "always all",
    ),
    Rule("kafka.compression.type", "[queue] compression", _SAME, take.compression),
    *(
        Rule(f"kafka.{name}", "[queue] set", f"`{here}` of librdkafka", take.kafka_setting)
        for name, here in take.LIBRDKAFKA.items()
    ),
    Rule("kafka.buffer.memory", "[queue] set", "`queue.buffering.max.kbytes` of librdkafka", take.buffer),
    Rule("kafka.max.in.flight.requests.per.connection", "", "order holds with any number: the producer is idempotent"),
    Rule("kafka.retries", "", "a batch is tried until it is there"),
    Rule(
        "kafka.kerberos.*", "", "Kerberos is not offered: SCRAM, PLAIN or TLS; or [queue] set with librdkafka's sasl.kerberos.*"
    ),
    Rule("kafka.sasl.jaas.config", "[queue] user, password_file", "SCRAM and PLAIN", take.jaas),
    Rule("kafka.sasl.mechanism", "[queue] sasl", _SAME, take.text("queue", "sasl")),
    Rule("kafka.security.protocol", "[queue] tls", "SSL and SASL_SSL: true", take.protocol),
    Rule("kafka.ssl.*", "", "[queue] tls_ca, tls_cert and tls_key name PEM files"),
    Rule("rocketmq.namesrv.addr", "[queue] brokers", "HOST:PORT,HOST:PORT", take.name_servers),
    Rule("rocketmq.producer.group", "[queue] set", "`group`", take.queue_setting("group")),
    Rule("rocketmq.tag", "[queue] set", "`tag`", take.queue_setting("tag")),
    Rule("rocketmq.namespace", "", "write it before the topic: NAMESPACE%TOPIC"),
    Rule("rocketmq.*", "", "a batch is tried until it is there; no traces are sent"),
    Rule("rabbitmq.host", "[queue] brokers", "HOST:PORT", take.rabbit_host),
    Rule("rabbitmq.virtual.host", "[queue] set", "`vhost`", take.queue_setting("vhost")),
    Rule("rabbitmq.exchange", "[queue] set", "`exchange`", take.queue_setting("exchange")),
    Rule("rabbitmq.username", "[queue] user", _SAME, take.text("queue", "user")),
    Rule("rabbitmq.password", "[queue] password_file", _SAME, take.queue_password),
    Rule("rabbitmq.*", "", "queues and bindings that Canal declared stay; no others are declared"),
    Rule("pulsarmq.serverUrl", "[queue] brokers, tls", "HOST:PORT,HOST:PORT; pulsar+ssl: tls", take.pulsar_url),
    Rule("pulsarmq.roleToken", "[queue] password_file", "with user = token", take.pulsar_token),
    Rule("pulsarmq.topicTenantPrefix", "[queue] set", "`namespace`", take.pulsar_prefix),
    Rule(
        "pulsarmq.adminServerUrl",
        "[queue] set",
        "`admin`, and new_partitions as canal.mq.partitionsNum",
        take.queue_setting("admin"),
    ),
    Rule("pulsarmq.listenerName", "", "give the address of a listener that this host reaches as pulsarmq.serverUrl"),
    Rule("pulsarmq.enableChunking", "", "[queue] oversized says what becomes of a message that is too large"),
    Rule("pulsarmq.*", "", "only for Canal's own consumer"),
    # instance.properties
    Rule("canal.instance.destination", "", "the folder's name"),
    Rule("canal.instance.mysql.slaveId", "server_id", "0: derived from the store", take.slave_id),
    Rule("canal.instance.gtidon", "[serve] gtids", "the producer follows GTIDs where the server has them", take.gtid_on),
    Rule("canal.instance.rds.*", "", _RDS),
    Rule("canal.instance.master.address", "host", _SAME, take.hosts),
    Rule("canal.instance.master.journal.name", "start", "FILE:OFFSET", take.start),
    Rule("canal.instance.master.position", "start", "FILE:OFFSET", take.start),
    Rule("canal.instance.master.timestamp", "start", "the time, where no position is set", take.start),
    Rule("canal.instance.master.gtid", "start", "with gtidon", take.start),
    Rule("canal.instance.multi.stream.on", "", "PolarDB-X's streams are not read"),
    Rule("canal.instance.master.sslMode", "tls", _SAME, take.tls),
    Rule("canal.instance.master.tlsVersions", "", "the newest version that both know"),
    Rule("canal.instance.master.trustCertificateKeyStoreUrl", "tls_ca", "a PEM file, which you make", take.trust),
    Rule("canal.instance.master.trustCertificateKeyStore*", "", "a PEM file has no type and no password"),
    Rule(
        "canal.instance.master.clientCertificateKeyStoreUrl", "tls_cert, tls_key", "PEM files, which you make", take.certificate
    ),
    Rule("canal.instance.master.clientCertificateKeyStore*", "", "a PEM file has no type and no password"),
    Rule("canal.instance.standby.address", "host", "the second of the list", take.hosts),
    Rule("canal.instance.standby.*", "", _STANDBY),
    Rule("canal.instance.dbUsername", "user", _SAME, take.text("source", "user")),
    Rule("canal.instance.dbPassword", "password_file", "in a file of its own", take.password),
    Rule("canal.instance.enableDruid", "password_file", "the password is decrypted", take.druid),
    Rule("canal.instance.pwdPublicKey", "password_file", "decrypts the password", lambda to, value: None),
    Rule("canal.instance.defaultDatabaseName", "", "no database need be chosen"),
    Rule("canal.instance.connectionCharset", "", "each column is read in its own character set"),
    Rule("canal.instance.filter.regex", "include", "each expression as it is", take.filter_patterns("include")),
    Rule("canal.instance.filter.black.regex", "exclude", "each expression as it is", take.filter_patterns("exclude")),
    Rule("canal.instance.filter.field", "column_exclude", "the columns that are not named", take.kept_fields),
    Rule("canal.instance.filter.black.field", "column_exclude", _SAME, take.dropped_fields),
    Rule("canal.mq.topic", "[queue] topic", _SAME, take.text("queue", "topic")),
    Rule("canal.mq.dynamicTopic", "[queue] dynamic_topic", _SAME, take.text("queue", "dynamic_topic")),
    Rule("canal.mq.partition", "[queue] partition", _SAME, take.number("queue", "partition")),
    Rule("canal.mq.enableDynamicQueuePartition", "", "name the partitions: [queue] partitions_num"),
    Rule("canal.mq.partitionsNum", "[queue] partitions_num", _SAME, take.number("queue", "partitions_num", 1)),
    Rule(
        "canal.mq.dynamicTopicPartitionNum",
        "[queue] dynamic_topic_partition_num",
        _SAME,
        take.text("queue", "dynamic_topic_partition_num"),
    ),
    Rule("canal.mq.partitionHash", "[queue] partition_hash", _SAME, take.text("queue", "partition_hash")),
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
    to.serves = mode not in QUEUES
    others = tuple(f"{queue}." for queue in QUEUES if queue != mode) + (() if mode in QUEUES else ("canal.mq.",))
    others += ("canal.mq.servers",) if mode != "kafka" else ()
    others += ("canal.aliyun.",) if mode != "rocketmq" else ()
    for name in to.source.names:
        rule, value = rule_of(name), to.get(name)
        to.rule = name
        if rule is None:
            to.note("unknown", name, "nothing here answers to it")
        elif not value:
            to.note("empty", name, "")
        elif rule.take is None:
            to.note("left out", name, rule.about)
        elif name.startswith(others):
            queue = "rocketmq" if name.startswith("canal.aliyun.") else name.partition(".")[0]
            to.note(
                "left out",
                name,
                f"Canal reads it only with canal.serverMode = {queue if queue in QUEUES else ', '.join(QUEUES)}",
            )
        elif rule.here.startswith("[serve]") and mode in QUEUES and name not in ("canal.serverMode", "canal.instance.gtidon"):
            to.note("left out", name, f"Canal opens no port for clients with canal.serverMode = {mode}")
        else:
            why = rule.take(to, value)
            to.note("changed" if why else "taken over", name, f"{rule.here}{f'; {why}' if why else ''}")
    if to.serves:
        take.listen(to, "")
    for name, inside in to.source.undefined.items():
        to.note("changed", inside, f"the placeholder ${{{name}}} is defined nowhere, and empty, as in Canal")
    to.finish(mode)
