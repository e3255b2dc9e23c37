"""The newest events of a store as documents for the eye: filtered, with values masked unless they may be shown, and never too many.

A tail for people leaves out what no reader could read: of a busy store it looks at the newest `LOOK` events a step (fewer without a
filter), shows at most `SHOW` of their rows, and says how many it passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from shmstore import StoreCorrupt, StoreView
from shmstore.consumer.formats.context import Context, stored_values
from shmstore.consumer.formats.own import documents
from shmstore.consumer.table_choice import tables_of
from shmstore.encoding.codec import Header, decode, decode_schema, stored_head
from shmstore.event import EntryType, EventType, TableSchema
from shmstore.patterns.table_patterns import Patterns

LOOK: Final = 4000  # events of a step
SHOW: Final = 100  # documents of a step
LARGE: Final = 1 << 20  # bytes of an event whose rows are not shown
LONGEST: Final = 400  # characters of a value, or of a statement, that are shown
MASK: Final = "•••"
OPERATIONS: Final = ("insert", "update", "delete", "read", "ddl", "statement")
_KEPT: Final = {"op", "ts_ms", "database", "table", "transaction", "seq", "row"}
_SHOWN: Final = (int(EntryType.ROWS), int(EntryType.DDL))


@dataclass(frozen=True, slots=True)
class Filter:
    """What is to be seen: tables by pattern (none: all), operations (none: all), and a text that must be in the document."""

    tables: Patterns | None = None
    operations: frozenset[str] = frozenset()
    text: str = ""

    @property
    def chooses(self) -> bool:
        """Whether it leaves anything out."""
        return self.tables is not None or bool(self.operations or self.text)

    @classmethod
    def parse(cls, tables: str = "", operations: str = "", text: str = "") -> Filter:
        """Read a filter: patterns as in `--tables`, operations with commas between. Raises `ValueError`."""
        chosen = frozenset(filter(None, (word.strip() for word in operations.split(","))))
        if unknown := chosen - set(OPERATIONS):
            raise ValueError(f"there is no operation {min(unknown)!r}: there are {', '.join(OPERATIONS)}")
        return cls(Patterns.of_tables(tables) if tables.strip() else None, chosen, text.casefold())


class Feed:
    """Follows a store from its newest events on, without a subscription; each `step` gives what came since the last."""

    def __init__(self, store: StoreView, chosen: Filter, *, show_values: bool, back: int = 200) -> None:
        self._store, self._chosen, self._show_values = store, chosen, show_values
        self._next = max(store.oldest, store.newest + 1 - back)
        #: Events that were passed over: too many came, or they were gone or damaged.
        self.passed = 0

    def step(self) -> list[dict[str, Any]]:
        """Return the documents of what is new, oldest first. Raises `ShmStoreError` where the store is gone."""
        newest = self._store.newest
        first = max(newest + 1 - (LOOK if self._chosen.chooses else 4 * SHOW), self._store.oldest)
        if first > self._next:
            self._pass(self._next, first - 1)
        self._next = min(self._next, newest + 1)
        found: list[dict[str, Any]] = []
        for batch in self._store.read(self._next, newest, limit_events=500, gone=self._pass, damaged=self._pass):
            entries = batch.slots["entry"].tolist()
            for sequence, (entry, payload) in enumerate(zip(entries, batch.payloads(), strict=True), batch.first):
                if entry in _SHOWN:
                    found += self._documents(payload, sequence)
            self._next = batch.last + 1
            if len(found) > 4 * SHOW:
                self.passed += len(found) - SHOW
                del found[:-SHOW]
        self.passed += max(0, len(found) - SHOW)
        return found[-SHOW:]

    def _pass(self, first: int, last: int) -> None:
        self.passed += last + 1 - first
        self._next = last + 1

    def _documents(self, payload: bytes | memoryview, sequence: int) -> Iterator[dict[str, Any]]:
        try:
            header, schema = stored_head(payload)
            if schema is not None:  # before its rows are decoded: most of a store may be of no concern
                table = decode_schema(schema)
                if self._chosen.tables is not None and not self._chosen.tables.match(f"{table.database}.{table.table}"):
                    return
                if len(payload) > LARGE:
                    yield from self._chosen_of([_large(Header._make(header), table, sequence)])
                    return
            event = decode(payload)
            if schema is None and self._chosen.tables is not None and not any(map(self._chosen.tables.match, tables_of(event))):
                return
            with stored_values(sequence):
                yield from self._chosen_of(
                    self._shown(made) for made in islice(documents(event, Context(sequence=sequence)), SHOW)
                )
            self.passed += max(0, len(event.rows) - SHOW)
        except StoreCorrupt:
            self.passed += 1

    def _chosen_of(self, shown: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        operations, text = self._chosen.operations, self._chosen.text
        for each in shown:
            if operations and each["op"] not in operations:
                continue
            if not text or text in json.dumps(each, ensure_ascii=False).casefold():
                yield each

    def _shown(self, made: dict[str, Any]) -> dict[str, Any]:
        """What of a document is shown; the text of a filter is looked for in this, so that it finds out nothing about values."""
        before, after = made.get("before"), made.get("after")
        value: Callable[[Any], Any] = _short if self._show_values else _masked
        shown: dict[str, Any] = {name: made[name] for name in made.keys() & _KEPT}
        shown["position"] = f"{made['position']['file']}:{made['position']['offset']}"
        if "sql" in made:
            shown["sql"] = _short(made["sql"]) if self._show_values else f"{made['type'].upper()} {MASK}"
        if before is not None:
            shown["before"] = {name: value(each) for name, each in before.items()}
        if after is not None:
            shown["after"] = {name: value(each) for name, each in after.items()}
        if before is not None and after is not None:
            shown["changed"] = [name for name, each in after.items() if name not in before or before[name] != each]
        return shown


def _large(header: Header, table: TableSchema, sequence: int) -> dict[str, Any]:
    """An event whose rows would fill the screen, and memory."""
    return {
        "op": EventType(header.type).name.lower(),
        "ts_ms": header.time_ms,
        "database": table.database,
        "table": table.table,
        "transaction": header.transaction,
        "seq": sequence,
        "position": f"{header.file}:{header.offset}",
        "large": True,
    }


def _masked(value: Any) -> str:
    return MASK


def _short(value: Any) -> Any:
    """A value that fits on a line: long text is cut, what JSON does not know is text."""
    if value is None or isinstance(value, bool | float):
        return value
    text = str(value)
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else text  # a browser's numbers are doubles
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
