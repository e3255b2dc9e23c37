"""`shmstore init --from-canal`: Canal's configuration becomes one that the commands understand, and every property is accounted for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore, checkpoints, producer
from shmstore.cli.canal import files
from shmstore.cli.canal.conversion import KINDS, Conversion
from shmstore.cli.canal.mapping import RULES, rule_of
from shmstore.cli.main import main
from shmstore.home.home import Home
from shmstore.patterns.table_patterns import Patterns
from tests.servers import canal_conf
from tests.shmstore.cli.canal.test_druid import ENCRYPTED, KEY

SECRET = "s3cr3t-of-canal"
HASH = "e3619321c1a937c46a0d8bd1dac39f93b27d4458"


def conf(folder: Path, server: str = "", **instances: str) -> Path:
    """Canal's shipped folder, with lines behind those of its files."""
    canal_conf.write(folder / "conf", "example", *instances)
    with (folder / "conf" / "canal.properties").open("a") as file:
        file.write(f"\n{server}\n")
    for name, text in instances.items():
        with (folder / "conf" / name / "instance.properties").open("a") as file:
            file.write(f"\n{text}\n")
    return folder / "conf"


def converted(folder: Path, text: str = "", server: str = "", environ: dict[str, str] | None = None) -> Conversion:
    """The destination `example` of the shipped folder, with more properties."""
    where = folder / str(len(list(folder.iterdir())))
    where.mkdir()
    (made,) = files.conversions(str(conf(where, server, example=text)), where / "out", {}, environ or {})
    return made


def kinds(made: Conversion) -> dict[str, str]:
    """What became of each property."""
    return {outcome.name: outcome.kind for outcome in made.outcomes}


