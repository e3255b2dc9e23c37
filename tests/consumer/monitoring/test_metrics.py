"""consumer/monitoring/metrics.py: the text that Prometheus reads."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from shmstore import Cursor, LogStat, Position, StoreStat, StreamStat, SubscriptionStat
from shmstore.consumer.monitoring import health
from shmstore.consumer.monitoring.health import SILENCE_MS, problems
from shmstore.consumer.monitoring.metrics import MetricsEndpoint, pages, prometheus
from shmstore.consumer.serving import http_server
from shmstore.home.home import Home
from shmstore.home.reader_state import keep_aside

SAMPLE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (?P<value>[-+0-9.e]+)')


def subscription(name: str, state: str = "active") -> SubscriptionStat:
    cursors = {"get": Cursor(41, 900, 60, 5000), "ack": Cursor(9, 200, 15, 1000)}
    lags = {"lag_events": 90, "lag_bytes": 5800, "lag_rows": 185, "lag_ms": 8500}
    return SubscriptionStat(name, state, **cursors, owner_pid=7, alive=True, heartbeat_ms=0, **lags, ack_point=9, oldest_ms=1234)


def stat(name: str, *subscriptions: SubscriptionStat, position: Position | None = None) -> StoreStat:
    return StoreStat(
        name=name,
        path=None,
        epoch=1,
        created_ms=0,
        capacity=1024,
        memory_unit=1024,
        limit_bytes=1 << 20,
        batch_mode="MEMSIZE",
        ddl_isolation=False,
        lag="block",
        checksum=False,
        segment_bytes=2_000_000,
        put=Cursor(99, 6000, 200, 9500),
        oldest=10,
        newest=99,
        free_events=934,
        free_bytes=1_042_776,
        producer_pid=7,
        producer_alive=True,
        heartbeat_ms=1_700_000_000_123,
        source="mysql://db1",
        source_position=position,
        subscriptions=subscriptions,
    )


def samples(text: str) -> dict[tuple[str, str], float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            found[match["name"], match["labels"]] = float(match["value"])
    return found


def test_every_figure() -> None:
    """Counts are totals from the first event on, times are seconds, states are 0 and 1; all in base units."""
    found = samples(
        prometheus([stat("orders", subscription("audit"), subscription("old", "lost"), position=Position("binlog.000012", 4711))])
    )
    of, by = 'store="orders"', 'store="orders",subscription="audit"'
    assert found["shmstore_put_events_total", of] == 100
    assert found["shmstore_put_rows_total", of] == 200
    assert found["shmstore_put_bytes_total", of] == 6000
    assert found["shmstore_newest_event_timestamp_seconds", of] == 9.5
    assert found["shmstore_producer_heartbeat_timestamp_seconds", of] == 1_700_000_000.123
    assert found["shmstore_free_events", of] == 934
    assert (found["shmstore_source_file_number", of], found["shmstore_source_offset_bytes", of]) == (12, 4711)
    assert found["shmstore_subscription_acked_events_total", by] == 10
    assert found["shmstore_subscription_lag_seconds", by] == 8.5
    assert found["shmstore_subscription_oldest_unacked_timestamp_seconds", by] == 1.234
    assert found["shmstore_subscription_unacked_events", by] == 32
    assert found["shmstore_subscription_lost", by] == 0
    assert found["shmstore_subscription_lost", by.replace("audit", "old")] == 1


def test_families_stand_together() -> None:
    """Each family has its HELP and TYPE once, and all its samples below them, whatever the number of stores."""
    lines = prometheus([stat("a", subscription("x")), stat("b", subscription("x"), subscription("y"))]).splitlines()
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    current = ""
    for line in lines:
        if line.startswith("# HELP"):
            current = line.split()[2]
        assert line.removeprefix("# TYPE ").startswith(("# HELP", current))


def test_labels_are_escaped() -> None:
    """Quotes, backslashes and line ends in a name cannot end a label."""
    text = prometheus([stat('a"b\\c\nd')])
    assert 'store="a\\"b\\\\c\\nd"' in text
    assert samples(text)


def test_nothing_to_tell() -> None:
    """No stores make an empty text; a store without a source position has no position."""
    assert prometheus([]) == ""
    assert not [name for name, _ in samples(prometheus([stat("a")])) if "source" in name or "snapshot" in name]


def test_the_figures_of_a_stream() -> None:
    """What a producer tells of its stream: link, lag, space, reconnects, snapshot; the purge only where it is known."""
    stream = StreamStat(True, 7000, 6000, 250, 1500, 2, 12, 1, 5, 3, 1000, filtered_events=40, filtered_rows=7)
    busy = stat("a")._replace(stream=stream, evictions=4, space_wanted=3)
    found = {name: value for (name, _), value in samples(prometheus([busy])).items()}
    wanted = {
        "source_connected": 1,
        "source_heard_timestamp_seconds": 7,
        "source_lag_seconds": 0.25,
        "last_put_timestamp_seconds": 6,
        "producer_waiting_for_space": 1,
        "producer_blocked_seconds_total": 1.5,
        "producer_reconnects_total": 2,
        "producer_transactions_total": 12,
        "producer_skipped_events_total": 1,
        "producer_filtered_events_total": 40,
        "producer_filtered_rows_total": 7,
        "snapshot_tables": 5,
        "snapshot_remaining_tables": 3,
        "snapshot_rows": 1000,
        "evictions_total": 4,
    }
    assert {name: found[f"shmstore_{name}"] for name in wanted} == wanted
    assert "shmstore_source_purge_timestamp_seconds" not in found
    (text,) = [line for line in prometheus([busy]).splitlines() if line.startswith("shmstore_store_info")]
    assert text == 'shmstore_store_info{store="a",source="mysql://db1",batch_mode="MEMSIZE",lag="block"} 1'
    late = prometheus([stat("a")._replace(stream=stream._replace(purge_ms=9000))])
    assert samples(late)["shmstore_source_purge_timestamp_seconds", 'store="a"'] == 9


LOG = LogStat(home="/s/a", oldest=10, written=99, synced=95, bytes=3000, size=9000, keep_ms=86_400_000, oldest_ms=1500, files=6)


def test_the_figures_of_a_log() -> None:
    """How large it is and may be, how far it reaches back, what is written and what is on disk, whether it can be written; none without."""
    found = {name: value for (name, _), value in samples(prometheus([stat("a")._replace(log=LOG)])).items() if "_log_" in name}
    assert found == {
        "shmstore_log_bytes": 3000,
        "shmstore_log_size_bytes": 9000,
        "shmstore_log_keep_seconds": 86400,
        "shmstore_log_files": 6,
        "shmstore_log_oldest_event_timestamp_seconds": 1.5,
        "shmstore_log_oldest_sequence": 10,
        "shmstore_log_written_sequence": 99,
        "shmstore_log_synced_sequence": 95,
        "shmstore_log_trouble": 0,
    }
    ill = LOG._replace(trouble="the log in /s/a/log cannot be written: No space left on device")
    assert samples(prometheus([stat("a")._replace(log=ill)]))["shmstore_log_trouble", 'store="a"'] == 1
    assert problems([stat("a")._replace(log=ill, space_wanted=3, heartbeat_ms=0)]) == [f"store 'a': {ill.trouble}"]
    assert not [name for name, _ in samples(prometheus([stat("a")])) if "_log_" in name]


def test_what_is_missing_hides_nothing() -> None:
    """A store that is missing is down among the others, and a problem of its own."""
    missing = {"b": "no store 'b' (/dev/shm/shmstore.b): `shmstore ls` lists the stores of this host"}
    found = samples(prometheus([stat("a")], missing))
    assert (found["shmstore_up", 'store="a"'], found["shmstore_up", 'store="b"']) == (1, 0)
    assert found["shmstore_put_events_total", 'store="a"'] == 100
    assert problems([stat("a")._replace(heartbeat_ms=0)], missing) == [missing["b"]]
    status, text = pages(lambda: ([stat("a")], missing))("/healthz") or (0, "")
    assert (status, missing["b"] in text) == (503, True)


def test_health_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is well while its source speaks and its producer lives; a link that stands silent, a producer that hangs or waits for
    space for long, and a lost reader are each reported, and a short wait is not."""
    now = time.time_ns() // 1_000_000
    old = now - SILENCE_MS - 5000
    monkeypatch.setattr(health, "calendar_ms", lambda: now)
    good = stat("a")._replace(heartbeat_ms=now, stream=StreamStat(connected=True, heard_ms=now, put_ms=old))
    assert problems([good, stat("by-hand")._replace(heartbeat_ms=0)]) == []
    (none,) = problems([good._replace(producer_alive=False)])
    assert none.startswith("store 'a': no producer runs: start one: `shmstore produce --store a")
    (hangs,) = problems([good._replace(heartbeat_ms=old)])
    assert "has given no sign of life for 65 s" in hangs
    (cut,) = problems([good._replace(stream=StreamStat(heard_ms=now))])
    assert cut.startswith("store 'a': its producer has no link to mysql://db1: ")
    (silent,) = problems([good._replace(stream=StreamStat(True, heard_ms=old))])
    assert silent.startswith("store 'a': mysql://db1 has been silent for 65 s: ")
    waits = good._replace(space_wanted=3, stream=StreamStat(True, heard_ms=old, put_ms=now - 1000))
    assert problems([waits]) == []
    (stuck,) = problems([waits._replace(stream=StreamStat(True, heard_ms=old, put_ms=old))])
    assert stuck == "store 'a': nothing was put for 65 s: there is no subscription: start a reader"
    (lost,) = problems([good._replace(subscriptions=(subscription("x"), subscription("y", "lost")))])
    assert lost == (
        "store 'a': subscription 'y' was evicted: forget it with `shmstore unsubscribe a y`, and subscribe again or take a snapshot"
    )


