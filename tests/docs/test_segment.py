"""The page on the segment: each number is the layout's, and its programs read a living store."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.memory import layout
from tests.docs.pages import blocks, page_of

PAGE = page_of("segment")
TEXT = PAGE.read_text(encoding="utf-8")
((_, _, _, C_PROGRAM),) = blocks(PAGE, language="c")
((_, _, _, PYTHON_PROGRAM),) = blocks(PAGE, language="python")
RECORDS = {"The header": layout.HEADER, "A subscription": layout.SUBSCRIPTION, "A slot": layout.SLOT}
TYPES = {"int64_t": "<i8", "uint32_t": "<u4", "uint16_t": "<u2", "uint8_t": "u1"}
CONSTANTS = {
    "VERSION": layout.VERSION,
    "HEADER_SIZE": layout.HEADER.itemsize,
    "SUBSCRIPTION_SIZE": layout.SUBSCRIPTION.itemsize,
    "SLOT_SIZE": layout.SLOT.itemsize,
    "FIXED_SIZE": layout.FIXED_SIZE,
    "PAGE": layout.PAGE,
    "OVERSIZED": int(layout.SlotFlag.OVERSIZED),
    **{
        f"AT_{field.upper()}": layout.HEADER.fields[field][1]
        for field in ("version", "capacity", "arena", "entries", "put", "floor")
    },
    **{f"OF_{field.upper()}": layout.SUBSCRIPTION.fields[field][1] for field in ("state", "get", "ack")},
    **{f"OF_{field.upper()}": layout.SLOT.fields[field][1] for field in ("size", "flags")},
}
# The page's numbers are those of the most usual size of pages.
pytestmark = pytest.mark.skipif(layout.PAGE != 4096, reason="the page gives the numbers of pages of 4096 bytes")


@pytest.mark.parametrize("heading", RECORDS)
def test_tables(heading: str) -> None:
    """Each field of a table has the layout's offset and type."""
    record = RECORDS[heading]
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\S+) \|", section, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| `", section, re.MULTILINE)) > 3
    for field, offset, kind in rows:
        dtype, where = record.fields[field][:2]
        text = re.fullmatch(r"char\[(\d+)\]", kind)
        assert (int(offset), f"S{text[1]}" if text else TYPES[kind]) == (where, dtype.str.lstrip("|")), field


def test_what_flags_and_states_are() -> None:
    """The numbers in words: flags and states."""
    assert "1 DDL isolation, 2 evict, 4 checksum, 8 log" in TEXT
    assert [(flag.name, flag.value) for flag in layout.StoreFlag] == [
        ("DDL_ISOLATION", 1),
        ("EVICT", 2),
        ("CHECKSUM", 4),
        ("LOG", 8),
    ]
    assert "0 free, 1 active, 2 lost, 3 joining" in TEXT
    assert [state.name for state in layout.SubscriptionState] == ["FREE", "ACTIVE", "LOST", "JOINING"]
    assert "1 live, 2 removed, 3 its file is gone" in TEXT
    assert [(state.name, state.value) for state in layout.StoreState] == [("LIVE", 1), ("REMOVED", 2), ("UNLINKED", 3)]
    assert "1 end of a transaction, 2 DDL, 4 larger than the arena" in TEXT
    assert [layout.SlotFlag.TRANSACTION_END, layout.SlotFlag.DDL, layout.SlotFlag.OVERSIZED] == [1, 2, 4]
    assert f"of the layout: {layout.VERSION} |" in TEXT


def test_drawing() -> None:
    """The sizes and offsets of the drawing."""
    drawing = blocks(PAGE)[0].text
    assert f"{layout.HEADER.itemsize} bytes" in drawing
    assert f"\n {layout.HEADER.itemsize} " in drawing
    assert f"{layout.SUBSCRIPTIONS} records of {layout.SUBSCRIPTION.itemsize} bytes" in drawing
    assert f"\n {layout.FIXED_SIZE} " in drawing
    assert f"2 * capacity and {layout.sizes(1, 1).slot_count}" in drawing
    assert f"{layout.SLOT.itemsize} bytes each" in drawing


def test_constants_of_the_programs() -> None:
    """Both programs have the layout's numbers, and no other constants."""
    in_c = {name: int(value) for name, value in re.findall(r"\b([A-Z_]{2,}) = (\d+)", C_PROGRAM)}
    in_python: dict[str, int] = {}
    for names, values in re.findall(r"^([A-Z_, ]+) = ([\d, ]+)$", PYTHON_PROGRAM, re.MULTILINE):
        in_python.update(zip(names.split(", "), map(int, values.split(", ")), strict=True))
    assert in_c == in_python == CONSTANTS


@pytest.fixture(params=["c", "python"])
def look(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The words that run the page's program, up to the store's name."""
    if request.param == "python":
        (tmp_path / "look.py").write_text(PYTHON_PROGRAM)
        return [sys.executable, "-I", str(tmp_path / "look.py"), ""]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "look.c").write_text(C_PROGRAM)
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Werror", "-o", tmp_path / "look", tmp_path / "look.c", "-lrt"], check=True, timeout=60
    )
    return [str(tmp_path / "look"), "/shmstore."]


def test_programs_read_a_store(look: list[str], store_name: str) -> None:
    """Cursors and the newest event's bytes: with no event, across the end of the arena, and after many rounds. The store outlives them."""

    def seen() -> list[str]:
        done = subprocess.run([*look[:-1], look[-1] + store_name], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    with (
        EventStore.create(store_name, capacity=512, memory_unit=16, log=False) as store,
        store.subscribe("slow") as slow,
        store.subscribe("quick") as reader,
    ):
        assert seen() == ["put -1", "slow get -1 ack -1", "quick get -1 ack -1"]
        wrapped, arena, held = 0, store.segment.sizes.arena_size, None
        for k in range(1200):  # more than the 1,024 slots
            store.put(payload := f"event {k} ".encode() * 9)
            reader.ack(reader.get(timeout=0))
            if held is not None:
                slow.ack(held)
            held = slow.get(timeout=0)
            end = int(store.segment.views.ends[k & (store.segment.sizes.slot_count - 1)]) % arena
            crosses = 0 < end < len(payload)
            if k == 1199 or (crosses and wrapped < 2):
                wrapped += crosses
                assert seen() == [f"put {k}", f"slow get {k} ack {k - 1}", f"quick get {k} ack {k}", payload.hex()]
        assert wrapped >= 2
    assert EventStore.attach(store_name).stat().newest == 1199
    EventStore.unlink(store_name)


def test_programs_refuse_another_layout(look: list[str], store_name: str) -> None:
    """What is of another version they do not read."""
    with EventStore.create(store_name, capacity=8, memory_unit=64, log=False) as store:
        store.segment.words[layout.header_word("version")] += 1
        done = subprocess.run([*look[:-1], look[-1] + store_name], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr.strip()) == (1, "another layout")
        store.segment.words[layout.header_word("version")] -= 1
    EventStore.unlink(store_name)
