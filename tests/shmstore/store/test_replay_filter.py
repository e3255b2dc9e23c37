"""A store recreated while checkpoints lie further on than where it begins: nothing acked is given again, nothing else is left out."""

from __future__ import annotations

import os
import signal

import pytest

from shmstore import (
    Checkpoint,
    CheckpointFile,
    EntryType,
    Event,
    EventStore,
    EventType,
    Position,
    PositionNotFound,
    checkpoints,
)
from shmstore.gtids import covers, parse, single
from tests.shmstore.samples import begin as _begin
from tests.shmstore.samples import ddl, position, rows
from tests.shmstore.samples import end as _end

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4f22fa47-71ca-11e1-9e33-c80aa9429562"


def plain(first: int, count: int) -> list[Event]:
    """`count` transactions of three events from event `first` on, without GTIDs."""
    return [
        event
        for i in range(first, first + 3 * count, 3)
        for event in (_begin(i)._replace(transaction=""), rows(i + 1), _end(i + 2))
    ]


def transaction(file: str, offset: int, gtid: str, executed: str) -> list[Event]:
    """One transaction with a GTID, which ends at `offset`; `executed` is the set then."""
    parts = ((EntryType.BEGIN, EventType.NONE), (EntryType.ROWS, EventType.INSERT), (EntryType.END, EventType.NONE))
    return [
        Event(
            entry,
            type_,
            Position(file, offset - 20 + 10 * i, executed if entry is EntryType.END else ""),
            1,
            transaction=gtid,
            order=i,
        )
        for i, (entry, type_) in enumerate(parts)
    ]


def stream(file: str, numbers: list[int], *, before: int = 0) -> list[Event]:
    """Transactions of UUID in this order, after 1 to `before` were executed."""
    done, events = set(range(1, before + 1)), []
    for at, number in enumerate(numbers, 1):
        done.add(number)
        executed = f"{UUID}:" + ":".join(str(n) for n in sorted(done))
        events += transaction(file, 100 * at, f"{UUID}:{number}", executed)
    return events


def test_a_store_with_a_log_remembers_what_was_acked_of_one_without(name, tmp_path):
    """Until it has come again: a reader that is started again before that is not given it either, nor after a reboot. Then the place is
    forgotten."""
    events = plain(0, 20)
    place = events[29].position
    file = CheckpointFile(tmp_path, name, "a")
    file.save(Checkpoint(place, 1, 29))
    with EventStore.create(name, capacity=16, memory_unit=1024, state=tmp_path) as store:
        store.claim(start=events[2].position)
        store.subscribe("a", checkpoint=file).close()
        assert {each.position for each in checkpoints(name, tmp_path).values()} == {place}
        store.put(events[3:18])
        with store.subscribe("a") as reader:
            assert not reader.get(timeout=0.1)
        store.sync()
    os.unlink(f"/dev/shm/shmstore.{name}")
    with EventStore.attach(name, state=tmp_path) as store:
        assert {each.position for each in checkpoints(name, tmp_path).values()} == {place}
        for event in events[18:]:
            store.put(event)
        with store.subscribe("a") as reader:
            batch = reader.get(timeout=1)
            assert [event.position for event in batch] == [event.position for event in events[30 : 30 + len(batch)]]
            reader.ack(batch)
        assert not checkpoints(name, tmp_path)
    EventStore.unlink(name, log=True, state=tmp_path)


@pytest.fixture
def recreated(make, name, tmp_path):
    """Subscription "a" acked all of `acked` and was saved; the store went with a kill -9. Gives (a new store, the file)."""

    def lost(acked: list[Event], start: Position, **options):
        file = CheckpointFile(tmp_path, name, "a")
        pid = os.fork()
        if pid == 0:
            store = EventStore.create(name, capacity=256, memory_unit=1024, log=False)
            store.claim(start=start)
            reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
            store.put(acked)
            reader.ack(reader.get())
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        EventStore.unlink(name)
        return make(capacity=256, memory_unit=1024, **options), file

    return lost


def rest(reader, limit: int | None = None) -> list[Event]:
    """Everything that is there, acked."""
    events: list[Event] = []
    while batch := reader.get(limit_events=limit, timeout=0):
        events += batch.events
        reader.ack(batch)
    return events


@pytest.mark.parametrize("limit", [None, 1, 2, 5])
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_events_acked_before_are_not_given_again(recreated, when, limit):
    """Whether the old events are put before the reader comes, or partly, or later: it gets the first new one first."""
    events = plain(0, 6)
    store, file = recreated(events[:12], position(-1))
    store.claim(start=position(2))  # where another subscription's checkpoint stood
    have = {"before": 18, "between": 7, "after": 3}[when]
    store.put(events[3:have])
    reader = store.subscribe("a", checkpoint=file)
    got = rest(reader, limit)
    for event in events[have:]:
        store.put(event)
        got += rest(reader, limit)
    assert got == events[12:]
    assert reader.ack_cursor.sequence == store.newest
    reader.close()
    assert file.load()[1:3] == (store.epoch, store.newest)


def test_what_is_left_out_holds_nobody_up(recreated):
    """Old events are acked as they are passed over: the producer has space again, and the checkpoint stays where it is."""
    events = plain(0, 40)
    store, file = recreated(events, position(-1))
    store.claim(start=position(-1))
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
    before = file.load()
    store.put(events[:90])
    assert not reader.get(timeout=0)
    assert reader.ack_cursor.sequence == store.newest == 89
    assert file.load() == before
    store.put(events[90:])
    store.put(plain(120, 1))
    assert reader.get(timeout=5, min_events=3).events == plain(120, 1)


