"""consumer/live/top.py: the live screen in 80 by 24, driven by its keys, over a real store."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Log, Static

from shmstore import Consumer, EventStore, EventType
from shmstore.cli.main import main
from shmstore.consumer.live import drawing, top
from shmstore.consumer.live.observer import Observer
from shmstore.consumer.live.top import ORDERS, Top, event_line
from shmstore.home import audit, pauses
from shmstore.home.home import Home
from shmstore.home.snapshots import ProgressFile
from tests.consumer.live.test_model import reader, seen, stat
from tests.consumer.live.test_web import change, ddl, end

ROOT = Path(__file__).resolve().parents[3]


def drive(
    names: list[str],
    steps: Callable[[Pilot[Any], Top], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    folder: Path | None = None,
    **options: Any,
) -> None:
    """Run the screen, without a terminal, through `steps`."""

    async def run() -> None:
        observer = Observer(names, state=folder, period=0.05, linger=0.0)
        app = Top(observer, **options)
        try:
            async with app.run_test(size=size, notifications=True) as pilot:
                await steps(pilot, app)
        finally:
            observer.close()

    asyncio.run(run())


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await pilot.pause(0.02)


def text(app: Top, name: str) -> str:
    return str(app.query_one(name, Static).render())


def cells(app: Top, name: str) -> list[list[str]]:
    table = app.screen_stack[0].query_one(name, DataTable)
    return [[str(cell) for cell in table.get_row_at(i)] for i in range(table.row_count)]


def lines(app: Top) -> list[str]:
    return [line for line in app.screen_stack[0].query_one("#events", Log).lines if line]


def test_what_it_shows(store_name: str, state: Path) -> None:
    """The sentence, the way, the ring, readers, tables and events, each on the screen at once; names are neither markup nor orders to a terminal."""
    with (
        EventStore.create(store_name, capacity=256, log_size=64 << 20) as store,
        Consumer(store_name, "audit", timeout=0) as audit,
    ):
        store.subscribe("away").close()

        async def steps(pilot: Pilot[Any], app: Top) -> None:
            await until(pilot, lambda: len(cells(app, "#readers")) == 2)
            store.put([change(0), end(0)])
            await until(
                pilot, lambda: len(lines(app)) == 1
            )  # from now on events are followed: of those from before only the last are shown
            for number in range(1, 50):
                table = ("orders", "[red]x[/red]", "a\x1b[2Jb")[number % 3]
                store.put([change(number, table=table), end(number)])
            store.put([ddl(60, "ALTER TABLE orders ADD x INT")])
            for _ in audit:
                pass
            audit.ack()
            await until(pilot, lambda: sorted(row[3] for row in cells(app, "#readers")) == ["0", "101"])
            await until(pilot, lambda: len(cells(app, "#tables")) == 3 and len(lines(app)) == 51)
            by_name = {row[1]: row for row in cells(app, "#readers")}
            assert (by_name["audit"][2], by_name["away"][2]) == ("reading", "away")
            tables = {row[0]: row for row in cells(app, "#tables")}
            assert set(tables) == {"shop.orders", "shop.[red]x[/red]", "shop.a�[2Jb"}
            assert tables["shop.orders"][7].endswith("ALTER")
            assert f"producer {os.getpid()} " in text(app, "#way")
            assert "►" in text(app, "#ring")
            assert "insert shop.[red]x[/red] id=••• note=•••" in lines(app)
            assert not any("s3cret" in line or "\x1b" in line for line in lines(app))
            for name in ("#health", "#way", "#ring", "#readers", "#tables", "#events"):
                region = app.query_one(name).region
                assert region.height > 0, name
                assert region.bottom <= 24, name
                assert region.right <= 80, name
            assert app.query_one("#events").region.height >= 3
            await pilot.press("q")

        drive([store_name], steps)
        assert store.newest == 100


def test_the_events_filtered_paused_and_sorted(store: EventStore) -> None:
    """f chooses tables of both figures and events, and says what is wrong with a pattern; p holds the events; s sorts by the next figure."""

    async def steps(pilot: Pilot[Any], app: Top) -> None:
        await until(pilot, lambda: app.store is not None)
        store.put([change(1), change(1, EventType.UPDATE), end(1), change(2, EventType.DELETE, "items"), end(2)])
        await until(pilot, lambda: len(lines(app)) == 3 and len(cells(app, "#tables")) == 2)
        assert "update shop.orders id=1 note=s3cret→<b>" in lines(app)
        await pilot.press("f")
        app.screen.query_one(Input).value = "shop.i*"
        await pilot.press("enter")
        await until(pilot, lambda: [line.split()[:2] for line in lines(app)] == [["delete", "shop.items"]])
        await until(pilot, lambda: [row[0] for row in cells(app, "#tables")] == ["shop.items"])
        assert "filter 'shop.i*'" in text(app, "#shown")
        await pilot.press("f")
        app.screen.query_one(Input).value = "shop.["
        await pilot.press("enter")
        await until(pilot, lambda: any("shop.[" in each.message for each in app._notifications))
        assert "filter 'shop.i*'" in text(app, "#shown")
        await pilot.press("f", "escape", "p")
        assert "EVENTS PAUSED" in text(app, "#shown")
        store.put([change(3, table="items"), end(3)])
        await until(
            pilot, lambda: app.store is not None and {"delete": 1, "insert": 1} in [each.rows for each in app.store.tables]
        )
        assert len(lines(app)) == 1
        await pilot.press("p")
        await until(pilot, lambda: len(lines(app)) == 2)
        for order in [*list(ORDERS)[1:], next(iter(ORDERS))]:
            await pilot.press("s")
            assert f"tables by {order}" in text(app, "#shown")

    drive([store.name], steps, show_values=True)


@pytest.mark.parametrize("key", ["p", "n"])
def test_a_key_between_the_look_and_the_screen(store: EventStore, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Events that were found when p was pressed are shown after the next p; those of another store than the one that is shown by then are not."""
    step, pressed, looked = top.Feed.step, threading.Event(), Counter[str]()

    def counted(feed: Any) -> Any:
        looked[feed._store.name] += 1
        return step(feed)

    monkeypatch.setattr(top.Feed, "step", counted)
    with EventStore.create(f"{store.name}-b", log=False) as other:

        async def steps(pilot: Pilot[Any], app: Top) -> None:
            call = app.call_from_thread

            def late(callback: Any, *given: Any) -> Any:
                if given[0] and not pressed.is_set():
                    call(app.action_pause if key == "p" else app.action_next_store)
                    pressed.set()
                return call(callback, *given)

            monkeypatch.setattr(app, "call_from_thread", late)
            await until(pilot, lambda: app.store is not None)
            store.put([change(1), end(1)])
            await until(pilot, pressed.is_set)
            if key == "n":
                await until(pilot, lambda: looked[other.name] > 1)
                assert lines(app) == []
                return
            assert "EVENTS PAUSED" in text(app, "#shown")
            await pilot.press("p")
            await until(pilot, lambda: len(lines(app)) == 1)

        drive([store.name, other.name], steps)
        EventStore.unlink(other.name, force=True)


