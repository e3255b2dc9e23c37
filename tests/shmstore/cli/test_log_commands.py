"""What the `shmstore` command does with a store's log and home: it shows them, verifies, trims, exports, removes; and moves readers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EntryType, Event, EventStore, EventType, Position, StoreStat
from shmstore.cli import text_report
from shmstore.consumer.live.model import Model, Reading
from tests.shmstore.commands import free_name, left, own_state, ran, run  # noqa: F401  fixtures

EVENTS, EACH = 3000, 1000
ENDED_WHILE_WRITING = """
import os, sys
from shmstore.cli.main import main
from shmstore.consumer.formats.formatter import Formatter

documents = Formatter.documents

def ended(self, event, *more, **how):
    if event.sequence == 1000:
        os.kill(os.getpid(), {number})
    return documents(self, event, *more, **how)

Formatter.documents = ended
sys.exit(main(sys.argv[1:]))
"""
FIRST_MS = 1_700_000_000_000


def events(first: int, count: int) -> list[Event]:
    """DDLs of some 1,000 bytes, a second apart, at places of their own."""
    return [
        Event(EntryType.DDL, EventType.QUERY, Position("binlog.000001", 4 + n), FIRST_MS + 1000 * n, sql="x" * EACH)
        for n in range(first, first + count)
    ]


@pytest.fixture(name="logged")
def store_with_files(name: str) -> Iterator[EventStore]:
    """A store whose log has several files, whose subscription `quick` has acked all and `slow` 100 events; all is on disk."""
    with EventStore.create(name, capacity=512, log_size=16 << 20) as store:
        with store.subscribe("quick") as quick, store.subscribe("slow") as slow:
            for first in range(0, EVENTS, 100):
                store.put(events(first, 100))
            store.sync()
            while quick.lag_events:
                quick.ack(quick.get(timeout=0))
            slow.ack(slow.get(limit_events=100, timeout=0))
        yield store


def forgotten(store: EventStore) -> str:
    """Let the memory go, as a reboot does; return the store's name."""
    store.close()
    os.unlink(f"/dev/shm/shmstore.{store.name}")
    return store.name


def names(state: Path, store: str) -> list[str]:
    return sorted(path.name for path in (state / store / "log").glob("0*.events"))


# ---------------------------------------------------------------- ls, stat


def test_stat_shows_the_log(logged: EventStore, state: Path) -> None:
    """`stat` says where the home is, how large the log is and may be, since when it reaches back, what is on disk, and for whom it keeps
    the most; --json has the same."""
    text = run("stat", logged.name)
    assert f"home       {state / logged.name}\n" in text
    assert re.search(
        r"^log        \d\.\d MiB of 16\.0 MiB \(\d+ %\) in \d+ files, oldest event 2023-11-14 22:13:20 UTC; what all have acked stays for 24 h$",
        text,
        re.MULTILINE,
    )
    assert f"written    up to {EVENTS - 1:,}, on disk up to {EVENTS - 1:,}\n" in text
    assert f"keeps for  subscription 'slow' (no process reads it) has acked up to 99 of {EVENTS - 1:,}: 2,900 events, " in text
    log = json.loads(run("stat", logged.name, "--json"))["log"]
    assert (log["oldest"], log["written"], log["synced"], log["size"]) == (0, EVENTS - 1, EVENTS - 1, 16 << 20)
    assert log["files"] == 3 * len(names(state, logged.name))
    assert "off: after a reboot nothing" in text_report.page(logged.stat()._replace(log=None))