def test_the_shipped_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the check finds nothing wrong in, a password that its owner alone reads, and a line for every property."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    assert main(["init", "--from-canal", str(conf(tmp_path)), "--output", str(tmp_path / "out")]) == 0
    report = capsys.readouterr().out
    path = tmp_path / "out" / "example" / "shmstore.toml"
    assert main(["config", "check", str(path)]) == 0, capsys.readouterr().out
    (settings,) = producer.load_all(config=path, environ={})
    assert (settings.store, settings.host, settings.user, settings.include) == ("example", "127.0.0.1:3306", "canal", ())
    assert (settings.statements, settings.row_image, settings.transaction_events) == ("pass", "any", 1024)
    assert tomllib.loads(path.read_text())["serve"]["listen"] == "0.0.0.0:11111"
    assert oct(Path(settings.password_file).stat().st_mode & 0o777) == "0o600"
    assert Path(settings.password_file).read_text() == "canal\n"
    for name in (*canal_conf.SERVER, *canal_conf.INSTANCE):
        assert re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", report), name
    assert main(["init", "--from-canal", str(tmp_path / "conf"), "--output", str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_every_property_of_canal_has_a_rule() -> None:
    """Those of the shipped files, commented out or not, and the placeholders of the shipped Spring files."""
    names = {*canal_conf.SERVER, *canal_conf.INSTANCE, *canal_conf.UNSET}
    assert len(names) > 150
    assert [name for name in sorted(names) if rule_of(name) is None] == []


def test_each_rule_is_unique() -> None:
    """No property is in the table twice, and what is left out says what to do instead."""
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert [rule.name for rule in RULES if rule.take is None and not rule.about] == []
    assert [rule.name for rule in RULES if rule.take is not None and not rule.here] == []


CASES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "canal.instance.master.address=db1:3307\ncanal.instance.standby.address=[::1]:3308",
        "source",
        {"host": "db1:3307,[::1]:3308"},
    ),
    ("canal.instance.mysql.slaveId=1234", "source", {"server_id": 1234}),
    ("canal.instance.master.sslMode=VERIFY_CA", "source", {"tls": "verify-ca"}),
    ("canal.instance.master.journal.name=b.000003\ncanal.instance.master.position=120", "source", {"start": "b.000003:120"}),
    ("canal.instance.master.journal.name=b.000003", "source", {"start": "b.000003:4"}),
    ("canal.instance.master.timestamp=1700000000123", "source", {"start": "time:2023-11-14T22:13:20.123+00:00"}),
    (
        "canal.instance.gtidon=true\ncanal.instance.master.gtid=0-1-4711",
        "source",
        {"start": "gtid:0-1-4711", "schema_history": "now"},
    ),
    (
        "canal.instance.filter.regex=shop\\\\..*,(a|b)\\\\.t{1,2},crm.orders",
        "source",
        {"include": [r"regex:shop\..*", r"regex:(a|b)\.t{1,2}", "crm.orders"]},
    ),
    ("canal.instance.filter.black.field=shop.t:a/b", "source", {"column_exclude": [r"regex:shop\.t\.a", r"regex:shop\.t\.b"]}),
    (
        "canal.instance.filter.query.ddl=true\ncanal.instance.filter.dml.delete=true",
        "source",
        {"operations": ["insert", "update", "query"]},
    ),
    ("canal.instance.filter.query.dml=true", "source", {"operations": ["insert", "update", "delete", "ddl"]}),
    ("canal.instance.filter.table.error=true", "source", {"on_error": "skip"}),
    ("canal.instance.filter.transaction.entry=true", "serve", {"transaction_entries": False}),
    ("canal.instance.binlog.format=ROW\ncanal.instance.binlog.image=FULL", "source", {"statements": "fail", "row_image": "full"}),
    (
        "canal.instance.memory.buffer.size=32768\ncanal.instance.memory.buffer.memunit=2048",
        "source",
        {"capacity": 32768, "memory_unit": 2048},
    ),
    (
        "canal.instance.memory.batch.mode=ITEMSIZE\ncanal.instance.get.ddl.isolation=true",
        "source",
        {"batch_mode": "ITEMSIZE", "ddl_isolation": True},
    ),
    (
        "canal.instance.detecting.enable=true\ncanal.instance.detecting.interval.time=7",
        "source",
        {"heartbeat": 7, "read_timeout": 21},
    ),
    ("canal.auto.reset.latest.pos.mode=true", "source", {"on_purged": "latest"}),
    ("canal.instance.gtidon=true", "serve", {"gtids": "on"}),
    ("canal.port=${PORT:12}${more:34}", "serve", {"listen": "0.0.0.0:1234"}),
    ("canal.ip=::1", "serve", {"listen": "[::1]:11111"}),
    ("canal.zkServers=zk:2181\ncanal.register.ip=10.0.0.1", "serve", {"zookeeper": "zk:2181", "advertise": "10.0.0.1:11111"}),
]


@pytest.mark.parametrize(("text", "section", "options"), CASES)
def test_options(tmp_path: Path, text: str, section: str, options: dict[str, Any]) -> None:
    """Each property becomes the option that answers to it, and none of them is left out."""
    made = converted(tmp_path, text)
    found = made.sections[section]
    assert {name: found.get(name) for name in options} == options
    for line in text.splitlines():
        assert kinds(made)[line.partition("=")[0]] in ("taken over", "changed"), line


def test_kept_fields(tmp_path: Path) -> None:
    """A list of a table's columns leaves out its others, and no column of another table; where both lists name a table, that one decides."""
    made = converted(
        tmp_path, "canal.instance.filter.field=shop.t:id/na-me,odd\ncanal.instance.filter.black.field=shop.t:id,shop.u:a"
    )
    patterns = Patterns.parse(made.sections["source"]["column_exclude"])
    names = ["shop.t.id", "shop.t.ID", "shop.t.na-me", "shop.t.id2", "shop.t.x", "shop.u.x", "shop.u.a", "shop.tt.x"]
    assert [name for name in names if patterns.match(name)] == ["shop.t.id2", "shop.t.x", "shop.u.a"]
    about = {outcome.name: outcome.text for outcome in made.outcomes}
    assert "'odd' is not SCHEMA.TABLE:COLUMN" in about["canal.instance.filter.field"]
    assert "of shop.t filter.field decides" in about["canal.instance.filter.black.field"]