@pytest.mark.parametrize("log", [True, False])
def test_what_can_be_done(store_name: str, tmp_path: Path, log: bool) -> None:
    """x asks for a snapshot of the tables that are named; u forgets the reader under the cursor, if y is the answer, and none that is read.
    Both in the folder that `--state` names."""
    with EventStore.create(store_name, log=log, log_size=64 << 20, state=tmp_path) as store:
        for name in ("a", "b"):
            store.subscribe(name).close()
        with store.subscribe("busy"):

            async def steps(pilot: Pilot[Any], app: Top) -> None:
                await until(pilot, lambda: len(cells(app, "#readers")) == 3)
                await pilot.press("x", "escape", "x")
                app.screen.query_one(Input).value = "shop.*"
                await pilot.press("enter")
                await until(
                    pilot,
                    lambda: [each.tables for _, each in ProgressFile(Home.of(store_name, tmp_path)).asked()] == [("shop.*",)],
                )
                names = [row[1] for row in cells(app, "#readers")]
                readers = app.query_one("#readers", DataTable)
                for name, answer, left in (("b", "n", {"a", "b", "busy"}), ("b", "y", {"a", "busy"})):
                    readers.move_cursor(row=names.index(name))
                    await pilot.press("u")
                    assert f"Forget subscription {name} of {store_name}?" in str(app.screen.query("Label").first().render())  # type: ignore[attr-defined]
                    await pilot.press(answer)
                    await until(pilot, lambda left=left: {each.name for each in store.subscriptions()} == left)  # type: ignore[misc]
                await until(pilot, lambda: len(cells(app, "#readers")) == 2)
                names = [row[1] for row in cells(app, "#readers")]
                readers.move_cursor(row=names.index("busy"))
                await pilot.press("u", "y")
                await until(pilot, lambda: any("'busy'" in each.message for each in app._notifications))
                assert {each.name for each in store.subscriptions()} == {"a", "busy"}

            drive([store_name], steps, folder=tmp_path)


