"""Which targets there are: those of this package, and those of others, by the entry points ``shmstore.targets``.

An entry point names a function like those here, `Make`: it gets what is behind ``KIND:`` in ``--to``, and the options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final, NamedTuple

from shmstore.consumer.copies.database_url import KINDS as DATABASES
from shmstore.consumer.copies.database_url import without_secrets
from shmstore.consumer.copies.reading.address import CopyAddress, parse
from shmstore.consumer.copies.target import Target
from shmstore.errors import did_you_mean, install


class TargetOptions(NamedTuple):
    """What a target is opened with besides its address. A target that has no use for one that is given raises ValueError."""

    storage: Mapping[str, str] = MappingProxyType({})  # delta-rs's storage options, for an object store
    optimize: int = 0  # commits to a Delta table after which its small files are put together
    password: str = ""
    stopped: Callable[[], bool] | None = None  # asked in long waits: where it returns true they end

    def only(self, kind: str, *used: str) -> None:
        """Raise ValueError where an option was given that is not among `used`."""
        wrong = [name for name in self._fields if name not in (*used, "stopped") and getattr(self, name)]
        if wrong:
            raise ValueError(f"--to {kind}: has no use for {' or '.join(wrong)}: leave it out")


class OpenedTarget(NamedTuple):
    """A target; the template of its copies' paths (`CopySet`); and its name in messages and in the store's home, without secrets."""

    target: Target
    template: str
    place: str


Make = Callable[[str, TargetOptions], OpenedTarget]


def delta(place: str, options: TargetOptions) -> OpenedTarget:
    """Delta tables: ``delta:PATH``, ``delta:s3://BUCKET/PATH``."""
    options.only("delta", "storage", "optimize")
    try:
        from shmstore.consumer.copies.targets import delta as made
    except ImportError as error:
        raise ImportError(f"copies in Delta need deltalake, which is not installed: {install('delta')}") from error
    address = parse(f"delta:{place}")
    return OpenedTarget(made.target(options.storage, options.optimize), address.place, _named(address))


def parquet(place: str, options: TargetOptions) -> OpenedTarget:
    """Parquet files: ``parquet:PATH``."""
    options.only("parquet")
    try:
        from shmstore.consumer.copies.targets.folders import AT_ONCE, Folders
        from shmstore.consumer.copies.targets.parquet import ParquetTable
    except ImportError as error:
        raise ImportError(f"copies in Parquet need pyarrow, which is not installed: {install('arrow')}") from error
    address = parse(f"parquet:{place}")
    if "://" in address.place:
        raise ValueError(
            f"parquet:{place}: Parquet copies are files of this host, replaced by a rename; an object store takes delta:{place}"
        )
    return OpenedTarget(Folders(ParquetTable, at_once=AT_ONCE), address.place, _named(address))


def duckdb(place: str, options: TargetOptions, kind: str = "duckdb") -> OpenedTarget:
    """Tables of a DuckDB file: ``duckdb:///FILE``; of the DuckLake that such a file is the catalog of: ``ducklake:///FILE``."""
    options.only(kind)
    try:
        from shmstore.consumer.copies.targets.duckdb import DuckDB
    except ImportError as error:
        raise ImportError(f"copies in DuckDB need duckdb and pyarrow, which are not installed: {install(kind)}") from error
    address = parse(f"{kind}:{place}")
    return OpenedTarget(DuckDB(address.place, lake=kind == "ducklake"), address.name, _named(address))


def _database(kind: str, place: str, options: TargetOptions) -> OpenedTarget:
    """Tables of a database: ``postgresql://USER@HOST/DATABASE``, ``mysql://USER@HOST:PORT``, ``sqlite:///FILE``, with ``#NAME`` behind it."""
    from shmstore.consumer.copies.databases.target import database_target

    options.only(kind, "password")
    address = parse(f"{kind}:{place}")
    return OpenedTarget(
        database_target(address.url, options.password, options.stopped),
        address.name,
        f"{without_secrets(address.url)}#{address.name}",
    )


def _named(address: CopyAddress) -> str:
    """The address with the file or folder as it is from anywhere."""
    return f"{address.kind}:{address.absolute}" + (f"#{address.name}" if address.name else "")


_OURS: Final[dict[str, Make]] = {
    "delta": delta,
    "parquet": parquet,
    "duckdb": duckdb,
    "ducklake": partial(duckdb, kind="ducklake"),
    **{kind: partial(_database, kind) for kind in DATABASES},
}


def kinds() -> list[str]:
    """Return the kinds of target that ``--to`` can name."""
    return [*_OURS, *(point.name for point in entry_points(group="shmstore.targets") if point.name not in _OURS)]


def open_target(text: str, options: TargetOptions) -> OpenedTarget:
    """Return the target that ``KIND:PLACE`` names. Raises ValueError, and ImportError where a package is missing."""
    kind, colon, place = text.partition(":")
    if not colon or not place:
        raise ValueError(
            f"{text!r} does not say where the copies go: give KIND:PLACE, with {', '.join(kinds())} for KIND, as duckdb:///copy.duckdb"
        )
    if kind in _OURS:
        return _OURS[kind](place, options)
    for point in entry_points(group="shmstore.targets", name=kind):
        make: Make = point.load()
        return make(place, options)
    raise ValueError(f"there is no target {kind!r}: there are {', '.join(kinds())}{did_you_mean(kind, kinds())}")
