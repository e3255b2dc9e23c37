"""Compiled decoding gives the query the rows, the order and the refusals of the reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shmstore import ABSENT, Column, EntryType, Event, EventType, Row, TableSchema
from shmstore.consumer.spark.decode.decoder import Decoder, SchemaChanged
from shmstore.consumer.spark.decode.schema import arrow_schema, image_type
from shmstore.consumer.spark.options import SourceOptions
from shmstore.encoding import arrow
from shmstore.encoding.arrow import PartialImage, ZeroDate
from shmstore.encoding.codec import encode
from tests.consumer.spark.events import ORDERS, Binlog, order_row
from tests.shmstore.tables import ALL, random_events

pytestmark = pytest.mark.skipif(not arrow.COMPILED, reason="no compiled columns here")


def joined(payloads: Sequence[bytes]) -> tuple[bytes, Any]:
    return b"".join(payloads), np.cumsum([len(payload) for payload in payloads])


def decoded_by_the_reference(decoder: Decoder, payloads: Sequence[bytes]) -> list[pa.RecordBatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "COMPILED", False)
        return list(decoder.batches(*joined(payloads)))


def compare(payloads: Sequence[bytes], table: TableSchema | None, *, left: int = 0, **options: str) -> list[dict[str, Any]]:
    """The rows, which both ways must agree on. `left`: how many RecordBatches compiled code leaves to the reference."""
    tables = {"tables": f"{table.database}.{table.table}"} if table else {}
    decoder = Decoder(SourceOptions.parse({"store": "s", **tables, **options}), table)
    reference = pa.Table.from_batches(decoded_by_the_reference(decoder, payloads), decoder.schema)
    asked = []
    real = arrow.Events.stored

    def counting(self: arrow.Events, events: Any) -> Any:
        asked.append(1)
        return real(self, events)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow.Events, "stored", counting)
        compiled = pa.Table.from_batches(decoder.batches(*joined(payloads)), decoder.schema)
    compiled.validate(full=True)
    assert len(asked) == left
    assert compiled.combine_chunks().equals(reference.combine_chunks())
    rows: list[dict[str, Any]] = compiled.to_pylist()
    return rows


def encoded(events: Sequence[Event]) -> list[bytes]:
    return [encode(event) for event in events]


def test_types_are_spark_s() -> None:
    """The Arrow type of each column is the one that Spark demands for its Spark type."""
    decimals = [Column(f"d{p}", "decimal", size=p, scale=s) for p, s in ((1, 0), (38, 38), (39, 0), (65, 30))]
    table = ALL._replace(columns=(*ALL.columns, *decimals, *[Column(f"b{n}", "bit", size=n) for n in (1, 63, 64)]))
    assert list(arrow_schema(image_type(table))) == list(arrow.image_type(table))


def test_every_type_and_kind_of_event(seed: int) -> None:
    """Random rows of every type in every kind of event come out the same, all by compiled code."""
    assert len(compare(random_events(random.Random(seed), 300), ALL)) > 300


def test_many_rows(binlog: Binlog) -> None:
    """Cuts between RecordBatches lose and repeat nothing, and seq stays sorted."""
    events = [event for n in range(30) for event in binlog.insert(*[order_row(n * 2000 + i) for i in range(2000)])]
    events += [event for n in range(500) for event in binlog.update((order_row(n), order_row(n, status=None)))]
    rows = compare(encoded(events), ORDERS)
    assert len(rows) == 60_500
    assert [row["seq"] for row in rows] == sorted({row["seq"] for row in rows})


def test_a_log_that_rotates(binlog: Binlog) -> None:
    """Rows out of several files know theirs, and seq stays sorted, with huge offsets and numbers too."""
    events = []
    for number, file in enumerate(("mysql-bin.000009", "mysql-bin.000010", "mysql-bin.4294967295")):
        for event in binlog.insert(*[order_row(n) for n in range(3)]):
            position = event.position._replace(file=file, offset=event.position.offset + number * 2**46, row=2**20 * number)
            events.append(event._replace(position=position, order=event.order * 2**30))
    rows = compare(encoded(events), ORDERS)
    assert [row["source"]["file"][-2:] for row in rows] == ["09"] * 3 + ["10"] * 3 + ["95"] * 3
    assert [row["seq"] for row in rows] == sorted({row["seq"] for row in rows})


def test_ddl_and_markers_stay_in_their_places(binlog: Binlog) -> None:
    """Events without rows are read by the reference, between the rows where they belong; other tables' rows are left out."""
    other = TableSchema("shop", "other", (Column("id", "int"),), (0,))
    events = [*binlog.insert(order_row(1)), *binlog.ddl("ALTER TABLE shop.orders ADD COLUMN x INT"), *binlog.insert(order_row(2))]
    events += [*binlog.insert((5,), table=other), *binlog.ddl("TRUNCATE TABLE shop.orders"), *binlog.delete(order_row(2))]
    assert [row["op"] for row in compare(encoded(events), ORDERS, left=2, includeDdl="true")] == ["c", "ddl", "c", "t", "d"]
    marked = compare(encoded(events), ORDERS, left=4, includeDdl="true", includeTransactionMarkers="true")
    assert [row["op"] for row in marked if row["op"] not in ("begin", "end")] == ["c", "ddl", "c", "t", "d"]
    assert sum(row["op"] == "begin" for row in marked) == 4


