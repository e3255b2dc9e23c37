"""The log as a reader sees it: what was appended, by any range; damage is named and never given."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore import PositionNotFound, StoreCorrupt, StoreError
from shmstore.log import files as log_files
from shmstore.log import format as log_format
from shmstore.log import log_set
from shmstore.log.files import Content, LogFiles, remove_sets
from shmstore.log.recovery import recover
from shmstore.memory.layout import SLOT, SlotFlag
from tests.shmstore.log.appending import Appending, Folder, Item

EPOCH = 5
DDL, OVERSIZED = int(SlotFlag.DDL), int(SlotFlag.OVERSIZED)

items = st.builds(
    Item,
    payload=st.binary(min_size=1, max_size=40),
    rows=st.integers(0, 9),
    flags=st.sampled_from((0, 0, 0, 1, DDL)),
    time=st.integers(0, 100),
    charged=st.one_of(st.none(), st.none(), st.integers(0, 200)),
    **dict.fromkeys(("file", "offset", "entry", "type"), st.just(0)),
)


@pytest.fixture(params=["compiled", "pure"], autouse=True)
def _both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with the compiled check of blocks, and with the one in Python."""
    if request.param == "pure":
        monkeypatch.setattr(log_set, "verify_blocks", log_format.verify_blocks)


def opened(path: Path, writer: Appending) -> LogFiles:
    return LogFiles(path, EPOCH, lambda: writer.logged)


def payloads(content: Content) -> list[bytes]:
    return [bytes(content.raw[low:high]) for low, high in pairwise([0, *content.ends.tolist()])]


def all_of(files: LogFiles, last: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) <= last:
        found += payloads(files.read(len(found), last))
    return found


@settings(max_examples=150)
@given(st.lists(st.lists(items, min_size=1, max_size=9), min_size=1, max_size=25), st.integers(0, 2**32))
def test_any_range_is_read(tmp_path_factory: pytest.TempPathFactory, groups: list[list[Item]], number: int) -> None:
    """Random groups in small sets, read back while they are appended: payloads, ends, slots and rows are those of the model."""
    random_, path = random.Random(number), tmp_path_factory.mktemp("log")
    writer, model, charges = Appending(Folder(path), EPOCH, 120, 7), list[Item](), [0]
    files = opened(path, writer)
    for group in groups:
        for item in group:
            charges.append(charges[-1] + (len(item.payload) if item.charged is None else item.charged))
        model += group
        writer.append(group)
        if random_.random() < 0.3:
            writer.prepare()
        for _ in range(random_.randrange(4)):
            first = random_.randrange(len(model))
            last = random_.randrange(first, len(model) + 3)
            content = files.read(first, last)
            wanted = model[first : content.last + 1]
            assert content.first == first <= content.last <= min(last, writer.logged)
            assert payloads(content) == [item.payload for item in wanted]
            assert content.rows == sum(item.rows for item in wanted)
            assert content.slots.dtype == SLOT
            assert content.slots["time"].tolist() == [item.time for item in wanted]
            assert content.ends.flags.c_contiguous
            assert content.ends.dtype == np.int64
            assert content.raw.readonly
            firsts = files.refresh()
            if content.last < min(last, writer.logged):
                assert content.last + 1 in firsts
            limit, most, alone = random_.randrange(1, 12), random_.choice((None, 0, 30, 200)), random_.random() < 0.5
            end = files.extent(first, limit, most, ddl_alone=alone)
            set_end = next((each - 1 for each in firsts if each > first), writer.logged)
            assert end == extent(model, charges, first, min(first + limit - 1, set_end), most, alone)
            assert files.read(first, end).last == end
            record = files.record_at(first)
            assert (record["slot"]["size"], record["end"]) == (len(model[first].payload), charges[first + 1])
    assert all_of(files, len(model) - 1) == [item.payload for item in model]


