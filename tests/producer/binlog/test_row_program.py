"""Steps: what of a column's type becomes what both compiled code and the interpreter run."""

from __future__ import annotations

import pytest

from shmstore.event import Column
from shmstore.producer.binlog import row_interpreter
from shmstore.producer.binlog.row_program import steps
from shmstore.producer.binlog.table_map import Field
from shmstore.producer.binlog.wire_types import Wire
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.sql import charsets

CHARSETS = sorted(set(charsets._COLLATIONS) - {"binary"})


@pytest.mark.parametrize("charset", CHARSETS)
def test_text_is_that_of_its_character_set(charset: str) -> None:
    """Whatever step a character set becomes, each byte and pair of bytes gives the text of the set's decoder, or an error."""
    fields = [Field(Wire.VARCHAR, 100, Column("c", "varchar", charset=charset))]
    for raw in [bytes([i]) for i in range(256)] + [bytes([i, j]) for i in range(0, 256, 5) for j in range(0x40, 256, 3)]:
        try:
            wanted = charsets.decoder(charset)(raw)
            wanted.encode()  # what MessagePack can hold
        except UnicodeError:
            wanted = ""
        data = b"\0" + bytes([len(raw)]) + raw
        try:
            rows = row_interpreter.rows_of(None, row_interpreter.Program(steps(fields, [0])), data, 0)[2]
        except UnicodeError:
            rows = [("",)]
        assert rows == [(wanted,)], raw


def test_steps_are_what_compiled_code_knows() -> None:
    """Every step that columns become is one of the interpreter's and of compiled code's; equal columns share theirs."""
    columns = [Column("c", "binary", size=16), Column("d", "binary", size=16)]
    first, second = steps([Field(Wire.STRING, 16, column) for column in columns], [0, 1])
    assert first is second
    assert first == ("padded", 1, 16, 0, None)
    names = row_interpreter._CONVERSIONS
    if COMPILED:
        for name in names:
            members = [b""] if name in ("enum", "set") else None
            compiled.Program([(name, 1, 1, 0, members)])
        with pytest.raises(KeyError):
            compiled.Program([("other", 1, 0, 0, None)])


def test_hidden_columns_are_read_and_left_out() -> None:
    """Only the columns that are shown are in a row; the others take their bytes."""
    fields = [Field(Wire.TINY, 0, Column("a", "tinyint")), Field(Wire.LONGLONG, 0, Column("h", "bigint"), True)]
    program = row_interpreter.Program(steps(fields, [0, 1]), 1)
    data = b"\0\x05" + bytes(8) + b"\x02\x06"
    assert row_interpreter.rows_of(program, None, data, 0) == (2, [(5,), (6,)], None)


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_cut_row_names_the_column_that_is_cut(cut: int) -> None:
    """Each end of the data inside a row raises, and `failed` says at which column; NULL bits belong to none."""
    fields = [Field(Wire.LONG, 0, Column("a", "int")), Field(Wire.VARCHAR, 9, Column("b", "varbinary"))]
    program = row_interpreter.Program(steps(fields, [0, 1]))
    data = b"\0" + bytes(4) + b"\x02ab"
    with pytest.raises(IndexError, match="past the end of the event"):
        row_interpreter.rows_of(None, program, data[: len(data) - cut], 0)
    assert program.failed == (1 if cut <= 3 else 0)
    program.forget()
    assert program.failed == -1
