"""What the `shmstore` command refuses: one line on stderr that names the fix, exit code 2, nothing left behind."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.cli.main import main
from shmstore.errors import install
from shmstore.memory.layout import VERSION, header_word
from tests.shmstore.commands import COMMAND, end, free_name, insert, left, own_state, run, small_store  # noqa: F401  fixtures

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("tail NAME", "shmstore ls"),
        ("stat NAME", "shmstore ls"),
        ("check NAME", "shmstore ls"),
        ("rm NAME", "shmstore ls"),
        ("rm NAME --force", "shmstore ls"),
        ("unsubscribe NAME audit", "shmstore ls"),
        ("metrics NAME", "shmstore ls"),
        ("create shop/orders", "no slash"),
        ("tail ../etc/passwd", "no slash"),
        ("create .hidden", "not starting with"),
        (f"create {'x' * 200}", "1 to 100"),
        ("create NAME --capacity 1000", "power of two"),
        ("create NAME --memory-unit 0", "give 1 to"),
        ("create NAME --permissions 0777", "0o600"),
        ("create NAME --permissions 99", "octal digits, such as 0660"),
        ("create NAME --group no_such_group", "no_such_group"),
        ("create NAME --path /no/such/folder/orders", "must exist"),
        ("create NAME --capacity 67108864 --memory-unit 65536", "smaller"),
        ("tail NAME --from yesterday", "binlog.000003:1520"),
        ("tail NAME --format xml", "debezium"),
        ("tail NAME --format jsn", "did you mean json?"),
        ("tail NAME --from latets", "did you mean latest?"),
        ("tail NAME --tables orders", "*.orders"),
        ("tail NAME --peek --subscription audit", "not allowed with"),
        ("tail NAME --subscriptoin audit", "did you mean --subscription?"),
        ("tail NAME --count 0", "from 1 up"),
        ("stat NAME --watch 0", "above 0"),
        ("serve --listen 11111", "HOST:PORT"),
        ("serve ../x", "no slash"),
        ("serve NAME --max-frame 0", "from 1 up"),
        ("serve NAME --max-outstanding none", "none is not a number from 1 up"),
        ("serve NAME --auth-timeout 0", "above 0"),
        ("snapshot NAME", "shmstore ls"),
        ("snapshot NAME --watch", "shmstore ls"),
        ("snapshot NAME --tables shop.*", "shmstore ls"),
        ("snapshot NAME --cancel", "shmstore ls"),
        ("serve NAME --listen no.such.host.invalid:0", "another address with --listen"),
        ("metrics --listen no.such.host.invalid:0", "another address with --listen"),
        ("serve NAME --tls-cert /no/cert --tls-key /no/key", "/no/cert: No such file"),
        ("serve NAME --user canal", "--password-file"),
        ("serve NAME --password-file /no/such/file", "/no/such/file"),
        ("serve NAME --listen 127.0.0.1:0 --tls-cert LICENSE", "tls_key"),
        ("produce --store NAME --port 99999", "port is 99999: give 1 to 65535"),
        ("produce --store NAME --host a:b:c,", "HOST[:PORT]"),
        ("produce --store NAME --prot 1", "did you mean --port?"),
        ("produce --store NAME --batch-mode memsize", "did you mean MEMSIZE?"),
        ("produce --store NAME store=x", "did you mean --store?"),
        ("run --config /no/such/file.toml", "/no/such/file.toml"),
        ("run", "--config FILE"),
        ("tale NAME", "choose from"),
        ("tale NAME", "did you mean tail?"),
        ("stat NAME --watch often", "often is not a number of seconds above 0"),
        ("tail", "STORE"),
        ("", "COMMAND"),
    ],
)
def test_bad_input(name: str, words: str, fix: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Bad input is one line on stderr that names the fix, exit code 2, nothing left behind."""
    try:
        code = main(words.replace("NAME", name).split())
    except SystemExit as error:  # argparse ends the process
        code = error.code  # type: ignore[assignment]
    out, complaint = capfd.readouterr()
    assert (code, out, complaint.count("\n")) == (2, "", 1), complaint
    assert fix in complaint
    assert complaint.startswith("shmstore")
    assert left(name) == []


