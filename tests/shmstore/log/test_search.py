"""Places in the log are found as a reader of every single event would find them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shmstore import Event, PositionNotFound, SlotFlag
from shmstore.encoding import codec
from shmstore.event import EntryType, EventType, Position, Sources
from shmstore.log import search
from shmstore.log.files import LogFiles, remove_sets
from shmstore.sources import parse_sources
from tests.shmstore.log.appending import Appending, Folder, Item

EPOCH = 3
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
END, DDL = int(SlotFlag.TRANSACTION_END), int(SlotFlag.DDL)


def seen(files: LogFiles) -> search.Slots:
    return search.Slots("store", None, files, files.oldest, files.logged())


def ack_point_until(files: LogFiles, sequence: int) -> int | None:
    return search.ack_point_until(seen(files), sequence)


def first_at_time(files: LogFiles, moment_ms: int) -> int:
    return search.first_at_time(seen(files), moment_ms)


def after_position(files: LogFiles, file: int, offset: int) -> int | None:
    return search.after_position(seen(files), file, offset)


def after_gtids(files: LogFiles, place: str | Sources) -> int:
    wanted = Position("", 0, place) if isinstance(place, str) else Position("", 0, sources=place)
    return search.after_gtids(seen(files), wanted, lambda each: codec.decode_stored(files.read(each, each).raw)[0].position)


def event(
    entry: EntryType, type_: EventType, time: int, file: int, offset: int, gtids: str | Sources = "", flags: int = 0
) -> Item:
    """An encoded event whose slot says the same."""
    position = Position(f"binlog.{file:06d}", offset)
    position = position._replace(gtids=gtids) if isinstance(gtids, str) else position._replace(sources=gtids)
    payload = codec.encode(Event(entry, type_, position, time))
    return Item(payload, 1, flags, time, file, offset, int(entry), int(type_))


def stream(random_: random.Random, transactions: int) -> tuple[list[Item], list[str]]:
    """Transactions, DDLs and snapshots; and the GTID set of each event's place, where it has one."""
    items, sets, file, offset, number, now = list[Item](), list[str](), 1, 4, 0, 1000

    def add(item: Item, gtids: str = "") -> None:
        items.append(item)
        sets.append(gtids)

    for _ in range(transactions):
        kind, gtids = random_.random(), f"{UUID}:1-{number}"
        now += random_.randrange(1, 5)
        if kind < 0.15 and number:  # a snapshot's rows, at the place the stream has reached
            for _ in range(random_.randrange(1, 4)):
                add(event(EntryType.ROWS, EventType.READ, now, file, offset))
            add(event(EntryType.END, EventType.READ, now, file, offset, gtids, END), gtids)
            continue
        if random_.random() < 0.1:
            file, offset = file + 1, 4
        number += 1
        gtids = f"{UUID}:1-{number}"
        if kind < 0.3:
            offset += 50
            add(event(EntryType.DDL, EventType.ALTER, now, file, offset, gtids, DDL), gtids)
            continue
        offset += 20
        add(event(EntryType.BEGIN, EventType.NONE, now, file, offset))
        for _ in range(random_.choice((0, 1, 1, 3, 12))):
            offset += 100
            add(event(EntryType.ROWS, EventType.INSERT, now - random_.randrange(4), file, offset))
        offset += 30
        add(event(EntryType.END, EventType.NONE, now, file, offset, gtids, END), gtids)
    return items, sets


@pytest.fixture
def log(tmp_path: Path, seed: int) -> tuple[LogFiles, list[Item], list[str], Appending]:
    random_ = random.Random(seed)
    items, sets = stream(random_, 120)
    writer = Appending(Folder(tmp_path / "store" / "log"), EPOCH, 1 << 20, 45)
    at = 0
    while at < len(items):
        count = random_.randrange(1, 20)
        writer.append(items[at : at + count])
        at += count
    return LogFiles(tmp_path / "store" / "log", EPOCH, lambda: writer.logged), items, sets, writer