def extent(model: list[Item], charges: list[int], first: int, last: int, limit_bytes: int | None, alone: bool) -> int:
    """The rules of `Reader.take`, one event after the other."""
    end = first
    while end < last:
        if alone and (model[end + 1].flags | model[first].flags) & DDL:
            break
        if limit_bytes is not None and charges[end + 2] - charges[first] > limit_bytes:
            break
        end += 1
    return end


def test_what_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that was never written, or that retention removed, is not found, and the message says what is kept."""
    monkeypatch.setattr(
        log_files._released, "add", lambda files: None
    )  # its thread would let go of what was removed at any moment
    writer = Appending(Folder(tmp_path / "store" / "log"), EPOCH, 1000, 5)
    files = opened(tmp_path / "store" / "log", writer)
    assert files.oldest == 0
    with pytest.raises(PositionNotFound, match="it is empty"):
        files.read(0, 5)
    writer.append([Item(b"x")] * 33)
    held = files.read(0, 4)
    remove_sets(files.folder, [0, 5])
    assert payloads(held) == [b"x"] * 5
    assert payloads(files.read(1, 4)) == [b"x"] * 4, "what is mapped stays readable"
    assert files.oldest == 10
    for sequence in (0, 9, 33):
        with pytest.raises(PositionNotFound, match="'store': it keeps 10 to 32"):
            files.read(sequence, 40)
    fresh = opened(files.folder, writer)
    with pytest.raises(PositionNotFound, match="it keeps 10 to 32"):
        fresh.extent(9, 10, None, ddl_alone=False)
    assert fresh.read(10, 40).last == 14
    remove_sets(files.folder, fresh.firsts)
    assert fresh.oldest == 33
    with pytest.raises(PositionNotFound, match="it is empty"):
        fresh.read(20, 40)


def test_sets_are_described(tmp_path: Path) -> None:
    """Each set's events, bytes, times and path; the last one may be empty."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 5)
    writer.append([Item(b"x" * 10, time=100 + i) for i in range(12)])
    files = opened(tmp_path, writer)
    found = files.sets()
    assert [(each.first, each.last, each.first_ms, each.last_ms) for each in found] == [
        (0, 4, 100, 104),
        (5, 9, 105, 109),
        (10, 11, 110, 111),
    ]
    assert all(each.bytes > 0 and each.path.exists() for each in found)
    writer.append([Item(b"x")] * 3)
    writer._roll()
    assert [(each.first, each.last, each.last_ms) for each in files.sets()][-2:] == [(10, 14, 0), (15, 14, 0)]


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


PLACES = [  # ending, offset of what belongs to block 2 of set 20 (events 28 to 31), field
    (".events", 30 * 10 - 200),
    (".slots", 64 + 9 * 64 + 3),
    (".blocks", 2 * 64 + 1),
    (".blocks", 2 * 64 + 8),
    (".blocks", 2 * 64 + 16),
    (".blocks", 2 * 64 + 63),
]


@pytest.mark.parametrize(("ending", "offset"), PLACES)
@pytest.mark.parametrize("fresh", [True, False])
def test_damage_is_named(ending: str, offset: int, fresh: bool, tmp_path: Path) -> None:
    """Whatever byte of a group is damaged, its events are never given, the error names them, and all others are still read."""
    writer = Appending(Folder(tmp_path / "store" / "log"), EPOCH, 10_000, 20)
    for i in range(15):
        writer.append([Item(b"%010d" % (i * 4 + k)) for k in range(4)])
    path = tmp_path / "store" / "log" / f"{20:020d}{ending}"
    files = opened(path.parent, writer)
    if not fresh:
        files.read(20, 23)
    damage(path, offset)
    if not fresh:
        files = opened(path.parent, writer) if ending == ".blocks" else files
    for first in range(28, 32):
        for call in (
            files.read,
            lambda first, last: files.extent(first, last, None, ddl_alone=False),
            lambda first, _: files.record_at(first),
        ):
            with pytest.raises(
                StoreCorrupt, match=re.escape(f"{path} is damaged: events 28 to 31 ") + r".*log verify store.*to 32 continues"
            ):
                call(first, 59)
    assert files.extent(22, 100, None, ddl_alone=False) == 27
    assert files.read(22, 59).last == 27
    for first in (0, 20, 27, 32, 39, 40, 59):
        assert payloads(files.read(first, first)) == [b"%010d" % first]
    assert files.read(32, 59).last == 39


