"""The live screen: what the page shows, in a terminal of 80 by 24 or larger, with keys for what can be done.

One thread observes the stores, one follows the events of the store that is shown; the screen looks at what the first found four times a
second, and is given lines by the second. Everything from a store is made printable first, and is never read as markup.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Log, Static

from shmstore import PositionNotFound, ShmStoreError, StoreView
from shmstore.consumer.live import actions, drawing
from shmstore.consumer.live.events import Feed, Filter
from shmstore.consumer.live.figures import Host, Remembered, ShownReader, ShownStore, ShownTable
from shmstore.consumer.live.observer import Observer

LOOK: Final = 0.25  # seconds between two looks at what was observed
STEP: Final = 0.5  # seconds between two looks for events
MOST_LINES: Final = 500
ANSI_THEMES: Final = ("ansi-dark", "textual-ansi")  # Textual's from 8.1 and before: the terminal's own colors, dark or light
ORDERS: Final[Mapping[str, Callable[[ShownTable], float]]] = {
    "rows a second": lambda table: table.rate,
    "newest rows": lambda table: table.last_ms,
    "last DDL": lambda table: table.ddl_ms,
    "rows seen": lambda table: sum(table.rows.values()),
}


class Ask(ModalScreen[str | None]):
    """Asks for a line of text; None: nothing is to be done."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        """The question and a line for the answer."""
        with Vertical():
            yield Label(drawing.printable(self._question), markup=False)
            yield Input(self._value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The answer."""
        self.dismiss(event.value)


class Sure(ModalScreen[bool]):
    """Asks whether to do something: only y does it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "dismiss(True)", "Yes"),
        ("n,escape,enter,q", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question."""
        with Vertical():
            yield Label(drawing.printable(self._question), markup=False)
            yield Label("y: yes    n: no", markup=False)


