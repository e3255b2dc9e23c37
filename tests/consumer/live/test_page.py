"""The live page in a real browser: what it shows of a real store, and what hostile names and values do to it (nothing)."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from shmstore import Consumer, EventStore, EventType
from shmstore.home.home import Home
from shmstore.home.snapshots import ProgressFile
from tests.consumer.live.test_web import change, ddl, end, serving
from tests.servers.browser import browser

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "a'\"`&amp;\u202e\nb")
PATIENCE = 60_000  # milliseconds

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@contextmanager
def opened(chromium: Browser, port: int, **options: Any) -> Iterator[Page]:
    """The page, of which no error, dialog, refused script or request to another host is tolerated."""
    context = chromium.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on(
        "console",
        lambda message: wrong.append(message.text) if message.type == "error" and "Failed to load" not in message.text else None,
    )
    page.on("request", lambda request: wrong.append(request.url) if f"//127.0.0.1:{port}/" not in request.url else None)
    try:
        page.goto(f"http://127.0.0.1:{port}/")
        yield page
        assert wrong == []
    finally:
        context.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def busy(store_name: str, state: Path) -> Iterator[EventStore]:
    """A store with a log, a producer that puts, a reader that keeps up, and one that has gone; hostile tables and values among them."""
    with EventStore.create(store_name, capacity=256, log_size=64 << 20) as store:
        store.subscribe("away").close()
        ended = threading.Event()

        def put() -> None:
            number = 0
            kinds = (EventType.INSERT, EventType.INSERT, EventType.UPDATE, EventType.DELETE)
            while not ended.wait(0.02):
                number += 1
                table = ("orders", "orders", "items", *HOSTILE)[number % 6]
                store.put(
                    [
                        change(number, kinds[number % 4], table, note="<img src=x onerror=alert(3)>" if number % 2 else None),
                        end(number),
                    ]
                )
                if number % 50 == 1:
                    store.put([ddl(number, "ALTER TABLE orders ADD note TEXT")])

        def read() -> None:
            with Consumer(store_name, "audit", timeout=0.1) as consumer:
                while not ended.is_set():
                    for _ in consumer:
                        pass

        threads = [threading.Thread(target=work) for work in (put, read)]
        for thread in threads:
            thread.start()
        try:
            yield store
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def test_what_the_page_shows(chromium: Browser, busy: EventStore) -> None:
    """Each part of the way with its figures, the ring with every cursor, readers, tables; names are text, whatever is in them."""
    with serving(busy.name) as server, opened(chromium, server.server_port, viewport={"width": 1280, "height": 1000}) as page:
        card = page.locator("article")
        expect(card).to_have_count(1)
        expect(card.locator("h2")).to_have_text(busy.name)
        expect(card.locator(".health")).to_have_class("health ok")
        expect(card.locator(".health").first).to_contain_text("all is well")
        expect(page.locator("#health")).to_have_text("1 store is well")
        expect(card.locator("[data-part=producer]")).to_contain_text(f"pid {os.getpid()}")
        expect(card.locator("[data-part=log]")).to_contain_text("of 64.0 MiB")
        expect(card.locator(".arrow").nth(1)).to_contain_text(re.compile(r"[1-9]\d* events/s"))
        expect(card.locator("svg .put")).to_have_count(1)
        expect(card.locator("svg .ack.c1")).to_have_count(1)
        readers = card.locator("table").first
        expect(readers).to_contain_text(re.compile(rf"audit.*reading \(pid {os.getpid()}\)"))
        tables = card.locator("table").nth(1)
        for name in HOSTILE[:2]:
            expect(tables.locator("td").filter(has_text=name)).to_have_count(1)
        expect(tables).to_contain_text("ALTER")
        card.get_by_label("filter tables").fill("ORDERS")
        expect(tables.locator("tbody tr")).to_have_count(1)
        card.get_by_label("filter tables").fill("")
        expect(tables.locator("tbody tr")).to_have_count(5)
        tables.get_by_role("button", name="Delete").click()
        assert page.evaluate("document.querySelectorAll('article img, article script, #events img').length") == 0
        busy.put([change(1, table="late"), end(1)])
        expect(tables).to_contain_text("shop.late")
    assert {each.name for each in busy.subscriptions()} == {"away", "audit"}


def test_lines_of_the_last_minutes(chromium: Browser, busy: EventStore) -> None:
    """Rows a second, seconds behind with a line for each reader in its color, and the log's size; a reload and another page draw the same."""
    with serving(busy.name) as server:
        for _ in range(2):
            with opened(chromium, server.server_port, viewport={"width": 1280, "height": 1000}) as page:
                charts = page.locator("article figure")
                expect(charts).to_have_count(3)
                expect(charts.nth(0)).to_contain_text(re.compile(r"Rows a secondat most \d"))
                for number, name in enumerate(("away", "audit")):
                    line = charts.nth(1).locator(f"polyline.c{number} title").first
                    expect(line).to_have_text(re.compile(rf"{name}: [\d.]+ (s|min)"))
                expect(charts.nth(2)).to_contain_text(re.compile(r"Size of the logat most [\d.]+ [KM]iB"))
                page.reload()
                expect(charts.nth(1).locator("polyline.c0")).to_have_count(1)


