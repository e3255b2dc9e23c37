"""Problems are reported once where they begin and once where they end, whatever the command or webhook does, and without secrets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from logging import getLogger
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore, producer
from shmstore.producer.pipeline import problems
from shmstore.producer.pipeline.problems import ENDED, FULL, LINK, Problems
from tests.producer.running import Running, remove, running, store_name, wait_for
from tests.servers.server import Server


@pytest.fixture
def store() -> Iterator[EventStore]:
    name = store_name()
    with EventStore.create(name, capacity=16) as made:
        made.claim()
        yield made
    remove(name)


def reporting(store: EventStore, to: str, **options: Any) -> Problems:
    return Problems(producer.Settings(store=store.name, on_problem=to, **options), store, "", getLogger("producer"))


def reports(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_beginning_and_each_end_once(store: EventStore, tmp_path: Path) -> None:
    """Also where the producer is started again with the same problem, and without what is secret."""
    out = tmp_path / "out"
    command = f"cat >> {out}; echo >> {out}"
    first = reporting(store, command, password="s3cret")
    for _ in range(3):
        first.begin(LINK, "no answer with s3cret; start the server")
    first.close()
    again = reporting(store, command)
    again.begin(LINK, "another text")
    again.begin(FULL, "no space")
    again.end(LINK, ENDED)
    again.end(LINK)
    wait_for(lambda: len(reports(out)) >= 3, "the reports")
    again.close()
    found = reports(out)
    assert [(one["event"], one["problem"]) for one in found] == [("begin", LINK), ("begin", FULL), ("end", LINK)]
    assert (found[0]["what"], found[0]["fix"], found[0]["store"]) == ("no answer with ***", "start the server", store.name)
    assert found[0]["since"] == found[2]["since"]
    assert "stat STORE" in found[1]["fix"]
    reporting(store, command).begin(FULL, "still")
    assert len(reports(out)) == 3


def test_secrets_are_not_among_the_commands_variables(store: EventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the address of a webhook."""
    for name in ("PASSWORD", "HASH_KEY", "ON_PROBLEM"):
        monkeypatch.setenv(f"SHMSTORE_{name}", "s3cret")
    made = reporting(store, f"env > {tmp_path / 'env'}")
    made.begin(LINK, "x")
    made.close()
    text = (tmp_path / "env").read_text()
    assert "PATH=" in text
    assert "s3cret" not in text


def test_a_command_that_does_not_end_is_killed(
    store: EventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The producer does not wait for it, and the next report is made."""
    monkeypatch.setattr(problems, "LIMIT", 0.2)
    out = tmp_path / "out"
    made = reporting(store, f"read line; case $line in *begin*) sleep 600;; *) echo end > {out};; esac")
    began = time.monotonic()
    made.begin(LINK, "x")
    made.end(LINK)
    assert time.monotonic() - began < 30
    wait_for(out.exists, "the report of the end")
    assert "was not done after 0.2 seconds" in caplog.text


@pytest.mark.parametrize("status", [200, 302, 500])
def test_a_webhook(store: EventStore, caplog: pytest.LogCaptureFixture, status: int) -> None:
    """The document is posted; a refusal is logged without the address, and a redirection is not followed."""
    got: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            made = reporting(store, f"http://127.0.0.1:{server.server_port}/t0ken")
            made.begin(LINK, "x")
            wait_for(lambda: got, "the report")
            made.close()
        finally:
            server.shutdown()
    assert [path for path, _ in got] == ["/t0ken"]
    assert got[0][1]["event"] == "begin"
    assert (f"webhook answered {status}" in caplog.text) is (status != 200)
    assert "t0ken" not in caplog.text


@pytest.mark.server
def test_a_producer_reports(mariadb: Server, tmp_path: Path) -> None:
    """That it ended with an error, and, started again, that this is over."""
    out = tmp_path / "out"
    command = f"cat >> {out}; echo >> {out}"
    with running(mariadb, on_problem=command) as run:
        run.stop()
        with pytest.raises(producer.ServerUnreachable):
            Running(producer.Settings(store=run.settings.store, port=1, on_problem=command)).wait()
        wait_for(lambda: len(reports(out)) == 1, "the report")
        other = Running(run.settings)
        wait_for(lambda: len(reports(out)) == 2, "its end")
        other.stop()
    assert [(one["event"], one["problem"]) for one in reports(out)] == [("begin", ENDED), ("end", ENDED)]
