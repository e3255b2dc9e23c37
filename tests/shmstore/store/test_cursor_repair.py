"""File-backed stores after a crash of the host: pages of different ages, put together by hand."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from shmstore import EventStore, ShmStoreError, StoreNotFound
from shmstore.memory import layout
from shmstore.memory.layout import FIXED_SIZE, PAGE, header_word
from shmstore.ring.cursors import PUT
from shmstore.store.cursor_repair import repair_cursors
from tests.shmstore.samples import contents


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def create(name, path):
    stores = []

    def make(**options):
        stores.append(EventStore.create(name, path=path, **{"capacity": 16, "memory_unit": 64, **options}, log=False))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
    with suppress(StoreNotFound):
        EventStore.unlink(name, path=path)


def image(path) -> bytes:
    return path.read_bytes()


def restore(path, *parts: tuple[int, bytes]) -> None:
    with open(path, "r+b") as file:
        for at, part in parts:
            file.seek(at)
            file.write(part)


def read_all(store: EventStore, name: str) -> list[bytes]:
    with store.subscribe(name) as reader:
        out = []
        while batch := reader.get(timeout=0):
            out += contents(batch)
            reader.ack(batch)
        return out


def test_a_store_in_a_file_survives_its_processes(create, name, path):
    """What was put and not acked is there when the next process attaches, with cursors, names and epoch."""
    store = create()
    epoch = store.epoch
    with store.subscribe("a") as reader:
        store.put([b"1", b"2", b"3"])
        reader.ack(reader.get(limit_events=1, timeout=0))
    store.close()
    with EventStore.attach(name, path=path) as again:
        assert again.epoch == epoch
        assert again.put_cursor[:3] == (2, 3, 3)
        assert read_all(again, "a") == [b"2", b"3"]
        assert again.check() == []
    assert name not in EventStore.names()


def test_torn_payloads_are_cut_off(create, name, path):
    """Events from the first damaged one on are cut off; those before it are whole, and put continues after them."""
    store = create()
    store.subscribe("a").close()
    store.put([b"aaaa", b"bbbb", b"cccc", b"dddd"])
    arena = store.segment.sizes.arena
    store.close()
    restore(path, (arena + 9, b"\0"))
    with EventStore.attach(name, path=path) as again:
        assert again.newest == 1
        assert again.put([b"eeee"]) == 2
        assert read_all(again, "a") == [b"aaaa", b"bbbb", b"eeee"]
        assert again.check() == []


@pytest.mark.parametrize("field", ["ends", "slots"])
def test_torn_tables_are_cut_off(create, name, path, field):
    """A slot or an end that did not reach the disk ends what is believed."""
    store = create()
    store.subscribe("a").close()
    before = image(path)
    store.put([b"aaaa", b"bbbb"])
    sizes = store.segment.sizes
    store.close()
    start, stop = (sizes.ends, sizes.rows) if field == "ends" else (sizes.slots, sizes.arena)
    restore(path, (start, before[start:stop]))
    with EventStore.attach(name, path=path) as again:
        assert again.newest == -1
        assert read_all(again, "a") == []
        assert again.put([b"cccc"]) == 0
        assert read_all(again, "a") == [b"cccc"]


def test_an_ack_ahead_of_the_put_cursor(create, name, path):
    """A header page older than the table's leaves acks ahead of put; they come back to it, and the store works."""
    store = create(capacity=64)
    reader = store.subscribe("a")
    store.put([b"1", b"2"])
    old = image(path)[:PAGE]
    store.put([b"3", b"4"])
    reader.ack(reader.get(timeout=0))
    reader.ack(reader.get(timeout=0)) if store.subscriptions()[0].ack.sequence < 3 else None
    ack = store.segment.words[layout.subscription_word(1, "ack")]
    store.close()
    assert ack == 3
    restore(
        path,
        (header_word("put") * 8, old[header_word("put") * 8 :][:8]),
        (header_word("floor") * 8, old[header_word("floor") * 8 :][:8]),
    )
    with EventStore.attach(name, path=path) as again:
        (stat,) = again.subscriptions()
        assert stat.ack.sequence == stat.get.sequence == again.newest == 1
        again.put([b"5"])
        assert read_all(again, "a") == [b"5"]
        assert again.check() == []