def test_each_problem_once(chromium: Browser, store_name: str) -> None:
    """The head counts them, the store's card lists each with its fix, and the reader in trouble is the first in the table."""
    with EventStore.create(store_name, capacity=64, log=False, lag="evict", evict_after=0.0) as store:
        for name in ("fine", "gone"):
            store.subscribe(name).close()
        for number in range(100):
            store.put([change(number), end(number)], timeout=30)
            with Consumer(store_name, "fine", timeout=0) as fine:
                for _ in fine:
                    pass
    with serving(store_name) as server, opened(chromium, server.server_port) as page:
        expect(page.locator("#health")).to_have_text(f"{store_name}: 2 problems")
        said = page.locator("article .health")
        expect(said).to_have_text(
            [re.compile(r"no producer runs: start one: .*"), re.compile(r"subscription 'gone' was evicted: .*")]
        )
        expect(page.locator("article table").first.locator("tbody tr").first).to_contain_text("gone")


def test_events(chromium: Browser, busy: EventStore) -> None:
    """The newest events, with values masked; tables, operation and text filter them; a pause keeps what comes, and a wrong filter is reported."""
    with serving(busy.name) as server, opened(chromium, server.server_port) as page:
        events = page.locator("#events li")
        expect(events.first).to_contain_text("•••")
        assert "s3cret" not in page.content()
        expect(page.locator("#tail-note")).to_contain_text("values are masked")
        page.get_by_label("Tables", exact=True).first.fill("shop.orders")
        page.get_by_label("Operation").select_option("update")
        page.get_by_role("button", name="Filter").click()
        expect(events.nth(2)).to_contain_text("update")
        texts = events.all_inner_texts()
        assert all("update" in text and "shop.orders" in text for text in texts)
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
        newest = events.first.get_attribute("title")
        page.evaluate("window.came = 0; tail.source.addEventListener('message', () => window.came++)")
        until(lambda: page.evaluate("window.came") >= 2)
        assert events.first.get_attribute("title") == newest
        page.get_by_role("button", name="Continue").click()
        expect(events.first).not_to_have_attribute("title", newest or "")
        page.get_by_label("Tables", exact=True).first.fill("shop.[")
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("#tail-note")).to_contain_text("shop.[")
        expect(events).to_have_count(0)
    with serving(busy.name, show_values=True) as server, opened(chromium, server.server_port) as page:
        expect(page.locator("#events li").filter(has_text="note=<img src=x onerror=alert(3)>").first).to_be_visible()