def test_an_endpoint_that_ends_lets_its_answers_end() -> None:
    """`server_close` returns when answers under way are given: no thread is left that holds a store."""
    asked, closing, stores = threading.Event(), threading.Event(), []

    def look() -> tuple[list[StoreStat], dict[str, str]]:
        stores.append("held")
        asked.set()
        assert closing.wait(60)
        stores.remove("held")
        return [], {}

    server = MetricsEndpoint(("127.0.0.1", 0), pages(look))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    got: list[int] = []
    asking = threading.Thread(target=lambda: got.append(_status(server.server_port)))
    asking.start()
    assert asked.wait(60)
    server.stop()
    serving.join()
    threading.Timer(0.1, closing.set).start()  # only once `server_close` waits, or it would have nothing to wait for
    server.server_close()
    assert stores == []
    asking.join()
    assert got == [200]


def _status(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return int(answer.status)


def test_an_endpoint_waits_for_no_silent_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects and says nothing is let go, and holds up no other for long."""
    monkeypatch.setattr(http_server, "PATIENCE", 0.2)
    monkeypatch.setattr(http_server._Handler, "timeout", 0.2)
    before = threading.active_count()
    server = MetricsEndpoint(("127.0.0.1", 0), pages(lambda: ([], {})))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    with socket.create_connection(("127.0.0.1", server.server_port)) as silent:
        assert silent.recv(1) == b""
        server.stop()
        serving.join()
        server.server_close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_copies_that_are_set_aside_are_counted(state: Path) -> None:
    """A query that keeps copies says which of them wait; so there is something to alert on."""
    keep_aside(Home.of("a"), "replicate", ["shop.orders", "shop.items"])
    keep_aside(Home.of("a"), "other", [])
    found = samples(prometheus([stat("a")]))
    assert found["shmstore_copies_aside", 'store="a",subscription="replicate"'] == 2
    assert found["shmstore_copies_aside", 'store="a",subscription="other"'] == 0
