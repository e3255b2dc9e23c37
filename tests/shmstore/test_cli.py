"""The `shmstore` command on stores alone, run as users run it: in a process of its own. With servers: test_cli_server.py."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.cli import main
from shmstore.event import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.layout import VERSION, header_word

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "shmstore.cli"]
_numbers = itertools.count(1)


def insert(number: int, table: str = "orders") -> Event:
    schema = TableSchema("shop", table, (Column("id", "bigint", nullable=False), Column("note", "varchar")), (0,))
    rows = (Row(None, (number, f"nöte {number}")),)
    return Event(
        EntryType.ROWS, EventType.INSERT, Position("binlog.000001", 100 * (number + 1)), 1000 * number, table=schema, rows=rows
    )


def end(number: int) -> Event:
    return Event(EntryType.END, EventType.NONE, Position("binlog.000001", 100 * (number + 1), f"0-1-{number}"), 1000 * number)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("SHMSTORE_DEBUG", raising=False)
    monkeypatch.chdir(ROOT)
    return tmp_path / "state"


@pytest.fixture
def name() -> Iterator[str]:
    """A free store name; nothing of it is left in shared memory when the test is over."""
    chosen = f"cli{os.getpid()}_{next(_numbers)}"
    yield chosen
    if chosen in EventStore.names():
        EventStore.unlink(chosen)
    assert left(chosen) == []


@pytest.fixture
def store(name: str) -> Iterator[EventStore]:
    with EventStore.create(name, capacity=64) as made:
        yield made


def left(name: str) -> list[str]:
    return [entry for entry in os.listdir("/dev/shm") if name in entry]


def run(*words: str, code: int = 0) -> str:
    """Run the command, want its exit code, return what it wrote: stdout, or stderr where an error was wanted."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, encoding="utf-8")
    assert done.returncode == code, f"exit code {done.returncode}, wanted {code}\n{done.stdout}{done.stderr}"
    if code == 2:
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, f"more than one line:\n{done.stderr}"
        return done.stderr
    assert done.stderr == ""
    return done.stdout


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ids(output: str) -> list[int]:
    return [json.loads(line)["after"]["id"] for line in output.splitlines()]


# ---------------------------------------------------------------- create, ls, stat, check, metrics, rm


def test_create_makes_what_is_asked_for(name: str) -> None:
    """`create` makes a store with the given options, and the command ends without holding any role."""
    words = "--capacity 128 --memory-unit 512 --batch-mode itemsize --ddl-isolation --lag evict --evict-after 5"
    assert run("create", name, *words.split()) == ""
    with EventStore.attach(name) as store:
        stat = store.stat()
    assert (stat.capacity, stat.memory_unit, stat.batch_mode, stat.ddl_isolation, stat.lag) == (
        128,
        512,
        "ITEMSIZE",
        True,
        "evict",
    )
    assert stat.producer_pid == 0
    assert os.stat(f"/dev/shm/shmstore.{name}").st_mode & 0o777 == 0o600


def test_a_store_in_a_file(name: str, tmp_path: Path) -> None:
    """With --path every command works on a store in a file, and `rm` removes the file."""
    path = tmp_path / "orders.shm"
    run("create", name, "--path", str(path), "--capacity", "64")
    with EventStore.attach(name, path=path) as store:
        store.put([insert(0), end(0)])
    assert ids(run("tail", name, "--path", str(path), "--no-follow", "--tables", "shop.*")) == [0]
    assert f"({path}" in run("stat", name, "--path", str(path))
    assert run("check", name, "--path", str(path)).endswith("nothing wrong found\n")
    run("rm", name, "--path", str(path))
    assert not path.exists()


def test_rm_spares_files_that_are_no_store(name: str, tmp_path: Path) -> None:
    """`rm --path` of a file that is not a store removes nothing."""
    path = tmp_path / "letter.txt"
    path.write_text("dear reader\n" * 100)
    assert "not a store" in run("rm", name, "--path", str(path), code=2)
    assert path.exists()


def test_ls(store: EventStore) -> None:
    """`ls` has a line for each store, with what it holds; --json the same as one document a line."""
    store.put([insert(0), insert(1), end(1)])
    audit = store.subscribe("audit")
    row = next(line.split() for line in run("ls").splitlines() if line.startswith(store.name))
    assert row[1] == "3"
    assert row[-2:] == ["1/1", "3"]
    assert "MOST LAG" in run("ls").splitlines()[0]
    audit.close()
    documents = [json.loads(line) for line in run("ls", "--json").splitlines()]
    assert [each["newest"] for each in documents if each["name"] == store.name] == [2]