Log = tuple[LogFiles, list[Item], list[str], Appending]


def naive_point(items: list[Item], sequence: int, oldest: int = 0) -> int | None:
    found = [i for i in range(oldest, sequence + 1) if items[i].flags & 3]
    return found[-1] if found else None


def test_ack_points(log: Log) -> None:
    """The last transaction end or DDL at or before any event; none before the oldest one kept."""
    files, items, _, _ = log
    for sequence in range(len(items)):
        assert ack_point_until(files, sequence) == naive_point(items, sequence)
    remove_sets(files.folder, files.firsts[:2])
    fresh = LogFiles(files.folder, EPOCH, files.logged)
    for sequence in range(90, len(items)):
        assert ack_point_until(fresh, sequence) == naive_point(items, sequence, 90)
    assert ack_point_until(fresh, 20) is None


def test_raw_events_are_no_ack_points(tmp_path: Path) -> None:
    """Bytes that are no event of the producer's end the search: a log of nothing else is not read to its beginning."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 50)
    writer.append([event(EntryType.END, EventType.NONE, 1, 1, 4, flags=END), *[Item(b"x")] * 9])
    writer.append([event(EntryType.END, EventType.NONE, 1, 1, 9, flags=END), event(EntryType.BEGIN, EventType.NONE, 1, 1, 11)])
    files = LogFiles(tmp_path, EPOCH, lambda: writer.logged)
    assert [ack_point_until(files, i) for i in range(12)] == [0, *[None] * 9, 10, 10]


def test_times(log: Log) -> None:
    """The first transaction that ends at a moment or later, from its first event on."""
    files, items, _, _ = log
    times = [item.time for item in items]
    for moment in range(min(times) - 2, max(times) + 3):
        later = next((i for i, time in enumerate(times) if time >= moment), None)
        wanted = len(items) if later is None else 0
        if later:
            point = naive_point(items, later - 1)
            wanted = 0 if point is None else point + 1
        assert first_at_time(files, moment) == wanted
    assert first_at_time(LogFiles(files.folder / "missing", EPOCH, lambda: 70), 5) == 71


def test_positions(log: Log) -> None:
    """The first event after any place, between events, too; a snapshot's rows at a place come after it."""
    files, items, _, _ = log
    for oldest in (0, 90):
        if oldest:
            remove_sets(files.folder, files.firsts[:2])
            files = LogFiles(files.folder, EPOCH, files.logged)
        for item in items:
            for offset in (item.offset - 1, item.offset, item.offset + 1):
                place = (item.file, offset)
                later = [
                    i
                    for i in range(oldest, len(items))
                    if (items[i].file, items[i].offset) > place
                    or ((items[i].file, items[i].offset) == place and items[i].type == EventType.READ)
                ]
                wanted = later[0] if later else len(items)
                assert after_position(files, *place) == (None if wanted == oldest else wanted)
    assert after_position(LogFiles(files.folder / "missing", EPOCH, lambda: 70), 1, 5) is None


def test_gtid_sets(log: Log) -> None:
    """What follows each transaction by its GTID set; rows of a snapshot that stand there come after it."""
    files, items, sets, _ = log
    for gtids in sorted(set(sets) - {""}):
        points = [i for i, each in enumerate(sets) if each == gtids and items[i].type != EventType.READ]
        assert after_gtids(files, gtids) == points[-1] + 1
        assert after_gtids(files, gtids.upper().replace(":", ": ")) == points[-1] + 1, "as a set, not as text"
    for missing in (f"{UUID}:1-100000", f"{UUID}:5-6", "0-1-5", "nonsense", ""):
        with pytest.raises(PositionNotFound):
            after_gtids(files, missing)


