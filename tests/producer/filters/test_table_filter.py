"""What passes the filters, by Canal's patterns and by globs; columns left out, masked, hashed."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore import ABSENT, Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.encoding.codec import decode, decode_stored, encode, encode_schema, encode_stored
from shmstore.patterns.table_patterns import split_patterns
from shmstore.producer.errors import PatternError
from shmstore.producer.filters.table_filter import TableFilter

NAMES = ["shop.orders", "shop.order_items", "shopping.orders", "Shop.ORDERS", "test.t1", "test.t2", "a.b.c"]


@pytest.mark.parametrize(
    ("patterns", "passes"),
    [
        ([], NAMES),
        (["shop.*"], ["shop.orders", "shop.order_items", "Shop.ORDERS"]),
        (["shop.order?items"], ["shop.order_items"]),
        (["shop.orders"], ["shop.orders", "Shop.ORDERS"]),
        ([".*\\..*"], NAMES),
        ([".*"], NAMES),
        (["shop\\..*"], ["shop.orders", "shop.order_items", "Shop.ORDERS"]),
        (["shop..*"], ["shop.orders", "shop.order_items", "shopping.orders", "Shop.ORDERS"]),
        (["test\\.t[12],a.b.c"], ["test.t1", "test.t2", "a.b.c"]),
        (["test\\.t\\d{1,2}, shop.orders"], ["test.t1", "test.t2", "shop.orders", "Shop.ORDERS"]),
        (["(shop|test)\\.(orders|t1)"], ["shop.orders", "Shop.ORDERS", "test.t1"]),
        (["regex:shop.*"], ["shop.orders", "shop.order_items", "shopping.orders", "Shop.ORDERS"]),
        (["glob:shop.[o]*"], ["shop.orders", "shop.order_items", "Shop.ORDERS"]),
        (["*.orders"], ["shop.orders", "shopping.orders", "Shop.ORDERS"]),
        (["orders"], []),
    ],
)
def test_table_patterns(patterns: list[str], passes: list[str]) -> None:
    """Patterns match the whole of database.table, without regard to case, as Canal's regexes or as globs."""
    table_filter = TableFilter(include=patterns)
    assert {name for name in NAMES if table_filter.passes(*name.split(".", 1))} == set(passes)


def test_exclude_wins() -> None:
    """A table that is both included and excluded does not pass."""
    table_filter = TableFilter(include=["shop.*"], exclude=["*.order_items,test.t1"])
    assert [name for name in NAMES if table_filter.passes(*name.split(".", 1))] == ["shop.orders", "Shop.ORDERS"]


def test_commas_inside_brackets_stay() -> None:
    """A comma in a quantifier, a class or a group does not split a pattern; nor does an escaped one."""
    assert split_patterns(r"a\.t{1,3}, b\.(x,y) ,c\.[p,q],d\,e,, ") == [r"a\.t{1,3}", r"b\.(x,y)", r"c\.[p,q]", r"d\,e"]


def test_bad_patterns_are_named() -> None:
    """A pattern that is no regular expression is an error that quotes it; so is an unknown operation."""
    with pytest.raises(PatternError, match=r"'shop\\\\\.\(orders'"):
        TableFilter(include=["shop\\.(orders"])
    with pytest.raises(PatternError, match="'upsert' is unknown; there are insert"):
        TableFilter(operations=["insert", "upsert"])


SCHEMA = TableSchema(
    "shop",
    "customers",
    (
        Column("id", "bigint", unsigned=True),
        Column("email", "varchar", size=400, charset="utf8mb4"),
        Column("card", "varbinary", size=64),
        Column("born", "date"),
        Column("note", "text", charset="utf8mb4"),
    ),
    (0,),
)


def through(table_filter: TableFilter, event: Event) -> Event:
    """`event` as the filter passes it on."""
    assert event.table is not None
    blob = encode_schema(event.table)
    plan = table_filter.plan(event.table, blob)
    header, schema, body = decode_stored(encode(event))
    if plan.blob is not None:
        schema, body = plan.blob, table_filter.apply(plan, body, len(event.table.columns))
    return decode(encode_stored(header, schema, body))