def test_when_the_log_will_be_full(logged: EventStore) -> None:
    """After minutes of it: full when the slowest reader's backlog reaches the log's size; where all keep up, how far the log reaches back.
    Seconds are no trend."""

    def page(*stats: StoreStat, every: float) -> str:
        model = Model()
        for i, stat in enumerate(stats):
            live = model.take(Reading(i * every, 0, (stat,))).stores[0]
        return text_report.page(stats[-1], live)

    stats = [logged.stat()]
    for _ in range(2):
        logged.put(events(EVENTS, 100))
        stats.append(logged.stat())
    (line,) = [line for line in page(*stats, every=120.0).splitlines() if line.startswith("full")]
    # 16 MiB less some 3,100 events of 1,100 bytes, at 100 of them in 120 s
    seconds = re.fullmatch(
        r"full       in (\d(?:\.\d+)?) h at the rate of the last minutes: 'slow' is \d+ B a second slower than the producer", line
    )
    assert seconds is not None, line
    assert 3.8 < float(seconds[1]) < 4.8
    assert "full  " not in page(*stats, every=1.0)

    acked = [
        stat._replace(
            subscriptions=(stat.subscriptions[0]._replace(lag_events=0, lag_bytes=0),),
            log=stat.log and stat.log._replace(size=1 << 20),
        )
        for stat in stats
    ]
    assert "back when it is full, at the rate of the last minutes: it is too small for 24 h" in page(*acked, every=70.0)
    assert "reaches" not in page(*acked, every=1.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (90, "90 s"), (1800, "30 min"), (86400, "24 h"), (5400.0 * 3, "4.5 h"), (7 * 86400, "7 days")],
)
def test_span(seconds: float, text: str) -> None:
    """A length of time is shown in the unit in which it was given."""
    assert text_report.span(seconds) == text


def test_ls_shows_stores_in_their_homes(logged: EventStore) -> None:
    """`ls` has the log of each store; one that is not in memory is listed as remembered, and stays where it is; `stat` puts it together."""
    name = logged.name
    seen = next(line for line in run("ls").splitlines() if line.startswith(name))
    assert re.search(rf" {EVENTS:,} .* \d\.\d MiB +\d+% +pid {os.getpid()} +0/2 +2,900$", seen), seen
    forgotten(logged)
    row = next(line for line in run("ls").splitlines() if line.startswith(name))
    assert re.search(rf" {EVENTS:,} +none +\d\.\d MiB +\d+% +none +0/2 +2,900  remembered in /.*/{name}$", row), row
    (document,) = [each for each in map(json.loads, run("ls", "--json").splitlines()) if each["name"] == name]
    assert (document["remembered"], document["oldest"], document["newest"]) == (True, 0, EVENTS - 1)
    assert document["acks"] == {"quick": EVENTS - 1, "slow": 99}
    assert left(name) == []
    assert f"held       {EVENTS:,} events, 0 to" in run("stat", name)
    assert left(name) != []


# ---------------------------------------------------------------- verify


@pytest.mark.parametrize("in_memory", [True, False])
def test_verify(logged: EventStore, state: Path, in_memory: bool) -> None:
    """`log verify` of a sound log says how much it read and exits 0; of a damaged one it names file and events, and exits 1. It changes
    nothing, in memory or not."""
    name = logged.name if in_memory else forgotten(logged)
    assert run("log", "verify", name).startswith(f"{name}: no damage found in the log: {EVENTS:,} events, ")
    file = state / name / "log" / names(state, name)[0]
    with file.open("r+b") as out:
        out.seek(5000)
        out.write(b"?")
    before = file.stat().st_mtime_ns
    code, found, complaint = ran("log", "verify", name)
    assert (code, complaint) == (1, "")
    assert f"{file} is damaged: events " in found
    assert "are lost" in found
    if in_memory:
        assert "quick" in run("stat", name)  # which has no figures of what is damaged, and says the rest
    assert file.stat().st_mtime_ns == before
    assert (left(name) != []) is in_memory


def test_verify_a_copy(logged: EventStore, state: Path, tmp_path: Path) -> None:
    """With `--state` it reads the home in that folder, as out of a backup, while the store itself is in memory and sound."""
    shutil.copytree(state / logged.name, copy := tmp_path / "copy" / logged.name)
    sound = run("log", "verify", logged.name, "--state", str(copy.parent))
    assert sound.startswith(f"{logged.name}: no damage found in the log: {EVENTS:,} events, ")
    file = copy / "log" / names(copy.parent, logged.name)[0]
    with file.open("r+b") as out:
        out.seek(5000)
        out.write(b"?")
    assert f"{file} is damaged: events " in run("log", "verify", logged.name, "--state", str(copy.parent), code=1)
    for words in ((), ("--state", str(state))):
        assert "no damage found" in run("log", "verify", logged.name, *words)