def test_a_snapshot_at_the_beginning(tmp_path: Path) -> None:
    """Where the transaction itself is not kept, and rows of a snapshot that stand there are, they follow."""
    one, two = f"{UUID}:1-4", f"{UUID}:1-5"
    items = [
        event(EntryType.ROWS, EventType.READ, 1, 1, 100),
        event(EntryType.END, EventType.READ, 1, 1, 100, one, END),
        event(EntryType.END, EventType.READ, 1, 1, 100, one, END),
        event(EntryType.END, EventType.NONE, 1, 1, 200, two, END),
    ]
    writer = Appending(Folder(tmp_path), EPOCH, 1 << 20, 2)
    writer.append(items)
    files = LogFiles(tmp_path, EPOCH, lambda: writer.logged)
    assert after_gtids(files, one) == 0
    assert after_gtids(files, two) == 4


def test_several_sources(tmp_path: Path) -> None:
    """A place in a store of several sources is found by where each of them is, and MariaDB's sets by what they cover."""
    for k, tail in enumerate(("0-1-{}", "")):
        sets = [
            parse_sources(f"a=binlog.000001:{i}/{tail.format(i)};b=binlog.000001:4/{tail.format(i // 3)}") for i in range(1, 40)
        ]
        writer = Appending(Folder(tmp_path / f"a{k}"), EPOCH, 1 << 20, 7)
        writer.append([event(EntryType.END, EventType.NONE, i, 1, i, each, END) for i, each in enumerate(sets)])
        files = LogFiles(tmp_path / f"a{k}", EPOCH, lambda: 38)
        assert [after_gtids(files, each) for each in sets] == list(range(1, 40))
        with pytest.raises(PositionNotFound):
            after_gtids(files, parse_sources("a=binlog.000001:99/;b=binlog.000001:4/"))
    maria = Appending(Folder(tmp_path / "b"), EPOCH, 1 << 20, 7)
    maria.append([event(EntryType.END, EventType.NONE, i, 1, i, f"0-1-{i},1-3-77", END) for i in range(1, 40)])
    files = LogFiles(tmp_path / "b", EPOCH, lambda: maria.logged)
    assert [after_gtids(files, f"1-3-77,0-1-{i}") for i in range(1, 40)] == list(range(1, 40))


def test_damage_does_not_hide(log: Log) -> None:
    """With a damaged block in the way, what lies elsewhere is found as before; what may lie in it is given as the first event that is lost."""
    files, items, sets, _ = log
    whole = LogFiles(files.folder, EPOCH, files.logged)
    found, _ = whole.set_of(100, 100)
    block = next(each for each in found._blocks if int(each["first"]) <= 100 < int(each["first"]) + int(each["count"]))
    first, last = int(block["first"]), int(block["first"]) + int(block["count"]) - 1
    wanted = {}
    for item in items:
        if (after := after_position(whole, item.file, item.offset)) is not None:
            wanted[item.file, item.offset] = after
    times = {moment: first_at_time(whole, moment) for moment in {item.time for item in items}}
    path = files.folder / f"{found.first:020d}.events"
    raw = bytearray(path.read_bytes())
    raw[int(block["at"])] ^= 1
    path.write_bytes(raw)
    fresh = LogFiles(files.folder, EPOCH, files.logged)
    for place, sequence in wanted.items():
        assert after_position(fresh, *place) == (first if first <= sequence <= last + 1 else sequence)
    for moment, sequence in times.items():
        given = first_at_time(fresh, moment)
        assert (
            given == sequence
            or (given <= sequence and first <= given <= last)
            or (first <= sequence <= last + 1 and given == first)
        )
    for i, gtids in enumerate(sets):
        if gtids and not first <= i <= last:
            points = [k for k, each in enumerate(sets) if each == gtids and items[k].type != EventType.READ]
            if not any(first <= k <= last + 1 for k in points):
                assert after_gtids(fresh, gtids) == points[-1] + 1
    for sequence in range(last + 1, last + 10):
        point = naive_point(items, sequence)
        assert ack_point_until(fresh, sequence) == (point if point is not None and point > last else None)