def test_stat_shows_everyone(store: EventStore) -> None:
    """`stat` shows cursors, room, source, producer and, per subscription, lag in events, rows, bytes and seconds, alive or not."""
    store.claim()
    store.heartbeat("mysql://db1", Position("binlog.000001", 300))
    audit, idle = store.subscribe("audit"), store.subscribe("idle")
    store.put([insert(0), insert(1), end(1), insert(2)])
    audit.ack(audit.get(limit_events=3))
    idle.ack(idle.get(limit_events=1))
    idle.close()
    text = run("stat", store.name)
    assert f"producer   pid {os.getpid()}, last sign of life" in text
    assert "mysql://db1, read up to binlog.000001:300" in text
    assert "put        4 events, 3 rows" in text
    assert "room       61 of 64 events" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines()[-2:]}
    assert rows["audit"][1:8] == ["active", "pid", str(os.getpid()), "2", "2", "1", "1"]
    assert rows["idle"][1:7] == ["active", "none", "0", "0", "3", "2"]
    assert (rows["audit"][-1], rows["idle"][-1]) == ("1.0", "2.0")

    document = json.loads(run("stat", store.name, "--json"))
    lags = {
        each["name"]: (each["lag_events"], each["lag_rows"], each["lag_ms"], each["alive"]) for each in document["subscriptions"]
    }
    assert lags == {"audit": (1, 1, 1000, True), "idle": (3, 2, 2000, False)}
    assert document["source_position"] == {"file": "binlog.000001", "offset": 300, "gtids": "", "row": 0}


def test_stat_watch(store: EventStore) -> None:
    """`stat --watch` shows it again and again with rates, until Ctrl-C: exit code 130 and no traceback."""
    process = started("stat", store.name, "--watch", "0.1")
    assert process.stdout is not None
    seen = ""
    while "events/s" not in seen:
        seen = process.stdout.readline()
        assert seen, process.communicate()
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=30)
    assert (process.returncode, complaint) == (130, "")


def test_stat_tells_the_dead(store: EventStore) -> None:
    """A reader that was killed is shown as dead, with the pid it had."""
    store.put([insert(0), end(0)])
    process = started("tail", store.name, "--subscription", "audit")
    until(lambda: any(each.alive and each.lag_events == 0 for each in store.subscriptions()))
    process.kill()
    process.communicate()
    assert f"pid {process.pid} died" in run("stat", store.name)


def test_check(store: EventStore) -> None:
    """`check` of a sound store says so and exits 0; of a damaged one it says where, and exits 1."""
    store.put([insert(0), end(0)])
    assert run("check", store.name) == f"{store.name}: nothing wrong found\n"
    store.segment.views.slots["flags"][1] = 0x4000
    assert "event 1" in run("check", store.name, code=1)


def test_metrics(store: EventStore) -> None:
    """`metrics` prints Prometheus text: each family once, a sample for each store and subscription."""
    store.put([insert(0), end(0)])
    store.subscribe("audit")
    lines = run("metrics", store.name).splitlines()
    assert f'shmstore_put_events_total{{store="{store.name}"}} 2' in lines
    assert f'shmstore_subscription_lag_events{{store="{store.name}",subscription="audit"}} 2' in lines
    assert f'shmstore_producer_up{{store="{store.name}"}} 1' in lines
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named))
    assert {line.partition("{")[0] for line in lines if not line.startswith("#")} == set(named)


def test_rm_refuses_while_used(store: EventStore) -> None:
    """`rm` refuses while a producer or reader lives and names them; --force removes all the same, and they are told."""
    store.put([insert(0), end(0)])
    reader = started("tail", store.name, "--subscription", "audit")
    until(lambda: any(each.alive and each.lag_events == 0 for each in store.subscriptions()))
    complaint = run("rm", store.name, code=2)
    assert f"producer (pid {os.getpid()})" in complaint
    assert f"reader 'audit' (pid {reader.pid})" in complaint
    assert "--force" in complaint
    assert store.name in EventStore.names()
    run("rm", store.name, "--force")
    assert left(store.name) == []
    _, complaint = reader.communicate(timeout=30)
    assert reader.returncode == 2
    assert complaint.count("\n") == 1
    assert "was removed" in complaint


def test_rm_forgets_checkpoints_when_asked(store: EventStore, state: Path) -> None:
    """Checkpoints outlive `rm`, so that readers resume in the next store; with --forget they go too."""
    store.put([insert(0), end(0)])
    run("tail", store.name, "--subscription", "audit", "--no-follow")
    store.close()
    run("rm", store.name)
    assert [path.name for path in state.rglob("*.json")] == ["audit.json"]
    run("create", store.name, "--capacity", "64")
    run("rm", store.name, "--forget")
    assert list(state.rglob("*.json")) == []