def test_damage_at_either_end_of_a_set(tmp_path: Path) -> None:
    """The first block of a set, its last one, and the last one of the log are named as exactly."""
    writer = Appending(Folder(tmp_path), EPOCH, 10_000, 20)
    for i in range(15):
        writer.append([Item(b"%010d" % (i * 4 + k)) for k in range(4)])
    for first, block in ((0, 4), (20, 0), (40, 4)):
        damage(tmp_path / f"{first:020d}.blocks", block * 64 + 2)
    files = opened(tmp_path, writer)
    for first, last in ((16, 19), (20, 23), (56, 59)):
        with pytest.raises(StoreCorrupt, match=f"events {first} to {last} "):
            files.read(first + 1, 59)
    assert files.read(0, 59).last == 15
    assert files.read(24, 59).last == 39
    assert files.read(40, 59).last == 55
    damage(tmp_path / f"{20:020d}.blocks", 1 * 64 + 2)
    with pytest.raises(StoreCorrupt, match="events 20 to 27 "):
        opened(tmp_path, writer).read(20, 59)


def test_blocks_cut_out(tmp_path: Path) -> None:
    """Events whose blocks are missing, in the middle or at the end of a set, are named."""
    writer = Appending(Folder(tmp_path), EPOCH, 10_000, 20)
    for i in range(15):
        writer.append([Item(b"%010d" % (i * 4 + k)) for k in range(4)])
    for first, low, high in ((0, 1, 3), (20, 3, 5)):
        path = tmp_path / f"{first:020d}.blocks"
        raw = path.read_bytes()
        path.write_bytes(raw[: low * 64] + raw[high * 64 :])
    files = opened(tmp_path, writer)
    assert files.read(0, 59).last == 3
    with pytest.raises(StoreCorrupt, match="events 4 to 11 "):
        files.read(7, 59)
    assert files.read(12, 59).last == 19
    assert files.read(20, 59).last == 31
    with pytest.raises(StoreCorrupt, match="events 32 to 39 "):
        files.read(32, 59)
    assert files.read(40, 59).last == 59


@pytest.mark.parametrize("ending", [".events", ".slots"])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_was_cut(ending: str, mapped: bool, tmp_path: Path) -> None:
    """A file that was made shorter, even while it is mapped, is an error that names it, and no fault of the process."""
    writer = Appending(Folder(tmp_path), EPOCH, 1 << 20, 20_000)
    for _ in range(10):
        writer.append([Item(b"x" * 50)] * 1000)
    files = opened(tmp_path, writer)
    if mapped:
        assert files.read(0, 9999).last == 9999
    os.truncate(tmp_path / f"{0:020d}{ending}", 64 * 1500)
    with pytest.raises(StoreCorrupt, match=r"damaged|cut"):
        files.read(5000, 9999)
    assert files.read(0, 500).last == 500
    os.truncate(tmp_path / f"{0:020d}{ending}", 0)
    with pytest.raises(StoreCorrupt, match=r"damaged|cut"):
        files.read(0, 0)


@pytest.mark.parametrize("ending", log_format.ENDINGS)
def test_a_missing_file(ending: str, tmp_path: Path) -> None:
    """Without .events a set is not kept; without one of the others it is damaged, and the message says which file is missing."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 5)
    writer.append([Item(b"x")] * 12)
    (tmp_path / f"{5:020d}{ending}").unlink()
    files = opened(tmp_path, writer)
    with pytest.raises(StoreCorrupt, match="events 5 to 9 of the log are lost"):
        files.read(5, 9)
    assert files.read(0, 20).last == 4
    assert files.read(10, 20).last == 11


def test_a_set_of_another_store(tmp_path: Path) -> None:
    """A header of another epoch, or a damaged one, is refused with the reason."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 5)
    writer.append([Item(b"x")] * 12)
    with pytest.raises(StoreCorrupt, match="epoch 5"):
        LogFiles(tmp_path, 6, lambda: 11).read(0, 1)
    damage(tmp_path / f"{5:020d}.slots", 30)
    with pytest.raises(StoreCorrupt, match="header is damaged"):
        opened(tmp_path, writer).read(5, 9)


