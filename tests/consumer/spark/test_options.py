"""Options: what is understood, and errors that say what is right."""

from __future__ import annotations

import numpy as np
import pytest

from shmstore import Position
from shmstore.consumer.spark.options import HELP, OptionError, SourceOptions, Start
from shmstore.consumer.spark.source.offset import Offset
from shmstore.encoding.row_order import seq_prefix, seq_suffix, seqs


def test_defaults() -> None:
    """Only the store is needed; one table named gives typed rows, several give JSON."""
    assert SourceOptions.parse({"store": "s"}).payload == "json"
    assert SourceOptions.parse({"store": "s", "tables": "shop.orders"}).payload == "typed"
    assert SourceOptions.parse({"store": "s", "tables": "shop.orders, shop.items"}).payload == "json"
    assert SourceOptions.parse({"store": "s", "tables": "shop.*"}).payload == "json"
    assert SourceOptions.parse({"STORE": "s", "MaxRowsPerTrigger": "10k"}).max_rows == 10240


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "option store is missing"),
        ({"store": "s", "tabels": "x"}, "Did you mean tables"),
        ({"store": "s", "payload": "avro"}, "json, typed, variant, raw"),
        ({"store": "s", "payload": "typed"}, "exactly one table"),
        ({"store": "s", "tables": "orders"}, "option tables: table pattern 'orders' is not DATABASE.TABLE"),
        ({"store": "s", "tables": "shop.*,!log"}, "'!log' is not DATABASE.TABLE"),
        ({"store": "s", "subscription": "a b"}, "subscription='a b': name 'a b' is not allowed"),
        ({"store": "s", "startingOffsets": "yesterday"}, "earliest"),
        ({"store": "s", "startingOffsets": "{"}, "not valid JSON"),
        ({"store": "s", "maxRowsPerTrigger": "0"}, "at least 1"),
        ({"store": "s", "maxBytesPerTrigger": "-1m"}, "at least 1"),
        ({"store": "s", "failOnDataLoss": "maybe"}, "true or false"),
        ({"store": "s", "storeTimeout": "soon"}, "number of seconds"),
        ({"store": "s", "asyncProgressTrackingEnabled": "true"}, "asynchronous progress tracking"),
    ],
)
def test_wrong_options_say_what_is_right(options: dict[str, str], says: str) -> None:
    """Each mistake is one error that names the option and the right values."""
    with pytest.raises(OptionError, match=says):
        SourceOptions.parse(options)


def test_a_start_in_milliseconds() -> None:
    """`startingTimestamp` is what Kafka's source has, and comes before startingOffsets; text that is none is an error."""
    given = {"store": "s", "startingOffsets": "latest"}
    assert SourceOptions.parse({**given, "startingTimestamp": "1767225600123"}).start == Start("time", 1767225600123)
    for wrong in ("2026-01-01", "-1", "1.5", "9" * 15, ""):
        with pytest.raises(OptionError, match="milliseconds since 1970 UTC"):
            SourceOptions.parse({**given, "startingTimestamp": wrong})


def test_a_table_has_a_subscription_of_its_own() -> None:
    """By default; names that a subscription cannot have stay different."""

    def name(**options: str) -> str:
        return SourceOptions.parse({"store": "s", **options}).subscription

    assert name() == name(tables="shop.*") == "spark"
    assert name(tables="shop.orders") == "spark-shop.orders"
    assert name(tables="shop.orders", subscription="audit") == "audit"
    odd = [name(tables=f"shop.{table}") for table in ("a b", "a-b", "ä b", "ö b", "x" * 64 + "y" * 40, "x" * 64 + "z" * 40)]
    assert len(set(odd)) == len(odd)


def test_an_unknown_option_lists_all() -> None:
    """The list in the message is complete."""
    with pytest.raises(OptionError) as error:
        SourceOptions.parse({"store": "s", "zzz": "1"})
    assert all(name in str(error.value) for name in HELP)


def test_tables_are_chosen_and_left_out() -> None:
    """Patterns add, patterns with ! take away, in any order; what is left out alone is left out of everything. Names may hold dots."""

    def wanted(tables: str) -> list[str]:
        options = SourceOptions.parse({"store": "s", "tables": tables})
        return [name for name in ("shop.orders", "shop.log", "crm.log", "shop.a.b") if options.wants(*name.split(".", 1))]

    assert wanted("shop.*") == ["shop.orders", "shop.log", "shop.a.b"]
    assert wanted("shop.*, !*.log") == wanted("!*.log,shop.*") == ["shop.orders", "shop.a.b"]
    assert wanted("!shop.log") == ["shop.orders", "crm.log", "shop.a.b"]
    assert wanted("shop.a.b") == ["shop.a.b"]
    assert not SourceOptions.parse({"store": "s", "tables": "!shop.log"}).all_tables
    assert SourceOptions.parse({"store": "s", "tables": "shop.a.b"}).payload == "typed"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("latest", Start("latest")),
        ("binlog.000003:1234", Start("position", Position("binlog.000003", 1234))),
        ("0-1-100", Start("gtid", Position("", 0, "0-1-100"))),
        ("gtid:0-1-100", Start("gtid", Position("", 0, "0-1-100"))),
        ("4711", Start("sequence", 4711)),
        ("time:1970-01-01T00:00:01Z", Start("time", 1000)),
        ("0-1-100,1-2-3", Start("gtid", Position("", 0, "0-1-100,1-2-3"))),
        ("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5", Start("gtid", Position("", 0, "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5"))),
        ("1970-01-01T00:00:01Z", Start("time", 1000)),
        ("1970-01-01 01:00:01+01:00", Start("time", 1000)),
        ("1970-01-01", Start("time", 0)),
    ],
)
def test_starting_offsets_are_told_apart(text: str, start: Start) -> None:
    """A position, a GTID set of either server, and a time are recognized by their form; a time without a zone is UTC."""
    assert Start.parse(text) == start


def test_seqs_of_many_rows_are_those_of_each() -> None:
    """The vectorised form says what the plain one says, at every edge."""
    places = [(0, 0, 0, 0), (1, 4, 0, 1), (2**31, 2**48 - 1, 2**32 - 1, 2**24 - 1), (12, 2**33, 7, 300)]
    assert seqs(*map(np.array, zip(*places, strict=True))).to_pylist() == [
        seq_prefix(*place[:3]) + seq_suffix(place[3]) for place in places
    ]


def test_offsets_survive_the_checkpoint() -> None:
    """An offset is the same after JSON, its keys come in one order, and a later version is refused."""
    offset = Offset("s", 2**62, 5, "binlog.000001", 400, "0-1-2", 0)
    assert Offset.of(offset.to_dict()) == offset
    assert Start.parse(offset.to_json()).value == offset.to_dict()
    assert list(offset.to_dict()) == ["version", "store", "epoch", "seq", "file", "offset", "gtids", "row"]
    with pytest.raises(ValueError, match="upgrade the reader"):
        Offset.of({**offset.to_dict(), "version": 2})
    with pytest.raises(ValueError, match="start the query with a new checkpoint"):
        Offset.of({**offset.to_dict(), "gtids": "a=b.1:4/"})
