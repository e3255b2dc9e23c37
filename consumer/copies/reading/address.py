"""Where copies are, as one text: ``delta:/lake/{database}/{table}``, ``duckdb:///FILE``, ``sqlite:///FILE#{table}``, ``postgresql://USER@HOST/DB#{table}``.

Behind ``delta://`` and ``parquet://`` is the path itself (``delta:///lake`` is /lake). A file of a database is written as SQLAlchemy does: behind
``duckdb:///`` and ``sqlite:///`` is the path, so that one that begins with a slash has four (`file_of`).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from shmstore.consumer.copies.database_url import KINDS as DATABASES
from shmstore.consumer.copies.database_url import file_of, server_url, without_secrets
from shmstore.errors import did_you_mean

KINDS = ("delta", "parquet", "iceberg", "duckdb", "ducklake", *DATABASES)
FORMS = (
    "delta:PATH or URL, parquet:PATH, iceberg:PATH or CATALOG, duckdb:///FILE, ducklake:///FILE, sqlite:///FILE, "
    "postgresql://USER@HOST:PORT/DATABASE or mysql://USER@HOST:PORT/DATABASE; {database} and {table} are the source's names; a "
    "folder without them means FOLDER/{database}/{table}. After a database or catalog, #NAME is the table (default: #{table}; "
    "DuckDB, MySQL and Iceberg: #{database}.{table})"
)


class CopyAddress(NamedTuple):
    """Where copies are. `place` and `name` may hold ``{database}`` and ``{table}``; `name` is the table's, of a database."""

    kind: str
    place: str
    name: str

    @property
    def url(self) -> str:
        """The URL of the database that they are in."""
        return f"sqlite:{self.place}" if self.kind == "sqlite" else self.place

    def of(self, database: str, table: str) -> CopyAddress:
        """Return where the copy of one table is."""

        def filled(text: str) -> str:
            return text.replace("{database}", database).replace("{table}", table)

        return CopyAddress(self.kind, filled(self.place), filled(self.name))

    @property
    def absolute(self) -> str:
        """The place as it is called from any folder."""
        return self.place if "://" in self.place else os.path.abspath(self.place)


def parse(text: str) -> CopyAddress:
    """Return the address that `text` is. Raises ValueError."""
    kind, colon, place = text.partition(":")
    shown = without_secrets(text)
    if kind not in KINDS or not colon or not place:
        raise ValueError(f"{shown!r} is not a copy location: give {FORMS}{did_you_mean(kind, KINDS)}")
    name = ""
    if kind in ("delta", "parquet"):
        place = place.removeprefix("//")
        if "{table}" not in place:
            place = f"{place.rstrip('/')}/{{database}}/{{table}}"
        return CopyAddress(kind, place, name)
    if kind == "iceberg" and "/" in place:
        if "{table}" not in place:
            raise ValueError(
                f"{shown!r} names one place for all copies: put {{table}} into it, and {{database}} if there are several"
            )
        return CopyAddress(kind, place, name)
    place, _, name = place.partition("#")
    if kind == "iceberg":
        return CopyAddress(kind, place, name or "{database}.{table}")
    if kind in ("duckdb", "ducklake", "sqlite"):
        return CopyAddress(kind, file_of(kind, place), name or ("{table}" if kind == "sqlite" else "{database}.{table}"))
    if not place.startswith("//"):
        raise ValueError(f"{shown!r} names no server: give {kind}://USER@HOST:PORT{'/DATABASE' * (kind == 'postgresql')}")
    if kind == "postgresql":
        return CopyAddress(kind, f"postgresql:{place}", name or "{table}")
    url = f"{kind}:{place}"
    database = server_url(url).database
    if name and "." not in name and not database:
        raise ValueError(
            f"{shown!r}: #{name} names a table without its database: give #DATABASE.TABLE, as #{{database}}.{{table}}"
        )
    return CopyAddress(kind, url, name if "." in name else f"{database or '{database}'}.{name or '{table}'}")