def test_create_of_a_store_that_is_there(store: EventStore) -> None:
    """`create` of a name that is taken names the ways out, and leaves the store as it was."""
    store.put([insert(0), end(0)])
    assert f"shmstore rm {store.name}" in run("create", store.name, code=2)
    assert store.newest == 1


@pytest.mark.parametrize(
    ("start", "fix"), [("5", "is empty, and its next event will be 0"), ("gtid:junk", "UUID:1-4711 as MySQL does, or 0-1-4711")]
)
def test_tail_from_what_is_not_there(store: EventStore, start: str, fix: str) -> None:
    """`tail --from` of a place that the store cannot have says in one line what can be given."""
    assert fix in run("tail", store.name, "--from", start, "--no-follow", code=2)


def test_second_reader_of_a_subscription(store: EventStore) -> None:
    """A subscription that a living process reads is refused, with that process's id."""
    with store.subscribe("audit"):
        assert f"pid {os.getpid()}" in run("tail", store.name, "--subscription", "audit", code=2)


def test_other_layout_version(store: EventStore) -> None:
    """A store of another layout version is refused with both versions and the way out, listed as such, and may be removed."""
    store.segment.words[header_word("version")] = VERSION + 41
    for words in (["tail", store.name], ["stat", store.name], ["check", store.name]):
        complaint = run(*words, code=2)
        assert f"layout version {VERSION + 41}" in complaint
        assert f"version {VERSION}:" in complaint
    assert f"layout version {VERSION + 41}" in run("ls")
    run("rm", store.name)


def test_lost_subscription(name: str) -> None:
    """An evicted subscription gets an error with the way out; after `unsubscribe` the name can be used again."""
    with EventStore.create(name, capacity=4, lag="evict", evict_after=0.01, log=False) as store:
        store.put([insert(0), end(0)])
        run("tail", name, "--subscription", "slow", "--count", "1")
        for number in range(1, 6):
            store.put([insert(number), end(number)])
        complaint = run("tail", name, "--subscription", "slow", "--no-follow", code=2)
        assert f"shmstore unsubscribe {name} slow" in complaint
        run("unsubscribe", name, "slow")
        assert run("tail", name, "--subscription", "slow", "--no-follow") != ""


@pytest.mark.parametrize(("words", "output", "code"), [("ls", ">/dev/full", 2), ("ls", ">&-", 0), ("tail NAME", ">&-", 2)])
def test_output_that_cannot_be_written(name: str, words: str, output: str, code: int) -> None:
    """A full disk is one line and exit code 2, and output that no process reads is no error."""
    line = f"{shlex.join(COMMAND)} {words.replace('NAME', name)} {output}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1 if code else 0), done.stderr


INTERRUPTED = """
import signal, sys, weakref

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            # As an import's own callbacks do it: what is raised in them is printed, and Python continues.
            seen = weakref.ref(type("Gone", (), {})(), lambda _: signal.raise_signal(signal.SIGINT))

import shmstore.cli.interrupt
sys.modules.pop(sys.argv[1], None)
sys.meta_path.insert(0, Interrupts())
from shmstore.cli.main import main
from shmstore.errors import install
sys.exit(main(["ls"]))
"""