def test_what_is_behind_logged_is_not_looked_at(tmp_path: Path) -> None:
    """Bytes of an append that failed, or is under way, are no damage, and what is written in their place later is read."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 50)
    logged = [3]
    writer.append([Item(b"abcd")] * 4)
    files = LogFiles(tmp_path, EPOCH, lambda: logged[0])
    path = tmp_path / f"{0:020d}.blocks"
    garbage = log_format.block_bytes(4, 16, b"zz", bytes(128), 0)
    for torn in (b"\xff" * 30, b"\xff" * 64, garbage, garbage[:40], bytes(64), bytes(128)):
        path.write_bytes(path.read_bytes()[:64] + torn)
        assert files.read(0, 10).last == 3
        assert LogFiles(tmp_path, EPOCH, lambda: logged[0]).read(2, 10).last == 3
        with pytest.raises(PositionNotFound):
            files.read(4, 4)
    writer.append([Item(b"efgh")] * 4)
    assert files.read(0, 10).last == 3
    logged[0] = 7
    assert payloads(files.read(3, 10)) == [b"abcd"] + [b"efgh"] * 4


def test_an_event_larger_than_a_set(tmp_path: Path) -> None:
    """It is alone in its set, whose file grew after a reader had mapped it."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 50)
    files = opened(tmp_path, writer)
    writer.append([Item(b"a")] * 3)
    assert files.read(0, 2).last == 2
    writer.append([Item(b"b" * 5000, flags=OVERSIZED, charged=100), Item(b"c")])
    assert payloads(files.read(3, 9)) == [b"b" * 5000]
    assert payloads(files.read(4, 9)) == [b"c"]
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 50, recover(tmp_path, EPOCH))
    files = opened(tmp_path, writer)
    assert files.read(4, 9).last == 4
    writer._roll()
    assert files.read(4, 9).last == 4
    writer.append([Item(b"d" * 7000, flags=OVERSIZED, charged=100)])
    assert payloads(files.read(5, 9)) == [b"d" * 7000]


def test_a_set_made_again(tmp_path: Path) -> None:
    """A reader that had mapped an empty set, which a recovery removed, reads the one that got its name."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 5)
    writer.append([Item(b"a")] * 5)
    writer._roll()
    logged = [4]
    files = LogFiles(tmp_path, EPOCH, lambda: logged[0])
    assert files.read(0, 9).last == 4
    assert files._open(5).covered == 4
    tail = recover(tmp_path, EPOCH)
    again = Appending(Folder(tmp_path), EPOCH, 1000, 5, tail)
    again.append([Item(b"bc", time=9)] * 3)
    logged[0] = 7
    assert payloads(files.read(5, 9)) == [b"bc"] * 3


@pytest.mark.parametrize("group", [1, 4096])
def test_small_blocks_do_not_make_reading_slow(group: int, tmp_path: Path) -> None:
    """Events that were appended one by one are found and checked in much the same time; a block is checked once."""
    writer = Appending(Folder(tmp_path), EPOCH, 1 << 20, 1 << 14)
    for _ in range((1 << 14) // group):
        writer.append([Item(b"x" * 40)] * group)
    files = opened(tmp_path, writer)
    files.read(0, 0)
    start = time.process_time()
    for first in range(0, 1 << 14, 64):
        assert files.read(first, first + 63).last == first + 63
    assert time.process_time() - start < 1.0


def test_a_hundred_sets_by_four_mappings(tmp_path: Path) -> None:
    """Reading to and fro over many sets keeps few of them mapped."""
    writer = Appending(Folder(tmp_path), EPOCH, 1000, 3)
    writer.append([Item(b"%d" % i) for i in range(300)])
    files = opened(tmp_path, writer)
    random_ = random.Random(1)
    for _ in range(300):
        first = random_.randrange(300)
        last = files.extent(first, 100, None, ddl_alone=False)
        assert payloads(files.read(first, last)) == [b"%d" % i for i in range(first, last + 1)]
        assert last == min(299, first // 3 * 3 + 2)
        assert len(files._sets) <= log_files.MAPPED_SETS
    assert all_of(files, 299) == [b"%d" % i for i in range(300)]


def resident(folder: Path) -> int:
    """Bytes of this process's memory that are pages of the files in `folder`."""
    found, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[:1].isupper():
            found += int(line.split()[1]) * 1024 if counts and line.startswith("Rss:") else 0
        else:
            counts = os.fspath(folder) in line
    return found


