"""The `shmstore` command on stores alone, run as users run it: in a process of its own. With servers: test_cli_server.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from shmstore import Column, EventStore, TableSchema
from shmstore.cli.main import main
from shmstore.event import Position
from shmstore.home.definitions import Definition, DefinitionsFile
from shmstore.memory.layout import header_word
from tests.shmstore.commands import (  # noqa: F401  fixtures
    end,
    free_name,
    ids,
    insert,
    kill_started,
    left,
    own_state,
    ran,
    run,
    small_store,
    started,
    until,
)

ROOT = Path(__file__).resolve().parents[3]

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
    assert run("check", name, "--path", str(path)).endswith("no damage found\n")
    run("rm", name, "--path", str(path), "--log")
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
    """`stat` shows cursors, free space, source, producer and, per subscription, lag in events, rows, bytes and seconds, alive or not."""
    store.claim()
    store.heartbeat("mysql://db1", Position("binlog.000001", 300))
    audit, idle = store.subscribe("audit"), store.subscribe("idle")
    store.subscribe("new").close()
    store.put([insert(0), insert(1), end(1), insert(2)])
    audit.ack(audit.get(limit_events=3))
    idle.ack(idle.get(limit_events=1))
    idle.close()
    text = run("stat", store.name)
    assert f"producer   pid {os.getpid()}, last seen" in text
    assert "mysql://db1, read up to binlog.000001:300" in text
    assert "put        4 events, 3 rows" in text
    assert "free       60 of 64 events" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines()[-3:]}
    assert rows["audit"][1:8] == ["reading", "pid", str(os.getpid()), "2", "2", "1", "1"]
    assert rows["idle"][1:7] == ["away", "none", "0", "0", "3", "2"]
    assert [rows[each][-1] for each in ("audit", "idle", "new")] == ["days", "days", "-"]  # events of 1970; the first has no time

    document = json.loads(run("stat", store.name, "--json"))
    lags = {
        each["name"]: (each["lag_events"], each["lag_rows"], each["lag_ms"], each["alive"]) for each in document["subscriptions"]
    }
    assert lags == {"audit": (1, 1, 1000, True), "idle": (3, 2, 2000, False), "new": (4, 3, 2000, False)}
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
    assert run("check", store.name) == f"{store.name}: no damage found\n"
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


def test_metrics_endpoint(store: EventStore) -> None:
    """`metrics --listen` serves the figures of the moment at /metrics and what is wrong at /healthz, and ends in order on a signal."""
    store.put([insert(0), end(0)])
    process = started("metrics", store.name, "--listen", "127.0.0.1:0")
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("shmstore: listening on 127.0.0.1:"), line
    url = f"http://{line.split()[-1]}"
    for count in (2, 3):
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert f'shmstore_put_events_total{{store="{store.name}"}} {count}\n' in answer.read().decode()
        store.put(insert(1))
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/else", timeout=30)
    with urllib.request.urlopen(f"{url}/healthz", timeout=30) as answer:
        assert (answer.status, answer.read()) == (200, b"ok\n")
    store.close()
    with pytest.raises(urllib.error.HTTPError, match="503") as ill:
        urllib.request.urlopen(f"{url}/healthz", timeout=30)
    assert ill.value.read().decode().startswith(f"store {store.name!r}: no producer runs: start one: `shmstore produce ")
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=30)
    assert (process.returncode, complaint) == (130, "")


def test_metrics_of_a_store_that_is_missing(store: EventStore) -> None:
    """A store that is named and missing is down next to the figures of the others, reported on stderr, and exit code 1; over HTTP /healthz is 503
    and says so, and /metrics has the others."""
    store.put([insert(0), end(0)])
    code, out, complaint = ran("metrics", store.name, "unknown")
    assert (code, complaint) == (
        1,
        "shmstore: no store 'unknown' (/dev/shm/shmstore.unknown): `shmstore ls` lists the stores of this host\n",
    )
    assert {f'shmstore_up{{store="{store.name}"}} 1', 'shmstore_up{store="unknown"} 0'} <= set(out.splitlines())
    process = started("metrics", store.name, "unknown", "--listen", "127.0.0.1:0")
    assert process.stderr is not None
    url = f"http://{process.stderr.readline().split()[-1]}"
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert f'shmstore_put_events_total{{store="{store.name}"}} 2\n' in text
    assert 'shmstore_up{store="unknown"} 0\n' in text
    with pytest.raises(urllib.error.HTTPError, match="503") as ill:
        urllib.request.urlopen(f"{url}/healthz", timeout=30)
    assert ill.value.read().decode().startswith("no store 'unknown'")
    process.terminate()
    process.communicate(timeout=30)


def test_rm_refuses_while_used(store: EventStore) -> None:
    """`rm` refuses while a producer or reader lives and names them; --force removes it all the same, and they get an error."""
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


@pytest.mark.parametrize("role", ["producer", "reader"])
@pytest.mark.parametrize("damage", ["version", "magic", "size"])
def test_rm_refuses_while_used_whatever_the_layout(store: EventStore, role: str, damage: str) -> None:
    """A segment that this version cannot read is not removed while a process is its producer or a reader, who would not notice."""
    using = store.subscribe("audit") if role == "reader" else store.claim()
    if damage == "size":
        os.ftruncate(store.segment.fd, store.segment.sizes.arena)
    else:
        store.segment.words[header_word(damage)] += 40
    complaint = run("rm", store.name, code=2)
    assert f"fuser /dev/shm/shmstore.{store.name}" in complaint
    assert "--force" in complaint
    assert store.name in EventStore.names()
    if using is not None:
        using.close()
    store.close()
    run("rm", store.name)
    assert store.name not in EventStore.names()


def test_rm_forgets_checkpoints_when_asked(store: EventStore, state: Path) -> None:
    """Checkpoints outlive `rm`, so that readers resume in the next store; with --forget they go too."""
    store.put([insert(0), end(0)])
    run("tail", store.name, "--subscription", "audit", "--no-follow")
    store.close()
    run("rm", store.name)
    assert [path.name for path in state.rglob("*.json")] == ["audit.json"]
    run("create", store.name, "--capacity", "64", "--log", "off")
    run("rm", store.name)
    run("rm", store.name, "--forget")  # of a store that was removed already
    assert list(state.rglob("*.json")) == []
    assert "no store" in run("rm", store.name, "--forget", code=2)


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
    """Without a subscription `tail` prints the present events in UTF-8 and leaves no trace; --from and --tables choose."""
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
    assert ids(run("tail", store.name, "--no-follow", "--tables", "shop.*,!shop.log", "--from", "0-1-0")) == [1, 2]
    assert "is in the future" in run("tail", store.name, "--no-follow", "--from", "time:2126-01-31T12:00:00Z", code=2)
    assert run("tail", store.name, "--no-follow", "--from", "latest") == ""
    assert store.subscriptions() == ()


def test_tail_of_a_table_that_there_is_not(store: EventStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no table that the producer defines has such a name, it says so, with those that there are; the table may come."""
    assert main(["tail", store.name, "--no-follow", "--tables", "shop.ordres"]) == 0
    assert capsys.readouterr().err == "", "nothing is defined"
    table = TableSchema("shop", "orders", (Column("id", "int"),), (0,))
    DefinitionsFile(store.home).replace([Definition("binlog.000001", 4, "shop", "orders", table)])
    assert main(["tail", store.name, "--no-follow", "--tables", "shop.ordres"]) == 0
    assert "has a name as in --tables 'shop.ordres': there are shop.orders" in capsys.readouterr().err
    assert main(["tail", store.name, "--no-follow", "--tables", "shop.ord*"]) == 0
    assert capsys.readouterr().err == ""


