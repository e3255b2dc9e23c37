"""The pictures of the live views in the docs: made over 15 minutes of a store that is written and read at changing speed."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shmstore import Consumer, EventStore, EventType, Position, StreamStat
from shmstore.clock import calendar_ms
from shmstore.consumer.live.history import SPAN
from shmstore.consumer.live.observer import Observer
from shmstore.consumer.live.top import Top
from shmstore.consumer.live.web import Web
from tests.consumer.live.test_web import change, end
from tests.servers.browser import browser

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"
NAME = "orders"
TABLES = ("orders", "orders", "orders", "order_items", "order_items", "payments", "customers")


@contextmanager
def shop(state: Path) -> Iterator[None]:
    """A store with a producer that follows the day's load, and four readers: one is fast, one slow now and then, one comes at intervals, one has
    gone."""
    print("seed 7")
    chosen = random.Random(7)
    over = threading.Event()
    with EventStore.create(NAME, capacity=4096, log_size=64 << 20, state=state) as store, ExitStack() as stack:
        store.subscribe("audit-2024").close()

        def put() -> None:
            began, number = time.monotonic(), 0
            while not over.wait(0.02):
                for _ in range(int(2 + 3 * abs(math.sin((time.monotonic() - began) / 120)) * chosen.random() * 3)):
                    number += 1
                    kind = chosen.choice((EventType.INSERT, EventType.UPDATE, EventType.UPDATE, EventType.DELETE))
                    store.put([change(number, kind, chosen.choice(TABLES)), end(number)])
                late = int(1000 * abs(math.sin((time.monotonic() - began) / 50)) * chosen.random())
                place = Position("binlog.000042", 4 + 300 * number)
                store.heartbeat(
                    "mariadb://db1:3306", place, StreamStat(True, calendar_ms(), calendar_ms(), late, transactions=number)
                )

        def read(name: str, works: float, rests: float, slow: float) -> None:
            while not over.is_set():
                with Consumer(NAME, name, timeout=0.2, state=state) as consumer:
                    until = time.monotonic() + works
                    for _ in consumer:
                        if over.wait(slow) or time.monotonic() > until:
                            break
                over.wait(rests)

        readers = (("lakehouse", 1e9, 0.0, 0.0), ("search", 120.0, 20.0, 0.1), ("nightly", 5.0, 100.0, 0.0))
        for thread in (threading.Thread(target=put), *(threading.Thread(target=read, args=each) for each in readers)):
            thread.start()
            stack.callback(thread.join)
        stack.callback(over.set)
        yield
    EventStore.unlink(NAME, force=True, log=True, state=state)


def test_pictures(tmp_path: Path) -> None:
    """Every part of both views is in them."""

    async def screen(observer: Observer) -> None:
        app = Top(observer)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause(10)
            (IMAGES / "live-top.svg").write_text(app.export_screenshot())

    with shop(tmp_path):
        observer = Observer((NAME,), state=tmp_path, always=True)
        server = Web(("127.0.0.1", 0), observer)
        server.start()
        try:
            time.sleep(SPAN)
            asyncio.run(screen(observer))
            with browser() as chromium:
                for width, height, scheme, name in ((1280, 1000, "light", "page"), (390, 844, "dark", "phone")):
                    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                    page = context.new_page()
                    page.goto(f"http://127.0.0.1:{server.server_port}/")
                    page.locator("#events li").nth(5).wait_for()
                    assert page.locator("polyline.line").count() > 5
                    page.wait_for_timeout(12_000)  # rates are of the last seconds
                    page.screenshot(path=IMAGES / f"live-{name}.png")
                    context.close()
        finally:
            server.close()
    for name in ("live-top.svg", "live-page.png", "live-phone.png"):
        assert (IMAGES / name).stat().st_mtime > time.time() - SPAN
