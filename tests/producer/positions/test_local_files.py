"""Places in local binlog files: what is asked to stop while it looks for one ends, and is not retried."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shmstore import Position, ShmStoreError, producer
from shmstore.producer.binlog.files import MAGIC
from shmstore.producer.positions.local_files import find_position
from shmstore.producer.stop import Stopped
from tests.producer.binlog.test_packets import format_event


def log_file(folder: Path) -> Path:
    """A binlog file with a FORMAT event alone."""
    file = folder / "binlog.000001"
    file.write_bytes(MAGIC + format_event(checksum=True))
    return file


def test_a_stop_is_no_error_of_the_source(tmp_path: Path) -> None:
    """A search that is asked to stop raises what no handler of errors takes for a lost link."""
    with pytest.raises(Stopped) as raised:
        find_position([log_file(tmp_path)], Position("binlog.000001", 4000), lambda: True)
    assert not isinstance(raised.value, ShmStoreError | OSError)


def test_a_producer_that_is_stopped_while_it_looks_for_its_start_ends(
    tmp_path: Path, store_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It returns its summary at once; no link is reported as lost, and none is tried again."""
    looks = iter([False])  # before the search; asked to stop from then on
    log_file(tmp_path)
    settings = producer.Settings(store=store_name, binlog=str(tmp_path), start="binlog.000001:4000", log="off")
    with caplog.at_level(logging.WARNING):
        summary = producer.run(settings, lambda: next(looks, True))
    assert summary.reconnects == 0
    assert not [record for record in caplog.records if "again" in record.getMessage()]


@pytest.mark.parametrize(("start", "warned"), [("2100-01-01", True), ("time:2100-01-01T00:00:00Z", True), ("2001-01-01", False)])
def test_a_start_that_has_not_come_yet_says_what_it_does(
    tmp_path: Path, store_name: str, caplog: pytest.LogCaptureFixture, start: str, warned: bool
) -> None:
    """One line names the option and says that it means what latest does; a time that is past says nothing."""
    log_file(tmp_path)
    with caplog.at_level(logging.WARNING):
        producer.run(producer.Settings(store=store_name, binlog=str(tmp_path), start=start, log="off"), lambda: False)
    said = [record.getMessage() for record in caplog.records if "a future time" in record.getMessage()]
    assert len(said) == warned
    assert all(repr(start) in line and "start = latest" in line for line in said)