def test_a_reader_killed_while_it_passes_over_goes_on_so(recreated):
    """A reader that dies after it passed over some of the old events is not given the others either."""
    events = plain(0, 6)
    store, file = recreated(events[:12], position(-1))
    store.claim(start=position(2))
    store.put(events[3:6])
    pid = os.fork()
    if pid == 0:
        reader = EventStore.attach(store.name).subscribe("a", checkpoint=file)
        reader.get(timeout=0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    store.put(events[6:])
    assert rest(store.subscribe("a", checkpoint=file)) == events[12:]


def test_a_ddl_is_an_ack_point_too(recreated):
    """A checkpoint at a DDL leaves the DDL out, isolated or not."""
    events = [*plain(0, 1), ddl(3), *plain(4, 1)]
    store, file = recreated(events[:4], position(-1), ddl_isolation=True)
    store.claim(start=position(-1))
    reader = store.subscribe("a", checkpoint=file)
    store.put(events)
    assert rest(reader) == events[4:]


def test_a_known_subscription_without_a_checkpoint_gets_everything(recreated):
    """Only what the checkpoint says is left out: another subscription sees every event."""
    events = plain(0, 4)
    store, _ = recreated(events, position(-1))
    store.claim(start=position(-1))
    reader = store.subscribe("b")
    store.put(events)
    assert rest(reader) == events


def test_raw_payloads_are_never_left_out(recreated):
    """What has no position cannot have been acked."""
    store, file = recreated(plain(0, 2), position(-1))
    store.claim(start=position(-1))
    reader = store.subscribe("a", checkpoint=file)
    store.put([b"raw", b"bytes"])
    assert [bytes(payload) for payload in reader.get(timeout=0).payloads()] == [b"raw", b"bytes"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_another_server_goes_by_gtid(recreated, when):
    """After a failover files and offsets mean nothing: the transactions that the checkpoint has are left out, and no others."""
    store, file = recreated(stream("binlog.000050", [1, 2, 3, 4]), Position("binlog.000050", 4))
    store.claim(start=Position("binlog.000050", 200, f"{UUID}:1-2"))  # the lowest checkpoint; the new server found it by GTID
    events = stream("mysql-bin.000003", [3, 4, 5, 6], before=2)
    if when == "before":
        store.put(events)
    reader = store.subscribe("a", checkpoint=file)
    if when == "after":
        store.put(events)
    assert rest(reader) == events[6:]


def test_another_server_with_higher_files(recreated):
    """The other way round, files that seem to be later are left out as well."""
    store, file = recreated(stream("binlog.000003", [1, 2, 3, 4]), Position("binlog.000003", 4))
    store.claim(start=Position("binlog.000003", 200, f"{UUID}:1-2"))
    reader = store.subscribe("a", checkpoint=file)
    events = stream("binlog.000050", [3, 4, 5], before=2)
    store.put(events)
    assert rest(reader, 1) == events[6:]


@pytest.mark.parametrize("hold", [False, True])
def test_another_order_of_the_same_transactions(recreated, hold):
    """A replica that commits in another order: each transaction is given once, also while earlier batches are not acked."""
    store, file = recreated(stream("binlog.000050", [1, 2, 3, 5, 6]), Position("binlog.000050", 4))
    store.claim(start=Position("binlog.000050", 200, f"{UUID}:1-2"))
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
    old = file.load()
    events = stream("mysql-bin.000003", [3, 4, 6, 7, 5, 8], before=2)
    store.put(events[:15])
    batches = []
    while batch := reader.get(timeout=0):
        batches.append((batch, batch.events))
        if not hold:
            reader.ack(batch)
            assert file.load() == old or len(batches) > 1  # not before all that was acked has come
    assert [event.transaction[-1] for _, got in batches for event in got[::3]] == ["4", "7"]
    if hold:
        reader.ack(batches[0][0])
        assert reader.ack_cursor.sequence == 8  # and the old one behind it
        reader.ack(batches[1][0])
    assert reader.ack_cursor.sequence == store.newest
    store.put(events[15:])
    assert rest(reader) == events[15:]
    assert file.load()[1:3] == (store.epoch, store.newest)


def test_a_gap_is_refused(recreated):
    """Where transactions between the checkpoint and the store's first are nowhere, subscribe says so, by GTID and by file."""
    store, file = recreated(stream("binlog.000050", [1, 2]), Position("binlog.000050", 4))
    store.claim(start=Position("binlog.000050", 900))
    store.put(stream("binlog.000050", [9], before=8))
    with pytest.raises(PositionNotFound):
        store.subscribe("a", checkpoint=file)


def test_gtid_sets():
    """MySQL's sets with tags and MariaDB's positions are distinguished; file:offset is no GTID."""
    assert covers(parse(f"{UUID}:1-5:7, {OTHER}:1"), parse(f"{UUID.upper()}:2-4:7"))
    assert not covers(parse(f"{UUID}:1-5:7"), parse(f"{UUID}:6"))
    assert not covers(parse(f"{UUID}:1-5"), parse(f"{UUID}:tag:1"))
    assert covers(parse(f"{UUID}:1-5:tag:1-2"), single(f"{UUID}:tag:2"))
    assert covers(parse("0-1-100,1-1-5"), single("0-2-100"))
    assert not covers(parse("0-1-100"), single("0-1-101"))
    assert not covers(parse("0-1-100"), single("2-1-1"))
    assert covers(parse(f"{UUID}:1-3:4-5"), parse(f"{UUID}:2-5"))
    assert single("binlog.000007:4711") is None
    assert single("") is None
    assert parse("") == {}
