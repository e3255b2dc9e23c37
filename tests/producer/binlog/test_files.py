"""producer/binlog/files.py: which files of a folder are the binlog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shmstore import Position, PositionNotFound, UnsupportedEvent
from shmstore.producer.binlog import files
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.binlog.files import ENCRYPTED, MAGIC, BinlogFiles, list_files
from shmstore.producer.errors import SettingsError
from shmstore.producer.positions.local_files import find_position
from tests.producer.binlog.test_packets import event, format_event


def fill(folder: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        stem, _, number = name.rpartition("_")
        (folder / f"{stem}.{number}").write_bytes(content)


def test_a_data_folder_has_other_numbered_files(tmp_path: Path) -> None:
    """Of a MariaDB data folder only the binlog is taken, by number, not by name; a file of it that is broken is not left out."""
    fill(tmp_path, aria_log_00000001=b"\xfe\xfe\xf8", aria_log_00000002=b"", ib_buffer_7=b"x", binlog_999999=MAGIC)
    fill(tmp_path, binlog_1000000=MAGIC, binlog_000002=MAGIC, binlog_000003=b"", binlog_index=b"./binlog.000002\n")
    (tmp_path / "aria_log_control").write_bytes(b"\xfe\xfe\xf9")
    (tmp_path / "mysql.1").mkdir()
    files = list_files(str(tmp_path))
    assert [file.name for file in files] == ["binlog.000002", "binlog.000003", "binlog.999999", "binlog.1000000"]
    with pytest.raises(UnsupportedEvent, match=r"binlog\.000003 is not a binlog file: it begins with nothing"):
        BinlogFiles(files[1:2]).read()


def test_a_missing_file_is_not_read_over(tmp_path: Path) -> None:
    """A gap in the numbers is an error before anything is read, where reading would cross it: not where it is before the start."""
    fill(tmp_path, binlog_999998=MAGIC, binlog_1000000=MAGIC, binlog_1000001=MAGIC)
    files = list_files(str(tmp_path))
    with pytest.raises(
        PositionNotFound, match=r"no file between binlog\.999998 and binlog\.1000000: .* start = binlog\.1000000:4$"
    ):
        BinlogFiles(files)
    BinlogFiles(find_position(files, Position("binlog.1000000", 4))[0]).close()


def test_two_logs_in_a_folder(tmp_path: Path) -> None:
    """Where the folder has several logs, as a replica's has, they are named and none is taken."""
    fill(tmp_path, binlog_000001=MAGIC, relay_000001=MAGIC, aria_log_00000001=b"\xfe\xfe\xf8")
    with pytest.raises(SettingsError, match=re.escape(f"{str(tmp_path)!r}, which holds files of several logs: binlog, relay; ")):
        list_files(str(tmp_path))


def test_a_folder_without_a_binlog(tmp_path: Path) -> None:
    """Numbered files that are none of a binlog are the same as no files."""
    fill(tmp_path, aria_log_00000001=b"\xfe\xfe\xf8")
    with pytest.raises(SettingsError, match="holds no binlog files"):
        list_files(str(tmp_path))


def test_an_encrypted_log(tmp_path: Path) -> None:
    """An encrypted binlog is known as one, and refused with the way round."""
    fill(tmp_path, binlog_000001=ENCRYPTED + b"\1", aria_log_00000001=b"\xfe\xfe\xf8")
    with pytest.raises(UnsupportedEvent, match=r"binlog\.000001 is encrypted; read it through its server"):
        BinlogFiles(list_files(str(tmp_path))).read()


def test_a_large_event_is_joined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of an event of many chunks are handled a few times each, not once for every chunk that follows them; nor is
    the size that a damaged event says taken for memory."""
    body = bytes(range(256)) * 4096
    monkeypatch.setattr(files, "CHUNK", 4096)
    fill(tmp_path, binlog_000001=MAGIC + format_event(True) + event(30, body) + event(16, b"after"))
    handled: list[int] = []
    split = BinlogFiles._split

    def counted(self: BinlogFiles, data: bytes) -> list[RawEvent]:
        handled.append(len(data))
        return split(self, data)

    monkeypatch.setattr(BinlogFiles, "_split", counted)
    found = read_all(BinlogFiles(list_files(str(tmp_path))))
    assert [raw.body for raw in found[-2:]] == [body, b"after"]
    assert sum(handled) < 3 * len(body)
    whole = (tmp_path / "binlog.000001").read_bytes()
    (tmp_path / "binlog.000001").write_bytes(whole + b"\0" * 9 + b"\xff\xff\xff\xff" + bytes(6))
    assert read_all(BinlogFiles(list_files(str(tmp_path)))) == found


def read_all(source: BinlogFiles) -> list[RawEvent]:
    found = []
    while (events := source.read()) is not None:
        found += events
    return found