def test_kafka(tmp_path: Path) -> None:
    """Canal's MQ mode becomes a section for `shmstore queue`, and no server for clients."""
    server = f"""canal.serverMode = kafka
kafka.bootstrap.servers = k1:9092,k2:9092
kafka.sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{SECRET}";
kafka.sasl.mechanism = SCRAM-SHA-512
kafka.security.protocol = SASL_SSL
kafka.max.request.size = 2000000"""
    made = converted(
        tmp_path, "canal.mq.dynamicTopic=t:shop\\\\..*\ncanal.mq.partitionsNum=3\ncanal.mq.partitionHash=.*\\\\..*:$pk$", server
    )
    queue = made.sections["queue"]
    assert made.sections["serve"] == {}
    assert made.secrets["queue-password"] == SECRET
    assert queue["brokers"] == "k1:9092,k2:9092"
    assert (queue["user"], queue["sasl"], queue["tls"], queue["format"]) == ("alice", "SCRAM-SHA-512", True, "canal")
    assert (queue["dynamic_topic"], queue["partitions_num"], queue["partition_hash"]) == (r"t:shop\..*", 3, r".*\..*:$pk$")
    assert "message.max.bytes=2000000" in queue["set"]
    assert SECRET not in files.report(made) + files.text_of_file(made, False)
    assert (queue["store"], queue["subscription"]) == ("example", "canal-1001")


def test_rabbitmq(tmp_path: Path) -> None:
    """Canal's MQ mode with RabbitMQ: at least once, into queues and exchanges that are there; what is for another queue is left out."""
    server = f"""canal.serverMode = rabbitMQ
canal.mq.flatMessage = true
canal.mq.servers = old:1
kafka.bootstrap.servers = k1:9092
rabbitmq.host = rabbit
rabbitmq.virtual.host = /shop
rabbitmq.exchange = changes
rabbitmq.username = alice
rabbitmq.password = {SECRET}
rabbitmq.deliveryMode = direct"""
    made = converted(tmp_path, "canal.mq.topic=orders", server)
    queue = made.sections["queue"]
    assert made.sections["serve"] == {}
    assert made.secrets["queue-password"] == SECRET
    assert (queue["kind"], queue["delivery"], queue["create_topics"]) == ("rabbitmq", "at-least-once", False)
    assert (queue["brokers"], queue["user"], queue["format"], queue["topic"]) == ("rabbit:5672", "alice", "canal", "orders")
    assert sorted(queue["set"]) == ["exchange=changes", "vhost=/shop"]
    kinds = {outcome.name: outcome.kind for outcome in made.outcomes}
    assert {kinds[name] for name in ("canal.mq.servers", "kafka.bootstrap.servers", "rabbitmq.deliveryMode")} == {"left out"}
    assert SECRET not in files.report(made) + files.text_of_file(made, False)


def test_rocketmq(tmp_path: Path) -> None:
    """Canal's MQ mode with RocketMQ: at least once, to its name servers, with its login, group and tag; with another queue its login is left out."""
    server = f"""canal.serverMode = rocketMQ
canal.mq.flatMessage = true
canal.aliyun.accessKey = alice
canal.aliyun.secretKey = {SECRET}
rocketmq.namesrv.addr = n1:9876;n2:9876
rocketmq.producer.group = changes
rocketmq.tag = shop
rocketmq.retry.times.when.send.failed = 0
rabbitmq.host = rabbit"""
    made = converted(tmp_path, "canal.mq.topic=orders\ncanal.mq.partitionsNum=3", server)
    queue = made.sections["queue"]
    assert made.sections["serve"] == {}
    assert made.secrets["queue-password"] == SECRET
    assert (queue["kind"], queue["delivery"], queue["brokers"]) == ("rocketmq", "at-least-once", "n1:9876,n2:9876")
    assert (queue["user"], queue["format"], queue["topic"], queue["partitions_num"]) == ("alice", "canal", "orders", 3)
    assert sorted(queue["set"]) == ["group=changes", "tag=shop"]
    assert {kinds(made)[name] for name in ("rabbitmq.host", "rocketmq.retry.times.when.send.failed")} == {"left out"}
    assert SECRET not in files.report(made) + files.text_of_file(made, False)
    made = converted(tmp_path, "", server.replace("rocketMQ", "kafka") + "\nkafka.bootstrap.servers = k1:9092")
    about = {outcome.name: outcome for outcome in made.outcomes}["canal.aliyun.secretKey"]
    assert (about.kind, about.text) == ("left out", "Canal reads it only with canal.serverMode = rocketmq")
    assert SECRET not in files.report(made) + files.text_of_file(made, False)