def test_an_ack_behind_the_floor(create, name, path):
    """A table page older than the header's leaves acks behind the floor; what all had acked is not given again, nor lost."""
    store = create(capacity=4, memory_unit=64)
    reader = store.subscribe("a")
    word = layout.subscription_word(1, "ack") * 8
    old = image(path)[word : word + 8]
    for i in range(10):
        store.put([b"%d" % i, b"x"])
        if i < 9:
            reader.ack(reader.get(timeout=0))
    store.close()
    restore(path, (word, old))
    with EventStore.attach(name, path=path) as again:
        assert again.newest == 19
        events = read_all(again, "a")
        assert events[-2:] == [b"9", b"x"]
        assert len(events) <= 4
        assert again.put([b"y"] * 4, timeout=0) == 23
        assert again.check() == []


def test_nothing_is_touched_while_somebody_lives(create, name, path):
    """A living producer or reader is proof that the host did not crash: attaching next to it changes nothing."""
    store = create()
    reader = store.subscribe("a")
    store.put([b"aaaa", b"bbbb"])
    store.segment.views.arena[5] ^= 1
    with EventStore.attach(name, path=path) as other:
        assert other.newest == 1
    reader.close()
    assert repair_cursors(store.segment, store._lock) == 0  # the producer still lives
    store.close()
    with EventStore.attach(name, path=path) as other:
        assert other.newest == 0


def test_any_mixture_of_pages(create, name, path, seed: int):
    """Whatever page-wise mixture of two moments a crash leaves, the store is refused or reads whole events in order."""
    rng = random.Random(seed)
    store = create(capacity=16, memory_unit=512)
    reader = store.subscribe("a")
    events = [b"%06d" % i * rng.randint(1, 30) for i in range(60)]
    images = []
    for i, event in enumerate(events):
        store.put(event, timeout=0)
        if i % 3 == 2 and i < 54:
            reader.ack(reader.get(limit_events=rng.randint(1, 4), timeout=0))
            if store.stat().free_events < 6:
                reader.ack(reader.get(timeout=0))
        if i % 5 == 0:
            images.append(image(path))
    store.close()
    refused = 0
    for _ in range(120):
        older, newer = sorted(rng.sample(range(len(images)), 2))
        mixed = bytearray(images[newer])
        for at in range(0, len(mixed), PAGE if rng.random() < 0.5 else 512):
            if rng.random() < 0.3:
                mixed[at : at + PAGE] = images[older][at : at + PAGE]
        path.write_bytes(mixed)
        try:
            with EventStore.attach(name, path=path) as again:
                got = read_all(again, "a") if again.subscriptions() else []
                where = [events.index(event) for event in got]
                assert where == list(range(where[0], where[0] + len(where))) if where else True
                assert again.put(b"next", timeout=0) >= 0
        except ShmStoreError as error:
            refused += 1
            print(error)
    assert refused < 60


def test_cursors_do_not_go_below_the_first(create, name, path):
    """A hostile or lost ack far below the first event is brought up, never indexed with."""
    store = create()
    store.subscribe("a").close()
    store.put([b"aaaa"])
    store.close()
    for value in (-(2**62), -2):
        restore(path, (layout.subscription_word(1, "ack") * 8, value.to_bytes(8, "little", signed=True)))
        with EventStore.attach(name, path=path) as again:
            assert again.oldest >= 0
            assert again.segment.words[PUT] >= -1
            assert again.check() == []


def test_the_fixed_part_is_more_than_a_page():
    """Header and subscription table can be torn apart by a crash: the tests above are about something."""
    assert FIXED_SIZE > PAGE