def test_reading_on_takes_no_more_memory(tmp_path: Path) -> None:
    """A reader that has passed over 48 MiB has a few of them in its memory; what it held of them is right all the same."""
    writer = Appending(Folder(tmp_path), EPOCH, 16 << 20, 1 << 10)
    for i in range(192):
        writer.append([Item(bytes([i]) * (256 << 10))])
    files = opened(tmp_path, writer)
    held, most = files.read(0, 0), 0
    for i in range(1, 192):
        assert files.read(i, i).raw[-1] == i
        most = max(most, resident(tmp_path))
    assert most < 24 << 20
    assert held.raw == bytes(256 << 10)
    assert [files.read(i, i).raw[0] for i in (3, 100, 4, 101, 5)] == [3, 100, 4, 101, 5]


def test_slots_without_payloads(tmp_path: Path) -> None:
    """Slots are given where their payloads are damaged, and not where they are damaged themselves."""
    writer = Appending(Folder(tmp_path), EPOCH, 1 << 20, 4)
    for i in range(0, 10, 2):
        writer.append([Item(b"%d" % i, rows=i), Item(b"%d" % (i + 1), rows=i + 1)])
    stem = tmp_path / log_format.set_name(4)
    for ending, at in ((".events", 0), (".slots", log_format.slots_size(2))):
        with stem.with_suffix(ending).open("r+b") as file:
            file.seek(at)
            file.write(b"\xff")
    files = opened(tmp_path, writer)
    assert files.slots(0, 9)["rows"].tolist() == [0, 1, 2, 3]  # a set of files at a time
    assert files.slots(4, 9)["rows"].tolist() == [4, 5]
    with pytest.raises(StoreCorrupt, match=r"\.slots is damaged: events 6 to 7"):
        files.slots(6, 9)
    assert files.slots(8, 9)["rows"].tolist() == [8, 9]
    with pytest.raises(StoreCorrupt, match=r"\.events is damaged: events 4 to 5"):
        files.read(4, 5)
    assert files.slots(4, 5)["rows"].tolist() == [4, 5]


def fakes(folder: Path, count: int) -> Iterator[int]:
    """Sparse sets of 1,000 events each, without a block."""
    for first in range(0, count * 1000, 1000):
        for ending in log_format.ENDINGS:
            path = folder / (log_format.set_name(first) + ending)
            path.touch()
            os.truncate(path, 0 if ending == ".blocks" else 1 << 20)
        yield first


def test_opening_is_by_names(tmp_path: Path) -> None:
    """1,600 sets are known after one look at the folder, without one of them opened."""
    firsts = list(fakes(tmp_path, 1600))
    start = time.process_time()
    files = LogFiles(tmp_path, EPOCH, lambda: 1_600_000 - 1)
    assert files.oldest == 0
    assert files.firsts == firsts
    assert time.process_time() - start < 1.0
    assert not files._sets
    start = time.process_time()
    assert len(files.sets()) == 1600
    assert time.process_time() - start < 1.0


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    """What the system refuses is an error of the store, with what to do."""
    (tmp_path / "log").write_text("")
    with pytest.raises(StoreError, match="cannot be read"):
        LogFiles(tmp_path / "log", EPOCH, lambda: 5).read(0, 1)