def test_pulsar(tmp_path: Path) -> None:
    """Canal's MQ mode with Pulsar: at least once, with its token, namespace and TLS; topics get partitions where Canal would make them."""
    server = f"""canal.serverMode = pulsarMQ
canal.mq.flatMessage = true
pulsarmq.serverUrl = pulsar+ssl://p1,p2:7651
pulsarmq.roleToken = {SECRET}
pulsarmq.topicTenantPrefix = persistent://shop/changes/
pulsarmq.ackTimeoutSeconds = 5
rocketmq.namesrv.addr = n1:9876"""
    made = converted(tmp_path, "canal.mq.topic=orders\ncanal.mq.partitionsNum=3", server)
    queue = made.sections["queue"]
    assert made.sections["serve"] == {}
    assert made.secrets["queue-password"] == SECRET
    assert (queue["kind"], queue["delivery"], queue["brokers"], queue["tls"]) == (
        "pulsar",
        "at-least-once",
        "p1:6651,p2:7651",
        True,
    )
    assert (queue["user"], queue["format"], queue["topic"], queue["partitions_num"]) == ("token", "canal", "orders", 3)
    assert queue["set"] == ["namespace=shop/changes"]
    assert "new_partitions" not in queue
    assert {kinds(made)[name] for name in ("rocketmq.namesrv.addr", "pulsarmq.ackTimeoutSeconds")} == {"left out"}
    assert SECRET not in files.report(made) + files.text_of_file(made, False)
    made = converted(tmp_path, "canal.mq.partitionsNum=3", f"{server}\npulsarmq.adminServerUrl = http://p1:8080")
    assert made.sections["queue"]["set"] == ["namespace=shop/changes", "admin=http://p1:8080"]
    assert made.sections["queue"]["new_partitions"] == 3