def test_unsubscribe(store: EventStore, state: Path) -> None:
    """`unsubscribe` forgets a subscription and its checkpoint; not while it is read."""
    store.put([insert(0), end(0)])
    run("tail", store.name, "--subscription", "audit", "--no-follow")
    with store.subscribe("audit"):
        assert "audit" in run("unsubscribe", store.name, "audit", code=2)
    run("unsubscribe", store.name, "audit")
    assert store.subscriptions() == ()
    assert list(state.rglob("*.json")) == []
    assert "audit" in run("unsubscribe", store.name, "audit", code=2)


# ---------------------------------------------------------------- tail


def test_tail_peeks_by_default(store: EventStore) -> None:
    """Without a subscription `tail` prints what is there in UTF-8 and leaves no trace; --from and --tables choose."""
    for number in range(3):
        store.put([insert(number), insert(number, "log"), end(number)])
    lines = [json.loads(line) for line in run("tail", store.name, "--no-follow").splitlines()]
    assert [(line["op"], line["seq"]) for line in lines[:3]] == [("insert", 0), ("insert", 1), ("end", 2)]
    assert lines[0]["after"]["note"] == "nöte 0"
    assert len(lines) == 9
    assert ids(run("tail", store.name, "--no-follow", "--tables", "shop.ord*")) == [0, 1, 2]
    assert ids(run("tail", store.name, "--no-follow", "--tables", "*.log,x.y", "--count", "2")) == [0, 1]
    assert ids(run("tail", store.name, "--no-follow", "--tables", "*.*", "--from", "6")) == [2, 2]
    assert ids(run("tail", store.name, "--no-follow", "--tables", "shop.log", "--from", "binlog.000001:200")) == [2]
    assert ids(run("tail", store.name, "--no-follow", "--tables", "shop.log", "--from", "gtid:0-1-0")) == [1, 2]
    assert run("tail", store.name, "--no-follow", "--from", "latest") == ""
    assert store.subscriptions() == ()


def test_tail_subscribed_goes_on(store: EventStore) -> None:
    """With a subscription each event is printed once over all runs; --count acks just what it printed."""
    for number in range(6):
        store.put([insert(number), end(number)])
    first = run("tail", store.name, "--subscription", "out", "--count", "3", "--tables", "shop.*")
    store.put([insert(6), end(6)])
    rest = run("tail", store.name, "--subscription", "out", "--no-follow", "--tables", "shop.*")
    assert (ids(first), ids(rest)) == ([0, 1, 2], [3, 4, 5, 6])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.parametrize("subscribed", [True, False])
def test_tail_follows_until_told_to_stop(store: EventStore, number: signal.Signals, code: int, subscribed: bool) -> None:
    """`tail` prints events as they come, and SIGTERM or Ctrl-C end it at once and in order, with all that it printed acked."""
    process = started("tail", store.name, "--tables", "shop.*", *(["--subscription", "out"] if subscribed else []))
    assert process.stdout is not None
    for i in range(3):
        store.put([insert(i), end(i)])
        assert ids(process.stdout.readline()) == [i]
    process.send_signal(number)
    rest, complaint = process.communicate(timeout=30)
    assert (process.returncode, rest, complaint) == (code, "", "")
    assert [each.lag_events for each in store.subscriptions()] == ([0] if subscribed else [])


def test_tail_into_a_closed_pipe(store: EventStore) -> None:
    """When its reader goes away `tail` ends without a word, and what was not taken over is not acked."""
    for number in range(30):
        store.put([insert(number), end(number)])
    process = started("tail", store.name, "--subscription", "out")
    assert process.stdout is not None
    process.stdout.readline()
    until(lambda: any(each.alive and each.lag_events == 0 for each in store.subscriptions()))
    process.stdout.close()
    store.put([insert(30), end(30)])
    assert process.wait(timeout=30) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert [each.lag_events for each in store.subscriptions()] == [2]


def test_tail_of_a_moving_ring(store: EventStore) -> None:
    """A peek from a place that the ring has let go is an error that says so, not a gap in the output."""
    with store.subscribe("audit") as audit:
        for number in range(4):
            store.put([insert(number), end(number)])
        audit.ack(audit.get(limit_events=4))
        assert "keeps 4 to 7" in run("tail", store.name, "--from", "1", "--no-follow", code=2)


def test_tail_says_what_it_missed(store: EventStore) -> None:
    """When the ring moves on while a peek waits for its reader, it goes on at the oldest event and counts the others on stderr."""
    with store.subscribe("audit") as audit:
        store.put([insert(0), end(0)])
        process = started("tail", store.name, "--tables", "shop.*")
        assert process.stdout is not None
        assert ids(process.stdout.readline()) == [0]
        process.send_signal(signal.SIGSTOP)
        for number in range(1, 101):
            store.put([insert(number), end(number)])
            if number < 100:
                audit.ack(audit.get())
        process.send_signal(signal.SIGCONT)
        while (seen := ids(process.stdout.readline())) != [100]:
            assert seen[0] < 100
        process.terminate()
        _, complaint = process.communicate(timeout=30)
    assert "events went by unseen" in complaint
    assert "--subscription" in complaint


