"""shmstore.producer.transactions.seal: the checksum of what the store has of a transaction."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.encoding.codec import encode, split_stored
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.transactions.writer import fold

PLAIN = TableSchema("d", "t", tuple([Column(f"c{i}", "int") for i in range(40)]), (0,))
SPELLED = PLAIN._replace(columns=tuple([column._replace(definition="INT(11)") for column in PLAIN.columns]))


def payloads(*tables: TableSchema) -> list[bytes]:
    return [
        encode(
            Event(
                EntryType.ROWS, EventType.INSERT, Position("b.1", 9), 0, order=n, table=table, rows=(Row(None, tuple(range(40))),)
            )
        )
        for n, table in enumerate(tables)
    ]


def folded(blobs: list[bytes]) -> int:
    checksum = 0
    for blob in blobs:
        header, schema, body = split_stored(blob)
        checksum = fold(checksum, header.order, header.type, header.database, header.sql, schema, body.data)
    return checksum


def test_how_a_column_is_spelled_does_not_count() -> None:
    """A restarted producer may know another spelling of a definition: what it replays is the same all the same."""
    plain = folded(payloads(PLAIN, PLAIN))
    assert folded(payloads(SPELLED, PLAIN._replace(unique_key=True))) == plain
    assert folded(payloads(PLAIN._replace(table="u"), PLAIN)) != plain
    assert folded(payloads(SPELLED._replace(columns=(*SPELLED.columns[:39], Column("c39", "bigint"))), PLAIN)) != plain


@pytest.mark.skipif(not COMPILED, reason="built without a compiler")
def test_compiled_code_sums_the_same() -> None:
    """Of schemas with definitions and without; one whose size lies about itself is left to Python."""
    blobs = payloads(PLAIN, SPELLED, PLAIN._replace(unique_key=True), SPELLED._replace(unique_key=True))
    sizes, types = np.array([len(blob) for blob in blobs], np.uint32), np.full(len(blobs), int(EventType.INSERT), np.uint8)
    assert compiled.fold_events(b"".join(blobs), sizes, types, zlib.crc32(b"")) == (4, folded(blobs))
    schema = split_stored(blobs[1])[1] or b""
    lies = blobs[1].replace(schema, schema[:-4] + b"\xff" * 4)
    assert compiled.fold_events(lies, sizes[1:2], types[:1], 0)[0] == 0
