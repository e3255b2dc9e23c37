"""Where to begin: the forms that every reader takes, and continuing elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shmstore import AckError, CheckpointFile, EventStore, EventType, Position, PositionNotFound, StoreClosed
from shmstore.start_position import parse_start
from tests.shmstore.samples import FILE, begin, end, position, rows

SERVER = "3E11FA47-71CA-11E1-9E33-C80AA9429562"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
pytestmark = pytest.mark.usefixtures("either_way")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        (" latest\n", "latest"),
        ("4711", 4711),
        ("20260131", 20260131),
        ("binlog.000003:1520", Position("binlog.000003", 1520)),
        ("db-1-bin.000003:4", Position("db-1-bin.000003", 4)),
        ("0-1-4711", Position("", 0, "0-1-4711")),
        ("0-1-4711, 1-2-3", Position("", 0, "0-1-4711, 1-2-3")),
        (f"{SERVER}:5", Position("", 0, f"{SERVER}:5")),
        (f"{SERVER}:1-5:7,{SERVER}:tag:3", Position("", 0, f"{SERVER}:1-5:7,{SERVER}:tag:3")),
        ("gtid:2026-01-31", Position("", 0, "2026-01-31")),
        (
            "gtid:one=binlog.000001:4/0-1-7;t%20wo=b.1:9/",
            Position("", 0, sources=(("one", Position("binlog.000001", 4, "0-1-7")), ("t wo", Position("b.1", 9)))),
        ),
        ("2026-01-31", NOON - timedelta(hours=12)),
        ("2026-01-31T12:00", NOON),
        ("2026-01-31 13:00:00+01:00", NOON),
        ("time:2026-01-31T12:00:00Z", NOON),
    ],
)
def test_forms(text: str, start: object) -> None:
    """Each form is known by its look; a time has no zone but UTC unless it says so, and is never taken for a GTID or a place."""
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text", ["", "yesterday", "gtid:", "time:", "time:binlog.000003:4", "binlog.000003:", ":4", "a b.1:4", "-1", "٤"]
)
def test_what_is_no_form(text: str) -> None:
    """Anything else is refused with the list of forms."""
    with pytest.raises(ValueError, match=r"earliest, latest, a sequence .* FILE:OFFSET .* GTID set .* time"):
        parse_start(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2023-11-14T22:13:20+25:00", "offset"),
        ("2023-11-14 22:13:60", "second"),
        ("2023-11-14T25:00:00", "hour"),
        ("20231114T22:61", "minute"),
        ("2023-W60-1T10:00", ""),
        ("2023-02-29", "day is out of range.*gtid:2023-02-29"),
        ("2023-13-01", "month must be in 1..12.*gtid:2023-13-01"),
        ("2023-11-14T22:13:4", "isoformat"),
        ("time:soon:4", "isoformat"),
    ],
)
def test_a_wrong_time_is_nothing_else(text: str, why: str) -> None:
    """What begins like a time and is none is refused with the reason; it is no place in a file, and no GTID set."""
    with pytest.raises(ValueError, match=f"which is no time: .*{why}"):
        parse_start(text)


def test_a_binlog_has_no_sequences() -> None:
    """Where a producer begins is given in the same forms; only a sequence, which is of a store, is refused, and not offered."""
    assert parse_start("0-1-4711", sequences=False) == Position("", 0, "0-1-4711")
    with pytest.raises(ValueError, match="a sequence: it counts the events of a store"):
        parse_start("4711", sequences=False)
    with pytest.raises(ValueError, match="give latest, earliest, FILE:OFFSET"):
        parse_start("soon", sequences=False)


@pytest.fixture
def store(make):
    """Three transactions of three events, a second apart; a subscription "held" keeps them all."""
    store = make(capacity=16, memory_unit=1024)
    store.claim(start=position(-1))
    store.subscribe("held").close()
    for i in (0, 3, 6):
        moment = 1000 * i
        events = [begin(i), rows(i + 1), end(i + 2, f"0-1-{i}")]
        store.put([event._replace(time_ms=moment + n) for n, event in enumerate(events)])
    return store


STARTS = [
    ("earliest", 0),
    ("latest", 9),
    (4, 4),
    ("4", 4),
    (position(2), 3),
    (f"{FILE}:{position(2).offset}", 3),
    ("0-1-3", 6),
    ("gtid:0-1-0", 3),
    (datetime(1970, 1, 1), 0),
    (datetime.fromtimestamp(3.002, UTC), 3),
    ("1970-01-01T00:00:03.003Z", 6),
    ("1971-01-01", 9),
]


@pytest.mark.parametrize(("start", "first"), STARTS)
def test_every_reader_takes_every_form(store, start, first) -> None:
    """`find`, `subscribe` and `seek` begin at the same event, whichever form names it: a time at a transaction's beginning."""
    assert store.find(start) == first
    with store.subscribe("new", start=start) as new, store.subscribe("held") as held:
        held.seek(start)
        for reader in (new, held):
            batch = reader.get(timeout=0)
            assert (batch.first, batch.last) == (first, 8)