@pytest.mark.parametrize("druid", [False, True])
def test_secrets(tmp_path: Path, druid: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords and hashes are in files that their owner alone reads, and nowhere else."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    password = "pässword=1" if druid else SECRET
    text = (
        f"canal.instance.dbPassword={ENCRYPTED}\ncanal.instance.enableDruid=true\ncanal.instance.pwdPublicKey={KEY}"
        if druid
        else f"canal.instance.dbPassword={SECRET}"
    )
    folder = conf(
        tmp_path,
        f"canal.user=me\ncanal.passwd={HASH.upper()}\nkafka.sasl.jaas.config={SECRET}\nmy.password={SECRET}",
        example=text,
    )
    assert main(["init", "--from-canal", str(folder), "--output", str(tmp_path / "out")]) == 0
    said = "".join(capsys.readouterr())
    written = {path.name: path for path in (tmp_path / "out" / "example").iterdir()}
    assert written["password"].read_text() == f"{password}\n"
    assert written["clients-password-hash"].read_text() == f"{HASH.upper()}\n"
    assert {oct(path.stat().st_mode & 0o777) for name, path in written.items() if name != "shmstore.toml"} == {"0o600"}
    for secret in (SECRET, password, HASH, HASH.upper(), ENCRYPTED):
        assert secret not in said + written["shmstore.toml"].read_text()
    assert "Nothing here answers to:\n    my.password" in said
    assert main(["config", "check", str(written["shmstore.toml"])]) == 0


def test_environment_and_placeholders(tmp_path: Path) -> None:
    """The environment wins over the files, as in Canal; a placeholder that nothing defines is empty, and is named."""
    environ = {"canal.instance.dbUsername": "of-env", "DB": "db9:3306", "canal.my.own": "1"}
    made = converted(
        tmp_path,
        "canal.instance.master.address=${DB:x:1}\ncanal.instance.dbUsername=of-file\ncanal.instance.tsdb.url=${NOWHERE}",
        "",
        environ,
    )
    assert (made.sections["source"]["user"], made.sections["source"]["host"]) == ("of-env", "db9:3306")
    assert ("changed", "canal.instance.tsdb.url") in {(each.kind, each.name) for each in made.outcomes}
    assert kinds(made)["canal.my.own"] == "unknown"
    assert set(kinds(made).values()) <= set(KINDS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("canal.instance.master.address=", "canal.instance.master.address is not set"),
        ("canal.instance.master.address=db1", "must be HOST:PORT"),
        ("canal.instance.master.address=db1:70000", "from 1 to 65535"),
        ("canal.instance.master.address=${a}\na=${b}\nb=${a}", "leads back to itself"),
        (
            "canal.instance.master.address=${a}\n"
            + "\n".join(f"{x}=${{{y}}}${{{y}}}${{{y}}}" for x, y in zip("abcdefghijklmn", "bcdefghijklmno", strict=True)),
            "more than 1000 placeholders",
        ),
        ("canal.instance.filter.regex=(a)\\\\1\\\\..*", "canal.instance.filter.regex cannot be taken over"),
        ("canal.instance.filter.black.regex=.*\\\\..*", "leaves out every table"),
        ("canal.instance.memory.buffer.size=1000", "power of two"),
        ("canal.instance.memory.buffer.memunit=x", "whole number"),
        ("canal.instance.master.sslMode=maybe", "must be one of"),
        ("canal.instance.filter.rows=perhaps", "must be true or false"),
        (
            "canal.instance.filter.rows=true\ncanal.instance.filter.query.ddl=true\ncanal.instance.filter.query.dml=true",
            "nothing would be read",
        ),
        ("canal.instance.master.timestamp=99999999999999999", "milliseconds since 1970"),
        ("canal.instance.dbPassword=a\\nb", "line end"),
        ("canal.user=me", "canal.passwd is empty"),
        ("canal.passwd=secret", "40 hexadecimal digits"),
        ("canal.serverMode=kafka\nkafka.bootstrap.servers=", "kafka.bootstrap.servers is not set"),
        ("canal.serverMode=rabbitmq", "canal.serverMode is rabbitmq, and rabbitmq.host is not set"),
        (
            "canal.serverMode=rocketmq\nrocketmq.namesrv.addr=",
            "canal.serverMode is rocketmq, and rocketmq.namesrv.addr is not set",
        ),
        ("canal.serverMode=pulsarMQ", "canal.serverMode is pulsarmq, and pulsarmq.serverUrl is not set"),
        ("canal.serverMode=pulsarMQ\npulsarmq.serverUrl=http://p:8080", "it must be pulsar://HOST:PORT"),
        (
            "canal.serverMode=pulsarMQ\npulsarmq.serverUrl=pulsar://p\npulsarmq.topicTenantPrefix=non-persistent://a/b",
            "it must be persistent://TENANT/NAMESPACE",
        ),
        ("a=\\u12", "instance.properties: line"),
        ("canal.instance.dbUsername=\\uD800", "come in pairs"),
    ],
)
def test_what_cannot_be_taken_over(tmp_path: Path, text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the property; nothing is written."""
    folder = conf(tmp_path, example=text)
    assert main(["init", "--from-canal", str(folder), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_several_destinations(tmp_path: Path) -> None:
    """Each has a folder of its own; one server is for all of them, under the names that clients know."""
    folder = conf(tmp_path, "", orders="", **{"a b": ""})
    every = files.conversions(str(folder), tmp_path / "out", {}, {})
    assert [made.store for made in every] == ["a_b", "example", "orders"]
    assert {tuple(made.sections["serve"]["stores"]) for made in every} == {("a b=a_b", "example", "orders")}
    assert len(files.write(every)) == 3


def test_a_folder_that_is_none_of_canal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what is missing."""
    assert main(["init", "--from-canal", str(tmp_path)]) == 2
    assert "has no canal.properties" in capsys.readouterr().err
    (tmp_path / "canal.properties").touch()
    assert main(["init", "--from-canal", str(tmp_path)]) == 2
    assert "has no folder with instance.properties" in capsys.readouterr().err


META = """{"clientDatas":[{"clientIdentity":{"clientId":1001,"destination":"example","filter":"shop\\\\..*"},"cursor":{"identity":
{"slaveId":-1,"sourceAddress":{"address":"localhost","port":3306}},"postion":{"gtid":"","included":false,"journalName":"b.000001",
"position":1234,"serverId":1,"timestamp":1700000000000}}},{"clientIdentity":{"clientId":7,"destination":"example"}}],"destination":"example"}"""


def test_cursors(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients in meta.dat are subscriptions before there is a store; the producer reads what came before its tables."""
    from shmstore.consumer.wire.session.unacked import RecordFile

    state = tmp_path / "state"
    monkeypatch.setenv("SHMSTORE_STATE", str(state))
    folder = conf(tmp_path)
    (folder / "example" / "meta.dat").write_text(META)
    assert main(["init", "--from-canal", str(folder), "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "canal-1001: continues behind b.000001:1234" in said
    assert "canal-7: Canal has no cursor" in said
    found = checkpoints("example", state)
    assert {name: (each.position.file, each.position.offset) for name, each in found.items()} == {
        "canal-1001": ("b.000001", 1234)
    }
    assert RecordFile(Home.of("example", state), "canal-1001").record.filter == "shop\\..*"
    (settings,) = producer.load_all(config=tmp_path / "out" / "example" / "shmstore.toml", environ={})
    assert settings.schema_history == "now"
    assert main(["subscribe", "example", "--canal-meta", str(folder / "example" / "meta.dat")]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\0\0",
        "{",
        "[]",
        "{}",
        '{"clientDatas":[{}]}',
        META.replace("1234", "-5"),
        META.replace("1001", '"x"'),
        META.replace("shop\\\\..*", "(a"),
        "[" * 100_000,
    ],
)
def test_a_meta_dat_that_is_none(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names the file, or the filter; nothing is made."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    (tmp_path / "meta.dat").write_text(text)
    assert main(["subscribe", "example", "--canal-meta", str(tmp_path / "meta.dat")]) == 2
    assert re.search(r"meta\.dat|filter of client", capsys.readouterr().err)
    assert not (tmp_path / "state").exists()


def test_subscribe(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription in a store that exists, at a place in it; one that is there already is not moved."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path))
    name = f"subscribed-{tmp_path.name}"[:60]
    with EventStore.create(name, state=tmp_path) as store:
        try:
            store.put([b"a", b"b"])
            assert main(["subscribe", name, "late"]) == 0
            assert main(["subscribe", name, "early", "--from", "earliest"]) == 0
            assert {each.name: each.ack.sequence for each in store.subscriptions()} == {"late": 1, "early": -1}
            assert main(["subscribe", name, "late", "--from", "earliest"]) == 2
            assert "shmstore seek" in capsys.readouterr().err
            assert main(["subscribe", name, "x", "--filter", "a"]) == 2
            assert main(["subscribe", name]) == 2
        finally:
            store.close()
            EventStore.unlink(name, log=True, state=tmp_path)
    assert main(["subscribe", "absent", "x", "--from", "latest"]) == 2
    assert "does not exist yet" in capsys.readouterr().err
