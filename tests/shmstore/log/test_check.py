"""What is wrong with a log, taking events out of it, and what of it may go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shmstore.errors import StoreCorrupt
from shmstore.log.check import verify
from shmstore.log.files import LogFiles
from shmstore.log.format import ENDINGS
from shmstore.log.recovery import recover
from tests.shmstore.log.appending import Appending, Folder, Item

EPOCH = 9


@pytest.fixture
def writer(tmp_path: Path) -> Appending:
    """100 events of 10 bytes in sets of 20, groups of 4."""
    made = Appending(Folder(tmp_path), EPOCH, 10_000, 20)
    for i in range(25):
        made.append([Item(b"%010d" % (4 * i + k)) for k in range(4)])
    return made


def files(path: Path, writer: Appending) -> LogFiles:
    return LogFiles(path, EPOCH, lambda: writer.logged)


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)


def test_a_sound_log(tmp_path: Path, writer: Appending) -> None:
    """Nothing is found, with a store that says how far it is written and without."""
    assert verify(tmp_path, EPOCH, writer.logged) == []
    assert verify(tmp_path, EPOCH) == []
    assert verify(tmp_path / "missing", EPOCH) == []
    writer._roll()
    assert verify(tmp_path, EPOCH, writer.logged) == []
    assert verify(tmp_path, EPOCH) == []


@pytest.mark.parametrize("logged", [True, False])
def test_all_damage_is_named(logged: bool, tmp_path: Path, writer: Appending) -> None:
    """Each damaged block with the events that are lost, a missing file, a missing set, a header."""
    flip(tmp_path / f"{0:020d}.events", 45)
    flip(tmp_path / f"{0:020d}.slots", 64 + 64 * 9)
    flip(tmp_path / f"{20:020d}.slots", 8)
    (tmp_path / f"{40:020d}.blocks").unlink()
    flip(tmp_path / f"{80:020d}.blocks", 64 * 1 + 4)
    found = verify(tmp_path, EPOCH, writer.logged if logged else None)
    for text, finding in zip(
        [
            f"{0:020d}.events is damaged: events 4 to 7 ",
            f"{0:020d}.slots is damaged: events 8 to 11 ",
            f"{20:020d}.slots cannot be read: its header is damaged: events 20 to 39 are lost",
            f"{40:020d}.blocks is missing: events 40 to 59 are lost",
            f"{80:020d}.blocks is damaged: events 84 to 87 ",
        ],
        found,
        strict=True,
    ):
        assert text in finding
    (tmp_path / f"{60:020d}.events").unlink()
    flip(tmp_path / f"{40 - 20:020d}.slots", 8)
    (tmp_path / f"{40:020d}.events").unlink()
    found = verify(tmp_path, EPOCH, writer.logged if logged else None)
    assert any("20 ends at event 39: events 40 to 79 are lost" in each for each in found)


def test_the_torn_end(tmp_path: Path, writer: Appending) -> None:
    """What was being written is no damage while a store says how far it is; without a store it is named, and gone after a recovery."""
    path = tmp_path / f"{80:020d}.blocks"
    path.write_bytes(path.read_bytes() + b"torn")
    assert verify(tmp_path, EPOCH, writer.logged) == []
    (found,) = verify(tmp_path, EPOCH)
    assert "behind event 99" in found
    path.write_bytes(path.read_bytes()[:-4])
    flip(tmp_path / f"{80:020d}.events", 199)
    (found,) = verify(tmp_path, EPOCH)
    assert "behind event 95" in found
    assert recover(tmp_path, EPOCH).last == 95
    assert verify(tmp_path, EPOCH) == []


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("first", [20, 80])
def test_a_fifo_in_place_of_a_file(tmp_path: Path, writer: Appending, ending: str, first: int) -> None:
    """Another user of the store may put one there: no reader waits at it, and each says which file it is."""
    path = tmp_path / f"{first:020d}{ending}"
    path.unlink()
    os.mkfifo(path)
    (tmp_path / "synced").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "synced")
    for logged in (writer.logged, None):
        assert any(
            f"{path.name} cannot be read: it is not a regular file" in finding for finding in verify(tmp_path, EPOCH, logged)
        )
    if first == 80:
        with pytest.raises(StoreCorrupt, match="not a regular file"):
            recover(tmp_path, EPOCH)