@pytest.mark.parametrize(
    "module",
    ["argparse", "numpy", "json", "shmstore.cli.command_line", "shmstore.cli.named_store", "shmstore.cli.text_report"],
)
def test_interrupted_while_it_is_imported(module: str) -> None:
    """Ctrl-C while the command is still imported ends it as any other does: exit code 130 and not a word."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "words", ["tail", "spark replicate", "spark replicate orders", "spark bogus", "spark replicate o --target t --bogus"]
)
def test_missing_argument(words: str) -> None:
    """What a command lacks is one line that says where help is, not the whole usage."""
    done = subprocess.run([*COMMAND, *words.split()], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.endswith(" --help)\n")


def test_a_spark_that_is_too_old(name: str, tmp_path: Path) -> None:
    """With a pyspark before 4.0 the command, its help and an import say in one line which one is needed, and what to do instead."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.8"\n')
    (tmp_path / "pyspark-3.5.8.dist-info").mkdir()
    (tmp_path / "pyspark-3.5.8.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.8\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    line = r"pyspark 3\.5\.8 is installed, and shmstore needs 4\.0 or later,[^\n]* \(shmstore spark replicate STORE --format parquet\)"
    replicate = ["spark", "replicate", name, "--target", str(tmp_path / "{table}")]
    done = subprocess.run([*COMMAND, *replicate], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2
    assert re.fullmatch(rf"shmstore: {line}\n", done.stderr)
    for command in ([sys.executable, "-m", "shmstore.consumer.spark"], [*COMMAND, "spark", "replicate"]):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(line, " ".join(done.stdout.split()))
    code = "from shmstore.spark import replicate"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1
    assert re.search(rf"SparkTooOld: {line}\n$", done.stderr)


@pytest.mark.parametrize("module", ["pyarrow", "posix_ipc", "msgpack", "numpy"])
def test_what_a_process_of_spark_lacks(module: str, tmp_path: Path) -> None:
    """Where Spark's planner or an executor has not what shmstore needs, the error names the Python, the module and what to do."""
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    code = (
        "import sys; from importlib.machinery import ModuleSpec\n"
        "sys.modules['__main__'].__spec__ = ModuleSpec('pyspark.daemon', None)  # the program of executors' processes\n"
        "import shmstore.consumer.spark.source.partition\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1
    line = (
        rf"ModuleNotFoundError: {re.escape(sys.executable)} on host \S+ has no {module}, which .* --archives .*is not enough\n$"
    )
    assert re.search(line, done.stderr)


def test_missing_extra(name: str, tmp_path: Path) -> None:
    """A command whose extra is not installed says which one to install."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in os.environ['BLOCKED'].split():\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    blocked = "pymysql pymysqlreplication google pyspark py4j pyarrow pandas"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "BLOCKED": blocked}
    replicate = ["replicate", name, "--target", str(tmp_path / "{table}")]
    spark = [sys.executable, "-m", "shmstore.consumer.spark"]
    for command, package, extra in (
        ([*COMMAND, "produce", "--store", name], "PyMySQL", "mysql"),
        ([*COMMAND, "doctor"], "PyMySQL", "mysql"),
        ([*COMMAND, "serve", "--listen", "127.0.0.1:0"], "protobuf", "server"),
        ([*COMMAND, "spark", *replicate], "pyspark", "spark"),
        ([*spark, *replicate], "pyspark", "spark"),
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 2
        assert done.stderr.startswith(f"shmstore: {package}")
        assert done.stderr.endswith(f" is not installed: {install(extra)}\n")
        assert done.stderr.count("\n") == 1
    environment["BLOCKED"] = "duckdb deltalake psycopg confluent_kafka nats pika pulsar redis"
    for words, package, extra in (
        ("replicate STORE --to duckdb:///x", "copies in DuckDB need duckdb", "duckdb"),
        ("replicate STORE --to delta:x", "copies in Delta need deltalake", "delta"),
        ("replicate STORE --to postgresql://u@127.0.0.1/x", "copies in PostgreSQL need psycopg", "postgresql"),
        ("queue STORE --brokers 127.0.0.1:1", "Kafka needs confluent-kafka", "kafka"),
        ("queue STORE --kind nats --brokers 127.0.0.1:1", "NATS needs nats-py", "nats"),
        ("queue STORE --kind pulsar --brokers 127.0.0.1:1", "Pulsar needs pulsar-client", "pulsar"),
        ("queue STORE --kind redis --brokers 127.0.0.1:1", "Redis Streams need redis", "redis"),
    ):
        command = [*COMMAND, *words.replace("STORE", name).split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith(f"shmstore: {package}"), done.stderr
        assert done.stderr.endswith(f"{install(extra)}\n"), done.stderr
    environment["BLOCKED"] = blocked
    for command in ([*COMMAND, "spark"], [*COMMAND, "spark", "replicate"], spark):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "replicate" in done.stdout
    code = (
        "import shmstore.consumer.spark\ntry: shmstore.consumer.spark.register\nexcept ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("No module named 'p")
    done = subprocess.run([*COMMAND, "ls"], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_at_any_moment_of_the_start(seed: int) -> None:
    """A command that would run on ends at the first Ctrl-C, whenever that comes."""
    moments = random.Random(seed)
    for _ in range(8):
        process = subprocess.Popen(
            [*COMMAND, "metrics", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        time.sleep(0.1 + moments.random() * 0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode in (130, -signal.SIGINT, 1)  # the last two: in what Python does before our code
