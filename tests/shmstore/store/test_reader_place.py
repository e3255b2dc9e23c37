"""A reader's place in another store of the same source, against a simple model: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from shmstore import Checkpoint, CheckpointFile, EntryType, Event, EventStore, EventType, Position, PositionNotFound
from shmstore.event import Cut, Sources
from shmstore.store.reader_place import ReaderPlace

UUID = "3e11fa47-71ca-11e1-9e33-c80aa942956"
GTIDS = {"a": "0-1-{}", "b": UUID + "2:{}", "c": UUID + "3:{}", "": "0-1-{}"}
SETS = {"a": "0-1-{}", "b": UUID + "2:1-{}", "c": UUID + "3:1-{}", "": "0-1-{}"}


class Made(NamedTuple):
    """An event, the transaction that it is of, and how many events of that come up to it; number 0 is where the stream begins."""

    event: Event
    source: str
    number: int
    order: int


def stream(order: list[tuple[str, int]], sizes: dict[tuple[str, int], int], kind: str, file: str) -> list[Made]:
    """The transactions of `order` as a producer puts them: of `kind` none (file and offset alone), gtids or several sources."""
    at = dict.fromkeys(sorted({source for source, _ in order}), 0)
    found: list[Made] = []

    def place(source: str, number: int) -> Position:
        return Position(f"{file}.000001", 1000 * number + 999, SETS[source].format(number) if kind != "none" and number else "")

    def sources() -> Sources:
        return tuple((source, place(source, number)) for source, number in at.items()) if kind == "several" else ()

    if kind == "several":
        end = Event(EntryType.END, EventType.NONE, Position("", 0, sources=sources()), 1, transaction="group")
        found.append(Made(end, "", 0, 0))
    for source, number in order:
        end = place(source, number)
        begin = Event(EntryType.BEGIN, EventType.NONE, Position(end.file, 1000 * number), 1)
        begin = begin._replace(transaction="" if kind == "none" else GTIDS[source].format(number))
        made = [begin]
        for i in range(1, sizes[source, number] + 1):
            rows = begin._replace(entry=EntryType.ROWS, type=EventType.QUERY, sql="x", order=i, part=i // 3)
            rows = rows._replace(position=Position(end.file, 1000 * number + i))
            if i % 3 == 0:
                begun = tuple((name, place(name, number - 1) if name == source else at_) for name, at_ in sources())
                rows = rows._replace(cut=Cut(begun or (("", place(source, number - 1)),), i))
            made.append(rows)
        at[source] = number
        made.append(begin._replace(entry=EntryType.END, order=len(made), position=end._replace(sources=sources())))
        found += [Made(event, source, number, i) for i, event in enumerate(made)]
    return found


def merged(rng: random.Random, counts: dict[str, int]) -> list[tuple[str, int]]:
    """The transactions 1 to a count of each source, in some order that keeps each source's."""
    names = [source for source, count in counts.items() for _ in range(count)]
    rng.shuffle(names)
    done = dict.fromkeys(counts, 0)
    order = []
    for source in names:
        done[source] += 1
        order.append((source, done[source]))
    return order


@contextmanager
def a_store(folder: Path, log: bool, before: Position | None) -> Iterator[EventStore]:
    name = f"reader-place-{os.getpid()}"
    try:
        with EventStore.create(name, capacity=1024, memory_unit=1024, log=log, state=folder) as store:
            store.claim(start=before)
            yield store
    finally:
        EventStore.unlink(name, log=log, state=folder)


def scenario(rng: random.Random, kind: str) -> tuple[list[Made], list[Made], int, int]:
    """Two stores' streams of the same transactions; up to where a reader has read the first, and where the second begins."""
    counts = {source: rng.randrange(1, 6) for source in (("a", "b", "c")[: rng.randrange(2, 4)] if kind == "several" else ("",))}
    sizes = {(source, number): rng.choice((0, 1, 2, 7)) for source, count in counts.items() for number in range(1, count + 1)}
    here = stream(merged(rng, counts), sizes, kind, "here")
    there = stream(merged(rng, counts), sizes, kind, "here" if kind == "none" else rng.choice(("here", "there")))
    ends = [i for i, made in enumerate(here) if made.event.entry is EntryType.END]
    starts = [0, 0, *(i + 1 for i, made in enumerate(there) if made.event.entry is EntryType.END)]
    return here, there, rng.choice(ends), rng.choice(starts)


