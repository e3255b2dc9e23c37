"""Canal's flat message of rows: what is made column by column is what each row alone says."""

from __future__ import annotations

import json
import random
from typing import Any

from shmstore.consumer.formats.canal import documents
from shmstore.consumer.formats.canal_values import Values, renderings
from shmstore.consumer.formats.context import Context, image
from shmstore.encoding import codec
from shmstore.event import ABSENT, Column, EntryType, Event, EventType, Position, Row, TableSchema
from tests.shmstore.tables import random_events


def by_row(event: Event) -> dict[str, Any]:
    """`data` and `old` of an event, row by row."""
    assert event.table is not None
    texts = tuple([rendered.text for rendered in renderings(event.table, Values.CANAL)])
    data, old = [], []
    for before, after in event.rows:
        now = image(event.table, before if after is None else after, texts) or {}
        if now:
            data.append(now)
        if before is not None and after is not None:
            was = image(event.table, before, texts) or {}
            old.append({name: text for name, text in was.items() if name in now and now[name] != text})
    return {"data": data or None, "old": old or None}


def made(event: Event) -> dict[str, Any]:
    (document,) = documents(event, Context())
    return {name: document[name] for name in ("data", "old")}


def changed(event: Event, chance: random.Random) -> Event:
    """The same as an update in which some columns of some rows change, or are absent."""
    rows = []
    for row in event.rows:
        after = row.after or row.before or ()
        other = chance.choice(event.rows)
        before = [now if chance.random() < 0.8 else (other.after or other.before or ())[i] for i, now in enumerate(after)]
        absent = chance.choice((0, 0, 0.2))
        images = [tuple([ABSENT if chance.random() < absent else value for value in values]) for values in (before, after)]
        rows.append(Row(*images))
    return event._replace(type=EventType.UPDATE, rows=tuple(rows))


def test_rows_of_every_type(seed: int) -> None:
    """Random rows of every type, and updates of them: the same data and old values, in the same order."""
    chance, updates = random.Random(seed), 0
    for payload in random_events(chance, 240):
        event = codec.decode(payload)
        if event.table is None or "rows_query" in event.props:
            continue
        for each in (event, changed(event, chance)):
            assert json.dumps(made(each)) == json.dumps(by_row(each))
            updates += bool(made(each)["old"])
    assert updates > 20


def test_equal_values_of_other_texts() -> None:
    """-0.0 equals 0.0 and has another text, so it is a change; the same text of other values is none."""
    table = TableSchema("s", "t", (Column("x", "double"), Column("b", "binary", size=3)), ())
    rows = (Row((-0.0, b"a\0"), (0.0, b"a")), Row((1.0, b"b"), (1.0, b"c")))
    event = Event(EntryType.ROWS, EventType.UPDATE, Position("b.1", 1), 0, table=table, rows=rows)
    assert made(event) == by_row(event)
    assert made(event)["old"] == [{"x": "-0.0"}, {"b": "b"}]