def test_tail_subscribed_goes_on(store: EventStore) -> None:
    """With a subscription each event is printed once over all runs; --count acks just what it printed."""
    for number in range(6):
        store.put([insert(number), end(number)])
    first = run("tail", store.name, "--subscription", "out", "--count", "3", "--tables", "shop.*")
    store.put([insert(6), end(6)])
    rest = run("tail", store.name, "--subscription", "out", "--no-follow", "--tables", "shop.*")
    assert (ids(first), ids(rest)) == ([0, 1, 2], [3, 4, 5, 6])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
@pytest.mark.parametrize("subscribed", [True, False])
def test_tail_follows_until_stopped(store: EventStore, number: signal.Signals, code: int, subscribed: bool) -> None:
    """`tail` prints events as they come, and SIGTERM, SIGHUP or Ctrl-C end it at once and in order, with all that it printed acked."""
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
    """When the ring moves on while a peek waits for its reader, it continues at the oldest event and counts the others on stderr."""
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
    assert "events were dropped from the store" in complaint
    assert "--subscription" in complaint


@pytest.mark.parametrize("format", ["canal", "debezium", "maxwell"])
def test_tail_formats(store: EventStore, format: str) -> None:
    """Every format prints the row's change as one JSON document a line."""
    store.put([insert(7), end(7)])
    lines = run("tail", store.name, "--no-follow", "--format", format).splitlines()
    assert len(lines) == 1
    document = json.loads(lines[0])
    assert {"canal": "data", "debezium": "after", "maxwell": "data"}[format] in document


# ---------------------------------------------------------------- the command itself


def test_help_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--help` of each command shows an example of itself; `--version` names the version, and whether compiled code runs."""
    assert re.fullmatch(r"shmstore 0\.\S+ \((compiled|pure Python runs, .+)\)\n", run("--version"))
    monkeypatch.setenv("SHMSTORE_PURE", "1")
    assert "(pure Python runs, 6 to 23 times the CPU for each row decoded: SHMSTORE_PURE is set; unset it)" in run("--version")
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


def test_what_a_test_leaves_running_is_killed(store: EventStore) -> None:
    """A command that a test has started and not ended is gone when the test is over, and those that follow find the machine as it was."""
    running, over = started("tail", store.name), started("ls")
    over.communicate(timeout=60)
    kill_started()
    assert running.poll() == -9
    assert over.returncode == 0
