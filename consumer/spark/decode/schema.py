"""Schemas: a MySQL column's Spark type, and the rows that each payload yields.

MySQL                                            Spark
TINYINT                                          ByteType; unsigned: ShortType
SMALLINT                                         ShortType; unsigned: IntegerType
MEDIUMINT, YEAR                                  IntegerType
INT                                              IntegerType; unsigned: LongType
BIGINT                                           LongType; unsigned: DecimalType(20, 0)
BIT(n)                                           LongType; more than 63 bits: DecimalType(20, 0)
DECIMAL(p, s)                                    DecimalType(p, s); more than 38 digits: StringType
FLOAT, DOUBLE                                    FloatType, DoubleType
DATE                                             DateType
DATETIME(f)                                      TimestampNTZType
TIMESTAMP(f)                                     TimestampType
TIME(f)                                          DayTimeIntervalType (it may be negative, and beyond 24 hours)
BINARY, VARBINARY, BLOB, GEOMETRY, VECTOR        BinaryType
CHAR, VARCHAR, TEXT, ENUM, SET, JSON, the rest   StringType
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from shmstore.event import Column, TableSchema

_UNSIGNED_LONG = DecimalType(20, 0)
_INTEGERS: dict[str, tuple[DataType, DataType]] = {
    "tinyint": (ByteType(), ShortType()),
    "smallint": (ShortType(), IntegerType()),
    "mediumint": (IntegerType(), IntegerType()),
    "year": (IntegerType(), IntegerType()),
    "int": (IntegerType(), LongType()),
    "integer": (IntegerType(), LongType()),
    "bigint": (LongType(), _UNSIGNED_LONG),
}
_OTHERS: dict[str, DataType] = {
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "datetime": TimestampNTZType(),
    "timestamp": TimestampType(),
    "time": DayTimeIntervalType(DayTimeIntervalType.DAY, DayTimeIntervalType.SECOND),
}
BINARY_TYPES = frozenset(
    {
        "binary",
        "varbinary",
        "tinyblob",
        "blob",
        "mediumblob",
        "longblob",
        "vector",
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)
MAX_DECIMAL_DIGITS = 38


def spark_type(column: Column) -> DataType:
    """Return the Spark type that holds every value of `column` exactly."""
    kind = column.type
    if kind in _INTEGERS:
        return _INTEGERS[kind][column.unsigned]
    if kind == "bit":
        return LongType() if column.size < 64 else _UNSIGNED_LONG
    if kind == "decimal":
        return DecimalType(column.size, column.scale) if column.size <= MAX_DECIMAL_DIGITS else StringType()
    if kind in BINARY_TYPES:
        return BinaryType()
    return _OTHERS.get(kind, StringType())


def image_type(table: TableSchema) -> StructType:
    """Return the struct type of a row image of `table`."""
    return StructType([StructField(column.name, spark_type(column)) for column in table.columns])


def key_type(table: TableSchema) -> StructType | None:
    """Return the struct type of the primary key of `table`, or None where it has none."""
    if not table.primary_key:
        return None
    return StructType([StructField(table.columns[i].name, spark_type(table.columns[i])) for i in table.primary_key])


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
VARIANT_SCHEMA = StructType(_fields(VariantType(), StringType()))
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
    return to_arrow_schema(schema, timezone="UTC")
