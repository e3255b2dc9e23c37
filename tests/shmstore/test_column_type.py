"""shmstore.column_type, and how a definition travels with a schema."""

from __future__ import annotations

import pytest

from shmstore.column_type import column_type, defined, logged_type
from shmstore.encoding.codec import bare_schema, decode_schema, encode_schema
from shmstore.errors import StoreCorrupt
from shmstore.event import Column, TableSchema

PLAIN = TableSchema(
    "s", "t", (Column("id", "int"), Column("flag", "tinyint", unsigned=True), Column("e", "enum", members=("a'b",))), (0,)
)


def test_a_definition_is_kept_where_it_says_more() -> None:
    """The log's own words are no definition: a schema without any has the bytes that it always had."""
    column = Column("a", "varchar", size=80, charset="utf8mb4")
    assert logged_type(column) == "varchar(20)"
    assert defined(column, "varchar(20)").definition == ""
    assert column_type(defined(column, "VARCHAR(20)")) == "VARCHAR(20)"
    assert [column_type(one) for one in PLAIN.columns] == ["int", "tinyint unsigned", "enum('a''b')"]


def test_definitions_travel_with_the_schema() -> None:
    """What is encoded is decoded, and without the definitions it is the schema that the log alone gives."""
    wide = PLAIN._replace(columns=(PLAIN.columns[0], defined(PLAIN.columns[1], "tinyint(1) unsigned"), PLAIN.columns[2]))
    for schema in (wide, PLAIN._replace(unique_key=True), wide._replace(unique_key=True)):
        blob = encode_schema(schema)
        assert decode_schema(blob) == schema
        assert bare_schema(blob) == encode_schema(PLAIN) != blob
    assert bare_schema(encode_schema(PLAIN)) == encode_schema(PLAIN)
    assert bare_schema(b"") == b""


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_damaged_schema_is_refused(cut: int) -> None:
    blob = encode_schema(PLAIN._replace(unique_key=True))
    with pytest.raises(StoreCorrupt):
        decode_schema(blob[:-cut])
