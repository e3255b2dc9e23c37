"""The order of all rows of a store, as text that sorts: the column `seq`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def seq_prefix(file_number: int, offset: int, order: int) -> str:
    """Return the part of a row's `seq` that all rows of one binlog event share; `seq_suffix` of the row follows it.

    A seq is fixed-width lower-case hex: binlog file number (8), end of the event in it (12), number of the event in its
    transaction (8), row in the event (6), parted by ``-``. It sorts as text, is unique for each row, and is the same in
    every run, because it is made of nothing but the binlog's own coordinates. It orders the rows of one server: after a
    failover to another server the coordinates are that server's. In a store of several sources the source's name and a ``/`` come
    first: rows of different servers have no common order.
    """
    return f"{file_number:08x}-{offset:012x}-{order:08x}"


def seq_suffix(row: int) -> str:
    """Return the part of a row's `seq` that follows `seq_prefix`."""
    return f"-{row:06x}"


_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_WIDTH = len(seq_prefix(0, 0, 0) + seq_suffix(0))


def seqs(files: Any, offsets: Any, orders: Any, rows: Any) -> pa.StringArray:
    """Return the `seq` of many rows, from arrays of integers of one length: what `seq_prefix` + `seq_suffix` say, at once."""
    text = np.full((len(rows), _WIDTH), ord("-"), np.uint8)
    at = 0
    for values, digits in ((files, 8), (offsets, 12), (orders, 8), (rows, 6)):
        raw = np.ascontiguousarray(values, ">u8").view(np.uint8).reshape(-1, 8)[:, 8 - digits // 2 :]
        text[:, at : at + digits] = _HEX[raw].view(np.uint8).reshape(-1, digits)
        at += digits + 1
    ends = np.arange(len(rows) + 1, dtype=np.int32) * _WIDTH
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(ends), pa.py_buffer(text))
