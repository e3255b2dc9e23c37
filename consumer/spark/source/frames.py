"""changes: the changes of tables as streaming DataFrames in typed columns, without a word of options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from pyspark.sql import DataFrame, SparkSession

from shmstore.consumer.spark.options import OptionError, SourceOptions, default_subscription
from shmstore.consumer.spark.source.source import register
from shmstore.consumer.spark.source.subscription_owner import attach
from shmstore.consumer.table_schemas import defined, schemas
from shmstore.encoding.codec import decode_schema

Value = str | int | float | bool


@overload
def changes(
    spark: SparkSession, store: str, tables: str, *, views: bool = False, subscription: str | None = None, **options: Value
) -> DataFrame: ...


@overload
def changes(
    spark: SparkSession,
    store: str,
    tables: list[str] | tuple[str, ...],
    *,
    views: bool = False,
    subscription: str | None = None,
    **options: Value,
) -> dict[str, DataFrame]: ...


def changes(
    spark: SparkSession,
    store: str,
    tables: str | list[str] | tuple[str, ...],
    *,
    views: bool = False,
    subscription: str | None = None,
    **options: Value,
) -> DataFrame | dict[str, DataFrame]:
    """Return the changes of a table as a streaming DataFrame; of several, given as a list of names and patterns, a dict of them by name.

    `before`, `after` and `pk` are structs of the table's columns, those of the next row that the query reads. With `views` each is a temporary view, too,
    of the table's name; of several tables of one name ``DATABASE_TABLE``. `options` are those of ``format("shmstore")``, as ``maxRowsPerTrigger=10_000``.

    Each frame has a subscription of its own, named after the program (``spark.app.name``) and the table, so that the program finds its place again; a second
    frame of a table in one query gets a number, too. A second query over the same table needs a name of its own: `subscription`, which of several tables is
    what their names begin with.

    Raises `OptionError` and, where a store or a table is not known, what Spark makes of `StoreNotFound` and `SchemaUnknown`.
    """
    if isinstance(tables, str) and not SourceOptions.parse({"store": store, "tables": tables}).tables.one:
        raise OptionError(
            f"tables={tables!r} is not one table: give a list for several, as changes(spark, {store!r}, [{tables!r}])"
        )
    register(spark)
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}

    def load(table: str) -> DataFrame:
        more = {**given, "store": store, "tables": table}
        if subscription is None:
            more["program"] = _program(spark)
        else:
            more["subscription"] = subscription if isinstance(tables, str) else default_subscription(subscription, table)
        SourceOptions.parse(more)  # a wrong option is an error of this line
        return spark.readStream.format("shmstore").options(**more).load()

    names = [tables] if isinstance(tables, str) else _named(store, tables, given)
    frames = {name: load(name) for name in names}
    if views:
        _make_views(frames)
    return frames[tables] if isinstance(tables, str) else frames


def _program(spark: SparkSession) -> str:
    """A name of this program that is the same in each run."""
    name = spark.conf.get("spark.app.name", "") or "spark"
    return "spark" if name.count("-") == 4 and len(name) == 36 else name  # a random one, where the program gave none


def _named(store: str, tables: Sequence[str], given: dict[str, str]) -> list[str]:
    """The names of single tables that `tables` names and matches, as the store knows them, each once."""

    def parsed(text: str) -> SourceOptions:
        return SourceOptions.parse({**given, "store": store, "tables": text, "payload": "json"})

    single = [one for one in (parsed(text).tables.one for text in tables) if one]
    if len(single) == len(tables):
        return list(dict.fromkeys(single))
    wanted = parsed(",".join(tables))
    with attach(wanted) as there:
        seen = map(decode_schema, schemas(there, there.oldest, there.newest))
        known = {(one.database, one.table) for one in seen} | {one.name for one in defined(there).values()}
    matching = sorted(f"{database}.{table}" for database, table in known if wanted.wants(database, table))
    if not matching:
        raise OptionError(f"store {store!r} knows no table that {', '.join(tables)} matches; it knows {_shown(known)}")
    return list(dict.fromkeys([*single, *matching]))


def _shown(known: set[tuple[str, str]]) -> str:
    names = sorted(".".join(name) for name in known)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _make_views(frames: dict[str, DataFrame]) -> None:
    tables = [name.split(".", 1)[1] for name in frames]
    for (name, frame), table in zip(frames.items(), tables, strict=True):
        frame.createOrReplaceTempView(f"`{_view(table if tables.count(table) == 1 else name.replace('.', '_', 1))}`")


def _view(name: str) -> str:
    return name.replace("`", "``")