def test_what_a_log_holds(logged: EventStore, state: Path, store_name: str, tmp_path: Path) -> None:
    """`log verify` and `backup` say the same of a log; of one without events, that there are none."""
    with EventStore.create(store_name, log=True):
        for name, held in (
            (logged.name, rf"{EVENTS:,} events, 0 to {EVENTS - 1:,}, [\d.]+ MiB in \d+ files\n"),
            (store_name, "no events\n"),
        ):
            verified = run("log", "verify", name).removeprefix(f"{name}: no damage found in the log: ")
            assert re.fullmatch(held, verified), verified
            made = run("backup", name, str(tmp_path))
            assert made == f"{name}: the copy is in {tmp_path / name}: {verified}"
        with EventStore.attach(store_name) as store, store.subscribe("new"):
            assert re.search(r"^new +reading +pid \d+ +- +- +0 ", run("stat", store_name), re.MULTILINE)


# ---------------------------------------------------------------- trim


def test_trim(logged: EventStore, state: Path) -> None:
    """`log trim` removes whole files of what every reader has acked, says what it removed and which reader needs the rest, next to a living producer; the
    newest file stays, and readers continue."""
    name = logged.name
    _, out, complaint = ran("log", "trim", name, "--before", "latest")
    assert out == f"{name}: removed nothing: no whole file of the log is before that and acked by all; the oldest event is 0\n"
    assert complaint == (
        f"shmstore: subscription 'slow' still needs what follows event 99: let it continue, or move it with `shmstore seek {name} slow latest`\n"
    )
    run("seek", name, "slow", "1200")
    files = names(state, name)
    _, out, complaint = ran("log", "trim", name, "--before", "1100")
    assert (names(state, name), complaint) == (files[1:], "")
    oldest = int(Path(files[1]).stem)
    assert re.fullmatch(
        rf"{name}: removed events 0 to {oldest - 1:,}, \d\.\d MiB in 3 files; the oldest event is {oldest:,} now\n", out
    ), out
    _, out, complaint = ran("log", "trim", name, "--before", "latest")
    assert "still needs what follows event 1,199" in complaint
    stat = logged.stat()
    assert logged.oldest == stat.log.oldest == int(Path(names(state, name)[0]).stem)  # type: ignore[union-attr]
    logged.put(events(EVENTS, 10))
    with logged.subscribe("slow") as slow:
        assert slow.get(limit_events=1, timeout=0).first == 1200
    for reader in ("quick", "slow"):
        run("seek", name, reader, "latest")
    assert "removed nothing" not in ran("log", "trim", name, "--before", "latest")[1]
    assert len(names(state, name)) == 1
    assert run("log", "verify", name).startswith(f"{name}: no damage")


def test_trim_of_a_store_in_its_home(logged: EventStore, state: Path) -> None:
    """It works on a store that is remembered, too; without subscriptions all but the newest file may go."""
    name = forgotten(logged)
    for reader in ("quick", "slow"):
        run("unsubscribe", name, reader)
    assert "removed events 0 to" in run("log", "trim", name, "--before", "latest")
    assert len(names(state, name)) == 1


def test_trim_asks_what_is_durable(logged: EventStore, state: Path) -> None:
    """What a reader has acked in memory, and not yet on disk, stays: after a power cut it would come again."""
    name = logged.name
    run("seek", name, "slow", "latest")
    file = state / name / "slow.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({**saved, "sequence": 99}))  # as it is for a moment after an ack
    assert "needs what follows event 99" in ran("log", "trim", name, "--before", "latest")[2]
    assert logged.oldest == 0


# ---------------------------------------------------------------- export


@pytest.mark.parametrize("in_memory", [True, False])
def test_export(logged: EventStore, tmp_path: Path, in_memory: bool) -> None:
    """`log export` writes what `tail` prints of the events asked for, into a file that is there only when it is whole, or to stdout."""
    name = logged.name if in_memory else forgotten(logged)
    file = tmp_path / "some.jsonl"
    code, out, complaint = ran("log", "export", name, str(file), "--from", "5", "--to", "2400")
    assert (code, out, complaint) == (0, "", f"shmstore: {name}: events 5 to 2,400 are in {file}\n")
    lines = file.read_text()
    assert [json.loads(line)["seq"] for line in lines.splitlines()] == list(range(5, 2401))
    assert run("tail", name, "--no-follow", "--from", "5", "--count", "2396") == lines
    assert run("log", "export", name, "-", "--from", "2023-11-14T22:13:21Z", "--to", "1", "--format", "debezium").count("\n") == 1
    assert ran("log", "export", name, "/dev/stdout", "--to", "9")[1].count("\n") == 10
    nothing = ran("log", "export", name, str(file), "--from", "latest")
    assert nothing[0] == 0
    assert nothing[2] == f"shmstore: {name}: no events are in {file}\n"
    assert "give a sequence from 10 to 2999" in run("log", "export", name, "-", "--from", "10", "--to", "3000", code=2)
    assert list(tmp_path.glob("*.jsonl*")) == [file]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_an_export_that_is_ended(logged: EventStore, tmp_path: Path, number: signal.Signals) -> None:
    """The command ends in order, not with success, and leaves no file that is not whole; what was there before stays."""
    file = tmp_path / "all.jsonl"
    file.write_text("before\n")
    program = ENDED_WHILE_WRITING.format(number=int(number))
    words = [sys.executable, "-c", program, "log", "export", logged.name, str(file)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, "Error" in ended.stderr) == (130, "", False), ended.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["all.jsonl"]
    assert file.read_text() == "before\n"