def event_of(*rows: Row, type_: EventType = EventType.UPDATE) -> Event:
    return Event(EntryType.ROWS, type_, Position("b.1", 9), 0, table=SCHEMA, rows=rows)


FULL = (7, "x@y.z", b"\x01\x02", None, "größe")


def test_columns_are_left_out() -> None:
    """A column left out is in neither schema nor rows; a key that loses a column is no key any more."""
    event = through(TableFilter(column_exclude=["shop.customers.email,*.note"]), event_of(Row(FULL, FULL)))
    assert event.table is not None
    assert event.table.names == ("id", "card", "born")
    assert event.table.primary_key == (0,)
    assert event.rows == (Row((7, b"\x01\x02", None), (7, b"\x01\x02", None)),)
    event = through(
        TableFilter(column_include=["shop.customers.(email|note)"]), event_of(Row(None, FULL), type_=EventType.INSERT)
    )
    assert event.table is not None
    assert (event.table.names, event.table.primary_key) == (("email", "note"), ())
    assert event.rows == (Row(None, ("x@y.z", "größe")),)


def test_columns_are_masked_and_hashed() -> None:
    """Masked values become ***, hashed ones their SHA-256, with a key their HMAC; NULL stays NULL; the schema says varchar."""
    table_filter = TableFilter(column_mask=["*.email,*.born"], column_hash=["*.card,*.note"])
    event = through(table_filter, event_of(Row(FULL, FULL)))
    digest = hashlib.sha256(b"\x01\x02").hexdigest()
    assert event.rows[0].after == (7, "***", digest, None, hashlib.sha256("größe".encode()).hexdigest())
    assert event.rows[0].before == event.rows[0].after
    assert event.table is not None
    assert [column.type for column in event.table.columns] == ["bigint", "varchar", "varchar", "varchar", "varchar"]
    keyed = through(TableFilter(column_hash=["*.card"], hash_key="k"), event_of(Row(FULL, FULL)))
    assert keyed.rows[0].after is not None
    assert keyed.rows[0].after[2] == hmac.new(b"k", b"\x01\x02", "sha256").hexdigest()


images = st.sets(st.integers(0, 4)).map(lambda present: tuple(FULL[i] if i in present else ABSENT for i in range(5)))


@given(images, images, st.sets(st.sampled_from(SCHEMA.names)), st.sets(st.sampled_from(SCHEMA.names)))
def test_partial_images(before: tuple[object, ...], after: tuple[object, ...], gone: set[str], masked: set[str]) -> None:
    """With any row image and any choice of columns, what stays is what was there, in place, and what was absent stays so."""
    table_filter = TableFilter(
        column_exclude=[f"shop.customers.{name}" for name in gone], column_mask=[f"shop.customers.{name}" for name in masked]
    )
    event = through(table_filter, event_of(Row(before, after), Row(before, after)))
    keep = [i for i, name in enumerate(SCHEMA.names) if name not in gone]

    def expected(image: tuple[object, ...]) -> tuple[object, ...]:
        values = ["***" if SCHEMA.names[i] in masked and image[i] not in (None, ABSENT) else image[i] for i in keep]
        return tuple(values)

    assert event.rows == (Row(expected(before), expected(after)),) * 2


def test_ghost_tables_are_those_of_a_table_that_is_read() -> None:
    """The names of gh-ost and pt-online-schema-change, where the table that they change passes; each is reported once."""
    told: list[tuple[str, str]] = []
    patterns, note = (
        {"include": ["shop.*", "crm._t_new"], "exclude": ["shop.b"]},
        lambda table, ghost: told.append((table, ghost)),
    )
    drop = TableFilter(**patterns, ghost_tables="drop", left_out=note)
    ghosts = ["_a_gho", "_a_ghc", "_a_del", "_a_new", "_a_old", "__a_new", "_a_old_old"]
    assert not any(drop.passes("shop", name) for name in ghosts * 2)
    assert told == [("shop.a_old" if name == "_a_old_old" else "shop.a", name) for name in ghosts]
    assert all(drop.passes("shop", name) for name in ("a", "a_gho", "_a", "_a_gho2", "_gho", "_b_new"))
    assert drop.passes("crm", "_t_new")  # t is not read
    assert TableFilter(include=["shop.*"], ghost_tables="keep").passes("shop", "_a_gho")
