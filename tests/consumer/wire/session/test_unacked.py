"""shmstore.consumer.wire.session.unacked: what a client holds un-acked survives the server."""

from pathlib import Path

import pytest

from shmstore.consumer.wire.session.filter import MOST_CHARACTERS, FilterRefused, compile_filter
from shmstore.consumer.wire.session.unacked import MOST_BATCHES, Given, Record, RecordFile, boot_id
from shmstore.home.home import Home

ONE = Record(-77, 3, -1, (Given(1, 10), Given(2, 25)), "shöp\\..*", 7)
TWO = ONE._replace(next_id=4, batches=(Given(2, 25), Given(3, 30)))


def test_kept(tmp_path: Path) -> None:
    """What was written last is what the next server reads; a new client has nothing and starts at id 1."""
    home = Home(tmp_path / "state" / "deep")
    file = RecordFile(home, "canal-1")
    assert file.record == Record()
    assert file.record.next_id == 1
    for record in (ONE, TWO, ONE, Record(filter="x" * 32000, batches=tuple(Given(i, i) for i in range(4096))), TWO):
        file.write(record)
    again = RecordFile(home, "canal-1")
    assert again.record == TWO


def test_torn_write_leaves_the_record_before(tmp_path: Path) -> None:
    """Whatever part of the last record is damaged or missing, the one before it is read whole."""
    home, path = Home(tmp_path), tmp_path / "x.batches"
    file = RecordFile(home, "x")
    file.write(ONE)
    before = path.read_bytes()
    file.write(TWO)
    after = path.read_bytes()
    changed = [i for i in range(len(after)) if i >= len(before) or after[i] != before[i]]
    assert changed
    for i in changed:
        path.write_bytes(after[:i] + bytes([after[i] ^ 0x41]) + after[i + 1 :])
        torn = RecordFile(home, "x")
        assert torn.record == ONE
    path.write_bytes(before)
    old = RecordFile(home, "x")
    assert old.record == ONE


@pytest.mark.parametrize("letter", ["x", "ß", "€", "🐙"])
def test_the_longest_record_leaves_the_one_before(tmp_path: Path, letter: str) -> None:
    """As many batches as a session gives, and the longest filter that is taken: neither half runs into the other."""
    assert compile_filter(letter * MOST_CHARACTERS) is not None
    with pytest.raises(FilterRefused):
        compile_filter(letter * (MOST_CHARACTERS + 1))
    longest = Record(1 << 62, 1 << 62, 1 << 62, (Given(1 << 62, 1 << 62),) * MOST_BATCHES, letter * MOST_CHARACTERS, 1)
    home, path = Home(tmp_path), tmp_path / "x.batches"
    file = RecordFile(home, "x")
    for number in range(4):
        before, after = longest._replace(epoch=number), longest._replace(epoch=number + 1)
        file.write(before)
        whole = path.read_bytes()
        file.write(after)
        assert RecordFile(home, "x").record == after
        there = path.read_bytes()
        changed = (i for i, (one, other) in enumerate(zip(whole, there, strict=True)) if one != other)
        start = next(changed)  # in the half that was written last
        path.write_bytes(there[:start] + bytes([there[start] ^ 0x41]) + there[start + 1 :])
        assert RecordFile(home, "x").record == before
        path.write_bytes(there)


def test_a_record_that_is_longer_than_its_half_is_refused(tmp_path: Path) -> None:
    """Before a byte of it is written."""
    home = Home(tmp_path)
    file = RecordFile(home, "x")
    file.write(ONE)
    there = file.path.read_bytes()
    with pytest.raises(ValueError, match="262145 bytes; a half of"):
        file.write(Record(filter="x" * ((1 << 18) - 56 + 1)))
    assert file.path.read_bytes() == there
    file.write(Record(filter="x" * ((1 << 18) - 56)))
    assert RecordFile(home, "x").number == 2


def test_only_what_is_still_out() -> None:
    """Acked batches, and batches of another life of the store, of another boot of the host, or beyond the newest event do not come back."""
    assert ONE.batches_after(-77, 9, 100, 7) == ONE.batches
    assert ONE.batches_after(-77, 10, 100, 7) == (Given(2, 25),)
    assert ONE.batches_after(-77, 10, 24, 7) == ()
    assert ONE.batches_after(5, -1, 100, 7) == ()
    assert ONE.batches_after(-77, 9, 100, 8) == ()


def test_boot_id() -> None:
    """It is the kernel's, and fits the record."""
    assert 0 < boot_id() == boot_id() < 1 << 64