# ---------------------------------------------------------------- seek


def test_seek(logged: EventStore) -> None:
    """`seek` moves a stopped reader back and forth, in each form of a place, and says where it stands; not one that reads."""
    name = logged.name
    assert run("seek", name, "slow", "2999") == "slow continues at event 2999, binlog.000001:3003: 1 events wait for it\n"
    assert run("seek", name, "slow", "latest") == "slow continues at event 3000: it skips everything put so far\n"
    assert run("seek", name, "slow", "earliest").startswith("slow continues at event 0, binlog.000001:4: 3,000 events")
    assert run("seek", name, "slow", "binlog.000001:1000").startswith("slow continues at event 997, ")
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(FIRST_MS // 1000 + 1234))
    assert run("seek", name, "slow", moment).startswith("slow continues at event 1234, ")
    with logged.subscribe("slow") as slow:
        assert slow.get(limit_events=1, timeout=0).first == 1234
        assert "has a reader" in run("seek", name, "slow", "latest", code=2)
    assert "no subscription 'unknown'" in run("seek", name, "unknown", "latest", code=2)
    assert "it keeps 0 to 2999" in run("seek", name, "slow", "5000", code=2)


def test_what_needs_a_log(name: str) -> None:
    """Of a store without a log there is nothing to seek in, to verify or to trim, and each says so."""
    with EventStore.create(name, capacity=64, log=False) as store:
        store.subscribe("audit").close()
        assert "has no log" in run("seek", name, "audit", "latest", code=2)
        assert "has no log" in run("log", "trim", name, "--before", "latest", code=2)
        assert "not the home of a store with a log" in run("log", "verify", name, code=2)
        assert run("log", "export", name, "-") == ""


# ---------------------------------------------------------------- rm


def test_rm_says_that_the_home_stays(logged: EventStore, state: Path) -> None:
    """`rm` of a store with a log says where its home stays, and that it comes back; `rm` again that there is no more to remove but that;
    `rm --log` removes it, readers' acks and all. --forget is refused there: it would leave a log without readers."""
    name, home = logged.name, state / logged.name
    assert "is in use by its producer" in run("rm", name, "--log", code=2)
    logged.close()
    assert "give --log instead of --forget" in run("rm", name, "--forget", code=2)
    code, out, complaint = ran("rm", name)
    assert (code, out) == (0, "")
    assert complaint == (
        f"shmstore: {home} stays, and store {name!r} is restored when a process attaches to it; `shmstore rm {name} --log` removes it\n"
    )
    assert f"only remembered in {home}: `shmstore rm {name} --log` removes that" in run("rm", name, code=2)
    assert left(name) == []
    assert "events, 0 to" in run("stat", name)
    assert run("rm", name, "--log") == ""
    assert not home.exists()
    assert f"no store {name!r}" in run("rm", name, "--log", code=2)


def test_rm_of_a_home_elsewhere(name: str, tmp_path: Path) -> None:
    """The home that goes is the one that the store in memory has, wherever this command would look for it."""
    other = tmp_path / "other"
    run("create", name, "--capacity", "64", "--state", str(other))
    assert (other / name / "log" / "store.json").exists()
    assert run("rm", name, "--log") == ""
    assert not (other / name).exists()
    run("create", name, "--capacity", "64", "--state", str(other))
    ran("rm", name)
    assert f"remembered in {other}/{name}" in run("ls", "--state", str(other))
    assert run("rm", name, "--log", "--state", str(other)) == ""
    assert not (other / name).exists()
