"""Schemas: the Spark types of a table's columns, and the rows that each payload yields.

A column has the Spark type of its Arrow type (`shmstore.encoding.arrow` has the table): as pyspark maps them, a timestamp without a zone
is TimestampNTZType, a duration DayTimeIntervalType.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructField, StructType, VariantType

from shmstore.consumer.spark.spark_version import version
from shmstore.encoding.arrow import arrow_type
from shmstore.event import Column, TableSchema


def image_type(table: TableSchema) -> StructType:
    """Return the struct type of a row image of `table`."""
    return _struct(table.columns)


def key_type(table: TableSchema) -> StructType | None:
    """Return the struct type of the primary key of `table`, or None where it has none."""
    return _struct(table.columns[i] for i in table.primary_key) if table.primary_key else None


def _struct(columns: Iterable[Column]) -> StructType:
    return StructType(
        [StructField(column.name, from_arrow_type(arrow_type(column), prefer_timestamp_ntz=True)) for column in columns]
    )


SOURCE_TYPE = StructType(
    [
        StructField("server_id", LongType()),
        StructField("file", StringType()),
        StructField("offset", LongType()),
        StructField("row", IntegerType()),
        StructField("name", StringType()),  # of the source, in a store of several
    ]
)


def _fields(before_after: DataType, key: DataType) -> list[StructField]:
    return [
        StructField("seq", StringType()),
        StructField("op", StringType()),
        StructField("database", StringType()),
        StructField("table", StringType()),
        StructField("before", before_after),
        StructField("after", before_after),
        StructField("ts_ms", LongType()),
        StructField("source", SOURCE_TYPE),
        StructField("transaction", StringType()),
        StructField("pk", key),
        StructField("ddl", StringType()),
    ]


JSON_SCHEMA = StructType(_fields(StringType(), StringType()))
VARIANT_SCHEMA = StructType(_fields(VariantType(), VariantType()))
RAW_SCHEMA = StructType(
    [
        StructField("sequence", LongType()),
        StructField("op", StringType()),
        StructField("rows", LongType()),
        StructField("ts_ms", LongType()),
        StructField("file_number", LongType()),
        StructField("offset", LongType()),
        StructField("payload", BinaryType()),
        StructField("source", StringType()),
    ]
)


def typed_schema(table: TableSchema) -> StructType:
    """Return the schema of the typed payload of `table`: `before` and `after` are structs of its columns."""
    return StructType(_fields(image_type(table), key_type(table) or StringType()))


def schema_of(payload: str, table: TableSchema | None) -> StructType:
    """Return the schema of a payload: json, variant, raw, or typed, which is that of `table`."""
    if table is not None:
        return typed_schema(table)
    return {"raw": RAW_SCHEMA, "variant": VARIANT_SCHEMA}.get(payload, JSON_SCHEMA)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark demands of RecordBatches for `schema`: it must match to the letter."""
    if version() >= (4, 2):
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # in UTC, too
