"""consumer/live/web.py and what it shows: a real store with real readers, asked over HTTP as the page asks."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from shmstore import (
    CheckpointFile,
    Column,
    Consumer,
    EntryType,
    Event,
    EventStore,
    EventType,
    Position,
    Row,
    StoreView,
    TableSchema,
)
from shmstore.cli.main import main
from shmstore.consumer.live import history, observer
from shmstore.consumer.live.events import MASK, Feed, Filter
from shmstore.consumer.live.figures import document
from shmstore.consumer.live.observer import Observer
from shmstore.consumer.live.web import HEADERS, Web, warnings
from shmstore.consumer.serving.access import Login
from shmstore.home import audit
from shmstore.home.home import Home
from shmstore.home.snapshot_progress import Progress
from shmstore.home.snapshots import ProgressFile
from tests.consumer.live.test_model import stat

COLUMNS = (Column("id", "bigint"), Column("note", "varchar"))
NAMES = {
    EventType.INSERT: (None, (1, "s3cret")),
    EventType.UPDATE: ((1, "s3cret"), (1, "<b>")),
    EventType.DELETE: ((1, "s3cret"), None),
}


def change(
    number: int, kind: EventType = EventType.INSERT, table: str = "orders", rows: int = 1, note: str | None = None
) -> Event:
    before, after = NAMES[kind]
    if note is not None and after is not None:
        after = (number, note)
    schema = TableSchema("shop", table, COLUMNS, (0,))
    position = Position("b.1", 10 * (number % 1000 + 1))
    return Event(
        EntryType.ROWS,
        kind,
        position,
        time.time_ns() // 1_000_000,
        transaction=f"0-1-{number}",
        table=schema,
        rows=(Row(before, after),) * rows,
    )


def end(number: int) -> Event:
    return Event(
        EntryType.END, EventType.NONE, Position("b.1", 10 * (number % 1000 + 1) + 5, f"0-1-{number}"), time.time_ns() // 1_000_000
    )


def ddl(number: int, sql: str, table: str = "orders") -> Event:
    place = Position("b.1", 10 * (number + 1) + 6)
    return Event(
        EntryType.DDL, EventType.ALTER, place, time.time_ns() // 1_000_000, database="shop", sql=sql, props={"table": table}
    )


@contextmanager
def serving(*names: str, folder: Path | None = None, **options: Any) -> Iterator[Web]:
    server = Web(("127.0.0.1", 0), Observer(names, state=folder, period=0.05, linger=0.0), **options)
    server.start()
    try:
        yield server
    finally:
        server.close()


def ask(
    server: Web, path: str, method: str = "GET", body: Any = None, **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


@contextmanager
def stream(server: Web, path: str, **parameters: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """The server-sent events of a path, each with its kind."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", f"{path}?{urlencode(parameters)}")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")

    def messages() -> Iterator[tuple[str, Any]]:
        kind = "message"
        while line := answer.readline():
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield kind, json.loads(line[6:])
                kind = "message"

    try:
        yield messages()
    finally:
        answer.close()  # it holds the socket, too
        connection.close()


def figures(messages: Iterator[tuple[str, Any]], wanted: Callable[[Any], bool]) -> Any:
    """The first store that is as wanted."""
    until = time.monotonic() + 60
    seen: Any = None
    for kind, host in messages:
        if kind == "message":
            seen = host["stores"][0] if host["stores"] else host
            if wanted(seen):
                return seen
        assert time.monotonic() < until, seen
    raise AssertionError(f"the stream ended: {seen}")


