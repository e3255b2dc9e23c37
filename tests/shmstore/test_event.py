"""The values: events, rows, positions and their order."""

from __future__ import annotations

import copy
import pickle

import pytest

from shmstore import ABSENT, EntryType, Event, EventType, Position
from shmstore.encoding.codec import decode, encode, encode_batch
from shmstore.event import Absent
from tests.shmstore.samples import ddl, end, position, rows


def test_positions_order_by_file_number_not_by_text():
    """File 999999 comes before 1000000, and binlog.000012 before binlog.000102, whatever the text says."""
    files = ["binlog.1000000", "binlog.999999", "binlog.000102", "a.b.000012"]
    ordered = sorted((Position(file, 4) for file in files), key=lambda p: p.order)
    assert [p.file_number for p in ordered] == [12, 102, 999999, 1000000]


@pytest.mark.parametrize("file", ["", "binlog", "binlog.", "binlog.x12", "binlog.٣"])
def test_a_file_name_without_a_number_counts_as_zero(file):
    """Nothing is guessed from a name that has no decimal number at its end."""
    assert Position(file, 4).file_number == 0


def test_offsets_beyond_four_gigabytes_order_rightly():
    """A long difference of offsets is not cut to 32 bits."""
    assert Position("b.1", 2**33).order > Position("b.1", 2**32 - 1).order > Position("b.1", 5).order


def test_absent_is_one_value_in_every_process():
    """ABSENT survives pickling and copying as itself, is false, and is not None."""
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT
    assert copy.deepcopy(ABSENT) is ABSENT
    assert not ABSENT
    assert ABSENT is not None
    assert isinstance(ABSENT, Absent)


def test_only_transaction_ends_and_ddl_are_ack_points():
    """A durable checkpoint may stand at END and DDL, nowhere else; not at a DDL that is part of a transaction."""
    assert {entry for entry in EntryType if Event(entry, EventType.NONE, position(1), 0).ends_transaction} == {
        EntryType.END,
        EntryType.DDL,
    }
    assert end(1).ends_transaction
    assert ddl(1).ends_transaction
    inside = ddl(1)._replace(props={"in_transaction": "1"})
    assert not inside.ends_transaction
    assert [slot["flags"] for slot in encode_batch([end(1), ddl(1), inside])[1]] == [1, 2, 0]


def test_records_leave_absent_columns_out_and_keep_nulls():
    """A column that the row image lacks is not in the record; a NULL is there as None."""
    event = rows(3)
    table = event.table
    assert table is not None
    row = event.rows[0]._replace(after=(1, None, ABSENT, ABSENT))
    assert list(event._replace(rows=(row,)).records()) == [(None, {"id": 1, "note": None})]


def test_sql_words_name_canals_types() -> None:
    """Where Canal's word for a type is not SQL's, both name one member, which is shown and numbered as Canal does."""
    words = {
        "DROP": "ERASE",
        "CREATE_INDEX": "CINDEX",
        "DROP_INDEX": "DINDEX",
        "XA_COMMIT": "XACOMMIT",
        "XA_ROLLBACK": "XAROLLBACK",
    }
    assert {word: EventType[word].name for word in words} == words
    assert [int(each) for each in EventType] == list(range(17))


def test_a_sequence_is_no_part_of_an_event() -> None:
    """An event has the sequence that it was read at, in a copy and in another process too; it cannot be set, and is not compared."""
    put = rows(1)
    read = decode(encode(put), 17)
    assert (put.sequence, read.sequence, decode(encode(put)).sequence) == (-1, 17, -1)
    assert (read, tuple(read)) == (put, tuple(put))
    assert pickle.loads(pickle.dumps(read)).sequence == copy.copy(read).sequence == 17
    assert read._replace(sql="x").sequence == -1, "another event was not read there"
    with pytest.raises(AttributeError):
        read.sequence = 3  # type: ignore[misc]