@pytest.mark.parametrize("log", [True, False], ids=["log", "ring"])
@pytest.mark.parametrize("kind", ["none", "gtids", "several"])
def test_a_reader_goes_on_in_another_store(kind: str, log: bool, tmp_path: Path, seed: int) -> None:
    """It is given what it has not read, once, in the order of the other store, whether that was put before it came or comes then. Where
    something that it has not read may be gone, it hears so."""
    rng = random.Random(f"{seed} {kind} {log}")
    refused = 0
    for round_ in range(60):
        here, there, read, first = scenario(rng, kind)
        folder = tmp_path / str(round_)
        have = {(made.source, made.number) for made in here[: read + 1]}
        lost = {(made.source, made.number) for made in there[:first]} - have
        wanted = [made.event for made in there[first:] if (made.source, made.number) not in have]
        place = here[read].event.position
        before = there[first - 1].event.position if first else Position("here.000001", 4)
        with a_store(folder, log, before if kind == "none" or rng.random() < 0.5 else None) as store:
            cut = rng.randrange(first, len(there) + 1)
            while 0 < cut < len(there) and there[cut - 1].event.entry is not EntryType.END:
                cut += 1  # raw places in a transaction are for `inside`
            store.put([made.event for made in there[first:cut]])
            file = CheckpointFile(folder / "elsewhere", "other", "r")
            file.save(Checkpoint(place, 7, 3))
            try:
                reader = store.subscribe("r", checkpoint=file)
            except PositionNotFound:
                refused += 1
                assert lost or cut == first, (round_, place)
                continue
            assert not lost, (round_, place)
            with reader:
                came: list[Event] = []
                for more in (there[cut:], []):
                    while batch := reader.get(timeout=0):
                        came += batch.events
                        reader.ack(batch)
                    if more:
                        store.put([made.event for made in more])
            assert came == wanted, (round_, place)
    assert refused


@pytest.mark.parametrize("log", [True, False], ids=["log", "ring"])
def test_what_was_read_is_there(log: bool, tmp_path: Path, seed: int) -> None:
    """Of several sources: the first event by which another store has all that was read, also inside a transaction and ahead of the others; and
    from the first that may be new on, each event is known to be read or not."""
    rng = random.Random(f"{seed} {log}")
    for round_ in range(60):
        here, there, read, _ = scenario(rng, "several")
        have = {(made.source, made.number) for made in here[: read + 1]}
        last, inside = here[read], ""
        cuts = [i for i, made in enumerate(here) if made.event.cut is not None]
        if cuts and rng.random() < 0.5:
            last = here[rng.choice(cuts)]
            have = {(made.source, made.number) for made in here[: here.index(last)]} - {(last.source, last.number)}
            inside = last.event.transaction
        cut = last.event.cut
        sources = last.event.position.sources if cut is None else cut.sources
        ahead = [made for made in there if made.number and rng.random() < 0.1] if rng.random() < 0.3 else []
        have |= {(made.source, made.number) for made in ahead}
        place = ReaderPlace(
            last.event.position._replace(sources=sources),
            inside=inside,
            ahead=",".join(GTIDS[made.source].format(made.number) for made in ahead if made.source != "a"),
        )
        have -= {
            (made.source, made.number) for made in ahead if made.source == "a" and made.number > dict(sources)["a"].offset // 1000
        }
        done = [
            (made.source, made.number) in have or (made.event.transaction == inside != "" and made.order <= last.order)
            for made in there
        ]
        with a_store(tmp_path / str(round_), log, None) as store:
            store.put([made.event for made in there])
            first = place.first_new(store.segment)
            assert all(done[:first]), (round_, place)
            for made, was in zip(there, done, strict=True):
                if made.number:
                    assert place.has(made.event.transaction, made.event.position) == was, (round_, made, place)
            reached = place.reached(store.segment)
            marks = [i for i, made in enumerate(there) if made.event.entry is EntryType.END or made.event.cut is not None]
            enough = next(i for i in marks if all(done[k] is False for k in range(i + 1, len(there)) if there[k].number))
            assert reached == enough, (round_, place)