@pytest.mark.parametrize("format", ["canal", "debezium", "maxwell"])
def test_tail_formats(store: EventStore, format: str) -> None:
    """Every format prints the row's change as one JSON document a line."""
    store.put([insert(7), end(7)])
    lines = run("tail", store.name, "--no-follow", "--format", format).splitlines()
    assert len(lines) == 1
    document = json.loads(lines[0])
    assert {"canal": "data", "debezium": "after", "maxwell": "data"}[format] in document


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "mend"),
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
        ("create NAME --permissions 99", "invalid mode value"),
        ("create NAME --group no_such_group", "no_such_group"),
        ("create NAME --path /no/such/folder/orders", "must exist"),
        ("create NAME --capacity 67108864 --memory-unit 65536", "smaller"),
        ("tail NAME --from yesterday", "binlog.000003:1520"),
        ("tail NAME --format xml", "debezium"),
        ("tail NAME --tables orders", "*.orders"),
        ("tail NAME --peek --subscription audit", "not allowed with"),
        ("tail NAME --subscriptoin audit", "did you mean --subscription?"),
        ("tail NAME --count 0", "from 1 up"),
        ("stat NAME --watch 0", "above 0"),
        ("serve --listen 11111", "HOST:PORT"),
        ("serve NAME --listen no.such.host.invalid:0", "another address with --listen"),
        ("serve NAME --tls-cert /no/cert --tls-key /no/key", "/no/cert: No such file"),
        ("serve NAME --user canal", "--password-file"),
        ("serve NAME --password-file /no/such/file", "/no/such/file"),
        ("serve NAME --listen 127.0.0.1:0 --tls-cert LICENSE", "tls_key"),
        ("produce --store NAME --prot 1", "did you mean --port?"),
        ("run --config /no/such/file.toml", "/no/such/file.toml"),
        ("run", "--config FILE"),
        ("tale NAME", "choose from"),
        ("tail", "STORE"),
        ("", "COMMAND"),
    ],
)
def test_bad_input(name: str, words: str, mend: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Bad input is one line on stderr that names the mend, exit code 2, nothing left behind."""
    try:
        code = main(words.replace("NAME", name).split())
    except SystemExit as error:  # argparse ends the process
        code = error.code  # type: ignore[assignment]
    out, complaint = capfd.readouterr()
    assert (code, out, complaint.count("\n")) == (2, "", 1), complaint
    assert mend in complaint
    assert complaint.startswith("shmstore")
    assert left(name) == []


def test_create_of_a_store_that_is_there(store: EventStore) -> None:
    """`create` of a name that is taken names the ways out, and leaves the store as it was."""
    store.put([insert(0), end(0)])
    assert f"shmstore rm {store.name}" in run("create", store.name, code=2)
    assert store.newest == 1


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
    """An evicted subscription is told so with the way out; after `unsubscribe` the name can be used again."""
    with EventStore.create(name, capacity=4, lag="evict", evict_after=0.01) as store:
        store.put([insert(0), end(0)])
        run("tail", name, "--subscription", "slow", "--count", "1")
        for number in range(1, 6):
            store.put([insert(number), end(number)])
        complaint = run("tail", name, "--subscription", "slow", "--no-follow", code=2)
        assert f"shmstore unsubscribe {name} slow" in complaint
        run("unsubscribe", name, "slow")
        assert run("tail", name, "--subscription", "slow", "--no-follow") != ""


def test_missing_extra(name: str, tmp_path: Path) -> None:
    """A command whose extra is not installed says which one to install."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('pymysql', 'pymysqlreplication', 'google', 'pyspark'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for words, extra in (
        (["produce", "--store", name], "mysql"),
        (["doctor"], "mysql"),
        (["serve", "--listen", "127.0.0.1:0"], "server"),
    ):
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 2
        assert done.stderr.endswith(f"pip install 'shmstore[{extra}]'\n")
        assert done.stderr.count("\n") == 1
    done = subprocess.run([*COMMAND, "ls"], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_and_version() -> None:
    """`--help` of each command shows an example of itself; `--version` names the version."""
    assert run("--version").startswith("shmstore 0.")
    commands = [
        line.split()[0]
        for line in run("--help").partition("COMMAND")[2].splitlines()
        if line.startswith("    ") and line[4] != " "
    ]
    assert {"produce", "tail", "stat", "serve"} <= set(commands)
    for command in commands:
        assert f"shmstore {command}" in run(command, "--help").partition("example")[2]


def test_console_script() -> None:
    """The installed `shmstore` is the same command."""
    script = Path(sys.executable).with_name("shmstore")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == run("--version")
