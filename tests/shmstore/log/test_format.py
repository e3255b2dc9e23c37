"""The bytes of the log's files."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from shmstore.log import format as log_format
from shmstore.log.format import BLOCK, HEADER, RECORD


@pytest.mark.parametrize(
    ("log_size", "expected"),
    [(16 << 20, 1 << 20), (1, 1 << 20), ((100 << 20) + 5, 6553600), (1 << 30, 64 << 20), (10 << 30, 64 << 20)],
)
def test_sizes(log_size: int, expected: int) -> None:
    """A set has a sixteenth of the log, in steps of 64 KiB from 1 to 64 MiB, and an event for each 64 bytes of that."""
    assert log_format.file_bytes(log_size) == expected
    assert log_format.file_slots(log_size) == expected // 64


def test_names() -> None:
    """The name of each file of a set is read back, and no other name is taken for one."""
    assert log_format.parse_name(log_format.set_name(4711) + ".slots") == (4711, ".slots")
    assert log_format.parse_name("next.blocks") == (None, ".blocks")
    for name in (
        "lock",
        "store.json",
        "4711.slots",
        "00000000000000000001.events.tmp",
        "00000000000000000001",
        "٠" * 20 + ".events",
    ):
        assert log_format.parse_name(name) is None


def test_a_header_is_checked() -> None:
    """A header is right for its own epoch and name only, and no byte of it may be another."""
    raw = log_format.header_bytes(7, 100, 5000, 60, 1)
    header = np.frombuffer(raw, HEADER)[0]
    assert (header["first"], header["end"], header["rows"]) == (100, 5000, 60)
    assert log_format.header_fault(raw, 7, 100) == ""
    assert "epoch" in log_format.header_fault(raw, 8, 100)
    assert "by its name" in log_format.header_fault(raw, 7, 101)
    assert "of 64 bytes" in log_format.header_fault(raw[:63], 7, 100)
    for i in range(log_format.HEADER_CHECKED + 4):
        changed = raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :]
        assert log_format.header_fault(changed, 7, 100)
        assert log_format.header_torn(changed)
    assert not log_format.header_torn(raw)
    assert log_format.header_torn(raw[:63])
    assert log_format.header_torn(bytes(64))


def test_blocks_are_checked() -> None:
    """Each byte of events, records and blocks counts, and the first block that it is in is named."""
    groups = [[b"a", b"bcd"], [b"efg" * 5], [b"h"] * 3]
    events, records, blocks, at, first = b"", b"", b"", 0, 9
    for group in groups:
        part = np.zeros(len(group), RECORD)
        part["slot"]["size"] = [len(payload) for payload in group]
        part["at"] = at + np.cumsum([0, *map(len, group)])[:-1]
        blocks += log_format.block_bytes(first, at, b"".join(group), part.tobytes(), 5)
        events, records, first = events + b"".join(group), records + part.tobytes(), first + len(group)
        at = len(events)
    assert len(blocks) == 3 * BLOCK.itemsize
    parts = [events, records, blocks]

    def damaged(parts: list[bytes], low: int = 0) -> int:
        return log_format.verify_blocks(*map(memoryview, parts), low, 2)  # type: ignore[arg-type]

    assert damaged(parts) == -1
    where = [[0] * 4 + [1] * 15 + [2] * 3, [0] * 128 + [1] * 64 + [2] * 192, [0] * 64 + [1] * 64 + [2] * 64]
    for part, owners in enumerate(where):
        for i, block in enumerate(owners):
            raw = parts[part]
            changed = parts.copy()
            changed[part] = raw[:i] + bytes([raw[i] ^ 0x10]) + raw[i + 1 :]
            assert damaged(changed) == block
            if block == 1:
                assert damaged(changed, 2) == -1
    assert damaged([events[:-1], records, blocks]) == 2
    assert damaged([events, records[:-64], blocks]) == 2
    assert zlib.crc32(bytes(60)) != 0
    assert not log_format.block_sound(bytes(64))


def test_records_are_consistent() -> None:
    """Records whose offsets or counts do not follow from each other are named."""
    records = np.zeros(3, RECORD)
    records["slot"]["size"], records["slot"]["rows"] = [5, 6, 7], [1, 2, 3]
    records["at"], records["end"], records["rows"] = [10, 15, 21], [105, 111, 118], [51, 53, 56]
    assert log_format.first_fault(records, 10, 100, 50) == -1
    assert log_format.first_fault(records, 11, 100, 50) == 0
    assert log_format.first_fault(records, 10, 99, 50) == 0
    records["rows"][1] += 1
    assert log_format.first_fault(records, 10, 100, 50) == 1
    records["rows"][1] -= 1
    records["slot"]["size"][2] = 0
    assert log_format.first_fault(records, 10, 100, 50) == 2