def test_actions(chromium: Browser, busy: EventStore, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token a snapshot can be asked for, producer and readers paused and resumed, and a reader that has gone moved, and forgotten after a
    question; not by a wrong token."""
    monkeypatch.setattr("shmstore.consumer.live.web.WAIT", 0.1)  # the producer is this process, which looks for no requests
    with serving(busy.name, token=lambda: "t0ken") as server, opened(chromium, server.server_port) as page:
        said = page.locator("#actions-note")
        page.get_by_label("Token").fill("wrong")
        page.get_by_label("Tables", exact=True).last.fill("shop.*")
        page.get_by_role("button", name="Ask for a snapshot").click()
        expect(said).to_contain_text("the token is wrong")
        page.get_by_label("Token").fill("t0ken")
        page.get_by_role("button", name="Ask for a snapshot").click()
        expect(said).to_contain_text("is asked for")
        assert [request.tables for _, request in ProgressFile(Home.of(busy.name, state)).asked()] == [("shop.*",)]
        expect(page.get_by_role("button", name="forget audit")).to_have_count(0)
        page.get_by_role("button", name="pause audit").click()
        expect(said).to_contain_text("audit is paused")
        assert {each.name: each.presence for each in busy.subscriptions()}["audit"] == "paused"
        page.get_by_role("button", name="resume audit").click()
        expect(said).to_contain_text("audit is resumed")
        page.get_by_role("button", name="Pause the producer").click()
        expect(said).to_contain_text("will pause")
        page.get_by_role("button", name="Resume the producer").click()
        expect(said).to_contain_text("the producer is resumed")
        page.get_by_role("button", name="move away").click()
        page.get_by_label("where it continues").fill("earliest")
        page.get_by_role("button", name="Move", exact=True).click()
        expect(said).to_contain_text("away continues at event 0")
        page.get_by_role("button", name="forget away").click()
        page.get_by_role("button", name="No").click()
        page.get_by_role("button", name="forget away").click()
        assert {each.name for each in busy.subscriptions()} == {"away", "audit"}
        page.get_by_role("button", name="Yes").click()
        until(lambda: {each.name for each in busy.subscriptions()} == {"audit"})
        expect(page.locator("article table").first).not_to_contain_text("away")
    with serving(busy.name) as server, opened(chromium, server.server_port) as page:
        expect(page.locator("article")).to_have_count(1)
        expect(page.locator("#actions")).to_be_hidden()
        expect(page.get_by_role("button", name="forget away")).to_have_count(0)


def test_a_store_that_is_not_in_memory(chromium: Browser, store_name: str, state: Path) -> None:
    """One in its home alone has a card with its log and its readers' acks, and no alarm; when a process attaches, it is as any other."""
    with EventStore.create(store_name, log_size=64 << 20) as store:
        store.put([change(1), end(1)])
        store.subscribe("away", start="earliest").close()
        store.sync()
    EventStore.unlink(store_name)
    with serving(store_name) as server, opened(chromium, server.server_port, viewport={"width": 360, "height": 800}) as page:
        card = page.locator("#remembered article")
        expect(card.locator("h2")).to_have_text(store_name)
        expect(card.locator(".health")).to_have_class("health idle")
        expect(card.locator(".health")).to_contain_text("the producer, or any reader that attaches, restores it")
        expect(page.locator("#health")).to_have_class("health idle")
        expect(card.locator("[data-part=home]")).to_contain_text("2 events, 0 to 1")
        expect(card.locator("[data-part=log]")).to_contain_text("of 64.0 MiB")
        expect(card.locator("tbody tr")).to_have_text(["away2 eventsaway–"])
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert store_name not in EventStore.names()
        with EventStore.attach(store_name):
            expect(page.locator("#stores article h2")).to_have_text(store_name)
            expect(card).to_have_count(0)


WIDTHS = [
    (320, "dark"),
    (1920, "light"),
    *(pytest.param(*each, marks=pytest.mark.long) for each in ((390, "dark"), (768, "light"))),
]


@pytest.mark.parametrize(("width", "scheme"), WIDTHS)
def test_every_width_in_light_and_dark(chromium: Browser, busy: EventStore, width: int, scheme: Any) -> None:
    """From a phone to a wide screen nothing is cut off at the side, and text contrasts with its background."""
    with (
        serving(busy.name) as server,
        opened(chromium, server.server_port, viewport={"width": width, "height": 900}, color_scheme=scheme) as page,
    ):
        expect(page.locator("#events li").first).to_be_visible()
        expect(page.locator("article table").nth(1)).to_contain_text("shop.orders")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ink, paper = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        light, dark = (
            sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in ((paper, ink) if scheme == "light" else (ink, paper))
        )
        assert light - dark > 400


def test_a_server_that_goes_away(chromium: Browser, store: EventStore) -> None:
    """The page says that its figures are old, instead of showing them as if they were not."""
    with serving(store.name) as server, opened(chromium, server.server_port) as page:
        expect(page.locator("article")).to_have_count(1)
        server.close()
        expect(page.locator("#link")).to_contain_text("figures are old")