class Top(App[None]):
    """Shows what an observer sees. `show_values` shows the values of columns and the text of statements."""

    TITLE = "shmstore top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #health { height: auto; max-height: 4; padding: 0 1; text-style: reverse; }
    .ok { color: ansi_green; } .warn { color: ansi_yellow; } .bad { color: ansi_red; }
    #way, #ring, #snapshot, #shown { height: auto; }
    #readers { height: auto; max-height: 40vh; }
    #readers, #tables, #events { scrollbar-size-horizontal: 0; }
    #tables { height: 1fr; min-height: 3; max-height: 10; }
    #shown { text-style: dim; }
    #events { height: 1fr; min-height: 3; }
    Ask, Sure { align: center middle; }
    Ask > Vertical, Sure > Vertical { width: 70; height: auto; border: round $primary; background: $surface; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("n", "next_store", "Store"),
        ("s", "sort", "Sort"),
        ("f", "filter", "Filter"),
        ("p", "pause", "Pause"),
        ("x", "snapshot", "Snapshot"),
        ("u", "unsubscribe", "Unsubscribe"),
        ("P", "pause_producer", "Pause producer"),
        ("R", "pause_reader", "Pause reader"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, observer: Observer, *, show_values: bool = False) -> None:
        super().__init__(ansi_color=True)
        self.theme = next(name for name in ANSI_THEMES if name in self.available_themes)
        self._observer, self._show_values = observer, show_values
        self._number = 0
        self._host: Host | None = None
        self._shown = ""  # name of the store
        self._order = next(iter(ORDERS))
        self._chosen, self._filter = Filter(), ""
        self._paused = False
        self._passed = 0
        self._over = threading.Event()
        self._again = threading.Event()  # another store or filter: follow that
        self._watching = observer.watch()
        self._follower = threading.Thread(target=self._follow, name="events", daemon=True)

    def compose(self) -> ComposeResult:
        """The screen, from top to bottom."""
        yield Static("waiting for the first figures", id="health", markup=False)
        yield Static(id="way", markup=False)
        yield Static(id="ring", markup=False)
        yield DataTable(id="readers", cursor_type="row")
        yield Static(id="snapshot", markup=False)
        yield DataTable(id="tables", cursor_type="row")
        yield Static(id="shown", markup=False)
        yield Log(id="events", max_lines=MOST_LINES)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self._readers.add_columns(*drawing.READERS)
        self._tables.add_columns(*drawing.TABLES)
        self._watching.__enter__()
        self._follower.start()
        self.set_interval(LOOK, self._look)

    def on_unmount(self) -> None:
        """Look no more."""
        self._over.set()
        self._again.set()
        self._watching.__exit__(None, None, None)

    @property
    def _readers(self) -> DataTable[Any]:
        return self.query_one("#readers", DataTable)

    @property
    def _tables(self) -> DataTable[Any]:
        return self.query_one("#tables", DataTable)

    @property
    def store(self) -> ShownStore | None:
        """The store that is shown, if it is in memory."""
        return shown if isinstance(shown := self._chosen_store, ShownStore) else None

    @property
    def _stores(self) -> tuple[ShownStore | Remembered, ...]:
        return (*self._host.stores, *self._host.remembered) if self._host is not None else ()

    @property
    def _chosen_store(self) -> ShownStore | Remembered | None:
        stores = self._stores
        return next((each for each in stores if each.name == self._shown), stores[0] if stores else None)

    # ------------------------------------------------------------ figures

    def _look(self) -> None:
        if not self.screen.is_active or isinstance(self.screen, ModalScreen):
            return
        self._number, host = self._observer.wait(self._number, 0)
        if host is not None:
            self._host = host
            with suppress(NoMatches):  # where the screen ends, its widgets go before this timer does
                self._draw()

    def on_resize(self) -> None:
        """Draw in the width that there is now."""
        if self._host is not None:
            self._draw()

    def _draw(self) -> None:
        store = self._chosen_store
        assert self._host is not None
        width = max(20, self.size.width)
        if store is None:
            self._say(self._host.health.state, self._host.health.says, self._host.health.fix)
            self._draw_at_rest([])
            return
        if store.name != self._shown:
            self._shown = store.name
            self._again.set()
        stores = [each.name for each in self._stores]
        which = f"{store.name} ({stores.index(store.name) + 1} of {len(stores)})" if len(stores) > 1 else store.name
        quiet = ("ok", "idle") if self._host.health.state in ("warn", "bad") else ("ok",)
        health = self._host.health if store.health.state in quiet else store.health
        self._say(health.state, health.says if health is not store.health else f"{which}: {health.says}", health.fix, which)
        if isinstance(store, Remembered):
            self._draw_at_rest(drawing.at_rest(store, width))
            _fill(self._readers, {each.name: drawing.waiting_cells(number, each) for number, each in enumerate(store.readers)})
            return
        self.query_one("#way", Static).update("\n".join(drawing.way(store, width)))
        self.query_one("#ring", Static).update(f"{drawing.ring(store, width)}\n{drawing.cut(drawing.LEGEND, width)}")
        self.query_one("#snapshot", Static).update(drawing.snapshot_line(store.snapshots, width))
        points = [point.stores.get(store.name) for point in self._observer.history.after(0)]
        waited = {each.name: [point and point.readers.get(each.name) for point in points] for each in store.readers}
        _fill(self._readers, {each.name: drawing.reader_cells(each, waited[each.name]) for each in store.readers})
        tables = sorted(self._seen(store), key=ORDERS[self._order], reverse=True)
        _fill(self._tables, {repr((each.database, each.table)): drawing.table_cells(each) for each in tables})
        self._tell()

    def _draw_at_rest(self, way: list[str]) -> None:
        """Where nothing is in memory: no ring, tables or readers."""
        self.query_one("#way", Static).update("\n".join(way))
        for name in ("#ring", "#snapshot"):
            self.query_one(name, Static).update("")
        self._readers.clear()
        self._tables.clear()

    def _seen(self, store: ShownStore) -> list[ShownTable]:
        chosen = self._chosen.tables
        return [each for each in store.tables if chosen is None or chosen.match(f"{each.database}.{each.table}")]

    def _say(self, state: str, says: str, fix: str, which: str = "") -> None:
        health = self.query_one("#health", Static)
        health.set_classes(state)
        text = f"{says}: {fix}" if fix else says
        health.update(drawing.printable(text if not which or which in text else f"{which}: {text}"))

    def _tell(self) -> None:
        """What is chosen of tables and events."""
        parts = [f"tables by {self._order}", f"filter {self._filter!r}" if self._filter else "no filter"]
        parts += ["EVENTS PAUSED"] * self._paused + [f"{self._passed:,} events skipped"] * bool(self._passed)
        self.query_one("#shown", Static).update(drawing.cut(drawing.printable("; ".join(parts)), self.size.width))

    # ------------------------------------------------------------ events

    def _follow(self) -> None:
        """Follow the events of the store that is shown, in a thread of its own."""
        while not self._over.is_set():
            self._again.clear()
            name, chosen = self._shown, self._chosen
            if name:
                with (
                    suppress(ShmStoreError, PositionNotFound),
                    StoreView.attach(name, state=self._observer.state, restore=False) as store,
                ):
                    feed = Feed(store, chosen, show_values=self._show_values, back=40)
                    lines: list[str] = []
                    while not self._again.is_set() and not store.lost:
                        if not self._paused:
                            lines += [event_line(each) for each in feed.step()]
                            if self._given(lines, feed.passed):
                                lines = []
                        self._again.wait(STEP)
            self._again.wait(STEP)

    def _given(self, lines: list[str], passed: int) -> bool:
        if not self._over.is_set() and not self._again.is_set():
            with suppress(RuntimeError):  # it ended meanwhile
                return bool(self.call_from_thread(self._take, lines, passed))
        return True

    def _take(self, lines: list[str], passed: int) -> bool:
        """Show what was found; False where the events were paused since then: it is for later. A key may also have chosen another store."""
        if self._paused:
            return False
        if not self._over.is_set() and not self._again.is_set():
            self._passed = passed
            for log in self.query("#events").results(Log):
                log.write_lines(lines)
        return True

    # ------------------------------------------------------------ keys

    def action_next_store(self) -> None:
        """Show the next store."""
        if not (names := [each.name for each in self._stores]):
            return
        self._shown = names[(names.index(self._shown) + 1) % len(names)] if self._shown in names else names[0]
        self._begin_again()

    def action_sort(self) -> None:
        """Sort the tables by the next figure."""
        orders = list(ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        if self._host is not None:
            self._draw()

    def action_filter(self) -> None:
        """Choose tables, of figures and events."""

        def chosen(answer: str | None) -> None:
            if answer is None:
                return
            try:
                self._chosen, self._filter = Filter.parse(answer), answer
            except ValueError as error:
                self._warn(str(error))
                return
            self._begin_again()

        self.push_screen(Ask("Only these tables (DATABASE.TABLE, * ? and ! as in --tables; nothing: all):", self._filter), chosen)

    def action_pause(self) -> None:
        """Stop the events, or let them continue."""
        self._paused = not self._paused
        self._tell()

    def _named(self, store: str) -> actions.Named:
        return actions.Named(store, state=self._observer.state)

    def action_snapshot(self) -> None:
        """Ask for the rows of tables."""
        store = self.store
        if store is None:
            self._warn("there is no store in memory to ask for a snapshot")
            return

        def asked(answer: str | None) -> None:
            if answer:
                self._do(lambda: f"snapshot {actions.snapshot(self._named(store.name), answer)} is asked for")

        self.push_screen(Ask(f"Snapshot of which tables of {store.name}? (DATABASE.TABLE; Esc: none)"), asked)

    def action_pause_producer(self) -> None:
        """Let the producer read nothing, or read again."""
        if (store := self.store) is None:
            self._warn("there is no store in memory whose producer could be paused")
            return
        self._pause(
            store.name, None, "the producer", "It reads nothing until it is resumed, and the source has to keep its binlog."
        )

    def action_pause_reader(self) -> None:
        """Let the reader that the cursor is on be given nothing, or be given events again."""
        if (found := self._reader("pause")) is not None:
            store, reader = found
            then = "It is given nothing until it is resumed, and all is kept for it."
            self._pause(store.name, reader.name, f"subscription {reader.name}", then)

    def _pause(self, store: str, subscription: str | None, what: str, then: str) -> None:
        """Ask to pause, or to resume what is paused."""
        named = self._named(store)
        try:
            paused = actions.is_paused(named, subscription)
        except (ShmStoreError, ValueError) as error:
            self._warn(str(error))
            return
        if paused:
            self._if_sure(f"Resume {what} of {store}?", lambda: actions.resume(named, subscription))
        else:
            self._if_sure(f"Pause {what} of {store}? {then}", lambda: actions.pause(named, subscription))

    def _reader(self, wish: str) -> tuple[ShownStore, ShownReader] | None:
        """The store that is shown, and the reader that the cursor is on; None, and a warning, where there is none."""
        store = self.store
        chosen = _chosen(self._readers)
        reader = next((each for each in store.readers if each.name == chosen), None) if store is not None else None
        if store is None or reader is None:
            self._warn(f"there is no reader to {wish} of a store in memory")
            return None
        return store, reader

    def action_unsubscribe(self) -> None:
        """Forget the subscription that the cursor is on."""
        if (found := self._reader("forget")) is None:
            return
        store, reader = found

        def forget() -> str:
            actions.unsubscribe(self._named(store.name), reader.name)
            return f"{reader.name} is forgotten"

        waits = f"{reader.lag_events:,} events wait for it. It cannot continue then."
        self._if_sure(f"Forget subscription {reader.name} of {store.name}? {waits}", forget)

    def _if_sure(self, question: str, act: Callable[[], str]) -> None:
        """Ask, and do it where the answer is y."""

        def asked(sure: bool | None) -> None:
            if sure:
                self._do(act)

        self.push_screen(Sure(question), asked)

    def _do(self, act: Callable[[], str]) -> None:
        try:
            self.notify(drawing.printable(act()), markup=False)
        except (ShmStoreError, ValueError, OSError) as error:
            self._warn(str(error))

    def _warn(self, message: str) -> None:
        self.notify(drawing.printable(message), severity="error", markup=False)

    def _begin_again(self) -> None:
        self.query_one("#events", Log).clear()
        self._passed = 0
        self._again.set()
        if self._host is not None:
            self._draw()


def event_line(event: Mapping[str, Any]) -> str:
    """An event on one line."""
    parts = [str(event["op"]), f"{event.get('database', '')}.{event.get('table', '')}"]
    if event.get("large"):
        parts.append("too large to show")
    if "sql" in event:
        parts.append(str(event["sql"]))
    before, changed = event.get("before") or {}, set(event.get("changed", ()))
    for name, value in (event.get("after") or before).items():
        parts.append(f"{name}={before[name]}→{value}" if name in changed and name in before else f"{name}={value}")
    return drawing.printable(" ".join(parts))


def _chosen(table: DataTable[Any]) -> str | None:
    """The key of the row that the cursor is on; None where there is none."""
    return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value if table.row_count else None


def _fill(table: DataTable[Any], rows: Mapping[str, tuple[str, ...]]) -> None:
    """Show these rows, by key; the cursor stays on the row that it is on, wherever that is now."""
    chosen, at, scroll = _chosen(table), table.cursor_row, table.scroll_y
    table.clear()
    for key, row in rows.items():
        table.add_row(*map(Text, row), key=key)
    if rows:
        table.move_cursor(
            row=list(rows).index(chosen) if chosen is not None and chosen in rows else min(at, len(rows) - 1), scroll=False
        )
        table.scroll_to(y=scroll, animate=False)
