"""deploy/prometheus and deploy/grafana: by promtool, and by a real Prometheus that looks at a real producer and a real server."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmstore import Consumer, EventStore
from tests.consumer.wire.harness import RawClient
from tests.producer.running import execute, remove, store_name, wait_for
from tests.servers.ports import free_port
from tests.servers.prometheus import Prometheus, prometheus, promtool
from tests.servers.server import Server

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/shmstore.rules.yml"
DASHBOARD = ROOT / "deploy/grafana/shmstore.json"


def expressions() -> list[tuple[str, str]]:
    """(title of its panel, expression) of each query of the dashboard, with its variables as Grafana fills them in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]
    return [(title, text.replace("$store", ".*").replace("$__rate_interval", "30s")) for title, text in found]


def test_the_rules_are_rules() -> None:
    """promtool takes the rules, and the configuration that names them."""
    for what, file in (("rules", RULES), ("config", RULES.with_name("prometheus.yml"))):
        done = promtool("check", what, file)
        assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[str]:
    return re.findall(r"alert: (\w+)", RULES.read_text())


def test_the_alerts_fire_when_they_are_to(tmp_path: Path) -> None:
    """Each alert of `alerts.yml` fires for what it is for, and none while all is well; an alert that is broken makes that fail."""
    shutil.copy(ROOT / "tests/deploy/alerts.yml", tmp_path)
    shutil.copy(RULES, tmp_path)
    done = promtool("test", "rules", tmp_path / "alerts.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("absent(shmstore_up)", "absent(shmstore_put_rows_total) > 1"))
    assert promtool("test", "rules", tmp_path / "alerts.yml").returncode != 0


def test_the_metrics_are_there_to_be_named() -> None:
    """Rules and dashboard name no metric that `shmstore metrics` and `serve` do not have."""
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    sources = "".join(
        (ROOT / "consumer" / name).read_text()
        for name in ("monitoring/metrics.py", "wire/server/metrics.py", "serving/audit.py", "flight/metrics.py")
    )
    for text in (RULES.read_text(), DASHBOARD.read_text()):
        for name in set(re.findall(r"[a-z]+:shmstore_\w+:\w+", text)):
            assert name in recorded
        for name in set(re.findall(r"(?<![:\w.-])shmstore_\w+", text)):
            short = re.sub(r"^shmstore_(serve_|flight_)?(subscription_|client_)?", "", name)
            assert re.sub(r"_(bucket|sum|count|total)$", "", short) in sources, name


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", "shmstore", *words], text=True, stderr=subprocess.PIPE, cwd=ROOT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@contextmanager
def changes(server: Server, database: str) -> Iterator[None]:
    """Rows inserted, updated and deleted in two tables, until the block ends."""
    ended = threading.Event()

    def run() -> None:
        number = 0
        while not ended.wait(0.05):
            number += 1
            execute(server, database, f"INSERT INTO a VALUES ({number}, 'x')")
            execute(server, database, f"UPDATE a SET v = 'y' WHERE id = {number}")
            execute(server, database, f"INSERT INTO b VALUES ({number}, 'x')")
            execute(server, database, f"DELETE FROM b WHERE id = {number}")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


def follows(url: str, ended: threading.Event) -> None:
    with Consumer(url, "flight", timeout=0.2) as consumer:
        while not ended.is_set():
            for _ in consumer:
                pass


def reads(client: RawClient, ended: threading.Event) -> None:
    while not ended.is_set():
        batch = client.get(100, timeout=200)
        if batch.batch_id > 0:
            client.ack(batch.batch_id)


@pytest.mark.server
def test_every_panel_has_data(mariadb: Server, database: str) -> None:
    """A real Prometheus, the rules and the dashboard's queries, over a producer that reads a server, a reader that is behind, a canal
    client and one of Arrow Flight: every query has data, every rule is evaluated, the figures are right, and a producer that ends is an alert at once."""
    for table in "ab":
        execute(mariadb, database, f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(9))")
    name, port, serve_port, flight_port = store_name(), free_port(), free_port(), free_port()
    serving = f"{name} --listen 127.0.0.1:{serve_port} --flight 127.0.0.1:{flight_port} --metrics-port {port}"
    try:
        with (
            started(
                "produce", "--port", str(mariadb.port), "--user", mariadb.user, "--store", name, "--include", f"{database}.*"
            ) as producer,
            started("serve", *serving.split()),
        ):
            wait_for(lambda: name in EventStore.names(), "the store")
            metrics_port = free_port()
            with started("metrics", name, "--listen", f"127.0.0.1:{metrics_port}") as metrics:
                assert metrics.stderr is not None
                metrics.stderr.readline()
                with EventStore.attach(name) as store:
                    store.subscribe("behind").close()
                    wait_for(lambda: store.stat().stream.connected, "the producer")
                wait_for(lambda: _listens(serve_port), "serve")
                ended = threading.Event()
                client = RawClient(serve_port, name)
                assert client.subscribe("").error_code == 0
                readers = [
                    threading.Thread(target=reads, args=(client, ended)),
                    threading.Thread(target=follows, args=(f"grpc://127.0.0.1:{flight_port}/{name}", ended)),
                ]
                for reader in readers:
                    reader.start()
                try:
                    with (
                        prometheus([f"127.0.0.1:{metrics_port}", f"127.0.0.1:{port}"], RULES) as server,
                        changes(mariadb, database),
                    ):
                        _check(server, name, database)
                        producer.send_signal(signal.SIGTERM)
                        wait_for(lambda: "ShmstoreProducerDown" in _raised(server, name), "the alert")
                finally:
                    ended.set()
                    for reader in readers:
                        reader.join(60)
                    client.close()
    finally:
        remove(name)


def _listens(port: int) -> bool:
    try:
        RawClient(port, "nobody", login=False).close()
    except OSError:
        return False
    return True


def _raised(server: Prometheus, store: str) -> set[str]:
    return {
        alert["labels"]["alertname"] for alert in server.get("/api/v1/alerts")["alerts"] if alert["labels"].get("store") == store
    }


def _check(server: Prometheus, store: str, database: str) -> None:
    missing: list[tuple[str, str]] = expressions()

    def all_there() -> bool:
        missing[:] = [(title, text) for title, text in missing if not _has_data(server, text)]
        return not missing

    try:
        wait_for(all_there, "data in every panel", 120)
    except AssertionError as error:
        raise AssertionError(f"no data: {missing}") from error
    rules = [rule for group in server.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules if rule["health"] != "ok"} == set()
    assert len(rules) == RULES.read_text().count("expr:")
    recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
    wait_for(lambda: all(server.query(rule) for rule in recorded), "every recording rule to have data")
    by = {
        (labels["table"], labels["operation"]): value
        for labels, value in server.query(f'shmstore_table_rows_total{{store="{store}", database="{database}"}}')
    }
    assert set(by) == {("a", "insert"), ("a", "update"), ("b", "insert"), ("b", "delete")}
    assert all(value > 0 for value in by.values())
    assert _raised(server, store) & {"ShmstoreProducerDown", "ShmstoreStoreMissing", "ShmstoreLogTrouble"} == set()


def _has_data(server: Prometheus, text: str) -> bool:
    found: list[Any] = server.query(text)
    return bool(found) and not all(math.isnan(value) for _, value in found)