def test_pause_and_resume(store: EventStore) -> None:
    """P pauses the producer and R the reader under the cursor, and resumes it, if y is the answer; each with a line in the audit log."""
    store.subscribe("a").close()

    async def steps(pilot: Pilot[Any], app: Top) -> None:
        await until(pilot, lambda: len(cells(app, "#readers")) == 1)
        for key, of in (("P", None), ("R", "a")):
            await pilot.press(key, "n")
            assert pauses.kept(store.home, of) is None
            await pilot.press(key, "y")
            assert pauses.kept(store.home, of) is not None
        await pilot.press("R")
        assert "Resume subscription a of" in str(app.screen.query("Label").first().render())  # type: ignore[attr-defined]
        await pilot.press("y")
        assert pauses.kept(store.home, "a") is None
        done = [(line.action, line.what, line.outcome) for line in audit.lines(store.home)]
        assert done == [("pause", "producer", "done"), ("pause", "a", "done"), ("resume", "a", "done")]

    drive([store.name], steps)


def test_several_stores(store: EventStore) -> None:
    """n shows the next one, with its own events; a store that is removed leaves the screen, and an empty screen says so."""
    with EventStore.create(f"{store.name}-b", log=False) as other:
        store.put([change(1, table="first"), end(1)])
        other.put([change(1, table="second"), end(1)])

        async def steps(pilot: Pilot[Any], app: Top) -> None:
            await until(pilot, lambda: any("shop.first" in line for line in lines(app)))
            assert "(1 of 2)" in text(app, "#health")
            await pilot.press("n")
            await until(pilot, lambda: any("shop.second" in line for line in lines(app)))
            assert not any("shop.first" in line for line in lines(app))
            EventStore.unlink(other.name, force=True)
            await until(pilot, lambda: app.store is not None and app.store.name == store.name)

        drive([store.name, other.name], steps)
    drive(["none-of-this-name"], lambda pilot, app: until(pilot, lambda: "no store 'none-of-this-name'" in text(app, "#health")))


def test_a_store_that_is_not_in_memory(store_name: str, state: Path) -> None:
    """One in its home alone is shown as that, calmly, with its log and its readers' acks, and restored by none; when it is, it is as any."""
    with EventStore.create(store_name, log_size=64 << 20) as store:
        store.put([change(1), end(1), change(2), end(2)])
        store.subscribe("audit", start="earliest").close()
        store.sync()
    EventStore.unlink(store_name)

    async def steps(pilot: Pilot[Any], app: Top) -> None:
        await until(pilot, lambda: len(cells(app, "#readers")) == 1)
        assert "not in memory, only in its home: the producer, or any reader that attaches" in text(app, "#health")
        assert app.query_one("#health").has_class("idle")
        assert text(app, "#way").startswith(f"home {state}"[:60])
        assert "4 events, 0 to 3, since" in text(app, "#way")
        assert cells(app, "#readers") == [["a", "audit", "away", "4", "-", "-", "-", "-", "-", "log"]]
        await pilot.press("u")
        await until(pilot, lambda: any("no reader to forget" in each.message for each in app._notifications))
        assert store_name not in EventStore.names()
        with EventStore.attach(store_name):
            await until(pilot, lambda: app.store is not None and "►" in text(app, "#ring"))
        await until(pilot, lambda: len(lines(app)) == 2)

    drive([store_name], steps)
    EventStore.unlink(store_name)
    with EventStore.create(f"{store_name}-b", log=False) as other:

        async def next_one(pilot: Pilot[Any], app: Top) -> None:
            await until(pilot, lambda: f"{other.name} (1 of 2)" in text(app, "#health"))
            await pilot.press("n")
            await until(pilot, lambda: "►" not in text(app, "#ring") and len(cells(app, "#readers")) == 1)

        drive([other.name, store_name], next_one)
        EventStore.unlink(other.name, force=True)


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 200), st.text(max_size=20))
def test_every_width(put: int, back: int, width: int, name: str) -> None:
    """Whatever the figures, the names and the width: no line is longer than that, or holds what a terminal would obey."""
    readers = [reader(f"{name}{i}", acked=max(0, put - back), put=put) for i in range(30)]
    shown = seen(stat(put, *readers, source=name))
    for line in (*drawing.way(shown, width), drawing.ring(shown, width)):
        assert len(line) <= max(width, 1)
        assert line.isprintable()
    for each in shown.readers:
        made = drawing.reader_cells(each, [None, 1.0, float(put)])
        assert len(made) == len(drawing.READERS)
        assert all(cell.isprintable() for cell in made)
    assert event_line({"op": "insert", "database": name, "table": name, "after": {name: name}}).isprintable()