def events(messages: Iterator[tuple[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first `count` events."""
    found: list[dict[str, Any]] = []
    until = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < until, found
        _, message = next(messages)
        found += message["events"]
    return found


def test_a_store_with_several_readers(store_name: str, state: Path) -> None:
    """What was put, got and acked is what is shown: cursors, lags, states, what each reader reads; rows by table; the last DDL."""
    with (
        EventStore.create(store_name, capacity=64, log_size=16 << 20) as store,
        Consumer(store_name, "fast", timeout=0) as fast,
        serving(store_name) as server,
        stream(server, "/host") as messages,
    ):
        store.subscribe("away").close()
        kind, settings = next(messages)
        assert (kind, settings) == ("settings", {"actions": False, "values": False})
        figures(messages, lambda seen: seen.get("name") == store_name)  # from now on rows are counted
        for number in range(100):
            store.put([change(number, rows=2), change(number, EventType.DELETE, "items"), end(number)])
        store.put([ddl(100, "ALTER TABLE orders ADD x INT DEFAULT 42")])
        for _ in fast:
            pass
        fast.ack()
        store.sync()
        done = figures(
            messages,
            lambda seen: seen["readers"][0]["lag_events"] == 0 and len(seen["tables"]) == 2 and seen["log"]["unsynced"] == 0,
        )
        tables = {
            each["table"]: each
            for each in figures(messages, lambda seen: seen["tables"] and all(t["rows"] for t in seen["tables"]))["tables"]
        }
        until = time.monotonic() + 60
        while tables["orders"]["rows"] != {"insert": 200} or tables["items"]["rows"] != {"delete": 100}:
            assert time.monotonic() < until, tables
            tables = {each["table"]: each for each in figures(messages, lambda seen: True)["tables"]}
        quick, away = done["readers"]
        assert done["put"]["sequence"] == 300
        assert (quick["name"], quick["state"], quick["ack"], quick["source"]) == ("fast", "reading", 300, "ring")
        assert (away["name"], away["state"], away["lag_events"], away["lag_rows"], away["source"]) == (
            "away",
            "away",
            301,
            300,
            "log",
        )
        assert 0 < done["ring"]["held"] <= 1
        ack = {mark["reader"]: mark["ring"] for mark in done["ring"]["marks"] if mark["cursor"] == "ack"}
        assert ack == {"fast": round(301 % 64 / 64, 4), "away": None}
        assert (tables["orders"]["ddl"], tables["orders"]["ddl_ms"] > 0, tables["orders"]["sql"]) == ("alter", True, "")
        assert figures(messages, lambda seen: seen["readers"][0]["rate"] is not None)["health"]["state"] != "bad"


def test_nothing_is_read_while_nobody_looks(store: EventStore) -> None:
    """It observes while a stream is open, ends when the last one has gone, and begins again with the next."""
    with serving(store.name) as server:
        watch = server._observer
        assert watch._thread is None
        for _ in range(2):
            with stream(server, "/host") as messages:
                figures(messages, lambda seen: seen.get("name") == store.name)
                assert watch._thread is not None
            until = time.monotonic() + 60
            while watch._thread is not None:
                assert time.monotonic() < until
                time.sleep(0.01)


def test_points_are_taken_while_nobody_looks(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the lines of the last minutes, and no event is counted meanwhile; who looks gets those from before."""
    monkeypatch.setattr(observer, "EVERY", 0.05)
    monkeypatch.setattr(history, "EVERY", 0.05)
    watched = Observer((store.name,), period=0.05, linger=0.0, always=True)
    server = Web(("127.0.0.1", 0), watched)
    others = set(threading.enumerate())
    server.start()
    try:
        until = time.monotonic() + 60
        while len(watched.history.after(0)) < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert "tables" not in {thread.name for thread in set(threading.enumerate()) - others}
        before = watched.history.after(0)[:3]
        with stream(server, "/host") as messages:
            points = next(found for kind, found in messages if kind == "points")
            assert points[:3] == document(before)
            assert set(points[0]["stores"]) == {store.name}
            later = next(found for kind, found in messages if kind == "points")
            assert later[0]["number"] == points[-1]["number"] + 1
    finally:
        server.close()
    assert watched._thread is None


def test_a_store_of_another_user_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stores that were not named, those that may not be read are shown where there are no others, and leave the rest in peace."""
    readable: list[Any] = []

    def look(names: Any, *, all_reasons: bool = False) -> tuple[list[Any], dict[str, str]]:
        return readable, {"theirs": "Permission denied"} if all_reasons else {}

    monkeypatch.setattr(observer, "look", look)
    with serving() as server:
        for stats, says in (([], "Permission denied"), ([stat(9)], "has given no sign of life")):
            readable[:] = stats
            with stream(server, "/host") as messages:
                until = time.monotonic() + 60
                while says not in next(host["health"]["says"] for kind, host in messages if kind == "message"):
                    assert time.monotonic() < until


def test_events_are_masked_and_filtered(store: EventStore) -> None:
    """Values of columns, and statements, are not shown; tables, operations and a text choose, and the text finds out nothing about values."""
    store.put(
        [
            change(1),
            change(1, EventType.UPDATE),
            end(1),
            change(2, EventType.DELETE, "items"),
            end(2),
            ddl(3, "ALTER TABLE orders ADD x INT DEFAULT 42"),
        ]
    )
    with serving(store.name) as server:
        with stream(server, "/events", store=store.name) as messages:
            insert, update, delete, altered = events(messages, 4)
        assert (insert["op"], insert["after"], "before" in insert) == ("insert", {"id": MASK, "note": MASK}, False)
        assert (update["changed"], update["before"]) == (["note"], {"id": MASK, "note": MASK})
        assert (delete["table"], delete["seq"], delete["position"], delete["transaction"]) == ("items", 3, "b.1:30", "0-1-2")
        assert altered["sql"] == f"ALTER {MASK}"
        for chosen, wanted in (
            ({"tables": "shop.i*"}, ["delete"]),
            ({"operations": "update,ddl"}, ["update", "ddl"]),
            ({"text": "ITEMS"}, ["delete"]),
            ({"tables": "shop.orders", "operations": "insert"}, ["insert"]),
        ):
            with stream(server, "/events", store=store.name, **chosen) as messages:
                assert [each["op"] for each in events(messages, len(wanted))] == wanted
        with stream(server, "/events", store=store.name, text="s3cret") as messages:
            store.put([change(9, table="s3cret"), end(9)])
            assert [each["table"] for each in events(messages, 1)] == ["s3cret"]
        for wrong in ({"tables": "shop.["}, {"operations": "drop"}, {"store": "none"}):
            with stream(server, "/events", **{"store": store.name, **wrong}) as messages:
                assert next(messages)[0] == "refused"
                assert list(messages) == []
    with (
        serving(store.name, show_values=True) as server,
        stream(server, "/events", store=store.name, text="default 42") as messages,
    ):
        (altered,) = events(messages, 1)
        assert altered["sql"] == "ALTER TABLE orders ADD x INT DEFAULT 42"


def test_values_that_are_shown_fit(store: EventStore) -> None:
    """With --show-values values are shown: long text is cut, large numbers are exact, and text that is no Unicode is no harm."""
    store.put([change(1 << 60, note="ä\n\u2028" + "x" * 5000), end(1)])
    with serving(store.name, show_values=True) as server, stream(server, "/events", store=store.name) as messages:
        (shown,) = events(messages, 1)
    assert shown["after"]["id"] == str(1 << 60)
    assert re.fullmatch(r"ä\n\u2028x{397}… \(5,003 characters\)", shown["after"]["note"])


def test_a_busy_store_is_passed_over(store_name: str) -> None:
    """What no person could read is counted, not sent: of many events the newest, of a large event not its rows."""
    with EventStore.create(store_name, capacity=1 << 14, log=False) as store, StoreView.attach(store_name) as view:
        feed = Feed(view, Filter(), show_values=True)
        store.put([each for number in range(3000) for each in (change(number), end(number))])
        found = feed.step()
        assert [each["after"]["id"] for each in found if each["op"] == "insert"] == [1] * len(found)
        assert found[-1]["seq"] == 5998
        assert 2800 <= feed.passed < 6000
        before = feed.passed
        store.put([change(1, rows=500), end(1)])
        assert (len(feed.step()), feed.passed - before) == (100, 400)
        store.put([change(1, note="x" * (2 << 20)), end(1)])
        (large,) = feed.step()
        assert (large["large"], large["table"], "after" in large) == (True, "orders", False)
        assert feed.step() == []


def test_a_store_that_goes_and_comes(store_name: str) -> None:
    """A stream of events says that its store was removed, and continues with the one that has its name then."""
    with serving(store_name) as server:
        with EventStore.create(store_name, log=False) as store, stream(server, "/events", store=store_name) as messages:
            store.put([change(1), end(1)])
            events(messages, 1)
            EventStore.unlink(store_name, force=True)
            until = time.monotonic() + 60
            while not next(messages)[1]["problem"]:
                assert time.monotonic() < until
            with EventStore.create(store_name, log=False) as another:
                another.put([change(2, EventType.DELETE), end(2)])
                assert [each["op"] for each in events(messages, 1)] == ["delete"]
        with stream(server, "/host") as messages:
            host = next(message for kind, message in messages if kind == "message")
            assert store_name in host["health"]["says"] or host["stores"]


def test_each_answer_lets_nothing_in(store: EventStore) -> None:
    """Every answer says that nothing else may run, load, frame or guess; the page names no other host and holds no script of its own."""
    with serving(store.name) as server:
        for path in ("/", "/page.css", "/page.js", "/icon.svg", "/none"):
            status, text, headers = ask(server, path)
            assert status == (404 if path == "/none" else 200)
            assert {name: headers[name] for name in HEADERS} == HEADERS
            assert not re.search(r"(https?:)?//(?!www\.w3\.org/(2000/svg|1999))[\w.-]+\.\w", text.replace("// ", "")), path
        page = ask(server, "/")[1]
        assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
        assert not re.search(r"\son\w+=|style=", page)
        script = ask(server, "/page.js")[1]
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)


def test_a_name_that_is_not_ours_reads_nothing(store: EventStore) -> None:
    """A page elsewhere that has its own name point here gets nothing, unless a password, which it has not, guards the rest."""
    with serving(store.name) as server:
        for host in ("evil.example", "evil.example:9180", "127.0.0.1.evil.example"):
            assert ask(server, "/", Host=host)[0] == 421
        for host in ("localhost", "127.0.0.1:80", "[::1]:80", "LOCALHOST:1", "10.0.0.7"):
            assert ask(server, "/", Host=host)[0] == 200
    with serving(store.name, login=Login("", "pw")) as server:
        assert ask(server, "/", Host="stores.example")[0] == 401
        assert ask(server, "/", Host="stores.example", Authorization="Bearer pw")[0] == 200


def test_actions_need_the_token(store_name: str, state: Path) -> None:
    """Without --token-file nothing can be done; with it, who knows the token may forget a subscription and ask for a snapshot, once each."""
    with EventStore.create(store_name, log_size=16 << 20) as store:
        store.put([change(1), end(1)])
        with Consumer(store_name, "old", timeout=0) as old:
            next(iter(old))
        wish = {"store": store_name, "subscription": "old"}
        with serving(store_name) as server:
            assert ask(server, "/unsubscribe", "POST", wish, X_Shmstore_Token="")[0] == 403
        with serving(store_name, token=lambda: "t0ken") as server:
            for wrong in ({}, {"X_Shmstore_Token": "guess"}, {"X_Shmstore_Token": ""}):
                status, text, _ = ask(server, "/unsubscribe", "POST", wish, **wrong)
                assert (status, "t0ken" in text) == (403, False)
            assert [each.name for each in store.subscriptions()] == ["old"]
            right = {"X_Shmstore_Token": "t0ken"}
            assert ask(server, "/unsubscribe", "POST", wish, **right)[0] == 200
            assert [each.name for each in store.subscriptions()] == []
            status, text, _ = ask(server, "/unsubscribe", "POST", wish, **right)
            assert (status, "'old'" in text) == (409, True)
            status, text, _ = ask(server, "/snapshot", "POST", {"store": store_name, "tables": "shop.*"}, **right)
            assert status == 200, text
            ((_, request),) = ProgressFile(Home.of(store_name, state)).asked()
            assert (request.id in text, request.tables) == (True, ("shop.*",))
            for path, body, status in (
                ("/snapshot", {"store": store_name, "tables": ""}, 409),
                ("/snapshot", {"store": "none", "tables": "a.*"}, 404),
                ("/snapshot", [1], 400),
                ("/other", wish, 404),
                ("/unsubscribe", {"store": store_name}, 400),
            ):
                assert ask(server, path, "POST", body, **right)[0] == status, (path, body)
            with store.subscribe("busy"):
                assert ask(server, "/unsubscribe", "POST", {"store": store_name, "subscription": "busy"}, **right)[0] == 409


def test_every_action_is_in_the_audit_log(store_name: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pausing, resuming, moving and reloading, as on the command line, with who asked from where; what is refused, too, with the reason. A wrong
    token is counted, by address, and does nothing."""
    monkeypatch.setattr("shmstore.consumer.live.web.WAIT", 0.1)  # this process puts, and looks for no requests
    with EventStore.create(store_name, log_size=16 << 20) as store:
        store.put([change(1), end(1), change(2), end(2)])
        store.subscribe("r").close()
        right = {"X_Shmstore_Token": "t0ken"}
        with serving(store_name, token=lambda: "t0ken") as server:
            for path in ("/pause", "/resume", "/seek", "/reload", "/snapshot", "/unsubscribe"):
                assert ask(server, path, "POST", {"store": store_name}, X_Shmstore_Token="guess")[0] == 403
                foreign = ask(server, path, "POST", {"store": store_name}, Origin="http://evil.example", **right)
                assert foreign[0] == 403
            assert (server.refused["token"], server.refused["origin"]) == (6, 6)
            assert audit.lines(store.home) == []
            reader = {"store": store_name, "subscription": "r"}
            for path, body, status, says in (
                ("/pause", reader, 200, "r is paused"),
                ("/pause", {**reader, "subscription": "q"}, 409, "no subscription 'q'"),
                ("/resume", reader, 200, "r is resumed"),
                ("/seek", {**reader, "where": "latest"}, 200, "continues at event 4"),
                ("/seek", {**reader, "where": "yesterday-ish"}, 409, "yesterday-ish"),
                ("/pause", {"store": store_name}, 200, "will pause"),
                ("/resume", {"store": store_name}, 200, "the producer is resumed"),
                ("/reload", {"store": store_name}, 200, "asked for"),
                ("/reload", {"store": "none"}, 404, "no store"),
                ("/pause", {**reader, "subscription": 7}, 400, "JSON"),
                ("/seek", reader, 400, "JSON"),
            ):
                found, text, _ = ask(server, path, "POST", body, **right)
                assert (found, says in text) == (status, True), (path, body, text)
        lines = audit.lines(store.home)
        assert {line.by for line in lines} == {"web, from 127.0.0.1"}
        assert [(line.action, line.what) for line in lines] == [
            ("pause", "r"),
            ("pause", "q"),
            ("resume", "r"),
            ("seek", "r to latest"),
            ("seek", "r to yesterday-ish"),
            ("pause", "producer"),
            ("resume", "producer"),
            ("reload", "asked for"),
        ]
        assert [line.outcome == "done" for line in lines] == [True, False, True, True, False, True, True, True]


def test_actions_use_the_folder_of_stores(store_name: str, state: Path, tmp_path: Path) -> None:
    """What `--state` names: a store there is found, its checkpoints are forgotten there, requests are left there; likewise the progress."""
    folder, right = tmp_path / "elsewhere", {"X_Shmstore_Token": "t0ken"}
    with EventStore.create(store_name, log=False, state=folder) as store:
        checkpoint = CheckpointFile.of(store.home, "old")
        with store.subscribe("old", checkpoint=checkpoint) as old:
            store.put([change(1), end(1)])
            old.ack(old.get())
        assert checkpoint.path.parent == folder / store_name
        assert checkpoint.path.exists()
        with serving(store_name, folder=folder, token=lambda: "t0ken") as server:
            assert ask(server, "/unsubscribe", "POST", {"store": store_name, "subscription": "old"}, **right)[0] == 200
            assert not checkpoint.path.exists()
            assert ask(server, "/snapshot", "POST", {"store": store_name, "tables": "shop.*"}, **right)[0] == 200
            assert len(ProgressFile(store.home).asked()) == 1
            assert not (state / store_name).exists()
            ProgressFile(store.home).save(Progress(7))
            assert server._observer._snapshot(store.stat()) == Progress(7)


def test_warnings() -> None:
    """A user who opens it to others hears what they can see."""
    assert list(warnings("127.0.0.1", password=False, tls=False, show_values=True)) == []
    assert list(warnings("localhost", password=False, tls=False, show_values=False)) == []
    (open_,) = warnings("0.0.0.0", password=False, tls=True, show_values=True)
    assert "rows" in open_
    (clear,) = warnings("::", password=True, tls=False, show_values=False)
    assert "in clear" in clear
    assert list(warnings("10.0.0.1", password=True, tls=True, show_values=False)) == []


@contextmanager
def command(*words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`shmstore web` as its own process, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shmstore", "web", "--listen", "127.0.0.1:0", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        cwd=Path(__file__).resolve().parents[3],
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"open https?://127\.0\.0\.1:(\d+)/", line)
        assert found, line + process.stderr.read()
        yield process, int(found[1])
    finally:
        process.terminate()
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()


def test_the_command(store: EventStore, tmp_path: Path) -> None:
    """`shmstore web` serves the page with its password, ends on SIGTERM with a stream open, and leaves the store as it was."""
    password = tmp_path / "password"
    password.write_text("pw\n")
    store.put([change(1), end(1)])
    with command(store.name, "--password-file", str(password)) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/host")
        assert connection.getresponse().status == 401
        connection.close()
        connection.request("GET", "/host", headers={"Authorization": "Bearer pw"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline() == b"event: settings\n"
        process.terminate()
        assert process.wait(60) == 0
        answer.close()
        connection.close()
    assert (store.newest, store.subscriptions()) == (1, ())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--tls-cert", "x"), "both a certificate and its key"),
        (("--user", "ada"), "has no password"),
        (("--token-file", "/nonexistent/token"), "/nonexistent/token"),
        (("--tls-cert", "/nonexistent/c", "--tls-key", "/nonexistent/k"), "/nonexistent/c"),
        (("--listen", "203.0.113.1:80"), "--listen"),
    ],
)
def test_what_cannot_be_served_is_one_line(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad options are one line that says what to do, and exit code 2."""
    code = main(["web", *words])
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n"), says in said.err) == (2, "", 1, True), said.err