def test_what_is_no_start(store) -> None:
    """A wrong type and a text that is no form are refused, and make no subscription."""
    for start in (1.5, None, "yesterday"):
        with pytest.raises(ValueError, match="start is"):
            store.subscribe("new", start=start)
    assert [stat.name for stat in store.subscriptions()] == ["held"]


def test_seek_acks_what_it_leaves_behind(store) -> None:
    """What comes before the place is acked, so that it holds nothing up; what was got from there on comes again, in other batches."""
    with store.subscribe("held") as held:
        batch = held.get(timeout=0)
        held.seek(4)
        assert (held.ack_cursor.sequence, held.get_cursor.sequence, store.oldest) == (3, 3, 4)
        with pytest.raises(AckError, match="stale"):
            held.ack(batch)
        again = held.get(timeout=0)
        assert (again.first, again.last) == (4, 8)
        held.ack(again)


def test_seek_makes_space(make) -> None:
    """A reader that goes to the end of a full ring frees all of it: the producer continues, and the reader gets what is new."""
    store = make(capacity=4, memory_unit=64)
    with store.subscribe("a") as reader:
        store.put([b"1", b"2", b"3", b"4"])
        reader.seek("latest")
        store.put([b"5", b"6", b"7", b"8"], timeout=0)
        assert [bytes(each) for each in reader.get(timeout=0).payloads()] == [b"5", b"6", b"7", b"8"]


def test_seek_leads_back_to_the_ack_at_most(store) -> None:
    """Where the place is acked the error says where to continue and how to start over, and nothing was moved; a vague one means the ack."""
    with store.subscribe("held") as held, store.subscribe("other"):
        held.ack(held.get(limit_events=5, timeout=0))
        held.get(limit_events=2, timeout=0)
        for start in (4, "0-1-0", position(2)):
            with pytest.raises(PositionNotFound, match=rf"continue at 5, .*`shmstore unsubscribe {store.name} held`"):
                held.seek(start)
        with pytest.raises(PositionNotFound, match="keeps 0 to 8"):
            held.seek(10)
        with pytest.raises(ValueError, match="start is"):
            held.seek("yesterday")
        assert (held.ack_cursor.sequence, held.get_cursor.sequence) == (4, 6)
        for start in ("earliest", datetime(1970, 1, 1)):
            held.seek(start)
            assert held.get(timeout=0).first == 5
    with pytest.raises(StoreClosed):
        held.seek(5)


@pytest.mark.parametrize("named", [False, True])
def test_seek_to_a_place_within_a_snapshot(store, named) -> None:
    """A snapshot's rows all stand where the stream was: a reader that acked some of them continues at the ack, as its position says."""
    place = position(8, "0-1-6")
    read = rows(8)._replace(type=EventType.READ, position=place)
    store.put([read, read, read])
    with store.subscribe("held") as held:
        held.get(limit_events=11, timeout=0)
        held.ack(10)
        held.seek(Position("", 0, place.gtids) if named else place)
        assert held.get(timeout=0).first == 11


def test_seek_counts_more_than_an_earlier_life(make, name, tmp_path) -> None:
    """What a checkpoint says was acked of an earlier life is given again from a place that the reader names itself, and saved as acked."""
    file = CheckpointFile(tmp_path, name, "a")
    events = [event for i in (0, 3, 6) for event in (begin(i), rows(i + 1), end(i + 2))]
    with EventStore.create(name, capacity=16, memory_unit=1024, log=False) as store:
        store.claim(start=position(-1))
        with store.subscribe("a", checkpoint=file) as reader:
            store.put(events)
            reader.ack(reader.get(limit_events=6))
    EventStore.unlink(name)
    store = make(capacity=16, memory_unit=1024)
    store.claim(start=position(-1))
    with store.subscribe("held"), store.subscribe("a", checkpoint=file) as reader:
        store.put(events)
        reader.seek(position(2))
        batch = reader.get(timeout=0)
        assert (batch.first, batch.last) == (3, 8)
        reader.ack(5)
    saved = file.load()
    assert saved is not None
    assert (saved.epoch, saved.sequence) == (store.epoch, 5)