def test_raw_payloads_are_filtered_alike(binlog: Binlog) -> None:
    """The events of the tables wanted, and the DDLs that touch them, are those that the reference lets through."""
    other = TableSchema("shop", "other", (Column("id", "int"),), (0,))
    events = [
        *binlog.insert(order_row(1)),
        *binlog.insert((5,), table=other),
        *binlog.ddl("ALTER TABLE shop.other ADD COLUMN x INT"),
    ]
    events += [*binlog.ddl("DROP DATABASE shop"), *binlog.ddl("TRUNCATE TABLE shop.orders"), *binlog.delete(order_row(1))]
    payloads = encoded(events)
    for tables in ("shop.orders", "shop.other", "shop.*", "other.*"):
        decoder = Decoder(SourceOptions.parse({"store": "s", "payload": "raw", "tables": tables, "includeDdl": "true"}))
        asked = np.array([event.entry in (EntryType.ROWS, EntryType.DDL) for event in events])
        found = decoder.wanted(*joined(payloads), asked)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrow, "COMPILED", False)
            reference = decoder.wanted(*joined(payloads), asked)
        assert found.tolist() == reference.tolist()
        assert found.sum() == {"shop.orders": 4, "shop.other": 3, "shop.*": 6, "other.*": 0}[tables]


def test_json_is_the_reference_s(binlog: Binlog) -> None:
    """Rows of many tables as JSON text are not for compiled code."""
    assert len(compare(encoded(binlog.insert(order_row(1), order_row(2))), None, left=1)) == 2


def test_what_is_refused_is_refused(binlog: Binlog) -> None:
    """Partial images, changed tables and zero dates raise what they raise without compiled code; NULL is given where asked for."""
    table = TableSchema("d", "t", (Column("id", "int"), Column("day", "date")), (0,))
    zero = encoded(binlog.insert((1, "0000-00-00"), (2, None), table=table))
    partial = encoded(binlog.transaction((EventType.UPDATE, (Row((1, *[ABSENT] * 5), (*[ABSENT] * 5, "paid")),))))
    wider = encoded(binlog.insert((*order_row(2), "n"), table=ORDERS._replace(columns=(*ORDERS.columns, Column("n", "varchar")))))
    for payloads, plan, error in ((zero, table, ZeroDate), (partial, ORDERS, PartialImage), (wider, ORDERS, SchemaChanged)):
        decoder = Decoder(SourceOptions.parse({"store": "s", "tables": f"{plan.database}.{plan.table}"}), plan)
        with pytest.raises(error):
            list(decoder.batches(*joined(payloads)))
    assert [row["after"]["day"] for row in compare(zero, table, zeroDates="null")] == [None, None]
    assert compare([*encoded(binlog.insert(order_row(1))), *wider], ORDERS, schemaChanges="follow")[1]["pk"] == {"id": 2}


def test_widened_columns(binlog: Binlog) -> None:
    """With schemaChanges=follow, narrower columns of old events fill the planned ones: INT in an unsigned BIGINT's decimal too."""
    plan = TableSchema(
        "d", "t", (Column("id", "bigint", unsigned=True), Column("x", "double"), Column("p", "decimal", size=20, scale=4))
    )
    old = TableSchema("d", "t", (Column("p", "decimal", size=6, scale=2), Column("id", "int"), Column("gone", "time")))
    events = binlog.insert((Decimal("-1.50"), -7, timedelta(1)), (Decimal("0.00"), 2**31 - 1, None), table=old)
    rows = compare(encoded(events), plan, schemaChanges="follow")
    assert [(str(row["after"]["id"]), row["after"]["x"], str(row["after"]["p"])) for row in rows] == [
        ("-7", None, "-1.5000"),
        ("2147483647", None, "0.0000"),
    ]


def test_damage_is_refused_or_read_alike(binlog: Binlog, seed: int) -> None:
    """Flipped bytes give the reference's rows or its refusal."""
    chance = random.Random(seed)
    clean = encoded(
        [*binlog.insert(order_row(1), order_row(2)), *binlog.update((order_row(1), order_row(3))), *binlog.delete(order_row(3))]
    )
    decoder = Decoder(SourceOptions.parse({"store": "s", "tables": "shop.orders"}), ORDERS)
    read = refused = 0
    for _ in range(600):
        payloads = list(clean)
        which = chance.randrange(len(payloads))
        damaged = bytearray(payloads[which])
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        payloads[which] = bytes(damaged)
        try:
            rows = decoded_by_the_reference(decoder, payloads)
        except Exception:
            with pytest.raises(Exception):  # noqa: B017, PT011  the reference raises whatever Arrow or Python does
                list(decoder.batches(*joined(payloads)))
            refused += 1
        else:
            found = list(decoder.batches(*joined(payloads)))
            a, b = (pa.Table.from_batches(batches, decoder.schema).combine_chunks() for batches in (found, rows))
            assert a.equals(b)  # ORDERS has no float, which could be a NaN
            read += 1
    assert read > 50
    assert refused > 50
