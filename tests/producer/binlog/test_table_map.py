"""TABLE_MAP events by hand: optional metadata in both of its forms, damaged maps, and what a schema history adds."""

from __future__ import annotations

from typing import ClassVar

import pytest

from shmstore.encoding.codec import decode_schema
from shmstore.errors import SchemaUnknown, UnsupportedEvent
from shmstore.event import Column, TableSchema
from shmstore.producer.binlog.rows import RowsDecoder
from shmstore.producer.binlog.table_map import Layout, parse_layout
from shmstore.producer.binlog.wire_types import Wire


def text(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def tag(number: int, value: bytes) -> bytes:
    return bytes([number]) + text(value)


def names(*given: str) -> bytes:
    return tag(4, b"".join(text(name.encode()) for name in given))


def table_map(
    types: bytes, meta: bytes = b"", nullable: bytes | None = None, optional: bytes = b"", table: str = "bücher"
) -> bytes:
    bits = bytes((len(types) + 7) // 8) if nullable is None else nullable
    return (
        b"\x2a\0\0\0\0\0\x01\0"
        + b"\x03shop"[:0]
        + text(b"shop")
        + b"\0"
        + text(table.encode())
        + b"\0"
        + text(types)
        + text(meta)
        + bits
        + optional
    )


def columns(layout: Layout) -> tuple[Column, ...]:
    assert layout.fields
    assert decode_schema(layout.blob) == layout.schema
    return layout.schema.columns


def test_names_types_and_nullability() -> None:
    """Names are UTF-8, types information_schema's, bits of nullability the first column lowest."""
    layout = parse_layout(
        table_map(
            bytes([3, 8, 13]), nullable=b"\x05", optional=names("id", "größe", "jahr") + tag(1, b"\x40") + tag(8, b"\x01\x00")
        )
    )
    assert (layout.database, layout.table) == ("shop", "bücher")
    assert columns(layout) == (Column("id", "int"), Column("größe", "bigint", True, False), Column("jahr", "year"))
    assert layout.schema.primary_key == (1, 0)


def test_year_has_a_sign_bit_of_its_own() -> None:
    """Both servers count YEAR among the signed types: the bits behind it belong to the columns behind it."""
    layout = parse_layout(table_map(bytes([13, 1, 13, 2]), optional=names("a", "b", "c", "d") + tag(1, b"\xa0")))
    assert [column.unsigned for column in columns(layout)] == [False, False, False, False]
    layout = parse_layout(table_map(bytes([13, 1, 13, 2]), optional=names("a", "b", "c", "d") + tag(1, b"\x50")))
    assert [column.unsigned for column in columns(layout)] == [False, True, False, True]


def test_character_sets_in_both_forms() -> None:
    """A default with exceptions counted among the text columns, or one collation for each."""
    types, meta = bytes([15, 3, 252, 254, 15]), b"\x64\x00" + b"\x02" + b"\xfe\x28" + b"\x0a\x00"
    head = names("a", "b", "c", "d", "e") + tag(1, b"\0")
    default = parse_layout(table_map(types, meta, optional=head + tag(2, b"\x2d" + b"\x01\x3f" + b"\x03\x08")))
    each = parse_layout(table_map(types, meta, optional=head + tag(3, b"\x2d\x3f\x2d\x08")))
    assert columns(default) == columns(each)
    assert [(c.type, c.charset, c.size) for c in columns(each)] == [
        ("varchar", "utf8mb4", 100),
        ("int", "", 0),
        ("blob", "", 0),
        ("char", "utf8mb4", 40),
        ("varchar", "latin1", 10),
    ]


def test_members_are_decoded_by_their_character_set() -> None:
    """ENUM and SET members come in the column's own set; the two kinds are counted apart."""
    optional = names("e", "s", "f") + tag(11, b"\x08\x2d\x1c")
    optional += tag(6, b"\x02" + text("é".encode("latin-1")) + text(b"") + b"\x01" + text("世".encode("gbk")))
    optional += tag(5, b"\x02" + text("ü".encode()) + text(b"x,y"))
    layout = parse_layout(table_map(bytes([254] * 3), b"\xf7\x01\xf8\x01\xf7\x01", optional=optional))
    assert [(c.type, c.charset, c.members) for c in columns(layout)] == [
        ("enum", "latin1", ("é", "")),
        ("set", "utf8mb4", ("ü", "x,y")),
        ("enum", "gbk", ("世",)),
    ]


def test_members_that_are_no_text_concern_their_table_alone() -> None:
    """A hexadecimal literal makes a member of any bytes: a request for the table raises an error that says what to do, and nothing else does."""
    optional = names("e") + tag(11, b"\x2d") + tag(6, b"\x01" + text(b"\xff\xff"))
    layout = parse_layout(table_map(b"\xfe", b"\xf7\x01", optional=optional))
    with pytest.raises(UnsupportedEvent, match=r"table shop\.bücher: the member X'ffff' .* no text of utf8mb4: .*--exclude"):
        _ = layout.fields


def test_sizes_scales_and_shapes() -> None:
    """Long CHAR, DECIMAL, BIT, fractional seconds, blobs of all widths and geometry types."""
    types = bytes([254, 246, 16, 18, 19, 17, 252, 252, 252, 252, 255, 255])
    meta = b"\xce\xfc" + b"\x0c\x02" + b"\x05\x01" + b"\x06\x03\x00" + b"\x01\x02\x03\x04" + b"\x04\x04"
    optional = names(*"abcdefghijkl") + tag(1, b"\0") + tag(2, b"\x2d") + tag(7, b"\x03\x00")
    layout = parse_layout(table_map(types, meta, optional=optional), mariadb=False)
    found = [(c.type, c.size, c.scale) for c in columns(layout)]
    assert found[:6] == [
        ("char", 1020, 0),
        ("decimal", 12, 2),
        ("bit", 13, 0),
        ("datetime", 0, 6),
        ("time", 0, 3),
        ("timestamp", 0, 0),
    ]
    assert [type_ for type_, _, _ in found[6:]] == ["tinytext", "text", "mediumtext", "longtext", "polygon", "geometry"]


def test_tags_of_the_future_are_skipped() -> None:
    """Optional metadata that this version does not know changes nothing."""
    plain = parse_layout(table_map(b"\x03", optional=names("a") + tag(1, b"\0")))
    more = parse_layout(table_map(b"\x03", optional=tag(99, b"?" * 40) + names("a") + tag(12, b"\x80") + tag(1, b"\0")))
    assert plain.schema == more.schema


KNOWN = TableSchema(
    "shop",
    "bücher",
    (Column("id", "int", True, False), Column("e", "enum", False, False, charset="latin1", members=("x", "é"))),
    (0,),
)


def test_a_history_supplies_what_the_log_lacks() -> None:
    """binlog_row_metadata NO_LOG: names, sign, members, character set and key come from the history."""
    layout = parse_layout(table_map(bytes([3, 254]), b"\xf7\x01"), lambda database, table: KNOWN)
    assert layout.schema == KNOWN


def test_what_the_log_says_counts_more_than_the_history() -> None:
    """With names in the log, its signs win over a history's; without, as with MINIMAL, another sign is another column."""
    full = names("id", "e") + tag(1, b"\0") + tag(10, b"\x08") + tag(6, b"\x02\x01x\x01y")
    layout = parse_layout(table_map(bytes([3, 254]), b"\xf7\x01", optional=full), lambda database, table: KNOWN)
    assert columns(layout)[0].unsigned is False
    minimal = parse_layout(table_map(bytes([3, 254]), b"\xf7\x01", optional=tag(1, b"\0")), lambda database, table: KNOWN)
    with pytest.raises(
        SchemaUnknown, match="column 1 is int signed not null in the event and id int unsigned not null in the table"
    ):
        _ = minimal.fields


@pytest.mark.parametrize(
    ("types", "meta", "match"),
    [
        (bytes([3]), b"", "the event has 1 columns .*, the table as it is followed 2"),
        (bytes([3, 254, 3]), b"\xf7\x01", "the event has 3 columns .*, the table as it is followed 2"),
        (bytes([3, 254]), b"\xf8\x01", "column 2 is set of 1 bytes not null in the event and e enum"),
    ],
)
def test_a_history_of_another_time_is_refused(types: bytes, meta: bytes, match: str) -> None:
    """A history that does not fit the event's columns is an error, not a guess."""
    layout = parse_layout(table_map(types, meta), lambda database, table: KNOWN)
    with pytest.raises(SchemaUnknown, match=match):
        _ = layout.fields


def test_hidden_hash_columns_need_no_history() -> None:
    """On MariaDB, a bigint behind the history's columns is the hash of a UNIQUE over BLOBs: read, but not shown."""
    layout = parse_layout(table_map(bytes([3, 254, 8]), b"\xf7\x01"), lambda database, table: KNOWN, mariadb=True)
    assert len(layout.fields) == 3
    assert layout.fields[2].hidden
    assert layout.schema.names == ("id", "e")


@pytest.mark.parametrize(("hidden", "bits"), [(0, b""), (2, b""), (1, tag(1, b"\x80")), (None, tag(1, b"\x80"))])
def test_a_hidden_column_is_one_that_was_followed(hidden: int | None, bits: bytes) -> None:
    """A bigint more than the hashes that the table is known to have, or a signed one, is a column that was missed."""
    body = table_map(bytes([3, 254, 8]), b"\xf7\x01", optional=bits)
    layout = parse_layout(body, lambda database, table: KNOWN, True, hidden=lambda database, table: hidden)
    with pytest.raises(SchemaUnknown, match=r"the event has 3 columns .*, the table as it is followed 2"):
        _ = layout.fields


@pytest.mark.parametrize("mariadb", [False, None])
def test_a_column_too_many_is_no_hidden_one_on_mysql(mariadb: bool | None) -> None:
    """MySQL hides no column: a bigint that the history does not know is a column it missed, and names would stand over others' values."""
    layout = parse_layout(table_map(bytes([3, 254, 8]), b"\xf7\x01"), lambda database, table: KNOWN, mariadb=mariadb)
    with pytest.raises(
        SchemaUnknown, match=r"the event has 3 columns .*, the table as it is followed 2 .*shmstore produce --start latest"
    ):
        _ = layout.fields


GOOD = table_map(bytes([3, 15]), b"\x64\x00", optional=names("a", "b") + tag(1, b"\0") + tag(2, b"\x2d"))


def test_tables_alike_share_all_but_their_names() -> None:
    """The same bytes behind other names: the same columns and decoders, another schema; one bit of difference parts them."""
    decoder = RowsDecoder()
    optional = names("a", "b") + tag(1, b"\0") + tag(2, b"\x2d")
    maps = [decoder.table_map(table_map(bytes([3, 15]), b"\x64\x00", optional=optional, table=name)) for name in ("t", "u")]
    assert [one.table for one in maps] == ["t", "u"]
    assert [decode_schema(one.schema_blob).table for one in maps] == ["t", "u"]
    assert columns(maps[0].layout) == columns(maps[1].layout)
    assert maps[0].layout.decoders is maps[1].layout.decoders
    other = decoder.table_map(table_map(bytes([3, 15]), b"\x64\x00", b"\1", optional=optional, table="v"))
    assert columns(other.layout) != columns(maps[0].layout)
    assert other.layout.decoders is not maps[0].layout.decoders


def test_today_s_tables_say_what_the_log_leaves_open() -> None:
    """A column that may be something else than the log says, and how one is defined; what does not fit the log is passed over."""

    class Today:
        tables: ClassVar[dict[str, TableSchema]] = {
            "w": TableSchema("d", "", (Column("a", "int", definition="int(9)"), Column("b", "uuid", definition="uuid"))),
            "x": TableSchema("d", "", (Column("a", "bigint", definition="bigint(20)"), Column("c", "uuid", definition="uuid"))),
        }

        def find(self, database: str, table: str) -> TableSchema | None:
            return self.tables.get(table)

    decoder = RowsDecoder(schemas=Today())
    optional = names("a", "b") + tag(1, b"\0") + tag(2, b"\x3f")

    def found(table: str) -> list[tuple[str, str]]:
        read = decoder.table_map(table_map(bytes([3, 254]), b"\xfe\x10", optional=optional, table=table))
        return [(column.type, column.definition) for column in columns(read.layout)]

    assert found("w") == [("int", "int(9)"), ("uuid", "")]  # uuid says no more than the type
    assert found("x") == found("y") == [("int", ""), ("binary", "")]


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_every_cut_is_an_error_or_lacks_only_what_was_cut(cut: int) -> None:
    """A map cut anywhere is UnsupportedEvent, or (between two tags) says what is missing."""
    try:
        layout = parse_layout(GOOD[:cut])
    except UnsupportedEvent as error:
        assert "type 19" in str(error)  # noqa: PT017
        return
    with pytest.raises(SchemaUnknown, match="binlog"):
        _ = layout.fields


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (table_map(b"\x03", b"\x01", optional=names("a")), "1 bytes of column metadata, 0 used"),
        (table_map(b"\x03", optional=names("a", "b")), "2 column names for 1"),
        (table_map(b"\x03", optional=names("a") + tag(1, b"")), "0 bytes of bits"),
        (table_map(b"\x03", optional=names("a") + tag(1, b"\0") + tag(8, b"\x05")), r"primary key \[5\]"),
        (table_map(b"\x0f", b"\x0a\0", optional=names("a") + tag(3, b"\x2d\x2d")), "2 collations for 1"),
        (table_map(b"\xf6", b"\x46\x02", optional=names("a") + tag(1, b"\0")), r"DECIMAL\(70,2\)"),
        (table_map(b"\x10", b"\x01\x08", optional=names("a")), r"BIT\(65\)"),
        (table_map(b"\x12", b"\x07", optional=names("a")), "7 digits"),
        (table_map(b"\xfe", b"\x31\x05", optional=names("a")), "real type 49"),
        (table_map(b"\xf7", b"\xc6\x24", optional=names("a") + tag(1, b"\0")), "real type 246"),
    ],
)
def test_contradictions_are_refused(body: bytes, match: str) -> None:
    """A map that contradicts itself is UnsupportedEvent with what was seen."""
    with pytest.raises(UnsupportedEvent, match=match):
        parse_layout(body)


def test_wire_types_are_the_servers() -> None:
    """enum_field_types, by number."""
    assert (Wire.JSON, Wire.NEWDECIMAL, Wire.GEOMETRY, Wire.VECTOR) == (245, 246, 255, 242)