def test_the_ring_unrolled() -> None:
    """What is held is drawn as it is, and the cursors stand in it."""
    shown = seen(stat(512 + 1024, reader(acked=256 + 1024, put=512 + 1024), floor=1024 - 1))
    assert drawing.ring(shown, 18) == "[━━━━a━━━►·······]"
    assert drawing.ring(seen(stat(0)), 10) == "[►·······]"


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=200), st.integers(1, 20))
def test_a_sparkline(values: list[float | None], width: int) -> None:
    """As wide as asked, the newest value last; the largest that is known is a full block, and what is not known is blank."""
    line = drawing.sparkline(values, width)
    assert len(line) == width
    known = [value for value in values if value is not None]
    assert ("█" in line) == bool(known and max(known) > 0)
    assert (line.strip() == "") == (not known)
    if values and values[-1] is not None and values[-1] == max(known) > 0:
        assert line[-1] == "█"
    assert drawing.sparkline([0.0, 0.0], 3).strip() == "▁▁"


def test_the_cursor_stays_on_its_reader(store_name: str) -> None:
    """Whatever the order of the readers becomes: u asks about the one that was chosen."""
    with EventStore.create(store_name, capacity=64, log=False) as store:
        for name in ("first", "second"):
            store.subscribe(name).close()

        async def steps(pilot: Pilot[Any], app: Top) -> None:
            await until(pilot, lambda: [row[1] for row in cells(app, "#readers")] == ["first", "second"])
            readers = app.query_one("#readers", DataTable)
            readers.move_cursor(row=1)
            with store.subscribe("second"):
                await until(pilot, lambda: [row[1] for row in cells(app, "#readers")] == ["second", "first"])
                assert readers.cursor_row == 0
            await until(pilot, lambda: [row[1] for row in cells(app, "#readers")] == ["first", "second"])
            await pilot.press("u")
            assert "Forget subscription second of" in str(app.screen.query("Label").first().render())  # type: ignore[attr-defined]
            await pilot.press("n")

        drive([store_name], steps)


def test_without_the_extra(tmp_path: Path) -> None:
    """Where Textual is not installed, one line names the extra."""
    (tmp_path / "textual").mkdir()
    (tmp_path / "textual" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'textual'\", name='textual')\n"
    )
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "shmstore", "top"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    )
    for end_ in (ours, theirs):
        os.close(end_)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "textual is not installed" in done.stderr
    assert "[top]" in done.stderr


def test_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Into a pipe it draws nothing, and says what to use."""
    assert main(["top"]) == 2
    assert "shmstore stat STORE --watch 1" in capsys.readouterr().err


def test_on_a_terminal(store: EventStore) -> None:
    """On a real terminal the command draws the store's name, and q ends it with the terminal as it was."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-m", "shmstore", "top", store.name],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=ROOT,
    )
    os.close(theirs)
    came = b""
    deadline = time.monotonic() + 60
    try:
        while b"no producer runs" not in came:
            assert time.monotonic() < deadline, came
            if select.select([ours], [], [], 1.0)[0]:
                came += os.read(ours, 1 << 16)
        os.write(ours, b"q")
        while process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    came += os.read(ours, 1 << 16)
                except OSError:
                    break
        assert process.wait(60) == 0
        assert b"\x1b[?1049l" in came  # back from the alternate screen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
