"""A table of the server as a DataFrame: executors read its parts straight from the server, without the store and without JDBC.

Each partition is one part, read by a connection that the executor opens itself. Its rows come as encoded events, as the store would have
them, and become columns by the same code as a query's. So the columns have the types of a typed query's `after`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from shmstore.consumer.spark.decode.schema import arrow_schema, image_type
from shmstore.consumer.spark.decode.worker_memory import settle
from shmstore.consumer.spark.options import ZERO_DATES, OptionError
from shmstore.encoding.arrow_rows import index_events, read_rows
from shmstore.event import TableSchema


class PartedTable(Protocol):
    """A table in parts, which travels to executors: `shmstore.producer.ServerTable`."""

    @property
    def name(self) -> str:
        """``DATABASE.TABLE``."""

    @property
    def parts(self) -> int:
        """How many parts there are."""

    @property
    def schema(self) -> TableSchema:
        """Its columns."""

    def read(self, part: int) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """Yield the rows of a part as encoded events of that schema, and where these end."""


def read_table(spark: SparkSession, table: PartedTable, *, zero_dates: str = "fail") -> DataFrame:
    """Return the rows of `table`, one of `shmstore.producer.ServerTables`, a partition for each of its parts.

    Each action reads them again, at or after the position that the table was opened at. `zero_dates` is ``fail`` or ``null``, as the
    option `zeroDates`. The process that streams the store's changes from event ``table.sequence`` on, into what was made of the rows, and puts each
    in place of the row with its key, has the table. The password travels to the executors; no plan and no log shows it.
    """
    if zero_dates not in ZERO_DATES:
        raise OptionError(f"zero_dates={zero_dates!r}: one of {', '.join(ZERO_DATES)}")

    def read(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in numbers(parts):
            yield from rows_of(table, part, zero_dates)

    return partitions(spark, table.parts, read, image_type(table.schema))


def partitions(
    spark: SparkSession,
    parts: int,
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """Return what `work` makes of each of the numbers 0 to `parts` - 1, which `numbers` gives it, in a task of its own."""
    return spark.range(0, parts, 1, parts).mapInArrow(work, schema)


def numbers(parts: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers of the parts that a task is to read."""
    for batch in parts:
        yield from batch.column(0).to_pylist()


def rows_of(table: PartedTable, part: int, zero_dates: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, in an executor. Raises `ZeroDate`, and what reading raises."""
    settle()
    schema = table.schema
    fields = arrow_schema(image_type(schema))
    image, mapping = pa.struct(list(fields)), list(range(len(fields)))
    for raw, ends in table.read(part):
        events, run = index_events(raw, ends), np.arange(len(ends))
        # A number for `seq`, as it is not used: its text costs more.
        after = read_rows(events, run, schema, mapping, image, zero_dates=zero_dates, sequences=run).column("after")
        yield pa.RecordBatch.from_arrays(after.flatten(), schema=fields)
